"""Metrics under Kafka's names.

A gauge is computed when it is read, so no code registers or removes it. Meters and timers count events; they are few,
and live as long as their manager.

Source: Kafka's KafkaMetricsGroup, BrokerTopicStats, LogFlushStats.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from cordwood.common.errors import (
    CorruptRecordError,
    InvalidRecordError,
    LogError,
    RecordTooLargeError,
    RecordValidationError,
    Rejection,
)
from cordwood.common.text import bytes_text, number
from cordwood.common.types import Clock, TopicPartition, monotonic_clock

_log = logging.getLogger(__name__)

#: Tag values with other characters are quoted.
_PLAIN = re.compile(r"[\w\-%. \t]*", re.ASCII)
_QUOTED = str.maketrans({"\\": "\\\\", '"': '\\"', "*": "\\*", "?": "\\?", "\n": "\\n"})
_TICK_MS = 5_000
#: Number of latest events from which a timer's percentiles are computed.
_REMEMBERED = 1_024


@dataclass(frozen=True, slots=True, order=True)
class MetricName:
    """The name of a metric; as text it is Kafka's MBean name."""

    group: str
    type: str
    name: str
    tags: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        tags = "".join(f",{name}={_quoted(value)}" for name, value in self.tags)
        return f"{self.group}:type={self.type},name={self.name}{tags}"

    @property
    def flat(self) -> str:
        """The name for Prometheus, as its JMX exporter makes it from an MBean name: `kafka_log_log_size`."""
        return re.sub(r"[^a-z0-9]+", "_", f"{self.group}_{self.type}_{self.name}".lower())


