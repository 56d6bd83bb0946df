"""Tiers that change their owner: from a broker to a live log, and from a live log to its broker."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.common.errors import LockedError, NotFoundError, RequestError
from cordwood.common.types import TopicPartition
from cordwood.live.log_manager import LogManager
from cordwood.storage.formats.filenames import CLEAN_SHUTDOWN
from tests import knobs
from tests.command import run
from tests.commands.tiered_scene import Cut, consumed, contents, cut_after, records, sent, values
from tests.fixtures import copy_of, fixture
from tests.kafka_tools import Broker
from tests.storage.tier.layouts import FS, to_aiven, to_local

ORDERS = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
PARTITIONS = ("expired-0", "kept-local-0", "orders-0", "orders-1", "payments-0", "trimmed-0")
SEGMENTS = [1, 4, 7, 6, 14, 8]
Found = list[list[tuple[int, bytes | None, bytes | None]]]


@pytest.fixture
def node(tmp_path: Path) -> tuple[Path, Path]:
    """The log directory of fixture local-tiered, and its tier in the layout of Aiven's plugin."""
    root = copy_of(fixture("local-tiered"), tmp_path / "copy")
    to_aiven(root / "kafka-logs", root / "kafka-tiered-storage", root / "tier")
    return root / "kafka-logs", root / "tier"


def read(logs: Path, tier: Path) -> Found:
    return [records(logs, tier, partition) for partition in PARTITIONS]


def findings(logs: Path, tier: Path) -> set[str]:
    return {str(one.kind) for one in cordwood.check(logs, tier=tier)}


def adopt(logs: Path, tier: Path, **options: Any) -> Any:
    return cordwood.adopt_tier(logs, tier=tier, **options)


def export(logs: Path, tier: Path, **options: Any) -> Any:
    return cordwood.export_tier(logs, tier=tier, **options)


@contextmanager
def manager(logs: Path, tier: Path, *configs: str) -> Iterator[LogManager]:
    """A manager of tiered logs."""
    topics = {one.rpartition("-")[0] for one in PARTITIONS}
    tiered = [f"{one}:{config}" for one in topics for config in ("remote.storage.enable=true", "retention.ms=-1")]
    layers = cordwood.overrides([*tiered, "log.cleaner.enable=false", *configs])
    with LogManager(FS, [logs], layers, tier=tier) as found:
        yield found


def test_a_live_log_reads_the_tier_of_a_broker_which_gets_it_back(node: tuple[Path, Path]) -> None:
    logs, tier = node
    before, objects = read(logs, tier), {path for path in contents(tier) if path.suffix != ".json"}
    found_before = findings(logs, tier)
    adopted = adopt(logs, tier)
    assert [one.segments for one in adopted.partitions] == SEGMENTS and not adopted.to_broker
    assert read(logs, tier) == before
    with manager(logs, tier) as live:
        found = [live.get_or_create_log(TopicPartition(one[:-2], int(one[-1]))) for one in PARTITIONS]
        for log, expected in zip(found, before, strict=True):
            lived = [(one.offset, one.key, one.value) for one in log.records()]
            # Without markers and aborted records.
            assert lived == [one for one in expected if one in lived] and len(lived) > 0.8 * len(expected)
        found[2].append({"new": "1"})
    before[2].append((before[2][-1][0] + 1, b"new", b"1"))
    exported = export(logs, tier)
    assert [one.segments for one in exported.partitions] == SEGMENTS and exported.to_broker
    assert not any(one.resumed for one in exported.partitions)
    assert read(logs, tier) == before
    assert {path for path in contents(tier) if path.suffix != ".json"} == objects
    assert findings(logs, tier) == found_before


