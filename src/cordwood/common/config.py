"""Kafka's configs: their names, types, defaults and limits, and the source of each value.

Two tables follow Kafka 4.3.1: `TOPIC_CONFIGS`, and `BROKER_CONFIGS` with the broker configs that concern logs.
A topic config has broker *synonyms*: the broker configs that give its default, some in another unit. The first synonym
that is set counts.

Config texts are in layers, one per source; a later kind of source overrides an earlier one::

    default < server.properties < cluster default (dynamic) < broker (dynamic) < topic < --config < --config topic:

but a topic config, whatever its source, overrides every broker config. `resolve` turns layers into values that include
their source, so that a command that deletes can name the source, and can ignore values that are only defaults.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol, TypeAlias

from cordwood.common import java_properties
from cordwood.common.errors import ConfigError
from cordwood.common.types import Codec

Value: TypeAlias = bool | int | float | str | tuple[str, ...] | None

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
#: Kafka does not start unless each cleaner thread has more than this for its offset map.
DEDUPE_BUFFER_BYTES_MIN = 1024 * 1024

# ---- types: parse texts into values ----------------------------------------------------------------------------------

#: Characters that Java's `trim` removes.
_BLANKS = "".join(map(chr, range(0x21)))
_COMMA = re.compile(r"[ \t\n\v\f\r]*,[ \t\n\v\f\r]*")
_WHOLE = re.compile(r"[+-]?\d{1,100}")
#: Java would also accept NaN, infinities and hexadecimal fractions.
_REAL = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)[df]?", re.ASCII | re.IGNORECASE)


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _whole(text: str, maximum: int) -> int:
    if not _WHOLE.fullmatch(text) or not -maximum - 1 <= int(text) <= maximum:
        raise ValueError(text)
    return int(text)


def _real(text: str) -> float:
    found = _REAL.fullmatch(text)
    if found is None or (value := float(found[1])) in (float("inf"), float("-inf")):
        raise ValueError(text)
    return value


def _list(text: str) -> tuple[str, ...]:
    return tuple(_COMMA.split(text)) if text else ()


class Type(Enum):
    """Kafka's config types, by Kafka's names."""

    BOOLEAN = ("true or false", _boolean)
    INT = ("a whole number of 32 bits", lambda text: _whole(text, INT_MAX))
    LONG = ("a whole number of 64 bits", lambda text: _whole(text, LONG_MAX))
    DOUBLE = ("a number", _real)
    STRING = ("a word", str)
    LIST = ("a list with commas, may be empty", _list)

    def __init__(self, words: str, read: Callable[[str], Value]) -> None:
        self.words = words
        self.read = read


# ---- validity: rules for values --------------------------------------------------------------------------------------


class Validity(Protocol):
    """A rule for values. Its text form is Kafka's own notation."""

    @property
    def words(self) -> str:
        """The rule in words."""
        ...

    def allows(self, value: Value) -> bool:
        """Return whether a value of the config's type satisfies the rule."""
        ...


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `lowest` to `highest`, both included, and `also`."""

    lowest: int
    highest: int | None = None
    also: int | None = None

    def allows(self, value: Value) -> bool:
        """Return whether a number is in the range."""
        assert isinstance(value, int | float)
        return value == self.also or (self.lowest <= value and (self.highest is None or value <= self.highest))

    @property
    def words(self) -> str:
        """The range in words."""
        limits = f"at least {self.lowest}" if self.highest is None else f"between {self.lowest} and {self.highest}"
        return limits if self.also is None else f"{limits}, or {self.also}"

    def __str__(self) -> str:
        limits = f"[{self.lowest},...]" if self.highest is None else f"[{self.lowest},...,{self.highest}]"
        return limits if self.also is None else f"{limits} or {self.also}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of some words; for a list: each item is one of them."""

    allowed: tuple[str, ...]

    def allows(self, value: Value) -> bool:
        """Return whether the word, or each word of the list, is allowed."""
        return all(word in self.allowed for word in (value if isinstance(value, tuple) else (value,)))

    @property
    def words(self) -> str:
        """The allowed words."""
        return "of " + ", ".join(self.allowed)

    def __str__(self) -> str:
        return f"[{', '.join(self.allowed)}]"


