"""Find the transactional data that a clean may drop: Kafka's tracker of aborted transactions, fed in log order.

The transaction indexes give the producer and first offset of each aborted transaction. The tracker discards the data
batches of a producer while one of its aborted transactions is open. A marker may be dropped if the clean met no data of
its transaction.

This rule is the cleaner's, and differs from a consumer's view: it trusts the index, and a marker may outlive its data.
The table in ARCHITECTURE.md lists the other replays of transactions.

A clean uses two trackers: one while it reads the keys of the dirty section, one while it copies.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from cordwood.common.types import ControlType
from cordwood.kernels.layout import CONTROL, TRANSACTIONAL, BatchRows, is_control, is_transactional_data
from cordwood.storage.formats.transaction_index import AbortedTransaction

BoolArray = npt.NDArray[np.bool_]


class AbortTracker:
    """The state of all transactions after the last batch passed to `discard`.

    Source: Kafka CleanedTransactionMetadata.
    """

    def __init__(self) -> None:
        # A heap by first offset; the running number keeps transactions with equal offsets in the order of `add`.
        self._pending: list[tuple[int, int, AbortedTransaction]] = []
        self._added = 0
        self._aborted: dict[int, AbortedTransaction] = {}
        self._observed: set[int] = set()
        self._committed: set[int] = set()

    def __deepcopy__(self, _: object) -> AbortTracker:
        # Transactions are values; copying them, too, would take longer than cleaning a small partition.
        found = AbortTracker()
        found._pending, found._added, found._aborted = self._pending[:], self._added, self._aborted.copy()
        found._observed, found._committed = self._observed.copy(), self._committed.copy()
        return found

    def add(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Add aborted transactions from a transaction index. Adding one twice does no harm."""
        for transaction in transactions:
            heapq.heappush(self._pending, (transaction.first_offset, self._added, transaction))
            self._added += 1

    def discard(self, batches: BatchRows) -> tuple[BoolArray, list[AbortedTransaction]]:
        """Decide about the next batches (BATCH_ROW[batches]) in log order.

        Returns:
            bool[batches]: True for data of an aborted transaction, and for markers of transactions without data in this
            clean; and the aborted transactions whose marker stays because they had data, for the new transaction index.
        """
        result = np.zeros(batches.size, np.bool_)
        kept: list[AbortedTransaction] = []
        if not (batches["attributes"] & (CONTROL | TRANSACTIONAL)).any():  # as in most logs
            return result, kept
        control = is_control(batches)
        relevant = np.flatnonzero(control | is_transactional_data(batches))
        columns = ("last_offset", "producer_id", "control_type", "record_count")
        rows = zip(
            relevant.tolist(),
            control[relevant].tolist(),
            *(batches[c][relevant].tolist() for c in columns),
            strict=True,
        )
        for at, is_marker, last_offset, producer, kind, records in rows:
            self._consume(last_offset)
            if is_marker:
                result[at] = records == 0 or self._ends(producer, kind, kept)
            elif producer in self._aborted:
                self._observed.add(producer)
                result[at] = True
            else:
                self._committed.add(producer)
        return result, kept

    def _consume(self, last_offset: int) -> None:
        while self._pending and self._pending[0][0] <= last_offset:
            transaction = heapq.heappop(self._pending)[2]
            self._aborted.setdefault(transaction.producer_id, transaction)

    def _ends(self, producer: int, kind: int, kept: list[AbortedTransaction]) -> bool:
        if kind == ControlType.ABORT:
            transaction = self._aborted.pop(producer, None)
            observed = producer in self._observed
            self._observed.discard(producer)
            if transaction is None or not observed:
                return True
            kept.append(transaction)
            return False
        if kind == ControlType.COMMIT:
            seen = producer in self._committed
            self._committed.discard(producer)
            return not seen
        return False
