"""Every clean of a real broker, repeated on Spark: the whole directory equals the broker's.

A broker cleans one partition after the other, each at its own time, to the millisecond; the facts of the fixtures have
these times. Therefore the tasks of one run get them; otherwise the pipeline runs as for users, retention included.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cordwood.api import clean
from cordwood.cleaning.engine.results import CleanResult, Fate
from cordwood.cleaning.engine.task import PartitionTask, tasks_of
from cordwood.cleaning.rules.plan import Plan
from cordwood.commands import copies
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.location import Location
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats import checkpoints, filenames
from cordwood.storage.formats.filenames import CLUSTER_METADATA_TOPIC, DirectoryState
from cordwood.storage.node.node import LocatedPartition, Node
from tests.cleaning.against_kafka import differences
from tests.commands.growing_logs import PAIRS, Pair
from tests.fixtures import facts, fixture

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Run:
    """Result of a pair's `before` on Spark."""

    pair: Pair
    target: Path
    result: CleanResult


@pytest.fixture(scope="module", params=PAIRS, ids=lambda pair: pair.after)
def run(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    pair: Pair = request.param
    folder = tmp_path_factory.mktemp("replayed")
    (folder / "server.properties").write_text(pair.server_properties)
    times = pair.times_ms

    def at_their_times(plan: Plan, location: Location[LocalFileSystem], *how: Any, **more: Any) -> list[PartitionTask]:
        tasks = tasks_of(plan, location, *how, **more)
        return [replace(task, now_ms=times.get(Path(task.path).name, plan.now_ms)) for task in tasks]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "tasks_of", at_their_times)
        result = clean(
            str(fixture(pair.before)),
            output=str(folder / "new"),
            spark=spark,
            now_ms=pair.now_ms,
            server_properties=str(folder / "server.properties"),
            overrides=pair.overrides,
            single_copy=True,
            retention=True,
        )
    yield Run(pair, folder / "new", result)
    shutil.rmtree(folder)


def partitions(root: Path) -> dict[str, LocatedPartition]:
    """The partitions that a broker loads, by their paths in its directories."""
    places = Node.open(PosixFileSystem(), [str(root)]).places
    return {
        str(Path(place.path).relative_to(root)): place
        for place in places
        if place.name is not None
        and place.name.state is DirectoryState.CURRENT
        and place.topic != CLUSTER_METADATA_TOPIC
    }


def test_cleaned_is_what_the_broker_cleaned_and_as_far(run: Run) -> None:
    # Where retention ran first the broker had nothing left to clean.
    found = {one.name: one.end_offset for one in run.result.with_fate(Fate.CLEANED) if not one.segments_retained_away}
    assert {name: run.pair.end_offsets.get(name) for name in found} == found
    assert run.pair.end_offsets.keys() <= {one.name for one in run.result.with_fate(Fate.CLEANED)}
    assert not run.result.with_fate(Fate.FAILED)


def test_every_file_of_a_segment_is_what_the_broker_left(run: Run) -> None:
    kafkas, ours = partitions(fixture(run.pair.after)), partitions(run.target)
    assert kafkas.keys() <= ours.keys()
    # A foreign broker's partitions lack files that 4.3.1 added when it loaded them; only a clean makes them here.
    names = run.pair.end_offsets if run.pair.foreign else kafkas
    different = {name: list(differences(Path(kafkas[name].path), Path(ours[name].path))) for name in names}
    assert {name: found for name, found in different.items() if found} == {}


def test_checkpoints_are_what_the_broker_left(run: Run) -> None:
    moving = facts(run.pair.family).get("moving")  # to another log directory, and went on with that meanwhile
    for path in sorted(fixture(run.pair.after).rglob("*-offset-checkpoint")):
        if run.pair.foreign and path.name != filenames.CLEANER_OFFSETS:
            continue
        ours, kafkas = (
            {str(name): offset for name, offset in checkpoints.decode(one.read_bytes()).items() if str(name) != moving}
            for one in (run.target / path.relative_to(fixture(run.pair.after)), path)
        )
        retained = {one.name for one in run.result.partitions if one.segments_retained_away}
        assert ours.keys() - kafkas.keys() <= (retained if path.name == filenames.CLEANER_OFFSETS else set())
        assert {name: ours.get(name) for name in kafkas} == kafkas, path.name
