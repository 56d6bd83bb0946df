"""The last record of each key of a log with key indexes, most of which is read only once: for the values.

    segments with an index   hashes that occur twice ──► their batches ─┐
    those behind them        all records ───────────────────────────────┴──► a table of these keys: last offset of each
    then                     records whose hash may be of such a key are looked up; others are the last of their keys

From the first segment without an index on all are read: their records could be superseded by ones that are not looked
at. A hash in an index has fewer bits than a key, and its secret is old. So it only says which records are looked up: by
their own bytes, under a secret of this table. Where most of a log would be read for that, it is scanned as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.key_table import BoolArray, UInt64Array
from cordwood.cleaning.latest import DirtyTable, LatestOffsets
from cordwood.engine.by_index import scan_by_index
from cordwood.engine.readahead import records_of, segment_windows_from
from cordwood.engine.scan import scan_part
from cordwood.errors import CorruptFileError
from cordwood.record.columns import BatchWindow
from cordwood.storage.formats.key_index import TAG_BITS, Flag, KeyIndex
from cordwood.storage.index.files import indexes_in, read_index
from cordwood.storage.index.probe import batches_with, hashes_in, windows_of
from cordwood.storage.log.segment import Segment, gap_error
from cordwood.storage.log.windows import Checks, Gap, compute_crcs
from cordwood.tables.newest import NewestTask
from cordwood.tables.runs import TableRun

#: Entries of key indexes that are compared in this process.
_ENTRIES_MAX = 32 << 20
#: Keys that records are looked up in: more take too much memory here.
_KEYS_MAX = 2 << 20
READ_SHARE_MAX = 0.25
_HASH_BITS = 64


@dataclass(frozen=True, slots=True)
class _Part:
    """The runs of a segment, and its key index, if that covers them."""

    segment: Segment
    runs: Sequence[TableRun]
    index: KeyIndex | None


def scan_warm(runs: Sequence[TableRun], *, read_share_max: float = READ_SHARE_MAX) -> list[NewestTask] | None:
    """The tasks of the runs of a log, found by its key indexes; None: it has none that help.

    Args:
        read_share_max: what is read to know which keys occur twice, as a part of the log.

    Raises:
        DataError, OSError: of what is read.
    """
    if not runs:
        return None
    log = runs[0].log.open()
    if not any(True for _ in indexes_in(log.fs, log.path, log.index_root)):
        return None
    parts: list[_Part] = []
    for _, own in groupby(runs, key=lambda run: run.base_offset):
        is_behind = bool(parts) and parts[-1].index is None
        parts.append(_part(list(own), with_index=not is_behind))
    indexes = [part.index for part in parts if part.index is not None]
    read_bytes = sum(run.size_bytes for part in parts if part.index is None for run in part.runs)
    entries = sum(index.header.entries for index in indexes)
    most = read_share_max * sum(run.size_bytes for run in runs)
    if not indexes or entries > _ENTRIES_MAX or read_bytes > most:
        return None
    secret = indexes[0].header.secret
    if any(index.header.secret != secret for index in indexes):
        return None
    table = _keys_to_look_up(parts, secret, math.ceil(most) - read_bytes)
    return None if table is None else _looked_up(parts, table)


def _part(runs: Sequence[TableRun], *, with_index: bool) -> _Part:
    segment = runs[0].log.segment(runs[0].base_offset)
    if not with_index:
        return _Part(segment, runs, None)
    try:
        index = read_index(segment)
    except (OSError, CorruptFileError):
        return _Part(segment, runs, None)
    header = index.header
    is_usable = header.covered_bytes >= _end(runs[-1]) and not header.flags & (Flag.OLD_MAGIC | Flag.KEYLESS)
    return _Part(segment, runs, index if is_usable else None)


def _end(run: TableRun) -> int:
    assert run.end is not None, "a table is cut by headers"
    return run.end


def _keys_to_look_up(parts: Sequence[_Part], secret: bytes, budget_bytes: int) -> DirtyTable | None:
    """The keys that may have several records, with the last offset of each; None: they are too many."""
    known = [hashes_in(part.index) for part in parts if part.index is not None]
    shift = np.uint64(_HASH_BITS - TAG_BITS - min(part.index.header.bits for part in parts if part.index is not None))
    twice = _twice(np.concatenate(known) >> shift)
    table = LatestOffsets(parts[0].runs[0].how.hash_secret, index_secret=secret)
    at = 0
    for part in parts:
        if part.index is None:
            windows = _windows(part)
        else:
            found = np.isin(known[at] >> shift, twice)
            at += 1
            batches = batches_with(part.index, part.index.ordinals[found].astype(np.int64))
            budget_bytes -= int(part.index.lengths[batches].sum())
            if budget_bytes < 0:
                return None
            windows = _windows_of(part, part.index, batches)
        mark = part.runs[0].marking()
        for window in windows:
            _put(table, part, window, mark(window.batches)[0])
            del window  # a large one must be gone before the next is read
            if table.keys > _KEYS_MAX:
                return None
    return table.complete()


def _twice(hashes: UInt64Array) -> UInt64Array:
    """Those that occur more than once, ascending."""
    hashes.sort()
    return np.unique(hashes[1:][hashes[1:] == hashes[:-1]])


def _windows(part: _Part) -> Iterator[BatchWindow]:
    for run in part.runs:
        for window in segment_windows_from(part.segment, run.start, Checks.DEFERRED, end=run.end):
            compute_crcs(window)
            yield window
            del window  # a large one must be gone before the next is read


def _windows_of(part: _Part, index: KeyIndex, batches: npt.NDArray[np.int64]) -> Iterator[BatchWindow]:
    if not batches.size:
        return
    end = _end(part.runs[-1])
    with part.segment.open() as file:
        for item in windows_of(part.segment, file, index, batches):
            if isinstance(item, Gap):
                if item.position >= end:
                    return  # what a stop leaves behind the last batch
                raise gap_error(part.segment, item)
            yield item


def _put(table: LatestOffsets, part: _Part, window: BatchWindow, wanted: BoolArray) -> None:
    """Enter the records of a window that are of the table; `wanted`: bool[batches], those that may have some."""
    run = part.runs[0]
    for columns in records_of(part.segment, window, wanted):
        rows = columns.rows
        chosen = rows["key_size"] >= 0
        chosen &= (rows["offset"] >= run.start_offset) & (rows["offset"] < run.end_offset)
        table.put(columns, chosen, table.hashes(columns, chosen))
        del columns, rows


def _looked_up(parts: Sequence[_Part], table: DirtyTable) -> list[NewestTask] | None:
    tasks = []
    for part in parts:
        if part.index is None:
            for run in part.runs:
                how = replace(run.how, table=table)
                found = scan_part(part.segment, (run.start, run.end), run.marking(), how, None)
                tasks.append(NewestTask(run, found.outcomes))
            continue
        run = part.runs[0]
        by_index = scan_by_index(part.segment, run.marking(), table, 0, run.how.chunk_records, finds_all=True)
        if by_index is None:
            return None
        tasks += [NewestTask(one, by_index.outcomes.between(one.start, _end(one))) for one in part.runs]
    return tasks
