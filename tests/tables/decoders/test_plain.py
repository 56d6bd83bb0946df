"""Decoders without schemas, one by one, compared with the output of Kafka's serializers."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest

from cordwood.tables.decoders.plain import PLAIN

UUID = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"
#: Decoder, bytes, and the decoded value; or the words of a problem.
CASES: list[tuple[str, bytes, Any]] = [
    ("utf8", "Zürich".encode(), "Zürich"),
    ("utf8", b"", ""),
    ("utf8", b"ok\xff", "not UTF-8, from byte 2 on"),
    ("bytes", b"\0\xff", b"\0\xff"),
    ("hex", b"\0\xff", "00ff"),
    ("json", b'{"a": [1, null]}', '{"a": [1, null]}'),
    ("json", b'{"a": NaN}', "not JSON: NaN is no number of JSON"),
    ("json", b"{", "not JSON: Expecting property name"),
    ("json", b"[" * 200_000, "not JSON: maximum recursion depth"),
    ("json", b'"\xff"', "not UTF-8, from byte 1 on"),
    ("short", struct.pack(">h", -2), -2),
    ("int", struct.pack(">i", 1 << 30), 1 << 30),
    ("int", b"\0\0\0", "3 bytes where 4 are wanted"),
    ("int", b"", "0 bytes where 4 are wanted"),
    ("long", struct.pack(">q", -(1 << 62)), -(1 << 62)),
    ("float", struct.pack(">f", 1.5), 1.5),
    ("double", struct.pack(">d", -0.1), -0.1),
    ("double", b"\0" * 9, "9 bytes where 8 are wanted"),
    ("uuid", UUID.encode(), UUID),
    ("uuid", UUID[:-1].encode(), "not a uuid of 36 characters"),
    ("uuid", b"\xff" * 36, "not UTF-8, from byte 0 on"),
]


@pytest.mark.parametrize(("name", "data", "wanted"), CASES)
def test_bytes_are_what_their_decoder_says_or_a_problem(name: str, data: bytes, wanted: Any) -> None:
    # With null before and behind it, which stays null.
    found = PLAIN[name].decode(pa.array([None, data, None], pa.binary()))
    assert found.values.type == PLAIN[name].type
    before, value, behind = found.values.to_pylist()
    assert before is behind is None
    if found.problems:
        assert value is None
        assert list(found.problems) == [1]
        assert found.problems[1].startswith(wanted)
    else:
        assert value == wanted


@pytest.mark.parametrize("name", PLAIN)
def test_no_values_are_no_values(name: str) -> None:
    found = PLAIN[name].decode(pa.array([], pa.binary()))
    assert (found.values.to_pylist(), found.problems, found.values.type) == ([], {}, PLAIN[name].type)
