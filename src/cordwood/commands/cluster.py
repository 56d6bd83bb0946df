"""`topics`, `configs`, `brokers`: the contents of a cluster's metadata log as of its end, an offset, or a time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from cordwood.commands.options import BrokersOptions, ClusterOptions, MetadataPoint, parse_time
from cordwood.common.errors import DataError, NotFoundError, RequestError
from cordwood.common.text import Cells, Column, Presentable, cells_of, number, printable, register, table, time_text
from cordwood.fs.base import Store
from cordwood.fs.by_url import file_system_for
from cordwood.storage.formats.cluster_metadata import Broker, ClusterMetadata, PartitionReplicas, Topic
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, Gap
from cordwood.storage.node.listing import replication_state
from cordwood.storage.node.node import metadata_log, read_metadata

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


_OFFSET = re.compile(r"[0-9]{1,19}", re.ASCII)


def topics(paths: Sequence[str], options: ClusterOptions, *, fs: Store | None = None) -> TopicsListing:
    """List the topics of a cluster: partitions, replicas and configs.

    Read from its metadata log and snapshots, as of the end, an offset or a time.

    Args:
        paths: log directories of one or more brokers; at least one holds `__cluster_metadata-0`. The newest is read.

    Raises:
        NotFoundError: there is nothing at a path, no metadata log, or no topic was selected.
        RequestError: the log does not reach back to this offset or time.
    """
    metadata, as_of = _read(paths, options.point, fs)
    known = [topic for name, topic in metadata.topics.items() if _is_asked_for(name, options.topics)]
    if options.topics and not known:
        raise NotFoundError(f"No topic in {as_of.path} matches {', '.join(options.topics)}")
    configs = {topic.name: _shown(metadata.topic_config(topic.name)) for topic in known}
    return TopicsListing(as_of, tuple(known), configs)


def configs(paths: Sequence[str], options: ClusterOptions, *, fs: Store | None = None) -> ConfigsListing:
    """List the configs that are set in a cluster: of topics, of brokers, and of all brokers.

    Read from its metadata log and snapshots, as of the end, an offset or a time.

    Args:
        paths: log directories of one or more brokers; at least one holds `__cluster_metadata-0`. The newest is read.

    Raises:
        NotFoundError: there is nothing at a path, no metadata log, or no topic was selected.
        RequestError: the log does not reach back to this offset or time.
    """
    metadata, as_of = _read(paths, options.point, fs)
    return ConfigsListing(as_of, tuple(_entries(metadata, options.topics)))


def brokers(paths: Sequence[str], options: BrokersOptions, *, fs: Store | None = None) -> BrokersListing:
    """List the brokers of a cluster, and its features.

    Read from its metadata log and snapshots, as of the end, an offset or a time.

    Args:
        paths: log directories of one or more brokers; at least one holds `__cluster_metadata-0`. The newest is read.

    Raises:
        NotFoundError: there is nothing at a path, no metadata log, or no topic was selected.
        RequestError: the log does not reach back to this offset or time.
    """
    metadata, as_of = _read(paths, options.point, fs)
    partitions = [partition for topic in metadata.topics.values() for partition in topic.partitions.values()]
    return BrokersListing(
        as_of,
        tuple(broker for _, broker in sorted(metadata.brokers.items())),
        dict(sorted(metadata.features.items())),
        Counter(partition.leader for partition in partitions),
        Counter(replica for partition in partitions for replica in partition.replicas),
    )


def _is_asked_for(name: str, globs: Sequence[str]) -> bool:
    return not globs or any(fnmatchcase(name, glob) for glob in globs)


def _shown(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: shown_value(name, text) for name, text in sorted(texts.items())}


def _entries(metadata: ClusterMetadata, globs: Sequence[str]) -> Iterator[ConfigEntry]:
    """Yield the configs of the selected topics; without a selection those of brokers too."""
    if not globs:
        for broker, texts in sorted(metadata.broker_configs.items()):
            scope = "broker" if broker else "cluster"
            yield from (ConfigEntry(scope, broker, *pair) for pair in _shown(texts).items())
    for topic, texts in sorted(metadata.topic_configs.items()):
        if _is_asked_for(topic, globs):
            yield from (ConfigEntry("topic", topic, *pair) for pair in _shown(texts).items())


def _read(paths: Sequence[str], point: MetadataPoint, fs: Store | None) -> tuple[ClusterMetadata, AsOf]:
    given = point.named.with_paths(paths)
    fs = fs or file_system_for([*given, point.metadata])
    path, live = metadata_log(fs, given, point.metadata)
    log = LogView(path, fs=fs, live=live)
    end, last_ms = _point(log, point.at)
    metadata = read_metadata(fs, path, live=live, end_offset=end)
    if end is not None and metadata.next_offset < end <= log.first_offset:
        raise RequestError(f"{path} begins at offset {log.first_offset}, and has no snapshot of the state at {end}")
    return metadata, AsOf(path, metadata.next_offset, last_ms, metadata.problems)


def _point(log: LogView, at: str | None) -> tuple[int | None, int | None]:
    """Return the end offset of the metadata to read, None for all; and the time of the last record before it, or None.

    Raises:
        RequestError: the log does not reach back to that time.
    """
    end = int(at) if at is not None and _OFFSET.fullmatch(at) else None
    until_ms = None if at is None or end is not None else parse_time(at)
    last_ms: int | None = None
    for _, item in log.windows(checks=Checks.HEADERS):
        if isinstance(item, Gap):
            continue
        for base_offset, time_ms in zip(item.batches["base_offset"], item.batches["max_timestamp"], strict=True):
            if end is not None and base_offset >= end:
                return end, last_ms
            if until_ms is not None and time_ms > until_ms:
                if last_ms is None and log.first_offset > 0:
                    begin = f"begins at offset {log.first_offset}, of {time_text(int(time_ms))} UTC"
                    raise RequestError(f"{log.path} {begin}: it does not reach back to {at}")
                return int(base_offset), last_ms
            last_ms = int(time_ms)
    return end, last_ms


# ---- listings as text and JSON ---------------------------------------------------------------------------------------


def _head(as_of: AsOf) -> Iterator[str]:
    last = "" if as_of.timestamp_ms is None else f", of {time_text(as_of.timestamp_ms)} UTC"
    yield f"{printable(as_of.path)}: up to offset {as_of.next_offset}{last}"
    if as_of.problems:
        more = f", and {len(as_of.problems) - 1:,} more" if len(as_of.problems) > 1 else ""
        yield f"  damaged, so that this may not be all: {printable(str(as_of.problems[0]))}{more}"
    yield ""


def _as_of(as_of: AsOf) -> dict[str, Any]:
    return {
        "path": as_of.path,
        "next_offset": as_of.next_offset,
        "timestamp_ms": as_of.timestamp_ms,
        "problems": [str(one) for one in as_of.problems],
    }


def _ids(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers)) or "-"


# ---- topics ----------------------------------------------------------------------------------------------------------


def topic_lines(listing: TopicsListing, *, partitions: bool = False) -> Iterator[str]:
    """Yield the topics for people: a line each, or a line per partition."""
    yield from _head(listing.as_of)
    if partitions:
        rows = [(topic, item) for topic in listing.topics for item in sorted(topic.partitions.items())]
        yield from table(*cells_of(_PARTITIONS, rows))
    else:
        yield from table(*cells_of(_TOPICS, [(topic, listing.configs[topic.name]) for topic in listing.topics]))
    yield ""
    count = sum(len(topic.partitions) for topic in listing.topics)
    yield f"{number(len(listing.topics), 'topic')}, {number(count, 'partition')}"


def _replicas(topic: Topic) -> str:
    counts = sorted({len(one.replicas) for one in topic.partitions.values()})
    return "-".join(map(str, dict.fromkeys((counts[0], counts[-1])))) if counts else "-"


def _state(partition: PartitionReplicas) -> str:
    return ", ".join(replication_state(partition)) or "-"


def _short(topic: Topic) -> str:
    some = [one for one in topic.partitions.values() if _state(one) != "-"]
    return str(len(some)) if some else "-"


_TOPICS: Cells = (
    (Column("TOPIC"), lambda row: printable(row[0].name)),
    (Column("PARTITIONS", right=True), lambda row: f"{len(row[0].partitions):,}"),
    (Column("REPLICAS", right=True), lambda row: _replicas(row[0])),
    (Column("NOT WELL", right=True), lambda row: _short(row[0])),
    (Column("TOPIC ID"), lambda row: row[0].topic_id),
    (Column("CONFIGS"), lambda row: printable(" ".join(f"{name}={text}" for name, text in row[1].items())) or "-"),
)
_PARTITIONS: Cells = (
    (Column("PARTITION"), lambda row: printable(f"{row[0].name}-{row[1][0]}")),
    (Column("LEADER", right=True), lambda row: str(row[1][1].leader)),
    (Column("EPOCH", right=True), lambda row: str(row[1][1].leader_epoch)),
    (Column("REPLICAS"), lambda row: _ids(row[1][1].replicas)),
    (Column("IN SYNC"), lambda row: _ids(row[1][1].isr)),
    (Column("STATE"), lambda row: _state(row[1][1])),
)


def _topics_document(listing: TopicsListing) -> dict[str, Any]:
    return {
        **_as_of(listing.as_of),
        "topics": [
            {
                "topic": topic.name,
                "topic_id": topic.topic_id,
                "configs": dict(listing.configs[topic.name]),
                "partitions": [{"partition": one, **asdict(of)} for one, of in sorted(topic.partitions.items())],
            }
            for topic in listing.topics
        ],
    }


# ---- configs ---------------------------------------------------------------------------------------------------------

_CONFIGS: Cells = (
    (Column("SCOPE"), lambda one: one.scope),
    (Column("OF"), lambda one: printable(one.subject) or "-"),
    (Column("CONFIG"), lambda one: printable(one.name)),
    (Column("VALUE"), lambda one: printable(one.value)),
)


def _config_lines(listing: ConfigsListing) -> Iterator[str]:
    yield from _head(listing.as_of)
    yield from table(*cells_of(_CONFIGS, listing.configs))
    yield ""
    yield f"{number(len(listing.configs), 'config')} set"


def _configs_document(listing: ConfigsListing) -> dict[str, Any]:
    return {**_as_of(listing.as_of), "configs": [asdict(one) for one in listing.configs]}


# ---- brokers ---------------------------------------------------------------------------------------------------------


def _broker_lines(listing: BrokersListing) -> Iterator[str]:
    yield from _head(listing.as_of)
    rows = [(one, listing.led.get(one.broker_id, 0), listing.replicas.get(one.broker_id, 0)) for one in listing.brokers]
    yield from table(*cells_of(_BROKERS, rows))
    yield ""
    yield number(len(listing.brokers), "broker")
    if listing.features:
        yield "features: " + ", ".join(f"{printable(name)}={level}" for name, level in listing.features.items())


def _broker_state(broker: Broker) -> str:
    if broker.in_controlled_shutdown:
        return "shutting down"
    return "fenced" if broker.fenced else "-"


_BROKERS: Cells = (
    (Column("BROKER", right=True), lambda row: str(row[0].broker_id)),
    (Column("STATE"), lambda row: _broker_state(row[0])),
    (Column("RACK"), lambda row: printable(row[0].rack or "-")),
    (
        Column("LISTENERS"),
        lambda row: printable(" ".join(f"{one.name}://{one.host}:{one.port}" for one in row[0].end_points)) or "-",
    ),
    (Column("LEADS", right=True), lambda row: f"{row[1]:,}"),
    (Column("REPLICAS", right=True), lambda row: f"{row[2]:,}"),
    (Column("LOG DIRECTORIES"), lambda row: " ".join(row[0].directories) or "-"),
)


def _brokers_document(listing: BrokersListing) -> dict[str, Any]:
    return {
        **_as_of(listing.as_of),
        "features": dict(listing.features),
        "brokers": [
            {
                **asdict(one),
                "leads": listing.led.get(one.broker_id, 0),
                "replicas": listing.replicas.get(one.broker_id, 0),
            }
            for one in listing.brokers
        ],
    }


register(TopicsListing, lines=topic_lines, document=_topics_document)
register(ConfigsListing, lines=_config_lines, document=_configs_document)
register(BrokersListing, lines=_broker_lines, document=_brokers_document)