@dataclass(frozen=True, slots=True)
class ThrottledReplicas:
    """`*`, or a list of partition:broker."""

    def allows(self, value: Value) -> bool:
        """Return whether this is `*` or a list of pairs of numbers."""
        assert isinstance(value, tuple)
        return value == ("*",) or all(re.fullmatch(r"(\d+:\d+)?", item) for item in value)

    @property
    def words(self) -> str:
        """The form of the list."""
        return "of partition:broker, or *"

    def __str__(self) -> str:
        return "[partitionId]:[brokerId],[partitionId]:[brokerId],..."


# ---- sources ---------------------------------------------------------------------------------------------------------


class SourceKind(Enum):
    """Kinds of sources; a later one overrides an earlier one."""

    DEFAULT = "default"
    SERVER_PROPERTIES = "server.properties: {where}"
    CLUSTER = "cluster default (dynamic) in {where}"
    BROKER = "broker {subject} (dynamic) in {where}"
    INTERNAL = "set by Kafka when it creates {subject}"
    REMEMBERED = "remembered in {where}"
    TOPIC = "topic {subject} in {where}"
    OVERRIDE = "--config"
    TOPIC_OVERRIDE = "--config {subject}:"
    UPDATE = "update_topic_config of {subject}"


_RANK = {kind: rank for rank, kind in enumerate(SourceKind)}
_SETS_BROKER = {SourceKind.SERVER_PROPERTIES, SourceKind.CLUSTER, SourceKind.BROKER, SourceKind.OVERRIDE}
_OF_ONE_TOPIC = {
    SourceKind.INTERNAL,
    SourceKind.REMEMBERED,
    SourceKind.TOPIC,
    SourceKind.TOPIC_OVERRIDE,
    SourceKind.UPDATE,
}
_SETS_TOPIC = {*_OF_ONE_TOPIC, SourceKind.OVERRIDE}
_FILES = {SourceKind.SERVER_PROPERTIES, SourceKind.CLUSTER, SourceKind.BROKER, SourceKind.TOPIC}


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a value.

    Attributes:
        where: the file or partition directory that contains it.
        subject: the topic or broker that it applies to.
    """

    kind: SourceKind
    where: str = ""
    subject: str = ""

    @property
    def explicit(self) -> bool:
        """Whether this is a source that sets values, as opposed to Kafka's defaults."""
        return self.kind is not SourceKind.DEFAULT

    def __str__(self) -> str:
        return self.kind.value.format(where=self.where, subject=self.subject)


DEFAULT = Source(SourceKind.DEFAULT)
#: Configs that Kafka's coordinators set when they create their topics, independent of the broker's own configs.
_INTERNAL_SEGMENT_BYTES = {"segment.bytes": str(100 << 20)}
INTERNAL_CONFIGS: Mapping[str, Mapping[str, str]] = {
    "__consumer_offsets": {"cleanup.policy": "compact", **_INTERNAL_SEGMENT_BYTES},
    "__transaction_state": {"cleanup.policy": "compact", **_INTERNAL_SEGMENT_BYTES},
    # Not compacted: an update contains only changes since the last snapshot. The coordinator deletes records itself.
    "__share_group_state": {"cleanup.policy": "delete", "retention.ms": "-1", **_INTERNAL_SEGMENT_BYTES},
    "__remote_log_metadata": {"cleanup.policy": "delete", "retention.ms": "-1"},
}


@dataclass(frozen=True, slots=True)
class Layer:
    """Config texts of one source, by name."""

    source: Source
    texts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A value, its source, and the name under which it was set.

    Attributes:
        value: in the unit of the requested config.
        set_as: the name in its source: the config's own or a broker synonym, such as `log.retention.hours`. For people
            only: no table has its values by this name.
    """

    value: Value
    source: Source
    set_as: str

    @property
    def explicit(self) -> bool:
        """Whether a source sets this value, as opposed to Kafka's default."""
        return self.source.explicit

    def __str__(self) -> str:
        return f"{show(self.value)} ({self.source})"


def show(value: Value) -> str:
    """Format a value as Kafka would write it."""
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


