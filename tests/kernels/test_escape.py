from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cordwood.cli import large
from cordwood.cli import values as values_module
from cordwood.kernels.escape import ESCAPED_BYTES_MAX, escape

#: Behind the target; bytes that the kernel must not touch.
GUARD = b"\xa5" * 16

#: Bytes at the limits of the rules for UTF-8, and bytes that ASCII escapes.
LIMITS = bytes.fromhex(
    "00 09 0a 0d 1f 20 22 5c 7e 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 ff"
)

#: Parts of a value: any bytes, bytes at limits, text, and runs that the kernel copies 8 bytes at a time.
parts = st.one_of(
    st.binary(max_size=12),
    st.lists(st.sampled_from(LIMITS), max_size=12).map(bytes),
    st.text(max_size=6).map(str.encode),
    st.text(st.characters(max_codepoint=0x7F), max_size=30).map(str.encode),
)
values = st.lists(parts, max_size=6).map(b"".join)


def escaped(data: bytes, piece_bytes: int) -> bytes:
    """The text that the kernel makes of a value, in pieces, in targets no larger than it demands."""
    source = np.frombuffer(data, np.uint8)
    at, made = 0, []
    while at < source.size:
        stop = min(at + piece_bytes, source.size)
        room = ESCAPED_BYTES_MAX * (stop + 3 - at)
        target = np.frombuffer(bytearray(room) + GUARD, np.uint8)
        at, written = escape(source.ctypes.data, at, stop, source.size, large._prints(), target.ctypes.data)
        assert target[room:].tobytes() == GUARD
        assert stop <= at <= stop + 3
        made.append(target[:written].tobytes())
    return b"".join(made)


def twin(data: bytes) -> bytes:
    return values_module.quoted(data)[1:-1].encode()


@given(values, st.integers(1, 40))
@example(b"\xf0\x9f\x98\x80", 1)
@example(b"1234567\xe2\x82\xac", 8)
@example(b"1234567\xe2\x82", 8)
def test_escaped_bytes_are_those_of_the_plain_twin(data: bytes, piece_bytes: int) -> None:
    assert escaped(data, piece_bytes) == twin(data)


def test_each_byte_among_plain_ones_is_escaped_as_by_the_twin() -> None:
    for byte, at in itertools.product(range(256), range(9)):
        data = b"12345678"[:at] + bytes([byte]) + b"abcdefgh"[at:]
        assert escaped(data, 100) == twin(data), data


def test_each_pair_of_bytes_is_escaped_as_by_the_twin() -> None:
    data = b"".join(b"%c%c-" % pair for pair in itertools.product(range(256), repeat=2))
    assert escaped(data, len(data)) == twin(data)


def test_each_sequence_at_a_limit_is_escaped_as_by_the_twin() -> None:
    for length in (3, 4):
        firsts = [byte for byte in LIMITS if byte >= 0xC0]
        rest = [byte for byte in LIMITS if 0x7F <= byte <= 0xC0]
        sequences = itertools.product(firsts, *[rest] * (length - 1))
        data = b"-".join(map(bytes, sequences))
        assert escaped(data, len(data)) == twin(data)
        for cut in range(1, 4):
            assert escaped(data[:-cut], 7) == twin(data[:-cut])


@pytest.mark.more
def test_each_code_point_is_escaped_as_by_the_twin() -> None:
    codes = itertools.chain(range(0xD800), range(0xE000, 0x110000))
    data = "".join(map(chr, codes)).encode()
    assert escaped(data, 1 << 20) == twin(data)
