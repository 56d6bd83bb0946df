"""How tests make batches and logs.

    write_log(
        tmp_path / "t-0",
        [batch(0, "a=1 b=2"), batch(2, "a=3", producer=7), marker(3, 7, committed=True)],
        [batch(4, "b")],
    )

writes a partition of two segments: in the first the records a=1 and b=2, a transaction of producer 7 with a=3, and its
commit; in the second, the active one, a tombstone of b.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cordwood.fs.posix import PosixFileSystem
from cordwood.kernels import scan
from cordwood.kernels.layout import BATCH_ROW, END
from cordwood.record.batch import Marker, encode_batch, encode_marker
from cordwood.record.columns import BatchWindow, decode
from cordwood.record.record import Record, to_records
from cordwood.storage.formats import producer_state
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.log.header_sample import EXACT_LOG_BYTES
from cordwood.storage.log.segment_writer import IndexLimits, SegmentWriter
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.replay import Producers

#: Default time of all records.
T0 = 1_700_000_000_000
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
#: Modification time of the segments of `make_log`, in ms.
MTIME = 5_000_000

#: Key and value; a value of None is a tombstone.
Pair = tuple[bytes | None, bytes | None]
#: Batches of a segment, alone if they begin at its base offset.
Segment = list[bytes] | tuple[int, list[bytes]]


def batch(offset: int, *pairs: str | Pair, time: int = T0, producer: int | None = None, **header: Any) -> bytes:
    """Encode a batch of records from `offset` on.

    Args:
        pairs: words such as `a=1 b=2 c` (c is a tombstone), or pairs of bytes; `k=v` if there are none.
        producer: id of the producer whose transaction has the batch.
        header: further fields of the header; they win over those of `producer`.
    """
    records = [Record(offset + at, time, *pair) for at, pair in enumerate(_pairs(pairs or ("k=v",)))]
    if producer is not None:
        header = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0, "transactional": True, **header}
    return encode_batch(records, **header)


def _pairs(pairs: Sequence[str | Pair]) -> Iterator[Pair]:
    for pair in pairs:
        if isinstance(pair, str):
            for word in pair.split():
                key, has_value, value = word.partition("=")
                yield key.encode(), value.encode() if has_value else None
        else:
            yield pair


def marker(offset: int, producer: int, *, committed: bool, time: int = T0) -> bytes:
    """Encode the marker that ends a producer's transaction."""
    return encode_marker(Marker(offset, time, producer, 0, committed))


def write_log(folder: Path, *segments: Segment) -> Path:
    """Write a partition's directory: segments as they are, even if damaged, with empty indexes."""
    folder.mkdir(parents=True, exist_ok=True)
    for base, batches in _with_bases(segments):
        (folder / offset_name(base, FileKind.LOG)).write_bytes(b"".join(batches))
        (folder / offset_name(base, FileKind.OFFSET_INDEX)).write_bytes(b"")
    return folder


def make_log(folder: Path, *segments: Segment) -> LogView:
    """Write a partition's directory with the indexes that a broker makes, and open it."""
    folder.mkdir(parents=True, exist_ok=True)
    for base, batches in _with_bases(segments):
        writer = SegmentWriter(PosixFileSystem(), str(folder), base, IndexLimits())
        if batches:
            stored = b"".join(batches)
            writer.append([np.frombuffer(stored, np.uint8)], window(stored).batches)
        writer.finish(mtime_ns=MTIME * 1_000_000)
    return LogView(str(folder), log_start_offset=0, fs=PosixFileSystem())


#: Number of segments of `make_large_log`.
LARGE_SEGMENTS = 5


def make_large_log(folder: Path, *, holes: bool = False, keys: int = 1) -> LogView:
    """Write a log above `EXACT_LOG_BYTES` with batches of many sizes, and with a producer snapshot of each segment.

    Args:
        holes: leave out offsets between batches, more in later segments, as in a log that was cleaned.
        keys: number of keys, in turns.
    """
    rng = np.random.default_rng(7)
    value, offset, segments = rng.bytes(700), 0, list[Segment]()
    for number in range(LARGE_SEGMENTS):
        base, batches, size = offset, list[bytes](), 0
        while size < 2 * EXACT_LOG_BYTES // LARGE_SEGMENTS:
            values = [value[:end] for end in rng.integers(100, 700, int(rng.integers(1, 9))).tolist()]
            pairs = ((b"key %d" % ((offset + at) % keys), one) for at, one in enumerate(values))
            batches.append(batch(offset, *pairs, time=T0 + offset))
            size += len(batches[-1])
            offset += len(values) + (int(rng.geometric(0.05 * (1 + number))) if holes else 0)
        segments.append((base, batches))
    for segment in make_log(folder, *segments).segments:
        put_snapshot(folder, segment.base_offset)
    return LogView(str(folder), log_start_offset=0, fs=PosixFileSystem())


def put_snapshot(folder: Path, offset: int, producers: Producers | None = None) -> None:
    """Write the producer snapshot of an offset."""
    data = producer_state.encode_rows((producers or Producers()).rows())
    (folder / offset_name(offset, FileKind.PRODUCER_SNAPSHOT)).write_bytes(data)


def _with_bases(segments: Sequence[Segment]) -> Iterator[tuple[int, list[bytes]]]:
    end = 0
    for segment in segments:
        base, batches = segment if isinstance(segment, tuple) else (end, segment)
        if batches and not isinstance(segment, tuple):
            base = int.from_bytes(batches[0][:8], "big")
        yield base, batches
        last = batches[-1] if batches else b""
        end = int.from_bytes(last[:8], "big") + int.from_bytes(last[23:27], "big") + 1 if last else base


def append(path: Path, *pairs: str | Pair, times: Sequence[int] = ()) -> None:
    """Append a batch in a segment of its own."""
    path.mkdir(parents=True, exist_ok=True)
    base = LogView(str(path), fs=PosixFileSystem()).next_offset
    records = [Record(base + at, times[at] if times else T0, *pair) for at, pair in enumerate(_pairs(pairs))]
    (path / offset_name(base, FileKind.LOG)).write_bytes(encode_batch(records))


def window(data: bytes) -> BatchWindow:
    """Read batches as the columns that kernels read."""
    array = np.frombuffer(data, np.uint8)
    rows = np.empty(len(data) // 26 + 1, BATCH_ROW)
    count, taken, status = scan.scan_batches(array.ctypes.data, len(data), len(data), 0, True, rows)
    scan.compute_crcs(array.ctypes.data, len(data), 0, rows[:count])
    assert (taken, status) == (len(data), END)
    return BatchWindow(0, array, rows[:count], lambda at, size: iter([data[at : at + size]]))


def read(data: bytes) -> list[Record]:
    """Decode all records of whole batches."""
    return [record for columns in decode(window(data)) for record in to_records(columns.data, columns.rows)]
