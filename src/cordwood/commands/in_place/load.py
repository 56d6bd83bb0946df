"""The first step of a clean in place: bring partitions into the state that a broker's start would produce."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cordwood.cleaning.engine.task import Failure, FailureKind
from cordwood.commands.in_place.site import LockedDirectories
from cordwood.commands.opening import recovery_settings
from cordwood.common.errors import DataError
from cordwood.common.threads import in_parallel
from cordwood.storage.formats import filenames
from cordwood.storage.formats.filenames import DirectoryState
from cordwood.storage.log.recovered import broker_would_load
from cordwood.storage.node.directory import LogDirectory
from cordwood.storage.node.node import LocatedPartition
from cordwood.storage.recovery.in_place import recover_in_place
from cordwood.storage.recovery.into_copy import Recovered

_NOT_RECORDED = "its clean could not be recorded"
_WITHOUT = (
    "Correct that file, or move it away: then logs begin at their first segments, and a recovery reads them whole"
)
_MOVE_AWAY = "Move that file away, and cleaners start over from the log's start"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of loading.

    Attributes:
        size_before: log size before loading in bytes, by path.
    """

    recovered: Mapping[str, Recovered]
    size_before: Mapping[str, int]

    @property
    def failures(self) -> dict[str, Failure]:
        """The partitions that cannot be loaded, by path."""
        return {
            path: Failure(FailureKind.DAMAGE, one.notes[0]) for path, one in self.recovered.items() if not one.complete
        }


def load(site: LockedDirectories) -> Loaded:
    """Load all partitions; write recovery points for directories that were not shut down cleanly."""
    logs = {place.path: place.log() for place in site.places}
    size_before = {path: log.size_bytes for path, log in logs.items()}

    def recover(place: LocatedPartition) -> Recovered:
        assert place.name is not None and place.topic is not None, "or it would not be loaded"
        directory = place.directory
        current = place.name.state is DirectoryState.CURRENT
        if directory.cleaner_failure is not None:
            return Recovered(0, (f"{_NOT_RECORDED}: {directory.cleaner_failure}. {_MOVE_AWAY}",), complete=False)
        if directory.failure is not None:
            return Recovered(0, (f"it cannot be recovered: {directory.failure}. {_WITHOUT}",), complete=False)
        try:
            return recover_in_place(
                site.fs,
                logs[place.path],
                crashed=directory.crashed,
                recovery_point=directory.recovery_points.get(place.name.topic_partition, 0) if current else 0,
                now_ms=site.now_ms,
                settings=recovery_settings(site.node, place.topic),
                keep=site.keep,
            )
        except DataError as error:
            return Recovered(0, (f"it cannot be recovered: {error}",), complete=False)

    recovered = in_parallel(site.fs.concurrency, recover, site.places)
    loaded = Loaded({place.path: one for place, one in zip(site.places, recovered, strict=True)}, size_before)
    for directory in site.node.directories:
        if directory.crashed:
            _record_recovery(site, directory, loaded)
    return loaded


def _record_recovery(site: LockedDirectories, directory: LogDirectory, loaded: Loaded) -> None:
    """Record the recovery points of a directory's logs, and a clean shutdown if all of them were recovered."""
    complete = {path for path, one in loaded.recovered.items() if one.complete}
    ends = {
        place.name.topic_partition: loaded.recovered[place.path].next_offset
        for place in site.places
        if place.directory is directory
        and place.path in complete
        and place.name is not None
        and place.name.state is DirectoryState.CURRENT
    }
    marks = {name: end for name, end in ends.items() if directory.high_watermarks.get(name, 0) > end}
    whole = all(one.path in complete for one in directory.partitions if broker_would_load(one.name))
    offsets = {filenames.RECOVERY_POINTS: ends, filenames.HIGH_WATERMARKS: marks}
    site.record(directory, offsets, clean_shutdown=whole)
