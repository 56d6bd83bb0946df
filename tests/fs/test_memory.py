"""States after a power cut. The model must lose all that a disk may lose, and keep all that was promised to stay."""

from __future__ import annotations

import itertools
import os
import random
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from cordwood.fs.base import is_full
from cordwood.testing.memory import MemoryFileSystem, PowerCut, every_cut
from cordwood.testing.memory_journal import at_random, keep_all, lose_all
from tests.fs.contract import local_outcome, local_steps
from tests.fs.trees import Tree, content, drawn, put, sync_everything, tree

Act = Callable[[MemoryFileSystem], object]


def empty() -> MemoryFileSystem:
    return MemoryFileSystem(now_ns=itertools.count().__next__)


def holding(**files: bytes) -> MemoryFileSystem:
    """A durable file system with these files in its root."""
    fs = empty()
    for name, data in files.items():
        put(fs, name, data, sync=True)
    fs.sync_directory("/")
    fs.operations.clear()
    return fs


def crashed(fs: MemoryFileSystem) -> list[Tree]:
    """Every tree that a power cut now could leave."""
    return [tree(after) for after in fs.crashes()]


def cut_anywhere(prepare: Callable[[], MemoryFileSystem], act: Act) -> Iterator[Tree]:
    """Every tree after a power cut before any operation of `act` or after the last."""
    for fs in every_cut(prepare, act):
        yield from crashed(fs)


# The log of operations, and cutting it


def test_operations_read_as_a_transcript() -> None:
    fs = empty()
    fs.make_directory("a")
    with fs.create("a/b") as file:
        file.write(0, b"x" * 100)
        file.truncate(50)
        file.sync()
    fs.set_mtime_ns("a/b", 7)
    fs.set_owner("a/b", 1, 2)
    fs.set_mode("a/b", 0o640)
    fs.link("a/b", "d")
    fs.rename("a/b", "a/c")
    fs.sync_directory("a")
    fs.create("a/c", exclusive=False).close()
    fs.unlink("a/c")
    fs.remove_directory("a")
    assert fs.operations == [
        "mkdir a",
        "create a/b",
        "write a/b 0+100",
        "truncate a/b 50",
        "sync a/b",
        "mtime a/b 7",
        "owner a/b 1:2",
        "mode a/b 640",
        "link a/b d",
        "rename a/b → a/c",
        "sync dir a",
        "create a/c",
        "unlink a/c",
        "rmdir a",
    ]


def test_looking_and_failing_are_no_operations() -> None:
    fs = holding(f=b"abc")
    content(fs, "f")
    fs.list("/")
    with pytest.raises(FileExistsError):
        fs.create("f")
    with pytest.raises(FileNotFoundError):
        fs.unlink("g")
    assert fs.operations == []


def test_nothing_happens_after_the_power_is_cut() -> None:
    fs = holding()
    fs.fail_after(2)
    file = fs.create("f")
    file.write(0, b"abc")
    for verb in (file.sync, lambda: file.write(3, b"def"), lambda: fs.unlink("f"), lambda: fs.sync_directory("/")):
        with pytest.raises(PowerCut):
            verb()
    assert fs.operations == ["create f", "write f 0+3"]
    assert tree(fs) == {"f": b"abc"}


def test_no_handler_for_exceptions_catches_a_power_cut() -> None:
    assert not issubclass(PowerCut, Exception)


def test_every_cut_stops_before_each_operation_and_at_last_not_at_all() -> None:
    cuts = list(every_cut(empty, lambda fs: put(fs, "f", b"abc", sync=True)))
    done = ["create f", "write f 0+3", "sync f"]
    assert [fs.operations for fs in cuts] == [done[:count] for count in range(4)]


def test_what_a_crash_left_runs_again() -> None:
    fs = holding(f=b"abc")
    fs.fail_after(0)
    after = fs.crash(lose_all)
    put(after, "f", b"new")
    assert after.operations == ["create f", "write f 0+3"]
    assert (tree(fs), tree(after), tree(after.crash(lose_all))) == ({"f": b"abc"}, {"f": b"new"}, {"f": b"abc"})


# Bytes


