"""Whole cleans in place with the power cut after every operation, and any unsynced changes lost.

All runs in memory: the driver, and the tasks that Spark would run elsewhere. A clean runs once; before each operation
the test computes the states that a power cut would leave.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import posixpath
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cordwood
from cordwood.api import clean_in_place
from cordwood.cleaning.engine.results import CleanResult, Fate
from cordwood.cleaning.engine.task import Failure, FailureKind, Output, run_small_tasks
from cordwood.commands.check import check
from cordwood.commands.in_place.work import PROGRESS
from cordwood.common.errors import NoSpaceError
from cordwood.common.types import TopicPartition
from cordwood.fs.base import LocalFileSystem, is_full
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.check.findings import Severity
from cordwood.storage.formats import checkpoints, filenames
from cordwood.storage.formats.filenames import WORK_FOLDER, FileKind, Temporary, offset_name, parse_file
from cordwood.storage.index import build as building
from cordwood.storage.log.files import read_file, write_file
from cordwood.storage.log.recovery import next_offset
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.in_place import recover_in_place
from cordwood.storage.recovery.into_copy import RecoverySettings
from cordwood.tasks import tasks
from cordwood.testing.memory import MemoryFileSystem
from cordwood.testing.memory_journal import lose_all
from tests.commands.in_memory import (
    CONFIG,
    FIRST,
    INTERVAL_BYTES,
    LATER_MS,
    NAMES,
    OTHER,
    PATHS,
    ROOT,
    SECOND,
    View,
    crashed,
    directory,
    view,
)
from tests.crashes import EVERY, PROPERTY, CutsDuring, Heard, durable, names_of_tree
from tests.fs.disks import Acting, spoil
from tests.fs.trees import Tree, tree
from tests.kafka_tools import Oracle
from tests.knobs import in_turns, step
from tests.storage.index_twins import believed

pytestmark = pytest.mark.more


@dataclass
class Scene:
    """A log directory with two partitions, and how it is cleaned.

    Attributes:
        name: what the scene tests.
        fs: the log directory; all of it is durable.
        options: options of the clean.
    """

    name: str
    fs: MemoryFileSystem
    options: Mapping[str, Any] = field(default_factory=dict)

    def clean(self, fs: LocalFileSystem, **changes: Any) -> CleanResult:
        """Clean all in place."""
        # Without the proof: a scene is cleaned hundreds of times, and each proof on Spark needs seconds.
        options: dict[str, Any] = {"now_ms": LATER_MS, "single_copy": True, "ignore_ratio": True, "verify": False}
        options |= {"no_broker_elsewhere": True, **self.options, **changes}
        return clean_in_place(ROOT, fs=fs, **options)

    def again(self, fs: LocalFileSystem) -> CleanResult:
        """Clean once more, without keeping the old files."""
        return self.clean(fs, keep_old=None)

    @cached_property
    def after(self) -> MemoryFileSystem:
        """Return the files after an uninterrupted clean."""
        fs = durable(self.fs)
        result = self.clean(fs)
        assert not result.with_fate(Fate.FAILED) and len(result.with_fate(Fate.CLEANED)) == len(PATHS), result.text()
        return fs

    @cached_property
    def allowed(self) -> dict[str, set[View]]:
        """Valid states of each partition: each group is old or new, and retention deletes the oldest segments."""
        fs = durable(self.fs)
        seen = {path: Changes(fs, path) for path in PATHS}
        loaded = False

        def observe(verb: str, path: str) -> None:
            nonlocal loaded
            # Loading renames files, too. Tasks begin after it, and write their progress.
            loaded |= verb == "create" and f"/{WORK_FOLDER}/{PROGRESS}/" in path
            for partition, changes in seen.items():
                if loaded and verb == "rename" and path.startswith(f"{partition}/"):
                    changes.renames(path)

        self.clean(Acting(fs, observe))
        for changes in seen.values():
            changes.end()
        return {path: changes.views for path, changes in seen.items()}


class Changes:
    """Watches how swaps of groups and retention change a partition, and collects the valid states.

    Attributes:
        views: records that a reader may see before, between and after all steps.
    """

    def __init__(self, fs: LocalFileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._before = view_of(fs, path)
        self._outputs: set[int] = set()
        self._removed: set[int] = set()
        self.views = {self._before}

    def renames(self, source: str) -> None:
        """A file is about to get another name."""
        names = [info.name for info in self._fs.list(self._path)]
        if not any(name.endswith((Temporary.CLEANED, Temporary.SWAP, Temporary.DELETED)) for name in names):
            self.end()
        folder, name = posixpath.split(source)
        if name.endswith(FileKind.LOG):
            file = parse_file(name)
            assert file is not None and file.offset is not None
            (self._removed if folder == self._path else self._outputs).add(file.offset)

    def end(self) -> None:
        """Called when the last act has ended."""
        before, after, removed = self._before, view_of(self._fs, self._path), sorted(self._removed)
        self.views.add(after)
        bases = [segment.base_offset for segment in LogView(self._path, fs=self._fs).segments]
        if self._outputs:
            # Segments after the outputs' end are deleted afterwards, in order of offset.
            end = next_offset(self._fs, f"{self._path}/{offset_name(max(self._outputs), FileKind.LOG)}", 0)
            behind = min(base for base in bases if base > removed[-1])
            new = [one for one in after if one[0] < behind]
            rest = [one for one in after if one[0] >= behind]
            for base in removed[1:]:
                if base >= end:
                    left = [one for one in before if base <= one[0] < behind]
                    self.views.add((*new, *left, *rest))
        else:
            for base in [*removed, *bases[:1]]:
                self.views.add(tuple(one for one in before if one[0] >= base))
        self._before, self._outputs, self._removed = after, set(), set()


def view_of(fs: LocalFileSystem, path: str) -> View:
    """The records that a reader sees once the partition has been loaded, if the broker did not shut down cleanly."""
    return view(opened(fs, path))


def table(log: LogView) -> dict[bytes | None, bytes | None]:
    """Last value of each key for a consumer of committed records."""
    found = {one.key: one.value for one in log.records(isolation="read_committed")}
    return {key: value for key, value in found.items() if value is not None}


def opened(fs: LocalFileSystem, path: str) -> LogView:
    """The log, loaded aside if need be."""
    if not fs.exists(f"{ROOT}/{filenames.CLEAN_SHUTDOWN}"):
        assert isinstance(fs, MemoryFileSystem)
        point = offsets_in(fs, filenames.RECOVERY_POINTS).get(NAMES[PATHS.index(path)], 0)
        fs = durable(fs)
        settings = RecoverySettings(INTERVAL_BYTES)
        recover_in_place(
            fs, LogView(path, fs=fs), crashed=True, recovery_point=point, now_ms=LATER_MS, settings=settings
        )
    return LogView(path, fs=fs)


def offsets_in(fs: LocalFileSystem, name: str) -> dict[TopicPartition, int]:
    """The entries of a checkpoint."""
    return dict(checkpoints.decode(read_file(fs, f"{ROOT}/{name}")))


def with_leftovers(fs: MemoryFileSystem) -> MemoryFileSystem:
    """Leftovers of two killed runs and a broker: files of segments, half written, and work folders."""
    fs = durable(fs)
    for path in PATHS:
        bases = [segment.base_offset for segment in LogView(path, fs=fs).segments]
        for base, suffix in zip(bases[1:], (".cleaned", ".cleaned", ".swap", ".deleted"), strict=False):
            for kind in (FileKind.LOG, FileKind.OFFSET_INDEX):
                if fs.exists(name := f"{path}/{offset_name(base, kind)}"):
                    data = read_file(fs, name)
                    write_file(fs, f"{name}{suffix}", data[: len(data) // 2])
        fs.make_directory(f"{path}/{WORK_FOLDER}")
        for attempt in ("1", "2"):
            fs.make_directory(f"{path}/{WORK_FOLDER}/{attempt}")
            for kind in (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
                write_file(fs, f"{path}/{WORK_FOLDER}/{attempt}/{offset_name(bases[1], kind)}", b"of a run before")
    return durable(fs)


#: Bytes that outputs may occupy at a time in tests that need several waves.
LITTLE_BYTES = 55_000


SCENES: Mapping[str, Callable[[], Scene]] = {
    "all at once": lambda: Scene("all at once", directory(FIRST, SECOND), {"overrides": CONFIG}),
    "waves": lambda: Scene("waves", directory(FIRST, SECOND), {"overrides": CONFIG, "work_space": LITTLE_BYTES}),
    "kept": lambda: Scene("kept", directory(FIRST, SECOND), {"overrides": CONFIG, "keep_old": "/kept"}),
    "retention": lambda: Scene(
        "retention",
        directory(FIRST, SECOND),
        {
            "overrides": (*CONFIG, "b:cleanup.policy=compact,delete", "b:retention.bytes=250", "b:retention.ms=-1"),
            "retention": True,
        },
    ),
    "crashed": lambda: Scene("crashed", crashed(), {"overrides": CONFIG}),
    "crashed, kept": lambda: Scene("crashed, kept", crashed(), {"overrides": CONFIG, "keep_old": "/kept"}),
    "crashed, leftovers": lambda: Scene("crashed, leftovers", with_leftovers(crashed()), {"overrides": CONFIG}),
    "leftovers": lambda: Scene("leftovers", with_leftovers(directory(FIRST, SECOND)), {"overrides": CONFIG}),
}


RecordProperty = Callable[[str, object], None]


@cache
def built(name: str) -> Scene:
    return SCENES[name]()


def without_work(files: Tree) -> Tree:
    """All files outside work folders, as brokers ignore work folders."""
    return {path: data for path, data in files.items() if f"{WORK_FOLDER}/" not in path}


@dataclass
class Looker:
    """Opens the files left by a power cut, with our readers and with the next clean.

    Attributes:
        scene: the cleaned directory.
        cleans_max: maximum number of states to clean again, of those that differ outside work folders; None for all.
    """

    scene: Scene
    cleans_max: int | None = None
    seed: int = 1
    cleaned: int = 0
    _known: set[object] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._source = random.Random(self.seed)
        self._tables = {path: table(opened(self.scene.fs, path)) for path in PATHS}

    def __call__(self, fs: MemoryFileSystem) -> None:
        crashed = not fs.exists(f"{ROOT}/{filenames.CLEAN_SHUTDOWN}")
        for file in filenames.OFFSET_CHECKPOINTS:
            assert offsets_in(fs, file)[OTHER] == 3
        points = offsets_in(fs, filenames.RECOVERY_POINTS) if crashed else {}
        for path, name in zip(PATHS, NAMES, strict=True):
            if self._is_new(path, crashed, points.get(name), names_of_tree(without_work(tree(fs, path)))):
                self.look_at(fs, path)
        if not self._is_new(names_of_tree(without_work(tree(fs, ROOT)))):
            return
        if self.cleans_max is None or self.cleaned < self.cleans_max or self._source.random() < 0.02:
            self.cleaned += 1
            self.clean_again(fs)

    def _is_new(self, *key: object) -> bool:
        new = key not in self._known
        self._known.add(key)
        return new

    def look_at(self, fs: MemoryFileSystem, path: str) -> None:
        """Each group is old or new."""
        log = opened(fs, path)
        seen = view(log)
        assert seen in self.scene.allowed[path]
        offsets = [one[0] for one in seen]
        assert offsets == sorted(set(offsets))
        if not self.scene.options.get("retention"):
            assert table(log) == self._tables[path]

    def clean_again(self, fs: MemoryFileSystem) -> None:
        """Check that the next clean has the same result."""
        fs = durable(fs)
        result = self.scene.again(fs)
        assert not result.with_fate(Fate.FAILED), result.text()
        assert not any(fs.exists(f"{path}/{WORK_FOLDER}") for path in PATHS)
        self.is_clean(fs.crash(lose_all))

    def is_clean(self, fs: MemoryFileSystem) -> None:
        """All is as after a clean that was not interrupted, or cleaned as well in other groups."""
        after = self.scene.after
        retention = self.scene.options.get("retention")
        for path in PATHS:
            log = LogView(path, fs=fs)
            seen, expected = view(log), view_of(after, path)
            assert set(seen) >= set(expected) if retention else seen == expected
            if not retention:
                assert table(log) == self._tables[path]
            names = {info.name for info in fs.list(path)}
            assert not any(name.endswith((".cleaned", ".swap", ".deleted")) for name in names)
            assert not log.recovery.actions
            assert not [one for one in check(path, fs=fs) if one.severity is Severity.DAMAGE]
        for name in filenames.OFFSET_CHECKPOINTS:
            assert offsets_in(fs, name) == offsets_in(after, name)
        assert fs.exists(f"{ROOT}/{filenames.CLEAN_SHUTDOWN}")


def check_cuts(
    scene: Scene,
    spark: SparkSession,
    record_property: RecordProperty,
    *,
    cleans_max: int,
    sampled: int,
    subsets_max: int,
    every: int = 1,
) -> None:
    look = Looker(scene, cleans_max)
    cuts = CutsDuring(look, sampled, subsets_max, every)
    cuts.during(functools.partial(scene.clean, verify=True, spark=spark), scene.fs)
    record_property(PROPERTY, ["cleans in place", cuts.states, cuts.different])
    record_property(PROPERTY, ["cleans in place, cleaned again", look.cleaned, look.cleaned])


def test_a_power_cut_leaves_each_group_old_or_new_and_the_next_clean_finishes(
    spark: SparkSession, record_property: RecordProperty
) -> None:
    check_cuts(built("all at once"), spark, record_property, sampled=1, subsets_max=1, every=4, cleans_max=4)


@pytest.mark.parametrize("indexed_before", [False, True])
def test_no_power_cut_leaves_an_index_that_is_believed_and_wrong(
    indexed_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "SEGMENT_SHARE", 0)  # the segments are small
    scene = built("all at once")
    fs = durable(scene.fs)
    if indexed_before:
        cordwood.index(ROOT, fs=fs, no_broker_elsewhere=True)
        fs = durable(fs)
    seen = [0]

    def look(left: MemoryFileSystem) -> None:
        for path in PATHS:
            seen[0] += len(list(believed(LogView(path, fs=left, log_start_offset=0))))

    CutsDuring(look, sampled=1, subsets_max=1, every=2).during(lambda one: scene.clean(one, index=True), fs)
    assert seen[0] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_every_power_cut_leaves_each_group_old_or_new_and_the_next_clean_finishes(
    name: str, spark: SparkSession, record_property: RecordProperty
) -> None:
    check_cuts(built(name), spark, record_property, sampled=5, subsets_max=4, cleans_max=50, every=EVERY)


@pytest.mark.parametrize(
    "name", in_turns(["all at once", "retention", "crashed", "crashed, leftovers"], "crashed, leftovers")
)
def test_kafka_loads_what_a_power_cut_left(
    name: str, kafka_oracle: Oracle, tmp_path: Path, record_property: RecordProperty
) -> None:
    scene = built(name)
    states: list[MemoryFileSystem] = []
    cuts = CutsDuring(states.append, sampled=2, subsets_max=2)
    cuts.during(scene.clean, scene.fs)
    states = random.Random(1).sample(states, 120)
    for stopped in (True, False):
        some = [fs for fs in states if fs.exists(f"{ROOT}/{filenames.CLEAN_SHUTDOWN}") == stopped]
        if some:
            seen = loaded_by_kafka(some, tmp_path / str(stopped), kafka_oracle, stopped=stopped)
            for fs, logs in zip(some, seen, strict=True):
                assert logs == {path: view_of(fs, path) for path in PATHS}
                assert all(logs[path] in scene.allowed[path] for path in PATHS)
    record_property(PROPERTY, ["cleans in place, loaded by Kafka", cuts.states, len(states)])


def loaded_by_kafka(
    states: Sequence[MemoryFileSystem], root: Path, oracle: Oracle, *, stopped: bool
) -> list[dict[str, View]]:
    """Read partitions with our readers once Kafka has loaded and closed them."""
    places = [
        {path: root / f"t-{number * len(PATHS) + at}" for at, path in enumerate(PATHS)} for number in range(len(states))
    ]
    for fs, partitions in zip(states, places, strict=True):
        for path, place in partitions.items():
            place.mkdir(parents=True)
            for name, data in tree(fs, path).items():
                if data is None:
                    (place / name).mkdir(parents=True, exist_ok=True)
                else:
                    (place / name).parent.mkdir(parents=True, exist_ok=True)
                    (place / name).write_bytes(data)
    if stopped:
        (root / filenames.CLEAN_SHUTDOWN).write_bytes(b"")
    lines = oracle("select", root, "--now", str(LATER_MS))
    assert len([line for line in lines if line["type"] == "log"]) == len(states) * len(PATHS)
    found = []
    for partitions in places:
        logs = {path: LogView(str(place), fs=PosixFileSystem()) for path, place in partitions.items()}
        assert [action for log in logs.values() for action in log.recovery.actions] == []
        found.append({path: view(log) for path, log in logs.items()})
    return found


# ---- several attempts at a task --------------------------------------------------------------------------------------


@contextlib.contextmanager
def each_task_twice(*, take: int) -> Iterator[None]:
    """Two attempts at each task write their folders; only one attempt counts."""
    once = run_small_tasks

    def twice(*arguments: Any, **options: Any) -> list[Output | Failure]:
        return [once(*arguments, **options) for _ in range(2)][take]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "run_small_tasks", twice)
        yield


@pytest.mark.parametrize("take", [0, 1])
@pytest.mark.parametrize("name", ["waves", "kept"])
def test_a_second_attempt_at_each_task_changes_nothing(name: str, take: int) -> None:
    scene = built(name)
    fs = durable(scene.fs)
    with each_task_twice(take=take):
        assert not scene.clean(fs).with_fate(Fate.FAILED)
    Looker(scene).is_clean(fs)
    assert without_kept(tree(fs)) == without_kept(tree(scene.after))


def without_kept(files: Tree) -> Tree:
    """Leave out the manifest, which lists all attempts."""
    return {path: data for path, data in files.items() if not path.startswith("kept/") or path.endswith(".log")}


@pytest.mark.slow
@pytest.mark.parametrize("take", [0, 1])
def test_a_power_cut_after_two_attempts_at_each_task(
    take: int, spark: SparkSession, record_property: RecordProperty
) -> None:
    scene = built("leftovers")
    with each_task_twice(take=take):
        check_cuts(scene, spark, record_property, sampled=2, subsets_max=2, cleans_max=30, every=EVERY)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["all at once", "waves"])
def test_an_attempt_that_nobody_waits_for_harms_nobody(name: str) -> None:
    scene = built(name)
    count = len(clean_with_straggler(scene, 1 << 60).operations)
    late = 0
    for number in range(0, count, 5):
        fs = clean_with_straggler(scene, number)
        late += len(fs.operations) > count
        Looker(scene).is_clean(fs)
        assert not any(fs.exists(f"{path}/{WORK_FOLDER}") for path in PATHS)
    assert late > 20


def clean_with_straggler(scene: Scene, number: int) -> MemoryFileSystem:
    """A clean during which, before an operation behind the first task's, that task is done once more."""
    first: list[Callable[[], list[Output | Failure]]] = []
    once = run_small_tasks
    fs = durable(scene.fs)

    def noted(*arguments: Any, **options: Any) -> list[Output | Failure]:
        done = once(*arguments, **options)
        first.append(lambda: once(*arguments, **options))
        return done

    def before(_: str) -> None:
        if first and len(fs.operations) >= number and not ran:
            ran.append(True)
            first[0]()

    ran: list[bool] = []
    fs.operations = Heard(before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "run_small_tasks", noted)
        result = scene.clean(fs)
    assert not result.with_fate(Fate.FAILED), result.text()
    return fs


