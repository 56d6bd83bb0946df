"""The proof of a clean, in plain Python: each violation's meaning, looked up record by record.

Twin of `cordwood.cleaning.proof`, for two states of a log with the same segments. It returns the kinds of violations
found. The two share only the names of the kinds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from cordwood.cleaning.proof.pairs import ViolationKind as Kind
from cordwood.common.types import NONE, ControlType, TimestampType
from cordwood.record.record import Record
from tests.cleaning.proof.planting import State, Stored


@dataclass(frozen=True)
class Rules:
    """Permitted changes of a clean.

    Attributes:
        limit: first offset that a clean may not change.
        new_horizon_ms: the delete horizon that a batch may get.
        active_since_ms: producers whose last batch is older are forgotten, unless a transaction of theirs is open.
    """

    limit: int
    now_ms: int
    new_horizon_ms: int
    active_since_ms: int
    deletes_for_good: bool = True


def kinds_of(before: State, after: State, rules: Rules) -> set[Kind]:
    """The kinds of violations; where offsets do not ascend, no other kinds are looked for."""
    if any(_disorder(after)):
        return {Kind.ORDER}
    parts = (_records, _batches, _markers, _untouched, _keys, _transactions, _producers, _end)
    return {kind for part in parts for kind in part(before, after, rules)}


def _all(state: State) -> list[Stored]:
    return [one for base in sorted(state.segments) for one in state.segments[base]]


def _disorder(state: State) -> Iterator[bool]:
    bases = [*sorted(state.segments), 1 << 62]
    last = NONE
    for base, end in itertools.pairwise(bases):
        last = max(last, base - 1)
        for one in state.segments[base]:
            yield one.header.base_offset <= last or one.header.last_offset >= end
            last = one.header.last_offset
            offsets = [record.offset for record in one.records]
            yield offsets != sorted(set(offsets))


def _by_offset(state: State) -> dict[int, Record]:
    return {record.offset: record for one in _all(state) for record in one.records}


def _owner(before: State, one: Stored) -> Stored | None:
    """The batch that a batch was made of: the one that the end of its offsets is in."""
    end = one.header.last_offset
    first = next((was for was in _all(before) if was.header.last_offset >= end), None)
    return None if first is None or first.header.base_offset > end else first


def _is_due(one: Stored, rules: Rules) -> bool:
    horizon = one.header.delete_horizon_ms
    return rules.deletes_for_good and horizon is not None and horizon <= rules.now_ms


# ---- records and batches ---------------------------------------------------------------------------------------------


def _records(before: State, after: State, _rules: Rules) -> Iterator[Kind]:
    was = _by_offset(before)
    for record in _by_offset(after).values():
        if record.offset not in was:
            yield Kind.INVENTED
            continue
        old = was[record.offset]
        if record.key != old.key:
            yield Kind.KEY
        if record.value != old.value:
            yield Kind.VALUE
        if record.timestamp != old.timestamp:
            yield Kind.TIMESTAMP
        if record.headers != old.headers:
            yield Kind.HEADERS


def _batches(before: State, after: State, rules: Rules) -> Iterator[Kind]:
    for one in _all(after):
        owner = _owner(before, one)
        if owner is None:
            yield Kind.BATCH_INVENTED
            continue
        was, now = owner.header, one.header
        if (was.base_offset, was.last_offset) != (now.base_offset, now.last_offset):
            yield Kind.BATCH_OFFSETS
        if was.leader_epoch != now.leader_epoch:
            yield Kind.BATCH_EPOCH
        if (was.producer_id, was.producer_epoch, was.base_sequence) != (
            *(now.producer_id, now.producer_epoch, now.base_sequence),
        ):
            yield Kind.BATCH_PRODUCER
        flags = [(h.is_transactional, h.is_control, h.timestamp_type) for h in (was, now)]
        # A batch without records has no compressed data.
        if flags[0] != flags[1] or (one.records and was.codec != now.codec) or len(one.records) > len(owner.records):
            yield Kind.BATCH_ATTRIBUTES
        if now.max_timestamp not in _largest_timestamps(owner, one):
            yield Kind.BATCH_TIME
        old, new = was.delete_horizon_ms, now.delete_horizon_ms
        if old is None and new not in (None, rules.new_horizon_ms):
            yield Kind.HORIZON
        if old is not None and one.records and new != old:
            yield Kind.HORIZON


def _largest_timestamps(owner: Stored, one: Stored) -> set[int]:
    """The largest timestamps that a batch may state: that of its owner, or of the records that are left."""
    allowed = {owner.header.max_timestamp}
    is_late = owner.header.timestamp_type is TimestampType.LOG_APPEND_TIME
    if one.records and not is_late and len(one.records) != len(owner.records):
        allowed |= {max(record.timestamp for record in one.records)}
    return {time for time in allowed if time <= owner.header.max_timestamp}


def _markers(before: State, after: State, rules: Rules) -> Iterator[Kind]:
    filled = {owner.header.last_offset for one in _all(after) if one.records and (owner := _owner(before, one))}
    for was in _all(before):
        may_go = _is_due(was, rules) and was.header.last_offset < rules.limit
        if was.header.is_control and was.records and was.header.last_offset not in filled and not may_go:
            yield Kind.MARKER


def _untouched(before: State, after: State, rules: Rules) -> Iterator[Kind]:
    there = {one.data for one in _all(after)}
    for was in _all(before):
        if was.header.last_offset >= rules.limit and was.data not in there:
            yield Kind.UNTOUCHED


def _end(before: State, after: State, _rules: Rules) -> Iterator[Kind]:
    ends = [max(*state.segments, *(one.header.last_offset + 1 for one in _all(state))) for state in (before, after)]
    if ends[0] != ends[1]:
        yield Kind.END_OFFSET


# ---- transactions and keys -------------------------------------------------------------------------------------------


def _is_data(one: Stored) -> bool:
    return one.header.is_transactional and not one.header.is_control


def _marks(one: Stored, kind: ControlType) -> bool:
    return one.header.is_control and one.header.control_type == kind


def _is_marker(one: Stored) -> bool:
    return _marks(one, ControlType.COMMIT) or _marks(one, ControlType.ABORT)


def _fate(state: State, one: Stored) -> ControlType | None:
    """The end of a batch's transaction, by the next marker of its producer; None if it is open."""
    pid, last = one.header.producer_id, one.header.last_offset
    markers = (other.header for other in _all(state) if _is_marker(other))
    return next(
        (ControlType(one.control_type) for one in markers if one.producer_id == pid and one.base_offset > last), None
    )


