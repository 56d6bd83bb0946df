"""What a cluster's metadata log says, by name, as of an offset or a time: topics, configs and brokers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cordwood.errors import DataError
from cordwood.presentable import Presentable
from cordwood.storage.formats.cluster_metadata import Broker, Topic
from cordwood.text import number

#: Parts of the names of configs whose values are not shown.
_SECRET = ("password", "secret", "jaas.config", "keystore.key", "token")
HIDDEN = "(hidden)"


@dataclass(frozen=True, slots=True)
class AsOf:
    """The point of a metadata log that something is as of.

    Attributes:
        path: of the log.
        next_offset: all records below it count.
        timestamp_ms: of the last of them; None: there is none, or it is in a snapshot.
        problems: what could not be read; what it might have said is missing.
    """

    path: str
    next_offset: int
    timestamp_ms: int | None
    problems: tuple[DataError, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicsListing(Presentable):
    """The topics of a cluster, by name.

    Attributes:
        configs: by topic, what was set for it.
    """

    as_of: AsOf
    topics: tuple[Topic, ...]
    configs: Mapping[str, Mapping[str, str]]

    def __str__(self) -> str:
        return "\n".join(f"{topic.name}: {number(len(topic.partitions), 'partition')}" for topic in self.topics)


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A config that was set.

    Attributes:
        scope: `topic`, `broker`, or `cluster` for the default of all brokers.
        subject: the topic or the broker's id; empty for `cluster`.
        value: `(hidden)` for what may be a secret.
    """

    scope: str
    subject: str
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class ConfigsListing(Presentable):
    """The configs that were set in a cluster: by topic, by broker, and for all brokers."""

    as_of: AsOf
    configs: tuple[ConfigEntry, ...]

    def __str__(self) -> str:
        return "\n".join(f"{one.scope} {one.subject}: {one.name}={one.value}" for one in self.configs)


@dataclass(frozen=True, slots=True)
class BrokersListing(Presentable):
    """The brokers that are registered in a cluster, and its features with their levels.

    Attributes:
        led, replicas: by broker id, how many partitions it leads, and how many replicas it has.
    """

    as_of: AsOf
    brokers: tuple[Broker, ...]
    features: Mapping[str, int]
    led: Mapping[int, int]
    replicas: Mapping[int, int]

    def __str__(self) -> str:
        return "\n".join(f"broker {one.broker_id}{': fenced' if one.fenced else ''}" for one in self.brokers)


def shown_value(name: str, value: str) -> str:
    """The value of a config, unless it may be a secret."""
    return HIDDEN if any(part in name.lower() for part in _SECRET) else value
