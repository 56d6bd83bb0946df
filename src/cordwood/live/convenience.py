"""Short calls for a live log: append pairs, read records, write transactions as `with` blocks.

For a log without other replicas: appended records are readable at once. An append's keys and values become records, cut
into batches, or are refused with a reason.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cordwood.cleaning.rules.precedence import KEEP_RULE
from cordwood.common.arguments import check_number, shown
from cordwood.common.config import LONG_MAX
from cordwood.common.errors import InvalidTxnStateError, LogError, RecordTooLargeError
from cordwood.common.types import NONE
from cordwood.fs.base import LocalFileSystem
from cordwood.kernels.layout import HEADER
from cordwood.live import reading
from cordwood.live.local_log import FetchData
from cordwood.live.producer_state import MAX_EPOCH, NO_GUARD, AppendOrigin
from cordwood.live.unified_log import UnifiedLog
from cordwood.live.validation import check_crc, read_batches, records_of
from cordwood.record.batch import MAX_SEQUENCE, Batch, Marker, encode_batch, encode_marker
from cordwood.record.record import Header, Record, encode_record
from cordwood.storage.index.history import KeyRecord
from cordwood.storage.index.keyed_log import KeyedLog

# ---- pairs of key and value ------------------------------------------------------------------------------------------

Text = str | bytes | None
Headers = Mapping[str, Text] | Iterable[tuple[str, Text]]
#: Keys and values, perhaps with headers; a value of None deletes its key.
Pairs = Mapping[Any, Text] | Iterable[tuple[Text, Text] | tuple[Text, Text, Headers]]


def to_records(pairs: Pairs, timestamp_ms: int) -> list[Record]:
    """Return the records of an append, with offsets from 0 on.

    Raises:
        TypeError, ValueError: a key, value, header or timestamp is not valid.
    """
    check_number("timestamp_ms", timestamp_ms, NONE, LONG_MAX)
    if isinstance(pairs, str | bytes | bytearray | memoryview) or not isinstance(pairs, Iterable):
        raise TypeError(f"append takes a mapping, or pairs of key and value, not {shown(pairs)}")
    records = []
    for at, pair in enumerate(pairs.items() if isinstance(pairs, Mapping) else pairs):
        if not isinstance(pair, tuple | list) or len(pair) not in (2, 3):
            raise TypeError(f"record {at} is not (key, value) or (key, value, headers), but {shown(pair)}")
        key, value = pair[0], pair[1]
        if not (key is None or type(key) is bytes):
            key = _encoded(key, f"the key of record {at}")
        if not (value is None or type(value) is bytes):
            value = _encoded(value, f"the value of record {at}")
        headers = tuple(_headers(pair[2], at)) if len(pair) == 3 else ()
        records.append(Record(at, timestamp_ms, key, value, headers))
    return records


def _headers(headers: object, at: int) -> Iterator[Header]:
    if isinstance(headers, str | bytes) or not isinstance(headers, Iterable):
        raise TypeError(f"the headers of record {at} are a mapping, or pairs of name and value, not {shown(headers)}")
    for header in headers.items() if isinstance(headers, Mapping) else headers:
        if not isinstance(header, tuple | list) or len(header) != 2 or not isinstance(header[0], str):
            raise TypeError(f"a header of record {at} is not a name, which is text, and a value, but {shown(header)}")
        yield header[0], _encoded(header[1], f"the header {header[0]!r} of record {at}")


def _encoded(text: object, what: str) -> bytes | None:
    match text:
        case None | bytes():
            return text
        case str():
            return text.encode()
        case bytearray() | memoryview():
            return bytes(text)
    raise TypeError(f"{what} is text, bytes or None, not {shown(text)}")


def batches_of(records: list[Record], encode: Callable[[list[Record]], bytes], limit: int) -> Iterator[bytes]:
    """Yield batches within a limit of bytes: a single batch if possible.

    Args:
        records: at least one record, with offsets from 0 on.
        encode: encodes some of the records as a batch; called for a batch only after the previous batch was used.

    Raises:
        RecordTooLargeError: a record alone is above the limit; no batch was yielded.
    """
    if sum([len(record.key or b"") + len(record.value or b"") for record in records]) <= limit:
        batch = encode(records)
        if len(batch) <= limit:
            yield batch
            return
    for first, end in _cuts(records, limit):
        yield encode(records[first:end])


def _cuts(records: list[Record], limit: int) -> list[tuple[int, int]]:
    """Return [first, end) of the records of each batch, with as many records as certainly fit."""
    cuts, first, taken = [], 0, HEADER.size
    for at, record in enumerate(records):
        # Relative to the first record of all, a record's offset takes at least as many bytes as within its batch.
        size = len(encode_record(record, base_offset=0, base_timestamp=record.timestamp))
        if taken + size > limit:
            _check_alone(record, at, limit)
            if at > first:
                cuts.append((first, at))
            first, taken = at, HEADER.size
        taken += size
    return [*cuts, (first, len(records))]


def _check_alone(record: Record, at: int, limit: int) -> None:
    size = HEADER.size + len(encode_record(record, base_offset=record.offset, base_timestamp=record.timestamp))
    if size > limit:
        raise RecordTooLargeError(
            f"Record {at} of the append takes {size} bytes as a batch, which is above {limit}: the smaller of "
            "max.message.bytes and segment.bytes."
        )


_READ_BYTES = 1 << 20
#: Adjacent batches up to this many bytes are decoded in one call; an append waits for at most one such call.
_RUN_BYTES = 1 << 16
_FOLLOW_SECONDS = 0.05


def append(log: UnifiedLog, pairs: Pairs, timestamp_ms: int | None, *, producer: Producing | None = None) -> int:
    """Append records; see `Log.append`."""
    records = to_records(pairs, log.now_ms() if timestamp_ms is None else timestamp_ms)
    if not records:
        return log.log_end_offset
    if producer is None:
        if len(records) == 1 and (offset := log.append_record(records[0])) is not None:
            return offset
        producer = Producing(NONE, NONE)
    epoch, first_offset = log.leader_epochs.latest_epoch or 0, None
    limit = min(log.config.max_message_bytes, log.config.segment_bytes)
    for batch in batches_of(records, producer.batch, limit):
        info = log.append_as_leader(batch, epoch, guard=producer.guard)
        producer.has_appended(info.last_offset - info.first_offset + 1)
        first_offset = info.first_offset if first_offset is None else first_offset
        log.commit_all()
    assert first_offset is not None
    return first_offset


def get(log: UnifiedLog, fs: LocalFileSystem, key: bytes | str, *, last: bool) -> list[KeyRecord]:
    """Return the records of a key; see `Log.get`."""
    store = fs if log.remote is None else log.remote.beside(fs, log.directory)
    view = KeyedLog(log.directory, fs=store, live=True, log_start_offset=log.log_start_offset)
    view.ranks = KEEP_RULE.ranks
    return view.get(key, last=last)


@dataclass
class Producing:
    """The producer of an append: a transactional producer, or NONE."""

    producer_id: int
    epoch: int
    sequence: int = NONE
    guard: int = NO_GUARD
    has_begun: bool = False

    @classmethod
    def of(cls, log: UnifiedLog, producer_id: int, epoch: int) -> Producing:
        """Return a producer that continues after its last sequence in this log."""
        known = log.producers.of(producer_id)
        goes_on = known is not None and known.epoch == epoch and known.last_sequence != NONE
        sequence = (known.last_sequence + 1) % (MAX_SEQUENCE + 1) if known is not None and goes_on else 0
        guard = NO_GUARD
        if log.asks_for_verification:
            guard = log.maybe_start_transaction_verification(producer_id, sequence, epoch, supports_epoch_bump=True)
        return cls(producer_id, epoch, sequence, guard)

    def batch(self, records: list[Record]) -> bytes:
        """Return a batch of its next records, with offsets from 0 on."""
        if records[0].offset:  # not the first batch
            records = [replace(record, offset=at) for at, record in enumerate(records)]
        return encode_batch(
            records,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            transactional=self.producer_id != NONE,
        )

    def has_appended(self, count: int) -> None:
        """Advance the sequence by this number of appended records."""
        self.has_begun = True
        if self.sequence != NONE:
            self.sequence = (self.sequence + count) % (MAX_SEQUENCE + 1)

    def end(self, log: UnifiedLog, *, committed: bool) -> None:
        """Write a marker, with the coordinator epoch of the producer's last marker."""
        known = log.producers.of(self.producer_id)
        coordinator = 0 if known is None else max(known.coordinator_epoch, 0)
        marker = Marker(0, log.now_ms(), self.producer_id, self.epoch, committed, coordinator)
        log.append_as_leader(encode_marker(marker), log.leader_epochs.latest_epoch or 0, AppendOrigin.COORDINATOR)
        log.commit_all()


