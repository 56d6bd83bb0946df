"""Read and write large files without the page cache (O_DIRECT), if the disk is fast.

Bytes written through the page cache are copied into it page by page, and displace pages that others will read again. A
fast disk accepts direct writes at less than half of that CPU cost. A slow disk should use the cache: the output is soon
read again for a check, and then comes from memory. The speed of the first blocks shows which kind of disk it is.

    buffer    ├─ 4 KiB ─┼─ 4 KiB ─┼ … ┼─ 4 KiB ─┤   written in whole blocks, at positions that are multiples of 4 KiB;
                                                    the remaining bytes are written through the page cache
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from cordwood.fs.base import DIRECT_BLOCK_BYTES, File, ReadableFile

U8Array = npt.NDArray[np.uint8]

#: Bytes per write: enough for full speed, also on network disks.
_BUFFER_BYTES = 8 << 20
#: Smaller amounts are written through the page cache.
DIRECT_BYTES_MIN = 1 << 20
#: Smaller amounts are read through the page cache: thanks to its read-ahead, small adjacent reads do not each wait for
#: the disk, as direct reads would (24 KiB: 0.2 ms each, half of it for the CPU).
DIRECT_READ_BYTES_MIN = 128 << 10
#: Bytes per second from which a disk counts as fast, and number of bytes by which a fast disk may fall behind that
#: rate: a single write may be slow because it waited for others.
_FAST, _LATE_BYTES = 500e6, 32 << 20


def aligned_buffer(size_bytes: int) -> U8Array:
    """uint8[size_bytes] at an address that is a multiple of DIRECT_BLOCK_BYTES; its content is undefined."""
    data = np.empty(size_bytes + DIRECT_BLOCK_BYTES, np.uint8)
    start = -data.ctypes.data % DIRECT_BLOCK_BYTES
    return data[start : start + size_bytes]


def read_cached(file: ReadableFile, position: int, size_bytes: int) -> U8Array:
    """Read up to `size_bytes` of a file; fewer only at its end."""
    data = np.empty(size_bytes, np.uint8)
    return data[: file.read_into(position, memoryview(data))]


def read_direct(file: ReadableFile, position: int, size_bytes: int) -> U8Array:
    """Like `read_cached`, but read a large uncached range directly, if supported."""
    if size_bytes < DIRECT_READ_BYTES_MIN:
        return read_cached(file, position, size_bytes)
    skipped = position % DIRECT_BLOCK_BYTES
    room = -(-(skipped + size_bytes) // DIRECT_BLOCK_BYTES) * DIRECT_BLOCK_BYTES
    data = aligned_buffer(room)
    got = file.read_direct_into(position - skipped, memoryview(data))
    return data[skipped : min(got, skipped + size_bytes)]


class _Pace:
    """Measures how fast a disk accepts direct writes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._late_bytes = 0.0

    @property
    def is_fast(self) -> bool:
        """Whether direct writes still pay off."""
        return self._late_bytes <= _LATE_BYTES

    def write(self, file: File, position: int, data: U8Array | memoryview) -> None:
        """Write directly, and measure the time."""
        began = self._clock()
        file.write_direct(position, data)
        self._late_bytes = max(0.0, self._late_bytes + _FAST * (self._clock() - began) - len(data))


def copy_direct(source: ReadableFile, target: File, clock: Callable[[], float] = time.monotonic) -> int:
    """Copy a file's bytes into a new one from the start, without the page cache, as long as the disk is fast.

    Returns:
        the number of bytes copied, a multiple of the block size. The caller copies the remaining bytes.
    """
    end, position = _block(source.size()), 0
    buffer, pace = memoryview(aligned_buffer(min(_BUFFER_BYTES, end))), _Pace(clock)
    while position < end and pace.is_fast:
        count = _block(source.read_direct_into(position, buffer[: end - position]))
        if not count:
            break
        pace.write(target, position, buffer[:count])
        position += count
    return position


