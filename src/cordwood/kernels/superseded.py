"""Find superseded records: keys are compared bucket by bucket, so that no table has to hold all keys.

A record is represented by its key's hash and its ordinal, a running number within a chunk of the log. Some records
supersede older records with the same key (those of the dirty section that were not aborted), others are only compared.

    scatter     append the records of a chunk to buckets, by the top bits of their hashes; in log order within each
    order       sort the records of each bucket by rank; only under a keep rule with ranks, see `rules.precedence`
    dedupe      process each bucket from its last record to its first. The table of a bucket fits a cache
    merge       process the remaining records of all chunks, bucket by bucket, from the newest chunk to the oldest

If a later record of its own bucket supersedes a record, `dedupe` sets its bit and drops it. After that a chunk has at
most one superseding record per key. All this requires that offsets ascend from record to record.

    entry       hash, 2 x u64                                  ordinal, u32; its top bit: the record supersedes others
"""

from __future__ import annotations

import numpy as np

from cordwood.kernels.compiling import njit
from cordwood.kernels.decode import ROWS, decode_records
from cordwood.kernels.hashing import hash_keys
from cordwood.kernels.layout import RECORD_ROW
from cordwood.kernels.native import load32, load64, store32

U64, U32 = np.uint64, np.uint32

BUCKET_BITS = 10
#: Buckets of a chunk. All chunks have the same buckets, so that a merge can process any range of them.
BUCKETS = 1 << BUCKET_BITS
#: Top bit of an ordinal: the record supersedes older ones. A chunk has fewer records than this.
SUPERSEDES = U32(1 << 31)
_STAYS = U32(0xFFFF_FFFF)

#: Kinds of records, for `note_records` and `scatter`: no relevant key, only compared, superseding others. The last kind
#: is a result of `kernels.latest.probe`.
IGNORED, COMPARED, SUPERSEDING, SUPERSEDED = range(4)
#: Flags of `note_records` for a batch: it contains a tombstone; it contains a record without a key.
HAS_TOMBSTONE, HAS_KEYLESS = 1, 2

#: Number of 1 bits of each byte.
_ONES = np.array([byte.bit_count() for byte in range(256)], np.int64)
_SHIFT = U64(64 - BUCKET_BITS)
_FIRST_SLOTS = 64


@njit(cache=True, nogil=True)
def note_records(rows, index_of, superseding_from, last_offset, kinds, counts, flags):
    """Classify records, and count them by batch.

    Args:
        rows: RECORD_ROW[records].
        index_of: int64, for each number in rows["batch"] the index of that batch in the next arguments.
        superseding_from: int64[batches], offset from which records of the batch with a key supersede others.
        last_offset: offset of the record before these.
        kinds: uint8[records], filled: IGNORED, COMPARED or SUPERSEDING.
        counts: int32[batches], added to: records of each batch.
        flags: uint8[batches], added to: HAS_TOMBSTONE, HAS_KEYLESS.

    Returns:
        (last_offset, in_order): offset of the last record; whether each offset was above the previous one.
    """
    in_order = True
    for i in range(rows.size):
        row = rows[i]
        b = index_of[row["batch"]]
        counts[b] += 1
        if row["value_size"] < 0:
            flags[b] |= np.uint8(HAS_TOMBSTONE)
        if row["key_size"] < 0:
            flags[b] |= np.uint8(HAS_KEYLESS)
            kinds[i] = IGNORED
        elif row["offset"] >= superseding_from[b]:
            kinds[i] = SUPERSEDING
        else:
            kinds[i] = COMPARED
        in_order = in_order and row["offset"] > last_offset
        last_offset = row["offset"]
    return last_offset, in_order


@njit(cache=True, nogil=True)
def count_buckets(hashes, kinds, counts):
    """Count the records of each bucket; add to counts, int64[BUCKETS]. hashes: uint64[records, 2]."""
    for i in range(kinds.size):
        if kinds[i] != IGNORED:
            counts[hashes[i, 1] >> _SHIFT] += 1