def test_an_unsynced_write_is_kept_lost_torn_or_only_length() -> None:
    fs = holding(f=b"")
    with fs.open_for_update("f") as file:
        file.write(0, b"abcd")
        file.write_back(0, 4)  # makes no promise
    assert [change.text for change in fs.pending] == ["length f 0 → 4", "write f 0+4"]
    assert {after["f"] for after in crashed(fs)} == {b"", b"ab", b"abcd", b"\0\0\0\0", b"ab\0\0"}


def test_a_write_tears_at_any_byte() -> None:
    fs = holding(f=b"old!")
    with fs.open_for_update("f") as file:
        file.write(0, b"new.")
    kept = itertools.count().__next__
    left = [tree(fs.crash(lambda change: kept()))["f"] for _ in range(5)]
    assert left == [b"old!", b"nld!", b"ned!", b"new!", b"new."]


def test_a_lost_write_before_a_kept_one_leaves_a_hole_of_zeros() -> None:
    fs = holding(f=b"")
    with fs.open_for_update("f") as file:
        file.write(0, b"ab")
        file.write(2, b"cd")
    assert tree(fs.crash(lambda change: change.parts if change.text == "write f 2+2" else 0)) == {"f": b"\0\0cd"}


def test_a_lost_truncate_brings_the_old_end_back() -> None:
    fs = holding(f=b"abcdef")
    with fs.open_for_update("f") as file:
        file.truncate(2)
        file.write(2, b"x")
        left = {after["f"] for after in crashed(fs)}
        assert b"abxdef" in left
        assert b"abcdef" in left
        file.sync()
    assert crashed(fs) == [{"f": b"abx"}]


def test_a_sync_makes_what_other_open_files_wrote_durable() -> None:
    fs = holding(f=b"")
    with fs.open_for_update("f") as writer, fs.open("f") as reader:
        writer.write(0, b"abc")
        reader.sync()
    assert crashed(fs) == [{"f": b"abc"}]


def test_a_sync_of_one_file_does_nothing_for_another() -> None:
    fs = holding(a=b"", b=b"")
    put(fs, "a", b"1")
    put(fs, "b", b"2", sync=True)
    assert tree(fs.crash(lose_all)) == {"a": b"", "b": b"2"}


def test_an_mtime_is_durable_after_the_files_sync() -> None:
    fs = holding(f=b"abc")
    fs.set_mtime_ns("f", 77)
    assert fs.crash(keep_all).stat("f").mtime_ns == 77
    assert fs.crash(lose_all).stat("f").mtime_ns != 77
    with fs.open("f") as file:
        file.sync()
    assert fs.crash(lose_all).stat("f").mtime_ns == 77


def test_owner_and_mode_are_durable_after_the_files_sync() -> None:
    fs = holding(f=b"abc")
    fs.set_owner("f", 7, 8)
    fs.set_mode("f", 0o600)
    assert {(after.stat("f").uid, after.stat("f").mode) for after in fs.crashes()} == {
        (uid, mode) for uid in (os.geteuid(), 7) for mode in (0o600, 0o644)
    }
    with fs.open("f") as file:
        file.sync()
    assert fs.crash(lose_all).stat("f") == fs.stat("f")


# Names


def test_a_synced_file_has_no_name_until_its_directory_is_synced() -> None:
    fs = holding()
    put(fs, "f", b"abc", sync=True)
    assert crashed(fs) == [{}, {"f": b"abc"}]
    fs.sync_directory("/")
    assert crashed(fs) == [{"f": b"abc"}]


def test_a_synced_name_promises_no_bytes() -> None:
    fs = holding()
    put(fs, "f", b"abc")
    fs.sync_directory("/")
    assert {"f": b""} in crashed(fs)


def test_a_synced_directory_needs_its_own_name_synced_too() -> None:
    fs = holding()
    fs.make_directory("d")
    put(fs, "d/f", b"abc", sync=True)
    fs.sync_directory("d")
    assert crashed(fs) == [{}, {"d": None, "d/f": b"abc"}]


def test_an_unlinked_file_may_come_back() -> None:
    fs = holding(f=b"abc")
    fs.unlink("f")
    assert crashed(fs) == [{"f": b"abc"}, {}]
    fs.sync_directory("/")
    assert crashed(fs) == [{}]


def test_a_removed_directory_may_come_back_empty_or_full() -> None:
    fs = empty()
    fs.make_directory("d")
    put(fs, "d/f", b"abc")
    sync_everything(fs)
    fs.unlink("d/f")
    fs.remove_directory("d")
    assert {tuple(after) for after in crashed(fs)} == {(), ("d",), ("d", "d/f")}


