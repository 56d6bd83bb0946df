"""Many Spark tasks clean a partition with the same output as one task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cordwood.api import clean, clean_in_place
from cordwood.cleaning.engine import stages
from cordwood.cleaning.engine.results import Fate
from cordwood.cleaning.engine.task import PartitionTask
from cordwood.storage.log.segment import Segment
from cordwood.tasks import tasks as jobs
from tests.cleaning.modes import every_batch
from tests.fixtures import copy_of, fixture
from tests.knobs import in_turns
from tests.tasks.spark.logs import random_log

pytestmark = pytest.mark.more

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_MS = 1_900_000_000_000
#: Enough of a fixture's partitions to meet every rule, few enough to be quick.
TOPICS = ("orders", "payments", "producers", "codec-lz4", "short-tombstones", "trimmed-both")


@pytest.fixture
def cleaned_by_many(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every partition is staged, and has a run for 40 of its batches; returns the path of each that is cleaned."""
    seen: list[str] = []
    once = stages.clean_staged

    def noted(fs: Any, tasks: Sequence[PartitionTask], *arguments: Any, **options: Any) -> Any:
        seen.extend(task.path for task in tasks)
        return once(fs, tasks, *arguments, **options)

    monkeypatch.setattr(jobs, "clean_staged", noted)
    monkeypatch.setattr(jobs, "is_staged", lambda task, total, cores: task.settings.offset_map_slots is None)

    def cut(segment: Segment, run_bytes: int) -> list[int]:
        return [0] if run_bytes > 1 << 40 else every_batch(segment, 0)[::40]

    monkeypatch.setattr(stages, "cut_positions", cut)
    return seen


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


@pytest.mark.parametrize("name", in_turns(["kraft-before", "kraft-classic-before"], "kraft-classic-before"))
def test_many_tasks_make_the_copy_that_one_task_makes(
    spark: SparkSession, tmp_path: Path, cleaned_by_many: list[str], name: str
) -> None:
    options: dict[str, Any] = {
        "spark": spark,
        "now_ms": NOW_MS,
        "single_copy": True,
        "ignore_ratio": True,
        "topics": TOPICS,
    }
    result = clean(str(fixture(name)), output=str(tmp_path / "many"), **options)
    assert len(cleaned_by_many) == len(result.with_fate(Fate.CLEANED)) > 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "is_staged", lambda *_: False)
        alone = clean(str(fixture(name)), output=str(tmp_path / "one"), **options)
    assert contents(tmp_path / "many") == contents(tmp_path / "one")
    assert result.counts == alone.counts


def test_many_tasks_clean_in_place_what_one_task_does_and_leave_nothing_else(
    spark: SparkSession, tmp_path: Path, cleaned_by_many: list[str]
) -> None:
    options: dict[str, Any] = {
        "spark": spark,
        "now_ms": NOW_MS,
        "single_copy": True,
        "ignore_ratio": True,
        "topics": TOPICS,
    }
    many, one = (copy_of(fixture("kraft-before"), tmp_path / name) for name in ("many", "one"))
    result = clean_in_place(str(many), **options)
    assert len(cleaned_by_many) == len(result.with_fate(Fate.CLEANED)) > 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "is_staged", lambda *_: False)
        clean_in_place(str(one), **options)
    assert contents(many) == contents(one)


#: A group for each segment.
RANDOM: dict[str, Any] = {
    "overrides": ["cleanup.policy=compact", "internal.segment.bytes=300"],
    "high_watermark": "end",
    "now_ms": NOW_MS,
    "single_copy": True,
    "ignore_ratio": True,
}


def test_many_tasks_clean_random_logs_as_one_task_does(
    spark: SparkSession, tmp_path: Path, cleaned_by_many: list[str]
) -> None:
    for name in ("many", "one"):
        for seed in range(2):
            random_log(tmp_path / name / f"t-{seed}", seed)
    firsts = list((tmp_path / "many").glob("t-*/00000000000000000000.log"))
    before = [path.stat().st_ino for path in firsts]
    clean_in_place(str(tmp_path / "many"), spark=spark, **RANDOM)
    assert len(cleaned_by_many) == 2
    assert [path.stat().st_ino for path in firsts] == before, "nothing changes in them"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "is_staged", lambda *_: False)
        clean_in_place(str(tmp_path / "one"), spark=spark, **RANDOM)
    assert contents(tmp_path / "many") == contents(tmp_path / "one")


def test_given_damage_many_tasks_fail_its_partition_and_clean_the_others(
    spark: SparkSession, tmp_path: Path, cleaned_by_many: list[str]
) -> None:
    for seed in range(2):
        random_log(tmp_path / "logs" / f"t-{seed}", seed)
    path = sorted((tmp_path / "logs" / "t-1").glob("*.log"))[2]
    stored = bytearray(path.read_bytes())
    stored[-1] ^= 1
    path.write_bytes(stored)
    result = clean(str(tmp_path / "logs"), output=str(tmp_path / "copy"), spark=spark, **RANDOM)
    assert len(cleaned_by_many) == 2
    assert [one.fate for one in result.partitions] == [Fate.CLEANED, Fate.FAILED]
    assert path.name in result.partitions[1].why
