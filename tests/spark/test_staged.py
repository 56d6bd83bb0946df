"""Partitions cleaned by many Spark tasks come out as those that one task cleans."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest
from typer.testing import CliRunner

from cordwood.api import clean, clean_in_place
from cordwood.cli.main import app
from cordwood.engine import staged, stages
from cordwood.engine.blob_exchange import BlobExchange
from cordwood.engine.exchange import ExchangeName
from cordwood.engine.results import Fate
from cordwood.engine.row_exchange import RowExchange
from cordwood.engine.task import PartitionTask
from cordwood.errors import NoSpaceError
from cordwood.spark import jobs
from cordwood.spark.shuffle import SparkShuffle
from cordwood.storage.log.segment import Segment
from tests.cleaning.modes import every_batch
from tests.fixtures import copy_of, fixture
from tests.spark.logs import random_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_MS = 1_900_000_000_000
#: Enough of a fixture's partitions to meet every rule, few enough to be quick.
TOPICS = ("orders", "payments", "producers", "codec-lz4", "short-tombstones", "trimmed-both")


@pytest.fixture
def cleaned_by_many(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every partition is staged, and has a run for 40 of its batches; returns the exchange of each that is cleaned."""
    seen: list[str] = []
    once = staged.clean_staged
    names = {BlobExchange: "blobs", RowExchange: "shuffle"}

    def noted(fs: Any, tasks: Sequence[PartitionTask], *arguments: Any, **options: Any) -> Any:
        seen.extend(name for _ in tasks for kind, name in names.items() if isinstance(arguments[3], kind))
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


each_exchange = pytest.mark.parametrize("exchange", get_args(ExchangeName))


def kept_by(spark: SparkSession) -> int:
    """How many DataFrames and RDDs are persisted."""
    return int(spark.sparkContext._jsc.sc().getPersistentRDDs().size())


@each_exchange
@pytest.mark.parametrize("name", ["kraft-before", "kraft-classic-before"])
def test_many_tasks_make_the_copy_that_one_task_makes(
    spark: SparkSession, tmp_path: Path, cleaned_by_many: list[str], name: str, exchange: ExchangeName
) -> None:
    options: dict[str, Any] = {
        "spark": spark,
        "now_ms": NOW_MS,
        "single_copy": True,
        "ignore_ratio": True,
        "topics": TOPICS,
    }
    result = clean(str(fixture(name)), output=str(tmp_path / "many"), exchange=exchange, **options)
    assert kept_by(spark) == 0
    assert cleaned_by_many == [exchange] * len(result.with_fate(Fate.CLEANED)) != []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "is_staged", lambda *_: False)
        alone = clean(str(fixture(name)), output=str(tmp_path / "one"), **options)
    assert contents(tmp_path / "many") == contents(tmp_path / "one")
    assert result.counts == alone.counts


@each_exchange
def test_many_tasks_clean_in_place_what_one_task_does_and_leave_nothing_else(
    spark: SparkSession, tmp_path: Path, cleaned_by_many: list[str], exchange: ExchangeName
) -> None:
    options: dict[str, Any] = {
        "spark": spark,
        "now_ms": NOW_MS,
        "single_copy": True,
        "ignore_ratio": True,
        "topics": TOPICS,
    }
    many, one = (copy_of(fixture("kraft-before"), tmp_path / name) for name in ("many", "one"))
    result = clean_in_place(str(many), exchange=exchange, **options)
    assert cleaned_by_many == [exchange] * len(result.with_fate(Fate.CLEANED)) != []
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


@each_exchange
def test_many_tasks_clean_random_logs_as_one_task_does(
    spark: SparkSession, tmp_path: Path, cleaned_by_many: list[str], exchange: ExchangeName
) -> None:
    for name in ("many", "one"):
        for seed in range(2):
            random_log(tmp_path / name / f"t-{seed}", seed)
    firsts = list((tmp_path / "many").glob("t-*/00000000000000000000.log"))
    before = [path.stat().st_ino for path in firsts]
    clean_in_place(str(tmp_path / "many"), spark=spark, exchange=exchange, **RANDOM)
    assert cleaned_by_many == [exchange] * 2
    assert [path.stat().st_ino for path in firsts] == before, "nothing changes in them"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "is_staged", lambda *_: False)
        clean_in_place(str(tmp_path / "one"), spark=spark, **RANDOM)
    assert contents(tmp_path / "many") == contents(tmp_path / "one")