class Appender:
    """Appends to a new file, which must not be read before `flush`.

    Args:
        will_sync: the file is synced in the end, so start writing bytes from the page cache to the disk at once.

    Attributes:
        file: the file to append to.
        position: position of the next byte.
    """

    def __init__(self, file: File, clock: Callable[[], float] = time.monotonic, *, will_sync: bool = False) -> None:
        self.file = file
        self.position = 0
        self._pace = _Pace(clock)
        self._will_sync = will_sync
        #: Position of the first unwritten byte.
        self._written = 0
        #: The unwritten bytes, at the same offset within a block as in the file.
        self._buffer: U8Array | None = None

    def append(self, data: U8Array) -> None:
        """Copy bytes to the end of the file."""
        while data.size:
            if self._buffer is None:
                self._buffer = aligned_buffer(_BUFFER_BYTES)
            at = self.position - _block(self._written)
            part = data[: self._buffer.size - at]
            self._buffer[at : at + part.size] = part
            self.position += part.size
            data = data[part.size :]
            if at + part.size == self._buffer.size:
                self._write()

    def append_shared(self, data: U8Array, source: ReadableFile, source_position: int) -> None:
        """Append bytes that another file contains, sharing its blocks on disk if supported."""
        self.flush()
        self.file.write_shared(self.position, data, source, source_position)
        self.position += data.size
        self._written = self.position

    def flush(self) -> None:
        """Write the unwritten bytes and free the buffer. The bytes are durable after `sync` of the file."""
        self._write()
        self._buffer = None

    def _write(self) -> None:
        """Write the unwritten bytes, whole blocks directly."""
        if self._buffer is None:
            return
        start, end = self._written, self.position
        low, high = min(_block(start + DIRECT_BLOCK_BYTES - 1), end), _block(end)
        if not self._pace.is_fast or high - low < DIRECT_BYTES_MIN:
            low = high = end
        first = _block(start)
        self._put(start, self._buffer[start - first : low - first])
        if low < high:
            self._pace.write(self.file, low, self._buffer[low - first : high - first])
        self._put(high, self._buffer[high - first : end - first])
        self._written = end

    def _put(self, position: int, data: U8Array) -> None:
        if data.size:
            self.file.write(position, data)
            if self._will_sync:
                self.file.write_back(position, data.size)


def _block(position: int) -> int:
    """Return the start of the block that contains a position."""
    return position // DIRECT_BLOCK_BYTES * DIRECT_BLOCK_BYTES


# ---- system calls of an open file ------------------------------------------------------------------------------------

# Not every file system supports direct I/O. Methods return a smaller count then, and the caller uses the page cache for
# the remaining bytes.

#: 0 if the system has no O_DIRECT.
_O_DIRECT: int = getattr(os, "O_DIRECT", 0)
#: C function that reports which pages of a mapping are in memory, without touching them.
_mincore = getattr(ctypes.CDLL(None), "mincore", None) if _O_DIRECT else None
if _mincore is not None:
    _mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
#: Errors of a file system without O_DIRECT, or with blocks of another size.
_UNSUPPORTED = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTTY}
_opening = threading.Lock()


class PastCache:
    """A second descriptor of an open file, opened at the first use. Several threads may use it."""

    def __init__(self, descriptor: int) -> None:
        self._of = descriptor
        self._descriptor: int | None = None
        self._is_supported = _O_DIRECT != 0

    def read_into(self, position: int, target: memoryview) -> int:
        """Fill `target`; return the number of bytes read: fewer at the file's end, or if unsupported."""
        done = 0
        with self._unsupported_is_nothing():
            while done < target.nbytes and (descriptor := self._open()) is not None:
                count = os.preadv(descriptor, [target[done:]], position + done)
                done += count
                if not count or count % DIRECT_BLOCK_BYTES:  # the end of the file
                    break
        return done

    def write(self, position: int, data: memoryview) -> int:
        """Write `data`; return the number of bytes written: fewer if unsupported."""
        done = 0
        with self._unsupported_is_nothing():
            while done < data.nbytes and (descriptor := self._open()) is not None:
                done += os.pwrite(descriptor, data[done:], position + done)
                if done % DIRECT_BLOCK_BYTES:
                    break
        return done

    def close(self) -> None:
        """Release the descriptor, for good."""
        with _opening:
            descriptor, self._descriptor, self._is_supported = self._descriptor, None, False
        if descriptor is not None:
            os.close(descriptor)

    def _open(self) -> int | None:
        """Return the descriptor, or None if unsupported."""
        with _opening:
            if self._descriptor is None and self._is_supported:
                access = fcntl.fcntl(self._of, fcntl.F_GETFL) & os.O_ACCMODE
                try:
                    self._descriptor = os.open(f"/proc/self/fd/{self._of}", access | _O_DIRECT | os.O_CLOEXEC)
                except OSError:
                    self._is_supported = False
            return self._descriptor if self._is_supported else None

    @contextlib.contextmanager
    def _unsupported_is_nothing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            self._is_supported = False


def is_in_memory(descriptor: int, position: int) -> bool:
    """Return whether the page cache holds the page at a position of a file; True if that is unknown."""
    if _mincore is None:
        return True
    found = np.zeros(1, np.uint8)
    try:
        with mmap.mmap(descriptor, 1, prot=mmap.PROT_READ, offset=position) as page:
            view = np.frombuffer(page, np.uint8)
            failed = _mincore(view.ctypes.data, 1, found.ctypes.data)
            del view  # or the page could not be unmapped
    except (OSError, ValueError):  # the page is behind the end, or cannot be mapped
        return True
    return bool(failed or found[0] & 1)