# ---- a full disk -----------------------------------------------------------------------------------------------------

#: Operations that need no room.
_GIVES_ROOM = ("unlink", "rmdir", "truncate")


def clean_on_full_disk(
    scene: Scene, refused: int, *, stays_full: bool, index: bool = False
) -> tuple[MemoryFileSystem, int, bool]:
    """Clean on a disk that fails one operation that needs room, or that operation and all later ones.

    Returns:
        the file system; the number of operations that needed room; and whether the clean reported a full disk.
    """
    fs = durable(scene.fs)
    count = 0

    def take_room(text: str) -> None:
        nonlocal count
        if text.startswith(_GIVES_ROOM):
            return
        count += 1
        if count == refused or (stays_full and count > refused):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), text.split()[-1])

    fs.operations = Heard(take_room)
    raised: NoSpaceError | OSError | None = None
    try:
        failed = scene.clean(fs, index=index).with_fate(Fate.FAILED)
    except (NoSpaceError, OSError) as error:
        raised = error
    if raised is None:
        assert {one.failure.kind for one in failed if one.failure is not None} <= {FailureKind.FULL}, failed
        return fs, count, bool(failed)
    assert isinstance(raised, NoSpaceError) or (is_full(raised) and raised.filename)
    return fs, count, True


def check_full_disk(scene: Scene, *, every: int, stays_full: bool) -> None:
    look = Looker(scene)
    _, count, _ = clean_on_full_disk(scene, 1 << 60, stays_full=stays_full)
    noticed = 0
    for refused in range(1, count + 1, every):
        fs, _, full = clean_on_full_disk(scene, refused, stays_full=stays_full)
        fs.operations = []
        noticed += full
        try:
            if full:
                look(fs)
            else:  # the failed write was optional: a task's progress note
                look.is_clean(fs)
            assert not any(fs.exists(f"{path}/{WORK_FOLDER}") for path in PATHS)
        except BaseException as error:
            error.add_note(f"refused: {refused} of {count}")
            raise
    assert noticed > 0.9 * count / every


