"""Finds all records of some keys in a log: through valid key indexes, else by reading everything.

    segment ──► key index ──► batches that may have the keys ──┐
       └────── without one ──► all batches ────────────────────┴─► records, compared by the bytes of their keys
                                                                     └─► outcome of their transactions, successors

The outcome of a transaction is read from the headers after its records, up to its marker; transaction indexes are not
used.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from cordwood.common.errors import CorruptFileError, NotFoundError
from cordwood.common.types import ControlType
from cordwood.fs.base import ReadableFile
from cordwood.kernels.layout import DELETE_HORIZON, has_flag, is_control, is_transactional_data
from cordwood.record.columns import BatchWindow, OnDamage, Ranks, RecordColumns, decode, raise_damage, report_wrong
from cordwood.record.key_hashes import key_hashes
from cordwood.storage.index.search import SparseIndex, batches_with, hash_of_keys, windows_of
from cordwood.storage.log.segment import Segment, gap_error, locate_damage
from cordwood.storage.log.transactions import steps
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, Gap

_SECRET_BYTES = 16
_ATTEMPTS = 5
#: Above this share of a segment's batches, reading all of them in order is faster; up to `_FEW` batches it never is.
_SHARE_MAX = 0.25
_FEW = 64
_NO_PRODUCER = -1


class TransactionOutcome(StrEnum):
    """The outcome of a record's transaction. Records outside transactions count as committed."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"  #: no marker has ended it yet


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A record of a key, and its location.

    Attributes:
        timestamp: milliseconds since the epoch; -1 if it has none.
        value: None for a tombstone.
        base_offset: base offset of its batch.
        segment: base offset of its segment.
        position: position of its batch in the segment's log.
        producer_id: producer of its transaction; -1 outside transactions.
        superseded_by: offset of the next committed record with the same key, or None.
        rank: its rank under the keep rule: a record supersedes all of lower rank, and earlier ones of equal rank.
        delete_horizon_ms: time from which a clean may remove the tombstones of its batch; None before a clean sets it.
    """

    key: bytes
    offset: int
    timestamp: int
    value: bytes | None
    base_offset: int
    segment: int
    position: int
    producer_id: int = _NO_PRODUCER
    outcome: TransactionOutcome = TransactionOutcome.COMMITTED
    superseded_by: int | None = None
    delete_horizon_ms: int | None = None
    rank: int = field(default=0, repr=False)

    @property
    def is_tombstone(self) -> bool:
        """Whether it deletes its key."""
        return self.value is None


class KeyFinder:
    """Finds the records with given keys: by a hash, then by the bytes."""

    def __init__(self, keys: Collection[bytes]) -> None:
        self.keys = tuple(sorted(set(keys)))
        self._set = frozenset(self.keys)
        # A secret, as producers could otherwise construct many keys with one hash.
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self._hashes = hash_of_keys(self.keys, self._secret)

    def rows(self, columns: RecordColumns) -> Iterator[tuple[int, bytes]]:
        """Yield the index of each record with one of the keys, and the key."""
        rows, data = columns.rows, columns.data
        for at in np.flatnonzero(self._may_be(columns)).tolist() if self.keys else ():
            row = rows[at]
            key = data[row["key_start"] : row["key_start"] + row["key_size"]].tobytes()
            if key in self._set:
                yield at, key

    def _may_be(self, columns: RecordColumns) -> npt.NDArray[np.bool_]:
        """Mark the records whose key has the hash of one of the keys, bool[records]."""
        has_key = columns.rows["key_size"] >= 0
        hashes = key_hashes(columns, has_key, self._secret)
        at = np.minimum(np.searchsorted(self._hashes, hashes[:, 1]), self._hashes.size - 1)
        return np.asarray(has_key & (self._hashes[at] == hashes[:, 1]))


class KeyHistory:
    """Finds the records of some keys.

    Args:
        ranks: ranks of the keep rule; None for newest offset.

    Attributes:
        indexed: number of segments that were searched through their index.
        scanned: number of segments that were read.
    """

    def __init__(self, keys: Collection[bytes], on_damage: OnDamage = raise_damage, ranks: Ranks | None = None) -> None:
        self.indexed = self.scanned = 0
        self._finder = KeyFinder(keys)
        self._ranks = ranks
        self._on_damage = on_damage

    def of(
        self, log: LogView, on_segment: Callable[[Segment], None] | None = None, *, last: bool = False
    ) -> list[KeyRecord]:
        """Find the records of the keys in a log from the log start offset on, in offset order.

        Args:
            on_segment: called with each searched segment.
            last: find only the committed record of each key that supersedes all others. Under newest offset, stop
                before older segments once all are found.

        Raises:
            CorruptBatchError: from `on_damage`, by default; if it returns, the search continues after the damage.
            OSError: a segment cannot be read.
            NotFoundError: the log was deleted, or changes too fast to be read.
        """
        for _ in range(_ATTEMPTS):
            self.indexed = self.scanned = 0
            try:
                return self._newest(log, on_segment) if last else self._all(log, on_segment)
            except FileNotFoundError:
                log.list_again()  # a broker deleted a segment, or its cleaner replaced it
        raise NotFoundError(f"{log.path} changes too fast to be read")

    def _all(self, log: LogView, on_segment: Callable[[Segment], None] | None) -> list[KeyRecord]:
        found: list[KeyRecord] = []
        for segment in log.segments_from(log.log_start_offset):
            found += self._records(log, segment)
            if on_segment is not None:
                on_segment(segment)
        return judged(log, found)

    def _newest(self, log: LogView, on_segment: Callable[[Segment], None] | None) -> list[KeyRecord]:
        newest: dict[bytes, KeyRecord] = {}
        for segment in reversed(log.segments_from(log.log_start_offset)):
            some = [
                record
                for record in self._records(log, segment)
                if record.key not in newest or record.rank > newest[record.key].rank
            ]
            committed = [one for one in _with_outcomes(log, some) if one.outcome is TransactionOutcome.COMMITTED]
            newest |= {one.key: one for one in sorted(committed, key=lambda record: record.rank)}
            if on_segment is not None:
                on_segment(segment)
            if len(newest) == len(self._finder.keys) and self._ranks is None:
                break
        return sorted(newest.values(), key=lambda record: record.offset)

    def _records(self, log: LogView, segment: Segment) -> list[KeyRecord]:
        """Find the records of the keys in one segment, without the outcome of their transactions."""
        if not segment.size_bytes and not log.live:
            return []
        # The index must match the open file. Another file may get the segment's name meanwhile.
        with segment.open() as file:
            try:
                found = self._through_index(log, segment, file)
            except (OSError, CorruptFileError):
                found = None
        self.indexed += found is not None
        self.scanned += found is None
        return self._found(log, segment, segment.windows(search=not log.live)) if found is None else found

    def _through_index(self, log: LogView, segment: Segment, file: ReadableFile) -> list[KeyRecord] | None:
        """Find the records through the index; None if reading the whole segment is faster."""
        with SparseIndex(segment, file) as opened:
            index = opened.index
            touched = batches_with(index, opened.find(hash_of_keys(self._finder.keys, index.header.secret)).ordinals)
            if touched.size > _SHARE_MAX * index.header.batches and touched.size > _FEW:
                return None
            opened.check_batches(touched, file)
            return self._found(log, segment, windows_of(segment, file, index, touched))

    def _found(self, log: LogView, segment: Segment, items: Iterator[BatchWindow | Gap]) -> list[KeyRecord]:
        on_damage = locate_damage(self._on_damage, segment)
        found: list[KeyRecord] = []
        for item in items:
            if isinstance(item, Gap):
                if not log.is_end(segment, item):
                    self._on_damage(gap_error(segment, item))
                continue
            control = is_control(item.batches)
            report_wrong(item.batches[control], on_damage)
            data = item.batches[~control]
            for columns in decode(BatchWindow(item.position, item.data, data, item.read), on_damage=on_damage):
                found += (
                    key_record(columns, at, key, segment.base_offset, ranks=self._ranks)
                    for at, key in self._finder.rows(columns)
                    if columns.rows["offset"][at] >= log.log_start_offset
                )
        return found


def key_record(
    columns: RecordColumns, at: int, key: bytes, segment: int, *, with_value: bool = True, ranks: Ranks | None = None
) -> KeyRecord:
    """Make a KeyRecord from a decoded record alone, without outcome and successor.

    Args:
        with_value: False: leave the value empty.
        ranks: see `KeyHistory`.
    """
    row, data = columns.rows[at], columns.data
    batch = columns.batches[row["batch"] : row["batch"] + 1]
    start, size = int(row["value_start"]), int(row["value_size"])
    return KeyRecord(
        key,
        int(row["offset"]),
        int(row["timestamp"]),
        None if size < 0 else data[start : start + size * with_value].tobytes(),
        int(batch["base_offset"][0]),
        segment,
        int(batch["position"][0]),
        int(batch["producer_id"][0]) if is_transactional_data(batch)[0] else _NO_PRODUCER,
        delete_horizon_ms=int(batch["base_timestamp"][0]) if has_flag(batch, DELETE_HORIZON)[0] else None,
        rank=0 if ranks is None else int(ranks(RecordColumns(data, columns.rows[at : at + 1], columns.batches))[0]),
    )


# ---- outcomes and successors -----------------------------------------------------------------------------------------


def judged(log: LogView, records: Sequence[KeyRecord]) -> list[KeyRecord]:
    """Add outcomes and successors to records; they must be all records of their keys in the log, in offset order."""
    return _superseded(_with_outcomes(log, records))


def _with_outcomes(log: LogView, records: Sequence[KeyRecord]) -> list[KeyRecord]:
    """Add the outcome of each record's transaction: the next marker of its producer.

    A cleaner removes a marker only after the last record of its transaction, so a record without a marker is open. It
    may have removed the record itself since it was found; so only markers count, not whether they end known data.
    """
    waiting = sorted({(record.base_offset, record.producer_id) for record in records if record.producer_id >= 0})
    ended: dict[tuple[int, int], TransactionOutcome] = {}
    at = 0
    while at < len(waiting):
        at = _follow(log, waiting, at, ended)
    return [
        replace(record, outcome=ended.get((record.base_offset, record.producer_id), TransactionOutcome.OPEN))
        if record.producer_id >= 0
        else record
        for record in records
    ]


def _follow(
    log: LogView, waiting: Sequence[tuple[int, int]], at: int, ended: dict[tuple[int, int], TransactionOutcome]
) -> int:
    """Read headers from one of the records on, until no passed record is in an open transaction.

    Args:
        waiting: base offsets of batches, ascending, with their producers.
        at: index in `waiting` of the first batch.
        ended: outcome by base offset and producer; updated in place.

    Returns:
        index in `waiting` from which to continue.
    """
    passed: dict[int, list[int]] = {}
    for _, item in log.windows(start_offset=waiting[at][0], checks=Checks.HEADERS):
        if isinstance(item, Gap):
            continue
        for base_offset, _, producer, marker in steps(item.batches):
            while at < len(waiting) and waiting[at][0] <= base_offset:
                passed.setdefault(waiting[at][1], []).append(waiting[at][0])
                at += 1
            if marker is not None:
                outcome = TransactionOutcome.ABORTED if marker is ControlType.ABORT else TransactionOutcome.COMMITTED
                ended.update({(first, producer): outcome for first in passed.pop(producer, ())})
        if not passed and at < len(waiting) and waiting[at][0] > item.batches["last_offset"][-1]:
            return at
        if not passed and at == len(waiting):
            break
    return len(waiting)


def _superseded(records: Sequence[KeyRecord]) -> list[KeyRecord]:
    """Add the offset of the next committed record of each record's key, in the order of the keep rule."""
    next_offset: dict[bytes, int] = {}
    found = list(records)
    for at in sorted(range(len(records)), key=lambda at: records[at].rank)[::-1]:
        record = records[at]
        found[at] = replace(record, superseded_by=next_offset.get(record.key))
        if record.outcome is TransactionOutcome.COMMITTED:
            next_offset[record.key] = record.offset
    return found


def by_key(records: Iterable[KeyRecord]) -> dict[bytes, list[KeyRecord]]:
    """Group records by key, in their order."""
    found: dict[bytes, list[KeyRecord]] = {}
    for record in records:
        found.setdefault(record.key, []).append(record)
    return found
