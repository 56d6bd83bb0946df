"""Metrics for Prometheus, and the health of live logs, over HTTP on this machine.

/metrics    Kafka's metrics, named as Prometheus' JMX exporter names them: kafka_log_log_size{topic="t",partition="0"}
/health     200 if all is well, else 503, with the problems: {"healthy": false, "problems": ["…"]}
"""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from cordwood.errors import RequestError
from cordwood.service.health import Health
from cordwood.service.metrics import MeterReading, MetricName, Reading, TimerReading
from cordwood.types import override

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

HOST = "127.0.0.1"

Metrics = Callable[[], Mapping[MetricName, Reading]]


class Exporter:
    """A server in a thread of its own."""

    def __init__(self, metrics: Metrics, health: Callable[[], Health], port: int) -> None:
        """Begin to answer.

        Args:
            metrics: gives all metrics as they are now.
            health: gives what is wrong.
            port: 0: any free one.

        Raises:
            RequestError: the port is taken.
        """
        registry = CollectorRegistry()
        registry.register(_KafkaMetrics(metrics, health))
        self._metrics = make_wsgi_app(registry)
        self._health = health
        try:
            self._server = make_server(HOST, port, self._answer, _Server, _Quiet)
        except OSError as error:
            raise RequestError(
                f"Port {port} of {HOST} cannot be used: {error.strerror}. Give another one with --port, 0 for any"
            ) from error
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="exporter", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = environment.get("PATH_INFO", "/")
        if path == "/metrics":
            answer: Iterable[bytes] = self._metrics(environment, start)
            return answer
        if path != "/health":
            start("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
            return [b"There is /metrics, for Prometheus, and /health.\n"]
        health = self._health()
        start("200 OK" if health.is_well else "503 Service Unavailable", [("Content-Type", "application/json")])
        return [json.dumps({"healthy": health.is_well, "problems": health.problems}, indent=1).encode() + b"\n"]


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """Answers several at once: one that is slow to read keeps nobody waiting."""

    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    """Writes no line per request."""

    @override
    def log_message(self, format: str, *args: Any) -> None:
        return


class _KafkaMetrics(Collector):
    """All metrics, taken when Prometheus asks."""

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
    """One metric of Prometheus: those of one name, told apart by labels."""
    name, first = members[0]
    labels = sorted({label for one, _ in members for label, _ in one.tags})
    kind = {MeterReading: CounterMetricFamily, TimerReading: SummaryMetricFamily}.get(type(first), GaugeMetricFamily)
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
