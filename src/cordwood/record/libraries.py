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


@dataclass(frozen=True, slots=True)
class Library:
    """The functions of a library that kernels call, and their contexts.

    Attributes:
        decompress, compress: the address of a function, or a tuple of addresses, as its kernel takes them.
    """

    decompress: int | tuple[int, int]
    compress: int | tuple[int, int]
    decompressors: _Contexts
    compressors: _Contexts


# ---- libzstd ---------------------------------------------------------------------------------------------------------

#: Kafka's default level.
_ZSTD_LEVEL = 3
#: Numbers of ZSTD_cParameter.
_LEVEL_PARAMETER, _CONTENT_SIZE_PARAMETER = 100, 200


@functools.cache
def libzstd() -> Library | None:
    """Return the library, or None if the installed zstandard does not export the same version's functions.

    `decompress` is (ZSTD_DCtx_reset, ZSTD_decompressStream), `compress` (ZSTD_CCtx_reset, ZSTD_compressStream2).
    """
    try:
        import zstandard

        library = _exported("zstandard._cffi")
        major, minor, patch = zstandard.ZSTD_VERSION
        if library.ZSTD_versionNumber() != (major * 100 + minor) * 100 + patch:
            return None
        return Library(
            (_address_of(library, "ZSTD_DCtx_reset"), _address_of(library, "ZSTD_decompressStream")),
            (_address_of(library, "ZSTD_CCtx_reset"), _address_of(library, "ZSTD_compressStream2")),
            _Contexts(functools.partial(_create, library.ZSTD_createDCtx)),
            _Contexts(functools.partial(_compressor, library, library.ZSTD_createCCtx)),
        )
    except (ImportError, OSError, AttributeError):
        return None


def _compressor(library: ctypes.CDLL, function: Any) -> int:
    """Create a compression context with our parameters."""
    context = _create(function)
    for parameter, value in ((_LEVEL_PARAMETER, _ZSTD_LEVEL), (_CONTENT_SIZE_PARAMETER, 0)):
        library.ZSTD_CCtx_setParameter(ctypes.c_void_p(context), parameter, value)
    return context


# ---- libdeflate ------------------------------------------------------------------------------------------------------

#: libdeflate's level; it compresses about as well as zlib's level 6, Kafka's default, in half the time.
_DEFLATE_LEVEL = 6


@functools.cache
def libdeflate() -> Library | None:
    """Return the library, or None if the package deflate is missing, or does not export the functions."""
    try:
        # Another thread may be importing it: an import statement waits for that, `_exported` does not.
        import deflate  # noqa: F401

        library = _exported("deflate._deflate")
        return Library(
            _address_of(library, "libdeflate_gzip_decompress_ex"),
            _address_of(library, "libdeflate_gzip_compress"),
            _Contexts(functools.partial(_create, library.libdeflate_alloc_decompressor)),
            _Contexts(functools.partial(_create, library.libdeflate_alloc_compressor, _DEFLATE_LEVEL)),
        )
    except (ImportError, OSError, AttributeError):
        return None


# ---- functions and contexts ------------------------------------------------------------------------------------------


def _exported(module: str) -> ctypes.CDLL:
    """Load the library of an extension module.

    Raises:
        ImportError: the module is missing.
    """
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ImportError(module)
    return ctypes.CDLL(spec.origin)


def _address_of(library: ctypes.CDLL, name: str) -> int:
    """Return the address of a function; AttributeError if the library does not export it."""
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def _create(function: Any, *arguments: int) -> int:
    """Create a context by calling a function, and return its address."""
    function.restype = ctypes.c_void_p
    context: int | None = function(*arguments)
    if context is None:
        raise MemoryError(f"{function.__name__} found no memory")
    return context


class _Contexts:
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
