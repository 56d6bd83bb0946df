"""The result of `explain`: one log under other configs, at once and over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cordwood.common.presentable import Charted
from cordwood.simulation.sizing.result import Outcome
from cordwood.simulation.sizing.scale import Scale


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
