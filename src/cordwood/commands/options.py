"""What a user can ask of `plan` and `clean`, and the partitions and configs that this selects."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypedDict

from cordwood.cleaning.offset_map import keys_max, slots_of
from cordwood.cleaning.plan import (
    Choices,
    Decision,
    OffsetMapSize,
    PartitionPlan,
)
from cordwood.config import Layer, resolve_broker
from cordwood.errors import ConfigError, NotFoundError, RequestError
from cordwood.fs.base import FileSystem
from cordwood.storage.changes.recover_copy import RecoverySettings
from cordwood.storage.node.listing import is_asked_for
from cordwood.storage.node.node import LocatedPartition, Node

#: The broker's configs that Kafka's offset map goes by.
_MAP_CONFIGS = ("log.cleaner.dedupe.buffer.size", "log.cleaner.io.buffer.load.factor", "log.cleaner.threads")


class PlanOptions(TypedDict, total=False):
    """All that planning takes besides the paths; see `make_plan`."""

    topics: Sequence[str]
    partitions: Sequence[str]
    now_ms: int | None
    overrides: Iterable[str]
    server_properties: str | None
    metadata: str | None
    ignore_ratio: bool
    first_dirty: int | None
    high_watermark: int | Literal["end"] | None
    retention: bool
    single_copy: bool
    offset_map: int | None
    strict_kafka: bool
    memory: int | None


def resolve_options(options: PlanOptions) -> tuple[PlanOptions, int]:
    """Options that mean the same whenever they are used, and their time."""
    now_ms = options.get("now_ms")
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    return {**options, "now_ms": now_ms, "overrides": tuple(options.get("overrides", ()))}, now_ms


def open_node(fs: FileSystem, paths: Sequence[str], options: PlanOptions) -> Node:
    """The directories, and what is said of their configs; see `Node.open`."""
    metadata, broker = options.get("metadata"), options.get("server_properties")
    return Node.open(fs, paths, metadata, broker, options.get("overrides", ()))


def select_partitions(node: Node, paths: Sequence[str], options: PlanOptions) -> list[LocatedPartition]:
    """The partitions that a user wants, of those in the paths.

    Raises:
        NotFoundError: there is none.
    """
    topics, partitions = options.get("topics", ()), options.get("partitions", ())
    wanted = [place for place in node.places if is_asked_for(place, topics, partitions)]
    if not wanted:
        what = ", ".join([*topics, *partitions])
        raise NotFoundError(f"No partition in {', '.join(paths)}" + (f" matches {what}" if what else ""))
    return wanted


def recovery_settings(node: Node, topic: str) -> RecoverySettings:
    """What loading a topic's partitions goes by."""
    try:
        return RecoverySettings(index_interval_bytes=node.config_of(topic).integer("index.interval.bytes"))
    except ConfigError:
        return RecoverySettings()  # the plan says what is wrong with its configs


def offset_map_size(node: Node, choices: Choices) -> OffsetMapSize | None:
    """The map of Kafka that a clean goes by; None: it goes by none.

    Raises:
        RequestError: it has no room for a single key.
        ConfigError: the broker would not take one of its configs.
    """
    config = resolve_broker(Layer(one.source, _only(_MAP_CONFIGS, one.texts)) for one in node.broker_layers())
    buffer, factor = config["log.cleaner.dedupe.buffer.size"], config.real("log.cleaner.io.buffer.load.factor")
    if choices.offset_map is not None:
        memory, source = choices.offset_map, f"--offset-map {choices.offset_map}"
    elif buffer.explicit or choices.strict_kafka:
        threads = max(1, config.integer("log.cleaner.threads"))
        memory = config.integer(buffer.name) // threads
        shared = f" for {threads} threads" if threads > 1 else ""
        source = f"{buffer.name}={buffer.value}{shared}, {buffer.source if buffer.explicit else '--strict-kafka'}"
    else:
        return None
    slots = slots_of(memory)
    keys = keys_max(slots, factor)
    if keys < 1:
        what = f"An offset map of {memory} bytes, of which {100 * factor:g} % may be filled, has no room for a key"
        raise RequestError(f"{what} ({source}): no clean would come any further")
    return OffsetMapSize(slots, factor, keys, source)


def _only(names: Collection[str], texts: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in texts.items() if name in names}


def limited_by_map(partition: PartitionPlan, size: OffsetMapSize | None) -> PartitionPlan:
    """The plan of a partition that is cleaned in rounds, by Kafka's offset map; unchanged without one."""
    if size is None or partition.decision is not Decision.CLEAN:
        return partition
    note = f"cleaned in rounds of at most {size.keys} keys, by Kafka's offset map ({size.source})"
    return replace(partition, offset_map=size, notes=(*partition.notes, note))
