"""What `run` knows of its live logs, as values: for its table on a terminal, for its pages, and as JSON.

A look at the logs gives a `LiveLook`. Samples of looks say what was so before, and how fast bytes come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from cordwood.cleaning.plan import Reason
from cordwood.text import Column, bytes_text, printable
from cordwood.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Health:
    """The problems of live logs, in words; none: they are well."""

    problems: tuple[str, ...]

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One live log, as it is now.

    Attributes:
        policy: `cleanup.policy`; empty: everything is kept.
        appended_bytes: since it was loaded.
        deleted_bytes: of old segments, since it was loaded.
        cleanable_ratio: the part of a compacted log that could be cleaned; None: it is not compacted.
        state: what the cleaner does to it: `in progress`, `aborted`, `paused(1)`; None: nothing.
        is_due: it is to be cleaned as soon as a thread is free.
        failures: how many cleans have failed, one after the other; 0: the last one has not.
        reason: why it is due, or why it is not, or what has failed.
        failure_kind: why the last clean has failed, in a word; see `Uncleanable`.
        dirty_bytes: what the next clean will go over.
        seconds_since_clean: the time since its last clean, or since the start if there was none after it; None: it is
            not compacted.
    """

    partition: TopicPartition
    directory: str
    policy: str
    segments: int
    size_bytes: int
    appended_bytes: int
    deleted_bytes: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    cleanable_ratio: float | None
    state: str | None
    is_due: bool
    failures: int
    reason: Reason
    failure_kind: str = ""
    dirty_bytes: int = 0
    seconds_since_clean: int | None = None

    @property
    def doing(self) -> str:
        """What the cleaner does to it, in a word or two; empty: nothing."""
        return self.state or ("failed" if self.failures else "due" if self.is_due else "")


def worst_first(found: Iterable[PartitionStatus]) -> list[PartitionStatus]:
    """Logs whose clean failed, then those that are due or being cleaned, then the others; each by the dirty part."""

    def rank(status: PartitionStatus) -> tuple[object, ...]:
        waits = status.is_due or status.state is not None
        return not status.failures, not waits, -(status.cleanable_ratio or 0), status.partition

    return sorted(found, key=rank)


class ThreadState(StrEnum):
    """What a cleaner thread does."""

    CLEANING = "cleans"
    WAITING = "waits"  #: for a log that is due; or deletes old segments
    DEAD = "is dead"


@dataclass(frozen=True, slots=True)
class ThreadStatus:
    """A cleaner thread, as it is now.

    Attributes:
        partition: that it cleans; None: none.
        seconds: for how long.
        bytes_read: by this clean, so far.
        bytes_max: that it will read, at most: keys first, then what stays, unless that is still in memory.
        last: its last clean, in words; empty: there was none.
    """

    name: str
    state: ThreadState
    partition: TopicPartition | None = None
    seconds: float = 0.0
    bytes_read: int = 0
    bytes_max: int = 0
    last: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """What was known at one time. What comes and goes is counted since the start.

    Attributes:
        time_ms: for people.
        uptime_ms: since the start, by a clock that nobody sets.
        size_bytes: of all logs.
        deleted_bytes: of old segments.
        removed_bytes: that cleans have made logs smaller by.
        read_bytes, written_bytes: by cleans, key indexes included.
        new_bytes: what was dirty before these cleans.
        dirtiest_ratio: of all compacted logs.
        due, failed: logs that are to be cleaned, and those whose last clean has failed.
    """

    time_ms: int
    uptime_ms: int
    size_bytes: int
    appended_bytes: int
    deleted_bytes: int
    removed_bytes: int
    read_bytes: int
    written_bytes: int
    new_bytes: int
    dirtiest_ratio: float
    due: int
    failed: int

    @property
    def written_per_new_byte(self) -> float | None:
        """What cleans have written for each byte that was new; None: none was."""
        return self.written_bytes / self.new_bytes if self.new_bytes else None


class Span(StrEnum):
    """How far back samples go, as an address names it."""

    MINUTES = "10m"
    HOUR = "1h"
    DAY = "1d"
    MONTH = "30d"


#: Of each span: in words, its length, and how far apart its samples are, in milliseconds.
SPANS: Mapping[Span, tuple[str, int, int]] = {
    Span.MINUTES: ("10 minutes", 600_000, 4_000),
    Span.HOUR: ("hour", 3_600_000, 30_000),
    Span.DAY: ("day", 86_400_000, 600_000),
    Span.MONTH: ("30 days", 2_592_000_000, 21_600_000),
}


@dataclass(frozen=True, slots=True)
class LiveLook:
    """What a look at live logs has found."""

    directories: tuple[str, ...]
    now: Sample
    health: Health
    partitions: tuple[PartitionStatus, ...]
    threads: tuple[ThreadStatus, ...]


# ---- text ------------------------------------------------------------------------------------------------------------


def _dirty(status: PartitionStatus) -> str:
    return "" if status.cleanable_ratio is None else f"{status.cleanable_ratio:.0%}"


#: Of the table on a terminal, and of pages.
PARTITION_COLUMNS: Sequence[tuple[Column, Callable[[PartitionStatus], str]]] = (
    (Column("PARTITION"), lambda status: printable(str(status.partition))),
    (Column("POLICY"), lambda status: status.policy or "-"),
    (Column("SIZE", right=True), lambda status: bytes_text(status.size_bytes)),
    (Column("SEGMENTS", right=True), lambda status: f"{status.segments:,}"),
    (Column("DIRTY", right=True), _dirty),
    (Column("CLEANER"), lambda status: status.doing),
    (Column("WHY"), lambda status: printable(str(status.reason))),
)


# ---- JSON ------------------------------------------------------------------------------------------------------------


def document(look: LiveLook, samples: Sequence[Sample]) -> dict[str, Any]:
    """A look without its partitions, and samples, as one JSON value."""
    return {
        "directories": list(look.directories),
        "healthy": look.health.is_well,
        "problems": list(look.health.problems),
        **asdict(look.now),
        "written_per_new_byte": look.now.written_per_new_byte,
        "partition_count": len(look.partitions),
        "threads": [_thread_document(one) for one in look.threads],
        "cannot_be_cleaned": [partition_document(one) for one in look.partitions if one.failures],
        "samples": [asdict(one) for one in samples],
    }


def partition_document(status: PartitionStatus) -> dict[str, Any]:
    """One live log as one JSON value."""
    return {
        **_name(status.partition),
        "path": printable(status.directory),
        "policy": status.policy,
        "segments": status.segments,
        "size_bytes": status.size_bytes,
        "appended_bytes": status.appended_bytes,
        "deleted_bytes": status.deleted_bytes,
        "log_start_offset": status.log_start_offset,
        "log_end_offset": status.log_end_offset,
        "high_watermark": status.high_watermark,
        "cleanable_ratio": status.cleanable_ratio,
        "state": status.state,
        "due": status.is_due,
        "failures": status.failures,
        "why": str(status.reason),
    }


def _thread_document(status: ThreadStatus) -> dict[str, Any]:
    cleans = {"topic": None, "partition": None} if status.partition is None else _name(status.partition)
    return {**asdict(status), **cleans, "last": status.last or None}


def _name(partition: TopicPartition) -> dict[str, Any]:
    return {"topic": partition.topic, "partition": partition.partition}
