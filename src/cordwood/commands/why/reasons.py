"""Derive from facts what keeps a partition from being smaller.

A log can lose bytes in three ways (right column), and each part of the log waits for a different event:

    log start ……… first dirty ………… first uncleanable ………… active segment ……… end
    └ tombstones ┘└ cleaner, ratio ┘└ transaction, lag, … ┘└ its next roll ┘      compaction
    └ retention.ms, retention.bytes, from the oldest segment on                   retention
    └ files that no log needs: left over, foreign, of a deleted directory         files

Each cause has an upper bound of the bytes that it holds back. The bounds of one way add up, to at most the log. Both
compaction and retention remove parts of the log, so a partition can lose at most its files plus the larger sum of these
two, and no more than its size on disk. Bytes in a tier are counted apart; `tiered` has the causes of tiered logs. The
first cause is the largest, with two exceptions: partitions that are never cleaned or cannot be read, policies that do
not fit the topic's use, and traps of tiered topics outrank all others; and if nothing could free a tenth of the space,
the cause is the live data.

`selection` and `retention` decide on cleans and deletions; this module makes causes from their plans and reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cordwood.cleaning.rules.plan import Bound, Compaction, Decision, LogFacts, Reason, SegmentFacts, config_reason, utc
from cordwood.cleaning.rules.retention import plan_retention
from cordwood.cleaning.rules.selection import segments_between
from cordwood.commands.why.facts import Cause, CauseKind, CleanerFacts, Evidence, PartitionFacts, Way, WhyPartition
from cordwood.commands.why.tiered import (
    broker_will_delete,
    kept_by_retention,
    remote_bytes,
    tier_outlook,
    tiered_causes,
)
from cordwood.commands.why.transaction import transaction_cause
from cordwood.common.config import TopicConfig
from cordwood.common.text import bytes_text, duration_text, names_text, number
from cordwood.kernels.layout import HEADER_BYTES
from cordwood.storage.formats.filenames import LOG_START_OFFSETS, Temporary
from cordwood.storage.formats.messages.topics import REMOTE_LOG_METADATA, SHARE_GROUP_STATE

if TYPE_CHECKING:
    from cordwood.storage.index.key_sample import KeyCounts

#: If a log is due for longer than this while its broker runs, its cleaner is dead or has given up on it.
PATIENCE_MS = 30 * 60_000
#: Retention that deletes nothing within this time counts as far away.
FAR_MS = 7 * 86_400_000
#: Removable bytes count as little below this share of the bytes on disk.
_LITTLE = 0.1
#: Maximum share of superseded, or ever removed, records in a log whose keys count as never repeating.
_NO_REPEATS = 0.01
#: Minimum number of records for that conclusion.
_RECORDS_MIN = 100
#: Above this share of records without a key, a policy of compaction is a mistake.
_KEYLESS = 0.5
#: Minimum size of indexes to be mentioned, if they are larger than their log.
_INDEX_BYTES_MIN = 1 << 20
#: Bytes of an entry in the offset index and one in the time index; a segment has at most one of each per batch.
_ENTRY_BYTES = 20
#: Block size of most disks.
_BLOCK_BYTES = 4096


def causes_of(facts: PartitionFacts) -> tuple[Cause, ...]:
    """Return the causes of a partition's size, the main cause first; at least one."""
    found = [cause for rule in _RULES for cause in rule(facts)]
    found = [
        _on_disk(facts, cause) for cause in found if cause.bytes_max > 0 or cause.kind in _ALWAYS or facts.log is None
    ]
    if all(cause.kind is CauseKind.DELETING for cause in found) or _is_little(facts, found):
        found.append(_kept(facts))
    order = list(CauseKind)
    return tuple(sorted(found, key=lambda cause: (_rank(cause), -cause.bytes_max, order.index(cause.kind))))


def _rank(cause: Cause) -> int:
    """Return the rank of a cause: policy misfits and breakage, live data (listed only if nothing else matters), others.

    Data that a running broker is already deleting is last.
    """
    if cause.kind is CauseKind.DELETING:
        return 3
    return 0 if cause.kind in _FIRST else 1 if cause.kind in _KEPT else 2


def _is_little(facts: PartitionFacts, causes: Sequence[Cause]) -> bool:
    """Whether the removable bytes are few, even all together."""
    if any(cause.kind in _FIRST for cause in causes):
        return False
    files = sum(cause.bytes_max for cause in causes if cause.way is Way.FILES)
    remote = sum(cause.bytes_max for cause in causes if cause.way is Way.TIER)
    size = files + _sum(facts.local_segments) + remote_bytes(facts)
    return could_lose(facts, causes) + remote < _LITTLE * size


def could_lose(facts: PartitionFacts, causes: Sequence[Cause]) -> int:
    """Return an upper bound of the bytes that a partition could lose, as sizes of logs."""
    log_bytes = _sum(facts.local_segments)
    return _most(facts, log_bytes, {way: sum(one.bytes_max for one in causes if one.way is way) for way in Way})


def could_lose_on_disk(facts: PartitionFacts, causes: Sequence[Cause]) -> int:
    """Return an upper bound of the bytes that a partition could lose, in blocks, including indexes."""
    log_bytes = _log_blocks(facts.local_segments)
    return _most(facts, log_bytes, {way: sum(one.disk_bytes_max for one in causes if one.way is way) for way in Way})


def _most(facts: PartitionFacts, log_bytes: int, by_way: Mapping[Way, int]) -> int:
    of_compaction, of_retention = (
        min(by_way[way], log_bytes or by_way[way]) for way in (Way.COMPACTION, Way.RETENTION)
    )
    return min(facts.usage.total_bytes, by_way[Way.FILES] + max(of_compaction, of_retention))


