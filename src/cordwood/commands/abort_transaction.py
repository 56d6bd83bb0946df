"""`abort-transaction`: end a hanging transaction in the logs of stopped brokers; Kafka's tool needs running brokers.

    replicas   open all directories of the partition; each must be stopped, cleanly shut down, and locked by this run
    logs       each log must be intact from the transaction's start to its end, and equal on all replicas
    verdict    no present coordinator will ever end the transaction, and all coordinators are present
    marker     encode the batch that Kafka's own tool would make a broker write; all replicas get the same bytes
    append     one replica after another; see `storage.recovery.marker`
    watermark  all replicas are equal up to the marker, so raise the high watermark above it

All checks precede the first change. After an interrupted run, call the command again: it completes or undoes a swap, as
the next load would do, and gives the remaining replicas the marker that the first one already has.

The marker has the producer's epoch from the log, and the coordinator epoch of the producer's last marker there. Without
such a marker the coordinator epoch is 0: no coordinator has a lower one, so the marker fences no coordinator.

Source: Kafka TransactionsCommand abort, AbortTransactionHandler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from cordwood.commands.coordinators import COUNTS, Beside, coverage_of
from cordwood.commands.options import AbortOptions
from cordwood.commands.transactions import Coordinators, first_timestamp, fitting
from cordwood.common.errors import ConfigError, LockedError, NotFoundError, RequestError
from cordwood.common.text import bytes_text, duration_text, names_text, number, printable, register, time_text
from cordwood.common.types import NONE, Clock, TimestampType, TopicPartition, system_clock
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.by_url import local_path
from cordwood.fs.locks import check_local, directories_to_lock
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import Marker, encode_marker
from cordwood.storage.changes.swap import check_ownership, finish_interrupted
from cordwood.storage.formats import checkpoints
from cordwood.storage.formats.filenames import CLUSTER_METADATA_TOPIC, HIGH_WATERMARKS
from cordwood.storage.formats.messages.topics import TRANSACTION_STATE
from cordwood.storage.log.recovery import plan_recovery
from cordwood.storage.node.cluster import Cluster, check_shut_down
from cordwood.storage.node.groups import Coverage
from cordwood.storage.node.node import LocatedPartition, Node
from cordwood.storage.node.transactions import (
    AbortResult,
    OpenInLog,
    OpenTransaction,
    Outlook,
    TransactionalId,
    TransactionEnd,
)
from cordwood.storage.recovery.marker import (
    LogEnd,
    MarkerBatch,
    TransactionData,
    append_marker,
    log_end,
    transaction_data,
)
from cordwood.storage.recovery.replay import Producer


def abort_transaction(
    paths: Sequence[str],
    topic: str,
    producer_id: int,
    options: AbortOptions,
    *,
    fs: LocalFileSystem | None = None,
    clock: Clock = system_clock,
) -> AbortResult:
    """Abort a hanging transaction in the logs of stopped brokers; without `yes`, only show the changes.

    Args:
        paths: log directories of all brokers with replicas of the partition, or with `__transaction_state`.
        topic: the topic of the partitions.
        producer_id: the producer of the transaction.

    Raises:
        NotFoundError: there is nothing at a path, or no such partition.
        LockedError: a broker or another program holds one of the directories.
        RequestError: the transaction does not hang, or that is not certain; a replica is missing, or replicas differ;
            a directory was not shut down cleanly.
        DataError: a log is damaged, or torn at its end.
    """
    fs = fs or PosixFileSystem()
    sources = [fs.absolute_path(local_path(path, f"Bring it back first: cordwood fetch {path} DIR")) for path in paths]
    now_ms = clock()
    found = _Replicas.find(fs, sources, topic, options)
    for place in found.places:
        if place.directory.holder is not None:
            raise LockedError(
                f"{place.directory.path} is held by {place.directory.holder}. Stop it first; while the broker runs, "
                "kafka-transactions.sh aborts transactions"
            )
        check_shut_down(place.directory)
    if not options.yes:
        return AbortResult(tuple(found.ends(producer_id, now_ms)[0]), done=False)
    partitions = [place.path for place in found.places]
    with ExitStack() as held:
        to_lock = directories_to_lock(fs, partitions)
        for path in to_lock:
            check_local(fs, path, no_broker_elsewhere=options.no_broker_elsewhere)
        check_ownership(fs, partitions)
        locks = [held.enter_context(fs.lock_directory(path)) for path in to_lock]
        for path in partitions:
            if plan_recovery(fs, path, fs.list(path)).actions:
                finish_interrupted(fs, path)
        # Open again: another process may have changed the directories before they were locked.
        found = _Replicas.find(fs, sources, topic, options)
        ends, appends = found.ends(producer_id, now_ms)
        for lock in locks:
            lock.confirm()
        for log, batch in appends:
            append_marker(fs, log, batch)
        for end in ends:
            _raise_high_watermarks(fs, found.by_name[end.open_in_log.partition], end)
        return AbortResult(tuple(ends), done=True)


def _raise_high_watermarks(fs: LocalFileSystem, places: Sequence[LocatedPartition], end: TransactionEnd) -> None:
    """Record that the marker is on all replicas, so that a clean without a broker can pass it too."""
    for place in places:
        if place.directory.info(HIGH_WATERMARKS) is not None:
            marks = {end.open_in_log.partition: end.marker.offset + 1}
            checkpoints.update(fs, f"{place.directory.path}/{HIGH_WATERMARKS}", marks)


@dataclass(frozen=True, slots=True)
class _Replicas:
    """The requested partitions, each with all its replicas."""

    cluster: Cluster
    by_name: Mapping[TopicPartition, Sequence[LocatedPartition]]

    @classmethod
    def find(cls, fs: LocalFileSystem, sources: Sequence[str], topic: str, options: AbortOptions) -> _Replicas:
        if topic == CLUSTER_METADATA_TOPIC:
            raise RequestError(f"{topic} has no transactions of producers")
        cluster = Cluster.open(fs, sources, options.metadata, options.server_properties, options.overrides)
        names = [one for one in cluster.partitions_of(topic) if options.partition in (None, one.partition)]
        if not names:
            what = topic if options.partition is None else f"{topic}-{options.partition}"
            raise NotFoundError(f"no partition {what} in {names_text(sources)}")
        found = {name: cluster.all_replicas(name, single_copy=options.single_copy) for name in names}
        return cls(cluster, {name: [one.place for one in replicas] for name, replicas in found.items()})

    @property
    def places(self) -> list[LocatedPartition]:
        return [place for places in self.by_name.values() for place in places]

    def ends(self, producer_id: int, now_ms: int) -> tuple[list[TransactionEnd], list[tuple[LogEnd, MarkerBatch]]]:
        """Return a description of each transaction to end, and the markers to append to each replica.

        Raises:
            RequestError: the producer has no open transaction, a transaction does not hang, or replicas differ.
            DataError: a log is damaged.
        """
        ends, appends, open_ids = [], [], set[int]()
        verdict: _Verdict | None = None
        for name, places in self.by_name.items():
            logs = [log_end(place.log()) for place in places]
            open_ids |= {one.producer_id for log in logs for one in log.producers.ongoing}
            if not any(_is_open(log, producer_id) for log in logs):
                continue
            replicas = _Ending.of(name, logs, producer_id)
            found = _open_in_log(name, replicas)
            verdict = verdict or _Verdict.of(self.cluster)
            known = verdict.known_if_hanging(found, now_ms)
            batch, end = replicas.end(found, known, _timestamp_type(self.cluster.nodes[0], name.topic), now_ms)
            ends.append(end)
            appends += [(log, batch) for log in replicas.open]
        if not ends:
            others = f"; open are those of {names_text([str(one) for one in sorted(open_ids)])}" if open_ids else ""
            where = names_text([str(name) for name in self.by_name])
            raise RequestError(f"producer {producer_id} has no open transaction in {where}{others}")
        return ends, appends


def _is_open(log: LogEnd, producer_id: int) -> bool:
    return any(one.producer_id == producer_id for one in log.producers.ongoing)


def _timestamp_type(node: Node, topic: str) -> TimestampType:
    """Return the timestamp type of a topic's batches; create time if its configs are invalid."""
    try:
        is_append_time = node.config_of(topic)["message.timestamp.type"].value == "LogAppendTime"
    except ConfigError:
        return TimestampType.CREATE_TIME
    return TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME


# ---- the replicas of one partition -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Ending:
    """The replicas of a partition with an open transaction of a producer.

    Attributes:
        open: replicas that need the marker.
        done: replicas that already end with the marker.
        data: the data of the transaction, equal on all replicas.
    """

    producer_id: int
    open: Sequence[LogEnd]
    done: Sequence[LogEnd]
    data: TransactionData

    @classmethod
    def of(cls, name: TopicPartition, logs: Sequence[LogEnd], producer_id: int) -> _Ending:
        open_ = [log for log in logs if _is_open(log, producer_id)]
        done = [log for log in logs if not _is_open(log, producer_id)]
        end, producer = open_[0].end_offset, open_[0].producers.by_id[producer_id]
        for log in open_:
            if log.end_offset != end:
                raise _differ(name, f"{open_[0].log.path} ends at offset {end}, {log.log.path} at {log.end_offset}")
            if _facts(log.producers.by_id[producer_id]) != _facts(producer):
                raise _differ(name, f"{open_[0].log.path} and {log.log.path} have different states of the producer")
        for log in done:
            if not _is_marked(log, end, producer_id, producer.epoch):
                raise _differ(name, f"the transaction is not open in {log.log.path}")
        start = max(producer.transaction_start, *(log.log.log_start_offset for log in logs))
        data = {log.log.path: transaction_data(log.log, producer_id, start, end) for log in logs}
        first = data[open_[0].log.path]
        for path, found in data.items():
            if found.digest != first.digest:
                raise _differ(name, f"{open_[0].log.path} and {path} hold different batches from offset {start} on")
        return cls(producer_id, open_, done, first)

    @property
    def producer(self) -> Producer:
        return self.open[0].producers.by_id[self.producer_id]

    def end(
        self, found: OpenInLog, known: TransactionalId | None, timestamp_type: TimestampType, now_ms: int
    ) -> tuple[MarkerBatch, TransactionEnd]:
        """Return the marker, and a description of its effect."""
        offset, producer = self.open[0].end_offset, self.producer
        coordinator = _coordinator(producer)
        marker = Marker(
            offset, now_ms, self.producer_id, producer.epoch, committed=False, coordinator_epoch=coordinator
        )
        leader_epoch = max(log.leader_epoch for log in self.open)
        data = encode_marker(marker, leader_epoch=leader_epoch, timestamp_type=timestamp_type)
        if self.done:
            last = self.done[0].last_marker
            assert last is not None, "see _is_marked"
            marker, leader_epoch, data = last.marker, last.leader_epoch, last.data
        others = [one.first_offset for one in self.open[0].producers.ongoing if one.producer_id != self.producer_id]
        end = TransactionEnd(
            found,
            known,
            self.data.batches,
            self.data.records,
            self.data.size_bytes,
            marker,
            leader_epoch,
            max(min(others, default=offset + 1), found.last_stable_offset),
            tuple(log.log.path for log in self.open),
            tuple(log.log.path for log in self.done),
        )
        return MarkerBatch(marker, leader_epoch, data), end