def test_any_subset_of_renames_may_be_lost() -> None:
    fs = holding(old=b"old", new=b"new")
    fs.rename("old", "deleted")
    fs.rename("new", "old")
    assert crashed(fs) == [
        {"old": b"old", "new": b"new"},
        {"old": b"new"},  # the name was taken although its old file never got away
        {"deleted": b"old", "new": b"new"},
        {"deleted": b"old", "old": b"new"},
    ]


def test_a_file_that_lost_its_name_is_still_moved_by_a_later_rename() -> None:
    fs = holding(old=b"old", new=b"new")
    fs.rename("old", "deleted")
    fs.rename("new", "old")
    fs.rename("deleted", "deleted2")
    after = fs.crash(lambda change: 0 if change.text == "rename old → deleted" else 1)
    assert tree(after) == {"old": b"new", "deleted2": b"old"}


def test_a_renamed_file_never_has_two_names() -> None:
    fs = holding(a=b"abc")
    fs.rename("a", "b")
    fs.rename("b", "c")
    assert crashed(fs) == [{"a": b"abc"}, {"c": b"abc"}, {"b": b"abc"}, {"c": b"abc"}]


def test_a_link_waits_for_its_own_directory_only() -> None:
    fs = holding(f=b"abc")
    fs.make_directory("kept")
    fs.sync_directory("/")
    fs.link("f", "kept/f")
    assert crashed(fs) == [{"f": b"abc", "kept": None}, {"f": b"abc", "kept": None, "kept/f": b"abc"}]
    fs.sync_directory("kept")
    assert crashed(fs) == [{"f": b"abc", "kept": None, "kept/f": b"abc"}]


def test_each_name_of_a_file_is_lost_or_kept_by_itself() -> None:
    fs = holding(a=b"abc")
    fs.link("a", "b")
    fs.unlink("a")
    fs.rename("b", "c")
    assert crashed(fs) == [
        {"a": b"abc"},
        {"a": b"abc", "c": b"abc"},  # the link was lost, its rename was not
        {},  # neither, but the unlink was kept: a file without a name
        {"c": b"abc"},
        {"a": b"abc", "b": b"abc"},
        {"a": b"abc", "c": b"abc"},
        {"b": b"abc"},
        {"c": b"abc"},
    ]
    fs.sync_directory("/")
    assert crashed(fs) == [{"c": b"abc"}]


def test_crash_loses_a_linked_file_if_only_its_removed_name_was_durable() -> None:
    fs = holding(f=b"abc")
    fs.make_directory("kept")
    fs.sync_directory("/")
    fs.link("f", "kept/f")
    fs.unlink("f")
    fs.sync_directory("/")
    assert {"kept": None} in crashed(fs)


def test_names_of_one_file_stay_one_file_after_a_crash() -> None:
    fs = holding(f=b"abc")
    fs.link("f", "lost")
    fs.link("f", "kept")
    after = fs.crash(lambda change: int(change.text != "link f lost"))
    after.link("kept", "later")
    after.unlink("f")
    with after.open_for_update("later") as file:
        file.write(0, b"x")
    assert tree(after) == {"kept": b"xbc", "later": b"xbc"}


def test_unsynced_bytes_stay_pending_while_another_name_may_show_them() -> None:
    fs = holding(f=b"old")
    fs.link("f", "g")
    put(fs, "f", b"new")
    fs.unlink("f")
    fs.sync_directory("/")
    assert {after["g"] for after in crashed(fs)} >= {b"old", b"new", b""}


def test_a_rename_replaces_one_name_of_a_file_and_leaves_the_other() -> None:
    fs = holding(f=b"old", new=b"new")
    fs.link("f", "g")
    fs.sync_directory("/")
    fs.rename("new", "f")
    assert crashed(fs) == [{"f": b"old", "g": b"old", "new": b"new"}, {"f": b"new", "g": b"old"}]


@pytest.mark.parametrize(
    ("synced", "left"),
    [
        ([], [{"x/f": b"abc"}, {"y/f": b"abc"}]),
        (["x"], [{"x/f": b"abc"}, {"y/f": b"abc"}]),
        (["y"], [{"x/f": b"abc"}, {"y/f": b"abc"}]),
        (["y", "x"], [{"y/f": b"abc"}]),
    ],
)
def test_a_rename_between_directories_needs_both_synced(synced: list[str], left: list[Tree]) -> None:
    fs = empty()
    fs.make_directory("x")
    fs.make_directory("y")
    put(fs, "x/f", b"abc")
    sync_everything(fs)
    fs.rename("x/f", "y/f")
    for directory in synced:
        fs.sync_directory(directory)
    assert crashed(fs) == [{"x": None, "y": None, **files} for files in left]


