"""Decompress and compress gzip members, many per call, with libdeflate and without Python code between members.

The kernels call libdeflate's functions by address; `record.libraries` finds the addresses. The decompressor accepts
only a single member with the shortest header, as written by Kafka; libdeflate checks its CRC and its size. All other
payloads are passed to `record.compression`, which also reports errors.

    member   1f 8b 08 00 | time 4 | extra flags 1 | system 1 | deflate | crc32 4 | size 4      little-endian
"""

from __future__ import annotations

import numpy as np

from cordwood.kernels.compiling import njit
from cordwood.kernels.native import call5, call7, load32

#: The first four bytes of a member whose header has only the mandatory fields.
_MEMBER = np.uint32(0x00088B1F)
_MEMBER_BYTES_MIN = 18
#: LIBDEFLATE_SUCCESS. A result is in the low 32 bits of the returned number.
_SUCCESS = 0
_RESULT = 0xFFFF_FFFF


@njit(cache=True, nogil=True)
def decompress_members(function, decompressor, address, starts, ends, target, room, enough, member_max, target_ends):
    """Decompress members, one after the other.

    Args:
        function: address of libdeflate_gzip_decompress_ex.
        decompressor: address of a libdeflate_decompressor that no other thread uses.
        address: address of the data that contains the members.
        starts, ends: int64[members], positions of each member in the data.
        target: address to write to.
        room: size of the target in bytes.
        enough: start no further member once this many bytes are written.
        member_max: maximum number of decompressed bytes of one member.
        target_ends: int64[members], filled: the end of each member's decompressed bytes, relative to target.

    Returns:
        the number of members decompressed. The next one is unsupported or corrupt, or does not fit, or `enough` was
        reached.
    """
    sizes = np.zeros(2, np.int64)
    at = np.int64(0)
    for i in range(starts.size):
        source, size = address + starts[i], ends[i] - starts[i]
        if at >= enough or size < _MEMBER_BYTES_MIN or load32(source) != _MEMBER:
            return i
        left = min(room - at, member_max)
        read, made = sizes.ctypes.data, sizes.ctypes.data + 8
        status = call7(function, decompressor, source, size, target + at, left, read, made)
        if status & _RESULT != _SUCCESS or sizes[0] != size:
            return i
        at += sizes[1]
        target_ends[i] = at
    return starts.size


@njit(cache=True, nogil=True)
def compress_members(function, compressor, address, starts, ends, target, room, gap, target_starts, target_ends):
    """Compress data into members, one after the other.

    Args:
        function: address of libdeflate_gzip_compress.
        compressor: address of a libdeflate_compressor that no other thread uses.
        starts, ends: int64[members], positions of each member's data.
        target: address to write to.
        room: size of the target in bytes.
        gap: bytes to leave before each member, for a batch header.
        target_starts, target_ends: int64[members], filled: start of each gap and end of each member.

    Returns:
        the number of members compressed; smaller than given if there is not enough room.
    """
    at = np.int64(0)
    for i in range(starts.size):
        target_starts[i] = at
        if room - at < gap:
            return i
        source, size = address + starts[i], ends[i] - starts[i]
        made = call5(function, compressor, source, size, target + at + gap, room - at - gap)
        if made == 0:
            return i
        at += gap + made
        target_ends[i] = at
    return starts.size
