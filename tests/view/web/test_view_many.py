"""The pages of a node with 10,000 partitions: cut by the server, there at once, in bounded memory."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cordwood.commands.options import WhyOptions
from tests.logs import append
from tests.view.web.view_client import Client, check_harmless, served

pytestmark = pytest.mark.slow

PARTITIONS = 10_000
#: A page needs well under a second on an idle machine; tests share theirs.
SECONDS_MAX = 5.0
PAGE_BYTES_MAX = 200_000


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Partitions that share the file of one log."""
    folder = tmp_path_factory.mktemp("many")
    append(folder / "first-0", (b"k", b"v"), (b"k", b"w"))
    (log,) = (folder / "first-0").iterdir()
    for number in range(PARTITIONS - 1):
        path = folder / f"topic-{number // 10}-{number % 10}"
        path.mkdir()
        os.link(log, path / log.name)
    return folder


def seconds(client: Client, target: str) -> float:
    """Duration of a page; check that it is small and harmless."""
    began = time.monotonic()
    got = client.get(target)
    took = time.monotonic() - began
    assert got.status == 200 and len(got.body) < PAGE_BYTES_MAX
    check_harmless(got.text)
    return took


def test_pages_of_10_000_partitions_are_there_at_once(many: Path) -> None:
    targets = ["/", "/partitions", "/partitions?search=77&sort=could+go&page=2"]
    slowest = dict.fromkeys(targets, 0.0)
    with served(many, options=WhyOptions(keys=False)) as client:
        while True:
            for target in targets:
                slowest[target] = max(slowest[target], seconds(client, target))
            found = client.get("/partitions.json").document["partitions_found"]
            if found and "What could go is being found out" not in client.get("/").text:
                break
            time.sleep(0.5)
        page = check_harmless(client.get("/").text)
        assert found == PARTITIONS and "10,000" in page.text
        assert len(client.get("/partitions.json?search=topic-77-").document["partitions"]) == 10
        assert "page 2 of " in check_harmless(client.get(targets[2]).text).text
    print({target: round(took, 2) for target, took in slowest.items()})
    assert max(slowest.values()) < SECONDS_MAX
