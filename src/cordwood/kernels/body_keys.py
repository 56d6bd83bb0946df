"""Hash the keys of records in bodies of magic 2, a few records at a time, so that their rows stay in a near cache."""

from __future__ import annotations

import numpy as np
from numba import njit

from cordwood.kernels.decode import ROWS, decode_records
from cordwood.kernels.hashing import hash_keys
from cordwood.kernels.layout import RECORD_ROW
from cordwood.kernels.superseded import IGNORED, note_records

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
