"""One task: its reads before it cleans, its reaction to damage, and the check of its outputs."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cordwood.api import plan as make_plan
from cordwood.bench.generate import KeyPattern, Shape, write_keyed_log
from cordwood.cleaning.engine import partition, readahead
from cordwood.cleaning.engine.facts import CleanSettings, load_producers, segment_facts
from cordwood.cleaning.engine.partition import CleanRequest, clean_partition
from cordwood.cleaning.engine.readahead import PACKED_BYTES, segment_windows_from
from cordwood.cleaning.engine.task import Failure, FailureKind, Output, PartitionTask, check_output, run_task, tasks_of
from cordwood.cleaning.rules.key_table import MemoryShare
from cordwood.cleaning.rules.rewrite import Counts
from cordwood.common.errors import CordwoodError, CorruptBatchError
from cordwood.common.types import Codec
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import encode_batch
from cordwood.record.columns import BatchWindow
from cordwood.record.record import Record
from cordwood.storage.formats import producer_state
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.formats.producer_state import ProducerEntry
from cordwood.storage.log import windows
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, WindowReader
from cordwood.storage.recovery.replay import Producers
from tests.fixtures import fixture
from tests.fs.disks import Acting
from tests.logs import MTIME, batch, make_log

pytestmark = pytest.mark.more

DAY = 86_400_000


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of some kilobytes have many windows."""
    for name, size in (("WINDOW_BYTES", 20_000), ("SMALL_WINDOW_BYTES", 10_000), ("PACKED_BYTES", 10_000)):
        monkeypatch.setattr(readahead, name, size)


def write_snapshot(folder: Path, offset: int, *entries: ProducerEntry) -> Path:
    path = folder / offset_name(offset, FileKind.PRODUCER_SNAPSHOT)
    path.write_bytes(producer_state.encode(entries))
    return path


def entry(id: int, last_offset: int, timestamp: int) -> ProducerEntry:
    return ProducerEntry(id, 0, last_offset, last_offset, 0, timestamp, -1, -1)


def last_offsets(producers: Producers) -> dict[int, int]:
    return {id: one.last_offset for id, one in producers.by_id.items()}


def log_with_a_snapshot(folder: Path) -> Path:
    """A log of producers 1, 2 and 3, a segment each; the snapshot of offset 1 has producer 8."""
    batches = [batch(at, time=0, producer=at + 1, transactional=False) for at in range(3)]
    make_log(folder, *([one] for one in batches))
    write_snapshot(folder, 1, entry(8, 0, 0))
    return folder


def test_producers_are_those_of_the_newest_snapshot_and_of_the_batches_behind_it(tmp_path: Path) -> None:
    folder = log_with_a_snapshot(tmp_path / "t-0")
    write_snapshot(folder, 2, entry(9, 1, 0))
    assert last_offsets(load_producers(LogView(str(folder), fs=PosixFileSystem()), now_ms=10)) == {9: 1, 3: 2}


def test_a_snapshot_that_cannot_be_read_is_passed_over_for_an_older_one(tmp_path: Path) -> None:
    folder = log_with_a_snapshot(tmp_path / "t-0")
    write_snapshot(folder, 2, entry(9, 1, 0)).write_bytes(b"broken")
    assert last_offsets(load_producers(LogView(str(folder), fs=PosixFileSystem()), now_ms=10)) == {8: 0, 2: 1, 3: 2}


def test_a_snapshot_at_the_log_start_is_not_used(tmp_path: Path) -> None:
    # As a broker, which removes it when it loads the log.
    folder = tmp_path / "t-0"
    make_log(folder, [batch(1, time=0, producer=2, transactional=False)])
    write_snapshot(folder, 1, entry(8, 0, 0))
    assert last_offsets(load_producers(LogView(str(folder), log_start_offset=1, fs=PosixFileSystem()), now_ms=10)) == {
        2: 1
    }


