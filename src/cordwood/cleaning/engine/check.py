"""Check a task's output files in another process, before the clean uses any of them.

The check compares only bytes on disk with the figures that the task returned: files and their lengths, CRC and position
of every batch, sums of batches, records and bytes, indexes against batches. It shares no code with deciding and
writing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from cordwood.cleaning.engine.partition import Cleaned
from cordwood.fs.base import Store
from cordwood.kernels.layout import BATCH_ROW, BatchRows
from cordwood.record.columns import BatchWindow, is_valid
from cordwood.storage.formats import offset_index, time_index
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, WindowReader

#: Outputs below this size are read within milliseconds, so threads do not pay.
_ALONE_BYTES = 32 << 20
#: Fields of every batch that are kept for comparison with the segment's indexes.
_KEPT = ["base_offset", "last_offset", "position", "size_bytes", "record_count", "max_timestamp"]


def faults(fs: Store, folder: str, files: Sequence[tuple[str, int]], cleaned: Cleaned, last_end: int) -> Iterator[str]:
    """Yield the faults of a clean's outputs, in words.

    Args:
        files: (name, bytes) of the outputs.
        cleaned: the task's figures.
        last_end: end of the last group; no output extends beyond it.
    """
    found = [(info.name, info.size_bytes) for info in fs.list(folder)]
    if found != sorted(files):
        yield f"the files are {found}, and should be {sorted(files)}"
        return
    segments = {segment.base_offset: segment for segment in LogView(folder, fs=fs, log_start_offset=0).segments}
    bases = [base for group in cleaned.outputs for base in group if base not in cleaned.kept]
    if sorted(segments) != sorted(bases):
        yield f"the segments are {sorted(segments)}, and should be {sorted(bases)}"
        return
    # Outputs of one group end before the next group's sources begin.
    ends = [
        end
        for group, after in zip(cleaned.outputs, [*(some[0] for some in cleaned.replaced[1:]), None], strict=True)
        for base, end in zip(group, [*group[1:], last_end if after is None else after], strict=True)
        if base not in cleaned.kept
    ]
    batches = records = size_bytes = 0
    for base, seen in zip(bases, _looked_at([segments[base] for base in bases], ends), strict=True):
        yield from (f"{segments[base].path}: {what}" for what in seen.faults)
        batches += seen.batches
        records += seen.records
        size_bytes += segments[base].size_bytes
    counts, kept = cleaned.counts, cleaned.kept_counts
    if cleaned.rounds > 1:
        return  # the counts are sums over all rounds
    for what, is_there, said in (
        ("batches", batches + kept.batches_verbatim, counts.batches_read - counts.batches_dropped),
        ("records", records + kept.records_kept, counts.records_kept),
        ("bytes", size_bytes + kept.bytes_written, counts.bytes_written),
    ):
        if is_there != said:
            yield f"{is_there} {what} are there, {said} were written"


@dataclass(frozen=True, slots=True)
class _Seen:
    """Totals and faults of a segment."""

    batches: int
    records: int
    faults: list[str]


def _looked_at(segments: Sequence[Segment], ends: Sequence[int]) -> list[_Seen]:
    """Read the segments, two at a time unless they are too few or too small."""
    if len(segments) == 1 or sum(segment.size_bytes for segment in segments) < _ALONE_BYTES:
        return list(map(_look_at, segments, ends))
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(_look_at, segments, ends))


def _look_at(segment: Segment, end: int) -> _Seen:
    rows, fault = _batches(segment)
    faults = [fault] if fault else list(_segment_faults(segment, rows, end))
    return _Seen(rows.size, int(rows["record_count"].sum()), faults)


def _batches(segment: Segment) -> tuple[BatchRows, str]:
    """Return `_KEPT` of all batches and an empty fault; or no rows, and the fault of the first invalid batch."""
    none = np.empty(0, BATCH_ROW)[_KEPT].copy()
    parts = [none]
    with segment.open() as file:
        for item in WindowReader(file, Checks.ONCE, base_offset=segment.base_offset, search=False):
            if not isinstance(item, BatchWindow):
                return none, f"position {item.position}: {item.what}"
            valid = is_valid(item.batches)
            if not valid.all():
                return none, f"position {item.batches['position'][np.argmin(valid)]}: CRC-32C mismatch"
            parts.append(item.batches[_KEPT].copy())
    return np.concatenate(parts), ""


def _segment_faults(segment: Segment, rows: BatchRows, end: int) -> Iterator[str]:
    """Check the order of the batches, and the indexes against them."""
    starts, lasts = rows["base_offset"], rows["last_offset"]
    if (lasts < starts).any() or (starts[1:] <= lasts[:-1]).any():
        yield "offsets do not ascend"
    elif rows.size and (starts[0] < segment.base_offset or lasts[-1] >= end):
        yield f"offsets {starts[0]} to {lasts[-1]} are not from {segment.base_offset} to {end - 1}"
    index, times = segment.offset_index(), segment.time_index()
    if index is None or times is None:
        yield "an index is missing"
        return
    yield from (str(error) for error in offset_index.faults(index))
    yield from (str(error) for error in time_index.faults(times))
    if index.entries and not _names(rows["position"], lasts, index.positions, index.offsets):
        yield "an entry of the offset index names no batch"
    newest = np.maximum.accumulate(rows["max_timestamp"]) if rows.size else rows["max_timestamp"]
    if times.entries and not _names(lasts, newest, times.offsets, times.timestamps, between=True):
        yield "an entry of the time index names no batch"


def _names(keys: np.ndarray, values: np.ndarray, asked: np.ndarray, said: np.ndarray, *, between: bool = False) -> bool:
    """Whether every asked key exists (with `between`: the next higher key counts) and has the given value."""
    at = np.searchsorted(keys, asked)
    if not keys.size or at.max() >= keys.size:
        return False
    return bool((between or (keys[at] == asked).all()) and (values[at] == said).all())
