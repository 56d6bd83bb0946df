"""Plans of real brokers' directories beside Kafka's own selection, and why partitions are left alone.

`tests/data/selection.jsonl` holds what Kafka computes for the compacted partitions of each fixture, one line per log
directory and time. The marked tests compute it again, and compare with Kafka on scripted and random logs.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cordwood.api import plan as make_plan
from cordwood.cleaning.engine.facts import clean_settings, segment_facts
from cordwood.cleaning.rules.plan import Bound, Compaction, Decision, PartitionPlan, Plan, Threshold
from cordwood.common.errors import NotFoundError, RequestError
from cordwood.common.types import NONE, TopicPartition, override
from cordwood.fs.posix import PosixFile, PosixFileSystem
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.formats import checkpoints, producer_state
from cordwood.storage.formats.cluster_metadata import NAME
from cordwood.storage.formats.filenames import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    FileKind,
    offset_name,
)
from cordwood.storage.formats.producer_state import ProducerEntry
from cordwood.storage.log.view import LogView
from tests.fixtures import NAMES, TIMES, copy_of, fixture
from tests.kafka_tools import Line, Oracle
from tests.knobs import drawn
from tests.logs import HOUR, T0, batch, write_log

STORED = Path(__file__).parent.parent / "data" / "selection.jsonl"
#: Configs and facts that decide Kafka's cleanable range.
FIELDS = (
    *("log_start", "first_dirty", "first_uncleanable", "first_uncleanable_segment"),
    *("clean_bytes", "cleanable_bytes", "need_compaction_now", "compaction_delay_ms"),
)
#: The first three of these decide the selection.
SELECTING = ("min.compaction.lag.ms", "max.compaction.lag.ms", "min.cleanable.dirty.ratio")


def figures(one: PartitionPlan) -> list[Any]:
    """A plan in the order of FIELDS."""
    found = one.compaction
    assert found is not None
    first = found.range.first_dirty_offset
    return [
        *(one.log_start_offset, first, max(first, found.range.bound_offset), found.range.first_uncleanable_offset),
        *(found.clean_bytes, found.cleanable_bytes, found.overdue_ms > 0, found.overdue_ms),
    ]


def planned(directory: Path, now_ms: int, **choice: Any) -> Plan:
    """The plan of a directory alone. Without a metadata log, the policy is passed in."""
    metadata = next((str(one) for one in (directory, directory.parent / "a") if (one / NAME).exists()), None)
    said = [] if metadata else ["cleanup.policy=compact"]
    return make_plan(str(directory), now_ms=now_ms, metadata=metadata, **{"overrides": said, **choice})


def by_name(plan: Plan) -> dict[str, PartitionPlan]:
    return {Path(one.path).name: one for one in plan.partitions}


# ---- beside Kafka ----------------------------------------------------------------------------------------------------


def roots() -> list[str]:
    """The log directories of all fixtures."""
    return [f"{name}{side}" for name in NAMES for side in (("/a", "/b") if "jbod" in name else ("",))]


def directory_of(root: str) -> Path:
    name, _, side = root.partition("/")
    return fixture(name) / side


@pytest.mark.parametrize("root", roots())
def test_ranges_sizes_and_delays_of_every_fixture_are_kafkas(root: str) -> None:
    stored = {
        line["now"]: line["partitions"]
        for line in map(json.loads, STORED.read_text().splitlines())
        if line["root"] == root
    }
    for now in TIMES:
        # Kafka's side was computed with all of a log replicated.
        plan = planned(directory_of(root), now, high_watermark="end")
        assert {one.name: figures(one) for one in plan.partitions if one.compaction is not None} == stored[now]


def test_a_broker_that_stopped_in_good_order_left_the_high_watermark_at_the_end() -> None:
    for root in ("kraft-before-2", "kraft-classic-after-3", "legacy-mixed-before"):
        plan = planned(directory_of(root), TIMES[0])
        marks = [one for one in plan.partitions if one.high_watermark is not None]
        assert all(one.high_watermark.offset == one.log_end_offset for one in marks if one.high_watermark), root
        assert {one.high_watermark.source for one in marks if one.high_watermark} == {"replication-offset-checkpoint"}


def selected(oracle: Oracle, root: Path, *plans: Plan) -> list[dict[str, list[Any]]]:
    """Kafka's selection among the partitions with a range in each plan, at its time; `root` is changed."""
    answers = oracle.batch([["select", root, "--now", str(plan.now_ms), *_configs(plan)] for plan in plans])
    return [
        {
            line["partition"]: [line[field] for field in FIELDS]
            for line in lines
            if line["type"] == "log"
            and line["partition"] in {one.name for one in plan.partitions if one.compaction is not None}
        }
        for plan, lines in zip(plans, answers, strict=True)
    ]