def _facts(producer: Producer) -> tuple[int, int, int]:
    return producer.transaction_start, producer.epoch, producer.coordinator_epoch


def _coordinator(producer: Producer) -> int:
    """Return the marker's coordinator epoch, at least 0: no coordinator has a lower one, so the marker fences none."""
    return max(0, producer.coordinator_epoch)


def _is_marked(log: LogEnd, offset: int, producer_id: int, epoch: int) -> bool:
    """Whether a log ends with the marker that aborted a transaction at an offset."""
    if log.last_marker is None or log.end_offset != offset + 1:
        return False
    found = log.last_marker.marker
    return (found.offset, found.producer_id, found.producer_epoch) == (offset, producer_id, epoch) and (
        not found.committed
    )


def _differ(name: TopicPartition, what: str) -> RequestError:
    return RequestError(
        f"the replicas of {name} differ: {what}. Start all of its brokers, let them catch up, and stop them"
    )


def _open_in_log(name: TopicPartition, replicas: _Ending) -> OpenInLog:
    """Describe the transaction as `transactions` does."""
    log, producer = replicas.open[0], replicas.producer
    first, start = log.producers.first_unstable_offset, log.log.log_start_offset
    assert first is not None, "a transaction is open"
    return OpenInLog(
        name,
        replicas.producer_id,
        producer.epoch,
        producer.transaction_start,
        None if producer.last_batch.last_offset == NONE else producer.last_batch.last_offset,
        first_timestamp(log.log, max(producer.transaction_start, start)),
        None if producer.timestamp == NONE else producer.timestamp,
        max(first, start),
        log.end_offset,
        producer.transaction_start == first,
    )


