"""Open transactions, from their data in logs and their coordinators' records in `__transaction_state`.

A transaction is open in a log from its first batch to its marker. The coordinator's record adds the transactional id,
the timeout, and the partitions that will get markers. Both sources together show the outlook:

    open        the coordinator will end it, or abort it after its timeout
    long        it is open for longer than its timeout: the coordinator should have aborted it
    ending      commit or abort is decided; the coordinator has yet to write some markers
    hanging     it is open in a log, and no coordinator will ever write a marker there
    unknown     it is open in a log, and the available part of `__transaction_state` does not show its outlook

A hanging transaction blocks readers of committed data and the cleaner until an operator aborts it.

Source: Kafka TransactionsCommand find-hanging, which compares the same two sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from cordwood.common.errors import DataError
from cordwood.common.text import Presentable, number
from cordwood.common.types import NONE, TopicPartition
from cordwood.record.batch import Marker
from cordwood.storage.formats.messages.coordinator_records import TransactionStatus
from cordwood.storage.formats.messages.topics import DecodedRecord
from cordwood.storage.node.groups import Coverage


class Outlook(StrEnum):
    """Expected end of a transaction, from best to worst."""

    OPEN = "open"
    ENDING = "ending"
    LONG = "long"
    UNKNOWN = "unknown"
    HANGING = "hanging"


@dataclass(frozen=True, slots=True)
class OpenInLog:
    """A transaction that is open in one log.

    Attributes:
        first_offset: first offset of the transaction's first batch.
        last_offset: last offset of its last batch; None if the transaction is known only from a producer snapshot.
        start_timestamp_ms, last_timestamp_ms: timestamps of these batches; None without timestamps.
        last_stable_offset: last stable offset of the log: readers of committed data read only below it.
        is_first: True if this transaction is the log's first open one, which holds the last stable offset back.
        first_uncleanable_offset: offset from which on this transaction keeps the cleaner from cleaning; None if
            something else does, or if the cleaner does not clean the partition.
        broker: name of the broker whose replica was read; empty if unknown.
    """

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    first_offset: int
    last_offset: int | None
    start_timestamp_ms: int | None
    last_timestamp_ms: int | None
    last_stable_offset: int
    log_end_offset: int
    is_first: bool
    first_uncleanable_offset: int | None = None
    outlook: Outlook = Outlook.UNKNOWN
    broker: str = ""


@dataclass(frozen=True, slots=True)
class TransactionalId:
    """A coordinator's state of a transactional id.

    Attributes:
        coordinator: partition of `__transaction_state` that contains the record.
        status: status of the transaction; an unknown status is an int.
        start_timestamp_ms: time when the transaction began; None without a transaction.
        partitions: partitions of the transaction that have no marker yet.
        problem: why the record is only partly decoded, such as its later version; else empty.
    """

    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    status: TransactionStatus | int
    timeout_ms: int
    start_timestamp_ms: int | None
    update_timestamp_ms: int
    partitions: tuple[TopicPartition, ...]
    problem: str = ""

    @property
    def state(self) -> str:
        """Kafka's name of the status."""
        return self.status.label if isinstance(self.status, TransactionStatus) else f"unknown({self.status})"

    @property
    def is_open(self) -> bool:
        """Whether the transaction has not ended."""
        return self.status in _OPEN

    @property
    def is_understood(self) -> bool:
        """Whether the record is fully decoded, so that a partition missing in it is not part of the transaction."""
        return not self.problem and isinstance(self.status, TransactionStatus)


