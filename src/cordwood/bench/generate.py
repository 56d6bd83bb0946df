"""Generates large logs of a known shape quickly, for benchmarks and demos.

A few dozen batches are encoded once and repeated with other base offsets, which no CRC covers. So generating a gigabyte
costs no more than writing it, and Kafka accepts every batch. In a log for cleaning, each batch gets its own keys. The
encoded batches form a round, and a log repeats rounds:

    batch 0 … 50               batch 51 … 63              (only with aborted transactions)
    producer 1                 producer 2                 COMMIT of 1    ABORT of 2
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from cordwood.common.types import Codec
from cordwood.fs.base import LocalFileSystem
from cordwood.kernels.encode import write_headers
from cordwood.kernels.layout import BATCH_ROW, HEADER, TRANSACTIONAL, BatchRows
from cordwood.kernels.scan import scan_batches
from cordwood.record.batch import Marker, encode_batch, encode_marker
from cordwood.record.columns import BatchWindow, decode
from cordwood.record.compression import compress
from cordwood.record.record import Record
from cordwood.storage.formats import producer_state
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.formats.transaction_index import AbortedTransaction
from cordwood.storage.log.segment_writer import IndexLimits, SegmentWriter

#: With transactions: number of committed batches, and the producers of committed and of aborted batches.
_COMMITTED_BATCHES, _PRODUCERS = 51, (1, 2)
_WORDS = [b"amber", b"birch", b"cedar", b"dogwood", b"elm", b"fir", b"ginkgo", b"hazel", b"juniper", b"kapok"]
_NOW = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a generated log's records.

    Attributes:
        value_bytes: size of each value; a quarter of it is random, the remainder words.
        batch_bytes: approximate batch size before compression.
        tombstone_every: one in this many records is a tombstone; 0: no tombstones.
        aborted: whether all batches are transactional, and a fifth of them aborted.
        round_batches: number of distinct batches, of which a log has a multiple.
    """

    value_bytes: int = 100
    key_bytes: int = 16
    batch_bytes: int = 16 << 10
    codec: Codec = Codec.NONE
    tombstone_every: int = 0
    aborted: bool = False
    round_batches: int = 64

    @property
    def records_per_batch(self) -> int:
        """Number of records in each batch."""
        return max(1, self.batch_bytes // (self.value_bytes + self.key_bytes + 11))


def _batches(shape: Shape, seed: int) -> list[bytes]:
    source = random.Random(seed)
    count = shape.records_per_batch

    def value() -> bytes:
        text = b" ".join(source.choices(_WORDS, k=shape.value_bytes // 5 + 1))
        noise = source.randbytes(shape.value_bytes // 4)
        return (noise + text)[: shape.value_bytes]

    return [
        encode_batch(
            [
                Record(
                    i,
                    _NOW + i,
                    b"%0*d" % (shape.key_bytes, source.randrange(10**6)),
                    None if shape.tombstone_every and i % shape.tombstone_every == 0 else value(),
                )
                for i in range(count)
            ],
            codec=shape.codec,
            leader_epoch=0,
        )
        for _ in range(shape.round_batches)
    ]


def write_log(
    fs: LocalFileSystem,
    directory: str,
    *,
    size_bytes: int,
    shape: Shape | None = None,
    segment_bytes: int = 1 << 28,
    seed: int = 7,
) -> int:
    """Write a partition's segments without indexes; return the number of records.

    Args:
        shape: shape of the records; default: 100 bytes, not compressed.
    """
    shape = shape or Shape()
    batches = _batches(shape, seed)
    offset = written = 0
    while written < size_bytes:
        with fs.create(f"{directory}/{offset_name(offset, FileKind.LOG)}") as file:
            at = 0
            while at < segment_bytes and written < size_bytes:
                part = []
                for batch in batches:
                    part.append(offset.to_bytes(8, "big"))
                    part.append(batch[8:])
                    offset += shape.records_per_batch
                data = b"".join(part)
                file.write(at, data)
                at += len(data)
                written += len(data)
    return offset


@dataclass(frozen=True, slots=True)
class KeyPattern:
    """The key of each record.

    Attributes:
        count: number of keys; for `TAIL` and `SPREAD` the number of updated keys.
        pattern: UNIFORM: all keys are equally likely.
            ZIPF: a few keys have most records.
            TAIL: all keys are new until the last 2 * `count` records, which update the oldest `count` keys.
            SPREAD: all keys are new until the last `count` records, which update keys anywhere.
            WINDOW: after the first record of each of `count` keys, updates of a twentieth of the keys; which these are
            moves on by a key with every four updates.
    """

    count: int
    pattern: Literal["uniform", "zipf", "tail", "spread", "window"] = "uniform"

    def first_update(self, records: int) -> int:
        """Return the number of the first record that may update another."""
        if self.pattern == "window":
            return self.count
        return records - {"tail": 2 * self.count, "spread": self.count}.get(self.pattern, records)

    def numbers(self, source: np.random.Generator, first: int, count: int, records: int) -> npt.NDArray[np.int64]:
        """int64[count]: keys of the records from number `first` on, in a log of `records`."""
        if self.pattern == "zipf":
            return (source.zipf(1.2, count) % self.count).astype(np.int64)
        start = self.first_update(records)
        own = np.arange(first, first + count)
        if self.pattern == "window":
            moved = (own - start) // 4 + source.integers(max(self.count // 20, 1), size=count)
            return np.where(own < start, own, moved % self.count)
        return np.where(
            own < start, own, source.integers(start if self.pattern == "spread" else self.count, size=count)
        )


def write_keyed_log(
    fs: LocalFileSystem,
    directory: str,
    *,
    records: int,
    keys: KeyPattern,
    shape: Shape | None = None,
    segment_bytes: int = 1 << 28,
    seed: int = 7,
) -> int:
    """Write a partition that can be cleaned, in the state that a broker leaves after a clean shutdown.

    It has indexes, a producer snapshot at its end, and an active segment of one round.

    Args:
        records: minimum number of records before the active segment; only whole rounds are written.
        keys: keys of the records, as decimal numbers.
        shape: shape of the records; default: 100 bytes, not compressed.

    Returns:
        the offset after the last record.
    """
    shape = shape or Shape()
    one = _Round.of(shape, seed)
    source = np.random.default_rng(seed)
    offset = number = 0
    last = False
    while not last:
        last = number >= records
        writer = SegmentWriter(fs, directory, offset, IndexLimits())
        while last or (writer.size_bytes < segment_bytes and number < records):
            some = keys.numbers(source, number, one.records, max(records, 1))
            data, rows, aborted = one.at(offset, some.reshape(len(one.bodies), -1))
            writer.append([data], rows)
            writer.add_aborted(aborted)
            offset = int(rows["last_offset"][-1]) + 1
            number += one.records
            if last:
                break
        writer.finish()
    with fs.create(f"{directory}/{offset_name(offset, FileKind.PRODUCER_SNAPSHOT)}") as file:
        file.write(0, producer_state.encode([]))
    return offset


@dataclass(frozen=True, slots=True)
class _Round:
    """The batches that are written repeatedly.

    Attributes:
        bodies: uint8[batches, bytes], without headers, not compressed.
        places: int64[records of a batch], positions of the keys in a body.
        rows: BATCH_ROW[batches], their headers, from offset 0.
        markers: the bytes of both markers; empty without transactions.
    """

    shape: Shape
    bodies: npt.NDArray[np.uint8]
    places: npt.NDArray[np.int64]
    rows: BatchRows
    markers: bytes

    @classmethod
    def of(cls, shape: Shape, seed: int) -> _Round:
        batches = _batches(replace(shape, codec=Codec.NONE), seed)
        data = np.frombuffer(bytearray(b"".join(batches)), np.uint8)
        rows = np.empty(len(batches), BATCH_ROW)
        scan_batches(data.ctypes.data, data.size, data.size, 0, True, rows)
        # Records with the same index have fields of the same length.
        assert len({len(batch) for batch in batches}) == 1
        (first,) = decode(BatchWindow(0, data, rows[:1], lambda *_: iter(())))
        count = shape.records_per_batch
        rows["base_offset"] = count * np.arange(rows.size)
        rows["last_offset"] = rows["base_offset"] + count - 1
        rows["attributes"] |= shape.codec
        markers = b""
        if shape.aborted:
            rows["attributes"] |= TRANSACTIONAL
            rows["producer_id"] = np.where(np.arange(rows.size) < _COMMITTED_BATCHES, *_PRODUCERS)
            rows["producer_epoch"] = 0
            markers = b"".join(
                encode_marker(Marker(number, _NOW, producer, 0, committed=number == 0), leader_epoch=0)
                for number, producer in enumerate(_PRODUCERS)
            )
        bodies = data.reshape(len(batches), -1)[:, HEADER.size :]
        return cls(shape, bodies, first.rows["key_start"].astype(np.int64) - HEADER.size, rows, markers)

    @property
    def records(self) -> int:
        """Number of data records in a round."""
        return len(self.bodies) * self.shape.records_per_batch

    def at(
        self, offset: int, keys: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint8], BatchRows, list[AbortedTransaction]]:
        """Return a round that begins at an offset: its bytes, its headers, and its aborted transactions.

        Args:
            keys: int64[batches, records of a batch].
        """
        _put_keys(self.bodies, self.places, keys, self.shape.key_bytes)
        rows = self.rows.copy()
        rows["base_offset"] += offset
        rows["last_offset"] += offset
        if self.shape.aborted:
            rows["base_sequence"] = (rows["base_offset"] & 0x7FFF_FFFF).astype(np.int32)
        data = _assembled(self.bodies, rows, self.shape.codec)
        if not self.markers:
            return data, rows, []
        markers = np.frombuffer(bytearray(self.markers), np.uint8)
        behind = np.empty(len(_PRODUCERS), BATCH_ROW)
        scan_batches(markers.ctypes.data, markers.size, markers.size, 0, True, behind)
        behind["base_offset"] = behind["last_offset"] = offset + self.records + np.arange(behind.size)
        behind["base_sequence"] = -1
        starts = behind["position"].astype(np.int64)
        write_headers(behind, np.ones(behind.size, np.bool_), starts, markers.ctypes.data)
        first = int(rows["base_offset"][_COMMITTED_BATCHES])
        end = int(behind["last_offset"][-1])
        return (
            np.concatenate([data, markers]),
            np.concatenate([rows, behind]),
            [AbortedTransaction(_PRODUCERS[1], first, end, end + 1)],
        )


def _put_keys(bodies: np.ndarray, places: np.ndarray, keys: np.ndarray, key_bytes: int) -> None:
    for place in range(key_bytes - 1, -1, -1):
        keys, digits = np.divmod(keys, 10)
        bodies[:, places + place] = digits + ord("0")


def _assembled(bodies: np.ndarray, rows: np.ndarray, codec: Codec) -> np.ndarray:
    """Encode whole batches; fill sizes and CRCs in their rows."""
    parts = [bytes(HEADER.size) + compress(codec, body.tobytes()) for body in bodies]
    sizes = np.array([len(part) for part in parts], np.int64)
    data = np.frombuffer(bytearray(b"".join(parts)), np.uint8)
    rows["size_bytes"] = sizes
    write_headers(rows, np.ones(rows.size, np.bool_), np.cumsum(sizes) - sizes, data.ctypes.data)
    return data
