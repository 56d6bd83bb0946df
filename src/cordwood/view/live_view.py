"""The answers of `cordwood run`: pages of current cleaner activity and its history, metrics for Prometheus, and health.

    /                current activity; ?span= sets the time span of the charts        /live.json
    /partitions      all logs, filtered, sorted and limited                           /partitions.json
    /metrics         Kafka's metrics, named as Prometheus' JMX exporter names them:
                     kafka_log_log_size{topic="t",partition="0"}
    /health          200 without problems, else 503 with them: {"healthy": false, "problems": ["…"]}

The pages, served only by `run --view`, show the last look at the logs, so no request waits for a log or a disk. No page
changes anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from cordwood.common.types import Clock, monotonic_clock, override
from cordwood.live.clean import CleanTraffic
from cordwood.live.log_manager import LogManager
from cordwood.live.metrics import MeterReading, MetricName, Reading, TimerReading, Total
from cordwood.live.report import Health, LiveLook, PartitionStatus, Sample, SampleHistory, Span, Tally
from cordwood.live.status import thread_statuses
from cordwood.view.pages import live
from cordwood.view.web.http_server import (
    Access,
    Guard,
    Request,
    Response,
    Route,
    html,
    json_document,
    not_yet,
    style_sheet,
    wanted,
)


class LiveView:
    """The data of the pages: the last look, and samples of earlier looks."""

    def __init__(
        self,
        directories: Sequence[str],
        health: Callable[[], Health],
        waiting: Callable[[], str],
        clock: Clock = monotonic_clock,
    ) -> None:
        """Begin without a look.

        Args:
            health: returns the current health, because the health of the last look is too old if a look hangs.
            waiting: returns in words what the look waits for.
        """
        self._directories = tuple(directories)
        self._health = health
        self._waiting = waiting
        self._clock = clock
        self._started_ms = clock()
        self._history = SampleHistory()
        self._appended, self._deleted = Tally(), Tally()
        self._look: LiveLook | None = None

    def note(self, manager: LogManager, partitions: Sequence[PartitionStatus], health: Health, now_ms: int) -> None:
        """Store the results of a look; only one thread calls this."""
        self._appended.note({one.partition: one.appended_bytes for one in partitions})
        self._deleted.note({one.partition: one.deleted_bytes for one in partitions})
        traffic = CleanTraffic() if manager.cleaner is None else manager.cleaner.runner.traffic
        sample = Sample(
            time_ms=now_ms,
            uptime_ms=self._clock() - self._started_ms,
            size_bytes=sum(one.size_bytes for one in partitions),
            appended_bytes=self._appended.total,
            deleted_bytes=self._deleted.total,
            removed_bytes=traffic.removed,
            read_bytes=traffic.read,
            written_bytes=traffic.written,
            new_bytes=traffic.new,
            dirtiest_ratio=max((one.cleanable_ratio or 0.0 for one in partitions), default=0.0),
            due=sum(one.is_due for one in partitions),
            failed=sum(bool(one.failures) for one in partitions),
        )
        self._history.add(sample)
        threads = thread_statuses(manager.cleaner)
        self._look = LiveLook(self._directories, sample, health, tuple(partitions), threads)

    def routes(self) -> Mapping[str, Route]:
        """Return the handlers by path."""
        return {
            "/": self._live,
            "/live.json": self._live_json,
            "/partitions": self._partitions,
            "/partitions.json": self._partitions_json,
            "/style.css": style_sheet,
        }

    def _latest(self) -> LiveLook | None:
        return None if self._look is None else replace(self._look, health=self._health())

    def _live(self, request: Request) -> Response:
        look = self._latest()
        if look is None:
            return html(live.loading_page(self._health(), self._waiting()))
        span = _span(request)
        return html(live.live_page(look, self._history.over(span), span, request.query.get("refresh", "")))

    def _live_json(self, request: Request) -> Response:
        look, span = self._latest(), _span(request)
        return not_yet() if look is None else json_document(live.document(look, self._history.over(span), span))

    def _partitions(self, request: Request) -> Response:
        look = self._latest()
        if look is None:
            return html(live.loading_page(self._health(), self._waiting()))
        return html(live.partitions_page(look, wanted(request)))

    def _partitions_json(self, request: Request) -> Response:
        look = self._latest()
        return not_yet() if look is None else json_document(live.partitions_document(look, wanted(request)))


def _span(request: Request) -> Span:
    """Return the span in a request, or the default."""
    asked = request.query.get("span", "")
    return next((span for span in Span if span == asked), Span.MINUTES)


def guard(port: int, host: str, unguarded: Mapping[str, Route]) -> Guard:
    """Serve pages only to browsers on this machine, and only if the request names this server.

    Args:
        unguarded: paths that any host may read, under any name of this machine, such as Prometheus behind a proxy.
    """
    access = Access(host, port)
    return lambda request: None if request.path in unguarded else access.refuse(request)


# ---- metrics and health ----------------------------------------------------------------------------------------------

Metrics = Callable[[], Mapping[MetricName, Reading]]


def routes(metrics: Metrics, health: Callable[[], Health]) -> Mapping[str, Route]:
    """Return the handlers by path."""
    registry = CollectorRegistry()
    registry.register(_KafkaMetrics(metrics, health))

    def answer_metrics(_: Request) -> Response:
        return Response(HTTPStatus.OK, generate_latest(registry), CONTENT_TYPE_LATEST)

    def answer_health(_: Request) -> Response:
        found = health()
        body = json.dumps({"healthy": found.is_well, "problems": found.problems}, indent=1) + "\n"
        status = HTTPStatus.OK if found.is_well else HTTPStatus.SERVICE_UNAVAILABLE
        return Response(status, body.encode(), "application/json")

    return {"/metrics": answer_metrics, "/health": answer_health}


class _KafkaMetrics(Collector):
    """All metrics, read at each scrape."""

    def __init__(self, metrics: Metrics, health: Callable[[], Health]) -> None:
        self._metrics = metrics
        self._health = health

    @override
    def collect(self) -> Iterator[Metric]:
        families: dict[str, list[tuple[MetricName, Reading]]] = {}
        for name, reading in self._metrics().items():
            families.setdefault(name.flat, []).append((name, reading))
        for flat, members in families.items():
            yield _family(flat, members)
        yield GaugeMetricFamily("cordwood_healthy", "1 if /health has no problem, else 0.", int(self._health().is_well))


def _family(flat: str, members: list[tuple[MetricName, Reading]]) -> Metric:
    """Build one Prometheus metric from Kafka's metrics of one name; labels distinguish them."""
    name, first = members[0]
    labels = sorted({label for one, _ in members for label, _ in one.tags})
    kinds = {MeterReading: CounterMetricFamily, Total: CounterMetricFamily, TimerReading: SummaryMetricFamily}
    kind = kinds.get(type(first), GaugeMetricFamily)
    text = f"{name.group}:type={name.type},name={name.name}"
    family: Any = kind(flat, text, labels=[_label(label) for label in labels])
    for one, reading in members:
        tags = dict(one.tags)
        values = [tags.get(label, "") for label in labels]
        if isinstance(reading, MeterReading):
            family.add_metric(values, reading.count)
        elif isinstance(reading, TimerReading):
            family.add_metric(values, count_value=reading.count, sum_value=reading.total_ms)
        else:
            family.add_metric(values, reading)
    assert isinstance(family, Metric)
    return family


def _label(tag: str) -> str:
    return tag.replace("-", "_")
