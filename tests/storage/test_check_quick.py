"""`check --quick` finds no more than `check`, all damage in the bytes that it reads, and reports the unread bytes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.wrapped import CountedStore
from cordwood.storage.check import Check, Finding, Kind, Severity
from cordwood.storage.check.sampling import Quick
from cordwood.storage.formats.filenames import FileKind, offset_name
from tests.command import run
from tests.fixtures import CRASHED, STOPPED, fixture
from tests.knobs import in_turns
from tests.logs import make_large_log
from tests.storage.damage_sites import FILES, SITES, Plant, change, flip, places, small

MIB = 1 << 20


def found_by(path: Path, quick: Quick | None) -> tuple[list[Finding], Check]:
    check = Check(PosixFileSystem(), quick=quick)
    return list(check.run([str(path)])), check


# ---- no more than a whole check --------------------------------------------------------------------------------------


@pytest.mark.more
@pytest.mark.parametrize("name", in_turns([*STOPPED, *CRASHED], "legacy-v1-before", "kraft-crashed-torn"))
def test_a_quick_check_finds_nothing_that_a_whole_check_does_not_find(name: str) -> None:
    (some, quick), (all_of_it, whole) = found_by(fixture(name), small()), found_by(fixture(name), None)
    assert places(some) <= places(all_of_it)
    assert {(one.effect, one.path) for one in quick.start.events} <= {
        (one.effect, one.path) for one in whole.start.events
    }
    assert quick.start.served == whole.start.served
    looked = quick.summary.looked
    assert looked is not None
    assert looked.sampled > 0 or name.startswith("kraft-jbod")
    assert (looked.endless, looked.doubtful) == ([], [])


# ---- damage in the bytes that a quick check reads --------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory of a stopped broker, with a log of large segments."""
    directory = tmp_path_factory.mktemp("large")
    make_large_log(directory / "t-0")
    for name in FILES:
        shutil.copy(fixture(SITES["orders"][0]) / name, directory / name)
    return directory


@pytest.fixture
def directory(large: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(large, tmp_path / "data"))


def segment_of(partition: Path, number: int, kind: FileKind) -> str:
    """The name of a segment's file."""
    bases = sorted(int(path.stem) for path in partition.glob("*.log"))
    return offset_name(bases[number], kind)


def on(number: int, kind: FileKind, plant: Callable[[str], Plant]) -> Plant:
    """Damage a file of a segment."""
    return lambda partition: plant(segment_of(partition, number, kind))(partition)


def edited(number: int, kind: FileKind, edit: Callable[[bytearray], bytes | bytearray]) -> Plant:
    """Change a file of a segment."""
    return on(number, kind, lambda name: change(name, edit))


def bit(position: int) -> Callable[[bytearray], bytes]:
    """Flip a bit of the byte at a position, from the end if it is negative."""
    return lambda data: bytes(data[:position]) + bytes([data[position] ^ 1]) + bytes(data[len(data[:position]) + 1 :])


