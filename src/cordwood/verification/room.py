"""How much disk the tasks of a proof may take for the files that they leave for each other."""

from __future__ import annotations

from cordwood.kernels.last_records import ENTRY
from cordwood.verification import producers, prove
from cordwood.verification.producers import STEP

_BLOCK_BYTES = 4096


def scratch_bytes_max(*, log_bytes: int, segments: int, records: int, transactional_batches: int) -> int:
    """The most that the files of one partition's proof take; 0: it needs none.

    An entry per record that counts for its key, and a step per marker and batch of a transaction, of both states. A
    file per range of offsets, and no range is less than a segment. Files of tasks that are run again are not counted.

    Args:
        log_bytes, segments: of the state before.
        records: up to the first offset that no clean may change.
    """
    steps = 2 * transactional_batches
    is_one_task = 2 * log_bytes <= prove.WHOLE_BYTES
    if is_one_task and records <= prove.WHOLE_HERE_MAX and steps < producers.STEPS_AT_ONCE:
        return 0
    blocks = -(-(ENTRY.itemsize * records + STEP.itemsize * steps) // _BLOCK_BYTES) + segments + 1
    return _BLOCK_BYTES * blocks
