"""Topics, configs and brokers of a cluster, by name, as of an offset or a time of its metadata log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cordwood.common.errors import DataError
from cordwood.common.presentable import Presentable
from cordwood.common.text import number
from cordwood.storage.formats.cluster_metadata import Broker, Topic

#: A config is secret if its name contains one of these; its value is replaced by `HIDDEN`.
_SECRET = ("password", "secret", "jaas.config", "keystore.key", "token")
HIDDEN = "(hidden)"


@dataclass(frozen=True, slots=True)
class AsOf:
    """The point up to which a metadata log was read.

    Attributes:
        path: path of the metadata log.
        next_offset: offset behind the last record that was read.
        timestamp_ms: timestamp of that record; None if no record was read, or if the last one is in a snapshot.
        problems: unreadable parts of the log; the view lacks their topics, configs and brokers.
    """

    path: str
    next_offset: int
    timestamp_ms: int | None
    problems: tuple[DataError, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicsListing(Presentable):
    """The topics of a cluster, by name.

    Attributes:
        configs: configs that were set for a topic, by topic.
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
        subject: topic name or broker id; empty for `cluster`.
        value: value of the config; `(hidden)` if it may be a secret.
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
        led: number of partitions that a broker leads, by broker id.
        replicas: number of replicas on a broker, by broker id.
    """

    as_of: AsOf
    brokers: tuple[Broker, ...]
    features: Mapping[str, int]
    led: Mapping[int, int]
    replicas: Mapping[int, int]

    def __str__(self) -> str:
        return "\n".join(f"broker {one.broker_id}{': fenced' if one.fenced else ''}" for one in self.brokers)


def shown_value(name: str, value: str) -> str:
    """Return the value of a config, or `HIDDEN` if it may be a secret."""
    return HIDDEN if any(part in name.lower() for part in _SECRET) else value