class Transaction:
    """An open transaction; see `Log.transaction`. Threads that append to it take turns."""

    def __init__(self, log: UnifiedLog, producing: Producing) -> None:
        self._log = log
        self._producing = producing
        self._has_ended = False
        #: Acquired before the log's lock, so that each batch gets the sequence that follows the previous batch.
        self._turn = threading.Lock()

    def append(self, pairs: Pairs, *, timestamp_ms: int | None = None) -> int:
        """Append records, which become readable once the transaction is committed; see `Log.append`.

        Raises:
            InvalidTxnStateError: the transaction has ended.
        """
        log, producing = self._log, self._producing
        with self._turn:
            if self._has_ended:
                raise InvalidTxnStateError(
                    f"the transaction of producer {producing.producer_id} in {log.name} has ended; begin another one "
                    "with log.transaction()"
                )
            return append(log, pairs, timestamp_ms, producer=producing)

    def end(self, *, committed: bool) -> None:
        """Write the marker, unless the transaction has no records."""
        with self._turn:
            self._has_ended = True
            if self._producing.has_begun:
                self._producing.end(self._log, committed=committed)


@contextlib.contextmanager
def transaction(log: UnifiedLog, producer_id: int, epoch: int) -> Iterator[Transaction]:
    """Begin a transaction that is committed at the end of the block; see `Log.transaction`."""
    check_number("producer_id", producer_id, 0, LONG_MAX)
    check_number("epoch", epoch, 0, MAX_EPOCH)
    with log.unchanged():
        _check_free(log, producer_id, epoch)
        begun = Transaction(log, Producing.of(log, producer_id, epoch))
        log.producers_in_use.add(producer_id)
    try:
        try:
            yield begun
        except BaseException:
            begun.end(committed=False)
            raise
        begun.end(committed=True)
    finally:
        log.producers_in_use.discard(producer_id)


