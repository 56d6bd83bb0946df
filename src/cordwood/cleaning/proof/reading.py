"""Reads the windows of one state in a range of offsets, and checks that its batches are in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cordwood.cleaning.proof.facts import BoolArray, Facts, Int64Array
from cordwood.cleaning.proof.pairs import ViolationKind
from cordwood.cleaning.proof.ranges import PairRange
from cordwood.common.errors import CorruptBatchError
from cordwood.kernels.layout import BatchRows
from cordwood.record.columns import BatchWindow
from cordwood.storage.log.segment import MAX_OFFSET, Segment, gap_error, skip_gap
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, Gap, GapKind


@dataclass(frozen=True, slots=True)
class RangeWindows:
    """The windows of a range in one state.

    Attributes:
        damage: the kind of violation to report when this state cannot be read.
    """

    log: LogView
    part: PairRange
    lowest: int
    facts: Facts
    damage: ViolationKind

    def __iter__(self) -> Iterator[tuple[Segment, BatchWindow]]:
        """Yield the windows in the order of their offsets, with their segments.

        Raises:
            DataError, OSError: this state cannot be read.
        """
        for segment, item in self._items():
            if isinstance(item, BatchWindow):
                yield segment, item
            elif segment.base_offset != self.log.segments[-1].base_offset or item.kind is GapKind.DAMAGE:
                raise gap_error(segment, item)
            # Otherwise this is a torn tail or zeros, as a crash leaves them at the end of the log.
            del item

    def batches_of(self, window: BatchWindow) -> BatchRows:
        """Return the batches of a window that end in the range."""
        lasts = window.batches["last_offset"]
        inside = (lasts >= self.part.start) & (lasts < self.part.end)
        return window.batches if inside.all() else window.batches[inside]

    def _items(self) -> Iterator[tuple[Segment, BatchWindow | Gap]]:
        """Yield all windows and gaps.

        A segment inside the range is read from its first byte to its last, so that no batch is skipped, even if it is
        at a wrong place. If a segment reaches into other ranges, one task reads all its headers.
        """
        part = self.part
        segments = [*self.log.segments_from(part.start)]
        for segment, end in zip(segments, [*(one.base_offset for one in segments), MAX_OFFSET][1:], strict=True):
            first = max(segment.base_offset, self.lowest)
            if segment.base_offset >= part.end:
                return
            is_own = end > part.start and part.start <= first < part.end
            if is_own and part.start <= segment.base_offset and end <= part.end:
                last = segment.base_offset - 1
                for item in segment.windows(checks=Checks.ONCE, ordered=False):
                    if isinstance(item, BatchWindow):
                        if self.damage is ViolationKind.DAMAGE_BEFORE:
                            yield from self._up_to_misplaced(segment, item, last, end)
                            last = int(item.batches["last_offset"][-1])
                        else:
                            last = self._check_order(item.batches, last, end)
                    yield segment, item
                    del item
                continue
            if is_own:
                self._check_segment(segment, end)
            for item in segment.windows(
                start_offset=part.start, end_offset=part.end, checks=Checks.ONCE, ordered=False
            ):
                yield segment, item
                del item

    def _up_to_misplaced(
        self, segment: Segment, item: BatchWindow, last: int, end: int
    ) -> Iterator[tuple[Segment, BatchWindow]]:
        """Yield the batches before the first misplaced batch, then raise; yield nothing if no batch is misplaced.

        Raises:
            CorruptBatchError: a batch is misplaced. It may belong anywhere in the log, so no later batch can be
                compared.
        """
        wrong, ends = _misplaced(item.batches, last, end)
        if wrong.any():
            # Of two batches that overlap, either may be the wrong one.
            at = max(int(np.argmax(wrong)) - 1, 0)
            yield segment, BatchWindow(item.position, item.data, item.batches[:at], item.read)
            what, position = "a batch that does not stand where its offsets belong", int(item.batches["position"][at])
            raise CorruptBatchError(what, path=segment.path, position=position, offset=int(ends[at]) + 1)

    def _check_segment(self, segment: Segment, end: int) -> None:
        last = segment.base_offset - 1
        for rows in segment.headers(skip_gap):
            if rows.size:
                last = self._check_order(rows, last, end)

    def _check_order(self, rows: BatchRows, last: int, end: int) -> int:
        """Report batches that start at or below the previous one's end, or end beyond the segment; return the new end.

        In the state after, this is a violation of its order; in the state before, it is damage, so nothing is proved.
        """
        wrong, ends = _misplaced(rows, last, end)
        if self.damage is ViolationKind.DAMAGE_AFTER:
            self.facts.broken_batches(ViolationKind.ORDER, rows, wrong)
        else:
            self.facts.broken_at(self.damage, ends[wrong] + 1)
        return int(rows["last_offset"][-1])


def _misplaced(rows: BatchRows, last: int, end: int) -> tuple[BoolArray, Int64Array]:
    """Return which batches start at or below the previous one's end or end after the segment, and all previous ends."""
    lasts = rows["last_offset"]
    firsts = np.where(rows["base_offset"] >= 0, rows["base_offset"], lasts)
    ends = np.concatenate([np.array([last]), lasts[:-1]])
    return (firsts <= ends) | (lasts >= end), ends
