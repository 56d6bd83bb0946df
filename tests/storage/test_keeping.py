"""A clean keeps the files that it removes, and restores them unchanged: also when the power is cut at any moment."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cordwood.commands.undo import undo
from cordwood.common.errors import CorruptFileError, NotFoundError, RequestError
from cordwood.fs.base import FileInfo
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.changes.backup import MANIFEST, KeepFolder
from cordwood.storage.changes.swap import drop_segments
from cordwood.storage.formats import checkpoints, filenames, leader_epochs
from cordwood.storage.formats.filenames import WORK_FOLDER, FileKind, Temporary, offset_name
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.log.files import read_file
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.in_place import recover_in_place
from cordwood.testing.memory import MemoryFileSystem, PowerCut
from cordwood.testing.memory_journal import at_random, keep_all, lose_all
from tests.crashes import EVERY
from tests.storage.in_place import (
    NOW_MS,
    OTHER,
    T0,
    Tree,
    append,
    clean,
    clean_groups,
    make_directory,
    records,
    set_offsets,
    tree,
    write,
)

pytestmark = pytest.mark.more

posix = PosixFileSystem()
ROOT, PARTITION, KEPT = "/logs", "/logs/t-0", "/kept"
#: Retain: no segment, some of the cleaned ones, all cleaned ones, all segments.
RETAINED = [0, 6, 21, 24]


@functools.cache
def _directory() -> MemoryFileSystem:
    ticks = iter(range(10**9))
    fs = MemoryFileSystem(lambda: 1_000_000_000 + next(ticks))
    assert make_directory(fs, ROOT) == PARTITION
    return fs


def directory() -> MemoryFileSystem:
    """A directory that a test may change; all of it is durable."""
    return _directory().crash(keep_all)


@functools.cache
def _cleaned(retained: int) -> MemoryFileSystem:
    fs = directory()
    clean(fs, PARTITION, KEPT, retained=retained)
    return fs


def cleaned(retained: int) -> MemoryFileSystem:
    return _cleaned(retained).crash(keep_all)


def contents(fs: MemoryFileSystem) -> Tree:
    """The directory without files that were half written at the power cut, which brokers skip."""
    return {name: one for name, one in tree(fs, ROOT).items() if not name.endswith(Temporary.TMP)}


def is_unlost(fs: MemoryFileSystem, retained: int) -> bool:
    """Whether a reader finds all that it would find after the clean."""
    found, kept = records(fs, PARTITION), records(_cleaned(retained), PARTITION)
    return found.items() >= kept.items()


@pytest.mark.parametrize("retained", RETAINED)
def test_an_undone_clean_leaves_the_directory_as_it_was(retained: int) -> None:
    fs, before = cleaned(retained), tree(directory(), ROOT)
    assert tree(fs, ROOT) != before
    result = undo(KEPT, fs=fs)
    assert result.done, result.text()
    assert tree(fs, ROOT) == before
    assert not fs.exists(KEPT)


# ---- power cuts ------------------------------------------------------------------------------------------------------


def cuts(
    prepare: Callable[[], MemoryFileSystem], act: Callable[[MemoryFileSystem], object], *, every: int, draws: int
) -> Iterator[MemoryFileSystem]:
    """Power cuts at regular intervals of operations, with no unsynced change lost, all of them, and some of them."""
    source = random.Random(5)
    for count in itertools.count(0, every):
        fs = prepare()
        fs.fail_after(count)
        try:
            act(fs)
        except PowerCut:
            yield from (fs.crash(choose) for choose in (keep_all, lose_all, *(at_random(source) for _ in range(draws))))
        else:
            return


SOME = pytest.param(23, 0, id="some")
ALL = pytest.param(EVERY, 3, id="many", marks=pytest.mark.slow)


@pytest.mark.parametrize(("every", "draws"), [SOME, ALL])
@pytest.mark.parametrize("retained", RETAINED)
def test_a_clean_that_is_cut_off_anywhere_is_undone(retained: int, every: int, draws: int) -> None:
    before, count = contents(directory()), 0
    act = functools.partial(clean, partition=PARTITION, folder=KEPT, retained=retained)
    for fs in cuts(directory, act, every=every, draws=draws):
        count += 1
        assert is_unlost(fs, retained)
        try:
            result = undo(KEPT, fs=fs)
            assert result.done, result.text()
            assert not fs.exists(KEPT), fs.list(KEPT)
        except NotFoundError:
            pass
        found = contents(fs)
        assert {name: one for name, one in found.items() if WORK_FOLDER not in name} == before
    print(f"{count} power cuts")


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize(("every", "draws"), [SOME, ALL])
@pytest.mark.parametrize("retained", RETAINED)
def test_an_undo_that_is_cut_off_anywhere_loses_nothing_and_goes_on(
    retained: int, every: int, draws: int, loaded: bool
) -> None:
    before, count = contents(directory()), 0
    for fs in cuts(lambda: cleaned(retained), lambda fs: undo(KEPT, fs=fs), every=every, draws=draws):
        count += 1
        assert is_unlost(fs, retained)
        if loaded:
            recover_in_place(fs, LogView(PARTITION, fs=fs), crashed=False, recovery_point=0, now_ms=NOW_MS)
            assert is_unlost(fs, retained)
        if fs.exists(KEPT) and fs.list(KEPT):
            result = undo(KEPT, fs=fs)
            assert result.done, result.text()
        assert contents(fs) == before
    print(f"{count} power cuts")


# ---- Changes after the clean -----------------------------------------------------------------------------------------


def restart(fs: MemoryFileSystem) -> None:
    """Change the files as a broker does that is started and stopped without any append."""
    for name in filenames.OFFSET_CHECKPOINTS:
        data = read_file(fs, f"{ROOT}/{name}")
        write(fs, f"{ROOT}/{name}", data)
    set_offsets(fs, f"{ROOT}/{filenames.LOG_START_OFFSETS}", {T0: None})
    write(fs, f"{ROOT}/{filenames.CLEAN_SHUTDOWN}", b"{}")
    write(fs, f"{PARTITION}/{FileKind.LEADER_EPOCHS}", leader_epochs.encode([EpochEntry(0, 0), EpochEntry(1, 24)]))
    active = offset_name(LogView(PARTITION, fs=fs).segments[-1].base_offset, FileKind.OFFSET_INDEX)
    with fs.open_for_update(f"{PARTITION}/{active}") as file:
        size = file.size()
        file.truncate(10_000)
        file.truncate(size)


@pytest.mark.parametrize("retained", RETAINED)
def test_a_broker_that_was_started_and_stopped_is_no_reason_to_refuse(retained: int) -> None:
    fs = cleaned(retained)
    restart(fs)
    result = undo(KEPT, fs=fs)
    assert result.done, result.text()
    assert records(fs, PARTITION) == records(directory(), PARTITION)
    brokers = {
        filenames.CLEAN_SHUTDOWN,
        f"t-0/{FileKind.LEADER_EPOCHS}",
        "t-0/" + offset_name(21, FileKind.OFFSET_INDEX),
    }
    untouched = {
        filenames.RECOVERY_POINTS,
        filenames.HIGH_WATERMARKS,
        *([] if retained else [filenames.LOG_START_OFFSETS]),
    }
    found, before = tree(fs, ROOT), tree(directory(), ROOT)
    assert {name for name in before if found[name] != before[name]} <= brokers | untouched
    assert all(found[name][0] == before[name][0] for name in untouched)


def test_what_a_failed_attempt_left_is_no_segment_of_ours() -> None:
    fs = directory()
    with contextlib.closing(KeepFolder(fs, KEPT, [ROOT], [PARTITION])) as kept:
        for path in (f"{PARTITION}/{WORK_FOLDER}", f"{PARTITION}/{WORK_FOLDER}/failed"):
            fs.make_directory(path)
        append(fs, f"{PARTITION}/{WORK_FOLDER}/failed", 0, "abc")
        clean_groups(fs, PARTITION, kept)
        drop_segments(fs, PARTITION, [0, 6], 24, keep=kept.keep)
    result = undo(KEPT, fs=fs)
    assert result.done, result.text()
    assert tree(fs, ROOT) == tree(directory(), ROOT)


def test_what_checkpoints_say_of_other_partitions_stays() -> None:
    fs = cleaned(6)
    set_offsets(fs, f"{ROOT}/{filenames.CLEANER_OFFSETS}", {OTHER: 6})
    assert undo(KEPT, fs=fs).done
    offsets = checkpoints.decode(read_file(fs, f"{ROOT}/{filenames.CLEANER_OFFSETS}"))
    assert offsets == {OTHER: 6}
    assert read_file(fs, f"{ROOT}/{filenames.LOG_START_OFFSETS}") == checkpoints.encode({})


def grow(fs: MemoryFileSystem) -> None:
    with fs.open_for_update(f"{PARTITION}/{offset_name(21, FileKind.LOG)}") as file:
        file.write(file.size(), encode_batch([Record(24, 2000, b"g", b"24")]))


def roll(fs: MemoryFileSystem) -> None:
    append(fs, PARTITION, 24, "g")


def touch(fs: MemoryFileSystem) -> None:
    fs.set_mtime_ns(f"{PARTITION}/{offset_name(21, FileKind.LOG)}", 1)


def clean_again(fs: MemoryFileSystem) -> None:
    clean(fs, PARTITION, None)


def delete(fs: MemoryFileSystem) -> None:
    log = LogView(PARTITION, fs=fs)
    for info in (log.segments[0].files.log, *log.segments[0].files.indexes.values()):
        fs.unlink(f"{PARTITION}/{info.name}")


def move_start(fs: MemoryFileSystem) -> None:
    set_offsets(fs, f"{ROOT}/{filenames.LOG_START_OFFSETS}", {T0: 23})


def move_cleaner(fs: MemoryFileSystem) -> None:
    set_offsets(fs, f"{ROOT}/{filenames.CLEANER_OFFSETS}", {T0: 24})


def drop_partition(fs: MemoryFileSystem) -> None:
    fs.rename(PARTITION, f"{PARTITION}.0123-delete")


def drop_kept(fs: MemoryFileSystem) -> None:
    fs.unlink(f"{KEPT}/logs/t-0/{offset_name(9, FileKind.OFFSET_INDEX)}")


def change_kept(fs: MemoryFileSystem) -> None:
    fs.set_mtime_ns(f"{KEPT}/logs/t-0/{offset_name(9, FileKind.LOG)}", 1)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (grow, r"t-0/0{18}21\.log: appended to since: it had \d+ bytes, and has \d+$"),
        (roll, r"t-0/0{18}24\.log: written since"),
        (touch, r"t-0/0{18}21\.log: written to since"),
        (clean_again, r"t-0/0{20}\.log: written since, by appends or by another clean$"),
        (delete, r"t-0/0{20}\.log: deleted since"),
        (move_start, r"log-start-offset-checkpoint: t-0 is at 23 now, and the clean left it at 6: it was deleted from"),
        (move_cleaner, r"cleaner-offset-checkpoint: t-0 is at 24 now, and the clean left it at 21: it was cleaned"),
        (drop_partition, r"t-0: the partition is gone$"),
        (drop_kept, r"kept/logs/t-0/0{19}9\.index: no longer there"),
        (change_kept, r"kept/logs/t-0/0{19}9\.log: written to since$"),
    ],
)
def test_what_was_done_since_is_named_and_nothing_is_changed(
    change: Callable[[MemoryFileSystem], None], what: str
) -> None:
    fs = cleaned(6 if change is move_start else 0)
    change(fs)
    before, kept = tree(fs, ROOT), tree(fs, KEPT)
    result = undo(KEPT, fs=fs)
    assert not result.done
    assert re.search(what, result.text(), re.MULTILINE), result.text()
    assert (tree(fs, ROOT), tree(fs, KEPT)) == (before, kept)


def test_a_partition_that_the_clean_never_came_to_may_have_gone_on() -> None:
    fs = directory()
    with contextlib.closing(KeepFolder(fs, KEPT, [ROOT], [PARTITION])) as kept:
        kept.keep(PARTITION, [offset_name(0, FileKind.LOG)])
    grow(fs)
    before = tree(fs, ROOT)
    result = undo(KEPT, fs=fs)
    assert (result.done, result.partitions) == (True, ())
    assert tree(fs, ROOT) == before
    assert not fs.exists(KEPT)


def test_what_somebody_else_put_into_the_folder_stays_there() -> None:
    fs = cleaned(0)
    write(fs, f"{KEPT}/mine", b"mine")
    assert "/kept is kept, as it holds other files" in undo(KEPT, fs=fs).text()
    assert read_file(fs, f"{KEPT}/mine") == b"mine"
    assert undo(KEPT, fs=fs).partitions == ()


# ---- recovery --------------------------------------------------------------------------------------------------------


@functools.cache
def _crashed() -> MemoryFileSystem:
    """A directory whose broker lost its power: a batch is torn, and there are segments behind it."""
    fs = directory()
    fs.unlink(f"{ROOT}/{filenames.CLEAN_SHUTDOWN}")
    set_offsets(fs, f"{ROOT}/{filenames.RECOVERY_POINTS}", {T0: 12})
    torn = f"{PARTITION}/{offset_name(15, FileKind.LOG)}"
    with fs.open_for_update(torn) as file:
        file.truncate(file.size() - 5)
        file.sync()
    return fs


def crashed() -> MemoryFileSystem:
    return _crashed().crash(keep_all)


def recover(fs: MemoryFileSystem) -> None:
    with contextlib.closing(KeepFolder(fs, KEPT, [ROOT], [PARTITION])) as kept:
        came = recover_in_place(
            fs, LogView(PARTITION, fs=fs), crashed=True, recovery_point=12, now_ms=NOW_MS, keep=kept.keep
        )
        kept.checkpoints(ROOT, {filenames.RECOVERY_POINTS: {T0: came.next_offset}}, clean_shutdown=True)
        checkpoints.update(fs, f"{ROOT}/{filenames.RECOVERY_POINTS}", {T0: came.next_offset})
        write(fs, f"{ROOT}/{filenames.CLEAN_SHUTDOWN}", b"{}")


def recover_and_clean(fs: MemoryFileSystem) -> None:
    with contextlib.closing(KeepFolder(fs, KEPT, [ROOT], [PARTITION])) as kept:
        recover_in_place(fs, LogView(PARTITION, fs=fs), crashed=True, recovery_point=12, now_ms=NOW_MS, keep=kept.keep)
        clean_groups(fs, PARTITION, kept)


@pytest.mark.parametrize("act", [recover, recover_and_clean])
def test_what_a_recovery_cut_comes_back(act: Callable[[MemoryFileSystem], None]) -> None:
    fs, before = crashed(), tree(crashed(), ROOT)
    act(fs)
    assert max(records(fs, PARTITION)) == 16
    result = undo(KEPT, fs=fs)
    assert result.done, result.text()
    assert tree(fs, ROOT) == before


@pytest.mark.parametrize(("every", "draws"), [SOME, ALL])
@pytest.mark.parametrize("act", [recover, recover_and_clean])
def test_a_recovery_that_is_cut_off_anywhere_is_undone(
    act: Callable[[MemoryFileSystem], None], every: int, draws: int
) -> None:
    before = contents(crashed())
    for fs in cuts(crashed, act, every=every, draws=draws):
        with contextlib.suppress(NotFoundError):
            result = undo(KEPT, fs=fs)
            assert result.done, result.text()
        assert {name: one for name, one in contents(fs).items() if WORK_FOLDER not in name} == before


# ---- the folder ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("logs/kept", "is in .*/logs, where a broker"),
        ("logs/t-0/kept", "is in .*/logs, where a broker"),
        ("logs", "is in .*/logs, where a broker"),
        (".", "/logs is in .*, which must hold only kept files"),
        ("full", "exists and is not empty"),
        ("nowhere/kept", "nowhere does not exist"),
    ],
)
def test_a_folder_that_is_of_no_use_is_refused_before_it_is_made(path: str, what: str, tmp_path: Path) -> None:
    partition = make_directory(posix, str(tmp_path / "logs"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    before = tree(posix, str(tmp_path))
    with pytest.raises(RequestError, match=what):
        KeepFolder(posix, str(tmp_path / path), [str(tmp_path / "logs")], [partition])
    assert tree(posix, str(tmp_path)) == before


@pytest.mark.parametrize("was_there", [False, True])
def test_folder_in_which_nothing_was_kept_is_removed_if_it_is_new(was_there: bool, tmp_path: Path) -> None:
    partition = make_directory(posix, str(tmp_path / "logs"))
    if was_there:
        (tmp_path / "kept").mkdir()
    before = tree(posix, str(tmp_path))
    with contextlib.closing(KeepFolder(posix, str(tmp_path / "kept"), [str(tmp_path / "logs")], [partition])) as kept:
        assert kept.is_empty
    assert tree(posix, str(tmp_path)) == before


def test_a_folder_on_another_disk_is_refused(other_disk: Path, tmp_path: Path) -> None:
    partition = make_directory(posix, str(tmp_path / "logs"))
    with pytest.raises(RequestError, match=r"is on another file system than .*/logs"):
        KeepFolder(posix, str(other_disk / "kept"), [str(tmp_path / "logs")], [partition])


def test_a_file_that_is_a_link_to_another_disk_is_refused(other_disk: Path, tmp_path: Path) -> None:
    partition = Path(make_directory(posix, str(tmp_path / "logs")))
    segment = next(partition.glob("*.log"))
    shutil.move(segment, other_disk / segment.name)
    segment.symlink_to(other_disk / segment.name)
    (partition / "notes").symlink_to(other_disk / segment.name)
    before = tree(posix, str(tmp_path))
    with pytest.raises(RequestError, match=rf"{segment.name} is a link to another file system"):
        KeepFolder(posix, str(tmp_path / "kept"), [str(tmp_path / "logs")], [str(partition)])
    assert tree(posix, str(tmp_path)) == before


class UnstableInodes(PosixFileSystem):
    """Gives each name of a file a number of its own, as some network and FUSE file systems do."""

    def stat(self, path: str) -> FileInfo:
        found = super().stat(path)
        return replace(found, inode=zlib.crc32(path.encode())) if not found.is_directory else found

    def list(self, path: str) -> list[FileInfo]:
        return [self.stat(f"{path}/{info.name}") for info in super().list(path)]


def test_nothing_is_kept_where_a_file_and_its_link_have_two_inode_numbers(tmp_path: Path) -> None:
    unstable = UnstableInodes()
    partition = make_directory(posix, str(tmp_path / "logs"))
    before = tree(posix, str(tmp_path / "logs"))
    with (
        contextlib.closing(KeepFolder(unstable, str(tmp_path / "kept"), [str(tmp_path / "logs")])) as kept,
        pytest.raises(RequestError, match="do not have the same inode number"),
    ):
        kept.keep(partition, [offset_name(0, FileKind.LOG)])
    assert tree(posix, str(tmp_path / "logs")) == before


def test_directories_of_the_same_name_are_kept_apart(tmp_path: Path) -> None:
    roots = []
    for disk in ("a", "b"):
        (tmp_path / disk).mkdir()
        roots.append(str(tmp_path / disk / "logs"))
        make_directory(posix, roots[-1])
    with contextlib.closing(KeepFolder(posix, str(tmp_path / "kept"), roots)) as kept:
        for root in roots:
            kept.keep(f"{root}/t-0", [offset_name(0, FileKind.LOG)])
    found = sorted(str(path.relative_to(tmp_path / "kept")) for path in (tmp_path / "kept").rglob("*.log"))
    assert found == [f"logs-2/t-0/{offset_name(0, '.log')}", f"logs/t-0/{offset_name(0, '.log')}"]


def test_a_folder_that_is_none_of_ours_is_not_undone(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no clean kept old files there"):
        undo(str(tmp_path))


@pytest.mark.parametrize(
    "line",
    [
        '{"record": "folders", "version": 2, "folders": {}}',
        '{"record": "folders", "version": 1, "folders": {"/logs": "../logs"}}',
        '{"record": "partition", "path": "/elsewhere/t-0", "files": []}',
        '{"record": "else"}',
        "[]",
        "{",
    ],
)
def test_a_manifest_that_was_changed_is_damage(line: str, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(f"{line}\n")
    with pytest.raises(CorruptFileError, match="line 1 is not as it was written"):
        undo(str(tmp_path))
