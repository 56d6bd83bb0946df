"""Kafka's cleaning rules in plain Python, a batch and a record at a time: slow and obvious; tests compare the fast
implementation with them.

Nothing here shares code with `cordwood.cleaning.rules`. The input is decoded batches, the output the bytes of kept
batches. The caller decides which segments are merged into one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from cordwood.common.types import NONE, ControlType, TimestampType
from cordwood.record.batch import Batch, encode_batch
from cordwood.record.record import Record
from cordwood.storage.formats.transaction_index import AbortedTransaction


@dataclass(frozen=True)
class StoredBatch:
    """A batch of a log: its header, its bytes, its records."""

    header: Batch
    data: bytes
    records: Sequence[Record]


@dataclass(frozen=True)
class StoredSegment:
    """A segment of a log.

    Attributes:
        aborted: its transaction index.
    """

    base_offset: int
    mtime_ms: int
    batches: Sequence[StoredBatch]
    aborted: Sequence[AbortedTransaction] = ()

    @property
    def next_offset(self) -> int:
        """The offset after its last batch."""
        return self.batches[-1].header.last_offset + 1 if self.batches else self.base_offset


@dataclass
class ReferenceOutput:
    """The kept batches of a group of segments, and its new transaction index."""

    batches: list[bytes] = field(default_factory=list)
    aborted: list[AbortedTransaction] = field(default_factory=list)


class Tracker:
    """Which transactions were aborted, up to the current place in the log."""

    def __init__(self, log: Sequence[StoredSegment]) -> None:
        self.log = log
        self.pending: list[AbortedTransaction] = []
        self.aborted: dict[int, AbortedTransaction] = {}
        self.with_data: set[int] = set()
        self.committed: set[int] = set()

    def learn(self, start: int, end: int) -> None:
        """Read the transaction indexes for transactions that overlap [start, end)."""
        at_or_below = [one.base_offset for one in self.log if one.base_offset <= start]
        for segment in self.log:
            if segment.base_offset < max(at_or_below, default=self.log[0].base_offset):
                continue
            for one in segment.aborted:
                if one.first_offset < end:
                    self.pending.append(one)
                if one.last_stable_offset >= end:
                    return

    def may_go(self, batch: StoredBatch) -> bool:
        """Return whether a batch holds data of an aborted transaction, or a marker without remaining data."""
        header = batch.header
        for one in sorted(self.pending, key=lambda one: one.first_offset):
            if one.first_offset <= header.last_offset:
                self.pending.remove(one)
                if one.producer_id not in self.aborted:
                    self.aborted[one.producer_id] = one
        self.ended: AbortedTransaction | None = None
        producer = header.producer_id
        if header.is_control:
            return not batch.records or self._marker_may_go(producer, header.control_type)
        if not header.is_transactional:
            return False
        if producer in self.aborted:
            self.with_data.add(producer)
            return True
        self.committed.add(producer)
        return False

    def _marker_may_go(self, producer: int, kind: int) -> bool:
        if kind == ControlType.COMMIT:
            had_data = producer in self.committed
            self.committed.discard(producer)
            return not had_data
        if kind == ControlType.ABORT:
            transaction = self.aborted.pop(producer, None)
            had_data = producer in self.with_data
            self.with_data.discard(producer)
            if transaction is not None and had_data:
                self.ended = transaction
                return False
            return True
        return False


#: Returns the rank of a record: of two records of a key, the one with the larger rank wins, else the later one.
Rank: TypeAlias = Callable[[Record], int]


def winners(
    log: Sequence[StoredSegment], first_dirty: int, first_uncleanable: int, rank: Rank
) -> dict[bytes, tuple[int, int]]:
    """Return rank and offset of the winning record of each key of the dirty section."""
    tracker = Tracker(log)
    tracker.learn(first_dirty, first_uncleanable)
    found: dict[bytes, tuple[int, int]] = {}
    for batch in _from(log, first_dirty, first_uncleanable):
        if tracker.may_go(batch) or batch.header.is_control:
            continue
        for record in batch.records:
            if record.key is not None and record.offset >= first_dirty:
                before = found.get(record.key)
                if before is None or rank(record) >= before[0]:
                    found[record.key] = rank(record), record.offset
    return found


def _from(log: Sequence[StoredSegment], start: int, end: int) -> Iterable[StoredBatch]:
    bases = [one.base_offset for one in log if one.base_offset <= start]
    for segment in log:
        if max(bases, default=start) <= segment.base_offset < end:
            yield from segment.batches


def clean(
    log: Sequence[StoredSegment],
    groups: Sequence[Sequence[StoredSegment]],
    producers: dict[int, tuple[int, int]],
    *,
    first_dirty: int,
    first_uncleanable: int,
    now_ms: int,
    delete_retention_ms: int,
    deletes_for_good: bool = True,
    rank: Rank = lambda _: 0,
) -> list[ReferenceOutput]:
    """Clean [first_dirty, first_uncleanable) of a log.

    Args:
        producers: active producers, each with the last offset of its data (NONE without) and its epoch.
        delete_retention_ms: time from now to a new delete horizon.
        deletes_for_good: remove tombstones and markers when their horizon has passed.
        rank: the keep rule.
    """
    winning = winners(log, first_dirty, first_uncleanable, rank)
    clean_segments = [one for one in log if one.base_offset < first_dirty]
    old_horizon = clean_segments[-1].mtime_ms - delete_retention_ms if clean_segments else 0
    tracker = Tracker(log)
    outputs = []
    for group in groups:
        output = ReferenceOutput()
        for at, segment in enumerate(group):
            end = group[at + 1].base_offset if at + 1 < len(group) else segment.next_offset
            tracker.learn(segment.base_offset, end)
            for batch in segment.batches:
                may_go = tracker.may_go(batch)
                if tracker.ended is not None:
                    output.aborted.append(tracker.ended)
                horizon = batch.header.delete_horizon_ms
                due = deletes_for_good and horizon is not None and horizon <= now_ms
                if batch.header.magic < 2:
                    tombstones_stay = segment.mtime_ms > old_horizon or not deletes_for_good
                else:
                    tombstones_stay = not due
                records = [
                    record
                    for record in batch.records
                    if not (may_go and (due or not batch.header.is_control))
                    and (
                        batch.header.is_control
                        or record.offset >= first_uncleanable
                        or _stays(record, rank, winning, tombstones_stay=tombstones_stay)
                    )
                ]
                must_leave_header = batch.header.last_offset + 1 == first_uncleanable or _is_last(batch, producers)
                kept = _kept(batch, records, may_go, must_leave_header, now_ms + delete_retention_ms)
                if kept:
                    output.batches.append(kept)
        outputs.append(output)
    return outputs


def _is_last(batch: StoredBatch, producers: dict[int, tuple[int, int]]) -> bool:
    header = batch.header
    if header.producer_id not in producers:
        return False
    last_offset, epoch = producers[header.producer_id]
    if last_offset != NONE:
        return header.last_offset == last_offset
    return header.is_control and header.producer_epoch == epoch


def _stays(record: Record, rank: Rank, winning: dict[bytes, tuple[int, int]], *, tombstones_stay: bool) -> bool:
    mine = rank(record), record.offset
    if record.key is None or mine < winning.get(record.key, mine):
        return False
    return record.value is not None or tombstones_stay


def _kept(batch: StoredBatch, records: Sequence[Record], may_go: bool, must_leave_header: bool, horizon: int) -> bytes:
    """Return the bytes of a batch with the kept records; empty if the batch is removed."""
    header = batch.header
    if not records:
        if not must_leave_header or header.magic < 2:
            return b""
        return encode_batch([], **_identity(header), max_timestamp=header.max_timestamp)
    new_horizon = header.delete_horizon_ms is None and (
        any(record.value is None for record in records) or (header.is_control and may_go)
    )
    if header.magic == 2 and len(records) == len(batch.records) and not new_horizon:
        return batch.data
    late = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    kind = TimestampType.LOG_APPEND_TIME if late else TimestampType.CREATE_TIME
    identity: dict[str, Any] = _identity(header) if header.magic == 2 else {"timestamp_type": kind}
    return encode_batch(
        records,
        **identity,
        codec=header.codec,
        max_timestamp=header.max_timestamp if late else None,
        delete_horizon_ms=horizon if new_horizon else header.delete_horizon_ms,
    )


def _identity(header: Batch) -> dict[str, Any]:
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "timestamp_type": header.timestamp_type,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
    }
