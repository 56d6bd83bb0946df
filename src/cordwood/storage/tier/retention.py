"""Remote retention: the segments that a round deletes from a tier, the segment that stops it, and a trap.

A leader walks the listings of its leader epochs in each round, an epoch at a time, segments by start offset:

    state 2                              delete again
    below the log start                  delete: no reader gets its offsets, though the lineage begins later
    within the lineage, old or beyond    delete, and move the log start behind it
    within the lineage, otherwise        stop: this segment stays, and so does everything behind it
    not within the lineage               pass over

At last, it deletes segments whose epochs are all before the first one of the lineage. The log start moves before any
deletion, and the first deletion that fails ends the round. So one undeletable segment, together with `retention.bytes`,
empties a log: segments that the round did not reach are below the log start, but still count as its size. An example,
with 100 bytes allowed, segments of 30 bytes, and a deletion of A that fails:

    round 1    A B C D E, 150    A is beyond the size    log start at B    A fails, and no longer counts
    round 2    B C D E F, 150    B is beyond the size    log start at C    A fails again; B is not tried, and counts
    round 3    B C D E F, 150    C is beyond the size    log start at D    …

Source: Kafka RemoteLogManager.RLMExpirationTask, UnifiedLog.onlyLocalLogSegmentsSize.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.tier.remote_log import RemoteLog, with_records, within_lineage
from cordwood.storage.tier.segments import CopyState, RemoteSegment


class RemoteRule(StrEnum):
    """Why a remote segment is deleted."""

    RETRY = "its deletion began before"
    LOG_START = "log start offset"
    TIME = "retention.ms"
    SIZE = "retention.bytes"
    LINEAGE = "its leader epochs are before the first one of the log"


@dataclass(frozen=True, slots=True)
class TierLeader:
    """The leader of a partition, which deletes its remote segments.

    Attributes:
        local_bytes: size of the local segments that are not copied, the active one included.
    """

    lineage: tuple[EpochEntry, ...]
    log_start: int
    log_end: int
    local_bytes: int

    def from_offset(self, log_start: int) -> TierLeader:
        """Return the replica with a later log start, where its lineage then begins."""
        later = [entry for entry in self.lineage if entry.start_offset > log_start]
        current = [EpochEntry(entry.epoch, log_start) for entry in self.lineage if entry.start_offset <= log_start]
        return replace(self, log_start=log_start, lineage=(*current[-1:], *later))


class RemoteLimits(NamedTuple):
    """Limits of remote retention; a negative limit is off."""

    retention_ms: int
    retention_bytes: int


class RemoteDeletion(NamedTuple):
    """A segment that a round deletes."""

    segment: RemoteSegment
    rule: RemoteRule


@dataclass(frozen=True, slots=True)
class RemoteRound:
    """One round of remote retention.

    Attributes:
        deletions: in the order of the attempts.
        log_start: the log start offset after it.
        stops_at: the first segment that stays; None if the round meets none.
        excess_bytes: how far the log without these deletions exceeds `retention.bytes`; negative below it. 0 without
            a limit.
    """

    deletions: tuple[RemoteDeletion, ...]
    log_start: int
    stops_at: RemoteSegment | None
    excess_bytes: int


def remote_round(
    log: RemoteLog,
    replica: TierLeader,
    limits: RemoteLimits,
    now_ms: int,
    *,
    copying: Collection[str] = (),
    gone: Collection[str] = (),
) -> RemoteRound:
    """Plan the next round of remote retention.

    Args:
        copying: ids of segments that are being copied now; a round stops there.
        gone: ids of segments that earlier rounds deleted.
    """
    excess = 0
    if limits.retention_bytes >= 0:
        excess = _size(log, replica, gone) + replica.local_bytes - limits.retention_bytes
    chosen: dict[str, RemoteDeletion] = {}
    log_start, stops_at = replica.log_start, None
    for segment in _listed(log, replica.lineage):
        if segment.id in gone or segment.id in chosen:
            continue
        rule = _rule(segment, replica, limits, now_ms, excess)
        is_within = within_lineage(segment, replica.lineage, replica.log_end)
        if segment.id in copying or (rule is None and is_within):
            stops_at = segment
            break
        if rule is None:
            continue
        chosen[segment.id] = RemoteDeletion(segment, rule)
        if rule in (RemoteRule.TIME, RemoteRule.SIZE):
            log_start = max(log_start, segment.end_offset + 1)
            excess -= segment.size_bytes
    for segment in _before(log, replica.from_offset(log_start).lineage):
        if segment.id not in gone:
            chosen.setdefault(segment.id, RemoteDeletion(segment, RemoteRule.LINEAGE))
    return RemoteRound(tuple(chosen.values()), log_start, stops_at, excess)


#: Rounds after which the end of a drifting log start is no longer looked for.
_ROUNDS_MAX = 100


class Settled(NamedTuple):
    """A replica after many rounds; final if further rounds leave its log start in place."""

    replica: TierLeader
    is_final: bool


def settled(
    log: RemoteLog,
    replica: TierLeader,
    limits: RemoteLimits,
    now_ms: int,
    *,
    stuck: Collection[str] = (),
) -> Settled:
    """Return the replica once rounds leave its log start in place, or after 100 rounds.

    Args:
        stuck: ids of segments whose deletions fail, each time; they end their round.
    """
    gone: set[str] = set()
    for _ in range(_ROUNDS_MAX):
        done = remote_round(log, replica, limits, now_ms, gone=gone)
        deleted = 0
        for deletion in done.deletions:
            if deletion.segment.id in stuck:
                break
            gone.add(deletion.segment.id)
            deleted += 1
        if not deleted and done.log_start == replica.log_start:
            return Settled(replica, is_final=True)
        replica = replica.from_offset(done.log_start)
    return Settled(replica, is_final=False)


def _listed(log: RemoteLog, lineage: Sequence[EpochEntry]) -> Iterator[RemoteSegment]:
    for entry in with_records(lineage):
        yield from log.listing(entry.epoch)


def _before(log: RemoteLog, lineage: Sequence[EpochEntry]) -> Iterator[RemoteSegment]:
    """Yield the listed segments all of whose epochs are before the first one of a lineage."""
    first = lineage[0].epoch if lineage else 0
    known = {entry.epoch for segment in log.segments.values() for entry in segment.epochs}
    for epoch in sorted(epoch for epoch in known if epoch < first):
        yield from (one for one in log.listing(epoch) if one.epochs[-1].epoch < first)


def _size(log: RemoteLog, replica: TierLeader, gone: Collection[str]) -> int:
    """Return the size of all finished segments within the lineage."""
    finished = {one.id: one for one in _listed(log, replica.lineage) if one.state is CopyState.COPY_FINISHED}
    counted = (
        one for one in finished.values() if one.id not in gone and within_lineage(one, replica.lineage, replica.log_end)
    )
    return sum(one.size_bytes for one in counted)


def _rule(
    segment: RemoteSegment, replica: TierLeader, limits: RemoteLimits, now_ms: int, excess: int
) -> RemoteRule | None:
    """Return why a segment in a listing is deleted, or None."""
    if segment.state is CopyState.DELETE_STARTED:
        return RemoteRule.RETRY
    first = with_records(replica.lineage)[0].epoch
    if segment.end_offset < replica.log_start and all(entry.epoch <= first for entry in segment.epochs):
        return RemoteRule.LOG_START
    if not within_lineage(segment, replica.lineage, replica.log_end):
        return None
    if limits.retention_ms >= 0 and segment.max_timestamp_ms < now_ms - limits.retention_ms:
        return RemoteRule.TIME
    return RemoteRule.SIZE if 0 < excess >= segment.size_bytes else None
