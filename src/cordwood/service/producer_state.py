"""Who may append what next: the last batches, the epoch and the open transaction of each producer.

A producer with an id numbers its records. The log keeps its last five batches: a batch that is sent again is answered
with the offsets it has already, and a batch that does not follow the last one is refused. A transaction is open from a
producer's first transactional batch to its marker, and readers of committed data stop before the earliest open one.

An append is checked against a copy of the state (`ProducerAppend`), which counts only once the bytes are written.

Source: Kafka ProducerStateManager, ProducerAppendInfo, ProducerStateEntry. `storage.recovery.replay` replays headers of
a log that is only read, and refuses nothing.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from cordwood.errors import (
    IllegalArgumentError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from cordwood.record.batch import MAX_SEQUENCE, Batch
from cordwood.storage.formats.producer_state import ProducerEntry
from cordwood.types import NONE, ControlType

#: How many batches of a producer are remembered.
REMEMBERED_BATCHES = 5
#: The largest epoch of a producer.
MAX_EPOCH = 2**15 - 1
#: The transaction version of a marker that nobody told: what replication and loading know.
UNKNOWN_VERSION = -1


class AppendOrigin(Enum):
    """Who appends; see the table of checks in `ProducerAppend`."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"
    RAFT_LEADER = "raft_leader"


class RememberedBatch(NamedTuple):
    """What is kept of an appended batch."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """Of its first record; sequences go on at 0 after the largest."""
        return (self.last_sequence - self.offset_delta) % (MAX_SEQUENCE + 1)

    @property
    def first_offset(self) -> int:
        """Of its first record."""
        return self.last_offset - self.offset_delta


@dataclass(frozen=True, slots=True)
class Producer:
    """What is known of one producer.

    Attributes:
        epoch: its newest; NONE if nothing is known.
        batches: its last ones of that epoch, the oldest first.
        coordinator_epoch: of its newest marker.
        timestamp: of its newest batch or marker, milliseconds.
        transaction_start: first offset of its open transaction; NONE if none is open.
    """

    epoch: int = NONE
    batches: tuple[RememberedBatch, ...] = ()
    coordinator_epoch: int = NONE
    timestamp: int = NONE
    transaction_start: int = NONE

    @property
    def last_sequence(self) -> int:
        """Of its newest batch; NONE without one."""
        return self.batches[-1].last_sequence if self.batches else NONE

    @property
    def last_data_offset(self) -> int:
        """Of its newest batch; NONE without one."""
        return self.batches[-1].last_offset if self.batches else NONE

    def find_duplicate(self, batch: Batch) -> RememberedBatch | None:
        """The remembered batch of the same epoch, first and last sequence."""
        if batch.producer_epoch != self.epoch:
            return None
        sequences = batch.base_sequence, batch.last_sequence
        return next((one for one in self.batches if (one.first_sequence, one.last_sequence) == sequences), None)

    def in_epoch(self, epoch: int) -> Producer:
        """The state in an epoch: a new one begins without batches."""
        return self if epoch == self.epoch else replace(self, epoch=epoch, batches=())

    def with_batch(self, batch: Batch) -> Producer:
        """The state after a batch of data."""
        known = RememberedBatch(
            batch.last_sequence, batch.last_offset, batch.last_offset - batch.base_offset, batch.max_timestamp
        )
        before = self.batches[-REMEMBERED_BATCHES + 1 :] if batch.producer_epoch == self.epoch else ()
        return Producer(
            batch.producer_epoch,
            (*before, known),
            self.coordinator_epoch,
            batch.max_timestamp,
            self.transaction_start,
        )

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Whether it is to be forgotten."""
        return self.transaction_start == NONE and now_ms - self.timestamp >= expiration_ms


