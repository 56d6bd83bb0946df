"""Compare the records of two states of a log, in the order of their offsets.

`match_records` compares decoded rows; the decoder has checked every position and size. It compares fields, not encoded
bytes: a re-encoded batch has other deltas and sizes for the same records.

`compare_plain` compares batch by batch of both states, without rows. It accepts only uncompressed batches of magic 2,
and reports only that they match. If anything is odd, `match_records` has to compare them.
"""

from __future__ import annotations

import numpy as np

from cordwood.kernels.compiling import njit
from cordwood.kernels.decode import DONE, one_record, varint
from cordwood.kernels.last_records import ONLY_REMOVED, enter
from cordwood.kernels.layout import CODEC_MASK, HEADER_BYTES, LOG_APPEND_TIME, RECORD_ROW
from cordwood.kernels.native import load8, load64, prefetch

#: Differences of a record after the clean; `INVENTED`: the state before has no record with its offset.
INVENTED, TIMESTAMP, KEY, VALUE, HEADERS = (np.uint8(1 << bit) for bit in range(5))

_FAR = 0x7FFFFFFF


@njit(inline="always")
def _same_bytes(a, b, size):
    different = np.uint64(0)
    at = 0
    # Four words without a branch in between.
    while at + 32 <= size:
        different |= load64(a + at) ^ load64(b + at)
        different |= load64(a + at + 8) ^ load64(b + at + 8)
        different |= load64(a + at + 16) ^ load64(b + at + 16)
        different |= load64(a + at + 24) ^ load64(b + at + 24)
        if different != np.uint64(0):
            return False
        at += 32
    while at + 8 <= size:
        different |= load64(a + at) ^ load64(b + at)
        at += 8
    while at < size:
        different |= np.uint64(load8(a + at) ^ load8(b + at))
        at += 1
    return different == np.uint64(0)


@njit
def _same_headers(a, b, count):
    """Return whether `count` headers at two addresses are equal; a null value differs from an empty one."""
    a_far, b_far = a + _FAR, b + _FAR
    for _ in range(count):
        for _ in range(2):  # the name, and the value
            a_size, a = varint(a, a_far)
            b_size, b = varint(b, b_far)
            a_size, b_size = max(a_size, np.int32(-1)), max(b_size, np.int32(-1))
            if a_size != b_size or not _same_bytes(a, b, a_size):
                return False
            a += max(a_size, np.int32(0))
            b += max(b_size, np.int32(0))
    return True


@njit
def _differences(before_address, was, after_address, now):
    """Return the differences of two records with the same offset as bits; 0 if they are equal."""
    found = np.uint8(0)
    if was["timestamp"] != now["timestamp"]:
        found |= TIMESTAMP
    size = was["key_size"]
    a, b = before_address + was["key_start"], after_address + now["key_start"]
    if size != now["key_size"] or not _same_bytes(a, b, size):
        found |= KEY
    size = was["value_size"]
    a, b = before_address + was["value_start"], after_address + now["value_start"]
    if size != now["value_size"] or not _same_bytes(a, b, size):
        found |= VALUE
    count = was["header_count"]
    if count != now["header_count"]:
        found |= HEADERS
    elif count > 0:
        a, b = before_address + was["headers_start"], after_address + now["headers_start"]
        if not _same_headers(a, b, count):
            found |= HEADERS
    return found


@njit(cache=True, nogil=True)
def match_records(before_address, before, before_at, after_address, after, after_at, there, differs):
    """Compare records until one state has no more rows.

    Args:
        before_address, after_address: addresses of the bytes that contain the rows' keys, values and headers.
        before, after: RECORD_ROW[records]; the offsets of each ascend.
        before_at, after_at: indexes to start at.
        there: bool[records before], all false; set where the state after has a record with that offset.
        differs: uint8[records after], all `INVENTED`; set to the differences, or 0, where the offset exists before.

    Returns:
        the indexes of the first rows that have not been compared.
    """
    while before_at < before.size and after_at < after.size:
        was, now = before[before_at], after[after_at]
        if was["offset"] < now["offset"]:
            before_at += 1
            continue
        if was["offset"] > now["offset"]:
            after_at += 1
            continue
        differs[after_at] = _differences(before_address, was, after_address, now)
        there[before_at] = True
        before_at += 1
        after_at += 1
    return before_at, after_at


