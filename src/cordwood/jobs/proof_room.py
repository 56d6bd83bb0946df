"""How much disk the proof of a clean in place takes for temporary files, as far as a plan knows."""

from __future__ import annotations

from cordwood.cleaning.plan import Compaction
from cordwood.verification.room import scratch_bytes_max

#: About how few bytes a record takes, where wrappers of magic 0 and 1 hide how many there are: a convention.
_RECORD_BYTES = 32


def proof_bytes(compaction: Compaction) -> int:
    """The most that the proof of a partition takes, each time that a wave of its clean is proved.

    Batches of transactions are counted where the clean reads. Behind that they are taken to be as dense. If the files
    need more, the proof ends with a full disk, and the partition stays as it was.
    """
    read = max(compaction.total_bytes, 1)
    records = compaction.bounds.records_max
    return scratch_bytes_max(
        log_bytes=compaction.log_bytes,
        segments=sum(map(len, compaction.groups)),
        records=compaction.total_bytes // _RECORD_BYTES if records is None else records,
        transactional_batches=compaction.transactional_batches * max(compaction.log_bytes, read) // read,
    )