def test_a_snapshot_above_the_log_end_is_not_used(tmp_path: Path) -> None:
    # Its batches were truncated.
    folder = tmp_path / "t-0"
    make_log(folder, [batch(0, time=0, producer=1, transactional=False)], (1, []))
    write_snapshot(folder, 1, entry(8, 0, 0))
    write_snapshot(folder, 2, entry(9, 1, 0))
    assert last_offsets(load_producers(LogView(str(folder), log_start_offset=0, fs=PosixFileSystem()), now_ms=10)) == {
        8: 0
    }


def test_producers_of_a_snapshot_expire_a_day_after_their_last_batch(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    make_log(folder, [batch(0, time=0)], (1, []))
    write_snapshot(folder, 1, entry(1, 0, 0), entry(2, 0, 1))
    assert last_offsets(load_producers(LogView(str(folder), fs=PosixFileSystem()), now_ms=DAY)) == {2: 0}


def test_a_segment_without_timestamps_is_as_old_as_its_file(tmp_path: Path) -> None:
    log = make_log(tmp_path / "t-0", [batch(0, time=77)], [batch(1, time=-1)], (2, []))
    facts = [segment_facts(segment) for segment in log.segments]
    assert [one.largest_timestamp for one in facts] == [77, MTIME, MTIME]
    sizes = [(one.size_bytes, one.index_bytes, one.time_index_bytes) for one in facts]
    assert sizes == [(70, 0, 12), (70, 0, 0), (0, 0, 0)]


def clean(log: LogView, target: Path, end: int, suffix: str = "") -> partition.Cleaned:
    target.mkdir()
    return clean_partition(
        PosixFileSystem(),
        log,
        str(target),
        CleanRequest(
            first_dirty=0,
            first_uncleanable=end,
            now_ms=0,
            settings=CleanSettings(),
            producers=Producers(),
        ),
        suffix=suffix,
    )


def test_outputs_get_the_suffix_and_the_last_sources_time(tmp_path: Path) -> None:
    log = make_log(tmp_path / "t-0", [batch(0, time=0)], [batch(1, time=0)], (2, []))
    before = {path.name: path.read_bytes() for path in (tmp_path / "t-0").iterdir()}
    cleaned = clean(log, tmp_path / "out", 2, ".cleaned")
    assert (cleaned.end_offset, cleaned.replaced, cleaned.outputs) == (2, ((0, 1),), ((0,),))
    assert cleaned.counts == Counts(
        bytes_read=140,
        bytes_written=70,
        batches_read=2,
        batches_verbatim=1,
        batches_dropped=1,
        records_read=2,
        records_kept=1,
        records_superseded=1,
    )
    names = [f"{0:020}.{kind}.cleaned" for kind in ("index", "log", "timeindex")]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    assert {(tmp_path / "out" / name).stat().st_mtime_ns for name in names} == {MTIME * 1_000_000}
    assert {path.name: path.read_bytes() for path in (tmp_path / "t-0").iterdir()} == before


@pytest.mark.parametrize("flip", [3, 30, 69])
def test_a_damaged_batch_stops_the_clean_and_says_where_it_is(tmp_path: Path, flip: int) -> None:
    # Its length, its header, its last byte. A lost marker would make good data look aborted.
    folder = tmp_path / "t-0"
    make_log(folder, [batch(0, time=0), batch(1, "j=v", time=0)], [batch(2, time=0)], (3, []))
    path = folder / offset_name(0, FileKind.LOG)
    stored = bytearray(path.read_bytes())
    stored[70 + (8 + flip if flip == 3 else flip)] ^= 0x40
    path.write_bytes(stored)
    with pytest.raises(CorruptBatchError) as caught:
        clean(LogView(str(folder), log_start_offset=0, fs=PosixFileSystem()), tmp_path / "out", 3)
    assert caught.value.path == str(path)
    assert caught.value.position == 70


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("dirty", [True, False])
@pytest.mark.usefixtures("small_windows")
def test_damage_in_any_window_fails_the_clean(tmp_path: Path, codec: Codec, dirty: bool) -> None:
    partition = tmp_path / "topic-0"
    partition.mkdir()
    shape = Shape(codec=codec, batch_bytes=1000)
    write_keyed_log(
        PosixFileSystem(),
        str(partition),
        records=1_600,
        keys=KeyPattern(50),
        shape=shape,
        segment_bytes=100_000,
        seed=1,
    )
    log = LogView(str(partition), fs=PosixFileSystem())
    _, second, third = (segment.base_offset for segment in log.segments)
    batches = [row for window in WindowReader(log.segments[0].open(), Checks.WHOLE) for row in window.batches]  # type: ignore[union-attr]
    path = Path(log.segments[0].path)
    whole = path.read_bytes()
    for number, row in enumerate(batches[::7]):
        at, size = int(row["position"]), int(row["size_bytes"])
        path.write_bytes(whole[: at + size - 1] + bytes([whole[at + size - 1] ^ 1]) + whole[at + size :])
        target = tmp_path / f"out-{number}"
        target.mkdir()
        with pytest.raises(CorruptBatchError, match="CRC-32C mismatch") as caught:
            clean_partition(
                PosixFileSystem(),
                log,
                str(target),
                CleanRequest(
                    first_dirty=0 if dirty else second,
                    first_uncleanable=third,
                    now_ms=0,
                    settings=CleanSettings(),
                    producers=Producers(),
                ),
            )
        assert (caught.value.path, caught.value.position) == (str(path), at)


@pytest.mark.usefixtures("small_windows")
def test_error_names_the_first_of_two_damaged_batches(
    tmp_path: Path,
) -> None:
    partition = tmp_path / "topic-0"
    partition.mkdir()
    write_keyed_log(
        PosixFileSystem(),
        str(partition),
        records=1_600,
        keys=KeyPattern(50),
        shape=Shape(batch_bytes=1000),
        segment_bytes=100_000,
        seed=1,
    )
    log = LogView(str(partition), fs=PosixFileSystem())
    path = Path(log.segments[0].path)
    stored = bytearray(path.read_bytes())
    stored[100] ^= 1
    stored[5_000:] = b"\xff" * (len(stored) - 5_000)
    path.write_bytes(stored)
    for number in range(20):
        with pytest.raises(CorruptBatchError, match="CRC-32C mismatch") as caught:
            clean(log, tmp_path / f"out-{number}", log.segments[-1].base_offset)
        assert caught.value.position == 0


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("spoilt", ["the input", "the output", "the memory"])
def test_a_clean_that_fails_leaves_no_thread_behind(tmp_path: Path, spoilt: str) -> None:
    partition = tmp_path / "topic-0"
    partition.mkdir()
    write_keyed_log(PosixFileSystem(), str(partition), records=24_000, keys=KeyPattern(5_000), shape=Shape(), seed=1)
    log = LogView(str(partition), fs=PosixFileSystem())
    path = Path(log.segments[0].path)
    settings = CleanSettings(memory=MemoryShare(1 << 18) if spoilt == "the memory" else None)
    if spoilt == "the input":
        stored = path.read_bytes()
        path.write_bytes(stored[:150_000] + bytes(10) + stored[150_010:])
    writes = itertools.count(1)

    def fail_at_the_second_write(verb: str, path: str) -> None:
        if spoilt == "the output" and verb == "write" and next(writes) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    before = threading.enumerate()
    with pytest.raises((CordwoodError, OSError)) as caught:
        clean_partition(
            Acting(PosixFileSystem(), fail_at_the_second_write),
            log,
            str(tmp_path),
            CleanRequest(
                first_dirty=0,
                first_uncleanable=log.segments[-1].base_offset,
                now_ms=0,
                settings=settings,
                producers=Producers(),
            ),
        )
    # All that was left in the middle is still there, held by the error.
    assert caught.traceback
    assert threading.enumerate() == before


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_batch_larger_than_a_window_is_rewritten_whole(tmp_path: Path, codec: Codec) -> None:
    noise = np.random.default_rng(7).bytes(readahead.WINDOW_BYTES + 1000)
    pair = [Record(0, 0, b"a", noise), Record(1, 0, b"b", noise)]
    log = make_log(tmp_path / "t-0", (0, [encode_batch(pair, codec=codec)]), [batch(2, "a=v", time=0)], (3, []))
    cleaned = clean(log, tmp_path / "out", 3)
    assert cleaned.counts.batches_rebuilt == 1
    kept = list(LogView(str(tmp_path / "out"), log_start_offset=0, fs=PosixFileSystem()).records())
    assert kept == [pair[1], Record(2, 0, b"a", b"v")]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("rebuilt", [True, False])
def test_a_batch_too_large_to_be_read_at_once_is_copied_or_rewritten_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: Codec, rebuilt: bool
) -> None:
    monkeypatch.setattr(windows, "LARGEST_WINDOW_BYTES", 20_000)
    monkeypatch.setattr(readahead, "WINDOW_BYTES", 10_000)
    noise = np.random.default_rng(7).bytes(30_000)
    # Each is the last of its segment, whose file is closed by the time that the batch is worked on.
    pairs = [
        [Record(2 * n, 0, b"same" if rebuilt else b"%d" % n, noise), Record(2 * n + 1, 0, b"own %d" % n, noise)]
        for n in range(4)
    ]
    segments = [(2 * n, [encode_batch(pair, codec=codec)]) for n, pair in enumerate(pairs)]
    log = make_log(tmp_path / "t-0", *segments, (8, []))
    cleaned = clean(log, tmp_path / "out", 8)
    assert cleaned.counts.batches_verbatim == (1 if rebuilt else 4)
    kept = list(LogView(str(tmp_path / "out"), log_start_offset=0, fs=PosixFileSystem()).records())
    assert kept == [record for pair in pairs for record in pair if record.key != b"same" or record.offset == 6]


