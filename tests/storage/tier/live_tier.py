"""The tier of fixture aiven-s3 as that of live logs: with manifests, and without the brokers' metadata of it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import crc32c

from cordwood.common.types import NONE
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.tier.aiven import AivenLayout
from cordwood.storage.tier.chunks import read_key
from cordwood.storage.tier.generations import Generations
from cordwood.storage.tier.manifest import TierState, empty_state
from cordwood.storage.tier.packed import SIZED, TierSegment
from cordwood.storage.tier.segments import RemoteSegment, TopicIdPartition
from tests.fixtures import copy_of, fixture

ROOT = fixture("aiven-s3")
KEY = f"{ROOT}/test-key.json"
#: What commands need for the original, whose metadata is the brokers'.
ORIGINAL = ["--tier", f"{ROOT}/bucket/kafka", "--tier-key", KEY]
FS = PosixFileSystem()


class LiveTier:
    """A log directory and its tier.

    Attributes:
        logs: the log directory, without `__remote_log_metadata`.
        root: folder of the tier.
        states: what the newest manifest of each partition has, by the name of its directory.
    """

    def __init__(self, target: Path) -> None:
        self.logs = copy_of(ROOT / "kafka-logs", target / "logs")
        for path in self.logs.glob("__remote_log_metadata-*"):
            shutil.rmtree(path)
        self.root = copy_of(ROOT / "bucket" / "kafka", target / "tier")
        self.layout = AivenLayout(FS, str(self.root), [read_key(FS, KEY)])
        self.states: dict[str, TierState] = {}
        self._writers: dict[str, Generations] = {}
        by_partition: dict[TopicIdPartition, list[RemoteSegment]] = {}
        for segment in self.layout.segments():
            by_partition.setdefault(segment.topic_id_partition, []).append(segment)
        for partition, segments in by_partition.items():
            self.commit(replace(empty_state(partition), segments=tuple(map(self._with_checksum, segments))))

    @property
    def options(self) -> list[str]:
        """What commands need to read it."""
        return ["--tier", str(self.root), "--tier-key", KEY]

    def commit(self, state: TierState) -> TierState:
        name = f"{state.partition.topic}-{state.partition.partition}"
        writer = self._writers.setdefault(name, Generations(FS, self.layout, state.partition))
        self.states[name] = writer.commit(state)
        return self.states[name]

    def manifests(self, name: str) -> Path:
        """The folder with the manifests of a partition."""
        return Path(self.layout.folder(self.states[name].partition)) / ".cordwood-tier"

    def objects(self, name: str, start: int) -> list[Path]:
        """The objects of the segment that starts at an offset."""
        return sorted(self.manifests(name).parent.glob(f"{start:020}-*"))

    def _with_checksum(self, segment: RemoteSegment) -> TierSegment:
        with self.layout.open(segment, FileKind.LOG) as file:
            crc = crc32c.crc32c(file.read(0, file.size()))
        sizes = self.layout.manifest(segment).sizes
        return TierSegment(segment, crc, tuple(sizes.get(kind, NONE) for kind in SIZED))
