"""A tier in a bucket, with its log directory on this machine."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import cordwood
from cordwood.cleaning.engine.results import CleanResult
from cordwood.common.errors import CordwoodError
from cordwood.fs.by_url import file_system_for
from cordwood.storage.log.view import LogView
from cordwood.storage.tier.store import TierStore, with_tier
from tests import knobs
from tests.command import run
from tests.fixtures import copy_of, fixture, tier_options
from tests.fs.object_server import BACKEND, BUCKET, Server, environment, faulty, never_retry, running_server

pytestmark = pytest.mark.more

ROOT = fixture("aiven-s3")
NOW = 1_800_000_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server() as started, pytest.MonkeyPatch.context() as patch:
        for name, value in environment(started.address).items():
            patch.setenv(name, value)
        yield started


def test_a_bucket_is_read_and_restored_as_a_copy_of_it_on_a_disk(server: Server, tmp_path: Path) -> None:
    url = server.upload(ROOT / "bucket" / "kafka", "kafka")
    key = "--tier-key", f"{ROOT}/test-key.json"
    printed = run("dump", ROOT / "kafka-logs" / "payments-0", "--records", "--json", "--tier", url, *key).stdout
    assert (
        printed
        == run("dump", ROOT / "kafka-logs" / "payments-0", "--records", "--json", *tier_options("aiven-s3")).stdout
    )
    run("fetch", tmp_path / "restored", "--topic", "orders", "--tier", url, *key)
    run("fetch", tmp_path / "copied", "--topic", "orders", *tier_options("aiven-s3"))
    files = {path.relative_to(tmp_path / "copied"): path for path in (tmp_path / "copied").rglob("*") if path.is_file()}
    assert len(files) > 40
    for name, path in files.items():
        assert (tmp_path / "restored" / name).read_bytes() == path.read_bytes(), name


def test_a_log_is_explained_with_two_requests_for_each_of_its_segments(server: Server) -> None:
    url = server.upload(ROOT / "bucket" / "kafka", "kafka")
    with faulty(server.address) as (address, asked), mock.patch.dict(os.environ, environment(address)):
        (found,) = cordwood.why(
            ROOT / "kafka-logs" / "payments-0", tier=url, tier_keys=[f"{ROOT}/test-key.json"]
        ).partitions
    assert found.tier is not None
    assert found.tier.segments == 12
    listings = [one for one in asked.asked if "list-type" in one]
    assert len(asked.asked) - len(listings) == 2 * found.tier.segments
    assert len(listings) < 6


def test_opening_a_log_of_a_broker_takes_no_request_for_its_segments(server: Server) -> None:
    url = server.upload(ROOT / "bucket" / "kafka", "kafka")
    with faulty(server.address) as (address, asked), mock.patch.dict(os.environ, environment(address)):
        store = with_tier(file_system_for([url]), url, [f"{ROOT}/test-key.json"])
        log = LogView(f"{ROOT}/kafka-logs/payments-0", fs=store)
        assert len(log.segments) > 12 and log.size_bytes
        # Which folders the bucket has, and whether the topic has a manifest there.
        assert [one.split()[0] for one in asked.asked if "list-type" not in one] == [] and len(asked.asked) < 4
        asked.begin({})
        (first,) = log.records(start_offset=300, end_offset=301)
        assert first.offset == 300
        # Manifest, indexes and the log of one segment; and the local segment behind it is not in the tier.
        assert len(asked.asked) <= 4, asked.asked
        sizes = {info.name: info.size_bytes for info in log.entries}
    copied = with_tier(file_system_for([]), f"{ROOT}/bucket/kafka", [f"{ROOT}/test-key.json"])
    expected = {info.name: info.size_bytes for info in copied.list(f"{ROOT}/kafka-logs/payments-0")}
    assert sizes == expected


# ---- cleaned in the bucket -------------------------------------------------------------------------------------------

#: Segments below this offset are not encrypted.
END = 400


def clean(logs: Path, url: str) -> CleanResult:
    policy = ["payments:cleanup.policy=compact"]
    options: dict[str, Any] = {"ignore_ratio": True, "high_watermark": END, "engine": "here", "now_ms": NOW}
    return cordwood.clean_in_tier(logs, tier=url, tier_keys=[f"{ROOT}/test-key.json"], overrides=policy, **options)


def payments(logs: Path, url: str) -> list[tuple[int, bytes | None, bytes | None]]:
    log = LogView(f"{logs}/payments-0", fs=with_tier(file_system_for([url]), url, [f"{ROOT}/test-key.json"]))
    return [(one.offset, one.key, one.value) for one in log.records()]


def named(logs: Path, url: str) -> set[str]:
    """The segments that the metadata of payments-0 names, which have objects."""
    store = with_tier(file_system_for([url]), url)
    assert isinstance(store, TierStore)
    part = store.remote_part(f"{logs}/payments-0")
    assert part is not None
    return set(part.log.segments)


def stored(server: Server) -> set[str]:
    """The segments that have objects in the bucket."""
    return {name.rpartition(".")[0][-22:] for name in server.objects("kafka") if name.startswith("payments-")}


def filled(server: Server) -> str:
    """Fill the bucket as the plugin did, under the prefix that its custom metadata has; return the URL of the tier."""
    for name in server.objects("kafka"):
        BACKEND.delete_object(BUCKET, f"kafka/{name}")
    return server.upload(ROOT / "bucket" / "kafka", "kafka")


def test_a_new_segment_in_a_bucket_takes_three_puts(server: Server, tmp_path: Path) -> None:
    url = filled(server)
    logs = copy_of(ROOT / "kafka-logs", tmp_path / "logs")
    with faulty(server.address) as (address, asked), mock.patch.dict(os.environ, environment(address)):
        result = clean(logs, url).in_tier
    assert result is not None and result.segments_written > 2
    methods = Counter(one.split()[0] for one in asked.asked)
    print(f"{result.segments_written} segments written, {result.segments_replaced} replaced: {dict(methods)}")
    assert methods["PUT"] == result.objects_written == 3 * result.segments_written
    assert methods["DELETE"] + methods["POST"] <= result.objects_deleted
    assert stored(server) == named(logs, url)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["403", "lost", "dead"])
def test_a_fault_at_any_request_leaves_the_old_log_or_the_new_one(
    server: Server, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "dead":  # no retry helps
        never_retry(monkeypatch)
    before, seen = payments(ROOT / "kafka-logs", filled(server)), set[str]()
    for number in range(0, 400, knobs.step(60)):
        url = filled(server)
        logs = copy_of(ROOT / "kafka-logs", tmp_path / str(number))
        with faulty(server.address) as (address, faults), mock.patch.dict(os.environ, environment(address)):
            faults.begin({number: kind})
            with contextlib.suppress(CordwoodError, OSError):
                clean(logs, url)
            faults.settle()
        found = payments(logs, url)
        assert {key: value for _, key, value in found} == {key: value for _, key, value in before}
        seen.add("old" if found == before else "new")
        clean(logs, url)
        assert len(payments(logs, url)) < len(before) - 100
        assert stored(server) == named(logs, url)
        if not faults.happened:
            break
    assert seen == ({"new"} if kind == "lost" else {"old", "new"})  # a client asks again after a lost answer
