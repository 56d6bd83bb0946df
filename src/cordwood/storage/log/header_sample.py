"""The batch headers of a segment from a few small reads, for commands that answer before any log is read.

A log up to `EXACT_LOG_BYTES` has all its headers read: that takes milliseconds, and all figures are exact. A larger log
is sampled, segment by segment. A unit is the part of a segment between two neighbouring entries of its offset index:

    position   0 ……… │ entry 0 ……… │ entry 1 ……… │ … ……… │ last entry ……… end
               first   unit 1         unit 2               tail
               read    a sample of `UNITS` units           read

Entries point to batches, so all headers of a unit can be read, and a unit seldom has more than `index.interval.bytes`
and a batch. The first batch, the last batches and the end of the segment are exact. A sum over all batches is exact for
the first unit and the tail. For the units between it is an `Estimate`: the sum over the sampled units, in proportion to
their number, bytes or offsets, since these totals are known. The proportion with the smallest error is used. In a log
that was never cleaned there is a record per offset, so the estimate of records has no error; in a cleaned log the
proportion to bytes is best. Half of the units are chosen by number and half by position, so that neither small nor
large batches are missed.

Indexes are not trusted: a unit counts only if its batches follow each other from one entry exactly to the next, and if
all offsets ascend. Otherwise there is no sample, and the caller reads all headers of the segment.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cordwood.common.types import NONE
from cordwood.fs.base import ReadableFile
from cordwood.kernels.layout import BATCH_ROW, MIN_ENTRY_BYTES, BatchRows
from cordwood.record import headers
from cordwood.storage.formats import offset_index
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.log.files import IndexEntries
from cordwood.storage.log.segment import Segment, start_of_batch
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap, read_headers

#: All headers of a log up to this size are read.
EXACT_LOG_BYTES = 8 << 20
#: Number of units in a sample. A segment with less than twice as many has all its headers read.
UNITS = 16
#: Bytes per read: usually a unit of 4 KiB and a small batch, and the header behind it. It is enough for any header, and
#: for a control batch, which the scan reads whole.
_READ_BYTES = 8 << 10


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimated sum.

    Attributes:
        error: twice the standard error; 0 if the value is exact.
    """

    value: float
    error: float


@dataclass(frozen=True, slots=True, eq=False)
class HeaderSample:
    """The headers of a segment that were read.

    Attributes:
        rows: BATCH_ROW[batches], the batches that were read, by position; the first is the segment's first.
        units: int64[batches], the number of the unit of each batch; NONE in the first unit and the tail.
        gaps: what follows the last batches, as `Segment.headers_and_gaps` yields it.
        newest_ms: timestamp of the last entry of the time index; NONE without one.
    """

    rows: BatchRows
    units: npt.NDArray[np.int64]
    gaps: tuple[Gap, ...]
    newest_ms: int
    _known: npt.NDArray[np.float64]
    _weights: npt.NDArray[np.float64]
    _totals: tuple[float, float, float]

    def total(self, values: npt.NDArray[np.generic]) -> Estimate:
        """Estimate the sum over all batches of the segment.

        Args:
            values: a value of each batch in `rows`.
        """
        found, errors = self.totals(values, np.zeros(self.rows.size, np.int64), 1)
        return Estimate(float(found[0]), float(errors[0]))

    def totals(self, values: npt.NDArray[np.generic], groups: npt.NDArray[np.int64], count: int) -> EstimatedSums:
        """Estimate the sums over the batches of each group.

        Args:
            values: a value of each batch in `rows`.
            groups: int64[batches], the group of each batch in `rows`.
            count: number of groups.
        """
        sampled = self.units >= 0
        exact = np.bincount(groups[~sampled], values[~sampled], count)
        sums = np.zeros((count, self._weights.size))
        np.add.at(sums, (groups[sampled], self.units[sampled]), values[sampled])
        found = [
            ratio_sums(sums, known, self._weights, all_) for known, all_ in zip(self._known, self._totals, strict=True)
        ]
        estimates, errors = (np.array(column) for column in zip(*found, strict=True))
        best = np.argmin(errors, axis=0)[np.newaxis]
        value = np.take_along_axis(estimates, best, 0)[0]
        # If the other proportions contradict the best one, it is no better than the contradiction.
        error = np.maximum(np.take_along_axis(errors, best, 0)[0], (np.abs(estimates - value) - errors).max(axis=0))
        return exact + value, error


