"""Copy a data directory to a target of a store. The source is only read, so no failure changes it.

The copy appears complete or not at all (see `fs.workspace` for disks, `fs.object_targets` for object stores). A
partition is copied as a broker would load it (see `recovery`): leftovers of a deletion or clean are skipped, and
segments of an interrupted swap get their final names.

Files are copied in the cheapest way that the store has, keep their modification times, and are durable before the copy
is published.
"""

from __future__ import annotations

import functools
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cordwood.common.errors import LockedError, NoSpaceError, RequestError
from cordwood.common.types import TopicPartition
from cordwood.fs.base import FileInfo, Link, TargetStore
from cordwood.kernels.layout import HEADER_BYTES
from cordwood.storage.formats import checkpoints, filenames, offset_index, properties, time_index
from cordwood.storage.formats.filenames import (
    FileKind,
    PartitionFile,
    parse_file,
)
from cordwood.storage.log.files import copy_file, read_file, write_file
from cordwood.storage.log.loaded import broker_would_load, files_after_recovery
from cordwood.storage.log.recovery import SEGMENT_KINDS
from cordwood.storage.log.view import LogView
from cordwood.storage.node.directory import LogDirectory
from cordwood.storage.node.node import LocatedPartition, Node

_SPACE_ADVICE = "name a folder on another disk, or clean some topics' partitions at a time by naming their directories"
_BLOCK_BYTES = 4096
#: Space for the work folder, the reports of tasks in it, checkpoints, and the growth of directories.
_SLACK_BYTES = 64 * _BLOCK_BYTES
_INDEX_ENTRY_BYTES = {
    FileKind.OFFSET_INDEX: offset_index.ENTRY.itemsize,
    FileKind.TIME_INDEX: time_index.ENTRY.itemsize,
}
#: Files of a log directory itself that are written for the copy, or left out (the lock), instead of copied.
_REWRITTEN = {filenames.LOCK, filenames.CLEAN_SHUTDOWN, *filenames.OFFSET_CHECKPOINTS}


# ---- partitions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Replacement:
    """Cleaned segments, and the segments that they replace.

    Attributes:
        folder: folder with the cleaned segments.
        names: their file names in it.
        replaced: base offsets of the old segments.
        outputs: base offsets of the cleaned segments.
    """

    folder: str
    names: tuple[str, ...]
    replaced: frozenset[int]
    outputs: frozenset[int]
    end_offset: int

    def removes(self, file: PartitionFile | None) -> bool:
        """Return whether the replacement removes this file of the partition."""
        if file is None or file.offset not in self.replaced:
            return False
        if file.kind is FileKind.PRODUCER_SNAPSHOT:
            return file.offset not in self.outputs
        return file.kind in SEGMENT_KINDS


def copy_partition(
    fs: TargetStore, log: LogView, target: str, replacement: Replacement | None = None, *, link: Link | None = None
) -> None:
    """Copy a partition as a broker would load it, with cleaned segments instead of the ones they replace.

    Args:
        target: an existing folder.
        link: how to link the logs of closed segments; None copies them.
    """
    active = log.segments[-1].base_offset if log.segments else None
    listed = {info.name: info for info in log.entries}
    for source, name, file in files_after_recovery(log):
        if replacement is None or not replacement.removes(file):
            closed = file is not None and file.kind is FileKind.LOG and file.offset != active
            paths = f"{log.path}/{source}", f"{target}/{name}"
            copy_file(fs, *paths, info=listed[source], link=link if closed else None)
    if replacement is not None:
        _move_in(fs, target, replacement)


def replace_segments(fs: TargetStore, path: str, replacement: Replacement) -> None:
    """Replace segments in an unpublished copy of a partition. No crash safety is needed there."""
    for info in fs.list(path):
        if not info.is_directory and replacement.removes(parse_file(info.name)):
            fs.unlink(f"{path}/{info.name}")
    _move_in(fs, path, replacement)


