"""Stores that read and write files piece by piece; before each piece a `Pace` may wait, or stop its caller.

checked      a clean that is aborted, or whose result is no longer wanted, stops at its next piece
throttled    all tasks of a run together stay below a rate, in any number of processes
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import posixpath
import secrets
import struct
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from cordwood.common.errors import RequestError
from cordwood.common.types import override
from cordwood.fs.base import Bytes, File, ReadableFile, Store, TargetStore, view_of
from cordwood.fs.location import Location
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.wrapped import WrappedFile, WrappedReadableFile, WrappedStore, WrappedTargetStore


class Pace(Protocol):
    """Decides when the next bytes may be read or written, and the largest number at once."""

    @property
    def piece_bytes(self) -> int:
        """Size in bytes of the largest piece."""
        ...

    def wait_for(self, size_bytes: int) -> None:
        """Return once `size_bytes` may be read or written; raise an exception to stop the caller."""
        ...


class _PacedStore(WrappedStore):
    """A store whose reads have a pace."""

    def __init__(self, store: Store, pace: Callable[[], Pace]) -> None:
        super().__init__(store)
        self._pace = pace

    @override
    def open(self, path: str) -> ReadableFile:
        return _PacedReadableFile(self._store.open(path), self._pace())


class PacedTargetStore(_PacedStore, WrappedTargetStore):
    """A store whose reads and writes have a pace."""

    _store: TargetStore

    def __init__(self, store: TargetStore, pace: Callable[[], Pace]) -> None:
        super().__init__(store, pace)

    @override
    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:
        return _PacedFile(self._store.create(path, exclusive=exclusive, mode=mode), self._pace())


class _PacedReadableFile(WrappedReadableFile):
    def __init__(self, file: ReadableFile, pace: Pace) -> None:
        super().__init__(file)
        self._pace = pace

    @override
    def read_into(self, position: int, target: memoryview) -> int:
        # Count only the bytes left in the file, as a window may reach past its end.
        target = target.cast("B")[: max(0, self._file.size() - position)]
        done = 0
        for piece in self._pieces(target):
            count = self._file.read_into(position + done, piece)
            done += count
            if count < piece.nbytes:
                break
        return done

    @override
    def read_direct_into(self, position: int, target: memoryview) -> int:
        self._wait_for(min(target.nbytes, max(0, self._file.size() - position)))
        return self._file.read_direct_into(position, target)

    @override
    def read(self, position: int, size_bytes: int) -> bytes:
        # The size may come from a damaged file, so do not allocate a buffer of that size.
        parts, missing = [], min(size_bytes, max(0, self._file.size() - position))
        while missing:
            piece_bytes = min(missing, self._pace.piece_bytes)
            self._pace.wait_for(piece_bytes)
            part = self._file.read(position, piece_bytes)
            if not part:
                break
            parts.append(part)
            position += len(part)
            missing -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _wait_for(self, size_bytes: int) -> None:
        """Wait, one piece at a time, until `size_bytes` may be read or written at once."""
        while size_bytes > 0:
            self._pace.wait_for(min(size_bytes, self._pace.piece_bytes))
            size_bytes -= self._pace.piece_bytes

    def _pieces(self, data: memoryview) -> Iterator[memoryview]:
        """Yield each piece once it may be read or written."""
        size = self._pace.piece_bytes
        for start in range(0, data.nbytes, size):
            piece = data[start : start + size]
            self._pace.wait_for(piece.nbytes)
            yield piece


class _PacedFile(_PacedReadableFile, WrappedFile):
    _file: File

    def __init__(self, file: File, pace: Pace) -> None:
        super().__init__(file, pace)

    @override
    def write(self, position: int, data: Bytes) -> None:
        for piece in self._pieces(view_of(data)):
            self._file.write(position, piece)
            position += piece.nbytes

    @override
    def write_direct(self, position: int, data: Bytes) -> None:
        self._wait_for(view_of(data).nbytes)
        self._file.write_direct(position, data)

    @override
    def write_shared(self, position: int, data: Bytes, source: ReadableFile, source_position: int) -> None:
        # The number of shared bytes is unknown beforehand, so wait for all of them.
        self._wait_for(view_of(data).nbytes)
        while isinstance(source, _PacedReadableFile):
            source = source._file
        self._file.write_shared(position, data, source, source_position)


# ---- until it is stopped ---------------------------------------------------------------------------------------------

# A task in another process cannot be notified; it checks for a folder that is removed once the task's result is no
# longer wanted.

#: Called repeatedly; raises once its caller must stop.
Check = Callable[[], None]
#: Minimum interval between two looks at the folder, as each look costs a system call.
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class _Checking:
    """A pace that runs a check before each piece."""

    check: Check
    piece_bytes: int = 4 << 20

    def wait_for(self, _: int) -> None:
        """Run the check."""
        self.check()


def checked(store: TargetStore, check: Check) -> TargetStore:
    """Return a store that runs a check for every few MiB it reads or writes."""
    return PacedTargetStore(store, lambda: _Checking(check))


@dataclass(frozen=True, slots=True)
class WantedLocation:
    """The location of a file system, for a task whose result is wanted as long as a folder exists.

    Attributes:
        folder: every read and write fails with FileNotFoundError soon after this folder was removed.
    """

    location: Location[TargetStore]
    folder: str

    @property
    def in_this_process(self) -> bool:
        """Same as for the location below it."""
        return self.location.in_this_process

    def open(self) -> TargetStore:
        """Open the file system, with the check."""
        fs, folder, looked = self.location.open(), self.folder, 0.0

        def check() -> None:
            nonlocal looked
            now = time.monotonic()
            if now - looked >= _LOOK_SECONDS:
                looked = now
                if not fs.exists(folder):
                    raise FileNotFoundError(errno.ENOENT, "It was removed: the task's result is unwanted", folder)

        return checked(fs, check)


# ---- below a rate ----------------------------------------------------------------------------------------------------

# Before a read or write, each process adds its bytes to its own counter file, in a folder that all tasks see, and then
# waits until the sum of all counters is due at the rate. So the rate is not divided: a task that runs alone gets all of
# it. No locks are needed, as each file has one writer, and counters only grow.
#
#     process A  100 MB ┐
#     process B   50 MB ├ 160 MB / 10 MB per second = due after 16 s of its clock; it waits until then
#     process C   10 MB ┘
#
# Unused time expires after a moment, or slow tasks would save it up for a burst. Each process expires its own time: it
# moves its start time forward. Clocks of different processes are never compared.
#
# Without a rate, tasks use the plain file system.

S = TypeVar("S", bound=Store)

#: Name of the counters' folder within the folder that all tasks see.
_FOLDER = "throttle"
#: Maximum number of bytes to read or write at once.
_PIECE_BYTES_MAX = 4 << 20
#: A low rate uses smaller pieces: this many per second.
_PIECES_PER_SECOND = 50
#: Unused time expires after this many seconds.
_CREDIT_SECONDS = 0.1
#: A counter: bytes, and a CRC-32 of them, as a reader may see a counter that is only half written.
_COUNTER = struct.Struct("<QI")


class Throttle:
    """Delays reads and writes of one process. Threads may share it.

    Args:
        rate: bytes per second, for all processes together.
    """

    def __init__(
        self,
        fs: TargetStore,
        folder: str,
        rate: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._fs = fs
        self._folder = folder
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._name = secrets.token_hex(16)
        #: The last known counters of other processes, by file name.
        self._others: dict[str, int] = {}
        self._bytes = self._not_yet_counted = 0
        self.piece_bytes = min(max(rate // _PIECES_PER_SECOND, 1), _PIECE_BYTES_MAX)
        self._write()
        self._start = clock() - self._due_seconds()

    def wait_for(self, size_bytes: int) -> None:
        """Count bytes that are about to be read or written, and wait until they are due.

        Raises:
            FileNotFoundError: the folder was removed, so the result of this task is no longer wanted.
        """
        with self._lock:
            self._not_yet_counted += size_bytes
            if self._not_yet_counted < self.piece_bytes:
                return
            self._bytes += self._not_yet_counted
            self._not_yet_counted = 0
            # Write before reading: of two processes at the same time, at least one sees the other's bytes.
            self._write()
            due, now = self._due_seconds(), self._clock()
            self._start = max(self._start, now - due - _CREDIT_SECONDS)
            seconds = self._start + due - now
        if seconds > 0:
            self._sleep(seconds)

    def _due_seconds(self) -> float:
        """Return the time that the bytes of all processes take at the rate."""
        for info in self._fs.list(self._folder):
            if info.name != self._name:
                seen = self._read(info.name)
                self._others[info.name] = max(seen, self._others.get(info.name, 0))
        return (self._bytes + sum(self._others.values())) / self._rate

    def _read(self, name: str) -> int:
        """Return the counter of another process; 0 if it is being written right now."""
        try:
            with self._fs.open(f"{self._folder}/{name}") as file:
                data = file.read(0, _COUNTER.size)
        except OSError:
            return 0
        if len(data) < _COUNTER.size:
            return 0
        size_bytes, crc = _COUNTER.unpack(data)
        return int(size_bytes) if crc == zlib.crc32(data[:8]) else 0

    def _write(self) -> None:
        """Write the counter of this process, ignoring a full disk, which must not fail a task here."""
        path = f"{self._folder}/{self._name}"
        data = struct.pack("<Q", self._bytes)
        try:
            # Close after each write: on a network file system other machines see the bytes only then.
            with self._fs.create(path, exclusive=False) as file:
                file.write(0, data + struct.pack("<I", zlib.crc32(data)))
        except FileNotFoundError:
            raise
        except OSError:
            pass


@dataclass(frozen=True, slots=True)
class Limit:
    """A rate, and the location of the processes' counters. Plain values, to be pickled.

    Attributes:
        rate: bytes per second.
        location: location of the file system that contains the folder.
    """

    rate: int
    location: Location[TargetStore]
    folder: str

    @classmethod
    def of(cls, rate: int | None, fs: TargetStore, folder: str) -> Limit | None:
        """Create the folder of the counters within a folder that all tasks see; return None if `rate` is None."""
        if rate is None:
            return None
        if rate < 1:
            raise RequestError(f"A rate of {rate} bytes per second: give a positive number")
        path = f"{folder}/{_FOLDER}"
        fs.make_directory(path)
        return cls(rate, fs.location(), path)

    def throttle(self) -> Throttle:
        """Return the throttle of this process."""
        return _throttle_of(os.getpid(), self)


@functools.lru_cache(maxsize=4)
def _throttle_of(_process: int, limit: Limit) -> Throttle:
    """Return the throttle shared by all tasks of a process; a forked process gets another one."""
    return Throttle(limit.location.open(), limit.folder, limit.rate)


@contextlib.contextmanager
def limit_on_this_machine(rate: int) -> Iterator[Limit]:
    """Yield a limit for the processes of this machine, with counters in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="cordwood-rate-", ignore_cleanup_errors=True) as folder:
        limit = Limit.of(rate, PosixFileSystem(), folder)
        assert limit is not None
        yield limit


