"""CRC-32C (magic 2, producer snapshots) and CRC-32 (magic 0 and 1) of bytes in memory.

The CRC-32C instruction of x86 has a latency of 3 cycles but can start every cycle. So long inputs are divided into
three strips that are processed in parallel, and the three results are combined: appending n zero bytes to a CRC is a
linear map, stored as four tables of 256. On other processors, and for CRC-32, sixteen tables process 16 bytes per step.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cordwood.kernels.compiling import njit
from cordwood.kernels.native import HAS_CRC_INSTRUCTION, crc_step8, crc_step64, load8, load64

U32 = np.uint32
U64 = np.uint64
Tables = npt.NDArray[np.uint32]

_CASTAGNOLI = 0x82F63B78
_IEEE = 0xEDB88320
_LOW8 = U64(0xFF)
_ONES = U64(0xFFFFFFFF)


def _byte_tables(polynomial: int) -> Tables:
    """uint32[16, 256]: the CRC of byte b followed by k zero bytes, without inversion."""
    tables = np.zeros((16, 256), U32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (polynomial if crc & 1 else 0)
        tables[0, byte] = crc
    for k in range(1, 16):
        tables[k] = (tables[k - 1] >> U32(8)) ^ tables[0][tables[k - 1] & U32(0xFF)]
    return tables


def _zeros_tables(byte_table: Tables, size: int) -> Tables:
    """uint32[4, 256]: the CRC register after `size` zero bytes; one table per byte of the previous register."""
    images = np.array([1 << bit for bit in range(32)], U32)
    for _ in range(size):
        images = (images >> U32(8)) ^ byte_table[images & U32(0xFF)]
    tables = np.zeros((4, 256), U32)
    for k in range(4):
        for bit in range(8):
            chosen = (np.arange(256) >> bit) & 1 == 1
            tables[k, chosen] ^= images[8 * k + bit]
    return tables


CASTAGNOLI_TABLES = _byte_tables(_CASTAGNOLI)
IEEE_TABLES = _byte_tables(_IEEE)
#: Strip lengths in bytes: 256 measured fastest, 64 is for small batches and remainders.
_LONG = 256
_SHORT = 64
_LONG_ZEROS = _zeros_tables(CASTAGNOLI_TABLES[0], _LONG)
_SHORT_ZEROS = _zeros_tables(CASTAGNOLI_TABLES[0], _SHORT)


@njit(inline="always")
def _by_tables(tables, address, size):
    crc = _ONES
    while size >= 16:
        a = load64(address) ^ crc
        b = load64(address + 8)
        crc = U64(
            tables[15, a & _LOW8]
            ^ tables[14, (a >> U64(8)) & _LOW8]
            ^ tables[13, (a >> U64(16)) & _LOW8]
            ^ tables[12, (a >> U64(24)) & _LOW8]
            ^ tables[11, (a >> U64(32)) & _LOW8]
            ^ tables[10, (a >> U64(40)) & _LOW8]
            ^ tables[9, (a >> U64(48)) & _LOW8]
            ^ tables[8, a >> U64(56)]
            ^ tables[7, b & _LOW8]
            ^ tables[6, (b >> U64(8)) & _LOW8]
            ^ tables[5, (b >> U64(16)) & _LOW8]
            ^ tables[4, (b >> U64(24)) & _LOW8]
            ^ tables[3, (b >> U64(32)) & _LOW8]
            ^ tables[2, (b >> U64(40)) & _LOW8]
            ^ tables[1, (b >> U64(48)) & _LOW8]
            ^ tables[0, b >> U64(56)]
        )
        address += 16
        size -= 16
    while size > 0:
        crc = (crc >> U64(8)) ^ U64(tables[0, (crc ^ U64(load8(address))) & _LOW8])
        address += 1
        size -= 1
    return U32(crc ^ _ONES)


@njit(cache=True, nogil=True)
def crc32(address: int, size: int) -> int:
    """Compute the CRC-32 (IEEE 802.3) of `size` bytes at `address`, as in magic 0 and 1."""
    return _by_tables(IEEE_TABLES, address, size)


@njit(cache=True, nogil=True)
def crc32c_portable(address: int, size: int) -> int:
    """Compute the CRC-32C of `size` bytes at `address`, on any processor."""
    return _by_tables(CASTAGNOLI_TABLES, address, size)


@njit(inline="always")
def _append_zeros(tables, crc):
    return U64(
        tables[0, crc & _LOW8]
        ^ tables[1, (crc >> U64(8)) & _LOW8]
        ^ tables[2, (crc >> U64(16)) & _LOW8]
        ^ tables[3, (crc >> U64(24)) & _LOW8]
    )


@njit(inline="always")
def _strips(tables, crc, address, strip):
    a = crc
    b = U64(0)
    c = U64(0)
    for _ in range(strip // 8):
        a = crc_step64(a, load64(address))
        b = crc_step64(b, load64(address + strip))
        c = crc_step64(c, load64(address + 2 * strip))
        address += 8
    return _append_zeros(tables, _append_zeros(tables, a) ^ b) ^ c


def _crc32c_by_instruction(address: int, size: int) -> int:
    """Compute the CRC-32C of `size` bytes at `address`, with the processor's instruction."""
    crc = _ONES
    while size >= 3 * _LONG:
        crc = _strips(_LONG_ZEROS, crc, address, _LONG)
        address += 3 * _LONG
        size -= 3 * _LONG
    while size >= 3 * _SHORT:
        crc = _strips(_SHORT_ZEROS, crc, address, _SHORT)
        address += 3 * _SHORT
        size -= 3 * _SHORT
    while size >= 8:
        crc = crc_step64(crc, load64(address))
        address += 8
        size -= 8
    tail = U32(crc)
    while size > 0:
        tail = crc_step8(tail, load8(address))
        address += 1
        size -= 1
    return U32(tail ^ U32(0xFFFFFFFF))


crc32c = njit(cache=True, nogil=True)(_crc32c_by_instruction) if HAS_CRC_INSTRUCTION else crc32c_portable


@njit(cache=True, nogil=True)
def crc32c_each(places, crcs):
    """Compute the CRC-32C of adjacent pieces of memory.

    Args:
        places: int64[pieces + 1], the address of each piece, and the end of the last.
        crcs: uint32[pieces], filled.
    """
    for i in range(crcs.size):
        crcs[i] = crc32c(places[i], places[i + 1] - places[i])
