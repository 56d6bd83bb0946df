"""Decide how the clean of a partition is divided, and how its keys are compared.

One task cleans the partition, or many tasks, each of which scans a run of the log. Superseded records are found by
comparing all records in chunks; or, if little is dirty, by looking up all records in a table of the dirty keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cordwood.cleaning.rules.key_table import (
    CHUNK_RECORD_BYTES,
    ENTRY_BYTES,
    MemoryShare,
    chunk_records,
    table_bytes,
    whole_memory,
)
from cordwood.cleaning.rules.plan import Compaction, Decision, Division, PartitionPlan, Plan
from cordwood.common.text import bytes_text

if TYPE_CHECKING:
    # Plans are divided, too, and need none of the code of a clean.
    from cordwood.cleaning.engine.task import PartitionTask

#: A partition below this size is cleaned by one task, even if cores are idle.
STAGED_BYTES_MIN = 64 << 20
#: The smallest run, except at the end of a segment; a smaller one is not worth a task.
RUN_BYTES_MIN = 64 << 20
#: Runs of a partition per core: few, as the survivors of each run have to be merged; more than one, to keep cores busy.
_RUNS_PER_CORE = 2
#: Records are looked up if at most one in `_LITTLE` is dirty. Each dirty record is then read twice, which takes about
#: as long as sorting eight clean ones into chunks.
_LITTLE = 8
#: A task that reads at least this many bytes has threads that read and decode ahead of it.
_THREADED_BYTES = 64 << 20
#: Average number of cores that such a task keeps busy.
_CORES_OF_A_TASK = 1.6


def tasks_at_once(sizes: Sequence[int], cores: int) -> int:
    """Return how many tasks to run at once, so that all cores are busy and no two tasks compete for one.

    More tasks would take turns and evict each other's bytes from the caches. On two cores, one task at a time cleans 2
    GB as fast as two do, in a fifth less CPU time.

    Args:
        sizes: bytes that each task reads.
    """
    threaded = sum(size for size in sizes if size >= _THREADED_BYTES)
    return max(1, int(cores / _CORES_OF_A_TASK + 0.5)) if 2 * threaded > sum(sizes) else cores


def with_probing(task: PartitionTask, cores: int) -> PartitionTask:
    """Make the task look up records if that is better. It may yet be divided, so use one core's share of memory."""
    whole, is_limited = task.settings.memory, task.settings.offset_map_slots is not None
    memory = None if whole is None else MemoryShare(whole.size_bytes * whole.tasks // cores, cores)
    keys = _table_keys(task.dirty_part, task.first_uncleanable - task.first_dirty, memory, is_limited=is_limited)
    return replace(task, probing=keys > 0 and task.settings.precedence.is_log_order)


def _table_keys(dirty_part: float, dirty: int, memory: MemoryShare | None, *, is_limited: bool) -> int:
    """Return the maximum number of keys of a table in which records are looked up; 0 for no table.

    Args:
        dirty_part: dirty share of the log.
        dirty: number of dirty offsets.
        memory, is_limited: see `_reason`.
    """
    fits = memory is None or table_bytes(dirty) <= memory.size_bytes
    return dirty if fits and not is_limited and _LITTLE * dirty_part <= 1 else 0


def is_staged(task: PartitionTask, total_bytes: int, cores: int) -> bool:
    """Whether a partition is cleaned by many tasks; see `_reason`.

    Args:
        task: task for the whole partition, with its share of the memory.
        total_bytes: bytes that the tasks of all partitions read.
        cores: number of tasks that run at once.
    """
    settings = task.settings
    records = None if task.records is None else min(task.records, task.first_uncleanable - task.first_dirty)
    if task.probing:
        records = None  # the table of their keys fits
    is_limited = settings.offset_map_slots is not None
    return bool(_reason(task.size_bytes, records, settings.memory, is_limited, total_bytes, cores))


def run_bytes(size_bytes: int, cores: int) -> int:
    """Return the size of a run, in a partition whose tasks read `size_bytes` (each byte twice)."""
    return max(RUN_BYTES_MIN, size_bytes // 2 // (_RUNS_PER_CORE * cores))


def with_divisions(plan: Plan, cores: int) -> Plan:
    """Return the plan with each partition's division on `cores` cores of this machine."""
    chosen = [one.compaction for one in plan.with_decision(Decision.CLEAN) if one.compaction is not None]
    sizes = [one.read_bytes for one in chosen]
    total_bytes, cores = sum(sizes), tasks_at_once(sizes, cores)
    at_once = max(1, min(cores, len(chosen)))
    memory, least = (MemoryShare(whole_memory(plan.choices.memory) // count, count) for count in (at_once, cores))

    def divided(plan: PartitionPlan) -> PartitionPlan:
        if plan.decision is not Decision.CLEAN or plan.compaction is None:
            return plan
        is_limited = plan.offset_map is not None
        records, dirty = plan.compaction.bounds.records_max, plan.compaction.range.offsets
        keys = _table_keys(plan.compaction.dirty_part, dirty, least, is_limited=is_limited)
        kept = None if records is None or keys else min(records, dirty)
        division = _division(plan.compaction, kept, memory, is_limited, total_bytes, cores)
        return replace(plan, division=replace(division, table_keys=keys))

    return replace(plan, partitions=tuple(divided(one) for one in plan.partitions))


def _division(
    compaction: Compaction, records: int | None, memory: MemoryShare, is_limited: bool, total_bytes: int, cores: int
) -> Division:
    reason = _reason(compaction.read_bytes, records, memory, is_limited, total_bytes, cores)
    if not reason:
        return Division()
    size = run_bytes(compaction.read_bytes, cores)
    return Division(True, size, -(-compaction.total_bytes // size), reason)


def _reason(
    size_bytes: int, records: int | None, memory: MemoryShare | None, is_limited: bool, total_bytes: int, cores: int
) -> str:
    """Return why a partition is cleaned by many tasks; empty if one task cleans it.

    Many tasks clean it if other cores would be idle while one works, or if one task needs more than its memory.

    Args:
        records: upper bound of the records to remember; None if unknown, or if they fit.
        memory: memory that one task may use; None for no limit.
        is_limited: Kafka's offset map is used. It is filled in log order, by one task.
        total_bytes: bytes that the tasks of all partitions read.
        cores: number of tasks that run at once.
    """
    if is_limited:
        return ""
    if memory is not None and records is not None:
        needed = ENTRY_BYTES * records + CHUNK_RECORD_BYTES * chunk_records(memory)
        if needed > memory.size_bytes:
            return f"its keys take up to {bytes_text(needed)}, and a task has {bytes_text(memory.size_bytes)}"
    if cores > 1 and size_bytes > max(STAGED_BYTES_MIN, total_bytes // (2 * cores)):
        return "otherwise, some cores would be idle"
    return ""