def test_a_durable_rename_stays_last_however_the_one_before_it_fares() -> None:
    fs = empty()
    fs.make_directory("x")
    fs.make_directory("y")
    put(fs, "x/f", b"abc")
    sync_everything(fs)
    fs.rename("x/f", "y/f")
    fs.rename("y/f", "y/g")
    fs.sync_directory("y")
    assert crashed(fs) == [{"x": None, "y": None, "y/g": b"abc"}] * 2


def test_what_moved_out_of_a_directory_that_is_gone_does_not_wait_for_it() -> None:
    fs = empty()
    fs.make_directory("d")
    fs.make_directory("d/e")
    put(fs, "d/e/f", b"abc")
    sync_everything(fs)
    fs.rename("d/e/f", "f")
    fs.remove_directory("d/e")
    fs.remove_directory("d")
    fs.sync_directory("/")
    assert crashed(fs) == [{"f": b"abc"}]


def test_unsynced_bytes_of_a_file_that_is_gone_are_no_longer_pending() -> None:
    fs = holding(f=b"")
    put(fs, "f", b"abc")
    fs.unlink("f")
    fs.sync_directory("/")
    assert fs.pending == []


def test_a_lost_creation_takes_all_below_it_along() -> None:
    fs = holding()
    fs.make_directory("d")
    put(fs, "d/f", b"abc")
    assert tree(fs.crash(lambda change: 0 if change.text == "mkdir d" else change.parts)) == {}


# Promises, over random histories


@settings(max_examples=100, deadline=None)
@given(st.lists(local_steps, max_size=25), st.lists(local_steps, max_size=10), st.data())
def test_whatever_was_synced_survives_any_crash(
    before: list[tuple[str, ...]], after: list[tuple[str, ...]], data: st.DataObject
) -> None:
    fs = empty()
    fs.make_directory("kept")
    for step in before:
        local_outcome(fs, "kept", *step)
    sync_everything(fs)
    promised = tree(fs, "kept")
    # Unsynced changes elsewhere must not matter.
    fs.make_directory("unsynced")
    for step in after:
        local_outcome(fs, "unsynced", *step)
    left = fs.crash(drawn(data))
    assert tree(left, "kept") == promised
    assert tree(left.crash(lose_all)) == tree(left)


@settings(max_examples=100, deadline=None)
@given(st.lists(local_steps, max_size=30), st.integers(0, 2**32))
def test_crashing_changes_nothing_but_the_copy(script: list[tuple[str, ...]], seed: int) -> None:
    fs = empty()
    for step in script:
        local_outcome(fs, "", *step)
    before = tree(fs)
    assert tree(fs.crash(keep_all)) == before
    fs.crash(at_random(random.Random(seed)))
    assert tree(fs) == before == tree(fs.crash(keep_all))


# The classic: replacing a file


def replacing(fs: MemoryFileSystem, data: bytes, *, sync_file: bool = True) -> None:
    put(fs, "f.tmp", data, sync=sync_file)
    fs.rename("f.tmp", "f")
    fs.sync_directory("/")


def test_an_atomic_replace_leaves_the_old_or_the_new_file_wherever_it_is_cut() -> None:
    left = [after["f"] for after in cut_anywhere(lambda: holding(f=b"old"), lambda fs: replacing(fs, b"newer"))]
    assert set(left) == {b"old", b"newer"}
    assert left[0] == b"old"
    assert left[-1] == b"newer"


@settings(max_examples=50, deadline=None)
@given(st.binary(), st.binary(), st.integers(0, 5), st.data())
def test_an_atomic_replace_never_shows_a_mix(old: bytes, new: bytes, stop: int, data: st.DataObject) -> None:
    fs = holding(f=old)
    fs.fail_after(stop)
    with_power = False
    try:
        replacing(fs, new)
        with_power = True
    except PowerCut:
        pass
    left = content(fs.crash(drawn(data)), "f")
    assert left == new if with_power else left in (old, new)