# ---- definitions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker config that gives a topic config's default; one unit of it is `scale` units of the topic's."""

    name: str
    scale: int = 1


@dataclass(frozen=True, slots=True)
class Definition:
    """One config. `synonyms`: the broker configs of a topic config, in order of precedence."""

    name: str
    type: Type
    default: Value
    valid: Validity | None = None
    synonyms: tuple[Synonym, ...] = ()

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        return self.type.words if self.valid is None else f"{self.type.words}, {self.valid.words}"

    def limits(self, source: Source | None) -> Validity | None:
        """Return the rule for values of a source: values in files may be older than the rule of Kafka 4.3.1."""
        return _VALID_ONCE.get(self.name, self.valid) if source and source.kind in _FILES else self.valid

    def parse(self, text: str, source: Source | None = None) -> Value:
        """Parse a value as Kafka does.

        Raises:
            ConfigError: Kafka would reject it. Differs: Kafka accepts NaN, infinities and hexadecimal fractions.
        """
        try:
            value = self.type.read(text.strip(_BLANKS))
        except (ValueError, KeyError):
            raise _refused(self.name, text, source, self.allowed) from None
        valid = self.limits(source)
        if valid is not None and not valid.allows(value):
            raise _refused(self.name, text, source, self.allowed)
        if isinstance(value, tuple) and isinstance(valid, OneOf):
            return tuple(dict.fromkeys(value))
        return value


def _refused(name: str, text: str, source: Source | None, allowed: str) -> ConfigError:
    place = f" ({source})" if source else ""
    return ConfigError(f"{name}={text}{place} is not a value that Kafka accepts. Allowed: {allowed}.")


def _topic(
    name: str, kind: Type, default: Value, valid: Validity | None = None, *synonyms: str | Synonym
) -> Definition:
    return Definition(name, kind, default, valid, tuple(Synonym(s) if isinstance(s, str) else s for s in synonyms))


_POLICY = OneOf(("compact", "delete"))
_CODEC = OneOf(("uncompressed", *(codec.label for codec in reversed(Codec) if codec is not Codec.NONE), "producer"))
_TIMESTAMP = OneOf(("CreateTime", "LogAppendTime"))
_BOOL, _INT, _LONG, _DOUBLE, _STRING, _LIST = Type.BOOLEAN, Type.INT, Type.LONG, Type.DOUBLE, Type.STRING, Type.LIST
_AT_LEAST_0, _AT_LEAST_1 = Range(0), Range(1)

