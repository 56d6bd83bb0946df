"""Clean one partition, or some groups of its segments.

    1  facts       sizes and times of the segments; which of them are dirty
    2  groups      segments that are small enough together become one: `rules.selection.group_segments`
    3  pass 1      reads all segments up to the end of the dirty section, and finds their superseded records:
                   `scan.scan_keys`. If little is dirty, it reads the dirty section first, for the newest offset of each
                   of its keys (`keys.collect_keys`), and looks up all records in that table: `scan.probe_keys`. With
                   Kafka's offset map, it reads only the dirty section, and the groups are formed after it
    4  pass 2      reads these segments once more, except long stretches of dropped records (`staying`), and writes
                   the survivors of each window of batches to the outputs of its group: `rewrite.rewrite_groups`

`DirtyKeys` is the value passed from pass 1 to pass 2. Each pass is a stream of windows.

Kafka's offset map has a limited size, so a clean with it works in rounds. A round ends when the map is full. If the log
is still dirty enough, the next round starts at that offset, for the same time, and reads the outputs of the previous
round instead of the segments that they replace. Every round writes all segments from the first on, so the outputs of
the last round are the result.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from cordwood.cleaning.engine.facts import (
    CleanSettings,
    aborted_transactions,
    cleanable_facts,
    first_timestamp,
    load_producers,
    loaded_facts,
)
from cordwood.cleaning.engine.indexing import IndexMaker
from cordwood.cleaning.engine.keys import DirtyKeys, DirtySection, collect_keys, empty_table
from cordwood.cleaning.engine.rewrite import Outputs, WrittenGroup, rewrite_groups
from cordwood.cleaning.engine.scan import HELD_BYTES, KeyScan, probe_keys, scan_keys
from cordwood.cleaning.rules.key_table import chunk_records
from cordwood.cleaning.rules.latest import DirtyTable, LatestOffsets
from cordwood.cleaning.rules.offset_map import SLOT_BYTES, keys_max
from cordwood.cleaning.rules.plan import HeaderFacts, SegmentFacts
from cordwood.cleaning.rules.precedence import NEWEST_OFFSET
from cordwood.cleaning.rules.rewrite import ActiveProducers, Counts, Elision, Rules
from cordwood.cleaning.rules.selection import group_segments, is_due_again, segments_between
from cordwood.cleaning.rules.superseded import ScannedKeys
from cordwood.cleaning.rules.transactions import AbortTracker
from cordwood.common.errors import CorruptBatchError, RequestError
from cordwood.common.types import NONE
from cordwood.fs.base import TargetStore
from cordwood.fs.wrapped import Overlay
from cordwood.storage.formats.filenames import FileKind, offset_name, parse_file
from cordwood.storage.log.loaded import loaded_segment
from cordwood.storage.log.segment import Segment, joined
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.replay import Producers


@dataclass(frozen=True, slots=True)
class CleanState:
    """The state of a clean at the end of a group, for the next group if they are not cleaned in one run.

    Attributes:
        tracker: the tracker of pass 2.
        key_pass_tracker: the tracker of pass 1 at the start of the next group; None if pass 1 starts anew there.
        old_horizon_ms: segments modified after this time keep their tombstones of magic 0 and 1; see `Elision`.
    """

    tracker: AbortTracker
    old_horizon_ms: int
    key_pass_tracker: AbortTracker | None = None


@dataclass(frozen=True, slots=True)
class GroupRange:
    """Consecutive groups of a partition, if not all are cleaned in one run. The outputs of earlier groups are in place.

    Only records of the same group, or of a later one, supersede a record. So only dirty records from the first of these
    groups on matter, and this clean has not changed these yet.

    Attributes:
        groups: their segments' base offsets, as planned before the first of all groups was cleaned.
        end: base offset of the segment after the last group.
        carried: the state at the end of the previous group; None without one.
    """

    groups: tuple[tuple[int, ...], ...]
    end: int
    carried: CleanState | None = None


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The result of cleaning one partition.

    Attributes:
        end_offset: the new first dirty offset.
        replaced: per group, base offsets of the segments that its outputs replace.
        outputs: per group, base offsets of the segments that replace them.
        counts: counts of records, batches and bytes.
        segments: the counts per group and source segment; empty after several rounds.
        rounds: number of rounds; more than one only with Kafka's offset map.
        kept: base offsets of outputs that were not written, as each is the same as its source segment.
        carried: the state at the end, for the groups after these.
        key_bytes: peak memory of its keys.
        probed: whether all records were looked up in a table of the dirty keys.
    """

    end_offset: int
    replaced: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    counts: Counts
    segments: tuple[tuple[Counts, ...], ...] = ()
    rounds: int = 1
    kept: frozenset[int] = frozenset()
    carried: CleanState | None = field(default=None, compare=False)
    key_bytes: int = field(default=0, compare=False)
    probed: bool = field(default=False, compare=False)

    @property
    def written(self) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Yield (replaced, outputs) of the groups that were written."""
        groups = zip(self.replaced, self.outputs, strict=True)
        return ((replaced, outputs) for replaced, outputs in groups if not self.kept & set(outputs))

    @property
    def kept_counts(self) -> Counts:
        """Sum up the counts of groups that were not written."""
        counts = Counts()
        for outputs, segments in zip(self.outputs, self.segments, strict=False):
            if self.kept & set(outputs):
                for segment in segments:
                    counts.add(segment)
        return counts


class KeySource(Protocol):
    """Loads the result of pass 1 if other tasks did it; a value that can be pickled."""

    def load(self) -> ScannedKeys:
        """Read the result of pass 1.

        Raises:
            LostSectionError: a part of it is missing or damaged.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanRequest:
    """The range of a partition to clean, and the rules.

    Attributes:
        first_dirty: first offset whose key is collected.
        first_uncleanable: end of the range: base offset of a segment.
        now_ms: the time of the clean.
        producers: the producer state at the log end; None to read it from the log's files.
        log_end_offset: the log end offset, for that reading; None if it is unknown.
        part: clean only these groups. Not with Kafka's offset map, which itself decides where a round ends.
        scanned: source of pass 1's result, if other tasks did pass 1.
        probing: look up all records in a table of the dirty keys; not with Kafka's offset map.
        index_secret: secret of the key indexes that limit the records to look up; None to look up all.
        fresh_secret: secret of new key indexes, if pass 1 hashes the keys of all records; None to make none.
    """

    first_dirty: int
    first_uncleanable: int
    now_ms: int
    settings: CleanSettings
    producers: Producers | None = None
    log_end_offset: int | None = None
    part: GroupRange | None = None
    scanned: KeySource | None = None
    probing: bool = False
    index_secret: bytes | None = field(default=None, repr=False)
    fresh_secret: bytes | None = field(default=None, repr=False)

    @property
    def new_index_secret(self) -> bytes | None:
        """Secret of new indexes: fresh if all keys are hashed, otherwise the secret of the existing indexes."""
        return (self.probing and self.index_secret) or self.fresh_secret

    def with_producers_of(self, log: LogView) -> CleanRequest:
        """Return the request with the log's producer state."""
        if self.producers is not None:
            return self
        expiration_ms = self.settings.producer_expiration_ms
        end = self.log_end_offset
        producers = load_producers(log, now_ms=self.now_ms, expiration_ms=expiration_ms, end=end)
        return replace(self, producers=producers)


