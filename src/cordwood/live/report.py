"""The state of `run`'s live logs, as values: for its table on a terminal, for its pages, and as JSON.

Each scan of the logs produces a `LiveLook`. The samples of earlier scans give the history and the rates.

The history has a bounded number of samples for each span of time. A short span has samples close together, a long one
far apart: a day takes as much memory as ten minutes. A sample holds sums since the start, so the difference of any two
samples is the change between them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from cordwood.cleaning.rules.plan import Reason
from cordwood.common.text import Column, bytes_text, printable
from cordwood.common.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Health:
    """Problems of live logs, in words; empty if the logs are healthy."""

    problems: tuple[str, ...]

    @property
    def is_well(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The present state of one live log.

    Attributes:
        policy: `cleanup.policy`; empty: all records are kept.
        appended_bytes: bytes appended since loading.
        deleted_bytes: bytes of old segments deleted since loading.
        cleanable_ratio: cleanable share of a compacted log; None if it is not compacted.
        state: the cleaner's state for this log: `in progress`, `aborted`, `paused(1)`; None if it has no state.
        is_due: whether the next free thread cleans the log.
        failures: number of consecutive failed cleans; 0 after a successful one.
        reason: why it is due or not, or the failure.
        failure_kind: kind of the last failure, in a word; see `Uncleanable`.
        dirty_bytes: size of the part that the next clean covers.
        seconds_since_clean: time since its last clean, or since the start if there was no later clean; None if it is
            not compacted.
        remote_bytes: size of its segments in the tier; None if it is not open there.
        copy_lag_bytes: size of its closed segments that are not in the tier yet.
        tier_error: the last failure of the tier; empty after a success.
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
    remote_bytes: int | None = None
    copy_lag_bytes: int = 0
    tier_error: str = ""

    @property
    def doing(self) -> str:
        """The cleaner's state for this log in a word or two; empty if the cleaner has no work here."""
        return self.state or ("failed" if self.failures else "due" if self.is_due else "")


def worst_first(found: Iterable[PartitionStatus]) -> list[PartitionStatus]:
    """Sort logs: failed ones first, then due or busy ones, then the others; each group by dirty share."""

    def rank(status: PartitionStatus) -> tuple[object, ...]:
        waits = status.is_due or status.state is not None
        return not status.failures, not waits, -(status.cleanable_ratio or 0), status.partition

    return sorted(found, key=rank)


class ThreadState(StrEnum):
    """The activity of a cleaner thread."""

    CLEANING = "cleans"
    WAITING = "waits"  #: for a due log, or deletes old segments
    DEAD = "is dead"


@dataclass(frozen=True, slots=True)
class ThreadStatus:
    """The present state of a cleaner thread.

    Attributes:
        partition: the partition that it cleans, or None.
        seconds: duration of this clean.
        bytes_read: bytes read by this clean so far.
        bytes_max: upper limit of the bytes that this clean reads: keys first, then kept records, unless these are
            still in memory.
        last: its last clean, in words; empty before the first one.
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
    """The state at one time. Bytes that change are counted since the start.

    Attributes:
        time_ms: wall-clock time, for people.
        uptime_ms: time since the start, by a monotonic clock.
        size_bytes: size of all logs.
        deleted_bytes: bytes of deleted old segments.
        removed_bytes: bytes by which cleans reduced logs.
        read_bytes, written_bytes: bytes read and written by cleans, key indexes included.
        new_bytes: bytes that were dirty before these cleans.
        dirtiest_ratio: highest cleanable share of all compacted logs.
        due, failed: number of logs to clean, and of logs whose last clean failed.
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
        """Bytes written by cleans per dirty byte, or None before any."""
        return self.written_bytes / self.new_bytes if self.new_bytes else None


class Span(StrEnum):
    """The time that a chart covers, as it appears in a URL."""

    MINUTES = "10m"
    HOUR = "1h"
    DAY = "1d"
    MONTH = "30d"


#: For each span: its name, its length in milliseconds, and the distance of its samples in milliseconds.
SPANS: Mapping[Span, tuple[str, int, int]] = {
    Span.MINUTES: ("10 minutes", 600_000, 4_000),
    Span.HOUR: ("hour", 3_600_000, 30_000),
    Span.DAY: ("day", 86_400_000, 600_000),
    Span.MONTH: ("30 days", 2_592_000_000, 21_600_000),
}


@dataclass(frozen=True, slots=True)
class LiveLook:
    """The result of one scan of live logs."""

    directories: tuple[str, ...]
    now: Sample
    health: Health
    partitions: tuple[PartitionStatus, ...]
    threads: tuple[ThreadStatus, ...]


# ---- text ------------------------------------------------------------------------------------------------------------


def _dirty(status: PartitionStatus) -> str:
    return "" if status.cleanable_ratio is None else f"{status.cleanable_ratio:.0%}"


#: Columns of the table on a terminal and on pages.
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
    """Return the state without partitions, and samples, as one JSON value."""
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
    """Return one live log as one JSON value."""
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
        "remote_bytes": status.remote_bytes,
        "copy_lag_bytes": status.copy_lag_bytes,
        "tier_error": status.tier_error,
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


# ---- history ---------------------------------------------------------------------------------------------------------

#: Samples per span, a few more than a span needs.
_SAMPLES_MAX = 160


class SampleHistory:
    """Samples of each span; any thread may read them."""

    def __init__(self) -> None:
        assert all(length < _SAMPLES_MAX * period for _, length, period in SPANS.values())
        self._lock = threading.Lock()
        self._samples: dict[Span, deque[Sample]] = {span: deque(maxlen=_SAMPLES_MAX) for span in Span}
        self._last: Sample | None = None

    def add(self, sample: Sample) -> None:
        """Add a sample to each span whose last sample is old enough."""
        with self._lock:
            self._last = sample
            for span, samples in self._samples.items():
                _, _, period_ms = SPANS[span]
                if not samples or sample.uptime_ms - samples[-1].uptime_ms >= period_ms:
                    samples.append(sample)

    def over(self, span: Span) -> tuple[Sample, ...]:
        """Return the samples of a span up to the newest sample, by time."""
        with self._lock:
            last = self._last
            if last is None:
                return ()
            _, length_ms, _ = SPANS[span]
            found = [one for one in self._samples[span] if last.uptime_ms - one.uptime_ms <= length_ms]
            return (*found, last) if found[-1] is not last else tuple(found)


class Tally:
    """The sum of the logs' counters. A log may appear or disappear, and its counter may restart at 0."""

    def __init__(self) -> None:
        self.total = 0
        self._last: Mapping[TopicPartition, int] = {}

    def note(self, counts: Mapping[TopicPartition, int]) -> None:
        """Add the growth of the counters since the last call."""
        for name, count in counts.items():
            before = self._last.get(name, 0)
            self.total += count - before if count >= before else count
        self._last = counts
