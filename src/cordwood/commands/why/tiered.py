"""Derive from facts the causes of a tiered partition's size, in its tier and on its disk.

    tier    log start ………………… copied offset               remote retention, in the order of the lineage
    disk              local start ………… copied offset … end    local retention, of copied segments only
                                        └ copies wait ┘

`storage.tier.retention` and `cleaning.rules.retention` decide on deletions; this module makes outlooks and causes of
them, and of traps that real brokers met: deletions and copies that fail, a log start without an epoch, a broker that
starts without its tier.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from cordwood.cleaning.rules.plan import SegmentFacts, config_reason, utc
from cordwood.cleaning.rules.retention import plan_local_retention
from cordwood.commands.why.facts import (
    Cause,
    CauseKind,
    Evidence,
    Month,
    PartitionFacts,
    RetentionOutlook,
    TierFacts,
    TierOutlook,
    Way,
)
from cordwood.commands.why.transaction import transaction_cause
from cordwood.common.config import DAY_MS
from cordwood.common.text import bytes_text, number
from cordwood.storage.formats.filenames import LOG_START_OFFSETS
from cordwood.storage.formats.messages.topics import REMOTE_LOG_METADATA
from cordwood.storage.log.segment import MAX_OFFSET
from cordwood.storage.tier.remote_log import Attempts, first_listed, within_lineage
from cordwood.storage.tier.retention import RemoteLimits, RemoteRound, RemoteRule, TierLeader, remote_round, settled
from cordwood.storage.tier.segments import CopyState, RemoteSegment
from cordwood.storage.tier.store import RemotePart

#: If a copy or deletion takes longer than this while a broker runs, it hangs.
_PATIENCE_MS = 30 * 60_000
_MONTH_DAYS = 30
#: Objects of a segment in Aiven's layout, and the default size of the parts in which the plugin uploads large ones.
_OBJECTS, _PART_BYTES = 3, 25 << 20
#: Each rule of retention with the config of the local limit.
_LOCAL = {"retention.ms": "local.retention.ms", "retention.bytes": "local.retention.bytes"}
#: A local limit with this value is that of the topic.
_AS_THE_TOPIC = -2
_SYSTEM = "remote.log.storage.system.enable"


# ---- limits and rounds -----------------------------------------------------------------------------------------------


def _copies(facts: PartitionFacts) -> bool:
    assert facts.config is not None, "its topic is tiered"
    return not facts.config.flag("remote.log.copy.disable")


def _local_limit(facts: PartitionFacts, rule: str) -> tuple[str, int]:
    """Return the config that limits a log on the disk, and its value; `rule` is the limit of the whole log."""
    assert facts.config is not None, "its topic is tiered"
    local = _LOCAL[rule]
    if not _copies(facts) or facts.config.integer(local) == _AS_THE_TOPIC:
        return rule, facts.config.integer(rule)
    return local, facts.config.integer(local)


def _remote_limits(facts: PartitionFacts) -> RemoteLimits:
    assert facts.config is not None, "its topic is tiered"
    if not facts.config.delete:
        return RemoteLimits(-1, -1)
    return RemoteLimits(facts.config.integer("retention.ms"), facts.config.integer("retention.bytes"))


def _replica(facts: PartitionFacts, part: RemotePart) -> TierLeader:
    assert facts.log is not None, "its tier is known"
    # As in Kafka, a segment that begins at the copied offset counts twice.
    waiting = [one for one in facts.local_segments if one.base_offset >= part.copied_offset]
    start = part.log_start
    if facts.cleaner.live and part.lineage:
        # A broker cuts its leader epochs at once, and writes the checkpoint up to a minute later.
        start = max(start, part.lineage[0].start_offset)
    return TierLeader(part.lineage, start, facts.log.log_end_offset, sum(one.size_bytes for one in waiting))


def _remote_round(facts: PartitionFacts, part: RemotePart) -> RemoteRound:
    copying = [one.id for one in _unfinished(part) if _is_under_way(facts, one.event_time_ms)]
    return remote_round(part.log, _replica(facts, part), _remote_limits(facts), facts.now_ms, copying=copying)


def _unfinished(part: RemotePart) -> list[RemoteSegment]:
    return [one for one in part.log.segments.values() if one.state is CopyState.COPY_STARTED]


def _is_under_way(facts: PartitionFacts, since_ms: int) -> bool:
    """Return whether a step that began at a time may still be in progress."""
    return facts.cleaner.live and facts.now_ms - since_ms < _PATIENCE_MS


def _goes(limits: Mapping[str, int], newest_ms: int, bytes_left: int) -> str:
    """Describe when a segment goes: after some bytes, at a time, or whichever is first; empty without a limit.

    Args:
        limits: of time and size, in this order, by their configs; negative ones are off.
        bytes_left: bytes that may be appended before.
    """
    (time, limit_ms), (size, limit_bytes) = limits.items()
    by_size = f"after {bytes_text(max(0, bytes_left))} more ({size})" if limit_bytes >= 0 else ""
    by_time = f"at {utc(newest_ms + limit_ms)}" if limit_ms >= 0 else ""
    if by_size and by_time:
        return f"{by_size}, {by_time} at the latest ({time})"
    return by_size or (f"{by_time} ({time})" if by_time else "")


def remote_outlook(facts: PartitionFacts, part: RemotePart) -> RetentionOutlook:
    """Describe the next round of remote retention."""
    done, limits = _remote_round(facts, part), _remote_limits(facts)
    deleted = [one.segment.size_bytes for one in done.deletions]
    rules = tuple(dict.fromkeys(str(one.rule) for one in done.deletions))
    stops = done.stops_at
    if stops is None:
        stays = "no segment stops it" if part.log.segments else "the tier has no segment of it"
        return RetentionOutlook(len(deleted), sum(deleted), rules, None, stays)
    named = {"retention.ms": limits.retention_ms, "retention.bytes": limits.retention_bytes}
    goes = _goes(named, stops.max_timestamp_ms, stops.size_bytes - done.excess_bytes)
    if _is_under_way(facts, stops.event_time_ms) and stops.state is CopyState.COPY_STARTED:
        why = "is being copied"
    elif goes:
        why = f"goes {goes}"
    else:
        why = "stays: neither retention.ms nor retention.bytes limits the log"
    unfinished = ", whose copy never ended," if stops.state is CopyState.COPY_STARTED and "being" not in why else ""
    stays = f"the segment of offsets {stops.start_offset} to {stops.end_offset}{unfinished} {why}"
    return RetentionOutlook(len(deleted), sum(deleted), rules, stops.start_offset, stays)


def local_outlook(facts: PartitionFacts, part: RemotePart) -> RetentionOutlook:
    """Describe the next round of local retention."""
    log = facts.log
    assert log is not None, "its tier is known"
    local = dict(_local_limit(facts, rule) for rule in _LOCAL)
    due = _local_due(facts, part)
    gone = {base for _, bases, _ in due for base in bases}
    segments = facts.local_segments
    sizes = [one.size_bytes for one in segments if one.base_offset in gone]
    rules = tuple(name if name == "log start offset" else _local_limit(facts, name)[0] for name, *_ in due)
    rest = [one for one in segments if one.base_offset not in gone]
    if not rest:
        return RetentionOutlook(len(sizes), sum(sizes), rules, None, "nothing is on its disk")
    first, upper = rest[0], rest[1].base_offset if len(rest) > 1 else log.log_end_offset
    limits = {rule: _local_limit(facts, rule)[1] for rule in _LOCAL}
    end = log.log_end_offset
    free = plan_local_retention(rest, log.log_start_offset, end, end, MAX_OFFSET, limits, facts.now_ms)
    is_beyond = any(first.base_offset in bases for _, bases, _ in free)
    beyond = " and ".join(_local_limit(facts, name)[0] for name, *_ in free)
    room = first.size_bytes + local[_local_limit(facts, "retention.bytes")[0]] - sum(one.size_bytes for one in rest)
    goes = _goes(local, first.largest_timestamp, room)
    if len(rest) == 1 and not first.size_bytes:
        stays = "only an empty active segment is on its disk"
    elif len(rest) == 1 and is_beyond:
        stays = f"its active segment is beyond {beyond}: the broker rolls and copies it, and deletes it then"
    elif is_beyond and _copies(facts) and upper - 1 > part.copied_offset:
        stays = f"the segment from offset {first.base_offset} on is beyond {beyond}, but not copied"
    elif is_beyond:
        stays = f"the segment from offset {first.base_offset} on may not be replicated"
        stays += f": the high watermark is {log.high_watermark.offset}"
    elif goes:
        where = "its active segment" if len(rest) == 1 else f"the segment from offset {first.base_offset} on"
        stays = f"{where} goes {goes}" if len(rest) > 1 else f"{where} is rolled and copied, and goes, {goes}"
    else:
        stays = f"the segment from offset {first.base_offset} on stays: neither {' nor '.join(local)} limits the log"
    return RetentionOutlook(len(sizes), sum(sizes), rules, first.base_offset, stays)


def _local_due(facts: PartitionFacts, part: RemotePart) -> Sequence[tuple[str, tuple[int, ...], int]]:
    log = facts.log
    assert log is not None and facts.config is not None, "its tier is known"
    limits = {rule: _local_limit(facts, rule)[1] for rule in _LOCAL}
    if not facts.config.delete and not _copies(facts):
        limits = {}
    copied = part.copied_offset if _copies(facts) else MAX_OFFSET
    return plan_local_retention(
        facts.local_segments,
        log.log_start_offset,
        log.log_end_offset,
        log.high_watermark.offset,
        copied,
        limits,
        facts.now_ms,
    )


def broker_will_delete(facts: PartitionFacts) -> str:
    """Describe the next deletions in the tier and on the disk."""
    assert facts.tier is not None, "it is tiered"
    part, places = facts.tier.part, []
    for outlook, where in ((remote_outlook(facts, part), "in the tier"), (local_outlook(facts, part), "on its disk")):
        if outlook.segments:
            places.append(f"{number(outlook.segments, 'segment')} {where}")
    when = "in its next rounds" if facts.cleaner.live else "soon after its start"
    return f"deletes {' and '.join(places)} {when}" if places else "nothing yet"


def _not_copied(facts: PartitionFacts, part: RemotePart) -> list[SegmentFacts]:
    """Return the closed segments that are not in the tier."""
    segments = facts.local_segments
    ends = [one.base_offset - 1 for one in segments[1:]]
    return [one for one, end in zip(segments, ends, strict=False) if end > part.copied_offset]


def waits_for_copies(facts: PartitionFacts) -> bool:
    """Return whether closed segments of a tiered partition are still to be copied."""
    return facts.tier is not None and _copies(facts) and bool(_not_copied(facts, facts.tier.part))


def month_of(facts: PartitionFacts, tier: TierFacts) -> Month:
    """Return the use of a tier in a month."""
    log, today = tier.part.log, facts.now_ms // DAY_MS
    days = [day for at, day in log.days.items() if today - _MONTH_DAYS < at <= today]
    copies, copied = sum(day.copies for day in days), sum(day.copied_bytes for day in days)
    deletions = sum(day.deletions for day in days)
    puts = copies * _OBJECTS + copied // _PART_BYTES if tier.has_requests else 0
    deletes = deletions * _OBJECTS if tier.has_requests else 0
    first = min(log.days, default=today)
    since = first * DAY_MS if first > today - _MONTH_DAYS and log.days else None
    return Month(tier.stored_bytes, copies, copied, puts, deletes, since)


def tier_outlook(facts: PartitionFacts, causes: Sequence[Cause]) -> TierOutlook | None:
    """Return the part of a partition that is in a tier; None if its topic is not tiered, or no tier is given."""
    if facts.tier is None or facts.log is None:
        return None
    part = facts.tier.part
    size, unfinished = _remote_bytes(part)
    held = sum(one.bytes_max for one in causes if one.way is Way.TIER)
    return TierOutlook(
        len(part.copied),
        size,
        unfinished,
        min(size + unfinished, held),
        remote_outlook(facts, part),
        local_outlook(facts, part),
        _copying_in_words(facts, part),
        month_of(facts, facts.tier),
    )


def remote_bytes(facts: PartitionFacts) -> int:
    """Return the bytes of a partition in its tier, those of copies and deletions that did not end included."""
    return sum(_remote_bytes(facts.tier.part)) if facts.tier is not None else 0


def _remote_bytes(part: RemotePart) -> tuple[int, int]:
    finished = sum(one.size_bytes for one in part.copied)
    return finished, sum(one.size_bytes for one in part.log.segments.values()) - finished


def _copying_in_words(facts: PartitionFacts, part: RemotePart) -> str:
    if not _copies(facts):
        return "off, by remote.log.copy.disable"
    waiting = _not_copied(facts, part)
    if not waiting:
        return "all closed segments are copied"
    size = bytes_text(sum(one.size_bytes for one in waiting))
    return f"{number(len(waiting), 'closed segment')}, {size}, from offset {waiting[0].base_offset} on, not copied"


# ---- causes ----------------------------------------------------------------------------------------------------------


def tiered_causes(facts: PartitionFacts) -> Iterator[Cause]:
    """Yield the causes that only tiered partitions have."""
    yield from _without_tier(facts)
    if facts.tier is None or facts.log is None or facts.kind is not None:
        return
    part = facts.tier.part
    yield from _log_start(facts, part)
    yield from _deletions(facts, part)
    yield from _copying(facts, part)
    yield from _remote(facts, part)
    yield from _local(facts, part)
    yield from _unused(facts, part)


def kept_by_retention(facts: PartitionFacts) -> Cause:
    """Return the cause of a tiered log that its limits keep as it is."""
    assert facts.tier is not None, "it is tiered"
    outlook = remote_outlook(facts, facts.tier.part)
    evidence = _limits(facts, "retention.ms", "retention.bytes")
    step = "a shorter retention" if max(_remote_limits(facts)) >= 0 else "set retention.ms or retention.bytes"
    what = f"it is within its retention: in the tier, {outlook.stays}"
    return Cause(CauseKind.WITHIN_RETENTION, what, 0, step, "", evidence, Way.TIER, 0)


def _without_tier(facts: PartitionFacts) -> Iterator[Cause]:
    system = facts.tier_system
    if system is None or system.value:
        return
    what = "its broker has no tiered storage, so that it serves only the part on its disk"
    if facts.tier is not None and facts.log is not None:
        part = facts.tier.part
        local = facts.log.log_end_offset if part.local_start == MAX_OFFSET else part.local_start
        what += f", from offset {local} on; with its tier, the log starts at {facts.log.log_start_offset}"
    step = f"set {_SYSTEM}=true and the storage manager in server.properties before the broker starts; nothing is lost"
    reason = Evidence.of(config_reason(_SYSTEM, system))
    yield Cause(CauseKind.NO_TIER, what, 0, step, "", (reason,), Way.TIER, 0)


def _log_start(facts: PartitionFacts, part: RemotePart) -> Iterator[Cause]:
    """Yield a log start that is below the lineage, as after a crash soon after records were deleted."""
    # A running broker writes the checkpoint of log starts up to a minute later than the leader epochs.
    if facts.cleaner.live or not part.lineage or part.log_start >= (begin := part.lineage[0].start_offset):
        return
    listed = first_listed(part.log, part.lineage)
    what = (
        f"its log starts at {part.log_start} and its leader epochs at {begin}, as after a crash soon after a deletion "
        f"of records: reads of offsets {part.log_start} to {begin - 1} are out of range, so that a consumer that "
        "begins at the earliest offset never gets on"
    )
    step = (
        f"delete records up to {begin} again (kafka-delete-records.sh); or, with the broker stopped, correct the line"
    )
    moves = listed is None or listed >= begin
    until = "the next leader moves the log start to its first segment" if moves else ""
    evidence = (
        Evidence(f"log start offset {part.log_start}", LOG_START_OFFSETS),
        Evidence(f"epoch {part.lineage[0].epoch} from offset {begin} on", "leader-epoch-checkpoint"),
    )
    yield Cause(CauseKind.LOG_START, what, 0, f"{step} in {LOG_START_OFFSETS}", until, evidence, Way.TIER, 0)


def _deletions(facts: PartitionFacts, part: RemotePart) -> Iterator[Cause]:
    """Yield deletions that fail, or hang; with `retention.bytes`, these may empty the log."""
    tries = _failing_deletions(facts, part)
    if not tries:
        return
    segments = [part.log.segments[one] for one in tries]
    size = sum(one.size_bytes for one in segments)
    first = min(segments, key=lambda one: one.start_offset)
    which = f"the segment of offsets {first.start_offset} to {first.end_offset}"
    if len(segments) > 1:
        which = f"{number(len(segments), 'segment')}, the first of offsets {first.start_offset} to {first.end_offset},"
    what = f"{which} cannot be deleted from the tier: {_attempts(tries.values())}"
    step = "let the broker delete objects: look at its log, its permissions and object locks in the store"
    evidence = tuple(
        Evidence(f"segment {one.id}", f"state {one.state} in {REMOTE_LOG_METADATA}") for one in segments[:3]
    )
    limits, replica = _remote_limits(facts), _replica(facts, part)
    kind = CauseKind.DELETION_FAILS
    if limits.retention_bytes >= 0:
        done = _remote_round(facts, part)
        end = settled(part.log, replica, limits, facts.now_ms, stuck=tries)
        ends = end.replica.log_start
        expected = settled(part.log, replica, limits, facts.now_ms).replica.log_start
        evidence += _limits(facts, "retention.bytes")
        if ends > expected:
            kind = CauseKind.EMPTIED
            left = sum(one.size_bytes for one in part.copied if one.start_offset >= ends) + replica.local_bytes
            further = f", until {bytes_text(left)} are left" if end.is_final else ", and further"
            what += (
                f"; with retention.bytes, each round then moves the log start on, up to {ends} instead of {expected}"
                f"{further}"
            )
            step = f"set retention.bytes=-1 until deletions succeed; {step}"
        elif undeleted := [one.segment for one in done.deletions if one.rule is RemoteRule.LOG_START]:
            kind = CauseKind.EMPTIED
            more = f"{number(len(undeleted), 'segment')} of {bytes_text(sum(one.size_bytes for one in undeleted))}"
            what += (
                f"; with retention.bytes, the log start moved on to {replica.log_start}: {more} below it still count"
            )
            what += ", so that new segments may be beyond the limit at once"
            step = f"set retention.bytes=-1 until deletions succeed; {step}"
        else:
            what += "; once the log exceeds retention.bytes, each round would move the log start on"
    until = "" if kind is CauseKind.EMPTIED else "a broker tries again in each round"
    yield Cause(kind, what, size, step, until, evidence, Way.TIER, 0)


def _failing_deletions(facts: PartitionFacts, part: RemotePart) -> Mapping[str, Attempts]:
    """Return the deletions that were tried again, or take too long, by segment id."""
    return {
        one: found
        for one, found in part.log.deletions.items()
        if found.count > 1 or not _is_under_way(facts, found.last_ms)
    }


def _attempts(tries: Collection[Attempts]) -> str:
    count = number(sum(one.count for one in tries), "attempt")
    first, last = min(one.first_ms for one in tries), max(one.last_ms for one in tries)
    return f"{count}, the first at {utc(first)}, the last at {utc(last)}"


def _copying(facts: PartitionFacts, part: RemotePart) -> Iterator[Cause]:
    """Yield why closed segments are not in the tier, and copies that began and did not end."""
    waiting = _not_copied(facts, part)
    size, blocks = sum(one.size_bytes for one in waiting), sum(one.disk_bytes for one in waiting)
    segments = f"{number(len(waiting), 'closed segment')} of {bytes_text(size)}"
    if waiting and _copies(facts):
        found = facts.transaction
        stable = found.logs[0].last_stable_offset if found is not None and found.logs else MAX_OFFSET
        following = next(one.base_offset for one in facts.local_segments if one.base_offset > waiting[0].base_offset)
        if failing := part.failing_copies:
            start, tries = min(failing.items())
            what = (
                f"copies of the segment from offset {start} on fail: {_attempts([tries])}; {segments} wait on the disk"
            )
            step = (
                "look for errors of RemoteLogManager in the broker's log, and at the permissions and room of the store"
            )
            until = "a broker tries again in each round (remote.log.manager.task.interval.ms)"
            states = Evidence(f"states 0, 2 and 3 from offset {start} on", REMOTE_LOG_METADATA)
            yield Cause(CauseKind.COPIES_FAIL, what, size, step, until, (states,), Way.RETENTION, blocks)
        elif found is not None and stable < following:
            log = found.logs[0]
            effect = f"nothing from offset {waiting[0].base_offset} on is copied, and {segments} wait on the disk"
            cause = transaction_cause(facts, log.producer_id, log.first_offset, effect, size)
            yield replace(cause, way=Way.RETENTION, disk_bytes_max=blocks)
        else:
            yield replace(_lag(facts, waiting, segments), bytes_max=size, disk_bytes_max=blocks)
    hanging = [one for one in _unfinished(part) if not _is_under_way(facts, one.event_time_ms)]
    if hanging:
        first = min(hanging, key=lambda one: one.event_time_ms)
        which = "a copy" if len(hanging) == 1 else f"{len(hanging)} copies"
        since = utc(first.event_time_ms)
        what = f"{which} began and never ended, since {since}: objects may be in the tier, whole or in part"
        step = "cordwood check --tier names the objects; with a limit, retention deletes them like other segments"
        evidence = tuple(
            Evidence(
                f"segment {one.id}, offsets {one.start_offset} to {one.end_offset}",
                f"state {one.state} in {REMOTE_LOG_METADATA}",
            )
            for one in hanging[:3]
        )
        total = sum(one.size_bytes for one in hanging)
        yield Cause(CauseKind.UNFINISHED_COPY, what, total, step, "", evidence, Way.TIER, 0)


def _lag(facts: PartitionFacts, waiting: Sequence[SegmentFacts], segments: str) -> Cause:
    if facts.cleaner.in_store or not facts.cleaner.live:
        what = f"{segments} are not copied, and no broker runs that would copy them"
        return Cause(CauseKind.NOT_COPIED, what, 0, "start the broker", "after its start", (), Way.RETENTION)
    what, step = f"{segments} are not copied yet", "wait for remote.log.manager.task.interval.ms"
    if facts.now_ms - waiting[0].mtime_ms > _PATIENCE_MS:
        what += f", although the first was rolled at about {utc(waiting[0].mtime_ms)}"
        step = "look for errors of RemoteLogManager in the leader's log; only the leader copies"
    return Cause(CauseKind.NOT_COPIED, what, 0, step, "the next rounds of the leader", (), Way.RETENTION)


def _remote(facts: PartitionFacts, part: RemotePart) -> Iterator[Cause]:
    """Yield the segments that remote retention deletes now, or a log without a limit."""
    done = _remote_round(facts, part)
    due = [one for one in done.deletions if one.rule is not RemoteRule.RETRY]
    evidence = _limits(facts, "retention.ms", "retention.bytes")
    if due:
        size = sum(one.segment.size_bytes for one in due)
        rules = " and ".join(dict.fromkeys(_RULES[one.rule] for one in due))
        run, step = "no broker runs that would delete them", "start the broker"
        if facts.cleaner.live:
            run, step = "the leader deletes them in its next round", "wait for remote.log.manager.task.interval.ms"
        if any(one.segment.id in _failing_deletions(facts, part) for one in done.deletions[:1]):
            run, step = "a deletion before them fails, which ends each round", "let the broker delete that segment"
        are = "is" if len(due) == 1 else "are"
        what = f"{number(len(due), 'remote segment')} of {bytes_text(size)}, {rules}, {are} due, and {run}"
        yield Cause(CauseKind.REMOTE_DUE, what, size, step, run, evidence, Way.TIER, 0)
    elif max(_remote_limits(facts)) < 0 and part.copied:
        what = "retention is off: neither retention.ms nor retention.bytes limits the log in its tier"
        end = _replica(facts, part).log_end
        size = sum(one.size_bytes for one in part.copied if within_lineage(one, part.lineage, end))
        step = "set retention.ms or retention.bytes"
        yield Cause(CauseKind.RETENTION_OFF, what, size, step, "", evidence, Way.TIER, 0)


_RULES = {
    RemoteRule.LOG_START: "below the log start",
    RemoteRule.TIME: "beyond retention.ms",
    RemoteRule.SIZE: "beyond retention.bytes",
    RemoteRule.LINEAGE: "before its first leader epoch",
}


def _local(facts: PartitionFacts, part: RemotePart) -> Iterator[Cause]:
    """Yield local segments that are in the tier, too: due and kept ones."""
    due = {base for _, bases, _ in _local_due(facts, part) for base in bases}
    names = [_local_limit(facts, rule)[0] for rule in _LOCAL]
    evidence = _limits(facts, *_LOCAL.values(), *(name for name in names if name not in _LOCAL.values()))
    gone = [one for one in facts.local_segments if one.base_offset in due]
    if gone:
        run, step = "no broker runs that would delete them", "start the broker"
        if facts.cleaner.live:
            run, step = "a broker deletes them in its next check", "wait for log.retention.check.interval.ms"
        rules = " and ".join(local_outlook(facts, part).rules)
        blocks = sum(one.disk_bytes for one in gone)
        what = f"{bytes_text(blocks)} on the disk are beyond {rules}, and {run}"
        size = sum(one.size_bytes for one in gone)
        yield Cause(CauseKind.RETENTION_DUE, what, size, step, run, evidence, Way.RETENTION, blocks)
    if not _copies(facts):
        return
    waiting = {one.base_offset for one in _not_copied(facts, part)}
    copied = [one for one in facts.local_segments[:-1] if one.base_offset not in due and one.base_offset not in waiting]
    if copied:
        blocks, size = sum(one.disk_bytes for one in copied), sum(one.size_bytes for one in copied)
        stays = local_outlook(facts, part).stays
        what = f"{number(len(copied), 'segment')} on the disk are in the tier, too: {stays}"
        step = "a shorter local.retention.ms, or a smaller local.retention.bytes"
        yield Cause(CauseKind.LOCAL_COPIES, what, size, step, "", evidence, Way.RETENTION, blocks)


def _unused(facts: PartitionFacts, part: RemotePart) -> Iterator[Cause]:
    """Yield finished segments without readers: replaced ones, and segments of abandoned branches."""
    replaced = [one for one in part.log.unlisted if one.state is CopyState.COPY_FINISHED]
    if replaced:
        size = sum(one.size_bytes for one in replaced)
        what = f"{number(len(replaced), 'segment')} of {bytes_text(size)} were replaced by later copies"
        what += " from the same offset, and nothing deletes them before their topic"
        evidence = tuple(Evidence(f"segment {one.id} from offset {one.start_offset} on") for one in replaced[:3])
        step = "with the broker stopped, remove their objects: no broker reads them"
        yield Cause(CauseKind.REPLACED_COPY, what, size, step, "", evidence, Way.TIER, 0)
    unlisted = {one.id for one in replaced}
    due = {one.segment.id for one in _remote_round(facts, part).deletions}
    answering = {one.segment.id for one in part.answers}
    end = 0 if facts.log is None else facts.log.log_end_offset
    abandoned = [
        one
        for one in part.copied
        if one.id not in unlisted | due | answering and not within_lineage(one, part.lineage, end)
    ]
    if abandoned:
        size = sum(one.size_bytes for one in abandoned)
        what = f"{number(len(abandoned), 'remote segment')} of {bytes_text(size)} are of abandoned branches of the log"
        what += ", and retention passes over them until the log start is behind them, or in a later leader epoch"
        step = "nothing, or a shorter retention, which moves the log start"
        yield Cause(CauseKind.ABANDONED_BRANCH, what, size, step, "", (), Way.TIER, 0)


def _limits(facts: PartitionFacts, *names: str) -> tuple[Evidence, ...]:
    return tuple(facts.of_config(name) for name in names)
