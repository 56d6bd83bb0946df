"""Bytes written by cleans per new byte, with little new data at a time: logs in memory, really cleaned.

All data of the log is live, and each key is updated again and again; the log is cleaned as often as its dirty ratio
allows. At full effort it has a hundred segments, and may be cleaned once more than a hundredth of it is dirty; the
figure is printed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from cordwood.api import clean_in_place
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.index import build as building
from cordwood.storage.log.segment_writer import IndexLimits, SegmentWriter
from cordwood.testing.memory import MemoryFileSystem
from tests import knobs
from tests.logs import window

SEGMENTS = knobs.scaled(25, 100)
#: Records of a segment, and of a batch.
RECORDS, BATCH = knobs.scaled(40, 400), 4
KEYS = SEGMENTS * RECORDS
NOW_MS = 1_700_000_000_000
PATH = "/logs/t-0"


def wandering(source: np.random.Generator) -> np.ndarray:
    """A twentieth of the keys is busy; which it is changes, so that eight updates a key pass over all keys twice."""
    at = np.arange(8 * KEYS) // 4
    return (at + source.integers(0, max(KEYS // 20, 1), at.size)) % KEYS


def segments_of(keys: np.ndarray) -> Iterator[list[bytes]]:
    return ([b"%07d" % key for key in some] for some in keys.reshape(-1, RECORDS).tolist())


def append(fs: MemoryFileSystem, base: int, keys: list[bytes]) -> int:
    """Write a segment; its size."""
    data = b"".join(
        encode_batch(
            [Record(base + at + more, NOW_MS, key, bytes(200)) for more, key in enumerate(keys[at : at + BATCH])]
        )
        for at in range(0, len(keys), BATCH)
    )
    writer = SegmentWriter(fs, PATH, base, IndexLimits())
    writer.append([np.frombuffer(data, np.uint8)], window(data).batches)
    writer.finish(mtime_ns=(NOW_MS + base) * 1_000_000)
    return len(data)


def written_per_new_byte(updates: np.ndarray, *, settles: int) -> float:
    """Clean after each segment of updates, if the log is dirty enough.

    Args:
        settles: number of updates before counting starts, until the log's layout is stable.
    """
    fs = MemoryFileSystem(lambda: NOW_MS * 1_000_000, can_crash=False)
    fs.make_directory("/logs")
    fs.make_directory(PATH)
    source, ratio = np.random.default_rng(1), f"min.cleanable.dirty.ratio={1 / SEGMENTS}"
    base, written, new, size = 0, 0, 0, 0
    for keys in segments_of(source.permutation(KEYS)):
        size = append(fs, base, keys)
        base += RECORDS
    for number, keys in enumerate(segments_of(updates)):
        append(fs, base, keys)
        base += RECORDS
        found = clean_in_place(
            "/logs", fs=fs, index=True, now_ms=NOW_MS + base, verify=False,
            overrides=["cleanup.policy=compact", f"internal.segment.bytes={size}", ratio],
            single_copy=True, high_watermark="end", no_broker_elsewhere=True,
        ).in_place  # fmt: skip
        if number * RECORDS >= settles:
            new += size
            written += 0 if found is None else found.bytes_written - found.index_bytes
    assert written, "it was cleaned"
    return written / new


@pytest.mark.slow
def test_a_clean_writes_at_most_eight_bytes_per_new_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "SEGMENT_SHARE", 0)
    source = np.random.default_rng(7)
    written = written_per_new_byte(wandering(source), settles=3 * KEYS)
    print(f"{SEGMENTS} segments, wandering window: {written:.2f}")
    assert written <= 8
