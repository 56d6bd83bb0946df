"""What producers write to one partition, as a follower gets it from its leader: batches that have their offsets.

So that many batches are one append. They are encoded by the kernel that encodes what a clean keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cordwood.kernels.encode import RECORD_EXTRA_BYTES, encode_bodies, write_headers
from cordwood.kernels.layout import BATCH_ROW, HEADER, RECORD_ROW, TRANSACTIONAL, BatchRows
from cordwood.record.batch import MAX_SEQUENCE
from cordwood.record.control import Marker, encode_marker
from cordwood.record.record import write_varint
from cordwood.sizing.workload import KEY_BYTES, TOMBSTONE_BYTES, Keys, Workload
from cordwood.types import NONE

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
#: Of all batches.
LEADER_EPOCH = 0
_PRODUCER_ID, _PRODUCER_EPOCH = 1, 0
#: So many records are encoded at once where all keys are loaded.
_PRELOAD_RECORDS = 4096


@dataclass(frozen=True, slots=True)
class Written:
    """Records that are appended together: consecutive offsets, one fate.

    Attributes:
        data: whole batches; of a transaction, with its marker in the end if this is its last part.
        keys: int64[records].
        tombstones: bool[records].
    """

    data: bytes
    first_offset: int
    keys: Int64Array
    tombstones: BoolArray
    aborted: bool = False
    has_marker: bool = False

    @property
    def next_offset(self) -> int:
        """Behind the last record, or the marker."""
        return self.first_offset + self.keys.size + self.has_marker


class Encoder:
    """Encodes records whose values are all the same."""

    def __init__(self, record_bytes: int) -> None:
        self._value_bytes = value_bytes(record_bytes)
        self._value = b"v" * self._value_bytes

    def encode(
        self,
        first_offset: int,
        keys: Int64Array,
        tombstones: BoolArray,
        batch_records: int,
        now_ms: int,
        sequence: int = NONE,
    ) -> tuple[bytes, Int64Array]:
        """Encode records as batches, the last of which may be smaller.

        Args:
            keys: int64[records], not empty.
            tombstones: bool[records].
            sequence: of the first record, in a transaction; NONE: there is none.

        Returns:
            the batches, and int64[batches + 1], where each begins, and the end.
        """
        count = keys.size
        data = np.frombuffer(keys.astype(">i8").tobytes() + self._value, np.uint8)
        rows = np.zeros(count, RECORD_ROW)
        rows["offset"] = first_offset + np.arange(count)
        rows["timestamp"] = now_ms
        rows["batch"] = np.arange(count) // batch_records
        rows["key_start"], rows["key_size"] = KEY_BYTES * np.arange(count), KEY_BYTES
        rows["value_start"] = KEY_BYTES * count
        rows["value_size"] = np.where(tombstones, NONE, self._value_bytes)
        batches = _headers(first_offset, count, batch_records, now_ms, sequence)
        chosen, starts, ends = np.ones(batches.size, np.bool_), *np.zeros((2, batches.size), np.int64)
        room = HEADER.size * batches.size + count * (RECORD_EXTRA_BYTES + KEY_BYTES + self._value_bytes)
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


#: A record without length and value: attributes, time, offset, key, header count. Its numbers are small.
_WITHOUT_VALUE = 1 + 1 + 1 + (1 + KEY_BYTES) + 1


def value_bytes(record_bytes: int) -> int:
    """What is left for the value of a record that takes so many bytes, in a batch of one."""
    length = record_bytes - len(write_varint(record_bytes))
    return max(0, length - _WITHOUT_VALUE - len(write_varint(length - _WITHOUT_VALUE)))


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


class Traffic:
    """What is written to one partition over time."""

    def __init__(
        self,
        workload: Workload,
        keys: Keys,
        source: np.random.Generator,
        *,
        records_per_ms: float,
        record_bytes: int,
        batch_records: int,
        start_ms: int,
    ) -> None:
        """Nothing is written yet.

        Args:
            record_bytes: what a record with a value takes, without its part of the batch's header.
            start_ms: since when there are producers.
        """
        self._keys, self._source = keys, source
        self._encoder = Encoder(record_bytes)
        self._preload = keys.count if workload.preload else None
        self._transaction = workload.transactions
        self._aborted = workload.aborted
        self._records_per_ms, self._batch_records, self._start_ms = records_per_ms, batch_records, start_ms
        self._records = 0
        self._sequence = 0

    def until(self, until_ms: int, now_ms: int, next_offset: int, room: Callable[[], int]) -> Iterator[Written]:
        """What comes until a time, but for what has come, in parts; each is to be appended before the next is taken.

        Args:
            room: tells how many bytes fit the active segment; a part is as large as that, if it has more than a batch.
        """
        if self._preload is not None:
            count, self._preload = self._preload, None
            at_once = self._batch_records * max(1, _PRELOAD_RECORDS // self._batch_records)
            for start in range(0, count, at_once):
                keys = np.arange(start, min(start + at_once, count))
                yield from self._parts(next_offset + start, keys, np.zeros(keys.size, np.bool_), now_ms, room)
            next_offset += count
        # Whole batches, or transactions: the first comes when it is full.
        unit = self._transaction or self._batch_records
        due = int((until_ms - self._start_ms) * self._records_per_ms / unit) * unit
        count, self._records = due - self._records, due
        if not count:
            return
        keys, tombstones = self._keys.draw(count)
        if self._transaction is None:
            yield from self._parts(next_offset, keys, tombstones, now_ms, room)
            return
        for start in range(0, count, self._transaction):
            own = slice(start, start + self._transaction)
            yield from self._in_transaction(next_offset, keys[own], tombstones[own], now_ms, room)
            next_offset += self._transaction + 1

    def _in_transaction(
        self, offset: int, keys: Int64Array, tombstones: BoolArray, now_ms: int, room: Callable[[], int]
    ) -> Iterator[Written]:
        aborted = bool(self._source.random() < self._aborted)
        marker = Marker(offset + keys.size, now_ms, _PRODUCER_ID, _PRODUCER_EPOCH, committed=not aborted)
        end = encode_marker(marker, leader_epoch=LEADER_EPOCH)
        sequence, self._sequence = self._sequence, (self._sequence + keys.size) % (MAX_SEQUENCE + 1)
        for part in self._parts(offset, keys, tombstones, now_ms, room, sequence, end):
            yield replace(part, aborted=aborted)

    def _parts(
        self,
        offset: int,
        keys: Int64Array,
        tombstones: BoolArray,
        now_ms: int,
        room: Callable[[], int],
        sequence: int = NONE,
        marker: bytes = b"",
    ) -> Iterator[Written]:
        data, starts = self._encoder.encode(offset, keys, tombstones, self._batch_records, now_ms, sequence)
        if marker:
            # One more batch, without a record of its own.
            data, starts = data + marker, np.append(starts, starts[-1] + len(marker))
        batches, first = starts.size - 1, 0
        while first < batches:
            behind = int(np.searchsorted(starts, starts[first] + room(), side="right")) - 1
            behind = max(behind, first + 1)
            own = slice(first * self._batch_records, behind * self._batch_records)
            yield Written(
                data[starts[first] : starts[behind]],
                offset + min(own.start, keys.size),
                keys[own],
                tombstones[own],
                has_marker=bool(marker) and behind == batches,
            )
            first = behind
