"""The alerts and the dashboard, with a real Prometheus that scrapes a real `cordwood run`."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.command import start
from tests.kafka_tools import need_tools
from tests.live.nodes import damage, made_dirty

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/cordwood.rules.yml"
RULE_TESTS = Path(__file__).parent / "cordwood.rules.test.yml"
DASHBOARD = ROOT / "deploy/grafana/cordwood.json"
SECONDS_MAX = 120
#: A metric of ours or of Kafka's in a query.
METRIC = re.compile(r"\b(?:cordwood|kafka)_[a-z_]+")


@pytest.fixture(scope="module", autouse=True)
def tools() -> None:
    need_tools("prometheus", "promtool", packages="prometheus")


def test_each_alert_fires_when_it_should_and_only_then() -> None:
    for words in (["check", "rules", str(RULES)], ["test", "rules", str(RULE_TESTS)]):
        done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False, timeout=SECONDS_MAX)
        assert done.returncode == 0, done.stdout + done.stderr


def test_no_alert_is_without_a_test() -> None:
    alerts = set(re.findall(r"- alert: (\w+)", RULES.read_text()))
    fired = re.findall(r"alertname: (\w+)\n +exp_alerts:\n", RULE_TESTS.read_text())
    silent = re.findall(r"alertname: (\w+), exp_alerts: \[\]", RULE_TESTS.read_text())
    assert alerts == set(fired) == set(silent)


# ---- Metrics in a Prometheus -----------------------------------------------------------------------------------------


def directory(path: Path) -> Path:
    """Three dirty logs: one is damaged at a place that only the cleaner reads, and one may be tiered."""
    made_dirty(path, "good", "bad", "tiered")
    damage(path / "bad-0")
    return path


@contextmanager
def running(*words: str) -> Iterator[str]:
    """A `cordwood run`; where it answers."""
    with start("run", *words, "--engine", "here", "--json", "--port", "0", stderr=None) as process:
        try:
            assert process.stdout is not None
            messages = (json.loads(line)["message"] for line in process.stdout)
            url = next(one for one in messages if "/metrics" in one).rpartition(" ")[2]
            yield urllib.parse.urlsplit(url).netloc
            process.send_signal(signal.SIGTERM)
            process.stdout.read()
            assert process.wait(SECONDS_MAX) == 0
        finally:
            process.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


class Prometheus:
    """A server on this machine."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def ask(self, path: str, **values: str) -> Any:
        query = urllib.parse.urlencode(values)
        with urllib.request.urlopen(f"{self._url}/{path}?{query}", timeout=SECONDS_MAX) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        try:
            return list(self.ask("query", query=expression)["result"])
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from error

    def until_there_is(self, expression: str) -> list[dict[str, Any]]:
        end = time.monotonic() + SECONDS_MAX
        while not (found := self.query(expression)):
            assert time.monotonic() < end, f"no data: {expression}"
            time.sleep(0.2)
        return found


@contextmanager
def prometheus(folder: Path, *targets: str) -> Iterator[Prometheus]:
    """A real one, which looks at `cordwood run` all the time."""
    port = free_port()
    config = folder / "prometheus.yml"
    config.write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(RULES)],
                "scrape_configs": [{"job_name": "cordwood", "static_configs": [{"targets": targets}]}],
            }
        )
    )
    words = [
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with subprocess.Popen(["prometheus", *words]) as process:
        try:
            found, end = Prometheus(port), time.monotonic() + SECONDS_MAX
            while True:
                try:
                    found.ask("query", query="up")
                    break
                except OSError:  # until it listens, and until it is ready
                    assert process.poll() is None and time.monotonic() < end
                    time.sleep(0.1)
            yield found
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that scrapes two targets: the demo, where all is well and logs grow; and one with a log that cannot
    be cleaned, and with a tiered log.
    """
    folder = tmp_path_factory.mktemp("prometheus")
    logs = directory(folder / "logs")
    (folder / "tier").mkdir()
    tiered = ("--tier", str(folder / "tier"), "--config", "tiered:remote.storage.enable=true")
    with ExitStack() as stack:
        targets = [
            stack.enter_context(running("--demo")),
            stack.enter_context(running(str(logs), *tiered, "--config", "cleanup.policy=compact")),
        ]
        found = stack.enter_context(prometheus(folder, *targets))
        found.until_there_is("count(cordwood_healthy) == 2")
        found.until_there_is("sum(cordwood_log_partitions_uncleanable_count) > 0")
        yield found


def queries() -> list[tuple[str, str]]:
    """The dashboard's queries, by panel; its variables are replaced as Grafana replaces them."""
    found = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*")
            assert "$" not in expression
            found.append((panel["title"], expression))
    return found


@pytest.mark.parametrize(("panel", "expression"), queries())
def test_each_query_of_the_dashboard_returns_data(server: Prometheus, panel: str, expression: str) -> None:
    for one in server.until_there_is(expression):
        assert one["value"][1] != "NaN", panel


def test_the_dashboards_instances_are_those_that_are_scraped(server: Prometheus) -> None:
    (variable,) = [one for one in json.loads(DASHBOARD.read_text())["templating"]["list"] if one["name"] == "instance"]
    assert variable["definition"] == "label_values(cordwood_healthy, instance)"
    server.until_there_is("count(cordwood_healthy) == 2")
    wanted = {one["metric"]["instance"] for one in server.query("up")}
    assert wanted == set(server.ask("label/instance/values", **{"match[]": "cordwood_healthy"}))


def test_prometheus_knows_every_metric_that_an_alert_asks_for(server: Prometheus) -> None:
    rules = [rule for group in server.ask("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == RULES.read_text().count("- alert:")
    for rule in rules:
        for metric in METRIC.findall(rule["query"]):
            # Those of `compare` come from a file; its own tests compare them.
            if not metric.startswith("cordwood_compare_"):
                server.until_there_is(metric)


def test_the_alert_of_a_damaged_log_is_on_its_way_and_no_other(server: Prometheus) -> None:
    server.until_there_is('ALERTS{alertname="CordwoodLogUncleanable", kind="damage"}')
    names = {one["metric"]["alertname"] for one in server.query("ALERTS")}
    assert names <= {"CordwoodLogUncleanable", "CordwoodUnhealthy"}


def test_the_sizes_are_those_on_disk(server: Prometheus) -> None:
    (size,) = server.until_there_is('cordwood_log_partition_size_bytes{topic="bad"}')
    (kafkas,) = server.query('kafka_log_log_size{topic="bad"}')
    assert size["value"][1] == kafkas["value"][1] != "0"
    (failed,) = server.query("cordwood_log_partition_uncleanable")
    assert failed["metric"]["topic"] == "bad" and failed["metric"]["kind"] == "damage"
