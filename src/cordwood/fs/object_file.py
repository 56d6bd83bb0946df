"""An object that is open for reading: ranges that are requested several at a time, and ahead of a sequential reader.

Every request asks for the ETag that the object had when it was opened: an object that is replaced in between is an
error, never a mixture of two. So is an answer of another length than was requested.
"""

from __future__ import annotations

import errno
import functools
import os
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from cordwood.errors import StoreError
from cordwood.fs.base import ReadableFile
from cordwood.fs.object_requests import Patience, client_of, explained, place_of, result_of
from cordwood.types import override

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta

#: The most bytes that one request asks for.
PART_BYTES = 4 << 20
#: The least: a request takes about as long for one byte.
FIRST_BYTES = 64 << 10
#: How far sequential reads are prefetched.
_AHEAD_BYTES = 12 << 20
#: A large read is done in steps, so that no more than this is in memory beside the reader's own buffer.
_STEP_BYTES = 8 << 20
#: Requests that are under way at once, of all files of a process.
REQUESTS = 16


@functools.lru_cache(maxsize=1)
def _threads(_process: int) -> ThreadPoolExecutor:
    """Threads for requests, of a process; a forked one gets others."""
    return ThreadPoolExecutor(REQUESTS, thread_name_prefix="cordwood-objects")


class _Block(NamedTuple):
    """A range of an object that was asked for: from `start` up to `end`."""

    start: int
    end: int
    data: Future[memoryview]


class ObjectFile(ReadableFile):
    """An object, as it was when it was opened."""

    def __init__(self, path: str, meta: ObjectMeta, patience: Patience, whole: Future[memoryview] | None) -> None:
        self.path = path
        self._meta = meta
        self._size = int(meta["size"])
        self._patience = patience
        #: All of a small file, which others may read, too.
        self._whole = whole
        self._is_closed = False
        #: Held by a reader: what follows is one reader's view of what is under way.
        self._lock = threading.Lock()
        #: Adjacent ranges, in order.
        self._blocks: deque[_Block] = deque()
        #: Where the last read ended, and how far ahead of a reader ranges are asked for.
        self._end_of_last_read = -1
        self._ahead_bytes = 0

    @override
    def size(self) -> int:
        self._check_open()
        return self._size

    @override
    def read_into(self, position: int, target: memoryview) -> int:
        self._check_open()
        if position < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.path)
        target = target.cast("B")
        count = max(0, min(target.nbytes, self._size - position))
        with self._lock:
            for at in range(0, count, _STEP_BYTES):
                step = target[at : min(count, at + _STEP_BYTES)]
                self._read_step(position + at, step)
        return count

    @override
    def read(self, position: int, size_bytes: int) -> bytes:
        if size_bytes < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.path)
        # The size may come from a damaged file, so it is limited before a buffer is made.
        data = bytearray(max(0, min(size_bytes, self._size - position)))
        self.read_into(position, memoryview(data))
        return bytes(data)

    @override
    def close(self) -> None:
        self._is_closed = True
        for block in list(self._blocks):
            block.data.cancel()
        self._blocks.clear()

    def _check_open(self) -> None:
        if self._is_closed:
            raise OSError(errno.EBADF, "the file is closed", self.path)

    def _read_step(self, position: int, target: memoryview) -> None:
        """Fill the target, which ends within the object."""
        end = position + target.nbytes
        if self._whole is not None:
            target[:] = result_of(self._whole, self.path)[position:end]
            return
        self._ask_for(position, end)
        for block in self._blocks:
            if block.start >= end:
                break
            start, stop = max(block.start, position), min(block.end, end)
            if start < stop:
                data = result_of(block.data, self.path)
                target[start - position : stop - position] = data[start - block.start : stop - block.start]
        self._end_of_last_read = end

    def _ask_for(self, position: int, end: int) -> None:
        """Request all of a range, and bytes behind it if the file is read sequentially."""
        blocks = self._blocks
        # The reader of a window that ends within a batch steps back to where the batch starts.
        follows = self._end_of_last_read - _STEP_BYTES <= position <= self._end_of_last_read + FIRST_BYTES
        self._ahead_bytes = min(_AHEAD_BYTES, max(2 * self._ahead_bytes, end - position)) if follows else 0
        while blocks and (blocks[0].end <= position or blocks[0].start > position):
            blocks.popleft().data.cancel()
        start = blocks[-1].end if blocks else position
        until = min(self._size, max(end + self._ahead_bytes, position + FIRST_BYTES))
        # Ahead, only whole parts are asked for, or the end.
        while start < end or until - start >= PART_BYTES or (start < until == self._size):
            stop = min(start + PART_BYTES, max(until, end))
            blocks.append(_Block(start, stop, asked_for(self.path, self._meta, start, stop, self._patience)))
            start = stop


def asked_for(path: str, meta: ObjectMeta, start: int, end: int, patience: Patience) -> Future[memoryview]:
    """A range of an object, in one of the threads."""
    if start == end:
        nothing: Future[memoryview] = Future()
        nothing.set_result(memoryview(b""))
        return nothing
    return _threads(os.getpid()).submit(_get, path, meta, start, end, patience)


def _get(path: str, meta: ObjectMeta, start: int, end: int, patience: Patience) -> memoryview:
    """The bytes of a range, from the server."""
    import obstore

    bucket, key = place_of(path)
    try:
        with explained(path):
            options: GetOptions = {"range": (start, end), "if_match": meta["e_tag"]}
            data = memoryview(obstore.get(client_of(bucket, patience), key, options=options).bytes())
    except FileNotFoundError:
        # Not FileNotFoundError, which a reader takes for a file that a broker has deleted.
        raise StoreError("the object store listed this object, and does not find it now", path) from None
    if len(data) != end - start:
        raise StoreError(f"the object store sent {len(data)} of {end - start} bytes from position {start} on", path)
    return data
