"""Producer state, as a broker keeps it: the last batches of each producer, and the open transactions.

The state of a producer is its epoch, its newest data batches, the start of its open transaction, and the time of its
last batch or marker. A broker uses it to accept or reject the producer's next batch, so a clean must keep the batches
that a rebuilt state needs. The replay of a stored log rejects no batch; a live log (`live.producer_state`) checks
each batch first, and then changes the state in the same way.

    a batch of data    adds its sequence and offsets; if its epoch is new, earlier batches are dropped first
                       if it is transactional and no transaction is open, it opens one
    a marker           ends the producer's transaction; if its epoch is new, all batches are dropped

Source: Kafka ProducerStateManager, ProducerStateEntry, ProducerAppendInfo. `storage.check` has a replay of its own, on
purpose: see the table in ARCHITECTURE.md.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cordwood.common.errors import CorruptFileError
from cordwood.common.types import NONE, ControlType, override
from cordwood.kernels.layout import TRANSACTIONAL, BatchRows, is_control
from cordwood.record.batch import MAX_SEQUENCE, Batch
from cordwood.storage.formats import producer_state
from cordwood.storage.formats.producer_state import PRODUCER_ROW, ProducerEntry, ProducerRows
from cordwood.storage.formats.transaction_index import AbortedTransaction
from cordwood.storage.log.files import read_file
from cordwood.storage.log.segment import skip_gap
from cordwood.storage.log.view import LogView

#: `producer.id.expiration.ms`
DEFAULT_EXPIRATION_MS = 86_400_000
#: Number of batches to remember per producer; a snapshot keeps the last of them.
REMEMBERED_BATCHES = 5


class RememberedBatch(NamedTuple):
    """The fields kept of an appended batch."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """Sequence of its first record; sequences continue at 0 after the largest."""
        return (self.last_sequence - self.offset_delta) % (MAX_SEQUENCE + 1)

    @property
    def first_offset(self) -> int:
        """Offset of its first record."""
        return self.last_offset - self.offset_delta


_NO_BATCH = RememberedBatch(NONE, NONE, 0, NONE)


@dataclass(frozen=True, slots=True)
class Producer:
    """The state of one producer.

    Attributes:
        batches: its last data batches with this epoch, the oldest first; at most `REMEMBERED_BATCHES`.
        coordinator_epoch: coordinator epoch of its newest marker; NONE if the replay did not receive it.
        timestamp: time of its newest batch or marker, in milliseconds.
        transaction_start: first offset of its open transaction, or NONE.
    """

    epoch: int = NONE
    batches: tuple[RememberedBatch, ...] = ()
    coordinator_epoch: int = NONE
    timestamp: int = NONE
    transaction_start: int = NONE

    @classmethod
    def of(cls, entry: ProducerEntry) -> Producer:
        """Return the state that a snapshot's entry holds."""
        last = RememberedBatch(entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp)
        start = entry.current_transaction_first_offset
        return cls(
            entry.producer_epoch,
            (last,) if last.last_offset >= 0 else (),
            entry.coordinator_epoch,
            entry.timestamp,
            start if start >= 0 else NONE,
        )

    def entry(self, producer_id: int) -> ProducerEntry:
        """Return the entry for a snapshot."""
        return ProducerEntry(
            *(producer_id, self.epoch, *self.last_batch[:3]),
            *(self.timestamp, self.coordinator_epoch, self.transaction_start),
        )

    @property
    def last_batch(self) -> RememberedBatch:
        """The newest batch; without one, its offset delta is 0 and its other fields are NONE."""
        return self.batches[-1] if self.batches else _NO_BATCH

    @property
    def last_sequence(self) -> int:
        """Last sequence of its newest batch; NONE without one."""
        return self.last_batch.last_sequence

    @property
    def last_offset(self) -> int:
        """Last offset of its newest batch; NONE without one."""
        return self.last_batch.last_offset

    def find_duplicate(self, batch: Batch) -> RememberedBatch | None:
        """Return the remembered batch with the same epoch, first and last sequence, or None."""
        if batch.producer_epoch != self.epoch:
            return None
        sequences = batch.base_sequence, batch.last_sequence
        return next((one for one in self.batches if (one.first_sequence, one.last_sequence) == sequences), None)

    def with_batch(self, epoch: int, batch: RememberedBatch, *, is_transactional: bool) -> Producer:
        """Return the state after a batch of data."""
        before = self.batches[-REMEMBERED_BATCHES + 1 :] if epoch == self.epoch else ()
        start = self.transaction_start
        if start == NONE and is_transactional:
            start = batch.first_offset
        return Producer(epoch, (*before, batch), self.coordinator_epoch, batch.timestamp, start)

    def with_marker(self, epoch: int, timestamp: int, coordinator_epoch: int) -> Producer:
        """Return the state after a marker: no transaction is open."""
        batches = self.batches if epoch == self.epoch else ()
        return Producer(epoch, batches, coordinator_epoch, timestamp)

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Return whether a broker drops the producer: without open transaction, and idle for `expiration_ms`."""
        return self.transaction_start == NONE and now_ms - self.timestamp >= expiration_ms


class CompletedTransaction(NamedTuple):
    """A transaction that a marker ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class ReplayedTransaction(NamedTuple):
    """A transaction that is open or just ended.

    Attributes:
        is_placed: whether the append of its first batch was seen; False for one from a snapshot or a replay.
        last_offset: offset of its marker; NONE while it is open.
    """

    first_offset: int
    producer_id: int
    is_placed: bool = False
    last_offset: int = NONE


