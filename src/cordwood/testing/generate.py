"""Large logs of a known shape, quickly: for benchmarks and for trying things out.

A few dozen batches are encoded once and repeated with other base offsets, which no CRC covers. So a gigabyte costs no
more than writing it, and every batch of it is one that Kafka accepts. Where a log is made to be cleaned, each batch
gets keys of its own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np

from cordwood.fs.base import LocalFileSystem
from cordwood.kernels.encode import write_headers
from cordwood.kernels.layout import BATCH_ROW, HEADER
from cordwood.kernels.scan import scan_batches
from cordwood.record.batch import encode_batch
from cordwood.record.columns import BatchWindow, decode
from cordwood.record.compression import compress
from cordwood.record.record import Record
from cordwood.storage.formats import producer_state
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.log.segment_writer import IndexLimits, SegmentWriter
from cordwood.types import Codec

_DISTINCT_BATCHES = 64
_WORDS = [b"amber", b"birch", b"cedar", b"dogwood", b"elm", b"fir", b"ginkgo", b"hazel", b"juniper", b"kapok"]
_NOW = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """What the records of a generated log are like.

    Attributes:
        value_bytes: size of each value; a quarter of it random, the rest words.
        key_bytes: size of each key.
        batch_bytes: about how large a batch is before compression.
        codec: of all batches.
    """

    value_bytes: int = 100
    key_bytes: int = 16
    batch_bytes: int = 16 << 10
    codec: Codec = Codec.NONE

    @property
    def records_per_batch(self) -> int:
        """Records in each batch."""
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
            [Record(i, _NOW + i, b"%0*d" % (shape.key_bytes, source.randrange(10**6)), value()) for i in range(count)],
            codec=shape.codec,
            leader_epoch=0,
        )
        for _ in range(_DISTINCT_BATCHES)
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
    """Write a partition's segments, without indexes.

    Args:
        fs: where to.
        directory: an existing, empty partition directory.
        size_bytes: about how much.
        shape: of the records; default: 100 bytes, not compressed.
        segment_bytes: when to start the next segment.
        seed: of what is random.

    Returns:
        how many records were written.
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


def write_keyed_log(
    fs: LocalFileSystem,
    directory: str,
    *,
    size_bytes: int,
    keys: int,
    shape: Shape | None = None,
    segment_bytes: int = 1 << 28,
    seed: int = 7,
) -> int:
    """Write a partition whose records have random keys, as a broker leaves it that was shut down.

    It has indexes, a producer snapshot at its end, and a last segment of a few batches, which is the active one.

    Args:
        fs: where to.
        directory: an existing, empty partition directory.
        size_bytes: about how much, without the last segment.
        keys: how many there are; each record has one of them, all as likely.
        shape: of the records; default: 100 bytes, not compressed. Keys are decimal numbers.
        segment_bytes: when to start the next segment.
        seed: of what is random.

    Returns:
        how many records were written.
    """
    shape = shape or Shape()
    bodies, places, rows = _templates(shape, seed)
    source = np.random.default_rng(seed)
    offset = written = 0
    last = False
    while not last:
        last = written >= size_bytes
        writer = SegmentWriter(fs, directory, offset, IndexLimits())
        while last or (writer.size_bytes < segment_bytes and written < size_bytes):
            _put_keys(bodies, places, source.integers(keys, size=(len(bodies), len(places))), shape.key_bytes)
            rows["base_offset"] = offset + shape.records_per_batch * np.arange(rows.size)
            rows["last_offset"] = rows["base_offset"] + shape.records_per_batch - 1
            data = _assembled(bodies, rows, shape.codec)
            writer.append([data], rows)
            offset += shape.records_per_batch * rows.size
            written += data.size
            if last:
                break
        writer.finish()
    with fs.create(f"{directory}/{offset_name(offset, FileKind.PRODUCER_SNAPSHOT)}") as file:
        file.write(0, producer_state.encode([]))
    return offset


def _templates(shape: Shape, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bodies, uint8[batches, bytes], where in each the keys are, int64[records], and their headers' rows."""
    batches = _batches(replace(shape, codec=Codec.NONE), seed)
    data = np.frombuffer(bytearray(b"".join(batches)), np.uint8)
    rows = np.empty(len(batches), BATCH_ROW)
    scan_batches(data.ctypes.data, data.size, data.size, 0, True, rows)
    # Records of the same index differ in nothing that has a length.
    assert len({len(batch) for batch in batches}) == 1
    (first,) = decode(BatchWindow(0, data, rows[:1], lambda *_: iter(())))
    rows["attributes"] |= shape.codec
    return (
        data.reshape(len(batches), -1)[:, HEADER.size :],
        first.rows["key_start"].astype(np.int64) - HEADER.size,
        rows,
    )


def _put_keys(bodies: np.ndarray, places: np.ndarray, keys: np.ndarray, key_bytes: int) -> None:
    for place in range(key_bytes - 1, -1, -1):
        keys, digits = np.divmod(keys, 10)
        bodies[:, places + place] = digits + ord("0")


def _assembled(bodies: np.ndarray, rows: np.ndarray, codec: Codec) -> np.ndarray:
    """The bytes of whole batches; sizes and CRCs in their rows are filled."""
    parts = [bytes(HEADER.size) + compress(codec, body.tobytes()) for body in bodies]
    sizes = np.array([len(part) for part in parts], np.int64)
    data = np.frombuffer(bytearray(b"".join(parts)), np.uint8)
    rows["size_bytes"] = sizes
    write_headers(rows, np.ones(rows.size, np.bool_), np.cumsum(sizes) - sizes, data.ctypes.data)
    return data
