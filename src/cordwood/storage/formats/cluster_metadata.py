"""Topics, replicas and configs in a KRaft cluster's metadata log.

The data records of the log `__cluster_metadata-0` are the cluster's history: a topic was created, a config set, a
partition moved. This module replays the records that concern logs. `messages.metadata_records` defines the records, and
`messages.topics` their framing. `RECORDS` has the types that matter here; other types are skipped. Snapshots
(`*.checkpoint`) hold such records too, as a summary. Control records belong to the log itself; leave them out when
reading it.

Records between a BeginTransaction and its EndTransaction record take effect at the end; AbortTransaction or the end of
the log discards them. An unreadable record becomes a problem, and replay continues without it.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cordwood.common.config import Layer, Source, SourceKind
from cordwood.common.errors import CorruptBatchError, CorruptMessageError, DataError
from cordwood.storage.formats.messages import schema
from cordwood.storage.formats.messages.metadata_records import CLUSTER_RECORDS
from cordwood.storage.formats.messages.schema import Message, encode_uvarint
from cordwood.storage.formats.messages.topics import read_frame

#: The directory of the metadata log, for the names of sources.
NAME = "__cluster_metadata-0"
#: Resource types of ConfigRecord that concern logs.
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
#: The leader in a change record that keeps the leader.
_UNCHANGED_LEADER = -2
#: The record types that matter here, by number.
RECORDS: Mapping[int, Message] = {
    number: CLUSTER_RECORDS[number].value for number in (0, 1, 2, 3, 4, 5, 9, 12, 17, 20, 23, 24, 25, 28)
}


def decode(value: bytes | memoryview) -> tuple[Message, dict[str, Any]] | None:
    """Decode one record to its message and fields; None if its type does not matter here.

    A name that is not UTF-8, a version newer than Kafka 4.3.1, and bytes after the message are errors: decisions that
    delete data depend on the result.

    Raises:
        CorruptMessageError: the bytes are not such a message.
    """
    number, version, start = read_frame(value)
    message = RECORDS.get(number)
    if message is None:
        return None
    if version > message.last_version:
        raise CorruptMessageError(f"{message.name} of version {version}; the last one known is {message.last_version}")
    decoded = schema.decode(message, version, value, start, text_errors="strict")
    if decoded.end < len(value):
        raise CorruptMessageError(f"{message.name} of version {version}: {len(value) - decoded.end} bytes too many")
    return message, decoded.fields


# ---- a change of replicas --------------------------------------------------------------------------------------------

#: Frame version, record type 5: PartitionChangeRecord. Its version follows.
_PARTITION_CHANGE = b"\x01\x05"
#: Leader of a partition that has none until a replica in sync has registered.
_NO_LEADER = -1


def encode_only_replica(
    topic_id: uuid.UUID, partition: int, broker: int, directory_id: uuid.UUID | None, *, clears_eligible: bool
) -> bytes:
    """Encode the record that makes a broker the only replica of a partition, in sync, with no leader yet.

    Args:
        directory_id: id of its log directory; None in a cluster without such ids (before 3.7).
        clears_eligible: the cluster has eligible leader replicas, which the record clears; needs `directory_id`.

    Source: Kafka PartitionChangeRecord.json; PartitionRegistration.merge.
    """
    only = _int32s([broker])
    tagged = {0: only, 1: struct.pack(">i", _NO_LEADER), 2: only, 3: _int32s([]), 4: _int32s([])}
    version = 0
    if directory_id is not None:
        version = 2 if clears_eligible else 1
        tagged |= {6: _int32s([]), 7: _int32s([])} if clears_eligible else {}
        tagged[8] = encode_uvarint(2) + directory_id.bytes
    fields = b"".join(encode_uvarint(tag) + encode_uvarint(len(data)) + data for tag, data in sorted(tagged.items()))
    body = struct.pack(">i", partition) + topic_id.bytes + encode_uvarint(len(tagged)) + fields
    return _PARTITION_CHANGE + encode_uvarint(version) + body


def _int32s(numbers: Sequence[int]) -> bytes:
    return encode_uvarint(len(numbers) + 1) + b"".join(struct.pack(">i", one) for one in numbers)


# ---- the resulting state ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionReplicas:
    """The replicas of a partition, by node.id.

    Attributes:
        directories: a log directory id per replica; empty in clusters before 3.7.
        eligible_leader_replicas: replicas that are not in sync any more, as their brokers stopped, but have all
            committed records; empty in clusters before 4.0.
        last_known_elr: after the last of these stopped uncleanly, the last leader.
    """

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    removing_replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    directories: tuple[str, ...]
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic and its partitions by number. `topic_id` has the form of `partition.metadata`."""

    name: str
    topic_id: str
    partitions: Mapping[int, PartitionReplicas]


