"""`why` of tiered topics: what retention deletes in the tier and on the disk, what stops it, and traps."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood import CauseKind, WhyPartition
from cordwood.common.errors import RequestError
from cordwood.common.types import TopicPartition
from cordwood.storage.formats.filenames import HIGH_WATERMARKS
from tests.command import run
from tests.commands.made_broker import MadeBroker, same
from tests.fixtures import TIERED, facts, fixture, tier_options
from tests.logs import T0, batch
from tests.storage.tier.planted import OTHER, Planted, copied, updated

#: Two hours after the fixtures were made.
NOW = 1_795_875_000_000
DAY = 86_400_000
START, EPOCHS = "log-start-offset-checkpoint", "orders-0/leader-epoch-checkpoint"


def explained(name: str, partition: str, **options: Any) -> WhyPartition:
    tier, *keys = (f"{fixture(name)}/{place}" for place in TIERED[name])
    given = {"now_ms": NOW, "tier": tier, "tier_keys": keys, **options}
    (found,) = cordwood.why(fixture(name) / "kafka-logs" / partition, **given).partitions
    return found


def kinds(partition: WhyPartition) -> list[CauseKind]:
    return [cause.kind for cause in partition.causes]


def planted_why(planted: Planted, partition: str, **options: Any) -> WhyPartition:
    (found,) = cordwood.why(planted.logs / partition, tier=planted.tier, now_ms=NOW, **options).partitions
    return found


@pytest.fixture
def planted(tmp_path: Path) -> Planted:
    return Planted(tmp_path / "copy")


# ---- retention, and the segment that stops it ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partition", "cause", "remote", "local"),
    [
        (
            "trimmed-0", CauseKind.WITHIN_RETENTION,
            "the segment of offsets 700 to 874 goes after 9.5 kB more (retention.bytes)",
            "only an empty active segment is on its disk",
        ),
        (
            "expired-0", CauseKind.WITHIN_RETENTION,
            "the segment of offsets 400 to 499 goes at 2026-11-29 12:22:28.800 UTC (retention.ms)",
            "only an empty active segment is on its disk",
        ),
        (
            "kept-local-0", CauseKind.LOCAL_COPIES,
            "the segment of offsets 0 to 174 stays: neither retention.ms nor retention.bytes limits the log",
            "the segment from offset 0 on stays: neither local.retention.ms nor retention.bytes limits the log",
        ),
        (
            "stuck-0", CauseKind.COPIES_FAIL, "the tier has no segment of it",
            "the segment from offset 0 on is beyond local.retention.ms, but not copied",
        ),
        (
            "orders-1", CauseKind.RETENTION_OFF,
            "the segment of offsets 150 to 474 stays: neither retention.ms nor retention.bytes limits the log",
            "only an empty active segment is on its disk",
        ),
    ],
)  # fmt: skip
def test_the_segments_that_stop_retention_are_named(partition: str, cause: CauseKind, remote: str, local: str) -> None:
    found = explained("local-tiered", partition)
    assert found.cause.kind is cause
    assert found.tier is not None
    assert (found.tier.remote_retention.stays, found.tier.local_retention.stays) == (remote, local)
    assert found.tier.remote_retention.segments == found.tier.local_retention.segments == 0
    assert found.tier.size_bytes == sum(one["size"] for one in finished("local-tiered", partition))


def finished(name: str, partition: str) -> list[dict[str, Any]]:
    remote = facts(name)["partitions"][partition]["remote"]
    return [one for one in remote if one["state"] == "COPY_SEGMENT_FINISHED"]


def test_what_the_next_rounds_delete_is_counted() -> None:
    expired = explained("local-tiered", "expired-0", now_ms=NOW + DAY)
    assert (expired.cause.kind, expired.cause.bytes_max) == (CauseKind.REMOTE_DUE, 8938)
    assert "1 remote segment of 8.9 kB, beyond retention.ms, is due, and no broker runs" in expired.cause.what
    assert expired.tier is not None
    assert (expired.tier.remote_retention.stops_at, expired.tier.could_lose_bytes) == (None, 8938)
    configs = ["kept-local:local.retention.bytes=40000", "kept-local:local.retention.ms=-2"]
    local = explained("local-tiered", "kept-local-0", overrides=configs)
    assert local.tier is not None
    # The segments have 16,036 and 15,354 bytes of 73,075.
    assert (local.tier.local_retention.segments, local.tier.local_retention.stops_at) == (2, 350)
    assert local.tier.local_retention.stays.endswith("goes after 14.1 kB more (local.retention.bytes)")
    assert local.broker == "deletes 2 segments on its disk soon after its start"
    assert kinds(local)[:3] == [CauseKind.RETENTION_OFF, CauseKind.RETENTION_DUE, CauseKind.LOCAL_COPIES]
    assert 0 < local.could_lose_bytes <= local.usage.total_bytes


def test_segments_of_an_abandoned_branch_are_counted() -> None:
    split = explained("local-tiered-pair", "split-0")
    outside = [one["size"] for one in finished("local-tiered-pair", "split-0") if one["read"] == "hidden"]
    causes = {cause.kind: cause for cause in split.causes}
    abandoned = causes[CauseKind.ABANDONED_BRANCH]
    assert abandoned.what.startswith(f"{len(outside)} remote segments")
    assert abandoned.bytes_max == sum(outside)


# ---- copies ----------------------------------------------------------------------------------------------------------


def test_copies_that_fail_are_counted_since_the_first() -> None:
    stuck = explained("local-tiered", "stuck-0")
    assert "112 attempts, the first at 2026-11-28 12:22:55" in stuck.cause.what
    assert stuck.cause.bytes_max == sum(size for _, size in facts("local-tiered")["partitions"]["stuck-0"]["local"][:2])


def test_a_copy_that_never_ended_and_a_replaced_one_are_named(planted: Planted) -> None:
    planted.events("orders-0", copied(OTHER, 175, 300, segment_size_in_bytes=100), updated(OTHER, 1))
    for path in planted.folder("orders-0").glob(f"{175:020}-*"):
        shutil.copyfile(path, path.with_name(path.name.replace(path.stem[-22:], OTHER)))
    hung = "B" * 22
    planted.events("orders-0", copied(hung, 1400, 1499, segment_size_in_bytes=7, event_timestamp_ms=T0))
    causes = {cause.kind: cause for cause in planted_why(planted, "orders-0").causes}
    (replaced,) = (one for one in finished("local-tiered", "orders-0") if one["start"] == 175)
    assert causes[CauseKind.REPLACED_COPY].bytes_max == replaced["size"]
    assert causes[CauseKind.REPLACED_COPY].evidence[0].what == f"segment {replaced['id']} from offset 175 on"
    assert causes[CauseKind.UNFINISHED_COPY].bytes_max == 7
    assert "a copy began and never ended, since 2023-11-14" in causes[CauseKind.UNFINISHED_COPY].what


def test_a_log_with_a_missing_object_is_not_called_empty(planted: Planted) -> None:
    for path in planted.folder("orders-0").glob(f"{175:020}-*"):
        path.unlink()
    lost = planted_why(planted, "orders-0")
    assert lost.cause.kind is CauseKind.DAMAGED
    assert "is not in the tier" in lost.cause.what
    assert lost.cause.next_step.startswith("cordwood check")


@pytest.mark.parametrize("is_open", [False, True])
def test_an_open_transaction_holds_copies_back(tmp_path: Path, is_open: bool) -> None:
    broker = MadeBroker(tmp_path / "logs")
    broker.topic("t", remote_storage_enable="true", cleanup_policy="delete", local_retention_ms=1000)
    first = batch(0, *same(50), **({"producer": 7} if is_open else {}))
    broker.log("t-0", [first], [batch(50, *same(5))], [batch(55, *same(1))])
    broker.checkpoints[HIGH_WATERMARKS][TopicPartition("t", 0)] = 56
    (tmp_path / "kafka-tiered-storage" / "t").mkdir(parents=True)
    logs = broker.finish()
    (found,) = cordwood.why(logs, tier=tmp_path / "kafka-tiered-storage", topics=["t"], now_ms=NOW).partitions
    segments = "2 closed segments of"
    assert found.tier is not None
    assert (
        found.tier.local_retention.stays == "the segment from offset 0 on is beyond local.retention.ms, but not copied"
    )
    if is_open:
        assert found.cause.kind is CauseKind.UNKNOWN_TRANSACTION
        assert f"nothing from offset 0 on is copied, and {segments}" in found.cause.what
        assert ("open since offset 0", str(logs / "t-0")) in [(one.what, one.source) for one in found.cause.evidence]
    else:
        assert found.cause.kind is CauseKind.NOT_COPIED
        assert found.cause.what.startswith(segments)


# ---- traps -----------------------------------------------------------------------------------------------------------


def test_a_deletion_that_fails_empties_a_log_with_a_limit_of_its_size(planted: Planted) -> None:
    first = planted.object("orders-0", 0, ".log").stem[-22:]
    planted.events("orders-0", updated(first, 2, T0), updated(first, 2, T0 + 60_000))
    without = {cause.kind: cause for cause in planted_why(planted, "orders-0").causes}
    assert CauseKind.EMPTIED not in without
    assert "offsets 0 to 174 cannot be deleted from the tier: 2 attempts, the first at 2023-11-14" in (
        without[CauseKind.DELETION_FAILS].what
    )
    limited = planted_why(planted, "orders-0", overrides=["orders:retention.bytes=60000"])
    assert limited.cause.kind is CauseKind.EMPTIED
    assert (
        "each round then moves the log start on, up to 1000 instead of 500, until 36.2 kB are left"
        in limited.cause.what
    )
    assert limited.cause.next_step.startswith("set retention.bytes=-1 until deletions succeed")
    due = next(cause for cause in limited.causes if cause.kind is CauseKind.REMOTE_DUE)
    assert "a deletion before them fails, which ends each round" in due.what
    roomy = planted_why(planted, "orders-0", overrides=["orders:retention.bytes=1000000"])
    assert CauseKind.EMPTIED not in kinds(roomy)
    # The log start has moved on, and all that it left behind is still there.
    for name, pattern, now in ((START, r"orders 0 \d+", "orders 0 825"), (EPOCHS, r"(?m)^0 \d+$", "0 825")):
        path = planted.logs / name
        path.write_text(re.sub(pattern, now, path.read_text()))
    moved = planted_why(planted, "orders-0", overrides=["orders:retention.bytes=90000"])
    assert moved.cause.kind is CauseKind.EMPTIED
    assert "the log start moved on to 825: 2 segments of 31.2 kB below it still count" in moved.cause.what


def test_a_log_start_below_the_first_epoch_is_a_trap(planted: Planted) -> None:
    epochs = planted.logs / "orders-1" / "leader-epoch-checkpoint"
    epochs.write_text(epochs.read_text().replace(" 300\n", " 333\n"))
    trap = planted_why(planted, "orders-1").cause
    assert trap.kind is CauseKind.LOG_START
    assert "its log starts at 300 and its leader epochs at 333" in trap.what
    assert "reads of offsets 300 to 332 are out of range" in trap.what
    assert trap.next_step.startswith("delete records up to 333 again")


@pytest.mark.parametrize("with_tier", [False, True])
def test_a_broker_without_its_tier_serves_the_part_on_its_disk(tmp_path: Path, with_tier: bool) -> None:
    logs, file = fixture("local-tiered") / "kafka-logs", tmp_path / "server.properties"
    tier = fixture("local-tiered") / "kafka-tiered-storage" if with_tier else None

    def cause() -> str:
        (found,) = cordwood.why(logs / "orders-1", server_properties=file, now_ms=NOW, tier=tier).partitions
        return found.cause.what if found.cause.kind is CauseKind.NO_TIER else ""

    file.write_text("remote.log.storage.system.enable=true\n")
    assert not cause()
    file.write_text("log.retention.hours=1\n")
    assert "its broker has no tiered storage" in cause()
    assert ("from offset 1400 on; with its tier, the log starts at 300" in cause()) is with_tier


# ---- a month ---------------------------------------------------------------------------------------------------------


def test_a_month_has_the_price_of_what_the_metadata_counts() -> None:
    found = explained("aiven-s3", "payments-0", price=["storage=0.023", "put=5"])
    assert found.tier is not None
    month, remote = found.tier.month, facts("aiven-s3")["partitions"]["payments-0"]["remote"]
    assert month.storage_bytes == sum(one["custom_metadata"]["remote_size"] for one in remote)
    assert (month.copies, month.puts, month.deletes) == (len(remote), 3 * len(remote), 0)
    assert month.price == pytest.approx(0.023 * month.storage_bytes / 2**30 + 0.005 * month.puts)
    later = explained("aiven-s3", "payments-0", now_ms=NOW + 40 * DAY)
    assert later.tier is not None
    assert (later.tier.month.puts, later.tier.month.storage_bytes) == (0, month.storage_bytes)
    for wrong in ("0.023", "get=1", "put=x", "put=-1"):
        with pytest.raises(RequestError, match="Reads are in no metadata"):
            explained("aiven-s3", "payments-0", price=[wrong])


def test_the_text_has_the_outlook_and_the_totals_of_the_tier() -> None:
    words = ["--topic", "trimmed", "--topic", "stuck", "--now", NOW, "--price", "storage=1000"]
    text = run("why", fixture("local-tiered") / "kafka-logs", *tier_options("local-tiered"), *words).output
    assert "trimmed-0: 16.4 kB on disk, nothing could go; 106.4 kB in its tier, nothing could go there: " in text
    assert "tier      deletes nothing: the segment of offsets 700 to 874 goes after 9.5 kB more" in text
    assert "copies    2 closed segments, 26.8 kB, from offset 0 on, not copied" in text
    assert "a month   about 0.09906, without reads: 106.4 kB stored; since 2026-11-28: 12 attempts to copy" in text
    assert "106.4 kB in the tier, up to 0 B could go there; a month of the tier is about 0.09906" in text


def test_the_page_of_a_partition_shows_the_outlook() -> None:
    place = fixture("local-tiered") / "kafka-logs" / "trimmed-0"
    page = cordwood.view_html(place, tier=fixture("local-tiered") / "kafka-tiered-storage", now_ms=NOW)
    assert "deletes nothing: the segment of offsets 700 to 874 goes after 9.5 kB more" in page


def test_the_page_of_the_broker_names_copies_that_fail(tmp_path: Path) -> None:
    words = ["--output", tmp_path / "page.html", "--topic", "stuck", "--now", NOW, *tier_options("local-tiered")]
    run("view", fixture("local-tiered") / "kafka-logs", *words)
    page = (tmp_path / "page.html").read_text()
    problems = page[page.index("What is wrong</h2>") :]
    assert "copies of the segment from offset 0 on fail: 112 attempts" in problems[: problems.index("</table>")]
