"""Decompress and compress Snappy payloads as Kafka writes them, many per call, into one buffer.

A call of the Snappy library costs more than decompressing a batch of a few KiB. A payload that the decompressor rejects
is passed to `record.compression`, which accepts everything that Kafka reads, and reports errors.

    payload  82 "SNAPPY" 00 | version 4 | compatible 4 | (length 4 | chunk)*     big-endian; or one chunk alone
    chunk    decompressed length varint | (literal | match)*
    literal  lowest two bits 0, upper six the length - 1; 60 to 63: the length - 1 follows in 1 to 4 bytes
    match    1: length - 4 in three bits, distance in the upper three and the next byte
             2, 3: length - 1 in the upper six bits, distance in the next 2 or 4 bytes
"""

from __future__ import annotations

import numpy as np

from cordwood.kernels.compiling import njit
from cordwood.kernels.native import (
    be32u,
    copy,
    load8,
    load32,
    load64,
    put32,
    put64,
    store8,
    store16,
    store64,
    trailing_zeros,
)

#: The first eight bytes of a payload, big-endian; version and compatible version are both 1.
_MAGIC = int.from_bytes(b"\x82SNAPPY\0", "big", signed=True)
_MAGIC_LOADED = np.uint64(int.from_bytes(b"\x82SNAPPY\0", "little"))
_VERSIONS = 1 << 32 | 1
_HEADER_BYTES = 16
#: No chunk expands more than this.
_EXPANSION = 22
_LENGTH_SHIFT_MAX = 28
#: Kafka compresses chunks of this size; positions within a chunk fit in 16 bits.
_CHUNK_BYTES = 32 << 10
_TABLE_BITS = 14
_HASH_FACTOR = np.uint64(0x1E35A7BD)
_WORD = np.uint64(0xFFFF_FFFF)
#: No match starts in the last bytes of a chunk.
_LAST_MATCH = 15
#: With this much left to read and to write, a literal of up to 32 bytes is copied as 32, and another tag follows it.
_NEAR_BYTES = 40


def _match_of(tag):
    if tag & 3 == 1:
        return 1 << 16 | tag >> 5 << 8 | (tag >> 2 & 7) + 4
    return (2 if tag & 3 == 2 else 4) << 16 | (tag >> 2) + 1


#: Decoded tags of matches, so that the kinds of matches need no branches: length, bits 8 to 10 of the distance if the
#: tag contains them, and from bit 16 on the number of distance bytes that follow.
_MATCHES = np.array([_match_of(tag) for tag in range(256)], np.uint32)


@njit(inline="always")
def _copy32(target, source):
    store64(target, load64(source))
    store64(target + 8, load64(source + 8))
    store64(target + 16, load64(source + 16))
    store64(target + 24, load64(source + 24))


@njit(inline="always")
def _copy_match(target, distance, count, end):
    """Copy up to 64 bytes from `distance` before the target, which may overlap it; there is room up to `end`."""
    source, stop = target - distance, target + count
    if distance >= 8 and end - target >= 64:
        # Later output overwrites the surplus bytes behind the match.
        _copy32(target, source)
        if count > 32:
            _copy32(target + 32, source + 32)
        return stop
    while target < stop:
        store8(target, load8(source))
        target += 1
        source += 1
    return stop


@njit
def _decompress_chunk(source, size, target, room):
    """Decompress a chunk of `size` bytes into `room` bytes; return the bytes written, or -1: corrupt, or no room."""
    source_end, end = source + size, target + room
    length, shift, byte = np.int64(0), np.int64(0), np.int64(0x80)
    while byte >= 0x80:
        if source >= source_end or shift > _LENGTH_SHIFT_MAX:
            return -1
        byte = np.int64(load8(source))
        source += 1
        length |= (byte & 0x7F) << shift
        shift += 7
    if length > _EXPANSION * size or length > room:
        return -1
    start, stop = target, target + length
    while source < source_end:
        tag = np.int64(load8(source))
        source += 1
        if tag & 3 == 0:
            count = (tag >> 2) + 1
            is_near = count <= 32 and source_end - source >= _NEAR_BYTES and stop - target >= _NEAR_BYTES
            if is_near:
                _copy32(target, source)
            else:
                if count > 60:
                    extra = count - 60
                    if extra > source_end - source:
                        return -1
                    count = np.int64(1)
                    for i in range(extra):
                        count += np.int64(load8(source + i)) << (8 * i)
                    source += extra
                if count > source_end - source or count > stop - target:
                    return -1
                copy(target, source, count)
            source += count
            target += count
            if not is_near:
                continue
            # Writers put a match behind a literal; a branch with nearly always the same outcome costs little.
            tag = np.int64(load8(source))
            if tag & 3 == 0:
                continue
            source += 1
        match = np.int64(_MATCHES[tag])
        extra = match >> 16
        if extra > source_end - source:
            return -1
        more = np.int64(0)
        if source_end - source >= 4:
            more = np.int64(load32(source)) & ((1 << (8 * extra)) - 1)
        else:
            for i in range(extra):
                more |= np.int64(load8(source + i)) << (8 * i)
        source += extra
        count, distance = match & 0xFF, (match & 0x700) + more
        if distance == 0 or distance > target - start or count > stop - target:
            return -1
        target = _copy_match(target, distance, count, end)
    return length if target == stop else -1


