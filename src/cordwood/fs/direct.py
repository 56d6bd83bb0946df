"""Large files that are written once, and read again at most once: past the system's memory, where the disk is fast.

What goes through the page cache is copied there, page by page, and pushes out what others want to read again. A fast
disk takes the bytes directly at less than half of that cost. A slow one should not: what is written is soon checked,
and then memory has it. How fast it takes the first blocks tells which of them it is.

    buffer    ├─ 4 KiB ─┼─ 4 KiB ─┼ … ┼─ 4 KiB ─┤   written in whole blocks, at positions that are multiples of them;
                                                    what is left at the end goes through the page cache
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from cordwood.fs.base import DIRECT_BLOCK_BYTES, File, ReadableFile

U8Array = npt.NDArray[np.uint8]

#: Bytes that are written at once: as many as disks over a network, too, take at full speed.
_BUFFER_BYTES = 8 << 20
#: Fewer bytes are written through the page cache.
DIRECT_BYTES_MIN = 1 << 20
#: Fewer bytes are read through the page cache: the system reads ahead, so small pieces that lie one after the other do
#: not wait for the disk one by one, as they would past it (24 KiB: 0.2 ms each, of which half is computed).
DIRECT_READ_BYTES_MIN = 128 << 10
#: Bytes per second of a disk for which the page cache is a detour, and how many a fast one may be late: a write that
#: waits for others says nothing.
_FAST, _LATE_BYTES = 500e6, 32 << 20


def aligned_buffer(size_bytes: int) -> U8Array:
    """uint8[size_bytes] at an address that is a multiple of DIRECT_BLOCK_BYTES; its content is undefined."""
    data = np.empty(size_bytes + DIRECT_BLOCK_BYTES, np.uint8)
    start = -data.ctypes.data % DIRECT_BLOCK_BYTES
    return data[start : start + size_bytes]


def read_cached(file: ReadableFile, position: int, size_bytes: int) -> U8Array:
    """Up to so many bytes of a file; fewer only at its end."""
    data = np.empty(size_bytes, np.uint8)
    return data[: file.read_into(position, memoryview(data))]


def read_direct(file: ReadableFile, position: int, size_bytes: int) -> U8Array:
    """As `read_cached`, but much that is not in memory is read past it, where that works."""
    if size_bytes < DIRECT_READ_BYTES_MIN:
        return read_cached(file, position, size_bytes)
    skipped = position % DIRECT_BLOCK_BYTES
    room = -(-(skipped + size_bytes) // DIRECT_BLOCK_BYTES) * DIRECT_BLOCK_BYTES
    data = aligned_buffer(room)
    got = file.read_direct_into(position - skipped, memoryview(data))
    return data[skipped : min(got, skipped + size_bytes)]


class _Pace:
    """How fast a disk takes what is written directly."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._late_bytes = 0.0

    @property
    def is_fast(self) -> bool:
        """Whether it is worth going on."""
        return self._late_bytes <= _LATE_BYTES

    def write(self, file: File, position: int, data: U8Array | memoryview) -> None:
        """Write past the memory."""
        began = self._clock()
        file.write_direct(position, data)
        self._late_bytes = max(0.0, self._late_bytes + _FAST * (self._clock() - began) - len(data))


def copy_direct(source: ReadableFile, target: File, clock: Callable[[], float] = time.monotonic) -> int:
    """Copy a file's bytes into a new one from the start, past the memory, as long as the disk is fast.

    Returns:
        how many bytes were copied: whole blocks. The caller copies the others.
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
    """Appends to a new file, which nobody reads before `flush`.

    Args:
        will_sync: the file is synced in the end, so what goes through the page cache is on its way to the disk at once.

    Attributes:
        file: that is appended to.
        position: of the next byte.
    """

    def __init__(self, file: File, clock: Callable[[], float] = time.monotonic, *, will_sync: bool = False) -> None:
        self.file = file
        self.position = 0
        self._pace = _Pace(clock)
        self._will_sync = will_sync
        #: Position of the first byte that is not written yet.
        self._written = 0
        #: The bytes from there on, each as far into a block as in the file.
        self._buffer: U8Array | None = None

    def append(self, data: U8Array) -> None:
        """Append bytes, which are copied."""
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
        """Append bytes that another file has, sharing its blocks on the disk where that is supported."""
        self.flush()
        self.file.write_shared(self.position, data, source, source_position)
        self.position += data.size
        self._written = self.position

    def flush(self) -> None:
        """Write what is not written yet, and let go of the memory. The bytes are durable after `sync` of the file."""
        self._write()
        self._buffer = None

    def _write(self) -> None:
        """Write what is not written yet: whole blocks directly."""
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
    """Start of the block that a position is in."""
    return position // DIRECT_BLOCK_BYTES * DIRECT_BLOCK_BYTES
