"""Build and search a key index; `storage.formats.key_index` describes its contents.

    gather      take the hashes of some records' keys, and the ordinals of the records
    renumber    compute the ordinals of a segment's kept records in the rewritten segment
    take        take known keys of a segment for its kept records, with these ordinals
    scatter     distribute keys to coarse buckets by few bits, as a cache can hold only that many streams of writes
    fill        sort each coarse bucket, which fits a cache, by the remaining bits
    match       look up each key in its bucket: costs depend on the number of keys
    mark        mark the records of the entries that matched
    stream      pass the index along the keys, which are sorted by hash: costs depend on the number of entries

The arrays of an index are read from a file. Each position or ordinal is compared with its bound before it is used;
other wrong numbers can only produce a wrong candidate, and candidates are compared by their bytes.
"""

from __future__ import annotations

import numpy as np

from cordwood.kernels.compiling import njit
from cordwood.kernels.native import load32, prefetch

U64, U32 = np.uint64, np.uint32

#: Bits of the coarse buckets.
COARSE_BITS = 9
#: Result of a search in an invalid index.
BROKEN = -1
_AHEAD = 16
#: Buckets up to this number of entries are sorted by insertion.
_FEW = 64
#: The number of a removed record.
GONE = U32(0xFFFF_FFFF)


@njit(cache=True, nogil=True)
def gather(rows, hashes, next_ordinals, has_horizon, out_hashes, out_ordinals):
    """Take the keys of records.

    Args:
        rows: RECORD_ROW[records].
        hashes: uint64[records, 2]; undefined for records without a key.
        next_ordinals: int64[batches], for each number in rows["batch"] the ordinal of its first record here; advanced.
        has_horizon: bool[batches], likewise.
        out_hashes, out_ordinals: uint64[records], uint32[records], filled from the start.

    Returns:
        (keys, keyless, tombstones): number of keys taken; whether there is a record without a key, and a tombstone in a
        batch without a delete horizon.
    """
    keys = 0
    tombstones = False
    for i in range(rows.size):
        row = rows[i]
        ordinal = next_ordinals[row["batch"]]
        next_ordinals[row["batch"]] = ordinal + 1
        if row["key_size"] < 0:
            continue
        out_hashes[keys] = hashes[i, 1]
        out_ordinals[keys] = U32(ordinal)
        keys += 1
        tombstones |= (row["value_size"] < 0) & (not has_horizon[row["batch"]])
    return keys, keys < rows.size, tombstones


@njit(cache=True, nogil=True)
def renumber(bits, first_ordinals, counts, out_firsts, numbers):
    """Number the kept records of a segment.

    Args:
        bits: uint8, a bit per ordinal, set for removed records.
        first_ordinals, counts: int64[batches], int32[batches], the records of each batch.
        out_firsts: int64[batches], number of the first kept record of each batch; negative if no record is kept.
        numbers: uint32[ordinals], filled for all records of the batches; GONE for a removed record.
    """
    for b in range(first_ordinals.size):
        number = out_firsts[b]
        for ordinal in range(first_ordinals[b], first_ordinals[b] + counts[b]):
            if number < 0 or (bits[ordinal >> 3] >> np.uint8(ordinal & 7)) & np.uint8(1):
                numbers[ordinal] = GONE
            else:
                numbers[ordinal] = U32(number)
                number += 1


@njit(cache=True, nogil=True)
def take(hashes, ordinals, numbers, out_hashes, out_ordinals):
    """Take the keys of the kept records.

    Args:
        hashes, ordinals: uint64[keys], uint32[keys].
        numbers: uint32[records], see `renumber`.
        out_hashes, out_ordinals: uint64[keys], uint32[keys], filled from the start.

    Returns:
        the number of keys taken; BROKEN if an ordinal is out of range.
    """
    taken = 0
    address = numbers.ctypes.data
    for i in range(hashes.size):
        # An index sorts keys by hash, so the records of adjacent keys are far apart.
        if i + _AHEAD < hashes.size and ordinals[i + _AHEAD] < numbers.size:
            prefetch(address + 4 * np.int64(ordinals[i + _AHEAD]))
        if ordinals[i] >= numbers.size:
            return BROKEN
        number = numbers[ordinals[i]]
        if number != GONE:
            out_hashes[taken], out_ordinals[taken] = hashes[i], number
            taken += 1
    return taken


