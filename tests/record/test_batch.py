"""Golden bytes: made by Kafka itself, encoded by us and decoded again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from cordwood.common.errors import CorruptBatchError
from cordwood.common.types import Codec, ControlType, TimestampType
from cordwood.record.batch import (
    KEY,
    MAX_SEQUENCE,
    Batch,
    Marker,
    advance_sequence,
    codec_of,
    control_type,
    coordinator_epoch,
    encode_batch,
    encode_marker,
    encode_message_set,
    to_batches,
)
from cordwood.record.record import Record
from cordwood.testing.strategies import logs
from tests.logs import read, window

THREE = [
    Record(100, 1000, b"k1", b"v1"),
    Record(101, 1005, b"k2", None),
    Record(102, 998, None, b"v3", (("h", b"x"), ("n", None))),
]
WITHOUT_HEADERS = [*THREE[:2], Record(102, 998, None, b"v3")]
PRODUCER: dict[str, Any] = {"producer_id": 7, "producer_epoch": 2, "base_sequence": 5, "leader_epoch": 3}

GOLDEN = {
    "one record": (
        encode_batch([Record(0, 1000, b"k", b"v")]),
        """0000000000000000 0000003a ffffffff 02 716a6189 0000 00000000 00000000000003e8 00000000000003e8
           ffffffffffffffff ffff ffffffff 00000001  10 00 00 00 02 6b 02 76 00""",
    ),
    "three records of a producer": (
        encode_batch(THREE, **PRODUCER),
        """0000000000000064 00000055 00000003 02 1a3f513c 0000 00000002 00000000000003e8 00000000000003ed
           0000000000000007 0002 00000005 00000003
           14 00 00 00 04 6b31 04 7631 00  10 00 0a 02 04 6b32 01 00  1e 00 03 04 01 04 7633 04 02 68 02 78 02 6e 01""",
    ),
    "append time, transactional": (
        encode_batch(
            THREE, **PRODUCER, transactional=True, timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=2000
        ),
        """0000000000000064 00000055 00000003 02 6c6de355 0018 00000002 00000000000003e8 00000000000007d0
           0000000000000007 0002 00000005 00000003
           14 00 00 00 04 6b31 04 7631 00  10 00 0a 02 04 6b32 01 00  1e 00 03 04 01 04 7633 04 02 68 02 78 02 6e 01""",
    ),
    "commit marker": (
        encode_marker(Marker(10, 5000, 7, 2, committed=True, coordinator_epoch=9), leader_epoch=4),
        """000000000000000a 00000042 00000004 02 e6d8adb8 0030 00000000 0000000000001388 0000000000001388
           0000000000000007 0002 ffffffff 00000001  20 00 00 00 08 00000001 0c 000000000009 00""",
    ),
    "abort marker": (
        encode_marker(Marker(10, 5000, 7, 2, committed=False, coordinator_epoch=9), leader_epoch=4),
        """000000000000000a 00000042 00000004 02 12e67bf0 0030 00000000 0000000000001388 0000000000001388
           0000000000000007 0002 ffffffff 00000001  20 00 00 00 08 00000000 0c 000000000009 00""",
    ),
    "emptied batch": (
        encode_batch([], base_offset=100, last_offset=102, max_timestamp=1005, transactional=True, **PRODUCER),
        """0000000000000064 00000031 00000003 02 010b1cad 0010 00000002 ffffffffffffffff 00000000000003ed
           0000000000000007 0002 00000005 00000000""",
    ),
    "delete horizon": (
        encode_batch(THREE[1:], base_offset=100, delete_horizon_ms=87_400_000, **PRODUCER),
        """0000000000000064 00000050 00000003 02 bee9c498 0040 00000002 0000000005359e40 00000000000003ed
           0000000000000007 0002 00000005 00000002
           16 00 a5e9ac53 02 04 6b32 01 00  24 00 b3e9ac53 04 01 04 7633 04 02 68 02 78 02 6e 01""",
    ),
    "magic 0": (
        encode_message_set(0, WITHOUT_HEADERS),
        """0000000000000064 00000012 57e7496e 00 00 00000002 6b31 00000002 7631
           0000000000000065 00000010 8b23e3da 00 00 00000002 6b32 ffffffff
           0000000000000066 00000010 a2913aee 00 00 ffffffff 00000002 7633""",
    ),
    "magic 1": (
        encode_message_set(1, WITHOUT_HEADERS),
        """0000000000000064 0000001a b1a6ec76 01 00 00000000000003e8 00000002 6b31 00000002 7631
           0000000000000065 00000018 017bb92e 01 00 00000000000003ed 00000002 6b32 ffffffff
           0000000000000066 00000018 0be8e75e 01 00 00000000000003e6 ffffffff 00000002 7633""",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_encoders_write_the_bytes_that_kafka_writes(name: str) -> None:
    data, expected = GOLDEN[name]
    assert data.hex() == "".join(expected.split())


@pytest.mark.parametrize(
    ("name", "codec", "header"),
    [
        ("gzip", Codec.GZIP, "0001"),
        ("snappy", Codec.SNAPPY, "0002"),
        ("lz4", Codec.LZ4, "0003"),
        ("zstd", Codec.ZSTD, "0004"),
    ],
)
def test_compressed_batches_read_back_what_was_written(name: str, codec: Codec, header: str) -> None:
    data = encode_batch(THREE, codec=codec)
    assert data[21:23].hex() == header
    assert read(data) == THREE


# The compressed bytes are those of Kafka's own libraries.
WRITTEN_BY_KAFKA = {
    "snappy": (
        "0000006b",
        "3da9b04f 0002",
        """82534e41505059 00 00000001 00000001 00000026 248c
           14000000046b310476310010000a02046b3201001e000304010476330402680278026e01""",
    ),
    "lz4": (
        "00000064",
        "9c5932c6 0003",
        "04224d18 60 40 82 24000080 14000000046b310476310010000a02046b3201001e000304010476330402680278026e01 00000000",
    ),
    "zstd": (
        "00000061",
        "ebd543bb 0004",
        "28b52ffd 00 58 200100 14000000046b310476310010000a02046b3201001e000304010476330402680278026e01 010000",
    ),
}


@pytest.mark.parametrize("name", WRITTEN_BY_KAFKA)
def test_batches_that_kafka_compressed_are_read(name: str) -> None:
    size, crc, payload = WRITTEN_BY_KAFKA[name]
    header = f"0000000000000064 {size} ffffffff 02 {crc} 00000002 00000000000003e8 00000000000003ed"
    data = bytes.fromhex(header + "ffffffffffffffff ffff ffffffff 00000003" + payload)
    assert read(data) == THREE


@given(logs())
def test_a_log_reads_back_as_it_was_written(log: tuple[bytes, list[Record]]) -> None:
    data, records = log
    assert (read(data) if data else []) == records


def test_a_header_says_what_was_encoded() -> None:
    (batch,) = to_batches(window(GOLDEN["append time, transactional"][0]).batches)
    assert batch == Batch(
        position=0,
        size_bytes=97,
        base_offset=100,
        last_offset=102,
        base_timestamp=1000,
        max_timestamp=2000,
        producer_id=7,
        leader_epoch=3,
        base_sequence=5,
        record_count=3,
        crc=0x6C6DE355,
        computed_crc=0x6C6DE355,
        attributes=0x18,
        producer_epoch=2,
        magic=2,
    )
    assert batch.is_transactional and not batch.is_control
    assert batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert batch.last_sequence == 7
    assert batch.delete_horizon_ms is None


def test_a_delete_horizon_is_the_base_timestamp_when_its_bit_is_set() -> None:
    (batch,) = to_batches(window(GOLDEN["delete horizon"][0]).batches)
    assert batch.delete_horizon_ms == 87_400_000
    assert [record.timestamp for record in read(GOLDEN["delete horizon"][0])] == [1005, 998]


def test_sequence_numbers_wrap_to_zero() -> None:
    assert advance_sequence(MAX_SEQUENCE, 1) == 0
    assert advance_sequence(MAX_SEQUENCE - 1, 4) == 2
    assert advance_sequence(5, 2) == 7


def test_an_unknown_codec_is_refused_by_number() -> None:
    with pytest.raises(CorruptBatchError, match="compression type 5"):
        codec_of(5)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (KEY.pack(0, 0), ControlType.ABORT),
        (KEY.pack(0, 1), ControlType.COMMIT),
        (KEY.pack(9, 2), ControlType.LEADER_CHANGE),
        (KEY.pack(0, 6) + b"more", ControlType.KRAFT_VOTERS),
        (KEY.pack(0, 7), ControlType.UNKNOWN),
        (KEY.pack(0, -3), ControlType.UNKNOWN),
    ],
)
def test_a_control_record_is_what_its_key_says(key: bytes, expected: ControlType) -> None:
    assert control_type(key) is expected


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", KEY.pack(-1, 0)])
def test_a_control_key_that_cannot_be_is_refused(key: bytes | None) -> None:
    with pytest.raises(CorruptBatchError):
        control_type(key)


def test_a_marker_tells_the_coordinator_epoch_whatever_follows_it() -> None:
    assert coordinator_epoch(bytes.fromhex("000000000009")) == 9
    assert coordinator_epoch(bytes.fromhex("0001000000090000")) == 9
    for broken in (None, b"\0\0\0\0\0", bytes.fromhex("ffff00000009")):
        with pytest.raises(CorruptBatchError):
            coordinator_epoch(broken)


def test_the_kind_of_a_marker_is_found_while_scanning() -> None:
    rows = window(GOLDEN["commit marker"][0] + GOLDEN["abort marker"][0] + GOLDEN["one record"][0]).batches
    assert rows["control_type"].tolist() == [ControlType.COMMIT, ControlType.ABORT, -1]
