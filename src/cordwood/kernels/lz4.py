"""Decompresses LZ4 frames as Kafka writes them, many per call, into one buffer.

A call of the LZ4 library costs more than decompressing a batch of a few KiB. This kernel accepts only the frames that
Kafka's writer makes: independent blocks of up to 64 KiB, and no checksum except the header's. Frames that it rejects go
through `record.compression`, which accepts all that Kafka reads, and reports errors.

    frame    04 22 4d 18 60 40 82 | (length 4, highest bit: stored | block)* | 0 4
    block    (token | more literal length | literals | offset 2 | more match length)* , the last without a match
    token    literal length in the upper, match length - 4 in the lower four bits; 15: bytes follow that are added
"""

from __future__ import annotations

import numpy as np
from numba import njit

from cordwood.kernels.native import copy, load8, load16, load32, load64, store8, store64

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


@njit(inline="always")
def _more(source, end, length):
    """Read the bytes that extend a length; return (length, source after them). Source is 0 if there are too few."""
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
    if distance >= 8 and stop + 8 <= end:
        while target < stop:
            store64(target, load64(source))
            target += 8
            source += 8
    else:
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
        if length == 15:
            length, source = _more(source, source_end, length)
            if source == 0:
                return -1
        if length > source_end - source or length > end - target:
            return -1
        if length <= 16 and source_end - source >= 16 and end - target >= 16:
            store64(target, load64(source))
            store64(target + 8, load64(source + 8))
        else:
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
        address: of the data that holds them.
        starts, ends: int64[frames], positions of each frame in the data.
        target: address to write to.
        room: bytes that may be written there.
        enough: no further frame is started once this many bytes are written.
        frame_max: the most decompressed bytes of one frame.
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
