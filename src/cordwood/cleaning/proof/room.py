"""The disk space that the tasks of a proof need for files from one task to another."""

from __future__ import annotations

from cordwood.cleaning.proof import producers, prove
from cordwood.cleaning.proof.producers import STEP
from cordwood.kernels.last_records import ENTRY

_BLOCK_BYTES = 4096


def scratch_bytes_max(*, log_bytes: int, segments: int, records: int, transactional_batches: int) -> int:
    """Return the largest size of the files of one partition's proof; 0 if it needs no file.

    The files hold an entry per record with a key, and a step per marker and transactional batch, of both states. There
    is a file per range of offsets, and no range is less than a segment. Files of repeated tasks are not counted.

    Args:
        log_bytes, segments: size and number of segments of the state before.
        records: number of records up to the first offset that no clean may change.
    """
    steps = 2 * transactional_batches
    is_one_task = 2 * log_bytes <= prove.WHOLE_BYTES
    if is_one_task and records <= prove.WHOLE_HERE_MAX and steps < producers.STEPS_AT_ONCE:
        return 0
    blocks = -(-(ENTRY.itemsize * records + STEP.itemsize * steps) // _BLOCK_BYTES) + segments + 1
    return _BLOCK_BYTES * blocks
