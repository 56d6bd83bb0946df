"""Checks that the last committed value of each key survived a clean, however large the log is.

Tasks that read ranges of offsets make an entry for each record, and divide the entries by hash range. Other tasks then
merge and judge some hash ranges each: memory holds one table, with the keys of one hash range. `kernels.last_records`
defines the entries and the table.
"""

from __future__ import annotations

import functools
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.proof.pairs import BoolArray, Count, Facts, Int64Array, Piece, ViolationKind
from cordwood.cleaning.proof.precedence import SURVIVOR_RULE, SurvivorRule
from cordwood.cleaning.proof.room import ENTRY_BYTES
from cordwood.cleaning.proof.scratch import Kept, Scratch, ScratchReader, ScratchWriter
from cordwood.common.types import NONE, override
from cordwood.kernels.last_records import (
    ENTRY,
    FREE,
    MAY_GO,
    NO_VALUE,
    PRIME,
    SLOT,
    THERE,
    TOMBSTONE,
    WENT,
    divide,
    enter_records,
    keep_last,
    merge_entries,
    move_slots,
    ranked,
)
from cordwood.kernels.layout import TRANSACTIONAL, BatchRows

assert ENTRY.itemsize == ENTRY_BYTES
#: Number of entries that are divided at a time, 12 MB.
CHUNK_ENTRIES = 1 << 19
#: Records per hash range, so that the table of its keys fits into a processor's cache.
_RANGE_RECORDS = 1 << 16
#: Largest number of hash ranges; in larger logs each range has more records.
_RANGES_MAX = 1 << 10
_RANGE_RECORDS_MAX = 1 << 20
#: Number of entries up to which several hash ranges are read at once, 24 MB.
_READ_ENTRIES = 1 << 20
_SLOTS_MIN, _SLOTS_MAX = 1 << 10, 1 << 16
_FULL = 0.6
_GROWTH = 4