def _configs(plan: Plan) -> Iterator[str]:
    for one in plan.partitions:
        for setting in one.settings:
            if setting.name in SELECTING:
                yield from (f"--config:{one.name}", f"{setting.name}={setting.value}")


@pytest.mark.slow
def test_stored_selections_are_what_kafka_computes(kafka_oracle: Oracle, tmp_path: Path) -> None:
    lines, chosen = [], drawn(roots())
    for root in chosen:
        plans = [planned(directory_of(root), now, high_watermark="end") for now in TIMES]
        copy = copy_of(directory_of(root), tmp_path / "copy")
        for now, partitions in zip(TIMES, selected(kafka_oracle, copy, *plans), strict=True):
            lines.append({"root": root, "now": now, "partitions": partitions})
        shutil.rmtree(copy)
    anew = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    fresh = tmp_path / STORED.name
    fresh.write_text(anew)
    stored = "".join(line for line in STORED.read_text().splitlines(True) if json.loads(line)["root"] in chosen)
    assert anew == stored, f"{fresh} is what Kafka says of {chosen}; CORDWOOD_EFFORT=full makes all of {STORED}"


@pytest.mark.parametrize("profile", ["everything", "transactional", "gaps", "legacy", "tombstones"])
def test_plans_of_random_logs_are_kafkas(kafka_oracle: Oracle, tmp_path: Path, profile: str) -> None:
    size = ("--size", "300000", "--partitions", "3", "--config", "segment.bytes=40000", "--now", str(T0))
    kafka_oracle("generate", tmp_path / "logs", "--seed", "11", "--profile", profile, *size)
    plans = []
    for lag in (0, HOUR):
        said = ["cleanup.policy=compact", f"min.compaction.lag.ms={lag}", f"max.compaction.lag.ms={HOUR + lag}"]
        plans.append(planned(tmp_path / "logs", T0 + HOUR, overrides=said, high_watermark="end"))
    for plan, expected in zip(plans, selected(kafka_oracle, tmp_path / "logs", *plans), strict=True):
        assert len(plan.partitions) == 3
        assert {one.name: figures(one) for one in plan.partitions} == expected


def rolled(*records: Sequence[Any], log: str = "t-0") -> Iterator[Line]:
    """A segment per batch of one record."""
    for record in records:
        yield {"op": "append", "records": [record], "log": log}
        yield {"op": "roll", "log": log}


