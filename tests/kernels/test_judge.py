"""The fate of records, compared with the rules one by one; and renewed headers, compared with batches encoded again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cordwood.common.types import TimestampType
from cordwood.kernels import judge
from cordwood.kernels.judge import judge_records, renew_headers
from cordwood.kernels.layout import BATCH_ROW, LOG_APPEND_TIME, RECORD_ROW
from cordwood.record.batch import encode_batch
from cordwood.record.columns import decode
from cordwood.testing.strategies import records
from tests.logs import window

#: A record: whether it has a key, a value, its bit set; its key's newest offset, its timestamp.
RECORDS = st.tuples(st.booleans(), st.booleans(), st.booleans(), st.integers(-1, 30), st.integers(-1, 5))
#: A batch: control, discarded, tombstones due, whether it is known; and its records.
FLAGS = st.tuples(*[st.booleans()] * 4)
BATCHES = st.lists(st.tuples(FLAGS, st.lists(RECORDS, min_size=1, max_size=5)), min_size=1, max_size=6)


def reason(flags, record, offset: int, latest_offset: int) -> str:
    """The reason why a record is dropped, or `kept`."""
    (control, discarded, due, known), (has_key, has_value, bit, newest, _) = flags, record
    if discarded:
        return "marker" if control else "aborted"
    if control or offset > latest_offset:
        return "kept"
    if not has_key:
        return "without key"
    if bit if known else offset < newest:
        return "superseded"
    return "kept" if has_value or not due else "tombstone"


@given(BATCHES, st.integers(0, 3), st.booleans(), st.integers(-1, 30), st.integers(0, 9))
def test_records_are_judged_as_the_rules_say(made, gap, deletes_for_good, latest_offset, first_ordinal) -> None:
    sizes = [len(batch) for _, batch in made]
    # The batches are among others that are not decoded.
    index_of = np.arange(len(made)) * (gap + 1)
    room = int(index_of[-1]) + 1
    masks = np.zeros((4, room), np.bool_)
    masks[:, index_of] = np.array([flags for flags, _ in made]).T
    control, discarded, due, known = masks
    flat = [(flags, record) for flags, batch in made for record in batch]
    rows = np.zeros(len(flat), RECORD_ROW)
    rows["batch"] = np.repeat(np.arange(len(made)), sizes)
    rows["offset"] = np.arange(len(flat))
    rows["key_size"] = [3 if record[0] else -1 for _, record in flat]
    rows["value_size"] = [0 if record[1] else -1 for _, record in flat]
    rows["timestamp"] = [record[4] for _, record in flat]
    bits = np.packbits([False] * first_ordinal + [record[2] for _, record in flat], bitorder="little")
    ordinals = np.full(room, -1)
    ordinals[index_of] = first_ordinal + np.cumsum([0, *sizes[:-1]])
    ordinals[~known] = -1
    newest = np.array([] if known[index_of].all() else [record[3] for _, record in flat], np.int64)
    keep, found = np.empty(len(flat), np.bool_), np.zeros((room, judge.FINDINGS), np.int64)
    counts = np.zeros((room, judge.COUNTS), np.int64)
    rules = np.zeros(room, judge.BATCH_RULES)
    fate = judge.TOMBSTONES_EXPIRED if deletes_for_good else judge.KEPT_FOR_REPLICAS
    rules["first_ordinal"], rules["tombstone_fate"] = ordinals, np.where(due, fate, judge.KEPT)
    rules["control"], rules["discarded"] = control, discarded
    judge_records(rows, index_of, rules, bits, newest, latest_offset, keep, found, counts)

    reasons = [reason(flags, record, at, latest_offset) for at, (flags, record) in enumerate(flat)]
    for_replicas = 0 if deletes_for_good else reasons.count("tombstone")
    if not deletes_for_good:
        reasons = ["kept" if one == "tombstone" else one for one in reasons]
    seen = Counter(reasons)
    assert keep.tolist() == [one == "kept" for one in reasons]
    assert counts.sum(0).tolist() == [
        len(flat),
        *(seen[one] for one in ("kept", "superseded", "without key", "aborted", "tombstone", "marker")),
        for_replicas,
    ]
    expected = np.zeros((room, judge.FINDINGS), np.int64)
    for number, at in enumerate(index_of.tolist()):
        stay = np.flatnonzero(keep & (rows["batch"] == number))
        expected[at, judge.TOTAL] = sizes[number]
        if stay.size:
            tombstones = np.count_nonzero(rows["value_size"][stay] < 0)
            expected[at, 1:] = stay.size, tombstones, stay[0], stay[-1], rows["timestamp"][stay].max()
    assert found.tolist() == expected.tolist()


@given(
    st.lists(records(max_size=5), min_size=1, max_size=4),
    st.data(),
    st.sampled_from([None, 77]),
    st.sampled_from(list(TimestampType)),
)
def test_a_renewed_header_is_the_one_of_a_batch_made_of_what_stays(groups, data, horizon, kind) -> None:
    late = kind is TimestampType.LOG_APPEND_TIME
    producer = {"producer_id": 7, "producer_epoch": 2, "base_sequence": 5, "leader_epoch": 3, "timestamp_type": kind}
    stored = b"".join(
        encode_batch(group, **producer, delete_horizon_ms=horizon, max_timestamp=9 if late else None)
        for group in groups
    )
    read = window(stored)
    (columns,) = decode(read)
    count = len(groups)
    keep = np.array([data.draw(st.booleans()) for _ in range(columns.rows.size)])
    rules = np.zeros(count, judge.BATCH_RULES)
    rules["first_ordinal"], rules["tombstone_fate"] = -1, judge.KEPT
    anew, due = (np.array([data.draw(st.booleans()) for _ in groups]) for _ in range(2))
    # Kept records are those not superseded.
    keyed = columns.rows.copy()
    keyed["key_size"] = 1
    found, newest = np.zeros((count, judge.FINDINGS), np.int64), np.where(keep, -1, 2**62)
    judge_records(
        keyed, np.arange(count), rules, np.empty(0, np.uint8), newest, 2**62,
        np.empty(keep.size, np.bool_), found, np.zeros((count, judge.COUNTS), np.int64),
    )  # fmt: skip
    anew &= found[:, judge.STAY] > 0
    renewed = read.batches.copy()
    renew_headers(renewed, anew, due, 123, found, columns.rows)
    for at, group in enumerate(groups):
        if not anew[at]:
            assert renewed[at] == read.batches[at]
            continue
        stay = [record for record, kept in zip(group, keep[columns.rows["batch"] == at], strict=True) if kept]
        # To a reader, all records of such a batch have that time.
        stay = [replace(record, timestamp=9) for record in stay] if late else stay
        expected = window(
            encode_batch(
                stay,
                **producer,
                base_offset=group[0].offset,
                last_offset=group[-1].offset,
                delete_horizon_ms=123 if due[at] else horizon,
                max_timestamp=9 if late else None,
            )
        ).batches[0]
        filled = set(BATCH_ROW.names or ()) - {"position", "size_bytes", "crc", "computed_crc"}
        assert {name: renewed[at][name] for name in filled} == {name: expected[name] for name in filled}


def test_what_was_a_message_of_magic_1_becomes_a_batch_without_producer() -> None:
    headers, rows = np.zeros(2, BATCH_ROW), np.zeros(3, RECORD_ROW)
    headers["magic"], headers["base_offset"], headers["last_offset"] = 1, -1, 12
    headers["attributes"] = 1, 1 | LOG_APPEND_TIME
    headers["max_timestamp"] = 60
    rows["offset"], rows["timestamp"] = [10, 11, 12], [50, 40, 45]
    found = np.array([[3, 2, 0, 1, 2, 45], [3, 2, 0, 1, 2, 45]])
    renew_headers(headers, np.ones(2, np.bool_), np.zeros(2, np.bool_), 0, found, rows)
    for at, largest in ((0, 45), (1, 60)):
        new = headers[at]
        assert (new["magic"], new["base_offset"], new["last_offset"], new["record_count"]) == (2, 11, 12, 2)
        assert (new["base_timestamp"], new["max_timestamp"]) == (40, largest)
        assert all(new[name] == -1 for name in ("leader_epoch", "producer_id", "producer_epoch", "base_sequence"))
