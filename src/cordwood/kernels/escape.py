r"""Convert bytes to text that a terminal can show, for values of hundreds of megabytes.

Printable UTF-8 is copied; every other byte becomes an escape of two or four characters. The slow, obvious twin is
`cli.texts.quoted`.

In random bytes no branch on a single byte can be predicted. So a byte outside a UTF-8 sequence needs no such branch: a
table gives four characters, which are all stored, and the number of characters that count. The next store overwrites
the other characters. The only branch tests whether a byte and the next begin a sequence, which in random bytes is rare.
Eight bytes of ASCII without escapes are copied at once.
"""

from __future__ import annotations

import numpy as np

from cordwood.kernels.compiling import njit
from cordwood.kernels.native import load8, load32, load64, store32, store64

#: Maximum length of an escape: a backslash, an x and two digits.
ESCAPED_BYTES_MAX = 4

_SHORT = {0x09: rb"\t", 0x0A: rb"\n", 0x0D: rb"\r", 0x22: rb"\"", 0x5C: rb"\\"}


def _text(byte: int) -> bytes:
    """Return the text of a byte outside a sequence of several bytes."""
    return _SHORT.get(byte) or (b"%c" % byte if 0x20 <= byte < 0x7F else b"\\x%02x" % byte)


#: uint32[byte]: the text of each byte, the first character in the lowest bits; uint8[byte]: its length.
_TEXTS = np.array([int.from_bytes(_text(byte), "little") for byte in range(256)], np.uint32)
_TEXT_BYTES = np.array([len(_text(byte)) for byte in range(256)], np.uint8)
#: uint32[byte]: \xNN of each byte.
_HEX = np.array([int.from_bytes(b"\\x%02x" % byte, "little") for byte in range(256)], np.uint32)

#: (first bytes, second bytes) of the UTF-8 sequences, as in table 3-7 of the Unicode standard. The narrower ranges
#: exclude code points with a shorter sequence, surrogates, and code points above 0x10FFFF.
_SEQUENCES = (
    (range(0xC2, 0xE0), range(0x80, 0xC0)),
    (range(0xE0, 0xE1), range(0xA0, 0xC0)),
    (range(0xE1, 0xED), range(0x80, 0xC0)),
    (range(0xED, 0xEE), range(0x80, 0xA0)),
    (range(0xEE, 0xF0), range(0x80, 0xC0)),
    (range(0xF0, 0xF1), range(0x90, 0xC0)),
    (range(0xF1, 0xF4), range(0x80, 0xC0)),
    (range(0xF4, 0xF5), range(0x80, 0x90)),
)
#: uint8[first byte]: smallest second byte, and count of second bytes; 0 where the byte begins no sequence.
_SECOND_MIN = np.zeros(256, np.uint8)
_SECOND_COUNT = np.zeros(256, np.uint8)
for _firsts, _seconds in _SEQUENCES:
    _SECOND_MIN[_firsts.start : _firsts.stop] = _seconds.start
    _SECOND_COUNT[_firsts.start : _firsts.stop] = len(_seconds)

_ONES = np.uint64(0x0101010101010101)
_HIGH_BITS = np.uint64(0x8080808080808080)
_SPACES = np.uint64(0x2020202020202020)
_QUOTES = np.uint64(0x2222222222222222)
_BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)


@njit(inline="always")
def _is_plain(word):
    r"""Return whether 8 bytes are all printing ASCII without " and \.

    The sum and the differences carry from byte to byte only at a byte that is not plain. So a high bit is set if and
    only if some byte is not plain.
    """
    unusual = word | (word - _SPACES) | (word + _ONES)  # not ASCII, below a space, 0x7F
    unusual |= ((word ^ _QUOTES) - _ONES) | ((word ^ _BACKSLASHES) - _ONES)
    return unusual & _HIGH_BITS == np.uint64(0)


@njit(inline="always")
def _sequence(address, at, end):
    """Return (length, code point) of a UTF-8 sequence whose first two bytes are valid; (1, -1) if it is truncated."""
    first = np.int64(load8(address + at))
    length = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    if end - at < length:
        return 1, -1
    code = first & (0xFF >> (length + 1))
    for i in range(1, length):
        byte = np.int64(load8(address + at + i))
        if byte & 0xC0 != 0x80:
            return 1, -1
        code = code << 6 | byte & 0x3F
    return length, code


@njit(cache=True, nogil=True)
def escape(address, at, stop, end, prints, target):
    """Escape the characters that begin at positions [at, stop).

    Args:
        address: address of the bytes.
        at, stop: positions; the last character may extend beyond `stop`.
        end: position behind the last byte.
        prints: bool[code points], characters beyond ASCII that are printable.
        target: address of `ESCAPED_BYTES_MAX` bytes for each byte of [at, stop + 3).

    Returns:
        (position behind the last character, bytes written)
    """
    written = 0
    while at < stop:
        # Stores of 8 and of 4 bytes stay in the target: it has 4 bytes for each byte, and `written` is at most 4 for
        # each byte before `at`.
        while stop - at >= 8:
            word = load64(address + at)
            if not _is_plain(word):
                break
            store64(target + written, word)
            written += 8
            at += 8
        # After a failed test of 8 bytes, the next such test is behind them, so random bytes do not repeat it per byte.
        pause = min(at + 8, stop)
        while at < pause:
            byte = load8(address + at)
            if at + 1 < end:
                second = np.int64(load8(address + at + 1)) - np.int64(_SECOND_MIN[byte])
                if 0 <= second < np.int64(_SECOND_COUNT[byte]):
                    length, code = _sequence(address, at, end)
                    if code >= 0:
                        if prints[code]:
                            if end - at >= 4:
                                store32(target + written, load32(address + at))
                            else:
                                for i in range(length):
                                    store32(target + written + i, np.uint32(load8(address + at + i)))
                            written += length
                        else:
                            for i in range(length):
                                store32(target + written, _HEX[load8(address + at + i)])
                                written += 4
                        at += length
                        continue
            store32(target + written, _TEXTS[byte])
            written += np.int64(_TEXT_BYTES[byte])
            at += 1
    return at, written
