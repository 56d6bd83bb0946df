"""A live log for people: pairs in, records out, transactions as `with` blocks.

For a log that has no other replicas: what is appended is readable at once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cordwood.record.batch import MAX_SEQUENCE, encode_batch
from cordwood.record.control import Marker, encode_marker
from cordwood.record.record import Record
from cordwood.service import turns
from cordwood.service.local_log import FetchData
from cordwood.service.producer_state import NO_GUARD, AppendOrigin
from cordwood.service.unified_log import UnifiedLog
from cordwood.service.validation import read_batches, read_records
from cordwood.types import NONE

Text = str | bytes | None
#: Keys and values; a value that is None deletes its key.
Pairs = Mapping[Any, Text] | Iterable[tuple[Text, Text]]

_READ_BYTES = 1 << 20
_FOLLOW_SECONDS = 0.05


def append(log: UnifiedLog, pairs: Pairs, timestamp_ms: int, *, producer: Producing | None = None) -> int:
    """Append records as one batch; see `Log.append`."""
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    records = [Record(at, timestamp_ms, _encoded(key), _encoded(value)) for at, (key, value) in enumerate(items)]
    if not records:
        return log.log_end_offset
    epoch = log.leader_epochs.latest_epoch or 0
    if producer is None:
        info = log.append_as_leader(encode_batch(records, base_offset=0), epoch)
    else:
        info = log.append_as_leader(producer.batch(records), epoch, guard=producer.guard)
        producer.sequence = (producer.sequence + len(records)) % (MAX_SEQUENCE + 1)
    log.update_high_watermark(log.log_end_offset)
    return info.first_offset


def _encoded(text: Text) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


class Producing:
    """A producer in a transaction.

    Attributes:
        sequence: of its next record.
        guard: for the append that opens the transaction.
    """

    def __init__(self, log: UnifiedLog, producer_id: int, epoch: int) -> None:
        self.producer_id, self.epoch = producer_id, epoch
        known = log.producers.of(producer_id)
        goes_on = known is not None and known.epoch == epoch and known.last_sequence != NONE
        self.sequence = (known.last_sequence + 1) % (MAX_SEQUENCE + 1) if known is not None and goes_on else 0
        self.guard = NO_GUARD
        if log.asks_for_verification:
            self.guard = log.maybe_start_transaction_verification(
                producer_id, self.sequence, epoch, supports_epoch_bump=True
            )

    def batch(self, records: list[Record]) -> bytes:
        """A batch of the transaction."""
        return encode_batch(
            records,
            base_offset=0,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            transactional=True,
        )


class Transaction:
    """A transaction that is open; see `Log.transaction`."""

    def __init__(self, log: UnifiedLog, producer_id: int, epoch: int) -> None:
        self._log = log
        self._producing = Producing(log, producer_id, epoch)
        self._is_begun = False

    def append(self, pairs: Pairs, *, timestamp_ms: int | None = None) -> int:
        """Append records that count once the transaction is committed; see `Log.append`."""
        when = self._log.now_ms() if timestamp_ms is None else timestamp_ms
        before = self._log.log_end_offset
        first = append(self._log, pairs, when, producer=self._producing)
        self._is_begun = self._is_begun or self._log.log_end_offset > before
        return first

    def end(self, *, committed: bool) -> None:
        """Write the marker; a transaction without records has none."""
        if not self._is_begun:
            return
        log, producing = self._log, self._producing
        marker = Marker(0, log.now_ms(), producing.producer_id, producing.epoch, committed)
        epoch = log.leader_epochs.latest_epoch or 0
        log.append_as_leader(encode_marker(marker), epoch, AppendOrigin.COORDINATOR)
        log.update_high_watermark(log.log_end_offset)


@contextlib.contextmanager
def transaction(log: UnifiedLog, producer_id: int, epoch: int) -> Iterator[Transaction]:
    """A transaction that is committed at the end of the block; see `Log.transaction`."""
    begun = Transaction(log, producer_id, epoch)
    try:
        yield begun
    except BaseException:
        begun.end(committed=False)
        raise
    begun.end(committed=True)


def records(log: UnifiedLog, start: int | None, *, follow: bool) -> Iterator[Record]:
    """The committed records of a log; see `Log.records`."""
    at = log.log_start_offset if start is None else start
    while True:
        data = log.read_committed(at, _READ_BYTES)
        start_offset = at
        for record, behind in _committed(data):
            if record is not None and record.offset >= start_offset:
                yield record
            at = behind
        if at > start_offset:
            continue
        if follow:
            time.sleep(_FOLLOW_SECONDS)
        else:
            return


def _committed(data: FetchData) -> Iterator[tuple[Record | None, int]]:
    """The records of a read, each with the offset behind its batch; None for a batch that has none to show."""
    aborted = sorted(data.aborted or (), key=lambda one: one.first_offset)
    open_ids: set[int] = set()
    for batch in read_batches(data.records):
        turns.give_way()
        while aborted and aborted[0].first_offset <= batch.last_offset:
            open_ids.add(aborted.pop(0).producer_id)
        behind = batch.last_offset + 1
        if batch.is_control:
            open_ids.discard(batch.producer_id)
            yield None, behind
        elif batch.is_transactional and batch.producer_id in open_ids:
            yield None, behind
        else:
            yield None, behind
            for record in read_records(data.records, batch):
                yield record, behind
