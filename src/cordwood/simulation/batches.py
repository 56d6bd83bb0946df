"""Encode simulated records as batches, in parts that fit the active segment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cordwood.common.types import NONE
from cordwood.kernels.encode import RECORD_EXTRA_BYTES, encode_bodies, write_headers
from cordwood.kernels.layout import BATCH_ROW, HEADER, RECORD_ROW, TRANSACTIONAL, BatchRows
from cordwood.record.batch import MAX_SEQUENCE, Marker, encode_marker
from cordwood.record.record import write_varint
from cordwood.simulation.sizing.workload import KEY_BYTES, TOMBSTONE_BYTES

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
#: Returns how many bytes still fit the active segment.
Room = Callable[[], int]
#: The leader epoch of all batches.
LEADER_EPOCH = 0
_PRODUCER_ID, _PRODUCER_EPOCH = 1, 0


@dataclass(frozen=True, slots=True)
class Records:
    """Records to append, in order.

    Attributes:
        keys: int64[records], numbers not much larger than the count of keys.
        tombstones: bool[records].
        sizes: int64[records], encoded size in bytes, without a share of the batch header.
    """

    keys: Int64Array
    tombstones: BoolArray
    sizes: Int64Array

    @property
    def count(self) -> int:
        """Number of records."""
        return self.keys.size

    def part(self, own: slice) -> Records:
        """Return a slice of the records."""
        return Records(self.keys[own], self.tombstones[own], self.sizes[own])

    @classmethod
    def alike(cls, keys: Int64Array, tombstones: BoolArray, record_bytes: int) -> Records:
        """Make records of one size; only tombstones are smaller."""
        return cls(keys, tombstones, np.where(tombstones, TOMBSTONE_BYTES, record_bytes))


@dataclass(frozen=True, slots=True)
class Written:
    """Records that are appended together: consecutive offsets, all in one transaction or all outside transactions.

    Attributes:
        data: whole batches; the last part of a transaction ends with its marker.
    """

    data: bytes
    first_offset: int
    records: Records
    aborted: bool = False
    has_marker: bool = False

    @property
    def next_offset(self) -> int:
        """The offset after the last record, or after the marker."""
        return self.first_offset + self.records.count + self.has_marker


class BatchEncoder:
    """Encodes batches of one size; one producer with an id writes the transactions."""

    def __init__(self, batch_records: int) -> None:
        self._batch_records = batch_records
        self._sequence = 0

    def plain(self, offset: int, records: Records, now_ms: int, room: Room) -> Iterator[Written]:
        """Yield records outside transactions in parts; the caller appends each part before it takes the next.

        Args:
            room: upper limit of a part's size; a part has at least one batch.
        """
        yield from self._parts(offset, records, now_ms, room)

    def transaction(
        self, offset: int, records: Records, now_ms: int, room: Room, *, aborted: bool
    ) -> Iterator[Written]:
        """Yield a transaction of these records and its marker, in parts like `plain`."""
        marker = Marker(offset + records.count, now_ms, _PRODUCER_ID, _PRODUCER_EPOCH, committed=not aborted)
        end = encode_marker(marker, leader_epoch=LEADER_EPOCH)
        sequence, self._sequence = self._sequence, (self._sequence + records.count) % (MAX_SEQUENCE + 1)
        for part in self._parts(offset, records, now_ms, room, sequence, end):
            yield replace(part, aborted=aborted)

    def _parts(
        self, offset: int, records: Records, now_ms: int, room: Room, sequence: int = NONE, marker: bytes = b""
    ) -> Iterator[Written]:
        data, starts = encode(offset, records, self._batch_records, now_ms, sequence)
        if marker:
            # The marker is a batch of its own and holds none of `records`.
            data, starts = data + marker, np.append(starts, starts[-1] + len(marker))
        batches, first = starts.size - 1, 0
        while first < batches:
            behind = int(np.searchsorted(starts, starts[first] + room(), side="right")) - 1
            behind = max(behind, first + 1)
            own = slice(first * self._batch_records, behind * self._batch_records)
            yield Written(
                data[starts[first] : starts[behind]],
                offset + min(own.start, records.count),
                records.part(own),
                has_marker=bool(marker) and behind == batches,
            )
            first = behind


def encode(
    first_offset: int, records: Records, batch_records: int, now_ms: int, sequence: int = NONE
) -> tuple[bytes, Int64Array]:
    """Encode records as batches; the last batch may be smaller.

    Args:
        records: at least one.
        sequence: sequence number of the first record, or NONE outside a transaction.

    Returns:
        the batches, and int64[batches + 1]: the start of each batch, then the end of the last.
    """
    count = records.count
    values = np.where(records.tombstones, NONE, values_bytes(records.sizes))
    data = np.frombuffer(records.keys.astype(">i8").tobytes() + b"v" * int(values.max(initial=0)), np.uint8)
    rows = np.zeros(count, RECORD_ROW)
    rows["offset"] = first_offset + np.arange(count)
    rows["timestamp"] = now_ms
    rows["batch"] = np.arange(count) // batch_records
    rows["key_start"], rows["key_size"] = KEY_BYTES * np.arange(count), KEY_BYTES
    rows["value_start"] = KEY_BYTES * count
    rows["value_size"] = values
    batches = _headers(first_offset, count, batch_records, now_ms, sequence)
    chosen, starts, ends = np.ones(batches.size, np.bool_), *np.zeros((2, batches.size), np.int64)
    values_size = int(np.maximum(values, 0).sum())
    room = HEADER.size * batches.size + count * (RECORD_EXTRA_BYTES + KEY_BYTES) + values_size
    target = np.empty(room, np.uint8)
    size = encode_bodies(
        data.ctypes.data,
        rows,
        np.ones(count, np.bool_),
        np.arange(batches.size),
        chosen,
        batches,
        target.ctypes.data,
        True,
        starts,
        ends,
    )
    batches["size_bytes"] = ends - starts
    write_headers(batches, chosen, starts, target.ctypes.data)
    return target[:size].tobytes(), np.append(starts, size)


#: Bytes of a record without its length and value: attributes, time, offset, key, header count, each small enough for
#: one byte.
_WITHOUT_VALUE = 1 + 1 + 1 + (1 + KEY_BYTES) + 1


def value_bytes(record_bytes: int) -> int:
    """Return the value size that makes a record take `record_bytes` in a batch of its own."""
    length = record_bytes - len(write_varint(record_bytes))
    return max(0, length - _WITHOUT_VALUE - len(write_varint(length - _WITHOUT_VALUE)))


def values_bytes(sizes: Int64Array) -> Int64Array:
    """int64[records]: `value_bytes` of each size."""
    different, which = np.unique(sizes, return_inverse=True)
    return np.array([value_bytes(size) for size in different.tolist()], np.int64)[which]


assert 1 + _WITHOUT_VALUE + len(write_varint(NONE)) == TOMBSTONE_BYTES, "its length takes one byte"


def _headers(first_offset: int, count: int, batch_records: int, now_ms: int, sequence: int) -> BatchRows:
    starts = np.arange(0, count, batch_records)
    ends = np.minimum(starts + batch_records, count)
    batches = np.zeros(starts.size, BATCH_ROW)
    batches["base_offset"], batches["last_offset"] = first_offset + starts, first_offset + ends - 1
    batches["base_timestamp"] = batches["max_timestamp"] = now_ms
    batches["record_count"] = ends - starts
    batches["leader_epoch"] = LEADER_EPOCH
    batches["producer_id"] = batches["producer_epoch"] = batches["base_sequence"] = NONE
    if sequence != NONE:
        batches["attributes"] = TRANSACTIONAL
        batches["producer_id"], batches["producer_epoch"] = _PRODUCER_ID, _PRODUCER_EPOCH
        batches["base_sequence"] = (sequence + starts) % (MAX_SEQUENCE + 1)
    return batches