#: Estimated sums of several groups, and their errors, float64[groups]; see `Estimate`.
EstimatedSums = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]


def ratio_sums(
    sums: npt.NDArray[np.float64], known: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], total: float
) -> EstimatedSums:
    """Estimate sums over all units in proportion to a quantity that is known for each sampled unit, and in total.

    Args:
        sums: float64[groups, units].
        known: the quantity of each unit, float64[units].
        weights: inverse of each unit's chance to be in the sample, up to a factor.
        total: the quantity of all units.
    """
    size = float((known * weights).sum())
    ratio = (sums * weights).sum(axis=1) / size
    count = weights.size
    variance = (((sums - ratio[:, np.newaxis] * known) * weights) ** 2).sum(axis=1) / (count - 1)
    return ratio * total, 2 * np.sqrt(count * variance) / size * total


def is_small(log: LogView) -> bool:
    """Return whether all headers of a log are read, whatever the command."""
    return log.size_bytes <= EXACT_LOG_BYTES


def sample_headers(segment: Segment, *, search: bool = True) -> HeaderSample | None:
    """Read a few headers of a segment.

    Args:
        search: look for valid batches after damage.

    Returns:
        None if the segment is small, or its offset index is missing or does not fit its batches.
    """
    path = segment.index_path(FileKind.OFFSET_INDEX)
    if (
        path is None
        or segment.files.indexes[FileKind.OFFSET_INDEX].size_bytes < 2 * UNITS * offset_index.ENTRY.itemsize
    ):
        return None
    try:
        with segment.open() as file, segment.fs.open(path) as index:
            file.expect_random_reads()
            index.expect_random_reads()
            return _sample(segment, file, IndexEntries(index, offset_index.ENTRY), search=search)
    except (OSError, UnfitError):
        return None


class UnfitError(Exception):
    """The index is too small or does not fit the batches, or the headers do not count records."""


def _joined(parts: Sequence[BatchRows]) -> BatchRows:
    """Return all rows in one array; `np.concatenate` would compare all fields of each part's type again."""
    if len(parts) == 1:
        return parts[0]
    rows = np.empty(sum(part.size for part in parts), BATCH_ROW)
    start = 0
    for part in parts:
        rows[start : start + part.size] = part
        start += part.size
    return rows


def _sample(segment: Segment, file: ReadableFile, index: IndexEntries, *, search: bool) -> HeaderSample:
    units = Units(file, index)
    if units.count < 2 * UNITS or units.start(1) == units.end:
        raise UnfitError
    items = read_headers(file, base_offset=segment.base_offset, start=units.end, search=search)
    tail = tuple(item if isinstance(item, Gap) else item.copy() for item in items)
    ends = [item for item in tail if not isinstance(item, Gap)]
    if not ends or isinstance(tail[0], Gap):
        raise UnfitError
    chosen, times = np.unique(list(units.choose(UNITS)), return_counts=True)
    parts = [units.headers(0), *map(units.headers, chosen.tolist())]
    rows = _joined([*parts, *ends])
    if rows["last_offset"][0] < segment.base_offset or (np.diff(rows["last_offset"]) <= 0).any():
        raise UnfitError
    if (rows["magic"] < 2).any():
        raise UnfitError  # the headers of wrappers do not count their messages, and such logs are rare by now
    # Number, bytes and offsets of each unit, and of all units between the first one and the tail.
    start, end = units.start(1), units.end
    sizes = [units.start(number + 1) - units.start(number) for number in chosen.tolist()]
    offsets = [
        units.first_offset(number + 1) - int(part["base_offset"][0])
        for number, part in zip(chosen.tolist(), parts[1:], strict=True)
    ]
    if min(offsets) <= 0:
        raise UnfitError
    known = np.array([np.ones(chosen.size), sizes, offsets], np.float64)
    totals = float(units.count - 1), float(end - start), float(int(ends[0]["base_offset"][0]) - units.first_offset(1))
    # The inverse of each unit's chance to be chosen: by its number, or by a position in it.
    weights = times / (1 / totals[0] + known[1] / totals[1])
    _, newest = segment.last_entry(FileKind.TIME_INDEX)
    owners = np.full(rows.size, NONE)
    first, counts = parts[0].size, [part.size for part in parts[1:]]
    owners[first : first + sum(counts)] = np.repeat(np.arange(chosen.size), counts)
    gaps = tuple(item for item in tail if isinstance(item, Gap))
    return HeaderSample(
        rows, owners, gaps, NONE if newest is None else int(newest["timestamp"]), known, weights, totals
    )


