"""Swaps of cleaned segments, with the power cut after every operation and any unsynced changes lost."""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cordwood.commands.check import check
from cordwood.common.errors import RequestError
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.wrapped import WrappedFileSystem
from cordwood.storage.changes.swap import drop_segments, swap_in
from cordwood.storage.check.findings import Severity
from cordwood.storage.formats.filenames import WORK_FOLDER, FileKind, offset_name
from cordwood.storage.log.files import write_file
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.in_place import recover_in_place
from cordwood.testing.memory import MemoryFileSystem
from cordwood.testing.memory_journal import lose_all
from tests.crashes import EVERY, PROPERTY, Cuts, durable
from tests.fs.trees import tree
from tests.kafka_tools import Oracle
from tests.knobs import in_turns
from tests.storage.swaps import (
    NOW_MS,
    PATH,
    SCENES,
    Scene,
    Script,
    built,
    loaded_by_kafka,
    offset_of,
    only_logs,
    seen_files,
    segment_files,
    snapshots,
    with_outputs,
)

pytestmark = pytest.mark.more

RecordProperty = Callable[[str, object], None]


def load(fs: MemoryFileSystem, *, crashed: bool = False) -> None:
    recover_in_place(fs, LogView(PATH, fs=fs), crashed=crashed, recovery_point=0, now_ms=NOW_MS)


def check_state(scene: Scene, fs: MemoryFileSystem, *, known: set[frozenset[str]]) -> None:
    """Check that after a power cut each group is old or new, however it is opened, and that the log stays usable."""
    seen = seen_files(LogView(PATH, fs=fs))
    assert seen in scene.allowed
    loaded = durable(fs)
    load(loaded)
    files = segment_files(loaded)
    assert files == seen
    assert not any(info.name.endswith((".cleaned", ".swap", ".deleted", WORK_FOLDER)) for info in loaded.list(PATH))
    newest = max(snapshots(scene.fs))
    assert newest in snapshots(loaded) and snapshots(loaded) <= {newest, *map(offset_of, files)}
    # States with the same files have the same continuation.
    if (state := frozenset(files)) in known:
        return
    known.add(state)
    recovered = durable(fs)
    load(recovered, crashed=True)
    assert only_logs(segment_files(recovered)) == only_logs(files)
    again = loaded.crash(lose_all)
    assert segment_files(again) == files, "what was loaded is durable"
    load(again)
    assert tree(again) == tree(loaded)
    assert not [one for one in check(PATH, fs=loaded) if one.severity is Severity.DAMAGE]
    cleaned = with_outputs("again", loaded, now_ms=NOW_MS)
    cleaned.swap(cleaned.fs)
    assert table(cleaned.fs) == table(loaded)


def table(fs: MemoryFileSystem) -> dict[bytes | None, bytes | None]:
    """Last value of each key for a consumer of committed records."""
    found = {one.key: one.value for one in LogView(PATH, fs=fs).records(isolation="read_committed")}
    return {key: value for key, value in found.items() if value is not None}


# ---- power cuts ------------------------------------------------------------------------------------------------------


def check_cuts(name: str, record_property: RecordProperty, **choice: Any) -> None:
    scene = built(name)
    cuts = Cuts(scene.fs, scene.swap, **choice)
    known: set[frozenset[str]] = set()
    for fs in cuts:
        check_state(scene, fs, known=known)
    cuts.tell(record_property, "swaps")


