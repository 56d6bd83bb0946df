"""Batches that have a producer id, and entries of transaction indexes, as rows for Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cordwood.errors import CorruptFileError
from cordwood.fs.base import Store
from cordwood.kernels.layout import (
    TRANSACTIONAL,
    BatchRows,
)
from cordwood.record.headers import is_control
from cordwood.storage.log.segment import MAX_OFFSET, Segment
from cordwood.storage.log.windows import read_headers

if TYPE_CHECKING:
    import pyarrow as pa
from cordwood.verification.facts import Int64Array
from cordwood.verification.pairs import Pair
from cordwood.verification.ranges import Range

# ---- batches of producers, from headers alone ------------------------------------------------------------------------

BATCH_SCHEMA = "pair int, after boolean, pid bigint, what tinyint, at bigint, upto bigint, epoch int, filled boolean"
BATCH_NAMES = [part.split()[0] for part in BATCH_SCHEMA.split(", ")]
#: What a row stands for, in this order: non-transactional data, transactional data, an ABORT marker, a COMMIT marker,
#: another control batch, an entry of a transaction index, a batch out of order, an unreadable transaction index.
PLAIN, TRANSACTION, ABORT, COMMIT, OTHER, ENTRY, DISORDER, UNREADABLE = range(8)


def headers(parts: Sequence[tuple[Range, Pair]], fs: Store) -> Iterator[pa.RecordBatch]:
    """Read batch headers and transaction indexes of ranges; yields record batches of `BATCH_SCHEMA`."""
    for part, pair in parts:
        yield from _range_headers(part, pair, fs)


def _range_headers(part: Range, pair: Pair, fs: Store) -> Iterator[pa.RecordBatch]:
    for after, side in ((False, pair.before), (True, pair.after)):
        if after and part.same:
            continue
        log = side.open(fs)
        bases = [*(segment.base_offset for segment in log.segments), MAX_OFFSET]
        for segment, end in zip(log.segments, bases[1:], strict=True):
            # The state after may have other segments. A segment belongs to the range that holds its base offset, or
            # to the first range when it starts below that.
            if end <= part.start or not (part.start <= max(segment.base_offset, pair.lowest) < part.end):
                continue
            for rows in _segment_headers(segment, end, pair, ordered=after or part.same):
                yield from _as_batch(rows, part.pair, after)
                if part.same:
                    yield from _as_batch(rows, part.pair, True)


def _segment_headers(
    segment: Segment, end: int, pair: Pair, *, ordered: bool
) -> Iterator[Mapping[str, npt.NDArray[np.generic]]]:
    last = segment.base_offset - 1
    with segment.open() as file:
        for rows in read_headers(file, base_offset=segment.base_offset):
            if not isinstance(rows, np.ndarray) or not rows.size:
                continue
            if ordered:
                lasts = rows["last_offset"]
                firsts = np.where(rows["base_offset"] >= 0, rows["base_offset"], lasts)
                bad = (firsts <= np.concatenate([np.array([last]), lasts[:-1]])) | (lasts >= end)
                last = int(lasts[-1])
                if bad.any():
                    yield _columns(rows[bad], np.full(int(bad.sum()), DISORDER, np.int8))
            chosen = rows[(rows["producer_id"] >= 0) & (rows["last_offset"] >= pair.lowest)]
            if chosen.size:
                control = is_control(chosen)
                data = np.where(chosen["attributes"] & TRANSACTIONAL != 0, TRANSACTION, PLAIN)
                kinds = chosen["control_type"]
                ended = np.where(kinds == 0, ABORT, np.where(kinds == 1, COMMIT, OTHER))
                yield _columns(chosen, np.where(control, ended, data).astype(np.int8))
    try:
        index = segment.transaction_index()
    except CorruptFileError:
        base = np.full(1, segment.base_offset)
        yield _index_rows(UNREADABLE, np.zeros(1, np.int64), base, base)
        return
    if index is not None and index.entries:
        yield _index_rows(ENTRY, index.producer_ids, index.first_offsets, index.last_offsets)


def _index_rows(
    what: int, pids: Int64Array, firsts: Int64Array, lasts: Int64Array
) -> Mapping[str, npt.NDArray[np.generic]]:
    yes = np.ones(pids.size, np.bool_)
    whats, epochs = np.full(pids.size, what, np.int8), np.zeros(pids.size, np.int32)
    return {"pid": pids, "what": whats, "at": firsts, "upto": lasts, "epoch": epochs, "filled": yes}


def _columns(rows: BatchRows, what: npt.NDArray[np.int8]) -> Mapping[str, npt.NDArray[np.generic]]:
    return {
        "pid": rows["producer_id"],
        "what": what,
        "at": np.where(rows["base_offset"] >= 0, rows["base_offset"], rows["last_offset"]),
        "upto": rows["last_offset"],
        "epoch": rows["producer_epoch"].astype(np.int32),
        "filled": rows["record_count"] > 0,
    }


def _as_batch(rows: Mapping[str, npt.NDArray[np.generic]], pair: int, after: bool) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    size = rows["pid"].size
    columns = [pa.array(np.full(size, pair, np.int32)), pa.array(np.full(size, after, np.bool_))]
    columns += [pa.array(np.ascontiguousarray(rows[name])) for name in BATCH_NAMES[2:]]
    yield pa.RecordBatch.from_arrays(columns, BATCH_NAMES)