@njit
def _decompress(source, size, target, room):
    """Decompress a payload of `size` bytes into `room` bytes; return the bytes written, or -1: rejected, or no room."""
    if size < _HEADER_BYTES or load64(source) != _MAGIC_LOADED:
        return _decompress_chunk(source, size, target, room)
    source_end, start, end = source + size, target, target + room
    source += _HEADER_BYTES
    # Kafka ignores trailing bytes that are too short for a length.
    while source_end - source >= 4:
        length = np.int64(be32u(source))
        source += 4
        # The start of another header, which Kafka allows, is a length that is too large.
        if length > source_end - source:
            return -1
        made = _decompress_chunk(source, length, target, end - target)
        if made < 0:
            return -1
        source += length
        target += made
    return target - start


@njit(cache=True, nogil=True)
def decompress_payloads(address, starts, ends, target, room, enough, payload_max, target_ends):
    """Decompress payloads, one after the other.

    Args:
        address: address of the data that contains the payloads.
        starts, ends: int64[payloads], positions of each payload in the data.
        target: address to write to.
        room: size of the target in bytes.
        enough: start no further payload once this many bytes are written.
        payload_max: maximum number of decompressed bytes of one payload.
        target_ends: int64[payloads], filled: the end of each payload's decompressed bytes, relative to target.

    Returns:
        the number of payloads decompressed. The next one is unsupported or corrupt, or does not fit, or `enough` was
        reached.
    """
    at = np.int64(0)
    for i in range(starts.size):
        if at >= enough:
            return i
        made = _decompress(address + starts[i], ends[i] - starts[i], target + at, min(room - at, payload_max))
        if made < 0:
            return i
        at += made
        target_ends[i] = at
    return starts.size


@njit(inline="always")
def _slot(address, shift):
    """Return the hash slot of the next four bytes."""
    return (np.uint64(load32(address)) * _HASH_FACTOR & _WORD) >> shift


@njit(inline="always")
def _put_literal(target, source, count):
    """Write a literal of 1 to 32 Ki bytes; return the target after it."""
    if count <= 60:
        store8(target, np.uint8((count - 1) << 2))
        target += 1
    elif count <= 256:
        store8(target, np.uint8(60 << 2))
        store8(target + 1, np.uint8(count - 1))
        target += 2
    else:
        store8(target, np.uint8(61 << 2))
        store16(target + 1, np.uint16(count - 1))
        target += 3
    copy(target, source, count)
    return target + count


@njit(inline="always")
def _put_match(target, distance, count):
    """Write a match; return the target after it."""
    # The remainder is never shorter than four bytes, the minimum of the short form.
    while count >= 68:
        store8(target, np.uint8(63 << 2 | 2))
        store16(target + 1, np.uint16(distance))
        target += 3
        count -= 64
    if count > 64:
        store8(target, np.uint8(59 << 2 | 2))
        store16(target + 1, np.uint16(distance))
        target += 3
        count -= 60
    if count >= 12 or distance >= 2048:
        store8(target, np.uint8((count - 1) << 2 | 2))
        store16(target + 1, np.uint16(distance))
        return target + 3
    store8(target, np.uint8(distance >> 8 << 5 | (count - 4) << 2 | 1))
    store8(target + 1, np.uint8(distance & 0xFF))
    return target + 2


@njit
def _compress_chunk(source, size, target, table):
    """Compress 1 to 32 Ki bytes; return the bytes written, at most 32 + size + size / 6."""
    start, end, first = source, source + size, target
    rest = size
    while rest >= 0x80:
        store8(target, np.uint8(rest & 0x7F | 0x80))
        target += 1
        rest >>= 7
    store8(target, np.uint8(rest))
    target += 1
    bits = 8
    while bits < _TABLE_BITS and 1 << bits < size:
        bits += 1
    shift = np.uint64(32 - bits)
    table[: 1 << bits] = 0
    literal, at, misses = source, source + 1, np.int64(32)
    while at < end - _LAST_MATCH:
        slot = _slot(at, shift)
        match = start + np.int64(table[slot])
        table[slot] = at - start
        if load32(match) != load32(at):
            # The longer no match is found, the more bytes are skipped: incompressible data costs little.
            at += misses >> 5
            misses += 1
            continue
        if at > literal:
            target = _put_literal(target, literal, at - literal)
        distance = at - match
        matched = at
        at += 4
        differs = False
        while end - at >= 8:
            difference = load64(at) ^ load64(at - distance)
            if difference:
                at += trailing_zeros(difference) >> 3
                differs = True
                break
            at += 8
        while not differs and at < end and load8(at) == load8(at - distance):
            at += 1
        target = _put_match(target, distance, at - matched)
        literal, misses = at, np.int64(32)
        if at < end - _LAST_MATCH:
            table[_slot(at - 1, shift)] = at - 1 - start
    if literal < end:
        target = _put_literal(target, literal, end - literal)
    return target - first


@njit(cache=True, nogil=True)
def compress_payloads(address, starts, ends, target, gap, target_starts, target_ends):
    """Compress data into payloads, one after the other.

    Args:
        starts, ends: int64[payloads], positions of each payload's data.
        target: address to write to, with room for gap + size + size / 5 + 128 bytes for each payload.
        gap: bytes to leave before each payload, for a batch header.
        target_starts, target_ends: int64[payloads], filled: start of each gap and end of each payload.
    """
    table = np.empty(1 << _TABLE_BITS, np.uint16)
    at = target
    for i in range(starts.size):
        target_starts[i] = at - target
        at += gap
        put64(at, _MAGIC)
        put64(at + 8, _VERSIONS)
        at += _HEADER_BYTES
        source, end = address + starts[i], address + ends[i]
        while source < end:
            size = min(_CHUNK_BYTES, end - source)
            made = _compress_chunk(source, size, at + 4, table)
            put32(at, made)
            at += 4 + made
            source += size
        target_ends[i] = at - target
