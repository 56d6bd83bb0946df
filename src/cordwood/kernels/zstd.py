"""Decompress and compress zstd frames, many per call, with libzstd and without Python code between frames.

The kernels call libzstd's functions by address; `record.libraries` finds the addresses. The decompressor calls the same
streaming function of the same library as `record.compression`, with the same limits, so both accept the same frames. It
rejects anything but one complete frame; rejected bytes are passed to `record.compression`, which also reports errors.
"""

from __future__ import annotations

import numpy as np

from cordwood.kernels.compiling import njit
from cordwood.kernels.native import call2, call3, call4, load32

_FRAME_MAGIC = np.uint32(0xFD2FB528)
#: If libzstd sees that a frame fits in the output, it decompresses the frame in one pass, with other checks of corrupt
#: data. `record.compression` uses output pieces of this size, so this kernel must offer the output in such pieces too.
_PIECE_BYTES = 64 << 10
#: ZSTD_reset_session_only; ZSTD_e_continue, ZSTD_e_flush, ZSTD_e_end.
_RESET_SESSION = 1
_CONTINUE, _FLUSH, _END = 0, 1, 2
#: Fields of ZSTD_inBuffer and ZSTD_outBuffer.
_ADDRESS, _SIZE, _POSITION = 0, 1, 2


@njit
def _decompress(step, context, source, size, target, room, buffers):
    """Decompress a frame of `size` bytes into `room` bytes; return the bytes written, or -1: rejected, or no room."""
    if size < 4 or load32(source) != _FRAME_MAGIC:
        return -1
    output, given = buffers[0], buffers[1]
    output[_ADDRESS], output[_SIZE], output[_POSITION] = target, 0, 0
    given[_ADDRESS], given[_SIZE], given[_POSITION] = source, size, 0
    while True:
        before, read = output[_POSITION], given[_POSITION]
        output[_SIZE] = min(room, before + _PIECE_BYTES)
        status = call3(step, context, buffers[0].ctypes.data, buffers[1].ctypes.data)
        if status < 0:
            return -1
        if status == 0:
            return output[_POSITION] if given[_POSITION] == size else -1
        if output[_POSITION] == before and given[_POSITION] == read:
            return -1


@njit(cache=True, nogil=True)
def decompress_frames(functions, context, address, starts, ends, target, room, enough, frame_max, target_ends):
    """Decompress frames, one after the other.

    Args:
        functions: (ZSTD_DCtx_reset, ZSTD_decompressStream), addresses.
        context: address of a ZSTD_DCtx that no other thread uses.
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
    reset, step = functions
    buffers = np.zeros((2, 3), np.int64)
    at = np.int64(0)
    for i in range(starts.size):
        if at >= enough:
            return i
        call2(reset, context, _RESET_SESSION)
        size, left = ends[i] - starts[i], min(room - at, frame_max)
        made = _decompress(step, context, address + starts[i], size, target + at, left, buffers)
        if made < 0:
            return i
        at += made
        target_ends[i] = at
    return starts.size


@njit(cache=True, nogil=True)
def compress_frames(functions, context, address, starts, ends, target, room, gap, target_starts, target_ends):
    """Compress data into frames, one after the other, with the parameters of the context.

    Args:
        functions: (ZSTD_CCtx_reset, ZSTD_compressStream2), addresses.
        context: address of a ZSTD_CCtx that no other thread uses.
        starts, ends: int64[frames], positions of each frame's data.
        target: address to write to.
        room: size of the target in bytes.
        gap: bytes to leave before each frame, for a batch header.
        target_starts, target_ends: int64[frames], filled: start of each gap and end of each frame.

    Returns:
        the number of frames compressed; smaller than given if libzstd fails, or there is not enough room.
    """
    reset, step = functions
    buffers = np.zeros((2, 3), np.int64)
    output, given = buffers[0], buffers[1]
    at = np.int64(0)
    for i in range(starts.size):
        target_starts[i] = at
        if room - at < gap:
            return i
        output[_ADDRESS], output[_SIZE], output[_POSITION] = target, room, at + gap
        given[_ADDRESS], given[_SIZE], given[_POSITION] = address + starts[i], ends[i] - starts[i], 0
        call2(reset, context, _RESET_SESSION)
        # Kafka flushes before it closes, so the last block is empty.
        for mode in (_CONTINUE, _FLUSH, _END):
            status = call4(step, context, buffers[0].ctypes.data, buffers[1].ctypes.data, mode)
            if status < 0 or (status > 0 and mode != _CONTINUE) or given[_POSITION] != given[_SIZE]:
                return i
        at = output[_POSITION]
        target_ends[i] = at
    return starts.size
