"""Every clean that a real broker did, done again on Spark: the whole directory comes out as the broker left it.

A broker cleans one partition after the other, each at its own time, to the millisecond; the facts of the fixtures have
these times. So the tasks of one run get them, and everything else is the pipeline as users run it, retention included.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cordwood.cleaning.plan import Plan
from cordwood.commands import copies
from cordwood.commands.clean import clean
from cordwood.engine.results import CleanResult, Fate
from cordwood.engine.task import PartitionTask, tasks_of
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats import checkpoints, filenames
from cordwood.storage.formats.filenames import CLUSTER_METADATA_TOPIC, DirectoryState
from cordwood.storage.node.node import LocatedPartition, Node
from tests.cleaning.against_kafka import differences
from tests.fixtures import facts, fixture

pytestmark = pytest.mark.slow

#: Between a clean's clock and the line in the broker's log.
LOGGED_WITHIN_MS = 100


@dataclass(frozen=True)
class Pair:
    """What a broker of 4.3.1 cleaned, and what it made of it.

    Attributes:
        family: of the facts.
        before, after: fixtures.
        ended: which of the facts says when retention and all cleans had ended.
        foreign: the partitions of another broker, which 4.3.1 was given; its own directory knows their configs.
    """

    family: str
    before: str
    after: str
    ended: str = "cleaning_ended_ms"
    foreign: bool = False

    @property
    def now_ms(self) -> int:
        return int(facts(self.family)[self.ended])

    @property
    def times_ms(self) -> dict[str, int]:
        """When each partition was cleaned, by its name; a delete horizon in its batches says it best."""
        found = facts(self.family)["archives"][self.after]
        exact = found["clean_times_ms_from_delete_horizons"]
        times = {}
        for name, (cleaning,) in found["cleanings"].items():
            logged = cleaning["at_ms"]
            times[name] = next((one for one in exact.get(name, ()) if abs(one - logged) < LOGGED_WITHIN_MS), logged)
        return times

    @property
    def end_offsets(self) -> dict[str, int]:
        found = facts(self.family)["archives"][self.after]["cleanings"]
        return {name: cleaning["end_offset"] for name, (cleaning,) in found.items()}

    @property
    def server_properties(self) -> str:
        """The broker's own settings."""
        said = {"log.cleaner.min.cleanable.ratio": 0} | facts(self.family).get("broker_settings_cleaning", {})
        return "".join(f"{key}={value}\n" for key, value in said.items())

    @property
    def overrides(self) -> list[str]:
        """Configs that the partitions of a foreign broker got."""
        if not self.foreign:
            return []
        metadata = Node.open(PosixFileSystem(), [str(fixture(self.after))]).metadata
        assert metadata is not None
        return [
            f"{topic}:{key}={value}" for topic in metadata.topics for key, value in metadata.topic_config(topic).items()
        ]


PAIRS = (
    *(Pair("kraft", f"kraft-before{n}", f"kraft-after{n}", f"cleaning_{n[1:] or 1}_ended_ms") for n in ("", "-2")),
    *(
        Pair("kraft-classic", f"kraft-classic-before{n}", f"kraft-classic-after{n}", f"cleaning_{n[1:] or 1}_ended_ms")
        for n in ("", "-2", "-3")
    ),
    Pair("kraft-jbod", "kraft-jbod-before", "kraft-jbod-after"),
    Pair("other-clients", "other-clients-before", "other-clients-after"),
    *(
        Pair(family, f"{family}-before", f"{family}-after-4.3.1", "cleaning_431_ended_ms", foreign=True)
        for family in ("legacy-v0", "legacy-v1", "legacy-mixed")
    ),
)


@dataclass(frozen=True)
class Run:
    """What came of a pair's `before` on Spark."""

    pair: Pair
    target: Path
    result: CleanResult


@pytest.fixture(scope="module", params=PAIRS, ids=lambda pair: pair.after)
def run(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    pair: Pair = request.param
    folder = tmp_path_factory.mktemp("replayed")
    (folder / "server.properties").write_text(pair.server_properties)
    times = pair.times_ms

    def at_their_times(plan: Plan) -> list[PartitionTask]:
        return [replace(task, now_ms=times.get(Path(task.path).name, plan.now_ms)) for task in tasks_of(plan)]

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
    # Where retention came first the broker had nothing left to clean.
    found = {one.name: one.end_offset for one in run.result.of(Fate.CLEANED) if not one.segments_retained_away}
    assert {name: run.pair.end_offsets.get(name) for name in found} == found
    assert run.pair.end_offsets.keys() <= {one.name for one in run.result.of(Fate.CLEANED)}
    assert not run.result.of(Fate.FAILED)


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
