"""An open object: ranges are requested several at a time, and ahead of a sequential reader.

Every request requires the ETag that the object had when it was opened: if the object is replaced meanwhile, reading
fails instead of mixing two objects. An answer of another length than requested is an error, too.
"""

from __future__ import annotations

import errno
import functools
import os
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from cordwood.common.errors import StoreError
from cordwood.common.types import override
from cordwood.fs.base import ReadableFile
from cordwood.fs.object_requests import Patience, client_of, explained, place_of, result_of

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta

#: Maximum size of one request.
PART_BYTES = 4 << 20
#: Minimum size: a request for one byte takes about as long.
FIRST_BYTES = 64 << 10
#: Maximum number of bytes to prefetch for sequential reads.
_AHEAD_BYTES = 12 << 20
#: A large read is divided into steps, which limits the memory used besides the reader's own buffer.
_STEP_BYTES = 8 << 20
#: Maximum number of concurrent requests, for all files of a process.
REQUESTS = 16


@functools.lru_cache(maxsize=1)
def _threads(_process: int) -> ThreadPoolExecutor:
    """Return the threads of a process for requests; a forked process gets its own."""
    return ThreadPoolExecutor(REQUESTS, thread_name_prefix="cordwood-objects")


class _Block(NamedTuple):
    """A requested range [start, end) of an object."""

    start: int
    end: int
    data: Future[memoryview]


class ObjectFile(ReadableFile):
    """An object as it was when it was opened."""

    def __init__(self, path: str, meta: ObjectMeta, patience: Patience, whole: Future[memoryview] | None) -> None:
        self.path = path
        self._meta = meta
        self._size = int(meta["size"])
        self._patience = patience
        #: Content of a small file, shared with other readers.
        self._whole = whole
        self._is_closed = False
        #: Held during a read: the fields below describe the requests of one reader.
        self._lock = threading.Lock()
        #: Adjacent requested ranges, in order.
        self._blocks: deque[_Block] = deque()
        #: End of the last read, and the number of bytes to prefetch behind a read.
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
        """Fill the target from a range within the object."""
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
        # A reader whose window ends within a batch continues at the start of that batch.
        follows = self._end_of_last_read - _STEP_BYTES <= position <= self._end_of_last_read + FIRST_BYTES
        self._ahead_bytes = min(_AHEAD_BYTES, max(2 * self._ahead_bytes, end - position)) if follows else 0
        while blocks and (blocks[0].end <= position or blocks[0].start > position):
            blocks.popleft().data.cancel()
        start = blocks[-1].end if blocks else position
        until = min(self._size, max(end + self._ahead_bytes, position + FIRST_BYTES))
        # Prefetch only whole parts, or up to the end of the object.
        while start < end or until - start >= PART_BYTES or (start < until == self._size):
            stop = min(start + PART_BYTES, max(until, end))
            blocks.append(_Block(start, stop, asked_for(self.path, self._meta, start, stop, self._patience)))
            start = stop


def asked_for(path: str, meta: ObjectMeta, start: int, end: int, patience: Patience) -> Future[memoryview]:
    """Request a range of an object in one of the threads."""
    if start == end:
        nothing: Future[memoryview] = Future()
        nothing.set_result(memoryview(b""))
        return nothing
    return _threads(os.getpid()).submit(_get, path, meta, start, end, patience)


def _get(path: str, meta: ObjectMeta, start: int, end: int, patience: Patience) -> memoryview:
    """Read a range from the server."""
    import obstore

    bucket, key = place_of(path)
    try:
        with explained(path):
            options: GetOptions = {"range": (start, end), "if_match": meta["e_tag"]}
            data = memoryview(obstore.get(client_of(bucket, patience), key, options=options).bytes())
    except FileNotFoundError:
        # Not FileNotFoundError, which readers interpret as a file that a broker has deleted.
        raise StoreError("the object store listed this object, and does not find it now", path) from None
    if len(data) != end - start:
        raise StoreError(f"the object store sent {len(data)} of {end - start} bytes from position {start} on", path)
    return data
