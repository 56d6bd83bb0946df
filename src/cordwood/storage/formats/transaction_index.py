"""The transaction index of a segment, `.txnindex`: the aborted transactions whose marker is in the segment.

Entries of 34 bytes, big-endian, in the order of the markers:

    0    i16   version, 0
    2    i64   producer id
    10   i64   first offset: the first record of the transaction
    18   i64   last offset: its abort marker
    26   i64   last stable offset after the abort: no record below it belongs to an open transaction

A file exists only once it has an entry, and grows one entry at a time, so it has no zero tail. Kafka reads the version
from the first of its two bytes alone, and ignores a partial entry at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt

from cordwood.common.errors import CorruptFileError, IndexProblem
from cordwood.fs.base import Bytes
from cordwood.storage.formats.entries import Int64Array, incomplete_entry, put_together

ENTRY = np.dtype(
    [
        ("version", ">i2"),
        ("producer_id", ">i8"),
        ("first_offset", ">i8"),
        ("last_offset", ">i8"),
        ("last_stable_offset", ">i8"),
    ]
)
assert ENTRY.itemsize == 34


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """One aborted transaction: its data is within [first_offset, last_offset), its marker at last_offset."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True, eq=False)
class TransactionIndex:
    """The entries of a transaction index.

    Attributes:
        versions: int16[entries].
        producer_ids: int64[entries].
        first_offsets: int64[entries], absolute, as are all offsets here.
        last_offsets: int64[entries].
        last_stable_offsets: int64[entries].
        rest: bytes after the last whole entry; a crash may leave some.
    """

    versions: npt.NDArray[np.int16]
    producer_ids: Int64Array
    first_offsets: Int64Array
    last_offsets: Int64Array
    last_stable_offsets: Int64Array
    rest: bytes = b""

    @property
    def entries(self) -> int:
        """Number of whole entries."""
        return len(self.versions)

    def transactions(self) -> Iterator[AbortedTransaction]:
        """Yield all entries in order."""
        return map(self._transaction, range(self.entries))

    def aborted(self, fetch_offset: int, upper_bound: int) -> tuple[list[AbortedTransaction], bool]:
        """Find the aborted transactions that a read of [fetch_offset, upper_bound) may meet.

        Returns:
            the transactions in order, and whether the search is complete. If not, the next segment's index may have
            more. It is complete once an entry's last stable offset reaches the upper bound: a transaction that was
            aborted later began at or above it.

        Source: Kafka TransactionIndex.collectAbortedTxns.
        """
        ends = np.flatnonzero(self.last_stable_offsets >= upper_bound)
        count = int(ends[0]) + 1 if len(ends) else self.entries
        met = (self.last_offsets[:count] >= fetch_offset) & (self.first_offsets[:count] < upper_bound)
        return [self._transaction(entry) for entry in np.flatnonzero(met).tolist()], len(ends) > 0

    def _transaction(self, entry: int) -> AbortedTransaction:
        return AbortedTransaction(
            int(self.producer_ids[entry]),
            int(self.first_offsets[entry]),
            int(self.last_offsets[entry]),
            int(self.last_stable_offsets[entry]),
        )


def decode(data: Bytes, path: str | None = None) -> TransactionIndex:
    """Decode a transaction index.

    Raises:
        CorruptFileError: an entry has a version that Kafka does not know; carries its position.
    """
    data = bytes(data)
    count = len(data) // ENTRY.itemsize
    entries = np.frombuffer(data, ENTRY, count)
    versions = entries["version"].astype(np.int16)
    unknown = np.flatnonzero(versions >> 8 > 0)  # Kafka ignores the second byte of the version
    if len(unknown):
        entry = int(unknown[0])
        what = f"aborted transaction {entry}: version {versions[entry]}, only 0 is known"
        raise CorruptFileError(what, kind=IndexProblem.VERSION, path=path, position=entry * ENTRY.itemsize)
    return TransactionIndex(
        versions,
        entries["producer_id"].astype(np.int64),
        entries["first_offset"].astype(np.int64),
        entries["last_offset"].astype(np.int64),
        entries["last_stable_offset"].astype(np.int64),
        data[count * ENTRY.itemsize :],
    )


def encode(index: TransactionIndex) -> bytes:
    """Encode an index, including its rest."""
    entries = np.empty(index.entries, ENTRY)
    entries["version"] = index.versions
    entries["producer_id"] = index.producer_ids
    entries["first_offset"] = index.first_offsets
    entries["last_offset"] = index.last_offsets
    entries["last_stable_offset"] = index.last_stable_offsets
    return put_together(entries, index.entries, index.rest)


def index_of(transactions: Sequence[AbortedTransaction]) -> TransactionIndex:
    """Return an index of transactions, which must be in the order of their markers."""
    rows = np.array([astuple(one) for one in transactions], np.int64).reshape(-1, 4)
    return TransactionIndex(np.zeros(len(rows), np.int16), rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3])


def faults(index: TransactionIndex, base_offset: int) -> Iterator[CorruptFileError]:
    """Yield an error for each inconsistency that Kafka's writers would not produce, in order.

    Stricter than Kafka's own check on loading, which only rejects a last offset below the segment's base offset.
    """
    first, last = index.first_offsets, index.last_offsets
    bad = (last < base_offset) | (first >= last) | (index.versions != 0)
    bad[1:] |= last[1:] <= last[:-1]
    for entry in np.flatnonzero(bad).tolist():
        if index.versions[entry]:
            what = f"version {index.versions[entry]}, only 0 is known"
        elif last[entry] < base_offset:
            what = f"last offset {last[entry]} is below the segment's base offset {base_offset}"
        elif first[entry] >= last[entry]:
            what = f"first offset {first[entry]} is not below last offset {last[entry]}"
        else:
            what = f"last offset {last[entry]} follows last offset {last[entry - 1]}"
        what, position = f"aborted transaction {entry}: {what}", entry * ENTRY.itemsize
        yield CorruptFileError(what, kind=IndexProblem.ENTRY, position=position, offset=int(last[entry]))
    if index.rest:
        yield incomplete_entry(index.rest, ENTRY, index.entries * ENTRY.itemsize)