def clean_partition(
    fs: TargetStore,
    log: LogView,
    target: str,
    request: CleanRequest,
    *,
    suffix: str = "",
    indexes: IndexMaker | None = None,
) -> Cleaned:
    """Clean a range of a log once; write the outputs to another directory.

    With Kafka's offset map the end offset may be below first_uncleanable, even within a batch; it is 0 if there is no
    room for a key of the first batch.

    Args:
        fs: file system for the outputs.
        log: the partition's log; it is only read.
        target: an existing directory for the outputs.
        indexes: makes key indexes of the segments.

    Raises:
        CorruptBatchError: a batch in the range is damaged; the outputs are invalid.
        LostSectionError: another task's result is missing or damaged.
        RequestError: the keys need more memory than allowed; or, with strict_kafka, Kafka would fail here.
    """
    assert request.part is None or request.settings.offset_map_slots is None, "rounds are not cut"
    request = request.with_producers_of(log)
    settings = request.settings
    outputs = Outputs(fs, target, settings.index, suffix, is_strict=settings.strict_kafka, indexes=indexes)
    assert request.producers is not None, "they were loaded"
    facts = cleanable_facts(log, request.first_uncleanable, request.now_ms)
    carried = state_at_start(facts, request)
    if request.scanned is None:
        dirty = dirty_section(log, facts, request, carried)
        groups = planned_groups(log, facts, dirty.latest_offset + 1, request)
        keys: DirtyKeys | None = None
        if _may_join(log, outputs, request) and (shared := join(groups, dirty)) != (groups, dirty):
            # If a batch is damaged, read the segments one by one below: the error then has the right place.
            with contextlib.suppress(CorruptBatchError):
                keys, groups = _read_keys(log, *shared, carried, request), shared[0]
        keys = keys or _read_keys(log, groups, dirty, carried, request)
    else:
        keys = DirtyKeys(request.scanned.load())
    if request.scanned is not None or settings.offset_map_slots is not None:
        groups = planned_groups(log, facts, keys.end_offset, request)
    rules = Rules(
        request.now_ms,
        settings.delete_retention_ms,
        request.first_uncleanable,
        _active_producers(request.producers),
        Elision.of(settings.deletes_for_good, settings.held),
        strict_kafka=settings.strict_kafka,
    )
    written = rewrite_groups(log, groups, outputs, keys.newest, rules, carried.tracker, carried.old_horizon_ms)
    return replace(_cleaned(log, written, keys, carried), probed=request.probing)