@njit(cache=True, nogil=True)
def look_over(rows, last, ascends, batch_first, batch_count, batch_newest):
    """Check in one pass over decoded records whether their offsets ascend, and find the records of each batch.

    Args:
        rows: RECORD_ROW[records], with the records of each batch adjacent.
        last: offset of the record before them.
        ascends: bool[records], filled: whether the offset is above all previous ones.
        batch_first, batch_count, batch_newest: int64[records], filled for each batch that has records: index of the
            first, number of records, their largest timestamp.

    Returns:
        (batches with records, records that do not ascend).
    """
    batches = 0
    wrong = 0
    current = np.int64(-1)
    for i in range(rows.size):
        row = rows[i]
        above = row["offset"] > last
        ascends[i] = above
        if above:
            last = row["offset"]
        else:
            wrong += 1
        if row["batch"] != current:
            current = row["batch"]
            batch_first[batches], batch_count[batches], batch_newest[batches] = i, 0, row["timestamp"]
            batches += 1
        batch_count[batches - 1] += 1
        batch_newest[batches - 1] = max(batch_newest[batches - 1], row["timestamp"])
    return batches, wrong


#: Why `compare_plain` ended: all batches before are compared; it needs more batches after; it found something odd.
COMPARED, MORE_AFTER, ODD = range(3)
_AHEAD = 2


@njit(cache=True, nogil=True)
def are_plain(batches, data_end, last_offset):
    """Return whether `compare_plain` can compare these batches.

    They must have magic 2, no codec, right CRCs and ascending offsets, and be complete in the data.

    Args:
        batches: BATCH_ROW[batches].
        data_end: position in the file where the data of their window ends.
        last_offset: last offset of the batch before them.
    """
    for i in range(batches.size):
        batch = batches[i]
        if batch["magic"] != 2 or batch["attributes"] & CODEC_MASK != 0 or batch["crc"] != batch["computed_crc"]:
            return False
        if batch["base_offset"] <= last_offset or batch["last_offset"] < batch["base_offset"]:
            return False
        if batch["record_count"] < 0 or batch["position"] + batch["size_bytes"] > data_end:
            return False
        last_offset = batch["last_offset"]
    return True


@njit(inline="always")
def _is_alike(batch, other):
    """Return whether equal bytes are equal records in both batches: they have the same bases and timestamp types."""
    if batch["base_offset"] != other["base_offset"] or batch["base_timestamp"] != other["base_timestamp"]:
        return False
    if (batch["attributes"] | other["attributes"]) & LOG_APPEND_TIME == 0:
        return True
    if (batch["attributes"] & other["attributes"]) & LOG_APPEND_TIME == 0:
        return False
    return batch["max_timestamp"] == other["max_timestamp"]


@njit(inline="always")
def _is_same_batch(before_address, batch, after_address, other):
    """Return whether two batches have the same bytes."""
    size = batch["size_bytes"]
    if size != other["size_bytes"] or batch["crc"] != other["crc"]:
        return False
    return _same_bytes(before_address + batch["position"], after_address + other["position"], size)


@njit(inline="always")
def _decode_next(address, at, end, batch, row):
    """Decode the next record of a batch; return its end, or -1 if it is invalid."""
    at, status = one_record(address, at, end, True, batch["base_offset"], batch["base_timestamp"], row)
    if batch["attributes"] & LOG_APPEND_TIME != 0:
        row["timestamp"] = batch["max_timestamp"]
    return at if status == DONE else -1


