"""Small clusters in memory: the replicas of one partition, which roll and are cleaned at their own times.

A script makes them, word by word:

    a=1,b=2   7:a=1   7:commit    append a batch to all replicas; see `swaps.Script`; `a=∅` is a tombstone
    |    |2                       roll a segment of all replicas, or of one
    clean   clean2                clean all replicas, or one, alone: up to its last closed segment
    only2                         clean one replica alone, and drop its expired tombstones, as a broker does
    wait50                        let 50 ms pass
    leave3                        broker 3 stops; it gets nothing from here on
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cordwood.api import clean_in_place
from cordwood.cleaning.engine.results import CleanResult, Fate
from cordwood.cleaning.proof.scratch import Scratch
from cordwood.cleaning.proof.site import TaskSite
from cordwood.commands.compare import replicas_of
from cordwood.common.types import TopicPartition
from cordwood.comparison import comparing
from cordwood.comparison.comparing import ReplicatedPartition
from cordwood.comparison.entries import KeyShare
from cordwood.comparison.values import PartitionComparison
from cordwood.fs.base import LocalFileSystem
from cordwood.storage.formats import checkpoints, filenames
from cordwood.storage.formats.cluster_metadata import NAME as METADATA
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.formats.properties import encode_id
from cordwood.storage.log.files import read_file, write_file
from cordwood.storage.log.view import LogView
from cordwood.storage.node.cluster import Cluster
from cordwood.testing.memory import MemoryFileSystem
from tests.cleaning.scripted import LIVE, ScriptedLog
from tests.commands.in_memory import view
from tests.comparison.comparing import each_here
from tests.crashes import durable
from tests.fs.trees import tree
from tests.logs import Pair, batch
from tests.storage.messages import internal_record
from tests.storage.swaps import NOW_MS, appended

T = TopicPartition("t", 0)
RETENTION_MS = 100
CONFIG = {"delete.retention.ms": RETENTION_MS, "segment.bytes": 450, "index.interval.bytes": 60}


@dataclass
class MadeCluster:
    """Replicas of t-0 on brokers 1, 2, …; `disk` writes their directories."""

    replicas: int = 3
    logs: list[ScriptedLog] = field(default_factory=list)
    away: set[int] = field(default_factory=set)
    now_ms: int = NOW_MS

    def __post_init__(self) -> None:
        self.logs = [ScriptedLog(CONFIG, now_ms=NOW_MS) for _ in range(self.replicas)]
        for log in self.logs:
            log.deletes_for_good = False

    def play(self, script: str) -> MadeCluster:
        """Carry out the words of a script."""
        for word in script.split():
            self._do(word)
        return self

    def _do(self, word: str) -> None:
        name, number = re.fullmatch(r"(\||clean|only|wait|leave|)(\d*)(?:.*)", word, re.DOTALL).groups()  # type: ignore[union-attr]
        chosen = [int(number) - 1] if number else [*range(self.replicas)]
        if name == "|":
            for at in chosen:
                self.logs[at].roll()
        elif name in ("clean", "only"):
            for at in chosen:
                self._clean(self.logs[at], for_good=name == "only")
        elif name == "wait":
            self.now_ms += int(number)
            for log in self.logs:
                log.set_clock(self.now_ms)
        elif name == "leave":
            self.away |= set(chosen)
        else:
            for at, log in enumerate(self.logs):
                if at not in self.away:
                    log.append(appended(log.next_offset, word))

    def _clean(self, log: ScriptedLog, *, for_good: bool) -> None:
        log.deletes_for_good = for_good
        log.high_watermark = self.high_watermark
        log.clean()

    @property
    def high_watermark(self) -> int:
        """The lowest end: all replicas have everything below it."""
        return min(log.next_offset for log in self.logs)

    def disk(self, *, clean: bool = True) -> MemoryFileSystem:
        """Directories /b1, /b2, … of the stopped brokers; all is durable."""
        fs = MemoryFileSystem(lambda: self.now_ms * 1_000_000)
        for number, log in enumerate(self.logs, 1):
            root = f"/b{number}"
            fs.make_directory(root)
            fs.make_directory(f"{root}/{T}")
            log.stop(clean=clean)
            for name, data in tree(log.fs, f"{LIVE}/t-0").items():
                write_file(fs, f"{root}/{T}/{name}", data or b"")
            for info in log.fs.list(f"{LIVE}/t-0"):
                fs.set_mtime_ns(f"{root}/{T}/{info.name}", info.mtime_ns)
            entries = {
                filenames.RECOVERY_POINTS: log.next_offset,
                filenames.HIGH_WATERMARKS: self.high_watermark,
                filenames.CLEANER_OFFSETS: log.checkpoint,
                filenames.LOG_START_OFFSETS: log.log_start,
            }
            for name, offset in entries.items():
                write_file(fs, f"{root}/{name}", checkpoints.encode({} if offset is None else {T: offset}))
            meta = f"version=1\nnode.id={number}\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\n"
            write_file(fs, f"{root}/{filenames.META_PROPERTIES}", meta.encode())
            if clean:
                write_file(fs, f"{root}/{filenames.CLEAN_SHUTDOWN}", b'{"version":0,"brokerEpoch":1}')
        fs.make_directory(f"/b1/{METADATA}")
        write_file(fs, f"/b1/{METADATA}/{offset_name(0, FileKind.LOG)}", batch(0, *self._metadata()))
        return durable(fs)

    def _metadata(self) -> list[Pair]:
        topic_id = encode_id(uuid.UUID(int=7))
        ids = tuple(range(1, self.replicas + 1))
        partition = {
            "partition_id": 0, "topic_id": topic_id, "replicas": ids, "isr": ids, "removing_replicas": (),
            "adding_replicas": (), "leader": 1, "leader_epoch": 0, "partition_epoch": 0,
        }  # fmt: skip
        configs = {"cleanup.policy": "compact", "delete.retention.ms": RETENTION_MS, "internal.segment.bytes": 450}
        return [
            internal_record("TopicRecord", {"name": T.topic, "topic_id": topic_id}),
            internal_record("PartitionRecord", partition, version=0),
            *(
                internal_record(
                    "ConfigRecord", {"resource_type": 2, "resource_name": T.topic, "name": name, "value": str(value)}
                )
                for name, value in configs.items()
            ),
        ]


def made(script: str, *, replicas: int = 3) -> MadeCluster:
    """A cluster after a script."""
    return MadeCluster(replicas).play(script)


def roots(fs: LocalFileSystem) -> list[str]:
    """The brokers' directories."""
    return [f"/{info.name}" for info in fs.list("/") if info.name.startswith("b")]


