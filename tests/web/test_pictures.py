"""The pages of a made node, as the documentation shows them. To make its pictures anew:

CORDWOOD_PICTURES=docs/pictures .venv/bin/python -m pytest -m slow tests/web/test_pictures.py
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import cordwood
from cordwood.cli.main import app
from cordwood.commands.selection import Selection, WhyOptions
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from tests.service.running_nodes import running, wait
from tests.web.browser import Browser
from tests.web.shop import CONFIGS, NOW_MS, made_shop
from tests.web.view_client import served

pytestmark = pytest.mark.slow

LOGS = Path("kafka-logs")
CARTS = ("shopping-carts", "customer-profiles")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the directory in it."""
    found = tmp_path_factory.mktemp("shop")
    made_shop(found / "kafka-logs")
    return found


@pytest.fixture(autouse=True)
def _within(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages show the directory as it was given; a path of this machine is not worth a picture."""
    monkeypatch.chdir(folder)


@contextmanager
def shown(port: int, url: str, *, width: int = 1280, height: int, dark: bool = False) -> Iterator[Browser]:
    """A browser with a page; it is as high as the picture is to be."""
    browser = Browser(port, width=width, height=height, dark=dark)
    try:
        browser.open(url)
        yield browser
    finally:
        browser.close()


def run(*words: object) -> None:
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == 0, done.output


def test_the_pages_of_a_node_and_of_a_partition(driver_port: int) -> None:
    options = WhyOptions(selection=Selection(overrides=CONFIGS), now_ms=NOW_MS)
    with served(LOGS, options=options) as client:
        client.done()
        with shown(driver_port, client.url, height=900) as browser:
            browser.check_page("node")
        partition = f"{client.url}partition?path={LOGS}/customer-profiles-0"
        with shown(driver_port, partition, height=780) as browser:
            browser.await_text("first dirty")
            browser.check_page("partition")
        with shown(driver_port, partition, width=360, height=1000, dark=True) as browser:
            browser.check_page("partition")


def test_the_page_of_a_clean(driver_port: int, folder: Path) -> None:
    result = cordwood.clean(str(LOGS), output="kafka-cleaned", engine="here", now_ms=NOW_MS, overrides=CONFIGS)
    Path("clean.html").write_text(replace(result, target="kafka-cleaned").page())
    with shown(driver_port, f"file://{folder}/clean.html", height=680) as browser:
        browser.check_page("clean")


def test_the_page_of_a_what_if(driver_port: int, folder: Path) -> None:
    Path("server.properties").write_text(
        "log.cleanup.policy=delete\nlog.retention.hours=336\nlog.segment.bytes=1048576\n"
    )
    how = ("--topic", "clickstream", "--server-properties", "server.properties", "--now", NOW_MS)
    run("explain", LOGS, *how, "--config", "retention.ms=259200000", "--report", "what-if.html")
    with shown(driver_port, f"file://{folder}/what-if.html", height=1190) as browser:
        browser.check_page("what-if")


def test_the_page_of_live_logs(driver_port: int) -> None:
    path = made_shop(Path("live/kafka-logs"), *CARTS)
    now_ms = itertools.count(0, 10_000)  # samples, as if looks were far apart
    configs = [f"{topic}:cleanup.policy=compact" for topic in CARTS]
    with running(path, *configs, view=True, clock=lambda: next(now_ms)) as node:
        for number in range(45):
            for log in node.manager.logs.values():
                keys = range(number * 7, number * 7 + 20 + number % 9)
                records = [Record(at, NOW_MS, b"cart-%d" % key, b"v" * 400) for at, key in enumerate(keys)]
                log.append_as_leader(encode_batch(records), 0)
            node.look()
            if number % 15 == 10:
                for topic in CARTS:
                    wait(node, topic)
        with shown(driver_port, f"http://127.0.0.1:{node.port}/?refresh=never", height=1070) as browser:
            browser.check_page("live")
