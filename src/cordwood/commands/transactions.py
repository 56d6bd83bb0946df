"""`transactions`: the open transactions in the logs of one or more brokers, and the data that they hold back.

The logs are read first, then `__transaction_state`. While a broker runs, a transaction that begins or ends in between
would seem unknown to all coordinators; so open transactions of a live log are read once more at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from cordwood.cleaning.engine.facts import load_producers, seems_without_transactions
from cordwood.cleaning.rules.plan import Bound, Choices
from cordwood.commands.coordinators import (
    Beside,
    OnLogs,
    brokers_lines,
    coverage_document,
    coverage_text,
    partition_document,
    partitions_text,
    problem_lines,
)
from cordwood.commands.opening import open_cluster, select_newest
from cordwood.commands.options import Selection, TransactionOptions
from cordwood.commands.plan import plan_partition
from cordwood.common.errors import ConfigError, DataError, NotFoundError
from cordwood.common.text import Column, cells_of, number, printable, register, table, time_text
from cordwood.common.types import NONE, Clock, TopicPartition, system_clock
from cordwood.fs.base import Store
from cordwood.kernels.layout import DELETE_HORIZON, LOG_APPEND_TIME
from cordwood.storage.formats.filenames import CLUSTER_METADATA_TOPIC, DirectoryState
from cordwood.storage.formats.messages.topics import TRANSACTION_STATE
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, Gap
from cordwood.storage.node.cluster import Cluster
from cordwood.storage.node.directory import is_wanted
from cordwood.storage.node.groups import Coverage
from cordwood.storage.node.node import LocatedPartition
from cordwood.storage.node.transactions import (
    OpenInLog,
    OpenTransaction,
    Outlook,
    TransactionalId,
    TransactionListing,
    open_transactions,
    partition_of,
    transactional_id,
)
from cordwood.storage.recovery.replay import Producer


def transactions(
    paths: Sequence[str],
    options: TransactionOptions,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    fs: Store | None = None,
    clock: Clock = system_clock,
) -> TransactionListing:
    """List the open transactions in the directories of one or more brokers, and the data that they hold back.

    Args:
        on_progress: called with the number of partitions read so far, and of all.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file; or the directories belong to different clusters.
        ConfigError: Kafka would not accept a config.
    """
    selection, given = options.selection, options.named.with_paths(paths)
    fs = fs or selection.store(given)
    cluster = open_cluster(fs, paths, selection, options.named)
    return transactions_of_cluster(cluster, given, options, on_progress=on_progress, clock=clock)


def transactions_of_cluster(
    cluster: Cluster,
    paths: Sequence[str],
    options: TransactionOptions,
    *,
    exact: bool = True,
    on_progress: OnLogs | None = None,
    clock: Clock = system_clock,
) -> TransactionListing:
    """List the open transactions in the directories of a cluster's brokers, as they were when it was opened.

    Args:
        exact: read all headers after the newest producer snapshot of each log, also where a sample has no transaction.
    """
    now_ms = clock() if options.now_ms is None else options.now_ms
    beside = Beside(cluster)
    places = [one for one in select_newest(cluster, paths, options.selection) if _may_have_transactions(one)]
    problems: list[DataError | OSError] = []
    found: list[tuple[LocatedPartition, OpenInLog]] = []
    sampled: list[TopicPartition] = []
    for done, place in enumerate(places, 1):
        found += ((place, one) for one in _open_in(place, now_ms, problems, sampled=None if exact else sampled))
        if on_progress is not None:
            on_progress(done, len(places))
    coordinators = Coordinators.read(beside)
    logs = []
    for place, one in found:
        if not place.directory.live or _is_still_open(place, one, now_ms):
            held = _first_uncleanable(beside, place, now_ms) if one.is_first else None
            broker = cluster.node_of(place).name
            logs.append(replace(one, first_uncleanable_offset=held, broker=broker))
    listed = [one for one in coordinators.judge(logs, now_ms) if one.logs or _may_be_asked_for(one, options.selection)]
    problems += coordinators.unread
    return TransactionListing(
        now_ms,
        tuple(listed),
        coordinators.known,
        coordinators.coverage,
        len(places),
        tuple(problems),
        tuple(sampled),
        cluster.brokers,
    )


@dataclass(frozen=True, slots=True)
class Coordinators:
    """The state of transactional ids, from the available partitions of `__transaction_state`.

    Attributes:
        known: transactional ids, by name.
        is_read: whether all records of these partitions could be read; `unread` has the errors.
    """

    coverage: Coverage
    known: tuple[TransactionalId, ...]
    is_read: bool
    unread: tuple[DataError | OSError, ...]

    @classmethod
    def read(cls, beside: Beside) -> Coordinators:
        """Read the available partitions."""
        coverage, unread = beside.coverage(TRANSACTION_STATE), list[DataError | OSError]()
        records = [(one, record) for one, record, _ in beside.state(TRANSACTION_STATE, unread.append)]
        states = (transactional_id(one, record) for one, record in records)
        known = sorted((one for one in states if one is not None), key=lambda one: one.transactional_id)
        is_read = not unread and all(record.type is not None for _, record in records)
        return cls(fitting(coverage, known), tuple(known), is_read, tuple(unread))

    def judge(self, logs: Sequence[OpenInLog], now_ms: int) -> Iterator[OpenTransaction]:
        """Match transactions that are open in logs with the coordinators' state."""
        whole = self.coverage.is_whole is True
        return open_transactions(logs, self.known, is_whole=whole, is_read=self.is_read, now_ms=now_ms)