class Units:
    """The units of a segment: unit 0 begins at position 0, unit n at the index's entry n - 1.

    Attributes:
        count: number of entries of the index, of units without the tail.
        end: position of the tail.

    Raises:
        UnfitError: the index is empty, or its entries lead out of the segment.
    """

    def __init__(self, file: ReadableFile, index: IndexEntries) -> None:
        self._file, self._index, self._size = file, index, file.size()
        self._starts = {0: 0}
        #: Base offsets of the first batches of units, as far as they were read.
        self._first_offsets: dict[int, int] = {}
        self.count = len(index)
        if not self.count:
            raise UnfitError
        self.end = self.start(self.count)
        if not 0 < self.start(1) <= self.end < self._size:
            raise UnfitError

    def start(self, number: int) -> int:
        """Return the position of a unit's first batch."""
        start = self._starts.get(number)
        if start is None:
            start = self._starts[number] = int(self._index[number - 1]["position"])
        return start

    def choose(self, count: int) -> Iterator[int]:
        """Yield units between the first unit and the tail, every other one by its number, the others by a position."""
        first = self.start(1)
        for at in range(count):
            share = (at + 0.5) / count
            yield 1 + int(share * (self.count - 1)) if at % 2 else self._holding(first + share * (self.end - first))

    def range_of(self, offset: int) -> tuple[int, int]:
        """Return start and end of the unit that holds an offset relative to the base offset, by the index."""
        number = bisect.bisect_right(self._index, offset, key=lambda entry: int(entry["offset"]))
        return self.start(number), self.start(number + 1) if number < self.count else self._size

    def _holding(self, position: float) -> int:
        """Return the unit that holds a position: guess by proportion, and halve after two guesses."""
        low, high = 1, self.count  # the unit is in [low, high)
        step = 0
        while high - low > 1:
            start, end = self.start(low), self.start(high)
            share = (position - start) / (end - start) if end > start and step % 3 < 2 else 0.5
            middle = min(max(low + int(share * (high - low)), low + 1), high - 1)
            low, high = (middle, high) if self.start(middle) <= position else (low, middle)
            step += 1
        return low

    def headers(self, number: int) -> BatchRows:
        """Return the headers of a unit, whose batches must reach exactly from its start to the next unit."""
        position, end = self.start(number), self.start(number + 1)
        found = []
        while position < end:
            data = np.frombuffer(self._file.read(position, min(_READ_BYTES, self._size - position)), np.uint8)
            rows = np.empty(data.size // MIN_ENTRY_BYTES[0] + 1, BATCH_ROW)
            count, consumed, _ = headers.scan_batches(data, self._size - position, position, rows, whole_entries=False)
            position += int(consumed)
            rows = rows[:count]
            if position > end:  # the last read reached into the next unit
                inside = int(np.searchsorted(rows["position"], end))
                if inside < count and rows["position"][inside] == end:
                    position = end
                    self._first_offsets[number + 1] = int(rows["base_offset"][inside])
                rows = rows[:inside]
            if not rows.size or position > end:
                raise UnfitError
            found.append(rows)
        if not found:
            raise UnfitError
        self._first_offsets[number] = int(found[0]["base_offset"][0])
        return _joined(found)

    def first_offset(self, number: int) -> int:
        """Return the base offset of a unit's first batch."""
        if number not in self._first_offsets:
            batch = start_of_batch(self._file, self.start(number))
            if batch is None:
                raise UnfitError
            self._first_offsets[number] = int(batch["base_offset"])
        return self._first_offsets[number]
