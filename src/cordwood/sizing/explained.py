"""What `explain` found of one log: what would become of it under other configs, at once and over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cordwood.presentable import Charted
from cordwood.sizing.result import Outcome
from cordwood.sizing.scale import Scale


@dataclass(frozen=True, slots=True)
class AtOnce:
    """What a broker that starts now under a set of configs would do to the log as it is.

    Attributes:
        deleted_bytes, deleted_segments: what retention takes.
        deleted_by: why, in words.
        is_cleaned: whether the log would be cleaned.
        reason: why, or why not and when, in words.
        cleanable_ratio: None: it is not compacted.
        removed_bytes_max: the most that its clean can remove.
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
    """What is replayed.

    Attributes:
        topic, partition: the name of the log.
        topic_partitions, topic_bytes: how many logs of its topic there are in the directories, and what they take.
        log_bytes: what this one takes: its segments.
        records: that are there.
        gone: how many were there, and were removed by cleans.
        first_ms, end_ms: when its first record was appended, and just after its last.
        measured_ms: since when it is measured.
        repeated_ms: the length of the log's own time that stands for the time before its first record, of which nothing
            is known; 0: nothing is repeated.
        damage: the first that was met, in words.
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
        """The name of the log's directory."""
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class ExplainResult(Charted):
    """The same log under its own configs, and under others.

    Attributes:
        now_ms: as of when `at_once` is told.
        at_once: for each outcome, by its label.
        outcomes: of the replay: `now` is under the log's own configs, A and B under those that were asked about.
        verdict: how they compare.
        notes: what is to be known of the replay.
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
