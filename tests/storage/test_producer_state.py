"""Producer snapshots. Kafka: ProducerStateManagerTest."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from cordwood.common.errors import CorruptFileError
from cordwood.storage.formats import producer_state
from cordwood.storage.formats.producer_state import ProducerEntry

EMPTY = bytes.fromhex("0001 48674bc7 00000000")
GOLDEN = bytes.fromhex(
    "0001 b10feaa6 00000002"
    "0000000000000007 0002 00000007 0000000000000066 00000002 00000000000003ed ffffffff 0000000000000064"
    "0000000000000009 0001 ffffffff ffffffffffffffff 00000000 00000000000007d0 00000003 ffffffffffffffff"
)
ENTRIES = (
    ProducerEntry(7, 2, 7, 102, 2, 1005, -1, 100),
    ProducerEntry(9, 1, -1, -1, 0, 2000, 3, -1),
)


def sealed(body: bytes, version: int = 1) -> bytes:
    """A snapshot with this body and a valid checksum."""
    return struct.pack(">hI", version, crc32c(body)) + body


def test_golden_bytes_are_read_and_written() -> None:
    assert producer_state.decode(GOLDEN) == ENTRIES
    assert producer_state.encode(ENTRIES) == GOLDEN


def test_no_producers_are_ten_bytes() -> None:
    assert producer_state.decode(EMPTY) == ()
    assert producer_state.encode([]) == EMPTY


def test_entries_keep_their_order() -> None:
    turned = producer_state.encode(ENTRIES[::-1])
    assert turned != GOLDEN
    assert producer_state.decode(turned) == ENTRIES[::-1]


CORRUPT: list[tuple[str, Callable[[], bytes], str]] = [
    ("empty", lambda: b"", "of 0 bytes"),
    ("too short", lambda: EMPTY[:9], "of 9 bytes"),
    ("cut", lambda: GOLDEN[:-1], "CRC-32C mismatch"),
    ("flipped", lambda: GOLDEN[:50] + b"\x01" + GOLDEN[51:], "CRC-32C mismatch"),
    ("version 0", lambda: sealed(EMPTY[6:], 0), "version 0, only 1"),
    ("version 2", lambda: sealed(EMPTY[6:], 2), "version 2, only 1"),
    ("too many", lambda: sealed(struct.pack(">i", 3) + GOLDEN[10:]), "announces 3 entries, the file has room for 2"),
    ("far too many", lambda: sealed(struct.pack(">i", 2**31 - 1)), "the file has room for 0"),
    ("negative", lambda: sealed(struct.pack(">i", -1)), "announces -1 entries"),
]


@pytest.mark.parametrize(("data", "message"), [case[1:] for case in CORRUPT], ids=[case[0] for case in CORRUPT])
def test_what_kafka_would_delete_is_corrupt(data: Callable[[], bytes], message: str) -> None:
    # Kafka: ProducerStateManagerTest.testLoadFromCorruptSnapshot*.
    with pytest.raises(CorruptFileError) as caught:
        producer_state.decode(data(), "00000000000000000104.snapshot")
    assert message in str(caught.value)
    assert caught.value.path == "00000000000000000104.snapshot"


def test_bytes_behind_the_entries_are_ignored_but_checked() -> None:
    assert producer_state.decode(sealed(GOLDEN[6:] + b"more")) == ENTRIES
    with pytest.raises(CorruptFileError, match="CRC-32C"):
        producer_state.decode(GOLDEN + b"more")


def signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


FIELDS = [signed(bits) for bits in (64, 16, 32, 64, 32, 64, 32, 64)]


@given(st.lists(st.builds(ProducerEntry, *FIELDS), max_size=4))
def test_what_is_written_is_read(entries: list[ProducerEntry]) -> None:
    assert producer_state.decode(memoryview(producer_state.encode(entries))) == tuple(entries)
