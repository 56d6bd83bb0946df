"""The quick pass over a range: it proves the range, or raises OddError so that the careful pass repeats it.

It handles batches of magic 2 without a codec, which most logs have. One kernel reads both states; it compares the bytes
of records, and decodes records of the state after only where they differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np

from cordwood.cleaning.proof.judging import SUMMARY, Judging
from cordwood.cleaning.proof.pairs import Count, Int64Array
from cordwood.cleaning.proof.producers import Noting
from cordwood.cleaning.proof.reading import PairRange, RangeWindows, Sampler
from cordwood.common.errors import DataError
from cordwood.kernels.layout import BATCH_ROW, BatchRows
from cordwood.kernels.side_by_side import COMPARED, MORE_AFTER, are_plain, compare_plain
from cordwood.record.columns import BatchWindow, decode

#: A larger window needs the careful pass: it has a single batch, which may have large values.
_LARGE_BYTES = 32 << 20
#: Number of batches that are judged at a time.
_BATCHES = 1 << 14
#: A smaller range takes less time to compare than threads take to start and end.
_THREADS_BYTES_MIN = 8 << 20


class OddError(Exception):
    """The range needs the careful pass."""


@dataclass(frozen=True, slots=True)
class _Window:
    """Plain batches, see `are_plain`.

    Attributes:
        window: a window with only the batches in the range.
        address: memory address that position 0 of the file would have.
        newest: int64[batches], output of `compare_plain`.
        mtime_ms: time of the last modification of their segment.
    """

    window: BatchWindow
    address: int
    newest: Int64Array
    mtime_ms: int

    @property
    def batches(self) -> BatchRows:
        """The batches in the range."""
        return self.window.batches


_NO_BATCHES = BatchWindow(0, np.empty(0, np.uint8), np.empty(0, BATCH_ROW), lambda *_: iter(()))
_NOTHING = _Window(_NO_BATCHES, 0, np.empty(0, np.int64), 0)


def compare(before: RangeWindows, after: RangeWindows | None, judge: Judging, notes: Noting) -> None:
    """Compare both states of a range; without `after`, they have the same files.

    Raises:
        OddError: the caller must discard all facts found so far.
    """
    with _threads_for(before.part) as threads:
        if after is None:
            _compare_same(_windows(threads, before), judge, notes)
        else:
            _compare_both(_windows(threads, before), _windows(threads, after), judge, notes)


def _threads_for(part: PairRange) -> AbstractContextManager[Executor | None]:
    """Return a thread for each state, to read it during the comparison; None if the range is too small to need them."""
    return nullcontext() if part.size_bytes < _THREADS_BYTES_MIN else ThreadPoolExecutor(2)


def _windows(threads: Executor | None, windows: RangeWindows) -> Iterator[_Window]:
    """Yield the windows of a state; read a sample of their batches with the plain reader, too."""
    sample, plain = Sampler(windows.facts), _plain(windows)
    for window in plain if threads is None else _ahead(threads, plain):
        _check_sample(sample, window.window)
        yield window
        del window


def _ahead(threads: Executor, windows: Iterator[_Window]) -> Iterator[_Window]:
    """Yield the windows, and read each one in a thread while the previous one is compared."""
    coming = threads.submit(next, windows, None)
    while (window := coming.result()) is not None:
        coming = threads.submit(next, windows, None)
        yield window
        del window


def _compare_same(before: Iterator[_Window], judge: Judging, notes: Noting) -> None:
    for window in before:
        _, _, records = _compare(window, 0, _NOTHING, 0, judge, is_same=True)
        judge.facts.count(Count.UNCHANGED_BYTES, window.batches["size_bytes"].sum())
        for count in (Count.RECORDS_SAME, Count.RECORDS_BEFORE, Count.RECORDS_AFTER):
            judge.facts.count(count, records)
        notes.add(window.batches, window.batches)


def _compare_both(before: Iterator[_Window], theirs: Iterator[_Window], judge: Judging, notes: Noting) -> None:
    now, now_at, is_last = _NOTHING, 0, False
    pending = _Pending(judge, notes)
    for was in before:
        at = 0
        while at < was.batches.size:
            first = now_at
            at, now_at, there = _compare(was, at, now, now_at, judge, is_last=is_last)
            pending.add_after(now, first, now_at, there)
            if at < was.batches.size:
                now, now_at = next(theirs, _NOTHING), 0
                is_last = now is _NOTHING
        pending.add_before(was)
    if now_at < now.batches.size or next(theirs, None) is not None:
        raise OddError
    pending.judge()


def _plain(windows: RangeWindows) -> Iterator[_Window]:
    """Yield the windows of a state; raise OddError for other than plain batches."""
    last_offset = -1
    try:
        for segment, item in windows:
            batches = windows.batches_of(item)
            if not batches.size:
                continue
            if item.data.size > _LARGE_BYTES or not are_plain(batches, item.position + item.data.size, last_offset):
                raise OddError
            last_offset = int(batches["last_offset"][-1])
            address = item.data.ctypes.data - item.position
            window = BatchWindow(item.position, item.data, batches, item.read)
            yield _Window(window, address, np.empty(batches.size, np.int64), segment.mtime_ms)
            del item, window
    except (DataError, OSError):
        raise OddError from None


def _check_sample(sample: Sampler, window: BatchWindow) -> None:
    filled = np.flatnonzero(window.batches["record_count"])
    for at in sample.choose(filled.size):
        chosen = window.batches[filled[at] : filled[at] + 1]
        for columns in decode(BatchWindow(window.position, window.data, chosen, window.read)):
            sample.check(columns, window, columns.rows)


def _compare(
    was: _Window, at: int, now: _Window, now_at: int, judge: Judging, *, is_last: bool = False, is_same: bool = False
) -> tuple[int, int, int]:
    """Compare batches of two windows until one ends; return both indexes, and the number of records in both states."""
    keys = judge.keys
    records = int(was.batches["record_count"][at:].sum(dtype=np.int64))
    if records > keys.chunk_entries:
        raise OddError
    entries, used = keys.room_for(records)
    status, at, now_at, there, used = compare_plain(
        *(was.address, was.batches, at, now.address, now.batches, now_at, is_last, is_same),
        *(judge.rules(was.batches, was.mtime_ms), keys.between, keys.points, entries, used, now.newest),
    )
    if status not in (COMPARED, MORE_AFTER):
        raise OddError
    keys.entered(used, was.batches)
    return at, now_at, there


@dataclass(slots=True)
class _Pending:
    """Batches of both states with compared records, kept until there are enough of them to judge their headers."""

    judging: Judging
    notes: Noting
    _before: list[BatchRows] = field(default_factory=list)
    _after: list[BatchRows] = field(default_factory=list)
    _newest: list[Int64Array] = field(default_factory=list)
    _count: int = 0

    def add_after(self, window: _Window, first: int, end: int, records: int) -> None:
        """Add batches [first, end) of the state after, which hold this number of records."""
        for count in (Count.RECORDS_SAME, Count.RECORDS_AFTER):
            self.judging.facts.count(count, records)
        self._after.append(window.batches[first:end])
        self._newest.append(window.newest[first:end])
        self._count += end - first

    def add_before(self, window: _Window) -> None:
        """Add all batches of a window of the state before."""
        self.judging.facts.count(Count.RECORDS_BEFORE, window.batches["record_count"].sum(dtype=np.int64))
        self._before.append(window.batches)
        self._count += window.batches.size
        if self._count >= _BATCHES:
            self.judge()

    def judge(self) -> None:
        """Judge and note the batches."""
        if self._before:
            before, after = np.concatenate(self._before), np.concatenate(self._after)
            summaries = np.zeros(after.size, SUMMARY)
            summaries["newest"] = np.concatenate(self._newest)
            self.judging.batches(before, after, summaries, after["record_count"] > 0)
            self.notes.add(before, after)
        self._before, self._after, self._newest, self._count = [], [], [], 0