@njit(cache=True, nogil=True)
def restore(starts, tags, bits, hashes):
    """Fill uint64[entries] with the hashes of an index, as far as it stores them: the remaining bits are 0."""
    shift, tag_shift = U64(64 - bits), U64(32 - bits)
    for bucket in range(starts.size - 1):
        for at in range(starts[bucket], starts[bucket + 1]):
            hashes[at] = (U64(bucket) << shift) | (U64(tags[at]) << tag_shift)


@njit(cache=True, nogil=True)
def count(hashes, shift, counts):
    """Count the hashes, uint64[keys], by their top bits; add to counts, int64[2^bits]."""
    for i in range(hashes.size):
        counts[hashes[i] >> U64(shift)] += 1


@njit(cache=True, nogil=True)
def scatter(hashes, ordinals, shift, ends, out_hashes, out_ordinals):
    """Append keys to their coarse buckets, at `ends`, int64[2^bits], the current end of each; advanced."""
    for i in range(hashes.size):
        bucket = hashes[i] >> U64(shift)
        at = ends[bucket]
        ends[bucket] = at + 1
        out_hashes[at] = hashes[i]
        out_ordinals[at] = ordinals[i]


@njit(inline="always")
def _order(start, end, tags, ordinals):
    """Sort the entries of a bucket by ordinal; most are already sorted, or consist of a few sorted runs."""
    for i in range(start + 1, end):
        if ordinals[i] < ordinals[i - 1]:
            if end - start > _FEW:
                order = np.argsort(ordinals[start:end])
                tags[start:end], ordinals[start:end] = tags[start:end][order], ordinals[start:end][order]
                return
            tag, ordinal, at = tags[i], ordinals[i], i
            while at > start and ordinals[at - 1] > ordinal:
                tags[at], ordinals[at] = tags[at - 1], ordinals[at - 1]
                at -= 1
            tags[at], ordinals[at] = tag, ordinal


@njit(cache=True, nogil=True)
def fill(hashes, ordinals, coarse_starts, coarse_bits, bits, starts, tags, out_ordinals):
    """Sort each coarse bucket by all bits, and by ordinals within each bucket; fill the arrays of an index.

    Args:
        hashes, ordinals: uint64[keys], uint32[keys], coarse bucket after coarse bucket.
        coarse_starts: int64[2^coarse_bits + 1].
        bits: number of bits that select a bucket, at least `coarse_bits`.
        starts, tags, out_ordinals: uint32[2^bits + 1], uint32[keys], uint32[keys], filled.
    """
    shift, tag_shift = U64(64 - bits), U64(32 - bits)
    fine = 1 << (bits - coarse_bits)
    ends = np.zeros(fine, np.int64)
    for coarse in range(coarse_starts.size - 1):
        start, end = coarse_starts[coarse], coarse_starts[coarse + 1]
        ends[:] = 0
        for i in range(start, end):
            ends[np.int64(hashes[i] >> shift) & (fine - 1)] += 1
        at = start
        for bucket in range(fine):
            starts[coarse * fine + bucket] = at
            size = ends[bucket]
            ends[bucket] = at
            at += size
        for i in range(start, end):
            bucket = np.int64(hashes[i] >> shift) & (fine - 1)
            at = ends[bucket]
            ends[bucket] = at + 1
            tags[at] = U32(hashes[i] >> tag_shift)
            out_ordinals[at] = ordinals[i]
        for bucket in range(fine):
            _order(starts[coarse * fine + bucket], ends[bucket], tags, out_ordinals)
    starts[starts.size - 1] = coarse_starts[coarse_starts.size - 1]


@njit(inline="always")
def _mark(ordinal, records, bits):
    """Set the bit of a record; return False if its ordinal is out of range."""
    if ordinal >= records:
        return False
    bits[ordinal >> 3] |= np.uint8(1 << (ordinal & 7))
    return True


