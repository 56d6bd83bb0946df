"""The pages of a made node, as the documentation shows them. To remake its pictures:

CORDWOOD_PICTURES=docs/pictures .venv/bin/python -m pytest -m slow tests/view/web/test_pictures.py
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import cordwood
from cordwood.commands.options import Selection, WhyOptions
from cordwood.common.config import DAY_MS
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from tests.command import run
from tests.fixtures import copy_of
from tests.live.nodes import running, wait
from tests.logs import batch, make_log, write_log
from tests.storage.messages import offset_commit
from tests.view.web.browser import Browser
from tests.view.web.view_client import served

# ---- the shop --------------------------------------------------------------------------------------------------------

# A broker's directory as that of a small shop could be, with four weeks of records, for pictures of the pages.

NOW_MS = 1_795_000_000_000
_DAYS, _BATCH_RECORDS, _SEGMENT_BYTES, _SEED = 28, 25, 500_000, 5


@dataclass(frozen=True)
class Topic:
    """Contents of a topic.

    Attributes:
        keys: number of distinct keys; 0 if every record has its own.
        value_bytes: mean size of a record's value.
        cleaned: cleaned fraction of each log.
    """

    name: str
    policy: str
    partitions: int
    records: int
    keys: int
    value_bytes: int
    cleaned: float = 0.0


TOPICS = (
    Topic("customer-profiles", "compact", 2, 9_000, 2_500, 420, cleaned=0.45),
    Topic("shopping-carts", "compact", 2, 6_000, 900, 300, cleaned=0.2),
    Topic("product-prices", "compact", 1, 5_000, 2_500, 180, cleaned=0.5),
    Topic("orders", "delete", 3, 5_000, 0, 700),
    Topic("payments", "delete", 2, 2_500, 0, 350),
    Topic("clickstream", "delete", 3, 9_000, 0, 240),
)
CONFIGS = (
    *(f"{one.name}:cleanup.policy={one.policy}" for one in TOPICS),
    f"orders:retention.ms={365 * DAY_MS}",
    f"payments:retention.ms={365 * DAY_MS}",
    f"clickstream:retention.ms={21 * DAY_MS}",
)
#: Offsets read by groups, as a share of each log.
_GROUPS = {
    "billing": {"orders": 1.0, "payments": 0.97},
    "search-indexer": {"product-prices": 0.92},
    "recommendations": {"clickstream": 0.55, "orders": 0.99},
}


def made_shop(folder: Path, *topics: str) -> Path:
    """The directory with these topics; by default with all, and with groups."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(_SEED)
    checkpoint = []
    for topic in TOPICS:
        for number in range(topic.partitions if not topics or topic.name in topics else 0):
            cleaned = round(topic.cleaned * topic.records)
            _write(folder / f"{topic.name}-{number}", topic, cleaned, draw)
            checkpoint.append(f"{topic.name} {number} {cleaned}")
    (folder / "cleaner-offset-checkpoint").write_text("\n".join(["0", str(len(checkpoint)), *checkpoint]) + "\n")
    if not topics:
        commits = [
            offset_commit(group, topic.name, number, round(share * topic.records))
            for group, shares in _GROUPS.items()
            for topic in TOPICS
            for number in range(topic.partitions)
            if (share := shares.get(topic.name)) is not None
        ]
        write_log(folder / "__consumer_offsets-0", [batch(0, *commits)])
    return folder