Slots = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class KeyRules:
    """The fingerprints and hash ranges for the keys of a pair; the same in all tasks.

    Attributes:
        points: two random points for the fingerprints of one proof.
        hash_ranges: number of hash ranges.
        survivor: the keep rule.
    """

    points: tuple[int, int]
    hash_ranges: int
    survivor: SurvivorRule = SURVIVOR_RULE

    @classmethod
    def of(cls, records_max: int, survivor: SurvivorRule = SURVIVOR_RULE) -> KeyRules:
        """Return the rules for a log of up to this number of records."""
        wanted = max(-(-records_max // _RANGE_RECORDS), 1)
        most = max(_RANGES_MAX, -(-records_max // _RANGE_RECORDS_MAX))
        points = secrets.randbelow(int(PRIME)), secrets.randbelow(int(PRIME))
        return cls(points, min(wanted, most), survivor)

    @property
    def entry(self) -> np.dtype[np.void]:
        """The dtype of entries."""
        return ENTRY if self.survivor.ranks is None else ranked(ENTRY)


@dataclass(slots=True)
class KeyEntries:
    """Makes entries for records, and divides them.

    Attributes:
        between: int64[2]: only records in [low, high) count.
        chunk_entries: number of entries that are divided at a time.
        points: uint64[2], the points of the rules.
    """

    rules: KeyRules
    writer: ScratchWriter
    between: Int64Array
    chunk_entries: int = CHUNK_ENTRIES
    points: npt.NDArray[np.uint64] = field(init=False)
    _entries: npt.NDArray[np.void] = field(init=False)
    _used: int = field(default=0, init=False)
    _all_committed: bool = field(default=True, init=False)
    _chunks: list[Kept] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.points = np.array(self.rules.points, np.uint64)
        self._entries = np.empty(self.chunk_entries, self.rules.entry)

    def add(self, piece: Piece, rules: npt.NDArray[np.uint8], there: BoolArray) -> None:
        """Add records of the state before; `rules` and `there` as for `enter_records`."""
        ranks = self.rules.survivor.ranks_of(piece.data, piece.rows)
        for start in range(0, piece.rows.size, self.chunk_entries):
            some = slice(start, start + self.chunk_entries)
            entries, used = self.room_for(piece.rows[some].size)
            used = enter_records(
                *(piece.data.ctypes.data, piece.rows[some], ranks[some], rules, there[some]),
                *(self.between, self.points, entries, used),
            )
            self.entered(used, piece.batches)

    def room_for(self, records: int) -> tuple[npt.NDArray[np.void], int]:
        """Return the array for entries, ENTRY[all], and its used count, with room for up to `chunk_entries` records."""
        if self._used + records > self.chunk_entries:
            self._chunks.append(self.writer.write(*self._divided()))
        return self._entries, self._used

    def entered(self, used: int, batches: BatchRows) -> None:
        """Set the used count after new entries were made; `batches` are the batches of their records."""
        self._used = used
        self._all_committed &= not (batches["attributes"] & TRANSACTIONAL).any()

    def finish(self) -> list[Kept]:
        """Return all entries, as ENTRY in two sections per hash range: removed records, then remaining ones."""
        if self._used:
            self._chunks.append(self.writer.write(*self._divided()))
        return self._chunks

    def _divided(self) -> tuple[npt.NDArray[np.void], Int64Array]:
        target = np.empty(self._used, self._entries.dtype)
        starts = np.zeros(2 * self.rules.hash_ranges + 1, np.int64)
        divide(self._entries[: self._used], self.rules.hash_ranges, target, starts)
        self._used = 0
        went = int(np.diff(starts)[::2].max())
        # Only a later task decides whether a transactional record counts. If it does not, an older record may be the
        # last of its key, so keep older records, too.
        if self._all_committed and went and self.rules.survivor.ranks is None:
            target = target[: keep_last(target, starts, np.empty(2 << went.bit_length(), np.int32))]
        self._all_committed = True
        return target, starts


@dataclass(frozen=True, slots=True)
class Uncommitted:
    """Offsets of records that do not count, because their transaction was aborted or is open.

    Attributes:
        firsts, lasts: int64[ranges], ascending, ends included.
    """

    firsts: Int64Array
    lasts: Int64Array

    @classmethod
    def none(cls) -> Uncommitted:
        """Return an instance without offsets: all records count."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64))


class SlotTable(ABC):
    """A growing hash table with a slot per key. A subclass decides what a slot holds."""

    def __init__(self, expected: int) -> None:
        """Set up an empty table; `expected`: number of entries that will be inserted."""
        slots = _SLOTS_MIN
        while slots < min(2 * expected, _SLOTS_MAX):
            slots *= 2
        self._table = self.empty(slots)
        self._used = 0

    @abstractmethod
    def empty(self, slots: int) -> Slots:
        """Return an empty table."""

    @abstractmethod
    def enter(
        self,
        addresses: Int64Array,
        counts: Int64Array,
        at: tuple[int, int],
        *,
        insert: bool,
        table: Slots,
        used: int,
    ) -> tuple[int, int, int]:
        """Merge entries into a table until it is full, from a piece and an index in it on; see `merge_entries`."""

    @abstractmethod
    def move(self, table: Slots, larger: Slots) -> int:
        """Move the used slots of a table to a larger one; return their number."""

    @abstractmethod
    def used_slots(self, table: Slots) -> Slots:
        """Return the used slots of a table."""

    def merge(self, pieces: Sequence[npt.NDArray[np.void]], *, insert: bool) -> None:
        """Merge entries, ENTRY[n] each; keys that are not in the table are skipped, unless `insert`."""
        addresses = np.array([entries.ctypes.data for entries in pieces], np.int64)
        counts = np.array([entries.size for entries in pieces], np.int64)
        piece = start = 0
        while True:
            piece, start, self._used = self.enter(
                addresses, counts, (piece, start), insert=insert, table=self._table, used=self._used
            )
            if piece == counts.size:
                return
            larger = self.empty(_GROWTH * self._table.size)
            moved = self.move(self._table, larger)
            assert moved == self._used, "all keys have moved"
            self._table = larger

    def slots(self) -> Slots:
        """Return the slots of all keys."""
        return self.used_slots(self._table)

    @staticmethod
    def room(table: Slots, *, insert: bool) -> int:
        """Return the number of used slots from which on the table has to grow."""
        return int(_FULL * table.size) if insert else table.size


class LastRecords(SlotTable):
    """A table from a key's fingerprint to its last record, SLOT[keys]."""

    def __init__(self, uncommitted: Uncommitted, expected: int = 0, entry: np.dtype[np.void] = ENTRY) -> None:
        self._uncommitted, self._entry = uncommitted, entry
        super().__init__(expected)

    @override
    def empty(self, slots: int) -> Slots:
        table = np.empty(slots, _slot_of(self._entry))
        table["last"] = FREE
        return table

    @override
    def enter(
        self,
        addresses: Int64Array,
        counts: Int64Array,
        at: tuple[int, int],
        *,
        insert: bool,
        table: Slots,
        used: int,
    ) -> tuple[int, int, int]:
        hidden, room = self._uncommitted, self.room(table, insert=insert)
        found: tuple[int, int, int] = merge_entries(
            addresses, counts, *at, hidden.firsts, hidden.lasts, insert, table, used, room
        )
        return found

    @override
    def move(self, table: Slots, larger: Slots) -> int:
        return int(move_slots(table, larger))

    @override
    def used_slots(self, table: Slots) -> Slots:
        found: Slots = table[table["last"] != FREE]
        return found


def _slot_of(entry: np.dtype[np.void]) -> np.dtype[np.void]:
    return SLOT if entry == ENTRY else ranked(SLOT)


def judge_hash_ranges(
    chunks: Sequence[Kept],
    hash_ranges: int,
    scratch: Scratch,
    uncommitted: Uncommitted,
    read_entries: int = _READ_ENTRIES,
    entry: np.dtype[np.void] = ENTRY,
) -> Facts:
    """Merge and judge some hash ranges.

    Args:
        chunks: entries of all tasks, with only the sections of these hash ranges.
        uncommitted: records that do not count.
        read_entries: approximate number of entries in memory at a time.
        entry: the dtype of the entries.
    """
    facts = Facts()
    tables = functools.partial(LastRecords, uncommitted, entry=entry)
    for slots in merge_hash_ranges(chunks, hash_ranges, scratch, tables, read_entries=read_entries, entry=entry):
        judge(slots, facts)
    return facts


def merge_hash_ranges(
    chunks: Sequence[Kept],
    hash_ranges: int,
    scratch: Scratch,
    table_for: Callable[[int], SlotTable],
    *,
    read_entries: int = _READ_ENTRIES,
    entry: np.dtype[np.void] = ENTRY,
) -> Iterator[Slots]:
    """Yield the slots of the keys of each hash range, but only of keys with an entry in a first section, see `divide`.

    Args:
        table_for: returns an empty table for a number of expected entries.
    """
    entries = sum(int(chunk.starts[-1] - chunk.starts[0]) for chunk in chunks)
    at_once = max(1, hash_ranges * read_entries // max(entries, 1))
    with scratch.reader() as reader:
        for first in range(0, hash_ranges, at_once):
            end = min(first + at_once, hash_ranges)
            some = [chunk.sections(2 * first, 2 * end) for chunk in chunks]
            if at_once > 1:
                some = [reader.load(chunk, entry) for chunk in some]
            for number in range(end - first):
                if any(chunk.size(2 * number) for chunk in some):
                    yield _merged(some, number, reader, table_for, read_entries, entry)


def _merged(
    chunks: Sequence[Kept],
    number: int,
    reader: ScratchReader,
    table_for: Callable[[int], SlotTable],
    read_entries: int,
    entry: np.dtype[np.void],
) -> Slots:
    went, there = 2 * number, 2 * number + 1
    counts = {section: sum(chunk.size(section) for chunk in chunks) for section in (went, there)}
    first, second = (went, there) if counts[went] <= counts[there] else (there, went)
    table = table_for(counts[first])
    for section in (first, second):
        for pieces in _pieces(chunks, section, reader, read_entries, entry):
            table.merge(pieces, insert=section == first or second == went)
    return table.slots()


def _pieces(
    chunks: Sequence[Kept], section: int, reader: ScratchReader, read_entries: int, entry: np.dtype[np.void]
) -> Iterator[list[npt.NDArray[np.void]]]:
    """Yield the entries of a section, ENTRY[n] in each piece, about `read_entries` at a time."""
    pieces: list[npt.NDArray[np.void]] = []
    count = 0
    for chunk in chunks:
        size = chunk.size(section)
        if pieces and count + size > read_entries:
            yield pieces
            pieces, count = [], 0
        if size:
            pieces.append(reader.read(chunk, section, entry))
            count += size
    if pieces:
        yield pieces


def judge(slots: Slots, facts: Facts) -> None:
    """Judge merged keys, SLOT[keys].

    A key is correct if its last record is still there, or if that record is a tombstone that may be removed and the
    state after has no value of the key. An older value without the tombstone would bring the deleted key back. A key
    counts only if the clean removed a record of it.
    """
    slots = slots[slots["low"] & WENT != 0]
    there, may_go, tombstone = (slots["high"] & flag != 0 for flag in (THERE, MAY_GO, TOMBSTONE))
    gone = ~there & may_go
    no_value = slots["value_there"] == NO_VALUE
    facts.count(Count.KEYS_KEPT, int(there.sum()))
    facts.count(Count.KEYS_DELETED, int((gone & no_value).sum()))
    facts.deleted_max = max(facts.deleted_max, int(slots["last"][gone].max(initial=NONE)))
    facts.broken_at(ViolationKind.CAME_BACK, slots["value_there"][gone & ~no_value])
    facts.broken_at(ViolationKind.TOMBSTONE_LOST, slots["last"][~there & ~may_go & tombstone])
    facts.broken_at(ViolationKind.VALUE_LOST, slots["last"][~there & ~may_go & ~tombstone])