def test_damage_fails_a_partition_in_the_same_words_whatever_the_exchange(
    spark: SparkSession, tmp_path: Path, cleaned_by_many: list[str]
) -> None:
    for seed in range(2):
        random_log(tmp_path / "logs" / f"t-{seed}", seed)
    path = sorted((tmp_path / "logs" / "t-1").glob("*.log"))[2]
    stored = bytearray(path.read_bytes())
    stored[-1] ^= 1
    path.write_bytes(stored)
    results = [
        clean(str(tmp_path / "logs"), output=str(tmp_path / name), spark=spark, exchange=name, **RANDOM)
        for name in get_args(ExchangeName)
    ]
    assert cleaned_by_many == ["blobs"] * 2 + ["shuffle"] * 2
    blobs, shuffle = ([(one.fate, one.why) for one in result.partitions] for result in results)
    assert shuffle == blobs
    assert [fate for fate, _ in blobs] == [Fate.CLEANED, Fate.FAILED]
    assert path.name in str(blobs[1])
    assert contents(tmp_path / "shuffle") == contents(tmp_path / "blobs")


def test_what_spark_loses_of_the_scans_is_scanned_again(
    spark: SparkSession, tmp_path: Path, cleaned_by_many: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    random_log(tmp_path / "logs" / "t-0", 1)
    rewrite, lost = SparkShuffle.rewrite, []

    def after_a_loss(shuffle: SparkShuffle, *arguments: Any) -> Any:
        for rows in spark.sparkContext._jsc.getPersistentRDDs().values():
            rows.unpersist(True)
            lost.append(rows)
        return rewrite(shuffle, *arguments)

    monkeypatch.setattr(SparkShuffle, "rewrite", after_a_loss)
    for name in get_args(ExchangeName):
        clean(str(tmp_path / "logs"), output=str(tmp_path / name), spark=spark, exchange=name, **RANDOM)
    assert len(lost) == 1
    assert contents(tmp_path / "shuffle") == contents(tmp_path / "blobs")


def test_an_interrupt_leaves_nothing_in_a_users_session(
    spark: SparkSession, tmp_path: Path, cleaned_by_many: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    random_log(tmp_path / "logs" / "t-0", 1)
    before = contents(tmp_path / "logs")
    kept = []

    def interrupted(shuffle: SparkShuffle, *arguments: Any) -> Any:
        kept.append(kept_by(spark))
        raise KeyboardInterrupt

    monkeypatch.setattr(SparkShuffle, "rewrite", interrupted)
    with pytest.raises(KeyboardInterrupt):
        clean_in_place(str(tmp_path / "logs"), spark=spark, exchange="shuffle", **RANDOM)
    assert kept == [1]
    assert kept_by(spark) == 0
    assert {name: found for name, found in contents(tmp_path / "logs").items() if name != ".lock"} == before


def test_a_full_local_folder_of_spark_is_a_full_disk(
    spark: SparkSession, tmp_path: Path, cleaned_by_many: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(task: PartitionTask, **_: Any) -> None:
        raise OSError(28, "No space left on device")

    random_log(tmp_path / "logs" / "t-0", 1)
    # A task that fails with this outside of our code, as Java does where it cannot write rows.
    monkeypatch.setattr(jobs, "run_task", full)
    with pytest.raises(NoSpaceError, match=r"no space left in a local folder of Spark .*Nothing was changed"):
        clean(str(tmp_path / "logs"), output=str(tmp_path / "copy"), spark=spark, exchange="shuffle", **RANDOM)
    assert kept_by(spark) == 0


def test_an_unknown_exchange_is_refused_in_words(tmp_path: Path) -> None:
    words = ["clean", str(fixture("kraft-before")), "--output", str(tmp_path / "copy"), "--exchange", "post"]
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, "--exchange post: give blobs or shuffle" in result.stderr) == (2, True)
    assert not (tmp_path / "copy").exists()
