"""Findings of `check` about a tier, each planted in a copy of what real brokers left."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import cordwood
from cordwood import CauseKind
from cordwood.storage.check import CheckResult, Kind, Severity
from tests.fixtures import TIERED, copy_of, fixture
from tests.fs.lock_holders import HOLD_AS_A_BROKER, on_linux, other
from tests.storage.tier.planted import OTHER, Planted, copied, updated

pytestmark = pytest.mark.more

START = "log-start-offset-checkpoint"


def found(result: CheckResult, kind: Kind) -> list[tuple[str, int | None, Severity, str]]:
    return [(Path(one.path).name, one.offset, one.severity, one.what) for one in result if one.kind is kind]


@pytest.fixture
def planted(tmp_path: Path) -> Planted:
    return Planted(tmp_path / "copy")


def test_objects_that_lack_or_contradict_their_metadata_are_named(planted: Planted) -> None:
    lost, short = planted.object("orders-0", 500, ".log"), planted.object("orders-0", 825, ".log")
    lost.unlink()
    short.write_bytes(short.read_bytes()[:-10])
    planted.object("orders-0", 175, ".leader_epoch_checkpoint").write_text("0\n1\n5 0\n")
    unfinished = planted.folder("orders-0") / f"{1400:020}-{OTHER}.log"
    unfinished.write_bytes(bytes(7))
    stranger = planted.tier / f"strange-0-{OTHER}"
    shutil.copytree(planted.folder("orders-1"), stranger)
    result = planted.check()
    ((name, offset, severity, what),) = found(result, Kind.TIER_OBJECT_MISSING)
    assert (name, offset, severity) == (lost.name, 500, Severity.DAMAGE)
    assert "500 to 824" in what
    wrong = {offset: what for _, offset, _, what in found(result, Kind.TIER_OBJECT)}
    size = short.stat().st_size
    assert f"its .log has {size} bytes, and {size + 10} in its metadata" in wrong[825]
    assert "its leader epochs are {5:175}, and {0:175}" in wrong[175]
    assert set(wrong) == {175, 825}
    ((name, offset, severity, what),) = found(result, Kind.TIER_ORPHAN)
    assert (name, offset, severity) == (unfinished.name, 1400, Severity.NOTE)
    assert "1 object of 7 B" in what
    foreign = {Path(one.path).parent.name for one in result if one.kind is Kind.TIER_FOREIGN}
    assert stranger.name in foreign
    # All other files of the directory are checked, too.
    assert result.summary.partitions.total() == len([*planted.logs.glob("*-[0-9]*")])


def test_gaps_hanging_deletions_and_copies_without_an_end_are_named(planted: Planted) -> None:
    gone = planted.object("orders-0", 1150, ".log").stem[-22:]
    planted.events("orders-0", updated(gone, 2, 1_000), updated(gone, 2, 3_000), copied(OTHER, 1400, 1499))
    (planted.folder("orders-0") / f"{1400:020}-{OTHER}.log").write_bytes(bytes(7))
    result = planted.check()
    assert found(result, Kind.TIER_GAP) == [
        ("orders-0", 1150, Severity.DAMAGE, "no segment answers for offsets 1,150 to 1,324")
    ]
    ((name, offset, severity, what),) = found(result, Kind.TIER_DELETION)
    assert (name, offset, severity) == ("orders-0", 1150, Severity.NOTE)
    assert "since 1970-01-01 00:00:01: 2 attempts, the last 1970-01-01 00:00:03" in what
    ((_, offset, _, what),) = found(result, Kind.TIER_ORPHAN)
    assert offset == 1400
    assert "never ended" in what


def test_a_replaced_segment_that_nothing_deletes_is_named(planted: Planted) -> None:
    planted.events("orders-0", copied(OTHER, 175, 300), updated(OTHER, 1))
    ((name, offset, severity, what),) = found(planted.check(), Kind.TIER_UNLISTED)
    assert (name, offset, severity) == ("orders-0", 175, Severity.NOTE)
    assert "175 to 499" in what


def test_a_record_that_stops_every_reader_of_the_tier_is_named_and_passed_over(planted: Planted) -> None:
    log = planted.events("orders-0", b"\x01\x09\x00")
    result = planted.check()
    ((name, offset, severity, _),) = found(result, Kind.TIER_METADATA)
    assert (name, severity) == (log.name, Severity.DAMAGE)
    assert offset is not None
    assert offset > 0
    # The other records count.
    assert not found(result, Kind.TIER_GAP)


def test_a_log_start_without_leader_epoch_is_named(planted: Planted) -> None:
    checkpoint = planted.logs / START
    text = checkpoint.read_text()
    assert "orders 1 300" in text
    assert "expired 0 400" in text
    checkpoint.write_text(text.replace("orders 1 300", "orders 1 200").replace("expired 0 400", "expired 0 7"))
    assert {one[:3] for one in found(planted.check(), Kind.TIER_LOG_START)} == {
        ("orders-1", 200, Severity.DAMAGE),
        # Its first remote segment begins with the leader epochs, so the next leader moves the log start there.
        ("expired-0", 7, Severity.RECOVERY),
    }


@on_linux
def test_a_running_broker_may_write_its_log_start_later_than_its_leader_epochs(planted: Planted) -> None:
    checkpoint = planted.logs / START
    checkpoint.write_text(checkpoint.read_text().replace("orders 1 300", "orders 1 200"))
    with other(HOLD_AS_A_BROKER, planted.logs / ".lock"):
        assert not [one for one in planted.check() if one.kind in (Kind.TIER_LOG_START, Kind.TIER_GAP)]
        (why,) = cordwood.why(planted.logs / "orders-1", tier=planted.tier).partitions
    assert CauseKind.LOG_START not in [cause.kind for cause in why.causes]


def test_copies_that_always_fail_are_named_with_their_times() -> None:
    ((name, offset, severity, what),) = found(check_of("local-tiered"), Kind.TIER_COPY)
    assert (name, offset, severity) == ("stuck-0", 0, Severity.NOTE)
    assert what.startswith("112 attempts to copy the segment at offset 0 failed, the first 2026-11-28 12:22:55")


def test_records_of_an_abandoned_branch_that_a_broker_serves_are_named() -> None:
    result = check_of("local-tiered-pair")
    # A consumer of this broker got these 69 records.
    ((name, offset, severity, what),) = found(result, Kind.TIER_OTHER_BRANCH)
    assert (name, offset, severity) == ("split-0", 819, Severity.NOTE)
    assert "offsets 819 to 887" in what
    ((_, offset, _, what),) = found(result, Kind.TIER_ABANDONED)
    assert offset == 888
    assert what.startswith("11 segments of 94.5 kB")
    assert {one.severity for one in result} == {Severity.NOTE}


def test_a_manifest_that_contradicts_the_metadata_is_named(tmp_path: Path) -> None:
    root = copy_of(fixture("aiven-s3"), tmp_path / "copy")
    tier, key = (root / place for place in TIERED["aiven-s3"])
    manifests = sorted(tier.glob("orders-*/0/*.rsm-manifest"))
    manifests[0].write_text(manifests[0].read_text().replace('"endOffset":', '"endOffset":1'))
    manifests[1].unlink()
    result = cordwood.check(root / "kafka-logs" / "orders-0", tier=tier, tier_keys=[key])
    ((name, _, severity, what),) = found(result, Kind.TIER_OBJECT)
    assert (name, severity) == (manifests[0].name, Severity.DAMAGE)
    assert "end offset" in what
    ((name, *_),) = found(result, Kind.TIER_OBJECT_MISSING)
    assert name == manifests[1].name


def check_of(name: str) -> CheckResult:
    tier, *keys = (fixture(name) / place for place in TIERED[name])
    return cordwood.check(fixture(name) / "kafka-logs", tier=tier, tier_keys=keys)