DATA = {"producer": {"id": 1, "epoch": 0, "seq": 0}, "transactional": True}
MARKER = {"op": "marker", "producer": {"id": 1, "epoch": 0}}
MANUAL = {"auto_high_watermark": "false"}
EIGHT = [["k", "v", T0]] * 8
#: Case: (configs, steps); each `select` is one comparison.
SCRIPTS: Mapping[str, tuple[Mapping[str, str], Sequence[Line]]] = {
    "28, 34": ({}, [*rolled(*EIGHT), {"op": "manager", "call": "update_checkpoint", "offset": 200}, {"op": "select"}]),
    "29, 33, 34": ({}, [*rolled(*EIGHT), {"op": "delete_records", "offset": 5}, {"op": "select"}]),
    "32": (
        {"cleanup.policy": "compact,delete"},
        [*rolled(*EIGHT), {"op": "clean"}, {"op": "delete_records", "offset": -1}, {"op": "select"}],
    ),
    "30, 31": ({}, [{"op": "append", "records": EIGHT}, {"op": "select"}]),
    "35": (MANUAL, [*rolled(*EIGHT), {"op": "high_watermark", "offset": 5}, {"op": "select"}]),
    "36": ({}, [*rolled(*EIGHT), {"op": "select"}]),
    "37, 38": (
        {"min.compaction.lag.ms": str(HOUR)},
        [
            *rolled(*EIGHT[:4]),
            {"op": "advance_clock", "ms": HOUR + 1},
            *rolled(*[["k", "v", T0 + HOUR + 1]] * 4),
            *({"op": "select"}, {"op": "advance_clock", "ms": HOUR}, {"op": "select"}),
        ],
    ),
    "39": (
        {"min.compaction.lag.ms": str(HOUR), **MANUAL},
        [
            {"op": "append", "records": [["a", "1", T0], ["b", "1", T0], ["c", "1", T0]], **DATA},
            *({"op": "roll"}, {"op": "high_watermark", "offset": 3}, {"op": "advance_clock", "ms": HOUR + 1}),
            *({"op": "select"}, {**MARKER, "type": "abort"}, {"op": "roll"}, {"op": "select"}),
            *({"op": "high_watermark", "offset": 4}, {"op": "select"}),
            *({"op": "advance_clock", "ms": HOUR + 1}, {"op": "select"}),
        ],
    ),
    "40, 41": (
        {},
        [
            *rolled(*EIGHT[:3]),
            {"op": "clean"},
            *rolled(*EIGHT[:4]),
            {"op": "select"},
            {"op": "clean"},
            {"op": "select"},
        ],
    ),
    "43, 44, 45": (
        {"max.compaction.lag.ms": str(6 * HOUR), "min.cleanable.dirty.ratio": "1.0"},
        [
            *rolled(*EIGHT[:2]),
            *({"op": "advance_clock", "ms": 3 * HOUR}, {"op": "select"}),
            *rolled(["k", "v", T0 + 3 * HOUR]),
            *({"op": "advance_clock", "ms": 3 * HOUR + 1}, {"op": "select"}, {"op": "clean"}, {"op": "select"}),
        ],
    ),
    "47": ({}, [*rolled(*EIGHT[:4]), {"op": "select"}, {"op": "clean"}, {"op": "select"}]),
    "48": ({}, [*rolled(*EIGHT[:1]), {"op": "clean"}, {"op": "select"}]),
    # Aborted, cleaned, and open again as the log loses its end with the marker.
    "a transaction of which nothing is left": (
        {"internal.segment.bytes": "100"},
        [
            {"op": "append", "records": EIGHT[:1], **DATA},
            *({"op": "roll"}, *rolled(*EIGHT[:2]), {**MARKER, "type": "abort"}, {"op": "roll"}),
            {"op": "append", "records": EIGHT[:1], **DATA, "producer": {"id": 1, "epoch": 0, "seq": 1}},
            *({"op": "roll"}, {"op": "clean"}),
            {"op": "truncate_to", "offset": 3},
            *rolled(*EIGHT[:2]),
            {"op": "manager", "call": "update_checkpoint", "offset": 0},
            {"op": "reopen", "clean": True},
            {"op": "select"},
        ],
    ),
}


@pytest.mark.parametrize("case", SCRIPTS)
def test_plans_of_the_numbered_cases_are_kafkas(kafka_oracle: Oracle, tmp_path: Path, case: str) -> None:
    # cases 28-41, 43-45, 47, 48
    config, steps = SCRIPTS[case]
    config = {"cleanup.policy": "compact", **config}
    # Kafka writes its corrections, so the directory is copied before Kafka opens it.
    copied: list[Line] = []
    for step in steps:
        if step["op"] == "select":
            copied.append({"op": "snapshot", "name": f"at-{len(copied)}"})
        copied.append(step)
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"why": case, "now": T0, "logs": {"t-0": config}, "steps": copied}))
    lines = kafka_oracle("run", script, tmp_path / "out")
    clock, compared = T0, 0
    said = [f"{name}={text}" for name, text in config.items() if "." in name]
    for number, step in enumerate(copied):
        clock += step.get("ms", 0)
        if step["op"] != "select":
            continue
        (line,) = lines[number]["logs"]
        (one,) = planned(tmp_path / "out" / f"at-{number - 1}", clock, overrides=said).partitions
        assert figures(one) == [line[field] for field in FIELDS], f"step {number}"
        selected_by_kafka = line["ratio"] is not None and (
            (line["need_compaction_now"] and line["cleanable_bytes"] > 0)
            or line["ratio"] > float(config.get("min.cleanable.dirty.ratio", "0.5"))
        )
        assert (one.decision is Decision.CLEAN) == selected_by_kafka
        compared += 1
    assert compared == sum(step["op"] == "select" for step in steps)


# ---- Partitions that are never cleaned -------------------------------------------------------------------------------


def reasons(plan: Plan) -> dict[str, str]:
    return {name: str(one.reason) for name, one in by_name(plan).items() if one.decision is Decision.LEAVE}


def test_directories_that_are_on_their_way_out_or_in_are_left_alone() -> None:
    found = reasons(planned(fixture("kraft-before"), TIMES[0]))
    assert found[NAME] == "__cluster_metadata is never cleaned"
    kinds = {name.rpartition("-")[2]: text for name, text in found.items() if name.endswith(("-delete", "-stray"))}
    assert kinds == {
        "delete": "a -delete directory: about to be removed",
        "stray": "a -stray directory: it is not part of the cluster",
    }