def _quoted(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else f'"{value.translate(_QUOTED)}"'


@dataclass(frozen=True, slots=True)
class MeterReading:
    """A meter's values.

    Attributes:
        count: events since the start.
        rate: events per second over about the last minute; newer events count more.
    """

    count: int
    rate: float


@dataclass(frozen=True, slots=True)
class TimerReading:
    """A timer's values.

    Attributes:
        percentiles: duration in milliseconds by share (0.5, 0.95, 0.99, 0.999), over the last 1,024 events.
    """

    count: int
    rate: float
    total_ms: float
    max_ms: float
    percentiles: dict[float, float]


class Total(int):
    """A sum that only grows while the program runs."""


Reading = int | float | MeterReading | TimerReading


class Meter:
    """Counts events, and computes their rate per second."""

    def __init__(self, clock: Clock = monotonic_clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._count = self._since_tick = 0
        self._rate = 0.0
        self._ticked_ms = clock()
        self._is_first = True

    def mark(self, events: int = 1) -> None:
        """Count events."""
        with self._lock:
            self._tick()
            self._count += events
            self._since_tick += events

    def read(self) -> MeterReading:
        """Return the current values."""
        with self._lock:
            self._tick()
            return MeterReading(self._count, self._rate)

    def _tick(self) -> None:
        """Add each five seconds' events to the rate: an average whose weights fall by a factor of e per minute."""
        ticks = (self._clock() - self._ticked_ms) // _TICK_MS
        if ticks <= 0:
            return
        self._ticked_ms += ticks * _TICK_MS
        now = self._since_tick / (_TICK_MS / 1_000)
        self._since_tick = 0
        if self._is_first:
            self._is_first, self._rate = False, now
        else:
            self._rate += _ALPHA * (now - self._rate)
        # The other ticks had no events.
        self._rate *= (1 - _ALPHA) ** (ticks - 1)


_ALPHA = 1 - math.exp(-_TICK_MS / 60_000)


class Timer:
    """A meter that also measures the duration of its events."""

    def __init__(self, clock: Clock = monotonic_clock) -> None:
        self._meter = Meter(clock)
        self._lock = threading.Lock()
        self._total_ms = self._max_ms = 0.0
        self._last: deque[float] = deque(maxlen=_REMEMBERED)

    def note(self, seconds: float) -> None:
        """Count an event with this duration."""
        self._meter.mark()
        with self._lock:
            self._total_ms += seconds * 1_000
            self._max_ms = max(self._max_ms, seconds * 1_000)
            self._last.append(seconds * 1_000)

    def read(self) -> TimerReading:
        """Return the current values."""
        meter = self._meter.read()
        with self._lock:
            last = sorted(self._last)
            shares = {
                share: last[min(len(last) - 1, int(share * len(last)))] if last else 0.0
                for share in (0.5, 0.95, 0.99, 0.999)
            }
            return TimerReading(meter.count, meter.rate, self._total_ms, self._max_ms, shares)


#: The meter for each kind of rejection; see `LogStats.refused`.
_REJECTIONS = {
    Rejection.MAGIC: "InvalidMagicNumberRecordsPerSec",
    Rejection.CHECKSUM: "InvalidMessageCrcRecordsPerSec",
    Rejection.OFFSET_OR_SEQUENCE: "InvalidOffsetOrSequenceRecordsPerSec",
    Rejection.NO_KEY: "NoKeyCompactedTopicRecordsPerSec",
}


class Removal(StrEnum):
    """Why records were removed from a log."""

    LOG_START_OFFSET = "log start offset"  #: below it, by `delete_records`
    RETENTION_BYTES = "retention.bytes"
    RETENTION_MS = "retention.ms"
    COMPACTION = "compaction"
    TRUNCATION = "truncation"
    RECOVERY = "recovery"  #: damaged, or behind damage, or the log ended below its start, when it was loaded
    PARTITION_DELETION = "partition deletion"


class LogStats:
    """The meters and timers that all logs of a manager share."""

    def __init__(self, clock: Clock = monotonic_clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._flushes = Timer(clock)
        self._rejected_bytes: dict[str | None, Meter] = {None: Meter(clock)}
        self._removed = dict.fromkeys(Removal, (0, 0))
        self._rejections = {rejection: Meter(clock) for rejection in _REJECTIONS}

    def flushed(self, began: float) -> None:
        """Note the flush of a segment; `began` is a reading of `time.monotonic`."""
        self._flushes.note(time.monotonic() - began)

    def removed(self, why: Removal, segments: int, size_bytes: int) -> None:
        """Count segments and bytes removed from a log."""
        with self._lock:
            before = self._removed[why]
            self._removed[why] = before[0] + segments, before[1] + size_bytes

    def refused(self, topic: str, error: LogError, size_bytes: int) -> None:
        """Count a refused append."""
        if isinstance(error, RecordTooLargeError):
            with self._lock:
                of_topic = self._rejected_bytes.setdefault(topic, Meter(self._clock))
            for meter in (of_topic, self._rejected_bytes[None]):
                meter.mark(size_bytes)
        elif isinstance(error, CorruptRecordError):
            self._rejections[Rejection.CHECKSUM].mark()
        elif isinstance(error, InvalidRecordError) and error.rejection in self._rejections:
            self._rejections[error.rejection].mark()
        elif isinstance(error, RecordValidationError):
            without_key = sum(problem.rejection is Rejection.NO_KEY for problem in error.problems)
            if without_key:
                self._rejections[Rejection.NO_KEY].mark(without_key)

    def read(self) -> Iterator[tuple[MetricName, Reading]]:
        """Yield all metrics."""
        yield MetricName("kafka.log", "LogFlushStats", "LogFlushRateAndTimeMs"), self._flushes.read()
        with self._lock:
            rejected, removed = dict(self._rejected_bytes), dict(self._removed)
        for why, (segments, size_bytes) in removed.items():
            limit = (("limit", str(why)),)
            yield MetricName("cordwood.log", "LogManager", "removed-segments", limit), Total(segments)
            yield MetricName("cordwood.log", "LogManager", "removed-bytes", limit), Total(size_bytes)
        for topic, meter in rejected.items():
            tags = () if topic is None else (("topic", topic),)
            yield MetricName("kafka.server", "BrokerTopicMetrics", "BytesRejectedPerSec", tags), meter.read()
        for rejection, name in _REJECTIONS.items():
            yield MetricName("kafka.server", "BrokerTopicMetrics", name), self._rejections[rejection].read()


class Removals:
    """Counts the records that were removed from one log, and reports them in the program's log.

    Attributes:
        size_bytes: bytes removed since the log was loaded, by reason. Replaced as a whole.
    """

    def __init__(self, stats: LogStats, partition: TopicPartition) -> None:
        self._stats = stats
        self._partition = partition
        self.size_bytes: Mapping[Removal, int] = {}

    def count(self, why: Removal, segments: int, size_bytes: int) -> None:
        """Count a removal; the caller holds the log's lock."""
        self.size_bytes = {**self.size_bytes, why: self.size_bytes.get(why, 0) + size_bytes}
        self._stats.removed(why, segments, size_bytes)

    def report(
        self, why: Removal, words: str, start_offset: int, end_offset: int | None, segments: int, size_bytes: int
    ) -> None:
        """Count a removal, and write a line to the program's log.

        Args:
            words: the reason, as the end of the line.
            end_offset: None if it is unknown: from the start offset to the end of the log.
        """
        self.count(why, segments, size_bytes)
        fields = {
            "topic": self._partition.topic,
            "partition": self._partition.partition,
            "limit": str(why),
            "start_offset": start_offset,
            "end_offset": end_offset,
            "segments": segments,
            "size_bytes": size_bytes,
        }
        what = f"{number(segments, 'segment')}, {bytes_text(size_bytes)}"
        offsets = (
            f"offsets {start_offset} and above" if end_offset is None else f"offsets {start_offset} to {end_offset - 1}"
        )
        _log.log(
            logging.WARNING if why is Removal.RECOVERY else logging.INFO,
            "deleted from %s: %s (%s), by %s",
            *(self._partition, "no record" if start_offset == end_offset else offsets, what, words),
            extra={"event": "delete", "fields": fields},
        )
