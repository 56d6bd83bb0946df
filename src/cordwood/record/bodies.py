"""Decompress and compress the bodies of many batches of magic 2 per call, without Python code between bodies.

LZ4 and Snappy are kernels; zstd is libzstd, and gzip is libdeflate, called from a kernel. Batches that a kernel rejects
are passed to `record.compression`, one per call. It accepts everything that Kafka reads, and reports errors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cordwood.common.types import Codec
from cordwood.kernels import Deferred
from cordwood.kernels.layout import U8Array
from cordwood.record.compression import compress
from cordwood.record.libraries import Library, libdeflate, libzstd

if TYPE_CHECKING:
    from cordwood.kernels import gzip, lz4, snappy, zstd
else:
    gzip, lz4, snappy, zstd = map(Deferred, ("gzip", "lz4", "snappy", "zstd"))

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Fast:
    """The fast functions of a codec.

    Attributes:
        decompress, compress: take the places of `decompress_bodies` and `compress_bodies`, and return the number of
            bodies that they filled.
    """

    decompress: Callable[..., int]
    compress: Callable[..., int]


def _by_kernels(decompress: Callable[..., int], compress: Callable[..., None]) -> _Fast:
    """Return kernels whose compressor needs no bound: it gets room for the largest output."""

    def compress_all(*places: Any) -> int:
        address, starts, ends, target, _, *rest = places
        compress(address, starts, ends, target, *rest)
        return int(starts.size)

    return _Fast(decompress, compress_all)


def _by_library(
    library: Library | None, decompressor: Callable[..., int], compressor: Callable[..., int]
) -> _Fast | None:
    """Return kernels that call a library with one of its idle contexts, or None without the library."""
    if library is None:
        return None

    def decompress(*places: Any) -> int:
        with library.decompressors.one() as context:
            return decompressor(library.decompress, context, *places)

    def compress(*places: Any) -> int:
        with library.compressors.one() as context:
            return compressor(library.compress, context, *places)

    return _Fast(decompress, compress)


def _fast(codec: Codec) -> _Fast | None:
    """Return the fast functions of a codec in this process, if it has some. The table of all."""
    match codec:
        case Codec.GZIP:
            return _by_library(libdeflate(), gzip.decompress_members, gzip.compress_members)
        case Codec.SNAPPY:
            return _by_kernels(snappy.decompress_payloads, snappy.compress_payloads)
        case Codec.LZ4:
            return _by_kernels(lz4.decompress_frames, lz4.compress_frames)
        case Codec.ZSTD:
            return _by_library(libzstd(), zstd.decompress_frames, zstd.compress_frames)
        case _:
            return None


def has_fast_decompressor(codec: Codec) -> bool:
    """Return whether `decompress_bodies` supports a codec in this process."""
    return _fast(codec) is not None


def decompress_bodies(
    codec: Codec, data: U8Array, starts: Int64Array, ends: Int64Array, target: U8Array, *, enough: int, body_max: int
) -> Int64Array:
    """Decompress bodies into `target`, one after the other, until the fast decompressor rejects one.

    Args:
        codec: must satisfy `has_fast_decompressor`.
        data: uint8[bytes] that contains the compressed bodies.
        starts, ends: int64[bodies], their positions in `data`.
        target: uint8[bytes], filled.
        enough: start no further body once this many bytes are decompressed.
        body_max: maximum number of decompressed bytes of one body.

    Returns:
        int64[decompressed bodies], the end of each in `target`. The next body is unsupported or corrupt, or does not
        fit, or `enough` was reached.
    """
    target_ends = np.empty(starts.size, np.int64)
    places = (data.ctypes.data, starts, ends, target.ctypes.data, target.size, enough, body_max, target_ends)
    fast = _fast(codec)
    assert fast is not None, codec
    done = fast.decompress(*places)
    return target_ends[:done]


def compress_bodies(
    codec: Codec, data: U8Array, starts: Int64Array, ends: Int64Array, *, gap: int
) -> tuple[U8Array, Int64Array, Int64Array]:
    """Compress bodies as Kafka does at its default level.

    Args:
        data: uint8[bytes] that contains the encoded records.
        starts, ends: int64[bodies], their positions in `data`.
        gap: bytes to leave before each compressed body, for a batch header.

    Returns:
        a buffer; and int64[bodies], the start of each gap, and the end of each compressed body.
    """
    fast = _fast(codec)
    if fast is None:
        return _compress_each(codec, data, starts, ends, gap)
    sizes = ends - starts
    # The largest possible output of any codec. Pages that stay unused need no memory.
    target = np.empty(int((gap + sizes + sizes // 5 + 128).sum()), np.uint8)
    target_starts, target_ends = np.empty(starts.size, np.int64), np.empty(starts.size, np.int64)
    places = (data.ctypes.data, starts, ends, target.ctypes.data, target.size, gap, target_starts, target_ends)
    done = fast.compress(*places)
    assert done == starts.size, "every codec compresses to less than the bound"
    return target[: target_ends[-1]], target_starts, target_ends


def _compress_each(
    codec: Codec, data: U8Array, starts: Int64Array, ends: Int64Array, gap: int
) -> tuple[U8Array, Int64Array, Int64Array]:
    bodies = [compress(codec, data[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    target_sizes = np.array([gap + len(body) for body in bodies], np.int64)
    target_ends = np.cumsum(target_sizes)
    whole = bytearray(b"".join(part for body in bodies for part in (bytes(gap), body)))
    return np.frombuffer(whole, np.uint8), target_ends - target_sizes, target_ends