def test_a_partition_that_is_being_moved_and_its_copy_are_left_alone() -> None:
    broker = fixture("kraft-jbod-before")
    found = reasons(make_plan(str(broker), now_ms=TIMES[0]))
    ((name, text),) = [one for one in found.items() if one[0].endswith("-future")]
    assert text == "a -future directory: a copy in the making, for another log directory"
    assert found["disk-0-1"] == f"it is being moved to {broker}/b/{name}; cleanable once it has been moved"
    assert "disk-0-0" not in found


def test_policies_decide_and_name_their_source() -> None:
    found = reasons(planned(fixture("kraft-before-2"), TIMES[0]))
    metadata = fixture("kraft-before-2") / NAME
    assert found["null-keys-0"] == (
        f"cleanup.policy=delete: only old segments are deleted, with --retention (topic null-keys in {metadata})"
    )
    assert found["retained-forever-0"].startswith("cleanup.policy=(empty): everything is kept")
    assert found["payments-0"].startswith("the last stable offset is 400: the transaction of producer 2000")


def test_without_a_word_on_the_policy_nothing_is_cleaned() -> None:
    plan = make_plan(str(fixture("legacy-v1-before")), now_ms=TIMES[0], retention=True)
    assert {one.decision for one in plan.partitions} == {Decision.LEAVE}
    assert {str(one.reason) for one in plan.partitions if not one.name.startswith("__")} == {
        "cleanup.policy is unknown: no metadata log; give --config cleanup.policy=…, --server-properties or --metadata"
    }
    assert not any(one.changes for one in plan.partitions)


def test_policies_of_internal_topics_are_known_without_metadata(tmp_path: Path) -> None:
    for name in ("__consumer_offsets-0", "__share_group_state-0", "__transaction_state-0"):
        write_log(tmp_path / name, [batch(0)], [batch(1)])
    properties = tmp_path / "server.properties"
    properties.write_text("log.cleanup.policy=delete\n")
    for said in (None, str(properties)):
        found = by_name(make_plan(str(tmp_path), now_ms=T0, server_properties=said))
        decisions = {name: one.decision for name, one in found.items()}
        assert decisions == {
            "__consumer_offsets-0": Decision.CLEAN,
            "__share_group_state-0": Decision.LEAVE,
            "__transaction_state-0": Decision.CLEAN,
        }
        assert str(found["__share_group_state-0"].reason) == (
            "cleanup.policy=delete: only old segments are deleted, with --retention "
            "(set by Kafka when it creates __share_group_state)"
        )


@pytest.mark.parametrize("name", [CLEANER_OFFSETS, HIGH_WATERMARKS])
def test_a_checkpoint_that_cannot_be_read_is_not_taken_for_one_without_an_entry(name: str, tmp_path: Path) -> None:
    write_log(tmp_path / "orders-0", [batch(0)], [batch(1)])
    assert not by_name(make_plan(str(tmp_path), now_ms=T0))["orders-0"].notes
    (tmp_path / name).write_text("0\nnonsense\n")
    (note,) = by_name(make_plan(str(tmp_path), now_ms=T0))["orders-0"].notes
    assert note.startswith("planned as if it had no entry in a file that cannot be read: line 2: ")
    assert note.endswith(f" in {tmp_path / name}")


def test_a_broker_without_a_cleaner_is_said_to_clean_nothing(tmp_path: Path) -> None:
    write_log(tmp_path / "orders-0", [batch(0)], [batch(1)])
    properties = tmp_path / "server.properties"
    properties.write_text("log.cleanup.policy=compact\nlog.cleaner.enable=false\n")
    (one,) = make_plan(str(tmp_path), now_ms=T0, server_properties=str(properties)).partitions
    assert one.decision is Decision.CLEAN
    said = f"log.cleaner.enable=false (server.properties: {properties})"
    assert one.notes[0] == f"the broker does not clean at all: {said}"


def test_damage_above_the_cleanable_part_is_in_the_plan(tmp_path: Path) -> None:
    directory = write_log(tmp_path / "orders-0", [batch(0)], [batch(1), b"\x01" * 90], [batch(3)])
    (one,) = planned(directory, T0, high_watermark=1).partitions
    assert one.decision is Decision.CLEAN
    assert [note.partition(":")[0] for note in one.notes] == ["damaged"]
    assert f"{directory}/{offset_name(1, FileKind.LOG)} at position {len(batch(1))}" in one.notes[0]


