"""Compares two states of a log, a range of offsets at a time; the careful one of two passes is here.

Both states are read side by side, in windows, in offset order, each once; a file that both have is read once for both.
One of two passes compares a range:

    quick     compares bytes of both states, without rows; only for sound batches of magic 2 without a codec, and only
              under the keep rule *newest offset*
    careful   handles all other ranges, and repeats a range in which the quick pass finds a difference, to locate it

The careful pass decodes batches of any kind to rows of records, and reports each violation. It compares keys, values
and headers as bytes, large values by keyed digests (`Digests`).

A pass decides facts that need no other range: whether each record is still there, unchanged and in order, and whether
each batch kept its header fields. A key's last value depends on the whole log, so a pass only makes entries, which are
merged later, see `keys`; the outcome of a transaction depends on a later marker, see `transactions`.

Nothing is imported from `rules` or `engine`, or from their kernels.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.proof import quick
from cordwood.cleaning.proof.judging import SUMMARY, Judge, Judging, Summaries
from cordwood.cleaning.proof.keys import KeyEntries, KeyRules
from cordwood.cleaning.proof.pairs import BoolArray, Count, Facts, Int64Array, Pair, Piece, ViolationKind
from cordwood.cleaning.proof.producers import SEEN, Noting, ProducerNotes
from cordwood.cleaning.proof.reading import Entries, PairRange, RangeWindows, Sampler
from cordwood.cleaning.proof.scratch import Kept, Scratch, ScratchWriter
from cordwood.cleaning.proof.transactions import ABORTED
from cordwood.common.errors import CorruptFileError, DataError
from cordwood.common.types import NONE
from cordwood.fs.base import Store
from cordwood.kernels.layout import BATCH_ROW, BatchRows, U8Array
from cordwood.kernels.side_by_side import look_over
from cordwood.record.columns import BatchWindow, RecordColumns, crc_error, decode, is_valid
from cordwood.storage.log.segment import MAX_OFFSET, Segment
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap, GapKind

# ---- a range ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RangeResult:
    """The result of comparing a range.

    Attributes:
        keys: entries of its records, see `KeyEntries`.
        seen, steps: facts of its producers and transactions, see `ProducerNotes`.
        aborted: ABORTED[entries], from the transaction indexes of the state after.
    """

    facts: Facts
    keys: list[Kept]
    seen: npt.NDArray[np.void]
    steps: list[Kept]
    aborted: npt.NDArray[np.void]

    @property
    def here_bytes(self) -> int:
        """Bytes of key entries and steps in memory."""
        return sum(chunk.here_bytes for chunk in (*self.keys, *self.steps))


#: Compares both states of a range; the second is None if both have the same files.
_Pass = Callable[[RangeWindows, RangeWindows | None, Judging, Noting], None]


def compare_range(
    part: PairRange, pair: Pair, fs: Store, rules: KeyRules, scratch: Scratch, *, here_bytes: int
) -> RangeResult:
    """Compare both states of a range.

    Args:
        here_bytes: bytes of key entries and steps that stay in memory; more are written to a file of `scratch`.
    """
    before, after = pair.before.open(fs), pair.after.open(fs)
    if part.headers_only:
        with scratch.writer(here_bytes=here_bytes) as writer:
            return _read_headers(before, after, part, ProducerNotes(pair.lowest, writer))

    if is_remaining := part.entries is Entries.REMAINING:
        state, damage, is_one = after, ViolationKind.DAMAGE_AFTER, True
    else:
        state, damage, is_one = before, ViolationKind.DAMAGE_BEFORE, part.same

    def run(compare: _Pass, writer: ScratchWriter) -> RangeResult:
        facts = Facts()
        high = max(part.limit, pair.superseding_end or part.limit)
        keys = KeyEntries(rules, writer, np.array([pair.lowest, high], np.int64))
        notes = ProducerNotes(pair.lowest, writer)
        was = RangeWindows(state, part, pair.lowest, facts, damage)
        now = (
            None if is_one else RangeWindows(after, part, pair.lowest, facts, ViolationKind.DAMAGE_AFTER, pair.written)
        )
        compare(was, now, Judge(pair, part, facts, keys, before), notes)
        if is_remaining:
            # All else was found when both states were compared.
            return RangeResult(facts.violations(), keys.finish(), np.empty(0, SEEN), [], np.empty(0, ABORTED))
        aborted = _aborted(after, part, pair.lowest, facts)
        seen, steps = notes.finish()
        return RangeResult(facts, keys.finish(), seen, steps, aborted)

    if rules.survivor.ranks is None:
        with suppress(quick.OddError), scratch.writer(here_bytes=here_bytes) as writer:
            return run(quick.compare, writer)
    with scratch.writer(here_bytes=here_bytes) as writer:
        return run(compare, writer)


def _read_headers(before: LogView, after: LogView, part: PairRange, notes: ProducerNotes) -> RangeResult:
    """Note the batches of a range with the same files in both states."""
    facts = Facts()
    for segment in before.segments_from(part.start):
        if segment.base_offset >= part.end:
            break
        for item in segment.headers_and_gaps():
            if not isinstance(item, Gap):
                rows = item[(item["last_offset"] >= part.start) & (item["last_offset"] < part.end)]
                notes.add(rows, rows)
            elif item.kind is GapKind.DAMAGE or segment.following is not None:
                facts.broken(ViolationKind.DAMAGE_BEFORE, segment.base_offset)
    aborted = _aborted(after, part, notes.lowest, facts)
    seen, steps = notes.finish()
    return RangeResult(facts, [], seen, steps, aborted)


def _aborted(log: LogView, part: PairRange, lowest: int, facts: Facts) -> npt.NDArray[np.void]:
    """Return ABORTED[entries] from the transaction indexes of segments that start in a range."""
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


#: Windows and decoded buffers larger than this are freed before the other state is read.
_LARGE_BYTES = 32 << 20


class _Stream:
    """One state of a range, read step by step.

    Attributes:
        upto: all records up to and including this offset have been read.
        last_known: last offset before damage that ends the reading; MAX_OFFSET without such damage.
        summaries: base offsets of batches, and summaries of their records. A batch whose records arrive in several
            pieces occurs several times.
    """

    def __init__(self, windows: RangeWindows, digests: Digests) -> None:
        self.upto = windows.part.start - 1
        self.last_known = MAX_OFFSET
        self.summaries: list[tuple[Int64Array, Summaries]] = []
        self._windows = windows
        self._facts = windows.facts
        self._digests = digests
        self._batches: deque[BatchRows] = deque()
        self._records: deque[Piece] = deque()
        self._last = -1
        self._sample = Sampler(windows.facts)
        self._steps = self._read()

    def read_on(self) -> None:
        """Read the next window, or the next decoded part of it."""
        try:
            if next(self._steps, None) is None:
                self.upto = MAX_OFFSET
        except (DataError, OSError) as error:
            at = error.offset if isinstance(error, DataError) else None
            self._facts.broken(self._windows.damage, self.upto + 1 if at is None else at)
            self.last_known, self.upto = self.upto, MAX_OFFSET

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

    def drop(self) -> None:
        """Drop all batches and records that were read."""
        self._batches.clear()
        self._records.clear()
        self.summaries.clear()

    def _read(self) -> Iterator[bool]:
        for segment, item in self._windows:
            batches = self._windows.batches_of(item)
            if not batches.size:
                continue
            # Batches before a damaged one are usable, but `decode` would report the damage first.
            damaged = batches[~is_valid(batches)]
            if damaged.size:
                batches = batches[batches["position"] < damaged["position"][0]]
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
            if batches.size:
                self.upto = max(self.upto, int(batches["last_offset"].max()))
            if damaged.size:
                raise crc_error(damaged[0]).at(segment.path)
            is_large = item.data.size > _LARGE_BYTES
            del item, window
            if not is_large:
                yield True

    def _take_in(self, columns: RecordColumns, segment: Segment, window: BatchWindow) -> bool:
        """Check the order of records, and keep them until they are compared; return whether there are any."""
        rows, batches = columns.rows, columns.batches
        ascend = np.empty(rows.size, np.bool_)
        firsts, counts, newest = (np.empty(rows.size, np.int64) for _ in range(3))
        found, wrong = look_over(rows, self._last, ascend, firsts, counts, newest)
        summaries = np.empty(found, SUMMARY)
        summaries["first_offset"] = rows["offset"][firsts[:found]]
        summaries["last_offset"] = rows["offset"][firsts[:found] + counts[:found] - 1]
        summaries["newest"] = newest[:found]
        self.summaries.append((batches["base_offset"][rows["batch"][firsts[:found]]], summaries))
        for at in self._sample.choose(int(found)):
            self._sample.check(columns, window, rows[firsts[at] : firsts[at] + counts[at]])
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


def compare(before: RangeWindows, after: RangeWindows | None, judge: Judging, notes: Noting) -> None:
    """Compare both states of a range; without `after`, they have the same files."""
    if after is None:
        _compare_same(before, judge, notes)
    else:
        _compare_both(before, after, judge, notes)


def _compare_same(windows: RangeWindows, judge: Judging, notes: Noting) -> None:
    state = _Stream(windows, Digests())
    while state.upto < MAX_OFFSET:
        state.read_on()
        batches = state.take_batches(state.upto)
        state.summaries.clear()
        judge.facts.count(Count.UNCHANGED_BYTES, batches["size_bytes"].sum())
        notes.add(batches, batches)
        for piece in state.take_records(state.upto):
            for count in (Count.RECORDS_SAME, Count.RECORDS_BEFORE, Count.RECORDS_AFTER):
                judge.facts.count(count, piece.rows.size)
            judge.records(piece, np.ones(piece.rows.size, np.bool_))


def _compare_both(was: RangeWindows, now: RangeWindows, judge: Judging, notes: Noting) -> None:
    digests = Digests()
    before, after = _Stream(was, digests), _Stream(now, digests)
    done = was.part.start - 1
    while done < before.last_known:
        (before if before.upto <= after.upto else after).read_on()
        before.summaries.clear()
        bound = min(before.upto, after.upto, before.last_known)
        if bound > done:
            judge.records_of_both(before.take_records(bound), after.take_records(bound))
            batches = before.take_batches(bound)
            # Batches rewritten from a wrapper may end below the wrapper's last offset. Hold them back until the wrapper
            # itself has been read.
            ended = int(batches["last_offset"][-1]) if batches.size else NONE
            theirs = after.take_batches(bound if bound == before.last_known else ended)
            judge.batches(batches, theirs, *_summaries_of(theirs, after))
            notes.add(batches, theirs)
            done = bound
    # Offsets after damage in the state before cannot be compared, but the state after may be damaged there, too.
    while after.upto < MAX_OFFSET:
        after.drop()
        after.read_on()


def _summaries_of(after: BatchRows, state: _Stream) -> tuple[Summaries, BoolArray]:
    """Return a summary of each batch's records, and whether it is known; keep the summaries of later batches."""
    if not state.summaries:
        return np.zeros(after.size, SUMMARY), np.zeros(after.size, np.bool_)
    bases = np.concatenate([bases for bases, _ in state.summaries])
    parts = np.concatenate([parts for _, parts in state.summaries])
    order = np.argsort(bases, kind="stable")
    bases, starts = np.unique(bases[order], return_index=True)
    merged = parts[order][starts]
    for name in ("last_offset", "newest"):
        merged[name] = np.maximum.reduceat(parts[name][order], starts)
    at = np.minimum(np.searchsorted(bases, after["base_offset"]), bases.size - 1)
    later = bases > (after["base_offset"].max() if after.size else NONE)
    state.summaries = [(bases[later], merged[later])] if later.any() else []
    return merged[at], bases[at] == after["base_offset"]


