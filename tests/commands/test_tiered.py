"""Commands on tiered topics: with their tier, logs are whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.common.errors import RequestError
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.tier.store import with_tier
from tests.command import run
from tests.fixtures import TIERED, copy_of, facts, fixture, tier_options

LOGS = fixture("local-tiered") / "kafka-logs"
TIER = fixture("local-tiered") / "kafka-tiered-storage"
#: A broker does not compact tiered topics, so a copy needs other configs.
COMPACT = ["orders:cleanup.policy=compact", "orders:remote.storage.enable=false"]


@pytest.mark.parametrize("name", TIERED)
def test_ls_shows_local_and_remote_bytes_and_the_copy_lag(name: str) -> None:
    found = run("ls", "--json", fixture(name) / "kafka-logs", *tier_options(name)).json
    partitions = {f"{one['topic']}-{one['partition']}": one for one in found["partitions"]}
    for partition, wanted in facts(name)["partitions"].items():
        remote = partitions[partition]["remote"]
        assert partitions[partition]["log_start_offset"] == wanted["log_start_offset"]
        if "remote" not in wanted:
            assert remote is None
            continue
        sizes = [one["size"] for one in wanted["remote"] if one["state"] == "COPY_SEGMENT_FINISHED"]
        assert (remote["segments"], remote["size_bytes"]) == (len(sizes), sum(sizes)), partition
        assert remote["local_start_offset"] == wanted["first_local_offset"]
    assert run("ls", LOGS).output.count("REMOTE") == 0


def test_ls_counts_closed_segments_that_are_not_copied() -> None:
    (found,) = run("ls", "--json", LOGS / "stuck-0", *tier_options("local-tiered")).json["partitions"]
    assert (found["remote"]["lag_segments"], found["remote"]["segments"]) == (2, 0)


def test_segments_are_marked_as_local_remote_or_both() -> None:
    places = {
        name: run("ls", LOGS / name, "--segments", "--json", *tier_options("local-tiered")).json["partitions"][0]
        for name in ("orders-0", "kept-local-0", "stuck-0", "plain-0")
    }
    found = {name: [one["place"] for one in listed["by_segment"]] for name, listed in places.items()}
    assert found["orders-0"] == ["remote"] * 7 + ["local"]
    assert found["kept-local-0"] == ["both"] * 4 + ["local"]
    assert found["stuck-0"] == ["local"] * 3
    assert found["plain-0"] == [None]
    assert "PLACE" not in run("ls", LOGS / "plain-0", "--segments").output
    text = run("ls", LOGS / "kept-local-0", "--segments", *tier_options("local-tiered")).output
    assert "PLACE" in text
    assert "  both" in text


def test_check_finds_nothing_damaged_in_whole_logs() -> None:
    assert not cordwood.check(LOGS, tier=TIER).summary.damaged


def plain_copy(target: Path) -> Path:
    """The partitions of topic orders as a broker would have them without a tier."""
    store = with_tier(PosixFileSystem(), str(TIER))
    for name in ("orders-0", "orders-1"):
        (target / name).mkdir(parents=True)
        for info in store.list(f"{LOGS}/{name}"):
            store.copy(f"{LOGS}/{name}/{info.name}", f"{target}/{name}/{info.name}")
            store.set_mtime_ns(f"{target}/{name}/{info.name}", info.mtime_ns)
    for name in ("log-start-offset-checkpoint", "replication-offset-checkpoint", ".kafka_cleanshutdown"):
        store.copy(f"{LOGS}/{name}", f"{target}/{name}")
    return target


@pytest.mark.more
def test_a_clean_with_a_tier_leaves_what_a_clean_of_the_same_log_without_tier_leaves(tmp_path: Path) -> None:
    configs = facts("local-tiered")["topics"]["orders"]["config"]
    kept = [f"orders:{name}={configs[name]}" for name in ("internal.segment.bytes", "index.interval.bytes")]
    options: dict[str, Any] = {"topics": ["orders"], "overrides": [*COMPACT, *kept], "high_watermark": "end"}
    options |= {"ignore_ratio": True, "single_copy": True, "engine": "here", "now_ms": 1_800_000_000_000}
    result = cordwood.clean(LOGS, output=tmp_path / "tiered", tier=TIER, **options)
    assert any("__cluster_metadata" in note for note in result.notes)
    cordwood.clean(plain_copy(tmp_path / "plain"), output=tmp_path / "local", **options)
    logs = [*(tmp_path / "local").glob("orders-*/*")]
    assert sum(path.stat().st_size for path in logs if path.suffix == ".log") < 15_000
    for path in logs:
        assert (tmp_path / "tiered" / path.relative_to(tmp_path / "local")).read_bytes() == path.read_bytes(), path
    assert not [*(tmp_path / "tiered").glob("__*_metadata-*"), *(tmp_path / "tiered").glob("bootstrap*")]
    assert cordwood.verify(LOGS, tmp_path / "tiered", tier=TIER, overrides=COMPACT, engine="here").holds


def test_a_tier_cannot_be_cleaned_in_place() -> None:
    with pytest.raises(RequestError, match="Give --output"):
        cordwood.clean_in_place(LOGS, tier=TIER)


def test_without_its_tier_a_tiered_topic_is_not_cleaned() -> None:
    plan = cordwood.plan(LOGS, topics=["orders"], overrides=COMPACT)
    assert all("a part of a tiered topic may be elsewhere" in one.reason.what for one in plan.partitions)


def test_get_finds_records_in_the_tier() -> None:
    found = run("get", LOGS, "--key", "key-1", "--topic", "orders", "--json", *tier_options("local-tiered")).json
    assert found["records"][0]["offset"] == 156


@pytest.mark.parametrize("name", ["local-tiered", "aiven-s3"])
def test_traces_of_a_key_are_found_in_the_tier(name: str) -> None:
    logs = fixture(name) / "kafka-logs"
    words = ("erase-check", logs, "--topic", "orders", "--key", "key-1", "--json")
    found = run(*words, *tier_options(name), exits=1).json["traces"]
    traces = {(one["path"].split("/")[-2], one["offset"]) for one in found if one["offset"] is not None}
    lines = run("dump", logs, "--topic", "orders", "--key", "key-1", "--json", "--records", *tier_options(name)).lines
    assert traces == {(f"orders-{line['partition']}", line["offset"]) for line in lines}
    assert len(run(*words, exits=None).json["traces"]) < len(found)


def test_a_tier_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "nothing is there" in run("ls", LOGS, "--tier", tmp_path / "none", exits=2).stderr


# ---- restoring -------------------------------------------------------------------------------------------------------


def records_in(directory: Path, topic: str, *options: str) -> list[dict[str, Any]]:
    lines = run("dump", "--json", "--isolation", "read_committed", directory, "--topic", topic, *options).lines
    return [{name: line[name] for name in ("partition", "offset", "key", "value", "leader_epoch")} for line in lines]


@pytest.mark.parametrize(("name", "topic"), [("local-tiered", "orders"), ("local-tiered-pair", "split")])
def test_a_fetched_log_directory_has_all_segments_as_ordinary_files(name: str, topic: str, tmp_path: Path) -> None:
    logs = fixture(name) / "kafka-logs"
    run("fetch", logs, tmp_path / "restored", *tier_options(name))
    assert records_in(tmp_path / "restored", topic) == records_in(logs, topic, *tier_options(name))
    assert not [*(tmp_path / "restored").glob("__*_metadata-*"), *(tmp_path / "restored").glob("meta.properties")]
    assert "checkpoint-partition" not in run("check", tmp_path / "restored").output


@pytest.mark.parametrize(
    ("name", "topic"), [("local-tiered", "payments"), ("local-tiered-pair", "moves"), ("aiven-s3", "payments")]
)
def test_topics_are_restored_from_the_tier_alone(name: str, topic: str, tmp_path: Path) -> None:
    run("fetch", tmp_path / "restored", "--topic", topic, *tier_options(name))
    logs = fixture(name) / "kafka-logs"
    assert records_in(tmp_path / "restored", topic) == records_in(logs, topic, *tier_options(name))
    assert {path.name.rpartition("-")[0] for path in (tmp_path / "restored").iterdir()} == {topic}


def test_an_older_topic_of_the_same_name_is_left_out_and_named(tmp_path: Path) -> None:
    tier = copy_of(TIER, tmp_path / TIER.name)
    (folder,) = tier.glob("orders-0-*")
    older = copy_of(folder, tier / f"orders-0-{'A' * 22}")
    for path in older.iterdir():
        os.utime(path, (1_000_000_000, 1_000_000_000))
    found = run("fetch", tmp_path / "restored", "--topic", "orders", "--tier", tier, "--json").json
    assert [(one["topic_id"], one["segments"]) for one in found["older_topics"]] == [("A" * 22, 7)]
    assert folder.name.endswith(topic_id_in(tmp_path / "restored" / "orders-0"))
    text = run("fetch", tmp_path / "again", "--topic", "orders", "--tier", tier).output
    assert f"left out: 7 segments of an older topic orders, with id {'A' * 22}, the last copied 2001-09-09" in text


def topic_id_in(partition: Path) -> str:
    return (partition / "partition.metadata").read_text().split("topic_id: ")[1].strip()


def test_a_gap_in_the_tier_is_named(tmp_path: Path) -> None:
    bucket, key = copy_of(fixture("aiven-s3") / "bucket", tmp_path / "bucket"), fixture("aiven-s3") / "test-key.json"
    for path in bucket.glob(f"kafka/payments-*/0/{230:020}-*"):
        path.unlink()
    for path in bucket.glob(f"kafka/payments-*/0/{0:020}-*"):  # retention may have deleted that
        path.unlink()
    words = ["--tier", bucket / "kafka", "--tier-key", key, "--topic", "payments"]
    text = run("fetch", tmp_path / "restored", *words).output
    assert text.count("missing in") == 1
    assert "missing in payments-0: offsets 230 to 340 are in no segment of the tier" in text
