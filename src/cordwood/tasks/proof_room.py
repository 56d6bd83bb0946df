"""Disk space needed for temporary files by the proof of a clean in place, estimated from a plan."""

from __future__ import annotations

from cordwood.cleaning.proof.room import scratch_bytes_max
from cordwood.cleaning.rules.plan import Compaction

#: Assumed bytes per record where wrappers of magic 0 and 1 hide the number of records.
_RECORD_BYTES = 32


def proof_bytes(compaction: Compaction) -> int:
    """Return the most bytes that the proof of a partition needs each time a wave of its clean is proved.

    Transactional batches are counted only in the part that the clean reads; the estimate assumes the same density in
    the remaining log. If the files need more space, the proof fails with a full disk, and the partition stays
    unchanged.
    """
    read = max(compaction.total_bytes, 1)
    records = compaction.bounds.records_max
    return scratch_bytes_max(
        log_bytes=compaction.log_bytes,
        segments=sum(map(len, compaction.groups)),
        records=compaction.total_bytes // _RECORD_BYTES if records is None else records,
        transactional_batches=compaction.transactional_batches * max(compaction.log_bytes, read) // read,
    )