class ProducerTable(Mapping[int, Producer]):
    """Producers by their ids: the rows of a snapshot, and an object for each producer that changed since.

    A snapshot may have 100,000s of producers, and few of them write again, so most rows stay unchanged up to the next
    snapshot. No producer is removed from a table: `Producers.expire` creates a new table.
    """

    def __init__(self, rows: ProducerRows, changed: dict[int, Producer] | None = None) -> None:
        """`rows`: rows of a snapshot, normalized, in ascending order of their ids, one per id."""
        self._rows = rows
        self._ids = np.ascontiguousarray(rows["producer_id"])
        self._changed = {} if changed is None else changed

    @classmethod
    def empty(cls) -> ProducerTable:
        """Return a table without producers."""
        return cls(np.empty(0, PRODUCER_ROW))

    def _index(self, producer_id: int) -> int | None:
        at = int(self._ids.searchsorted(producer_id)) if self._ids.size else 0
        return at if at < self._ids.size and self._ids[at] == producer_id else None

    @override
    def __getitem__(self, producer_id: int) -> Producer:
        if (producer := self._changed.get(producer_id)) is not None:
            return producer
        if (at := self._index(producer_id)) is None:
            raise KeyError(producer_id)
        return Producer.of(ProducerEntry(*self._rows[at].item()))

    def __setitem__(self, producer_id: int, producer: Producer) -> None:
        self._changed[producer_id] = producer

    @override
    def __contains__(self, producer_id: object) -> bool:
        return producer_id in self._changed or (isinstance(producer_id, int) and self._index(producer_id) is not None)

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(self.rows()["producer_id"].tolist())

    @override
    def __len__(self) -> int:
        return self._ids.size + sum(self._index(producer_id) is None for producer_id in self._changed)

    def __bool__(self) -> bool:
        return bool(self._ids.size or self._changed)

    def _unchanged(self) -> ProducerRows:
        changed = np.fromiter(self._changed, np.int64, len(self._changed))
        return self._rows[~np.isin(self._ids, changed)] if changed.size else self._rows

    def rows(self) -> ProducerRows:
        """Return all producers as rows of a snapshot, in ascending order of their ids."""
        if not self._changed:
            return self._rows
        changed = producer_state.rows_of(producer.entry(id) for id, producer in self._changed.items())
        rows = np.concatenate([self._unchanged(), changed])
        return rows[np.argsort(rows["producer_id"])]

    def active(self, *, now_ms: int, expiration_ms: int) -> ProducerTable:
        """Return the producers that are not expired."""
        rows = self._unchanged()
        return ProducerTable(
            rows[~_are_expired(rows, now_ms, expiration_ms)],
            {id: one for id, one in self._changed.items() if not one.is_expired(now_ms, expiration_ms)},
        )

    def in_transaction(self) -> list[tuple[int, Producer]]:
        """Return the producers with an open transaction and their ids, in ascending order."""
        rows = self._unchanged()
        rows = rows[rows["current_transaction_first_offset"] != NONE]
        known = {entry.producer_id: Producer.of(entry) for entry in (ProducerEntry(*row) for row in rows.tolist())}
        known |= {id: one for id, one in self._changed.items() if one.transaction_start != NONE}
        return sorted(known.items())


