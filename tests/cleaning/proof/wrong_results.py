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


def _keys_swapped(offset: int) -> Change:
    def change(stored: Stored) -> Stored:
        at = next(at for at, record in enumerate(stored.records) if record.offset == offset)
        first, second = stored.records[at - 1 : at + 1]
        pair = [replace(first, key=second.key), replace(second, key=first.key)]
        return stored.rebuilt([*stored.records[: at - 1], *pair, *stored.records[at + 1 :]])

    return lambda state: state.batch(offset, change)


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
        else:
            yield Wrong("a tombstone becomes a value", offset, _of_record(offset, value=b""))
        if record.key is not None and not header.is_control:
            yield Wrong("a key is another", offset, _of_record(offset, key=record.key + b"!"))
            yield Wrong("a key becomes null", offset, _of_record(offset, key=None))
            yield Wrong("a key becomes empty", offset, _of_record(offset, key=b""))
        if header.timestamp_type is TimestampType.CREATE_TIME:  # else the batch's time is that of its records
            yield Wrong("a timestamp is later", offset, _of_record(offset, timestamp=record.timestamp + 1))
            yield Wrong("a timestamp is earlier", offset, _of_record(offset, timestamp=record.timestamp - 1000))
        yield Wrong("a header is added", offset, _of_record(offset, headers=(*record.headers, ("x", b""))))
        if record.headers:
            yield Wrong("headers are gone", offset, _of_record(offset, headers=()))
            yield Wrong("headers change places", offset, _of_record(offset, headers=record.headers[::-1]))
            other = ((record.headers[0][0], b"other"), *record.headers[1:])
            yield Wrong("a header's value is another", offset, _of_record(offset, headers=other))
        if offset in kept_last:
            yield Wrong("the last record of a key is gone", offset, _dropped(offset))
        if stored.records[0].offset < offset and not header.is_control:
            yield Wrong("neighbours exchange their keys", offset, _keys_swapped(offset))


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
            for at in (17, 30, 57, len(stored.data) - 1):
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
    if header.delete_horizon_ms is not None:
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


def wrong_results(state: State) -> list[Wrong]:
    """All wrong results, derived from a right result."""
    last: dict[bytes, int] = {}
    for entries in state.segments.values():
        for stored in entries:
            if not stored.header.is_control:
                last |= {record.key: record.offset for record in stored.records if record.key is not None}
    kept_last = {offset for offset in last.values() if offset < UNCLEANABLE}
    return [*record_kinds(state, kept_last), *batch_kinds(state)]
