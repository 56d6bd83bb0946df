"""Transactions that are open, from the logs that they write to and from `__transaction_state` together.

A transaction is open in a log from its first batch to its marker. Its coordinator knows more: the transactional id, the
timeout, the partitions it will write markers to. Together they show its outlook:

    open        its coordinator will end it, or abort it when its timeout is over
    long        it is open for longer than its timeout: its coordinator should have aborted it
    ending      it is decided, and markers are still to be written
    hanging     it is open in a log, and no coordinator will ever write a marker there
    unknown     it is open in a log, and the available part of `__transaction_state` does not show its outlook

A hanging transaction holds back readers of committed data and the cleaner until an operator aborts it.

Source: Kafka TransactionsCommand find-hanging, which compares the same two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from cordwood.errors import DataError
from cordwood.presentable import Presentable
from cordwood.storage.formats.messages.topics import DecodedRecord
from cordwood.storage.formats.messages.transaction_state import TransactionStatus
from cordwood.storage.node.groups import Coverage
from cordwood.text import number
from cordwood.types import NONE, TopicPartition


class Outlook(StrEnum):
    """What becomes of a transaction; the last of several is the worst."""

    OPEN = "open"
    ENDING = "ending"
    LONG = "long"
    UNKNOWN = "unknown"
    HANGING = "hanging"


@dataclass(frozen=True, slots=True)
class OpenInLog:
    """A transaction that is open in one log.

    Attributes:
        last_offset: of its last one; None where only a snapshot knows it.
        start_timestamp_ms, last_timestamp_ms: of these batches; None where they have none.
        last_stable_offset: of the log: readers of committed data get nothing from there on.
        is_first: the log's last stable offset is that of this transaction.
        first_uncleanable_offset: from there on the cleaner does nothing because of this transaction; None: something
            else holds it back, or it does not clean the partition.
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


@dataclass(frozen=True, slots=True)
class TransactionalId:
    """What a coordinator knows of a transactional id.

    Attributes:
        coordinator: the partition of `__transaction_state` that it is in.
        status: of its transaction; a number that is not known is itself.
        start_timestamp_ms: when its transaction began; None: it has none.
        partitions: that the transaction writes to, as far as no marker is there yet.
        problem: why its record is not all understood, as that of a later version; else empty.
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
        """Kafka's word for the status."""
        return self.status.label if isinstance(self.status, TransactionStatus) else f"unknown({self.status})"

    @property
    def is_open(self) -> bool:
        """Whether its transaction has not come to its end."""
        return self.status in _OPEN

    @property
    def is_understood(self) -> bool:
        """Whether what its record does not say is so, too."""
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
        outlook: what becomes of it; the worst of those of its logs.
        known: what its coordinator knows; None: those that are here do not know it.
        start_timestamp_ms: when it began, by its coordinator, else by the first batch; None if neither tells.
        age_ms: since then.
        logs: where it is open, of the logs that are here.
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
    """The transactions in a node's directories.

    Attributes:
        transactions: those that are open, the worst first.
        transactional_ids: all that the coordinators know, by name.
        problems: what could not be read.
    """

    now_ms: int
    transactions: tuple[OpenTransaction, ...]
    transactional_ids: tuple[TransactionalId, ...]
    state_topic: Coverage
    logs: int
    problems: tuple[DataError | OSError, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self.transactions))

    def with_outlook(self, outlook: Outlook) -> tuple[OpenTransaction, ...]:
        """The transactions with this outlook."""
        return tuple(one for one in self.transactions if one.outlook is outlook)


def transactional_id(coordinator: int, record: DecodedRecord) -> TransactionalId | None:
    """What a record of `__transaction_state` says; None if it deletes the transactional id."""
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
    """The partition of `__transaction_state` that a transactional id belongs to.

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
    """Bring logs and coordinators together.

    Args:
        is_whole: no other coordinators know more.
        is_read: all that these know could be read.

    Yields:
        open transactions, the worst first, of these the oldest.
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
    age = None if started is None else now_ms - started
    own = Outlook.UNKNOWN
    if known is not None and is_open:
        own = _OPEN[TransactionStatus(known.status)]
        if own is Outlook.OPEN and age is not None and age > known.timeout_ms:
            own = Outlook.LONG
    # A coordinator writes no marker to logs that it does not know. An operator may abort a transaction that is reported
    # as hanging; so none is reported as hanging if something could not be read.
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
