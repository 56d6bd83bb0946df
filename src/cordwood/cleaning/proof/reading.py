"""Divides a pair of logs into ranges of offsets, which are compared independently, and reads the windows of a range.

Batches are checked to be in order. A sample of them is also read with the plain reader, so that a bug of the fast
readers is noticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from cordwood.cleaning.proof.pairs import BoolArray, Count, Facts, Int64Array, Pair, Side, ViolationKind
from cordwood.common.errors import CorruptBatchError
from cordwood.common.types import Codec
from cordwood.fs.base import Store
from cordwood.kernels.layout import CODEC_MASK, BatchRows, RecordRows
from cordwood.record import plain
from cordwood.record.columns import BatchWindow, RecordColumns
from cordwood.record.record import to_records
from cordwood.storage.log.segment import MAX_OFFSET, Segment, gap_error, skip_gap
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, Gap, GapKind
from cordwood.storage.log.written import WrittenSegment

# ---- ranges ----------------------------------------------------------------------------------------------------------


class Entries(Enum):
    """The records of a range that get key entries."""

    ALL = "all"
    #: Removed records, and those in the dirty section.
    REMOVED = "removed"
    #: The records of the state after, once both states were compared for the removed ones.
    REMAINING = "remaining"


@dataclass(frozen=True, slots=True)
class PairRange:
    """Offsets [start, end) of a pair, compared by one task.

    Attributes:
        pair: the pair's index.
        start, end: no batch of an intact log crosses them.
        limit: no record from this offset on may have changed.
        same: both states have the same files in this range.
        size_bytes: bytes to read, of both states.
        headers_only: read batch headers only, for producers and transactions; only if both states have the same files.
        entries: the records that get key entries.
    """

    pair: int
    start: int
    end: int
    limit: int
    same: bool
    size_bytes: int
    headers_only: bool = False
    entries: Entries = Entries.ALL

    @property
    def how(self) -> tuple[bool, Entries]:
        """How the range is read."""
        return self.headers_only, self.entries


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


def ranges_of(number: int, pair: Pair, fs: Store) -> list[PairRange]:
    """Cut a pair into one range per segment of the state before.

    Args:
        number: the pair's index.
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
        at = int(np.searchsorted(starts, base, side="right"))
        next_start = starts[at] if at < len(starts) else MAX_OFFSET
        # A segment of the state after alone, before the first range, belongs to that range.
        is_alone = bool(found) or base <= lowest or at == 1
        same = there.get(base) == identity(pair.before, segment) and next_start == end and is_alone
        size_bytes = segment.size_bytes * (1 if same else 2)
        found.append(PairRange(number, max(base, lowest) if found else lowest, end, limit, same, size_bytes))
    return found


def joined(ranges: Iterable[PairRange], *, range_bytes: int) -> list[PairRange]:
    """Join adjacent ranges up to about `range_bytes` to read; each range holds at least one segment."""
    found: list[PairRange] = []
    for one in ranges:
        last = found[-1] if found else None
        if last is not None and (last.pair, last.end, *last.how) == (one.pair, one.start, *one.how):
            fits = last.same == one.same and last.size_bytes + one.size_bytes // 2 <= range_bytes
            # An empty segment may have become a file with batches, so both states have to be read.
            if fits or not (one.size_bytes or last.same):
                found[-1] = replace(last, end=one.end, size_bytes=last.size_bytes + one.size_bytes)
                continue
        found.append(one)
    return found


@dataclass(frozen=True, slots=True)
class RangeWindows:
    """The windows of a range in one state.

    Attributes:
        damage: the kind of violation to report when this state cannot be read.
        written: base offsets of segments whose indexes are compared with their batches.
    """

    log: LogView
    part: PairRange
    lowest: int
    facts: Facts
    damage: ViolationKind
    written: frozenset[int] = frozenset()

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
                written = self._begun(segment)
                for item in segment.windows(checks=Checks.ONCE, ordered=False):
                    if isinstance(item, BatchWindow):
                        if written is not None:
                            written.add(item.batches)
                        if self.damage is ViolationKind.DAMAGE_BEFORE:
                            yield from self._up_to_misplaced(segment, item, last, end)
                            last = int(item.batches["last_offset"][-1])
                        else:
                            last = self._check_order(item.batches, last, end)
                    yield segment, item
                    del item
                self._end(segment, written)
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
        written = self._begun(segment)
        for rows in segment.headers(skip_gap):
            if rows.size:
                last = self._check_order(rows, last, end)
                if written is not None:
                    written.add(rows)
        self._end(segment, written)

    def _begun(self, segment: Segment) -> WrittenSegment | None:
        return WrittenSegment(segment) if segment.base_offset in self.written else None

    def _end(self, segment: Segment, written: WrittenSegment | None) -> None:
        """Report the faults of a written segment's indexes, and count its batches."""
        if written is None:
            return
        self.facts.count(Count.BATCHES_WRITTEN, written.batches)
        self.facts.count(Count.RECORDS_WRITTEN, written.records)
        for _ in written.faults():
            self.facts.broken(ViolationKind.INDEX, segment.base_offset)

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


# ---- sampling --------------------------------------------------------------------------------------------------------

#: One batch in this many, and the first of each range, is read twice.
_SAMPLE_EVERY = 8192
_RECORDS_MAX = 2000
_BYTES_MAX = 1 << 20


@dataclass(slots=True)
class Sampler:
    """Chooses batches of one state that are read twice."""

    facts: Facts
    _seen: int = 0

    def choose(self, batches: int) -> range:
        """Choose, among the next batches with records, the indexes to check."""
        first = -self._seen % _SAMPLE_EVERY
        self._seen += batches
        return range(first, batches, _SAMPLE_EVERY)

    def check(self, columns: RecordColumns, window: BatchWindow, rows: RecordRows) -> None:
        """Read a batch with the plain reader, and compare the results.

        Args:
            columns: the fast reader's output.
            window: the window that has the batch.
            rows: RECORD_ROW[records], the batch's rows in `columns`.
        """
        batch = columns.batches[rows["batch"][0]]
        position, size = int(batch["position"]) - window.position, int(batch["size_bytes"])
        unpacked = int(np.maximum(rows["value_size"], 0).sum() + np.maximum(rows["key_size"], 0).sum())
        is_whole = position + size <= window.data.size and rows.size == batch["record_count"]
        if batch["magic"] < 2:
            ends = rows["offset"][0] == batch["base_offset"], rows["offset"][-1] == batch["last_offset"]
            # LZ4 frames in magic 0 have a wrong header checksum, which the plain reader's library rejects.
            readable = batch["magic"] == 1 or batch["attributes"] & CODEC_MASK != Codec.LZ4
            is_whole = position + size <= window.data.size and all(ends) and readable
        if not is_whole or rows.size > _RECORDS_MAX or max(size, unpacked) > _BYTES_MAX:
            return
        self.facts.count(Count.SAMPLED, rows.size)
        try:
            found = plain.read_batch(window.data[position : position + size].tobytes())
        except plain.BrokenError:
            found = []
        if found != list(to_records(columns.data, rows)):
            self.facts.broken(ViolationKind.READERS, int(rows["offset"][0]))