@njit(cache=True, nogil=True)
def scatter(hashes, kinds, first_ordinal, ends, out_hashes, out_ordinals):
    """Append records to their buckets.

    Args:
        hashes: uint64[records, 2].
        kinds: uint8[records].
        first_ordinal: ordinal of the first record. Ignored records also use up an ordinal.
        ends: int64[BUCKETS], the current end of each bucket; advanced.
        out_hashes, out_ordinals: uint64[all, 2], uint32[all], filled at these ends.
    """
    for i in range(kinds.size):
        if kinds[i] != IGNORED:
            bucket = hashes[i, 1] >> _SHIFT
            at = ends[bucket]
            ends[bucket] = at + 1
            out_hashes[at, 0] = hashes[i, 0]
            out_hashes[at, 1] = hashes[i, 1]
            ordinal = U32(first_ordinal + i)
            out_ordinals[at] = ordinal | SUPERSEDES if kinds[i] == SUPERSEDING else ordinal


@njit(cache=True, nogil=True)
def order_by_rank(hashes, ordinals, starts, ranks):
    """Sort the records of each bucket by rank, the lowest first; records of equal rank keep their order.

    Args:
        hashes, ordinals: uint64[entries, 2], uint32[entries], bucket after bucket; changed.
        starts: int64[BUCKETS + 1], start of each bucket.
        ranks: int64[records], by ordinal.
    """
    for bucket in range(starts.size - 1):
        first, end = starts[bucket], starts[bucket + 1]
        own = np.empty(end - first, np.int64)
        for i in range(first, end):
            own[i - first] = ranks[ordinals[i] & ~SUPERSEDES]
        order = np.argsort(own, kind="mergesort")
        hashes[first:end], ordinals[first:end] = hashes[first:end][order], ordinals[first:end][order]


@njit(inline="always")
def _table_size(entries):
    size = np.int64(_FIRST_SLOTS)
    while size < 2 * entries:
        size *= 2
    return size


@njit(inline="always")
def _find(slots, mask, low, high):
    """Return the slot of a hash, or the free slot for it. A slot is free if both halves are 0."""
    at = np.int64(low) & mask
    while (slots[at, 0] != low or slots[at, 1] != high) and (slots[at, 0] != U64(0) or slots[at, 1] != U64(0)):
        at = (at + 1) & mask
    return at


@njit(inline="always")
def _low(low, high):
    # No key may look like a free slot.
    return U64(1) if low == U64(0) and high == U64(0) else low


@njit(cache=True, nogil=True)
def dedupe(hashes, ordinals, starts, bits):
    """Drop the records of each bucket that a later one of the same bucket supersedes, and close the gaps.

    Args:
        hashes: uint64[entries, 2], bucket after bucket, in log order or by rank within each; changed.
        ordinals: uint32[entries], likewise; changed.
        starts: int64[BUCKETS + 1], start of each bucket; changed to the start of its remaining records.
        bits: uint8, a bit per ordinal, set for dropped records.
    """
    largest = np.int64(0)
    for bucket in range(starts.size - 1):
        largest = max(largest, starts[bucket + 1] - starts[bucket])
    table = np.zeros((_table_size(largest), 2), np.uint64)
    filled = np.int64(0)
    for bucket in range(starts.size - 1):
        first, end = starts[bucket], starts[bucket + 1]
        starts[bucket] = filled
        size = _table_size(end - first)
        slots, mask = table[:size], size - 1
        slots[:] = U64(0)
        # Collect the remaining records at the bucket's end, still in order, and then move them down.
        left = end
        for i in range(end - 1, first - 1, -1):
            high, ordinal = hashes[i, 1], ordinals[i]
            low = _low(hashes[i, 0], high)
            at = _find(slots, mask, low, high)
            if slots[at, 0] != U64(0) or slots[at, 1] != U64(0):
                number = ordinal & ~SUPERSEDES
                bits[number >> U32(3)] |= np.uint8(1) << np.uint8(number & U32(7))
                continue
            if ordinal & SUPERSEDES:
                slots[at, 0], slots[at, 1] = low, high
            left -= 1
            hashes[left, 0], hashes[left, 1], ordinals[left] = low, high, ordinal
        for i in range(left, end):
            hashes[filled, 0], hashes[filled, 1], ordinals[filled] = hashes[i, 0], hashes[i, 1], ordinals[i]
            filled += 1
    starts[-1] = filled


