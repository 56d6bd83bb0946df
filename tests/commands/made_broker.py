"""Log directories made by hand, as a broker would leave them: topics in a metadata log, logs, checkpoints, times."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cordwood.common.types import TopicPartition
from cordwood.storage.formats import checkpoints, time_index
from cordwood.storage.formats.filenames import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    FileKind,
    offset_name,
)
from cordwood.storage.formats.properties import encode_id
from tests.logs import T0, Pair, batch
from tests.storage.messages import internal_record


def pairs(keys: Sequence[int], value: bytes = b"v" * 100) -> list[Pair]:
    """Records with these keys."""
    return [(b"key-%d" % key, value) for key in keys]


def same(count: int, **choice: Any) -> list[Pair]:
    """Records of one key."""
    return pairs([0] * count, **choice)


def different(count: int, first: int = 0, **choice: Any) -> list[Pair]:
    """Records with distinct keys."""
    return pairs(range(first, first + count), **choice)


def _end(last: bytes) -> int:
    """The offset behind a batch."""
    return int.from_bytes(last[:8], "big") + int.from_bytes(last[23:27], "big") + 1


class MadeBroker:
    """A log directory of one broker. `finish` writes the files beside the logs."""

    def __init__(self, path: Path, *, node_id: int = 1) -> None:
        self.path = path
        self.node_id = node_id
        path.mkdir(parents=True)
        self.metadata: list[Pair] = []
        self.checkpoints: dict[str, dict[TopicPartition, int]] = {
            CLEANER_OFFSETS: {}, HIGH_WATERMARKS: {}, LOG_START_OFFSETS: {}, RECOVERY_POINTS: {}
        }  # fmt: skip
        #: When checkpoints were written last.
        self.times: dict[str, int] = {}

    def topic(
        self, name: str, partitions: int = 1, replicas: Sequence[int] = (1,), *, leader: int = 1, **config: object
    ) -> None:
        """Create a topic; configs with `_` for dots."""
        topic_id = encode_id(uuid.uuid5(uuid.NAMESPACE_DNS, name))
        self.metadata.append(internal_record("TopicRecord", {"name": name, "topic_id": topic_id}))
        for number in range(partitions):
            values = {
                "partition_id": number, "topic_id": topic_id, "replicas": tuple(replicas), "isr": tuple(replicas),
                "removing_replicas": (), "adding_replicas": (), "leader": leader, "leader_epoch": 0,
                "partition_epoch": 0,
            }  # fmt: skip
            self.metadata.append(internal_record("PartitionRecord", values, version=0))
        for key, text in config.items():
            values = {"resource_type": 2, "resource_name": name, "name": key.replace("_", "."), "value": str(text)}
            self.metadata.append(internal_record("ConfigRecord", values))

    def log(self, name: str, *segments: Sequence[bytes], written: int | Sequence[int] = T0) -> Path:
        """A partition's log: batches by segment; the last segment is active.

        Args:
            written: modification time of the segments, and the largest time in their indexes.
        """
        path = self.path / name
        path.mkdir()
        end = 0
        times = [written] * len(segments) if isinstance(written, int) else written
        for batches, time in zip(segments, times, strict=True):
            data = b"".join(batches)
            base = int.from_bytes(data[:8], "big") if data else end
            end = end if not data else _end(batches[-1])
            (path / offset_name(base, FileKind.LOG)).write_bytes(data)
            (path / offset_name(base, FileKind.OFFSET_INDEX)).write_bytes(b"")
            entry = time_index.TimeIndex(base, np.array([time]), np.array([base]), 1, b"")
            (path / offset_name(base, FileKind.TIME_INDEX)).write_bytes(time_index.encode(entry))
            os.utime(path / offset_name(base, FileKind.LOG), ns=(time * 10**6, time * 10**6))
        return path

    def finish(self, *, metadata: bool = True, clean: bool = True, texts: Mapping[str, str] = {}) -> Path:
        """Write the rest of the directory; `times` holds the modification time of each checkpoint (default: T0)."""
        if metadata:
            self.log("__cluster_metadata-0", [batch(0, *self.metadata)] if self.metadata else [])
        (self.path / META_PROPERTIES).write_text(
            f"version=1\nnode.id={self.node_id}\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\n"
        )
        if clean:
            (self.path / CLEAN_SHUTDOWN).write_bytes(b"")
        for name, offsets in self.checkpoints.items():
            (self.path / name).write_bytes(checkpoints.encode(offsets))
        for name, text in texts.items():
            (self.path / name).write_text(text)
        for name in self.checkpoints:
            time = self.times.get(name, T0) * 10**6
            os.utime(self.path / name, ns=(time, time))
        return self.path
