"""Batches and index entries that the kernels write, against those of the plain encoder and of a plain rule."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cordwood.kernels.encode import encode_bodies, index_batches, measure_bodies, write_headers
from cordwood.kernels.layout import HEADER
from cordwood.record.batch import encode_batch
from cordwood.record.columns import decode
from cordwood.record.record import Record, encode_record, to_records
from cordwood.testing.reference import index_entries
from cordwood.testing.strategies import records
from tests.logs import window


@st.composite
def plain_batches(draw: st.DrawFn) -> tuple[bytes, list[list[Record]]]:
    """Batches of magic 2, not compressed, behind each other; and the records of each."""
    groups: list[list[Record]] = []
    data, offset = b"", draw(st.sampled_from([0, 2**40]))
    for _ in range(draw(st.integers(1, 5))):
        group = draw(records(offset))
        data += encode_batch(group, producer_id=draw(st.sampled_from([-1, 7])), leader_epoch=3)
        groups.append(group)
        offset = group[-1].offset + 1
    return data, groups


@given(plain_batches(), st.data(), st.booleans())
def test_kept_records_are_encoded_as_the_plain_encoder_encodes_them(made, data, with_headers) -> None:
    stored, groups = made
    read = window(stored)
    (columns,) = decode(read)
    count = columns.rows.size
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), np.bool_)
    batches = read.batches.copy()
    # Far from the records' own, so that deltas of all sizes and signs occur.
    horizons = data.draw(st.lists(st.sampled_from([-1, 0, 2**40, 2**62]), min_size=len(groups), max_size=len(groups)))
    batches["base_timestamp"] = horizons
    chosen = np.array(data.draw(st.lists(st.booleans(), min_size=len(groups), max_size=len(groups))), np.bool_)
    kept: list[list[Record]] = [[] for _ in groups]
    for record, batch, stays in zip(to_records(columns.data, columns.rows), columns.rows["batch"], keep, strict=True):
        if stays and chosen[batch]:
            kept[batch].append(record)
    expected = [
        bytes(61 * with_headers)
        + b"".join(encode_record(r, base_offset=int(batch["base_offset"]), base_timestamp=horizon) for r in group)
        for group, batch, horizon in zip(kept, batches, horizons, strict=True)
        if group
    ]
    # The batches follow one that was not decoded.
    batches, chosen, index_of = np.append(batches[:1], batches), np.append(True, chosen), np.arange(len(groups)) + 1
    room = measure_bodies(columns.data.ctypes.data, columns.rows, keep, index_of, chosen) + 61 * len(groups)
    target = np.zeros(room + 8, np.uint8)
    starts, ends = np.full(batches.size, -1), np.full(batches.size, -1)
    written = encode_bodies(
        columns.data.ctypes.data,
        columns.rows,
        keep,
        index_of,
        chosen,
        batches,
        target.ctypes.data,
        with_headers,
        starts,
        ends,
    )
    assert written == len(b"".join(expected)) <= room
    assert target[:written].tobytes() == b"".join(expected)
    assert not target[written:].any()
    assert [bytes(target[s:e]) for s, e in zip(starts, ends, strict=True) if s >= 0] == expected


@given(plain_batches(), st.data())
def test_headers_are_written_where_they_are_chosen_with_crcs_over_the_whole_batch(made, data) -> None:
    stored, groups = made
    rows = window(stored).batches
    chosen = np.array(data.draw(st.lists(st.booleans(), min_size=len(groups), max_size=len(groups))), np.bool_)
    blank = bytearray(stored)
    for position in rows["position"].tolist():
        blank[position : position + HEADER.size] = bytes(HEADER.size)
    target = np.frombuffer(blank, np.uint8)
    written = rows.copy()
    written["crc"] = written["computed_crc"] = 0
    write_headers(written, chosen, rows["position"], target.ctypes.data)
    for row, new, is_chosen in zip(rows, written, chosen, strict=True):
        header = slice(int(row["position"]), int(row["position"]) + HEADER.size)
        assert bytes(blank[header]) == (stored[header] if is_chosen else bytes(HEADER.size))
        assert new["crc"] == new["computed_crc"] == (row["crc"] if is_chosen else 0)


BATCHES = st.lists(st.tuples(st.integers(61, 200), st.integers(1, 3), st.integers(-1, 20)), max_size=30)


@given(BATCHES, st.sampled_from([0, 61, 150, 400, 4096]), st.integers(1, 8), st.integers(1, 8), st.integers(1, 30))
def test_index_entries_follow_the_rule_however_the_batches_are_portioned(batches, interval, room, time_room, portion):
    sizes = np.array([size for size, _, _ in batches], np.int64)
    lasts = np.cumsum([count for _, count, _ in batches]).astype(np.int64)
    times = np.array([timestamp for _, _, timestamp in batches], np.int64)
    expected = index_entries(
        list(zip(sizes.tolist(), lasts.tolist(), times.tolist(), strict=True)), interval, room, time_room
    )
    state = np.array([0, 0, -1, -1, 0, 0, -1], np.int64)
    index, time_index = np.zeros((len(batches), 2), np.int64), np.zeros((len(batches), 2), np.int64)
    done = 0
    while done < len(batches):
        part = slice(done, done + portion)
        took = index_batches(sizes[part], lasts[part], times[part], interval, state, index, time_index, room, time_room)
        done += took
        if took < len(sizes[part]):
            break
    assert (done, index[: state[4]].tolist(), time_index[: state[5]].tolist()) == expected[:3]
    assert (state[2], state[3]) == expected[3]


def test_indexes_are_those_of_kafkas_example() -> None:
    # V14 of the log format: six appends of 72 bytes, an entry after more than 100 bytes since the last entry.
    sizes, lasts = np.full(6, 72), np.arange(200, 206)
    times = np.array([5000, 4990, 4980, 4970, 5960, 4950])
    state = np.array([0, 0, -1, -1, 0, 0, -1], np.int64)
    index, time_index = np.zeros((6, 2), np.int64), np.zeros((6, 2), np.int64)
    assert index_batches(sizes, lasts, times, 100, state, index, time_index, 100, 100) == 6
    assert index[: state[4]].tolist() == [[202, 144], [204, 288]]
    assert time_index[: state[5]].tolist() == [[5000, 200], [5960, 204]]


def test_a_full_time_index_ends_the_segment_even_if_its_entry_would_be_left_out() -> None:
    # Kafka: "Attempt to append to a full time index (size = 2)", and likewise while it recovers such a segment.
    sizes, lasts, times = np.full(4, 171), np.arange(4), np.array([5, 6, 7, 1])
    state = np.array([0, 0, -1, -1, 0, 0, -1], np.int64)
    index, time_index = np.zeros((4, 2), np.int64), np.zeros((4, 2), np.int64)
    assert index_batches(sizes, lasts, times, 100, state, index, time_index, 4, 3) == 3
    assert time_index[: state[5]].tolist() == [[6, 1], [7, 2]]
