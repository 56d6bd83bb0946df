"""Read and write an open file without the page cache (O_DIRECT), and check whether the cache holds a page.

Not every file system supports this. Methods return a smaller count then, and the caller uses the page cache for the
remaining bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Iterator

import numpy as np

from cordwood.fs.base import DIRECT_BLOCK_BYTES

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
