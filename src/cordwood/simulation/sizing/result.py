"""The results of `simulate` and `explain`: the outcome of each set of configs, for a partition and for its topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from cordwood.common.text import Charted
from cordwood.simulation.sizing.workload import Scale, Workload


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


# ---- one log under other configs -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AtOnce:
    """The changes that a broker would make to the present log if it started now with these configs.

    Attributes:
        deleted_bytes, deleted_segments: data that retention deletes.
        deleted_by: reasons, in words.
        is_cleaned: whether the log would be cleaned.
        reason: why it is cleaned, or why not and when, in words.
        cleanable_ratio: None for a log that is not compacted.
        removed_bytes_max: upper limit of the bytes that the clean removes.
    """

    deleted_bytes: int
    deleted_segments: int
    deleted_by: tuple[str, ...]
    is_cleaned: bool
    reason: str
    cleanable_ratio: float | None
    removed_bytes_max: int


@dataclass(frozen=True, slots=True)
class ReplayedLog:
    """The replayed log.

    Attributes:
        topic_partitions, topic_bytes: number and size of this topic's logs in the directories.
        log_bytes: size of this log's segments.
        records: present records.
        gone: records that cleans removed.
        first_ms, end_ms: append time of the first record, and the time just after the last append.
        measured_ms: start of the measured time.
        repeated_ms: length of the last part of the log, which is repeated before its first record because the real
            traffic there is unknown; 0: not repeated.
        damage: the first damage found, in words.
    """

    topic: str
    partition: int
    topic_partitions: int
    topic_bytes: int
    log_bytes: int
    records: int
    gone: int
    first_ms: int
    end_ms: int
    measured_ms: int
    repeated_ms: int
    damage: str = ""

    @property
    def name(self) -> str:
        """The log's directory name."""
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class ExplainResult(Charted):
    """One log under its own configs, and under others.

    Attributes:
        now_ms: time for which `at_once` holds.
        at_once: immediate changes, by the label of the outcome.
        outcomes: results of the replay: `now` has the log's own configs, A and B the configs of the request.
        verdict: comparison of the outcomes.
        notes: limits of the replay.
    """

    now_ms: int
    log: ReplayedLog
    seed: int
    scale: Scale
    at_once: Mapping[str, AtOnce]
    outcomes: tuple[Outcome, ...]
    verdict: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = (f"{one.label}: {one.mean_bytes} bytes, at most {one.peak_bytes}" for one in self.outcomes)
        return f"{self.log.name}: {'; '.join(parts)}"


# ---- how long records stay -------------------------------------------------------------------------------------------

# Superseded records and tombstones that are still present at the end have stayed at least until then (they are
# censored). To leave them out would lose the long stays; to count their time so far as complete would make the result
# too short. The Kaplan–Meier estimator uses each record for as long as it was observed: for each duration, it computes
# the share of records that leave at that age, among all records that were observed for at least that long.

#: The time of an event that has not happened.
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Stay:
    """Durations of one kind of stay, in milliseconds. None: longer than the observed time.

    Attributes:
        still_there: number still present at the end.
        min_ms: shortest completed stay.
        median_ms: half of all stays are at most this long.
        most_ms: 95 % of all stays are at most this long.
        max_ms: longest stay, completed or not.
    """

    count: int
    still_there: int
    min_ms: float | None
    median_ms: float | None
    most_ms: float | None
    max_ms: float

    @classmethod
    def of(
        cls,
        began_ms: npt.NDArray[np.int64],
        ended_ms: npt.NDArray[np.int64],
        now_ms: int,
        factor: float = 1,
        *,
        lost_ms: npt.NDArray[np.int64] | None = None,
    ) -> Self | None:
        """Compute the durations, or return None without any stays.

        Args:
            began_ms: int64[things], start of each stay.
            ended_ms: int64[things], end of each stay, or `NEVER`.
            now_ms: end of the observation.
            factor: number of real stays that each of these represents.
            lost_ms: int64[things], time at which observation of each ended because its kind changed, or `NEVER`.
        """
        if not began_ms.size:
            return None
        until_ms = np.full(began_ms.size, now_ms) if lost_ms is None else np.minimum(lost_ms, now_ms)
        # If observation and stay end at the same moment, the change of kind was the cause.
        went = (ended_ms != NEVER) & ((ended_ms < until_ms) | (until_ms == now_ms))
        stays = np.where(went, ended_ms, until_ms) - began_ms
        times, group = np.unique(stays, return_inverse=True)
        ended = np.bincount(group, weights=went, minlength=times.size)
        seen_until = stays.size - np.concatenate([[0], np.cumsum(np.bincount(group, minlength=times.size))[:-1]])
        staying = np.cumprod(1 - ended / seen_until)

        def quantile(share: float) -> float | None:
            reached = np.flatnonzero(staying <= 1 - share + 1e-12)
            return float(times[reached[0]]) if reached.size else None

        is_there = ~went & (until_ms == now_ms)
        return cls(
            round(stays.size * factor),
            round(int(is_there.sum()) * factor),
            float(stays[went].min()) if went.any() else None,
            quantile(0.5),
            quantile(0.95),
            float(stays.max()),
        )
