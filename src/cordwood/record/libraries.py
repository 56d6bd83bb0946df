"""Addresses of functions of libzstd and libdeflate, for kernels, and contexts for them.

The package deflate contains libdeflate. The package zstandard contains libzstd twice: hidden in its C backend, which
`record.compression` uses, and in its cffi backend, which exports the functions. Both are built from the same source. If
a library is missing, or differs, its function returns None, and `record.compression` does all the work.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

# ---- contexts --------------------------------------------------------------------------------------------------------


def address_of(library: ctypes.CDLL, name: str) -> int:
    """Return the address of a function; AttributeError if the library does not export it."""
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def create(function: Any, *arguments: int) -> int:
    """Create a context by calling a function, and return its address."""
    function.restype = ctypes.c_void_p
    context: int | None = function(*arguments)
    if context is None:
        raise MemoryError(f"{function.__name__} found no memory")
    return context


class Contexts:
    """A pool of contexts of one kind; it grows to the number that threads have used at the same time."""

    def __init__(self, create_one: Callable[[], int]) -> None:
        self._create_one = create_one
        self._idle: list[int] = []

    @contextmanager
    def one(self) -> Iterator[int]:
        """Yield a context that no other thread uses in the block."""
        try:
            context = self._idle.pop()
        except IndexError:
            context = self._create_one()
        try:
            yield context
        finally:
            self._idle.append(context)


# ---- libzstd ---------------------------------------------------------------------------------------------------------

#: Kafka's default level.
_ZSTD_LEVEL = 3
#: Numbers of ZSTD_cParameter.
_LEVEL_PARAMETER, _CONTENT_SIZE_PARAMETER = 100, 200


@dataclass(frozen=True, slots=True)
class LibZstd:
    """The addresses of functions that kernels call, and their contexts.

    Attributes:
        decompress: (ZSTD_DCtx_reset, ZSTD_decompressStream).
        compress: (ZSTD_CCtx_reset, ZSTD_compressStream2).
    """

    decompress: tuple[int, int]
    compress: tuple[int, int]
    decompressors: Contexts
    compressors: Contexts


@functools.cache
def libzstd() -> LibZstd | None:
    """Return the library, or None if the installed zstandard does not export the same version's functions."""
    try:
        import zstandard

        spec = importlib.util.find_spec("zstandard._cffi")
        if spec is None or spec.origin is None:
            return None
        library = ctypes.CDLL(spec.origin)
        major, minor, patch = zstandard.ZSTD_VERSION
        if library.ZSTD_versionNumber() != (major * 100 + minor) * 100 + patch:
            return None
        return LibZstd(
            (address_of(library, "ZSTD_DCtx_reset"), address_of(library, "ZSTD_decompressStream")),
            (address_of(library, "ZSTD_CCtx_reset"), address_of(library, "ZSTD_compressStream2")),
            Contexts(functools.partial(create, library.ZSTD_createDCtx)),
            Contexts(functools.partial(_compressor, library, library.ZSTD_createCCtx)),
        )
    except (ImportError, OSError, AttributeError):
        return None


def _compressor(library: ctypes.CDLL, function: Any) -> int:
    """Create a compression context with our parameters."""
    context = create(function)
    for parameter, value in ((_LEVEL_PARAMETER, _ZSTD_LEVEL), (_CONTENT_SIZE_PARAMETER, 0)):
        library.ZSTD_CCtx_setParameter(ctypes.c_void_p(context), parameter, value)
    return context


# ---- libdeflate ------------------------------------------------------------------------------------------------------

#: libdeflate's level; it compresses about as well as zlib's level 6, Kafka's default, in half the time.
_DEFLATE_LEVEL = 6


@dataclass(frozen=True, slots=True)
class LibDeflate:
    """The addresses of functions that kernels call, and their contexts."""

    decompress: int
    compress: int
    decompressors: Contexts
    compressors: Contexts


@functools.cache
def libdeflate() -> LibDeflate | None:
    """Return the library, or None if the package deflate is missing, or does not export the functions."""
    try:
        # Another thread may be importing it: an import statement waits for that, find_spec does not.
        import deflate  # noqa: F401

        spec = importlib.util.find_spec("deflate._deflate")
        if spec is None or spec.origin is None:
            return None
        library = ctypes.CDLL(spec.origin)
        return LibDeflate(
            address_of(library, "libdeflate_gzip_decompress_ex"),
            address_of(library, "libdeflate_gzip_compress"),
            Contexts(functools.partial(create, library.libdeflate_alloc_decompressor)),
            Contexts(functools.partial(create, library.libdeflate_alloc_compressor, _DEFLATE_LEVEL)),
        )
    except (ImportError, OSError, AttributeError):
        return None