@pytest.mark.parametrize("name", ["one output", "nothing is left of the last"])
def test_a_power_cut_leaves_each_group_old_or_new(name: str, record_property: RecordProperty) -> None:
    # cases 147-152
    check_cuts(name, record_property, subsets_max=2, sampled=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_every_power_cut_leaves_each_group_old_or_new(name: str, record_property: RecordProperty) -> None:
    many = len(built(name).replacements) > 1
    check_cuts(name, record_property, subsets_max=7 if many else 12, sampled=300, every=EVERY)


def test_what_lies_behind_the_end_goes_from_the_lowest_on() -> None:
    scene = built("nothing is left of the last")
    seen = {frozenset(seen_files(LogView(PATH, fs=fs))) for fs in Cuts(scene.fs, scene.swap, subsets_max=4, sampled=20)}
    assert seen == {frozenset(files) for files in scene.allowed}
    assert len(scene.allowed) == 4


class WithoutOneSync(WrappedFileSystem):
    """Leaves out one of the syncs of directories, counted from 1."""

    def __init__(self, fs: LocalFileSystem, left_out: int) -> None:
        super().__init__(fs)
        self.left_out = left_out
        self.syncs: list[str] = []

    def sync_directory(self, path: str) -> None:
        self.syncs.append(path)
        if len(self.syncs) != self.left_out:
            super().sync_directory(path)


#: Syncs whose omission no test can notice in a scene: the outputs equal their sources; an empty log has no records; the
#: two remaining `.log.swap` may be renamed in either order; later operations are above the range that may be lost.
UNSEEN: dict[str, set[int]] = {
    "twice": set(),
    "several outputs": {5, 8, 10, 15, 16},
    "nothing is left of the last": {3, 6},
    "no record left": {5, 6},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", UNSEEN if EVERY == 1 else ["nothing is left of the last", "no record left"])
def test_each_sync_is_needed(name: str) -> None:
    scene = built(name)
    count = WithoutOneSync(durable(scene.fs), 0)
    scene.swap(count)
    numbers = range(1, len(count.syncs) + 1)
    assert {number for number in numbers if not can_fail(scene, without=number)} == UNSEEN[name]


def can_fail(scene: Scene, *, without: int) -> bool:
    """Whether a power cut can leave a forbidden state when a swap omits one of its syncs."""

    def act(fs: LocalFileSystem) -> None:
        scene.swap(WithoutOneSync(fs, without))

    if any(
        seen_files(LogView(PATH, fs=fs)) not in scene.allowed for fs in Cuts(scene.fs, act, subsets_max=9, sampled=200)
    ):
        return True
    fs = durable(scene.fs)
    act(fs)
    return segment_files(fs.crash(lose_all)) != scene.whole[-1]


# ---- failures --------------------------------------------------------------------------------------------------------


class Failing(WrappedFileSystem):
    """Its renames and syncs of directories fail from some call on, and with `once` only that call."""

    def __init__(self, fs: LocalFileSystem, calls: int, *, once: bool) -> None:
        super().__init__(fs)
        self._left, self._once = calls, once

    def rename(self, source: str, target: str) -> None:
        self._count(source)
        super().rename(source, target)

    def sync_directory(self, path: str) -> None:
        self._count(path)
        super().sync_directory(path)

    def _count(self, path: str) -> None:
        self._left -= 1
        if self._left == -1 or (self._left < 0 and not self._once):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("name", ["several outputs", "transaction index gone"])
def test_swap_that_fails_is_undone_before_its_commit_and_completed_after_it(name: str, once: bool) -> None:
    scene = built(name)
    seen = []
    for calls in itertools.count():
        fs = durable(scene.fs)
        try:
            swap_in(Failing(fs, calls, once=once), PATH, scene.replacements[0])
        except OSError:
            pass
        else:
            break
        files = seen_files(LogView(PATH, fs=fs))
        assert files in scene.whole
        seen.append(scene.whole.index(files))
        if once and not seen[-1]:
            assert segment_files(fs) == files, "it looks as if nothing had happened"
        load(fs)
        assert segment_files(fs) == files
    assert seen == sorted(seen) and set(seen) == {0, 1}


def test_nothing_is_swapped_in_beside_what_another_clean_left() -> None:
    scene = built("one output")
    for suffix in (".cleaned", ".swap", ".deleted"):
        fs = durable(scene.fs)
        write_file(fs, f"{PATH}/{offset_name(7, '.log')}{suffix}", b"")
        before = tree(fs)
        with pytest.raises(RequestError, match=rf"7\.log\{suffix} is left of an interrupted clean"):
            scene.swap(fs)
        assert tree(fs) == before


def test_what_goes_is_kept_before_anything_changes() -> None:
    scene = built("twice")
    fs = durable(scene.fs)
    before, kept = segment_files(fs), []

    def keep(path: str, names: Sequence[str]) -> None:
        assert segment_files(fs) == before
        kept.append((path, sorted(names)))

    swap_in(fs, PATH, scene.replacements[0], keep=keep)
    gone = [name for name in before if offset_of(name) < 12]
    assert kept == [(PATH, sorted([*gone, *(offset_name(base, ".snapshot") for base in (3, 6, 10))]))]

    def fail(path: str, names: Sequence[str]) -> None:
        raise OSError(errno.ENOSPC, "full", path)

    fs = durable(scene.fs)
    with pytest.raises(OSError, match="full"):
        swap_in(fs, PATH, scene.replacements[0], keep=fail)
    assert tree(fs) == tree(scene.fs)


def test_outputs_belong_to_the_owner_of_what_they_replace() -> None:
    scene = built("transactions")
    fs = durable(scene.fs)
    first = f"{PATH}/{offset_name(0, '.log')}"
    fs.set_owner(first, 7, 8)
    fs.set_mode(first, 0o640)
    newest = fs.stat(f"{PATH}/{offset_name(10, '.log')}").mtime_ns
    swap_in(fs, PATH, scene.replacements[0])
    after = fs.crash(lose_all)
    for name in segment_files(after):
        if offset_of(name) == 0:
            info = after.stat(f"{PATH}/{name}")
            assert (info.uid, info.gid, info.mode) == (7, 8, 0o640)
            assert name.endswith(".txnindex") or info.mtime_ns == newest


def test_without_a_txnindex_of_its_own_an_output_does_not_keep_the_old_one() -> None:
    for name in ("transaction index gone", "no record left"):
        scene = built(name)
        fs = durable(scene.fs)
        scene.swap(fs)
        assert not fs.exists(f"{PATH}/{offset_name(0, '.txnindex')}")


# ---- Segments that retention deletes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("everything", [False, True])
def test_a_power_cut_while_segments_are_dropped_leaves_all_from_some_segment_on(everything: bool) -> None:
    fs = durable(Script()("7:a=1 7:abort | a=∅ | 7:b=1 7:abort | c=1").fs)
    bases = [segment.base_offset for segment in LogView(PATH, fs=fs).segments]
    end = LogView(PATH, fs=fs).next_offset
    going = bases if everything else bases[:3]
    left = [bases[first:] for first in range(len(going) + 1)]
    last = [end] if everything else []
    cuts = Cuts(fs, lambda fs: drop_segments(fs, PATH, going, end), subsets_max=6, sampled=30)
    seen = []
    for after in cuts:
        log = LogView(PATH, fs=after)
        found = [segment.base_offset for segment in log.segments]
        assert [base for base in found if base not in last] in left and log.next_offset == end
        for segment in log.segments:
            aborted = segment.base_offset in (bases[0], bases[2])
            assert (FileKind.TRANSACTION_INDEX in segment.files.indexes) == aborted
        seen.append(found)
    assert [*bases[len(going) :], *last] in seen and bases in seen
    drop_segments(fs, PATH, going, end)
    after = fs.crash(lose_all)
    assert [segment.base_offset for segment in LogView(PATH, fs=after).segments] == [*bases[len(going) :], *last]
    assert not LogView(PATH, fs=after).recovery.actions


# ---- Kafka's own loader ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("name", in_turns(SCENES, "two groups", "transactions"))
def test_kafka_loads_what_a_power_cut_left_as_we_do(
    name: str, clean: bool, kafka_oracle: Oracle, tmp_path: Path, record_property: RecordProperty
) -> None:
    scene = built(name)
    cuts = Cuts(scene.fs, scene.swap, subsets_max=6, sampled=40)
    states = list(cuts)
    states = random.Random(1).sample(states, min(len(states), 120))
    seen = loaded_by_kafka(states, tmp_path, kafka_oracle, clean=clean)
    for fs, files in zip(states, seen, strict=True):
        expected = seen_files(LogView(PATH, fs=fs))
        assert expected in scene.allowed
        if not clean:  # It has rebuilt all indexes, from data that may have been lost.
            files, expected = only_logs(files), only_logs(expected)
        assert files == expected
    record_property(PROPERTY, ["swaps, loaded by Kafka", cuts.states, len(states)])
