"""Checks a producer's batches as a leader, assigns their offsets, and recompresses them if the config requires it.

In most batches only a few header fields change (*in place*). A batch in another format or codec than the log's, or with
gaps in its offsets, is rebuilt from its records.

The checks run in Kafka's order, and fail with Kafka's errors. Source: Kafka LogValidator, UnifiedLog.
"""

from __future__ import annotations

import ctypes
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

import crc32c
import numpy as np
import numpy.typing as npt

from cordwood.common.config import LONG_MAX
from cordwood.common.errors import (
    BatchProblem,
    CorruptRecordError,
    DataError,
    IllegalArgumentError,
    InvalidRecordError,
    KafkaError,
    RecordProblem,
    RecordValidationError,
    Rejection,
    UnsupportedForMessageFormatError,
)
from cordwood.common.types import NONE, Codec, TimestampType
from cordwood.kernels import encode, validate
from cordwood.kernels.decode import DONE, MISSING_RECORDS, PROBLEMS, RECORD_OVERRUN
from cordwood.kernels.layout import (
    ATTRIBUTES_AT,
    BASE_OFFSET_AT,
    BATCH_ROW,
    CODEC_MASK,
    CONTROL,
    CRC_AT,
    CRC_START,
    DELETE_HORIZON,
    HEADER,
    LEADER_EPOCH_AT,
    LEGACY_ATTRIBUTES_AT,
    LEGACY_CRC_AT,
    LEGACY_CRC_START,
    LEGACY_HEADER,
    LEGACY_TIMESTAMP_AT,
    LOG_APPEND_TIME,
    MAGIC_AT,
    MAGIC_END,
    MAX_TIMESTAMP_AT,
    MIN_SIZE_FIELD,
    PREFIX,
    RECORD_ROW,
    TRANSACTIONAL,
    RecordRows,
    U8Array,
)
from cordwood.live.environment import LogConfig
from cordwood.live.producer_state import AppendOrigin
from cordwood.record.batch import Batch, encode_message_set, seal
from cordwood.record.columns import BatchWindow, RecordColumns, decode
from cordwood.record.compression import compress, decompress_stream
from cordwood.record.record import Record, encode_record, to_records

_c_char = ctypes.c_char
_LONG, _INT, _SHORT, _UINT = Struct(">q"), Struct(">i"), Struct(">h"), Struct(">I")
#: The attribute bits that are kept when attributes change.
_KNOWN_ATTRIBUTES = CODEC_MASK | TRANSACTIONAL | CONTROL | DELETE_HORIZON
#: Largest size of a batch, and of its decompressed records.
_INT_MAX = 2**31 - 1


def read_batches(data: bytes | bytearray) -> Iterator[Batch]:
    """Yield the headers of the batches in a buffer, without a partial batch at the end.

    The checksums are not computed: `computed_crc` equals `crc`. A wrapper (compressed, magic 0 and 1) has no base
    offset.

    Raises:
        CorruptRecordError, IllegalArgumentError: a size or a magic is impossible.
    """
    at, end = 0, len(data)
    while end - at >= PREFIX.size:
        size_field = _INT.unpack_from(data, at + PREFIX.size - 4)[0]
        if size_field < MIN_SIZE_FIELD:
            raise CorruptRecordError(
                f"Found record size {size_field} smaller than minimum record overhead ({MIN_SIZE_FIELD})."
            )
        if end - at < MAGIC_END:
            return
        magic = data[at + MAGIC_AT]
        if magic > 2:
            raise CorruptRecordError(f"Invalid magic found in record: {magic}")
        size = size_field + PREFIX.size
        if size > _INT_MAX:
            raise IllegalArgumentError(f"a batch of {size} bytes is more than {_INT_MAX}")
        if size > end - at:
            return
        yield _header(data, at, size, magic)
        at += size


def _header(data: bytes | bytearray, at: int, size: int, magic: int) -> Batch:
    if magic == 2:
        # The size may be below that of a header; `check_crc` refuses such a batch.
        header = data[at : at + min(size, HEADER.size)].ljust(HEADER.size, b"\0")
        offset, _, leader_epoch, _, crc, attributes, delta, base_timestamp, max_timestamp, *producer, count = (
            HEADER.unpack(header)
        )
        id, epoch, sequence = producer
        return Batch(
            *(at, size, offset, offset + delta, base_timestamp, max_timestamp, id, leader_epoch, sequence, count),
            *(crc, crc, attributes, epoch, magic),
        )
    offset, _, crc, _, attributes = LEGACY_HEADER.unpack_from(data, at)
    attributes &= 0xFF
    timestamp = NONE
    if magic == 1 and size >= LEGACY_TIMESTAMP_AT + 8:
        timestamp = _LONG.unpack_from(data, at + LEGACY_TIMESTAMP_AT)[0]
    wrapper = attributes & CODEC_MASK != 0
    first, count = (NONE, NONE) if wrapper else (offset, 1)
    return Batch(
        *(at, size, first, offset, timestamp, timestamp, NONE, NONE, NONE, count, crc, crc, attributes, NONE, magic)
    )


