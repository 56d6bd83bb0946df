"""What a simulation found, of one partition in full size, and of its topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cordwood.presentable import Charted
from cordwood.sizing.scale import Scale
from cordwood.sizing.stays import Stay
from cordwood.sizing.workload import Workload


@dataclass(frozen=True, slots=True)
class Contents:
    """What the bytes of a partition are. The last record of a key is its value, or the tombstone that deleted it.

    Attributes:
        values: last records of keys that have a value.
        superseded: records whose key has a newer one.
        rest: headers of batches, markers, indexes, and files that wait for their removal.
    """

    values: int
    tombstones: int
    superseded: int
    aborted: int
    rest: int


@dataclass(frozen=True, slots=True)
class Rolls:
    """When segments were closed.

    Attributes:
        by_size: they were as large as `segment.bytes` allows.
        by_time: they were as old as `segment.ms` allows; of a compacted topic, `max.compaction.lag.ms`.
        by_index: an index was full.
    """

    by_size: int = 0
    by_time: int = 0
    by_index: int = 0
    closed_bytes: int = 0

    @property
    def count(self) -> int:
        """All of them."""
        return self.by_size + self.by_time + self.by_index

    def with_one(self, size_bytes: int, *, by_size: bool, by_index: bool) -> Rolls:
        """And one more."""
        return Rolls(
            self.by_size + by_size,
            self.by_time + (not by_size and not by_index),
            self.by_index + (by_index and not by_size),
            self.closed_bytes + size_bytes,
        )


@dataclass(frozen=True, slots=True)
class Deletions:
    """What retention deleted.

    Attributes:
        first_ms: when the first one went, since the start; None: none did.
    """

    by_time: int = 0
    by_size: int = 0
    deleted_bytes: int = 0
    first_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Cleans:
    """What the cleaner did.

    Attributes:
        by_ratio: cleans of a log that was more dirty than `min.cleanable.dirty.ratio`.
        by_lag: those of a log that was not, but had waited for `max.compaction.lag.ms`.
        read_bytes: as Kafka's cleaner reads: the dirty part for its keys, and then all that is copied. If garbage may
            be left, as Cordwood's reads.
        first_ms: when the first one was, since the start; None: there was none.
        keys_max: distinct keys in the dirty part of one clean, at most.
        map_keys: how many keys the map of one of Kafka's cleaner threads holds.
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
        """All of them."""
        return self.by_ratio + self.by_lag


@dataclass(frozen=True, slots=True)
class Point:
    """A partition at one time.

    Attributes:
        peak_bytes: what it took at most since the point before, with files that wait for their removal.
        least_bytes: what it took at least since the point before.
        cleans: how often it was cleaned since the point before.
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
    """What one set of configs leads to, for one partition. Bytes are those of segments and their indexes.

    Attributes:
        min_dead: how much garbage Cordwood's cleaner may leave, as a share of a log; None: it is Kafka's.
        mean_bytes: what the disk holds on average, in the last third of the time.
        peak_bytes: what it holds at most, at any time, with files that wait for their removal and the room for a clean.
        growth_bytes: by how much it still grows in a day, at the end.
        contents: what the mean consists of.
        active_bytes: how much of the mean is in the active segment, which is never cleaned.
        segments_mean, segments_max: how many there are: on average in the last third, and at most.
        superseded: how long a record stays once its key has a newer one.
        tombstones: how long a tombstone stays while its key has no newer record.
        aborted: how long a record of an aborted transaction stays after the abort.
        deleted: how old a record is when retention deletes it.
        notes: which limits count, and what is worth a thought, in words.
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
    min_dead: float | None = None

    @property
    def cleaned_per_byte(self) -> float:
        """Bytes that the cleaner writes for each byte that a producer writes: write amplification, less one."""
        return self.cleans.written_bytes / max(self.appended_bytes, 1)

    @property
    def read_per_byte(self) -> float:
        """Bytes that the cleaner reads for each byte that a producer writes."""
        return self.cleans.read_bytes / max(self.appended_bytes, 1)

    @property
    def cleaner_rate(self) -> float:
        """Bytes per second that the cleaner reads and writes, on average."""
        return (self.cleans.read_bytes + self.cleans.written_bytes) / (self.duration_ms / 1000)


@dataclass(frozen=True, slots=True)
class SimulationResult(Charted):
    """What a topic's disk will be, under one set of configs or two.

    Attributes:
        outcomes: of each set of configs, for one partition.
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