TOPIC_CONFIGS: Mapping[str, Definition] = {
    definition.name: definition
    for definition in (
        _topic("cleanup.policy", _LIST, ("delete",), _POLICY, "log.cleanup.policy"),
        _topic("compression.gzip.level", _INT, -1, Range(1, 9, also=-1), "compression.gzip.level"),
        _topic("compression.lz4.level", _INT, 9, Range(1, 17), "compression.lz4.level"),
        _topic("compression.type", _STRING, "producer", _CODEC, "compression.type"),
        _topic("compression.zstd.level", _INT, 3, Range(-131072, 22), "compression.zstd.level"),
        _topic("delete.retention.ms", _LONG, DAY_MS, _AT_LEAST_0, "log.cleaner.delete.retention.ms"),
        _topic("file.delete.delay.ms", _LONG, MINUTE_MS, _AT_LEAST_0, "log.segment.delete.delay.ms"),
        _topic("flush.messages", _LONG, LONG_MAX, _AT_LEAST_1, "log.flush.interval.messages"),
        _topic("flush.ms", _LONG, LONG_MAX, _AT_LEAST_0, "log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
        _topic("follower.replication.throttled.replicas", _LIST, (), ThrottledReplicas()),
        _topic("index.interval.bytes", _INT, 4096, _AT_LEAST_0, "log.index.interval.bytes"),
        _topic("internal.segment.bytes", _INT, None),
        _topic("leader.replication.throttled.replicas", _LIST, (), ThrottledReplicas()),
        _topic("local.retention.bytes", _LONG, -2, Range(-2), "log.local.retention.bytes"),
        _topic("local.retention.ms", _LONG, -2, Range(-2), "log.local.retention.ms"),
        _topic("max.compaction.lag.ms", _LONG, LONG_MAX, _AT_LEAST_1, "log.cleaner.max.compaction.lag.ms"),
        _topic("max.message.bytes", _INT, 1024 * 1024 + 12, _AT_LEAST_0, "message.max.bytes"),
        _topic("message.timestamp.after.max.ms", _LONG, HOUR_MS, _AT_LEAST_0, "log.message.timestamp.after.max.ms"),
        _topic("message.timestamp.before.max.ms", _LONG, LONG_MAX, _AT_LEAST_0, "log.message.timestamp.before.max.ms"),
        _topic("message.timestamp.type", _STRING, "CreateTime", _TIMESTAMP, "log.message.timestamp.type"),
        _topic("min.cleanable.dirty.ratio", _DOUBLE, 0.5, Range(0, 1), "log.cleaner.min.cleanable.ratio"),
        _topic("min.compaction.lag.ms", _LONG, 0, _AT_LEAST_0, "log.cleaner.min.compaction.lag.ms"),
        _topic("min.insync.replicas", _INT, 1, _AT_LEAST_1, "min.insync.replicas"),
        _topic("preallocate", _BOOL, False, None, "log.preallocate"),
        _topic("remote.log.copy.disable", _BOOL, False),
        _topic("remote.log.delete.on.disable", _BOOL, False),
        _topic("remote.storage.enable", _BOOL, False),
        _topic("retention.bytes", _LONG, -1, None, "log.retention.bytes"),
        _topic(
            "retention.ms",
            _LONG,
            7 * DAY_MS,
            Range(-1),
            "log.retention.ms",
            Synonym("log.retention.minutes", MINUTE_MS),
            Synonym("log.retention.hours", HOUR_MS),
        ),
        _topic("segment.bytes", _INT, 1 << 30, Range(1 << 20), "log.segment.bytes"),
        _topic("segment.index.bytes", _INT, 10 * 1024 * 1024, Range(4), "log.index.size.max.bytes"),
        _topic(
            "segment.jitter.ms", _LONG, 0, _AT_LEAST_0, "log.roll.jitter.ms", Synonym("log.roll.jitter.hours", HOUR_MS)
        ),
        _topic("segment.ms", _LONG, 7 * DAY_MS, _AT_LEAST_1, "log.roll.ms", Synonym("log.roll.hours", HOUR_MS)),
        _topic("unclean.leader.election.enable", _BOOL, False, None, "unclean.leader.election.enable"),
    )
}

#: Limits of brokers before 4.0. Such values may still be in metadata and in server.properties; 4.3.1 itself fails on
#: them in the metadata, and does not start with them in the file.
_VALID_ONCE: Mapping[str, Validity] = {"segment.bytes": Range(14), "log.segment.bytes": Range(14)}


def _broker_configs() -> Iterator[Definition]:
    """Yield configs with their own definitions first, then synonyms that differ from a topic config only in name."""
    yield from (
        Definition("background.threads", _INT, 10, _AT_LEAST_1),
        Definition("cordoned.log.dirs", _LIST, ()),
        Definition("log.cleaner.backoff.ms", _LONG, 15_000, _AT_LEAST_0),
        Definition("log.cleaner.dedupe.buffer.size", _LONG, 128 * 1024 * 1024),
        Definition("log.cleaner.enable", _BOOL, True),
        Definition("log.cleaner.io.buffer.load.factor", _DOUBLE, 0.9),
        Definition("log.cleaner.io.buffer.size", _INT, 512 * 1024, _AT_LEAST_0),
        Definition("log.cleaner.io.max.bytes.per.second", _DOUBLE, 1.7976931348623157e308),
        Definition("log.cleaner.threads", _INT, 1, _AT_LEAST_0),
        Definition("log.dir.failure.timeout.ms", _LONG, 30_000, _AT_LEAST_1),
        Definition("log.flush.interval.ms", _LONG, None),
        Definition("log.flush.offset.checkpoint.interval.ms", _INT, MINUTE_MS, _AT_LEAST_0),
        Definition("log.flush.scheduler.interval.ms", _LONG, LONG_MAX),
        Definition("log.flush.start.offset.checkpoint.interval.ms", _INT, MINUTE_MS, _AT_LEAST_0),
        Definition("log.initial.task.delay.ms", _LONG, 30_000, _AT_LEAST_0),
        Definition("log.retention.check.interval.ms", _LONG, 5 * MINUTE_MS, _AT_LEAST_1),
        Definition("log.retention.hours", _INT, 168),
        Definition("log.retention.minutes", _INT, None),
        Definition("log.retention.ms", _LONG, None),
        Definition("log.roll.hours", _INT, 168, _AT_LEAST_1),
        Definition("log.roll.jitter.hours", _INT, 0, _AT_LEAST_0),
        Definition("log.roll.jitter.ms", _LONG, None),
        Definition("log.roll.ms", _LONG, None),
        Definition("num.recovery.threads.per.data.dir", _INT, 2, _AT_LEAST_1),
        Definition("offsets.topic.num.partitions", _INT, 50, _AT_LEAST_1),
        Definition("producer.id.expiration.check.interval.ms", _INT, 10 * MINUTE_MS, _AT_LEAST_1),
        Definition("producer.id.expiration.ms", _INT, DAY_MS, _AT_LEAST_1),
        Definition("remote.log.manager.task.interval.ms", _LONG, 30_000, _AT_LEAST_1),
        Definition("remote.log.storage.system.enable", _BOOL, False),
        Definition("replica.high.watermark.checkpoint.interval.ms", _LONG, 5_000),
        Definition("transaction.max.timeout.ms", _INT, 15 * MINUTE_MS, _AT_LEAST_1),
        Definition("transaction.partition.verification.enable", _BOOL, True),
        Definition("transaction.state.log.num.partitions", _INT, 50, _AT_LEAST_1),
    )
    for definition in TOPIC_CONFIGS.values():
        for synonym in definition.synonyms:
            yield replace(definition, name=synonym.name, synonyms=())


def _first_of_each(definitions: Iterable[Definition]) -> Mapping[str, Definition]:
    table: dict[str, Definition] = {}
    for definition in definitions:
        table.setdefault(definition.name, definition)
    return dict(sorted(table.items()))


BROKER_CONFIGS: Mapping[str, Definition] = _first_of_each(_broker_configs())


#: Broker configs that give topics their defaults.
SYNONYMS = {synonym.name for definition in TOPIC_CONFIGS.values() for synonym in definition.synonyms}


def unknown_config(name: str, known: Iterable[str]) -> ConfigError:
    """Return the error for a name that is not in `known`, with the nearest known name."""
    import difflib  # only a misspelled name needs it

    nearest = difflib.get_close_matches(name, list(known), n=1)
    hint = f" Did you mean {nearest[0]}?" if nearest else ""
    return ConfigError(f"{name} is not a config of Kafka 4.3.1, or not one that Cordwood uses.{hint}")


# ---- reading layers --------------------------------------------------------------------------------------------------


#: Kafka's defaults for deletion, as if server.properties set them: with this layer first, a `LogManager` deletes like a
#: broker without configs.
BROKER_DELETES = Layer(
    Source(SourceKind.SERVER_PROPERTIES, "Kafka's defaults"),
    {"log.cleanup.policy": "delete", "log.retention.hours": "168"},
)


def server_properties(data: bytes, path: str) -> Layer:
    """Return the layer of a broker's server.properties, without unknown configs and configs that don't concern logs.

    Raises:
        ConfigError: the file is malformed, or contains a value with which Kafka would not start.
    """
    source = Source(SourceKind.SERVER_PROPERTIES, path)
    texts = {name: text for name, text in properties_of(data, path).items() if name in BROKER_CONFIGS}
    for name, text in texts.items():
        BROKER_CONFIGS[name].parse(text, source)
    return Layer(source, texts)


def log_directories(data: bytes, path: str) -> tuple[str, ...]:
    """Return the log directories that a server.properties names, including the metadata log's directory.

    Raises:
        ConfigError: the file is malformed.
    """
    properties = properties_of(data, path)
    listed = properties.get("log.dirs") or properties.get("log.dir") or ""
    named = [*listed.split(","), properties.get("metadata.log.dir") or ""]
    return tuple(dict.fromkeys(one.strip().rstrip("/") for one in named if one.strip().rstrip("/")))


def properties_of(data: bytes, path: str) -> Mapping[str, str]:
    """Return all configs in a server.properties, also those of plugins.

    Raises:
        ConfigError: the file is malformed.
    """
    try:
        return java_properties.decode(data).values()
    except java_properties.PropertiesError as error:
        source = Source(SourceKind.SERVER_PROPERTIES, path)
        raise ConfigError(f"{source} is not in the properties format: {error}.") from None


def overrides(arguments: Iterable[str]) -> tuple[Layer, ...]:
    """Return the layers of `--config` arguments: `key=value` for all topics or the broker, `topic:key=value` for one.

    Raises:
        ConfigError: an argument of another form, an unknown name (with the nearest known one), or a wrong value.
    """
    texts: dict[str, dict[str, str]] = {}
    for argument in arguments:
        left, equals, text = argument.partition("=")
        topic, colon, name = left.rpartition(":")
        if not equals or (colon and not topic) or ":" in topic:
            raise ConfigError(f"--config {argument}: write key=value, or topic:key=value for one topic.")
        definition = TOPIC_CONFIGS.get(name) or (None if topic else BROKER_CONFIGS.get(name))
        if definition is None:
            raise _unknown_override(topic, name)
        definition.parse(text, _override_source(topic))
        texts.setdefault(topic, {})[name] = text
    return tuple(Layer(_override_source(topic), names) for topic, names in texts.items())


def topic_of_override(argument: str) -> str:
    """Return the topic of a `--config` argument; empty if it applies to all."""
    return argument.partition("=")[0].rpartition(":")[0]


def _override_source(topic: str) -> Source:
    return Source(SourceKind.TOPIC_OVERRIDE, subject=topic) if topic else Source(SourceKind.OVERRIDE)


def _unknown_override(topic: str, name: str) -> ConfigError:
    for definition in TOPIC_CONFIGS.values():
        if topic and name in {synonym.name for synonym in definition.synonyms}:
            return ConfigError(f"{name} is a broker config. For a topic write {topic}:{definition.name}=…")
    return unknown_config(name, TOPIC_CONFIGS if topic else [*TOPIC_CONFIGS, *BROKER_CONFIGS])


# ---- resolving -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Config(Mapping[str, ConfigValue]):
    """Values by config name. The typed getters accept only names of the tables."""

    values_by_name: Mapping[str, ConfigValue] = field(repr=False)

    def __getitem__(self, name: str) -> ConfigValue:
        return self.values_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)

    def integer(self, name: str) -> int:
        """Return the value of an INT or LONG config."""
        value = self[name].value
        assert isinstance(value, int)
        return value

    def real(self, name: str) -> float:
        """Return the value of a DOUBLE config."""
        value = self[name].value
        assert isinstance(value, float)
        return value

    def flag(self, name: str) -> bool:
        """Return the value of a BOOLEAN config."""
        value = self[name].value
        assert isinstance(value, bool)
        return value

    def word(self, name: str) -> str:
        """Return the value of a STRING config."""
        value = self[name].value
        assert isinstance(value, str)
        return value


