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
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from cordwood.cleaning.engine.facts import aborted_transactions, active_producers, cleanable_facts, load_producers
from cordwood.cleaning.engine.indexing import IndexMaker
from cordwood.cleaning.engine.keys import DirtyKeys, DirtySection, collect_keys, empty_table
from cordwood.cleaning.engine.rewrite import Outputs, WrittenGroup, rewrite_groups
from cordwood.cleaning.engine.scan import KeyScan, chunk_records, probe_keys, scan_keys
from cordwood.cleaning.engine.settings import CleanSettings
from cordwood.cleaning.engine.sparing import Spared, StaleStateError, Terms, known_of, spare
from cordwood.cleaning.rules.latest import DirtyTable, LatestOffsets
from cordwood.cleaning.rules.plan import SegmentFacts
from cordwood.cleaning.rules.rewrite import Counts, Elision, Rules
from cordwood.cleaning.rules.selection import group_segments, segments_between
from cordwood.cleaning.rules.superseded import ScannedKeys
from cordwood.cleaning.rules.transactions import AbortTracker
from cordwood.common.errors import CorruptBatchError
from cordwood.common.types import NONE
from cordwood.fs.base import TargetStore
from cordwood.storage.formats.clean_checkpoint import CleanCheckpoint, CleanSegment
from cordwood.storage.log.joined import joined
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.replay import Producers


@dataclass(frozen=True, slots=True)
class CleanState:
    """The state of a clean at the end of a group, for the next group if they are not cleaned in one run.

    Attributes:
        tracker: the tracker of pass 2.
        key_pass_tracker: the tracker of pass 1 at the start of the next group; None if pass 1 starts anew there.
        old_horizon_ms: segments modified after this time keep their tombstones of magic 0 and 1; see `Elision`.
        spares: whether earlier groups keep records that may be dropped. Then from here on tombstones and markers stay:
            one of these records could have the same key.
    """

    tracker: AbortTracker
    old_horizon_ms: int
    key_pass_tracker: AbortTracker | None = None
    spares: bool = False


