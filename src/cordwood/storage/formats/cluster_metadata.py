"""What a KRaft cluster's metadata log says of topics, replicas and configs.

`__cluster_metadata-0` is an ordinary log whose data records are the cluster's history: a topic was created, a config
set, a partition moved. Here it is replayed, as far as it concerns logs. Each record's value is one framed message::

    uvarint frame version (1) | uvarint type | uvarint version | message

and a message is its fields in order, then tagged fields, in Kafka's flexible encoding::

    intN     big-endian                          string   uvarint length + 1 (0: null) | UTF-8
    uuid     16 bytes                            []type   uvarint count + 1 (0: null) | items
    struct   its fields | tags                   tags     uvarint count | (uvarint tag | uvarint size | bytes) × count

`RECORDS` holds the fields of the types that matter here; other types are passed over. Snapshots (`*.checkpoint`) hold
such records too, as a summary. Control records belong to the log itself; leave them out when reading it.

Between a BeginTransaction and its EndTransaction record nothing counts yet; AbortTransaction or the end of the log
undoes it. A record that cannot be read becomes a problem, and replay continues without it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from cordwood.config import Layer, Source, SourceKind
from cordwood.errors import CorruptBatchError, DataError

#: The directory of the metadata log, as sources name it.
NAME = "__cluster_metadata-0"
FRAME_VERSION = 1
#: Resource types of ConfigRecord that concern logs.
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4

# ---- messages --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message.

    Attributes:
        type: a name of `_FIXED`, `string`, `uuid`, or one of these or of `STRUCTS` with `[]` before it.
        since: the first version that has it.
        nullable: whether null is allowed.
        tag: its number when it is a tagged field; then it may be absent, and is `default`.
    """

    name: str
    type: str
    since: int = 0
    nullable: bool = False
    tag: int | None = None
    default: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """A type of record or struct: its name, the last version known, and its fields in the order of the wire."""

    name: str
    last_version: int
    fields: tuple[Field, ...] = ()


@cache
def _layout(message: Message, version: int) -> tuple[dict[str, Any], list[Field], dict[int, Field]]:
    """A version's defaults by name, its fields in order, and its tagged fields by tag."""
    present = [each for each in message.fields if each.since <= version]
    return (
        {each.name: each.default for each in message.fields},
        [each for each in present if each.tag is None],
        {each.tag: each for each in present if each.tag is not None},
    )


_UNCHANGED_LEADER = -2