def test_damaged_metadata_is_no_ground_to_clean_even_where_the_policy_was_said(tmp_path: Path) -> None:
    broker = copy_of(fixture("kraft-jbod-before"), tmp_path / "broker")
    (log,) = (broker / "a" / NAME).glob("*.log")
    data = bytearray(log.read_bytes())
    data[3000] ^= 1
    log.write_bytes(data)

    def decided(*said: str) -> tuple[Decision, str]:
        found = by_name(make_plan(str(broker), topics=["disk-1"], overrides=said, now_ms=TIMES[0]))["disk-1-0"]
        return found.decision, found.reason.what

    assert decided() == (Decision.LEAVE, "cleanup.policy is unknown: damaged metadata log")
    assert decided("cleanup.policy=compact") == (
        Decision.LEAVE,
        "min.compaction.lag.ms is unknown: damaged metadata log",
    )
    keeping = ("min.compaction.lag.ms=0", "delete.retention.ms=1000")
    assert decided("cleanup.policy=compact", *keeping)[0] is Decision.CLEAN


def test_a_tiered_topic_is_left_alone() -> None:
    said = ["cleanup.policy=delete", "remote.storage.enable=true", "retention.ms=1"]
    plan = planned(fixture("kraft-before-2"), TIMES[0], topics=["trimmed"], overrides=said, retention=True)
    (one,) = plan.partitions
    assert (one.reason.what, one.retention) == (
        "remote.storage.enable=true: a part of a tiered topic may be elsewhere",
        (),
    )


# ---- bare partitions -------------------------------------------------------------------------------------------------


def test_a_bare_partition_ends_at_its_end_and_a_brokers_needs_an_entry(tmp_path: Path) -> None:
    write_log(tmp_path / "orders-0", [batch(0)], [batch(1)], [batch(2)])

    def marked(**choice: Any) -> tuple[int, int]:
        (one,) = planned(tmp_path / "orders-0", T0, **choice).partitions
        assert one.high_watermark is not None and one.compaction is not None
        return one.high_watermark.offset, one.compaction.range.first_uncleanable_offset

    assert marked() == (3, 2)
    (tmp_path / META_PROPERTIES).write_text("version=1\ncluster.id=x\nnode.id=1\n")
    assert marked() == (0, 0)
    (tmp_path / HIGH_WATERMARKS).write_bytes(checkpoints.encode({TopicPartition("orders", 0): 1}))
    assert marked() == (1, 1)
    assert marked(high_watermark="end") == (3, 2)
    assert marked(high_watermark=2) == (2, 2)


def test_a_transaction_that_ends_above_the_high_watermark_is_open_below_it(tmp_path: Path) -> None:
    # case 176
    whole = fixture("kraft-before-2") / "payments-1"
    ends = planned(whole.parent, TIMES[0], partitions=["payments-1"], high_watermark="end").partitions[0]
    assert ends.compaction is not None and ends.compaction.range.bound is Bound.ACTIVE_SEGMENT
    open_below = 0
    for mark in range(0, ends.log_end_offset, 41):
        (one,) = planned(whole.parent, TIMES[0], partitions=["payments-1"], high_watermark=mark).partitions
        assert one.compaction is not None
        assert one.compaction.range.bound_offset <= mark
        open_below += one.compaction.range.bound is Bound.LAST_STABLE_OFFSET
    assert open_below > 4


def test_an_open_transaction_keeps_what_is_left_from_its_start_on(tmp_path: Path) -> None:
    """The snapshot lists a transaction that is open since offset 1; its first batches were cleaned away."""
    orders = write_log(tmp_path / "orders-0", [batch(0)], [batch(6), batch(7)], [batch(8)], [batch(9)])
    entry = ProducerEntry(12, 0, 0, 2, 0, T0, NONE, current_transaction_first_offset=1)
    (orders / offset_name(9, FileKind.PRODUCER_SNAPSHOT)).write_bytes(producer_state.encode([entry]))

    def compaction() -> Compaction:
        (one,) = planned(orders, T0).partitions
        assert one.compaction is not None
        return one.compaction

    assert compaction().range.first_uncleanable_offset == 6
    assert "last stable offset is 6: the transaction of producer 12, open since offset 1" in str(
        compaction().bound_reason
    )
    (tmp_path / LOG_START_OFFSETS).write_bytes(checkpoints.encode({TopicPartition("orders", 0): 7}))
    (tmp_path / HIGH_WATERMARKS).write_bytes(checkpoints.encode({TopicPartition("orders", 0): 10}))
    assert compaction().range.bound_offset == 7
    for base in (0, 6):
        (orders / offset_name(base, FileKind.LOG)).unlink()
    (tmp_path / LOG_START_OFFSETS).unlink()
    assert compaction().range.bound_offset == 8


