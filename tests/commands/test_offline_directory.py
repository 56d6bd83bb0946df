"""A log directory that a broker takes offline when it starts, because a checkpoint file is malformed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cordwood.api import clean, clean_in_place
from cordwood.api import plan as make_plan
from cordwood.cleaning.engine.results import Fate
from cordwood.cleaning.rules.plan import Decision
from cordwood.storage.formats import filenames
from tests.fixtures import copy_of, fixture

pytestmark = pytest.mark.more

CONFIG = ["cleanup.policy=compact"]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("checkpoint", [filenames.RECOVERY_POINTS, filenames.LOG_START_OFFSETS])
@pytest.mark.parametrize("crashed", [False, True])
def test_directory_that_goes_offline_is_not_cleaned(
    checkpoint: str, crashed: bool, spark: SparkSession, tmp_path: Path
) -> None:
    directory = copy_of(fixture("kraft-jbod-before") / "b", tmp_path / "b")
    (directory / checkpoint).write_bytes(b"0\n1\nfoo 0\n")
    if crashed:
        (directory / filenames.CLEAN_SHUTDOWN).unlink()
    before = {path.name: contents(path) for path in directory.iterdir() if path.is_dir()}
    words = f"line 3 is not 'topic partition offset': 'foo 0' in {directory}/{checkpoint}"

    plan = make_plan(str(directory), overrides=CONFIG, ignore_ratio=True)
    assert {one.decision for one in plan.partitions if one.topic_partition is not None} >= {Decision.REFUSE}
    assert all(words in one.reason.what for one in plan.with_decision(Decision.REFUSE))

    result = clean_in_place(str(directory), spark=spark, overrides=CONFIG, ignore_ratio=True)
    assert result.partitions and all(words in one.why for one in result.partitions if one.failure is not None)
    assert [one.name for one in result.partitions if one.counts.records_read] == []
    assert {path.name: contents(path) for path in directory.iterdir() if path.is_dir()} == before

    target = tmp_path / "copy"
    result = clean(str(directory), output=str(target), spark=spark, overrides=CONFIG, ignore_ratio=True)
    assert [one.name for one in result.partitions if one.counts.records_read] == []
    assert (target / checkpoint).read_bytes() == b"0\n1\nfoo 0\n"
    assert (target / filenames.CLEAN_SHUTDOWN).exists() is not crashed


@pytest.mark.parametrize("text", [b"garbage", b"0\n1\nt 0 -5 6\n"])
def test_partitions_whose_clean_could_not_be_recorded_are_left_as_they_are(
    text: bytes, spark: SparkSession, tmp_path: Path
) -> None:
    first, second = (copy_of(fixture("kraft-jbod-before") / name, tmp_path / name) for name in "ab")
    (second / filenames.CLEANER_OFFSETS).write_bytes(text)
    before = {path.name: contents(path) for path in second.iterdir() if path.is_dir()}
    result = clean_in_place(str(tmp_path), spark=spark, overrides=CONFIG, ignore_ratio=True)
    failed = [one for one in result.partitions if one.failure is not None]
    assert failed and all(one.path.startswith(str(second)) for one in failed)
    assert all(str(second / filenames.CLEANER_OFFSETS) in one.why for one in failed)
    assert {one.path.startswith(str(first)) for one in result.with_fate(Fate.CLEANED)} == {True}
    assert {path.name: contents(path) for path in second.iterdir() if path.is_dir()} == before
    assert (second / filenames.CLEANER_OFFSETS).read_bytes() == text