def _active_producers(producers: Producers) -> ActiveProducers:
    """Convert the producers to columns."""
    rows = producers.rows()
    columns = (rows[name].astype(np.int64) for name in ("producer_id", "last_offset", "producer_epoch"))
    return ActiveProducers(*columns)


def _may_join(log: LogView, outputs: Outputs, request: CleanRequest) -> bool:
    """Return whether nothing depends on where a small segment ends; see `joined`."""
    by_index = outputs.indexes is not None or request.index_secret is not None
    counts_keys = request.settings.offset_map_slots is not None
    return not (by_index or counts_keys or log.transaction_indexed_from(0))


def join(groups: Sequence[Sequence[Segment]], dirty: DirtySection) -> tuple[list[list[Segment]], DirtySection]:
    """Join the small segments of each group, and those of the dirty section after the groups.

    A join never extends over the start of the dirty section, as records supersede others only from there on.
    """
    group_of = {segment.base_offset: number for number, group in enumerate(groups) for segment in group}
    dirty_bases = {segment.base_offset for segment in dirty.segments}
    segments = {segment.base_offset: segment for segment in [*itertools.chain(*groups), *dirty.segments]}

    def stretch(segment: Segment) -> tuple[int | None, bool, bool]:
        base = segment.base_offset
        return group_of.get(base), base in dirty_bases, base in dirty_bases and base < dirty.start

    joined_groups: list[list[Segment]] = [[] for _ in groups]
    joined_dirty: list[Segment] = []
    ordered = (segment for _, segment in sorted(segments.items()))
    for (group, is_dirty, _), some in itertools.groupby(ordered, stretch):
        run = list(joined(some))
        if group is not None:
            joined_groups[group] += run
        if is_dirty:
            joined_dirty += run
    return joined_groups, replace(dirty, segments=tuple(joined_dirty))


def _read_keys(
    log: LogView, groups: Sequence[Sequence[Segment]], dirty: DirtySection, carried: CleanState, request: CleanRequest
) -> DirtyKeys:
    """Run pass 1: by a scan, or by a table of keys if one is necessary."""
    settings, secret = request.settings, request.fresh_secret or secrets.token_bytes(16)
    if settings.offset_map_slots is None:
        how = KeyScan(
            secret,
            chunk_records(settings.memory),
            request.now_ms,
            keeps_survivors=request.fresh_secret is not None,
            precedence=settings.precedence,
            held_bytes=HELD_BYTES,
        )
        collected = collect_dirty(dirty, request, secret) if request.probing else None
        if collected is not None:
            keys, table = collected
            return probe_keys(log, groups, keys, copy.deepcopy(carried.tracker), replace(how, table=table))
        found = scan_keys(log, groups, dirty, copy.deepcopy(carried.tracker), settings.memory, how)
        if found is not None:
            return found
    if not settings.precedence.is_log_order:
        what = f"offsets do not ascend, which only the keep rule {NEWEST_OFFSET.name} allows"
        raise CorruptBatchError(what, path=log.path)
    own = replace(dirty, tracker=copy.deepcopy(dirty.tracker))
    return collect_keys(own, empty_table(settings, secret, dirty.end - dirty.start))


