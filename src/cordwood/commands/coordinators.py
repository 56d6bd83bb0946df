"""The logs of Kafka's coordinators, and the data logs beside them, for `groups` and `transactions`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

from cordwood.commands.opening import broker_config
from cordwood.common.errors import CorruptMessageError, DataError, NotFoundError
from cordwood.common.text import number, printable
from cordwood.common.types import TopicPartition
from cordwood.storage.formats import properties
from cordwood.storage.formats.messages.topics import (
    CONSUMER_OFFSETS,
    INTERNAL_TOPICS,
    TRANSACTION_STATE,
    DecodedRecord,
    decode_record,
)
from cordwood.storage.node.cluster import Cluster, Replica, brokers_text
from cordwood.storage.node.groups import ConsumerLogEnd, Coverage, EndSource
from cordwood.storage.node.node import LocatedPartition
from cordwood.tables.coordinators import state_records

#: The broker configs that set the number of partitions when a broker creates a coordinator's topic.
COUNTS = {
    CONSUMER_OFFSETS: "offsets.topic.num.partitions",
    TRANSACTION_STATE: "transaction.state.log.num.partitions",
}

#: Called with the number of logs read so far, and their total.
OnLogs = Callable[[int, int], None]


class Beside:
    """A cluster's partitions by name. Each is read from its newest replica; see `Cluster.choose_replica`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._ends: dict[TopicPartition, ConsumerLogEnd | None] = {}

    def coordinators(self, topic: str) -> Mapping[int, LocatedPartition]:
        """Return the named partitions of a coordinator's topic; without any, all its partitions in the directories.

        Transactions of named data partitions are judged by all partitions of `__transaction_state`.
        """
        there = self.cluster.partitions_of(topic)
        paths = {place.path for node in self.cluster.nodes for place in node.places}
        named = [name for name in there if any(one.path in paths for one in self.cluster.replicas(name))]
        others = paths - {one.path for name in named for one in self.cluster.replicas(name)}
        chosen = there if not named or (topic == TRANSACTION_STATE and others) else named
        return {name.partition: self.cluster.choose_replica(name).replica.place for name in chosen}

    def coverage(self, topic: str) -> Coverage:
        """Report which partitions of a coordinator's topic are present."""
        return coverage_of(self.cluster, topic, tuple(self.coordinators(topic)))

    @cached_property
    def topic_names(self) -> Mapping[str, str]:
        """Names of topics by their ids: from the cluster's metadata, else from `partition.metadata`."""
        if self.cluster.metadata is not None:
            return {topic.topic_id: name for name, topic in self.cluster.metadata.topics.items()}
        found = {}
        for name, replicas in self.cluster.partitions.items():
            if (topic_id := replicas[0].place.topic_id()) is not None:
                found[properties.encode_id(topic_id)] = name.topic
        return found

    def end_of(self, name: TopicPartition, offset: int) -> ConsumerLogEnd | None:
        """Return the end of a partition's log for a consumer at an offset, or None if the partition is missing.

        The log is the leader's by the metadata; without it, the log of the newest replica. The end is the high
        watermark of the log directory's checkpoint. It is the log end if the checkpoint has no entry, or if the
        partition has no other replica, because a checkpoint may be some seconds old. It is also the log end if the
        consumer's offset is above both, or if the log has lost records and ends below its checkpoint: then a load
        lowers the high watermark.
        """
        if not self.cluster.replicas(name):
            return None
        replica = self.cluster.leader(name) or self.cluster.choose_replica(name).replica
        mark = replica.high_watermark
        if mark is not None and replica.node.replica_count(name) != 1:
            end = self._log_end(replica)
            is_above = end is not None and (offset > end.offset or mark > end.offset)
            return end if is_above else ConsumerLogEnd(mark, EndSource.HIGH_WATERMARK)
        return self._log_end(replica)

    def _log_end(self, replica: Replica) -> ConsumerLogEnd | None:
        if replica.name not in self._ends:
            self._ends[replica.name] = self._read_end(replica)
        return self._ends[replica.name]

    def _read_end(self, replica: Replica) -> ConsumerLogEnd | None:
        try:
            return ConsumerLogEnd(replica.place.log().next_offset, EndSource.LOG_END)
        except (OSError, NotFoundError):
            return None  # a running broker deleted it

    def state(
        self,
        topic: str,
        on_damage: Callable[[DataError | OSError], None],
        *,
        updates: int | None = None,
        on_progress: OnLogs | None = None,
    ) -> Iterator[tuple[int, DecodedRecord, int]]:
        """Yield the current records of a coordinator's topic: partition, record, and producer id.

        The producer id is that of the open transaction with the record; NONE for a record that counts already.

        Args:
            on_damage: called with each unreadable batch, record or log; other logs are still read.
        """
        internal, places = INTERNAL_TOPICS[topic], self.coordinators(topic)
        for done, (partition, place) in enumerate(places.items(), 1):
            try:
                log = place.log()
                if not log.segments and not log.live:
                    on_damage(DataError("it holds no log segment, so its records are lost", path=place.path))
                for one in state_records(log, on_damage, updates=updates):
                    try:
                        record = decode_record(internal, one.key, one.value)
                    except CorruptMessageError as error:
                        error.offset = one.offset
                        on_damage(error.at(place.path))
                        continue
                    yield partition, record, one.producer_id
            except NotFoundError:
                pass  # a running broker deleted it
            except OSError as error:
                on_damage(error)
            if on_progress is not None:
                on_progress(done, len(places))


