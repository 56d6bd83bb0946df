"""Small worlds: one or more logs that something is written to, with short steps."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cordwood.common.config import overrides
from cordwood.common.types import TopicPartition
from cordwood.live.log import Log
from cordwood.live.validation import read_batches, read_records
from cordwood.simulation.measure import Traffic
from cordwood.simulation.sizing.workload import KEY_BYTES, Keys, Workload
from cordwood.simulation.world import START_MS, Member, World


@dataclass(frozen=True)
class Topic:
    """The workload of each partition of a topic, and its configs."""

    workload: Workload
    configs: Mapping[str, str]
    batch_records: int = 5

    def traffic(self, seed: int) -> Traffic:
        source = np.random.default_rng(seed)
        return Traffic(
            self.workload,
            Keys(self.workload, 1, source),
            source,
            records_per_ms=self.workload.records_per_second / 1000,
            record_bytes=self.workload.record_size,
            batch_records=self.batch_records,
            start_ms=START_MS,
        )


def world_of(topics: Mapping[str, Topic], *broker: str, step_ms: int) -> World:
    """A world with the configs of these topics, still without partitions."""
    texts = [f"{name}:{key}={text}" for name, topic in topics.items() for key, text in topic.configs.items()]
    return World(overrides([*broker, *texts]), step_ms=step_ms)


def add(world: World, topics: Mapping[str, Topic], name: str, partition: int = 0) -> Member:
    """A partition of a topic."""
    which = TopicPartition(name, partition)
    return world.add(which, topics[name].traffic(zlib.crc32(str(which).encode())))


def records_there(log: Log) -> dict[int, tuple[int, bool]]:
    """The records of all segments, read one by one: by offset the key, and whether it is a tombstone."""
    found = {}
    for segment in log.log_segments:
        data = segment.read_bytes(0, segment.size_bytes)
        for batch in read_batches(data):
            if batch.is_control or not batch.record_count:
                continue
            for record in read_records(data, batch):
                assert record.key is not None and len(record.key) == KEY_BYTES
                found[record.offset] = int.from_bytes(record.key, "big"), record.value is None
    return found
