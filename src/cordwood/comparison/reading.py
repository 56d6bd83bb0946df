"""Reads two replicas over the same offsets, and compares their batches.

Equal batches are the common case: a follower appends the batches of its leader unchanged. So batches are compared
first, by their headers, with checksums for all other bytes. Records are decoded only if batches differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cordwood.cleaning.proof.pairs import BoolArray
from cordwood.cleaning.proof.reading import PairRange, RangeWindows
from cordwood.common.errors import DataError
from cordwood.common.types import override
from cordwood.kernels.layout import BATCH_ROW, BatchRows
from cordwood.record.columns import BatchWindow, decode, is_valid
from cordwood.storage.log.segment import MAX_OFFSET, Segment, gap_error
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, Gap

#: Fields that two copies of a batch share. The checksum covers all others.
_IDENTITY = ("base_offset", "last_offset", "size_bytes", "crc", "leader_epoch", "magic")


@dataclass(frozen=True, slots=True)
class Interval:
    """Offsets [first, end) of one replica that cannot be read.

    Attributes:
        what: description of the damage, with the file.
    """

    first: int
    end: int
    what: str


@dataclass(frozen=True, slots=True)
class ReplicaWindows(RangeWindows):
    """The windows of a range in one replica.

    Attributes:
        skips_damage: an earlier attempt found damage, and the range leaves it out; skip gaps next to it.
    """

    skips_damage: bool = False

    @override
    def __iter__(self) -> Iterator[tuple[Segment, BatchWindow]]:
        for segment in self.log.segments_from(self.part.start):
            if segment.base_offset >= self.part.end:
                return
            windows = segment.windows(start_offset=self.part.start, end_offset=self.part.end, checks=Checks.ONCE)
            for item in windows:
                if isinstance(item, BatchWindow):
                    yield segment, item
                elif not self.skips_damage and not self.log.is_end(segment, item):
                    raise gap_error(segment, item)
                del item


def ranges_between(log: LogView, start: int, end: int, cuts: Iterable[int], *, range_bytes: int) -> list[PairRange]:
    """Cut offsets [start, end) at the segments of a log, into ranges of about `range_bytes`, and at given offsets."""
    found: list[PairRange] = []
    inner = {one for one in cuts if start < one < end}
    bases = [one.base_offset for one in log.segments]
    places = sorted({start, *inner, *(one for one in bases if start < one < end)}) if start < end else []
    sizes = {one.base_offset: one.size_bytes for one in log.segments}
    for first, stop in zip(places, [*places[1:], end], strict=True):
        at = max(int(np.searchsorted(bases, first, side="right")) - 1, 0)
        size_bytes = 2 * sizes[bases[at]] if bases else 0
        last = found[-1] if found else None
        if last is not None and first not in inner and last.size_bytes + size_bytes <= range_bytes:
            found[-1] = PairRange(0, last.start, stop, end, same=False, size_bytes=last.size_bytes + size_bytes)
        else:
            found.append(PairRange(0, first, stop, end, same=False, size_bytes=size_bytes))
    return found


@dataclass(frozen=True, slots=True)
class EqualBatches:
    """Batches that both replicas have in a range, up to the first difference.

    Attributes:
        all_equal: whether there is no difference and no damage.
    """

    all_equal: bool
    batches: int
    size_bytes: int


def compare_batches(newest: ReplicaWindows, other: ReplicaWindows) -> EqualBatches:
    """Compare batches up to the first difference."""
    batches = size_bytes = 0
    mine, theirs = _batches(newest), _batches(other)
    left, right = np.empty(0, BATCH_ROW), np.empty(0, BATCH_ROW)
    try:
        while True:
            left = left if left.size else next(mine, left)
            right = right if right.size else next(theirs, right)
            count = min(left.size, right.size)
            if not count:
                return EqualBatches(left.size == right.size, batches, size_bytes)
            one, two = left[:count], right[:count]
            if not (_are_equal(one, two).all() and is_valid(one).all() and is_valid(two).all()):
                return EqualBatches(False, batches, size_bytes)
            batches += count
            size_bytes += int(one["size_bytes"].sum())
            left, right = left[count:], right[count:]
    except (DataError, OSError):
        return EqualBatches(False, batches, size_bytes)


def _batches(windows: ReplicaWindows) -> Iterator[BatchRows]:
    for _, item in windows:
        batches = windows.batches_of(item)
        del item
        if batches.size:
            yield batches


def _are_equal(one: BatchRows, two: BatchRows) -> BoolArray:
    equal = one[_IDENTITY[0]] == two[_IDENTITY[0]]
    for name in _IDENTITY[1:]:
        equal &= one[name] == two[name]
    return np.asarray(equal)


# ---- damage ----------------------------------------------------------------------------------------------------------


def damage_in(log: LogView, start: int, end: int) -> list[Interval]:
    """Return the unreadable offsets of a range, in order."""
    found: list[Interval] = []
    for segment in log.segments_from(start):
        if segment.base_offset >= end:
            break
        stop = MAX_OFFSET if segment.following is None else segment.following.base_offset
        try:
            found += _damage_of(log, segment, start, min(end, stop))
        except OSError as error:
            found.append(Interval(max(segment.base_offset, start), min(end, stop), f"{segment.path}: {error.strerror}"))
    return [one for one in found if one.first < one.end]


def _damage_of(log: LogView, segment: Segment, start: int, end: int) -> Iterator[Interval]:
    next_offset, gap = max(segment.base_offset, start), None
    for item in segment.windows(start_offset=start, end_offset=end, checks=Checks.ONCE):
        if isinstance(item, Gap):
            if not log.is_end(segment, item):
                gap = gap or item
            continue
        errors: list[DataError] = []
        for columns in decode(item, on_damage=errors.append):
            del columns
        right = item.batches[is_valid(item.batches)]
        if gap is not None and right.size:
            # A wrapper's header lacks its first offset.
            first = int(right["base_offset"][0]) if right["base_offset"][0] >= 0 else int(right["last_offset"][0])
            yield Interval(next_offset, min(first, end), str(gap_error(segment, gap)))
            gap = None
        for error in errors:
            yield from _batch_of(item.batches, error, segment, end)
        if right.size:
            next_offset = int(right["last_offset"][-1]) + 1
        del item
    if gap is not None:
        yield Interval(next_offset, end, str(gap_error(segment, gap)))


def _batch_of(batches: BatchRows, error: DataError, segment: Segment, end: int) -> Iterator[Interval]:
    rows = batches[batches["position"] == error.position]
    for row in rows[:1]:
        first = int(row["base_offset"]) if row["base_offset"] >= 0 else int(row["last_offset"])
        yield Interval(first, min(int(row["last_offset"]) + 1, end), str(error.at(segment.path)))


def is_within(offset: int, intervals: Sequence[Interval]) -> bool:
    """Return whether one of the intervals contains an offset."""
    return any(one.first <= offset < one.end for one in intervals)
