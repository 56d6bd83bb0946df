"""What the tasks of a proof keep for later tasks: in memory, or in files on the disk of temporary files."""

from __future__ import annotations

#: Bytes of a range of offsets, and of a state that one task proves.
RANGE_BYTES = 128 << 20
#: Bytes that a task keeps in memory without a file, if it proves a whole partition, and if it returns them to others.
WHOLE_HERE_BYTES, HERE_BYTES = 16 << 20, 1 << 17
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
    size_bytes = ENTRY_BYTES * records + STEP_BYTES * steps
    is_one_task = 2 * log_bytes <= RANGE_BYTES
    if is_one_task and size_bytes <= WHOLE_HERE_BYTES:
        return 0
    return _BLOCK_BYTES * (-(-size_bytes // _BLOCK_BYTES) + segments + 1)
