"""The page of a partition, and its zoomed views, from a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from cordwood.commands.options import WhyOptions
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from tests.command import run
from tests.fixtures import copy_of, fixture, tree
from tests.fs.disks import OnlyRead
from tests.logs import append, make_log
from tests.view.web.view_client import Client, ask, check_harmless, served

pytestmark = pytest.mark.more

NOW = 1_795_000_000_000
OPTIONS = WhyOptions(now_ms=NOW)
BROKER = "kraft-classic-before"
PARTITIONS = ["ledger-0", "orders-0", "trimmed-0", "__consumer_offsets-0", "__cluster_metadata-0", "trimmed-both-0"]
STRAY = "astray-0.43b18cc0a8cb4af1af4243eb30fa889a-stray"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served(fixture(BROKER), options=OPTIONS) as found:
        found.done()
        yield found


# ---- Compared with commands ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*PARTITIONS, STRAY])
def test_the_json_of_a_partition_is_what_the_commands_print(client: Client, name: str) -> None:
    path = fixture(BROKER) / name
    found = ask(client, "partition.json", path).document
    assert found["ls"] == run("ls", path, "--segments", "--json").json
    assert found["plan"] == run("plan", path, "--now", NOW, "--json").json
    assert found["why"] == run("why", path, "--now", NOW, "--json").json
    assert found["check"] == run("check", path, "--json").lines


@pytest.mark.parametrize("name", [*PARTITIONS, STRAY])
def test_the_page_of_a_partition_draws_each_segment_and_says_why(client: Client, name: str) -> None:
    path = fixture(BROKER) / name
    page, found = check_harmless(ask(client, "partition", path).text), ask(client, "partition.json", path).document
    assert found["why"]["partitions"][0]["causes"][0]["what"] in page.text
    assert found["plan"]["partitions"][0]["decision"] in page.text
    drawn = [
        label for tag, one in page.tags if tag == "a" and (label := one.get("aria-label") or "").startswith("segm")
    ]
    with_bytes = [one for one in found["ls"]["partitions"][0]["by_segment"] if one["size_bytes"]]
    assert len(drawn) >= len(with_bytes), "once for each width"
    for mark in found["marks"]:
        assert mark["what"] in page.text
    ids = [one["id"] for _, one in page.tags if "id" in one]
    assert len(ids) == len(set(ids))


def test_bytes_of_a_segment_add_up(client: Client) -> None:
    for name in PARTITIONS:
        found = ask(client, "partition.json", fixture(BROKER) / name).document
        sizes = {one["base_offset"]: one["size_bytes"] for one in found["ls"]["partitions"][0]["by_segment"]}
        assert {one["base_offset"]: sum(one["bytes"].values()) for one in found["contents"]["segments"]} == sizes


def test_producers_are_listed_and_drawn_from_their_first_batch_to_their_last(client: Client) -> None:
    path = fixture(BROKER) / "producers-0"
    found, text = ask(client, "partition.json", path).document["producers"], ask(client, "partition", path).text
    page = check_harmless(text)
    assert found["count"] > 5 and len(found["largest"]) == min(found["count"], 20)
    for one in found["largest"][:5]:
        assert text.count(f"producer {one['id']}: offsets {one['first_offset']} to {one['last_offset']}") == 2
    assert f"of {found['count']:,} producers" in page.text or f"{found['count']} producers" in page.text
    assert "No producer numbered its batches" in ask(client, "partition", fixture(BROKER) / STRAY).text


@pytest.mark.parametrize(("page", "option"), [("batches", "--batches"), ("records", "--records")])
def test_the_json_of_batches_and_records_is_what_dump_prints(client: Client, page: str, option: str) -> None:
    path = fixture(BROKER) / "ledger-0"
    got = ask(client, f"{page}.json", path, offset=100)
    lines = [json.loads(line) for line in got.body.splitlines()]
    assert lines == run("dump", path, option, "--from-offset", 100, "--limit", 100, "--json").lines
    text = check_harmless(ask(client, page, path, offset=100).text).text
    assert str(lines[50]["base_offset" if page == "batches" else "offset"]) in text
    assert "acct-" in text or page == "batches"


def test_pages_of_batches_and_records_lead_through_the_whole_log(client: Client) -> None:
    path = fixture(BROKER) / "orders-0"
    segments = run("ls", path, "--segments", "--json").json["partitions"][0]["by_segment"]
    for page in ("batches", "records"):
        rows, target = 0, f"/{page}?path={quote(str(path))}&offset=0"
        while target:
            got = client.get(target).text
            rows += got.count("<tr>") - 1
            parsed = check_harmless(got)
            target = parsed.links()[-1] if "Next" in parsed.texts else ""
        assert rows == sum(one[page] for one in segments)


def test_records_are_found_by_offset_time_and_key(client: Client) -> None:
    path = fixture(BROKER) / "orders-0"
    assert ask(client, "find", path, offset=17).headers["location"].endswith("&offset=17")
    records = [one for one in run("dump", path, "--records", "--json").lines if isinstance(one, dict)]
    wanted = sorted(int(one["timestamp"]) for one in records)[40]
    first = min(int(one["offset"]) for one in records if one["timestamp"] >= wanted)
    assert ask(client, "find", path, time=wanted).headers["location"].endswith(f"&offset={first}")
    key = records[5]["key"]
    assert (
        ask(client, "get.json", path, key=key).document == run("get", path, "--key", key, "--now", NOW, "--json").json
    )
    page = check_harmless(ask(client, "find", path, key=key).text)
    offsets = [f"&offset={one['offset']}" for one in records if one["key"] == key]
    assert [f"&offset={link.partition('&offset=')[2]}" for link in page.links() if "&offset=" in link] == offsets
    for wrong in ({"offset": "x"}, {"time": "soon"}, {"time": "2999-01-01"}, {"key": "hex:0"}):
        assert ask(client, "find", path, **wrong).status == 400


# ---- Refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["partition", "partition.json", "batches", "records.json", "find", "get.json"])
def test_a_path_that_was_not_found_is_never_opened(client: Client, page: str, tmp_path: Path) -> None:
    append(tmp_path / "secret-0", (b"secret-key", b"v"))
    inside = fixture(BROKER)
    for path in (
        tmp_path / "secret-0",
        "/etc",
        f"{inside}/orders-0/../ledger-0",
        f"{inside}/",
        "",
        f"{inside}/orders-0/",
    ):
        got = ask(client, page, path, offset=0, key="secret-key")
        assert got.status == 404 and b"superseded" not in got.body
    assert client.get(f"/{page}").status == 404


HOSTILE = [
    b"<script>alert(1)</script>",
    b'"><img src=x onerror=alert(1)>',
    b"</code></td><svg onload=alert(1)>",
    b"\xff\xfe\x00<b>",
    "\u202ereversed\x1b[2J".encode(),
    b"</style><script>",
    b"",
]


def test_keys_and_values_do_not_break_out(tmp_path: Path) -> None:
    path = tmp_path / "<b>topic-0"
    append(path, *((key, key) for key in HOSTILE), (b"null", None))
    with served(tmp_path, options=OPTIONS) as found:
        found.done()
        for page in ("partition", "batches", "records"):
            check_harmless(ask(found, page, path, offset=0).text)
        page_of = check_harmless(ask(found, "records", path, offset=0).text)
        assert "<script>alert(1)</script>" in page_of.text and "hex:fffe003c623e" in page_of.text
        assert "\x1b" not in page_of.text and "\u202e" not in page_of.text
        for key in HOSTILE[:3]:
            check_harmless(ask(found, "find", path, key=key.decode()).text)


def test_of_a_large_key_only_the_beginning_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "large-0"
    append(path, *((b"%d" % number + bytes([97]) * (3 << 20), b"v" * (3 << 20)) for number in range(4)))
    with served(tmp_path, options=OPTIONS) as found:
        found.done()
        got = ask(found, "records", path, offset=0)
        assert "3,145,729 B in all" in got.text and len(got.body) < 50_000
        assert len(ask(found, "partition", path).body) < 100_000
        got = ask(found, "records.json", path, offset=0)
        assert got.status == 400 and "too much" in got.text


def test_damage_is_shown_beside_the_drawing(tmp_path: Path) -> None:
    path = tmp_path / "node" / "damaged-0"
    path.parent.mkdir()
    make_log(path, (0, [encode_batch([Record(at, NOW, b"k%d" % at, b"v" * 100)]) for at in range(20)]), (20, []))
    log = path / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[500:520] = bytes(20)
    log.write_bytes(data)
    with served(path.parent, options=OPTIONS) as found:
        found.done()
        page = check_harmless(ask(found, "partition", path).text)
        assert "damage: " in page.text and "CRC-32C mismatch" in page.text
        assert check_harmless(ask(found, "records", path, offset=0).text).text.count("Damage: ") >= 1
        ask(found, "partition.json", path)


def test_a_log_without_records_has_a_page(tmp_path: Path) -> None:
    make_log(tmp_path / "empty-0", (0, []))
    with served(tmp_path, options=OPTIONS) as found:
        found.done()
        assert "The log is empty." in ask(found, "partition", tmp_path / "empty-0").text
        assert "There is none from here on." in ask(found, "records", tmp_path / "empty-0", offset=0).text


def test_pages_of_partitions_change_nothing(tmp_path: Path) -> None:
    folder = copy_of(fixture(BROKER), tmp_path / "node")
    before = tree(folder)
    with served(folder, options=OPTIONS, fs=OnlyRead(PosixFileSystem(), str(folder))) as found:
        found.done()
        for page in ("partition", "partition.json", "batches", "batches.json", "records", "records.json", "get.json"):
            assert ask(found, page, folder / "orders-0", offset=0, key="p0-key-1").status == 200
    assert tree(folder) == before
