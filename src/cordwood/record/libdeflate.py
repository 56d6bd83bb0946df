"""Addresses of libdeflate's functions, for kernels, and contexts for them. The package deflate contains the library."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from dataclasses import dataclass

from cordwood.record.libraries import Contexts, address_of, create

#: libdeflate's level; it compresses about as well as zlib's level 6, Kafka's default, in half the time.
LEVEL = 6


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
            Contexts(functools.partial(create, library.libdeflate_alloc_compressor, LEVEL)),
        )
    except (ImportError, OSError, AttributeError):
        return None