def collect_dirty(
    dirty: DirtySection, request: CleanRequest, hash_secret: bytes
) -> tuple[DirtyKeys, DirtyTable] | None:
    """Collect the dirty keys and make a table of them. Return None if a batch is damaged or not where an index points.

    The caller then scans all of the log in chunks from its start, which raises any damage.
    """
    table = LatestOffsets(hash_secret, request.settings.memory, dirty.end - dirty.start, request.index_secret)
    try:
        keys = collect_keys(replace(dirty, tracker=copy.deepcopy(dirty.tracker)), table)
    except CorruptBatchError:
        return None
    return keys, table.complete()


def state_at_start(facts: Sequence[SegmentFacts], request: CleanRequest) -> CleanState:
    """Return the state of a clean before its first group, as a new value."""
    if request.part is not None and request.part.carried is not None:
        return copy.deepcopy(request.part.carried)
    older = segments_between(facts, 0, request.first_dirty)
    horizon_ms = older[-1].mtime_ms - request.settings.delete_retention_ms if older else 0
    return CleanState(AbortTracker(), horizon_ms)


def dirty_section(
    log: LogView, facts: Sequence[SegmentFacts], request: CleanRequest, carried: CleanState
) -> DirtySection:
    """Return the dirty section, with the tracker of pass 1 at its start."""
    part, end = request.part, request.first_uncleanable
    start = request.first_dirty if part is None else max(request.first_dirty, part.groups[0][0])
    tracker = carried.key_pass_tracker
    if tracker is None:
        tracker = AbortTracker()
        tracker.add(aborted_transactions(log, start, end))
    bases = {segment.base_offset for segment in segments_between(facts, start, end)}
    segments = tuple(segment for segment in log.segments if segment.base_offset in bases)
    return DirtySection(segments, start, end, tracker, None if part is None else part.end)


def planned_groups(
    log: LogView, facts: Sequence[SegmentFacts], end_offset: int, request: CleanRequest
) -> list[list[Segment]]:
    """Return the segments of each group, up to the end of the keys read by pass 1."""
    by_base = {segment.base_offset: segment for segment in log.segments}
    if request.part is not None:
        return [[by_base[base] for base in group] for group in request.part.groups]
    groups = group_segments(
        segments_between(facts, 0, end_offset),
        request.first_uncleanable,
        segment_bytes=request.settings.segment_bytes,
        index_bytes=request.settings.index.size_bytes,
    )
    return [[by_base[segment.base_offset] for segment in group] for group in groups]


def _cleaned(log: LogView, written: Sequence[WrittenGroup], keys: DirtyKeys, carried: CleanState) -> Cleaned:
    counts = Counts()
    for group in written:
        for segment_counts in group.counts:
            counts.add(segment_counts)
    counts.check()
    last = written[-1].replaced[-1] if written else NONE
    behind = [segment.base_offset for segment in log.segments if segment.base_offset > last]
    check_bases(log, [*(base for group in written for base in group.outputs), *behind])
    return Cleaned(
        keys.end_offset,
        tuple(group.replaced for group in written),
        tuple(group.outputs for group in written),
        counts,
        tuple(group.counts for group in written),
        kept=frozenset(base for group in written if group.kept for base in group.outputs),
        carried=replace(carried, key_pass_tracker=keys.next_tracker),
        key_bytes=keys.size_bytes,
    )


def check_bases(log: LogView, bases: Sequence[int]) -> None:
    """Raise CorruptBatchError unless base offsets ascend: each output must begin below the next segment."""
    for one, other in itertools.pairwise(bases):
        if one >= other:
            what = f"two segments hold offset {one} and later ones; the second has base offset {other}"
            raise CorruptBatchError(what, path=log.path, offset=one)


# ---- rounds ----------------------------------------------------------------------------------------------------------