def test_a_batch_larger_than_any_segment_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((windows, "LARGEST_WINDOW_BYTES"), (readahead, "LARGEST_BATCH_BYTES")):
        monkeypatch.setattr(module, name, 20_000)
    monkeypatch.setattr(readahead, "WINDOW_BYTES", 10_000)
    log = make_log(tmp_path / "t-0", [batch(0, time=0), batch(1, (b"k", b"v" * 30_000), time=0)], (2, []))
    with pytest.raises(CorruptBatchError, match="larger than a segment") as caught:
        clean(log, tmp_path / "out", 2)
    assert (caught.value.path, caught.value.offset) == (log.segments[0].path, 1)


def test_counts_that_do_not_add_up_are_our_mistake() -> None:
    good = Counts(records_read=3, records_kept=1, records_superseded=2, batches_read=1, batches_rebuilt=1)
    good.check()
    for name in ("records_kept", "batches_rebuilt"):
        with pytest.raises(AssertionError):
            dataclasses.replace(good, **{name: 2}).check()


def test_a_compressed_window_is_cut_into_parts_that_hold_all_its_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readahead, "WINDOW_BYTES", 4 << 20)
    partition = tmp_path / "topic-0"
    partition.mkdir()
    write_keyed_log(
        PosixFileSystem(), str(partition), records=80_000, keys=KeyPattern(50), shape=Shape(codec=Codec.LZ4), seed=1
    )
    log = LogView(str(partition), fs=PosixFileSystem())
    (whole, *_) = WindowReader(log.segments[0].open(), Checks.WHOLE, window_bytes=readahead.WINDOW_BYTES)
    assert isinstance(whole, BatchWindow)
    parts = list(
        itertools.takewhile(
            lambda part: part.position < whole.data.size, segment_windows_from(log.segments[0], 0, Checks.DEFERRED)
        )
    )
    assert len(parts) == readahead.WINDOW_BYTES // PACKED_BYTES
    assert np.array_equal(np.concatenate([part.batches for part in parts]), whole.batches)
    assert b"".join(part.data for part in parts) == whole.data.tobytes()
    assert [part.position for part in parts] == [int(part.batches["position"][0]) for part in parts]


