"""Producer state, as a broker keeps it: the newest snapshot, and the batches after it.

It decides how a producer may continue, and what a clean must keep for it: its epoch, its newest data batch, the start
of its open transaction, and the time of its last batch or marker.

Source: Kafka ProducerStateManager, ProducerAppendInfo (origin REPLICATION: nothing is refused). `storage.check` has a
replay of its own, on purpose: see the table in ARCHITECTURE.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from cordwood.errors import CorruptFileError
from cordwood.kernels.layout import TRANSACTIONAL, BatchRows
from cordwood.record.headers import is_control
from cordwood.storage.formats import producer_state
from cordwood.storage.formats.producer_state import ProducerEntry
from cordwood.storage.formats.transaction_index import AbortedTransaction
from cordwood.storage.log.files import read_file
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap, read_headers
from cordwood.types import NONE, ControlType

#: `producer.id.expiration.ms`
DEFAULT_EXPIRATION_MS = 86_400_000
_SEQUENCE_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Producer:
    """What is known of one producer.

    Attributes:
        epoch: its newest.
        last_offset: of its newest data batch of that epoch; NONE without one.
        timestamp: of its newest batch or marker, milliseconds.
        transaction_start: first offset of its open transaction; NONE if none is open.
        last_sequence, offset_delta: of its newest data batch; NONE and 0 without one.
        coordinator_epoch: of its newest marker, where those that replayed it said so.
    """

    epoch: int
    last_offset: int = NONE
    timestamp: int = NONE
    transaction_start: int = NONE
    last_sequence: int = NONE
    offset_delta: int = 0
    coordinator_epoch: int = NONE

    def expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Whether a broker would have removed it by now."""
        return self.transaction_start == NONE and now_ms - self.timestamp >= expiration_ms


@dataclass
class Producers:
    """All producers of a partition at one offset."""

    by_id: dict[int, Producer] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Iterable[ProducerEntry], *, now_ms: int, expiration_ms: int) -> Producers:
        """The producers of a snapshot that are not expired."""
        known = {
            entry.producer_id: Producer(
                entry.producer_epoch,
                entry.last_offset,
                entry.timestamp,
                entry.current_transaction_first_offset,
                entry.last_sequence,
                entry.offset_delta,
                entry.coordinator_epoch,
            )
            for entry in entries
        }
        return cls({id: one for id, one in known.items() if not one.expired(now_ms, expiration_ms)})

    def entries(self) -> tuple[ProducerEntry, ...]:
        """The entries of a snapshot of them."""
        return tuple(
            ProducerEntry(
                id,
                one.epoch,
                one.last_sequence,
                one.last_offset,
                one.offset_delta,
                one.timestamp,
                one.coordinator_epoch,
                one.transaction_start,
            )
            for id, one in self.by_id.items()
        )

    def replay(
        self, batches: BatchRows, coordinator_epochs: Mapping[int, int] = MappingProxyType({})
    ) -> list[AbortedTransaction]:
        """Apply the next batches of the log.

        Args:
            batches: BATCH_ROW[batches].
            coordinator_epochs: of markers, by their offset, where they matter.

        Returns:
            The transactions that were aborted meanwhile.
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
        for is_marker, id, epoch, base_offset, last_offset, sequence, timestamp, attributes, kind in rows:
            old = self.by_id.get(id, Producer(epoch))
            if is_marker:
                if kind in (ControlType.ABORT, ControlType.COMMIT):
                    self._end(id, old, epoch, timestamp, coordinator_epochs.get(last_offset, NONE))
                    if kind == ControlType.ABORT and old.transaction_start != NONE:
                        unstable = self.first_unstable_offset
                        stable = last_offset + 1 if unstable is None else unstable
                        aborted.append(AbortedTransaction(id, old.transaction_start, last_offset, stable))
                continue
            start = old.transaction_start
            if start == NONE and attributes & TRANSACTIONAL:
                start = base_offset
            delta = last_offset - base_offset
            # Sequences go on at 0 after the largest.
            last_sequence = (sequence + delta) & _SEQUENCE_MAX
            self.by_id[id] = Producer(epoch, last_offset, timestamp, start, last_sequence, delta, old.coordinator_epoch)
        return aborted

    def _end(self, id: int, old: Producer, epoch: int, timestamp: int, coordinator_epoch: int) -> None:
        if old.epoch != epoch:
            old = Producer(epoch)  # a new epoch starts without batches
        self.by_id[id] = replace(old, timestamp=timestamp, transaction_start=NONE, coordinator_epoch=coordinator_epoch)

    def expire(self, *, now_ms: int, expiration_ms: int) -> None:
        """Remove expired producers."""
        self.by_id = {id: one for id, one in self.by_id.items() if not one.expired(now_ms, expiration_ms)}

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the earliest open transaction starts; None if none is open."""
        return min((p.transaction_start for p in self.by_id.values() if p.transaction_start != NONE), default=None)


def newest_snapshot(
    log: LogView, end: int, *, now_ms: int, expiration_ms: int = DEFAULT_EXPIRATION_MS
) -> tuple[Producers, int]:
    """Producer state in the newest readable snapshot of a log up to `end`.

    Returns:
        the state, and its offset: batches from there on are to be replayed. Without a snapshot, no producers and the
        log start offset.
    """
    start = log.log_start_offset
    for offset, info in sorted(log.recovery.snapshots.items(), reverse=True):
        if start < offset <= end:
            try:
                entries = producer_state.decode(read_file(log.fs, f"{log.path}/{info.name}"))
            except CorruptFileError:
                continue  # as a broker does: an older snapshot will do
            return Producers.of(entries, now_ms=now_ms, expiration_ms=expiration_ms), offset
    return Producers(), start


def headers_from(log: LogView, offset: int, end: int | None = None) -> Iterator[BatchRows]:
    """The headers to be replayed on a snapshot: of batches that end at an offset or above it.

    Args:
        log: damage in it is skipped.
        offset: see `newest_snapshot`.
        end: segments from there on are not read.
    """
    for segment in log.segments_from(offset):
        if end is not None and segment.base_offset >= end:
            return
        with segment.open() as file:
            for item in read_headers(file, base_offset=segment.base_offset):
                if not isinstance(item, Gap):
                    yield item[item["last_offset"] >= offset]
