"""Pages of logs in an object store: they match the commands' output for the same URL, read by ranges, and write no
object.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cordwood.cli.demo import unpack
from cordwood.commands.options import WhyOptions
from tests.command import run
from tests.fs.object_server import Server, running_server
from tests.view.web.view_client import Client, ask, check_harmless, served

pytestmark = pytest.mark.more

#: Later than any object of the test.
NOW = (int(time.time()) + 86_400) * 1000
OPTIONS = WhyOptions(now_ms=NOW)
PREFIX = "kafka-logs"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server() as found:
        yield found


@pytest.fixture(scope="module")
def url(server: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("demo")
    unpack(folder)
    return server.upload(folder / PREFIX, PREFIX)


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Client]:
    with served(url, options=OPTIONS) as found:
        found.done()
        yield found


def test_the_node_and_its_partitions_say_what_the_commands_say(client: Client, url: str) -> None:
    node = client.get("/node.json").document
    assert node["ls"] == run("ls", url, "--json").json
    assert node["why"] == run("why", url, "--now", NOW, "--json").json
    page = check_harmless(client.get("/").text)
    paths = [one["path"] for one in node["ls"]["partitions"]]
    assert len(paths) > 2 and all(path.startswith(url) for path in paths)
    assert "orders" in page.text and "no broker runs on an object store" in client.get("/partitions").text
    for path in paths[:3]:
        found = ask(client, "partition.json", path).document
        assert found["ls"] == run("ls", path, "--segments", "--json").json
        assert found["why"] == run("why", path, "--now", NOW, "--json").json
        check_harmless(ask(client, "partition", path).text)


def test_batches_records_and_keys_are_found(client: Client, url: str) -> None:
    path = f"{url}/orders-0"
    lines = [json.loads(line) for line in ask(client, "records.json", path, offset=100).body.splitlines()]
    assert lines == run("dump", path, "--records", "--from-offset", 100, "--limit", 100, "--json").lines
    check_harmless(ask(client, "batches", path, offset=0).text)
    key = lines[5]["key"]
    assert (
        ask(client, "get.json", path, key=key).document == run("get", path, "--key", key, "--now", NOW, "--json").json
    )


def test_a_url_that_was_not_given_is_never_opened(client: Client, server: Server, url: str, tmp_path: Path) -> None:
    (tmp_path / "secret-0").mkdir()
    (tmp_path / "secret-0/00000000000000000000.log").write_bytes(b"")
    other = server.upload(tmp_path, "others")
    for path in (
        f"{other}/secret-0",
        f"{url}/../others/secret-0",
        "s3://elsewhere/orders-0",
        str(tmp_path / "secret-0"),
    ):
        assert ask(client, "partition", path).status == 404


def test_one_file_is_written_of_a_bucket_and_nothing_into_it(server: Server, url: str, tmp_path: Path) -> None:
    before = server.objects(PREFIX)
    report = tmp_path / "report.html"
    run("view", url, "--output", report, "--now", NOW)
    assert "orders-0" in check_harmless(report.read_text()).text
    assert server.objects(PREFIX) == before
