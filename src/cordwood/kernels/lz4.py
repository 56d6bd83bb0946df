"""Decompress and compress LZ4 frames as Kafka writes them, many per call, into one buffer.

A call of the LZ4 library costs more than decompressing a batch of a few KiB. The decompressor accepts only frames in
the form written by Kafka: independent blocks of up to 64 KiB, and no checksum except the header's. Rejected frames are
passed to `record.compression`, which accepts everything that Kafka reads, and reports errors.

    frame    04 22 4d 18 60 40 82 | (length 4, highest bit: stored | block)* | 0 4
    block    (token | more literal length | literals | offset 2 | more match length)* , the last without a match
    token    literal length in the upper, match length - 4 in the lower four bits; 15: more bytes follow, to be added
"""

from __future__ import annotations

import numpy as np

from cordwood.kernels.compiling import njit
from cordwood.kernels.native import (
    copy,
    load8,
    load16,
    load32,
    load64,
    store8,
    store16,
    store32,
    store64,
    trailing_zeros,
)

_FRAME_MAGIC = np.uint32(0x184D2204)
#: Version 1 with independent blocks; blocks of up to 64 KiB; the check of these two bytes.
_DESCRIPTOR = (0x60, 0x40, 0x82)
_HEADER_BYTES = 7
_BLOCK_BYTES_MAX = 64 << 10
_STORED = 0x8000_0000
#: No block expands more than this.
_EXPANSION = 255
_MATCH_MIN = 4
#: A block ends with at least five literals, and no match starts in its last twelve bytes.
_LAST_LITERALS = 5
_LAST_MATCH = 12
#: With this much left to read and to write, a few literals are copied as 16 bytes, and a match follows them.
_NEAR_BYTES = 32
assert _NEAR_BYTES >= 16 + 3 + _LAST_LITERALS and _NEAR_BYTES >= 16 + _LAST_MATCH
#: 16 KiB, a part of the first cache; positions in a block fit in 16 bits.
_TABLE_BITS = 13
#: The hash covers five bytes, as in the library: a match of only four saves little, and a longer one may follow.
_HASH_FACTOR = np.uint64(889523592379)
_UNHASHED_BITS = np.uint64(24)
_HASH_SHIFT = np.uint64(64 - _TABLE_BITS)


@njit(inline="always")
def _more(source, end, length):
    """Read the bytes that extend a length; return (length, source after them); source is 0 if bytes are missing."""
    while True:
        if source >= end:
            return length, 0
        byte = np.int64(load8(source))
        source += 1
        length += byte
        if byte != 255:
            return length, source


@njit(inline="always")
def _copy_match(target, distance, length, end):
    """Copy `length` bytes from `distance` before the target, which may overlap it; there is room up to `end`."""
    source, stop = target - distance, target + length
    if distance >= 8 and stop + 32 <= end:
        # Up to 31 bytes behind the match are written here, and overwritten by later output.
        while True:
            store64(target, load64(source))
            store64(target + 8, load64(source + 8))
            store64(target + 16, load64(source + 16))
            store64(target + 24, load64(source + 24))
            target += 32
            source += 32
            if target >= stop:
                return stop
    while target < stop:
        store8(target, load8(source))
        target += 1
        source += 1
    return stop


@njit
def _block(source, size, target, room):
    """Decompress a block of `size` bytes into `room` bytes; return the bytes written, or -1: corrupt, or no room."""
    source_end, start, end = source + size, target, target + room
    while source < source_end:
        token = np.int64(load8(source))
        source += 1
        length = token >> 4
        if length < 15 and source_end - source >= _NEAR_BYTES and end - target >= _NEAR_BYTES:
            store64(target, load64(source))
            store64(target + 8, load64(source + 8))
            source += length
            target += length
        else:
            if length == 15:
                length, source = _more(source, source_end, length)
                if source == 0:
                    return -1
            if length > source_end - source or length > end - target:
                return -1
            copy(target, source, length)
            source += length
            target += length
            if source == source_end:
                return target - start
            if source_end - source < 3 + _LAST_LITERALS or end - target < _LAST_MATCH:
                return -1
        distance = np.int64(load16(source))
        source += 2
        length = token & 15
        if length == 15:
            length, source = _more(source, source_end, length)
            if source == 0:
                return -1
        length += _MATCH_MIN
        if distance == 0 or distance > target - start or length > end - target - _LAST_LITERALS:
            return -1
        if source_end - source < _LAST_LITERALS:
            return -1
        target = _copy_match(target, distance, length, end)
    return -1


@njit
def _frame(source, size, target, room):
    """Decompress a frame of `size` bytes into `room` bytes; return the bytes written, or -1: rejected, or no room."""
    source_end, start, end = source + size, target, target + room
    if size < _HEADER_BYTES or load32(source) != _FRAME_MAGIC:
        return -1
    if (
        load8(source + 4) != _DESCRIPTOR[0]
        or load8(source + 5) != _DESCRIPTOR[1]
        or load8(source + 6) != _DESCRIPTOR[2]
    ):
        return -1
    source += _HEADER_BYTES
    while True:
        if source_end - source < 4:
            return -1
        word = np.int64(load32(source))
        source += 4
        length = word & (_STORED - 1)
        if length == 0:
            # Kafka ignores everything after the end mark.
            return target - start
        if length > _BLOCK_BYTES_MAX or length > source_end - source:
            return -1
        if word & _STORED:
            if length > end - target:
                return -1
            copy(target, source, length)
            made = length
        else:
            made = _block(source, length, target, min(end - target, _BLOCK_BYTES_MAX, _EXPANSION * length))
            if made <= 0:
                return -1
        source += length
        target += made


