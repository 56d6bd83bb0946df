"""Compares two states of a log, in tasks, and yields rows of facts.

Both states are read side by side, in windows, in offset order. This module decides what a single pass can decide:
whether each record is still there, unchanged and in order, and whether each batch kept its header fields. A key's last
value needs the whole log, so it becomes entries that other tasks merge; see `keys`.

Nothing is imported from `cleaning` or its kernels: keys, values and headers are compared as bytes, and large values by
keyed digests (see `large`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cordwood.config import LONG_MAX
from cordwood.errors import DataError
from cordwood.fs.base import Store
from cordwood.kernels.gather import list_headers
from cordwood.kernels.layout import (
    BATCH_ROW,
    CODEC_MASK,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    BatchRows,
    U8Array,
)
from cordwood.record import plain
from cordwood.record.columns import BatchWindow, RecordColumns, decode
from cordwood.record.headers import is_control
from cordwood.record.record import to_records
from cordwood.storage.log.segment import MAX_OFFSET, Segment, gap_error
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import GapKind
from cordwood.types import NONE, Codec

if TYPE_CHECKING:
    import pyarrow as pa
from cordwood.verification.facts import BoolArray, Facts, Int64Array, KeyRules, Keys, Piece
from cordwood.verification.keys import entries_of
from cordwood.verification.large import Digests
from cordwood.verification.pairs import Count, Pair, ViolationKind
from cordwood.verification.ranges import Range

#: One batch in this many, and the first of each range, is also read by the plain reader.
_SAMPLE_EVERY = 256
_SAMPLE_RECORDS_MAX = 2000
_SAMPLE_BYTES_MAX = 1 << 20
#: Windows and decoded buffers larger than this are freed before the other state is read.
_LARGE_BYTES = 32 << 20


class _Stream:
    """One state of a range, read step by step.

    Attributes:
        upto: everything up to and including this offset has been read.
        damage: the kind of violation to report when this state cannot be read.
    """

    def __init__(self, log: LogView, part: Range, facts: Facts, damage: ViolationKind, digests: Digests) -> None:
        self.upto = part.start - 1
        self.damage = damage
        self._log = log
        self._part = part
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
            count = int(np.searchsorted(piece.offsets, bound, side="right"))
            records.append(Piece(piece.data, piece.rows[:count], piece.batches, piece.mtime_ms))
            if count < piece.rows.size:
                self._records.appendleft(Piece(piece.data, piece.rows[count:], piece.batches, piece.mtime_ms))
                break
        return records

    def _read(self) -> Iterator[bool]:
        start, end = self._part.start, self._part.end
        for segment, item in self._log.windows(start_offset=start, end_offset=end):
            if not isinstance(item, BatchWindow):
                if segment.base_offset != self._log.segments[-1].base_offset or item.kind is GapKind.DAMAGE:
                    raise gap_error(segment, item)
                continue  # a torn tail or zeros, as a crash leaves them at the end of the log
            lasts = item.batches["last_offset"]
            batches = item.batches[(lasts >= start) & (lasts < end)]
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

    def _take_in(self, columns: RecordColumns, segment: Segment, window: BatchWindow) -> bool:
        """Check the order of records, and keep them until they are compared; return whether any are left."""
        self._sample(columns, window)
        data, rows = self._digests.replace(columns.data, columns.rows)
        piece = Piece(data, rows, columns.batches, segment.mtime_ms)
        offsets = piece.offsets
        before = np.maximum.accumulate(np.concatenate([np.array([self._last]), offsets[:-1]]))
        ascend = offsets > before
        if not ascend.all():
            self._facts.broken_records(ViolationKind.TWICE, piece, offsets == before)
            self._facts.broken_records(ViolationKind.ORDER, piece, offsets < before)
            piece = Piece(piece.data, piece.rows[ascend], piece.batches, piece.mtime_ms)
        if not piece.rows.size:
            return False
        self._last = int(piece.rows["offset"][-1])
        self._records.append(piece)
        self.upto = max(self.upto, self._last)
        return True

    def _sample(self, columns: RecordColumns, window: BatchWindow) -> None:
        """Read some batches with the plain reader as well, and compare the results."""
        owners = columns.rows["batch"]
        starts = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(np.diff(owners)) + 1])
        first = -self._seen % _SAMPLE_EVERY
        self._seen += starts.size
        for at in range(first, starts.size, _SAMPLE_EVERY):
            end = int(starts[at + 1]) if at + 1 < starts.size else owners.size
            rows = columns.rows[starts[at] : end]
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


def compare(parts: Sequence[tuple[Range, Pair]], fs: Store, rules: Mapping[int, KeyRules]) -> Iterator[pa.RecordBatch]:
    """Compare ranges, and yield the facts as record batches of `FACT_SCHEMA`.

    Args:
        parts: ranges with their pairs; the ranges of a pair are adjacent.
        rules: how to hash and share out the keys of each pair, by the pair's number.
    """
    keys: Keys | None = None
    for part, pair in parts:
        if keys is None or keys.pair != part.pair:
            if keys is not None:
                yield from keys.take(last=True)
            keys = Keys(part.pair, rules[part.pair])
        facts = Facts(part.pair)
        for _ in _compare_range(part, pair, fs, facts, keys):
            yield from keys.take()
        yield facts.rows(keys.rules.first_bucket)
    if keys is not None:
        yield from keys.take(last=True)


def _compare_range(part: Range, pair: Pair, fs: Store, facts: Facts, keys: Keys) -> Iterator[None]:
    """Compare one range; results go to `facts` and `keys`. Yields after each step, so that full tables can be sent."""
    log = pair.before.open(fs)
    judge = _Judge(pair, part, facts, keys, log)
    digests = Digests()
    before = _Stream(log, part, facts, ViolationKind.DAMAGE_BEFORE, digests)
    if part.same:
        while before.upto < MAX_OFFSET:
            before.read_on()
            facts.count(Count.UNCHANGED_BYTES, before.take_batches(before.upto)["size_bytes"].sum())
            for piece in before.take_records(before.upto):
                facts.count(Count.RECORDS_SAME, piece.rows.size)
                facts.count(Count.RECORDS_BEFORE, piece.rows.size)
                facts.count(Count.RECORDS_AFTER, piece.rows.size)
                judge.records(piece, np.ones(piece.rows.size, np.bool_))
            yield
    else:
        after = _Stream(pair.after.open(fs), part, facts, ViolationKind.DAMAGE_AFTER, digests)
        done = part.start - 1
        while done < MAX_OFFSET:
            (before if before.upto <= after.upto else after).read_on()
            bound = min(before.upto, after.upto)
            if bound > done:
                judge.records_of_both(before.take_records(bound), after.take_records(bound))
                batches = before.take_batches(bound)
                # The batches rewritten from a wrapper may end below the wrapper's last offset. Hold them back until
                # the wrapper itself has been read.
                ended = int(batches["last_offset"][-1]) if batches.size else NONE
                judge.batches(batches, after.take_batches(bound if bound == MAX_OFFSET else ended))
                done = bound
                yield


class _Judge:
    """Compares the records and batches of both states over the same offsets."""

    def __init__(self, pair: Pair, part: Range, facts: Facts, keys: Keys, before: LogView) -> None:
        self._pair = pair
        self._keys = keys
        self._limit = part.limit
        # Superseding records may lie above the offsets that the clean may change; superseded ones may not.
        self._superseding_end = max(part.limit, pair.superseding_end or part.limit)
        self._facts = facts
        self._bases = np.array([segment.base_offset for segment in before.segments], np.int64)
        # A clean sets delete horizons from its own clock, and it ran after the segment was last written.
        written = np.array([segment.mtime_ms for segment in before.segments], np.int64)
        latest = min(pair.now_ms, LONG_MAX - pair.delete_retention_ms)
        self._horizon_min = np.minimum(written, latest) + pair.delete_retention_ms
        # Base offsets of batches in the state after, and the newest timestamp of their records. A batch whose records
        # arrived in several pieces occurs several times.
        self._newest: list[tuple[Int64Array, Int64Array]] = []

    def records_of_both(self, before: list[Piece], after: list[Piece]) -> None:
        """Compare the records of both states up to the same offset."""
        known = [np.zeros(piece.rows.size, np.bool_) for piece in after]
        for piece in before:
            there = np.zeros(piece.rows.size, np.bool_)
            for other, its_known in zip(after, known, strict=True):
                at, where = _matches(piece.offsets, other.offsets)
                there[at] = its_known[where] = True
                self._same(piece, other, at, where)
            self._facts.count(Count.RECORDS_BEFORE, piece.rows.size)
            self.records(piece, there)
        for piece, its_known in zip(after, known, strict=True):
            self._note_times(piece)
            self._facts.count(Count.RECORDS_AFTER, piece.rows.size)
            self._facts.count(Count.RECORDS_SAME, its_known.sum())
            self._facts.broken_records(ViolationKind.INVENTED, piece, ~its_known)

    def _note_times(self, piece: Piece) -> None:
        owners = piece.rows["batch"]
        if owners.size:
            starts = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(np.diff(owners)) + 1])
            bases = piece.batches["base_offset"][owners[starts]]
            self._newest.append((bases, np.maximum.reduceat(piece.rows["timestamp"], starts)))

    def _newest_of(self, after: BatchRows) -> tuple[Int64Array, BoolArray]:
        """Return each batch's newest record timestamp, and whether it is known; keep those of later batches."""
        if not self._newest:
            return np.zeros(after.size, np.int64), np.zeros(after.size, np.bool_)
        bases, which = np.unique(np.concatenate([bases for bases, _ in self._newest]), return_inverse=True)
        times = np.full(bases.size, np.iinfo(np.int64).min)
        np.maximum.at(times, which, np.concatenate([times for _, times in self._newest]))
        at = np.minimum(np.searchsorted(bases, after["base_offset"]), bases.size - 1)
        later = bases > (after["base_offset"].max() if after.size else NONE)
        self._newest = [(bases[later], times[later])] if later.any() else []
        return times[at], bases[at] == after["base_offset"]

    def records(self, piece: Piece, there: BoolArray) -> None:
        """Add the keys of records of the state before.

        Args:
            piece: records of the state before.
            there: bool[records]; True where the record is also in the state after.
        """
        rows = piece.rows
        chosen = ~piece.control & (rows["key_size"] >= 0)
        chosen &= (rows["offset"] < self._superseding_end) & (rows["offset"] >= self._pair.lowest)
        not_committed = self._keys.rules.not_committed
        if not_committed.size:
            bases = piece.batches["base_offset"]
            at = np.minimum(np.searchsorted(not_committed, bases), not_committed.size - 1)
            chosen &= (not_committed[at] != bases)[rows["batch"]]
        if not chosen.all():
            rows, there = rows[chosen], there[chosen]
        if not rows.size:
            return
        pair, legacy = self._pair, piece.batches["magic"] < 2
        expired = pair.legacy_horizon_ms is not None and piece.mtime_ms <= pair.legacy_horizon_ms
        may_go = np.where(legacy, expired or not pair.times_known, self._is_due(piece.batches))[rows["batch"]]
        may_go &= (rows["value_size"] < 0) & pair.deletes_for_good
        if not pair.times_known:
            self._facts.count(Count.NOT_JUDGED, (may_go & legacy[rows["batch"]] & ~there).sum())
        self._keys.add(entries_of(piece.data, rows, self._keys.rules.points, there=there, may_go=may_go))

    def _is_due(self, batches: BatchRows) -> BoolArray:
        flagged = batches["attributes"] & DELETE_HORIZON != 0
        return np.asarray(flagged & (batches["base_timestamp"] <= self._pair.now_ms))

    def _same(self, before: Piece, after: Piece, at: Int64Array, where: Int64Array) -> None:
        """Compare records that both states have; `at` and `where` are their indexes before and after."""
        mine, theirs = before.rows[at], after.rows[where]
        changed = {
            ViolationKind.TIMESTAMP: mine["timestamp"] != theirs["timestamp"],
            ViolationKind.KEY: ~_same_bytes(before.data, after.data, mine, theirs, "key"),
            ViolationKind.VALUE: ~_same_bytes(before.data, after.data, mine, theirs, "value"),
            ViolationKind.HEADERS: ~_same_headers(before.data, after.data, mine, theirs),
        }
        for what, bad in changed.items():
            if bad.any():
                self._facts.broken_records(what, after, where[bad])

    def batches(self, before: BatchRows, after: BatchRows) -> None:
        """Compare the batches of both states up to the same offset."""
        newest, known = self._newest_of(after)
        self._facts.count(Count.BATCHES, after.size)
        if before.size:
            owner = np.searchsorted(before["last_offset"], after["last_offset"])
            found = owner < before.size
        else:
            owner, found = np.zeros(after.size, np.int64), np.zeros(after.size, np.bool_)
        self._facts.broken_batches(ViolationKind.BATCH_INVENTED, after, ~found)
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
        self._facts.count(Count.NOT_JUDGED, early.sum())
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
            if bad.any():
                self._facts.broken_batches(what, now, np.asarray(bad))

    def _lost(self, before: BatchRows, after: BatchRows, owner: Int64Array) -> None:
        """Report markers that are gone too early, and batches above the limit that are gone or changed."""
        filled = np.zeros(before.size, np.bool_)
        filled[owner[after["record_count"] != 0]] = True
        markers = is_control(before) & (before["record_count"] > 0)
        self._facts.count(Count.MARKERS, (markers & filled).sum())
        may_go = self._is_due(before) & (before["last_offset"] < self._limit) & self._pair.deletes_for_good
        self._facts.broken_batches(ViolationKind.MARKER, before, markers & ~filled & ~may_go)

        above = before["last_offset"] >= self._limit
        if above.any():
            same = np.zeros(before.size, np.bool_)
            mine = before[owner]
            names = ("base_offset", "last_offset", "crc", "size_bytes", "magic", "leader_epoch")
            same[owner[np.logical_and.reduce([mine[name] == after[name] for name in names])]] = True
            self._facts.count(Count.BATCHES_ABOVE, (above & same).sum())
            self._facts.broken_batches(ViolationKind.UNTOUCHED, before, above & ~same)