@dataclass(frozen=True, slots=True)
class BrokerConfig(Config):
    """A broker's configs that concern logs."""


@dataclass(frozen=True, slots=True)
class TopicConfig(Config):
    """A topic's configs; configs unknown to Kafka 4.3.1 (set by another version) are included as text."""

    topic: str

    @property
    def policy(self) -> frozenset[str]:
        """`cleanup.policy`: compact, delete, both or neither."""
        value = self["cleanup.policy"].value
        assert isinstance(value, tuple)
        return frozenset(value)

    @property
    def policy_known(self) -> bool:
        """Whether a source sets the policy. No source does without a metadata log or a server.properties."""
        return self["cleanup.policy"].explicit

    @property
    def compact(self) -> bool:
        """Whether the policy includes compaction."""
        return "compact" in self.policy

    @property
    def delete(self) -> bool:
        """Whether the policy includes retention by time and size."""
        return "delete" in self.policy

    @property
    def max_segment_ms(self) -> int:
        """Maximum age of a segment before it is rolled, without its jitter, in milliseconds."""
        segment_ms, lag_ms = self.integer("segment.ms"), self.integer("max.compaction.lag.ms")
        return min(segment_ms, lag_ms) if self.compact and 0 < lag_ms < LONG_MAX else segment_ms

    @property
    def segment_bytes_name(self) -> str:
        """Name of the config that limits segments: `internal.segment.bytes`, made for tests, has precedence if set."""
        return "segment.bytes" if self["internal.segment.bytes"].value is None else "internal.segment.bytes"

    @property
    def segment_bytes(self) -> int:
        """Maximum size of a segment in bytes."""
        return self.integer(self.segment_bytes_name)