def test_a_damaged_closed_segment_is_refused_with_its_place(tmp_path: Path) -> None:
    directory = write_log(tmp_path / "orders-0", [batch(0), b"\x01" * 90, batch(2)], [batch(3)], [batch(4)])
    (one,) = planned(directory, T0).partitions
    assert one.decision is Decision.REFUSE
    assert one.reason.what.endswith(f"in {directory}/{offset_name(0, FileKind.LOG)} at position {len(batch(0))}")


def test_a_closed_segment_that_ends_within_a_batch_is_refused(tmp_path: Path) -> None:
    # case 142
    directory = write_log(tmp_path / "orders-0", [batch(0), batch(1)[:-3]], [batch(2)])
    (one,) = planned(directory, T0).partitions
    assert one.decision is Decision.REFUSE and "the file ends after" in one.reason.what


def test_a_torn_tail_of_the_active_segment_is_no_damage(tmp_path: Path) -> None:
    directory = write_log(tmp_path / "orders-0", [batch(0)], [batch(1), batch(2)[:-3]])
    (one,) = planned(directory, T0).partitions
    assert (one.decision, one.log_end_offset, one.notes) == (Decision.CLEAN, 2, ())


def test_expired_horizons_are_counted_and_hinted_at(tmp_path: Path) -> None:
    tombstone = encode_batch([Record(0, T0, b"k", None)], delete_horizon_ms=T0 + 1000)
    directory = write_log(tmp_path / "orders-0", [tombstone], [batch(1)], [batch(2)])
    (tmp_path / CLEANER_OFFSETS).write_bytes(checkpoints.encode({TopicPartition("orders", 0): 2}))
    for now, expected in ((T0 + 999, ""), (T0 + 1000, "up to ")):
        (one,) = planned(directory, now).partitions
        assert one.decision is Decision.LEAVE
        assert one.hint.startswith(expected) and bool(one.hint) == bool(expected)
    (again,) = planned(directory, T0 + 1000, first_dirty=0, single_copy=True).partitions
    assert (again.decision, again.hint, again.deletes_for_good) == (Decision.CLEAN, "", True)


def test_cleaning_from_above_the_checkpoint_is_noted(tmp_path: Path) -> None:
    directory = write_log(tmp_path / "orders-0", [batch(0)], [batch(1)], [batch(2)])
    (one,) = planned(directory, T0, first_dirty=1).partitions
    assert one.notes == ("offsets 0 to 0 would count as clean without having been cleaned",)


def test_settings_come_with_their_source_and_become_those_of_a_task(tmp_path: Path) -> None:
    directory = write_log(tmp_path / "orders-0", [batch(0)], [batch(1)])
    said = ["cleanup.policy=compact", "orders:delete.retention.ms=7", "internal.segment.bytes=500"]
    (one,) = planned(directory, T0, overrides=said).partitions
    assert {setting.name: (setting.value, setting.source) for setting in one.settings} == {
        "delete.retention.ms": (7, "--config orders:"),
        "index.interval.bytes": (4096, "default"),
        "max.compaction.lag.ms": (2**63 - 1, "default"),
        "min.cleanable.dirty.ratio": (0.5, "default"),
        "min.compaction.lag.ms": (0, "default"),
        "segment.bytes": (500, "internal.segment.bytes, --config"),
        "segment.index.bytes": (10_485_760, "default"),
    }
    settings = clean_settings(one)
    assert (settings.delete_retention_ms, settings.segment_bytes, settings.index.size_bytes) == (7, 500, 10_485_760)


MAP = "log.cleaner.dedupe.buffer.size"


