"""Large logs of a known shape, quickly: for benchmarks and for trying things out.

A few dozen batches are encoded once and repeated with other base offsets, which no CRC covers. So a gigabyte costs no
more than writing it, and every batch of it is one that Kafka accepts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from cordwood.fs.base import FileSystem
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.filenames import FileKind, offset_name
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
    fs: FileSystem,
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