_Said: TypeAlias = tuple[str, Source]
#: Configs that decide about deletion: for Kafka's own topics, values for all topics do not change these.
_DELETING = {"cleanup.policy", "retention.ms", "retention.bytes"}


def _merged(layers: Iterable[Layer], kinds: set[SourceKind]) -> dict[str, _Said]:
    """Return the text and source of each name with the highest precedence among layers of these kinds."""
    chosen = [layer for layer in layers if layer.source.kind in kinds]
    chosen.sort(key=lambda layer: _RANK[layer.source.kind])
    return {name: (text, layer.source) for layer in chosen for name, text in layer.texts.items()}


def internal_layers(topic: str) -> tuple[Layer, ...]:
    """Return the configs that Kafka itself sets for one of its internal topics; empty for other topics."""
    texts = INTERNAL_CONFIGS.get(topic)
    return () if texts is None else (Layer(Source(SourceKind.INTERNAL, subject=topic), texts),)


def resolve_broker(layers: Iterable[Layer] = ()) -> BrokerConfig:
    """Return the broker's configs after all layers that apply to brokers.

    Raises:
        ConfigError: Kafka would reject a value; the map buffer is too small for the cleaner threads; or a rate is 0.
    """
    said = _merged(layers, _SETS_BROKER)
    values = {
        name: ConfigValue(definition.parse(*said[name]), said[name][1], name)
        if name in said
        else ConfigValue(definition.default, DEFAULT, name)
        for name, definition in BROKER_CONFIGS.items()
    }
    config = BrokerConfig(values)
    threads, buffer = config["log.cleaner.threads"], config["log.cleaner.dedupe.buffer.size"]
    rate = config["log.cleaner.io.max.bytes.per.second"]
    if threads.value == 0:
        raise ConfigError(
            f"log.cleaner.threads={threads}: Kafka does not start. To clean nothing, set log.cleaner.enable=false."
        )
    share = config.integer("log.cleaner.dedupe.buffer.size") // config.integer("log.cleaner.threads")
    if share <= DEDUPE_BUFFER_BYTES_MIN:
        raise ConfigError(
            f"log.cleaner.dedupe.buffer.size={buffer} must be more than 1 MiB for each of "
            f"log.cleaner.threads={threads}."
        )
    if rate.value == 0:
        raise ConfigError(
            f"log.cleaner.io.max.bytes.per.second={rate}: Kafka's cleaner would wait forever. For no limit set a "
            "negative number; to clean nothing, set log.cleaner.enable=false."
        )
    return config