def coverage_of(cluster: Cluster, topic: str, here: tuple[int, ...]) -> Coverage:
    """Compare the present partitions of a coordinator's topic with the topic's partition count.

    Without a metadata log, the count is the broker's config if it is set. Else it is Kafka's default, but only if
    exactly the partitions that a broker creates by default are present. A count is wrong if a higher partition is
    present.
    """
    if cluster.metadata is not None:
        known = cluster.metadata.topics.get(topic)
        return Coverage(topic, here, None if known is None else len(known.partitions))
    if (name := COUNTS.get(topic)) is None:
        return Coverage(topic, here, None)
    config = broker_config(cluster.nodes[0], [name])
    count = config.integer(name)
    if config[name].explicit:
        source = f"{name}={count}, {config[name].source}"
        if max(here, default=0) >= count:
            return Coverage(topic, here, None, f"{source}, is wrong: partition {max(here)} is here")
        return Coverage(topic, here, count, source)
    whole = here == tuple(range(count))
    return Coverage(topic, here, count if whole else None, f"{name}={count}, Kafka's default" if whole else "")


# ---- text and JSON ---------------------------------------------------------------------------------------------------


def brokers_lines(brokers: Sequence[str]) -> Iterator[str]:
    """Yield a line about the brokers whose directories were read; none for a single broker."""
    if len(brokers) > 1:
        how = "of each partition the newest replica is read: newest leader epoch, then highest end"
        yield f"{brokers_text(brokers)}; {how}"


#: Maximum number of unreadable records or files shown.
_PROBLEMS_SHOWN = 5


def partitions_text(partitions: Iterable[TopicPartition]) -> str:
    """List partitions by topic: `orders-0,1 payments-2`."""
    by_topic = groupby(sorted(partitions), key=lambda one: one.topic)
    return " ".join(f"{topic}-{','.join(str(one.partition) for one in some)}" for topic, some in by_topic) or "-"


def coverage_text(coverage: Coverage) -> str:
    """Describe how many of a topic's partitions are present."""
    if coverage.partition_count is None:
        known = number(len(coverage.partitions), "partition")
        why = coverage.count_is or "without a metadata log it is not known whether these are all"
        return f"{known}; {why}"
    source = f" ({coverage.count_is})" if coverage.count_is else ""
    if coverage.is_whole:
        whole = (
            "its only partition" if coverage.partition_count == 1 else f"all {coverage.partition_count:,} partitions"
        )
        return f"{whole}{source}"
    count = number(coverage.partition_count, "partition")
    return f"{len(coverage.partitions):,} of {count}{source}; the others are on other brokers"


def problem_lines(problems: Sequence[DataError | OSError]) -> Iterator[str]:
    """Yield the first problems, and the number of the others."""
    for error in problems[:_PROBLEMS_SHOWN]:
        yield f"not read: {printable(str(error))}"
    if len(problems) > _PROBLEMS_SHOWN:
        yield f"and {len(problems) - _PROBLEMS_SHOWN:,} more that could not be read"


def coverage_document(coverage: Coverage) -> dict[str, Any]:
    """Return the coverage of a topic as a JSON value."""
    return {
        "topic": coverage.topic,
        "partitions": list(coverage.partitions),
        "partition_count": coverage.partition_count,
    }


def partition_document(topic_partition: TopicPartition) -> dict[str, Any]:
    """Return a partition as a JSON value."""
    return {"topic": topic_partition.topic, "partition": topic_partition.partition}
