"""Predict the next event of a record by its topic's configs: the clean that removes it, or the cause of a delay.

offsets   0 ……… first dirty ……… end of the cleanable range ……… active segment
if the key has a newer record in the cleanable range, between the two inner bounds: the next clean removes the older one
if all newer records are above the cleanable range: the removal waits
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from cordwood.cleaning.engine.facts import loaded_facts
from cordwood.cleaning.rules.plan import Bound, CleanRange, SegmentFacts, utc
from cordwood.cleaning.rules.precedence import KEEP_RULE
from cordwood.cleaning.rules.selection import clean_range, first_dirty_offset, high_watermark, why_never
from cordwood.common.config import TopicConfig
from cordwood.common.text import bytes_text
from cordwood.common.types import NONE
from cordwood.storage.formats.filenames import META_PROPERTIES
from cordwood.storage.index.history import KeyRecord, TransactionOutcome
from cordwood.storage.log.loaded import LoadedLog
from cordwood.storage.log.view import LogView
from cordwood.storage.node.node import LocatedPartition, Node
from cordwood.storage.recovery.replay import headers_from, newest_snapshot

_NEVER_MS = 2**63 - 1


class StepKind(StrEnum):
    """The next event of a record."""

    STAYS = "stays"  # newest value of its key
    CLEAN = "clean"  #: the next clean removes it
    WAITS = "waits"  #: a clean will remove it, but not yet
    HORIZON = "horizon"  # a tombstone; a clean removes it after its delete horizon
    OPEN = "open"  #: its transaction has to end first
    RETENTION = "retention"  # deleted together with its segment
    CUT = "cut"  #: the next load of the log cuts it off
    KEPT = "kept"  # no known event removes it


@dataclass(frozen=True, slots=True)
class NextStep:
    """The next event of a record.

    Attributes:
        what: the event in words.
        from_ms: earliest time; None if it is unknown or the event could happen now.
        by_ms: time when the configs make a clean due; None if they never do.
    """

    kind: StepKind
    what: str
    from_ms: int | None = None
    by_ms: int | None = None


_UNTIL: Mapping[Bound, str] = {
    Bound.ACTIVE_SEGMENT: "from there on is the active segment, which has to roll first",
    Bound.HIGH_WATERMARK: "records there may not be replicated yet (high watermark)",
    Bound.LAST_STABLE_OFFSET: "a transaction is open there",
    Bound.MIN_COMPACTION_LAG: "records there are younger than min.compaction.lag.ms",
}


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """When retention deletes a segment. Retention deletes the oldest first, so a segment waits for all earlier ones.

    Attributes:
        from_ms: when `retention.ms` has passed; None if that limit is not set.
        more_bytes: number of further bytes in the log until `retention.bytes` deletes the segment; None if that limit
            is not set, or does not delete the segment.
        is_active: whether it is still appended to, so that each further record delays its end.
    """

    from_ms: int | None
    more_bytes: int | None
    is_active: bool

    def step(self, now_ms: int) -> NextStep:
        """Return the next step of its records."""
        if self.more_bytes is not None and self.more_bytes <= 0:
            return NextStep(
                StepKind.RETENTION, "goes with its segment in the next retention run (retention.bytes)", now_ms
            )
        ends = []
        if self.more_bytes is not None:
            ends.append(f"after {bytes_text(self.more_bytes)} more (retention.bytes)")
        if self.from_ms is not None:
            later = ", which is still written and goes as a whole" if self.is_active else ""
            ends.append(f"from {utc(self.from_ms)} on (retention.ms){later}")
        what = f"goes with its segment {', or '.join(ends)}"
        is_sure = self.more_bytes is None and not self.is_active
        at_once = None if self.more_bytes is not None else self.from_ms
        return NextStep(StepKind.RETENTION, what, at_once, self.from_ms if is_sure else None)


@dataclass(frozen=True, slots=True)
class Prospects:
    """What cleans and retention will do to the records of one log.

    Attributes:
        cleaned: range of a clean; None if the log is not cleaned.
        why_not: why the log is not cleaned; empty if it is.
        ends: by base offset of each segment, when retention deletes it; empty if unknown.
        config: the topic's config; None without one.
        now_ms: time of these facts.
        cut: ranges of offsets that the next load truncates; the end of an open range is None.
    """

    cleaned: CleanRange | None
    why_not: str
    ends: Mapping[int, SegmentEnd]
    config: TopicConfig | None
    now_ms: int = 0
    cut: tuple[tuple[int, int | None], ...] = ()

    def steps(self, records: Sequence[KeyRecord]) -> list[NextStep]:
        """Return what happens next to each record of one key.

        Args:
            records: all records of the key, in offset order.
        """
        committed = [
            one for one in records if one.outcome is TransactionOutcome.COMMITTED and not self._is_cut(one.offset)
        ]
        return [self._step(self._after_the_cut(record, committed), committed) for record in records]

    def _is_cut(self, offset: int) -> bool:
        return any(start <= offset and (end is None or offset < end) for start, end in self.cut)

    def _after_the_cut(self, record: KeyRecord, committed: Sequence[KeyRecord]) -> KeyRecord:
        """Return the record as it will be after a load truncates the log: its superseding record may be cut off."""
        if record.superseded_by is None or not self._is_cut(record.superseded_by):
            return record
        ordered = committed if KEEP_RULE.is_log_order else sorted(committed, key=_precedence)
        at = bisect.bisect_right(ordered, _precedence(record), key=_precedence)
        return replace(record, superseded_by=None if at == len(ordered) else ordered[at].offset)

    def _step(self, record: KeyRecord, committed: Sequence[KeyRecord]) -> NextStep:
        if self._is_cut(record.offset):
            return NextStep(
                StepKind.CUT,
                "lost at the next start, which cuts the log in front of it; for the reason: cordwood check",
            )
        found = self._by_clean(record, committed)
        end = self.ends.get(record.segment)
        if end is None or found.kind is StepKind.CLEAN:
            return found
        return end.step(self.now_ms)

    def _by_clean(self, record: KeyRecord, committed: Sequence[KeyRecord]) -> NextStep:
        if record.outcome is TransactionOutcome.OPEN:
            return NextStep(StepKind.OPEN, "its transaction is open")
        if self.cleaned is None:
            is_value = (
                record.outcome is TransactionOutcome.COMMITTED
                and record.superseded_by is None
                and not record.is_tombstone
            )
            what = "the value of its key" if is_value else f"kept: {self.why_not}"
            return NextStep(StepKind.STAYS if is_value else StepKind.KEPT, what)
        if record.outcome is TransactionOutcome.ABORTED:
            return self._removed(record, record.offset, "aborted")
        if record.superseded_by is not None:
            # In a clean, only dirty records supersede others.
            least = KEEP_RULE.first_superseding(self.cleaned.first_dirty_offset, 0)
            if KEEP_RULE.is_log_order:
                least = max(least, record.offset + 1)
            at = bisect.bisect_left(committed, least, key=lambda one: one.offset)
            dirty = (committed[number] for number in range(at, len(committed)))
            cause = next((one for one in dirty if _precedence(one) > _precedence(record)), None)
            if cause is None:
                what = "superseded, but the cleaner has passed both: a clean with --first-dirty removes it"
                return NextStep(StepKind.KEPT, what)
            return self._removed(cause, cause.offset, f"superseded by offset {record.superseded_by}")
        if record.is_tombstone:
            return self._expires(record)
        return NextStep(StepKind.STAYS, "the value of its key")

    def _removed(self, cause: KeyRecord, offset: int, why: str) -> NextStep:
        assert self.cleaned is not None, "it is asked for logs that are cleaned"
        by_ms = self._due_ms(cause)
        if offset < self.cleaned.first_uncleanable_offset:
            return NextStep(StepKind.CLEAN, f"{why}; the next clean removes it", by_ms=by_ms)
        end = self.cleaned.first_uncleanable_offset
        what = f"{why}, but only offsets below {end} can be cleaned: {_UNTIL[self.cleaned.bound]}"
        return NextStep(StepKind.WAITS, what, by_ms=by_ms)

    def _expires(self, record: KeyRecord) -> NextStep:
        assert self.cleaned is not None, "it is asked for logs that are cleaned"
        if record.delete_horizon_ms is not None:
            when = utc(record.delete_horizon_ms)
            what = f"a tombstone, which cleans remove from {when} on"
            return NextStep(StepKind.HORIZON, what, record.delete_horizon_ms)
        assert self.config is not None, "a log that is cleaned has configs"
        later = f"delete.retention.ms={self.config.integer('delete.retention.ms')}"
        if record.offset < self.cleaned.first_uncleanable_offset:
            what = f"a tombstone: the next clean lets it expire after {later}, and a later one removes it"
            return NextStep(StepKind.HORIZON, what, by_ms=self._due_ms(record))
        return self._removed(record, record.offset, "a tombstone")

    def _due_ms(self, record: KeyRecord) -> int | None:
        """Return when `max.compaction.lag.ms` makes a clean due because of this record."""
        lag_ms = _NEVER_MS if self.config is None else self.config.integer("max.compaction.lag.ms")
        return None if lag_ms == _NEVER_MS or record.timestamp < 0 else record.timestamp + lag_ms


def _precedence(record: KeyRecord) -> tuple[int, int]:
    """Of two records of a key, the one with the larger pair supersedes the other."""
    return record.rank, record.offset


# ---- predict for the records of a log --------------------------------------------------------------------------------


def prospects_of(node: Node, place: LocatedPartition, log: LogView, now_ms: int) -> Prospects:
    """Predict the fate of the records of a log that has a segment."""
    obstacle = why_never(node, place)
    if obstacle is not None and place.name is None:
        return Prospects(None, str(obstacle.reason), {}, None)
    assert place.name is not None, "a rule is about it"
    loaded = place.loaded(log, now_ms)
    cut = _cut_offsets(loaded)
    if obstacle is not None:
        return Prospects(None, str(obstacle.reason), {}, None, cut=cut)
    name, directory = place.name.topic_partition, place.directory
    config = node.config_of(name.topic)
    segments = [loaded_facts(segment) for segment in loaded.segments]
    ends = _ends(node, config, segments)
    if not config.compact:
        return Prospects(None, "cleanup.policy does not compact it", ends, config, now_ms=now_ms, cut=cut)
    start, end = log.log_start_offset, loaded.log_end_offset
    mark = high_watermark(
        directory.high_watermarks.get(name),
        start,
        end,
        brokers=directory.info(META_PROPERTIES) is not None,
        replicas=node.replica_count(name),
    ).offset
    stable = min(mark, _first_open(log, mark, now_ms))
    first_dirty, _ = first_dirty_offset(directory.cleaner_offsets.get(name), start, end)
    lag_ms = config.integer("min.compaction.lag.ms")
    found = clean_range(segments, first_dirty, stable, min_compaction_lag_ms=lag_ms, now_ms=now_ms)
    if found.bound is Bound.LAST_STABLE_OFFSET and stable == mark:
        found = CleanRange(first_dirty, found.first_uncleanable_offset, Bound.HIGH_WATERMARK, found.bound_offset)
    return Prospects(found, "", ends, config, now_ms, cut)


def _cut_offsets(loaded: LoadedLog) -> tuple[tuple[int, int | None], ...]:
    """Return the ranges of offsets that a load cuts off; a range up to the end of the log has no end."""
    if loaded.is_emptied:
        return ((0, None),)
    by_base = {one.segment.base_offset: one for one in loaded.segments}
    ranges = list[tuple[int, int | None]]()
    for cut in loaded.cuts:
        segment = by_base[cut.base_offset]
        if segment.next_offset is not None:
            following = None if cut.is_end else segment.segment.following
            ranges.append((segment.next_offset, None if following is None else following.base_offset))
    return tuple(ranges)


def _ends(node: Node, config: TopicConfig, segments: Sequence[SegmentFacts]) -> dict[int, SegmentEnd]:
    """Return when retention deletes each segment, by explicitly set limits."""

    def limit(name: str) -> int:
        is_set = config.delete and config[name].explicit and node.doubt(config.topic, name) is None
        return config.integer(name) if is_set else NONE

    keep_ms, keep_bytes = limit("retention.ms"), limit("retention.bytes")
    ends, newest_ms = dict[int, SegmentEnd](), NONE
    more_bytes = keep_bytes - sum(one.size_bytes for one in segments)
    for one in segments:
        newest_ms, more_bytes = max(newest_ms, one.largest_timestamp), more_bytes + one.size_bytes
        is_active = one is segments[-1]
        from_ms = newest_ms + keep_ms if keep_ms >= 0 else None
        # Further bytes go into the active segment itself, so only a limit of 0 deletes it by size.
        by_size = more_bytes if keep_bytes >= 0 and (not is_active or not keep_bytes) else None
        if from_ms is not None or by_size is not None:
            ends[one.base_offset] = SegmentEnd(from_ms, by_size, is_active)
    return ends


def _first_open(log: LogView, end: int, now_ms: int) -> int:
    """Return the first offset of the earliest transaction that is open at an offset; else the offset itself."""
    producers, start = newest_snapshot(log, end, now_ms=now_ms)
    for batches in headers_from(log, start, end):
        producers.replay(batches[batches["base_offset"] < end])
    return min((one.transaction_start for _, one in producers.by_id.in_transaction()), default=end)