def fitting(coverage: Coverage, known: Iterable[TransactionalId]) -> Coverage:
    """Check a partition count that is not from metadata against known ids; drop it if it is wrong.

    A coordinator's partition is the hash of the id modulo the count, so most ids reveal a wrong count.
    """
    count = coverage.partition_count
    if count is None or not coverage.count_is:
        return coverage
    for one in known:
        if one.coordinator != (home := partition_of(one.transactional_id, count)):
            where = f"{one.transactional_id} is in partition {one.coordinator}, and would be in {home} of {count}"
            return replace(coverage, partition_count=None, count_is=f"{coverage.count_is}, is wrong: {where}")
    return coverage


class Outlooks:
    """Judges the transactions that hold back logs. `__transaction_state` is read once, on demand."""

    def __init__(self, cluster: Cluster, now_ms: int) -> None:
        self._beside = Beside(cluster)
        self._now_ms = now_ms

    @cached_property
    def _coordinators(self) -> Coordinators:
        return Coordinators.read(self._beside)

    def holding_back(self, place: LocatedPartition) -> OpenTransaction | None:
        """Return the transaction that determines a log's last stable offset, or None if it has ended since."""
        problems: list[DataError | OSError] = []
        first = [log for log in _open_in(place, self._now_ms, problems) if log.is_first]
        judged = self._coordinators.judge(first, self._now_ms)
        return next((transaction for transaction in judged if transaction.logs), None)


def _may_be_asked_for(transaction: OpenTransaction, selection: Selection) -> bool:
    """Whether a transaction that is in no log here may be in selected partitions."""
    if not selection.topics and not selection.partitions:
        return True
    partitions = () if transaction.known is None else transaction.known.partitions
    return any(is_wanted(name, selection.topics, selection.partitions) for name in partitions)


def _may_have_transactions(place: LocatedPartition) -> bool:
    name = place.name
    return name is not None and name.state is DirectoryState.CURRENT and place.topic != CLUSTER_METADATA_TOPIC


def _name(place: LocatedPartition) -> TopicPartition:
    assert place.name is not None, "see _may_have_transactions"
    return place.name.topic_partition


