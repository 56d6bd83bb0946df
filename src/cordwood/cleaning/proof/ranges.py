"""Divides a pair of logs into ranges of offsets that are compared independently."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cordwood.cleaning.proof.pairs import Pair, Side
from cordwood.fs.base import Store
from cordwood.storage.log.segment import MAX_OFFSET, Segment
from cordwood.storage.log.view import LogView


@dataclass(frozen=True, slots=True)
class PairRange:
    """Offsets [start, end) of a pair, compared by one task.

    Attributes:
        pair: the pair's index.
        start, end: no batch of an intact log crosses them.
        limit: no record from this offset on may have changed.
        same: both states have the same files in this range.
        size_bytes: bytes to read, of both states.
    """

    pair: int
    start: int
    end: int
    limit: int
    same: bool
    size_bytes: int


def limit_of(pair: Pair, log: LogView) -> int:
    """Return the offset from which on a clean must not have changed the state before."""
    if pair.first_uncleanable is not None:
        return pair.first_uncleanable
    if not log.segments:
        return 0
    bases = [segment.base_offset for segment in log.segments]
    stable = log.transactions().last_stable_offset
    known = [bases[-1], *(one for one in (stable, pair.high_watermark) if one is not None)]
    # Segments are cleaned as a whole or not at all.
    return max((base for base in bases if base <= min(known)), default=0)


def ranges_of(number: int, pair: Pair, fs: Store, *, range_bytes: int) -> list[PairRange]:
    """Cut a pair at segment boundaries of the state before, into ranges of about `range_bytes` or of one segment.

    Args:
        number: the pair's index.
        range_bytes: bytes to read per range.
    """
    before, after = pair.before.open(fs), pair.after.open(fs)
    limit = limit_of(pair, before)

    def identity(side: Side, segment: Segment) -> tuple[int, ...] | tuple[str]:
        info = fs.stat(side.file_of(segment))
        return (info.device, info.inode) if info.inode else (side.file_of(segment),)

    there = {segment.base_offset: identity(pair.after, segment) for segment in after.segments}
    starts = [segment.base_offset for segment in after.segments]
    found: list[PairRange] = []
    lowest = pair.lowest
    if not before.segments:  # every record of the state after would be an invention
        return [PairRange(number, lowest, MAX_OFFSET, limit, same=False, size_bytes=after.size_bytes)]
    ends = [*(segment.base_offset for segment in before.segments[1:]), MAX_OFFSET]
    for segment, end in zip(before.segments, ends, strict=True):
        if end <= lowest:
            continue
        base = segment.base_offset
        at = np.searchsorted(starts, base, side="right")
        next_start = starts[at] if at < len(starts) else MAX_OFFSET
        same = there.get(base) == identity(pair.before, segment) and next_start == end
        size = segment.size_bytes * (1 if same else 2)
        fits = bool(found) and found[-1].same == same and found[-1].size_bytes + size // 2 <= range_bytes
        if fits or (found and not size):
            last = found.pop()
            found.append(PairRange(number, last.start, end, limit, last.same, last.size_bytes + size))
        else:
            found.append(PairRange(number, max(base, lowest) if found else lowest, end, limit, same, size))
    return found