# ---- checking --------------------------------------------------------------------------------------------------------


Spoil = Callable[[Path, Output], Output]


@pytest.fixture
def cleaned(tmp_path: Path) -> tuple[PartitionTask, Output]:
    """A partition of several segments, cleaned."""
    for name in ("outputs", "progress"):
        (tmp_path / name).mkdir()
    plan = make_plan(str(fixture("kraft-before")), partitions=["orders-0"], ignore_ratio=True)
    (task,) = tasks_of(plan, PosixFileSystem().location())
    output = run_task(task, str(tmp_path / "outputs"), str(tmp_path / "progress"))
    assert isinstance(output, Output)
    return task, output


def log_of(folder: Path) -> Path:
    return max(folder.glob("*.log"), key=lambda path: path.stat().st_size)


def _flip(suffix: str, position: int) -> Spoil:
    def spoil(folder: Path, output: Output) -> Output:
        path = log_of(folder).with_suffix(suffix)
        data = bytearray(path.read_bytes())
        data[position] ^= 1
        path.write_bytes(data)
        return output

    return spoil


def _cut(folder: Path, output: Output) -> Output:
    path = log_of(folder)
    path.write_bytes(path.read_bytes()[:-1])
    return output


def _cut_and_said(folder: Path, output: Output) -> Output:
    path = log_of(folder)
    _cut(folder, output)
    sizes = {name: size - (name == path.name) for name, size in output.files}
    return replace(output, files=tuple(sizes.items()))