def _write(folder: Path, topic: Topic, cleaned: int, draw: np.random.Generator) -> None:
    # Some keys get more updates than others; of each key in the cleaned part, the last record exists.
    shares = draw.random(topic.records) ** 2
    ids = (shares * topic.keys).astype(np.int64) if topic.keys else np.arange(topic.records)
    last = {key: at for at, key in enumerate(ids[:cleaned].tolist())}
    kept = [at for at, key in enumerate(ids.tolist()) if at >= cleaned or last[key] == at]
    sizes = draw.integers(topic.value_bytes // 2, topic.value_bytes * 3 // 2, topic.records).tolist()
    is_tombstone = draw.random(topic.records) < (0.03 if topic.keys else 0.0)
    step_ms = _DAYS * DAY_MS // topic.records
    segments: list[tuple[int, list[bytes]]] = []
    for start in range(0, len(kept), _BATCH_RECORDS):
        offsets = kept[start : start + _BATCH_RECORDS]
        if not segments or sum(map(len, segments[-1][1])) > _SEGMENT_BYTES:
            segments.append((offsets[0], []))
        segments[-1][1].append(
            encode_batch(
                [
                    Record(
                        at,
                        NOW_MS - (topic.records - at) * step_ms,
                        f"{topic.name[:-1]}-{ids[at]}".encode(),
                        None if is_tombstone[at] else b"v" * sizes[at],
                    )
                    for at in offsets
                ]
            )
        )
    make_log(folder, *segments)


pytestmark = pytest.mark.slow

LOGS = Path("kafka-logs")
CARTS = ("shopping-carts", "customer-profiles")
NARROW_HEIGHT = 1000
GROUPS_NOW_MS = 1_795_600_000_000


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


def show(
    port: int, url: str, name: str, *, height: int, ready: str = "", before: Callable[[], object] = lambda: None
) -> None:
    """Look at a page on each screen.

    Args:
        name: of its pictures.
        height: of those of the wide screen.
        ready: words that the page has once all is known.
        before: called before each look.
    """
    for (width, shown_height), dark in itertools.product(((1280, height), (360, NARROW_HEIGHT)), (False, True)):
        browser = Browser(port, width=width, height=shown_height, dark=dark)
        try:
            before()
            browser.open(url)
            browser.await_text(ready)
            browser.check_page(name)
        finally:
            browser.close()


def test_the_pages_of_a_node_its_groups_and_a_partition(driver_port: int) -> None:
    options = WhyOptions(selection=Selection(overrides=CONFIGS), now_ms=NOW_MS)
    with served(LOGS, options=options) as client:
        client.done()
        show(driver_port, client.url, "node", height=900)
        show(driver_port, client.url + "groups", "groups", height=480)
        partition = f"{client.url}partition?path={LOGS}/customer-profiles-0"
        show(driver_port, partition, "partition", height=780, ready="first dirty")


def test_the_page_of_transactions(driver_port: int, groups_node: Path) -> None:
    copy_of(groups_node, Path("payments"))
    with served("payments", options=WhyOptions(now_ms=GROUPS_NOW_MS)) as client:
        client.done()
        show(driver_port, client.url + "transactions", "transactions", height=900)


def test_the_page_of_a_clean(driver_port: int, folder: Path) -> None:
    result = cordwood.clean(LOGS, output="kafka-cleaned", engine="here", now_ms=NOW_MS, overrides=CONFIGS)
    Path("clean.html").write_text(replace(result, target="kafka-cleaned").page())
    show(driver_port, f"file://{folder}/clean.html", "clean", height=680)


def test_the_page_of_an_erasure_check(driver_port: int, folder: Path) -> None:
    keys, topics = ["customer-profile-17"], ["customer-profiles"]
    result = cordwood.erase_check(LOGS, keys=keys, topics=topics, overrides=CONFIGS, now_ms=NOW_MS)
    shown = replace(result, absolute_paths=result.paths, started_ms=NOW_MS, ended_ms=NOW_MS + 1_000)
    Path("erasure.html").write_text(shown.page())
    show(driver_port, f"file://{folder}/erasure.html", "erasure", height=900)


def test_the_page_of_a_simulation(driver_port: int, folder: Path) -> None:
    topic = ("--rate", 300, "--keys", 1_000_000, "--partitions", 6, "--days", 3, "--scale", 1_500)
    configs = ("--config", "cleanup.policy=compact", "--against", "segment.bytes=268435456")
    run("simulate", *topic, *configs, "--report", "simulation.html")
    show(driver_port, f"file://{folder}/simulation.html", "simulation", height=900)


def test_the_page_of_a_what_if(driver_port: int, folder: Path) -> None:
    Path("server.properties").write_text(
        "log.cleanup.policy=delete\nlog.retention.hours=336\nlog.segment.bytes=1048576\n"
    )
    how = ("--topic", "clickstream", "--server-properties", "server.properties", "--now", NOW_MS)
    run("explain", LOGS, *how, "--config", "retention.ms=259200000", "--report", "what-if.html")
    show(driver_port, f"file://{folder}/what-if.html", "what-if", height=1190)


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
        show(driver_port, f"http://127.0.0.1:{node.port}/?refresh=never", "live", height=1070, before=node.look)
