"""The class archive: Spark's classes in Java's in-memory format, which Java maps instead of loading and verifying them.

It saves about half of Java's start-up time. One Java run records which classes it loads, and a second one writes them
to the archive: at set-up, or in the background after the first run of an installed package.

    java-KEY-CHECKSUM.jsa     KEY: hash of the Java runtime, jars and options that the archive is made for
    java-KEY.failed           Java cannot make this archive, so later runs do not try again

An archive is optional. Java checks that it matches the classes and options, but not its content, so this module first
checks its owner, mode and checksum. Without a valid archive Java starts as usual.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from cordwood.common.cache import cache_folder

#: Number of archives to keep, including archives for other environments, and for this one before an update.
_KEPT = 3
_READ_BYTES = 1 << 20
_MAKES_SECONDS_MAX = 600


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive for one Java command line, whether it exists or not.

    Attributes:
        command: the command line, without the main class.
    """

    command: tuple[str, ...]
    key: str

    @classmethod
    def of(cls, command: Sequence[str], jars: Iterable[Path]) -> Archive:
        """Describe the archive for a command line with these jars."""
        java = Path(os.path.realpath(command[0]))
        # These options differ from run to run, and do not affect the archive.
        words = [word for word in command[1:] if not word.startswith(("-Djava.io.tmpdir=", "-Xmx"))]
        files = [java, java.parents[1] / "release", *java.parents[1].glob("lib/server/libjvm.*"), *jars]
        known = [str(java), *words, *map(_identity, files)]
        return cls(tuple(command), hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16])

    def options(self) -> list[str]:
        """Return the Java options that select the archive; empty if it is missing or invalid."""
        found = self.find()
        return [] if found is None else ["-Xshare:auto", f"-XX:SharedArchiveFile={found}"]

    def find(self) -> Path | None:
        """Return the path of the archive, or None if it is missing or invalid."""
        with contextlib.suppress(OSError):
            for path in cache_folder().glob(f"java-{self.key}-*.jsa"):
                if _is_good(path):
                    return path
        return None

    def drop(self) -> None:
        """Remove the archive because Java does not start with it, and do not make it again."""
        with contextlib.suppress(OSError):
            for path in cache_folder().glob(f"java-{self.key}-*.jsa"):
                path.unlink(missing_ok=True)
            self._failed.touch(mode=0o600)

    @property
    def is_wanted(self) -> bool:
        """Whether to make the archive: it does not exist, and no attempt has failed."""
        return not self._failed.exists() and self.find() is None

    @property
    def _failed(self) -> Path:
        return cache_folder() / f"java-{self.key}.failed"

    def make(self, classes: Path) -> Path | None:
        """Make the archive.

        Args:
            classes: Java's list of the classes that a run loaded.

        Returns:
            the path of the archive, or None if Java cannot make it.
        """
        folder = cache_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _held_folder(f"{folder}/java-") as making:
            written = Path(making) / "archive"
            options = ["-Xshare:dump", f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={written}"]
            done = subprocess.run(
                [self.command[0], *options, *self.command[1:]],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_MAKES_SECONDS_MAX,
                check=False,
            )
            if done.returncode or not written.is_file():
                self._failed.touch(mode=0o600)
                return None
            os.chmod(written, 0o600)
            with open(written, "rb") as file:
                os.fsync(file.fileno())
            path = folder / f"java-{self.key}-{_checksum(written):08x}.jsa"
            written.rename(path)
        for old in sorted(folder.glob("java-*.jsa"), key=lambda one: -one.stat().st_mtime)[_KEPT:]:
            old.unlink(missing_ok=True)
        return path


@contextlib.contextmanager
def _held_folder(prefix: str) -> Iterator[str]:
    """Create a temporary folder; if this process is killed, the next one to create such a folder removes it."""
    # Imported here, as this module is imported to start Java and must load fast.
    from cordwood.fs.temporary import make_held, release, remove_abandoned

    remove_abandoned(prefix)
    path = make_held(prefix)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        release(path)


def _identity(path: Path) -> str:
    try:
        info = path.stat()
    except OSError:
        return f"{path.name} -"
    return f"{path.name} {info.st_size} {info.st_mtime_ns}"


def _is_good(path: Path) -> bool:
    """Return whether only this user can have written the file, and its checksum matches its name."""
    info = path.lstat()
    is_own = stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & 0o077
    return is_own and info.st_size > 0 and path.stem.rsplit("-", 1)[1] == f"{_checksum(path):08x}"


def _checksum(path: Path) -> int:
    found = 0
    with open(path, "rb") as file:
        while part := file.read(_READ_BYTES):
            found = crc32c(part, found)
    return found


def make_in_background() -> None:
    """Start a process that makes the archive at low priority and may outlive this process."""
    with contextlib.suppress(OSError):
        subprocess.Popen(
            [sys.executable, "-m", "cordwood.tasks.spark.archiving"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
