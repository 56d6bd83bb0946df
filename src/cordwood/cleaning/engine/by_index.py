"""Pass 1 of a segment with a key index: read only batches that may have a record with a dirty key.

    dirty keys ──► index: candidates ──► their batches, and all that the index does not cover
                                            └─ read, decoded, looked up in the table of the dirty keys
    headers of all batches ──► compared with the index, followed by the trackers ──► same result as `scan_part`

The index only limits the search. Whether a record is superseded is decided by the hash of its key under the secret of
this clean, as without an index. One superseded record proves that the segment is rewritten; the others are looked up in
pass 2, which reads and decodes the segment anyway (`rules.superseded.confirmed`). The segment is scanned instead if
its index is missing or torn, has another secret, was made from other batches than the ones in the file, or covers
batches of magic 0 and 1, which have no exact counts, or records without a key.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import TypeAlias

import numpy as np

from cordwood.cleaning.engine.readahead import TrackedWindow, bodies_of, read_ahead, reading_threads
from cordwood.cleaning.engine.staying import Staying, read_through_gaps
from cordwood.cleaning.rules.key_table import BoolArray, Int64Array
from cordwood.cleaning.rules.latest import DirtyTable
from cordwood.cleaning.rules.superseded import (
    NEVER,
    UNCONFIRMED,
    UNREAD,
    OffsetSpan,
    ScannedRun,
    SegmentOutcomes,
    UInt8Array,
    WindowKeys,
    flags_of,
    window_keys,
)
from cordwood.common.errors import CorruptFileError
from cordwood.kernels.layout import BATCH_ROW, DELETE_HORIZON, BatchRows
from cordwood.kernels.superseded import HAS_TOMBSTONE, SUPERSEDED, set_bits
from cordwood.record.columns import BatchWindow
from cordwood.record.headers import has_flag
from cordwood.storage.formats.key_index import Flag, KeyIndex
from cordwood.storage.index.files import read_index
from cordwood.storage.index.probe import find
from cordwood.storage.log.order import headers_in_order
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.windows import Gap, compute_crcs, read_headers

#: Called with the batches of a run, window after window. Returns which of them are decoded, and for each the first
#: offset whose record supersedes others (see `window_keys`).
Mark: TypeAlias = Callable[[BatchRows], tuple[BoolArray, Int64Array]]


def scan_by_index(
    segment: Segment, mark: Mark, table: DirtyTable, now_ms: int, chunk_records: int
) -> ScannedRun | None:
    """Find the superseded records of a segment by its key index. Without a usable index, return None and do not call
    `mark`.

    Args:
        mark: called once, with the batches of the whole segment.
        table: the dirty keys, in which candidates are looked up.
        now_ms: the time of the clean.
        chunk_records: see `ScannedRun`; there are no chunks.

    Raises:
        CorruptBatchError: a batch that is read is damaged.
    """
    index = _index(segment, table)
    batches = None if index is None else _batches(segment, index)
    if index is None or batches is None:
        return None
    wanted, _ = mark(batches)
    counts = np.where(wanted, batches["record_count"], 0).astype(np.int32)
    firsts = np.cumsum(counts, dtype=np.int64) - counts
    bits = np.zeros(-(-int(counts.sum(dtype=np.int64)) // 8), np.uint8)
    looked_up, found_flags = np.zeros(batches.size, np.bool_), np.zeros(batches.size, np.uint8)
    # `_batches` has checked that batches ascend.
    span = OffsetSpan(int(batches["base_offset"][0]), int(batches["last_offset"][-1]))
    at, ordinals = _candidates(index, table, wanted, firsts)
    covered = np.arange(batches.size) < index.lengths.size
    candidates = np.zeros(batches.size, np.bool_)
    candidates[at] = True
    with reading_threads([segment]) as threads:
        for chosen in (wanted & ~covered, candidates):
            for places, keys, superseded in _looked_up(threads, segment, batches, chosen, table, now_ms):
                looked_up[places] = True
                found_flags[places] |= keys.flags
                span.ascending = span.ascending and keys.span.ascending
                # Decoding has compared the count of a batch of magic 2 with its header.
                shifts = firsts[places] - np.cumsum(keys.counts) + keys.counts
                numbers = np.repeat(shifts, keys.counts) + np.arange(superseded.size)
                set_bits(numbers[superseded].astype(np.uint32), bits)
                if chosen is candidates and bits.any():
                    break
            if bits.any():
                # The segment will be rewritten; pass 2 looks up the other candidates.
                break
    unconfirmed = candidates & ~looked_up
    set_bits(ordinals[unconfirmed[at]].astype(np.uint32), bits)
    flags = _flags(batches, wanted, looked_up, index, now_ms) | found_flags
    flags[unconfirmed] |= UNCONFIRMED
    outcomes = SegmentOutcomes(
        batches["position"].astype(np.uint32), batches["crc"].astype(np.uint32), firsts, counts, flags, bits
    )
    return ScannedRun(outcomes, chunk_records, span)


def _index(segment: Segment, table: DirtyTable) -> KeyIndex | None:
    if table.index_secret is None:
        return None
    try:
        index = read_index(segment)
    except (OSError, CorruptFileError):
        return None
    is_usable = index.header.secret == table.index_secret and not index.header.flags & (Flag.OLD_MAGIC | Flag.KEYLESS)
    return index if is_usable else None


def _batches(segment: Segment, index: KeyIndex) -> BatchRows | None:
    """BATCH_ROW[batches]: all of a segment; None if the index was made from other batches."""
    found = [np.empty(0, BATCH_ROW)]
    with segment.open() as file:
        for item in headers_in_order(read_headers(file, base_offset=segment.base_offset), segment.order()):
            if isinstance(item, Gap):
                return None
            found.append(item)
    batches = np.concatenate(found)
    covered, lasts = batches[: index.lengths.size], batches["last_offset"]
    if (batches["magic"] < 2).any() or (batches["base_offset"][1:] <= lasts[:-1]).any():
        return None
    same = all(
        np.array_equal(covered[name], numbers)
        for name, numbers in (("size_bytes", index.lengths), ("record_count", index.counts), ("crc", index.crcs))
    )
    return batches if same else None


def _candidates(
    index: KeyIndex, table: DirtyTable, wanted: BoolArray, firsts: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return the records in wanted batches that may have a dirty key: their batches and their ordinals.

    Args:
        wanted: bool[batches].
        firsts: int64[batches], ordinal of each batch's first record.
    """
    found = find(index, table.index_hashes).ordinals
    ends = np.cumsum(index.counts, dtype=np.int64)
    at = np.searchsorted(ends, found, side="right")
    ordinals = firsts[at] + found - (ends - index.counts)[at]
    return at[wanted[at]], ordinals[wanted[at]]