def _move_in(fs: TargetStore, path: str, replacement: Replacement) -> None:
    for name in replacement.names:
        fs.rename(f"{replacement.folder}/{name}", f"{path}/{name}")


def remove_segments(fs: TargetStore, path: str, base_offsets: Sequence[int], log_end_offset: int) -> None:
    """Delete segments from a copy of a partition. If that deletes all, create an empty segment at the log end."""
    logs = 0
    for info in fs.list(path):
        file = None if info.is_directory else parse_file(info.name)
        if file is None or file.kind not in (*SEGMENT_KINDS, FileKind.PRODUCER_SNAPSHOT):
            continue
        if file.offset in base_offsets:
            fs.unlink(f"{path}/{info.name}")
        else:
            logs += file.kind is FileKind.LOG
    if not logs:
        for kind in (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
            write_file(fs, f"{path}/{filenames.offset_name(log_end_offset, kind)}", b"")


def copy_unchanged(fs: TargetStore, source: str, target: str) -> None:
    """Copy all regular files of a directory except the lock, under their own names."""
    for info in fs.list(source):
        if not info.is_directory and not info.is_special and info.name != filenames.LOCK:
            copy_file(fs, f"{source}/{info.name}", f"{target}/{info.name}", info=info)


# ---- log directories -------------------------------------------------------------------------------------------------


class CopySizes(NamedTuple):
    """Sizes of one partition, in bytes.

    Attributes:
        logs: size of its `.log` files.
        copied: upper bound of its copy's size on disk.
        linked: the same bound if the copy links closed segments instead of copying them.
    """

    logs: int
    copied: int
    linked: int


@dataclass
class DirectoryCopy:
    """One log directory and its copy.

    Attributes:
        path: path of the copy.
        places: the partitions to copy.
        whole: whether the whole directory is copied, not just selected partitions.
        cleaner_offsets, recovery_points, high_watermarks: entries of the copy's checkpoints that differ from the
            source's.
        clean_shutdown: whether to mark the copy as cleanly shut down although its source is not.
    """

    source: LogDirectory
    path: str
    places: Sequence[LocatedPartition]
    whole: bool
    cleaner_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    recovery_points: dict[TopicPartition, int] = field(default_factory=dict)
    high_watermarks: dict[TopicPartition, int] = field(default_factory=dict)
    clean_shutdown: bool = False

    def target_of(self, place: LocatedPartition) -> str:
        """Return the path of a partition's copy."""
        return f"{self.path}/{posixpath.basename(place.path)}"

    @functools.cached_property
    def rooms(self) -> list[CopySizes]:
        """Sizes of each partition. Cached, so each partition is listed once."""
        return [_room_of(self.source, place) for place in self.places]

    @property
    def left_out(self) -> list[str]:
        """Paths of directories and special files that are not copied because they are not partitions.

        A broker fails on some names of directories.
        """
        known = {posixpath.basename(place.path) for place in self.places}
        others = [info for info in self.source.entries if info.is_directory or info.is_special]
        names = [info.name for info in others if info.name not in known]
        return [f"{self.source.path}/{name}" for name in names] if self.whole else []

    def copy_files(self, fs: TargetStore) -> None:
        """Copy the directory's own files, except the lock, checkpoints and clean-shutdown file."""
        if self.whole:
            for info in self.source.entries:
                if not info.is_directory and not info.is_special and info.name not in _REWRITTEN:
                    copy_file(fs, f"{self.source.path}/{info.name}", f"{self.path}/{info.name}")

    def write_checkpoints(self, fs: TargetStore) -> None:
        """Write the checkpoints and the clean-shutdown file. Call this after the partitions are durable."""
        changes = {
            filenames.CLEANER_OFFSETS: self.cleaner_offsets,
            filenames.RECOVERY_POINTS: self.recovery_points,
            filenames.HIGH_WATERMARKS: self.high_watermarks,
        }
        for name in filenames.OFFSET_CHECKPOINTS:
            self._write_checkpoint(fs, name, changes.get(name, {}))
        if self.source.clean_shutdown:
            left = read_file(self.source.fs, f"{self.source.path}/{filenames.CLEAN_SHUTDOWN}")
            write_file(fs, f"{self.path}/{filenames.CLEAN_SHUTDOWN}", left)
        elif self.clean_shutdown:
            data = properties.encode_clean_shutdown(None)
            write_file(fs, f"{self.path}/{filenames.CLEAN_SHUTDOWN}", data)

    def _write_checkpoint(self, fs: TargetStore, name: str, changes: Mapping[TopicPartition, int]) -> None:
        source = self.source
        before = {
            filenames.CLEANER_OFFSETS: source.cleaner_offsets,
            filenames.RECOVERY_POINTS: source.recovery_points,
            filenames.LOG_START_OFFSETS: source.log_start_offsets,
            filenames.HIGH_WATERMARKS: source.high_watermarks,
        }[name]
        after = {**before, **changes}
        if not self.whole:
            mine = {place.name.topic_partition for place in self.places if place.name is not None}
            after = {key: offset for key, offset in after.items() if key in mine}
        path = f"{self.path}/{name}"
        if source.info(name) is not None and after == before:
            write_file(fs, path, read_file(source.fs, f"{source.path}/{name}"))
        elif after or source.info(name) is not None:
            write_file(fs, path, checkpoints.encode(after))


def lay_out(
    fs: TargetStore, node: Node, paths: Sequence[str], root: str, *, locked_too: bool = False
) -> list[DirectoryCopy]:
    """Assign a path to the copy of each log directory.

    A single directory is copied to `root` itself if `paths` names it or partitions of it. Otherwise each directory is
    copied to a folder of its name in `root`.

    Args:
        node: the node opened on `paths`.
        paths: log directories, folders with several of them, or partition directories.
        locked_too: whether to accept directories that another process has locked.

    Raises:
        LockedError: another process holds the lock of a directory.
        RequestError: two directories have the same name.
    """
    copies = []
    named = {path.rstrip("/") or "/" for path in paths}
    asked = {place.path for place in node.places}
    for directory in node.directories:
        if not locked_too:
            check_unlocked(directory)
        # If `paths` names only partitions of a directory, the others are not copied. With a tier, the copy is of its
        # partitions only, too: a broker that starts on all would delete remote segments of the original.
        in_it = [place.path for place in node.places if place.directory is directory]
        whole = not node.has_tier and (directory.path in named or not any(path in named for path in in_it))
        alone = len(node.directories) == 1 and (directory.path in named or not whole)
        path = root if alone else f"{root}/{posixpath.basename(fs.real_path(directory.path))}"
        places = [place for place in node.places if place.directory is directory]
        copy = DirectoryCopy(directory, path, places, whole)
        if not whole and directory.info(filenames.META_PROPERTIES) is not None:
            # The copy has no meta.properties, so a missing entry no longer means a high watermark of 0. Write the 0.
            names = [place.name.topic_partition for place in places if place.name is not None]
            copy.high_watermarks = {name: 0 for name in names if name not in directory.high_watermarks}
        copies.append(copy)
    assert asked == {place.path for copy in copies for place in copy.places}
    if len({copy.path for copy in copies}) < len(copies):
        several = ", ".join(copy.source.path for copy in copies)
        raise RequestError(f"Several of {several} have the same name, that of their copy. Copy one at a time")
    return copies


def check_unlocked(directory: LogDirectory) -> None:
    """Raise LockedError if another process holds the directory's lock, as it may be writing there."""
    holder = directory.fs.lock_holder(directory.path)
    if holder is not None:
        raise LockedError(
            f"{directory.path} is held by {holder}, so its files may change while they are read. "
            "Stop it first, or clean a snapshot of the disk"
        )


def check_unchanged(directory: LogDirectory) -> None:
    """Raise LockedError if a broker has used the directory since we opened it, even if the broker has stopped again."""
    check_unlocked(directory)
    for name in (filenames.CLEAN_SHUTDOWN, *filenames.OFFSET_CHECKPOINTS):
        path = f"{directory.path}/{name}"
        try:
            now: FileInfo | None = directory.fs.stat(path)
        except FileNotFoundError:
            now = None
        if _version(now) != _version(directory.info(name)):
            raise LockedError(
                f"{path} changed while the directory was read: a broker has run on it since. "
                "The copied files may not fit together, and are removed. Copy again while no broker runs"
            )


def _version(info: FileInfo | None) -> tuple[int, int] | None:
    return None if info is None else (info.mtime_ns, info.size_bytes)


def check_space(
    fs: TargetStore,
    parent: str,
    copies: Iterable[DirectoryCopy],
    *,
    link: Link | None,
    advice: str = _SPACE_ADVICE,
    work_folder: str | None = None,
) -> None:
    """Raise NoSpaceError if the copies do not fit on the disk.

    The size after a clean is not known yet, so the sum over all files is an upper bound. Linked files, and files that
    share their blocks, need no space.

    Args:
        parent: folder that will contain the copies.
        link: how closed segments are linked; None copies them.
        advice: what else the user can do if the space does not suffice.
        work_folder: folder in `parent` for a test whether copies share their blocks. None if it does not exist yet;
            then copies are assumed to share them, as long as the work folder itself fits.
    """
    free = fs.free_bytes(parent)
    if free is None:
        return
    needed = _needed_bytes(fs, parent, copies, link)
    if needed <= free:
        return
    if free >= _SLACK_BYTES and (work_folder is None or fs.shares_blocks(work_folder)):
        return
    raise NoSpaceError(
        f"{parent} has {free:,} bytes free, and the copy needs up to {needed:,}. Nothing was changed. Free at least "
        f"{needed - free:,} bytes there, {advice}"
    )


def has_room_beside(
    fs: TargetStore, parent: str, copies: Iterable[DirectoryCopy], more_bytes: int, *, link: Link | None
) -> bool:
    """Return whether `more_bytes` fit on the disk beside its copies, at their upper bound."""
    free = fs.free_bytes(parent)
    return free is None or _needed_bytes(fs, parent, copies, link) + more_bytes <= free


def _needed_bytes(fs: TargetStore, parent: str, copies: Iterable[DirectoryCopy], link: Link | None) -> int:
    device = fs.stat(parent).device
    needed = _SLACK_BYTES
    for copy in copies:
        linked = link is Link.SYMBOLIC or (link is Link.HARD and fs.stat(copy.source.path).device == device)
        needed += sum(_on_disk(info.size_bytes) for info in copy.source.entries if not info.is_directory)
        needed += sum(room.linked if linked else room.copied for room in copy.rooms)
    return needed


def _room_of(source: LogDirectory, place: LocatedPartition) -> CopySizes:
    log = place.log()
    is_recovered = source.crashed and broker_would_load(place.name)
    active = log.segments[-1] if log.segments else None
    copied = linked = _BLOCK_BYTES
    for info in log.entries:
        file = None if info.is_directory else parse_file(info.name)
        is_active = active is not None and file is not None and file.offset == active.base_offset
        size = info.size_bytes
        if active is not None and is_active and is_recovered and file is not None and file.kind in _INDEX_ENTRY_BYTES:
            # A crashed broker leaves the indexes of the active segment preallocated. The copy rebuilds them, with at
            # most one entry per batch.
            entries = min(active.size_bytes, active.files.log.disk_bytes) // HEADER_BYTES + 2
            size = min(size, entries * _INDEX_ENTRY_BYTES[file.kind])
        elif file is not None and (is_active or file.kind in _INDEX_ENTRY_BYTES):
            size = min(size, info.disk_bytes)  # the holes of a preallocated file stay holes in its copy
        taken = _on_disk(size)
        copied += taken
        if file is None or file.kind is not FileKind.LOG or is_active:
            linked += taken
    return CopySizes(log.size_bytes, copied, linked)


def _on_disk(size_bytes: int) -> int:
    return -(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES
