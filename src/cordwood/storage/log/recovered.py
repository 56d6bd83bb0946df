"""Predict the files of a partition after a broker has loaded it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cordwood.fs.base import FileInfo
from cordwood.storage.formats.filenames import (
    CLUSTER_METADATA_TOPIC,
    DirectoryState,
    FileKind,
    PartitionDirectory,
    PartitionFile,
    parse_file,
)
from cordwood.storage.log.recovery import SEGMENT_KINDS, Verb
from cordwood.storage.log.view import LogView

#: Files about the records of a log; a load that empties the log replaces them.
_OF_RECORDS = (*SEGMENT_KINDS, FileKind.PRODUCER_SNAPSHOT, FileKind.LEADER_EPOCHS)


def files_after_recovery(log: LogView) -> Iterator[tuple[str, str, PartitionFile | None]]:
    """Yield the files of a partition that survive a load.

    Yields:
        (present name, name after the load, parsed name; None for a name that Kafka could not have given)
    """
    dropped = set(stray_snapshots(log))
    emptied = log.ends_below_start
    for info, name in files_after_swaps(log):
        file = parse_file(name)
        if info.name in dropped or (emptied and file is not None and file.kind in _OF_RECORDS):
            continue
        yield info.name, name, file


def files_after_swaps(log: LogView) -> Iterator[tuple[FileInfo, str]]:
    """Yield the regular files that remain after a partition's swaps are completed, each with its name then."""
    dropped = {action.file for action in log.recovery.actions if action.verb is Verb.DELETE}
    renamed = {action.file: action.target for action in log.recovery.actions if action.verb is Verb.RENAME}
    for info in log.entries:
        if not info.is_directory and info.name not in dropped:
            yield info, renamed.get(info.name, info.name)


def stray_snapshots(log: LogView) -> list[str]:
    """Return the names of the producer snapshots that a load removes; see `strays`."""
    snapshots = log.recovery.snapshots
    return [snapshots[offset].name for offset in strays(snapshots, [one.base_offset for one in log.segments])]


def strays(snapshots: Iterable[int], bases: Iterable[int]) -> list[int]:
    """Return the offsets of producer snapshots that are not at the start of a segment, as a load removes them.

    A clean that merges segments leaves such snapshots. The newest one is not a stray if no segment starts after it:
    it is the snapshot of the log's end.

    Args:
        snapshots: offsets of all producer snapshots, ascending.
        bases: base offsets of the segments.

    Source: Kafka ProducerStateManager.removeStraySnapshots.
    """
    known = set(bases)
    found = [offset for offset in snapshots if offset not in known]
    if found and found[-1] >= max(known, default=0):
        found.pop()
    return found


def broker_would_load(name: PartitionDirectory | None) -> bool:
    """Return whether a broker loads and recovers a directory as a log; it loads KRaft's metadata log separately."""
    return (
        name is not None
        and name.state is not DirectoryState.DELETED
        and name.topic_partition.topic != CLUSTER_METADATA_TOPIC
    )