@pytest.mark.parametrize("directory", ["kafka-logs", "kafka-logs-1"])
def test_segments_that_overlap_after_elections_are_cut(tmp_path: Path, directory: str) -> None:
    root = copy_of(fixture("local-tiered-pair"), tmp_path / "copy")
    to_aiven(root / "kafka-logs", root / "kafka-tiered-storage", root / "tier")
    names, tier = ("moves-0", "split-0"), root / "tier"
    both = [root / "kafka-logs", root / "kafka-logs-1"]
    before = [records(root / directory, tier, name) for name in names]
    adopted = cordwood.adopt_tier(*both, tier=tier)
    assert {"moves", "split"} <= {one.partition.topic for one in adopted.partitions if one.copied_segments}
    assert [records(root / directory, tier, name) for name in names] == before
    layers = cordwood.overrides(["remote.storage.enable=true", "log.cleaner.enable=false", "retention.ms=-1"])
    with LogManager(FS, [root / directory], layers, tier=tier) as live:
        for name, expected in zip(names, before, strict=True):
            log = live.get_or_create_log(TopicPartition(name[:-2], 0))
            assert [(one.offset, one.key, one.value) for one in log.records()] == expected
            for offset in range(expected[0][0], expected[-1][0], 37):
                found = next(log.records(offset)).offset
                assert found == next(at for at, _, _ in expected if at >= offset)


def test_a_dry_run_changes_nothing(node: tuple[Path, Path]) -> None:
    logs, tier = node
    before = contents(logs.parent)
    assert not adopt(logs, tier, dry_run=True).done
    assert contents(logs.parent) == before
    adopt(logs, tier)
    before = contents(logs.parent)
    assert not export(logs, tier, dry_run=True).done
    assert contents(logs.parent) == before


def test_the_command_says_who_owns_the_tier(node: tuple[Path, Path]) -> None:
    logs, tier = node
    told = run("tier", "adopt", logs, "--tier", tier).stdout
    assert "6 partitions" in told and "orders-0" in told and f"cordwood run DIR --tier {tier}" in told
    document = run("tier", "export", logs, "--tier", tier, "--json").json
    assert (document["action"], document["done"]) == ("export", True)
    assert [one["segments"] for one in document["partitions"]] == SEGMENTS


# ---- refused ---------------------------------------------------------------------------------------------------------


def test_a_tier_has_one_owner(node: tuple[Path, Path]) -> None:
    logs, tier = node
    with pytest.raises(NotFoundError, match="has no manifest of expired-0"):
        export(logs, tier)
    with pytest.raises(RequestError, match="cordwood tier adopt"), manager(logs, tier):
        pass
    adopt(logs, tier)
    with pytest.raises(NotFoundError, match="no record of __remote_log_metadata names a segment of expired-0"):
        adopt(logs, tier)
    export(logs, tier)
    with pytest.raises(RequestError, match="cordwood tier adopt"), manager(logs, tier):
        pass


def test_a_running_program_is_refused(node: tuple[Path, Path]) -> None:
    logs, tier = node
    adopt(logs, tier)
    with manager(logs, tier), pytest.raises(LockedError, match="is held by"):
        export(logs, tier)
    (logs / CLEAN_SHUTDOWN).unlink()
    with pytest.raises(RequestError, match="not shut down cleanly"):
        export(logs, tier)


def test_a_program_elsewhere_can_no_longer_write(node: tuple[Path, Path], tmp_path: Path) -> None:
    logs, tier = node
    adopt(logs, tier)
    with manager(logs, tier):
        pass
    elsewhere = copy_of(logs, tmp_path / "elsewhere")
    with manager(elsewhere, tier, "orders:internal.segment.bytes=1000") as zombie:
        export(logs, tier)
        assert zombie.tiering is not None
        log = zombie.get_or_create_log(ORDERS[0])
        for number in range(20):
            log.append({f"{number}": "x" * 200})
        log.flush()
        zombie.tiering.run()
        assert "another writer" in zombie.tiering.errors()[ORDERS[0]]