@njit(cache=True, nogil=True)
def merge(hashes, ordinals, starts, dead):
    """Find the records that newer chunks supersede.

    Args:
        hashes, ordinals: int64[chunks], addresses of each chunk's entries, deduplicated; the oldest chunk first. The
            ordinals are overwritten: the first `dead` of them are the superseded ones.
        starts: int64[chunks, buckets + 1], start of each bucket of each chunk, and the end of the last one.
        dead: int64[chunks], filled: number of superseded ordinals of each chunk.
    """
    sizes = np.zeros(starts.shape[1] - 1, np.int64)
    for bucket in range(sizes.size):
        for c in range(starts.shape[0]):
            sizes[bucket] += starts[c, bucket + 1] - starts[c, bucket]
    table = np.zeros((_table_size(sizes.max() if sizes.size else 0), 2), np.uint64)
    dead[:] = 0
    for bucket in range(sizes.size):
        size = _table_size(sizes[bucket])
        slots, mask = table[:size], size - 1
        slots[:] = U64(0)
        for c in range(starts.shape[0] - 1, -1, -1):
            first, end = starts[c, bucket], starts[c, bucket + 1]
            # The newest first: a record that is only compared may be newer than a superseding one with the same key.
            for i in range(end - 1, first - 1, -1):
                low, high = U64(load64(hashes[c] + 16 * i)), U64(load64(hashes[c] + 16 * i + 8))
                ordinal = U32(load32(ordinals[c] + 4 * i))
                at = _find(slots, mask, low, high)
                found = slots[at, 0] != U64(0) or slots[at, 1] != U64(0)
                if not found and ordinal & SUPERSEDES:
                    slots[at, 0], slots[at, 1] = low, high
                store32(ordinals[c] + 4 * i, ordinal & ~SUPERSEDES if found else _STAYS)
            for i in range(first, end):
                ordinal = U32(load32(ordinals[c] + 4 * i))
                if ordinal != _STAYS:
                    store32(ordinals[c] + 4 * dead[c], ordinal)
                    dead[c] += 1


@njit(cache=True, nogil=True)
def set_bits(ordinals, bits):
    """Set the bit of each ordinal, uint32[n], in bits, uint8[> largest ordinal / 8]."""
    for i in range(ordinals.size):
        bits[ordinals[i] >> U32(3)] |= np.uint8(1) << np.uint8(ordinals[i] & U32(7))


@njit(cache=True, nogil=True)
def choose_marked(rows, next_ordinals, bits, kinds, ordinals):
    """Choose the records whose bit is set.

    Args:
        rows: RECORD_ROW[records].
        next_ordinals: int64, for each number in rows["batch"] the ordinal of its first record here; advanced.
        bits: uint8, a bit per ordinal.
        kinds, ordinals: uint8[records], uint32[records], filled: COMPARED or IGNORED, and the ordinal of each record.
    """
    for i in range(rows.size):
        ordinal = next_ordinals[rows[i]["batch"]]
        next_ordinals[rows[i]["batch"]] = ordinal + 1
        ordinals[i] = U32(ordinal)
        is_set = (bits[ordinal >> 3] >> np.uint8(ordinal & 7)) & np.uint8(1)
        kinds[i] = COMPARED if is_set and rows[i]["key_size"] >= 0 else IGNORED