RECORDS: Mapping[int, Message] = {
    0: Message(
        "RegisterBrokerRecord",
        4,
        (
            Field("broker_id", "int32"),
            Field("is_migrating_zk_broker", "bool", since=2),
            Field("incarnation_id", "uuid"),
            Field("broker_epoch", "int64"),
            Field("end_points", "[]endpoint"),
            Field("features", "[]feature"),
            Field("rack", "string", nullable=True),
            Field("fenced", "bool"),
            Field("in_controlled_shutdown", "bool", since=1),
            Field("log_dirs", "[]uuid", since=3, tag=0, default=()),
            Field("cordoned_log_dirs", "[]uuid", since=4, tag=1, nullable=True),
        ),
    ),
    1: Message("UnregisterBrokerRecord", 0, (Field("broker_id", "int32"), Field("broker_epoch", "int64"))),
    2: Message("TopicRecord", 0, (Field("name", "string"), Field("topic_id", "uuid"))),
    3: Message(
        "PartitionRecord",
        2,
        (
            Field("partition_id", "int32"),
            Field("topic_id", "uuid"),
            Field("replicas", "[]int32"),
            Field("isr", "[]int32"),
            Field("removing_replicas", "[]int32"),
            Field("adding_replicas", "[]int32"),
            Field("leader", "int32"),
            Field("leader_recovery_state", "int8", tag=0, default=0),
            Field("leader_epoch", "int32"),
            Field("partition_epoch", "int32"),
            Field("directories", "[]uuid", since=1, default=()),
            Field("eligible_leader_replicas", "[]int32", since=2, nullable=True, tag=1),
            Field("last_known_elr", "[]int32", since=2, nullable=True, tag=2),
        ),
    ),
    4: Message(
        "ConfigRecord",
        0,
        (
            Field("resource_type", "int8"),
            Field("resource_name", "string"),
            Field("name", "string"),
            Field("value", "string", nullable=True),
        ),
    ),
    5: Message(
        "PartitionChangeRecord",
        2,
        (
            Field("partition_id", "int32"),
            Field("topic_id", "uuid"),
            Field("isr", "[]int32", nullable=True, tag=0),
            Field("leader", "int32", tag=1, default=_UNCHANGED_LEADER),
            Field("replicas", "[]int32", nullable=True, tag=2),
            Field("removing_replicas", "[]int32", nullable=True, tag=3),
            Field("adding_replicas", "[]int32", nullable=True, tag=4),
            Field("leader_recovery_state", "int8", tag=5, default=-1),
            Field("eligible_leader_replicas", "[]int32", since=2, nullable=True, tag=6),
            Field("last_known_elr", "[]int32", since=2, nullable=True, tag=7),
            Field("directories", "[]uuid", since=1, nullable=True, tag=8),
        ),
    ),
    9: Message("RemoveTopicRecord", 0, (Field("topic_id", "uuid"),)),
    12: Message("FeatureLevelRecord", 0, (Field("name", "string"), Field("feature_level", "int16"))),
    17: Message(
        "BrokerRegistrationChangeRecord",
        3,
        (
            Field("broker_id", "int32"),
            Field("broker_epoch", "int64"),
            Field("fenced", "int8", tag=0, default=0),
            Field("in_controlled_shutdown", "int8", since=1, tag=1, default=0),
            Field("log_dirs", "[]uuid", since=2, tag=2, default=()),
            Field("cordoned_log_dirs", "[]uuid", since=3, tag=3, nullable=True),
        ),
    ),
    20: Message("NoOpRecord", 0),
    23: Message("BeginTransactionRecord", 0, (Field("name", "string", nullable=True, tag=0),)),
    24: Message("EndTransactionRecord", 0),
    25: Message("AbortTransactionRecord", 0, (Field("reason", "string", nullable=True, tag=0),)),
}

STRUCTS: Mapping[str, Message] = {
    "endpoint": Message(
        "BrokerEndpoint",
        4,
        (
            Field("name", "string"),
            Field("host", "string"),
            Field("port", "uint16"),
            Field("security_protocol", "int16"),
        ),
    ),
    "feature": Message(
        "BrokerFeature",
        4,
        (
            Field("name", "string"),
            Field("min_supported_version", "int16"),
            Field("max_supported_version", "int16"),
        ),
    ),
}

#: Size in bytes and whether there is a sign.
_FIXED = {"int8": (1, True), "int16": (2, True), "uint16": (2, False), "int32": (4, True), "int64": (8, True)}