def _log_blocks(segments: Sequence[SegmentFacts]) -> int:
    """Return the blocks of all segments, without the active one's indexes, which are mostly preallocated."""
    if not segments:
        return 0
    active = segments[-1]
    closed = sum(one.disk_bytes for one in segments[:-1])
    return closed + min(active.disk_bytes, -(-active.size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES)


def _on_disk(facts: PartitionFacts, cause: Cause) -> Cause:
    """Return the cause with its bytes in blocks, in proportion to the log if it names no segments."""
    if cause.disk_bytes_max >= 0:
        return cause
    size = cause.bytes_max
    if cause.way is not Way.FILES and (log_bytes := _sum(facts.local_segments)):
        size = round(size * _log_blocks(facts.local_segments) / log_bytes)
    return replace(cause, disk_bytes_max=size)


def of_reason(kind: CauseKind, reason: Reason, bytes_max: int, next_step: str = "") -> Cause:
    """Make a cause of a plan's reason."""
    evidence = (Evidence.of(reason),) if reason.source else ()
    return Cause(kind, reason.what, bytes_max, next_step, reason.until, evidence)


# ---- kinds of partitions ---------------------------------------------------------------------------------------------

#: For partitions that are never cleaned: the next step, and whether all of the partition could be removed.
_NEVER: Mapping[CauseKind, tuple[str, bool]] = {
    CauseKind.NO_PARTITION: ("it has no files of Kafka; look at it, and move it elsewhere", True),
    CauseKind.TO_BE_DELETED: (
        "start the broker, which removes it after file.delete.delay.ms; or, with the broker stopped, remove the "
        "directory by hand",
        True,
    ),
    CauseKind.STRAY: (
        "make sure that the cluster does not need it, then remove the directory by hand: no broker will",
        True,
    ),
    CauseKind.FUTURE: ("let the move between log directories finish, or cancel it", True),
    CauseKind.MOVING: ("let the move between log directories finish, or cancel it", False),
    CauseKind.DUPLICATE: ("find out which of both is right (cordwood check), and remove the other", True),
    CauseKind.METADATA_LOG: ("nothing: controllers delete it behind their snapshots", False),
    CauseKind.OFFLINE: ("repair or remove the file; cordwood check shows the damage", False),
    CauseKind.WRONG_CONFIG: ("correct the config: Kafka would refuse it, too", False),
    CauseKind.UNKNOWN_POLICY: ("give --metadata, --server-properties or --config cleanup.policy=…", False),
    CauseKind.TIERED: (
        "local.retention.ms and local.retention.bytes limit the log on this disk; with --tier, why shows the next "
        "deletions of retention there and here",
        False,
    ),
}


def _never_cleaned(facts: PartitionFacts) -> Iterator[Cause]:
    if facts.kind is None:
        return
    next_step, all_goes = _NEVER[facts.kind]
    if facts.kind is CauseKind.TO_BE_DELETED and facts.cleaner.holder:
        who = "the broker" if facts.cleaner.live else facts.cleaner.holder
        next_step = f"wait: {who} removes it within file.delete.delay.ms"
    cause = of_reason(facts.kind, facts.plan.reason, facts.usage.total_bytes if all_goes else 0, next_step)
    evidence = [Evidence("its directory", facts.plan.path), *cause.evidence]
    if facts.kind is CauseKind.TIERED and facts.config is not None:
        evidence += [facts.of_config(name) for name in ("local.retention.ms", "local.retention.bytes")]
    yield replace(cause, evidence=tuple(evidence), way=Way.FILES)


def _broken(facts: PartitionFacts) -> Iterator[Cause]:
    """Yield causes that keep the whole partition from being scanned."""
    plan, size = facts.plan, facts.usage.total_bytes
    if plan.is_unreadable:
        yield of_reason(CauseKind.UNREADABLE, plan.reason, 0, "make its files readable, and check the disk")
    elif plan.decision is Decision.REFUSE and plan.compaction is None and facts.kind is None:
        yield of_reason(CauseKind.DAMAGED, plan.reason, size, f"cordwood check {plan.path} shows the damage")
    elif facts.kind is None and facts.log is None and plan.log_end_offset <= plan.log_start_offset:
        # If a log ends below its start, the next load deletes the segments.
        step = f"if it is not to go, correct its line in {LOG_START_OFFSETS} before a load" if facts.usage.logs else ""
        yield of_reason(CauseKind.EMPTY, plan.reason, facts.usage.logs, step)


# ---- compaction ------------------------------------------------------------------------------------------------------


def _policy_misfits(facts: PartitionFacts) -> Iterator[Cause]:
    """Yield records that do not fit a policy of compaction."""
    keys, log = facts.keys, facts.log
    if keys is None or log is None or facts.plan.compaction is None:
        return
    counted = _counted(keys)
    if keys.records and keys.keyless > _KEYLESS * keys.records:
        share = keys.keyless / keys.records
        yield Cause(
            CauseKind.NULL_KEYS,
            f"{share:.0%} of its records have no key, and a compacted topic cannot keep them: its next clean removes "
            "them",
            round(share * facts.plan.compaction.log_bytes),
            "if they are needed, set cleanup.policy=delete before it is cleaned",
            evidence=(counted, facts.of_config("cleanup.policy")),
        )
    elif keys.keyed >= _RECORDS_MIN and keys.superseded_share <= _NO_REPEATS and _never_lost_records(log):
        yield Cause(
            CauseKind.UNIQUE_KEYS,
            "its keys never repeat, so that compaction can remove nothing",
            facts.plan.compaction.log_bytes,
            "set cleanup.policy=delete with a retention, write tombstones, or give records of one subject the same key",
            evidence=(counted, facts.of_config("cleanup.policy")),
        )


def _never_lost_records(log: LogFacts) -> bool:
    """Whether the closed segments have a record for about each of their offsets: no clean has removed any."""
    closed, headers = log.segments[:-1], log.headers[:-1]
    if not closed:
        return True
    if any(one.wrappers for one in headers):
        return False
    offsets = log.segments[-1].base_offset - max(log.log_start_offset, closed[0].base_offset)
    records = sum(one.records + one.markers for one in headers)
    return records >= (1 - _NO_REPEATS) * offsets


def _cleaner(facts: PartitionFacts) -> Iterator[Cause]:
    """Yield why the cleanable part is not cleaned: the cleaner is off, failed, or waits."""
    plan, compaction = facts.plan, facts.plan.compaction
    if compaction is None or facts.log is None or facts.config is None:
        return
    # Kafka's figures count the segment that contains the first dirty offset twice.
    read = [one for one in facts.log.segments if one.base_offset < compaction.range.first_uncleanable_offset]
    size = facts.compactable(_sum(read) if compaction.cleanable_bytes else 0)
    dirty = Evidence(
        f"first dirty offset {compaction.range.first_dirty_offset}, "
        f"first uncleanable offset {compaction.range.first_uncleanable_offset}",
        compaction.first_dirty_reason,
    )
    if not facts.cleaner.enabled.value:
        said = config_reason("log.cleaner.enable", facts.cleaner.enabled)
        yield Cause(
            CauseKind.CLEANER_OFF,
            f"its broker does not clean at all: {said.what}",
            facts.compactable(compaction.log_bytes),
            "set log.cleaner.enable=true, and restart the broker; or run cordwood clean",
            evidence=(Evidence.of(said), dirty),
        )
        return
    if plan.decision is Decision.REFUSE:
        yield replace(
            of_reason(CauseKind.DAMAGED, plan.reason, facts.compactable(compaction.log_bytes)),
            what=f"Kafka's cleaner gives up on it: its cleanable part is {plan.reason.what}",
            next_step=f"cordwood check {plan.path} shows all damage; restore the segment from a replica",
            evidence=(Evidence(plan.reason.what), dirty),
        )
    elif facts.cleaner.failure:
        yield Cause(
            CauseKind.CLEANER_CHECKPOINT,
            f"a broker's cleaner ends: {facts.cleaner.failure}",
            size,
            "remove the entry, or the file: without it cleaning begins at the log start",
            evidence=(Evidence(facts.cleaner.failure, facts.cleaner.checkpoint_path), dirty),
        )
    elif plan.decision is Decision.CLEAN:
        yield replace(_due(facts, compaction, size), evidence=(Evidence.of(plan.reason), dirty, *_signs(facts.cleaner)))
    elif compaction.cleanable_bytes and _is_due(facts, compaction):
        yield of_reason(
            CauseKind.DOUBT, plan.reason, size, "give the unknown configs with --config, or repair the metadata"
        )
    elif compaction.cleanable_bytes:
        ratio = of_reason(CauseKind.DIRTY_RATIO, plan.reason, size, "a lower min.cleanable.dirty.ratio cleans earlier")
        yield replace(ratio, evidence=(*ratio.evidence, dirty, *facts.if_set("max.compaction.lag.ms")))


def _is_due(facts: PartitionFacts, compaction: Compaction) -> bool:
    assert facts.config is not None, "it is compacted"
    ratio = compaction.cleanable_ratio or 0.0
    return compaction.must_compact_now or ratio > facts.config.real("min.cleanable.dirty.ratio")


def _signs(cleaner: CleanerFacts) -> Iterator[Evidence]:
    if cleaner.checkpoint_ms is not None:
        yield Evidence(f"the cleaner's checkpoint was written at {utc(cleaner.checkpoint_ms)}", cleaner.checkpoint_path)
    if not cleaner.live and cleaner.alive_ms is not None:
        yield Evidence(f"the last sign of a running broker is of {utc(cleaner.alive_ms)}")


def _due(facts: PartitionFacts, compaction: Compaction, size: int) -> Cause:
    """Explain why a log that is due for a clean has not been cleaned yet."""
    cleaner, now_ms = facts.cleaner, facts.now_ms
    since = due_since(facts, compaction)
    alive = now_ms if cleaner.live else cleaner.alive_ms
    dirty = f"{bytes_text(compaction.cleanable_bytes)} of it is dirty"
    if cleaner.in_store:
        what = f"a clean is due, and no broker runs on an object store: {dirty}"
        return Cause(CauseKind.NO_BROKER, what, size, "run cordwood clean --output URL, which writes a cleaned copy")
    if alive is None or alive - since < PATIENCE_MS:
        if cleaner.live:
            return Cause(
                CauseKind.DUE,
                f"a clean is due: {dirty}",
                size,
                "wait for the cleaner",
                "the next rounds of the cleaner",
            )
        what = f"a clean is due, and no broker runs that would do it: {dirty}"
        return Cause(CauseKind.NO_BROKER, what, size, "start the broker, or run cordwood clean", "after its start")
    waited = f"it is due since {utc(since)}, while its broker ran" + ("" if cleaner.live else f" until {utc(alive)}")
    if cleaner.checkpoint_ms is not None and cleaner.checkpoint_ms - since >= PATIENCE_MS:
        what = f"the cleaner passes it over, as it does after an error: {waited}, and other logs were cleaned meanwhile"
        step = "look for this partition in log-cleaner.log (uncleanable-partitions-count); a restart tries it again"
        return Cause(CauseKind.GIVEN_UP, what, size, step)
    moved = (
        "was never written" if cleaner.checkpoint_ms is None else f"has not moved since {utc(cleaner.checkpoint_ms)}"
    )
    what = f"the cleaner seems to be dead: {waited}, but its checkpoint {moved}"
    step = "look for the end of kafka-log-cleaner-thread in log-cleaner.log; a restart of the broker starts it again"
    return Cause(CauseKind.CLEANER_DEAD, what, size, step)


def due_since(facts: PartitionFacts, compaction: Compaction) -> int:
    """Return a time at which a log was certainly due: its cleanable segments had rolled, `min.compaction.lag.ms` had
    passed, and so had `max.compaction.lag.ms` if the dirty ratio is not reached.
    """
    assert facts.log is not None and facts.config is not None, "it is due"
    reach = compaction.range
    some = segments_between(facts.log.segments, reach.first_dirty_offset, reach.first_uncleanable_offset)
    lag_ms = facts.config.integer("min.compaction.lag.ms")
    rolled = max(one.mtime_ms for one in some)
    if lag_ms > 0:
        rolled = max(rolled, max(one.largest_timestamp for one in some) + lag_ms)
    ratio = compaction.cleanable_ratio or 0.0
    is_by_ratio = ratio > facts.config.real("min.cleanable.dirty.ratio")
    return rolled if is_by_ratio else max(rolled, facts.now_ms - compaction.overdue_ms)


def _bound(facts: PartitionFacts) -> Iterator[Cause]:
    """Yield what closed but uncleanable segments wait for."""
    compaction, log = facts.plan.compaction, facts.log
    if compaction is None or log is None:
        return
    reach = compaction.range
    if reach.bound is Bound.ACTIVE_SEGMENT:
        return
    closed = [one for one in log.segments[:-1] if one.base_offset >= reach.first_uncleanable_offset]
    # If nothing is cleanable, records of the whole log could be superseded by the newer records that wait.
    size = facts.compactable(compaction.log_bytes if not compaction.cleanable_bytes else _sum(closed))
    if reach.bound is Bound.LAST_STABLE_OFFSET:
        yield _transaction(facts, compaction, size)
    elif reach.bound is Bound.HIGH_WATERMARK:
        step = "let the followers catch up; or, without followers, give --high-watermark end"
        yield of_reason(CauseKind.HIGH_WATERMARK, compaction.bound_reason, size, step)
    else:
        lag = of_reason(CauseKind.MIN_LAG, compaction.bound_reason, size, "a shorter min.compaction.lag.ms")
        yield replace(lag, by_itself=compaction.bound_reason.until)


def _transaction(facts: PartitionFacts, compaction: Compaction, size: int) -> Cause:
    assert facts.log is not None, "it has a bound"
    first, reason = facts.log.open_transactions[0], Evidence.of(compaction.bound_reason)
    effect = f"nothing from offset {facts.log.last_stable_offset} on is cleaned"
    return transaction_cause(facts, first.producer_id, first.first_offset, effect, size, reason)


def _active(facts: PartitionFacts) -> Iterator[Cause]:
    """Yield the active segment, which is never cleaned."""
    compaction, log, config = facts.plan.compaction, facts.log, facts.config
    if compaction is None or log is None or config is None:
        return
    active = log.segments[-1]
    if not active.size_bytes:
        return
    is_all = not compaction.cleanable_bytes and compaction.range.bound is Bound.ACTIVE_SEGMENT
    # New values in it may supersede old ones in the clean section.
    size = facts.compactable(compaction.log_bytes if is_all else active.size_bytes)
    last = log.log_end_offset - 1
    size_text = bytes_text(active.size_bytes)
    what = f"its active segment, {size_text} from offset {active.base_offset} to {last}, is never cleaned"
    yield Cause(
        CauseKind.ACTIVE_SEGMENT,
        what,
        size,
        "a smaller segment.bytes or segment.ms rolls it earlier",
        rolls_at(facts, active),
        (
            facts.of_config(config.segment_bytes_name),
            facts.of_config("segment.ms"),
            *facts.if_set("max.compaction.lag.ms"),
        ),
    )


def rolls_at(facts: PartitionFacts, active: SegmentFacts) -> str:
    """Describe when an active segment rolls: by size, or with the first record this much younger than its first
    batch.
    """
    assert facts.config is not None, "it is known"
    limit = facts.config.segment_bytes
    left = f"it rolls after {bytes_text(max(0, limit - active.size_bytes))} more"
    if facts.active_first_ms < 0:
        return left
    return f"{left}, or with the first record from {utc(facts.active_first_ms + facts.config.max_segment_ms)} on"


def _tombstones(facts: PartitionFacts) -> Iterator[Cause]:
    """Yield tombstones and markers in the clean section, expired or not."""
    log, compaction = facts.log, facts.plan.compaction
    if log is None or compaction is None:
        return
    expired = sum(one.expired_bytes for one in log.headers)
    waiting = sum(one.waiting_bytes for one in log.headers)
    is_estimate = any(one.is_sampled for one in log.headers)
    about, at_least, or_later = ("about ", "at least ", ", or later,") if is_estimate else ("", "", "")
    if expired and not compaction.cleanable_bytes:
        batches = sum(one.expired_batches for one in log.headers)
        yield Cause(
            CauseKind.EXPIRED_TOMBSTONES,
            f"tombstones or markers in {about}{bytes_text(expired)} ({about}{batches:,} of its batches) may go, but "
            "nothing is dirty",
            expired,
            facts.plan.hint or "cordwood clean --first-dirty 0",
            "its next clean removes them",
            (facts.of_config("delete.retention.ms"),),
            is_estimate=is_estimate,
        )
    if waiting:
        last = max(one.last_horizon_ms for one in log.headers)
        yield Cause(
            CauseKind.TOMBSTONES,
            f"tombstones or markers in {about}{bytes_text(waiting)} wait for their time, the last until "
            f"{at_least}{utc(last)}",
            waiting,
            "a shorter delete.retention.ms, for tombstones that come later",
            f"cleans from {utc(last)} on{or_later} remove them",
            (facts.of_config("delete.retention.ms"),),
            is_estimate=is_estimate,
        )


# ---- retention -------------------------------------------------------------------------------------------------------

_LIMITS = ("retention.ms", "retention.bytes")


def _retention(facts: PartitionFacts) -> Iterator[Cause]:
    """Yield records that a broker's retention deletes or would delete, by explicit limits or Kafka's defaults."""
    log, config = facts.log, facts.config
    if log is None or config is None or facts.kind is not None or facts.tier is not None:
        return
    size = _sum(log.segments)
    if not config.policy:
        step = "set cleanup.policy to compact or delete"
        yield Cause(
            CauseKind.KEPT_FOREVER,
            "its cleanup.policy is empty, so that everything is kept",
            size,
            step,
            evidence=(facts.of_config("cleanup.policy"),),
            way=Way.RETENTION,
        )
    yield from _below_start(facts, log)
    if not config.delete:
        return
    limits = {name: config.integer(name) for name in _LIMITS}
    evidence = tuple(facts.of_config(name) for name in _LIMITS)
    if max(limits.values()) < 0:
        if _unlimited(config):
            return
        what = "retention is off: neither retention.ms nor retention.bytes limits it"
        step = "set retention.ms or retention.bytes"
        yield Cause(CauseKind.RETENTION_OFF, what, size, step, evidence=evidence, way=Way.RETENTION)
        return
    yield from (replace(cause, evidence=(*evidence, *cause.evidence)) for cause in _limited(facts, log, limits))


#: Kafka's own topics without a limit unless a person sets one, as a limit could delete records that are still needed:
#: their contents, and the next step.
_UNLIMITED = {
    SHARE_GROUP_STATE: (
        "it is the state of share groups; a broker's coordinator deletes records that no group needs any more",
        "nothing to do; with a retention, groups would lose their state",
    ),
    REMOTE_LOG_METADATA: (
        "it lists the segments in remote storage, and Kafka keeps all of it",
        "nothing to do; a retention that is shorter than that of a topic in remote storage would lose segments",
    ),
}


def _unlimited(config: TopicConfig) -> tuple[str, str] | None:
    """Return the contents and next step of a topic that has no limit on purpose; None for other topics."""
    return _UNLIMITED.get(config.topic) if max(map(config.integer, _LIMITS)) < 0 else None


def _below_start(facts: PartitionFacts, log: LogFacts) -> Iterator[Cause]:
    """Yield records below the log start offset, which no consumer can read."""
    start, first = log.log_start_offset, log.segments[0]
    if start <= first.base_offset:
        return
    ends = [*(one.base_offset for one in log.segments[1:]), log.log_end_offset]
    below = 0.0
    for segment, end in zip(log.segments, ends, strict=True):
        share = (min(end, start) - segment.base_offset) / max(1, end - segment.base_offset)
        below += max(0.0, share) * segment.size_bytes
    what = f"about {bytes_text(round(below))} are below the log start offset {start}, and go with their segments"
    step = "nothing to do: a segment goes once all of it is below the log start offset"
    evidence = (Evidence(f"log start offset {start}", "log-start-offset-checkpoint"),)
    yield Cause(CauseKind.BELOW_START, what, round(below), step, evidence=evidence, way=Way.RETENTION)


def _limited(facts: PartitionFacts, log: LogFacts, limits: dict[str, int]) -> Iterator[Cause]:
    """Yield retention with a limit: due, held back, or not reached."""
    now_ms, cleaner = facts.now_ms, facts.cleaner
    start, end, mark = log.log_start_offset, log.log_end_offset, log.high_watermark
    taken = plan_retention(log.segments, start, end, mark.offset, limits, now_ms)
    due = _of_bases(log, [base for name, bases, _ in taken if name in limits for base in bases])
    if due:
        rules = " and ".join(name for name, _, _ in taken if name in limits)
        run, step = "no broker runs that would delete them", f"start the broker, or run {_retention_command(facts)}"
        if cleaner.live:
            run, step = "a broker deletes them in its next check", "wait for log.retention.check.interval.ms"
        elif cleaner.in_store:
            run, step = "no broker deletes from an object store", "run cordwood clean --retention --output URL"
        what = f"{bytes_text(_blocks(due))} are beyond {rules}, and {run}"
        yield _retained(CauseKind.RETENTION_DUE, what, due, step, run)
    unreplicated = plan_retention(log.segments, start, end, end, limits, now_ms)
    beyond = {base for name, bases, _ in unreplicated if name in limits for base in bases}
    held = _of_bases(log, beyond - {part.segment.base_offset for part in due})
    if held:
        what = f"{bytes_text(_blocks(held))} are beyond its retention"
        what = f"{what}, but may not be replicated: the high watermark is {mark.offset}"
        step = "let the followers catch up; or, without followers, give --high-watermark end"
        yield _retained(CauseKind.NOT_REPLICATED, what, held, step, evidence=(_as_evidence_of_mark(log),))
    gone = {base for _, bases, _ in (*taken, *unreplicated) for base in bases}
    stays = [one for one in log.segments if one.base_offset not in gone]
    waiting = list(_behind_younger(facts, stays, limits["retention.ms"]))
    waiting += _in_active(facts, stays, limits)
    yield from waiting
    if not (due or held or waiting):
        yield from _far_away(facts, log, limits)


@dataclass(frozen=True, slots=True)
class _SegmentPart:
    """A part of a segment, in bytes."""

    segment: SegmentFacts
    size_bytes: int

    @property
    def blocks(self) -> int:
        """Blocks of the part, in proportion."""
        size = self.segment.size_bytes
        return round(self.segment.disk_bytes * self.size_bytes / size) if size else self.segment.disk_bytes


def _of_bases(log: LogFacts, bases: Collection[int]) -> list[_SegmentPart]:
    """Return whole segments as parts."""
    return [_SegmentPart(one, one.size_bytes) for one in log.segments if one.base_offset in bases]


def _blocks(parts: Iterable[_SegmentPart]) -> int:
    return sum(part.blocks for part in parts)


def _retained(
    kind: CauseKind,
    what: str,
    parts: Sequence[_SegmentPart],
    next_step: str,
    by_itself: str = "",
    evidence: tuple[Evidence, ...] = (),
) -> Cause:
    """Make a cause of parts of segments that retention deletes."""
    size = sum(part.size_bytes for part in parts)
    return Cause(kind, what, size, next_step, by_itself, evidence, Way.RETENTION, _blocks(parts))


def _old_parts(facts: PartitionFacts, segments: Iterable[SegmentFacts], limit_ms: int) -> list[_SegmentPart]:
    """Return the records older than `retention.ms` in some segments, as far as they are known."""
    horizon_ms = facts.now_ms - limit_ms
    parts = (
        _SegmentPart(
            one, one.size_bytes if one.largest_timestamp < horizon_ms else facts.old_bytes.get(one.base_offset, 0)
        )
        for one in segments
    )
    return [part for part in parts if part.size_bytes]


def _retention_command(facts: PartitionFacts) -> str:
    """Return the command that deletes as a broker would: it repeats Kafka's defaults as explicit configs."""
    name, config = facts.plan.topic_partition, facts.config
    assert name is not None and config is not None, "its limits are known"
    given = [] if config.policy_known else [f"cleanup.policy={','.join(config.policy)}"]
    given += [
        f"{limit}={config.integer(limit)}"
        for limit in _LIMITS
        if not config[limit].explicit and config.integer(limit) >= 0
    ]
    # Name the topic: without it the limit would override the limits of other topics.
    return " ".join(["cordwood clean --retention", *(f"--config {name.topic}:{one}" for one in given)])


def _as_evidence_of_mark(log: LogFacts) -> Evidence:
    return Evidence(f"high watermark {log.high_watermark.offset}", log.high_watermark.source)


#: Clocks differ: Kafka's default of `message.timestamp.after.max.ms` accepts records of the next hour.
_AHEAD_MS = 3_600_000


def _behind_younger(facts: PartitionFacts, stays: Sequence[SegmentFacts], limit_ms: int) -> Iterator[Cause]:
    """Yield old records that wait for a younger one, in their own segment or in an earlier one.

    Args:
        stays: the segments that no limit deletes now; the last is active.
        limit_ms: `retention.ms`; negative without a limit.
    """
    now_ms = facts.now_ms
    if limit_ms < 0 or not stays:
        return
    is_ahead = (one.size_bytes and one.largest_timestamp > now_ms + _AHEAD_MS for one in stays)
    ahead = next((at for at, is_it in enumerate(is_ahead) if is_it), None)
    if ahead is not None:
        first = stays[ahead]
        behind = _old_parts(facts, stays[-1:], limit_ms) if ahead < len(stays) - 1 else []
        parts = [_SegmentPart(one, one.size_bytes) for one in stays[ahead : max(ahead + 1, len(stays) - 1)]] + behind
        until = f"the segment from offset {first.base_offset} on goes at {utc(first.largest_timestamp + limit_ms)}"
        what = (
            f"the segment from offset {first.base_offset} on claims to have records of {utc(first.largest_timestamp)}, "
            "so that nothing from there on is deleted"
        )
        step = "set message.timestamp.type=LogAppendTime or a lower message.timestamp.after.max.ms; or delete records"
        yield _retained(CauseKind.FUTURE_TIMES, what, parts, step, until, (_newest(first),))
    closed = stays[:-1] if ahead is None else stays[: min(ahead, len(stays) - 1)]
    old = _old_parts(facts, closed, limit_ms)
    if not old:
        return
    youngest = max(closed[: closed.index(old[-1].segment) + 1], key=lambda one: one.largest_timestamp)
    goes_ms = youngest.largest_timestamp + limit_ms
    what = (
        f"{bytes_text(_blocks(old))} are older than retention.ms ({duration_text(limit_ms)}), but segments are "
        f"deleted whole and in order, and the segment of base offset {youngest.base_offset} has records up to "
        f"{utc(youngest.largest_timestamp)}"
    )
    step = "wait; a smaller segment.ms or segment.bytes makes segments that go earlier"
    until = f"they go at {utc(goes_ms)}"
    yield _retained(CauseKind.YOUNGER_RECORD, what, old, step, until, (_newest(youngest),))


def _newest(segment: SegmentFacts) -> Evidence:
    return Evidence(f"segment {segment.base_offset} has records up to {utc(segment.largest_timestamp)}")


def _in_active(facts: PartitionFacts, stays: Sequence[SegmentFacts], limits: Mapping[str, int]) -> Iterator[Cause]:
    """Yield records beyond a limit in the active segment, which is deleted whole once its newest record is too old."""
    assert facts.config is not None, "its limits are known"
    if not stays or not stays[-1].size_bytes or stays[-1].largest_timestamp > facts.now_ms:
        return
    active, limit_bytes = stays[-1], limits["retention.bytes"]
    old = _old_parts(facts, [active], limits["retention.ms"]) if limits["retention.ms"] >= 0 else []
    beyond = max(0, active.size_bytes - limit_bytes) if limit_bytes >= 0 else 0
    parts = old
    name, rule = "retention.ms", "which goes as a whole, once its newest record is older"
    if beyond > sum(part.size_bytes for part in old):
        parts, name, rule = [_SegmentPart(active, beyond)], "retention.bytes", "which retention.bytes does not delete"
    if not parts:
        return
    what = f"{bytes_text(_blocks(parts))} are beyond {name}, but in its active segment, {rule}"
    step = "a smaller segment.ms or segment.bytes rolls it earlier"
    evidence = (facts.of_config(facts.config.segment_bytes_name), facts.of_config("segment.ms"))
    yield _retained(CauseKind.ACTIVE_SEGMENT, what, parts, step, rolls_at(facts, active), evidence)


def _far_away(facts: PartitionFacts, log: LogFacts, limits: Mapping[str, int]) -> Iterator[Cause]:
    """Yield retention by time alone that deletes nothing for a long time; a size limit could be reached any moment."""
    oldest, limit_ms = log.segments[0], limits["retention.ms"]
    if limit_ms < 0 or limits["retention.bytes"] >= 0 or len(log.segments) == 1:
        return
    goes_ms = oldest.largest_timestamp + limit_ms
    if goes_ms - facts.now_ms > FAR_MS:
        what = f"retention deletes nothing before {utc(goes_ms)}: retention.ms is {duration_text(limit_ms)}"
        parts, until = (
            _of_bases(log, [one.base_offset for one in log.segments]),
            f"its oldest segment goes at {utc(goes_ms)}",
        )
        evidence = (_newest(oldest),)
        yield _retained(CauseKind.RETENTION_FAR, what, parts, "a shorter retention.ms", until, evidence)


def _oldest_goes(log: LogFacts, limits: Mapping[str, int]) -> str:
    """Describe when retention deletes the oldest segment: after some bytes, at a time, or whichever is first."""
    oldest, limit_ms, limit_bytes = log.segments[0], limits["retention.ms"], limits["retention.bytes"]
    if len(log.segments) == 1:
        if limit_ms < 0:
            return "all of it is in the active segment, which retention.bytes does not delete"
        newest = f"its newest record is older than retention.ms ({duration_text(limit_ms)})"
        return f"all of it is in the active segment, which goes as a whole, once {newest}"
    more = oldest.size_bytes + limit_bytes - _sum(log.segments)
    by_size = f"after {bytes_text(max(0, more))} more (retention.bytes)" if limit_bytes >= 0 else ""
    by_time = f"at {utc(oldest.largest_timestamp + limit_ms)}" if limit_ms >= 0 else ""
    if by_size and by_time:
        return f"the oldest segment goes {by_size}, {by_time} at the latest (retention.ms)"
    return f"the oldest segment goes {by_size or by_time}"


# ---- files -----------------------------------------------------------------------------------------------------------


def _files(facts: PartitionFacts) -> Iterator[Cause]:
    """Yield files that no log needs."""
    usage, where = facts.usage, facts.plan.path
    if facts.kind in (CauseKind.TO_BE_DELETED, CauseKind.STRAY, CauseKind.FUTURE, CauseKind.NO_PARTITION):
        return  # the whole directory is deleted
    files = number(len(usage.leftover_files), "file")
    if usage.leftovers and facts.cleaner.holder:
        who = "the running broker" if facts.cleaner.live else f"the running program, {facts.cleaner.holder},"
        what = f"{files} that {who} deletes within file.delete.delay.ms, or that its cleaner writes"
        step = "wait; its next start removes a file that is older"
        until = "the broker deletes them" if facts.cleaner.live else "the program deletes them"
        evidence = (Evidence(names_text(usage.leftover_files), where),)
        yield Cause(CauseKind.DELETING, what, usage.leftovers, step, until, evidence, Way.FILES)
    elif usage.leftovers:
        what = f"{files} left over from a deletion or a clean that did not finish"
        if all(name.endswith(Temporary.DELETED) for name in usage.leftover_files):
            what = f"{files} left over, which the broker would have deleted after file.delete.delay.ms, but it stopped"
        step = "start the broker, which removes them; a clean in place does, too"
        if facts.cleaner.in_store:
            step = "cordwood clean --output URL, which writes a copy without them"
        evidence = (Evidence(names_text(usage.leftover_files), where),)
        yield Cause(CauseKind.LEFTOVERS, what, usage.leftovers, step, "the next load", evidence, Way.FILES)
    if usage.foreign:
        what = f"{number(len(usage.foreign_files), 'file')} that are no log's: {names_text(usage.foreign_files)}"
        evidence = (Evidence(names_text(usage.foreign_files), where),)
        step = "look at them, and move them elsewhere: nothing removes them"
        yield Cause(CauseKind.FOREIGN_FILES, what, usage.foreign, step, "", evidence, Way.FILES)
    if usage.indexes > max(usage.logs, _INDEX_BYTES_MIN):
        yield _indexes(facts)
    if usage.key_indexes:
        what = f"key indexes of Cordwood take {bytes_text(usage.key_indexes)}"
        step = "cordwood index --drop, if they are not used"
        yield Cause(CauseKind.KEY_INDEXES, what, usage.key_indexes, step, "", (), Way.FILES)


def _indexes(facts: PartitionFacts) -> Cause:
    """Explain indexes that are larger than their log: preallocated zeros that take blocks, or too many segments."""
    segments = facts.local_segments
    in_use = sum((one.size_bytes // HEADER_BYTES + 1) * _ENTRY_BYTES + 2 * _BLOCK_BYTES for one in segments)
    padding, size = facts.usage.indexes - in_use, bytes_text(facts.usage.indexes)
    if not segments or padding < facts.usage.indexes // 2:
        what = f"its indexes take {size}, more than its {number(len(segments), 'segment')}"
        step = "larger segment.bytes and segment.ms make fewer segments"
        return Cause(CauseKind.INDEXES, what, facts.usage.indexes, step, "", (), Way.FILES)
    what = f"its indexes take {size}, nearly all zeros: a broker preallocates those of its active segment"
    step = "copy with holes (cp --sparse=always, rsync --sparse), or after the broker has stopped, which trims them"
    if facts.cleaner.live:
        what += ", and here they are no holes"
        step = "a smaller segment.index.bytes; the broker trims them when the segment rolls, and when it stops"
    return Cause(CauseKind.INDEXES, what, padding, step, "", (), Way.FILES)


# ---- live data -------------------------------------------------------------------------------------------------------


def _kept(facts: PartitionFacts) -> Cause:
    """Make the cause of live data: the newest records of keys, or records younger than their retention."""
    log, config, keys = facts.log, facts.config, facts.keys
    size = 0 if log is None else _sum(log.segments)
    if facts.tier is not None and config is not None and config.delete:
        return kept_by_retention(facts)
    if not size or log is None or config is None:
        what = "it holds next to nothing" if facts.kind is None else "it has to be kept"
        return Cause(CauseKind.EMPTY, what, 0)
    if config.compact:
        counted = () if keys is None else (_counted(keys),)
        many = "" if keys is None else f": about {number(keys.keys_in_log, 'key')}{_sizes(keys)}"
        what = f"it is that large{many}, and few records are superseded"
        step = "less data: fewer or smaller values, compression, tombstones for keys that are no longer needed"
        return Cause(CauseKind.LIVE_DATA, what, 0, step, "", counted)
    evidence = tuple(facts.of_config(name) for name in _LIMITS)
    unlimited = _unlimited(config)
    if unlimited is not None:
        return Cause(CauseKind.LIVE_DATA, unlimited[0], 0, unlimited[1], "", evidence)
    goes = _oldest_goes(log, {name: config.integer(name) for name in _LIMITS})
    step = "a shorter retention"
    if len(log.segments) == 1:
        step = "a smaller segment.ms or segment.bytes rolls it earlier; then a shorter retention deletes more"
    return Cause(
        CauseKind.WITHIN_RETENTION, f"it is within its retention: {goes}", 0, step, goes, evidence, Way.RETENTION
    )


def _counted(keys: KeyCounts) -> Evidence:
    read = f", {bytes_text(keys.read_bytes)} of {bytes_text(keys.log_bytes)}" if keys.is_sample else ""
    about = "about " if keys.is_sample else ""
    what = f"{about}{number(keys.keys_in_log, 'key')}, {about}{keys.superseded_share:.0%} of their records superseded"
    without = f", {number(keys.keyless, 'record')} without a key" if keys.keyless else ""
    return Evidence(what + without, f"{keys.source}{read}")


def _sizes(keys: KeyCounts) -> str:
    if keys.key_bytes is None or keys.value_bytes is None or not keys.keyed:
        return ""
    key, value = (bytes_text(round(size / keys.keyed)) for size in (keys.key_bytes, keys.value_bytes))
    return f" of {key}, with values of {value}"


def _sum(segments: Sequence[SegmentFacts]) -> int:
    return sum(one.size_bytes for one in segments)


#: Causes that are listed even if they are not known to hold back any bytes.
_ALWAYS = {
    *_NEVER,
    CauseKind.UNREADABLE,
    CauseKind.EMPTY,
    CauseKind.NO_TIER,
    CauseKind.LOG_START,
    CauseKind.EMPTIED,
}
#: Causes that explain live data; they lead if nothing else matters. The next set leads at any number of bytes.
_KEPT = {CauseKind.LIVE_DATA, CauseKind.WITHIN_RETENTION, CauseKind.EMPTY}
_FIRST = {*_ALWAYS, CauseKind.NULL_KEYS, CauseKind.UNIQUE_KEYS} - {CauseKind.EMPTY}

_RULES: Sequence[Callable[[PartitionFacts], Iterator[Cause]]] = (
    _never_cleaned,
    _broken,
    tiered_causes,
    _policy_misfits,
    _cleaner,
    _bound,
    _active,
    _tombstones,
    _retention,
    _files,
)


# ---- future actions --------------------------------------------------------------------------------------------------


def broker_will(facts: PartitionFacts, cause: Cause) -> str:
    """Describe what a broker will do with a partition, and when."""
    plan, cleaner = facts.plan, facts.cleaner
    if cleaner.in_store:
        return "nothing: it is in an object store"
    if facts.kind is CauseKind.TO_BE_DELETED:
        return "removes it within file.delete.delay.ms" + ("" if cleaner.live else " of its start")
    if not cleaner.enabled.value and plan.compaction is not None:
        return "cleans nothing"
    if facts.tier is not None and facts.log is not None:
        return broker_will_delete(facts)
    if plan.decision is Decision.CLEAN:
        if cause.kind in (CauseKind.CLEANER_DEAD, CauseKind.GIVEN_UP):
            return "cleans it after a restart"
        return "cleans it in its next rounds" if cleaner.live else "cleans it soon after its start"
    if cause.kind is CauseKind.RETENTION_DUE:
        return "deletes them in its next check" if cleaner.live else "deletes them soon after its start"
    until = next((one for one in (cause.by_itself, plan.reason.until) if one), "")
    if plan.decision is Decision.REFUSE:
        return "gives up on it"
    return f"nothing yet: {until}" if until else "nothing"


def offline_could(facts: PartitionFacts) -> str:
    """Describe what a clean without a broker could do now."""
    plan, compaction = facts.plan, facts.plan.compaction
    deleted = sum(taken.size_bytes for taken in (*plan.retention, *plan.only_with_retention))
    also = f"; --retention deletes {bytes_text(deleted)}" if deleted else ""
    if plan.decision is Decision.REFUSE or facts.kind is not None:
        return f"nothing: {plan.reason.what}" if facts.kind is None else "nothing"
    if facts.tier is not None and facts.tier.part.state is not None:
        return "nothing in place; clean --output can compact it in a plain copy"
    if facts.tier is not None:
        return "nothing in place; clean --in-tier can compact it in its tier, clean --output in a plain copy"
    if compaction is None or not compaction.cleanable_bytes:
        hint = f"nothing is cleanable; {plan.hint}" if plan.hint else "nothing is cleanable"
        return f"cordwood clean --retention deletes {bytes_text(deleted)}" if deleted else hint
    gone = facts.compactable(compaction.bounds.bytes_max)
    about = "at most" if facts.keys is None else "about"
    force = "" if plan.decision is Decision.CLEAN else " --ignore-ratio"
    reads = bytes_text(compaction.bounds.bytes_max)
    return f"cordwood clean{force} reads {reads} and removes {about} {bytes_text(gone)}{also}"


def why_partition(facts: PartitionFacts) -> WhyPartition:
    """Explain a partition's size."""
    causes = causes_of(facts)
    return WhyPartition(
        facts.plan.path,
        facts.plan.topic_partition,
        facts.usage,
        could_lose(facts, causes),
        could_lose_on_disk(facts, causes),
        causes,
        broker_will(facts, causes[0]),
        offline_could(facts),
        facts.keys,
        facts.plan.notes,
        tier_outlook(facts, causes),
    )