LOG, INDEX, TIMES = FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX
PLANTS: dict[str, tuple[Plant, Kind]] = {
    "first batch": (edited(2, LOG, bit(100)), Kind.BATCH_CRC),
    "last batch": (edited(2, LOG, bit(-1)), Kind.BATCH_CRC),
    "torn segment": (edited(1, LOG, lambda data: data[:-7]), Kind.TORN_SEGMENT),
    "torn end": (edited(-1, LOG, lambda data: data[:-7]), Kind.TORN_TAIL),
    "half an entry": (edited(1, INDEX, lambda data: data + b"abc"), Kind.INDEX_SIZE),
    "entry behind the end": (edited(1, INDEX, lambda data: data + b"\x7f" * 8), Kind.OFFSET_INDEX_POSITION),
    "last entry inside a batch": (edited(1, INDEX, bit(-1)), Kind.OFFSET_INDEX_POSITION),
    "last time": (edited(1, TIMES, bit(-5)), Kind.TIME_INDEX_ENTRY),
    "time index cut": (edited(1, TIMES, lambda data: data[: 12 * 50]), Kind.TIME_INDEX_END),
    "snapshot": (edited(1, FileKind.PRODUCER_SNAPSHOT, bit(2)), Kind.SNAPSHOT_UNREADABLE),
    "no index": (on(1, INDEX, lambda name: lambda partition: (partition / name).unlink()), Kind.INDEX_MISSING),
    "no segment": (on(2, LOG, lambda name: lambda partition: (partition / name).unlink()), Kind.INDEX_WITHOUT_LOG),
    "leader epochs": (
        lambda partition: (partition / "leader-epoch-checkpoint").write_text("0\n1\n0 9999999\n"),
        Kind.LEADER_EPOCHS_BEYOND_END,
    ),
    "checkpoint": (
        lambda partition: (partition.parent / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 9999999\n"),
        Kind.CHECKPOINT_BEYOND_END,
    ),
}


@pytest.mark.more
@pytest.mark.parametrize("name", PLANTS)
def test_damage_in_what_a_quick_check_reads_is_found_as_by_a_whole_check(name: str, directory: Path) -> None:
    plant, kind = PLANTS[name]
    plant(directory / "t-0")
    (some, _), (all_of_it, _) = found_by(directory, Quick()), found_by(directory, None)
    assert kind in {one.kind for one in some}
    assert places(some) == places(all_of_it)


def test_damage_between_samples_is_not_found_and_the_result_says_what_was_not_read(directory: Path) -> None:
    partition = directory / "t-0"
    _between(partition)
    result = run("check", "--quick", directory)
    assert "no problem found\nlooked at " in result.stdout
    assert "Not read: of 5 large segments (" in result.stdout
    assert "Run cordwood check without --quick to read all." in result.stdout
    run("check", directory, exits=1)


def _between(partition: Path) -> None:
    """Damage the batch behind the entry in the middle of an index, in no sample: the samples are elsewhere."""
    path = partition / segment_of(partition, 1, LOG)
    flip(path.name, path.stat().st_size // 2 + 5_000)(partition)


# ---- amounts ---------------------------------------------------------------------------------------------------------


def test_a_quick_check_reads_little_of_large_segments(directory: Path) -> None:
    few = CountedStore(PosixFileSystem())
    check = Check(few, quick=Quick())
    assert list(check.run([str(directory)])) == []
    looked = check.summary.looked
    assert looked is not None
    assert looked.read_bytes == few.bytes_read < 5 * MIB // 5
    assert looked.sampled == 5


def test_the_json_summary_has_what_was_read_and_what_was_not(directory: Path) -> None:
    summary = json.loads(run("check", "--quick", "--json", directory).stdout)
    quick = summary["quick"]
    assert quick["sampled_segments"] == 5
    assert quick["read_bytes"] < quick["sampled_bytes"] < summary["size_bytes"]
    assert quick["not_read"].startswith("of 5 large segments")
    assert "quick" not in json.loads(run("check", "--json", directory).stdout)


def test_of_small_segments_everything_is_read() -> None:
    text = run("check", "--quick", fixture("kraft-jbod-before")).stdout
    assert re.search(r"\neverything was read, [0-9.]+ kB: no segment is large enough for a sample\n$", text)


def test_damage_in_more_segments_than_it_may_read_whole_is_named_only(directory: Path) -> None:
    partition = directory / "t-0"
    for number in (1, 2):
        flip(segment_of(partition, number, LOG), 100)(partition)
    found, check = found_by(directory, Quick(confirm_bytes=4 * MIB))
    assert [one.kind for one in found] == [Kind.BATCH_CRC]
    assert check.summary.looked is not None
    assert len(check.summary.looked.doubtful) == 1
    assert check.summary.damaged


def test_the_end_of_a_segment_without_an_offset_index_is_not_looked_for(directory: Path) -> None:
    partition = directory / "t-0"
    name = segment_of(partition, -1, INDEX)
    (partition / name).unlink()
    some, check = found_by(directory, Quick(tail_bytes=MIB))
    assert places(some) <= places(found_by(directory, None)[0])
    assert check.summary.looked is not None
    assert [Path(path).name for path in check.summary.looked.endless] == [segment_of(partition, -1, LOG)]
    assert check.start.served == {}


# ---- the verdict -----------------------------------------------------------------------------------------------------


def test_after_a_crash_the_verdict_depends_on_data_that_was_not_read(directory: Path) -> None:
    (directory / ".kafka_cleanshutdown").unlink()
    _, check = found_by(directory, Quick())
    assert check.start.starts is None
    assert check.start.line.endswith("that it reads first, of which a sample was read")
    assert "serves its one partition, unless there is damage in the 16.8 MB" in check.start.line


def test_after_a_clean_stop_a_start_reads_no_more_than_a_quick_check(directory: Path) -> None:
    _, check = found_by(directory, Quick())
    assert check.start.starts
    assert check.start.line == "a broker starts and serves its one partition"


def test_records_that_a_cut_loses_are_counted_at_least(directory: Path) -> None:
    (directory / ".kafka_cleanshutdown").unlink()
    partition = directory / "t-0"
    flip(segment_of(partition, 1, LOG), 100)(partition)
    some, check = found_by(directory, Quick())
    assert [one.behind for one in some if one.severity is Severity.DAMAGE] == [None]
    assert "(at least " in check.start.line
