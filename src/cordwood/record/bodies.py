"""Decompress and compress the bodies of many batches of magic 2 per call, without Python code between bodies.

LZ4 and Snappy are kernels; zstd is libzstd, and gzip is libdeflate, called from a kernel. Batches that a kernel rejects
are passed to `record.compression`, one per call. It accepts everything that Kafka reads, and reports errors.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cordwood.common.types import Codec
from cordwood.kernels import gzip, lz4, snappy, zstd
from cordwood.kernels.layout import U8Array
from cordwood.record.compression import compress
from cordwood.record.libdeflate import libdeflate
from cordwood.record.libzstd import libzstd

Int64Array = npt.NDArray[np.int64]


def has_fast_decompressor(codec: Codec) -> bool:
    """Return whether `decompress_bodies` supports a codec in this process."""
    if codec is Codec.ZSTD:
        return libzstd() is not None
    if codec is Codec.GZIP:
        return libdeflate() is not None
    return codec in (Codec.LZ4, Codec.SNAPPY)


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
    if codec is Codec.LZ4:
        done = lz4.decompress_frames(*places)
    elif codec is Codec.SNAPPY:
        done = snappy.decompress_payloads(*places)
    elif codec is Codec.ZSTD and (library := libzstd()) is not None:
        with library.decompressors.one() as context:
            done = zstd.decompress_frames(library.decompress, context, *places)
    elif codec is Codec.GZIP and (deflate := libdeflate()) is not None:
        with deflate.decompressors.one() as context:
            done = gzip.decompress_members(deflate.decompress, context, *places)
    else:
        raise AssertionError(codec)
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
    sizes = ends - starts
    # The largest possible output of any codec. Pages that stay unused need no memory.
    target = np.empty(int((gap + sizes + sizes // 5 + 128).sum()), np.uint8)
    target_starts, target_ends = np.empty(starts.size, np.int64), np.empty(starts.size, np.int64)
    places = (data.ctypes.data, starts, ends, target.ctypes.data, target.size, gap, target_starts, target_ends)
    if codec is Codec.LZ4:
        lz4.compress_frames(data.ctypes.data, starts, ends, target.ctypes.data, gap, target_starts, target_ends)
    elif codec is Codec.SNAPPY:
        snappy.compress_payloads(data.ctypes.data, starts, ends, target.ctypes.data, gap, target_starts, target_ends)
    elif codec is Codec.ZSTD and (library := libzstd()) is not None:
        with library.compressors.one() as context:
            done = zstd.compress_frames(library.compress, context, *places)
        assert done == starts.size, "libzstd compresses what fits its bound"
    elif codec is Codec.GZIP and (deflate := libdeflate()) is not None:
        with deflate.compressors.one() as context:
            done = gzip.compress_members(deflate.compress, context, *places)
        assert done == starts.size, "libdeflate compresses what fits its bound"
    else:
        return _compress_each(codec, data, starts, ends, gap)
    return target[: target_ends[-1]], target_starts, target_ends


def _compress_each(
    codec: Codec, data: U8Array, starts: Int64Array, ends: Int64Array, gap: int
) -> tuple[U8Array, Int64Array, Int64Array]:
    bodies = [compress(codec, data[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    target_sizes = np.array([gap + len(body) for body in bodies], np.int64)
    target_ends = np.cumsum(target_sizes)
    whole = bytearray(b"".join(part for body in bodies for part in (bytes(gap), body)))
    return np.frombuffer(whole, np.uint8), target_ends - target_sizes, target_ends