def _open_in(
    place: LocatedPartition,
    now_ms: int,
    problems: list[DataError | OSError],
    *,
    sampled: list[TopicPartition] | None = None,
) -> Iterator[OpenInLog]:
    """Yield the transactions that are open in one log; read errors are added to `problems`.

    Args:
        sampled: receives the log's name if a sample was read that has no transaction. None: read all headers.
    """
    try:
        log = place.log()
        if not log.segments:
            return
        if sampled is not None and seems_without_transactions(log, now_ms=now_ms):
            sampled.append(_name(place))
            return
        producers = load_producers(log, now_ms=now_ms)
        first, start = producers.first_unstable_offset, log.log_start_offset
        if first is None:
            return
        end = log.next_offset
        for id, one in producers.by_id.in_transaction():
            started = first_timestamp(log, max(one.transaction_start, start))
            yield OpenInLog(
                _name(place),
                id,
                one.epoch,
                one.transaction_start,
                None if one.last_offset == NONE else one.last_offset,
                started,
                None if one.timestamp == NONE else one.timestamp,
                max(first, start),
                end,
                one.transaction_start == first,
            )
    except (OSError, DataError) as error:
        problems.append(error)
    except NotFoundError:
        return  # a running broker deleted it


def first_timestamp(log: LogView, offset: int) -> int | None:
    """Return the time of the first record of the first batch at or after an offset, or None."""
    for _, item in log.windows(start_offset=offset, checks=Checks.HEADERS):
        if not isinstance(item, Gap):
            batch = item.batches[0]
            has_own = batch["attributes"] & (LOG_APPEND_TIME | DELETE_HORIZON) == 0
            time = int(batch["base_timestamp"] if has_own else batch["max_timestamp"])
            return None if time < 0 else time
    return None


def _is_still_open(place: LocatedPartition, open_log: OpenInLog, now_ms: int) -> bool:
    try:
        again: Producer | None = load_producers(place.log(), now_ms=now_ms).by_id.get(open_log.producer_id)
    except (OSError, NotFoundError):
        return False
    return again is not None and again.transaction_start == open_log.first_offset


def _first_uncleanable(beside: Beside, place: LocatedPartition, now_ms: int) -> int | None:
    """Return the offset where the last stable offset stops the cleaner, or None if it does not."""
    try:
        plan = plan_partition(beside.cluster.node_of(place), place, Choices(), now_ms)
    except ConfigError:
        return None
    if plan is None or plan.compaction is None or plan.compaction.range.bound is not Bound.LAST_STABLE_OFFSET:
        return None
    return plan.compaction.range.first_uncleanable_offset


# ---- the listing as text ---------------------------------------------------------------------------------------------

#: Maximum number of hanging transactions for which commands are shown.
_ENDS_SHOWN = 10
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def _duration_text(milliseconds: int | None) -> str:
    """Return a duration in its largest unit."""
    if milliseconds is None:
        return "-"
    for unit, name in _UNITS:
        if milliseconds >= unit:
            return f"{milliseconds / unit:,.1f} {name}"
    return f"{milliseconds} ms"


def _known(show: Callable[[TransactionalId], str]) -> Callable[[OpenTransaction], str]:
    return lambda one: "-" if one.known is None else show(one.known)


def held_back(open_log: OpenInLog) -> int:
    """Count the offsets that readers of committed data cannot read because of this transaction."""
    return open_log.log_end_offset - open_log.last_stable_offset if open_log.is_first else 0


def _uncleanable(open_log: OpenInLog) -> str:
    return "-" if open_log.first_uncleanable_offset is None else f"from {open_log.first_uncleanable_offset} on"