@njit(cache=True, nogil=True)
def clear_bits(ordinals, kinds, bits):
    """Clear the bits of records that are not SUPERSEDED; ordinals: uint32[records]."""
    for i in range(kinds.size):
        if kinds[i] != SUPERSEDED:
            bits[ordinals[i] >> U32(3)] &= ~(np.uint8(1) << np.uint8(ordinals[i] & U32(7)))


@njit(cache=True, nogil=True)
def count_bits(bits, first_ordinals, sizes, counts):
    """Count the superseded records of each batch.

    Args:
        bits: uint8, a bit per ordinal.
        first_ordinals: int64[batches], ordinal of each batch's first record; negative: skip the batch, its count is 0.
        sizes: int64[batches], number of records in each.
        counts: int64[batches], filled.
    """
    for b in range(first_ordinals.size):
        counts[b] = 0
        if first_ordinals[b] >= 0:
            ordinal, end = first_ordinals[b], first_ordinals[b] + sizes[b]
            while ordinal < end:
                if ordinal & 7 == 0 and ordinal + 8 <= end:
                    counts[b] += _ONES[bits[ordinal >> 3]]
                    ordinal += 8
                else:
                    counts[b] += (bits[ordinal >> 3] >> np.uint8(ordinal & 7)) & np.uint8(1)
                    ordinal += 1


# ---- records of bodies -----------------------------------------------------------------------------------------------

# A few records at a time are decoded, so that their rows stay in a near cache.

#: Number of records to decode before hashing their keys: 12 KiB of rows, and the bytes of a few batches.
_AT_ONCE = 256


@njit(cache=True, nogil=True)
def keys_of_bodies(
    address,
    starts,
    ends,
    batches,
    index_of,
    superseding_from,
    end_offset,
    secret,
    counts,
    flags,
    kinds,
    hashes,
    offsets,
):
    """Classify the records of some bodies, and hash their keys.

    Args:
        address: address of the data that contains all bodies.
        starts, ends: int64[batches], positions of each body in the data.
        batches: BATCH_ROW[batches].
        index_of, superseding_from, counts, flags: see `note_records`.
        end_offset: records at or above it are IGNORED.
        secret: uint64[2], see `hash_keys`.
        kinds: uint8[records], filled. Has room for the number of records in the headers.
        hashes: uint64[records, 2], filled except for IGNORED records.
        offsets: int64[records], filled; or empty.

    Returns:
        (status, records, first, last, in_order): unless the status is DONE, a body is damaged, and the other results
        are invalid; number of records; first and last offset; whether the offsets ascend.
    """
    rows, chosen = np.empty(_AT_ONCE, RECORD_ROW), np.empty(_AT_ONCE, np.bool_)
    batch, at, done, records = np.int64(0), starts[0], np.int64(0), np.int64(0)
    first, last, in_order = np.int64(-1), np.int64(-1), True
    while True:
        room = min(_AT_ONCE, kinds.size - records)
        status, count, batch, at, done, _ = decode_records(
            address, starts, ends, True, batches, batch, at, done, rows[:room]
        )
        if status < 0:
            return status, records, first, last, in_order
        if count > 0:
            some, found = rows[:count], kinds[records : records + count]
            if records == 0:
                first = some[0]["offset"]
            last, ascending = note_records(some, index_of, superseding_from, last, found, counts, flags)
            in_order = in_order and ascending
            for i in range(count):
                if some[i]["offset"] >= end_offset:
                    found[i] = IGNORED
                chosen[i] = found[i] != IGNORED
                if offsets.size:
                    offsets[records + i] = some[i]["offset"]
            hash_keys(
                address, some["key_start"], some["key_size"], chosen[:count], secret[0], secret[1],
                hashes[records : records + count],
            )  # fmt: skip
            records += count
        if status != ROWS or room == 0:
            return status, records, first, last, in_order