def _lost(folder: Path, output: Output) -> Output:
    log_of(folder).with_suffix(".timeindex").unlink()
    return output


def _miscounted(folder: Path, output: Output) -> Output:
    counts = replace(output.cleaned.counts, records_kept=output.cleaned.counts.records_kept + 1)
    return replace(output, cleaned=replace(output.cleaned, counts=counts))


def _misplaced(folder: Path, output: Output) -> Output:
    outputs = tuple(tuple(base + 1 for base in group) for group in output.cleaned.outputs)
    return replace(output, cleaned=replace(output.cleaned, outputs=outputs))


def test_what_was_written_as_it_should_be_passes(cleaned: tuple[PartitionTask, Output]) -> None:
    task, output = cleaned
    assert check_output(task, output) is output
    assert output.cleaned.counts.bytes_written > 0


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_flip(".log", 30), "CRC-32C mismatch"),
        (_flip(".log", 7), "offsets"),  # not covered by a checksum
        (_flip(".index", 7), "offset index"),
        (_flip(".timeindex", 7), "time index"),
        (_cut, "the files are"),
        (_cut_and_said, "position"),
        (_lost, "the files are"),
        (_miscounted, "records are there"),
        (_misplaced, "the segments are"),
    ],
)
def test_what_is_something_else_is_our_fault(cleaned: tuple[PartitionTask, Output], spoil: Spoil, said: str) -> None:
    task, output = cleaned
    failure = check_output(task, spoil(Path(output.folder), output))
    assert isinstance(failure, Failure) and failure.kind is FailureKind.BUG
    assert said in failure.what and task.path in failure.what


def test_an_offset_beyond_the_range_is_found(cleaned: tuple[PartitionTask, Output]) -> None:
    task, output = cleaned
    failure = check_output(replace(task, first_uncleanable=task.first_uncleanable - 1), output)
    assert isinstance(failure, Failure) and "are not from" in failure.what