def check_crc(data: bytes | bytearray, batch: Batch) -> None:
    """Compare a batch's checksum with its bytes.

    Raises:
        CorruptRecordError: the checksum differs, or the batch is too small for a header.
    """
    if batch.magic == 2 and batch.size_bytes < HEADER.size:
        raise CorruptRecordError(
            f"Record batch is corrupted (the size {batch.size_bytes} is smaller than the minimum allowed overhead "
            f"{HEADER.size})"
        )
    view = memoryview(data)[batch.position : batch.position + batch.size_bytes]
    if batch.magic == 2:
        computed = crc32c.crc32c(view[CRC_START:])
    else:
        computed = zlib.crc32(view[LEGACY_CRC_START:])
    if computed != batch.crc:
        raise CorruptRecordError(
            f"Record is corrupt (stored crc = {batch.crc}, computed crc = {computed}) at offset {batch.last_offset}"
        )


class Validated(NamedTuple):
    """Batches in the form in which the log stores them.

    Attributes:
        data: bytes of the batches; empty without a record.
        max_timestamp: largest timestamp of the records; with LogAppendTime, now.
    """

    data: bytearray
    batches: list[Batch]
    last_offset: int
    max_timestamp: int


class _Arrays(threading.local):
    """Working arrays of kernels, allocated once per thread."""

    def __init__(self) -> None:
        self.rows = np.empty(1, RECORD_ROW)
        self.told = np.empty(validate.TOLD, np.int64)
        self.limits = np.empty(validate.LIMITS, np.int64)


_arrays = _Arrays()


def assign_plain(
    data: bytearray, config: LogConfig, offset: int, leader_epoch: int, now_ms: int
) -> tuple[Batch, int] | None:
    """Assign offsets to the single batch of a client's append, if it needs no other change, as is usual.

    Args:
        data: the append; changed in place.

    Returns:
        the new header, and the sent leader epoch; None if nothing was changed, because `Leader.validate` must decide.
    """
    size = len(data)
    if not HEADER.size <= size <= config.max_message_bytes or config.log_append_time or config.codec:
        return None
    told, limits, rows = _arrays.told, _limits(config, now_ms), _arrays.rows
    address = ctypes.addressof(_c_char.from_buffer(data))
    if not validate.assign_plain(address, size, offset, leader_epoch, limits, config.compact, rows, told):
        return None
    sent_leader_epoch, *fields = told.tolist()
    return Batch._make(fields), sent_leader_epoch


def encode_plain(
    record: Record, config: LogConfig, offset: int, leader_epoch: int, now_ms: int
) -> tuple[bytearray, Batch] | None:
    """Encode a record without a producer as a batch at an offset; `assign_plain` would produce the same bytes.

    Returns:
        the batch and its header; None if the log would have to change the record or refuse it.
    """
    timestamp = record.timestamp
    body = encode_record(record, base_offset=record.offset, base_timestamp=timestamp)
    size = HEADER.size + len(body)
    is_plain = size <= config.max_message_bytes and not config.log_append_time and not config.codec
    if not is_plain or (config.compact and record.key is None):
        return None
    age = now_ms - timestamp
    if timestamp != NONE and (age > config.timestamp_before_max_ms or -age > config.timestamp_after_max_ms):
        return None
    fields = (0, 0, timestamp, timestamp, NONE, NONE, NONE, 1)
    data = bytearray(HEADER.pack(offset, size - PREFIX.size, leader_epoch, 2, 0, *fields))
    data += body
    crc = crc32c.crc32c(memoryview(data)[CRC_START:])
    _UINT.pack_into(data, CRC_AT, crc)
    return data, Batch(
        *(0, size, offset, offset, timestamp, timestamp, NONE, leader_epoch, NONE, 1, crc, crc, 0, NONE, 2)
    )