@njit(cache=True, nogil=True)
def decompress_frames(address, starts, ends, target, room, enough, frame_max, target_ends):
    """Decompress frames, one after the other.

    Args:
        address: address of the data that contains the frames.
        starts, ends: int64[frames], positions of each frame in the data.
        target: address to write to.
        room: size of the target in bytes.
        enough: start no further frame once this many bytes are written.
        frame_max: maximum number of decompressed bytes of one frame.
        target_ends: int64[frames], filled: the end of each frame's decompressed bytes, relative to target.

    Returns:
        the number of frames decompressed. The next one is unsupported or corrupt, or does not fit, or `enough` was
        reached.
    """
    at = np.int64(0)
    for i in range(starts.size):
        if at >= enough:
            return i
        made = _frame(address + starts[i], ends[i] - starts[i], target + at, min(room - at, frame_max))
        if made < 0:
            return i
        at += made
        target_ends[i] = at
    return starts.size


@njit(inline="always")
def _slot(address):
    """Return the hash slot of the next five bytes; eight bytes must be readable."""
    return (load64(address) << _UNHASHED_BITS) * _HASH_FACTOR >> _HASH_SHIFT


@njit(inline="always")
def _put_more(target, length):
    """Write the bytes that extend a length beyond 15; return the target after them."""
    length -= 15
    while length >= 255:
        store8(target, np.uint8(255))
        target += 1
        length -= 255
    store8(target, np.uint8(length))
    return target + 1


@njit(inline="always")
def _put_literals(target, source, count):
    """Write a token and `count` literals; return the target after them. The token has no match yet."""
    token = target
    target += 1
    if count >= 15:
        store8(token, np.uint8(0xF0))
        target = _put_more(target, count)
    else:
        store8(token, np.uint8(count << 4))
    copy(target, source, count)
    return target + count


@njit
def _compress_block(source, size, target, table):
    """Compress a block of 1 to 64 Ki bytes; return the bytes written, at most size + size / 255 + 16."""
    start, end, first = source, source + size, target
    table[:] = 0
    literal, at, misses = source, source + 1, np.int64(64)
    while at <= end - _LAST_MATCH:
        slot = _slot(at)
        match = start + np.int64(table[slot])
        table[slot] = at - start
        if load32(match) != load32(at):
            # The longer no match is found, the more bytes are skipped: incompressible data costs little.
            at += misses >> 6
            misses += 1
            continue
        while at > literal and match > start and load8(at - 1) == load8(match - 1):
            at -= 1
            match -= 1
        token = target
        target = _put_literals(target, literal, at - literal)
        distance = at - match
        store16(target, np.uint16(distance))
        target += 2
        matched = at + _MATCH_MIN
        at = matched
        differs = False
        while end - _LAST_LITERALS - at >= 8:
            difference = load64(at) ^ load64(at - distance)
            if difference:
                at += trailing_zeros(difference) >> 3
                differs = True
                break
            at += 8
        while not differs and at < end - _LAST_LITERALS and load8(at) == load8(at - distance):
            at += 1
        length = at - matched
        if length >= 15:
            store8(token, load8(token) | np.uint8(15))
            target = _put_more(target, length)
        else:
            store8(token, load8(token) | np.uint8(length))
        literal, misses = at, np.int64(64)
        if at <= end - _LAST_MATCH:
            table[_slot(at - 2)] = at - 2 - start
    return _put_literals(target, literal, end - literal) - first


@njit(cache=True, nogil=True)
def compress_frames(address, starts, ends, target, gap, target_starts, target_ends):
    """Compress data into frames, one after the other.

    Args:
        starts, ends: int64[frames], positions of each frame's data.
        target: address to write to, with room for gap + size + size / 5 + 128 bytes for each frame.
        gap: bytes to leave before each frame, for a batch header.
        target_starts, target_ends: int64[frames], filled: start of each gap and end of each frame.
    """
    table = np.empty(1 << _TABLE_BITS, np.uint16)
    at = target
    for i in range(starts.size):
        target_starts[i] = at - target
        at += gap
        store32(at, _FRAME_MAGIC)
        for k in range(len(_DESCRIPTOR)):
            store8(at + 4 + k, np.uint8(_DESCRIPTOR[k]))
        at += _HEADER_BYTES
        source, end = address + starts[i], address + ends[i]
        while source < end:
            size = min(_BLOCK_BYTES_MAX, end - source)
            made = _compress_block(source, size, at + 4, table)
            if made < size:
                store32(at, np.uint32(made))
            else:
                made = size
                store32(at, np.uint32(size | _STORED))
                copy(at + 4, source, size)
            at += 4 + made
            source += size
        store32(at, np.uint32(0))
        at += 4
        target_ends[i] = at - target
