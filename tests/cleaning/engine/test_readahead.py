"""Threads that read and work ahead, and gaps of a log that they skip."""

from __future__ import annotations

import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.cleaning.engine import partition, readahead
from cordwood.cleaning.engine.facts import CleanSettings, cleanable_facts
from cordwood.cleaning.engine.partition import (
    Cleaned,
    CleanRequest,
    clean_partition,
    dirty_section,
    planned_groups,
    state_at_start,
)
from cordwood.cleaning.engine.readahead import TrackedWindow, read_ahead
from cordwood.cleaning.engine.scan import HELD_BYTES, KeyScan, scan_keys
from cordwood.cleaning.rules.superseded import ScannedKeys
from cordwood.common.errors import CorruptBatchError
from cordwood.common.types import Codec
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.wrapped import CountedStore
from cordwood.kernels.layout import BATCH_ROW, CRC_AT, SIZE_AT
from cordwood.record.batch import encode_batch
from cordwood.record.columns import BatchWindow
from cordwood.record.record import Record
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.replay import Producers
from tests.logs import make_log

pytestmark = pytest.mark.more

_LARGE_BYTES = 33 << 20


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> Segment:
    partition = tmp_path_factory.mktemp("log") / "t-0"
    partition.mkdir()
    Path(partition, f"{0:020}.log").touch()
    return LogView(str(partition), fs=PosixFileSystem(), log_start_offset=0).segments[0]


def window(segment: Segment, number: int, *, size: int = 10, codec: int = 0) -> TrackedWindow:
    batches = np.zeros(1, BATCH_ROW)
    batches["attributes"] = codec
    read = BatchWindow(number, np.empty(size, np.uint8), batches, lambda _position, _size: iter(()))
    return TrackedWindow(segment, read, np.zeros(1, np.bool_), [])


@given(st.lists(st.tuples(st.sampled_from([10, 10, 10, _LARGE_BYTES]), st.sampled_from([0, 1]), st.integers(0, 2))))
def test_windows_come_in_order_each_with_its_own_result(
    segment: Segment, kinds: Sequence[tuple[int, int, int]]
) -> None:
    def windows() -> Iterator[TrackedWindow]:
        for number, (size, codec, _) in enumerate(kinds):
            yield window(segment, number, size=size, codec=codec)

    def work(shown: TrackedWindow) -> int:
        number = shown.window.position
        time.sleep(0.001 * kinds[number][2])
        return number

    with ThreadPoolExecutor(3) as threads:
        found = [(shown.window.position, result) for shown, result in read_ahead(threads, windows(), work)]
    assert found == [(number, number) for number in range(len(kinds))]


def test_a_large_window_is_worked_on_while_no_other_is_in_memory(segment: Segment) -> None:
    alive: list[weakref.ref[np.ndarray]] = []
    seen = []

    def windows() -> Iterator[TrackedWindow]:
        for number in range(9):
            coming = window(segment, number, size=_LARGE_BYTES if number in (3, 4, 8) else 10)
            alive.append(weakref.ref(coming.window.batches))
            yield coming
            del coming

    def work(shown: TrackedWindow) -> int:
        if shown.window.data.size == _LARGE_BYTES:
            time.sleep(0.02)  # a reader that continues does so now
            seen.append((shown.window.position, sum(one() is not None for one in alive), len(alive)))
        return 0

    with ThreadPoolExecutor(3) as threads:
        for shown, result in read_ahead(threads, windows(), work):
            del shown, result
    assert seen == [(3, 1, 4), (4, 1, 5), (8, 1, 9)]


def test_while_the_caller_uses_a_result_the_next_windows_are_worked_on(segment: Segment) -> None:
    worked = [threading.Event() for _ in range(3)]

    def work(shown: TrackedWindow) -> int:
        worked[shown.window.position].set()
        return 0

    with ThreadPoolExecutor(3) as threads:
        found = read_ahead(threads, iter([window(segment, number) for number in range(3)]), work)
        next(found)
        assert worked[1].wait(10) and worked[2].wait(10)
        assert len(list(found)) == 2