def _limits(config: LogConfig, now_ms: int) -> npt.NDArray[np.int64]:
    """Return the limits of timestamps in the form that `check_records` expects."""
    limits = _arrays.limits
    limits[validate.NOW] = now_ms
    limits[validate.BEFORE_MAX] = config.timestamp_before_max_ms
    limits[validate.AFTER_MAX] = config.timestamp_after_max_ms
    return limits


@dataclass(frozen=True, slots=True)
class Leader:
    """Validates batches as a leader does.

    Attributes:
        leader_epoch: epoch of this leader; written into each batch.
        magic: format of the log; only tests of old logs pass a value other than 2.
    """

    config: LogConfig
    origin: AppendOrigin
    leader_epoch: int
    now_ms: int
    magic: int = 2

    def validate(self, data: bytearray, batches: Sequence[Batch], offset: int) -> Validated:
        """Check batches, and assign offsets from `offset` on to their records.

        Args:
            data: bytes of the batches; changed in place if that is enough.
            batches: headers of the batches, whose checksums are already verified.

        Raises:
            InvalidRecordError, RecordValidationError, CorruptRecordError, UnsupportedForMessageFormatError,
            IllegalArgumentError, KafkaError: in the same cases as Kafka's LogValidator.
        """
        first = batches[0]
        source = next((batch.codec for batch in reversed(batches) if batch.attributes & CODEC_MASK), Codec.NONE)
        target = source if self.config.codec is None else self.config.codec
        if len(batches) > 1 and (first.magic == 2 or source is not Codec.NONE):
            raise InvalidRecordError("Compressed outer record has more than one batch")
        in_place = self._is_in_place(batches, source, target)
        is_partial = in_place and first.magic == 2
        needs_order = self.magic > 0 and (source, target) != (Codec.NONE, Codec.NONE)
        next_offset, largest = offset, NONE
        ends = []
        for batch in batches:
            self._check_batch(batch, first)
            count, max_timestamp, has_gaps = self._check_records(data, batch, is_partial=is_partial)
            in_place = in_place and not (has_gaps and needs_order)
            next_offset += count
            largest = max(largest, max_timestamp)
            ends.append((next_offset - 1, max_timestamp))
        if self.config.log_append_time and not (in_place and self.magic == 0):
            largest = self.now_ms
        elif self.magic == 0:
            largest = NONE
        if in_place:
            assigned = [self._assign(data, batch, *end) for batch, end in zip(batches, ends, strict=True)]
            return Validated(data, assigned, next_offset - 1, largest)
        if is_partial and first.attributes & CODEC_MASK:
            # Kafka has skipped the records' keys and values, and so cannot rebuild the batch.
            raise KafkaError("the offsets of the records of a compressed batch have gaps")
        self._check_producer(first)
        if next_offset == offset and self.config.log_append_time:
            raise KafkaError("a batch without records cannot be built anew with the time of its append")
        data = self._rebuild(data, batches, offset, target) if next_offset > offset else bytearray()
        return Validated(data, list(read_batches(data)), next_offset - 1, largest)

    def _is_in_place(self, batches: Sequence[Batch], source: Codec, target: Codec) -> bool:
        """Return whether only headers change, provided that the offsets of the records have no gaps."""
        first = batches[0]
        if source is target is Codec.NONE:
            return all(batch.magic == self.magic for batch in batches)
        if source is Codec.NONE and first.is_control:
            return True
        return source is target and first.magic == self.magic and self.magic > 0

    # ---- checks ------------------------------------------------------------------------------------------------------

    def _check_batch(self, batch: Batch, first: Batch) -> None:
        if batch.magic != first.magic:
            raise InvalidRecordError(
                f"Batch magic {batch.magic} is not the same as the first batch's magic byte {first.magic}",
                Rejection.MAGIC,
            )
        if self.origin is AppendOrigin.CLIENT and batch.magic == 2:
            span = batch.last_offset - batch.base_offset + 1
            if span <= 0:
                raise InvalidRecordError(
                    f"Batch has an invalid offset range: [{batch.base_offset}, {batch.last_offset}]",
                    Rejection.OFFSET_OR_SEQUENCE,
                )
            if batch.record_count <= 0:
                raise InvalidRecordError(
                    f"Invalid reported count for record batch: {batch.record_count}", Rejection.OFFSET_OR_SEQUENCE
                )
            if span != batch.record_count:
                raise InvalidRecordError(
                    f"Inconsistent batch offset range [{batch.base_offset}, {batch.last_offset}] and count of records "
                    f"{batch.record_count}",
                    Rejection.OFFSET_OR_SEQUENCE,
                )
            if batch.is_control:
                raise InvalidRecordError(
                    "Clients are not allowed to write control records", Rejection.OFFSET_OR_SEQUENCE
                )
            if batch.producer_id >= 0 and batch.base_sequence < 0:
                raise InvalidRecordError(
                    f"Invalid sequence number {batch.base_sequence} in record batch with producerId "
                    f"{batch.producer_id}",
                    Rejection.OFFSET_OR_SEQUENCE,
                )
        if self.magic < 2 and batch.is_transactional:
            raise UnsupportedForMessageFormatError(
                f"Transactional records cannot be used with magic version {self.magic}"
            )
        if self.magic < 2 and batch.producer_id >= 0:
            raise UnsupportedForMessageFormatError(f"Idempotent records cannot be used with magic version {self.magic}")

    def _check_records(self, data: bytearray, batch: Batch, *, is_partial: bool) -> tuple[int, int, bool]:
        """Return a batch's number of records, the largest timestamp, and whether the offsets have gaps."""
        if batch.magic < 2:
            return self._check_messages(data, batch)
        if batch.record_count == 0:
            return 0, NONE, False  # the body is ignored
        is_compressed = batch.attributes & CODEC_MASK != 0
        body, failure = _body(data, batch)
        limits = _limits(self.config, self.now_ms)
        address = ctypes.addressof(ctypes.c_char.from_buffer(data, batch.position))

        def check(rows: RecordRows) -> tuple[int, int, int, int]:
            partial = is_partial and is_compressed
            return validate.check_records(address, body.ctypes.data, body.size, partial, limits, rows)  # type: ignore[no-any-return]

        status, count, largest, found = check(_arrays.rows)
        if failure is not None and status in (DONE, MISSING_RECORDS, RECORD_OVERRUN):
            raise KafkaError(f"Failed to decompress record stream: {failure}") from failure
        if status != DONE:
            raise InvalidRecordError(f"Found invalid record structure: {PROBLEMS[status]} (record {count})")
        if self._may_refuse(batch, found):
            rows = np.empty(count, RECORD_ROW)
            check(rows)
            self._refuse(batch, zip(rows["key_size"] >= 0, rows["timestamp"].tolist(), rows["offset"], strict=True))
        return int(count), int(largest), bool(found & validate.GAPS)

    def _may_refuse(self, batch: Batch, found: int) -> bool:
        is_late = self.config.log_append_time or found & validate.NO_TIMESTAMP
        return bool(
            (found & validate.NULL_KEY and self.config.compact)
            or (is_late and batch.attributes & LOG_APPEND_TIME)
            or (found & validate.BAD_TIMESTAMP and not self.config.log_append_time)
        )

    def _check_messages(self, data: bytearray, batch: Batch) -> tuple[int, int, bool]:
        records = read_records(data, batch)
        self._refuse(batch, ((record.key is not None, record.timestamp, record.offset) for record in records))
        largest = max([NONE, *(record.timestamp for record in records)])
        first = batch.last_offset + 1 - len(records)
        has_gaps = batch.codec is not Codec.NONE and any(r.offset != first + i for i, r in enumerate(records))
        return len(records), largest if batch.magic else NONE, has_gaps

    def _refuse(self, batch: Batch, records: Iterable[tuple[bool, int, int]]) -> None:
        """Raise a RecordValidationError if the topic's configs forbid a record.

        Args:
            records: for each, whether it has a key, its timestamp and its offset.
        """
        problems, timestamps = [], False
        config = self.config
        for index, (has_key, timestamp, offset) in enumerate(records):
            if config.compact and not has_key:
                problem = f"Compacted topic cannot accept message without key (record {index})"
                problems.append(RecordProblem(index, problem, Rejection.NO_KEY))
                continue
            if not config.log_append_time and timestamp != NONE:
                if not self._is_out_of_range(timestamp):
                    continue
                lowest = self.now_ms - config.timestamp_before_max_ms
                highest = self.now_ms + config.timestamp_after_max_ms
                problem = (
                    f"Timestamp {timestamp} of message with offset {offset} is out of range. "
                    f"The timestamp should be within [{lowest}, {highest}]"
                )
            elif batch.timestamp_type is TimestampType.LOG_APPEND_TIME:
                problem = (
                    f"Invalid timestamp type in message (record {index}). Producer should not set timestamp type "
                    "to LogAppendTime"
                )
            else:
                continue
            timestamps = True
            problems.append(RecordProblem(index, problem))
        if problems:
            raise RecordValidationError(tuple(problems), timestamps=timestamps)

    def _is_out_of_range(self, timestamp: int) -> bool:
        age = _as_long(self.now_ms - timestamp)
        return age > self.config.timestamp_before_max_ms or _as_long(-age) > self.config.timestamp_after_max_ms

    # ---- in place ----------------------------------------------------------------------------------------------------

    def _assign(self, data: bytearray, batch: Batch, last_offset: int, max_timestamp: int) -> Batch:
        """Change a batch's header in place; return the new header."""
        at = batch.position
        late = self.config.log_append_time
        timestamp = self.now_ms if late else max_timestamp
        changes = timestamp != batch.max_timestamp or late != bool(batch.attributes & LOG_APPEND_TIME)
        wanted = batch.attributes
        if changes:
            wanted = wanted & _KNOWN_ATTRIBUTES | (LOG_APPEND_TIME if late else 0)
        if batch.magic < 2:
            self._assign_message(data, batch, last_offset, timestamp if changes else None, wanted)
            return _header(data, at, batch.size_bytes, batch.magic)
        base_offset, crc = last_offset - (batch.last_offset - batch.base_offset), batch.crc
        _LONG.pack_into(data, at + BASE_OFFSET_AT, base_offset)
        _INT.pack_into(data, at + LEADER_EPOCH_AT, self.leader_epoch)
        if changes:
            _SHORT.pack_into(data, at + ATTRIBUTES_AT, wanted)
            _LONG.pack_into(data, at + MAX_TIMESTAMP_AT, timestamp)
            crc = crc32c.crc32c(memoryview(data)[at + CRC_START : at + batch.size_bytes])
            _UINT.pack_into(data, at + CRC_AT, crc)
        return Batch(
            *(at, batch.size_bytes, base_offset, last_offset, batch.base_timestamp, timestamp, batch.producer_id),
            *(self.leader_epoch, batch.base_sequence, batch.record_count, crc, crc, wanted, batch.producer_epoch, 2),
        )

    @staticmethod
    def _assign_message(data: bytearray, batch: Batch, last_offset: int, timestamp: int | None, wanted: int) -> None:
        at = batch.position
        _LONG.pack_into(data, at + BASE_OFFSET_AT, last_offset)
        if batch.magic == 1 and timestamp is not None:
            data[at + LEGACY_ATTRIBUTES_AT] = wanted
            _LONG.pack_into(data, at + LEGACY_TIMESTAMP_AT, timestamp)
            covered = memoryview(data)[at + LEGACY_CRC_START : at + batch.size_bytes]
            _UINT.pack_into(data, at + LEGACY_CRC_AT, zlib.crc32(covered))

    # ---- rebuilt -----------------------------------------------------------------------------------------------------

    def _rebuild(self, data: bytearray, batches: Sequence[Batch], offset: int, target: Codec) -> bytearray:
        if self.magic < 2:
            return self._rebuild_messages(data, batches, offset, target)
        pieces = [piece for batch in batches for piece in _columns(data, [batch])]
        first, header = batches[0], np.zeros(1, BATCH_ROW)
        timestamps = np.concatenate([piece.rows["timestamp"] for piece in pieces])
        if np.any(timestamps < NONE):
            raise IllegalArgumentError(f"Invalid negative timestamp {int(timestamps.min())}")
        base_timestamp = int(timestamps[0])
        header["base_offset"], header["base_timestamp"] = offset, base_timestamp
        bodies, count = [], 0
        for piece in pieces:
            piece.rows["offset"] = np.arange(offset + count, offset + count + piece.rows.size)
            bodies.append(_encode(piece, header))
            count += piece.rows.size
        body = b"".join(bodies)
        attributes = int(target) | (LOG_APPEND_TIME if self.config.log_append_time else 0)
        attributes |= first.attributes & TRANSACTIONAL if first.magic == 2 else 0
        if target is not Codec.NONE:
            body = compress(target, body, level=self.config.level)
        max_timestamp = self.now_ms if self.config.log_append_time else int(timestamps.max(initial=NONE))
        size = HEADER.size - PREFIX.size + len(body)
        producer = first.producer_id, first.producer_epoch, first.base_sequence
        fields = (self.leader_epoch, 2, 0, attributes, count - 1, base_timestamp, max_timestamp, *producer, count)
        return bytearray(seal(HEADER.pack(offset, size, *fields) + body))

    @staticmethod
    def _check_producer(first: Batch) -> None:
        """Check the producer of rebuilt batches, as Kafka's builder does."""
        if first.producer_id == NONE:
            if first.is_transactional:
                raise IllegalArgumentError("Cannot write transactional messages without a valid producer ID")
        elif first.producer_epoch == NONE:
            raise IllegalArgumentError("Invalid negative producer epoch")
        elif first.base_sequence < 0:
            raise IllegalArgumentError("Invalid negative sequence number used")

    def _rebuild_messages(self, data: bytearray, batches: Sequence[Batch], offset: int, target: Codec) -> bytearray:
        if self.magic < target.magic_min:
            raise IllegalArgumentError(f"ZStandard compression is not supported for magic {self.magic}")
        records = [record for batch in batches for record in read_records(data, batch)]
        if any(record.headers for record in records):
            raise IllegalArgumentError(f"Magic v{self.magic} does not support record headers")
        if any(record.timestamp < NONE for record in records):
            raise IllegalArgumentError("Invalid negative timestamp")
        late = self.config.log_append_time and self.magic == 1
        placed = []
        for at, record in enumerate(records, offset):
            # As in Kafka's builder: with LogAppendTime the messages in a wrapper have the append time, too.
            timestamp = self.now_ms if late else record.timestamp if self.magic else NONE
            placed.append(Record(at, timestamp, record.key, record.value))
        kind = TimestampType.LOG_APPEND_TIME if late else TimestampType.CREATE_TIME
        append_time = self.now_ms if late else NONE
        return bytearray(
            encode_message_set(self.magic, placed, codec=target, timestamp_type=kind, append_time=append_time)
        )


