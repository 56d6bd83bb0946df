"""Whole files, byte by byte, as Kafka 4.3.1 wrote them: a mixed segment, horizons, an emptied batch, an old wrapper.

T0 is 1700000000000; the leader epoch is 0.
"""

from __future__ import annotations

from typing import Any

from cordwood.common.types import Codec
from cordwood.record.batch import Marker, encode_batch, encode_marker, encode_message_set
from cordwood.record.record import Record
from tests.cleaning.scripted import ScriptedLog
from tests.logs import read, window

T0 = 1_700_000_000_000
GZIPPED = """
    00000000000000050000005700000000028f1b99da0001000000010000018bcfe568050000018bcfe56806ffffffffffffffffffffffffffff
    000000021f8b08000000000000ff13606060604a61326110606062624a623265000052c9d92e12000000"""
NINE = """
    00000000000000070000003a000000000243ed09ed0000000000000000018bcfe568070000018bcfe56807ffffffffffffffffffffffffffff
    00000001100000000261023900"""


def unhex(*texts: str) -> bytes:
    return bytes.fromhex("".join("".join(text.split()) for text in texts))


def batch(offset: int, *records: tuple[bytes | None, bytes | None, int], **identity: Any) -> bytes:
    made = [Record(offset + at, T0 + time, key, value) for at, (key, value, time) in enumerate(records)]
    return encode_batch(made, leader_epoch=0, **identity)


def files(log: ScriptedLog, base: int) -> list[bytes]:
    found = log.files()
    return [found[f"{base:020}{suffix}"] for suffix in (".log", ".index", ".timeindex")]


def test_a_mixed_segment() -> None:
    # cases 80, 138
    # Case 80.
    log = ScriptedLog({"delete.retention.ms": 1000, "index.interval.bytes": 100}, now_ms=T0)
    before = """
        00000000000000000000004b0000000002d15fe26b0000000000020000018bcfe568000000018bcfe56802ffffffffffffffffffffffffffff
        000000031000000002610231001000020202620232000e00040401027800
        0000000000000003000000420000000002fccc75540000000000010000018bcfe568030000018bcfe56804ffffffffffffffffffffffffffff
        000000021000000002610233000e00020202630100"""
    assert unhex(before) == batch(0, (b"a", b"1", 0), (b"b", b"2", 1), (None, b"x", 2)) + batch(
        3, (b"a", b"3", 3), (b"c", None, 4)
    )
    log.append(unhex(before, GZIPPED))
    log.roll()
    log.now_ms += 7
    log.append(unhex(NINE))
    log.roll()
    log.clean(first_dirty=0, first_uncleanable=8, now_ms=T0 + 100)
    with_horizon = """
        00000000000000030000003a0000000002ed2c9c7e0040000000010000018bcfe56c4c0000018bcfe56804ffffffffffffffffffffffffffff
        0000000110008f110202630100"""
    assert files(log, 0) == [
        unhex(with_horizon, GZIPPED, NINE),
        unhex("00000007 000000a9"),
        unhex("0000018bcfe56807 00000007"),
    ]
    assert log.log().segments[0].mtime_ms == T0 + 7


def test_a_horizon_on_a_mixed_batch() -> None:
    # case 90
    # Case 90.
    log = ScriptedLog({"delete.retention.ms": 1000}, now_ms=T0)
    log.append(batch(0, (b"a", None, 0), (b"b", b"1", 5), (b"c", b"1", 2)) + batch(3, (b"c", b"2", 9)))
    log.roll()
    log.clean(now_ms=T0 + 10)
    second = """
        00000000000000030000003a0000000002a6e326ea0000000000000000018bcfe568090000018bcfe56809ffffffffffffffffffffffffffff
        00000001100000000263023200"""
    first = """
        0000000000000000000000440000000002df8d195b0040000000020000018bcfe56bf20000018bcfe56805ffffffffffffffffffffffffffff
        000000021000e30f00026101001200d90f020262023100"""
    assert files(log, 0)[0] == unhex(first, second)
    log.clean(first_dirty=0, now_ms=T0 + 1010)
    expired = """
        00000000000000000000003b0000000002ceec7dd20040000000020000018bcfe56bf20000018bcfe56805ffffffffffffffffffffffffffff
        000000011200d90f020262023100"""
    assert files(log, 0)[0] == unhex(expired, second)


def test_an_emptied_batch_and_its_transaction_index() -> None:
    # case 115
    # Case 115.
    log = ScriptedLog({"segment.bytes": 200}, now_ms=T0)
    one: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0, "transactional": True}
    two = {**one, "producer_id": 2}
    log.append(batch(0, (b"a", b"1", 0), base_sequence=0, **one))
    log.append(batch(1, (b"b", b"1", 0), base_sequence=1, **one))
    log.roll()
    log.append(batch(2, (b"c", b"1", 0), base_sequence=0, **two))
    log.append(encode_marker(Marker(3, T0, 1, 0, committed=False), leader_epoch=0))
    log.roll()
    log.append(encode_marker(Marker(4, T0, 2, 0, committed=True), leader_epoch=0))
    log.append(batch(5, (b"k", b"1", 0)))
    log.roll()
    copied = files(log, 2)[0], files(log, 4)[0]
    log.clean()
    assert files(log, 0) == [
        unhex(
            """00000000000000010000003100000000023b4891de001000000000ffffffffffffffff0000018bcfe5680000000000000000010000
               0000000100000000"""
        ),
        b"",
        unhex("0000018bcfe56800 00000001"),
    ]
    entry = "0000 0000000000000001 0000000000000000 0000000000000003 0000000000000002"
    assert log.files()[f"{2:020}.txnindex"] == unhex(entry)
    assert (files(log, 2)[0], files(log, 4)[0]) == copied
    assert files(log, 2)[1] == files(log, 4)[1] == b""


def test_what_is_left_of_a_wrapper_of_magic_1() -> None:
    # case 136
    # Case 136. The compressed bytes are those of Java's zlib; others may compress differently, so records decide.
    log = ScriptedLog(now_ms=T0)
    three = [Record(0, T0, b"a", b"1"), Record(1, T0 + 7, b"b", b"1"), Record(2, T0 + 3, b"c", b"1")]
    log.append(encode_message_set(1, three, codec=Codec.GZIP))
    log.roll()
    log.append(batch(3, (b"a", b"2", 9), (b"b", b"2", 9)))
    log.roll()
    log.clean(first_dirty=0)
    data = files(log, 0)[0]
    size = int(window(data).batches["size_bytes"][0])
    expected = unhex(
        """00000000000000020000004effffffff02056742940001000000000000018bcfe568030000018bcfe56803ffffffffffffffffffffffffff
           ff000000011f8b08000000000000ff13606060604a66326400008e8e43dc09000000"""
    )
    assert data[:8] + data[12:17] + data[21:61] == expected[:8] + expected[12:17] + expected[21:61]
    assert read(data[:size]) == read(expected) == three[2:]
