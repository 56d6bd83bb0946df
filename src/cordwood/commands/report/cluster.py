"""Topics, configs and brokers of a cluster, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from cordwood.common.presentable import register
from cordwood.common.text import Cells, Column, cells_of, number, printable, table, time_text
from cordwood.storage.formats.cluster_metadata import Broker, PartitionReplicas, Topic
from cordwood.storage.node.cluster_view import AsOf, BrokersListing, ConfigsListing, TopicsListing


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
    """Return the problems of a partition, and whether it is being moved."""
    missing = set(partition.replicas) - set(partition.isr)
    words = ["no leader"] if partition.leader < 0 else []
    words += [f"{_ids(tuple(sorted(missing)))} not in sync"] if missing else []
    moving = partition.adding_replicas or partition.removing_replicas
    return ", ".join([*words, *(["being moved"] if moving else [])]) or "-"


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