def test_without_the_files_sync_a_replace_can_leave_an_empty_or_torn_file() -> None:
    left = cut_anywhere(lambda: holding(f=b"old"), lambda fs: replacing(fs, b"newer", sync_file=False))
    assert {after["f"] for after in left} == {b"old", b"newer", b"", b"ne", b"ne\0\0\0", b"\0\0\0\0\0"}


def test_without_the_files_sync_random_crashes_find_the_bug_too() -> None:
    fs = holding(f=b"old")
    replacing(fs, b"newer", sync_file=False)
    seed = find(
        st.integers(0, 1000),
        lambda seed: content(fs.crash(at_random(random.Random(seed))), "f") not in (b"old", b"newer"),
    )
    assert content(fs.crash(at_random(random.Random(seed))), "f") != b"newer"


def test_without_the_directorys_sync_a_finished_replace_can_be_undone() -> None:
    fs = holding(f=b"old")
    put(fs, "f.tmp", b"new", sync=True)
    fs.rename("f.tmp", "f")
    assert tree(fs.crash(lose_all)) == {"f": b"old"}


# Without crashes


def test_without_crashes_memory_forgets_what_was_removed() -> None:
    fs = MemoryFileSystem(now_ns=itertools.count().__next__, can_crash=False)
    tracemalloc.start()
    try:
        for number in range(30):
            put(fs, "new", b"x" * 1_000_000, sync=number % 2 == 0)
            fs.rename("new", "f")
        assert tracemalloc.get_traced_memory()[0] < 3_000_000
        with fs.open_for_update("f") as file:
            fs.unlink("f")
            file.write(1_000_000, b"y")
            assert file.size() == 1_000_001 and file.read(999_999, 2) == b"xy" and not fs.exists("f")
        del file
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
    assert not fs.operations


@settings(max_examples=100)
@given(st.lists(local_steps, max_size=40))
def test_sizes_by_name_follow_each_step(script: list[tuple[str, ...]]) -> None:
    told: dict[str, int] = {}

    def on_size(name: str, size_bytes: int) -> None:
        told[name] = told.get(name, 0) + size_bytes

    fs = MemoryFileSystem(now_ns=itertools.count().__next__, can_crash=False, on_size=on_size)
    for step in script:
        if step[0] == "link":
            continue  # the names of one file would share its size
        local_outcome(fs, "", *step)
        sizes: dict[str, int] = {}
        for path, data in tree(fs, "/").items():
            if data is not None:
                name = path.rpartition("/")[2]
                sizes[name] = sizes.get(name, 0) + len(data)
        assert +Counter(told) == +Counter(sizes) and min(told.values(), default=0) >= 0


# A disk that is nearly full, and threads


def test_a_full_disk_takes_no_more_and_has_room_again_after_a_removal() -> None:
    fs = empty()
    assert fs.free_bytes("/") is None
    put(fs, "f", b"x" * 60)
    fs.capacity_bytes = 100
    assert fs.free_bytes("/") == 40
    with pytest.raises(OSError) as raised, fs.create("g") as file:
        file.write(0, b"x" * 41)
    assert is_full(raised.value) and content(fs, "g") == b""
    with fs.open_for_update("f") as file, pytest.raises(OSError):
        file.truncate(101)
    with fs.open_for_update("f") as file:
        file.write(0, b"y" * 100)
    assert fs.free_bytes("/") == 0
    fs.unlink("f")
    assert fs.free_bytes("/") == 100


def test_threads_do_not_disturb_each_other() -> None:
    fs = MemoryFileSystem(now_ns=itertools.count().__next__, concurrency=8)

    def work(number: int) -> None:
        fs.make_directory(f"d{number}")
        for at in range(50):
            with fs.create(f"d{number}/new") as file:
                file.write(0, b"%d" % at)
                file.sync()
            fs.rename(f"d{number}/new", f"d{number}/f{at}")
            fs.sync_directory(f"d{number}")
            assert len(fs.list(f"d{number}")) == at + 1

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
    finally:
        sys.setswitchinterval(switch)
    fs.sync_directory("/")
    assert len({fs.stat(f"d{number}").inode for number in range(8)}) == 8
    expected = {f"d{number}/f{at}": b"%d" % at for number in range(8) for at in range(50)}
    assert {path: data for path, data in tree(fs.crash(lose_all), "/").items() if data is not None} == expected