TRANSACTION_COLUMNS: Sequence[tuple[Column, Callable[[OpenTransaction], str]]] = (
    (Column("TRANSACTIONAL ID"), _known(lambda known: printable(known.transactional_id))),
    (Column("PRODUCER", right=True), lambda one: str(one.producer_id)),
    (Column("EPOCH", right=True), lambda one: str(one.producer_epoch)),
    (Column("OUTLOOK"), lambda one: one.outlook),
    (Column("STATE"), _known(lambda known: known.state)),
    (Column("BEGAN (UTC)"), lambda one: time_text(one.start_timestamp_ms)),
    (Column("AGE", right=True), lambda one: _duration_text(one.age_ms)),
    (Column("TIMEOUT", right=True), _known(lambda known: _duration_text(known.timeout_ms))),
    (Column("OPEN IN"), lambda one: printable(partitions_text(log.partition for log in one.logs))),
)
LOG_COLUMNS: Sequence[tuple[Column, Callable[[OpenInLog], str]]] = (
    (Column("PARTITION"), lambda one: printable(str(one.partition))),
    (Column("PRODUCER", right=True), lambda one: str(one.producer_id)),
    (Column("OUTLOOK"), lambda one: one.outlook),
    (Column("FIRST OFFSET", right=True), lambda one: str(one.first_offset)),
    (Column("LAST STABLE", right=True), lambda one: str(one.last_stable_offset)),
    (Column("END", right=True), lambda one: str(one.log_end_offset)),
    (Column("HELD BACK", right=True), lambda one: f"{held_back(one):,}"),
    (Column("UNCLEANABLE", right=True), _uncleanable),
)
ID_COLUMNS: Sequence[tuple[Column, Callable[[TransactionalId], str]]] = (
    (Column("TRANSACTIONAL ID"), lambda one: printable(one.transactional_id)),
    (Column("PRODUCER", right=True), lambda one: str(one.producer_id)),
    (Column("EPOCH", right=True), lambda one: str(one.producer_epoch)),
    (Column("STATE"), lambda one: one.state),
    (Column("UPDATED (UTC)"), lambda one: time_text(one.update_timestamp_ms)),
    (Column("COORDINATOR", right=True), lambda one: str(one.coordinator)),
)

#: The meaning of each outlook, and the advice.
MEANINGS: Mapping[Outlook, str] = {
    Outlook.HANGING: "no coordinator will end it, and it holds back readers and the cleaner until it is aborted:",
    Outlook.UNKNOWN: "unknown: a part of __transaction_state is not here, or could not be read",
    Outlook.LONG: "open for longer than its timeout: once a broker runs, its coordinator aborts it",
    Outlook.OPEN: "its producer ends it, or its coordinator aborts it when its timeout is over. If the producer is "
    "gone, a new one with its transactional id aborts it, or kafka-transactions.sh forceTerminateTransaction",
    Outlook.ENDING: "decided; once a broker runs, its coordinator writes the markers that are missing",
}


def lines(listing: TransactionListing, *, all_ids: bool = False) -> Iterator[str]:
    """Yield lines for people: open transactions and their logs; with `all_ids` also all transactional ids."""
    yield from brokers_lines(listing.brokers)
    if listing.state_topic.partitions:
        yield f"{listing.state_topic.topic}: {coverage_text(listing.state_topic)}"
    else:
        yield f"no partition of {listing.state_topic.topic} is here, so only the logs' own facts are shown"
    yield ""
    if all_ids:
        yield from table(*cells_of(ID_COLUMNS, listing.transactional_ids))
        yield ""
    if listing.transactions:
        yield from table(*cells_of(TRANSACTION_COLUMNS, listing.transactions))
        yield ""
        logs = sorted((log for one in listing.transactions for log in one.logs), key=_by_partition)
        if logs:
            yield from table(*cells_of(LOG_COLUMNS, logs))
            yield ""
    yield from _summary(listing)


def _by_partition(open_log: OpenInLog) -> tuple[TopicPartition, int]:
    return open_log.partition, open_log.first_offset


