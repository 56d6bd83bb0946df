"""Batches that no good client writes, and Kafka 4.3.1's reading of them.

Each row was given to Kafka's own classes once; the last column is the records they read, or None where they threw. The
comparison with Kafka in `tests/cli/test_dump_against_kafka.py` covers batches that clients write.
"""

from __future__ import annotations

import gzip
import zlib

import pytest

from cordwood.common.errors import DataError
from cordwood.kernels.layout import HEADER
from cordwood.record.batch import encode_message, seal
from cordwood.record.columns import decode
from cordwood.record.record import to_records, write_varint
from tests.logs import window

K, V = b"\2k", b"\2v"


def record(
    *,
    time: bytes = b"\0",
    offset: bytes = b"\0",
    key: bytes = K,
    value: bytes = V,
    headers: bytes = b"\0",
    more: int = 0,
) -> bytes:
    body = b"\0" + time + offset + key + value + headers
    return write_varint(len(body) + more) + body


def batch(body: bytes, count: int = 1, attributes: int = 0) -> bytes:
    return seal(HEADER.pack(0, 49 + len(body), 0, 2, 0, attributes, 0, 1000, 1000, -1, -1, -1, count) + body)


def zipped(body: bytes, count: int = 1) -> bytes:
    return batch(gzip.compress(body), count, 1)


def wrapper(magic: int, offset: int, inner: bytes, *, key: bytes | None = None, attributes: int = 1) -> bytes:
    return encode_message(
        magic, offset=offset, timestamp=77, key=key, value=gzip.compress(inner), attributes=attributes
    )


def message(magic: int, offset: int, timestamp: int = 5) -> bytes:
    return encode_message(magic, offset=offset, timestamp=timestamp, key=b"k", value=b"v")


def with_slack() -> bytes:
    body = bytearray(message(1, 0) + b"zz")
    body[8:12] = (len(body) - 12).to_bytes(4, "big")
    body[12:16] = zlib.crc32(body[16:]).to_bytes(4, "big")
    return bytes(body)


ONE: list[tuple[int, int, bytes | None, bytes | None]] = [(0, 1000, b"k", b"v")]
RULES: dict[str, tuple[bytes, list[tuple[int, int, bytes | None, bytes | None]] | None]] = {
    "a record": (batch(record()), ONE),
    "a key size of -2 is null": (batch(record(key=write_varint(-2))), [(0, 1000, None, b"v")]),
    "a value size of -3 is null": (batch(record(value=write_varint(-3))), [(0, 1000, b"k", None)]),
    "a header value size of -2 is null": (batch(record(headers=b"\2\2a" + write_varint(-2))), ONE),
    "a header count of -1": (batch(record(headers=write_varint(-1))), None),
    "a header name size of -1": (batch(record(headers=b"\2" + write_varint(-1) + b"\0")), None),
    "more headers than bytes": (batch(record(headers=write_varint(100))), None),
    "no records announced, a body all the same": (batch(record(), 0), []),
    "a record count of -1": (batch(record(), -1), None),
    "bytes behind the last record": (batch(record() + b"xx"), None),
    "fewer records than announced": (batch(record(), 2), None),
    "a number of six bytes": (batch(record(offset=b"\x80" * 5 + b"\0")), None),
    "a fifth byte with surplus bits": (batch(record(offset=b"\x80" * 4 + b"\x7f")), [(0x78000000, 1000, b"k", b"v")]),
    "a number longer than it need be": (batch(record(offset=b"\x80\0")), ONE),
    "a tenth byte with surplus bits": (batch(record(time=b"\x80" * 9 + b"\x7f")), [(0, 1000 + 2**62, b"k", b"v")]),
    "a number of eleven bytes": (batch(record(time=b"\x80" * 10 + b"\0")), None),
    "a length one too large": (batch(record(more=1)), None),
    "a length one too large, with a byte to spare": (batch(record(more=1) + b"x"), None),
    "a length one too small": (batch(record(more=-1)), None),
    "codec 5": (batch(record(), 1, 5), None),
    "codec 7": (batch(record(), 1, 7), None),
    "gzip": (zipped(record()), ONE),
    "gzip, bytes behind the last record": (zipped(record() + b"xx"), None),
    "gzip, no records announced, garbage": (batch(b"garbage", 0, 1), []),
    "gzip, fewer records than announced": (zipped(record(), 2), None),
    "gzip, a key size of -2": (zipped(record(key=write_varint(-2))), [(0, 1000, None, b"v")]),
    "gzip, a length one too small": (zipped(record(more=-1)), None),
    "gzip, a negative length": (zipped(write_varint(-1)), None),
    "gzip, more headers than bytes": (zipped(record(headers=write_varint(100))), None),
    "a wrapper of magic 0 with a key": (wrapper(0, 0, message(0, 0), key=b"w"), [(0, -1, b"k", b"v")]),
    "a wrapper around nothing": (wrapper(1, 0, b""), None),
    "a wrapper without value": (encode_message(1, offset=0, attributes=1), None),
    "a wrapper whose last message is cut": (wrapper(1, 1, message(1, 0) + message(1, 1)[:-1]), [(1, 5, b"k", b"v")]),
    "a wrapper at offset 0": (wrapper(1, 0, message(1, 0) + message(1, 1)), [(0, 5, b"k", b"v"), (1, 5, b"k", b"v")]),
    "a wrapper below its last message": (wrapper(1, 1, message(1, 0) + message(1, 2)), None),
    "a wrapper with gaps": (wrapper(1, 10, message(1, 0) + message(1, 3)), [(7, 5, b"k", b"v"), (10, 5, b"k", b"v")]),
    "append time reaches inner messages of magic 1 only": (
        wrapper(1, 10, message(0, 0) + message(1, 3), attributes=9),
        [(7, -1, b"k", b"v"), (10, 77, b"k", b"v")],
    ),
    "messages of magic 1 in a wrapper of magic 0": (wrapper(0, 10, message(1, 9)), [(9, 5, b"k", b"v")]),
    "a wrapper in a wrapper": (wrapper(1, 0, wrapper(1, 0, message(1, 0))), None),
    "a batch of magic 2 in a wrapper": (wrapper(1, 0, batch(record())), None),
    "zstd in magic 0": (encode_message(0, offset=0, value=b"abc", attributes=4), None),
    "codec 5 in magic 1": (encode_message(1, offset=0, value=b"abc", attributes=5), None),
    "bytes behind a message's value": (with_slack(), [(0, 5, b"k", b"v")]),
}


@pytest.mark.parametrize("name", RULES)
def test_what_kafka_reads_is_read_and_what_it_rejects_is_located(name: str) -> None:
    data, expected = RULES[name]
    damage: list[DataError] = []
    # A good batch in front and behind: damage stays where it is.
    around = batch(record(key=b"\2a"))
    found = [
        (r.offset, r.timestamp, r.key, r.value)
        for columns in decode(window(around + data + around), on_damage=damage.append)
        for r in to_records(columns.data, columns.rows)
    ]
    assert found == [(0, 1000, b"a", b"v"), *(expected or []), (0, 1000, b"a", b"v")]
    assert [error.position for error in damage] == ([] if expected is not None else [len(around)])


def test_an_inner_message_with_a_wrong_crc_is_damage_although_brokers_let_it_pass() -> None:
    # Kafka's consumers reject it (`check.crcs`).
    inner = bytearray(message(1, 0))
    inner[-1] ^= 1
    with pytest.raises(DataError, match="wrong CRC"):
        list(decode(window(wrapper(1, 0, bytes(inner)))))