def _keys(before: State, after: State, rules: Rules) -> Iterator[Kind]:
    there = _by_offset(after)
    of_key: dict[bytes, list[tuple[Record, Stored]]] = {}
    for one in _all(before):
        counts = not one.header.is_control and (not _is_data(one) or _fate(before, one) is ControlType.COMMIT)
        for record in one.records if counts else ():
            if record.key is not None and record.offset < rules.limit:
                of_key.setdefault(record.key, []).append((record, one))
    for records in of_key.values():
        last, batch = records[-1]
        if last.offset in there:
            continue
        if last.value is not None:
            yield Kind.VALUE_LOST
        elif not _is_due(batch, rules):
            yield Kind.TOMBSTONE_LOST
        elif any(record.value is not None and record.offset in there for record, _ in records):
            yield Kind.CAME_BACK


def _transactions(before: State, after: State, _rules: Rules) -> Iterator[Kind]:
    """Whether a consumer sees each batch as before, wherever it starts to read.

    A broker sends it the aborted transactions that reach its first offset; it skips their producer's batches from their
    first offset on, up to the ABORT marker.
    """
    entries = [entry for some in after.aborted.values() for entry in some]
    was = {one.header.base_offset: one for one in _all(before) if _is_data(one)}
    for one in _all(after):
        old = was.get(one.header.base_offset)
        if not (_is_data(one) and one.records) or old is None or old.header.producer_id != one.header.producer_id:
            continue
        pid, first, last = one.header.producer_id, one.header.base_offset, one.header.last_offset
        ends = [
            other.header.last_offset
            for other in _all(after)
            if _marks(other, ControlType.ABORT) and other.header.producer_id == pid and other.header.last_offset <= last
        ]
        mine = [entry for entry in entries if entry.producer_id == pid and entry.first_offset <= last]
        begun = max((entry.first_offset for entry in mine), default=NONE)
        told_to_late_readers = max((entry.last_offset for entry in mine), default=NONE) >= first
        is_skipped = begun > max(ends, default=NONE)
        fate, fate_now = _fate(before, old), _fate(after, one)
        if fate is ControlType.ABORT:
            if fate_now is not fate or not is_skipped or not told_to_late_readers:
                yield Kind.ABORTED_VISIBLE
        elif fate_now is not fate or is_skipped or told_to_late_readers:
            yield Kind.COMMITTED_HIDDEN


def _producers(before: State, after: State, rules: Rules) -> Iterator[Kind]:
    """Whether the batches from which a broker rebuilds the state of active producers still exist."""
    for known in before.producers:
        if known.timestamp < rules.active_since_ms and known.current_transaction_first_offset == NONE:
            continue
        was, now = (
            [one for one in _all(state) if _identity(one) == (known.producer_id, known.producer_epoch)]
            for state in (before, after)
        )
        if known.last_offset < 0:
            if was and not now:
                yield Kind.PRODUCER_LOST
            continue
        lasts = [
            max((one.header.last_offset for one in some if not one.header.is_control), default=NONE)
            for some in (was, now)
        ]
        if lasts[0] == known.last_offset and lasts[1] != known.last_offset:
            yield Kind.PRODUCER_LOST


def _identity(one: Stored) -> tuple[int, int]:
    return one.header.producer_id, one.header.producer_epoch