def _flags(batches: BatchRows, wanted: BoolArray, looked_up: BoolArray, index: KeyIndex, now_ms: int) -> UInt8Array:
    """uint8[batches]: flags. The index covers tombstones only in batches without a delete horizon, so a batch with a
    horizon that was not looked up is flagged, too.
    """
    flags = flags_of(batches, wanted, now_ms)
    may_have = has_flag(batches, DELETE_HORIZON) | bool(index.header.flags & Flag.TOMBSTONES)
    flags[wanted & ~looked_up] |= UNREAD
    flags[wanted & ~looked_up & may_have] |= HAS_TOMBSTONE
    return flags


def _looked_up(
    threads: Executor | None,
    segment: Segment,
    batches: BatchRows,
    looked_up: BoolArray,
    table: DirtyTable,
    now_ms: int,
) -> Iterator[tuple[Int64Array, WindowKeys, BoolArray]]:
    """Yield, per window, the indexes of the looked-up batches, their keys, and a mask of their superseded records."""
    if not looked_up.any():
        return
    edges = np.append(batches["position"], batches["position"][-1] + batches["size_bytes"][-1]).astype(np.int64)
    is_read = looked_up.copy()
    read_through_gaps(segment, edges, is_read)

    def windows() -> Iterator[TrackedWindow]:
        for window in Staying(segment, edges, is_read).windows():
            # The trackers have already followed the headers.
            yield TrackedWindow(segment, window, np.zeros(window.batches.size, np.bool_), [])
            del window

    def hashed(tracked: TrackedWindow) -> tuple[Int64Array, WindowKeys, BoolArray]:
        read = tracked.window
        at = np.searchsorted(batches["position"], read.batches["position"])
        mine = looked_up[at]
        window = BatchWindow(read.position, read.data, read.batches[mine], read.read)
        compute_crcs(window)

        bodies = functools.partial(bodies_of, segment, window)
        every = np.ones(window.batches.size, np.bool_)
        never = np.full(window.batches.size, NEVER, np.int64)
        keys = window_keys(window.batches, bodies, every, never, table.hash_secret, now_ms, table=table)
        superseded = [kinds == SUPERSEDED for _, kinds in keys.pieces]
        return at[mine], keys, np.concatenate([np.empty(0, np.bool_), *superseded])

    for _, found in read_ahead(threads, windows(), hashed):
        yield found
