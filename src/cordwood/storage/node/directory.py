"""Log directories: a broker's files beside the partitions, and whether its last shutdown was clean.

A user may name a log directory, a folder of several (the disks of one broker), a partition's directory, or one file.
`look` decides the kind of path for every command. Its evidence is the files and directories in the path, the contents
of these directories, and the name of the path. Names alone prove nothing: disks may be called data-0 and data-1.
The first evidence in this table that the path contains decides:

    files of a log            a partition, even with a `.lock` or `meta.properties` among them. Exception: if the path
                              also contains directories with files of logs, and has marks of a broker or is not named
                              like a partition, it is a log directory with foreign files
    marks of a broker         a log directory. Marks: offset checkpoints, meta.properties, .kafka_cleanshutdown
    directories of partitions a log directory
    log directories           a folder of log directories; commands use all of them
    its own name              a partition without files
    a `.lock`                 a log directory without partitions
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TypeVar

from cordwood.common.errors import BadNameError, CorruptFileError, DataError, NotFoundError, RequestError, TextProblem
from cordwood.common.text import printable
from cordwood.common.types import TopicPartition
from cordwood.fs.base import FileInfo, LockHolder, Store
from cordwood.storage.formats import checkpoints, filenames, properties
from cordwood.storage.formats.filenames import DirectoryState, FileKind, PartitionDirectory, parse_directory, parse_file
from cordwood.storage.log.files import read_file, why_unreadable
from cordwood.storage.log.loaded import Stop
from cordwood.storage.log.view import LogView

T = TypeVar("T")

#: Files that a clean in place creates in every directory that contains partitions.
_OURS = {filenames.CLEANER_OFFSETS, filenames.LOCK}
#: Files that only a broker's log directory has.
_MARKS = {*filenames.OFFSET_CHECKPOINTS, filenames.META_PROPERTIES, filenames.CLEAN_SHUTDOWN} - _OURS
#: Folders that `look` never opens. Every ext4 file system has a `lost+found` at its root, which only root may read.
_PASSED_OVER = ("lost+found", filenames.WORK_FOLDER)


class PathKind(StrEnum):
    """Kinds of paths that a user may name."""

    LOG_DIRECTORY = "log directory"
    FOLDER = "folder of log directories"
    PARTITION = "partition"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class FoundPath:
    """A path that a user named, and its kind.

    Attributes:
        path: the path without a slash at its end; its last part is the directory's name, never `.` or `..`.
        directories: the log directory itself, or the log directories in the folder, in order; empty for other kinds.
        by_name: True for a partition that is recognized only by its name, because it has no file of a log.
    """

    path: str
    kind: PathKind
    directories: tuple[str, ...] = ()
    by_name: bool = False


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition directory within a log directory."""

    path: str
    name: PartitionDirectory