def test_kafkas_offset_map_limits_a_clean_where_somebody_set_its_size(tmp_path: Path) -> None:
    directory = write_log(tmp_path / "orders-0", [batch(0)], [batch(1)])
    (one,) = planned(directory, T0).partitions
    assert one.offset_map is None and not one.notes
    assert clean_settings(one).offset_map_slots is None

    properties = tmp_path / "server.properties"
    properties.write_text(f"{MAP}=24000000\nlog.cleaner.threads=2\nlog.cleaner.io.buffer.load.factor=0.5\n")
    (one,) = planned(directory, T0, server_properties=str(properties)).partitions
    assert one.notes == (
        f"cleaned in rounds of at most 250000 keys, by Kafka's offset map ({MAP}=24000000 for 2 threads, "
        f"server.properties: {properties})",
    )
    settings = clean_settings(one)
    assert (settings.offset_map_slots, settings.offset_map_load_factor) == (500_000, 0.5)
    assert one.offset_map is not None and one.offset_map.keys == 250_000

    said = ["cleanup.policy=compact", f"{MAP}=134217728"]
    (one,) = planned(directory, T0, overrides=said).partitions
    assert one.offset_map is not None
    assert (one.offset_map.keys, one.offset_map.source) == (5_033_164, f"{MAP}=134217728, --config")
    (one,) = planned(directory, T0, overrides=said, offset_map=240).partitions
    assert one.offset_map is not None
    assert (one.offset_map.slots, one.offset_map.keys, one.offset_map.source) == (10, 9, "--offset-map 240")


def test_the_map_never_has_more_memory_than_a_java_array(tmp_path: Path) -> None:
    directory = write_log(tmp_path / "orders-0", [batch(0)], [batch(1)])
    (one,) = planned(directory, T0, offset_map=2**40).partitions
    assert one.offset_map is not None and one.offset_map.slots == (2**31 - 1) // 24


def test_a_map_without_room_for_a_key_is_refused_when_it_is_asked_for(tmp_path: Path) -> None:
    directory = write_log(tmp_path / "orders-0", [batch(0)], [batch(1)])
    with pytest.raises(RequestError, match=r"24 bytes, filled to at most 90 %.* no room for a key \(offset_map=24\)"):
        planned(directory, T0, offset_map=24)


def test_to_do_exactly_as_kafka_is_to_use_its_map_of_the_default_size(tmp_path: Path) -> None:
    directory = write_log(tmp_path / "orders-0", [batch(0)], [batch(1)])
    plan = planned(directory, T0, strict_kafka=True)
    (one,) = plan.partitions
    assert one.offset_map is not None
    assert (one.offset_map.slots, one.offset_map.source) == (5_592_405, f"{MAP}=134217728, --strict-kafka")
    assert clean_settings(one, plan.choices).strict_kafka


def test_further_rounds_go_by_the_same_configs_as_the_first(tmp_path: Path) -> None:
    directory = write_log(tmp_path / "orders-0", [batch(0)], [batch(1)])
    said = ["cleanup.policy=compact", "min.cleanable.dirty.ratio=0.25", "max.compaction.lag.ms=9"]
    plan = planned(directory, T0, overrides=said)
    assert clean_settings(plan.partitions[0], plan.choices).threshold == Threshold(0.25, 0, 9)
    plan = planned(directory, T0, overrides=said, ignore_ratio=True)
    assert clean_settings(plan.partitions[0], plan.choices).threshold.cleanable_ratio < 0


def test_retention_takes_what_the_next_broker_deleted() -> None:
    said = {"retained-bytes-0": "retention.bytes", "sessions-0": "retention.ms", "sessions-1": "retention.ms"}
    plan = by_name(planned(fixture("kraft-before"), TIMES[0], retention=True))
    after = {path.name: path for path in fixture("kraft-after").iterdir()}
    for name, rule in said.items():
        (taken,) = plan[name].retention
        assert taken.rule == rule
        left = {int(file.name.split(".")[0]) for file in after[name].glob("*.log")}
        assert left.isdisjoint(taken.base_offsets) and min(left) > max(taken.base_offsets)
    assert not plan["orders-0"].retention


def test_a_limit_that_only_kafka_sets_by_default_deletes_nothing() -> None:
    broker, later = fixture("kraft-before-2"), TIMES[0] + 1000 * HOUR
    (one,) = planned(broker, later, topics=["trimmed"], retention=True).partitions
    assert (one.retention, one.notes) == (
        (),
        ("retention.ms is not set; Kafka's default, 604800000, is not applied; give it with --config to apply it",),
    )
    said = ["trimmed:retention.ms=604800000"]
    (one,) = planned(broker, later, topics=["trimmed"], retention=True, overrides=said).partitions
    assert one.retention[0].reason.source == "--config trimmed:"


def test_without_being_asked_nothing_is_deleted() -> None:
    plan = planned(fixture("kraft-before"), TIMES[0])
    assert not any(one.retention for one in plan.partitions)
    asked = planned(fixture("kraft-before"), TIMES[0], retention=True)
    assert [one.only_with_retention for one in plan.partitions] == [one.retention for one in asked.partitions]
    assert asked.totals.retention == plan.totals.only_with_retention and asked.totals.retention.segments > 0
    assert not any(one.only_with_retention for one in asked.partitions)