def _matches(before: Int64Array, after: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the indexes, before and after, of the offsets that both arrays contain. Both arrays ascend."""
    if not before.size or not after.size or before[-1] < after[0] or after[-1] < before[0]:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    where = np.searchsorted(before, after)
    found = np.flatnonzero(before[np.minimum(where, before.size - 1)] == after)
    return where[found], found


def _same_bytes(
    before: U8Array, after: U8Array, mine: npt.NDArray[np.void], theirs: npt.NDArray[np.void], name: str
) -> BoolArray:
    """bool[records]: whether both fields have the same bytes, or both are null."""
    starts, sizes = f"{name}_start", f"{name}_size"
    return _equal((before, mine[starts], mine[sizes]), (after, theirs[starts], theirs[sizes]))


def _same_headers(
    before: U8Array, after: U8Array, mine: npt.NDArray[np.void], theirs: npt.NDArray[np.void]
) -> BoolArray:
    same = np.asarray(mine["header_count"] == theirs["header_count"])
    there = np.flatnonzero(same & (mine["header_count"] > 0))
    if there.size:
        mine, theirs = mine[there], theirs[there]
        pairs = [_headers(data, rows) for data, rows in ((before, mine), (after, theirs))]
        equal = np.logical_and(*(_equal(left, right) for left, right in zip(*pairs, strict=True)))
        ends = np.cumsum(mine["header_count"], dtype=np.int64)
        same[there] = np.logical_and.reduceat(equal, ends - mine["header_count"])
    return same


_Strings = tuple[U8Array, npt.NDArray[np.int32], npt.NDArray[np.int32]]


def _headers(data: U8Array, rows: npt.NDArray[np.void]) -> tuple[_Strings, _Strings]:
    """Return the positions and sizes of all header names, and of all header values."""
    total = int(rows["header_count"].sum(dtype=np.int64))
    places = [np.empty(total, np.int32) for _ in range(4)]
    starts, counts = (np.ascontiguousarray(rows[name]) for name in ("headers_start", "header_count"))
    list_headers(data.ctypes.data, starts, counts, *places)
    return (data, places[0], places[1]), (data, places[2], places[3])


def _equal(left: _Strings, right: _Strings) -> BoolArray:
    """bool[strings]: whether both have the same bytes, or both are null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from cordwood.storage.log.arrow import byte_strings

    sizes = [np.maximum(one[2], -1) for one in (left, right)]
    same = np.asarray(sizes[0] == sizes[1])
    there = np.flatnonzero(same & (sizes[0] > 0))
    if there.size:
        arrays = [
            byte_strings(data, starts[there], one[there], pa.binary())
            for (data, starts, _), one in zip((left, right), sizes, strict=True)
        ]
        same[there] = pc.equal(*arrays).to_numpy(zero_copy_only=False)
    return same