@njit
def _compare_pair(before_address, batch, after_address, other, left, rule, between, points, entries, used, scratch):
    """Compare the records of a batch with those of the batch with the same offsets, if there is one.

    Args:
        left: number of records in the other batch; -1 if both are the same batch.
        scratch: RECORD_ROW[2].

    Returns:
        (entries used, newest timestamp of the other batch); the first is -1 if something is odd.
    """
    was, now = scratch[0], scratch[1]
    is_alike = left > 0 and _is_alike(batch, other)
    at, end = batch["position"] + HEADER_BYTES, batch["position"] + batch["size_bytes"]
    other_at, other_end = other["position"] + HEADER_BYTES, other["position"] + other["size_bytes"]
    other_next = np.int64(0)  # end of the decoded record of the other batch; 0 if none is decoded
    is_empty = left <= 0
    offset = batch["base_offset"] - 1
    newest = np.int64(-(2**63))
    for _ in range(batch["record_count"]):
        following = _decode_next(before_address, at, end, batch, was)
        if following < 0 or was["offset"] <= offset or was["offset"] > batch["last_offset"]:
            return -1, newest
        offset = was["offset"]
        size = following - at
        # The starts of later records are unknown yet; guess that the next ones have the size of this one.
        prefetch(before_address + following + _AHEAD * size)
        is_there = left < 0
        if left > 0 and other_next == 0:
            if (
                is_alike
                and size <= other_end - other_at
                and _same_bytes(before_address + at, after_address + other_at, size)
            ):
                is_there = True
                other_at += size
            else:
                other_next = _decode_next(after_address, other_at, other_end, other, now)
                if other_next < 0:
                    return -1, newest
        if other_next > 0 and now["offset"] <= offset:
            if now["offset"] < offset or _differences(before_address, was, after_address, now) != 0:
                return -1, newest
            is_there = True
            other_at = other_next
            other_next = np.int64(0)
        if is_there and left > 0:
            left -= 1
            newest = max(newest, was["timestamp"])
        used = enter(entries, used, before_address, was, was["offset"], rule, is_there, between, points)
        at = following
    # Kafka does not read the body of a batch with a record count of 0.
    if (at != end and batch["record_count"] > 0) or left > 0 or (not is_empty and other_at != other_end):
        return -1, newest
    return used, newest


@njit(cache=True, nogil=True)
def compare_plain(
    before_address,
    before,
    before_at,
    after_address,
    after,
    after_at,
    is_last,
    is_same,
    rules,
    between,
    points,
    entries,
    used,
    newest,
):
    """Compare the records of batches of both states, and make their entries; see `last_records.enter_records`.

    Args:
        before_address, after_address: addresses that correspond to position 0 of the file.
        before, after: BATCH_ROW[batches] that are plain, see `are_plain`.
        before_at, after_at: indexes to start at.
        is_last: there are no batches after those in `after`.
        is_same: both states have the same batches; `after` is ignored.
        rules: uint8[batches before].
        entries: ENTRY[at least used + records before].
        newest: int64[batches after], set to the newest timestamp of the records of each compared batch.

    Returns:
        (status, the indexes of the first batches that have not been compared, records that exist after, entries used).
        If something is odd, do not use the entries.
    """
    scratch = np.empty(2, RECORD_ROW)
    there = np.int64(0)
    while before_at < before.size:
        batch = before[before_at]
        other = batch
        is_paired = False
        if not is_same:
            if after_at == after.size and not is_last:
                return MORE_AFTER, before_at, after_at, there, used
            if after_at < after.size and after[after_at]["last_offset"] <= batch["last_offset"]:
                other = after[after_at]
                is_paired = True
                if other["last_offset"] < batch["last_offset"]:
                    return ODD, before_at, after_at, there, used
        if (
            is_paired
            and rules[before_at] & ONLY_REMOVED != 0
            and _is_same_batch(before_address, batch, after_address, other)
        ):
            # No record was removed, so no entry is wanted.
            newest[after_at] = batch["max_timestamp"]
            after_at += 1
            there += np.int64(batch["record_count"])
            before_at += 1
            continue
        left = np.int64(-1) if is_same else np.int64(other["record_count"]) if is_paired else np.int64(0)
        used, time = _compare_pair(
            before_address, batch, after_address, other, left, rules[before_at], between, points, entries, used, scratch
        )
        if used < 0:
            return ODD, before_at, after_at, there, used
        if is_paired:
            newest[after_at] = time
            after_at += 1
        there += np.int64(batch["record_count"]) if is_same else left
        before_at += 1
    return COMPARED, before_at, after_at, there, used