def throttled_store(store: Store, limit: Limit | None) -> Store:
    """Return a store whose reads are limited, or the store itself without a limit."""
    return store if limit is None else _ThrottledStore(store, limit)


def throttled(fs: TargetStore, limit: Limit | None) -> TargetStore:
    """Return a file system whose reads and writes are limited, or the file system itself without a limit."""
    return fs if limit is None else _ThrottledTargetStore(fs, limit)


@dataclass(frozen=True, slots=True)
class _ThrottledLocation(Generic[S]):
    """The location of a throttled store: the location of the store below it, and the limit."""

    location: Location[S]
    limit: Limit
    throttle: Callable[[S, Limit | None], S]

    @property
    def in_this_process(self) -> bool:
        """Same as for the location below it."""
        return self.location.in_this_process

    def open(self) -> S:
        """Open the store and throttle it with `throttle`."""
        return self.throttle(self.location.open(), self.limit)


class _ThrottledStore(_PacedStore):
    def __init__(self, store: Store, limit: Limit) -> None:
        super().__init__(store, limit.throttle)
        self._limit = limit

    @override
    def location(self) -> Location[Store]:
        return _ThrottledLocation(self._store.location(), self._limit, throttled_store)


class _ThrottledTargetStore(PacedTargetStore):
    def __init__(self, store: TargetStore, limit: Limit) -> None:
        super().__init__(store, limit.throttle)
        self._limit = limit
        self._shares_blocks: dict[int, bool] = {}

    @override
    def location(self) -> Location[TargetStore]:
        return _ThrottledLocation(self._store.location(), self._limit, throttled)

    @override
    def copy(self, source: str, target: str, *, mode: int = 0o666) -> None:
        parent = posixpath.dirname(target) or "."
        device = self._store.stat(parent).device
        if device not in self._shares_blocks:
            self._shares_blocks[device] = self._store.shares_blocks(parent)
        if self._shares_blocks[device]:
            self._store.copy(source, target, mode=mode)
        else:
            # Through this process, one buffer at a time: a copy in the kernel would not wait for the limit.
            TargetStore.copy(self, source, target, mode=mode)