def _are_expired(rows: ProducerRows, now_ms: int, expiration_ms: int) -> npt.NDArray[np.bool_]:
    """Return which producers a broker drops, bool[producers]; see `Producer.is_expired`."""
    latest = now_ms - expiration_ms  # may be less than any 64-bit time
    idle = rows["current_transaction_first_offset"] < 0
    return idle & (rows["timestamp"] <= latest) if latest >= np.iinfo(np.int64).min else np.zeros_like(idle)


@dataclass
class Producers:
    """All producers of a partition at one offset.

    Attributes:
        by_id: read-only for callers.
        ongoing: open transactions in the order of their first offsets.
    """

    by_id: ProducerTable = field(default_factory=ProducerTable.empty)
    ongoing: list[ReplayedTransaction] = field(default_factory=list)

    @staticmethod
    def of_snapshot(rows: ProducerRows, *, now_ms: int, expiration_ms: int) -> Producers:
        """Return the producers of a snapshot that are not expired."""
        producers = Producers()
        producers.load(rows, now_ms=now_ms, expiration_ms=expiration_ms)
        return producers

    def load(self, rows: ProducerRows, *, now_ms: int, expiration_ms: int) -> None:
        """Load a snapshot, without expired entries."""
        assert not self.by_id, "a snapshot is where a load begins"
        if not rows.size:
            return
        rows = rows[~_are_expired(rows, now_ms, expiration_ms)]
        first_offsets = rows["current_transaction_first_offset"]
        is_open = first_offsets >= 0
        opened = zip(first_offsets[is_open].tolist(), rows["producer_id"][is_open].tolist(), strict=True)
        self.ongoing = sorted(ReplayedTransaction(*one) for one in opened)
        rows["current_transaction_first_offset"][~is_open] = NONE
        without_batch = rows["last_offset"] < 0
        for name, value in zip(("last_sequence", "last_offset", "offset_delta"), _NO_BATCH, strict=False):
            rows[name][without_batch] = value
        # If entries have the same id, the last one counts.
        _, last = np.unique(rows["producer_id"][::-1], return_index=True)
        self.by_id = ProducerTable(rows[rows.size - 1 - last])

    def rows(self) -> ProducerRows:
        """Return the entries of a snapshot, in ascending order of their ids."""
        return self.by_id.rows()

    def replay(
        self, batches: BatchRows, coordinator_epochs: Mapping[int, int] = MappingProxyType({})
    ) -> list[AbortedTransaction]:
        """Apply the next batches of the log.

        Args:
            batches: BATCH_ROW[batches].
            coordinator_epochs: coordinator epochs of markers, by their offset, where they matter.

        Returns:
            the transactions that these batches aborted.
        """
        relevant = np.flatnonzero(batches["producer_id"] >= 0)
        if not relevant.size:
            return []
        names = (
            *("producer_id", "producer_epoch", "base_offset", "last_offset", "base_sequence"),
            *("max_timestamp", "attributes", "control_type"),
        )
        control = is_control(batches)[relevant].tolist()
        rows = zip(control, *(batches[name][relevant].tolist() for name in names), strict=True)
        aborted = []
        unknown = Producer()
        for is_marker, id, epoch, base_offset, last_offset, sequence, timestamp, attributes, kind in rows:
            old = self.by_id.get(id, unknown)
            if is_marker:
                if kind not in (ControlType.ABORT, ControlType.COMMIT):
                    continue
                self.by_id[id] = old.with_marker(epoch, timestamp, coordinator_epochs.get(last_offset, NONE))
                if old.transaction_start != NONE:
                    done = CompletedTransaction(id, old.transaction_start, last_offset, kind == ControlType.ABORT)
                    ended = self.complete(done)
                    aborted += [ended] if ended else []
                continue
            delta = last_offset - base_offset
            last_sequence = NONE if sequence == NONE else (sequence + delta) & MAX_SEQUENCE
            batch = RememberedBatch(last_sequence, last_offset, delta, timestamp)
            new = old.with_batch(epoch, batch, is_transactional=bool(attributes & TRANSACTIONAL))
            self.by_id[id] = new
            if new.transaction_start != old.transaction_start:
                bisect.insort(self.ongoing, ReplayedTransaction(new.transaction_start, id))
        return aborted

    def complete(self, completed: CompletedTransaction) -> AbortedTransaction | None:
        """Close a transaction that a marker ended; return its entry for the transaction index if it was aborted."""
        self.close(completed)
        if not completed.is_aborted:
            return None
        # The start of another producer's earliest open transaction, else the offset after the marker.
        others = (one.first_offset for one in self.ongoing if one.producer_id != completed.producer_id)
        stable = next(others, completed.last_offset + 1)
        return AbortedTransaction(completed.producer_id, completed.first_offset, completed.last_offset, stable)

    def close(self, completed: CompletedTransaction) -> ReplayedTransaction | None:
        """Remove an open transaction and return it, or None if it was not open."""
        at = bisect.bisect_left(self.ongoing, completed.first_offset, key=lambda one: one.first_offset)
        is_open = at < len(self.ongoing) and self.ongoing[at].first_offset == completed.first_offset
        return self.ongoing.pop(at) if is_open else None

    def expire(self, *, now_ms: int, expiration_ms: int) -> None:
        """Drop expired producers."""
        self.by_id = self.by_id.active(now_ms=now_ms, expiration_ms=expiration_ms)

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the earliest open transaction, or None."""
        return self.ongoing[0].first_offset if self.ongoing else None


def newest_snapshot(
    log: LogView, end: int, *, now_ms: int, expiration_ms: int = DEFAULT_EXPIRATION_MS
) -> tuple[Producers, int]:
    """Load producer state from the newest readable snapshot of a log up to `end`.

    Returns:
        the state, and the offset from which batches must be replayed. Without a snapshot, no producers and the log
        start offset.
    """
    start = log.log_start_offset
    offsets = list(log.recovery.snapshots)
    for offset in reversed(offsets[bisect.bisect_right(offsets, start) : bisect.bisect_right(offsets, end)]):
        try:
            name = log.recovery.snapshots[offset].name
            rows = producer_state.decode_rows(read_file(log.fs, f"{log.path}/{name}"))
        except CorruptFileError:
            continue  # like a broker, use an older snapshot
        return Producers.of_snapshot(rows, now_ms=now_ms, expiration_ms=expiration_ms), offset
    return Producers(), start


def headers_from(log: LogView, offset: int, end: int | None = None) -> Iterator[BatchRows]:
    """Yield the headers to replay on top of a snapshot: all batches that end at an offset or above it.

    Args:
        log: damage in it is skipped.
        offset: see `newest_snapshot`.
        end: segments from there on are not read.
    """
    for segment in log.segments_from(offset):
        if end is not None and segment.base_offset >= end:
            return
        for batches in segment.headers(skip_gap):
            yield batches[batches["last_offset"] >= offset]