@njit(cache=True, nogil=True)
def match(keys, index_bits, entries, starts, tags, matches):
    """Find the entries with the tags of some keys, looking up one key after the other; ordinals are not read.

    Args:
        keys: uint64[keys], hashes; sorted hashes are faster.
        index_bits, entries: bits and number of entries of the index.
        starts, tags: addresses of its arrays: uint32[2^index_bits + 1], uint32[entries].
        matches: uint32[any], filled with the found entries as far as there is room.

    Returns:
        the number of entries that matched, which may be more than there is room for; BROKEN if the index is invalid.
    """
    shift, tag_shift = U64(64 - index_bits), U64(32 - index_bits)
    found = 0
    for i in range(keys.size):
        if i + 2 * _AHEAD < keys.size:
            prefetch(starts + 4 * np.int64(keys[i + 2 * _AHEAD] >> shift))
        if i + _AHEAD < keys.size:
            prefetch(tags + 4 * np.int64(load32(starts + 4 * np.int64(keys[i + _AHEAD] >> shift))))
        bucket = np.int64(keys[i] >> shift)
        start, end = np.int64(load32(starts + 4 * bucket)), np.int64(load32(starts + 4 * bucket + 4))
        if end > entries:
            return BROKEN
        tag = U32(keys[i] >> tag_shift)
        for at in range(start, end):
            if load32(tags + 4 * at) == tag:
                if found < matches.size:
                    matches[found] = U32(at)
                found += 1
    return found


@njit(cache=True, nogil=True)
def mark(matches, ordinals, records, bits):
    """Mark the records of some entries; return the number of entries, or BROKEN if the index is invalid.

    Args:
        matches: uint32[entries], ascending entries are faster.
        ordinals: address of the index's array.
        records: number of records in the segment.
        bits: uint8[(records + 7) // 8], a bit per record; set for the found records.
    """
    for i in range(matches.size):
        if not _mark(np.int64(load32(ordinals + 4 * np.int64(matches[i]))), records, bits):
            return BROKEN
    return matches.size


@njit(cache=True, nogil=True)
def fill_filter(keys, filter_bits, words):
    """Set a bit for the top bits of each key, in words: uint64[2^filter_bits / 64]."""
    for i in range(keys.size):
        at = np.int64(keys[i] >> U64(64 - filter_bits))
        words[at >> 6] |= U64(1) << U64(at & 63)


@njit(cache=True, nogil=True)
def stream(keys, filter_bits, words, index_bits, entries, starts, tags, ordinals, records, bits):
    """Find the same records as `match` and `mark`, by one pass over the index.

    Index and keys are sorted by hash, so all memory is read in order. The filter passes few entries that do not match.
    Entries that pass are searched among the keys of their bucket.

    Args:
        keys: uint64[keys], hashes in ascending order.
        filter_bits, words: see `fill_filter`; at most 32 bits.
        index_bits, entries, starts, tags, ordinals, records, bits: see `match` and `mark`; all arrays are addresses.
    """
    tag_shift = U64(32 - index_bits)
    filter_shift = U64(index_bits + 32 - filter_bits)
    found = 0
    first = 0
    at = np.int64(0)
    for bucket in range(1 << index_bits):
        end = np.int64(load32(starts + 4 * bucket + 4))
        if end > entries:
            return BROKEN
        prefix = U64(bucket) << U64(32)
        while first < keys.size and keys[first] >> tag_shift < prefix:
            first += 1
        if first < keys.size and keys[first] >> U64(64 - index_bits) == U64(bucket):
            while at < end:
                hashed = prefix | U64(load32(tags + 4 * at))
                place = np.int64(hashed >> filter_shift)
                if (words[place >> 6] >> U64(place & 63)) & U64(1):
                    i = first
                    while i < keys.size and keys[i] >> tag_shift < hashed:
                        i += 1
                    if i < keys.size and keys[i] >> tag_shift == hashed:
                        if not _mark(np.int64(load32(ordinals + 4 * at)), records, bits):
                            return BROKEN
                        found += 1
                at += 1
        at = max(at, end)
    return found