_OPEN = {
    TransactionStatus.ONGOING: Outlook.OPEN,
    TransactionStatus.PREPARE_EPOCH_FENCE: Outlook.OPEN,
    TransactionStatus.PREPARE_COMMIT: Outlook.ENDING,
    TransactionStatus.PREPARE_ABORT: Outlook.ENDING,
}


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open in a log, or for its coordinator.

    Attributes:
        outlook: the worst outlook in any of its logs; without open logs, the coordinator's.
        known: the coordinator's state; None if the given partitions of `__transaction_state` do not contain it.
        start_timestamp_ms: start by the coordinator's record, or else by the first batch; None if both lack it.
        age_ms: time since the start, in milliseconds; None without a start, or with one in the future.
        logs: the given logs with this transaction open.
    """

    producer_id: int
    producer_epoch: int
    outlook: Outlook
    known: TransactionalId | None
    start_timestamp_ms: int | None
    age_ms: int | None
    logs: tuple[OpenInLog, ...]

    def __str__(self) -> str:
        name = f"producer {self.producer_id}" if self.known is None else self.known.transactional_id
        return f"{name}: {self.outlook}, {number(len(self.logs), 'log')}"


@dataclass(frozen=True, slots=True)
class TransactionListing(Presentable):
    """The transactions in the directories of one or more brokers.

    Attributes:
        transactions: open transactions, worst outlook first.
        transactional_ids: all transactional ids in the coordinators' records, by name.
        state_topic: the partitions of `__transaction_state` that were read.
        logs: number of logs that were read.
        problems: errors for unreadable records and logs.
        sampled: logs without a transaction in a sample of their headers; their other headers were not read.
        brokers: names of the brokers; an unknown name is empty.
    """

    now_ms: int
    transactions: tuple[OpenTransaction, ...]
    transactional_ids: tuple[TransactionalId, ...]
    state_topic: Coverage
    logs: int
    problems: tuple[DataError | OSError, ...] = ()
    sampled: tuple[TopicPartition, ...] = ()
    brokers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self.transactions))

    def with_outlook(self, outlook: Outlook) -> tuple[OpenTransaction, ...]:
        """Return the transactions with this outlook."""
        return tuple(one for one in self.transactions if one.outlook is outlook)


def transactional_id(coordinator: int, record: DecodedRecord) -> TransactionalId | None:
    """Return the state in a record of `__transaction_state`, or None if the record deletes the transactional id."""
    if record.type != "TransactionLog" or record.key is None or record.value is None:
        return None
    value, status = record.value, record.value["transaction_status"]
    started = value["transaction_start_timestamp_ms"]
    return TransactionalId(
        record.key["transactional_id"],
        coordinator,
        value["producer_id"],
        value["producer_epoch"],
        TransactionStatus(status) if 0 <= status <= max(TransactionStatus) else status,
        value["transaction_timeout_ms"],
        None if started == NONE else started,
        value["transaction_last_update_timestamp_ms"],
        tuple(
            sorted(
                TopicPartition(one["topic"], partition)
                for one in value["transaction_partitions"] or ()
                for partition in one["partition_ids"]
            )
        ),
        record.problem,
    )


def partition_of(transactional_id: str, partition_count: int) -> int:
    """Return the partition of `__transaction_state` that a transactional id belongs to.

    Source: Kafka TransactionStateManager.partitionFor: Java's hash of a string, of UTF-16 units, as a positive number.
    """
    found = 0
    for unit in memoryview(transactional_id.encode("utf-16-le", "surrogatepass")).cast("H"):
        found = (31 * found + unit) & 0xFFFFFFFF
    signed = found - (1 << 32) if found >> 31 else found
    return (0 if signed == -(1 << 31) else abs(signed)) % partition_count


def open_transactions(
    logs: Iterable[OpenInLog], known: Iterable[TransactionalId], *, is_whole: bool, is_read: bool, now_ms: int
) -> Iterator[OpenTransaction]:
    """Match transactions that are open in logs with the coordinators' state.

    Args:
        is_whole: `known` is from all partitions of `__transaction_state`.
        is_read: all records of the given partitions could be read.

    Yields:
        open transactions, worst outlook first; among equal ones the oldest first.
    """
    by_producer: dict[int, list[OpenInLog]] = {}
    for log in logs:
        by_producer.setdefault(log.producer_id, []).append(log)
    by_id: Mapping[int, TransactionalId] = {one.producer_id: one for one in known}
    for one in by_id.values():
        if one.is_open:
            by_producer.setdefault(one.producer_id, [])
    found = [_transaction(id, some, by_id.get(id), is_whole, is_read, now_ms) for id, some in by_producer.items()]
    order = list(Outlook)
    yield from sorted(found, key=lambda one: (-order.index(one.outlook), -(one.age_ms or 0), one.producer_id))


def _transaction(
    producer_id: int,
    logs: Sequence[OpenInLog],
    known: TransactionalId | None,
    is_whole: bool,
    is_read: bool,
    now_ms: int,
) -> OpenTransaction:
    is_open = known is not None and known.is_open
    started = known.start_timestamp_ms if is_open and known is not None else None
    if started is None:
        started = min((one.start_timestamp_ms for one in logs if one.start_timestamp_ms is not None), default=None)
    age = None if started is None or started > now_ms else now_ms - started
    own = Outlook.UNKNOWN
    if known is not None and is_open:
        own = _OPEN[TransactionStatus(known.status)]
        if own is Outlook.OPEN and age is not None and age > known.timeout_ms:
            own = Outlook.LONG
    # A coordinator writes no marker to a partition that is missing in its record. An operator may abort a transaction
    # that is reported as hanging; so report none as hanging if a record could not be read.
    is_certain = is_read and (is_whole if known is None else known.is_understood)
    elsewhere = Outlook.HANGING if is_certain else Outlook.UNKNOWN
    includes = frozenset(() if known is None else known.partitions)
    judged = [replace(one, outlook=own if one.partition in includes else elsewhere) for one in logs]
    order = list(Outlook)
    epoch = known.producer_epoch if known is not None else max(one.producer_epoch for one in logs)
    return OpenTransaction(
        producer_id,
        epoch,
        max((one.outlook for one in judged), key=order.index, default=own),
        known,
        started,
        age,
        tuple(sorted(judged, key=lambda one: one.partition)),
    )


# ---- results of `abort-transaction` ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """The end of a hanging transaction in one partition.

    Attributes:
        open_in_log: the transaction before its end.
        known: the coordinator's state of the producer; None if no coordinator has any.
        batches, records, size_bytes: totals of the transaction's data in the log.
        marker: the marker to append.
        leader_epoch: leader epoch of the marker; NONE if the log has none.
        next_stable_offset: last stable offset of the log once the marker is appended.
        replicas: directories of the partition that get the marker.
        done_before: directories that already have the marker, from an interrupted run.
    """

    open_in_log: OpenInLog
    known: TransactionalId | None
    batches: int
    records: int
    size_bytes: int
    marker: Marker
    leader_epoch: int
    next_stable_offset: int
    replicas: tuple[str, ...]
    done_before: tuple[str, ...] = ()

    def __str__(self) -> str:
        return (
            f"{self.open_in_log.partition}: the transaction of producer {self.marker.producer_id} from offset "
            + str(self.open_in_log.first_offset)
        )


@dataclass(frozen=True, slots=True)
class AbortResult(Presentable):
    """The transactions that `abort-transaction` aborted, or would abort.

    Attributes:
        done: True if the markers are written and durable; False if nothing was changed.
    """

    ends: tuple[TransactionEnd, ...]
    done: bool

    def __str__(self) -> str:
        return f"{number(len(self.ends), 'transaction')} {'aborted' if self.done else 'could be aborted'}"
