"""Addresses of libdeflate's functions, for kernels, and their (de)compressors. The package deflate exports them."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

#: Of libdeflate; its sizes are about those of zlib's level 6, Kafka's default, in half the time.
LEVEL = 6


@dataclass(frozen=True, slots=True)
class LibDeflate:
    """The functions that kernels call, by address."""

    library: ctypes.CDLL
    decompress: int
    compress: int
    #: Idle ones. As many are made as threads use at the same time, and they last as long as the process.
    _decompressors: list[int] = field(default_factory=list)
    _compressors: list[int] = field(default_factory=list)

    @contextmanager
    def decompressing(self) -> Iterator[int]:
        """Yield the address of a libdeflate_decompressor that is used nowhere else meanwhile."""
        try:
            found = self._decompressors.pop()
        except IndexError:
            found = self._made("libdeflate_alloc_decompressor")
        try:
            yield found
        finally:
            self._decompressors.append(found)

    @contextmanager
    def compressing(self) -> Iterator[int]:
        """Yield the address of a libdeflate_compressor for `LEVEL` that is used nowhere else meanwhile."""
        try:
            found = self._compressors.pop()
        except IndexError:
            found = self._made("libdeflate_alloc_compressor", LEVEL)
        try:
            yield found
        finally:
            self._compressors.append(found)

    def _made(self, name: str, *arguments: int) -> int:
        function = getattr(self.library, name)
        function.restype = ctypes.c_void_p
        address: int | None = function(*arguments)
        if address is None:
            raise MemoryError(f"{name} found no memory")
        return address


@functools.cache
def libdeflate() -> LibDeflate | None:
    """The library, or None if the package deflate is not there, or does not export the functions."""
    try:
        # Another thread may be loading it: this waits for its end, and find_spec does not.
        import deflate  # noqa: F401

        spec = importlib.util.find_spec("deflate._deflate")
        if spec is None or spec.origin is None:
            return None
        library = ctypes.CDLL(spec.origin)
        names = ("libdeflate_gzip_decompress_ex", "libdeflate_gzip_compress")
        addresses = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names]
    except (ImportError, OSError, AttributeError):
        return None
    return LibDeflate(library, addresses[0], addresses[1])
