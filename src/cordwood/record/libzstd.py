"""Addresses of libzstd's functions, for kernels, and contexts for them.

The package zstandard has the library twice: hidden in its C backend, which `record.compression` uses, and in its cffi
backend, which exports the functions. Both are built from the same source. Where the second one is missing or differs,
there are no functions, and `record.compression` does all the work.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_NAMES = (
    "ZSTD_createDCtx",
    "ZSTD_DCtx_reset",
    "ZSTD_decompressStream",
    "ZSTD_createCCtx",
    "ZSTD_CCtx_reset",
    "ZSTD_compressStream2",
)
#: Kafka's default level, which is that of the log's own writer.
LEVEL = 3
#: Numbers of ZSTD_cParameter.
_LEVEL_PARAMETER, _CONTENT_SIZE_PARAMETER = 100, 200


@dataclass(frozen=True, slots=True)
class LibZstd:
    """The functions that kernels call, by address.

    Attributes:
        compress: (ZSTD_CCtx_reset, ZSTD_compressStream2).
    """

    library: ctypes.CDLL
    decompress: tuple[int, int]
    compress: tuple[int, int]
    #: Idle contexts. As many are made as threads use at the same time, and they last as long as the process.
    _decompressing: list[int] = field(default_factory=list)
    _compressing: list[int] = field(default_factory=list)

    @contextmanager
    def decompressing(self) -> Iterator[int]:
        """Yield the address of a ZSTD_DCtx that is used nowhere else meanwhile."""
        try:
            context = self._decompressing.pop()
        except IndexError:
            context = self._create("ZSTD_createDCtx")
        try:
            yield context
        finally:
            self._decompressing.append(context)

    @contextmanager
    def compressing(self) -> Iterator[int]:
        """Yield the address of a ZSTD_CCtx for `LEVEL`, without content sizes, that is used nowhere else meanwhile."""
        try:
            context = self._compressing.pop()
        except IndexError:
            context = self._create("ZSTD_createCCtx")
            for parameter, value in ((_LEVEL_PARAMETER, LEVEL), (_CONTENT_SIZE_PARAMETER, 0)):
                self.library.ZSTD_CCtx_setParameter(ctypes.c_void_p(context), parameter, value)
        try:
            yield context
        finally:
            self._compressing.append(context)

    def _create(self, name: str) -> int:
        function = getattr(self.library, name)
        function.restype = ctypes.c_void_p
        context: int | None = function()
        if context is None:
            raise MemoryError(f"{name} found no memory")
        return context


@functools.cache
def libzstd() -> LibZstd | None:
    """The library, or None if the installed zstandard does not export the functions, or not of the same version."""
    try:
        import zstandard

        spec = importlib.util.find_spec("zstandard._cffi")
        if spec is None or spec.origin is None:
            return None
        library = ctypes.CDLL(spec.origin)
        major, minor, patch = zstandard.ZSTD_VERSION
        if library.ZSTD_versionNumber() != (major * 100 + minor) * 100 + patch:
            return None
        addresses = {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in _NAMES}
    except (ImportError, OSError, AttributeError):
        return None
    return LibZstd(
        library,
        (addresses["ZSTD_DCtx_reset"], addresses["ZSTD_decompressStream"]),
        (addresses["ZSTD_CCtx_reset"], addresses["ZSTD_compressStream2"]),
    )
