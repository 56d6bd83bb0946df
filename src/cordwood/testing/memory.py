"""A file system in memory whose power can be cut, to test every promise about crashes.

There are two disks: a running program uses the *live* disk, and a crash leaves at least the *durable* disk. Between
them is the journal of changes; `memory_journal` defines which of them a power cut may lose.

With `can_crash=False` there is only the live disk. Memory then holds the files that have a name or are open, but no
bytes that were written earlier and removed.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import posixpath
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from cordwood.common.errors import LockedError
from cordwood.common.types import override
from cordwood.fs.base import (
    Bytes,
    DirectoryLock,
    File,
    FileInfo,
    LocalFileSystem,
    LockHolder,
    ReadableFile,
    Target,
    refuse_lock_file,
    view_of,
)
from cordwood.fs.workspace import Workspace
from cordwood.testing.memory_journal import Change, Disk, Inode, Move, Name, Place, Resize, Set, Write

_ROOT = 1


class PowerCut(BaseException):
    """The power was cut. Not an Exception, so that no `except Exception` of the program under test handles it."""


_P = ParamSpec("_P")
_R = TypeVar("_R")


class _HasMutex(Protocol):
    @property
    def _mutex(self) -> threading.RLock: ...


_S = TypeVar("_S", bound=_HasMutex)


def _serialized(method: Callable[Concatenate[_S, _P], _R]) -> Callable[Concatenate[_S, _P], _R]:
    """Make a method hold the file system's mutex, so that its methods do not run concurrently."""

    @functools.wraps(method)
    def alone(self: _S, /, *args: _P.args, **options: _P.kwargs) -> _R:
        with self._mutex:
            return method(self, *args, **options)

    return alone


class MemoryFile(File):
    """An open file of a MemoryFileSystem."""

    def __init__(self, fs: MemoryFileSystem, path: str, inode: int, *, writable: bool) -> None:
        self.path = path
        self._fs = fs
        self._inode = inode
        self._node = fs._live[inode]
        self._writable = writable
        self._closed = False

    @property
    def _mutex(self) -> threading.RLock:
        return self._fs._mutex

    @override
    @_serialized
    def size(self) -> int:
        return self._open_inode().size_bytes

    @override
    @_serialized
    def read_into(self, position: int, target: memoryview) -> int:
        data = self.read(position, target.nbytes)
        target.cast("B")[: len(data)] = data
        return len(data)

    @override
    @_serialized
    def read(self, position: int, size_bytes: int) -> bytes:
        if position < 0 or size_bytes < 0:
            raise _error(errno.EINVAL, self.path)
        return self._open_inode().read(position, size_bytes)

    @override
    @_serialized
    def write(self, position: int, data: Bytes) -> None:
        size_bytes = self._open_inode(to_change=True).size_bytes
        content = bytes(view_of(data))
        if not content:
            return
        if position < 0:
            raise _error(errno.EINVAL, self.path)
        end = position + len(content)
        self._fs._check_room(self.path, end - size_bytes)
        now, inode = self._fs._now_ns(), self._inode
        text = f"write {self.path} {position}+{len(content)}"
        write = Write(text=text, inode=inode, mtime_ns=now, waits_for={inode}, position=position, data=content)
        if end <= size_bytes or not self._fs._can_crash:
            self._fs._perform(text, write)
        else:
            grown = f"length {self.path} {size_bytes} → {end}"
            length = Resize(text=grown, inode=inode, mtime_ns=now, waits_for={inode}, size_bytes=end)
            self._fs._perform(text, length, write)

    @override
    def write_shared(self, position: int, data: Bytes, source: ReadableFile, source_position: int) -> None:
        view = view_of(data)
        assert source.read(source_position, len(view)) == view, "these are the source's bytes"
        self.write(position, view)
        self._fs.shared_bytes += len(view)

    @override
    @_serialized
    def truncate(self, size_bytes: int) -> None:
        self._open_inode(to_change=True)
        if size_bytes < 0:
            raise _error(errno.EINVAL, self.path)
        self._fs._check_room(self.path, size_bytes - self.size())
        self._fs._resize(f"truncate {self.path} {size_bytes}", self._inode, size_bytes)

    @override
    @_serialized
    def write_back(self, position: int, size_bytes: int) -> None:
        self._open_inode()

    @override
    @_serialized
    def sync(self) -> None:
        self._open_inode()
        self._fs._sync(f"sync {self.path}", self._inode)

    @override
    @_serialized
    def close(self) -> None:
        self._closed = True

    def _open_inode(self, *, to_change: bool = False) -> Inode:
        if self._closed or (to_change and not self._writable):
            raise _error(errno.EBADF, self.path)
        return self._node


