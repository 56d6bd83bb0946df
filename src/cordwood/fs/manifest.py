"""Two objects show the state of a copy in an object store: a manifest marks it as complete, a run object as unfinished.

    s3://bucket/copy/
      .cordwood-run.json       put first, if absent: the run that makes this copy. Removed last
      .cordwood/RUN/           outputs of that run's tasks, before they are renamed
      orders-0/…               the files, as in a directory
      .cordwood-copy.json      the manifest, put last, if absent: every file with its size, CRC-32C and time

An object store cannot rename a directory, so a copy does not appear as a whole. Readers check these two objects
instead: with a manifest, the files must match it; with a run and no manifest, the copy is unfinished, and must not be
used. A directory with neither was not written by Cordwood, and its list of files is unknown.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from cordwood.common.errors import CorruptFileError

MANIFEST = ".cordwood-copy.json"
RUN = ".cordwood-run.json"
#: The folder of files that a run has written and not yet renamed.
WORK = ".cordwood"
#: Names at the root of a copy that are not files of the log.
OWN_NAMES = frozenset([MANIFEST, RUN, WORK])
#: The folder with the manifests of a live log's tier (`storage.tier.generations`), which is never part of a copy.
TIER_FOLDER = ".cordwood-tier"
#: Larger than the manifest of any copy: with 100,000 files it has 20 MB.
MANIFEST_BYTES_MAX = 256 << 20
_VERSION = 1


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """A file of a copy.

    Attributes:
        mtime_ns: modification time of the original, in nanoseconds since the epoch; Kafka's retention may use it.
        e_tag: the object's ETag, or None if the store has no ETags.
    """

    path: str
    size_bytes: int
    crc32c: int
    mtime_ns: int
    e_tag: str | None


@dataclass(frozen=True)
class Manifest:
    """All files of a copy, and the run that made it."""

    run: str
    files: tuple[CopiedFile, ...]

    @cached_property
    def by_directory(self) -> Mapping[str, Mapping[str, CopiedFile | None]]:
        """The names in each directory, by its path in the copy; None marks a subdirectory."""
        found: dict[str, dict[str, CopiedFile | None]] = {"": {}}
        for file in self.files:
            directory, name = posixpath.split(file.path)
            found.setdefault(directory, {})[name] = file
            while directory:
                above, name = posixpath.split(directory)
                found.setdefault(above, {})[name] = None
                directory = above
        return found

    def encode(self) -> bytes:
        """Encode the manifest as JSON."""
        files = [asdict(file) for file in self.files]
        return json.dumps({"version": _VERSION, "run": self.run, "files": files}, indent=0).encode()


def decode(data: bytes, path: str) -> Manifest:
    """Decode a manifest; raise CorruptFileError if it is invalid."""
    try:
        found: Any = json.loads(data)
        if found["version"] != _VERSION:
            what = f"a manifest of version {found['version']}; this version of Cordwood reads version {_VERSION}"
            raise CorruptFileError(what, path=path)
        files = tuple(CopiedFile(**one) for one in found["files"])
        for file in files:
            _check(file)
        return Manifest(str(found["run"]), files)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(f"not the manifest of a copy: {error}", path=path) from None


def _check(file: CopiedFile) -> None:
    if any(type(number) is not int or number < 0 for number in (file.size_bytes, file.crc32c, file.mtime_ns)):
        raise ValueError(f"not a file: {file}")
    if file.path.startswith("/") or any(part in ("", ".", "..") for part in file.path.split("/")):
        raise ValueError(f"{file.path!r} leads out of the copy")


def differences(
    expected: Mapping[str, CopiedFile | None], found: Iterable[tuple[str, int, str | None]], directories: Iterable[str]
) -> list[str]:
    """Describe how a directory differs from its manifest.

    Args:
        found: name, size and ETag of the existing objects.
    """
    there = {name: (size_bytes, e_tag) for name, size_bytes, e_tag in found}
    words = []
    for name, file in expected.items():
        if file is None:
            continue
        if name not in there:
            words.append(f"{name} is missing")
        elif there[name][0] != file.size_bytes:
            words.append(f"{name} has {there[name][0]} bytes, and had {file.size_bytes}")
        elif file.e_tag is not None and there[name][1] is not None and there[name][1] != file.e_tag:
            words.append(f"{name} was replaced")
    words += [f"{name} does not belong to it" for name in sorted({*there, *directories} - {*expected, *OWN_NAMES})]
    words += [f"{name}/ is missing" for name in sorted(set(_directories(expected)) - set(directories))]
    return words


def _directories(expected: Mapping[str, CopiedFile | None]) -> list[str]:
    return [name for name, file in expected.items() if file is None]