def resolve(
    topic: str, layers: Iterable[Layer] = (), remembered: Layer | None = None, *, compacts_tiered: bool = False
) -> TopicConfig:
    """Return a topic's configs after all layers, ignoring layers of other topics.

    Args:
        remembered: used for configs that no layer sets, not even for all topics.
        compacts_tiered: a tiered topic may be compacted, which Kafka refuses; so it may if both are remembered.

    Raises:
        ConfigError: Kafka would reject a value, or a combination of two; names them and their sources.
    """
    layers = [layer for layer in layers if layer.source.kind not in _OF_ONE_TOPIC or layer.source.subject == topic]
    if topic in INTERNAL_CONFIGS:
        layers = [_without_deletion(layer) if layer.source.kind is SourceKind.OVERRIDE else layer for layer in layers]
    of_topic, of_broker = _merged(layers, _SETS_TOPIC), _merged(layers, _SETS_BROKER)
    if remembered is not None:
        for definition in TOPIC_CONFIGS.values():
            names = {definition.name, *(synonym.name for synonym in definition.synonyms)}
            if definition.name in remembered.texts and not any(name in of_topic or name in of_broker for name in names):
                of_topic[definition.name] = remembered.texts[definition.name], remembered.source
    values = {
        definition.name: _from_topic(definition, of_topic)
        or _from_broker(definition, of_broker)
        or ConfigValue(definition.default, DEFAULT, definition.name)
        for definition in TOPIC_CONFIGS.values()
    }
    for name, (text, source) in of_topic.items():
        if name not in TOPIC_CONFIGS and source.kind is SourceKind.TOPIC:
            values[name] = ConfigValue(text, source, name)
    config = TopicConfig(values, topic)
    _check_together(config, compacts_tiered=compacts_tiered)
    return config