@pytest.mark.parametrize("fails_in", ["reading", "work"])
def test_what_fails_is_raised_behind_the_results_before_it(segment: Segment, fails_in: str) -> None:
    def windows() -> Iterator[TrackedWindow]:
        yield from (window(segment, number) for number in range(3))
        if fails_in == "reading":
            raise ValueError("here")
        yield from (window(segment, number) for number in range(3, 6))

    def work(shown: TrackedWindow) -> int:
        if fails_in == "work" and shown.window.position == 3:
            raise ValueError("here")
        return shown.window.position

    with ThreadPoolExecutor(3) as threads:
        found = read_ahead(threads, windows(), work)
        assert [next(found)[1] for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="here"):
            next(found)


def test_a_caller_that_leaves_is_not_waited_for(segment: Segment) -> None:
    with ThreadPoolExecutor(3) as threads:
        found = read_ahead(threads, iter([window(segment, number) for number in range(9)]), lambda _: 0)
        next(found)  # it is held while the threads end, as by a traceback


# ---- staying ---------------------------------------------------------------------------------------------------------


FS = PosixFileSystem()
NOW_MS = 1_000
KINDS = {
    "plain": {},
    "compressed": {"codec": Codec.LZ4},
    "of a producer": {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0},
    "of a transaction": {"producer_id": 6, "producer_epoch": 0, "base_sequence": 0, "transactional": True},
    "horizon ahead": {"delete_horizon_ms": NOW_MS + 1},
    "horizon passed": {"delete_horizon_ms": NOW_MS},
}
#: (kind, keys; the number in upper case: without a value)
BATCHES = st.lists(
    st.tuples(st.sampled_from(sorted(KINDS)), st.lists(st.sampled_from("aaabbcdA"), min_size=1, max_size=3)),
    min_size=1,
    max_size=12,
)


def request(log: LogView, **choice: object) -> CleanRequest:
    settings = CleanSettings(segment_bytes=1)
    end = log.segments[-1].base_offset
    return CleanRequest(first_dirty=0, first_uncleanable=end, now_ms=NOW_MS, settings=settings, **choice)  # type: ignore[arg-type]


def clean(
    log: LogView, target: Path, *, gap_bytes: int, producers: Producers | None = None, held_bytes: int = 0
) -> Cleaned:
    target.mkdir()
    with mock.patch.object(readahead, "GAP_BYTES", gap_bytes), mock.patch.object(partition, "HELD_BYTES", held_bytes):
        return clean_partition(FS, log, str(target), request(log, producers=producers))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@given(st.lists(BATCHES, min_size=1, max_size=3))
def test_what_is_left_out_makes_no_difference(segments: list[list[tuple[str, list[str]]]]) -> None:
    offset = 0
    made: list[tuple[int, list[bytes]]] = []
    for batches in segments:
        made.append((offset, stored := []))
        for kind, keys in batches:
            records = [
                Record(offset + at, NOW_MS, key.lower().encode(), None if key.isupper() else b"v")
                for at, key in enumerate(keys)
            ]
            stored.append(encode_batch(records, **KINDS[kind]))  # type: ignore[arg-type]
            offset += len(keys)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = make_log(folder / "t-0", *made, (offset, []))
        some, every = (clean(log, folder / str(gap), gap_bytes=gap) for gap in (1, 1 << 40))
        held = clean(log, folder / "held", gap_bytes=1, held_bytes=HELD_BYTES)
        for other, name in ((every, str(1 << 40)), (held, "held")):
            assert contents(folder / "1") == contents(folder / name)
            assert (some.segments, some.outputs, some.kept) == (other.segments, other.outputs, other.kept)


def superseded_log(folder: Path, **fields: int) -> LogView:
    """A segment of 40 batches of 10 KB; the first and the last stay."""
    batches = [
        encode_batch([Record(at, NOW_MS, b"%d" % at if at in (0, 39) else b"k", bytes(10_000))], **fields)  # type: ignore[arg-type]
        for at in range(40)
    ]
    return make_log(folder, (0, batches), (40, [encode_batch([Record(40, NOW_MS, b"k", b"v")])]), (41, []))


def test_what_is_superseded_is_read_once(tmp_path: Path) -> None:
    superseded_log(tmp_path / "t-0")
    counted = CountedStore(FS, suffix=".log")
    log = LogView(str(tmp_path / "t-0"), log_start_offset=0, fs=counted)
    size = sum(segment.size_bytes for segment in log.segments)
    cleaned = clean(log, tmp_path / "out", gap_bytes=readahead.GAP_BYTES, producers=Producers())
    assert size < counted.bytes_read < 1.2 * size
    assert (cleaned.counts.bytes_read, cleaned.counts.records_superseded) == (size, 38)
    assert (cleaned.counts.batches_dropped, cleaned.counts.batches_verbatim) == (38, 3)