def _summary(listing: TransactionListing) -> Iterator[str]:
    counts = {outlook: len(listing.with_outlook(outlook)) for outlook in reversed(Outlook)}
    found = ", ".join(f"{count:,} {outlook}" for outlook, count in counts.items() if count) or "none is open"
    ids = number(len(listing.transactional_ids), "transactional id")
    yield f"{number(len(listing.transactions), 'open transaction')} in {number(listing.logs, 'log')}, {ids}: {found}"
    for outlook, meaning in MEANINGS.items():
        if counts[outlook]:
            yield f"{outlook}: {meaning}"
        if outlook is Outlook.HANGING:
            yield from ends_of(listing)
    yield from problem_lines(listing.problems)


def ends_of(listing: TransactionListing) -> Iterator[str]:
    """Yield the commands that end hanging transactions, with a running broker and with a stopped one."""
    hanging = [log for one in listing.transactions for log in one.logs if log.outlook is Outlook.HANGING]
    if not hanging:
        return
    where = [f"--topic {printable(log.partition.topic)} --partition {log.partition.partition}" for log in hanging]
    shown = list(zip(hanging, where, strict=True))[:_ENDS_SHOWN]
    more = [f"  and {len(hanging) - _ENDS_SHOWN:,} more"] if len(hanging) > _ENDS_SHOWN else []
    for log, place in shown:
        yield f"  kafka-transactions.sh --bootstrap-server … abort {place} --start-offset {log.first_offset}"
    yield from more
    yield "or, while no broker with the partition runs:"
    for log, place in shown:
        yield f"  cordwood abort-transaction DIR… {place} --producer {log.producer_id}"
    yield from more


# ---- the listing as JSON; null means not applicable or unknown -------------------------------------------------------


def _document(listing: TransactionListing) -> dict[str, Any]:
    return {
        "now_ms": listing.now_ms,
        "brokers": list(listing.brokers),
        "transactions": [_transaction(one) for one in listing.transactions],
        "transactional_ids": [_transactional_id(one) for one in listing.transactional_ids],
        "state_topic": coverage_document(listing.state_topic),
        "logs": listing.logs,
        "logs_sampled": len(listing.sampled),
        "problems": [str(error) for error in listing.problems],
    }


def _transaction(transaction: OpenTransaction) -> dict[str, Any]:
    return {
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "outlook": transaction.outlook,
        "transactional_id": None if transaction.known is None else transaction.known.transactional_id,
        "state": None if transaction.known is None else transaction.known.state,
        "timeout_ms": None if transaction.known is None else transaction.known.timeout_ms,
        "start_timestamp": transaction.start_timestamp_ms,
        "age_ms": transaction.age_ms,
        "partitions": None
        if transaction.known is None
        else [partition_document(each) for each in transaction.known.partitions],
        "logs": [_log(each) for each in transaction.logs],
    }


def _log(open_log: OpenInLog) -> dict[str, Any]:
    return {
        **partition_document(open_log.partition),
        "broker": open_log.broker,
        "outlook": open_log.outlook,
        "producer_epoch": open_log.producer_epoch,
        "first_offset": open_log.first_offset,
        "last_offset": open_log.last_offset,
        "start_timestamp": open_log.start_timestamp_ms,
        "last_timestamp": open_log.last_timestamp_ms,
        "last_stable_offset": open_log.last_stable_offset,
        "log_end_offset": open_log.log_end_offset,
        "is_first": open_log.is_first,
        "first_uncleanable_offset": open_log.first_uncleanable_offset,
    }


def _transactional_id(entry: TransactionalId) -> dict[str, Any]:
    return {
        "transactional_id": entry.transactional_id,
        "coordinator": entry.coordinator,
        "producer_id": entry.producer_id,
        "producer_epoch": entry.producer_epoch,
        "state": entry.state,
        "timeout_ms": entry.timeout_ms,
        "start_timestamp": entry.start_timestamp_ms,
        "update_timestamp": entry.update_timestamp_ms,
        "partitions": [partition_document(each) for each in entry.partitions],
        "problem": entry.problem or None,
    }


register(TransactionListing, lines=lines, document=_document)