def _as_long(number: int) -> int:
    """Return a number as Java's 64 bits represent it."""
    return (number + LONG_MAX + 1) % (1 << 64) - LONG_MAX - 1


def _body(data: bytearray, batch: Batch) -> tuple[U8Array, DataError | None]:
    """Return the records of a batch of magic 2 as bytes; if decompression fails, the bytes so far and the error."""
    view = memoryview(data)[batch.position + HEADER.size : batch.position + batch.size_bytes]
    if not batch.attributes & CODEC_MASK:
        return np.frombuffer(view, np.uint8), None
    body, failure = bytearray(), None
    try:
        for piece in decompress_stream(batch.codec, view, magic=2, max_bytes=_INT_MAX):
            body += piece
    except DataError as error:
        failure = error
    return np.frombuffer(body, np.uint8), failure


def records_of(data: bytes | bytearray, batches: Sequence[Batch]) -> Iterator[Record]:
    """Yield the records of adjacent batches in a buffer, in order.

    Raises:
        InvalidRecordError, CorruptRecordError: the records of a batch cannot be read; all earlier batches were yielded.
    """
    for columns in _columns(data, batches):
        yield from to_records(columns.data, columns.rows)


def read_records(data: bytes | bytearray, batch: Batch) -> list[Record]:
    """Return the records of one batch in a buffer; raises the same errors as `records_of`."""
    return list(records_of(data, [batch]))


