"""The disk space that the tasks of a proof need for files from one task to another."""

from __future__ import annotations

#: Bytes of a range of offsets, and of a state that one task proves.
RANGE_BYTES = 128 << 20
#: Number of key entries, and of steps of transactions, in a chunk; a task with fewer of each writes no file.
CHUNK_ENTRIES = 1 << 19
STEPS_AT_ONCE = 1 << 17
#: Size of an ENTRY and of a STEP. They are numbers here, as a plan should not load the proof and its kernels for them.
ENTRY_BYTES, STEP_BYTES = 24, 32
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
    is_one_task = 2 * log_bytes <= RANGE_BYTES
    if is_one_task and records <= CHUNK_ENTRIES and steps < STEPS_AT_ONCE:
        return 0
    blocks = -(-(ENTRY_BYTES * records + STEP_BYTES * steps) // _BLOCK_BYTES) + segments + 1
    return _BLOCK_BYTES * blocks
