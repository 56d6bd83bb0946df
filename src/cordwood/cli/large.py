"""Large keys and values for `dump`: their start for people, or all of them in pieces.

`formats` makes one string of a key or value. Of one of hundreds of megabytes that would take several times its size in
memory. Here the same text is made piece by piece, and `start` cuts it for people.
"""

from __future__ import annotations

import binascii
import codecs
import functools
from collections.abc import Callable, Iterator
from json.encoder import encode_basestring, encode_basestring_ascii

import numpy as np
import numpy.typing as npt

#: Keys, values and headers above this are never held as one string.
LARGE_BYTES = 1 << 20
#: Bytes of a piece; a multiple of 3, so that pieces in base64 join.
PIECE_BYTES = 768 << 10
#: Bytes of a key, a value or a header that people are shown; a multiple of 3.
SHOWN_BYTES = 3000

Pieces = Callable[[memoryview], Iterator[bytes]]


def start(data: memoryview) -> memoryview:
    """The first `SHOWN_BYTES`, without a UTF-8 character that would be cut."""
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
    """The bytes as they are."""
    return map(bytes, _parts(data))


def quoted(data: memoryview) -> Iterator[bytes]:
    """As `texts.quoted`."""
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
    """bool[code points]: characters that are shown as they are."""
    return np.fromiter((chr(code).isprintable() for code in range(0x110000)), np.bool_, 0x110000)


def hexadecimal(data: memoryview) -> Iterator[bytes]:
    """Two digits a byte."""
    return map(binascii.hexlify, _parts(data))


def base64(data: memoryview) -> Iterator[bytes]:
    """As `base64.b64encode`."""
    return (binascii.b2a_base64(part, newline=False) for part in _parts(data))


def _texts(data: memoryview) -> Iterator[str]:
    """UTF-8 as text.

    Raises:
        UnicodeDecodeError: it is not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    for part in _parts(data):
        yield decoder.decode(part)
    yield decoder.decode(b"", final=True)


def json_text(data: memoryview) -> Iterator[bytes]:
    """As `formats.in_json` shows text: a JSON string, or of what is no UTF-8 an object with its hex digits."""
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
    """An object with the hex digits, which stands in JSON for what a format cannot show."""
    return between(b'{"hex":"', hexadecimal(data), b'"}')


def between(before: bytes, pieces: Iterator[bytes], behind: bytes) -> Iterator[bytes]:
    """Pieces with something before and behind them."""
    yield before
    yield from pieces
    yield behind
