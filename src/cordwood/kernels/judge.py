"""Which records are kept, and the header of a batch without the others.

The rules' decisions about whole batches are passed as an array; their decisions about a record are the chain of cases
in `judge_records`, and nowhere else. Why it is safe to drop a record, with the dirty section from offset 2 to 6:

    offset    0     1   |  2     3     4     5      6     |  7
    record   a=1   b=1  | a=2   b=∅   c=1   a=3   abort   | a=4      ∅: a tombstone; 5 is of the aborted transaction

    (1) 0 is superseded by 2, and 1 by 3. The table of newest offsets contains only data of the dirty section, and none
        of an aborted transaction. The section ends at or below the last stable offset, so all of its transactions are
        decided. So every consumer gets a newer record that is in the table.
    (2) 2 is kept, although 5 and 7 are newer. 5 is aborted: without 2 the key would be lost. 7 is above the section:
        its transaction may yet be aborted. Neither is in the table, so neither supersedes anything. A record above
        `latest_offset` is never dropped for its key either: the table has no records from there.
    (3) 3 is kept, although it deletes b, and its batch gets a delete horizon, `delete.retention.ms` ahead of now. A
        consumer that has read 1 gets the tombstone if it reads that far before the horizon.
    (4) A later clean, at or after the horizon, drops 3. This brings back no older value of b: the clean with 3 in its
        dirty section dropped all older values, or this clean has 3 in its dirty section and drops them, too. Other
        replicas may still have 1, and would bring it back by becoming the leader; so 3 is dropped only if there are no
        other replicas (TOMBSTONES_EXPIRED), and is counted otherwise (KEPT_FOR_REPLICAS).
    (5) Only (4) drops the newest record of a key in the table, so no clean loses a value: each key has the same last
        value for a consumer before and after the clean.

`tests/cleaning/cases/keys.txt` has this log as a case. A compacted log keeps no records without a key.
"""

from __future__ import annotations

import numpy as np

from cordwood.kernels.compiling import njit
from cordwood.kernels.layout import DELETE_HORIZON, LOG_APPEND_TIME

#: Counts of `judge_records`, by index. Every record that is read counts as one of the next six; records kept for
#: replicas also count as kept.
READ, KEPT, SUPERSEDED, WITHOUT_KEY, ABORTED, TOMBSTONES_EXPIRED, MARKERS_EXPIRED, KEPT_FOR_REPLICAS = range(8)
COUNTS = 8
#: The rules' decisions about a batch, as input of `judge_records`.
#:
#: `first_ordinal` is the ordinal of its first record; if negative, `newest` decides instead. `tombstone_fate` is KEPT,
#: TOMBSTONES_EXPIRED or KEPT_FOR_REPLICAS, for tombstones that no record supersedes. `discarded` batches lose all
#: records.
BATCH_RULES = np.dtype(
    [
        ("first_ordinal", np.int64),
        ("tombstone_fate", np.int8),
        ("control", np.bool_),
        ("discarded", np.bool_),
    ],
    align=True,
)
#: Its findings about a batch, by index: number of records, of kept ones, and of kept ones without a value; indexes of
#: the first and last kept record, and the largest timestamp of kept records.
TOTAL, STAY, TOMBSTONES, FIRST, LAST, LARGEST = range(6)
FINDINGS = 6


@njit(cache=True, nogil=True)
def judge_records(
    rows,
    index_of,
    rules,
    superseded,
    newest,
    latest_offset,
    keep,
    found,
    counts,
):
    """Decide which records are kept: the cases of a record, in order; the module's docstring proves that each is safe.

    Args:
        rows: RECORD_ROW[records], with all records of a batch, adjacent.
        index_of: int64, for each number in rows["batch"] the index of that batch in `rules` and `found`.
        rules: BATCH_RULES[batches].
        superseded: uint8, a bit per ordinal.
        newest: int64[records], the newest offset of each record's key in the table, or -1; may be empty if all ordinals
            are known.
        latest_offset: records above it are kept whatever their key.
        keep: bool[records], filled.
        found: int64[batches, FINDINGS], zeros, filled for batches with records.
        counts: int64[batches, COUNTS], added to.
    """
    current = np.int64(-1)
    ordinal = np.int64(-1)
    control, discarded, tombstone_fate = False, False, np.int64(KEPT)
    for i in range(rows.size):
        row = rows[i]
        b = index_of[row["batch"]]
        if b != current:
            current = b
            ordinal = rules[b]["first_ordinal"]
            control, discarded = rules[b]["control"], rules[b]["discarded"]
            tombstone_fate = np.int64(rules[b]["tombstone_fate"])
        if ordinal >= 0:
            older = (superseded[ordinal >> 3] >> np.uint8(ordinal & 7)) & np.uint8(1) != 0
            ordinal += 1
        else:
            older = newest.size > 0 and row["offset"] < newest[i]
        is_tombstone = row["value_size"] < 0
        fate = KEPT
        if discarded:
            fate = MARKERS_EXPIRED if control else ABORTED
        elif control or row["offset"] > latest_offset:
            pass
        elif row["key_size"] < 0:
            fate = WITHOUT_KEY
        elif older:
            fate = SUPERSEDED
        elif is_tombstone:
            fate = tombstone_fate
            if fate == KEPT_FOR_REPLICAS:
                counts[b, KEPT_FOR_REPLICAS] += 1
                fate = KEPT
        counts[b, READ] += 1
        counts[b, fate] += 1
        found[b, TOTAL] += 1
        keep[i] = fate == KEPT
        if fate == KEPT:
            if found[b, STAY] == 0:
                found[b, FIRST] = i
                found[b, LARGEST] = row["timestamp"]
            found[b, STAY] += 1
            found[b, TOMBSTONES] += is_tombstone
            found[b, LAST] = i
            found[b, LARGEST] = max(found[b, LARGEST], row["timestamp"])


@njit(cache=True, nogil=True)
def renew_headers(headers, anew, horizon_due, horizon_ms, found, rows):
    """Fill in the headers of re-encoded batches, except for size and CRC.

    Args:
        headers: BATCH_ROW[batches], as they were read; changed where `anew`.
        anew: bool[batches], the batches to change; each keeps a record.
        horizon_due: bool[batches], the batches that get a delete horizon.
        found: int64[batches, FINDINGS], filled by `judge_records`.
        rows: RECORD_ROW[records], the rows passed to `judge_records`.
    """
    for b in range(headers.size):
        if not anew[b]:
            continue
        header = headers[b]
        first, last = rows[found[b, FIRST]], rows[found[b, LAST]]
        old = header["magic"] < 2
        if horizon_due[b]:
            header["base_timestamp"] = horizon_ms
        elif old or header["attributes"] & DELETE_HORIZON == 0:
            header["base_timestamp"] = first["timestamp"]
        if header["attributes"] & LOG_APPEND_TIME == 0:
            header["max_timestamp"] = found[b, LARGEST]
        header["record_count"] = found[b, STAY]
        if old:
            header["base_offset"] = first["offset"]
            header["last_offset"] = last["offset"]
            header["leader_epoch"] = -1
            header["producer_id"] = -1
            header["producer_epoch"] = -1
            header["base_sequence"] = -1
            header["magic"] = 2
        if horizon_due[b]:
            header["attributes"] |= DELETE_HORIZON
