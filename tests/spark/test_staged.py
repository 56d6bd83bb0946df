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
from cordwood.spark import jobs
from tests.cleaning.modes import every_batch
from tests.fixtures import copy_of, fixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_MS = 1_900_000_000_000


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
    monkeypatch.setattr(stages, "cut_positions", lambda segment, _: every_batch(segment, 0)[::40])
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
    options: dict[str, Any] = {"spark": spark, "now_ms": NOW_MS, "single_copy": True, "ignore_ratio": True}
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
    options: dict[str, Any] = {"spark": spark, "now_ms": NOW_MS, "single_copy": True, "ignore_ratio": True}
    many, one = (copy_of(fixture("kraft-before"), tmp_path / name) for name in ("many", "one"))
    result = clean_in_place(str(many), exchange=exchange, **options)
    assert cleaned_by_many == [exchange] * len(result.with_fate(Fate.CLEANED)) != []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "is_staged", lambda *_: False)
        clean_in_place(str(one), **options)
    assert contents(many) == contents(one)


def test_an_unknown_exchange_is_refused_in_words(tmp_path: Path) -> None:
    words = ["clean", str(fixture("kraft-before")), "--output", str(tmp_path / "copy"), "--exchange", "post"]
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, "--exchange post: give blobs or shuffle" in result.stderr) == (2, True)
    assert not (tmp_path / "copy").exists()