def clean_in_rounds(
    fs: TargetStore, log: LogView, target: str, request: CleanRequest, indexes: IndexMaker | None = None
) -> Cleaned:
    """Clean a log as often as Kafka would with the offset map of the settings; once without a map.

    Args:
        fs, log, target, request, indexes: see `clean_partition`.

    Returns:
        the result for the log's own segments. Counts compare the log before and after all rounds: a record counts once,
        however often it was read.

    Raises:
        RequestError: the map has no room for a single key; see also `clean_partition`.
        CorruptBatchError: see `clean_partition`.
    """
    settings = request.settings
    slots, factor = settings.offset_map_slots, settings.offset_map_load_factor
    if slots is None:
        return clean_partition(fs, log, target, request, indexes=indexes)
    assert request.part is None, "rounds are not cut"
    if keys_max(slots, factor) < 1:
        raise RequestError(
            f"{log.path}: an offset map of {SLOT_BYTES * slots} bytes, filled to at most {100 * factor:g} %, has no "
            "room for a single key, so no clean could advance"
        )
    request = request.with_producers_of(log)
    end = request.first_uncleanable
    rounds, done = 0, Cleaned(request.first_dirty, (), (), Counts())
    seen = log
    files = {name: path for segment in log.segments for name, path in _files_of(segment).items()}
    while not rounds or _is_due_again(seen, done.end_offset, end, settings, request.now_ms):
        rounds += 1
        suffix = f".{rounds}"
        cleaned = clean_partition(fs, seen, target, replace(request, first_dirty=done.end_offset), suffix=suffix)
        assert cleaned.end_offset > done.end_offset, "there is room for a key"
        done = behind(done, cleaned) if rounds > 1 else cleaned
        files = _after(fs, target, suffix, files, cleaned)
        seen = LogView(log.path, fs=Overlay(log.fs, log.path, files), log_start_offset=log.log_start_offset)
    for name, path in files.items():
        if path == f"{target}/{name}.{rounds}":
            fs.rename(path, f"{target}/{name}")
    if indexes is not None:
        indexes.of_log(log, LogView(target, fs=fs, log_start_offset=0), done.kept)
    return replace(done, rounds=rounds)


def _is_due_again(log: LogView, first_dirty: int, first_uncleanable: int, settings: CleanSettings, now_ms: int) -> bool:
    if first_dirty >= first_uncleanable:
        return False
    facts = [loaded_facts(loaded_segment(segment, now_ms)) for segment in log.segments]
    headers = [HeaderFacts(first_timestamp=first_timestamp(segment)) for segment in log.segments]
    return is_due_again(facts, headers, first_dirty, first_uncleanable, settings.threshold, now_ms)


def behind(before: Cleaned, after: Cleaned) -> Cleaned:
    """Join the results of two cleans of a log; the second read everything that the first wrote."""
    origins = {
        # The first of several outputs of a group represents the whole group.
        base: replaced if base == outputs[0] else ()
        for outputs, replaced in zip(before.outputs, before.replaced, strict=True)
        for base in outputs
    }
    replaced: list[tuple[int, ...]] = []
    outputs: list[tuple[int, ...]] = []
    for group, written in zip(after.replaced, after.outputs, strict=True):
        own = tuple(base for one in group for base in origins.get(one, (one,)))
        if own:
            replaced.append(own)
            outputs.append(written)
        else:
            outputs[-1] += written
    counts = _counted_once(before.counts, after.counts)
    key_bytes = max(before.key_bytes, after.key_bytes)
    return Cleaned(after.end_offset, tuple(replaced), tuple(outputs), counts, key_bytes=key_bytes)


def _counted_once(before: Counts, after: Counts) -> Counts:
    counts = replace(after)
    counts.add(
        replace(
            before,
            # The outputs of the first round were read again; the counts of the second round cover them.
            bytes_read=before.bytes_read - before.bytes_written,
            bytes_written=0,
            batches_read=before.batches_dropped,
            batches_verbatim=0,
            batches_rebuilt=0,
            batches_emptied=0,
            records_read=before.records_read - before.records_kept,
            records_kept=0,
            tombstones_kept_for_replicas=0,
            markers_kept_for_replicas=0,
        )
    )
    counts.check()
    return counts


def _files_of(segment: Segment) -> dict[str, str]:
    """Return the files of a segment, by the names that they will have once the log is loaded."""
    infos = {FileKind.LOG: segment.files.log, **segment.files.indexes}
    return {offset_name(segment.base_offset, kind): f"{segment.directory}/{info.name}" for kind, info in infos.items()}


def _after(fs: TargetStore, target: str, suffix: str, files: Mapping[str, str], cleaned: Cleaned) -> dict[str, str]:
    """Return the files of the log after a round. Remove outputs of the previous round, which are no longer needed."""
    replaced = {base for group in cleaned.replaced for base in group}
    left = {}
    for name, path in files.items():
        file = parse_file(name)
        assert file is not None, "we named it"
        if file.offset not in replaced:
            left[name] = path
        elif path.startswith(f"{target}/"):
            fs.unlink(path)
    written = [info.name for info in fs.list(target) if info.name.endswith(suffix)]
    return left | {name.removesuffix(suffix): f"{target}/{name}" for name in written}
