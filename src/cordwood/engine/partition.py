"""What a task does for one partition: read, decide, write. Plain functions of plain values.

A clean reads the log twice: the dirty section for the newest offset of its keys, and all that may be cleaned for what
stays. Each reading is a stream of windows, so memory holds a few windows, the keys of the dirty section, no more.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from cordwood.cleaning.rewrite import Counts, Rules
from cordwood.cleaning.selection import group_segments, values
from cordwood.cleaning.transactions import AbortTracker
from cordwood.engine.facts import aborted_transactions, active_producers, segment_facts
from cordwood.engine.keys import newest_offsets
from cordwood.engine.readahead import reading_threads
from cordwood.engine.rewrite import GroupWriter, rewritten_windows, windows_to_copy
from cordwood.engine.settings import CleanSettings
from cordwood.errors import CorruptBatchError
from cordwood.storage.log.producers import Producers
from cordwood.storage.log.view import LogView


@dataclass(frozen=True, slots=True)
class CleanState:
    """What a clean knows at the end of a group that it needs for the next, when they are not cleaned in one go.

    Attributes:
        tracker: of the transactions met while copying.
        taking: the same, where the next group begins, of those met while keys were taken; None: that begins later.
        old_horizon_ms: tombstones of magic 0 and 1 stay in segments that are newer; see `Rules.keep_old_tombstones`.
    """

    tracker: AbortTracker
    old_horizon_ms: int
    taking: AbortTracker | None = None


@dataclass(frozen=True, slots=True)
class GroupRange:
    """Some of a partition's groups, when not all are cleaned in one go: the outputs of those before are in place.

    What supersedes a record is in the same group or in a later one. So of the dirty records only those from the first
    of these groups on matter, and they are still what they were.

    Attributes:
        groups: their segments' base offsets, as planned before the first of all groups was cleaned.
        end: base offset of the segment behind them.
        carried: from the group before; None: there is none.
    """

    groups: tuple[tuple[int, ...], ...]
    end: int
    carried: CleanState | None = None


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a clean of one partition made.

    Attributes:
        end_offset: the new first dirty offset.
        replaced: per group the base offsets of the segments that its outputs stand for.
        outputs: per group the base offsets of what was written.
        counts: what was done.
        segments: the same per group and segment that was read; nothing of several rounds.
        rounds: how often it was done; more than once only with Kafka's offset map.
        carried: what those behind would need, if only some groups were cleaned.
    """

    end_offset: int
    replaced: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    counts: Counts
    segments: tuple[tuple[Counts, ...], ...] = ()
    rounds: int = 1
    carried: CleanState | None = field(default=None, compare=False)


def clean_partition(
    log: LogView,
    target: str,
    *,
    first_dirty: int,
    first_uncleanable: int,
    now_ms: int,
    settings: CleanSettings,
    producers: Producers,
    suffix: str = "",
    part: GroupRange | None = None,
) -> Cleaned:
    """Clean [first_dirty, first_uncleanable) of a log once; the outputs are written to another directory.

    With Kafka's offset map the end offset may lie below first_uncleanable, also within a batch; and it is 0 when the
    first batch has a key that there is no room for.

    Args:
        log: of the partition; it is only read.
        target: an existing directory for the outputs.
        first_dirty: where keys are taken from.
        first_uncleanable: base offset of a segment, where the range ends.
        now_ms: the time of the clean.
        settings: the partition's configs.
        producers: as of the log's end.
        suffix: of the outputs' names.
        part: only these groups; not with Kafka's offset map, which decides itself how many there are.

    Raises:
        CorruptBatchError: a batch in the range is damaged; nothing that was written counts.
        RequestError: the keys need more memory than they may have; or, with strict_kafka, Kafka would fail here.
    """
    assert part is None or settings.offset_map_slots is None, "rounds are not cut"
    facts = [segment_facts(segment) for segment in log.segments]
    by_base = {segment.base_offset: segment for segment in log.segments}
    start = first_dirty if part is None else max(first_dirty, part.groups[0][0])
    dirty = [by_base[one.base_offset] for one in values(facts, start, first_uncleanable)]
    carried = None if part is None else copy.deepcopy(part.carried)
    taking = None if carried is None else carried.taking
    if taking is None:
        taking = AbortTracker()
        taking.add(aborted_transactions(log, start, first_uncleanable))
    next_start = None if part is None else part.end
    latest, taking_next = newest_offsets(dirty, start, first_uncleanable, settings, taking, next_start)
    end_offset = latest.latest_offset + 1
    if carried is None:
        older = values(facts, 0, first_dirty)
        carried = CleanState(AbortTracker(), older[-1].mtime_ms - settings.delete_retention_ms if older else 0)
    rules = Rules(
        now_ms,
        settings.delete_retention_ms,
        first_uncleanable,
        active_producers(producers),
        settings.deletes_for_good,
        strict_kafka=settings.strict_kafka,
    )
    if part is None:
        planned = group_segments(
            values(facts, 0, end_offset),
            first_uncleanable,
            segment_bytes=settings.segment_bytes,
            index_bytes=settings.index.size_bytes,
        )
        bases = [tuple(one.base_offset for one in group) for group in planned]
    else:
        bases = list(part.groups)
    groups = [[by_base[base] for base in group] for group in bases]
    tracker, counts = carried.tracker, Counts()
    outputs, segments = [], []
    with reading_threads(list(itertools.chain.from_iterable(groups))) as threads:
        copied = rewritten_windows(
            threads, windows_to_copy(log, groups, tracker), rules, carried.old_horizon_ms, latest
        )
        coming = next(copied, None)
        for group in groups:
            parts = {segment.base_offset: Counts() for segment in group}
            # The copy of a group is as old as its newest segment, and as private as its first.
            first, newest = group[0], group[-1]
            mode = first.files.log.mode
            with closing(GroupWriter(log, target, first.base_offset, settings, suffix, mode)) as writer:
                while coming is not None and coming[0].segment.base_offset <= newest.base_offset:
                    shown, result = coming
                    parts[shown.segment.base_offset].add(result.counts)
                    writer.append(result.pieces, result.batches, shown.kept)
                    coming = next(copied, None)
                outputs.append(writer.finish(newest.files.log.mtime_ns))
            segments.append(tuple(parts.values()))
            for part_counts in parts.values():
                counts.add(part_counts)
    counts.check()
    left = [one.base_offset for one in facts if not bases or one.base_offset > bases[-1][-1]]
    _check_bases(log, [*(base for group in outputs for base in group), *left])
    carried = replace(carried, taking=taking_next)
    return Cleaned(end_offset, tuple(bases), tuple(outputs), counts, tuple(segments), carried=carried)


def _check_bases(log: LogView, bases: Sequence[int]) -> None:
    """An output that was begun in the middle of a segment must not have the name of a later one."""
    for one, other in itertools.pairwise(bases):
        if one >= other:
            what = f"offset {one} and those behind it are in one segment, and in the one of base offset {other}, too"
            raise CorruptBatchError(what, path=log.path, offset=one)