@pytest.mark.slow
@pytest.mark.parametrize("stays_full", [False, True], ids=["for a moment", "for good"])
@pytest.mark.parametrize("name", SCENES)
def test_full_disk_at_any_operation_leaves_each_group_old_or_new(name: str, stays_full: bool) -> None:
    check_full_disk(built(name), every=EVERY if name == "waves" else 9 * EVERY, stays_full=stays_full)


@pytest.mark.parametrize("stays_full", in_turns([False, True], True))
def test_a_disk_that_fills_while_indexes_are_made_leaves_none_that_is_wrong(
    stays_full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "SEGMENT_SHARE", 0)  # the segments are small
    scene = built("all at once")
    look = Looker(scene)
    _, count, _ = clean_on_full_disk(scene, 1 << 60, stays_full=stays_full, index=True)
    indexes = 0
    for refused in range(1, count + 1, step(7)):
        fs, _, full = clean_on_full_disk(scene, refused, stays_full=stays_full, index=True)
        fs.operations = []
        left = {path: list(believed(LogView(path, fs=fs, log_start_offset=0))) for path in PATHS}
        for path in PATHS:
            indexes += len(left[path])
            folder = f"{path}/{WORK_FOLDER}"
            assert not fs.exists(folder) or [info.name for info in fs.list(folder)] == ["index"]
        cordwood.index(ROOT, drop=True, fs=fs, no_broker_elsewhere=True)
        if full:
            look(fs)
        else:
            look.is_clean(fs)
    assert indexes > 0


