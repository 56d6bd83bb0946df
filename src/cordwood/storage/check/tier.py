"""Checks the tier of a log directory: its objects against the brokers' metadata, and both against the log.

The metadata is that of the log directories that are checked. Other brokers may have more of it: an object counts as an
orphan only if these directories have records about its partition, as all records about a partition are together.

The metadata of a live log is its newest manifest, which is beside its objects. So these are checked in any case.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from cordwood.common.errors import DataError
from cordwood.common.text import bytes_text, number, time_text
from cordwood.storage.check.findings import Findings, Kind, Severity
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.log.segment import MAX_OFFSET
from cordwood.storage.tier.aiven import OBJECTS_OF_A_SEGMENT, AivenLayout
from cordwood.storage.tier.generations import Generations, partitions_in
from cordwood.storage.tier.local import Layout, StoredObjects, object_stem
from cordwood.storage.tier.manifest import TierState
from cordwood.storage.tier.remote_log import RemoteLog, epoch_at, first_listed, with_records, within_lineage
from cordwood.storage.tier.segments import CopyState, RemoteSegment, TopicIdPartition
from cordwood.storage.tier.store import RemotePart, TierStore

#: Maximum number of segments that one finding names.
_NAMED = 5


def check_remote_part(
    path: str, part: RemotePart, layout: Layout, unread: Mapping[int, DataError], findings: Findings, *, live: bool
) -> None:
    """Check the remote part of a log.

    Args:
        path: the partition's directory.
        unread: errors of the segments that the check of the log could not read, by base offset.
        live: whether a broker runs; it writes the checkpoint of log starts up to a minute after the leader epochs.
    """
    answering = {answer.segment.id for answer in part.answers}
    # A segment that is cut has no indexes here, and a broker does not load remote segments.
    indexes = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX)
    bases = {base for answer in part.answers for base in (answer.first_offset, answer.segment.start_offset)}
    findings.drop(Kind.INDEX_MISSING, {f"{path}/{offset_name(base, kind)}" for base in bases for kind in indexes})
    faulty = {segment.id for segment in part.copied if _object_fault(segment, path, answering, layout, findings)}
    # Its snapshot could not be read either.
    ends = {one.end_offset for one in part.copied if one.id in faulty}
    findings.drop(Kind.TIER_OBJECT, {f"{path}/{offset_name(end + 1, FileKind.PRODUCER_SNAPSHOT)}" for end in ends})
    for answer in part.answers:
        error = unread.get(answer.first_offset) or unread.get(answer.segment.start_offset)
        if error is not None and answer.segment.id not in faulty:
            faulty.add(answer.segment.id)
            where = error.path or path
            findings.add(Kind.TIER_OBJECT, where, f"{_named(answer.segment)}: {error.what}", offset=answer.first_offset)
    for first, last in part.gaps:
        _add_gap(path, part, first, last + 1, findings, live=live)
    _check_branches(path, part, answering, findings)
    _check_unlisted(path, part.log, findings)
    _check_attempts(path, part, findings)


def check_tier(
    tiers: TierStore, directories: Sequence[str], checked: Container[TopicIdPartition], findings: Findings
) -> None:
    """Check the metadata topic in some log directories, the manifests, and the objects that neither is about.

    Args:
        checked: live logs that were checked with their directories.
    """
    known: dict[TopicIdPartition, RemoteLog] = {}
    for directory in directories:
        for partition, log in tiers.remote_logs(directory).items():
            known.setdefault(partition, log)
        for error in tiers.refused.get(directory, ()):
            findings.add(Kind.TIER_METADATA, error.path or directory, error.what, offset=error.offset)
    states = _states(tiers.layout, checked, findings)
    complete: dict[TopicIdPartition, set[str]] = {partition: set() for partition in states}
    for found in tiers.layout.objects():
        if found.partition is not None and found.partition in states:
            if (state := states[found.partition]) is not None:
                _check_orphan(found, state, findings)
            if found.count == OBJECTS_OF_A_SEGMENT:
                complete[found.partition].add(found.segment_id)
        else:
            _check_objects(found, known, findings)
    for partition, state in states.items():
        if state is not None and partition not in checked and isinstance(tiers.layout, AivenLayout):
            _check_complete(tiers.layout, state, complete[partition], findings)


def _states(
    layout: Layout, checked: Container[TopicIdPartition], findings: Findings
) -> dict[TopicIdPartition, TierState | None]:
    """Read the manifests of a tier; None for a log whose manifests are damaged."""
    states: dict[TopicIdPartition, TierState | None] = {}
    if isinstance(layout, AivenLayout):
        for partition in partitions_in(layout):
            try:
                if (state := Generations(layout.store, layout, partition).newest()) is not None:
                    states[partition] = state
            except DataError as error:
                states[partition] = None
                if partition not in checked:
                    add_damaged_manifest(error, findings)
    return states


def add_damaged_manifest(error: DataError, findings: Findings) -> None:
    """Add the finding for a manifest that cannot be decoded."""
    meaning = (
        "the log cannot be opened, and its part in the tier cannot be read; restore the manifest from another version "
        "or copy of the bucket"
    )
    findings.add(Kind.TIER_METADATA, error.path or "", error.what, meaning=meaning)


def _check_orphan(found: StoredObjects, state: TierState, findings: Findings) -> None:
    named = {one.segment.id for one in state.segments} | {one.segment.id for one in state.gone}
    if found.segment_id in named:
        return
    what = (
        f"{_objects(found)}: segment {found.segment_id} of {_name(state.partition)}, which the manifest does not name"
    )
    meaning = "no reader uses the objects; the next program that opens the log deletes them"
    findings.add(Kind.TIER_ORPHAN, found.path, what, offset=found.start_offset, meaning=meaning)


def _check_complete(layout: AivenLayout, state: TierState, complete: Container[str], findings: Findings) -> None:
    for segment in (one.segment for one in state.segments):
        if segment.id not in complete:
            what = f"{_named(segment)} of {_name(state.partition)}: the manifest names it, but an object is missing"
            where = f"{layout.folder(state.partition)}/{object_stem(segment)}.log"
            findings.add(Kind.TIER_OBJECT_MISSING, where, what, offset=segment.start_offset)


def _objects(found: StoredObjects) -> str:
    return f"{number(found.count, 'object')} of {bytes_text(found.size_bytes)}"


def _name(partition: TopicIdPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def _check_objects(found: StoredObjects, known: Mapping[TopicIdPartition, RemoteLog], findings: Findings) -> None:
    there = _objects(found)
    if found.partition is None:
        findings.add(Kind.TIER_FOREIGN, found.path, f"{there}: not named like an object of a segment")
        return
    log = known.get(found.partition)
    at = f"{there}: segment {found.segment_id} of {_name(found.partition)}"
    if log is None:
        what = f"{at}, and no metadata here is about its partition"
        findings.add(Kind.TIER_FOREIGN, found.path, what, offset=found.start_offset)
        return
    segment = log.segments.get(found.segment_id)
    if segment is None:
        what = f"{at}, which no metadata mentions, or only with its deletion"
        findings.add(Kind.TIER_ORPHAN, found.path, what, offset=found.start_offset)
    elif segment.state is CopyState.COPY_STARTED:
        what = f"{at}, whose copy began {time_text(segment.event_time_ms)} and never ended"
        findings.add(Kind.TIER_ORPHAN, found.path, what, offset=found.start_offset)


def _object_fault(segment: RemoteSegment, path: str, answering: set[str], layout: Layout, findings: Findings) -> bool:
    """Compare the objects of a segment with its metadata, and return whether a finding was added.

    Nobody reads a segment that answers for no offset, so it is never damage.
    """
    severity = None if segment.id in answering else Severity.NOTE
    kind, what, where = Kind.TIER_OBJECT, "", path
    try:
        with layout.open(segment, FileKind.LOG) as file:
            where = file.path
            if file.size() != segment.size_bytes:
                what = f"its .log has {file.size()} bytes, and {segment.size_bytes} in its metadata"
        if not what and with_records(epochs := layout.epochs(segment)) != with_records(segment.epochs):
            what = f"its leader epochs are {_epochs(epochs)}, and {_epochs(segment.epochs)} in its metadata"
    except FileNotFoundError as error:
        kind, what, where = Kind.TIER_OBJECT_MISSING, "its copy was finished, but the object is missing", error.filename
    except DataError as error:
        what, where = error.what, error.path or where
    if what:
        findings.add(kind, where or path, f"{_named(segment)}: {what}", offset=segment.start_offset, severity=severity)
    return bool(what)


def _add_gap(path: str, part: RemotePart, first: int, end: int, findings: Findings, *, live: bool) -> None:
    begin = part.lineage[0].start_offset if part.lineage else end
    if first < begin and first == part.log_start and live:
        first = begin
    elif first < begin and first == part.log_start:
        what = f"the log starts at {first:,}, and its leader epochs at {begin:,}"
        # A broker that becomes leader moves the log start to its first segment.
        listed = first_listed(part.log, part.lineage)
        moves = listed is None or listed >= begin
        severity = Severity.RECOVERY if moves else None
        meaning = "the next leader moves the log start to its first segment" if moves else None
        findings.add(Kind.TIER_LOG_START, path, what, offset=first, severity=severity, meaning=meaning)
        first = begin
    if first < end:
        what = f"no segment answers for offsets {first:,} to {end - 1:,}"
        findings.add(Kind.TIER_GAP, path, what, offset=first)


def _check_branches(path: str, part: RemotePart, answering: set[str], findings: Findings) -> None:
    """Report abandoned branches: records that a broker would serve, and whole segments."""
    for answer in part.answers:
        for first, last in _other_branch(answer.segment, answer.last_offset + 1, part.lineage):
            what = f"offsets {first:,} to {last:,} of {_named(answer.segment)}"
            findings.add(Kind.TIER_OTHER_BRANCH, path, what, offset=first)
    abandoned = [
        one
        for one in part.copied
        if one.id not in answering and part.lineage and not within_lineage(one, part.lineage, MAX_OFFSET)
    ]
    # Retention deletes segments below the log start, although the lineage begins later.
    abandoned = [one for one in abandoned if one.end_offset >= part.log_start]
    if abandoned:
        what = f"{number(len(abandoned), 'segment')} of {bytes_text(sum(one.size_bytes for one in abandoned))}"
        first = min(one.start_offset for one in abandoned)
        findings.add(Kind.TIER_ABANDONED, path, f"{what}: {_names(abandoned)}", offset=first)


def _other_branch(segment: RemoteSegment, first: int, lineage: Sequence[EpochEntry]) -> list[tuple[int, int]]:
    """Return the ranges of offsets from `first` on where a segment has another leader epoch than the log."""
    bounds = {entry.start_offset for entry in (*segment.epochs, *lineage) if first < entry.start_offset}
    starts = [first, *sorted(bound for bound in bounds if bound <= segment.end_offset)]
    found: list[tuple[int, int]] = []
    for start, end in zip(starts, [*starts[1:], segment.end_offset + 1], strict=True):
        if start >= end or epoch_at(segment.epochs, start) == epoch_at(lineage, start):
            continue
        if found and found[-1][1] + 1 == start:
            found[-1] = (found[-1][0], end - 1)
        else:
            found.append((start, end - 1))
    return found


def _check_unlisted(path: str, log: RemoteLog, findings: Findings) -> None:
    unlisted = [one for one in log.unlisted if one.state is CopyState.COPY_FINISHED]
    for segment in unlisted:
        what = f"{_named(segment)}, {bytes_text(segment.size_bytes)}"
        findings.add(Kind.TIER_UNLISTED, path, what, offset=segment.start_offset)


def _check_attempts(path: str, part: RemotePart, findings: Findings) -> None:
    """Report deletions that did not end, and copies that fail again and again."""
    for segment_id, tries in part.log.deletions.items():
        segment = part.log.segments[segment_id]
        what = f"{_named(segment)} is being deleted since {time_text(tries.first_ms)}"
        what += f": {number(tries.count, 'attempt')}, the last {time_text(tries.last_ms)}"
        findings.add(Kind.TIER_DELETION, path, what, offset=segment.start_offset)
    for start, tries in part.failing_copies.items():
        what = f"{number(tries.count, 'attempt')} to copy the segment at offset {start:,} failed"
        what += f", the first {time_text(tries.first_ms)}, the last {time_text(tries.last_ms)}"
        findings.add(Kind.TIER_COPY, path, what, offset=start)


def _named(segment: RemoteSegment) -> str:
    return f"segment {segment.id} ({segment.start_offset:,} to {segment.end_offset:,})"


def _names(segments: Sequence[RemoteSegment]) -> str:
    ordered = sorted(segments, key=lambda one: one.start_offset)
    more = f" and {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
    return ", ".join(map(_named, ordered[:_NAMED])) + more


def _epochs(entries: Sequence[EpochEntry]) -> str:
    return "{" + ", ".join(f"{entry.epoch}:{entry.start_offset}" for entry in entries) + "}"