# ---- whether it hangs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Verdict:
    """The coordinators' view of transactions, from the present replicas of `__transaction_state`."""

    coordinators: Sequence[Coordinators]
    coverage: Coverage

    @classmethod
    def of(cls, cluster: Cluster) -> _Verdict:
        read = [Coordinators.read(Beside(Cluster.of(node))) for node in cluster.nodes]
        here = sorted({partition for one in read for partition in one.coverage.partitions})
        coverage = coverage_of(cluster, TRANSACTION_STATE, tuple(here))
        coverage = fitting(coverage, [known for one in read for known in one.known])
        if not here:
            raise RequestError(
                f"no directory has a partition of {TRANSACTION_STATE}, which shows whether a transaction hangs: give "
                "the directories of the brokers that have it, too"
            )
        stale = [one for one in here if not cluster.has_current(TopicPartition(TRANSACTION_STATE, one))]
        if stale:
            names = names_text([f"{TRANSACTION_STATE}-{one}" for one in stale])
            raise RequestError(
                f"no replica of {names} that is here is known to be in sync: give the directories of all"
            )
        if cluster.metadata is not None and cluster.metadata.problems:
            coverage = replace(coverage, partition_count=None)
        return cls([one for one in read if one.coverage.partitions], coverage)

    def known_if_hanging(self, found: OpenInLog, now_ms: int) -> TransactionalId | None:
        """Return the coordinator's entry for the producer of a hanging transaction, or None without one.

        Raises:
            RequestError: the transaction does not hang, or that is not certain.
        """
        whole = self.coverage.is_whole is True
        judged = [
            transaction
            for one in self.coordinators
            for transaction in replace(one, coverage=self.coverage).judge([found], now_ms)
            if transaction.logs
        ]
        for transaction in judged:
            outlook = transaction.logs[0].outlook
            if outlook is not Outlook.HANGING:
                raise RequestError(f"{_who(transaction)} {_WHY_NOT[outlook]}{self._doubt(outlook)}")
        if not whole:
            raise RequestError(f"{_who(judged[0])} {_WHY_NOT[Outlook.UNKNOWN]}{self._doubt(Outlook.UNKNOWN)}")
        return next((transaction.known for transaction in judged if transaction.known is not None), None)

    def _doubt(self, outlook: Outlook) -> str:
        if outlook is not Outlook.UNKNOWN:
            return ""
        for one in self.coordinators:
            for problem in one.unread:
                return f": {problem}"
        if self.coverage.partition_count is None:
            if self.coverage.count_is:
                return f": {self.coverage.count_is}"
            config = f"--config {COUNTS[TRANSACTION_STATE]}=N (Kafka's default: 50) or --server-properties FILE"
            return f": the count of partitions of {TRANSACTION_STATE} is not known; give --metadata DIR, or {config}"
        if not self.coverage.is_whole:
            here, all_ = len(self.coverage.partitions), self.coverage.partition_count
            by = f" ({self.coverage.count_is})" if self.coverage.count_is else ""
            return f": {here} of {all_} partitions{by} of {TRANSACTION_STATE} are here; give the directories of all"
        return ": a record of its coordinator is of a later version"


