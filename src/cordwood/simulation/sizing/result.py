"""The result of a simulation, for one partition in full size and for its topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cordwood.common.presentable import Charted
from cordwood.simulation.sizing.scale import Scale
from cordwood.simulation.sizing.stays import Stay
from cordwood.simulation.sizing.workload import Workload


@dataclass(frozen=True, slots=True)
class Contents:
    """The bytes of a partition by kind. The last record of a key is its value, or the tombstone that deleted the key.

    Attributes:
        values: last records of keys that have a value.
        superseded: records whose key has a newer record.
        rest: batch headers, markers, indexes, and files that wait for deletion.
    """

    values: int
    tombstones: int
    superseded: int
    aborted: int
    rest: int


@dataclass(frozen=True, slots=True)
class Rolls:
    """Counts of closed segments, by reason.

    Attributes:
        by_size: the segment reached `segment.bytes`.
        by_time: the segment reached `segment.ms`, or `max.compaction.lag.ms` in a compacted topic.
        by_index: an index was full.
    """

    by_size: int = 0
    by_time: int = 0
    by_index: int = 0
    closed_bytes: int = 0

    @property
    def count(self) -> int:
        """Number of closed segments."""
        return self.by_size + self.by_time + self.by_index

    def with_one(self, size_bytes: int, *, by_size: bool, by_index: bool) -> Rolls:
        """Return the counts with one more closed segment."""
        return Rolls(
            self.by_size + by_size,
            self.by_time + (not by_size and not by_index),
            self.by_index + (by_index and not by_size),
            self.closed_bytes + size_bytes,
        )


@dataclass(frozen=True, slots=True)
class Deletions:
    """Deletions by retention.

    Attributes:
        first_ms: time of the first deletion since the start, or None.
    """

    by_time: int = 0
    by_size: int = 0
    deleted_bytes: int = 0
    first_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Cleans:
    """The cleaner's work.

    Attributes:
        by_ratio: cleans of a log that was above `min.cleanable.dirty.ratio`.
        by_lag: cleans of a log below that ratio that had waited for `max.compaction.lag.ms`.
        read_bytes: bytes read as Kafka's cleaner reads: the dirty part for its keys, then all copied data.
        first_ms: time of the first clean since the start, or None.
        keys_max: most distinct keys in the dirty part of one clean.
        map_keys: capacity, in keys, of the map of one of Kafka's cleaner threads.
    """

    by_ratio: int = 0
    by_lag: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    first_ms: int | None = None
    keys_max: int = 0
    map_keys: int = 0

    @property
    def count(self) -> int:
        """Number of cleans."""
        return self.by_ratio + self.by_lag


@dataclass(frozen=True, slots=True)
class Point:
    """A partition at one time.

    Attributes:
        peak_bytes: largest size since the previous point, files that wait for deletion included.
        least_bytes: smallest size since the previous point.
        cleans: number of cleans since the previous point.
    """

    ms: int
    disk_bytes: int
    peak_bytes: int
    least_bytes: int
    values_bytes: int
    segments: int
    cleans: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one set of configs for one partition. Byte sizes count segments and their indexes.

    Attributes:
        mean_bytes: mean disk use in the last third of the time.
        peak_bytes: largest disk use at any time, with files that wait for deletion and the room for a clean.
        growth_bytes: growth per day at the end.
        contents: the parts of `mean_bytes`.
        active_bytes: part of the mean in the active segment, which is never cleaned.
        segments_mean, segments_max: number of segments: mean of the last third, and maximum.
        superseded: time that a record stays after a newer record of its key.
        tombstones: time that a tombstone stays while its key has no newer record.
        aborted: time that a record of an aborted transaction stays after the abort.
        deleted: age at which retention deletes a record.
        notes: limits that take effect, and advice, in words.
    """

    label: str
    configs: Mapping[str, str]
    compact: bool
    delete: bool
    duration_ms: int
    appended_bytes: int
    appended_records: int
    mean_bytes: int
    peak_bytes: int
    end_bytes: int
    growth_bytes: int
    contents: Contents
    active_bytes: int
    segments_mean: float
    segments_max: int
    rolls: Rolls
    deletions: Deletions
    cleans: Cleans
    superseded: Stay | None
    tombstones: Stay | None
    aborted: Stay | None
    deleted: Stay | None
    history: tuple[Point, ...]
    notes: tuple[str, ...] = ()

    @property
    def cleaned_per_byte(self) -> float:
        """Bytes that the cleaner writes per byte that producers write: write amplification minus one."""
        return self.cleans.written_bytes / max(self.appended_bytes, 1)

    @property
    def read_per_byte(self) -> float:
        """Bytes that the cleaner reads per byte that producers write."""
        return self.cleans.read_bytes / max(self.appended_bytes, 1)

    @property
    def cleaner_rate(self) -> float:
        """Bytes per second that the cleaner reads and writes, on average."""
        return (self.cleans.read_bytes + self.cleans.written_bytes) / (self.duration_ms / 1000)


@dataclass(frozen=True, slots=True)
class SimulationResult(Charted):
    """The disk that a topic will need, under one or two sets of configs.

    Attributes:
        outcomes: one for each set of configs, for one partition.
    """

    workload: Workload
    days: float
    seed: int
    scale: Scale
    outcomes: tuple[Outcome, ...]
    verdict: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "; ".join(
            f"{one.label}: {one.mean_bytes * self.workload.partitions} bytes, at most "
            f"{one.peak_bytes * self.workload.partitions}"
            for one in self.outcomes
        )
