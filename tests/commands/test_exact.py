"""`plan_exact` predicts the result of `clean`, and writes no file."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cordwood.api import clean, plan_exact
from cordwood.cleaning.engine.results import CleanResult, Fate
from cordwood.common.errors import NotFoundError
from cordwood.storage.formats import filenames
from tests import knobs
from tests.fixtures import TOPICS, copy_of, facts, fixture, tree
from tests.fs.disks import HOLD, Room
from tests.kafka_tools import Oracle

pytestmark = pytest.mark.more

#: Fields that differ between two runs.
_OF_A_RUN = {"target", "seconds", "clean_seconds", "bytes_per_second", "notes", "copied"}


@pytest.fixture(autouse=True)
def nothing_stays_in_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert os.listdir(folder) == []


def figures(result: CleanResult) -> dict[str, Any]:
    """All figures that a clean reports for its partitions, without times."""
    document = result.document()
    document["partitions"] = [one for one in document["partitions"] if one["why"] != "not asked for"]
    for name in ("bytes_before", "bytes_after"):
        document[name] = sum(one[name] for one in document["partitions"])
    return {name: value for name, value in document.items() if name not in _OF_A_RUN}


def both(source: Path, target: Path, spark: SparkSession, **choices: Any) -> tuple[CleanResult, CleanResult]:
    choices.setdefault("now_ms", int(facts("kraft")["cleaning_1_ended_ms"]))
    before = tree(source)
    told = plan_exact(str(source), spark=spark, **choices).result
    assert tree(source) == before
    return told, clean(str(source), output=str(target), spark=spark, **choices)


def test_the_figures_are_those_that_a_clean_reports(spark: SparkSession, tmp_path: Path) -> None:
    told, done = both(fixture("kraft-before"), tmp_path / "new", spark, topics=TOPICS, single_copy=True)
    assert figures(told) == figures(done)
    assert told.target == "" and told.counts.records_superseded > 0
    for one in told.with_fate(Fate.CLEANED):
        assert sum(part.counts.records_read for part in one.segments) == one.counts.records_read > 0
        assert sum(part.counts.bytes_written for part in one.segments) == one.counts.bytes_written


def test_retention_is_told_by_the_sizes_after_the_clean(spark: SparkSession, tmp_path: Path) -> None:
    topics = ["sessions", "retained-*", "trimmed*"]
    told, done = both(fixture("kraft-before"), tmp_path / "new", spark, topics=topics, retention=True)
    assert figures(told) == figures(done)
    assert sum(one.segments_retained_away for one in told.partitions) > 0
    assert any(one.segments_retained_away and one.fate is Fate.CLEANED for one in told.partitions)


def test_a_crashed_directory_is_recovered_aside(spark: SparkSession, tmp_path: Path) -> None:
    source = copy_of(fixture("kraft-crashed-torn"), tmp_path / "logs")
    choices: dict[str, Any] = {"ignore_ratio": True, "high_watermark": "end", "topics": ["plain", "trans", "moving"]}
    told, done = both(source, tmp_path / "new", spark, **choices)
    assert figures(told) == figures(done)
    assert len(told.with_fate(Fate.CLEANED)) >= 3


def test_a_damaged_partition_is_told_with_its_place(spark: SparkSession, tmp_path: Path) -> None:
    source = copy_of(fixture("kraft-before"), tmp_path / "logs")
    log = source / "orders-1" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[200] ^= 1
    log.write_bytes(data)
    found = plan_exact(str(source), spark=spark, topics=["orders"])
    (failed,) = found.result.with_fate(Fate.FAILED)
    assert f"in {log} at position" in failed.why
    assert f"cannot be cleaned: orders-1\n  {failed.why}" in found.text()


def test_a_crashed_directory_is_foretold_without_a_touch_and_without_room_for_a_copy(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = copy_of(fixture("kraft-crashed-swap"), tmp_path / "logs")
    # A hard link would set the time of the inode's last change.
    before = {path: path.stat().st_ctime_ns for path in source.rglob("*")}
    size = sum(path.stat().st_size for path in source.glob("*/*"))
    found = plan_exact(
        str(source), fs=Room(size - 1), spark=spark, overrides=["cleanup.policy=compact"], ignore_ratio=True
    )
    assert found.result.with_fate(Fate.CLEANED)
    assert {path: path.stat().st_ctime_ns for path in source.rglob("*")} == before
    with pytest.raises(NotFoundError, match=f"No partition in {source} matches nothing-like-it"):
        plan_exact(str(source), topics=["nothing-like-it"])


def test_a_running_broker_is_no_obstacle(spark: SparkSession, tmp_path: Path) -> None:
    source = copy_of(fixture("kraft-jbod-before") / "a", tmp_path / "a")
    (source / filenames.CLEAN_SHUTDOWN).unlink(missing_ok=True)
    held = [sys.executable, "-c", HOLD, str(source / filenames.LOCK)]
    with subprocess.Popen(held, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline()
        found = plan_exact(str(source), spark=spark)
        holder.communicate(b"\n")
    assert found.result.with_fate(Fate.CLEANED) and not found.result.with_fate(Fate.FAILED)


def test_kafkas_limited_map_makes_the_same_rounds(spark: SparkSession, tmp_path: Path) -> None:
    told, done = both(
        fixture("kraft-before"), tmp_path / "new", spark, topics=["orders", "all-unique"], offset_map=24 * 40
    )
    assert figures(told) == figures(done)
    assert told.with_fate(Fate.CLEANED)


def test_what_is_not_there_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="matches nothing-like-it"):
        plan_exact(str(fixture("kraft-before")), topics=["nothing-like-it"])


@pytest.mark.slow
def test_random_logs_of_kafka_give_the_same_figures(spark: SparkSession, kafka_oracle: Oracle, tmp_path: Path) -> None:
    root = tmp_path / "logs"
    root.mkdir()
    for seed, lines in zip(SEEDS, kafka_oracle.batch(_generate(tmp_path, seed) for seed in SEEDS), strict=True):
        name = lines[0]["partition"]
        (tmp_path / str(seed) / name).rename(root / name)
    configs = ["cleanup.policy=compact,delete", "internal.segment.bytes=20000", "delete.retention.ms=0"]
    runs: list[dict[str, Any]] = [{"single_copy": True}, {"retention": True, "first_dirty": 40}]
    for number, choices in enumerate(runs):
        told, done = both(
            root,
            tmp_path / f"new-{number}",
            spark,
            overrides=[*configs, "retention.bytes=50000"],
            ignore_ratio=True,
            now_ms=1_700_000_000_500,
            **choices,
        )
        assert figures(told) == figures(done)
        assert len(told.with_fate(Fate.CLEANED)) > len(SEEDS) / 2
        assert bool(sum(one.segments_retained_away for one in told.partitions)) == ("retention" in choices)
        print(told)


PROFILES = ("plain", "compressed", "transactional", "tombstones", "headers", "gaps", "tiny-batches", "legacy")
#: Each profile several times.
SEEDS = range(knobs.scaled(48, 200))


def _generate(root: Path, seed: int) -> tuple[str | Path, ...]:
    words = ("--profile", PROFILES[seed % len(PROFILES)], "--size", "80000", "--config", "segment.bytes=20000")
    return ("generate", root / str(seed), "--seed", str(seed), "--topic", f"seed-{seed}", *words)
