"""Tiered topics cleaned inside their tier: what brokers and Cordwood read afterwards, and what a crash leaves."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.cleaning.engine.results import CleanResult, Fate
from cordwood.common.errors import LockedError, RequestError
from cordwood.common.types import TopicPartition
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats import checkpoints
from cordwood.storage.formats.filenames import CLEAN_SHUTDOWN, CLEANER_OFFSETS, WORK_FOLDER
from cordwood.storage.node.cluster import Cluster
from cordwood.storage.tier.store import TierStore, with_tier
from tests import knobs
from tests.command import run
from tests.commands.tiered_scene import Cut, consumed, contents, cut_after, records, sent, values
from tests.fixtures import copy_of, fixture
from tests.kafka_tools import Broker

NOW = 1_800_000_000_000


def clean(logs: Path | list[Path], tier: Path, *topics: str, **options: Any) -> CleanResult:
    """Clean topics in their tier, in this process; `orders` unless others are named."""
    paths = [logs] if isinstance(logs, Path) else logs
    options = {"ignore_ratio": True, "engine": "here", "now_ms": NOW, **options}
    policies = [f"{topic}:cleanup.policy=compact" for topic in topics or ("orders",)]
    return cordwood.clean_in_tier(*paths, tier=tier, **{"overrides": policies, **options})


def local(tmp_path: Path) -> tuple[Path, Path]:
    """A copy of the fixture local-tiered: its log directory and its tier."""
    root = copy_of(fixture("local-tiered"), tmp_path / "copy")
    return root / "kafka-logs", root / "kafka-tiered-storage"


def pair(tmp_path: Path) -> tuple[list[Path], Path]:
    """A copy of the fixture local-tiered-pair: the log directories of brokers 1 and 2, and their tier."""
    root = copy_of(fixture("local-tiered-pair"), tmp_path / "copy")
    return [root / "kafka-logs-1", root / "kafka-logs"], root / "kafka-tiered-storage"


def clean_up_to(logs: Path) -> dict[TopicPartition, int]:
    return checkpoints.decode((logs / CLEANER_OFFSETS).read_bytes())


def last_values(found: list[tuple[int, bytes | None, bytes | None]]) -> dict[bytes | None, bytes | None]:
    return {key: value for _, key, value in found}


# ---- the log afterwards ----------------------------------------------------------------------------------------------


def test_the_log_in_the_tier_is_the_one_that_a_clean_into_a_copy_leaves(tmp_path: Path) -> None:
    logs, tier = local(tmp_path)
    overrides = ["orders:cleanup.policy=compact", "orders:remote.storage.enable=false"]
    options: dict[str, Any] = {"topics": ["orders"], "ignore_ratio": True, "engine": "here", "now_ms": NOW}
    cordwood.clean(logs, output=tmp_path / "copied", tier=tier, overrides=overrides, **options)
    result = clean(logs, tier)
    assert result.in_tier is not None and result.in_tier.segments_replaced == 13
    cordwood.fetch(logs, tmp_path / "fetched", tier=tier)
    for partition in ("orders-0", "orders-1"):
        # In the tier, a segment that lost all its records is a part of its neighbour.
        copied, fetched = (
            b"".join(path.read_bytes() for path in sorted((tmp_path / name / partition).glob("*.log")))
            for name in ("copied", "fetched")
        )
        assert fetched == copied and 5_000 < len(copied) < 10_000
    assert clean_up_to(logs)[TopicPartition("orders", 0)] == 1400


def test_the_other_replica_reads_the_same_afterwards(tmp_path: Path) -> None:
    both, tier = pair(tmp_path)
    before = records(both[0], tier, "split-0")
    result = clean(both, tier, "moves", "split")
    assert len(result.with_fate(Fate.CLEANED)) == 2, result.text()
    for partition in ("moves-0", "split-0"):
        assert records(both[0], tier, partition) == records(both[1], tier, partition)
    assert last_values(records(both[0], tier, "split-0")) == last_values(before)
    # Brokers read remote segments to their ends; now no end hides records of an abandoned branch.
    kinds = {one.kind for one in cordwood.check(both[0], tier=tier)}
    assert kinds == {"tier-abandoned"}


def test_the_metadata_may_be_on_another_disk_of_the_broker(tmp_path: Path) -> None:
    logs, tier = local(tmp_path)
    other = logs.with_name("disk-2")
    other.mkdir()
    for path in logs.glob("__remote_log_metadata-*"):
        path.rename(other / path.name)
    assert len(clean([logs, other], tier).with_fate(Fate.CLEANED)) == 2


def test_a_tier_of_the_plugin_is_cleaned_below_its_encrypted_segments(tmp_path: Path) -> None:
    root = copy_of(fixture("aiven-s3"), tmp_path / "copy")
    logs, tier, key = root / "kafka-logs", root / "bucket" / "kafka", [str(root / "test-key.json")]
    refused = clean(logs, tier, "orders", "payments", tier_keys=key)
    assert all("is encrypted" in one.why for one in refused.with_fate(Fate.FAILED)) and len(refused.partitions) == 3
    result = clean(logs, tier, "orders", "payments", tier_keys=key, high_watermark=400)
    assert len(result.with_fate(Fate.CLEANED)) == 3, result.text()
    assert not [*cordwood.check(logs, tier=tier, tier_keys=key)]


def test_segments_on_a_disk_stay_as_they_are(tmp_path: Path) -> None:
    logs, tier = local(tmp_path)
    before = contents(logs / "kept-local-0")
    result = clean(logs, tier, "kept-local")
    (one,) = result.partitions
    assert (one.fate, one.end_offset) == (Fate.LEFT, None)
    assert "still on the disk of a broker" in one.why
    assert contents(logs / "kept-local-0") == before


def test_old_objects_can_be_kept(tmp_path: Path) -> None:
    logs, tier = local(tmp_path)
    before = {path: path.read_bytes() for path in tier.glob("orders-0-*/*")}
    result = run(
        *("clean", logs, "--in-tier", "--tier", tier, "--config", "orders:cleanup.policy=compact", "--ignore-ratio"),
        *("--partition", "orders-0", "--keep-old-objects", "--engine", "here"),
    ).stdout
    assert all(path.read_bytes() == data and str(path) in result for path, data in before.items())
    store = with_tier(PosixFileSystem(), str(tier))
    assert isinstance(store, TierStore)
    part = store.remote_part(f"{logs}/orders-0")
    assert part is not None and not {path.name[21:43] for path in before} & part.log.segments.keys()


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    logs, tier = local(tmp_path)
    before = contents(logs.parent)
    result = clean(logs, tier, dry_run=True)
    assert result.in_tier is not None and result.in_tier.segments_replaced == 13
    assert contents(logs.parent) == before
    done, told = clean(logs, tier).in_tier, result.in_tier
    assert done is not None and not told.is_done
    figures = ("segments_written", "objects_written", "objects_deleted", "bytes_deleted")
    assert [getattr(done, name) for name in figures] == [getattr(told, name) for name in figures]


# ---- refused ---------------------------------------------------------------------------------------------------------


def refused(text: str, *arguments: Any, **options: Any) -> None:
    with pytest.raises(RequestError, match=text):
        clean(*arguments, **options)


def test_what_must_be_given_is_named(tmp_path: Path) -> None:
    logs, tier = local(tmp_path)
    refused("--config TOPIC:cleanup.policy=compact|overrides", logs, tier, overrides=[])
    refused("give the tier", logs, None)
    refused("a broker applies retention", logs, tier, retention=True)
    (logs / CLEAN_SHUTDOWN).unlink()
    refused("was not shut down cleanly", logs, tier)


def test_all_replicas_of_the_metadata_must_be_given(tmp_path: Path) -> None:
    (first, _), tier = pair(tmp_path)
    for single_copy in (False, True):  # the metadata lists two replicas, whatever the user confirms
        refused("no directory of broker 2 is given", first, tier, "moves", single_copy=single_copy)


def test_a_running_broker_is_noticed(tmp_path: Path) -> None:
    logs, tier = local(tmp_path)
    with PosixFileSystem().lock_directory(str(logs)), pytest.raises(LockedError):
        clean(logs, tier)


# ---- after a crash ---------------------------------------------------------------------------------------------------


@pytest.mark.more
def test_a_crash_leaves_the_old_log_or_the_new_one_and_the_next_run_completes_it(tmp_path: Path) -> None:
    source, _ = local(tmp_path)
    old = records(source, source.parent / "kafka-tiered-storage")
    findings = {one.kind for one in cordwood.check(source, tier=source.parent / "kafka-tiered-storage")}
    seen = set[str]()
    steps = itertools.count(0, knobs.step(5))
    while True:
        logs = copy_of(source.parent, tmp_path / "cut") / "kafka-logs"
        tier = logs.parent / "kafka-tiered-storage"
        with pytest.MonkeyPatch.context() as patch:
            cut_after(next(steps), patch)
            try:
                clean(logs, tier, partitions=["orders-0"])
                break
            except Cut:
                pass
        found = records(logs, tier)
        assert last_values(found) == last_values(old) and set(found) <= set(old)
        seen.add("old" if found == old else "new")
        clean(logs, tier, partitions=["orders-0"])
        assert len(records(logs, tier)) == 60
        assert {one.kind for one in cordwood.check(logs, tier=tier)} == findings
        assert not (logs / "orders-0" / WORK_FOLDER).exists()
        shutil.rmtree(logs.parent)
    assert seen == {"old", "new"}


@pytest.mark.more
def test_the_next_run_may_read_another_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both, tier = pair(tmp_path)
    before = records(both[0], tier, "split-0")

    def prefer(number: int) -> None:
        monkeypatch.setattr(Cluster, "leader", lambda cluster, name: cluster.replicas(name)[number])

    prefer(1)
    with pytest.MonkeyPatch.context() as patch:
        cut_after(4, patch)
        with pytest.raises(Cut):
            clean(both, tier, "split")
    assert [(one / "split-0" / WORK_FOLDER).exists() for one in both] == [False, True]
    prefer(0)
    (one,) = clean(both, tier, "split").partitions
    assert (one.path, one.fate) == (f"{both[0]}/split-0", Fate.CLEANED)
    assert "an interrupted clean had not replaced anything" in one.notes[0]
    assert not any((one / "split-0" / WORK_FOLDER).exists() for one in both)
    after = records(both[0], tier, "split-0")
    assert after == records(both[1], tier, "split-0") and last_values(after) == last_values(before)
    assert clean_up_to(both[0]) == clean_up_to(both[1]) == {TopicPartition("split", 0): one.end_offset}
    prefer(1)
    (again,) = clean(both, tier, "split", ignore_ratio=False).partitions
    assert again.fate is Fate.LEFT and again.path == f"{both[1]}/split-0"


# ---- real brokers ----------------------------------------------------------------------------------------------------


def test_a_broker_serves_a_topic_cleaned_in_its_tier_and_goes_on_tiering(kafka_broker: Broker, tmp_path: Path) -> None:
    logs, tier = tmp_path / "logs", tmp_path / "tier"
    start = ("--tier", tier)
    kafka_broker.start(logs, *start)
    configs = [
        word for one in ("remote.storage.enable=true", "internal.segment.bytes=4096") for word in ("--config", one)
    ]
    kafka_broker("topic", "create", logs, "orders", "--partitions", "2", *configs)
    for turn in range(2):
        kafka_broker.client(logs, sent(turn))
        before = consumed(kafka_broker, logs, tmp_path / f"before-{turn}.gz")
        kafka_broker("stop", logs)
        result = clean(logs, tier, now_ms=None)
        assert len(result.with_fate(Fate.CLEANED)) == 2, result.text()
        kafka_broker.start(logs, *start)
        after = consumed(kafka_broker, logs, tmp_path / f"after-{turn}.gz")
        assert len(after) < len(before) / 2
        assert values(after) == values(before)
        rest = {json.dumps(one) for one in before}
        assert all(json.dumps(one) in rest for one in after)
    kafka_broker("stop", logs)
    assert not cordwood.check(logs, tier=tier).summary.damaged
