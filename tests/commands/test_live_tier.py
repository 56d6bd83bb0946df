"""Commands on the directory of a live log whose tier has manifests, beside the same tier as a broker's."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.common.errors import CorruptFileError
from cordwood.storage.log.view import LogView
from cordwood.storage.tier.manifest import GoneSegment
from cordwood.storage.tier.store import with_tier
from tests.command import run
from tests.fs.object_server import running_server
from tests.logs import batch, write_log
from tests.storage.messages import offset_commit
from tests.storage.tier.live_tier import FS, KEY, ORIGINAL, ROOT, LiveTier

NAMES = ("orders-0", "orders-1", "payments-0")
TOPICS = ("--topic", "orders", "--topic", "payments")


@pytest.fixture
def live(tmp_path: Path) -> LiveTier:
    return LiveTier(tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        ("dump", "--records", "--json"),
        ("dump", "--isolation", "read_committed", "--json"),
        ("table", "--json"),
    ],
    ids=" ".join,
)
def test_a_verb_reads_a_live_log_as_it_reads_a_brokers(live: LiveTier, command: tuple[str, ...]) -> None:
    verb, *options = command
    chosen = ["--topic", "payments"] if verb == "table" else TOPICS
    found = run(verb, live.logs, *chosen, *options, *live.options)
    expected = run(verb, ROOT / "kafka-logs", *chosen, *options, *ORIGINAL)
    assert found.stdout.replace(str(live.logs), "LOGS") == expected.stdout.replace(f"{ROOT}/kafka-logs", "LOGS")


def test_get_finds_records_in_the_tier_of_a_live_log(live: LiveTier) -> None:
    key = ("--key", "key-1", *TOPICS, "--json")
    found = run("get", live.logs, *key, *live.options).json["records"]
    expected = run("get", ROOT / "kafka-logs", *key, *ORIGINAL).json["records"]
    names = ("topic", "partition", "offset", "key", "value")
    assert [[one[name] for name in names] for one in found] == [[one[name] for name in names] for one in expected]


def listed(logs: Path, options: list[str]) -> dict[str, dict[str, Any]]:
    """What `ls` shows of each log, without paths and disks."""
    found = run("ls", logs, *TOPICS, "--segments", "--json", *options).json["partitions"]
    names = ("log_start_offset", "log_end_offset", "records", "size_bytes", "remote", "notes")
    segments = ("base_offset", "last_offset", "place", "size_bytes")
    return {
        f"{one['topic']}-{one['partition']}": {name: one[name] for name in names}
        | {"segments": [{name: segment[name] for name in segments} for segment in one["by_segment"]]}
        for one in found
    }


def test_ls_shows_the_segments_of_a_live_log_in_its_tier(live: LiveTier) -> None:
    found = listed(live.logs, live.options)
    assert found == listed(ROOT / "kafka-logs", ORIGINAL)
    assert [one["place"] for one in found["orders-1"]["segments"]] == ["remote"] * 8 + ["local"]


def test_a_directory_without_local_segments_is_read_from_the_tier(live: LiveTier) -> None:
    for name in NAMES:
        for path in (live.logs / name).iterdir():
            if path.name != "partition.metadata":
                path.unlink()
    found = records(live.logs, *live.options)
    assert found == [one for one in records(ROOT / "kafka-logs", *ORIGINAL) if one["offset"] < END[place(one)]]
    assert [listed(live.logs, live.options)[name]["log_end_offset"] for name in NAMES] == [1200, 1200, 660]
    assert {kind for kind, _, _ in found_in(live)} == {"leader-epochs-missing"}


#: The end of the tier's part of each log.
END = {"orders-0": 1200, "orders-1": 1200, "payments-0": 660}


def place(record: dict[str, Any]) -> str:
    return f"{record['topic']}-{record['partition']}"


def records(logs: Path, *options: str) -> list[dict[str, Any]]:
    lines = run("dump", "--json", "--records", logs, *TOPICS, *options).lines
    names = ("topic", "partition", "offset", "key", "value", "timestamp", "leader_epoch")
    return [{name: line[name] for name in names} for line in lines]


def test_a_live_log_is_verified_and_cleaned_to_a_copy_as_a_brokers(live: LiveTier, tmp_path: Path) -> None:
    options: dict[str, Any] = {"topics": ["payments"], "tier_keys": [KEY], "engine": "here"}
    configs: dict[str, Any] = {"overrides": ["payments:cleanup.policy=compact", "payments:remote.storage.enable=false"]}
    clean: dict[str, Any] = {"high_watermark": "end", "ignore_ratio": True, "now_ms": 1_800_000_000_000} | configs
    cordwood.clean(live.logs, output=tmp_path / "cleaned", tier=live.root, **options, **clean)
    cordwood.clean(ROOT / "kafka-logs", output=tmp_path / "expected", tier=ROOT / "bucket/kafka", **options, **clean)
    files = [*(tmp_path / "expected" / "payments-0").iterdir()]
    assert len(files) > 4
    for path in files:
        assert (tmp_path / "cleaned" / "payments-0" / path.name).read_bytes() == path.read_bytes(), path
    assert cordwood.verify(live.logs, tmp_path / "cleaned", tier=live.root, **options, **configs).holds


def test_lag_counts_to_the_end_of_a_log_that_is_only_in_its_tier(live: LiveTier) -> None:
    shutil.rmtree(live.logs / "__consumer_offsets-0")
    write_log(live.logs / "__consumer_offsets-0", [batch(0, offset_commit("billing", "orders", 1, 1000))])
    for path in (live.logs / "orders-1").iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    (live.logs / "replication-offset-checkpoint").unlink()
    (group,) = cordwood.groups(live.logs, groups=["billing"], tier=live.root, tier_keys=[KEY]).groups
    assert [(one.offset, one.lag) for one in group.offsets] == [(1000, 200)]
    (alone,) = cordwood.groups(live.logs, groups=["billing"]).groups
    assert [one.lag for one in alone.offsets] != [200]


# ---- the manifest decides --------------------------------------------------------------------------------------------


def test_local_segments_below_the_floor_are_leftovers(live: LiveTier) -> None:
    # Local segments that a clean replaced in the tier, by one with the same base offset and by a larger one.
    log = live.logs / "orders-1"
    last = sorted(log.glob("*.log"))[-1]
    for base in (800, 900):
        (log / f"{base:020}.log").write_bytes(last.read_bytes())
    assert records(live.logs, *live.options) != (expected := records(ROOT / "kafka-logs", *ORIGINAL))
    live.commit(replace(live.states["orders-1"], local_floor=1200))
    assert records(live.logs, *live.options) == expected


def test_the_log_starts_where_the_newer_of_checkpoint_and_manifest_says(live: LiveTier) -> None:
    live.commit(replace(live.states["orders-1"], log_start_offset=500))
    found = [one["offset"] for one in records(live.logs, *live.options) if place(one) == "orders-1"]
    assert found[0] == 403  # the segment that holds the log start
    (listed,) = run("ls", live.logs / "orders-1", "--json", *live.options).json["partitions"]
    assert listed["log_start_offset"] == 500
    checked = run("dump", live.logs / "orders-1", "--json", "--isolation", "read_uncommitted", *live.options).lines
    assert checked[0]["offset"] == 500


def test_a_reader_lists_again_when_a_writer_has_replaced_a_segment(live: LiveTier) -> None:
    path = str(live.logs / "orders-1")
    store = with_tier(FS, str(live.root), [KEY])
    log = LogView(path, fs=store)
    before = live.states["orders-1"]
    live.commit(replace(before, segments=before.segments[1:], log_start_offset=300))
    for one in live.objects("orders-1", 0):
        one.unlink()
    with pytest.raises(FileNotFoundError):
        log.segments[0].open()
    log.list_again()
    assert (log.log_start_offset, log.segments[0].base_offset) == (300, 300)
    for one in live.objects("orders-1", 300):
        one.unlink()
    with pytest.raises(CorruptFileError, match="not in the tier"):  # the manifest still names it
        log.segments[0].open()


@pytest.mark.more
def test_a_live_log_is_not_cleaned_in_its_tier_from_outside(live: LiveTier) -> None:
    clean = ("clean", "--in-tier", live.logs, "--topic", "payments", "--config", "payments:cleanup.policy=compact")
    assert "The program that owns it cleans it" in run(*clean, *live.options, exits=2).stderr


@pytest.mark.more
def test_a_live_log_in_a_bucket_is_read_and_restored(live: LiveTier, tmp_path: Path) -> None:
    with running_server() as server:
        options = ["--tier", server.upload(live.root, "live"), "--tier-key", KEY]
        expected = records(live.logs, *live.options)
        assert records(live.logs, *options) == expected
        run("fetch", tmp_path / "restored", *TOPICS, *options)
        assert records(tmp_path / "restored") == [one for one in expected if one["offset"] < END[place(one)]]


# ---- restoring -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alone", [False, True], ids=["with its log directory", "from the tier alone"])
def test_a_live_log_is_fetched_as_ordinary_files(live: LiveTier, tmp_path: Path, alone: bool) -> None:
    orphan = live.states["orders-1"].segments[-1].segment
    live.commit(
        replace(
            live.states["orders-1"],
            log_start_offset=350,
            cleaner_checkpoint=700,
            segments=live.states["orders-1"].segments[1:-1],
            gone=(GoneSegment(live.states["orders-1"].segments[0].segment, 0),),
        )
    )
    source = () if alone else (live.logs,)
    result = run("fetch", *source, tmp_path / "restored", *TOPICS, *live.options, "--json").json
    found = records(tmp_path / "restored")
    expected = [
        one
        for one in records(ROOT / "kafka-logs", *ORIGINAL)
        if not alone or one["offset"] < END[place(one)]
        if place(one) != "orders-1" or 300 <= one["offset"] < orphan.start_offset or one["offset"] >= 1200
    ]
    assert found == expected
    gaps = [(one["partition"], one["first_offset"], one["last_offset"]) for one in result["missing"]]
    assert gaps == ([] if alone else [("orders-1", orphan.start_offset, 1199)])
    if alone:
        starts = (tmp_path / "restored" / "log-start-offset-checkpoint").read_text()
        assert "orders 1 350\n" in starts
        assert (tmp_path / "restored" / "cleaner-offset-checkpoint").read_text() == "0\n1\norders 1 700\n"
    assert not cordwood.check(tmp_path / "restored").summary.damaged


# ---- check -----------------------------------------------------------------------------------------------------------


def found_in(live: LiveTier, *paths: Path) -> list[tuple[str, str, str]]:
    """Kind, severity and file of each finding about the tier, and of all damage in tiered logs."""
    found = []
    for one in cordwood.check(*(paths or [live.logs]), tier=live.root, tier_keys=[KEY]):
        of_log = Path(one.path).parent.name in NAMES and str(one.severity) == "damage"
        if one.kind.startswith("tier") or of_log:
            found.append((str(one.kind), str(one.severity), Path(one.path).name))
    return found


def test_check_finds_nothing_in_a_whole_live_log(live: LiveTier) -> None:
    live.commit(replace(live.states["orders-1"], generation=5))  # a gap in the numbers is nothing to tell
    assert found_in(live) == []


def test_check_names_missing_objects_and_orphans_of_a_live_log(live: LiveTier) -> None:
    state = live.states["orders-1"]
    gone, orphan, *others = state.segments
    live.commit(replace(state, segments=tuple(others), gone=(GoneSegment(gone.segment, 0),), log_start_offset=400))
    (objects, *_) = live.objects("orders-1", orphan.segment.start_offset)
    _, log, manifest = live.objects("orders-1", 403)
    manifest.unlink()
    expected = [("tier-object-missing", "damage", manifest.name), ("tier-orphan", "note", objects.name)]
    assert [(kind, severity, name) for kind, severity, name in found_in(live)] == expected
    assert log.exists()


def test_check_names_missing_objects_of_a_live_log_that_is_not_on_this_machine(live: LiveTier) -> None:
    shutil.rmtree(live.logs / "orders-1")
    indexes, log, _ = live.objects("orders-1", 403)
    indexes.unlink()
    assert found_in(live) == [("tier-object-missing", "damage", log.name)]


def test_check_names_a_damaged_manifest_and_goes_on(live: LiveTier) -> None:
    (manifest,) = live.manifests("orders-1").iterdir()
    manifest.write_text("{")
    expected = [("tier-metadata", "damage", manifest.name)]
    assert found_in(live) == expected
    assert found_in(live, live.logs / "orders-1") == expected
    shutil.rmtree(live.logs / "orders-1")
    assert found_in(live) == expected
    assert "manifest is not a JSON object" in run("fetch", live.root / "x", *live.options, exits=1).stderr


# ---- dump ------------------------------------------------------------------------------------------------------------


def test_dump_shows_what_a_manifest_changes(live: LiveTier) -> None:
    state = live.states["orders-1"]
    live.commit(replace(state, gone=(GoneSegment(state.segments[0].segment, 7),), segments=state.segments[1:]))
    first, second = sorted(live.manifests("orders-1").iterdir())
    header, *segments = run("dump", first, "--json").lines
    assert (header["type"], header["base"], header["writer_epoch"]) == ("tier_manifest", None, 0)
    assert [(one["type"], one["start_offset"], one["leader_epochs"]) for one in segments[:2]] == [
        ("tier_segment", 0, [[0, 0]]),
        ("tier_segment", 300, [[0, 300]]),
    ]
    segment_id = state.segments[0].segment.id
    assert run("dump", second).stdout.splitlines()[-3:] == [
        'tier_manifest base=1                   writer_epoch=0           run=""                   host=""'
        "                  log_start_offset=0       local_floor=0            cleaner_checkpoint=null",
        f"removed_tier_segment id={segment_id}",
        f"gone_tier_segment id={segment_id} since_timestamp=1970-01-01T00:00:00.007Z",
    ]
    second.write_text(second.read_text().replace('"base":1', '"base":-1'))
    assert "DAMAGE base in the manifest is not a number" in " ".join(run("dump", second, exits=1).stdout.split())
