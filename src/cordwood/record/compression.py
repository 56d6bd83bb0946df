"""Compress and decompress the records of a batch with Kafka's codecs.

The payload is everything after a magic 2 header, or the value of a magic 0 or 1 wrapper. We write the same framing as
Kafka, and accept all input that Kafka's reader accepts, also at the end of the data: after a gzip member it ignores
anything but another gzip header, and after the end mark of LZ4 it ignores everything.

    gzip     (1f 8b 08 flags | time 4 | 2 | … | deflate | crc32 4 | size 4)*                        little-endian
    snappy   82 "SNAPPY" 00 | version 4 | compatible 4 | (length 4 | raw snappy)*                   big-endian
             or raw snappy alone
    lz4      04 22 4d 18 | flags 1 | block size 1 | [content size 8] | header check 1               little-endian
             | (length 4, highest bit: stored | block | [xxh32 4])* | 0 4 | [xxh32 of all 4]
    zstd     (28 b5 2f fd | descriptor 1 | … | (last:1 type:2 size:21 | block)* | [xxh64 4])*       little-endian

Kafka limits only the compressed size, so a batch of 1 MB may contain gigabytes, and sizes declared in a payload are not
trusted. Each reader is a generator that bounds every piece before it allocates memory: by zlib's own limit, by the
largest LZ4 block, by the largest expansion of raw snappy, and for zstd by cutting between blocks of at most 128 KiB.
"""

from __future__ import annotations

import functools
import importlib
import re
import struct
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from cordwood.common.errors import BatchProblem, BatchTooLargeError, ConfigError, CorruptBatchError, MissingCodecError
from cordwood.common.types import Codec

DEFAULT_MAX_BATCH_BYTES = 2 << 30
DEFAULT_WINDOW_BYTES = 1 << 20
#: Bytes per read of a payload that stays in its file.
FILE_CHUNK_BYTES = 1 << 20


class FileBytes:
    """Part of a file that is sliced like a memoryview, while only one slice is in memory."""

    def __init__(
        self,
        read: Callable[[int, int], Iterator[bytes]],
        position: int,
        size_bytes: int,
        *,
        chunk_bytes: int = FILE_CHUNK_BYTES,
    ) -> None:
        """Describe the part without reading it.

        Args:
            read: yields the bytes at (position, size_bytes) of the file in pieces.
            position: position of the first byte in the file.
            size_bytes: length of the part, which must be within the file.
            chunk_bytes: minimum number of bytes per read.
        """
        self._read = read
        self._chunk_bytes = chunk_bytes
        self._position = position
        self._size_bytes = size_bytes
        self._chunk, self._chunk_start = memoryview(b""), 0

    def __len__(self) -> int:
        return self._size_bytes

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> memoryview: ...

    def __getitem__(self, at: int | slice) -> int | memoryview:
        if isinstance(at, int):
            return self[at : at + 1][0]
        start, stop, _ = at.indices(self._size_bytes)
        stop = max(start, stop)
        end = self._chunk_start + len(self._chunk)
        if not self._chunk_start <= start <= stop <= end:
            if stop - start > self._chunk_bytes:
                return memoryview(self._load(start, stop - start))
            chunk = self._load(start, min(self._chunk_bytes, self._size_bytes - start))
            self._chunk, self._chunk_start = memoryview(chunk), start
        return self._chunk[start - self._chunk_start : stop - self._chunk_start]

    def part(self, start: int, stop: int) -> FileBytes:
        """Return the bytes [start, stop) without reading them."""
        stop = min(stop, self._size_bytes)
        return FileBytes(self._read, self._position + start, max(0, stop - start), chunk_bytes=self._chunk_bytes)

    def _load(self, start: int, size_bytes: int) -> bytearray:
        whole = bytearray()
        for piece in self._read(self._position + start, size_bytes):
            whole += piece
        if len(whole) < size_bytes:
            what = "the file was cut off within the batch while it was read"
            raise CorruptBatchError(what, kind=BatchProblem.COMPRESSION)
        return whole


Bytes: TypeAlias = bytes | bytearray | memoryview | npt.NDArray[np.uint8]
#: The input of a codec.
Payload: TypeAlias = memoryview | FileBytes


