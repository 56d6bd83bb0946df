"""Topics, replicas and configs in a KRaft cluster's metadata log.

`__cluster_metadata-0` is an ordinary log whose data records are the cluster's history: a topic was created, a config
set, a partition moved. Here it is replayed, as far as it concerns logs. `messages.metadata_records` has the records,
and `messages.topics` how they are framed. `RECORDS` are the types that matter here; other types are passed over.
Snapshots (`*.checkpoint`) hold such records too, as a summary. Control records belong to the log itself; leave them out
when reading it.

Between a BeginTransaction and its EndTransaction record nothing counts yet; AbortTransaction or the end of the log
undoes it. A record that cannot be read becomes a problem, and replay continues without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cordwood.config import Layer, Source, SourceKind
from cordwood.errors import CorruptBatchError, CorruptMessageError, DataError
from cordwood.storage.formats.messages import codec, metadata_records
from cordwood.storage.formats.messages.schema import Message
from cordwood.storage.formats.messages.topics import read_frame

#: The directory of the metadata log, as sources name it.
NAME = "__cluster_metadata-0"
#: Resource types of ConfigRecord that concern logs.
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
#: The leader of a change that leaves it as it is.
_UNCHANGED_LEADER = -2
#: The types that matter here, by number.
RECORDS: Mapping[int, Message] = {
    number: metadata_records.RECORDS[number].value for number in (0, 1, 2, 3, 4, 5, 9, 12, 17, 20, 23, 24, 25)
}


def decode(value: bytes | memoryview) -> tuple[Message, dict[str, Any]] | None:
    """One record's message and fields; None when its type does not matter here.

    A name that is not UTF-8, a version that Kafka 4.3.1 does not know, and bytes behind the message are errors: what
    is decided by this has to be certain.

    Raises:
        CorruptMessageError: the bytes are no such message.
    """
    number, version, start = read_frame(value)
    message = RECORDS.get(number)
    if message is None:
        return None
    if version > message.last_version:
        raise CorruptMessageError(f"{message.name} of version {version}; the last one known is {message.last_version}")
    decoded = codec.decode(message, version, value, start, text_errors="strict")
    if decoded.end < len(value):
        raise CorruptMessageError(f"{message.name} of version {version}: {len(value) - decoded.end} bytes too many")
    return message, decoded.fields


# ---- the state they add up to ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Partition:
    """Where a partition lives. `directories` has a log directory id per replica, or is empty in clusters before 3.7."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    removing_replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    directories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic and its partitions by number. `topic_id` is as in `partition.metadata`."""

    name: str
    topic_id: str
    partitions: Mapping[int, Partition]