# ---- records too large for a batch of pairs --------------------------------------------------------------------------

# Replaces large values by digests, because two large values, one of each state, may not fit in memory.

#: Values of at least this size are replaced, in both states. Smaller ones are compared, which is faster than a digest.
_SMALLEST_BYTES = 8 << 20
_PIECE_BYTES = 1 << 20
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Digests:
    """Replaces large values by keyed digests. Within one comparison, equal values have equal digests.

    Attributes:
        secret: the key of the digests, so that no producer can forge a small value equal to a large one's digest.
        smallest_bytes: values of at least this size are replaced.
    """

    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    smallest_bytes: int = _SMALLEST_BYTES

    def replace(self, data: U8Array, rows: npt.NDArray[np.void]) -> tuple[U8Array, npt.NDArray[np.void]]:
        """Replace the large values of records by their digests.

        Args:
            data: uint8[bytes], the data of the records.
            rows: RECORD_ROW[records], in the order of their values in `data`.

        Returns:
            (data, rows), where each large value is replaced by a digest of 32 bytes. Without large values, the
            arguments themselves.
        """
        large = np.flatnonzero(rows["value_size"] >= self.smallest_bytes)
        if not large.size:
            return data, rows
        rows = rows.copy()
        # Copy all bytes between large values unchanged.
        pieces, done, removed = [], 0, 0
        cuts, shifts = [], []
        for at in large.tolist():
            start, size = int(rows["value_start"][at]), int(rows["value_size"][at])
            assert start >= done, "decoding goes through the data once"
            pieces += [data[done:start], self._digest(data[start : start + size])]
            done = start + size
            removed += size - _DIGEST_BYTES
            cuts.append(start)
            shifts.append(removed)
            rows["value_size"][at] = _DIGEST_BYTES
        pieces.append(data[done:])
        # A position moves by the bytes removed before it. The start of a large value moves only for earlier values.
        moves = np.array([0, *shifts], np.int64)
        for name in ("key_start", "value_start", "headers_start"):
            rows[name] -= moves[np.searchsorted(np.array(cuts, np.int64), rows[name], side="left")].astype(np.int32)
        return np.concatenate(pieces), rows

    def _digest(self, value: U8Array) -> U8Array:
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES, key=self.secret)
        for start in range(0, value.size, _PIECE_BYTES):
            digest.update(value[start : start + _PIECE_BYTES])
        return np.frombuffer(digest.digest(), np.uint8)
