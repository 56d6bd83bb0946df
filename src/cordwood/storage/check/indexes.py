"""Checks the index files of a segment against its log: Kafka's three, and Cordwood's key index.

Each index is decoded before the log is read, and each entry is compared when its batch is read. So if the log grows
meanwhile, it still contains the batches of all entries.

If the next load recovers the segment, it rebuilds its indexes, so errors in them are not damage.

Brokers before 4.0 wrote one offset index entry per append, with the last offset of all its batches (before 0.11 the
first offset); newer brokers, and recovery, write the last offset of the batch itself. The check accepts all of these.
An entry of the time index has the largest timestamp of all batches up to a batch, and an offset of that batch.

A key index is Cordwood's own file and only saves time, so an error in it is never an error of the log: findings in it
are notes. It is stale if its segment changed after it was written. A clean does not use a stale index, and writes a new
one. Its batches are compared with all headers of the segment. Hashes of keys are not computed again: checksums cover
them, and no record is dropped because of a hash in a file.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from cordwood.common.errors import CorruptFileError, IndexProblem
from cordwood.common.types import NONE, ControlType
from cordwood.fs.base import ReadableFile, Store
from cordwood.kernels.layout import CODEC_MASK, CONTROL, DELETE_HORIZON, TRANSACTIONAL, BatchRows, has_flag
from cordwood.storage.check.findings import FINDINGS_MAX, KINDS, Finding, Findings, Kind, Severity
from cordwood.storage.formats import key_index, offset_index, time_index, transaction_index
from cordwood.storage.formats.entries import Int64Array
from cordwood.storage.formats.filenames import (
    Temporary,
    index_folder,
    is_key_index,
    key_index_path,
    parse_key_index,
    parse_tier_key_index,
)
from cordwood.storage.formats.key_index import NO_HORIZON, Flag, KeyIndex, crc_of_header
from cordwood.storage.log.files import read_file, why_unreadable
from cordwood.storage.log.transactions import steps

_REBUILT = "the next load reads the segment through and rebuilds its indexes"


@dataclass(frozen=True, slots=True)
class Handling:
    """The state of a segment's indexes after the last stop of the broker.

    Attributes:
        rebuilt: the next load rebuilds them.
        in_use: the segment is the last one, whose indexes are preallocated at full size.
        closed: a clean shutdown trimmed them to their entries.
        set_aside: the directory was renamed while they were in use, so they were not trimmed.
        unopened: the offset index is missing, so the next load rebuilds the other indexes without opening them.
    """

    rebuilt: bool = False
    live: bool = False
    in_use: bool = False
    closed: bool = False
    set_aside: bool = False
    unopened: bool = False

    @property
    def complete(self) -> bool:
        """Whether the index must already contain all of its entries."""
        return not self.live and not self.rebuilt and (not self.in_use or (self.closed and not self.set_aside))


class IndexCheck:
    """Base class of the checks of the three indexes.

    Attributes:
        handling: state of the index after the last stop of the broker.
    """

    #: Whether a broker writes its next entry directly behind the last whole one, over any incomplete entry.
    overwrites = True
    #: Effect of zeros behind the entries on a broker.
    padding = "a broker takes the zeros for entries: " + KINDS[Kind.OFFSET_INDEX_POSITION][1]

    def __init__(self, path: str, findings: Findings, handling: Handling) -> None:
        self.path = path
        self.handling = handling
        self._findings = findings
        self._compared: list[Finding] = []
        self._compared_count: Counter[Kind] = Counter()

    def report(self, kind: Kind, what: str, *, position: int | None = None, offset: int | None = None) -> None:
        """Report an error in the file; if the next load rebuilds the index, with severity RECOVERY."""
        if self.handling.rebuilt:
            self._findings.add(
                kind, self.path, what, position=position, offset=offset, severity=Severity.RECOVERY, meaning=_REBUILT
            )
        else:
            self._findings.add(kind, self.path, what, position=position, offset=offset)

    def report_faults(self, faults: Iterable[CorruptFileError], order: Kind) -> set[int]:
        """Report the errors that a decoder found; return the positions of the bad entries."""
        bad: set[int] = set()
        for fault in faults:
            incomplete = fault.kind is IndexProblem.INCOMPLETE_ENTRY
            if not (incomplete and self.handling.live):
                kind = Kind.INDEX_SIZE if incomplete else order
                if incomplete and self.overwrites and not self.handling.rebuilt:
                    self._findings.add(
                        kind,
                        self.path,
                        fault.what,
                        position=fault.position,
                        severity=Severity.RECOVERY,
                        meaning="a broker passes over the bytes behind the last whole entry, and overwrites them",
                    )
                else:
                    self.report(kind, fault.what, position=fault.position, offset=fault.offset)
            bad.add(fault.position or 0)
        return bad

    def compare(self, kind: Kind, what: str, *, position: int | None = None, offset: int | None = None) -> None:
        """Note a mismatch with the log; `close` reports it unless the log is damaged."""
        self._compared_count[kind] += 1
        if self._compared_count[kind] <= FINDINGS_MAX:
            self._compared.append(Finding(self.path, kind, KINDS[kind][0], what, "", position, offset))

    def close(self, *, log_damaged: bool) -> None:
        """Report the mismatches with the log, unless the log itself is damaged."""
        if not log_damaged:
            for finding in self._compared:
                self.report(finding.kind, finding.what, position=finding.position, offset=finding.offset)
            for kind, count in self._compared_count.items():
                self._findings.count(kind, self.path, max(0, count - FINDINGS_MAX))

    def report_padding(self, entries: int, max_entries: int, entry_bytes: int) -> None:
        """Report a preallocated tail of zeros, which a clean shutdown would have trimmed."""
        how = self.handling
        if max_entries == entries or how.live or (how.in_use and how.set_aside):
            return
        have = f"{entries} {'entry' if entries == 1 else 'entries'}"
        what = f"{have} and room for {max_entries - entries} more, filled with zeros"
        position = entries * entry_bytes
        if how.rebuilt or (how.in_use and not how.closed):
            self._findings.add(Kind.INDEX_PADDED, self.path, what, position=position)
        else:
            self._findings.add(
                Kind.INDEX_PADDED, self.path, what, position=position, severity=Severity.DAMAGE, meaning=self.padding
            )


class OffsetIndexCheck(IndexCheck):
    """Checks the offset index: each entry has the position of a batch, and its last offset.

    Attributes:
        end_offset: offset of its last entry; NONE without one.
    """

    def __init__(
        self,
        index: offset_index.OffsetIndex,
        path: str,
        findings: Findings,
        handling: Handling,
        entries: int | None = None,
    ) -> None:
        """Check the entries in themselves.

        Args:
            index: all entries, or a sample.
            entries: number of entries in the file, of which the index has a sample; None if it has all.
        """
        super().__init__(path, findings, handling)
        count = index.entries if entries is None else entries
        self.report_padding(count, index.max_entries, offset_index.ENTRY.itemsize)
        bad = self.report_faults(offset_index.faults(index), Kind.OFFSET_INDEX_ORDER)
        keep = np.ones(index.entries, bool)
        keep[[at // offset_index.ENTRY.itemsize for at in bad if at < index.entries * offset_index.ENTRY.itemsize]] = (
            False
        )
        if handling.live and handling.in_use:
            keep[-1:] = False  # a broker may be writing the last entry
        self._entries = np.flatnonzero(keep)
        self._offsets = index.offsets[self._entries]
        self._positions = np.maximum.accumulate(index.positions[self._entries]) if keep.any() else index.positions[:0]
        self.end_offset = int(self._offsets[-1]) if self._offsets.size else NONE
        self._end = 0
        self._last_offset = index.base_offset - 1
        #: Indexes of entries whose offset is above the last offset of the batch at their position.
        self._open: list[int] = []

    def add(self, batches: BatchRows) -> None:
        """Compare entries with the next batches, valid or not."""
        starts, lasts = batches["position"], batches["last_offset"]
        self._end = int(starts[-1] + batches["size_bytes"][-1])
        first = int(np.searchsorted(self._positions, starts[0]))
        end = int(np.searchsorted(self._positions, self._end))
        positions = self._positions[first:end]
        rows = np.searchsorted(starts, positions, side="right") - 1
        hit = starts[rows] == positions
        for i in np.flatnonzero(~hit).tolist():
            what = f"position {positions[i]} is inside the batch at {starts[rows[i]]}"
            self._entry(Kind.OFFSET_INDEX_POSITION, first + i, what)
        names = self._offsets[first:end]
        before = np.concatenate([np.array([self._last_offset]), lasts[:-1]])[rows]
        self._last_offset = int(lasts[-1])
        # Brokers before 0.11 wrote the first offset of an append; for a wrapper, it is below the wrapper's own offset.
        wrapper = (batches["magic"] < 2) & (batches["attributes"] & CODEC_MASK != 0)
        early = (names < lasts[rows]) & ~(wrapper[rows] & (names > before))
        for i in np.flatnonzero(hit & early).tolist():
            what = f"offset {names[i]}, but the batch at position {positions[i]} ends at offset {lasts[rows[i]]}"
            self._entry(Kind.OFFSET_INDEX_OFFSET, first + i, what)
        self._open += (first + np.flatnonzero(hit & (names > lasts[rows]))).tolist()
        if self._open:
            self._look_ahead(starts, lasts)

    def jump(self) -> None:
        """Compare no entry that waits for a later batch, as the next batches are not read."""
        self._open.clear()

    def _look_ahead(self, starts: Int64Array, lasts: Int64Array) -> None:
        """Check the entries in `_open`, which may be from an older broker.

        Such an entry has the last offset of a later batch, and that batch starts before the next entry's position.
        """
        still = []
        for i in self._open:
            limit = int(self._positions[i + 1]) if i + 1 < self._positions.size else 2**63 - 1
            row = int(np.searchsorted(lasts, self._offsets[i]))
            if row == lasts.size and self._end <= limit:
                still.append(i)
            elif row == lasts.size or lasts[row] != self._offsets[i] or starts[row] >= limit:
                self._wrong_offset(i)
        self._open = still

    def _wrong_offset(self, i: int) -> None:
        where = f"the batch at position {self._positions[i]}"
        what = f"offset {self._offsets[i]}, which is the last neither of {where} nor of its append"
        self._entry(Kind.OFFSET_INDEX_OFFSET, i, what)

    def end(self) -> None:
        """Report the entries that match no batch, after the last batch."""
        for i in self._open:
            self._wrong_offset(i)
        for i in range(int(np.searchsorted(self._positions, self._end)), self._positions.size):
            what = f"position {self._positions[i]} is at or beyond the log's end, {self._end}"
            self._entry(Kind.OFFSET_INDEX_POSITION, i, what)

    def _entry(self, kind: Kind, i: int, what: str) -> None:
        entry = int(self._entries[i])
        position = entry * offset_index.ENTRY.itemsize
        self.compare(kind, f"index entry {entry}: {what}", position=position, offset=int(self._offsets[i]))


class TimeIndexCheck(IndexCheck):
    """Checks the time index: an entry has the largest timestamp of the batches up to its offset.

    Attributes:
        largest_ms: the largest timestamp of the batches so far.
        end_offset: offset of its last entry; NONE without one.
    """

    padding = "a broker takes the zeros for the newest time, 1970: retention by time deletes the segment, however new"

    def __init__(
        self,
        index: time_index.TimeIndex | None,
        path: str,
        findings: Findings,
        handling: Handling,
        entries: int | None = None,
    ) -> None:
        """Check the entries in themselves.

        Args:
            index: all entries, or a sample; None if the file is missing.
            entries: number of entries in the file, of which the index has a sample; None if it has all. Then the check
                gets only some batches of the segment, too.
        """
        super().__init__(path, findings, handling)
        self.largest_ms = NONE
        self._missing = index is None
        self._is_sampled = entries is not None
        if index is None:
            index = time_index.decode(b"", 0)
        count = index.entries if entries is None else entries
        self.report_padding(count, index.max_entries, time_index.ENTRY.itemsize)
        self._faulty = bool(self.report_faults(time_index.faults(index), Kind.TIME_INDEX_ORDER))
        count = index.entries - (1 if handling.live and handling.in_use else 0)
        self._index = index
        self.end_offset = index.last_entry[1] if index.entries else NONE
        # If the entries are out of order, do not compare them with the log.
        self._count = 0 if self._faulty else count
        self._at = 0

    def add(self, batches: BatchRows) -> None:
        """Compare entries with the next valid batches."""
        lasts = batches["last_offset"]
        running = np.maximum(np.maximum.accumulate(batches["max_timestamp"]), self.largest_ms)
        first = self._at
        end = first + int(np.searchsorted(self._index.offsets[first : self._count], lasts[-1], side="right"))
        self._at = end
        if end > first:
            rows = np.minimum(np.searchsorted(lasts, self._index.offsets[first:end]), lasts.size - 1)
            stated = self._index.timestamps[first:end]
            largest = running[rows]
            wrong = stated != largest
            if self._is_sampled:
                # Batches between may have a larger timestamp. Entries before these batches must reach earlier ones.
                largest = np.where(self._index.offsets[first:end] < lasts[0], self.largest_ms, largest)
                wrong = stated < largest
                if end == self._count and self._index.offsets[end - 1] >= lasts[0]:
                    # The last entry has the timestamp of its batch.
                    largest[-1] = batches["max_timestamp"][rows[-1]]
                    wrong[-1] |= stated[-1] != largest[-1]
            for i in np.flatnonzero(wrong).tolist():
                what = (
                    f"timestamp {stated[i]} up to offset {self._index.offsets[first + i]}, "
                    f"but the log's largest up to there is {largest[i]}"
                )
                self._entry(first + i, what)
        self.largest_ms = int(running[-1])

    def end(self) -> None:
        """Report entries beyond the last batch, a missing index, and a wrong last timestamp."""
        for i in range(self._at, self._count):
            self._entry(i, f"offset {self._index.offsets[i]} is beyond the segment's last")
        if self._missing:
            if self.largest_ms >= 0 and not self.handling.live:
                self.compare(Kind.INDEX_MISSING, f"missing, but the segment has timestamps up to {self.largest_ms}")
            return
        if not self.handling.complete or self._faulty or self._at < self._count or self.largest_ms < 0:
            return
        last = self._index.last_entry[0]
        if self._is_sampled and last > self.largest_ms:
            return  # its batch was not read
        # A largest timestamp of 0 at the segment's first batch gives an entry of zeros, which looks like unused space.
        if last != self.largest_ms and (self.largest_ms > 0 or self._index.max_entries == 0):
            what = f"the last entry has timestamp {last}, the segment's largest is {self.largest_ms}"
            if not self._compared:
                entry = max(self._index.entries - 1, 0)
                self.compare(Kind.TIME_INDEX_END, what, position=entry * time_index.ENTRY.itemsize)

    def report(self, kind: Kind, what: str, *, position: int | None = None, offset: int | None = None) -> None:
        """Report an error.

        A missing time index is damage unless the next load rebuilds it: a broker only creates an empty one.
        """
        if kind is Kind.INDEX_MISSING and not self.handling.rebuilt:
            self._findings.add(kind, self.path, what, severity=Severity.DAMAGE, meaning=_EMPTY)
        else:
            super().report(kind, what, position=position, offset=offset)

    def _entry(self, entry: int, what: str) -> None:
        position, offset = entry * time_index.ENTRY.itemsize, int(self._index.offsets[entry])
        self.compare(Kind.TIME_INDEX_ENTRY, f"time index entry {entry}: {what}", position=position, offset=offset)


_EMPTY = "a broker makes an empty one and does not fill it: look-ups and retention by time go wrong in this segment"


class OpenTransactions:
    """The transactions of a log as of the last batch read, across segments.

    Attributes:
        open: first offset of each open transaction, by producer id.
        ended: offset of each producer's last marker, by producer id.
    """

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        #: Heap of (first offset, producer id) of all open transactions, and of some that have ended.
        self._starts: list[tuple[int, int]] = []

    def begin(self, producer_id: int, offset: int) -> None:
        """Start a transaction of a producer at this offset, unless it has an open one."""
        if producer_id not in self.open:
            self.open[producer_id] = offset
            heapq.heappush(self._starts, (offset, producer_id))

    def forget_open(self) -> None:
        """Forget which transactions are open, because batches that may end them were not read."""
        self.open.clear()
        self._starts.clear()

    @property
    def first_open(self) -> int | None:
        """First offset of the earliest open transaction. Uses the heap, because every marker needs this offset."""
        while self._starts and self.open.get(self._starts[0][1]) != self._starts[0][0]:
            heapq.heappop(self._starts)
        return self._starts[0][0] if self._starts else None


class TransactionIndexCheck(IndexCheck):
    """Checks the transaction index: one entry per ABORT marker that ends a transaction with data.

    If the index cannot be read, `data` is None. The check still tracks the log's transactions, for the next segments.
    `end_offset` is the base offset of the next segment, or None.
    """

    overwrites = False

    def __init__(
        self,
        data: bytes | None,
        path: str,
        base_offset: int,
        end_offset: int | None,
        findings: Findings,
        transactions: OpenTransactions,
        handling: Handling,
    ) -> None:
        super().__init__(path, findings, handling)
        self._transactions = transactions
        self._believed = data is not None
        try:
            self._index = transaction_index.decode(data or b"", path)
            self._bad = self.report_faults(
                transaction_index.faults(self._index, base_offset), Kind.TRANSACTION_INDEX_ORDER
            )
        except CorruptFileError as error:
            self._report_version(error)
            self._index = transaction_index.decode(b"")
            self._bad = set()
            self._believed = False
        order = np.argsort(self._index.last_offsets, kind="stable")
        self._order = order
        self._lasts = self._index.last_offsets[order]
        self._at = 0
        self._next_offset, self._end_offset = base_offset, end_offset
        #: Entry and marker offset of each transaction that ended while no other was open, if the entry's last stable
        #: offset is above the marker. This is valid: a broker computes that offset once all batches of an append have
        #: begun their transactions, and a follower appends all batches of a fetch at once. Then the last stable offset
        #: is where the next transaction begins.
        self._ahead: list[tuple[int, int]] = []
        self._is_behind_jump = False

    def _report_version(self, error: CorruptFileError) -> None:
        """Report an unknown version. A load fails on it, even after a crash, unless the offset index is missing."""
        if self.handling.unopened and not self.handling.live:
            self.report(Kind.TRANSACTION_INDEX_VERSION, error.what, position=error.position)
        else:
            self._findings.add(Kind.TRANSACTION_INDEX_VERSION, self.path, error.what, position=error.position)

    def add(self, batches: BatchRows) -> None:
        """Track transactions in the next valid batches, and compare entries with the markers."""
        state = self._transactions
        if self._is_behind_jump:
            # The header of a wrapper of magic 0 or 1 does not contain its first offset.
            begin = int(batches["base_offset" if batches["magic"][0] >= 2 else "last_offset"][0])
            self._at = max(self._at, int(np.searchsorted(self._lasts, begin)))
            self._is_behind_jump = False
        self._next_offset = int(batches["last_offset"][-1]) + 1
        for base_offset, last_offset, producer_id, marker in steps(batches):
            if marker is None:
                state.begin(producer_id, base_offset)
                self._begun(base_offset)
            else:
                first = state.open.pop(producer_id, None)
                self._marker(last_offset, producer_id, first, aborted=marker is ControlType.ABORT)
                state.ended[producer_id] = last_offset

    def jump(self) -> None:
        """Compare no entries of the next batches, which are not read, and forget which transactions are open."""
        self._transactions.forget_open()
        self._is_behind_jump = True

    def _marker(self, offset: int, producer_id: int, first: int | None, *, aborted: bool) -> None:
        entry = self._entry_at(offset)
        if entry is None:
            if aborted and first is not None and self._believed and not self.handling.live:
                what = f"no entry for producer {producer_id}'s transaction from {first}, aborted at {offset}"
                self.compare(Kind.TRANSACTION_INDEX_MISSING, what, offset=offset)
            return
        if entry * transaction_index.ENTRY.itemsize in self._bad:
            return
        index = self._index
        stated, stable = int(index.first_offsets[entry]), int(index.last_stable_offsets[entry])
        before = self._transactions.ended.get(producer_id, NONE)
        limit = self._transactions.first_open
        what = ""
        if not aborted:
            what = f"the marker at {offset} is a COMMIT"
        elif index.producer_ids[entry] != producer_id:
            what = f"producer {index.producer_ids[entry]}, but the marker at {offset} is of producer {producer_id}"
        elif first is not None and stated > first:
            what = f"first offset {stated}, but the transaction's data starts at {first}"
        elif stated <= before or stated < 0:
            what = f"first offset {stated}, but the producer's transaction before ended at {before}"
        elif limit is not None and stable > limit:
            what = _too_high(stable, limit)
        elif limit is None and stable > offset + 1:
            self._ahead.append((entry, offset))
        if what:
            self._wrong(entry, offset, what)

    def _begun(self, limit: int) -> None:
        """Check `_ahead` when the next transaction begins at offset `limit`.

        No other transaction was open before, so the entries' last stable offsets can be at most `limit`.
        """
        for entry, offset in self._ahead:
            stable = int(self._index.last_stable_offsets[entry])
            if stable > limit:
                self._wrong(entry, offset, _too_high(stable, limit))
        self._ahead.clear()

    def _wrong(self, entry: int, offset: int, what: str) -> None:
        position = entry * transaction_index.ENTRY.itemsize
        what = f"aborted transaction {entry}: {what}"
        self.compare(Kind.TRANSACTION_INDEX_ENTRY, what, position=position, offset=offset)

    def _entry_at(self, offset: int) -> int | None:
        """Return the entry of the marker at this offset, or None; report entries before it that have no marker."""
        while self._at < self._lasts.size and self._lasts[self._at] < offset:
            self._extra(int(self._order[self._at]))
            self._at += 1
        if self._at < self._lasts.size and self._lasts[self._at] == offset:
            self._at += 1
            return int(self._order[self._at - 1])
        return None

    def _extra(self, entry: int) -> None:
        position = entry * transaction_index.ENTRY.itemsize
        if position not in self._bad:
            offset = int(self._index.last_offsets[entry])
            what = f"aborted transaction {entry}: no marker at its last offset {offset}"
            self.compare(Kind.TRANSACTION_INDEX_EXTRA, what, position=position, offset=offset)

    def end(self) -> None:
        """Report the entries that have no marker, after the last batch."""
        # An append is within one segment, so its next transaction began in this segment. A clean may have removed that
        # transaction's batches, so the limit is the base offset of the next segment.
        self._begun(self._next_offset if self._end_offset is None else self._end_offset)
        while self._at < self._lasts.size:
            self._extra(int(self._order[self._at]))
            self._at += 1


def _too_high(stable: int, limit: int) -> str:
    return f"last stable offset {stable}, but it can be at most {limit}"


# ---- key indexes -----------------------------------------------------------------------------------------------------

#: Flags that follow from the headers of batches.
_OF_HEADERS = Flag.CONTROL | Flag.TRANSACTIONAL | Flag.EMPTY_BATCHES | Flag.OLD_MAGIC


class KeyIndexCheck:
    """Compares each batch header of a segment with the index, and reports the first difference."""

    def __init__(self, index: KeyIndex, path: str, findings: Findings) -> None:
        self._index = index
        self._path = path
        self._findings = findings
        self._done = 0
        self._flags = Flag(0)
        self._horizon = NO_HORIZON
        self._ends = np.cumsum(index.lengths, dtype=np.int64)
        self._differs = ""

    def add(self, batches: BatchRows) -> None:
        """Compare the next batches of the segment."""
        index, done = self._index, self._done
        batches = batches[: index.header.batches - done]
        if self._differs or not batches.size:
            return
        end = done + batches.size
        lengths, counts = index.lengths[done:end], index.counts[done:end]
        same = (batches["position"] == self._ends[done:end] - lengths) & (batches["size_bytes"] == lengths)
        same &= batches["crc"] == index.crcs[done:end]
        # The header of a compressed message set does not contain the number of messages.
        same &= (batches["record_count"] == counts) | (batches["record_count"] < 0)
        if not same.all():
            position = int(batches["position"][np.flatnonzero(~same)[0]])
            self._differs = f"the batch at position {position} of the segment has changed since the index was made"
            return
        self._done = end
        self._flags |= _flags(batches)
        horizons = batches["base_timestamp"][has_flag(batches, DELETE_HORIZON)]
        self._horizon = min(self._horizon, int(horizons.min(initial=NO_HORIZON)))

    def end(self, file: ReadableFile, base_offset: int, last_offset: int) -> None:
        """Compare the index header, after the whole segment was read; report the first difference.

        Args:
            file: the segment's `.log` file.
            base_offset: base offset of the segment.
            last_offset: last offset of the last batch in the segment.
        """
        header, last_bytes = self._index.header, int(self._index.lengths[-1])
        what = self._differs
        if header.base_offset != base_offset:
            what = f"it is the index of a segment at offset {header.base_offset}"
        elif not what and self._done < header.batches:
            what = f"it covers {header.batches} batches, and the segment has {self._done} of them"
        elif not what and header.next_offset > last_offset + 1:
            what = f"it covers offsets below {header.next_offset}, but the segment ends at {last_offset}"
        elif not what and header.last_header_crc != crc_of_header(file, header.covered_bytes - last_bytes, last_bytes):
            what = "the header of the last batch that it covers is another"
        elif not what and (header.flags & _OF_HEADERS != self._flags or header.delete_horizon_ms != self._horizon):
            what = "its header does not fit the headers of the batches"
        if what:
            self._findings.add(Kind.KEY_INDEX_STALE, self._path, what)


def _flags(batches: BatchRows) -> Flag:
    present = {
        Flag.CONTROL: has_flag(batches, CONTROL),
        Flag.TRANSACTIONAL: has_flag(batches, TRANSACTIONAL),
        Flag.EMPTY_BATCHES: batches["record_count"] == 0,
        Flag.OLD_MAGIC: batches["magic"] < 2,
    }
    return Flag(sum(flag for flag, mask in present.items() if mask.any()))


class KeyIndexes:
    """Checks the key indexes of a partition."""

    def __init__(self, fs: Store, partition: str, findings: Findings) -> None:
        self._fs = fs
        self._partition = partition
        self._findings = findings
        folder = index_folder(partition)
        try:
            self._names = [info.name for info in fs.list(folder)]
        except FileNotFoundError:
            self._names = []
        except OSError as error:
            self._names = []
            findings.add(Kind.UNREADABLE, folder, why_unreadable(error), severity=Severity.NOTE, meaning=_UNUSED)

    def check_names(self, base_offsets: Collection[int]) -> None:
        """Report files that do not belong to a segment."""
        for name in self._names:
            path = f"{index_folder(self._partition)}/{name}"
            if parse_tier_key_index(name) is not None:
                continue  # of a segment in the tier
            base_offset = parse_key_index(name)
            if base_offset is None and is_key_index(name.removesuffix(Temporary.TMP)):
                meaning = "the next written index replaces it"
                what = "an index that was being written"
                self._findings.add(Kind.LEFTOVER, path, what, severity=Severity.NOTE, meaning=meaning)
            elif base_offset is None:
                self._findings.add(Kind.FOREIGN_FILE, path, "not a key index")
            elif base_offset not in base_offsets:
                self._findings.add(Kind.KEY_INDEX_WITHOUT_LOG, path, "its segment is gone", offset=base_offset)

    def of(self, base_offset: int) -> KeyIndexCheck | None:
        """Return the check of a segment's index; None if it is missing or unreadable. Report an unreadable one."""
        path = key_index_path(self._partition, base_offset)
        if path.rpartition("/")[2] not in self._names:
            return None
        try:
            return KeyIndexCheck(key_index.decode(read_file(self._fs, path), path), path, self._findings)
        except CorruptFileError as error:
            self._findings.add(Kind.KEY_INDEX_UNREADABLE, path, error.what, position=error.position)
        except OSError as error:
            self._findings.add(Kind.UNREADABLE, path, why_unreadable(error), severity=Severity.NOTE, meaning=_UNUSED)
        return None


_UNUSED = "brokers ignore it; a clean reads the whole segment"