class CompletedTransaction(NamedTuple):
    """A transaction that a marker ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class _Transaction(NamedTuple):
    """A transaction that is open or just ended.

    Attributes:
        first_offset: of its data.
        producer_id: whose.
        is_placed: a batch was seen to begin at its first offset; a snapshot or a replay only names the offset.
        last_offset: of its marker; NONE while it is open.
    """

    first_offset: int
    producer_id: int
    is_placed: bool
    last_offset: int = NONE


@dataclass(frozen=True, slots=True)
class Marker:
    """What the record of a marker says."""

    kind: ControlType
    coordinator_epoch: int
    timestamp: int


@dataclass(slots=True)
class Verification:
    """The coordinator was asked whether a producer's transaction may write to this partition.

    Attributes:
        guard: a number that is never used twice; the append that was verified brings it.
        timestamp: when, milliseconds.
        lowest_sequence, epoch: the lowest sequence of the appends that asked, and their epoch.
        supports_epoch_bump: whether the producer uses transactions of version 2.
    """

    guard: int
    timestamp: int
    lowest_sequence: int
    epoch: int
    supports_epoch_bump: bool

    def widen(self, sequence: int, epoch: int) -> None:
        """Take note of another append that asks."""
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch:
            self.lowest_sequence = min(self.lowest_sequence, sequence)


#: A guard that no append needs: the transaction is open already.
NO_GUARD = 0
_guards = itertools.count(1)


@dataclass
class ProducerAppend:
    """The batches of one producer in one append, checked one after the other.

    Attributes:
        producer_id: whose.
        origin: who appends.
        current: the state before the append.
        updated: the state after the batches so far.
        verification: see `Verification`.
        started: first offsets of transactions that the append opens.
    """

    producer_id: int
    origin: AppendOrigin
    current: Producer
    verification: Verification | None = None
    updated: Producer = field(init=False)
    started: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.updated = self.current

    def add(self, batch: Batch) -> None:
        """Check a batch of data, and take it in."""
        self._check_epoch(batch.producer_epoch, batch.base_offset)
        if self.origin is AppendOrigin.CLIENT:
            self._check_sequence(batch)
        updated = self.updated.with_batch(batch)
        if updated.transaction_start != NONE and not batch.is_transactional:
            raise InvalidTxnStateError(
                f"Expected transactional write from producer {self.producer_id} at offset {batch.base_offset}"
            )
        if updated.transaction_start == NONE and batch.is_transactional:
            updated = replace(updated, transaction_start=batch.base_offset)
            self.started.append(batch.base_offset)
        self.updated = updated

    def end(self, batch: Batch, marker: Marker, transaction_version: int) -> CompletedTransaction | None:
        """Check a marker, and take it in; returns the transaction that it ends, if one is open."""
        if marker.kind not in (ControlType.ABORT, ControlType.COMMIT):
            raise IllegalArgumentError(f"a marker of kind {marker.kind.name} ends no transaction")
        self._check_marker_epoch(batch, transaction_version)
        old = self.updated
        if old.coordinator_epoch > marker.coordinator_epoch and self.origin is not AppendOrigin.REPLICATION:
            raise TransactionCoordinatorFencedError(
                f"Invalid coordinator epoch for producerId {self.producer_id} at offset {batch.base_offset}: "
                f"{marker.coordinator_epoch} (zombie), {old.coordinator_epoch} (current)"
            )
        completed = None
        if old.transaction_start != NONE:
            aborted = marker.kind is ControlType.ABORT
            completed = CompletedTransaction(self.producer_id, old.transaction_start, batch.base_offset, aborted)
        self.updated = replace(
            old.in_epoch(batch.producer_epoch),
            coordinator_epoch=marker.coordinator_epoch,
            timestamp=marker.timestamp,
            transaction_start=NONE,
        )
        return completed

    def _check_epoch(self, epoch: int, offset: int, *, above: bool = False) -> None:
        current = self.updated.epoch
        if (epoch <= current if above else epoch < current) and self.origin is not AppendOrigin.REPLICATION:
            raise InvalidProducerEpochError(
                f"Epoch of producer {self.producer_id} at offset {offset} is {epoch}, which is smaller than the last "
                f"seen epoch {current}"
            )

    def _check_marker_epoch(self, batch: Batch, transaction_version: int) -> None:
        """Under version 2 the coordinator raises the epoch with each marker, so that late data of the producer fails.

        An equal epoch is a repeated marker if no transaction is open, and possible where no higher epoch exists.
        """
        if transaction_version == UNKNOWN_VERSION and self.origin is not AppendOrigin.REPLICATION:
            raise IllegalArgumentError("the transaction version of a marker must be known, unless it is replicated")
        current, epoch = self.updated, batch.producer_epoch
        is_repeated = epoch == current.epoch and (current.transaction_start == NONE or epoch == MAX_EPOCH)
        self._check_epoch(epoch, batch.base_offset, above=transaction_version >= 2 and not is_repeated)

    def _check_sequence(self, batch: Batch) -> None:
        first, asked, current = batch.base_sequence, self.verification, self.current
        where = f"producer {self.producer_id} at offset {batch.base_offset} in partition"
        if asked is not None:
            if asked.supports_epoch_bump and first != 0 and not current.batches:
                raise OutOfOrderSequenceError(
                    f"Expected sequence 0 for transactions v2 idempotent {where}: {first} (incoming seq. number). "
                    "There was no previous producer state"
                )
            if first > asked.lowest_sequence:
                raise OutOfOrderSequenceError(
                    f"Out of order sequence number for {where}: {first} (incoming seq. number), "
                    f"{asked.lowest_sequence} (earliest seen sequence)"
                )
        if batch.producer_epoch != self.updated.epoch:
            if first != 0 and self.updated.epoch != NONE:
                raise OutOfOrderSequenceError(
                    f"Invalid sequence number for new epoch of {where}: {batch.producer_epoch} (request epoch), "
                    f"{first} (seq. number), {self.updated.epoch} (current producer epoch)"
                )
            return
        if current.epoch == NONE:
            return  # nothing is known of it: its batches may all have been deleted
        if self.updated.batches:
            last = self.updated.last_sequence
        else:
            last = current.last_sequence if batch.producer_epoch == current.epoch else NONE
        if first != last + 1 and not (first == 0 and last == MAX_SEQUENCE):
            raise OutOfOrderSequenceError(
                f"Out of order sequence number for {where}: {first} (incoming seq. number), "
                f"{last} (current end sequence number)"
            )


class ProducerState:
    """All producers of a log, and its transactions.

    Attributes:
        end_offset: the state covers the batches below.
        transaction_verification: `transaction.partition.verification.enable`.
    """

    def __init__(self, *, expiration_ms: int, transaction_verification: bool = False) -> None:
        self.end_offset = 0
        self.transaction_verification = transaction_verification
        self._expiration_ms = expiration_ms
        self._producers: dict[int, Producer] = {}
        self._verifications: dict[int, Verification] = {}
        #: Open transactions in the order of their first offsets.
        self._ongoing: list[_Transaction] = []
        #: Those whose marker may not be replicated yet, in the same order.
        self._unreplicated: list[_Transaction] = []

    @property
    def active(self) -> dict[int, Producer]:
        """All producers by id; not to be changed."""
        return self._producers

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known: no producer, and no transaction that waits for its replication."""
        return not self._producers and not self._unreplicated

    def of(self, producer_id: int) -> Producer | None:
        """What is known of a producer."""
        return self._producers.get(producer_id)

    def fresh(self) -> ProducerState:
        """An empty state with the same limits."""
        return ProducerState(expiration_ms=self._expiration_ms, transaction_verification=self.transaction_verification)

    # ---- an append ---------------------------------------------------------------------------------------------------

    def prepare(self, producer_id: int, origin: AppendOrigin) -> ProducerAppend:
        """The state of a producer, to check an append with."""
        current = self._producers.get(producer_id, _UNKNOWN)
        return ProducerAppend(producer_id, origin, current, self._verifications.get(producer_id))

    def update(self, append: ProducerAppend, *, is_replayed: bool = False) -> None:
        """Take in an append whose bytes are written; `is_replayed`: long ago."""
        self._producers[append.producer_id] = append.updated
        for offset in append.started:
            bisect.insort(self._ongoing, _Transaction(offset, append.producer_id, is_placed=not is_replayed))

    def last_stable_offset(self, completed: CompletedTransaction) -> int:
        """Where the earliest transaction of another producer starts, else behind the marker."""
        others = (one.first_offset for one in self._ongoing if one.producer_id != completed.producer_id)
        return next(others, completed.last_offset + 1)

    def complete(self, completed: CompletedTransaction) -> None:
        """A marker was written: the transaction is open no more, but unstable until its marker is replicated."""
        at = bisect.bisect_left(self._ongoing, completed.first_offset, key=lambda one: one.first_offset)
        if at == len(self._ongoing) or self._ongoing[at].first_offset != completed.first_offset:
            raise IllegalArgumentError(
                f"Attempted to complete a transaction which was not started: producer {completed.producer_id}, "
                f"first offset {completed.first_offset}"
            )
        ended = self._ongoing.pop(at)
        bisect.insort(self._unreplicated, ended._replace(last_offset=completed.last_offset))

    # ---- offsets -----------------------------------------------------------------------------------------------------

    def first_unstable(self) -> tuple[int, bool] | None:
        """Where the earliest transaction starts that is open, or whose marker is not replicated.

        Returns:
            its first offset, and whether it is known that a batch begins there; None without such a transaction.
        """
        first = min((*self._ongoing[:1], *self._unreplicated[:1]), default=None)
        return None if first is None else (first.first_offset, first.is_placed)

    def open_transactions(self) -> list[tuple[int, int]]:
        """(first offset, producer id) of the transactions of `first_unstable`, in order."""
        return sorted((one.first_offset, one.producer_id) for one in (*self._ongoing, *self._unreplicated))

    def on_high_watermark(self, offset: int) -> None:
        """The high watermark rose: markers below it are replicated."""
        if self._unreplicated:
            self._unreplicated = [one for one in self._unreplicated if one.last_offset >= offset]

    def on_log_start(self, offset: int) -> None:
        """The log start offset rose."""
        self.on_high_watermark(offset)
        self.end_offset = max(self.end_offset, offset)

    # ---- life --------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Forget everything but what is being verified."""
        self._producers = {}
        self._ongoing = []
        self._unreplicated = []

    def load(self, entries: Iterable[ProducerEntry], now_ms: int) -> None:
        """Take in a snapshot, without the entries that are expired."""
        for entry in entries:
            batches: tuple[RememberedBatch, ...] = ()
            if entry.last_offset >= 0:
                last = entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp
                batches = (RememberedBatch(*last),)
            start = entry.current_transaction_first_offset
            one = Producer(
                entry.producer_epoch, batches, entry.coordinator_epoch, entry.timestamp, start if start >= 0 else NONE
            )
            if one.is_expired(now_ms, self._expiration_ms):
                continue
            self._producers[entry.producer_id] = one
            if one.transaction_start != NONE:
                bisect.insort(self._ongoing, _Transaction(one.transaction_start, entry.producer_id, is_placed=False))

    def entries(self) -> Iterator[ProducerEntry]:
        """The entries of a snapshot, in ascending order of their ids."""
        for producer_id, one in sorted(self._producers.items()):
            last = one.batches[-1] if one.batches else RememberedBatch(NONE, NONE, 0, NONE)
            yield ProducerEntry(
                producer_id,
                one.epoch,
                last.last_sequence,
                last.last_offset,
                last.offset_delta,
                one.timestamp,
                one.coordinator_epoch,
                one.transaction_start,
            )

    def expire(self, now_ms: int) -> None:
        """Forget producers, and verifications, that are too old."""
        limit = self._expiration_ms
        self._producers = {id: one for id, one in self._producers.items() if not one.is_expired(now_ms, limit)}
        old = [id for id, one in self._verifications.items() if now_ms - one.timestamp >= limit]
        for producer_id in old:
            del self._verifications[producer_id]

    def has_late_transaction(self, now_ms: int, limit_ms: int) -> bool:
        """Whether the open transaction with the smallest first offset got its last batch longer ago than the limit."""
        producer = self._producers.get(self._ongoing[0].producer_id) if self._ongoing else None
        return producer is not None and producer.timestamp > 0 and now_ms - producer.timestamp > limit_ms

    # ---- verification ------------------------------------------------------------------------------------------------

    def start_verification(
        self, producer_id: int, sequence: int, epoch: int, now_ms: int, *, supports_epoch_bump: bool
    ) -> int:
        """A guard for the appends of a producer's transaction; NO_GUARD: its transaction is open already."""
        current = self._producers.get(producer_id)
        if current is not None:
            if epoch < current.epoch:
                raise InvalidProducerEpochError(
                    f"Epoch of producer {producer_id} is {epoch}, which is smaller than the last seen epoch "
                    f"{current.epoch}"
                )
            if current.transaction_start != NONE and epoch == current.epoch:
                return NO_GUARD
        asked = self._verifications.get(producer_id)
        if asked is None:
            asked = Verification(next(_guards), now_ms, sequence, epoch, supports_epoch_bump)
            self._verifications[producer_id] = asked
        else:
            asked.widen(sequence, epoch)
        return asked.guard

    def is_verified(self, producer_id: int, guard: int) -> bool:
        """Whether an append brings the guard that its producer was given."""
        asked = self._verifications.get(producer_id)
        return asked is not None and guard != NO_GUARD and guard == asked.guard

    def verification(self, producer_id: int) -> Verification | None:
        """The verification of a producer that was asked for and not used yet."""
        return self._verifications.get(producer_id)

    def end_verification(self, producer_id: int) -> None:
        """A batch of the transaction was checked, so it needs no verification any more."""
        self._verifications.pop(producer_id, None)


_UNKNOWN = Producer()
