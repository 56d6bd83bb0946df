"""Wrong results of a clean by kind: each kind is planted in every place of the example where it does harm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from cordwood.common.types import Codec, TimestampType
from cordwood.record.record import Record
from tests.cleaning.proof.planting import NOW, State, Stored, data

#: From this offset on no change is permitted.
UNCLEANABLE = 60
#: The delete horizon that the clean has set.
HORIZON = NOW + 86_400_000
Change = Callable[[State], object]


@dataclass(frozen=True)
class Wrong:
    """A kind, where it is planted, and how."""

    kind: str
    offset: int
    plant: Change

    def __str__(self) -> str:
        return f"{self.kind}, at {self.offset}"


def _records(state: State) -> Iterator[tuple[Stored, Record]]:
    for entries in state.segments.values():
        for stored in entries:
            for record in stored.records:
                yield stored, record


def _of_record(offset: int, **changes: Any) -> Change:
    return lambda state: state.record(offset, **changes)


def _of_batch(offset: int, **changes: Any) -> Change:
    return lambda state: state.batch(offset, lambda stored: stored.rebuilt(**changes))


def _dropped(offset: int) -> Change:
    return lambda state: state.drop(offset)


def _without_batch(offset: int) -> Change:
    return lambda state: state.batch(offset, lambda _: None)


def _emptied(offset: int) -> Change:
    return lambda state: state.batch(offset, lambda stored: stored.rebuilt([]))


def _damaged(offset: int, at: int) -> Change:
    def change(stored: Stored) -> Stored:
        place = at % len(stored.data)
        return Stored(
            stored.data[:place] + bytes([stored.data[place] ^ 0x10]) + stored.data[place + 1 :],
            stored.header,
            stored.records,
        )

    return lambda state: state.batch(offset, change)


def _twice(offset: int, *, elsewhere: bool) -> Change:
    def plant(state: State) -> None:
        entries, at = state.find(offset)
        if elsewhere:
            state.segments[max(state.segments)].append(entries[at])
        else:
            entries.insert(at, entries[at])

    return plant


def _swapped(offset: int) -> Change:
    def plant(state: State) -> None:
        entries, at = state.find(offset)
        entries[at], entries[at - 1] = entries[at - 1], entries[at]

    return plant


def _exchanged(offset: int, field: str) -> Change:
    """Let a record and the one before it exchange a field."""

    def change(stored: Stored) -> Stored:
        at = next(at for at, record in enumerate(stored.records) if record.offset == offset)
        first, second = stored.records[at - 1 : at + 1]
        pair = [replace(one, **{field: getattr(other, field)}) for one, other in ((first, second), (second, first))]
        return stored.rebuilt([*stored.records[: at - 1], *pair, *stored.records[at + 1 :]])

    return lambda state: state.batch(offset, change)


def _record_twice(offset: int) -> Change:
    def change(stored: Stored) -> Stored:
        return stored.rebuilt([one for one in stored.records for _ in range(1 + (one.offset == offset))])

    return lambda state: state.batch(offset, change)


def _cut_in_two(offset: int) -> Change:
    """Make two batches of one, cut before a record."""

    def plant(state: State) -> None:
        entries, at = state.find(offset)
        stored, header = entries[at], entries[at].header
        first = [one for one in stored.records if one.offset < offset]
        second = [one for one in stored.records if one.offset >= offset]
        entries[at : at + 1] = [
            stored.rebuilt(first, last_offset=offset - 1, max_timestamp=None),
            stored.rebuilt(second, base_offset=offset, last_offset=header.last_offset),
        ]

    return plant


def _joined(offset: int) -> Change:
    """Make one batch of two, by the header of the second."""

    def plant(state: State) -> None:
        entries, at = state.find(offset)
        first, second = entries[at - 1 : at + 1]
        records = [*first.records, *second.records]
        entries[at - 1 : at + 1] = [second.rebuilt(records, base_offset=first.header.base_offset)]

    return plant


def _moved(offset: int, *, to_end: bool) -> Change:
    """Move a batch to the segment before, or to the next one."""

    def plant(state: State) -> None:
        bases = sorted(state.segments)
        entries, at = state.find(offset)
        (number,) = (number for number, base in enumerate(bases) if state.segments[base] is entries)
        stored = entries.pop(at)
        if to_end:
            state.segments[bases[number - 1]].append(stored)
        else:
            state.segments[bases[number + 1]].insert(0, stored)

    return plant


def _invented(offset: int) -> Change:
    def plant(state: State) -> None:
        base = max(base for base in state.segments if base <= offset)
        entries = state.segments[base]
        at = next((at for at, stored in enumerate(entries) if stored.header.base_offset > offset), len(entries))
        entries.insert(at, data(offset, "new=1", leader_epoch=1))

    return plant


def record_kinds(state: State, kept_last: set[int]) -> Iterator[Wrong]:
    """Kinds of errors in records that a clean has kept.

    Args:
        kept_last: offsets of the last records of their keys, which must stay.
    """
    for stored, record in _records(state):
        offset, header = record.offset, stored.header
        if header.magic < 2:
            continue
        if record.value is not None:
            yield Wrong("a value is another", offset, _of_record(offset, value=record.value + b"!"))
            yield Wrong("a value becomes null", offset, _of_record(offset, value=None))
            flipped = bytes([record.value[0] ^ 1]) + record.value[1:]
            yield Wrong("a bit of a value is another", offset, _of_record(offset, value=flipped))
            yield Wrong("a value is cut short", offset, _of_record(offset, value=record.value[:-1]))
            yield Wrong("a value is longer", offset, _of_record(offset, value=record.value + bytes(300)))
            yield Wrong("a value is zeros", offset, _of_record(offset, value=bytes(len(record.value))))
            if record.value != record.value[1:]:
                yield Wrong("a value lacks its start", offset, _of_record(offset, value=record.value[1:]))
        else:
            yield Wrong("a tombstone becomes a value", offset, _of_record(offset, value=b""))
        if record.key is not None and not header.is_control:
            yield Wrong("a key is another", offset, _of_record(offset, key=record.key + b"!"))
            yield Wrong("a key becomes null", offset, _of_record(offset, key=None))
            yield Wrong("a key becomes empty", offset, _of_record(offset, key=b""))
            yield Wrong("a bit of a key is another", offset, _of_record(offset, key=bytes([record.key[0] ^ 32])))
            yield Wrong("a key begins with a zero", offset, _of_record(offset, key=b"\0" + record.key))
            if record.value is not None and record.value != record.key:
                wrong = _of_record(offset, key=record.value, value=record.key)
                yield Wrong("a record exchanges its key and value", offset, wrong)
        if header.timestamp_type is TimestampType.CREATE_TIME:  # else the batch's time is that of its records
            yield Wrong("a timestamp is later", offset, _of_record(offset, timestamp=record.timestamp + 1))
            yield Wrong("a timestamp is earlier", offset, _of_record(offset, timestamp=record.timestamp - 1000))
            yield Wrong("a timestamp is 0", offset, _of_record(offset, timestamp=0))
            yield Wrong("a timestamp is none", offset, _of_record(offset, timestamp=-1))
        yield Wrong("a header is added", offset, _of_record(offset, headers=(*record.headers, ("x", b""))))
        if record.headers:
            yield Wrong("headers are gone", offset, _of_record(offset, headers=()))
            yield Wrong("headers change places", offset, _of_record(offset, headers=record.headers[::-1]))
            other = ((record.headers[0][0], b"other"), *record.headers[1:])
            yield Wrong("a header's value is another", offset, _of_record(offset, headers=other))
            yield Wrong(
                "a header is there twice", offset, _of_record(offset, headers=(*record.headers, *record.headers))
            )
            yield Wrong("a header is gone", offset, _of_record(offset, headers=record.headers[:-1]))
            for kind, header_ in (
                ("a header's name is another", ("other", record.headers[0][1])),
                ("a header's name is empty", ("", record.headers[0][1])),
                ("a header's value becomes null", (record.headers[0][0], None)),
                ("a header's value becomes empty", (record.headers[0][0], b"")),
            ):
                yield Wrong(kind, offset, _of_record(offset, headers=(header_, *record.headers[1:])))
        if offset in kept_last:
            yield Wrong("the last record of a key is gone", offset, _dropped(offset))
        yield Wrong("a record is there twice", offset, _record_twice(offset))
        before = [one for one in stored.records if one.offset < offset]
        if before and not header.is_control:
            yield Wrong("a batch is cut in two", offset, _cut_in_two(offset))
            for field in ("key", "value", "timestamp", "headers"):
                is_same = getattr(before[-1], field) == getattr(record, field)
                if not is_same and (field != "timestamp" or header.timestamp_type is TimestampType.CREATE_TIME):
                    yield Wrong(f"neighbours exchange their {field}", offset, _exchanged(offset, field))


def batch_kinds(state: State) -> Iterator[Wrong]:
    """Kinds of errors in batches that a clean has kept."""
    for base, entries in state.segments.items():
        for number, stored in enumerate(entries):
            header = stored.header
            offset = header.base_offset
            if header.magic < 2:
                continue
            yield from _header_kinds(stored)
            yield Wrong("a batch is there twice", offset, _twice(offset, elsewhere=False))
            if base != max(state.segments):
                yield Wrong("a batch is in two segments", offset, _twice(offset, elsewhere=True))
            if number:
                yield Wrong("batches change places", offset, _swapped(offset))
                if stored.records and entries[number - 1].records and not header.is_control:
                    yield Wrong("two batches are one", offset, _joined(offset))
            elif base != min(state.segments):
                yield Wrong("a batch is in the segment before", offset, _moved(offset, to_end=True))
            if number == len(entries) - 1 and base != max(state.segments):
                yield Wrong("a batch is in the next segment", offset, _moved(offset, to_end=False))
            for at in (8, 16, 17, 22, 30, 43, 53, 57, len(stored.data) - 1):
                yield Wrong(f"byte {at if at < 61 else 'at the end'} is damaged", offset, _damaged(offset, at))
            if offset >= UNCLEANABLE:
                yield Wrong("a batch that may not change is gone", offset, _without_batch(offset))
                yield Wrong("a batch that may not change is emptied", offset, _emptied(offset))
    for offset in (3, 17, 18, 50, 55, 59):
        yield Wrong("a batch is there that never was", offset, _invented(offset))


def _header_kinds(stored: Stored) -> Iterator[Wrong]:
    header = stored.header
    offset = header.base_offset
    changes: dict[str, dict[str, Any]] = {
        "another leader epoch": {"leader_epoch": header.leader_epoch + 1},
        "another producer": {"producer_id": header.producer_id + 100},
        "another producer epoch": {"producer_epoch": header.producer_epoch + 1},
        "another sequence": {"base_sequence": header.base_sequence + 1},
        "a later end": {"last_offset": header.last_offset + 1},
        "a larger timestamp": {"max_timestamp": header.max_timestamp + 10_000},
        "a smaller timestamp": {"max_timestamp": header.max_timestamp - 10_000},
    }
    if header.leader_epoch >= 0:
        changes["no leader epoch"] = {"leader_epoch": -1}
    if header.producer_id >= 0:
        changes["no producer"] = {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1, "transactional": False}
        changes["no producer epoch"] = {"producer_epoch": -1}
    if header.base_sequence >= 0:
        changes["no sequence"] = {"base_sequence": -1}
    if offset:
        changes["an earlier start"] = {"base_offset": offset - 1}
    if header.delete_horizon_ms is not None:
        if header.delete_horizon_ms != HORIZON:  # a clean may leave a batch as it was
            changes["no horizon"] = {"delete_horizon_ms": None}
        changes["an earlier horizon"] = {"delete_horizon_ms": header.delete_horizon_ms - 1}
        changes["a later horizon"] = {"delete_horizon_ms": header.delete_horizon_ms + 1}
    elif stored.records:
        changes["a horizon that is due at once"] = {"delete_horizon_ms": NOW - 10_000_000}
    if stored.records and not header.is_control:
        changes["a transaction's flag changes"] = {"transactional": not header.is_transactional}
        changes["another codec"] = {"codec": Codec.LZ4 if header.codec is Codec.NONE else Codec.NONE}
        changes["data becomes control"] = {"control": True}
        other = TimestampType.LOG_APPEND_TIME
        if header.timestamp_type is other:
            other = TimestampType.CREATE_TIME
        changes["another timestamp type"] = {"timestamp_type": other}
    for kind, options in changes.items():
        yield Wrong(kind, offset, _of_batch(offset, **options))


def marker_kinds(state: State) -> Iterator[Wrong]:
    """Kinds of errors in markers that a clean has kept."""
    for entries in state.segments.values():
        for stored in entries:
            header, offset = stored.header, stored.header.base_offset
            if not header.is_control or not stored.records:
                continue
            key = stored.records[0].key or b""
            yield Wrong(
                "a marker is of the other kind", offset, _of_record(offset, key=key[:-1] + bytes([key[-1] ^ 1]))
            )
            yield Wrong("a marker is of no kind", offset, _of_record(offset, key=key[:-1] + b"\7"))
            yield Wrong("a marker becomes data", offset, _of_batch(offset, control=False))
            yield Wrong("a marker is of no transaction", offset, _of_batch(offset, transactional=False))
            yield Wrong("a marker is of a coordinator's other epoch", offset, _of_record(offset, value=bytes(6)))
            if header.delete_horizon_ms is None or header.delete_horizon_ms > NOW:
                yield Wrong("a marker is gone", offset, _without_batch(offset))
                yield Wrong("a marker is emptied", offset, _emptied(offset))


def _without_segment(base: int) -> Change:
    return lambda state: state.segments.pop(base)


def _empty_segment(base: int) -> Change:
    return lambda state: state.segments[base].clear()


def _segment_twice(base: int) -> Change:
    return lambda state: state.segments.update({base + 1: list(state.segments[base])})


def _without_entry(name: str, at: int) -> Change:
    return lambda state: getattr(state, name).pop(at)


def _other_entry(name: str, at: int, entry: object) -> Change:
    return lambda state: getattr(state, name).__setitem__(at, entry)


def file_kinds(state: State) -> Iterator[Wrong]:
    """Kinds of errors in segments as a whole, and in the files beside them."""
    for base, entries in state.segments.items():
        if entries:
            yield Wrong("a segment is gone", base, _without_segment(base))
            yield Wrong("a segment is empty", base, _empty_segment(base))
            yield Wrong("a segment is there twice", base, _segment_twice(base))
    active = max(state.segments)
    yield Wrong("the end is gone", active, lambda one: one.segments[active].pop())
    more = data(state.end, "more=1", leader_epoch=2)
    yield Wrong("a batch is appended", state.end, lambda one: one.segments[active].append(more))
    for at, epoch in enumerate(state.epochs):
        later = replace(epoch, start_offset=epoch.start_offset + 1)
        yield Wrong("a leader epoch is gone", at, _without_entry("epochs", at))
        yield Wrong("a leader epoch begins later", at, _other_entry("epochs", at, later))
    for at, producer in enumerate(state.producers):
        yield Wrong("a producer is gone from the snapshot", at, _without_entry("producers", at))
        # A broker takes the last sequence of a producer only with its last offset.
        fields = ("producer_epoch", "last_sequence", "last_offset", "current_transaction_first_offset")
        for field in fields if producer.last_offset >= 0 else fields[::3]:
            changes: dict[str, Any] = {field: getattr(producer, field) + 1}
            other = _other_entry("producers", at, replace(producer, **changes))
            yield Wrong(f"a producer's {field} is another in the snapshot", at, other)


def wrong_results(state: State) -> list[Wrong]:
    """All wrong results, derived from a right result."""
    last: dict[bytes, int] = {}
    for entries in state.segments.values():
        for stored in entries:
            if not stored.header.is_control:
                last |= {record.key: record.offset for record in stored.records if record.key is not None}
    kept_last = {offset for offset in last.values() if offset < UNCLEANABLE}
    return [*record_kinds(state, kept_last), *batch_kinds(state), *marker_kinds(state), *file_kinds(state)]
