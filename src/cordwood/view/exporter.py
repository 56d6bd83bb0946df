"""The HTTP responses of `cordwood run`: metrics for Prometheus, and the health of its logs.

/metrics    Kafka's metrics, named as Prometheus' JMX exporter names them: kafka_log_log_size{topic="t",partition="0"}
/health     200 without problems, else 503 with them: {"healthy": false, "problems": ["…"]}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from cordwood.common.types import override
from cordwood.live.metrics import MeterReading, MetricName, Reading, TimerReading, Total
from cordwood.live.report import Health
from cordwood.view.web.http_server import Answer, Request, Route

Metrics = Callable[[], Mapping[MetricName, Reading]]


def routes(metrics: Metrics, health: Callable[[], Health]) -> Mapping[str, Route]:
    """Return the handlers by path."""
    registry = CollectorRegistry()
    registry.register(_KafkaMetrics(metrics, health))

    def answer_metrics(_: Request) -> Answer:
        return Answer(HTTPStatus.OK, generate_latest(registry), CONTENT_TYPE_LATEST)

    def answer_health(_: Request) -> Answer:
        found = health()
        body = json.dumps({"healthy": found.is_well, "problems": found.problems}, indent=1) + "\n"
        status = HTTPStatus.OK if found.is_well else HTTPStatus.SERVICE_UNAVAILABLE
        return Answer(status, body.encode(), "application/json")

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