@dataclass(frozen=True)
class LogDirectory:
    """One log directory, as listed once. Checkpoint files are read on first use."""

    fs: Store
    path: str
    entries: Sequence[FileInfo]
    partitions: Sequence[Partition]

    @classmethod
    def open(cls, fs: Store, path: str) -> LogDirectory:
        """List a log directory."""
        path = path.rstrip("/") or "/"
        entries = fs.list(path)
        partitions = []
        for info in entries:
            if info.is_directory and info.name != filenames.REMOTE_INDEX_CACHE:
                try:
                    partitions.append(Partition(f"{path}/{info.name}", parse_directory(info.name)))
                except BadNameError:
                    continue
        return cls(fs, path, entries, partitions)

    @classmethod
    def unlisted(cls, fs: Store, path: str) -> LogDirectory:
        """Return a log directory that only knows its meta.properties, if there is one."""
        try:
            info = fs.stat(f"{path}/{filenames.META_PROPERTIES}")
        except OSError:
            return cls(fs, path, (), ())
        return cls(fs, path, [replace(info, name=filenames.META_PROPERTIES)], ())

    @functools.cached_property
    def _by_name(self) -> Mapping[str, FileInfo]:
        return {info.name: info for info in self.entries}

    def info(self, name: str) -> FileInfo | None:
        """Return the entry of a file of the directory itself, or None if it is missing."""
        return self._by_name.get(name)

    @property
    def is_brokers(self) -> bool:
        """Whether a broker created the directory; otherwise somebody copied partitions into a folder."""
        return any(name in self._by_name for name in _MARKS)

    @property
    def clean_shutdown(self) -> bool:
        """Whether the last broker shut down cleanly."""
        return self.info(filenames.CLEAN_SHUTDOWN) is not None

    @property
    def crashed(self) -> bool:
        """Whether the directory's broker did not shut down cleanly.

        False for a directory without a broker. Among these is a copy that Cordwood made: it contains only the cleaner's
        checkpoint.
        """
        brokers = any(self.info(name) is not None for name in (filenames.META_PROPERTIES, filenames.RECOVERY_POINTS))
        return brokers and not self.clean_shutdown

    @functools.cached_property
    def holder(self) -> LockHolder | None:
        """The process on this machine that holds the directory's lock, or None."""
        return self.fs.lock_holder(self.path)

    @property
    def live(self) -> bool:
        """Whether a broker is running on the directory."""
        return self.holder is not None and self.holder.is_broker

    def stop_of(self, name: PartitionDirectory) -> Stop:
        """Return how the broker of a partition stopped, as far as it matters for a load by Cordwood or by a broker."""
        if self.live:
            return Stop(live=True)
        if not self.crashed:
            return Stop(clean=self.clean_shutdown)
        current = name.state is DirectoryState.CURRENT
        return Stop(recovery_point=max(0, self.recovery_points.get(name.topic_partition, 0)) if current else 0)

    @functools.cached_property
    def problems(self) -> list[DataError]:
        """Problems in those of the directory's own files that were read so far."""
        return []

    def _decoded(self, name: str, decode: Callable[[bytes, str], T]) -> T | None:
        """Read and decode a file of the directory itself; return None if it is missing or unreadable."""
        path = f"{self.path}/{name}"
        try:
            return None if self.info(name) is None else decode(read_file(self.fs, path), path)
        except FileNotFoundError:
            pass  # replaced by a running broker
        except CorruptFileError as error:
            self.problems.append(error)
        except OSError as error:
            self.problems.append(CorruptFileError(why_unreadable(error), path=path))
        return None

    def _checkpoint(self, name: str) -> Mapping[TopicPartition, int]:
        return self._decoded(name, checkpoints.decode) or {}

    @functools.cached_property
    def recovery_points(self) -> Mapping[TopicPartition, int]:
        """The recovery point of each partition: all lower offsets are known to be flushed."""
        return self._checkpoint(filenames.RECOVERY_POINTS)

    @functools.cached_property
    def log_start_offsets(self) -> Mapping[TopicPartition, int]:
        """The log start offset of each partition where it is above the base offset of the first segment."""
        return self._checkpoint(filenames.LOG_START_OFFSETS)

    @functools.cached_property
    def cleaner_offsets(self) -> Mapping[TopicPartition, int]:
        """The first dirty offset of each partition."""
        return self._checkpoint(filenames.CLEANER_OFFSETS)

    @functools.cached_property
    def high_watermarks(self) -> Mapping[TopicPartition, int]:
        """The high watermark of each partition."""
        return self._checkpoint(filenames.HIGH_WATERMARKS)

    @functools.cached_property
    def meta(self) -> properties.MetaProperties | None:
        """The decoded meta.properties; None if it is missing or unreadable."""
        return self._decoded(
            filenames.META_PROPERTIES,
            lambda data, path: properties.meta_properties(properties.decode_properties(data, path), path),
        )

    @property
    def failure(self) -> DataError | None:
        """The checkpoint problem that makes a broker take the directory offline when it loads it, or None.

        A malformed checkpoint does so, like an I/O error. If a checkpoint has a wrong value, the broker starts and uses
        0 instead.
        """
        _ = self.recovery_points, self.log_start_offsets  # reading them fills `problems`
        paths = {f"{self.path}/{name}" for name in (filenames.RECOVERY_POINTS, filenames.LOG_START_OFFSETS)}
        return next((one for one in self.problems if one.path in paths and one.kind is not TextProblem.VALUE), None)

    @property
    def unreadable(self) -> tuple[DataError, ...]:
        """Problems in checkpoints and meta.properties. Reads all of these files."""
        _ = self.failure, self.cleaner_offsets, self.high_watermarks, self.meta
        return tuple(self.problems)

    @property
    def cleaner_failure(self) -> DataError | None:
        """Why the cleaner's checkpoint is unreadable, so that a clean cannot update it; None if it is readable."""
        _ = self.cleaner_offsets  # reading them fills `problems`
        return self._problem(filenames.CLEANER_OFFSETS)

    @property
    def high_watermarks_failure(self) -> DataError | None:
        """Why the checkpoint of high watermarks is unreadable; None if it is readable."""
        _ = self.high_watermarks  # reading them fills `problems`
        return self._problem(filenames.HIGH_WATERMARKS)

    def _problem(self, name: str) -> DataError | None:
        path = f"{self.path}/{name}"
        return next((one for one in self.problems if one.path == path), None)

    def no_high_watermark(self, name: TopicPartition) -> str:
        """Return an error text for a partition without a high watermark: which of its records are on all replicas is
        unknown. Call only if `high_watermarks` has no entry for the partition.
        """
        path, error = f"{self.path}/{filenames.HIGH_WATERMARKS}", self.high_watermarks_failure
        why = f"{path} has no entry for {name}" if error is None else f"{path} cannot be read ({error.what})"
        return f"{why}, so it is unknown which records of {name} are on all replicas"

    def log(self, partition: Partition, entries: Sequence[FileInfo] | None = None) -> LogView:
        """Open the log of one of the directory's partitions; for `entries` see `LogView`."""
        start = 0
        if partition.name.state is DirectoryState.CURRENT:
            start = self.log_start_offsets.get(partition.name.topic_partition, 0)
        return LogView(partition.path, fs=self.fs, live=self.live, log_start_offset=start, entries=entries)


