"""A file system that limits the number of open files, independent of the number of files in use.

A program with 10,000 logs uses 30,000 files, but the system may allow fewer open files. Here a file that is opened for
update is really opened at its first read or write. When too many are open, a file that was not used recently is closed,
and opened again by its name when it is needed.

An open file must stay the same file when its name is replaced or removed: before that happens the file is opened, and
it stays open until its user closes it. Renames are tracked, including renames of directories.

Closing drops the pool's reference. A concurrent reader holds its own, and the last reference closes the descriptor.
"""

from __future__ import annotations

import errno
import posixpath
import threading
import weakref
from collections import deque

from cordwood.common.types import override
from cordwood.fs.base import Bytes, File, LocalFileSystem, refuse_lock_file
from cordwood.fs.location import Location
from cordwood.fs.wrapped import WrappedFileSystem


class PooledFileSystem(WrappedFileSystem):
    """Delegates to another file system; of the files that it opens for update, keeps at most `open_files_max` open.

    Files whose names were removed do not count. Change names only through this object.
    """

    def __init__(self, fs: LocalFileSystem, open_files_max: int) -> None:
        super().__init__(fs)
        self._open_files_max = open_files_max
        #: Held while a file is opened and while names change, so that a file opened by its name is the right one.
        self._names = threading.RLock()
        #: All files in use, by directory and name.
        self._files: dict[str, dict[str, weakref.WeakSet[_PooledFile]]] = {}
        #: Open files that may be closed; the next candidate is first.
        self._open: deque[weakref.ref[_PooledFile]] = deque()
        #: All files in use, with or without a name.
        self._used: weakref.WeakSet[_PooledFile] = weakref.WeakSet()

    def close(self) -> None:
        """Close all files in use; their users get errors from now on."""
        with self._names:
            for file in list(self._used):
                file.close()

    @override
    def location(self) -> Location[LocalFileSystem]:
        return self._fs.location()

    @override
    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:
        with self._names:
            return self._new(path, self._fs.create(path, exclusive=exclusive, mode=mode))

    @override
    def open_for_update(self, path: str) -> File:
        refuse_lock_file(path)
        with self._names:
            if self._fs.stat(path).is_directory:
                raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
            return self._new(path, None)

    @override
    def rename(self, source: str, target: str) -> None:
        with self._names:
            old, new = self._fs.absolute_path(source), self._fs.absolute_path(target)
            is_directory = self._fs.exists(source) and self._fs.stat(source).is_directory
            if old != new:
                self._hold(new)
            self._fs.rename(source, target)
            if old == new:
                return
            if is_directory:
                self._follow_directory(old, new)
            else:
                self._follow(old, new)

    @override
    def unlink(self, path: str) -> None:
        with self._names:
            self._hold(self._fs.absolute_path(path))
            self._fs.unlink(path)

    # ---- names -------------------------------------------------------------------------------------------------------

    def _new(self, path: str, file: File | None) -> _PooledFile:
        made = _PooledFile(self, self._fs.absolute_path(path), file)
        self._named(made.path).add(made)
        self._used.add(made)
        if file is not None:
            self._remember(made)
        return made

    def _named(self, path: str) -> weakref.WeakSet[_PooledFile]:
        directory, name = posixpath.split(path)
        return self._files.setdefault(directory, {}).setdefault(name, weakref.WeakSet())

    def _take(self, path: str) -> weakref.WeakSet[_PooledFile] | None:
        """Forget a name, and return the files in use under it."""
        directory, name = posixpath.split(path)
        names = self._files.get(directory, {})
        found = names.pop(name, None)
        if not names:
            self._files.pop(directory, None)
        return found

    def _hold(self, path: str) -> None:
        """Open the files in use under a name, and keep them open, as the name is about to be removed."""
        for file in self._take(path) or ():
            file.hold()

    def _follow(self, old: str, new: str) -> None:
        for file in self._take(old) or ():
            file.path = new
            self._named(new).add(file)

    def _follow_directory(self, old: str, new: str) -> None:
        for directory in [one for one in self._files if one == old or one.startswith(f"{old}/")]:
            for name in list(self._files[directory]):
                self._follow(f"{directory}/{name}", f"{new}{directory[len(old) :]}/{name}")

    # ---- open files --------------------------------------------------------------------------------------------------

    def reopen(self, file: _PooledFile) -> File:
        """Open a closed file; only for files of this module."""
        with self._names:
            opened = file.opened
            if opened is None:
                opened = file.opened = self._fs.open_for_update(file.path)
                self._remember(file)
            return opened

    def size_of(self, file: _PooledFile) -> int:
        """Return the size of a file, open or closed; only for files of this module."""
        with self._names:
            opened = file.opened
            return self._fs.stat(file.path).size_bytes if opened is None else opened.size()

    def names(self) -> threading.RLock:
        """Return the lock to hold while a file is opened by its name; only for files of this module."""
        return self._names

    def _remember(self, file: _PooledFile) -> None:
        """Register an opened file, and close others if too many are open."""
        file.was_used = True
        self._open.append(weakref.ref(file))
        while len(self._open) > self._open_files_max:
            reference = self._open.popleft()
            candidate = reference()
            if candidate is None or candidate.is_held:
                continue
            if candidate.was_used:  # since the last check, so others are closed first
                candidate.was_used = False
                self._open.append(reference)
            else:
                candidate.opened = None


class _PooledFile(File):
    """A file of a pool.

    Attributes:
        opened: the open file; None while it is closed.
        is_held: the pool must not close it before its user does.
    """

    def __init__(self, pool: PooledFileSystem, path: str, opened: File | None) -> None:
        self.path = path
        self.opened = opened
        self.was_used = self.is_held = False
        self._pool = pool
        self._is_closed = False

    def hold(self) -> None:
        """Open the file, and keep it open."""
        if not self._is_closed:
            if self.opened is None:
                self._pool.reopen(self)
            self.is_held = True

    def _file(self) -> File:
        file = self.opened
        if file is None:
            self._check_open()
            file = self._pool.reopen(self)
        self.was_used = True
        return file

    def _check_open(self) -> None:
        if self._is_closed:
            raise OSError(errno.EBADF, "the file is closed", self.path)

    @override
    def size(self) -> int:
        self._check_open()
        file = self.opened
        return self._pool.size_of(self) if file is None else file.size()

    @override
    def read_into(self, position: int, target: memoryview) -> int:
        return self._file().read_into(position, target)

    @override
    def read(self, position: int, size_bytes: int) -> bytes:
        return self._file().read(position, size_bytes)

    @override
    def write(self, position: int, data: Bytes) -> None:
        self._file().write(position, data)

    @override
    def truncate(self, size_bytes: int) -> None:
        self._file().truncate(size_bytes)

    @override
    def write_back(self, position: int, size_bytes: int) -> None:
        self._file().write_back(position, size_bytes)

    @override
    def sync(self) -> None:
        self._file().sync()

    @override
    def close(self) -> None:
        with self._pool.names():
            self._is_closed = True
            self.opened = None