def _check_free(log: UnifiedLog, producer_id: int, epoch: int) -> None:
    """Raise InvalidTxnStateError if the producer is in a transaction; abort an abandoned one with a lower epoch."""
    if producer_id in log.producers_in_use:
        raise InvalidTxnStateError(
            f"producer {producer_id} is in a transaction in {log.name} already; end that first, or take another "
            "producer_id"
        )
    known = log.producers.of(producer_id)
    if known is None or known.transaction_start == NONE:
        return
    if epoch <= known.epoch:
        raise InvalidTxnStateError(
            f"producer {producer_id} has left a transaction open in {log.name}, from offset {known.transaction_start} "
            f"on; log.transaction({producer_id}, epoch={known.epoch + 1}) aborts it and begins anew"
        )
    Producing(producer_id, epoch).end(log, committed=False)


def records(
    log: UnifiedLog,
    start: int | None,
    *,
    follow: bool = False,
    timeout_seconds: float | None = None,
    stop: threading.Event | None = None,
) -> Iterator[Record]:
    """Yield the committed records of a log; see `Log.records`."""
    at = log.log_start_offset if start is None else start
    stop, since = stop or threading.Event(), time.monotonic()
    while not stop.is_set():
        data, behind = log.read_committed(at, _READ_BYTES), at
        for run, end in _runs(data):
            if run:
                yield from (record for record in records_of(data.records, run) if record.offset >= at)
            behind = end
        if behind > at:
            at, since = behind, time.monotonic()
        elif follow and (timeout_seconds is None or time.monotonic() - since < timeout_seconds):
            log.check_open()
            stop.wait(_FOLLOW_SECONDS)
        else:
            return


def _runs(data: FetchData) -> Iterator[tuple[list[Batch], int]]:
    """Yield runs of adjacent committed batches from one read, each with the offset after it.

    A run may be empty. Batches before a damaged batch are yielded before its error is raised.
    """
    run: list[Batch] = []
    size, behind = 0, NONE
    try:
        for batch, is_committed in _batches(data):
            if run and (not is_committed or size + batch.size_bytes > _RUN_BYTES):
                yield run, behind
                run, size = [], 0
            if is_committed:
                run.append(batch)
                size += batch.size_bytes
            behind = batch.last_offset + 1
    except LogError:
        yield run, behind
        raise
    yield run, behind


def _batches(data: FetchData) -> Iterator[tuple[Batch, bool]]:
    """Yield each batch of a read, and whether it holds committed records."""
    aborted = sorted(data.aborted or (), key=lambda one: one.first_offset)
    open_ids: set[int] = set()
    for batch in read_batches(data.records):
        reading.give_way()
        check_crc(data.records, batch)
        while aborted and aborted[0].first_offset <= batch.last_offset:
            open_ids.add(aborted.pop(0).producer_id)
        if batch.is_control:
            open_ids.discard(batch.producer_id)
            yield batch, False
        else:
            yield batch, not (batch.is_transactional and batch.producer_id in open_ids)