def _columns(data: bytes | bytearray, batches: Sequence[Batch]) -> Iterator[RecordColumns]:
    first, last = batches[0], batches[-1]
    view = np.frombuffer(bytes(memoryview(data)[first.position : last.position + last.size_bytes]), np.uint8)
    rows = np.array(batches, BATCH_ROW)
    rows["position"] -= first.position

    def read(position: int, size_bytes: int) -> Iterator[bytes]:
        yield view[position : position + size_bytes].tobytes()

    try:
        yield from decode(BatchWindow(0, view, rows, read), max_batch_bytes=_INT_MAX)
    except DataError as error:
        if error.kind is BatchProblem.INNER_CRC:
            raise CorruptRecordError(str(error), Rejection.CHECKSUM) from error
        raise InvalidRecordError(str(error)) from error


def _encode(columns: RecordColumns, header: np.ndarray[tuple[int], np.dtype[np.void]]) -> bytes:
    """Encode the records of a piece, relative to a header."""
    rows = np.ascontiguousarray(columns.rows)
    keep, chosen = np.ones(rows.size, bool), np.ones(1, bool)
    index_of = np.zeros(int(rows["batch"].max(initial=0)) + 1, np.int64)
    address = columns.data.ctypes.data
    target = np.empty(encode.measure_bodies(address, rows, keep, index_of, chosen), np.uint8)
    ends = np.zeros((2, 1), np.int64)
    size = encode.encode_bodies(
        address, rows, keep, index_of, chosen, header, target.ctypes.data, False, ends[0], ends[1]
    )
    return target[:size].tobytes()