@dataclass(frozen=True, slots=True)
class Left:
    """Facts about a log after a clean that may leave garbage, for `CleanCheckpoint`.

    Attributes:
        segments: segments that were written or kept.
        first_killer: no record below this offset superseded a record that still exists.
    """

    segments: tuple[CleanSegment, ...]
    first_killer: int

    @property
    def garbage_bytes(self) -> int:
        """Bytes of garbage in the segments."""
        return sum(one.garbage_bytes for one in self.segments)

    @property
    def restart(self) -> int:
        """Start for a cleaner that ignores garbage: the base offset of the segment that contains the first killer.

        A start within the segment would be wrong: Kafka's cleaner would not read the markers before it. If a producer
        aborted one transaction before the start and has its next one there, the cleaner would take that for aborted,
        too, and its records would supersede nothing.
        """
        if not self.garbage_bytes:
            return self.first_killer
        bases = (one.base_offset for one in self.segments if one.base_offset <= self.first_killer)
        return max(bases, default=self.first_killer)

    def with_more(self, other: Left) -> Left:
        """Join these facts with those of the next part of the log."""
        return Left(self.segments + other.segments, min(self.first_killer, other.first_killer))


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
        left: facts for the next clean, if this one may have left garbage; else None.
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
    left: Left | None = field(default=None, compare=False)

    @property
    def checkpoint(self) -> int:
        """The first dirty offset for a cleaner that ignores garbage: Kafka's checkpoint."""
        return self.end_offset if self.left is None else self.left.restart

    @property
    def own_checkpoint(self) -> CleanCheckpoint | None:
        """Cordwood's own checkpoint with the garbage; None if there is no garbage, so that Kafka's suffices."""
        left = self.left
        return None if left is None else CleanCheckpoint(self.end_offset, left.restart, left.segments)

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
        part: clean only these groups. Not with Kafka's offset map, which itself decides where a round ends.
        scanned: source of pass 1's result, if other tasks did pass 1.
        probing: look up all records in a table of the dirty keys; not with Kafka's offset map.
        index_secret: secret of the key indexes that limit the records to look up; None to look up all.
        fresh_secret: secret of new key indexes, if pass 1 hashes the keys of all records; None to make none.
        garbage_share: garbage that may be left, as a share of the cleaned range; 0 for none, as in Kafka.
        restart: start of the range if the state that an earlier clean left proves invalid; None if this clean does not
            use that state.
    """

    first_dirty: int
    first_uncleanable: int
    now_ms: int
    settings: CleanSettings
    producers: Producers | None = None
    part: GroupRange | None = None
    scanned: KeySource | None = None
    probing: bool = False
    index_secret: bytes | None = field(default=None, repr=False)
    fresh_secret: bytes | None = field(default=None, repr=False)
    garbage_share: float = 0.0
    restart: int | None = None

    @property
    def new_index_secret(self) -> bytes | None:
        """Secret of new indexes: fresh if all keys are hashed, otherwise the secret of the existing indexes."""
        return (self.probing and self.index_secret) or self.fresh_secret

    def with_producers_of(self, log: LogView) -> CleanRequest:
        """Return the request with the log's producer state."""
        if self.producers is not None:
            return self
        expiration_ms = self.settings.producer_expiration_ms
        return replace(self, producers=load_producers(log, now_ms=self.now_ms, expiration_ms=expiration_ms))


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
        indexes: makes key indexes of the segments, and writes pending records.

    Raises:
        CorruptBatchError: a batch in the range is damaged; the outputs are invalid.
        LostSectionError: another task's result is missing or damaged.
        RequestError: the keys need more memory than allowed; or, with strict_kafka, Kafka would fail here.
    """
    assert request.part is None or request.settings.offset_map_slots is None, "rounds are not cut"
    request = request.with_producers_of(log)
    outputs = Outputs(
        fs, target, request.settings.index, suffix, is_strict=request.settings.strict_kafka, indexes=indexes
    )
    try:
        return _clean(log, outputs, request)
    except StaleStateError:
        assert request.restart is not None, "or nothing was relied on"
        return _clean(log, outputs, replace(request, first_dirty=request.restart, restart=None))


def _clean(log: LogView, outputs: Outputs, request: CleanRequest) -> Cleaned:
    settings = request.settings
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
    elides = settings.deletes_for_good and not carried.spares
    rules = Rules(
        request.now_ms,
        settings.delete_retention_ms,
        request.first_uncleanable,
        active_producers(request.producers),
        Elision.of(elides),
        strict_kafka=settings.strict_kafka,
    )
    spared = _spare(log, groups, keys, carried.tracker, request, elides=elides)
    own = carried.tracker, carried.old_horizon_ms
    written = rewrite_groups(log, spared.groups, outputs, keys.newest, rules, *own, spared.segments)
    cleaned = replace(_cleaned(log, written, keys, carried), probed=request.probing)
    if not request.garbage_share:
        return cleaned
    # Without a place for key indexes, this is a trial clean.
    left = _left(log, outputs, written, spared, cleaned.end_offset, request.now_ms) if outputs.indexes else None
    spares = carried.spares or spared.first_killer is not None
    return replace(cleaned, left=left, carried=replace(carried, key_pass_tracker=keys.next_tracker, spares=spares))


def _may_join(log: LogView, outputs: Outputs, request: CleanRequest) -> bool:
    """Return whether nothing depends on where a small segment ends; see `joined`."""
    by_index = outputs.indexes is not None or request.index_secret is not None or request.restart is not None
    counts_keys = request.settings.offset_map_slots is not None
    return not (by_index or request.garbage_share or counts_keys or log.transaction_indexed_from(0))


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


def _spare(
    log: LogView,
    groups: list[list[Segment]],
    keys: DirtyKeys,
    tracker: AbortTracker,
    request: CleanRequest,
    *,
    elides: bool,
) -> Spared:
    """Return which groups are written and which are spared; without a share of garbage all are written."""
    if request.garbage_share and isinstance(keys.newest, ScannedKeys):
        terms = Terms(
            garbage_share=request.garbage_share,
            first_dirty=request.first_dirty,
            relies_on_state=request.restart is not None,
            now_ms=request.now_ms,
            elides=elides,
            segment_bytes=request.settings.segment_bytes,
            index_secret=request.index_secret,
        )
        return spare(log, groups, keys.newest, copy.deepcopy(tracker), terms)
    if request.restart is not None:
        raise StaleStateError  # pending records cannot be added to this result
    return Spared(groups, {}, {})


def _left(
    log: LogView,
    outputs: Outputs,
    written: Sequence[WrittenGroup],
    spared: Spared,
    end_offset: int,
    now_ms: int,
) -> Left:
    """Write pending records, and return the facts about the segments for the next clean."""
    before = {segment.base_offset: segment for segment in log.segments}
    after = {one.base_offset: one for one in LogView(outputs.folder, fs=outputs.fs, log_start_offset=0).segments}
    found: list[CleanSegment] = []
    for base in (base for group in written for base in group.outputs):
        one = spared.segments.get(base)
        if one is not None:
            found.append(one.known)
            if one.pending is not None and outputs.indexes is not None:
                outputs.indexes.of_pending(one.pending)
        elif base in after:
            found.append(known_of(after[base], now_ms))
        elif base in before:
            found.append(known_of(before[base], spared.written_ms.get(base, before[base].mtime_ms)))
    killer = spared.first_killer
    return Left(tuple(found), end_offset if killer is None else killer)


def _read_keys(
    log: LogView, groups: Sequence[Sequence[Segment]], dirty: DirtySection, carried: CleanState, request: CleanRequest
) -> DirtyKeys:
    """Run pass 1: by a scan, or by a table of keys if one is necessary."""
    settings, secret = request.settings, request.fresh_secret or secrets.token_bytes(16)
    if settings.offset_map_slots is None:
        keeps_survivors = request.fresh_secret is not None
        how = KeyScan(
            secret,
            chunk_records(settings.memory),
            request.now_ms,
            keeps_survivors=keeps_survivors,
            finds_all=request.garbage_share > 0,
        )
        collected = collect_dirty(dirty, request, secret) if request.probing else None
        if collected is not None:
            keys, table = collected
            return probe_keys(log, groups, keys, copy.deepcopy(carried.tracker), replace(how, table=table))
        found = scan_keys(log, groups, dirty, copy.deepcopy(carried.tracker), settings.memory, how)
        if found is not None:
            return found
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
            what = f"offset {one} and those behind it are in one segment, and in the one of base offset {other}, too"
            raise CorruptBatchError(what, path=log.path, offset=one)