def test_a_small_log_is_read_once(tmp_path: Path) -> None:
    superseded_log(tmp_path / "t-0")
    counted = CountedStore(FS, suffix=".log")
    log = LogView(str(tmp_path / "t-0"), log_start_offset=0, fs=counted)
    size = sum(segment.size_bytes for segment in log.segments)
    clean(log, tmp_path / "out", gap_bytes=1, producers=Producers(), held_bytes=size)
    assert counted.bytes_read < 1.01 * size, "only an unchanged segment of one batch has its headers compared"


def test_the_last_batch_of_an_active_producer_is_read(tmp_path: Path) -> None:
    sequenced = [
        encode_batch([Record(at, NOW_MS, b"k", b"v")], producer_id=5, producer_epoch=0, base_sequence=at)
        for at in range(3)
    ]
    log = make_log(tmp_path / "p-0", (0, [*sequenced, encode_batch([Record(3, NOW_MS, b"k", b"v")])]), (4, []))
    cleaned = clean(log, tmp_path / "out", gap_bytes=1)
    assert (cleaned.counts.batches_emptied, cleaned.counts.batches_dropped) == (1, 2)


def test_a_range_without_a_segment_leaves_everything(tmp_path: Path) -> None:
    log = make_log(tmp_path / "t-0", (0, [encode_batch([Record(0, NOW_MS, b"k", b"v")])]))
    assert clean(log, tmp_path / "out", gap_bytes=1, producers=Producers()).outputs == ()


class Scanned:
    """The result of a scan before the file was changed."""

    def __init__(self, log: LogView) -> None:
        asked = request(log, producers=Producers())
        facts = cleanable_facts(log, asked.first_uncleanable, asked.now_ms)
        carried = state_at_start(facts, asked)
        dirty = dirty_section(log, facts, asked, carried)
        groups = planned_groups(log, facts, dirty.latest_offset + 1, asked)
        found = scan_keys(log, groups, dirty, carried.tracker, None, KeyScan(bytes(16), 8, NOW_MS))
        assert found is not None and isinstance(found.newest, ScannedKeys)
        self.keys = found.newest

    def load(self) -> ScannedKeys:
        return self.keys


@pytest.mark.parametrize("change", ["another CRC", "another size", "shorter"])
def test_a_file_that_changes_between_the_passes_is_noticed(tmp_path: Path, change: str) -> None:
    log = superseded_log(tmp_path / "t-0")
    scanned = Scanned(log)
    path = tmp_path / "t-0" / offset_name(0, FileKind.LOG)
    stored = bytearray(path.read_bytes())
    last = int(scanned.keys.segments[0].positions[-1])
    match change:
        case "another CRC":
            stored[last + CRC_AT] ^= 1
        case "another size":
            stored[last + SIZE_AT + 3] ^= 1
        case "shorter":
            del stored[-5:]
    path.write_bytes(stored)
    (tmp_path / "out").mkdir()
    with pytest.raises(CorruptBatchError, match="changed while it was being cleaned"):
        clean_partition(FS, log, str(tmp_path / "out"), request(log, producers=Producers(), scanned=scanned))


def test_a_byte_that_flips_between_the_passes_in_a_batch_that_is_rebuilt_is_noticed(tmp_path: Path) -> None:
    both = encode_batch([Record(0, NOW_MS, b"goes", b"1"), Record(1, NOW_MS, b"stays", b"what matters")])
    log = make_log(tmp_path / "t-0", (0, [both, encode_batch([Record(2, NOW_MS, b"goes", b"2")])]), (3, []))
    scanned = Scanned(log)
    path = tmp_path / "t-0" / offset_name(0, FileKind.LOG)
    path.write_bytes(path.read_bytes().replace(b"what matters", b"what natters"))
    (tmp_path / "out").mkdir()
    with pytest.raises(CorruptBatchError, match="CRC-32C mismatch"):
        clean_partition(FS, log, str(tmp_path / "out"), request(log, producers=Producers(), scanned=scanned))