@dataclass(frozen=True, slots=True)
class EndPoint:
    """A listener of a broker."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Broker:
    """A registered broker.

    Attributes:
        fenced: it leads no partition, because it has not caught up or its heartbeats are missing.
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

    An unreadable record may hide any change: if there are problems, treat policies and replica counts as unknown.

    Attributes:
        topic_configs: explicitly set configs, by topic.
        broker_configs: explicitly set configs, by broker id as text; the cluster's defaults under "".
        brokers: by broker id.
        features: finalized levels, including `metadata.version`.
        problems: records that are unreadable or contradict earlier ones, in order.
        next_offset: the offset at which a log continues; lower offsets are already included.
        passed_over: damage in newer snapshots. An older snapshot and the log, which together are complete, were read
            instead.
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
        """Return the configs that were set for a topic; empty for an unknown topic."""
        return self.topic_configs.get(topic, {})

    def replica_count(self, topic: str, partition: int) -> int | None:
        """Return the number of a partition's replicas, including ones being added or removed; None if unknown."""
        known = self.topics.get(topic)
        if known is None or partition not in known.partitions:
            return None
        return len(known.partitions[partition].replicas)

    def is_tiered(self, topic: str) -> bool:
        """Return whether closed segments may be in remote storage: true for any config value except `false`."""
        return self.topic_config(topic).get("remote.storage.enable", "false").strip().lower() != "false"

    def layers(self, topic: str, broker_id: int | None, where: str = NAME) -> tuple[Layer, ...]:
        """Return the layers for `config.resolve`: the cluster's default, the broker's and the topic's configs.

        Args:
            broker_id: `node.id` of the log directory's meta.properties, or None.
            where: name of the metadata log in sources.
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
    """Replay data records of the log, in order, on top of a snapshot or an earlier part of the log.

    Args:
        records: offset and value of each data record; records below `onto.next_offset` are skipped.
    """
    story = _Story(onto)
    for offset, value in records:
        if offset >= onto.next_offset:
            story.tell(offset, value)
    return story.end(None)


def load_snapshot(records: Iterable[tuple[int, bytes | memoryview | None]], end_offset: int) -> ClusterMetadata:
    """Replay the data records of a snapshot file, whose offsets number only its own records.

    Args:
        end_offset: the first number in its file name, at which the log continues. 0 for `bootstrap.checkpoint`.
    """
    story = _Story(EMPTY)
    for offset, value in records:
        story.tell(offset, value)
    return story.end(end_offset)


class _Story:
    """The state during a replay."""

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
        """Apply one record: immediately, or at the end of its transaction."""
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
        """Apply one record to the state."""
        effect = _EFFECTS.get(message.name)
        wrong = effect(self, fields) if effect else None
        if wrong is not None:
            self.problem(offset, f"{message.name}: {wrong}")

    def problem(self, offset: int, what: str) -> None:
        self.problems.append(CorruptBatchError(f"Unreadable cluster metadata record: {what}", offset=offset))

    # Effects return an error, or None.

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
        values: dict[str, Any] = {name: fields[name] for name in PartitionReplicas.__dataclass_fields__}
        given = {name: value for name, value in values.items() if value is not None}
        self.partitions[fields["topic_id"]][fields["partition_id"]] = PartitionReplicas(**given)
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
            changed.setdefault("directories", ())  # the old ones belong to the old replicas
        partitions[fields["partition_id"]] = replace(before, **changed)
        return None

    def clear_elr(self, fields: dict[str, Any]) -> str | None:
        """Forget the eligible leaders of a topic, or of all topics."""
        name = fields["topic_name"]
        if name and name not in self.ids:
            return f"no topic {name}"
        for topic_id in [self.ids[name]] if name else self.ids.values():
            partitions = self.partitions[topic_id]
            for number, before in partitions.items():
                partitions[number] = replace(before, eligible_leader_replicas=(), last_known_elr=())
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
        if fields["fenced"]:  # -1: unfence
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
        """Return the state as a value, without an unfinished transaction."""
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


_CHANGEABLE = (
    "isr",
    "replicas",
    "removing_replicas",
    "adding_replicas",
    "directories",
    "eligible_leader_replicas",
    "last_known_elr",
)
_EFFECTS = {
    "RegisterBrokerRecord": _Story.broker,
    "UnregisterBrokerRecord": _Story.unregister_broker,
    "TopicRecord": _Story.topic,
    "PartitionRecord": _Story.partition,
    "ConfigRecord": _Story.config,
    "PartitionChangeRecord": _Story.partition_change,
    "ClearElrRecord": _Story.clear_elr,
    "RemoveTopicRecord": _Story.remove_topic,
    "FeatureLevelRecord": _Story.feature_level,
    "BrokerRegistrationChangeRecord": _Story.broker_change,
}