def explicit_texts(config: TopicConfig) -> dict[str, str]:
    """Return the values that a source sets, by names of topic configs, as texts for `resolve`."""
    return {name: show(value.value) for name, value in config.items() if value.explicit and name in TOPIC_CONFIGS}


def without_default_deletion(config: TopicConfig) -> TopicConfig:
    """Disable the policy and the limits that no source sets, so that no record is removed because of a default."""
    off: Mapping[str, Value] = {"cleanup.policy": (), "retention.ms": -1, "retention.bytes": -1}
    values = {name: ConfigValue(value, DEFAULT, name) for name, value in off.items() if not config[name].explicit}
    return replace(config, values_by_name={**config.values_by_name, **values})


def _without_deletion(layer: Layer) -> Layer:
    return replace(layer, texts={name: text for name, text in layer.texts.items() if name not in _DELETING})


def _from_topic(definition: Definition, said: Mapping[str, _Said]) -> ConfigValue | None:
    if definition.name not in said:
        return None
    text, source = said[definition.name]
    return ConfigValue(definition.parse(text, source), source, definition.name)


def _from_broker(definition: Definition, said: Mapping[str, _Said]) -> ConfigValue | None:
    synonym = next((synonym for synonym in definition.synonyms if synonym.name in said), None)
    if synonym is None:
        return None
    text, source = said[synonym.name]
    value = BROKER_CONFIGS[synonym.name].parse(text, source)
    if isinstance(value, int) and not isinstance(value, bool):
        value *= synonym.scale
        # A broker treats any negative time as unlimited but rejects 0; a topic may have 0, and no less than -1.
        if definition.name == "retention.ms":
            if value == 0:
                raise _refused(synonym.name, text, source, "at least 1, or negative for no limit")
            value = max(value, -1)
        # Synonyms in other units have no limits of their own.
        valid = definition.limits(source)
        if valid is not None and not valid.allows(value):
            raise _refused(synonym.name, text, source, definition.allowed)
    return ConfigValue(value, source, synonym.name)


def _check_together(config: TopicConfig, *, compacts_tiered: bool) -> None:
    lowest, highest = config["min.compaction.lag.ms"], config["max.compaction.lag.ms"]
    tiered, policy = config["remote.storage.enable"], config["cleanup.policy"]
    internal = config["internal.segment.bytes"]
    if config.integer("min.compaction.lag.ms") > config.integer("max.compaction.lag.ms"):
        raise ConfigError(
            f"topic {config.topic}: min.compaction.lag.ms={lowest} is more than max.compaction.lag.ms={highest}."
        )
    remembered = {tiered.source.kind, policy.source.kind} == {SourceKind.REMEMBERED}
    if tiered.value and config.compact and not (compacts_tiered or remembered):
        raise ConfigError(
            f"topic {config.topic}: remote.storage.enable={tiered} does not go with cleanup.policy={policy}. "
            "A tiered topic can only have the policy delete, or none."
        )
    if isinstance(internal.value, int) and internal.value < 1:
        raise ConfigError(f"topic {config.topic}: internal.segment.bytes={internal} leaves no room for a record.")