def clean(fs: LocalFileSystem, now_ms: int, *paths: str, **options: Any) -> CleanResult:
    """Clean the directories of all brokers, or some, in place."""
    options = {"ignore_ratio": True, "no_broker_elsewhere": True, **options}
    return clean_in_place(*(paths or roots(fs)), fs=fs, now_ms=now_ms, overrides=["index.interval.bytes=60"], **options)


def log_of(fs: LocalFileSystem, root: str) -> LogView:
    """The replica in a directory."""
    return LogView(f"{root}/{T}", fs=fs)


def shown(fs: LocalFileSystem, root: str) -> str:
    """Records and markers of a replica: `0:a=1 2:b=∅ 3!`."""
    found = []
    for one in log_of(fs, root).batches():
        if one.is_control and one.record_count:
            found.append((one.base_offset, f"{one.base_offset}!"))
    for offset, _, key, value in view(log_of(fs, root)):
        found.append((offset, f"{offset}:{(key or b'').decode()}={'∅' if value is None else value.decode()}"))
    return " ".join(text for _, text in sorted(found))


def tables(fs: LocalFileSystem) -> list[dict[bytes | None, bytes]]:
    """The last committed value of each key, in each replica."""
    found = []
    for root in roots(fs):
        last = {one.key: one.value for one in log_of(fs, root).records(isolation="read_committed")}
        found.append({key: value for key, value in last.items() if value is not None})
    return found


def compared(fs: LocalFileSystem) -> PartitionComparison:
    """Compare the replicas in this process."""
    cluster = Cluster.open(fs, roots(fs))
    partition: ReplicatedPartition = replicas_of(cluster, T)
    scratch = MemoryFileSystem(lambda: 0)
    scratch.make_directory("/scratch")
    site = TaskSite(fs.location(), Scratch(scratch.location(), "/scratch"))
    (found,) = comparing.compare_partitions(each_here, 1, fs, [partition], site, KeyShare(1.0))
    return found


def cleaned_everywhere(result: CleanResult) -> bool:
    """Whether all replicas were cleaned."""
    return len(result.with_fate(Fate.CLEANED)) == len(result.partitions)


def checkpoints_of(fs: LocalFileSystem, brokers: Sequence[str]) -> list[int | None]:
    """The cleaner's checkpoint of each replica."""
    return [checkpoints.decode(read_file(fs, f"{root}/{filenames.CLEANER_OFFSETS}")).get(T) for root in brokers]
