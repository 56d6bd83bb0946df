"""Judges the records and batches of both states at the same offsets.

A pass reads both states and calls a `Judging`. `Judge` has the rules of a proof; a comparison of replicas, whose rules
are symmetrical, has its own.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.proof.keys import KeyEntries
from cordwood.cleaning.proof.pairs import BoolArray, Count, Facts, Int64Array, Pair, Piece, ViolationKind
from cordwood.cleaning.proof.reading import Entries, PairRange
from cordwood.common.config import LONG_MAX
from cordwood.common.types import NONE
from cordwood.kernels import side_by_side
from cordwood.kernels.last_records import COUNTS, ONLY_REMOVED, TOMBSTONES_MAY_GO
from cordwood.kernels.layout import CODEC_MASK, DELETE_HORIZON, LOG_APPEND_TIME, BatchRows, is_control
from cordwood.kernels.side_by_side import INVENTED, match_records
from cordwood.storage.log.view import LogView

#: The records of a batch: their first and last offset, and their newest timestamp.
SUMMARY = np.dtype([(name, "<i8") for name in ("first_offset", "last_offset", "newest")], align=True)
Summaries = npt.NDArray[np.void]
#: The violation for each difference of a record that the kernel reports.
_DIFFERENCES = {
    side_by_side.TIMESTAMP: ViolationKind.TIMESTAMP,
    side_by_side.KEY: ViolationKind.KEY,
    side_by_side.VALUE: ViolationKind.VALUE,
    side_by_side.HEADERS: ViolationKind.HEADERS,
}


class KeyRoom(Protocol):
    """The key entries that a pass makes; see `KeyEntries`."""

    chunk_entries: int
    points: npt.NDArray[np.uint64]

    @property
    def between(self) -> Int64Array:
        """int64[2]: only records in [low, high) count."""
        ...

    def room_for(self, records: int) -> tuple[npt.NDArray[np.void], int]:
        """See `KeyEntries.room_for`."""
        ...

    def entered(self, used: int, batches: BatchRows) -> None:
        """See `KeyEntries.entered`."""
        ...


class Judging(Protocol):
    """Judges what a pass finds in both states; `Judge` documents each call."""

    @property
    def facts(self) -> Facts:
        """Counts and violations."""
        ...

    @property
    def keys(self) -> KeyRoom:
        """The key entries of all records."""
        ...

    def rules(self, batches: BatchRows, mtime_ms: int) -> npt.NDArray[np.uint8]:
        """See `Judge.rules`."""
        ...

    def records(self, piece: Piece, there: BoolArray) -> None:
        """See `Judge.records`."""
        ...

    def records_of_both(self, before: list[Piece], after: list[Piece]) -> None:
        """See `Judge.records_of_both`."""
        ...

    def batches(self, before: BatchRows, after: BatchRows, summaries: Summaries, known: BoolArray) -> None:
        """See `Judge.batches`."""
        ...


def matched(before: list[Piece], after: list[Piece]) -> tuple[list[BoolArray], list[npt.NDArray[np.uint8]]]:
    """Match the records of two states by offset, up to the same offset.

    Returns:
        For each piece of *before*, bool[records]: the record is in *after*, too. For each piece of *after*,
        uint8[records]: the bits of `side_by_side` by which the record differs, or INVENTED.
    """
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
    return there, differs


class Judge:
    """Compares the records and batches of both states over the same offsets."""

    def __init__(self, pair: Pair, part: PairRange, facts: Facts, keys: KeyEntries, before: LogView) -> None:
        self.facts = facts
        self._pair = pair
        self.keys = keys
        self._limit = part.limit
        # Below this offset remaining records get no entries.
        self._witnesses_from = pair.first_dirty if part.entries is Entries.REMOVED else NONE
        self._held = np.array(pair.held, np.int64).reshape(-1, 2)
        self._bases = np.array([segment.base_offset for segment in before.segments], np.int64)
        # A clean sets delete horizons from its own clock, and it ran after the segment was last written.
        written = np.array([segment.mtime_ms for segment in before.segments], np.int64)
        latest = min(pair.now_ms, LONG_MAX - pair.delete_retention_ms)
        self._horizon_min = np.minimum(written, latest) + pair.delete_retention_ms
        # The last judged batch of the state before ends here. A batch that holds the log start begins below it.
        self._ended = NONE if part.start <= pair.before.log_start_offset else part.start - 1

    def records_of_both(self, before: list[Piece], after: list[Piece]) -> None:
        """Compare the records of both states up to the same offset."""
        there, differs = matched(before, after)
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
        legacy = piece.batches["magic"] < 2
        rules = self.rules(piece.batches, piece.mtime_ms)
        if not self._pair.times_known and legacy.any():
            low, high = self.keys.between.tolist()
            unsure = legacy & (rules & TOMBSTONES_MAY_GO != 0)
            rows = piece.rows[~there & unsure[piece.rows["batch"]]]
            counted = (rows["key_size"] >= 0) & (rows["value_size"] < 0)
            counted &= (rows["offset"] >= low) & (rows["offset"] < high)
            self.facts.count(Count.NOT_JUDGED, counted.sum())
        self.keys.add(piece, rules, there)

    def rules(self, batches: BatchRows, mtime_ms: int) -> npt.NDArray[np.uint8]:
        """Return uint8[batches]: the rules for the records of each batch, see `last_records.enter_records`.

        Args:
            mtime_ms: time of the last modification of their segment.
        """
        pair = self._pair
        expired = pair.legacy_horizon_ms is not None and mtime_ms <= pair.legacy_horizon_ms
        may_go = np.where(batches["magic"] < 2, expired or not pair.times_known, self._is_due(batches))
        may_go &= self._is_allowed(batches)
        found = np.where(is_control(batches), 0, COUNTS) | np.where(may_go, TOMBSTONES_MAY_GO, 0)
        found |= np.where(batches["last_offset"] < self._witnesses_from, ONLY_REMOVED, 0)
        return found.astype(np.uint8)

    def _is_due(self, batches: BatchRows) -> BoolArray:
        flagged = batches["attributes"] & DELETE_HORIZON != 0
        return np.asarray(flagged & (batches["base_timestamp"] <= self._pair.now_ms))

    def _is_allowed(self, batches: BatchRows) -> BoolArray:
        """Return bool[batches]: whether tombstones and markers of a batch may be removed once they are due."""
        if not self._pair.deletes_for_good:
            return np.zeros(batches.size, np.bool_)
        # A range may have been added up from batches of several replicas, so compare both ends.
        before_last = np.searchsorted(self._held[:, 0], batches["last_offset"], side="right")
        before_first = np.searchsorted(self._held[:, 1], batches["base_offset"], side="right")
        return np.asarray(before_last == before_first)

    def batches(self, before: BatchRows, after: BatchRows, summaries: Summaries, known: BoolArray) -> None:
        """Compare the batches of both states up to the same offset.

        Args:
            summaries: SUMMARY[batches after], where they are `known`; without offsets in the quick pass.
        """
        self.facts.count(Count.BATCHES, after.size)
        if before.size:
            owner = np.searchsorted(before["last_offset"], after["last_offset"])
            found = owner < before.size
            # A batch between two batches of before had no place there. The next one may be another task's.
            found[found] = before["base_offset"][owner[found]] <= after["last_offset"][found]
        else:
            owner, found = np.zeros(after.size, np.int64), np.zeros(after.size, np.bool_)
        self.facts.broken_batches(ViolationKind.BATCH_INVENTED, after, ~found)
        after, owner = after[found], owner[found]
        if before.size:
            ends = np.concatenate([np.array([self._ended]), before["last_offset"][:-1]])
            overlaps = (np.diff(owner, prepend=NONE) == 0) | (after["base_offset"] <= ends[owner])
            self._fields(before[owner], after, overlaps, summaries[found], known[found])
            self._lost(before, after, owner)
            self._ended = int(before["last_offset"][-1])

    def _is_wrong_horizon(self, was: BatchRows, horizons: Int64Array, is_new: BoolArray) -> BoolArray:
        """Return bool[batches]: whether a delete horizon is new, and no clean of the state before can have set it."""
        exact = self._pair.new_horizon_ms
        if exact is not None:
            return np.asarray(is_new & (horizons != exact))
        segments = np.searchsorted(self._bases, was["last_offset"], side="right") - 1
        early = np.asarray(is_new & (horizons < self._horizon_min[np.maximum(segments, 0)]))
        if self._pair.times_known:
            return early
        self.facts.count(Count.NOT_JUDGED, early.sum())
        return np.zeros_like(early)

    def _fields(
        self, was: BatchRows, now: BatchRows, overlaps: BoolArray, summaries: Summaries, known: BoolArray
    ) -> None:
        """Compare header fields with the state before, and with the records where these are known.

        Args:
            overlaps: bool[batches], True if the batch shares its batch of the state before with the previous one, or
                begins in an older one.
        """
        legacy, empty = was["magic"] < 2, now["record_count"] == 0
        # A batch of an old format has only the offsets that stay: a wrapper's own base offset is unknown before.
        converted = legacy & known & (now["magic"] == 2)
        # Records below the log start count for the batch, but are in no summary.
        start = self._pair.before.log_start_offset
        inexact = (now["base_offset"] != summaries["first_offset"]) & (now["base_offset"] >= start)
        inexact |= now["last_offset"] != summaries["last_offset"]
        misplaced = (overlaps & (now["base_offset"] >= 0)) | (now["base_offset"] > now["last_offset"])
        late = was["attributes"] & LOG_APPEND_TIME != 0
        offsets = (was["base_offset"] != now["base_offset"]) | (was["last_offset"] != now["last_offset"])
        whole = was["record_count"] == now["record_count"]
        latest, said = was["max_timestamp"], now["max_timestamp"]
        # An emptied batch has no records to compress, so its codec may differ.
        compared = np.where(empty, ~(DELETE_HORIZON | CODEC_MASK), ~DELETE_HORIZON)
        had, has = (rows["attributes"] & DELETE_HORIZON != 0 for rows in (was, now))
        broken = {
            ViolationKind.BATCH_OFFSETS: np.where(legacy, misplaced | (converted & inexact), offsets),
            ViolationKind.BATCH_EPOCH: was["leader_epoch"] != now["leader_epoch"],
            ViolationKind.BATCH_PRODUCER: (was["producer_id"] != now["producer_id"])
            | (was["producer_epoch"] != now["producer_epoch"])
            | (was["base_sequence"] != now["base_sequence"]),
            ViolationKind.BATCH_ATTRIBUTES: ((was["attributes"] ^ now["attributes"]) & compared != 0)
            | (now["magic"] < was["magic"])
            | (~legacy & (now["record_count"] > was["record_count"])),
            ViolationKind.BATCH_TIME: (said > latest)
            | ((late | empty | (whole & ~legacy)) & (said != latest))
            | (known & (said != latest) & (said != summaries["newest"])),
            ViolationKind.HORIZON: (had & ~empty & (~has | (was["base_timestamp"] != now["base_timestamp"])))
            | self._is_wrong_horizon(was, now["base_timestamp"], has & ~had),
        }
        for what, bad in broken.items():
            self.facts.broken_batches(what, now, np.asarray(bad))

    def _lost(self, before: BatchRows, after: BatchRows, owner: Int64Array) -> None:
        """Report markers that were removed too early, and batches above the limit that were removed or changed."""
        filled = np.zeros(before.size, np.bool_)
        filled[owner[after["record_count"] != 0]] = True
        markers = is_control(before) & (before["record_count"] > 0)
        self.facts.count(Count.MARKERS, (markers & filled).sum())
        may_go = self._is_due(before) & (before["last_offset"] < self._limit) & self._is_allowed(before)
        self.facts.broken_batches(ViolationKind.MARKER, before, markers & ~filled & ~may_go)

        above = before["last_offset"] >= self._limit
        if above.any():
            same = np.zeros(before.size, np.bool_)
            mine = before[owner]
            names = ("base_offset", "last_offset", "crc", "size_bytes", "magic", "leader_epoch")
            same[owner[np.logical_and.reduce([mine[name] == after[name] for name in names])]] = True
            self.facts.count(Count.BATCHES_ABOVE, (above & same).sum())
            self.facts.broken_batches(ViolationKind.UNTOUCHED, before, above & ~same)
