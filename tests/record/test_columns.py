from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cordwood.common.errors import BatchProblem, BatchTooLargeError, CorruptBatchError, DataError
from cordwood.common.types import Codec
from cordwood.record import columns
from cordwood.record.batch import encode_batch, encode_message_set, seal
from cordwood.record.columns import BatchWindow, RecordColumns, decode, is_valid
from cordwood.record.record import Record, to_records
from cordwood.testing.strategies import logs
from tests.logs import window

FEW = [Record(i, 1000 + i, b"key%d" % i, b"value" * 20) for i in range(10)]


def records(found: Iterator[RecordColumns]) -> list[Record]:
    return [record for part in found for record in to_records(part.data, part.rows)]


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that every batch exceeds: all paths for large batches are taken."""
    monkeypatch.setattr(columns, "STREAM_BYTES", 40)
    monkeypatch.setattr(columns, "ARENA_BYTES", 100)
    monkeypatch.setattr(columns, "MAX_ROWS", 3)


@pytest.mark.more
@pytest.mark.usefixtures("_tiny")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(logs())
def test_batches_decoded_in_pieces_give_the_same_records(log: tuple[bytes, list[Record]]) -> None:
    data, expected = log
    assert (records(decode(window(data))) if data else []) == expected


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_a_batch_too_large_for_a_window_is_read_from_the_file(codec: Codec, piece: int) -> None:
    data = encode_batch(FEW, codec=codec)
    whole = window(data)

    def read(position: int, size_bytes: int) -> Iterator[bytes]:
        for at in range(position, position + size_bytes, piece):
            yield data[at : min(at + piece, position + size_bytes)]

    assert records(decode(BatchWindow(0, whole.data[:61], whole.batches, read))) == FEW


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_message_too_large_for_a_window_is_read_from_the_file(magic: int, codec: Codec) -> None:
    expected = [Record(9, -1 if magic == 0 else 5, b"k", b"v" * 1000)]
    data = encode_message_set(magic, expected, codec=codec)
    whole = window(data)
    apart = BatchWindow(0, whole.data[:34], whole.batches, lambda at, size: iter([data[at : at + size]]))
    assert records(decode(apart)) == expected


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_batch_that_decompresses_to_too_much_is_damage_at_its_place(codec: Codec) -> None:
    bomb = encode_batch([Record(7, 0, None, bytes(100_000))], codec=codec)
    data = encode_batch(FEW[:2]) + bomb + encode_batch(FEW[8:])
    damage: list[DataError] = []
    found = records(decode(window(data), on_damage=damage.append, max_batch_bytes=50_000))
    assert found == [*FEW[:2], *FEW[8:]]
    (error,) = damage
    assert isinstance(error, BatchTooLargeError)
    assert (error.position, error.offset) == (len(encode_batch(FEW[:2])), 7)


def test_a_batch_with_a_wrong_crc_is_left_out_or_read_as_the_caller_wants() -> None:
    broken = bytearray(encode_batch(FEW[:3]))
    broken[40] ^= 1  # max timestamp
    data = bytes(broken) + encode_batch(FEW[3:])
    with pytest.raises(CorruptBatchError, match="CRC-32C mismatch: stored 0x"):
        list(decode(window(data)))
    damage: list[DataError] = []
    assert records(decode(window(data), on_damage=damage.append)) == FEW[3:]
    assert [(error.position, error.offset) for error in damage] == [(0, 0)]
    assert records(decode(window(data), on_damage=damage.append, even_invalid=True)) == FEW
    assert is_valid(window(data).batches).tolist() == [False, True]


def test_of_a_batch_with_a_broken_record_nothing_is_given_out() -> None:
    good = encode_batch(FEW[:3])
    # One record too many is announced, and the CRC is right.
    lying = seal(good[:57] + (4).to_bytes(4, "big") + good[61:])
    damage: list[DataError] = []
    assert records(decode(window(lying + good), on_damage=damage.append)) == FEW[:3]
    assert [(error.kind, error.what) for error in damage] == [
        (BatchProblem.MISSING_RECORDS, "the batch ends before its last record")
    ]


def test_a_record_count_that_the_bytes_cannot_hold_costs_no_memory() -> None:
    good = encode_batch(FEW[:1])
    lying = seal(good[:57] + (2**31 - 1).to_bytes(4, "big") + good[61:])
    whole = window(lying)
    assert columns._capacity(whole.batches, len(lying), 0) <= len(lying) // 7 + 1
    with pytest.raises(CorruptBatchError):
        list(decode(whole))


@given(logs(), st.data())
def test_a_selection_keeps_the_rows_that_the_mask_names(log: tuple[bytes, list[Record]], data: st.DataObject) -> None:
    if not log[0]:
        return
    for part in decode(window(log[0])):
        mask = np.array(data.draw(st.lists(st.booleans(), min_size=part.rows.size, max_size=part.rows.size)), bool)
        kept = list(to_records(part.data, part.select(mask).rows))
        assert kept == [r for r, keep in zip(to_records(part.data, part.rows), mask, strict=True) if keep]
