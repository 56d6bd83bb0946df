"""Bytes as text that a terminal can show, for values of hundreds of megabytes.

UTF-8 that prints stays as it is; every other byte becomes an escape of two or four characters. The slow, obvious twin
is `cli.formats.quoted`.
"""

from __future__ import annotations

from numba import njit

from cordwood.kernels.native import load8, store8

#: Bytes that one byte becomes at the most: a backslash, an x and two digits.
ESCAPED_BYTES_MAX = 4


@njit(inline="always")
def _sequence(address, at, end):
    """(length, code point) of the UTF-8 sequence at a position; (1, -1) where there is none."""
    first = load8(address + at)
    if first < 0x80:
        return 1, first
    length = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    if first < 0xC2 or first > 0xF4 or end - at < length:
        return 1, -1
    code = first & (0xFF >> (length + 1))
    for i in range(1, length):
        byte = load8(address + at + i)
        if byte & 0xC0 != 0x80:
            return 1, -1
        code = code << 6 | byte & 0x3F
    smallest = 0x80 if length == 2 else 0x800 if length == 3 else 0x10000
    if code < smallest or code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        return 1, -1
    return length, code


@njit(inline="always")
def _digit(number):
    return number + (48 if number < 10 else 87)


@njit(cache=True, nogil=True)
def escape(address, at, stop, end, prints, target):
    """Escape the characters that begin at positions [at, stop).

    Args:
        address: of the bytes.
        at, stop: positions; the last character may reach beyond `stop`.
        end: position behind the last byte.
        prints: bool[code points], which characters are shown as they are.
        target: address of `ESCAPED_BYTES_MAX` bytes for each byte of [at, stop + 3).

    Returns:
        (position behind the last character, bytes written)
    """
    written = 0
    while at < stop:
        length, code = _sequence(address, at, end)
        short = 0
        if code == 0x0A:
            short = 110
        elif code == 0x09:
            short = 116
        elif code == 0x0D:
            short = 114
        elif code == 0x22 or code == 0x5C:
            short = code
        if short:
            store8(target + written, 0x5C)
            store8(target + written + 1, short)
            written += 2
        elif code >= 0 and prints[code]:
            for i in range(length):
                store8(target + written + i, load8(address + at + i))
            written += length
        else:
            for i in range(length):
                byte = load8(address + at + i)
                store8(target + written, 0x5C)
                store8(target + written + 1, 120)
                store8(target + written + 2, _digit(byte >> 4))
                store8(target + written + 3, _digit(byte & 15))
                written += 4
        at += length
    return at, written
