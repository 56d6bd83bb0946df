"""Derive the outcomes of a log's transactions from its indexes, as a broker does, without reading all headers.

    segment 0   segment 1   segment 2   active segment
    .txnindex   .txnindex   .txnindex   headers            aborted transactions, by position of their markers
                                  ▲
                                  .snapshot                transactions that were open there

The transaction indexes of closed segments list the aborted ones, and the newest producer snapshot lists the open ones
at its offset. From there on headers are read. The transaction index may be incomplete if the segment has no offset
index (no broker closed it, or it was copied without indexes), or if it is above the recovery point after a crash. From
the first such segment on, headers are read as well; without any snapshot, all headers are read.

`LogView.transactions` reads all headers and trusts no index. A reader that uses this module instead can compare it
with the markers that it reads (`contradicts`).
"""

from __future__ import annotations

import itertools

from cordwood.common.errors import CorruptFileError
from cordwood.common.types import NONE, ControlType
from cordwood.kernels.layout import BatchRows
from cordwood.record.columns import BatchWindow
from cordwood.record.headers import is_transactional_data
from cordwood.storage.formats import producer_state, transaction_index
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.formats.transaction_index import AbortedTransaction
from cordwood.storage.log.cuts import Cut, cut_before
from cordwood.storage.log.files import read_file
from cordwood.storage.log.transactions import Transactions, steps
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks


def outcomes(log: LogView, end_offset: int, *, flushed_below: int) -> Transactions:
    """Return the transactions of a log by its indexes, a producer snapshot and the headers after them.

    Args:
        end_offset: transactions without a marker below it are open.
        flushed_below: the recovery point after a crash. Transaction indexes of segments that reach above it are
            ignored.
    """
    aborted, known_below = _from_indexes(log, min(end_offset, flushed_below))
    found = _from_snapshot(log, known_below)
    for one in aborted:
        if one.last_offset < found.next_offset:
            found.aborted.setdefault(one.producer_id, []).append((one.first_offset, one.last_offset))
    follow(found, log, end_offset)
    return found


def follow(found: Transactions, log: LogView, end_offset: int, start: Cut | None = None) -> Cut | None:
    """Apply the headers of a log from `found.next_offset` on, up to an offset.

    Args:
        found: updated in place.
        end_offset: batches from here on are left out.
        start: a known cut at or below `found.next_offset`.

    Returns:
        the cut before the last batch, as `start` of the next call; None if there was no batch.
    """
    first, last = found.next_offset, None
    for segment, item in log.windows(start_offset=first, end_offset=end_offset, checks=Checks.HEADERS, start=start):
        if isinstance(item, BatchWindow):
            # Batches that end below `first` are already applied.
            found.add(item.batches[item.batches["last_offset"] >= first])
            last = cut_before(segment.base_offset, item.batches[-1])
    return last


def contradicts(found: Transactions, batches: BatchRows, has_data: set[int]) -> AbortedTransaction | None:
    """Return a transaction whose marker contradicts `found`, or None if all agree so far.

    Args:
        batches: the next batches of the log (BATCH_ROW[batches]).
        has_data: producers with records in their open transaction; initially empty, updated in place.
    """
    with_records = batches[(batches["record_count"] > 0) | ~is_transactional_data(batches)]
    for base_offset, last_offset, producer_id, marker in steps(with_records):
        if marker is None:
            has_data.add(producer_id)
            continue
        ranges = found.aborted.get(producer_id, [])
        if marker is ControlType.ABORT:
            wrong = producer_id in has_data and all(last != last_offset for _, last in ranges)
        else:
            wrong = any(first < base_offset < last for first, last in ranges)
        if wrong:
            return AbortedTransaction(producer_id, NONE, last_offset, NONE)
        has_data.discard(producer_id)
    return None


def _from_indexes(log: LogView, below: int) -> tuple[list[AbortedTransaction], int]:
    """Return the aborted transactions of the closed segments with usable indexes, and the end of these segments."""
    aborted: list[AbortedTransaction] = []
    known_below = log.first_offset
    for segment, following in itertools.pairwise(log.segments):
        if following.base_offset > below or FileKind.OFFSET_INDEX not in segment.files.indexes:
            break
        try:
            index = segment.transaction_index()
        except (CorruptFileError, FileNotFoundError):
            break
        if index is not None:
            if any(transaction_index.faults(index, segment.base_offset)):
                break
            aborted += index.transactions()
        known_below = following.base_offset
    return aborted, known_below


def _from_snapshot(log: LogView, end: int) -> Transactions:
    """Return the open transactions at the newest readable snapshot up to `end`, or at the log's start."""
    for offset, info in sorted(log.recovery.snapshots.items(), reverse=True):
        if log.first_offset < offset <= end:
            try:
                rows = producer_state.decode_rows(read_file(log.fs, f"{log.path}/{info.name}"))
            except (CorruptFileError, FileNotFoundError):
                continue  # as a broker does: an older snapshot is enough
            rows = rows[rows["current_transaction_first_offset"] != NONE]
            starts = rows[["producer_id", "current_transaction_first_offset"]].tolist()
            return Transactions(open=dict(starts), next_offset=offset)
    return Transactions(open=log.open_below_start(), next_offset=log.first_offset)