def largest_batch_bytes(memory_bytes: int) -> int:
    """Return the default limit of a batch's decompressed bytes: half of the memory, at most 2 GiB.

    A single record may be that large.
    """
    return min(DEFAULT_MAX_BATCH_BYTES, memory_bytes // 2)


def decompress(
    codec: Codec, payload: Bytes | FileBytes, *, magic: int, max_bytes: int = DEFAULT_MAX_BATCH_BYTES
) -> bytes | bytearray:
    """Decompress a whole payload, for batches of the usual small size.

    Args:
        payload: only the compressed bytes, uint8[bytes].
        magic: the batch's magic; in magic 0 the LZ4 header check is ignored, and zstd needs magic 2.
        max_bytes: limit of the decompressed bytes. Little more than that is ever allocated.

    Raises:
        CorruptBatchError: the payload is invalid, also for Kafka; the message describes the problem.
        BatchTooLargeError: it decompresses to more than `max_bytes`.
        MissingCodecError: the codec's library is not installed.
    """
    whole: bytes | bytearray = b""
    for piece in _pieces(codec, payload, magic, max_bytes, DEFAULT_WINDOW_BYTES):
        if not whole:
            whole = piece
        else:
            if isinstance(whole, bytes):
                whole = bytearray(whole)
            whole += piece
    return whole


def decompress_stream(
    codec: Codec,
    payload: Bytes | FileBytes,
    *,
    magic: int,
    max_bytes: int = DEFAULT_MAX_BATCH_BYTES,
    window_bytes: int = DEFAULT_WINDOW_BYTES,
) -> Iterator[bytes]:
    """Decompress a payload piece by piece, each of at most `window_bytes`, in bounded memory.

    Snappy needs up to 22 times its longest chunk, LZ4 a block of up to 4 MiB, zstd a history of up to 128 MiB.

    Arguments and errors are those of `decompress`. An error is raised only when its position is reached.
    """
    for piece in _pieces(codec, payload, magic, max_bytes, window_bytes):
        for start in range(0, len(piece), window_bytes):
            yield bytes(piece[start : start + window_bytes])


def compress(codec: Codec, data: Bytes, *, magic: int = 2, level: int | None = None) -> bytes:
    """Compress as Kafka does.

    The framing is identical to Kafka's; the compressed data depends on the libraries' versions, as in Kafka.

    Args:
        codec: a codec that the magic allows.
        data: encoded records, or messages for magic 0 and 1.
        magic: the batch's magic; in magic 0 Kafka writes a wrong LZ4 header check, which old clients expect.
        level: as in `compression.gzip.level`, `compression.lz4.level`, …; None is Kafka's default.

    Raises:
        ConfigError: Kafka does not accept the level for this codec, or zstd for this magic.
        MissingCodecError: the codec's library is not installed.
    """
    return b"".join(compress_stream(codec, [data], magic=magic, level=level))


def compress_stream(
    codec: Codec, pieces: Iterable[Bytes], *, magic: int = 2, level: int | None = None
) -> Iterator[bytes]:
    """Compress data that arrives in pieces, and yield the payload in pieces; memory holds only some of both.

    Block boundaries of zlib and zstd may depend on the pieces; the decompressed data does not.

    Arguments and errors are those of `compress`.
    """
    framing = _FRAMINGS[codec]
    if magic < codec.magic_min:
        needed = codec.magic_min
        raise ConfigError(f"{codec.label} needs message format {needed}, and this is magic {magic}; use another codec")
    if level is None:
        level = framing.default_level
    elif level != framing.default_level and level not in framing.levels:
        allowed = f"{framing.levels[0]} to {framing.levels[-1]}" if framing.levels else "none"
        raise ConfigError(f"{codec.label} has no compression level {level}; Kafka allows {allowed}")
    return framing.compress(map(_view, pieces), magic, level)


def _view(data: Bytes) -> memoryview:
    return data.data if isinstance(data, np.ndarray) else memoryview(data)


def _chunks(pieces: Iterable[memoryview], size_bytes: int) -> Iterator[memoryview]:
    """Regroup the bytes of all pieces into chunks of `size_bytes`; the last may be smaller."""
    begun = b""
    for piece in pieces:
        start = 0
        if begun:
            start = min(size_bytes - len(begun), len(piece))
            begun += piece[:start]
            if len(begun) < size_bytes:
                continue
            yield memoryview(begun)
        whole_end = len(piece) - (len(piece) - start) % size_bytes
        for at in range(start, whole_end, size_bytes):
            yield piece[at : at + size_bytes]
        begun = bytes(piece[whole_end:])
    if begun:
        yield memoryview(begun)


def _pieces(
    codec: Codec, payload: Bytes | FileBytes, magic: int, max_bytes: int, window_bytes: int
) -> Iterator[bytes | bytearray]:
    if magic < codec.magic_min:
        raise _corrupt(codec, f"not allowed in magic {magic}", 0)
    size = 0
    source = payload if isinstance(payload, FileBytes) else _view(payload)
    for piece in _FRAMINGS[codec].read(source, magic, max_bytes, window_bytes):
        size += len(piece)
        if size > max_bytes:
            raise _too_large(max_bytes)
        yield piece


def _too_large(max_bytes: int) -> BatchTooLargeError:
    return BatchTooLargeError(
        f"the batch decompresses to more than {max_bytes} bytes; if it is genuine, allow more with max_batch_bytes"
    )


def _corrupt(codec: Codec, what: object, at: int) -> CorruptBatchError:
    what = f"{codec.label} cannot be decompressed: {what}, at byte {at} of the compressed records"
    return CorruptBatchError(what, kind=BatchProblem.COMPRESSION)


@functools.cache
def _library(name: str, codec: Codec) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise MissingCodecError(
            f"{codec.label} needs the package {package}, which cannot be imported ({error}). "
            f"Install it with:  pip install {package}"
        ) from error


#: Idle zstandard contexts. Creating one takes 10 to 20 µs; each serves one stream at a time.
_idle: defaultdict[object, list[Any]] = defaultdict(list)


# ---- none ------------------------------------------------------------------------------------------------------------


def _read_none(payload: Payload, magic: int, max_bytes: int, window_bytes: int) -> Iterator[bytes]:
    if len(payload) > max_bytes:
        raise _too_large(max_bytes)
    yield bytes(payload[:])


def _compress_none(pieces: Iterable[memoryview], magic: int, level: int) -> Iterator[bytes]:
    return map(bytes, pieces)


# ---- gzip ------------------------------------------------------------------------------------------------------------

_GZIP_MAGIC = b"\x1f\x8b\x08"
_GZIP_CRC, _GZIP_EXTRA, _GZIP_NAME, _GZIP_COMMENT = 2, 4, 8, 16
#: Java 16 and later write 255 for "unknown operating system".
_GZIP_HEADER = _GZIP_MAGIC + bytes(6) + b"\xff"
_GZIP_TRAILER = struct.Struct("<II")
#: Java looks for another member when more bytes than this follow a trailer; the smallest member has 20.
_GZIP_IGNORED_REST = 18
#: Compressed bytes per call of zlib, which copies its unconsumed input.
_GZIP_INPUT_BYTES = 16 << 10
_RAW_DEFLATE = -zlib.MAX_WBITS
_ZERO_BYTE = re.compile(rb"\0")


def _read_gzip(payload: Payload, magic: int, max_bytes: int, window_bytes: int) -> Iterator[bytes]:
    position = _gzip_body(payload, 0)
    while True:
        inflater = zlib.decompressobj(_RAW_DEFLATE)
        crc = size = 0
        while not inflater.eof:
            if position >= len(payload):
                raise _corrupt(Codec.GZIP, "the deflate stream breaks off", position)
            source: memoryview | bytes = payload[position : position + _GZIP_INPUT_BYTES]
            position += len(source)
            full = True
            while full:
                try:
                    piece = inflater.decompress(source, window_bytes)
                except zlib.error as error:
                    raise _corrupt(Codec.GZIP, error, position - len(source)) from error
                crc = zlib.crc32(piece, crc)
                size += len(piece)
                yield piece
                full = len(piece) == window_bytes and not inflater.eof
                source = inflater.unconsumed_tail
            position -= len(inflater.unused_data)
        trailer = bytes(payload[position : position + _GZIP_TRAILER.size])
        expected = _GZIP_TRAILER.pack(crc, size & 0xFFFFFFFF)
        if trailer != expected:
            what = f"CRC-32 and size should be {expected.hex()} and are {trailer.hex() or 'missing'}"
            raise _corrupt(Codec.GZIP, what, position)
        position += _GZIP_TRAILER.size
        if len(payload) - position <= _GZIP_IGNORED_REST:
            return
        try:
            position = _gzip_body(payload, position)
        except CorruptBatchError:
            return


def _gzip_body(payload: Payload, start: int) -> int:
    """Check the gzip header at `start`, and return the position of the deflate data after it."""
    if payload[start : start + 3] != _GZIP_MAGIC:
        raise _corrupt(Codec.GZIP, f"no gzip header but {bytes(payload[start : start + 3]).hex() or 'nothing'}", start)
    flags = payload[start + 3] if len(payload) > start + 3 else 0
    position = start + len(_GZIP_HEADER)
    if flags & _GZIP_EXTRA:
        position += 2 + int.from_bytes(payload[position : position + 2], "little")
    for flag in (_GZIP_NAME, _GZIP_COMMENT):
        if flags & flag:
            position = _behind_zero(payload, position)
    if flags & _GZIP_CRC:
        if int.from_bytes(payload[position : position + 2], "little") != zlib.crc32(payload[start:position]) & 0xFFFF:
            raise _corrupt(Codec.GZIP, "wrong header CRC", position)
        position += 2
    if position > len(payload):
        raise _corrupt(Codec.GZIP, "the header breaks off", start)
    return position


def _behind_zero(payload: Payload, position: int) -> int:
    """Return the position after the next zero byte; if there is none, a position beyond the payload."""
    for start in range(position, len(payload), _GZIP_INPUT_BYTES):
        found = _ZERO_BYTE.search(payload[start : start + _GZIP_INPUT_BYTES])
        if found:
            return start + found.end()
    return len(payload) + 1


def _compress_gzip(pieces: Iterable[memoryview], magic: int, level: int) -> Iterator[bytes]:
    deflater = zlib.compressobj(level, zlib.DEFLATED, _RAW_DEFLATE)
    crc = size = 0
    yield _GZIP_HEADER
    for data in pieces:
        crc = zlib.crc32(data, crc)
        size += len(data)
        yield deflater.compress(data)
    yield deflater.flush()
    yield _GZIP_TRAILER.pack(crc, size & 0xFFFFFFFF)


# ---- snappy ----------------------------------------------------------------------------------------------------------

_SNAPPY_MAGIC = b"\x82SNAPPY\0"
_SNAPPY_HEADER = _SNAPPY_MAGIC + struct.pack(">ii", 1, 1)
_SNAPPY_HEADER_BYTES = 16
#: No chunk can have this length; it means that another header starts here.
_SNAPPY_HEADER_AGAIN = int.from_bytes(_SNAPPY_MAGIC[:4], "big")
_SNAPPY_CHUNK_BYTES = 32 << 10
#: The largest expansion: an element of 3 bytes copies 64.
_SNAPPY_EXPANSION = 22
_JAVA_ARRAY_BYTES_MAX = 2**31 - 1

assert len(_SNAPPY_HEADER) == _SNAPPY_HEADER_BYTES


def _read_snappy(payload: Payload, magic: int, max_bytes: int, window_bytes: int) -> Iterator[bytearray]:
    # Kafka checks the version in every header except the first.
    if len(payload) < _SNAPPY_HEADER_BYTES or payload[:8] != _SNAPPY_MAGIC:
        yield _raw_snappy(payload[:], 0, max_bytes)
        return
    position = _SNAPPY_HEADER_BYTES
    # Kafka ignores trailing bytes that are too short for a length.
    while len(payload) - position >= 4:
        length = int.from_bytes(payload[position : position + 4], "big")
        if length == _SNAPPY_HEADER_AGAIN:
            header = bytes(payload[position : position + _SNAPPY_HEADER_BYTES])
            if len(header) < _SNAPPY_HEADER_BYTES:
                raise _corrupt(Codec.SNAPPY, "a header breaks off", position)
            if header.startswith(_SNAPPY_MAGIC) and int.from_bytes(header[8:12], "big", signed=True) < 1:
                raise _corrupt(Codec.SNAPPY, "a header has a version below 1", position)
            position += _SNAPPY_HEADER_BYTES
            continue
        position += 4
        if length > len(payload) - position:
            what = f"a chunk of {length} bytes where {len(payload) - position} are left"
            raise _corrupt(Codec.SNAPPY, what, position - 4)
        yield _raw_snappy(payload[position : position + length], position, max_bytes)
        position += length


def _raw_snappy(chunk: memoryview, at: int, max_bytes: int) -> bytearray:
    """Decompress raw snappy, which starts with its decompressed length. `at` is the position for error messages."""
    cramjam = _library("cramjam", Codec.SNAPPY)
    length = 0
    for index, byte in enumerate(chunk[:5]):
        length |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            break
    else:
        raise _corrupt(Codec.SNAPPY, "no decompressed length", at)
    if length > min(_SNAPPY_EXPANSION * len(chunk), _JAVA_ARRAY_BYTES_MAX):
        raise _corrupt(Codec.SNAPPY, f"{len(chunk)} bytes cannot hold the {length} they declare", at)
    if length > max_bytes:
        raise _too_large(max_bytes)
    target = bytearray(length)
    try:
        written = cramjam.snappy.decompress_raw_into(chunk, target)
    except cramjam.DecompressionError as error:
        raise _corrupt(Codec.SNAPPY, error, at) from error
    assert written == length, "raw snappy checks the length it declares"
    return target


def _compress_snappy(pieces: Iterable[memoryview], magic: int, level: int) -> Iterator[bytes]:
    cramjam = _library("cramjam", Codec.SNAPPY)
    yield _SNAPPY_HEADER
    for plain in _chunks(pieces, _SNAPPY_CHUNK_BYTES):
        chunk = bytes(cramjam.snappy.compress_raw(plain))
        yield len(chunk).to_bytes(4, "big")
        yield chunk


# ---- lz4 -------------------------------------------------------------------------------------------------------------

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_VERSION_1_INDEPENDENT = 0b0110_0000
_LZ4_BLOCK_CHECKSUM, _LZ4_CONTENT_SIZE, _LZ4_CONTENT_CHECKSUM = 16, 8, 4
_LZ4_FLAGS_READ = _LZ4_BLOCK_CHECKSUM | _LZ4_CONTENT_SIZE | _LZ4_CONTENT_CHECKSUM
_LZ4_STORED = 0x8000_0000
_LZ4_BLOCK_BYTES_MAX = {0x40: 64 << 10, 0x50: 256 << 10, 0x60: 1 << 20, 0x70: 4 << 20}
_LZ4_WRITTEN_BLOCK_BYTES = 64 << 10
_LZ4_WRITTEN_DESCRIPTOR = bytes([_LZ4_VERSION_1_INDEPENDENT, 0x40])
#: Header checks of that descriptor. In magic 0, Kafka's check covers the frame's magic, too, by mistake.
_LZ4_CHECK, _LZ4_CHECK_MAGIC_0 = b"\x82", b"\x1a"
#: No LZ4 block expands more than this.
_LZ4_EXPANSION = 255
_LZ4_HIGH_LEVEL_MAX = 12


def _read_lz4(payload: Payload, magic: int, max_bytes: int, window_bytes: int) -> Iterator[bytes]:
    block = _library("lz4.block", Codec.LZ4)
    xxh32 = _library("xxhash", Codec.LZ4).xxh32_intdigest
    position = _lz4_blocks(payload, magic, xxh32)
    flags, block_bytes_max = payload[4], _LZ4_BLOCK_BYTES_MAX[payload[5]]
    checksum_bytes = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
    while True:
        if len(payload) - position < 4:
            raise _corrupt(Codec.LZ4, "the frame breaks off without an end mark", position)
        word = int.from_bytes(payload[position : position + 4], "little")
        position += 4
        length = word & ~_LZ4_STORED
        if length == 0:
            break
        end = position + length
        if length > block_bytes_max or end + checksum_bytes > len(payload):
            left = len(payload) - position
            what = f"a block of {length} bytes where {block_bytes_max} are allowed and {left} are left"
            raise _corrupt(Codec.LZ4, what, position - 4)
        data = payload[position:end]
        if checksum_bytes and xxh32(data) != int.from_bytes(payload[end : end + 4], "little"):
            raise _corrupt(Codec.LZ4, "wrong checksum of a block", position)
        if word & _LZ4_STORED:
            yield bytes(data)
        else:
            try:
                piece = block.decompress(data, uncompressed_size=min(block_bytes_max, _LZ4_EXPANSION * length))
            except block.LZ4BlockError as error:
                raise _corrupt(Codec.LZ4, error, position) from error
            if not piece:
                # No writer makes empty blocks. Kafka's reader treats an empty block as the end.
                return
            yield piece
        position = end + checksum_bytes
    # Kafka requires the four bytes of the content checksum, but does not verify it.
    if flags & _LZ4_CONTENT_CHECKSUM and len(payload) - position < 4:
        raise _corrupt(Codec.LZ4, "the checksum of the content is missing", position)


def _lz4_blocks(payload: Payload, magic: int, xxh32: Callable[[memoryview], int]) -> int:
    """Check the frame header, and return the position of the first block."""
    if payload[:4] != _LZ4_MAGIC:
        raise _corrupt(Codec.LZ4, f"no LZ4 frame but {bytes(payload[:4]).hex() or 'nothing'}", 0)
    position = 14 if len(payload) > 4 and payload[4] & _LZ4_CONTENT_SIZE else 6
    if position >= len(payload):
        raise _corrupt(Codec.LZ4, "the frame header breaks off", 4)
    if payload[4] & ~_LZ4_FLAGS_READ != _LZ4_VERSION_1_INDEPENDENT:
        what = f"flags {payload[4]:#04x}; Kafka reads version 1 with independent blocks and no reserved bit"
        raise _corrupt(Codec.LZ4, what, 4)
    if payload[5] not in _LZ4_BLOCK_BYTES_MAX:
        raise _corrupt(Codec.LZ4, f"unknown block size {payload[5]:#04x}", 5)
    if magic > 0 and payload[position] != xxh32(payload[4:position]) >> 8 & 0xFF:
        raise _corrupt(Codec.LZ4, "wrong header check", position)
    return position + 1


def _compress_lz4(pieces: Iterable[memoryview], magic: int, level: int) -> Iterator[bytes]:
    block = _library("lz4.block", Codec.LZ4)
    # At its default level, 9, Kafka uses the fast compressor, which has no level.
    mode = {} if level == 9 else {"mode": "high_compression", "compression": min(level, _LZ4_HIGH_LEVEL_MAX)}
    yield _LZ4_MAGIC + _LZ4_WRITTEN_DESCRIPTOR + (_LZ4_CHECK if magic > 0 else _LZ4_CHECK_MAGIC_0)
    for plain in _chunks(pieces, _LZ4_WRITTEN_BLOCK_BYTES):
        packed = block.compress(plain, store_size=False, **mode)
        if len(packed) < len(plain):
            yield len(packed).to_bytes(4, "little")
            yield packed
        else:
            yield (len(plain) | _LZ4_STORED).to_bytes(4, "little")
            yield bytes(plain)
    yield bytes(4)


# ---- zstd ------------------------------------------------------------------------------------------------------------

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
_ZSTD_BLOCK_BYTES_MAX = 128 << 10
_ZSTD_INPUT_BYTES = _ZSTD_BLOCK_BYTES_MAX + 3
_ZSTD_RUN, _ZSTD_COMPRESSED = 1, 2


def _read_zstd(payload: Payload, magic: int, max_bytes: int, window_bytes: int) -> Iterator[bytes]:
    zstandard = _library("zstandard", Codec.ZSTD)
    try:
        decompressor = _idle[zstandard.ZstdDecompressor].pop()
    except IndexError:
        decompressor = zstandard.ZstdDecompressor()
    try:
        position = 0
        while position < len(payload):
            frame = position
            decoder = decompressor.decompressobj(write_size=64 << 10)
            for cut in _zstd_cuts(payload, frame, window_bytes):
                try:
                    piece = decoder.decompress(payload[position:cut])
                except zstandard.ZstdError as error:
                    raise _corrupt(Codec.ZSTD, error, position) from error
                position = cut
                yield piece
            # Kafka's library reads _ZSTD_INPUT_BYTES at a time. It does not notice a truncated frame if the previous
            # frame ended in that last read; then it treats the rest as the end of the data.
            noticed = (frame - 1) // _ZSTD_INPUT_BYTES != (len(payload) - 1) // _ZSTD_INPUT_BYTES
            if noticed and not decoder.eof:
                raise _corrupt(Codec.ZSTD, "the frame breaks off", position)
    finally:
        _idle[zstandard.ZstdDecompressor].append(decompressor)


def _zstd_cuts(payload: Payload, frame: int, window_bytes: int) -> Iterator[int]:
    """Yield positions that divide a frame into parts that each decompress to at most a window or a block.

    Positions ascend; the last is the end of the frame, or of the payload if the frame is truncated.
    """
    start = bytes(payload[frame : frame + 6])
    if _ZSTD_SKIPPABLE.match(start):
        yield min(frame + 8 + int.from_bytes(payload[frame + 4 : frame + 8], "little"), len(payload))
        return
    if len(start) < 6:
        yield len(payload)
        return
    if not start.startswith(_ZSTD_MAGIC):
        raise _corrupt(Codec.ZSTD, f"no zstd frame but {start[:4].hex()}", frame)
    descriptor = start[4]
    single_segment = descriptor >> 5 & 1
    content_size_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
    dictionary_bytes = (0, 1, 2, 4)[descriptor & 3]
    checksum_bytes = 4 * (descriptor >> 2 & 1)
    position = frame + 5 + (1 - single_segment) + dictionary_bytes + content_size_bytes
    room = window_bytes
    last = 0
    while not last and position + 3 <= len(payload):
        header = int.from_bytes(payload[position : position + 3], "little")
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        produced = _ZSTD_BLOCK_BYTES_MAX if kind == _ZSTD_COMPRESSED else size
        if produced > room:
            yield position
            room = window_bytes
        room -= produced
        position += 3 + (1 if kind == _ZSTD_RUN else size)
    yield min(position + checksum_bytes, len(payload)) if last else len(payload)


def _compress_zstd(pieces: Iterable[memoryview], magic: int, level: int) -> Iterator[bytes]:
    zstandard = _library("zstandard", Codec.ZSTD)
    try:
        compressor = _idle[level].pop()
    except IndexError:
        compressor = zstandard.ZstdCompressor(level, write_content_size=False, write_checksum=False)
    encoder = compressor.compressobj()
    for data in pieces:
        yield encoder.compress(data)
    # Kafka flushes before it closes, so the last block is empty.
    yield encoder.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    yield encoder.flush()
    _idle[level].append(compressor)


# ---- table -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Framing:
    """The functions and levels of a codec.

    Attributes:
        read: (payload, magic, max_bytes, window_bytes) to pieces, none larger than a window or the codec's bound.
        compress: (pieces of the data, magic, level) to pieces of a payload.
        default_level: Kafka's default; always allowed.
        levels: all other levels that Kafka allows.
    """

    read: Callable[[Payload, int, int, int], Iterator[bytes | bytearray]]
    compress: Callable[[Iterable[memoryview], int, int], Iterator[bytes]]
    default_level: int = 0
    levels: range = range(0)


_FRAMINGS = {
    Codec.NONE: _Framing(_read_none, _compress_none),
    Codec.GZIP: _Framing(_read_gzip, _compress_gzip, -1, range(1, 10)),
    Codec.SNAPPY: _Framing(_read_snappy, _compress_snappy),
    Codec.LZ4: _Framing(_read_lz4, _compress_lz4, 9, range(1, 18)),
    Codec.ZSTD: _Framing(_read_zstd, _compress_zstd, 3, range(-131072, 23)),
}
