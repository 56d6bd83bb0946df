"""Small logs on disk, batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.log.segment_writer import IndexLimits, SegmentWriter
from cordwood.storage.log.view import LogView
from tests.record.windows import window

MTIME = 5_000_000


def data(offset: int, key: bytes = b"k", *, producer: int | None = None, timestamp: int = 0, size: int = 1) -> bytes:
    own: dict[str, Any] = (
        {} if producer is None else {"producer_id": producer, "producer_epoch": 0, "base_sequence": offset}
    )
    return encode_batch([Record(offset, timestamp, key, b"v" * size)], **own)


def make_log(folder: Path, *segments: tuple[int, list[bytes]]) -> LogView:
    folder.mkdir(exist_ok=True)
    for base, batches in segments:
        writer = SegmentWriter(PosixFileSystem(), str(folder), base, IndexLimits())
        if batches:
            stored = b"".join(batches)
            writer.append([np.frombuffer(stored, np.uint8)], window(stored).batches)
        writer.finish(mtime_ns=MTIME * 1_000_000)
    return LogView(str(folder), log_start_offset=0, fs=PosixFileSystem())


def append(path: Path, *pairs: tuple[bytes, bytes | None], times: Sequence[int] = ()) -> None:
    """A batch behind all others, in a segment of its own."""
    path.mkdir(parents=True, exist_ok=True)
    base = LogView(str(path), fs=PosixFileSystem()).next_offset
    records = [
        Record(base + at, times[at] if times else 1_700_000_000_000, key, value)
        for at, (key, value) in enumerate(pairs)
    ]
    (path / offset_name(base, FileKind.LOG)).write_bytes(encode_batch(records))