class UnreadableIndexes(PosixFileSystem):
    """A disk with bad blocks in all time indexes."""

    @override
    def open(self, path: str) -> PosixFile:
        if path.endswith(FileKind.TIME_INDEX):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return super().open(path)


def test_an_unreadable_index_of_a_partition_that_is_left_alone_is_noted(tmp_path: Path) -> None:
    directory = write_log(tmp_path / "orders-0", [batch(0)], [batch(1)])
    (directory / offset_name(0, FileKind.TIME_INDEX)).write_bytes(bytes(12))
    choice: dict[str, Any] = {"overrides": ["cleanup.policy=delete"], "fs": UnreadableIndexes()}
    (one,) = planned(tmp_path, T0, **choice).partitions
    assert one.decision is Decision.LEAVE
    assert one.notes[0].startswith("what --retention would delete is not known: ")
    (one,) = planned(tmp_path, T0, retention=True, **choice).partitions
    assert one.decision is Decision.REFUSE and one.is_unreadable


class UnreadablePartition(PosixFileSystem):
    """A disk that does not give the files of one partition."""

    @override
    def open(self, path: str) -> PosixFile:
        if "/orders-0/" in path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return super().open(path)


def test_an_unreadable_partition_is_refused_and_the_others_are_planned(tmp_path: Path) -> None:
    for number in range(2):
        write_log(tmp_path / f"orders-{number}", [batch(0)], [batch(1)])
    unreadable, other = planned(tmp_path, T0, fs=UnreadablePartition()).partitions
    assert (unreadable.decision, other.decision) == (Decision.REFUSE, Decision.CLEAN)
    path = f"{tmp_path}/orders-0/{offset_name(1, FileKind.LOG)}"
    assert str(unreadable.reason) == f"cannot be read: Permission denied: {path}; cleanable once it can be read"


@pytest.mark.parametrize("name", ["kraft-before", "kraft-crashed-torn", "legacy-v1-after"])
def test_facts_from_the_end_of_an_index_are_those_of_the_whole_index(name: str) -> None:
    for directory in filter(Path.is_dir, fixture(name).iterdir()):
        for segment in LogView(str(directory), fs=PosixFileSystem()).segments:
            found, index, times = segment_facts(segment), segment.offset_index(), segment.time_index()
            if any(one is not None and one.entries < one.max_entries for one in (index, times)):
                continue  # zeros are entries to a load
            largest = NONE if times is None else times.last_entry[0]
            assert found.index_bytes == (0 if index is None else 8 * index.entries)
            assert found.time_index_bytes == (0 if times is None else 12 * times.entries)
            assert found.largest_timestamp == (largest if largest >= 0 else segment.mtime_ms)


class CountedFile(PosixFile):
    """Adds up the bytes read."""

    bytes_read = 0

    @override
    def read_into(self, position: int, target: memoryview) -> int:
        found = super().read_into(position, target)
        CountedFile.bytes_read += found
        return found

    @override
    def read(self, position: int, size_bytes: int) -> bytes:
        found = super().read(position, size_bytes)
        CountedFile.bytes_read += len(found)
        return found


class CountedReads(PosixFileSystem):
    """A file system whose files add up the bytes read."""

    @override
    def open(self, path: str) -> PosixFile:
        return CountedFile(path, os.open(path, os.O_RDONLY))


def test_what_retention_would_delete_is_known_without_reading_whole_indexes(tmp_path: Path) -> None:
    directory = write_log(tmp_path / "orders-0", *([batch(offset)] for offset in range(20)))
    for offset in range(19):
        entries = b"".join((T0 + at).to_bytes(8, "big") + at.to_bytes(4, "big") for at in range(10_000))
        (directory / offset_name(offset, FileKind.TIME_INDEX)).write_bytes(entries)
    said = ["cleanup.policy=delete", "retention.ms=1000"]
    CountedFile.bytes_read = 0
    (one,) = planned(tmp_path, T0 + HOUR, overrides=said, fs=CountedReads()).partitions
    assert one.only_with_retention[0].base_offsets == tuple(range(19))
    # A page of each time index.
    assert 19 * 12 <= CountedFile.bytes_read <= 19 * 4200


def test_what_cannot_be_asked_for_is_refused() -> None:
    with pytest.raises(RequestError, match="first dirty offset cannot be -1"):
        make_plan(str(fixture("kraft-before-2")), first_dirty=-1)
    with pytest.raises(NotFoundError, match="matches nobody"):
        make_plan(str(fixture("kraft-before-2")), topics=["nobody"])
