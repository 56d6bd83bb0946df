"""The last batches, the epoch and the open transaction of each producer: its next batches are checked against them.

A producer with an id numbers its records. The log remembers each producer's last five batches: the answer to a resent
batch is the offsets of its stored copy, and a batch that does not follow the last one is refused. A transaction is open
from a producer's first transactional batch to its marker, and readers of committed data stop before the earliest open
transaction.

`storage.recovery.replay` defines how a batch changes its producer's state; this module adds the refusals of a live log.
An append is checked against a copy of the state (`ProducerAppend`), which replaces the state only once the bytes are
written.

Source: Kafka ProducerStateManager, ProducerAppendInfo.
"""

from __future__ import annotations

import bisect
import itertools
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from cordwood.common.errors import (
    CorruptFileError,
    DataError,
    IllegalArgumentError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from cordwood.common.types import NONE, ControlType, override
from cordwood.fs.base import LocalFileSystem
from cordwood.record.batch import MAX_SEQUENCE, Batch, control_type, coordinator_epoch
from cordwood.record.record import Record
from cordwood.storage.formats import producer_state
from cordwood.storage.formats.filenames import FileKind, Temporary, offset_name
from cordwood.storage.formats.transaction_index import AbortedTransaction
from cordwood.storage.log.files import read_file
from cordwood.storage.log.loaded import strays
from cordwood.storage.recovery.replay import (
    CompletedTransaction,
    Producer,
    Producers,
    ProducerTable,
    RememberedBatch,
    ReplayedTransaction,
)

#: The largest epoch of a producer.
MAX_EPOCH = 2**15 - 1
#: The transaction version of a marker if it is unknown, as in replication and loading.
UNKNOWN_VERSION = -1


class AppendOrigin(Enum):
    """Who appends; see the table of checks in `ProducerAppend`."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"
    RAFT_LEADER = "raft_leader"


@dataclass(frozen=True, slots=True)
class DecodedMarker:
    """A decoded transaction marker."""

    kind: ControlType
    coordinator_epoch: int
    timestamp: int


def read_marker(records: Sequence[Record]) -> DecodedMarker | None:
    """Decode the marker in a control batch; return None if a clean has emptied the batch.

    Raises:
        InvalidRecordError: the first record is not a valid marker.
    """
    if not records:
        return None
    record = records[0]
    try:
        kind = control_type(record.key)
        ends = kind in (ControlType.ABORT, ControlType.COMMIT)
        return DecodedMarker(kind, coordinator_epoch(record.value) if ends else 0, record.timestamp)
    except DataError as error:
        raise InvalidRecordError(str(error)) from error


@dataclass(slots=True)
class Verification:
    """A request that asks the coordinator whether a producer's transaction may write to this partition.

    Attributes:
        guard: a number that is never used twice; the verified append passes it.
        lowest_sequence, epoch: lowest sequence of the appends that requested verification, and their epoch.
        supports_epoch_bump: whether the producer uses transactions of version 2.
    """

    guard: int
    timestamp: int
    lowest_sequence: int
    epoch: int
    supports_epoch_bump: bool

    def widen(self, sequence: int, epoch: int) -> None:
        """Include another append that requests verification."""
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch:
            self.lowest_sequence = min(self.lowest_sequence, sequence)


#: The guard of appends that need no verification, because the transaction is open already.
NO_GUARD = 0
_guards = itertools.count(1)


@dataclass
class ProducerAppend:
    """The batches of one producer in one append, checked one after the other.

    Attributes:
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
        """Check a batch of data, and apply it."""
        self._check_epoch(batch.producer_epoch, batch.base_offset)
        if self.origin is AppendOrigin.CLIENT:
            self._check_sequence(batch)
        old, is_transactional = self.updated, batch.is_transactional
        if old.transaction_start != NONE and not is_transactional:
            raise InvalidTxnStateError(
                f"Expected transactional write from producer {self.producer_id} at offset {batch.base_offset}"
            )
        delta = batch.last_offset - batch.base_offset
        known = RememberedBatch(batch.last_sequence, batch.last_offset, delta, batch.max_timestamp)
        self.updated = old.with_batch(batch.producer_epoch, known, is_transactional=is_transactional)
        if self.updated.transaction_start != old.transaction_start:
            self.started.append(batch.base_offset)

    def end(self, batch: Batch, marker: DecodedMarker, transaction_version: int) -> CompletedTransaction | None:
        """Check a marker, and apply it; return the transaction that it ends, or None if no transaction is open."""
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
        self.updated = old.with_marker(batch.producer_epoch, marker.timestamp, marker.coordinator_epoch)
        return completed

    def _check_epoch(self, epoch: int, offset: int, *, above: bool = False) -> None:
        current = self.updated.epoch
        if (epoch <= current if above else epoch < current) and self.origin is not AppendOrigin.REPLICATION:
            raise InvalidProducerEpochError(
                f"Epoch of producer {self.producer_id} at offset {offset} is {epoch}, which is smaller than the last "
                f"seen epoch {current}"
            )

    def _check_marker_epoch(self, batch: Batch, transaction_version: int) -> None:
        """Check the epoch of a marker.

        Under transactions version 2 the coordinator raises the epoch with each marker, so that late data of the
        producer fails.

        An equal epoch is valid in two cases: a repeated marker, as no transaction is open; or no higher epoch exists.
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
            return  # an unknown producer: its batches may all have been deleted
        if self.updated.batches:
            last = self.updated.last_sequence
        else:
            last = current.last_sequence if batch.producer_epoch == current.epoch else NONE
        if first != last + 1 and not (first == 0 and last == MAX_SEQUENCE):
            raise OutOfOrderSequenceError(
                f"Out of order sequence number for {where}: {first} (incoming seq. number), "
                f"{last} (current end sequence number)"
            )


class ProducerState(Producers):
    """All producers of a live log, and its transactions.

    Attributes:
        end_offset: the state covers all batches below this offset.
    """

    def __init__(self, *, expiration_ms: int, transaction_verification: bool = False) -> None:
        super().__init__()
        self.end_offset = 0
        self.expiration_ms = expiration_ms
        self.transaction_verification = transaction_verification
        self._verifications: dict[int, Verification] = {}
        #: Transactions whose marker may not be replicated yet, in the order of their first offsets.
        self._unreplicated: list[ReplayedTransaction] = []

    @property
    def is_empty(self) -> bool:
        """Whether there is no producer, and no transaction whose marker still has to be replicated."""
        return not self.by_id and not self._unreplicated

    def of(self, producer_id: int) -> Producer | None:
        """Return the state of a producer; None if it is unknown."""
        return self.by_id.get(producer_id)

    def fresh(self) -> ProducerState:
        """Return an empty state with the same limits."""
        return ProducerState(expiration_ms=self.expiration_ms, transaction_verification=self.transaction_verification)

    # ---- an append ---------------------------------------------------------------------------------------------------

    def prepare(self, producer_id: int, origin: AppendOrigin) -> ProducerAppend:
        """Return a copy of a producer's state for the checks of an append."""
        current = self.by_id.get(producer_id, _UNKNOWN)
        return ProducerAppend(producer_id, origin, current, self._verifications.get(producer_id))

    def check(
        self,
        appends: dict[int, ProducerAppend],
        batch: Batch,
        marker: DecodedMarker | None,
        origin: AppendOrigin,
        transaction_version: int = UNKNOWN_VERSION,
    ) -> CompletedTransaction | None:
        """Check a batch of a producer, and apply it to the producer's append; return the transaction that it ends.

        Args:
            appends: appends by producer; a missing one is added.
            marker: decoded marker of a control batch that is not empty.
        """
        append = appends.get(batch.producer_id)
        if append is None:
            append = appends[batch.producer_id] = self.prepare(batch.producer_id, origin)
        completed = None
        if not batch.is_control:
            append.add(batch)
        elif marker is not None:
            completed = append.end(batch, marker, transaction_version)
        if batch.is_transactional:
            asked = self.verification(batch.producer_id)
            # Under transactions version 2 the next transaction may have requested verification before this marker.
            if asked and not (asked.supports_epoch_bump and batch.is_control and batch.producer_epoch == asked.epoch):
                self.end_verification(batch.producer_id)
        return completed

    def update(self, append: ProducerAppend, *, is_replayed: bool = False) -> None:
        """Apply an append whose bytes are written; `is_replayed`: they were written before the log was loaded."""
        self.by_id[append.producer_id] = append.updated
        for offset in append.started:
            bisect.insort(self.ongoing, ReplayedTransaction(offset, append.producer_id, is_placed=not is_replayed))

    def take(self, batches: Iterable[tuple[Batch, DecodedMarker | None]]) -> Iterator[AbortedTransaction]:
        """Apply stored batches of producers; yield the transactions that they abort.

        Args:
            batches: each with its decoded marker or None.
        """
        for batch, marker in batches:
            appends: dict[int, ProducerAppend] = {}
            completed = self.check(appends, batch, marker, AppendOrigin.REPLICATION)
            self.update(appends[batch.producer_id], is_replayed=True)
            aborted = self.complete(completed) if completed is not None else None
            if aborted is not None:
                yield aborted

    @override
    def close(self, completed: CompletedTransaction) -> ReplayedTransaction:
        ended = super().close(completed)
        if ended is None:
            raise IllegalArgumentError(
                f"Attempted to complete a transaction which was not started: producer {completed.producer_id}, "
                f"first offset {completed.first_offset}"
            )
        # The transaction is unstable until its marker is replicated.
        bisect.insort(self._unreplicated, ended._replace(last_offset=completed.last_offset))
        return ended

    # ---- offsets -----------------------------------------------------------------------------------------------------

    def first_unstable(self) -> tuple[int, bool] | None:
        """Find the earliest transaction that is open, or whose marker is not replicated.

        Returns:
            its first offset, and whether a batch certainly begins there; None without such a transaction.
        """
        if not (self.ongoing or self._unreplicated):
            return None
        first = min((*self.ongoing[:1], *self._unreplicated[:1]))
        return first.first_offset, first.is_placed

    def open_transactions(self) -> list[tuple[int, int]]:
        """Return (first offset, producer id) of the transactions of `first_unstable`, in order."""
        return sorted((one.first_offset, one.producer_id) for one in (*self.ongoing, *self._unreplicated))

    def on_high_watermark(self, offset: int) -> None:
        """Drop transactions whose markers are below the new high watermark, and so are replicated."""
        if self._unreplicated:
            self._unreplicated = [one for one in self._unreplicated if one.last_offset >= offset]

    def on_log_start(self, offset: int) -> None:
        """Follow a rise of the log start offset."""
        self.on_high_watermark(offset)
        self.end_offset = max(self.end_offset, offset)

    # ---- life --------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Forget all producers and transactions, but not verifications in progress."""
        self.by_id = ProducerTable.empty()
        self.ongoing = []
        self._unreplicated = []

    def expire_all(self, now_ms: int) -> None:
        """Forget producers and verifications that are too old."""
        self.expire(now_ms=now_ms, expiration_ms=self.expiration_ms)
        old = [id for id, one in self._verifications.items() if now_ms - one.timestamp >= self.expiration_ms]
        for producer_id in old:
            del self._verifications[producer_id]

    def has_late_transaction(self, now_ms: int, limit_ms: int) -> bool:
        """Return whether the earliest open transaction got its last batch longer ago than the limit."""
        producer = self.by_id.get(self.ongoing[0].producer_id) if self.ongoing else None
        return producer is not None and producer.timestamp > 0 and now_ms - producer.timestamp > limit_ms

    # ---- verification ------------------------------------------------------------------------------------------------

    def start_verification(
        self, producer_id: int, sequence: int, epoch: int, now_ms: int, *, supports_epoch_bump: bool
    ) -> int:
        """Return a guard for the appends of a producer's transaction; NO_GUARD if the transaction is open already."""
        current = self.by_id.get(producer_id)
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
        """Return whether an append passes the guard of its producer."""
        asked = self._verifications.get(producer_id)
        return asked is not None and guard != NO_GUARD and guard == asked.guard

    def verification(self, producer_id: int) -> Verification | None:
        """Return the requested but unused verification of a producer."""
        return self._verifications.get(producer_id)

    def end_verification(self, producer_id: int) -> None:
        """Drop the verification, because a batch of the transaction has passed the checks."""
        self._verifications.pop(producer_id, None)


_UNKNOWN = Producer()


# ---- snapshots -------------------------------------------------------------------------------------------------------


class ProducerSnapshots:
    """A producer state that is saved to files, and loaded from them."""

    def __init__(self, fs: LocalFileSystem, directory: str, state: ProducerState, offsets: list[int]) -> None:
        """Keep `offsets`: the offsets of the directory's snapshots, ascending."""
        self.state = state
        self.directory = directory
        self._fs = fs
        self._offsets = offsets
        self._last_offset = 0

    def fresh(self) -> ProducerSnapshots:
        """Return an empty state for the same files; both objects share the list of snapshots."""
        return ProducerSnapshots(self._fs, self.directory, self.state.fresh(), self._offsets)

    @property
    def latest_offset(self) -> int | None:
        """Offset of the newest snapshot."""
        return self._offsets[-1] if self._offsets else None

    def _forget(self, offset: int) -> bool:
        """Drop an offset from the list; return whether it had a snapshot."""
        at = bisect_left(self._offsets, offset)
        is_known = self._offsets[at : at + 1] == [offset]
        if is_known:
            del self._offsets[at]
        return is_known

    def path(self, offset: int) -> str:
        """Return the path for the snapshot of an offset."""
        return f"{self.directory}/{offset_name(offset, FileKind.PRODUCER_SNAPSHOT)}"

    def take(self, *, sync: bool = True) -> str | None:
        """Write a snapshot and return its path; None if the state covers no more than the last snapshot."""
        offset = self.state.end_offset
        if offset <= self._last_offset:
            return None
        path = self.path(offset)
        with self._fs.create(path, exclusive=False) as file:
            file.write(0, producer_state.encode_rows(self.state.rows()))
            if sync:
                file.sync()
        if sync:
            self._fs.sync_directory(self.directory)
        self._forget(offset)
        insort(self._offsets, offset)
        self._last_offset = offset
        return path

    def delete(self, offset: int) -> None:
        """Remove a snapshot, if it exists."""
        self._forget(offset)
        if self._fs.exists(self.path(offset)):
            self._fs.unlink(self.path(offset))

    def mark_deleted(self, offset: int) -> str | None:
        """Rename a snapshot, to be removed later; return its new path."""
        if not self._forget(offset):
            return None
        target = self.path(offset) + Temporary.DELETED
        try:
            self._fs.rename(self.path(offset), target)
        except FileNotFoundError:
            return None
        return target

    def remove_strays(self, bases: Iterable[int]) -> None:
        """Remove the `strays` of a log whose segments have these base offsets."""
        for offset in strays(self._offsets, bases):
            self.delete(offset)

    def truncate_and_reload(self, log_start_offset: int, log_end_offset: int, now_ms: int) -> None:
        """Remove the snapshots outside of (log start, log end], and load the newest readable one.

        A state that already ends at the log end is kept instead.
        """
        offsets = self._offsets
        before, behind = bisect_right(offsets, log_start_offset), bisect_right(offsets, log_end_offset)
        for offset in (*offsets[:before], *offsets[max(before, behind) :]):
            self.delete(offset)
        if self.state.end_offset == log_end_offset:
            self.on_log_start(log_start_offset)
            return
        self.state.clear()
        while (latest := self.latest_offset) is not None:
            try:
                rows = producer_state.decode_rows(read_file(self._fs, self.path(latest)))
            except CorruptFileError:
                self.delete(latest)
                continue
            self.state.load(rows, now_ms=now_ms, expiration_ms=self.state.expiration_ms)
            self._last_offset = self.state.end_offset = latest
            return
        self._last_offset = self.state.end_offset = log_start_offset

    def on_log_start(self, offset: int) -> None:
        """Follow a rise of the log start offset."""
        self.state.on_log_start(offset)
        latest = self.latest_offset
        self._last_offset = offset if latest is None else latest

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Clear the state, and remove all snapshots."""
        self.state.clear()
        for one in tuple(self._offsets):
            self.delete(one)
        self._last_offset = 0
        self.state.end_offset = offset