class MemoryLock(DirectoryLock):
    """The lock of a directory in a MemoryFileSystem. It needs no file, as no other process can see the directory."""

    def __init__(self, locked: set[int], inode: int) -> None:
        self._locked = locked
        self._inode = inode
        self._released = False
        locked.add(inode)

    @override
    def confirm(self) -> None:
        assert not self._released, "it was released"

    @override
    def release(self) -> None:
        if not self._released:
            self._locked.discard(self._inode)
        self._released = True


class MemoryFileSystem(LocalFileSystem):
    """Files in memory. Threads may share it; each operation is atomic.

    Attributes:
        operations: log of the operations so far, one line per change or sync: `create a/b`, `write a/b 0+100`,
            `truncate a/b 50`, `sync a/b`, `mtime a/b 7`, `owner a/b 0:0`, `mode a/b 640`, `rename a/b → a/c`,
            `link a/c a/d`, `unlink a/c`, `mkdir d`, `rmdir d`, `sync dir a`. Paths are as given by the caller; an open
            file has the path that it was opened by. Failed operations are omitted. Empty if `can_crash` is False.
        capacity_bytes: size of the disk; None: no limit, and `free_bytes` is unknown.
        can_clone: result of `shares_blocks`. Copies use their full size in any case.
        shared_bytes: number of bytes written that could have been shared.
    """

    def __init__(
        self,
        now_ns: Callable[[], int],
        *,
        concurrency: int = 1,
        can_crash: bool = True,
        on_size: Callable[[str, int], None] | None = None,
    ) -> None:
        """Start with an empty root directory.

        Args:
            now_ns: the clock, in nanoseconds since the epoch.
            concurrency: number of threads that callers should use; with 1 the order of operations is always the same.
            can_crash: keep the durable disk and the journal.
            on_size: allowed only with `can_crash=False`; called when the bytes of files with some name grow or shrink,
                with that name and the difference in bytes. Zeros behind the last written byte are a hole, and do not
                count. A rename subtracts a file's bytes from the old name and adds them to the new one.
        """
        assert on_size is None or not can_crash, "only what survives has a size"
        self.operations: list[str] = []
        self.capacity_bytes: int | None = None
        self.can_clone = False
        self.shared_bytes = 0
        self.network: str | None = None
        self._concurrency = concurrency
        self._mutex = threading.RLock()
        self._now_ns = now_ns
        self._operations_left: int | None = None
        self._can_crash = can_crash
        self._on_size = on_size
        self._last_inode = _ROOT - 1
        self._live: Disk = {}
        #: With `can_crash=False`: open files without a name.
        self._unnamed: Disk = weakref.WeakValueDictionary()
        self._durable: Disk = {}
        self._journal: deque[Change] = deque()
        #: Changes of the journal by inode that must be synced first.
        self._waiting: defaultdict[int, list[Change]] = defaultdict(list)
        self._locked: set[int] = set()
        root = self._new_inode(is_directory=True, mode=0o777)
        assert root == _ROOT

    @property
    @override
    def concurrency(self) -> int:
        return self._concurrency

    # Power

    @_serialized
    def fail_after(self, count: int) -> None:
        """Cut the power after `count` more operations: all later operations raise PowerCut."""
        assert self._can_crash
        self._operations_left = count

    @property
    @_serialized
    def pending(self) -> list[Change]:
        """The changes that a crash may lose, in order."""
        return [change for change in self._journal if change.waits_for]

    @_serialized
    def crash(self, choose: Callable[[Change], int]) -> MemoryFileSystem:
        """Return a new file system in the state after a power cut now; this one does not change.

        Args:
            choose: returns, for each pending change in order, how many parts survive: 0 (lost) to `parts` (kept).
        """
        return self._after([choose(change) for change in self.pending])

    def crashes(self) -> Iterator[MemoryFileSystem]:
        """Yield all 2ⁿ to 3ⁿ outcomes of a power cut: each of n changes kept or lost, or a write torn in its middle."""
        choices = [sorted({0, change.parts // 2, change.parts}) for change in self.pending]
        return (self._after(parts_kept) for parts_kept in itertools.product(*choices))

    def _after(self, parts_kept: Iterable[int]) -> MemoryFileSystem:
        assert self._can_crash
        disk = {number: inode.copy() for number, inode in self._durable.items()}
        decisions = iter(parts_kept)
        for change in self._journal:
            parts = next(decisions) if change.waits_for else change.parts
            assert 0 <= parts <= change.parts, f"{parts} of {change.parts} parts of: {change.text}"
            if parts:
                change.apply(disk, parts)
        after = MemoryFileSystem(self._now_ns, concurrency=self._concurrency)
        after.capacity_bytes, after.can_clone, after.network = self.capacity_bytes, self.can_clone, self.network
        after._durable = _reachable(disk)
        after._live = {number: inode.copy() for number, inode in after._durable.items()}
        after._last_inode = max(after._live)
        return after

    # Reading

    @override
    @_serialized
    def list(self, path: str) -> Sequence[FileInfo]:
        directory = self._live[self._find_directory(path)]
        return [self._info(name, found.inode) for name, found in sorted(directory.entries.items())]

    @override
    @_serialized
    def stat(self, path: str) -> FileInfo:
        return self._info(path.rstrip("/").rpartition("/")[2], self._find(path))

    @override
    @_serialized
    def exists(self, path: str) -> bool:
        try:
            self._find(path)
        except OSError:
            return False
        return True

    @override
    def shares_blocks(self, path: str) -> bool:
        return self.can_clone

    @override
    @_serialized
    def free_bytes(self, path: str) -> int | None:
        self._find(path)
        if self.capacity_bytes is None:
            return None
        used = sum(inode.size_bytes for inode in self._live.values() if any(inode.places.values()))
        return max(0, self.capacity_bytes - used)

    @override
    def network_kind(self, path: str) -> str | None:
        return self.network

    @override
    @_serialized
    def open(self, path: str) -> MemoryFile:
        return MemoryFile(self, path, self._find_file(path), writable=False)

    @override
    @_serialized
    def open_for_update(self, path: str) -> MemoryFile:
        return MemoryFile(self, path, self._find_file(path), writable=True)

    # Changing

    @override
    @_serialized
    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> MemoryFile:
        refuse_lock_file(path)
        text = f"create {path}"
        if (place := self._place(path))[1] not in self._live[place[0]].entries:
            inode = self._new_inode(is_directory=False, mode=mode & ~0o022)  # the usual umask
            self._move(text, Name(inode, 0), place)
        elif exclusive:
            raise _error(errno.EEXIST, path)
        else:
            inode = self._find_file(path)
            self._resize(text, inode, 0)
        return MemoryFile(self, path, inode, writable=True)

    @override
    @_serialized
    def make_directory(self, path: str, *, mode: int = 0o777) -> None:
        place = self._place(path)
        if place[1] in self._live[place[0]].entries:
            raise _error(errno.EEXIST, path)
        inode = self._new_inode(is_directory=True, mode=mode & ~0o022)
        self._move(f"mkdir {path}", Name(inode, 0), place)

    @override
    @_serialized
    def make_temporary_directory(self, prefix: str) -> str:
        if not self.exists("/tmp"):
            self.make_directory("/tmp")
        path = next(name for at in itertools.count() if not self.exists(name := f"/tmp/{prefix}{at}"))
        self.make_directory(path, mode=0o700)
        return path

    @override
    @_serialized
    def remove_directory(self, path: str) -> None:
        inode = self._find_directory(path)
        if self._live[inode].entries:
            raise _error(errno.ENOTEMPTY, path)
        self._move(f"rmdir {path}", Name(inode, 0), None)

    @override
    @_serialized
    def rename(self, source: str, target: str) -> None:
        source_place, target_place = self._place(source), self._place(target)
        inode = self._find(source)
        name = self._live[source_place[0]].entries[source_place[1]]
        onto = self._live[target_place[0]].entries.get(target_place[1])
        replaced = None if onto is None else onto.inode
        if replaced == inode:  # two names of one file: POSIX keeps both
            return
        if inode in self._ancestors(target_place[0]):
            raise _error(errno.EINVAL, source)
        if replaced is not None:
            if replaced in self._ancestors(source_place[0]):
                raise _error(errno.ENOTEMPTY, target)
            from_directory, onto_directory = self._live[inode].is_directory, self._live[replaced].is_directory
            if from_directory != onto_directory:
                raise _error(errno.EISDIR if onto_directory else errno.ENOTDIR, target)
            if self._live[replaced].entries:
                raise _error(errno.ENOTEMPTY, target)
        self._move(f"rename {source} → {target}", name, target_place)

    @override
    @_serialized
    def link(self, source: str, target: str) -> None:
        inode, place = self._find(source), self._place(target)
        if place[1] in self._live[place[0]].entries:
            raise _error(errno.EEXIST, target)
        if self._live[inode].is_directory:
            raise _error(errno.EPERM, source)
        self._move(f"link {source} {target}", Name(inode, max(self._live[inode].places) + 1), place)

    @override
    def symlink(self, source: str, target: str) -> None:
        raise _error(errno.EOPNOTSUPP, target)

    @override
    def target(self, path: str, sources: Sequence[str]) -> Target:
        return Workspace(self, path, sources)

    @override
    @_serialized
    def unlink(self, path: str) -> None:
        if self._live[self._find(path)].is_directory:
            raise _error(errno.EISDIR, path)
        directory, name = self._place(path)
        self._move(f"unlink {path}", self._live[directory].entries[name], None)

    @override
    @_serialized
    def set_mtime_ns(self, path: str, mtime_ns: int) -> None:
        self._set(f"mtime {path} {mtime_ns}", self._find(path), mtime_ns=mtime_ns)

    @override
    @_serialized
    def set_owner(self, path: str, uid: int, gid: int) -> None:
        self._set(f"owner {path} {uid}:{gid}", self._find(path), uid=uid, gid=gid)

    @override
    @_serialized
    def set_mode(self, path: str, mode: int) -> None:
        self._set(f"mode {path} {mode:o}", self._find(path), mode=mode)

    @override
    @_serialized
    def sync_directory(self, path: str) -> None:
        self._sync(f"sync dir {path}", self._find_directory(path))

    @override
    @_serialized
    def lock_directory(self, path: str) -> MemoryLock:
        inode = self._find_directory(path)
        if inode in self._locked:
            raise LockedError(f"{path} is held by this process already")
        return MemoryLock(self._locked, inode)

    @override
    @_serialized
    def lock_holder(self, path: str) -> LockHolder | None:
        try:
            inode = self._find(path)
        except OSError:
            return None
        return LockHolder(os.getpid(), "python") if inode in self._locked else None

    @override
    def absolute_path(self, path: str) -> str:
        return self.real_path(path)  # there are no symlinks, and the current directory is the root

    @override
    def real_path(self, path: str) -> str:
        return posixpath.normpath(f"/{path.lstrip('/')}")

    # The journal

    def _perform(self, text: str, *changes: Change) -> None:
        if self._operations_left == 0:
            raise PowerCut(f"before: {text}")
        if not self._can_crash:
            for change in changes:
                self._apply_for_good(change)
            return
        if self._operations_left is not None:
            self._operations_left -= 1
        self.operations.append(text)
        for change in changes:
            change.apply(self._live, change.parts)
            self._journal.append(change)
            for inode in change.waits_for:
                self._waiting[inode].append(change)

    def _apply_for_good(self, change: Change) -> None:
        """Apply a change without crashes, and report which names' bytes grew or shrank."""
        disk = self._live if change.inode in self._live else self._unnamed
        inode = disk[change.inode]
        name, size_bytes = inode.name, len(inode.written)
        if not isinstance(change, Move):
            change.apply(disk, change.parts)
            self._tell(name, len(inode.written) - size_bytes)
            return
        replaced = None if change.target is None else self._entry(change.target)
        change.apply(disk, change.parts)
        if not inode.is_directory and inode.name != name:
            self._tell(name, -size_bytes)
            self._tell(inode.name, size_bytes)
        if replaced is not None and (other := self._live[replaced.inode]).name is None:
            assert change.target is not None
            self._tell(change.target[1], -len(other.written))
            self._unnamed[replaced.inode] = self._live.pop(replaced.inode)
        if inode.name is None:
            self._unnamed[change.inode] = self._live.pop(change.inode)

    def _tell(self, name: str | None, size_bytes: int) -> None:
        if self._on_size is not None and name is not None and size_bytes:
            self._on_size(name, size_bytes)

    def _entry(self, place: Place) -> Name | None:
        return self._live[place[0]].entries.get(place[1])

    def _check_room(self, path: str, growth_bytes: int) -> None:
        if self.capacity_bytes is not None and growth_bytes > (self.free_bytes("/") or 0):
            raise _error(errno.ENOSPC, path)

    def _resize(self, text: str, inode: int, size_bytes: int) -> None:
        change = Resize(text=text, inode=inode, mtime_ns=self._now_ns(), waits_for={inode}, size_bytes=size_bytes)
        self._perform(text, change)

    def _set(self, text: str, inode: int, **fields: int) -> None:
        self._perform(text, Set(text=text, inode=inode, mtime_ns=self._now_ns(), waits_for={inode}, fields=fields))

    def _move(self, text: str, name: Name, target: Place | None) -> None:
        source = self._live[name.inode].places.get(name.number)
        change = Move(
            text=text,
            inode=name.inode,
            number=name.number,
            mtime_ns=self._now_ns(),
            waits_for={place[0] for place in (source, target) if place is not None},
            target=target,
        )
        self._perform(text, change)

    def _sync(self, text: str, inode: int) -> None:
        self._perform(text)
        if not self._can_crash:
            return
        self._stop_waiting_for(inode)
        # Apply from the front only: a change that is sure to survive may follow one that may be lost.
        while self._journal and not self._journal[0].waits_for:
            change = self._journal.popleft()
            change.apply(self._durable, change.parts)

    def _stop_waiting_for(self, inode: int) -> None:
        for change in self._waiting.pop(inode, ()):
            change.waits_for.discard(inode)
            # A removed directory can no longer be synced, so a file that was moved out of it must not wait for that
            # sync. (An inode with a second name is not removed yet.)
            if isinstance(change, Move) and change.target is None and len(self._live[change.inode].places) == 1:
                self._stop_waiting_for(change.inode)

    def _new_inode(self, *, is_directory: bool, mode: int) -> int:
        # Both disks get the inode at once; the journal decides whether a name refers to it.
        number = self._last_inode = self._last_inode + 1
        inode = Inode(is_directory=is_directory, mode=mode, mtime_ns=self._now_ns())
        self._live[number] = inode
        if self._can_crash:
            self._durable[number] = inode.copy()
        return number

    # Paths

    def _find(self, path: str) -> int:
        if not path:
            raise _error(errno.ENOENT, path)
        number = _ROOT
        for name in _names(path):
            if not self._live[number].is_directory:
                raise _error(errno.ENOTDIR, path)
            if name not in self._live[number].entries:
                raise _error(errno.ENOENT, path)
            number = self._live[number].entries[name].inode
        return number

    def _find_file(self, path: str) -> int:
        refuse_lock_file(path)
        number = self._find(path)
        if self._live[number].is_directory:
            raise _error(errno.EISDIR, path)
        return number

    def _find_directory(self, path: str) -> int:
        number = self._find(path)
        if not self._live[number].is_directory:
            raise _error(errno.ENOTDIR, path)
        return number

    def _place(self, path: str) -> Place:
        """Return the place of a name, which need not exist; its directory must."""
        names = _names(path)
        if not names:
            raise _error(errno.EBUSY if path else errno.ENOENT, path)
        return self._find_directory("/" + "/".join(names[:-1])), names[-1]

    def _ancestors(self, directory: int) -> Iterator[int]:
        yield directory
        while (place := self._live[directory].places.get(0)) is not None:
            directory = place[0]
            yield directory

    def _info(self, name: str, number: int) -> FileInfo:
        inode = self._live[number]
        return FileInfo(
            name=name,
            size_bytes=inode.size_bytes,
            mtime_ns=inode.mtime_ns,
            is_directory=inode.is_directory,
            inode=number,
            mode=inode.mode,
            uid=inode.uid,
            gid=inode.gid,
        )


def every_cut(
    prepare: Callable[[], MemoryFileSystem], act: Callable[[MemoryFileSystem], object]
) -> Iterator[MemoryFileSystem]:
    """Run `act` repeatedly: with the power cut before its first operation, its second, …, and finally without a cut.

    Each run gets a new file system from `prepare`. Yields that file system after the run, ready to `crash`.
    """
    for count in itertools.count():
        fs = prepare()
        fs.fail_after(count)
        try:
            act(fs)
            was_cut = False
        except PowerCut:
            was_cut = True
        yield fs
        if not was_cut:
            return


def _names(path: str) -> list[str]:
    names = [name for name in path.split("/") if name not in ("", ".")]
    assert ".." not in names, f"a MemoryFileSystem has no ..: {path}"
    return names


def _error(code: int, path: str) -> OSError:
    """Return the error for a code (FileNotFoundError, FileExistsError, …), as raised by the operating system."""
    return OSError(code, os.strerror(code), path)


def _reachable(disk: Disk) -> Disk:
    found: Disk = {}
    to_visit = [_ROOT]
    while to_visit:
        number = to_visit.pop()
        found[number] = disk[number]
        to_visit.extend(name.inode for name in disk[number].entries.values())
    return found