@dataclass(frozen=True, slots=True)
class EndPoint:
    """Where a broker listens."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that is registered.

    Attributes:
        fenced: it leads no partition: it has not caught up, or has not been heard of.
        directories: ids of its log directories.
    """

    broker_id: int
    epoch: int
    rack: str | None
    end_points: tuple[EndPoint, ...]
    fenced: bool
    in_controlled_shutdown: bool
    directories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The cluster as of `next_offset`.

    A problem leaves what it might have said in doubt: with any, treat policies and replica counts as unknown.

    Attributes:
        topic_configs: by topic, the texts that were set for it.
        broker_configs: by broker id as text, and under "" the cluster's default.
        brokers: by broker id.
        features: finalized levels, `metadata.version` among them.
        problems: records that could not be read or did not fit what was before them, in order.
        next_offset: where a log continues this; lower offsets are already in it.
        passed_over: damage in newer snapshots; an older one and the log hold everything, and were read instead.
    """

    topics: Mapping[str, Topic] = field(default_factory=dict)
    topic_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[DataError, ...] = ()
    next_offset: int = 0
    passed_over: tuple[DataError, ...] = ()

    def topic_config(self, topic: str) -> Mapping[str, str]:
        """What was set for a topic; nothing for one that is not known."""
        return self.topic_configs.get(topic, {})

    def replica_count(self, topic: str, partition: int) -> int | None:
        """How many replicas a partition has, those that come or go included; None when it is not known."""
        known = self.topics.get(topic)
        if known is None or partition not in known.partitions:
            return None
        return len(known.partitions[partition].replicas)

    def is_tiered(self, topic: str) -> bool:
        """Whether closed segments may lie in remote storage. Any word but false counts as yes."""
        return self.topic_config(topic).get("remote.storage.enable", "false").strip().lower() != "false"

    def layers(self, topic: str, broker_id: int | None, where: str = NAME) -> tuple[Layer, ...]:
        """What `config.resolve` needs of this: the cluster's default, the broker's and the topic's configs.

        Args:
            broker_id: `node.id` of the log directory's meta.properties; None when there is none.
            where: how the sources should name the metadata log.
        """
        broker = str(broker_id)
        sources = (
            (Source(SourceKind.CLUSTER, where), self.broker_configs.get("")),
            (Source(SourceKind.BROKER, where, broker), self.broker_configs.get(broker)),
            (Source(SourceKind.TOPIC, where, topic), self.topic_configs.get(topic)),
        )
        return tuple(Layer(source, texts) for source, texts in sources if texts)


EMPTY = ClusterMetadata()


def apply(records: Iterable[tuple[int, bytes | memoryview | None]], onto: ClusterMetadata = EMPTY) -> ClusterMetadata:
    """Replay data records of the log, in order, over what a snapshot or an earlier part of the log said.

    Args:
        records: offset and value of each data record; those below `onto.next_offset` are passed over.
    """
    story = _Story(onto)
    for offset, value in records:
        if offset >= onto.next_offset:
            story.tell(offset, value)
    return story.end(None)


def load_snapshot(records: Iterable[tuple[int, bytes | memoryview | None]], end_offset: int) -> ClusterMetadata:
    """Read the data records of a snapshot file; the offsets in it count only its own records.

    Args:
        end_offset: the first number in its file name: where the log goes on. 0 for `bootstrap.checkpoint`.
    """
    story = _Story(EMPTY)
    for offset, value in records:
        story.tell(offset, value)
    return story.end(end_offset)


class _Story:
    """The state while records are replayed."""

    def __init__(self, onto: ClusterMetadata) -> None:
        self.ids = {name: topic.topic_id for name, topic in onto.topics.items()}
        self.names = {topic_id: name for name, topic_id in self.ids.items()}
        self.partitions = {topic.topic_id: dict(topic.partitions) for topic in onto.topics.values()}
        self.topic_configs = {name: dict(texts) for name, texts in onto.topic_configs.items()}
        self.broker_configs = {name: dict(texts) for name, texts in onto.broker_configs.items()}
        self.brokers = dict(onto.brokers)
        self.features = dict(onto.features)
        self.problems = list(onto.problems)
        self.next_offset = onto.next_offset
        self.passed_over = onto.passed_over
        self.transaction: list[tuple[int, Message, dict[str, Any]]] | None = None

    def tell(self, offset: int, value: bytes | memoryview | None) -> None:
        """Take in one record: now, or when its transaction ends."""
        self.next_offset = offset + 1
        try:
            decoded = decode(b"" if value is None else value)
        except CorruptMessageError as error:
            self.problem(offset, error.what)
            return
        if decoded is None:
            return
        message, fields = decoded
        if message.name == "BeginTransactionRecord":
            if self.transaction is not None:
                self.problem(offset, "a transaction begins inside another")
            self.transaction = []
        elif message.name in ("EndTransactionRecord", "AbortTransactionRecord"):
            waiting, self.transaction = self.transaction, None
            if waiting is None:
                self.problem(offset, f"{message.name} without a transaction")
            elif message.name == "EndTransactionRecord":
                for each in waiting:
                    self.count(*each)
        elif self.transaction is not None:
            self.transaction.append((offset, message, fields))
        else:
            self.count(offset, message, fields)

    def count(self, offset: int, message: Message, fields: dict[str, Any]) -> None:
        """Let one record change the state."""
        effect = _EFFECTS.get(message.name)
        wrong = effect(self, fields) if effect else None
        if wrong is not None:
            self.problem(offset, f"{message.name}: {wrong}")

    def problem(self, offset: int, what: str) -> None:
        self.problems.append(CorruptBatchError(f"Unreadable cluster metadata record: {what}", offset=offset))

    # Effects return what is wrong, or None.

    def topic(self, fields: dict[str, Any]) -> str | None:
        name, topic_id = fields["name"], fields["topic_id"]
        replaced = self.ids.get(name)
        if replaced is not None:
            self.remove_topic({"topic_id": replaced})
        self.ids[name], self.names[topic_id] = topic_id, name
        self.partitions[topic_id] = {}
        return None if replaced is None else f"{name} already exists"

    def partition(self, fields: dict[str, Any]) -> str | None:
        if fields["topic_id"] not in self.names:
            return f"no topic has the id {fields['topic_id']}"
        self.partitions[fields["topic_id"]][fields["partition_id"]] = Partition(
            **{name: fields[name] for name in Partition.__dataclass_fields__}
        )
        return None

    def partition_change(self, fields: dict[str, Any]) -> str | None:
        partitions = self.partitions.get(fields["topic_id"], {})
        before = partitions.get(fields["partition_id"])
        if before is None:
            return f"no partition {fields['partition_id']} of a topic with the id {fields['topic_id']}"
        changed = {name: fields[name] for name in _CHANGEABLE if fields[name] is not None}
        if fields["leader"] != _UNCHANGED_LEADER:
            changed |= {"leader": fields["leader"], "leader_epoch": before.leader_epoch + 1}
        if "replicas" in changed:
            changed.setdefault("directories", ())  # those known belong to the replicas before
        partitions[fields["partition_id"]] = replace(before, **changed)
        return None

    def remove_topic(self, fields: dict[str, Any]) -> str | None:
        name = self.names.pop(fields["topic_id"], None)
        if name is None:
            return f"no topic has the id {fields['topic_id']}"
        del self.ids[name], self.partitions[fields["topic_id"]]
        self.topic_configs.pop(name, None)
        return None

    def config(self, fields: dict[str, Any]) -> None:
        of = {TOPIC_RESOURCE: self.topic_configs, BROKER_RESOURCE: self.broker_configs}.get(fields["resource_type"])
        if of is None:
            return
        texts = of.setdefault(fields["resource_name"], {})
        if fields["value"] is None:
            texts.pop(fields["name"], None)
        else:
            texts[fields["name"]] = fields["value"]

    def feature_level(self, fields: dict[str, Any]) -> None:
        if fields["feature_level"]:
            self.features[fields["name"]] = fields["feature_level"]
        else:
            self.features.pop(fields["name"], None)

    def broker(self, fields: dict[str, Any]) -> None:
        self.brokers[fields["broker_id"]] = Broker(
            fields["broker_id"],
            fields["broker_epoch"],
            fields["rack"],
            tuple(EndPoint(one["name"], one["host"], one["port"]) for one in fields["end_points"]),
            fields["fenced"],
            fields["in_controlled_shutdown"],
            fields["log_dirs"],
        )

    def broker_change(self, fields: dict[str, Any]) -> str | None:
        changed: dict[str, Any] = {}
        if fields["fenced"]:  # -1: it no longer is
            changed["fenced"] = fields["fenced"] > 0
        if fields["in_controlled_shutdown"]:
            changed["in_controlled_shutdown"] = fields["in_controlled_shutdown"] > 0
        if fields["log_dirs"]:
            changed["directories"] = fields["log_dirs"]
        before = self.brokers.get(fields["broker_id"])
        if before is None:
            return f"no broker has the id {fields['broker_id']}"
        self.brokers[fields["broker_id"]] = replace(before, **changed)
        return None

    def unregister_broker(self, fields: dict[str, Any]) -> str | None:
        known = self.brokers.pop(fields["broker_id"], None)
        return f"no broker has the id {fields['broker_id']}" if known is None else None

    def end(self, next_offset: int | None) -> ClusterMetadata:
        """The state as a value. A transaction that has not ended is left out."""
        return ClusterMetadata(
            topics={
                name: Topic(name, topic_id, self.partitions[topic_id]) for name, topic_id in sorted(self.ids.items())
            },
            topic_configs=self.topic_configs,
            broker_configs=self.broker_configs,
            brokers=self.brokers,
            features=self.features,
            problems=tuple(self.problems),
            next_offset=self.next_offset if next_offset is None else next_offset,
            passed_over=self.passed_over,
        )


_CHANGEABLE = ("isr", "replicas", "removing_replicas", "adding_replicas", "directories")
_EFFECTS = {
    "RegisterBrokerRecord": _Story.broker,
    "UnregisterBrokerRecord": _Story.unregister_broker,
    "TopicRecord": _Story.topic,
    "PartitionRecord": _Story.partition,
    "ConfigRecord": _Story.config,
    "PartitionChangeRecord": _Story.partition_change,
    "RemoveTopicRecord": _Story.remove_topic,
    "FeatureLevelRecord": _Story.feature_level,
    "BrokerRegistrationChangeRecord": _Story.broker_change,
}
