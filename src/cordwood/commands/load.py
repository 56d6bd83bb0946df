"""The first step of a clean: bring partitions into the state that a broker's start would produce.

A clean in place loads all its partitions where they are. `clean` and `plan_exact` load the partitions of crashed
directories into the copies of these directories, which are then the sources of the clean. A partition that a broker
would not load fails, without stopping the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cordwood.cleaning.engine.task import Failure, FailureKind
from cordwood.commands.in_place.work import LockedDirectories
from cordwood.commands.opening import recovery_settings
from cordwood.common.errors import DataError
from cordwood.common.threads import in_parallel
from cordwood.common.types import TopicPartition
from cordwood.fs.base import Link, Store, TargetStore
from cordwood.fs.workspace import mode_of, remove_tree
from cordwood.storage.changes.copy import DirectoryCopy, copy_unchanged
from cordwood.storage.formats import filenames
from cordwood.storage.formats.filenames import DirectoryState
from cordwood.storage.log.loaded import broker_would_load
from cordwood.storage.log.view import LogView
from cordwood.storage.node.directory import LogDirectory
from cordwood.storage.node.node import LocatedPartition, Node
from cordwood.storage.recovery.in_place import recover_in_place
from cordwood.storage.recovery.into_copy import Recovered, recover_into_copy

_NOT_RECORDED = "its clean could not be recorded"
_MOVE_AWAY = "Move that file away, and cleaners start over from the log's start"
_WITHOUT = (
    "Correct that file, or move it away: then logs begin at their first segments, and a recovery reads them whole"
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Partitions that were loaded before a clean.

    Attributes:
        recovered: results by path of the partition.
        copies: paths of the directory copies that hold them; empty in place.
    """

    recovered: Mapping[str, Recovered] = field(default_factory=dict)
    copies: frozenset[str] = frozenset()

    def notes(self, place: LocatedPartition) -> tuple[str, ...]:
        """Return the data that the load of a partition cut off, in words."""
        found = self.recovered.get(place.path)
        return () if found is None else found.notes

    @property
    def failures(self) -> dict[str, Failure]:
        """The partitions that cannot be loaded, and so not cleaned, by path."""
        incomplete = {path: one for path, one in self.recovered.items() if not one.complete}
        return {path: Failure(FailureKind.DAMAGE, one.notes[0]) for path, one in incomplete.items()}


def load_in_place(site: LockedDirectories, logs: Mapping[str, LogView]) -> Loaded:
    """Load all partitions of a site; write recovery points for directories that were not shut down cleanly.

    Args:
        logs: their logs, by path, as they were listed before.
    """

    def recover(place: LocatedPartition) -> Recovered:
        directory = place.directory
        if directory.cleaner_failure is not None:
            return Recovered(0, (f"{_NOT_RECORDED}: {directory.cleaner_failure}. {_MOVE_AWAY}",), complete=False)
        return recover_in_place(
            site.fs,
            logs[place.path],
            crashed=directory.crashed,
            recovery_point=_recovery_point(place),
            now_ms=site.now_ms,
            settings=recovery_settings(site.cluster.node_of(place), place.topic or ""),
            keep=site.keep,
        )

    recovered = _load_each(site.fs, site.places, recover)
    for directory in site.directories:
        if directory.crashed:
            places = [place for place in site.places if place.directory is directory]
            ends, marks = _checkpoints(directory, places, recovered)
            to_load = (one.path for one in directory.partitions if broker_would_load(one.name))
            whole = all(path in recovered and recovered[path].complete for path in to_load)
            offsets = {filenames.RECOVERY_POINTS: ends, filenames.HIGH_WATERMARKS: marks}
            site.record(directory, offsets, clean_shutdown=whole)
    return Loaded(recovered)


def load_into_copies(
    fs: TargetStore, node: Node, copies: Sequence[DirectoryCopy], root: str, now_ms: int, *, link: Link | None
) -> Loaded:
    """Load crashed directories into their copies; only make the folders of the other copies."""
    for copy in copies:
        if copy.path != root:
            fs.make_directory(copy.path, mode=mode_of(fs, copy.source.path))
    crashed = [copy for copy in copies if needs_recovery(copy)]
    recovered = [_load_into(fs, node, copy, now_ms, link=link) for copy in crashed]
    return Loaded(
        {path: one for each in recovered for path, one in each.items()}, frozenset(copy.path for copy in crashed)
    )


def needs_recovery(copy: DirectoryCopy) -> bool:
    """Whether a directory was not shut down cleanly, and no process holds its lock."""
    return copy.source.crashed and copy.source.fs.lock_holder(copy.source.path) is None


def _load_into(
    fs: TargetStore, node: Node, copy: DirectoryCopy, now_ms: int, *, link: Link | None
) -> dict[str, Recovered]:
    def recover(place: LocatedPartition) -> Recovered:
        target = copy.target_of(place)
        fs.make_directory(target, mode=mode_of(fs, place.path))
        return recover_into_copy(
            fs,
            place.log(),
            target,
            recovery_point=_recovery_point(place),
            now_ms=now_ms,
            settings=recovery_settings(node, place.topic or ""),
            link=link,
        )

    def leave(place: LocatedPartition) -> None:
        target = copy.target_of(place)
        if fs.exists(target):
            remove_tree(fs, target)
        fs.make_directory(target, mode=mode_of(fs, place.path))
        copy_unchanged(fs, place.path, target)

    in_parallel(fs.concurrency, leave, [place for place in copy.places if not broker_would_load(place.name)])
    places = [place for place in copy.places if broker_would_load(place.name)]
    recovered = _load_each(fs, places, recover, leave)
    ends, marks = _checkpoints(copy.source, places, recovered)
    copy.recovery_points |= ends
    copy.high_watermarks |= marks
    copy.clean_shutdown = all(one.complete for one in recovered.values())
    copy.copy_files(fs)
    copy.write_checkpoints(fs)
    return recovered


def _load_each(
    fs: Store,
    places: Sequence[LocatedPartition],
    recover: Callable[[LocatedPartition], Recovered],
    leave: Callable[[LocatedPartition], None] = lambda _: None,
) -> dict[str, Recovered]:
    """Load partitions in parallel; return the results by path.

    Args:
        leave: called for a partition that cannot be loaded.
    """

    def load(place: LocatedPartition) -> Recovered:
        if place.directory.failure is not None:
            what = f"{place.directory.failure}. {_WITHOUT}"
        else:
            try:
                return recover(place)
            except DataError as error:
                what = str(error)
        leave(place)
        return Recovered(0, (f"it cannot be recovered: {what}",), complete=False)

    results = in_parallel(fs.concurrency, load, places)
    return {place.path: result for place, result in zip(places, results, strict=True)}


def _recovery_point(place: LocatedPartition) -> int:
    """Return the offset below which everything was flushed."""
    name = place.name
    assert name is not None, "or a broker would not load it"
    return place.directory.recovery_points.get(name.topic_partition, 0) if name.state is DirectoryState.CURRENT else 0


def _checkpoints(
    directory: LogDirectory, places: Sequence[LocatedPartition], recovered: Mapping[str, Recovered]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the recovery points of loaded partitions, and the high watermarks that their loads lowered."""
    ends = {
        place.name.topic_partition: recovered[place.path].next_offset
        for place in places
        if recovered[place.path].complete and place.name is not None and place.name.state is DirectoryState.CURRENT
    }
    return ends, {name: end for name, end in ends.items() if directory.high_watermarks.get(name, 0) > end}
