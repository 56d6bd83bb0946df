"""The history of live logs: samples from earlier looks, a bounded number for each span of time.

A short span has samples close together, a long one far apart: a day takes as much memory as ten minutes. A sample holds
sums since the start, so the difference of any two samples is the change between them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping

from cordwood.common.types import TopicPartition
from cordwood.live.report import SPANS, Sample, Span

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
