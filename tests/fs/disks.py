"""Disks and stores that fail, fill up, refuse changes or call a test before an operation."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import posixpath
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from cordwood.common.types import override
from cordwood.fs.base import Bytes, File, FileInfo, LocalFileSystem, PutMode, ReadableFile, Store
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.wrapped import WrappedFile, WrappedFileSystem

#: Called with a verb and its path; of two paths with the first.
Before = Callable[[str, str], None]


class Acting(WrappedFileSystem):
    """Calls a function before a file is opened, created, copied, renamed, written or synced.

    The function may use the file system within; its exceptions are raised by the verb. Tasks run in this process, and
    one operation after the other.
    """

    def __init__(self, fs: LocalFileSystem, before: Before) -> None:
        super().__init__(fs)
        self._before = before

    @property
    @override
    def concurrency(self) -> int:
        return 1

    @override
    def open(self, path: str) -> File:
        self._before("open", path)
        return super().open(path)

    @override
    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:
        self._before("create", path)
        return _ActingFile(super().create(path, exclusive=exclusive, mode=mode), self._before)

    @override
    def copy(self, source: str, target: str, *, mode: int = 0o666) -> None:
        self._before("copy", source)
        super().copy(source, target, mode=mode)

    @override
    def rename(self, source: str, target: str) -> None:
        self._before("rename", source)
        super().rename(source, target)


class _ActingFile(WrappedFile):
    def __init__(self, file: File, before: Before) -> None:
        super().__init__(file)
        self._before = before

    @override
    def write(self, position: int, data: Bytes) -> None:
        self._before("write", self.path)
        super().write(position, data)

    @override
    def sync(self) -> None:
        self._before("sync", self.path)
        super().sync()


def spoil(fs: LocalFileSystem, path: str) -> None:
    """Change the last byte of a file."""
    with fs.open_for_update(path) as file:
        last = file.size() - 1
        file.write(last, bytes([file.read(last, 1)[0] ^ 1]))


# ---- little free space -----------------------------------------------------------------------------------------------


class Room(PosixFileSystem):
    """This machine's files, on a disk that reports a given free space, and shares no blocks."""

    def __init__(self, free: int | None) -> None:
        self._free = free

    def free_bytes(self, path: str) -> int | None:
        return self._free

    def shares_blocks(self, path: str) -> bool:
        return False


# ---- only reading ----------------------------------------------------------------------------------------------------


#: All verbs, of the protocol itself: a new one is refused until it is named below.
VERBS = frozenset(name for name in dir(LocalFileSystem) if not name.startswith("_"))
#: These verbs change no file, in any folder.
READING = frozenset(
    {
        *(
            "list",
            "names_in",
            "stat",
            "exists",
            "open",
            "lock_holder",
            "absolute_path",
            "real_path",
            "free_bytes",
            "disk_size",
        ),
        *("network_kind", "location", "concurrency", "make_temporary_directory", "path_on_disk", "reads_by_request"),
    }
)
#: Verbs that only read the first of two paths.
READING_THE_FIRST = frozenset(["copy", "symlink"])


class OnlyRead(WrappedFileSystem):
    """A file system with one read-only folder.

    Attributes:
        allowed: verbs that are not refused in this test although they change something.
        seen: the allowed verbs that were used on the folder, with their paths.
    """

    def __init__(self, fs: LocalFileSystem, folder: str, *, allowed: tuple[str, ...] = ()) -> None:
        super().__init__(fs)
        self._folder = folder.rstrip("/")
        self.allowed = allowed
        self.seen: list[tuple[str, tuple[str, ...]]] = []

    def check(self, verb: str, paths: tuple[str, ...]) -> None:
        if any(f"{path}/".startswith(f"{self._folder}/") for path in paths):
            assert verb in self.allowed, f"{verb} {' '.join(paths)}: {self._folder} is only to be read"
            self.seen.append((verb, paths))


