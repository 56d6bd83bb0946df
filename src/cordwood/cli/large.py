"""Large keys and values for `dump`: shortened for people, or whole in pieces.

`formats` makes one string of a key or value; for hundreds of megabytes that takes several times as much memory. This
module makes the same text piece by piece, and `start` shortens it for people.
"""

from __future__ import annotations

import binascii
import codecs
import functools
from collections.abc import Callable, Iterator
from json.encoder import encode_basestring, encode_basestring_ascii

import numpy as np
import numpy.typing as npt

#: Size in bytes above which a key, value or header is never held as one string.
LARGE_BYTES = 1 << 20
#: Bytes per piece; a multiple of 3, so that base64 pieces join.
PIECE_BYTES = 768 << 10
#: Bytes of a key, value or header shown to people; a multiple of 3.
SHOWN_BYTES = 3000

Pieces = Callable[[memoryview], Iterator[bytes]]


def start(data: memoryview) -> memoryview:
    """Return the first `SHOWN_BYTES` bytes, without a UTF-8 character that would be cut."""
    shown = data[:SHOWN_BYTES]
    for back in range(1, 4):
        byte = shown[-back]
        if byte & 0xC0 != 0x80:
            length = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return shown[:-back] if length > back else shown
    return shown


def _parts(data: memoryview) -> Iterator[memoryview]:
    return (data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES))


def raw(data: memoryview) -> Iterator[bytes]:
    """Yield the bytes unchanged."""
    return map(bytes, _parts(data))


def quoted(data: memoryview) -> Iterator[bytes]:
    """Yield the text of `texts.quoted`."""
    from cordwood.kernels.escape import ESCAPED_BYTES_MAX, escape

    source = np.frombuffer(data, np.uint8)
    target = np.empty(ESCAPED_BYTES_MAX * (PIECE_BYTES + 3), np.uint8)
    at = 0
    yield b'"'
    while at < source.size:
        stop = min(at + PIECE_BYTES, source.size)
        at, written = escape(source.ctypes.data, at, stop, source.size, _prints(), target.ctypes.data)
        yield target[:written].tobytes()
    yield b'"'


@functools.cache
def _prints() -> npt.NDArray[np.bool_]:
    """bool[code points]: whether a character is printed unchanged."""
    return np.fromiter((chr(code).isprintable() for code in range(0x110000)), np.bool_, 0x110000)


def hexadecimal(data: memoryview) -> Iterator[bytes]:
    """Yield two hex digits per byte."""
    return map(binascii.hexlify, _parts(data))


def base64(data: memoryview) -> Iterator[bytes]:
    """Yield the text of `base64.b64encode`."""
    return (binascii.b2a_base64(part, newline=False) for part in _parts(data))


def _texts(data: memoryview) -> Iterator[str]:
    """Decode UTF-8 in pieces.

    Raises:
        UnicodeDecodeError: the bytes are not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    for part in _parts(data):
        yield decoder.decode(part)
    yield decoder.decode(b"", final=True)


def json_text(data: memoryview) -> Iterator[bytes]:
    """Yield text as `formats.in_json` does: a JSON string, or an object with hex digits for bytes that are not
    UTF-8.
    """
    printable = True
    try:
        for text in _texts(data):
            printable &= text.isprintable()
    except UnicodeDecodeError:
        yield from json_hex_object(data)
        return
    encode = encode_basestring if printable else encode_basestring_ascii
    yield b'"'
    for text in _texts(data):
        yield encode(text)[1:-1].encode()
    yield b'"'


def json_hex_object(data: memoryview) -> Iterator[bytes]:
    """Yield an object with hex digits, the JSON form of bytes that a format cannot show."""
    return between(b'{"hex":"', hexadecimal(data), b'"}')


def between(before: bytes, pieces: Iterator[bytes], behind: bytes) -> Iterator[bytes]:
    """Yield pieces with a prefix and a suffix."""
    yield before
    yield from pieces
    yield behind