def test_tiers_that_live_logs_cannot_read_are_refused(tmp_path: Path) -> None:
    root = copy_of(fixture("local-tiered"), tmp_path / "local")
    with pytest.raises(RequestError, match="LocalTieredStorage"):
        adopt(root / "kafka-logs", root / "kafka-tiered-storage")
    root = copy_of(fixture("aiven-s3"), tmp_path / "aiven")
    with pytest.raises(RequestError, match="is encrypted"):
        adopt(root / "kafka-logs", root / "bucket" / "kafka", tier_keys=[str(root / "test-key.json")])
    root = copy_of(fixture("local-tiered-pair"), tmp_path / "pair")
    to_aiven(root / "kafka-logs", root / "kafka-tiered-storage", root / "tier")
    with pytest.raises(RequestError, match="has replicas on brokers"):
        cordwood.adopt_tier(root / "kafka-logs", tier=root / "tier")


def test_a_directory_without_the_metadata_topic_is_refused(node: tuple[Path, Path]) -> None:
    logs, tier = node
    adopt(logs, tier)
    shutil.rmtree(logs / "__cluster_metadata-0")
    for removed, missing in (("-0", "-0, and no metadata log"), ("-*", ", the topic")):
        for path in logs.glob(f"__remote_log_metadata{removed}"):
            shutil.rmtree(path)
        with pytest.raises(RequestError, match=f"no directory has __remote_log_metadata{missing}"):
            export(logs, tier, single_copy=True)


# ---- crashes ---------------------------------------------------------------------------------------------------------


@pytest.mark.more
@pytest.mark.parametrize("to_broker", [False, True], ids=["adopt", "export"])
def test_a_crash_loses_nothing_and_the_next_run_completes_it(node: tuple[Path, Path], *, to_broker: bool) -> None:
    logs, tier = node
    change = export if to_broker else adopt
    if to_broker:
        adopt(logs, tier)
    expected, kinds = read(logs, tier), findings(logs, tier)
    for step in itertools.count(0, knobs.step(2)):
        copied = copy_of(logs.parent, logs.parent.parent / "cut")
        try:
            with pytest.MonkeyPatch.context() as patch:
                cut_after(step, patch, begin="")
                change(copied / "kafka-logs", copied / "tier")
            break
        except Cut:
            pass
        assert read(copied / "kafka-logs", copied / "tier") == expected
        try:
            change(copied / "kafka-logs", copied / "tier")
        except NotFoundError:
            assert not to_broker or step > 3, "it was complete"
        assert read(copied / "kafka-logs", copied / "tier") == expected
        assert findings(copied / "kafka-logs", copied / "tier") == kinds
        with pytest.raises(NotFoundError):
            change(copied / "kafka-logs", copied / "tier")
        shutil.rmtree(copied)
    assert step > 5


# ---- real brokers ----------------------------------------------------------------------------------------------------


def test_a_broker_serves_a_topic_that_a_live_log_cleaned_and_goes_on_tiering(
    kafka_broker: Broker, tmp_path: Path
) -> None:
    logs, local, tier = tmp_path / "logs", tmp_path / "local", tmp_path / "tier"
    kafka_broker.start(logs, "--tier", local)
    configs = [
        word for one in ("remote.storage.enable=true", "internal.segment.bytes=4096") for word in ("--config", one)
    ]
    kafka_broker("topic", "create", logs, "orders", "--partitions", "2", *configs)
    kafka_broker.client(logs, sent(0))
    before = consumed(kafka_broker, logs, tmp_path / "before.gz")
    kafka_broker("stop", logs)
    to_aiven(logs, local, tier)
    adopt(logs, tier)
    with manager(
        logs, tier, "orders:cleanup.policy=compact", "orders:min.cleanable.dirty.ratio=0", "log.cleaner.enable=true"
    ) as live:
        assert live.cleaner is not None
        for one in ORDERS:
            assert live.cleaner.await_cleaned(one, live.get_or_create_log(one).active_segment.base_offset)
    export(logs, tier)
    shutil.rmtree(local)
    to_local(logs, tier, local)
    kafka_broker.start(logs, "--tier", local)
    after = consumed(kafka_broker, logs, tmp_path / "after.gz")
    assert len(after) < len(before) / 2
    assert values(after) == values(before)
    kafka_broker.client(logs, sent(1))
    assert len(consumed(kafka_broker, logs, tmp_path / "more.gz")) > len(after)
    kafka_broker("stop", logs)
    assert not cordwood.check(logs, tier=local).summary.damaged