_WHY_NOT: Mapping[Outlook, str] = {
    Outlook.OPEN: "does not hang: its producer ends it, or its coordinator aborts it once its timeout is over. "
    "If the producer is gone, a new one with its transactional id aborts it",
    Outlook.LONG: "does not hang: its coordinator aborts it as soon as it runs",
    Outlook.ENDING: "does not hang: it is decided, and its coordinator writes the marker as soon as it runs",
    Outlook.UNKNOWN: "may hang, or not",
}


def _who(transaction: OpenTransaction) -> str:
    known, where = transaction.known, transaction.logs[0].partition
    who = f"the transaction of producer {transaction.producer_id} in {where}"
    if known is None:
        return who
    timeout = duration_text(known.timeout_ms)
    return f"{who} ({known.transactional_id}, state {known.state}, timeout {timeout})"


# ---- the result as text and JSON -------------------------------------------------------------------------------------


def _document(result: AbortResult) -> dict[str, Any]:
    return {"done": result.done, "transactions": [_end_document(end) for end in result.ends]}


def _end_document(end: TransactionEnd) -> dict[str, Any]:
    found, marker, known = end.open_in_log, end.marker, end.known
    return {
        "topic": found.partition.topic,
        "partition": found.partition.partition,
        "producer_id": marker.producer_id,
        "producer_epoch": marker.producer_epoch,
        "transactional_id": None if known is None else known.transactional_id,
        "state": None if known is None else known.state,
        "first_offset": found.first_offset,
        "start_timestamp": found.start_timestamp_ms,
        "batches": end.batches,
        "records": end.records,
        "size_bytes": end.size_bytes,
        "marker": {
            "type": "ABORT",
            "offset": marker.offset,
            "timestamp": marker.timestamp,
            "coordinator_epoch": marker.coordinator_epoch,
            "leader_epoch": end.leader_epoch,
        },
        "last_stable_offset_before": found.last_stable_offset,
        "last_stable_offset_after": end.next_stable_offset,
        "replicas": [printable(path) for path in end.replicas],
        "done_before": [printable(path) for path in end.done_before],
    }


def _lines(result: AbortResult) -> Iterator[str]:
    for end in result.ends:
        yield from map(printable, _end_lines(end, done=result.done))
        yield ""
    if result.done:
        yield f"{number(len(result.ends), 'transaction')} aborted"
    else:
        yield "Nothing was changed. To abort, give --yes"


def _end_lines(end: TransactionEnd, *, done: bool) -> Iterator[str]:
    found, marker = end.open_in_log, end.marker
    began = "" if found.start_timestamp_ms is None else f", {time_text(found.start_timestamp_ms)} UTC"
    yield f"{found.partition}: the transaction of producer {marker.producer_id} hangs"
    yield f"  open      from offset {found.first_offset} on{began}; epoch {marker.producer_epoch}"
    yield f"  data      {number(end.records, 'record')} in {_batches(end.batches)}, {bytes_text(end.size_bytes)}"
    yield f"  why       {_why(end)}"
    leader = "none" if end.leader_epoch == NONE else str(end.leader_epoch)
    epochs = f"coordinator epoch {marker.coordinator_epoch}, leader epoch {leader}"
    yield f"  marker    ABORT at offset {marker.offset}, {epochs}"
    yield f"  then      its data is aborted; {_stable_text(found.last_stable_offset, end.next_stable_offset)}"
    for path in end.replicas:
        yield f"  {'written' if done else 'write to':<10}{path}"
    for path in end.done_before:
        yield f"  has it    {path}"


def _stable_text(before: int, after: int) -> str:
    if before == after:
        return f"the last stable offset stays {before}, where another transaction is open"
    return f"the last stable offset moves from {before} to {after}"


def _batches(count: int) -> str:
    return f"{count:,} {'batch' if count == 1 else 'batches'}"


def _why(end: TransactionEnd) -> str:
    if end.known is None:
        return "no coordinator has a record of the producer"
    known = end.known
    return f"its coordinator has {known.transactional_id} as {known.state}, and writes no marker to this partition"


register(AbortResult, lines=_lines, document=_document)
