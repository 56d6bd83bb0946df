"""Logs to clean in benchmarks: the shape of their records, their keys, and their dirty share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from cordwood.bench.generate import Keys, Shape, write_keyed_log
from cordwood.common.types import Codec, TopicPartition
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats import checkpoints, filenames

TOPIC = "bench"
#: Segment size of a log in full size.
_SEGMENT_BYTES = 1 << 28


_SMALL, _KIB = Shape(), Shape(value_bytes=1024)


@dataclass(frozen=True, slots=True)
class Target:
    """The target on two cores, with 2 GB (compressed: 0.6 GB) in one partition.

    Attributes:
        ratio, stretch: minimum speed relative to Kafka's cleaner, and the speed to aim for.
        cpu_s: maximum CPU seconds of all cores in one process, or None without a target.
    """

    ratio: float
    stretch: float
    cpu_s: float | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """Partitions to clean.

    Attributes:
        incremental: whether only the updates at the end are dirty.
        dirty: dirty share of the records; 0 where it does not matter.
        targets: targets by way of cleaning.
    """

    title: str
    records: int
    keys: Keys
    shape: Shape = _SMALL
    partitions: int = 1
    incremental: bool = False
    dirty: float = 0
    targets: Mapping[Way, Target] | None = None

    def segment_bytes(self, share: float) -> int:
        """Return the segment size. A smaller incremental log has as many segments, and as many with updates."""
        return max(int(_SEGMENT_BYTES * share), 1 << 20) if self.incremental else _SEGMENT_BYTES

    def target(self, way: Way) -> Target | None:
        """Return the target of a way of cleaning, or None."""
        return (self.targets or {}).get(way)

    @property
    def ways(self) -> tuple[Way, ...]:
        """The ways to clean it, in order."""
        return ("copy", *(way for way in _IN_PLACE if way in (self.targets or {})))


Way = Literal["copy", "in place", "in place, proved", "in place, indexed", "in place, indexed, proved"]
_IN_PLACE: tuple[Way, ...] = ("in place", "in place, proved", "in place, indexed", "in place, indexed, proved")
#: Cleans in place with the key indexes of an earlier clean.
INDEXED: tuple[Way, ...] = ("in place, indexed", "in place, indexed, proved")
_M = 1_000_000


def _copy(ratio: float, stretch: float, cpu_s: float | None = None) -> dict[Way, Target]:
    return {"copy": Target(ratio, stretch, cpu_s)}


def _in_place(ratio: float, stretch: float) -> dict[Way, Target]:
    return {"in place": Target(ratio, stretch), "in place, proved": Target(1.2, 2.5)}


def _indexed(ratio: float, stretch: float) -> dict[Way, Target]:
    """Targets with key indexes. The proof still reads the whole log, which takes 1.8 seconds, with 1.2 as the aim."""
    return {"in place, indexed": Target(ratio, stretch), "in place, indexed, proved": Target(ratio / 2.5, stretch / 3)}


WORKLOADS: dict[str, Workload] = {
    "A": Workload("1 KiB values", 2 * _M, Keys(500_000), _KIB, targets=_copy(3.5, 5, 1.3)),
    "B": Workload("100 B values", 16 * _M, Keys(_M), targets=_copy(8, 12, 2.0) | _in_place(8, 12)),
    "Bz": Workload("a few keys have most records", 16 * _M, Keys(_M, "zipf")),
    "Bu": Workload("9.5 M keys", 16 * _M, Keys(14 * _M), targets=_copy(11, 18, 3.2)),
    "T": Workload(
        "14 M keys, most records stay", 16 * _M, Keys(_M, "tail"), targets=_copy(12, 20, 4.0) | _in_place(12, 20)
    ),
    "TA": Workload("1 KiB values, most records stay", 2 * _M, Keys(100_000, "tail"), _KIB),
    "S": Workload("20 B values, 38 M keys", 60 * _M, Keys(60 * _M), Shape(value_bytes=20)),
    "lz4": Workload("LZ4", 8 * _M, Keys(_M), Shape(codec=Codec.LZ4), targets=_copy(5, 8, 2.6) | _in_place(5, 8)),
    "snappy": Workload("Snappy", 8 * _M, Keys(_M), Shape(codec=Codec.SNAPPY), targets=_copy(7, 11, 3.6)),
    "zstd": Workload("zstd", 8 * _M, Keys(_M), Shape(codec=Codec.ZSTD), targets=_copy(3.5, 5, 6.9)),
    "gzip": Workload("gzip", 8 * _M, Keys(_M), Shape(codec=Codec.GZIP), targets=_copy(2.5, 4)),
    "IH": Workload(
        "1 % dirty, updates one segment",
        16 * _M,
        Keys(80_000, "tail"),
        incremental=True,
        targets=_in_place(6, 10) | _indexed(12, 25),
    ),
    "IHA": Workload(
        "IH with 1 KiB values",
        2 * _M,
        Keys(10_000, "tail"),
        _KIB,
        incremental=True,
        targets=_in_place(6, 10) | _indexed(7, 14),
    ),
    "IS": Workload(
        "1 % dirty, updates anywhere",
        16 * _M,
        Keys(160_000, "spread"),
        incremental=True,
        targets=_in_place(3.5, 8) | _indexed(6, 9),
    ),
    "aborted": Workload("a fifth is aborted", 16 * _M, Keys(_M), Shape(aborted=True)),
    "tombstones": Workload("every tenth record is a tombstone", 16 * _M, Keys(_M), Shape(tombstone_every=10)),
    "8": Workload("8 partitions of B", 2 * _M, Keys(125_000), partitions=8, targets=_copy(6, 10)),
    "tiny": Workload("1,000 partitions of 100 kB", 800, Keys(100), Shape(batch_bytes=1000), partitions=1000),
}
#: Possible dirty shares of a log, in per mille.
_PER_MILLE = (1, 3, 10, 30, 100, 300)
#: Workload IH with increasing dirty shares.
BY_SHARE: dict[str, Workload] = {
    f"{number / 10:g} %": replace(
        WORKLOADS["IH"], title=f"IH, {number / 10:g} % dirty", keys=Keys(number * 8_000, "tail"), dirty=number / 1000
    )
    for number in _PER_MILLE
}
#: Default workloads.
USUAL = ("A", "B", "lz4")


def write(root: Path, workload: Workload, share: float = 1.0) -> int:
    """Write the partitions of a workload, as a broker leaves them after a clean shutdown; return the number of records.

    Args:
        share: share of the full size: fewer records and keys, or with several partitions fewer partitions.
    """
    many = workload.partitions > 1
    records = workload.records if many else max(1, int(workload.records * share))
    keys = workload.keys if many else Keys(max(1, int(workload.keys.count * share)), workload.keys.pattern)
    partitions = max(1, round(workload.partitions * share)) if many else 1
    ends = {}
    for number in range(partitions):
        partition = root / f"{TOPIC}-{number}"
        partition.mkdir(parents=True)
        ends[TopicPartition(TOPIC, number)] = write_keyed_log(
            PosixFileSystem(),
            str(partition),
            records=records,
            keys=keys,
            shape=workload.shape,
            segment_bytes=workload.segment_bytes(share),
            seed=7 + number,
        )
    (root / filenames.HIGH_WATERMARKS).write_bytes(checkpoints.encode(ends))
    if workload.incremental:
        clean = dict.fromkeys(ends, keys.first_update(records))
        (root / filenames.CLEANER_OFFSETS).write_bytes(checkpoints.encode(clean))
    (root / filenames.CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":1}')
    return sum(ends.values())