def test_full_disk_leaves_each_group_old_or_new() -> None:
    check_full_disk(built("waves"), every=60, stays_full=True)


def test_what_is_written_beside_a_full_disk_is_still_looked_at() -> None:
    scene = built("all at once")
    fs = durable(scene.fs)

    def one_full_one_wrong(verb: str, path: str) -> None:
        if verb == "sync" and path.endswith(".log"):
            if path.startswith(f"{PATHS[0]}/{WORK_FOLDER}"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            spoil(fs, path)

    failed = scene.clean(Acting(fs, one_full_one_wrong)).with_fate(Fate.FAILED)
    assert [one.failure and one.failure.kind for one in failed] == [FailureKind.FULL, FailureKind.BUG]
    assert without_work(tree(fs, ROOT)) == tree(scene.fs, ROOT)


def test_an_error_says_how_many_groups_of_a_wave_are_in_place() -> None:
    scene = built("all at once")
    moved: list[str] = []

    def second_fails(verb: str, path: str) -> None:
        if verb == "rename" and WORK_FOLDER in path and path.endswith(".log"):
            moved.append(path)
            if len(moved) == 2:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    with pytest.raises(OSError, match="error") as raised:
        scene.clean(Acting(durable(scene.fs), second_fails))
    assert raised.value.__notes__[:2] == [
        "0 of 2 partitions are cleaned",
        f"{PATHS[0]}: 1 of its 3 groups of segments are cleaned",
    ]


@pytest.mark.parametrize("offset_map", [72, 120, 400])
def test_rounds_of_an_offset_map_are_recorded_however_they_cut_groups(offset_map: int) -> None:
    scene = built("all at once")
    fs = durable(scene.fs)
    assert len(scene.clean(fs, offset_map=offset_map).with_fate(Fate.CLEANED)) == len(PATHS)
    assert offsets_in(fs, filenames.CLEANER_OFFSETS).keys() == {OTHER, *NAMES}