def twice_in_cleaner_offsets(
    directories: Sequence[LogDirectory],
) -> Iterator[tuple[TopicPartition, LogDirectory, LogDirectory]]:
    """Yield each partition that is in the cleaner checkpoints of two directories, with the first and a later directory.

    Kafka merges the checkpoints of a node; at such a duplicate its cleaner threads end.

    Source: Kafka LogCleanerManager.allCleanerCheckpoints.
    """
    seen: dict[TopicPartition, LogDirectory] = {}
    for directory in directories:
        for name in directory.cleaner_offsets:
            if (first := seen.setdefault(name, directory)) is not directory:
                yield name, first, directory


def is_wanted(name: TopicPartition, topics: Sequence[str] = (), partitions: Sequence[str] = ()) -> bool:
    """Return whether a user's choice of topics and partitions includes a partition.

    Args:
        topics: globs of topic names; empty: all topics.
        partitions: numbers or names (`3`, `orders-3`) or globs of either; empty: all partitions.
    """
    texts = (str(name.partition), str(name))
    return (not topics or any(fnmatchcase(name.topic, glob) for glob in topics)) and (
        not partitions or any(fnmatchcase(text, glob) for glob in partitions for text in texts)
    )


def nothing_selected(
    known: Iterable[str | None],
    paths: Sequence[str],
    topics: Sequence[str],
    partitions: Sequence[str],
    *,
    asked_by: str = "",
) -> NotFoundError:
    """Return the error for a choice that no partition matches; it suggests a name for a misspelled topic.

    Args:
        known: topics of the existing partitions.
        asked_by: name of the option that made the choice, if the names alone do not show it.
    """
    from difflib import get_close_matches  # only a misspelled name needs it

    names = sorted({topic for topic in known if topic is not None})
    alike = {one: None for topic in topics for one in get_close_matches(topic, names, n=1)}
    meant = f"; did you mean {', '.join(map(printable, alike))}?" if alike and not {*topics} & {*names} else ""
    what = " ".join(filter(None, [asked_by, ", ".join([*topics, *partitions])]))
    return NotFoundError(f"No partition in {', '.join(paths)}" + (f" matches {what}" if what else "") + meant)


def look(fs: Store, path: str) -> FoundPath:
    """Decide whether a path is a log directory, a folder of them, a partition or a file.

    Raises:
        NotFoundError: the path does not exist, or is a directory without any log.
        RequestError: the path is a directory that contains both partitions and log directories.
    """
    path = path.rstrip("/") or "/"
    if posixpath.basename(path) in (".", ".."):
        path = fs.real_path(path)  # the directory's name is needed to recognize a partition
    try:
        names = _names(fs, path)
    except FileNotFoundError as error:
        why = ": there is no such bucket" if "bucket" in (error.strerror or "") else ""
        if not why and not fs.reads_by_request(path) and fs.is_link(path):
            why = ": it is a link whose target is missing"
        if not why and re.search(r"[*?]|\[.+\]", path):
            why = ". Patterns in paths are not expanded: name the directories, or the folder that holds all of them"
        raise NotFoundError(f"{path} does not exist{why}") from None
    if names is None:
        return FoundPath(path, PathKind.FILE)
    found = _Directory(fs, path, names)
    if found.is_partition:
        return FoundPath(path, PathKind.PARTITION)
    if found.is_marked:
        return FoundPath(path, PathKind.LOG_DIRECTORY, (path,))
    return _look_inside(found)