def _checked(verb: str) -> Callable[..., Any]:
    def call(self: OnlyRead, *arguments: Any, **options: Any) -> Any:
        values = [*arguments, *options.values()]
        # `target` gets a list of folders that are only read.
        lists = [value for value in values if isinstance(value, list) and verb != "target"]
        paths = tuple(value for value in itertools.chain(values, *lists) if isinstance(value, str))
        self.check(verb, paths[1:] if verb in READING_THE_FIRST else paths)
        return getattr(WrappedFileSystem, verb)(self, *arguments, **options)

    return call


for _verb in VERBS - READING:
    setattr(OnlyRead, _verb, _checked(_verb))


# ---- a store that is no disk -----------------------------------------------------------------------------------------


class ReadOnlyStore(Store):
    """Files by their paths. As in an object store, a directory is there as long as a file is in it.

    Args:
        files: contents, and modification time in nanoseconds since the epoch, by path.
    """

    def __init__(self, files: Mapping[str, tuple[bytes, int]]) -> None:
        self._files = dict(files)

    @classmethod
    def copy_of(cls, store: Store, *paths: str) -> Self:
        """The files in some directories of another store."""
        files: dict[str, tuple[bytes, int]] = {}

        def add(path: str) -> None:
            for info in store.list(path):
                name = f"{path}/{info.name}"
                if info.is_directory:
                    add(name)
                else:
                    with store.open(name) as file:
                        files[name] = file.read(0, info.size_bytes), info.mtime_ns

        for path in paths:
            add(path)
        return cls(files)

    @override
    def list(self, path: str) -> Sequence[FileInfo]:
        inside = posixpath.join(path, "")
        names = {name[len(inside) :].partition("/")[0] for name in self._files if name.startswith(inside)}
        if not names:
            raise _error(errno.ENOTDIR if path in self._files else errno.ENOENT, path)
        return [self.stat(f"{inside}{name}") for name in sorted(names)]

    @override
    def stat(self, path: str) -> FileInfo:
        path = path.rstrip("/")
        if path in self._files:
            data, mtime_ns = self._files[path]
            return FileInfo(posixpath.basename(path), len(data), mtime_ns, is_directory=False)
        if any(name.startswith(f"{path}/") for name in self._files):
            return FileInfo(posixpath.basename(path), 0, 0, is_directory=True)
        raise _error(errno.ENOENT, path)

    @override
    def exists(self, path: str) -> bool:
        try:
            self.stat(path)
        except FileNotFoundError:
            return False
        return True

    @override
    def open(self, path: str) -> ReadableFile:
        if self.stat(path).is_directory:
            raise _error(errno.EISDIR, path)
        return _File(path, self._files[path][0])

    @override
    def put(self, path: str, data: Bytes, mode: PutMode = PutMode.REPLACE) -> None:
        raise _error(errno.EROFS, path)

    @override
    def delete(self, path: str) -> None:
        raise _error(errno.EROFS, path)


class _File(ReadableFile):
    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self._data = data

    @override
    def size(self) -> int:
        return len(self._data)

    @override
    def read_into(self, position: int, target: memoryview) -> int:
        data = self.read(position, target.nbytes)
        target.cast("B")[: len(data)] = data
        return len(data)

    @override
    def read(self, position: int, size_bytes: int) -> bytes:
        return self._data[position : position + size_bytes]

    @override
    def close(self) -> None:
        pass


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


# ---- full disks ------------------------------------------------------------------------------------------------------


#: A program that holds the lock of a log directory until it reads a line.
HOLD = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


# ---- mounted disks ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(path: Path, size_kib: int) -> Iterator[Path]:
    """A file system of this size, mounted on a new folder."""
    path.mkdir()
    with _mounted(path, "-t", "tmpfs", "-o", f"size={size_kib}k", "tmpfs"):
        yield path


@contextlib.contextmanager
def read_only(path: Path, target: Path) -> Iterator[Path]:
    """Mount a directory read-only on a new folder."""
    target.mkdir()
    with _mounted(target, "--bind", str(path)):
        _mount("-o", "remount,bind,ro", str(target))
        yield target


@contextlib.contextmanager
def _mounted(path: Path, *words: str) -> Iterator[None]:
    _mount(*words, str(path))
    try:
        yield
    finally:
        # Lazily, as a worker that Spark keeps may still use it as its current directory.
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def _mount(*words: str) -> None:
    try:
        done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no `mount` here")
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
