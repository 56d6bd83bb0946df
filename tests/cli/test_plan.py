"""The output of `cordwood plan`, and its exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.command import run
from tests.fixtures import TIMES, fixture
from tests.logs import batch, write_log

pytestmark = pytest.mark.more

NOW = ("--now", str(TIMES[0]))


def document(*words: object, exits: int = 0) -> dict[str, Any]:
    return dict(run("plan", *words, "--json", exits=exits).json)


def test_the_plan_of_a_broker_is_a_table_and_the_reasons_below_it() -> None:
    broker = fixture("kraft-before-2")
    lines = run(
        "plan", broker, "--topic", "orders", "--topic", "min-lag", "--topic", "configured", *NOW
    ).output.splitlines()
    assert [" ".join(line.split()) for line in lines[:7]] == [
        "PARTITION DECISION START FIRST DIRTY UNCLEANABLE END CLEAN DIRTY RATIO SEGMENTS MAY REMOVE",
        "configured-0 clean 0 129 157 189 1.8 kB 2.3 kB 55.8 % 5 → 2 ≤ 46 records, ≤ 4.0 kB",
        "min-lag-0 leave alone 0 251 251 382 2.9 kB 0 B 0.0 % - -",
        "orders-0 leave alone 0 484 484 655 9.5 kB 0 B 0.0 % - -",
        "orders-1 leave alone 0 485 485 630 8.7 kB 0 B 0.0 % - -",
        "orders-2 clean 0 345 513 645 7.5 kB 11.8 kB 61.0 % 3 → 2 ≤ 260 records, ≤ 19.3 kB",
        "total clean 2 of 5 30.4 kB 14.0 kB 8 → 4 ≤ 306 records, ≤ 23.3 kB",
    ]
    metadata = broker / "__cluster_metadata-0"
    assert lines[7:] == [
        "",
        "to clean:",
        f"  configured-0: min.cleanable.dirty.ratio=0.3: more than 30 % is dirty (topic configured in {metadata})",
        f"  orders-2: min.cleanable.dirty.ratio=0.01: more than 1 % is dirty (topic orders in {metadata})",
        "",
        "left alone:",
        "  min-lag-0: min.compaction.lag.ms=108000000: the segment from 251 on has records of "
        f"2026-11-20 05:55:12.073 UTC (topic min-lag in {metadata}); cleanable from 2026-11-21 11:55:12.073 UTC on",
        "  orders-0: all dirty data (offsets 484 to 654) is in the active segment; cleanable after it rolls",
        "  orders-1: all dirty data (offsets 485 to 629) is in the active segment; cleanable after it rolls",
        "",
        "what keeps them from being smaller:",
        "  configured-0: a clean is due, and no broker runs that would do it: 2.3 kB of it is dirty",
        "  min-lag-0: min.compaction.lag.ms=108000000: the segment from 251 on has records of "
        "2026-11-20 05:55:12.073 UTC",
        "  orders-0: its active segment, 11.4 kB from offset 484 to 654, is never cleaned",
        "  orders-1: its active segment, 9.8 kB from offset 485 to 629, is never cleaned",
        "  orders-2: a clean is due, and no broker runs that would do it: 11.8 kB of it is dirty",
        "",
        "2 of 5 partitions to clean: 14.0 kB dirty, 23.3 kB to read; planned as of 2026-11-21 09:30:10.181 UTC",
        "in place: up to 205.2 kB of work space, or 79.8 kB at a time (--work-space)",
    ]


def test_totals_stand_below_several_partitions_in_their_columns() -> None:
    broker = fixture("kraft-before-2")
    title, *_, total = run("plan", broker, "--topic", "orders", *NOW).output.split("\n\n")[0].splitlines()
    assert total.startswith("total      clean 1 of 3")
    for column, figure in (("CLEAN", "25.7 kB"), ("DIRTY", "11.8 kB"), ("SEGMENTS", "3 → 2")):
        end = title.rindex(f" {column} ") + len(column) + 1
        assert total[end - len(figure) : end] == figure
    assert "\ntotal" not in run("plan", broker, "--topic", "orders", "--partition", "2", *NOW).output

    found = document(broker, "--topic", "orders", "--topic", "retained-bytes", *NOW)
    assert found["totals"] == {
        "partitions": 4,
        "partitions_to_clean": 1,
        "partitions_left_alone": 3,
        "partitions_refused": 0,
        "segments": 3,
        "segments_after": 2,
        "clean_bytes": sum(one["compaction"]["clean_bytes"] for one in found["partitions"] if one["compaction"]),
        "cleanable_bytes": 11758,
        "records_max": 260,
        "bytes_max": 19286,
        "retention": {"partitions": 0, "segments": 0, "size_bytes": 0},
        "only_with_retention": {"partitions": 1, "segments": 2, "size_bytes": 4825},
        "estimates": [],
    }


def test_what_retention_would_delete_is_planned_without_the_option() -> None:
    words = (fixture("kraft-before-2"), "--topic", "retained-bytes", *NOW)
    what = "  retained-bytes-0: 2 segments up to 166 (4.8 kB) by retention.bytes=9000 (topic retained-bytes in "
    without, given = run("plan", *words).output, run("plan", *words, "--retention").output
    assert f"\ndeleted only with --retention:\n{what}" in without
    assert "; --retention would delete 2 segments (4.8 kB) of 1 partition; planned as of" in without
    assert f"\ndeleted by retention:\n{what}" in given
    assert "; retention deletes 2 segments (4.8 kB) of 1 partition; planned as of" in given
    assert "with --retention" not in given


def test_equal_reasons_stand_once() -> None:
    lines = run(
        "plan", fixture("kraft-before-2"), "--topic", "many*", "--high-watermark", "0", *NOW
    ).output.splitlines()
    line, cause = [line for line in lines if "high watermark" in line]
    assert cause == line.partition(" (")[0]
    assert line.startswith("  " + ", ".join(f"many-partitions-{number}" for number in range(6)) + ": records from")


def test_json_says_all_there_is_to_say() -> None:
    found = document(fixture("kraft-before-2"), "--topic", "orders", "--partition", "2", *NOW, "--single-copy")
    assert (found["now_ms"], found["choices"]["single_copy"]) == (TIMES[0], True)
    (one,) = found["partitions"]
    assert (one["topic"], one["partition"]) == ("orders", 2)
    assert one["decision"] == "clean" and one["deletes_for_good"] is True and one["replicas"] == 1
    assert one["high_watermark"] == {"offset": 645, "source": "replication-offset-checkpoint"}
    compaction = one["compaction"]
    assert compaction["range"] == {
        "first_dirty_offset": 345,
        "first_uncleanable_offset": 513,
        "bound": "active segment",
        "bound_offset": 513,
    }
    assert compaction["bounds"] == {"records_max": 260, "bytes_max": 19286, "may_grow": False}
    assert (compaction["first_dirty_reason"], compaction["must_compact_now"]) == ("cleaner-offset-checkpoint", False)


def test_options_reach_the_plan() -> None:
    broker = fixture("kraft-before-2")

    def decision(*words: object) -> str:
        (one,) = document(broker, "--topic", "ratio-never", *NOW, *words)["partitions"]
        return str(one["decision"])

    assert decision() == "leave alone"
    assert decision("--ignore-ratio") == "clean"
    assert decision("--config", "min.cleanable.dirty.ratio=0") == "clean"
    assert decision("--ignore-ratio", "--high-watermark", "0") == "leave alone"
    assert decision("--ignore-ratio", "--first-dirty", "250") == "leave alone"
    assert "deleted by retention:" in run("plan", fixture("kraft-before"), "--retention", *NOW).output


def test_retention_is_not_suggested_when_it_is_given(tmp_path: Path) -> None:
    write_log(tmp_path / "orders-0", [batch(0)], [batch(1)])
    words = (tmp_path, "--config", "cleanup.policy=delete")
    assert "only old segments are deleted, with --retention" in run("plan", *words).output
    assert "only old segments are deleted (" in run("plan", *words, "--retention").output


def test_exactly_it_tells_figures_by_reason_and_by_segment(spark: SparkSession) -> None:
    words = (fixture("kraft-before-2"), "--topic", "orders", "--topic", "configured", *NOW, "--exact")
    lines = [" ".join(line.split()) for line in run("plan", *words).output.splitlines()]
    assert (
        "2 of 4 partitions to clean: 14.0 kB dirty, 23.3 kB to read; planned as of 2026-11-21 09:30:10.181 UTC" in lines
    )
    exactly = lines[lines.index("exactly:") + 1 :]
    assert exactly[0].startswith("PARTITION READ KEPT SUPERSEDED TOMBSTONES ABORTED MARKERS NO KEY LOG BEFORE AFTER")
    assert [line.split()[0] for line in exactly[1:3]] == ["configured-0", "orders-2"]
    assert exactly[4].startswith("PARTITION SEGMENT INTO READ KEPT")
    assert "4 partitions: 2 to clean, 2 to leave alone" in exactly

    exact = document(*words)["exact"]
    assert exact["target"] == ""
    for one in exact["partitions"]:
        for name in ("records_read", "records_kept", "records_superseded", "bytes_read", "bytes_written"):
            assert sum(segment[name] for segment in one["segments"]) == one[name]
    read = sum(one["records_read"] for one in exact["partitions"])
    assert exact["records_read"] == read > exact["records_kept"] > 0


def test_exactly_damage_ends_with_1_and_names_its_place(spark: SparkSession, tmp_path: Path) -> None:
    write_log(tmp_path / "orders-0", [batch(0)[:-1] + b"\xff"], [batch(3)])
    words = (tmp_path, "--config", "cleanup.policy=compact")
    run("plan", *words)  # only reading the batches finds a wrong checksum
    output = run("plan", *words, "--exact", exits=1).output
    assert "cannot be cleaned: orders-0\n  CRC-32C mismatch" in output
    assert f"in {tmp_path}/orders-0/00000000000000000000.log at position 0" in output


def test_damage_ends_with_1_and_names_its_place(tmp_path: Path) -> None:
    write_log(tmp_path / "orders-0", [batch(0), b"\x01" * 90, batch(2)], [batch(3)])
    write_log(tmp_path / "orders-1", [batch(0)], [batch(1)])
    output = run("plan", tmp_path, "--config", "cleanup.policy=compact", exits=1).output
    assert "refused:\n  orders-0: damaged: " in output
    assert f"in {tmp_path}/orders-0/00000000000000000000.log at position {len(batch(0))}" in output
    assert "1 of 2 partitions to clean, 1 refused: " in output


def test_wrong_use_ends_with_2(tmp_path: Path) -> None:
    assert (
        "--high-watermark soon: give an offset, or end"
        in run("plan", tmp_path, "--high-watermark", "soon", exits=2).output
    )
    run("plan", tmp_path, exits=2)
    run("plan", fixture("kraft-before-2"), "--first-dirty", "-1", exits=2)
    run("plan", fixture("kraft-before-2"), "--config", "cleanup.policy=compactt", exits=2)


def test_a_plan_loads_neither_the_proof_nor_spark_nor_the_code_for_buckets() -> None:
    program = "import sys, cordwood.cli.clean, cordwood.commands.plan; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    unneeded = {
        "cordwood.cleaning.proof.prove",
        "cordwood.fs.object_targets",
        "cordwood.storage.log.internal",
        "cordwood.storage.recovery.into_copy",
        "cordwood.tasks.spark.session",
        "numba",
        "pyarrow",
        "pyspark",
    }
    assert unneeded & {*done.stdout.split()} == set()