def _names(fs: Store, path: str) -> Mapping[str, bool] | None:
    """Return the names in a directory, each with whether it is a directory; None for a file.

    Lists before it stats, because an object store has to list a directory to stat it.
    """
    try:
        names = fs.names_in(path)
    except NotADirectoryError:
        return None if not fs.stat(path).is_directory else {}
    # A store without directories lists nothing for a file, and nothing for a missing path.
    return names if names or fs.stat(path).is_directory else None


def check_outside_logs(fs: Store, path: str) -> None:
    """Refuse a new folder in any broker's log directory: a broker does not start while a foreign folder is in it.

    Raises:
        RequestError: the folder would be in a log directory.
    """
    folder = fs.real_path(path)
    while (parent := posixpath.dirname(folder)) != folder:
        if any(fs.exists(f"{parent.rstrip('/')}/{name}") for name in sorted(_MARKS)):
            raise RequestError(f"{path} is in {parent}, where a broker would stumble over it. Name a folder elsewhere")
        folder = parent


class _Directory:
    """The evidence for a directory's kind. Lists the directories in it only if their contents decide.

    Names are enough, so no file is statted; and the first name of a log decides, so a partition's other names are not
    parsed. A partition may have 10,000s of files.
    """

    def __init__(self, fs: Store, path: str, names: Mapping[str, bool]) -> None:
        self._fs = fs
        self.path = path
        self.names = names
        files = {name for name, is_directory in names.items() if not is_directory}
        self.is_named = filenames.parsed_directory(fs.absolute_path(path)) is not None
        self.is_marked = not files.isdisjoint(_MARKS)
        self.is_ours = not files.isdisjoint(_OURS)

    @functools.cached_property
    def has_log_files(self) -> bool:
        """Whether the directory contains files that only a partition has."""
        parsed = (parse_file(name) for name, is_directory in self.names.items() if not is_directory)
        kinds = (file.kind for file in parsed if file is not None and file.kind is not FileKind.FOREIGN)
        return any(kind is FileKind.LOG or self.is_named or not self.is_marked for kind in kinds)

    @property
    def is_partition(self) -> bool:
        """Whether the files in the directory show that it is a partition."""
        if not self.has_log_files or (self.is_named and not self.is_marked):
            return self.has_log_files
        return not any(inner.has_log_files for inner in self.inner(named=True))

    @property
    def has_named(self) -> bool:
        """Whether the directory contains directories that are named like partitions."""
        return any(is_directory and _is_named(name) for name, is_directory in self.names.items())

    def inner(self, *, named: bool) -> Iterator[_Directory]:
        """Yield the directories in it that are named like partitions, or (`named=False`) all other directories."""
        for name, is_directory in self.names.items():
            if is_directory and name not in _PASSED_OVER and _is_named(name) is named:
                path = f"{self.path.rstrip('/')}/{name}"
                try:
                    yield _Directory(self._fs, path, self._fs.names_in(path))
                except OSError:
                    continue  # an unreadable directory is no evidence; a later read of it reports the error


def _is_named(name: str) -> bool:
    return filenames.parsed_directory(name) is not None


def _look_inside(folder: _Directory) -> FoundPath:
    """Decide the kind of a directory that has neither a partition's files nor a broker's."""
    path, partition, disks = folder.path, "", []
    for inner in folder.inner(named=True):
        if inner.is_partition:
            partition = inner.path  # assume that all others are partitions, too: there may be thousands to list
            break
        if inner.is_marked or inner.has_named:
            disks.append(inner)
    disks += [one for one in folder.inner(named=False) if not one.is_partition and (one.is_marked or one.has_named)]
    if partition:
        known = [one.path for one in disks if one.is_marked and one.has_named]
        if known:
            what = f"{path} holds partitions ({partition}) and log directories ({', '.join(known)})"
            raise RequestError(f"{what}: name the directories that belong together, or move one kind elsewhere")
        return FoundPath(path, PathKind.LOG_DIRECTORY, (path,))
    if disks:
        return FoundPath(path, PathKind.FOLDER, tuple(sorted(one.path for one in disks)))
    if folder.has_named:
        return FoundPath(path, PathKind.LOG_DIRECTORY, (path,))
    if folder.is_named:
        return FoundPath(path, PathKind.PARTITION, by_name=True)
    if folder.is_ours:
        return FoundPath(path, PathKind.LOG_DIRECTORY, (path,))
    if not folder.names:
        raise NotFoundError(f"{path} is empty: there is no log directory or partition in it")
    raise NotFoundError(f"{path} is neither a log directory (with topic-0/ in it) nor a partition (with .log files)")
