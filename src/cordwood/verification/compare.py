"""Compares two states of a log, a range of offsets at a time.

Both states are read side by side, in windows, in offset order, each once; a file that both have is read once for both.
This module decides what a single pass can decide: whether each record is still there, unchanged and in order, and
whether each batch kept its header fields. A key's last value needs the whole log, so it becomes entries that are merged
later, see `keys`; what becomes of a transaction hangs on a later marker, see `transactions`.

Nothing is imported from `cleaning` or its kernels: keys, values and headers are compared as bytes, and large values by
keyed digests (see `large`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cordwood.config import LONG_MAX
from cordwood.errors import CorruptFileError, DataError
from cordwood.fs.base import Store
from cordwood.kernels import side_by_side
from cordwood.kernels.last_records import COUNTS, TOMBSTONES_MAY_GO
from cordwood.kernels.layout import BATCH_ROW, CODEC_MASK, DELETE_HORIZON, LOG_APPEND_TIME, BatchRows
from cordwood.kernels.side_by_side import INVENTED, look_over, match_records
from cordwood.record import plain
from cordwood.record.columns import BatchWindow, RecordColumns, decode
from cordwood.record.headers import is_control
from cordwood.record.record import to_records
from cordwood.storage.log.segment import MAX_OFFSET, Segment, gap_error
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap, GapKind, read_headers
from cordwood.types import NONE, Codec
from cordwood.verification.facts import BoolArray, Facts, Int64Array, Piece
from cordwood.verification.keys import KeyEntries, KeyRules
from cordwood.verification.large import Digests
from cordwood.verification.pairs import Count, Pair, ViolationKind
from cordwood.verification.producers import ProducerNotes
from cordwood.verification.ranges import Range
from cordwood.verification.scratch import Kept, Scratch
from cordwood.verification.transactions import ABORTED

#: One batch in this many, and the first of each range, is also read by the plain reader.
_SAMPLE_EVERY = 2048
_SAMPLE_RECORDS_MAX = 2000
_SAMPLE_BYTES_MAX = 1 << 20
#: Windows and decoded buffers larger than this are freed before the other state is read.
_LARGE_BYTES = 32 << 20


#: What the kernel finds different of a record, and the violation that it is.
_DIFFERENCES = {
    side_by_side.TIMESTAMP: ViolationKind.TIMESTAMP,
    side_by_side.KEY: ViolationKind.KEY,
    side_by_side.VALUE: ViolationKind.VALUE,
    side_by_side.HEADERS: ViolationKind.HEADERS,
}


@dataclass(frozen=True, slots=True)
class RangeResult:
    """What is left of a range.

    Attributes:
        keys: entries of its records, see `KeyEntries`.
        seen, steps: of its producers and transactions, see `ProducerNotes`.
        aborted: ABORTED[entries], of the transaction indexes of the state after.
    """

    facts: Facts
    keys: list[Kept]
    seen: npt.NDArray[np.void]
    steps: list[Kept]
    aborted: npt.NDArray[np.void]


class _Stream:
    """One state of a range, read step by step.

    Attributes:
        upto: everything up to and including this offset has been read.
        damage: the kind of violation to report when this state cannot be read.
        newest: base offsets of batches, and the newest timestamp of their records. A batch whose records arrive in
            several pieces occurs several times.
    """

    def __init__(
        self, log: LogView, part: Range, lowest: int, facts: Facts, damage: ViolationKind, digests: Digests
    ) -> None:
        self.upto = part.start - 1
        self.damage = damage
        self.newest: list[tuple[Int64Array, Int64Array]] = []
        self._log = log
        self._part = part
        self._lowest = lowest
        self._facts = facts
        self._digests = digests
        self._batches: deque[BatchRows] = deque()
        self._records: deque[Piece] = deque()
        self._last = -1
        self._seen = 0
        self._steps = self._read()

    def read_on(self) -> None:
        """Read the next window, or the next decoded part of it."""
        try:
            if next(self._steps, None) is None:
                self.upto = MAX_OFFSET
        except (DataError, OSError) as error:
            at = error.offset if isinstance(error, DataError) else None
            self._facts.broken(self.damage, self.upto + 1 if at is None else at)
            self.upto = MAX_OFFSET

    def take_batches(self, bound: int) -> BatchRows:
        """Remove and return all batches that end at or below an offset."""
        batches = []
        while self._batches and (below := self._batches[0]["last_offset"] <= bound).any():
            rows = self._batches.popleft()
            batches.append(rows[below])
            if not below.all():
                self._batches.appendleft(rows[~below])
                break
        return np.concatenate(batches) if batches else np.empty(0, BATCH_ROW)

    def take_records(self, bound: int) -> list[Piece]:
        """Remove and return all records at or below an offset."""
        records = []
        while self._records and self._records[0].rows["offset"][0] <= bound:
            piece = self._records.popleft()
            offsets = piece.rows["offset"]
            count = offsets.size if offsets[-1] <= bound else int(np.searchsorted(offsets, bound, side="right"))
            records.append(piece.part(0, count))
            if count < piece.rows.size:
                self._records.appendleft(piece.part(count, piece.rows.size))
                break
        return records

    def _read(self) -> Iterator[bool]:
        for segment, item in self._items():
            if not isinstance(item, BatchWindow):
                if segment.base_offset != self._log.segments[-1].base_offset or item.kind is GapKind.DAMAGE:
                    raise gap_error(segment, item)
                continue  # a torn tail or zeros, as a crash leaves them at the end of the log
            lasts = item.batches["last_offset"]
            batches = item.batches[(lasts >= self._part.start) & (lasts < self._part.end)]
            if not batches.size:
                continue
            self._batches.append(batches)
            window = BatchWindow(item.position, item.data, batches, item.read)
            try:
                for columns in decode(window):
                    is_large = columns.data.size > _LARGE_BYTES
                    has_records = self._take_in(columns, segment, window)
                    del columns
                    # Do not yield while a large buffer is in memory: the other state may be read next.
                    if has_records and not is_large:
                        yield True
            except DataError as error:
                raise error.at(segment.path) from None
            self.upto = max(self.upto, int(batches["last_offset"].max()))
            is_large = item.data.size > _LARGE_BYTES
            del item, window
            if not is_large:
                yield True

    def _items(self) -> Iterator[tuple[Segment, BatchWindow | Gap]]:
        """The windows and gaps of the range.

        A segment that lies in the range is read from its first byte to its last, so that no batch of it is passed over,
        wherever it is. Of one that reaches into other ranges, one task reads all headers.
        """
        part = self._part
        segments = [*self._log.segments_from(part.start)]
        for segment, end in zip(segments, [*(one.base_offset for one in segments[1:]), MAX_OFFSET], strict=True):
            first = max(segment.base_offset, self._lowest)
            if segment.base_offset >= part.end:
                return
            is_own = end > part.start and part.start <= first < part.end
            if is_own and part.start <= segment.base_offset and end <= part.end:
                last = segment.base_offset - 1
                for item in segment.windows(ordered=False):
                    if isinstance(item, BatchWindow):
                        last = self._check_order(item.batches, last, end)
                    yield segment, item
                    del item
                continue
            if is_own:
                self._check_segment(segment, end)
            for item in segment.windows(start_offset=part.start, end_offset=part.end, ordered=False):
                yield segment, item
                del item

    def _check_segment(self, segment: Segment, end: int) -> None:
        last = segment.base_offset - 1
        with segment.open() as file:
            for rows in read_headers(file, base_offset=segment.base_offset):
                if not isinstance(rows, Gap) and rows.size:
                    last = self._check_order(rows, last, end)

    def _check_order(self, rows: BatchRows, last: int, end: int) -> int:
        """Report batches that start at or below the last one's end, or end beyond the segment. Returns the new end.

        What a clean left may not be so; if the state before is, nothing is proved.
        """
        lasts = rows["last_offset"]
        firsts = np.where(rows["base_offset"] >= 0, rows["base_offset"], lasts)
        ends = np.concatenate([np.array([last]), lasts[:-1]])
        if self.damage is ViolationKind.DAMAGE_AFTER:
            self._facts.broken_batches(ViolationKind.ORDER, rows, (firsts <= ends) | (lasts >= end))
        else:
            self._facts.broken_at(self.damage, ends[(lasts <= ends) | (lasts >= end)] + 1)
        return int(lasts[-1])

    def _take_in(self, columns: RecordColumns, segment: Segment, window: BatchWindow) -> bool:
        """Check the order of records, and keep them until they are compared; return whether any are left."""
        rows, batches = columns.rows, columns.batches
        ascend = np.empty(rows.size, np.bool_)
        firsts, counts, newest = (np.empty(rows.size, np.int64) for _ in range(3))
        found, wrong = look_over(rows, self._last, ascend, firsts, counts, newest)
        self.newest.append((batches["base_offset"][rows["batch"][firsts[:found]]], newest[:found]))
        self._sample(columns, window, firsts[:found], counts[:found])
        data, rows = self._digests.replace(columns.data, rows)
        piece = Piece(data, rows, batches, segment.mtime_ms)
        if wrong:
            offsets = rows["offset"]
            before = np.maximum.accumulate(np.concatenate([np.array([self._last]), offsets[:-1]]))
            self._facts.broken_records(ViolationKind.TWICE, piece, offsets == before)
            self._facts.broken_records(ViolationKind.ORDER, piece, offsets < before)
            piece = Piece(data, rows[ascend], batches, segment.mtime_ms)
        if not piece.rows.size:
            return False
        self._last = int(piece.rows["offset"][-1])
        self._records.append(piece)
        self.upto = max(self.upto, self._last)
        return True

    def _sample(self, columns: RecordColumns, window: BatchWindow, starts: Int64Array, counts: Int64Array) -> None:
        """Read some batches with the plain reader as well, and compare the results.

        Args:
            starts, counts: int64[batches], the index of each batch's first record, and how many there are.
        """
        first = -self._seen % _SAMPLE_EVERY
        self._seen += starts.size
        for at in range(first, starts.size, _SAMPLE_EVERY):
            rows = columns.rows[starts[at] : starts[at] + counts[at]]
            batch = columns.batches[rows["batch"][0]]
            position, size = int(batch["position"]) - window.position, int(batch["size_bytes"])
            unpacked = int(np.maximum(rows["value_size"], 0).sum() + np.maximum(rows["key_size"], 0).sum())
            is_whole = position + size <= window.data.size and rows.size == batch["record_count"]
            if batch["magic"] < 2:
                ends = rows["offset"][0] == batch["base_offset"], rows["offset"][-1] == batch["last_offset"]
                # LZ4 frames in magic 0 have a wrong header checksum, which the plain reader's library rejects.
                readable = batch["magic"] == 1 or batch["attributes"] & CODEC_MASK != Codec.LZ4
                is_whole = position + size <= window.data.size and all(ends) and readable
            if not is_whole or rows.size > _SAMPLE_RECORDS_MAX or max(size, unpacked) > _SAMPLE_BYTES_MAX:
                continue
            self._facts.count(Count.SAMPLED, rows.size)
            try:
                found = plain.read_batch(window.data[position : position + size].tobytes())
            except plain.BrokenError:
                found = []
            if found != list(to_records(columns.data, rows)):
                self._facts.broken(ViolationKind.READERS, int(rows["offset"][0]))


def compare_range(
    part: Range, pair: Pair, fs: Store, rules: KeyRules, scratch: Scratch, *, here_max: int = 0
) -> RangeResult:
    """Compare both states of a range.

    Args:
        here_max: up to so many entries of keys stay in memory; more are in files of `scratch`.
    """
    facts = Facts()
    with scratch.writer() as writer:
        log = pair.before.open(fs)
        high = max(part.limit, pair.superseding_end or part.limit)
        keys = KeyEntries(rules, writer, np.array([pair.lowest, high], np.int64))
        notes = ProducerNotes(pair.lowest, writer)
        judge = _Judge(pair, part, facts, keys, log)
        digests = Digests()
        before = _Stream(log, part, pair.lowest, facts, ViolationKind.DAMAGE_BEFORE, digests)
        if part.same:
            _read_same(before, judge, notes)
        else:
            state_after = pair.after.open(fs)
            after = _Stream(state_after, part, pair.lowest, facts, ViolationKind.DAMAGE_AFTER, digests)
            _read_both(part, before, after, judge, notes)
        aborted = _aborted(pair.after.open(fs), part, pair.lowest, facts)
        seen, steps = notes.finish(here_max=here_max)
        return RangeResult(facts, keys.finish(here_max=here_max), seen, steps, aborted)


def _read_same(state: _Stream, judge: _Judge, notes: ProducerNotes) -> None:
    while state.upto < MAX_OFFSET:
        state.read_on()
        batches = state.take_batches(state.upto)
        state.newest.clear()
        judge.facts.count(Count.UNCHANGED_BYTES, batches["size_bytes"].sum())
        notes.add(batches, batches)
        for piece in state.take_records(state.upto):
            for count in (Count.RECORDS_SAME, Count.RECORDS_BEFORE, Count.RECORDS_AFTER):
                judge.facts.count(count, piece.rows.size)
            judge.records(piece, np.ones(piece.rows.size, np.bool_))


def _read_both(part: Range, before: _Stream, after: _Stream, judge: _Judge, notes: ProducerNotes) -> None:
    done = part.start - 1
    while done < MAX_OFFSET:
        (before if before.upto <= after.upto else after).read_on()
        before.newest.clear()
        bound = min(before.upto, after.upto)
        if bound > done:
            judge.records_of_both(before.take_records(bound), after.take_records(bound))
            batches = before.take_batches(bound)
            # The batches rewritten from a wrapper may end below the wrapper's last offset. Hold them back until the
            # wrapper itself has been read.
            ended = int(batches["last_offset"][-1]) if batches.size else NONE
            theirs = after.take_batches(bound if bound == MAX_OFFSET else ended)
            judge.batches(batches, theirs, after)
            notes.add(batches, theirs)
            done = bound


def _aborted(log: LogView, part: Range, lowest: int, facts: Facts) -> npt.NDArray[np.void]:
    """ABORTED[entries] of the transaction indexes of segments that start in a range."""
    found = [np.empty(0, ABORTED)]
    for segment in log.segments:
        if not part.start <= max(segment.base_offset, lowest) < part.end:
            continue
        try:
            index = segment.transaction_index()
        except CorruptFileError:
            facts.broken(ViolationKind.INDEX, segment.base_offset)
            continue
        if index is not None and index.entries:
            rows = np.empty(index.producer_ids.size, ABORTED)
            rows["pid"], rows["first"], rows["last"] = index.producer_ids, index.first_offsets, index.last_offsets
            found.append(rows)
    return np.concatenate(found)


class _Judge:
    """Compares the records and batches of both states over the same offsets."""

    def __init__(self, pair: Pair, part: Range, facts: Facts, keys: KeyEntries, before: LogView) -> None:
        self.facts = facts
        self._pair = pair
        self._keys = keys
        self._limit = part.limit
        self._bases = np.array([segment.base_offset for segment in before.segments], np.int64)
        # A clean sets delete horizons from its own clock, and it ran after the segment was last written.
        written = np.array([segment.mtime_ms for segment in before.segments], np.int64)
        latest = min(pair.now_ms, LONG_MAX - pair.delete_retention_ms)
        self._horizon_min = np.minimum(written, latest) + pair.delete_retention_ms

    def records_of_both(self, before: list[Piece], after: list[Piece]) -> None:
        """Compare the records of both states up to the same offset."""
        there = [np.zeros(piece.rows.size, np.bool_) for piece in before]
        differs = [np.full(piece.rows.size, INVENTED) for piece in after]
        mine = theirs = at = other_at = 0
        while mine < len(before) and theirs < len(after):
            was, now = before[mine], after[theirs]
            at, other_at = match_records(
                *(was.data.ctypes.data, was.rows, at),
                *(now.data.ctypes.data, now.rows, other_at),
                *(there[mine], differs[theirs]),
            )
            if at == was.rows.size:
                mine, at = mine + 1, 0
            if other_at == now.rows.size:
                theirs, other_at = theirs + 1, 0
        for piece, known in zip(before, there, strict=True):
            self.facts.count(Count.RECORDS_BEFORE, piece.rows.size)
            self.records(piece, known)
        for piece, its_differs in zip(after, differs, strict=True):
            invented = its_differs == INVENTED
            self.facts.count(Count.RECORDS_AFTER, piece.rows.size)
            self.facts.count(Count.RECORDS_SAME, piece.rows.size - int(invented.sum()))
            if its_differs.any():
                self.facts.broken_records(ViolationKind.INVENTED, piece, invented)
                for bit, kind in _DIFFERENCES.items():
                    self.facts.broken_records(kind, piece, its_differs & bit != 0)

    def records(self, piece: Piece, there: BoolArray) -> None:
        """Add the keys of records of the state before.

        Args:
            piece: records of the state before.
            there: bool[records]; True where the record is also in the state after.
        """
        pair, batches = self._pair, piece.batches
        legacy = batches["magic"] < 2
        expired = pair.legacy_horizon_ms is not None and piece.mtime_ms <= pair.legacy_horizon_ms
        may_go = np.where(legacy, expired or not pair.times_known, self._is_due(batches)) & pair.deletes_for_good
        rules = np.where(is_control(batches), 0, COUNTS) | np.where(may_go, TOMBSTONES_MAY_GO, 0)
        if not pair.times_known and (legacy & may_go).any():
            low, high = self._keys.between.tolist()
            rows = piece.rows[~there & (legacy & may_go)[piece.rows["batch"]]]
            counted = (rows["key_size"] >= 0) & (rows["value_size"] < 0)
            counted &= (rows["offset"] >= low) & (rows["offset"] < high)
            self.facts.count(Count.NOT_JUDGED, counted.sum())
        self._keys.add(piece, rules.astype(np.uint8), there)

    def _is_due(self, batches: BatchRows) -> BoolArray:
        flagged = batches["attributes"] & DELETE_HORIZON != 0
        return np.asarray(flagged & (batches["base_timestamp"] <= self._pair.now_ms))

    def batches(self, before: BatchRows, after: BatchRows, state_after: _Stream) -> None:
        """Compare the batches of both states up to the same offset."""
        newest, known = _newest_of(after, state_after)
        self.facts.count(Count.BATCHES, after.size)
        if before.size:
            owner = np.searchsorted(before["last_offset"], after["last_offset"])
            found = owner < before.size
        else:
            owner, found = np.zeros(after.size, np.int64), np.zeros(after.size, np.bool_)
        self.facts.broken_batches(ViolationKind.BATCH_INVENTED, after, ~found)
        after, owner = after[found], owner[found]
        if before.size:
            self._fields(before[owner], after, newest[found], known[found])
            self._lost(before, after, owner)

    def _is_wrong_horizon(self, was: BatchRows, horizons: Int64Array, is_new: BoolArray) -> BoolArray:
        """bool[batches]: whether a delete horizon is new, and no clean of the state before can have set it."""
        exact = self._pair.new_horizon_ms
        if exact is not None:
            return np.asarray(is_new & (horizons != exact))
        segments = np.searchsorted(self._bases, was["last_offset"], side="right") - 1
        early = np.asarray(is_new & (horizons < self._horizon_min[np.maximum(segments, 0)]))
        if self._pair.times_known:
            return early
        self.facts.count(Count.NOT_JUDGED, early.sum())
        return np.zeros_like(early)

    def _fields(self, was: BatchRows, now: BatchRows, newest: Int64Array, known: BoolArray) -> None:
        """Compare header fields with those before the clean, and with the newest record timestamp where it is known."""
        legacy, empty = was["magic"] < 2, now["record_count"] == 0
        late = was["attributes"] & LOG_APPEND_TIME != 0
        offsets = (was["base_offset"] != now["base_offset"]) | (was["last_offset"] != now["last_offset"])
        whole = was["record_count"] == now["record_count"]
        latest, said = was["max_timestamp"], now["max_timestamp"]
        # An emptied batch has no records to compress, so its codec may differ.
        compared = np.where(empty, ~(DELETE_HORIZON | CODEC_MASK), ~DELETE_HORIZON)
        had, has = (rows["attributes"] & DELETE_HORIZON != 0 for rows in (was, now))
        broken = {
            ViolationKind.BATCH_OFFSETS: np.where(legacy, now["base_offset"] > now["last_offset"], offsets),
            ViolationKind.BATCH_EPOCH: was["leader_epoch"] != now["leader_epoch"],
            ViolationKind.BATCH_PRODUCER: (was["producer_id"] != now["producer_id"])
            | (was["producer_epoch"] != now["producer_epoch"])
            | (was["base_sequence"] != now["base_sequence"]),
            ViolationKind.BATCH_ATTRIBUTES: ((was["attributes"] ^ now["attributes"]) & compared != 0)
            | (now["magic"] < was["magic"])
            | (~legacy & (now["record_count"] > was["record_count"])),
            ViolationKind.BATCH_TIME: (said > latest)
            | ((late | empty | (whole & ~legacy)) & (said != latest))
            | (known & (said != latest) & (said != newest)),
            ViolationKind.HORIZON: (had & ~empty & (~has | (was["base_timestamp"] != now["base_timestamp"])))
            | self._is_wrong_horizon(was, now["base_timestamp"], has & ~had),
        }
        for what, bad in broken.items():
            self.facts.broken_batches(what, now, np.asarray(bad))

    def _lost(self, before: BatchRows, after: BatchRows, owner: Int64Array) -> None:
        """Report markers that are gone too early, and batches above the limit that are gone or changed."""
        filled = np.zeros(before.size, np.bool_)
        filled[owner[after["record_count"] != 0]] = True
        markers = is_control(before) & (before["record_count"] > 0)
        self.facts.count(Count.MARKERS, (markers & filled).sum())
        may_go = self._is_due(before) & (before["last_offset"] < self._limit) & self._pair.deletes_for_good
        self.facts.broken_batches(ViolationKind.MARKER, before, markers & ~filled & ~may_go)

        above = before["last_offset"] >= self._limit
        if above.any():
            same = np.zeros(before.size, np.bool_)
            mine = before[owner]
            names = ("base_offset", "last_offset", "crc", "size_bytes", "magic", "leader_epoch")
            same[owner[np.logical_and.reduce([mine[name] == after[name] for name in names])]] = True
            self.facts.count(Count.BATCHES_ABOVE, (above & same).sum())
            self.facts.broken_batches(ViolationKind.UNTOUCHED, before, above & ~same)


def _newest_of(after: BatchRows, state: _Stream) -> tuple[Int64Array, BoolArray]:
    """Return each batch's newest record timestamp, and whether it is known; keep those of later batches."""
    if not state.newest:
        return np.zeros(after.size, np.int64), np.zeros(after.size, np.bool_)
    bases, which = np.unique(np.concatenate([bases for bases, _ in state.newest]), return_inverse=True)
    times = np.full(bases.size, np.iinfo(np.int64).min)
    np.maximum.at(times, which, np.concatenate([times for _, times in state.newest]))
    at = np.minimum(np.searchsorted(bases, after["base_offset"]), bases.size - 1)
    later = bases > (after["base_offset"].max() if after.size else NONE)
    state.newest = [(bases[later], times[later])] if later.any() else []
    return times[at], bases[at] == after["base_offset"]
