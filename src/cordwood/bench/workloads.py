"""Logs to clean in benchmarks: the shape of their records, their keys, and their dirty share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from cordwood.bench.generate import KeyPattern, Shape, write_keyed_log
from cordwood.common.types import Codec, TopicPartition
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats import checkpoints, filenames

TOPIC = "bench"
#: Segment size of a log in full size.
_SEGMENT_BYTES = 1 << 28


_SMALL, _KIB = Shape(), Shape(value_bytes=1024)


@dataclass(frozen=True, slots=True)
class SpeedTarget:
    """The target on two cores, with 2 GB (compressed: 0.6 GB) in one partition.

    Attributes:
        ratio, stretch: minimum speed relative to Kafka's cleaner, and the speed to aim for.
        cpu_s: maximum CPU seconds of all cores in one process, or None without a target.
    """

    ratio: float
    stretch: float
    cpu_s: float | None = None


@dataclass(frozen=True, slots=True)
class BenchWorkload:
    """Partitions to clean.

    Attributes:
        incremental: whether only the updates at the end are dirty.
        dirty: dirty share of the records; 0 where it does not matter.
        targets: targets by way of cleaning.
        record_per_segment: whether each segment has one batch, of one record.
    """

    title: str
    records: int
    keys: KeyPattern
    shape: Shape = _SMALL
    partitions: int = 1
    incremental: bool = False
    dirty: float = 0
    targets: Mapping[Way, SpeedTarget] | None = None
    record_per_segment: bool = False

    def segment_bytes(self, share: float) -> int:
        """Return the segment size. A smaller incremental log has as many segments, and as many with updates."""
        if self.record_per_segment:
            return 1
        return max(int(_SEGMENT_BYTES * share), 1 << 20) if self.incremental else _SEGMENT_BYTES

    def target(self, way: Way) -> SpeedTarget | None:
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


def _copy(ratio: float, stretch: float, cpu_s: float | None = None) -> dict[Way, SpeedTarget]:
    return {"copy": SpeedTarget(ratio, stretch, cpu_s)}


def _in_place(ratio: float, stretch: float) -> dict[Way, SpeedTarget]:
    return {"in place": SpeedTarget(ratio, stretch), "in place, proved": SpeedTarget(1.2, 2.5)}


def _indexed(ratio: float, stretch: float) -> dict[Way, SpeedTarget]:
    """Targets with key indexes. The proof still reads the whole log, which takes 1.8 seconds, with 1.2 as the aim."""
    return {
        "in place, indexed": SpeedTarget(ratio, stretch),
        "in place, indexed, proved": SpeedTarget(ratio / 2.5, stretch / 3),
    }


WORKLOADS: dict[str, BenchWorkload] = {
    "A": BenchWorkload("1 KiB values", 2 * _M, KeyPattern(500_000), _KIB, targets=_copy(3.5, 5, 1.3)),
    "B": BenchWorkload("100 B values", 16 * _M, KeyPattern(_M), targets=_copy(8, 12, 2.0) | _in_place(8, 12)),
    "Bz": BenchWorkload("a few keys have most records", 16 * _M, KeyPattern(_M, "zipf")),
    "Bu": BenchWorkload("9.5 M keys", 16 * _M, KeyPattern(14 * _M), targets=_copy(11, 18, 3.2)),
    "T": BenchWorkload(
        "14 M keys, most records stay", 16 * _M, KeyPattern(_M, "tail"), targets=_copy(12, 20, 4.0) | _in_place(12, 20)
    ),
    "TA": BenchWorkload("1 KiB values, most records stay", 2 * _M, KeyPattern(100_000, "tail"), _KIB),
    "S": BenchWorkload("20 B values, 38 M keys", 60 * _M, KeyPattern(60 * _M), Shape(value_bytes=20)),
    "lz4": BenchWorkload(
        "LZ4", 8 * _M, KeyPattern(_M), Shape(codec=Codec.LZ4), targets=_copy(5, 8, 2.6) | _in_place(5, 8)
    ),
    "snappy": BenchWorkload("Snappy", 8 * _M, KeyPattern(_M), Shape(codec=Codec.SNAPPY), targets=_copy(7, 11, 3.6)),
    "zstd": BenchWorkload("zstd", 8 * _M, KeyPattern(_M), Shape(codec=Codec.ZSTD), targets=_copy(3.5, 5, 6.9)),
    "gzip": BenchWorkload("gzip", 8 * _M, KeyPattern(_M), Shape(codec=Codec.GZIP), targets=_copy(2.5, 4)),
    "IH": BenchWorkload(
        "1 % dirty, updates one segment",
        16 * _M,
        KeyPattern(80_000, "tail"),
        incremental=True,
        targets=_in_place(6, 10) | _indexed(12, 25),
    ),
    "IHA": BenchWorkload(
        "IH with 1 KiB values",
        2 * _M,
        KeyPattern(10_000, "tail"),
        _KIB,
        incremental=True,
        targets=_in_place(6, 10) | _indexed(7, 14),
    ),
    "IS": BenchWorkload(
        "1 % dirty, updates anywhere",
        16 * _M,
        KeyPattern(160_000, "spread"),
        incremental=True,
        targets=_in_place(3.5, 8) | _indexed(6, 9),
    ),
    "aborted": BenchWorkload("a fifth is aborted", 16 * _M, KeyPattern(_M), Shape(aborted=True)),
    "tombstones": BenchWorkload(
        "every tenth record is a tombstone", 16 * _M, KeyPattern(_M), Shape(tombstone_every=10)
    ),
    "8": BenchWorkload("8 partitions of B", 2 * _M, KeyPattern(125_000), partitions=8, targets=_copy(6, 10)),
    "tiny": BenchWorkload("1,000 partitions of 100 kB", 800, KeyPattern(100), Shape(batch_bytes=1000), partitions=1000),
    "segments": BenchWorkload(
        "4,000 segments of one record",
        4000,
        KeyPattern(50),
        Shape(batch_bytes=1, round_batches=1),
        targets=_copy(0.25, 0.5),
        record_per_segment=True,
    ),
}
#: Possible dirty shares of a log, in per mille.
_PER_MILLE = (1, 3, 10, 30, 100, 300)
#: Workload IH with increasing dirty shares.
BY_SHARE: dict[str, BenchWorkload] = {
    f"{number / 10:g} %": replace(
        WORKLOADS["IH"],
        title=f"IH, {number / 10:g} % dirty",
        keys=KeyPattern(number * 8_000, "tail"),
        dirty=number / 1000,
    )
    for number in _PER_MILLE
}
#: Default workloads.
USUAL = ("A", "B", "lz4")


def write(root: Path, workload: BenchWorkload, share: float = 1.0) -> int:
    """Write the partitions of a workload, as a broker leaves them after a clean shutdown; return the number of records.

    Args:
        share: share of the full size: fewer records and keys, or with several partitions fewer partitions.
    """
    many = workload.partitions > 1
    records = workload.records if many else max(1, int(workload.records * share))
    keys = workload.keys if many else KeyPattern(max(1, int(workload.keys.count * share)), workload.keys.pattern)
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