class _Reader:
    """Takes values off the front of some bytes; ValueError where they are not there or not right."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def left(self) -> int:
        return len(self.data) - self.position

    def take(self, size_bytes: int) -> bytes:
        if size_bytes > self.left():
            raise ValueError(f"{size_bytes} bytes at byte {self.position}, where {self.left()} are left")
        self.position += size_bytes
        return self.data[self.position - size_bytes : self.position]

    def uvarint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        if byte >= 0x80 or value > 0x7FFFFFFF:
            raise ValueError(f"a varint of more than 31 bits before byte {self.position}")
        return value

    def value(self, field_type: str, version: int, nullable: bool = False) -> Any:
        """One value of a type; arrays as tuples, structs as dicts, uuids as Kafka writes them."""
        if field_type in _FIXED:
            size_bytes, signed = _FIXED[field_type]
            return int.from_bytes(self.take(size_bytes), "big", signed=signed)
        if field_type == "bool":
            return self.take(1) != b"\0"
        if field_type == "uuid":
            return base64.urlsafe_b64encode(self.take(16)).decode().rstrip("=")
        if field_type in STRUCTS:
            return self.fields(STRUCTS[field_type], version)
        count = self.uvarint() - 1
        if count < 0:
            if not nullable:
                raise ValueError(f"null before byte {self.position}, where it is not allowed")
            return None
        if field_type == "string":
            return self.take(count).decode()
        if count > self.left():  # an item has a byte at least: what the bytes can't hold is never made room for
            raise ValueError(f"{count} items at byte {self.position}, where {self.left()} bytes are left")
        return tuple(self.value(field_type.removeprefix("[]"), version) for _ in range(count))

    def fields(self, message: Message, version: int) -> dict[str, Any]:
        """The fields of a message or struct, those that are absent with their default."""
        defaults, in_order, tagged = _layout(message, version)
        values = dict(defaults)
        for each in in_order:
            values[each.name] = self.value(each.type, version, each.nullable)
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            content = _Reader(self.take(self.uvarint()))
            if tag in tagged:
                values[tagged[tag].name] = content.value(tagged[tag].type, version, tagged[tag].nullable)
                content.end()
        return values

    def end(self) -> None:
        if self.left():
            raise ValueError(f"{self.left()} bytes too many")


def decode(value: bytes | memoryview) -> tuple[Message, dict[str, Any]] | None:
    """One record's message and fields; None when its type does not matter here.

    Raises:
        ValueError: the bytes are no such message, or one of a version that Kafka 4.3.1 does not know.
    """
    reader = _Reader(bytes(value))
    frame_version = reader.uvarint()
    if frame_version != FRAME_VERSION:
        raise ValueError(f"frame version {frame_version}, not {FRAME_VERSION}")
    message = RECORDS.get(reader.uvarint())
    if message is None:
        return None
    version = reader.uvarint()
    if version > message.last_version:
        raise ValueError(f"{message.name} of version {version}; the last one known is {message.last_version}")
    try:
        fields = reader.fields(message, version)
        reader.end()
    except ValueError as error:  # UnicodeDecodeError too
        raise ValueError(f"{message.name} of version {version}: {error}") from None
    return message, fields


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
class ClusterMetadata:
    """The cluster as of `next_offset`.

    A problem leaves what it might have said in doubt: with any, treat policies and replica counts as unknown.

    Attributes:
        topics: topics by name; deleted ones are gone.
        topic_configs: by topic, the texts that were set for it.
        broker_configs: by broker id as text, and under "" the cluster's default.
        broker_directories: by broker id, the ids of its log directories.
        features: finalized levels, `metadata.version` among them.
        problems: records that could not be read or did not fit what was before them, in order.
        next_offset: where a log continues this; lower offsets are already in it.
    """

    topics: Mapping[str, Topic] = field(default_factory=dict)
    topic_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    broker_directories: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[DataError, ...] = ()
    next_offset: int = 0

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
        self.broker_directories = dict(onto.broker_directories)
        self.features = dict(onto.features)
        self.problems = list(onto.problems)
        self.next_offset = onto.next_offset
        self.transaction: list[tuple[int, Message, dict[str, Any]]] | None = None

    def tell(self, offset: int, value: bytes | memoryview | None) -> None:
        """Take in one record: now, or when its transaction ends."""
        self.next_offset = offset + 1
        try:
            decoded = decode(b"" if value is None else value)
        except ValueError as error:
            self.problem(offset, str(error))
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
        self.broker_directories[fields["broker_id"]] = fields["log_dirs"]

    def broker_change(self, fields: dict[str, Any]) -> str | None:
        if fields["broker_id"] not in self.broker_directories:
            return f"no broker has the id {fields['broker_id']}"
        if fields["log_dirs"]:
            self.broker_directories[fields["broker_id"]] = fields["log_dirs"]
        return None

    def unregister_broker(self, fields: dict[str, Any]) -> str | None:
        known = self.broker_directories.pop(fields["broker_id"], None)
        return f"no broker has the id {fields['broker_id']}" if known is None else None

    def end(self, next_offset: int | None) -> ClusterMetadata:
        """The state as a value. A transaction that has not ended is left out."""
        return ClusterMetadata(
            topics={
                name: Topic(name, topic_id, self.partitions[topic_id]) for name, topic_id in sorted(self.ids.items())
            },
            topic_configs=self.topic_configs,
            broker_configs=self.broker_configs,
            broker_directories=self.broker_directories,
            features=self.features,
            problems=tuple(self.problems),
            next_offset=self.next_offset if next_offset is None else next_offset,
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
