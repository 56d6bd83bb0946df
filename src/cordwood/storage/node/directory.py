"""Log directories: a broker's files beside the partitions, and whether its last shutdown was clean.

A path that a user names may be a log directory, a folder with several of them (the disks of one broker), a partition's
directory, or one file. `look` decides which, for every command, by all evidence: which files and directories are in
it, what is in these, and its name. Names alone prove nothing: disks may be called data-0 and data-1.

    files of a log            a partition; a `.lock` or `meta.properties` among them changes nothing …
                              … unless directories with files of logs are in it, and it is marked or not named like a
                              partition: then the files are foreign ones in a log directory
    marks of a broker         a log directory (a checkpoint of offsets, meta.properties, .kafka_cleanshutdown: files)
    directories of partitions a log directory
    log directories           a folder that stands for all of them
    its own name, a .lock     a partition without files, a log directory without partitions
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TypeVar

from cordwood.errors import BadNameError, CorruptFileError, DataError, NotFoundError, RequestError, TextProblem
from cordwood.fs.base import FileInfo, LockHolder, Store
from cordwood.storage.formats import checkpoints, filenames, properties
from cordwood.storage.formats.filenames import DirectoryState, FileKind, PartitionDirectory, parse_directory, parse_file
from cordwood.storage.log.files import read_file, why_unreadable
from cordwood.storage.log.loaded import Stop
from cordwood.storage.log.view import LogView
from cordwood.text import printable
from cordwood.types import TopicPartition

T = TypeVar("T")

#: Files that a clean in place makes in every directory that partitions are in.
_OURS = {filenames.CLEANER_OFFSETS, filenames.LOCK}
#: Files that only a broker's log directory has.
_MARKS = {*filenames.OFFSET_CHECKPOINTS, filenames.META_PROPERTIES, filenames.CLEAN_SHUTDOWN} - _OURS
#: Never opened. Every ext4 file system has `lost+found` at its root, and lets only root read it.
_PASSED_OVER = ("lost+found", filenames.WORK_FOLDER)


class PathKind(StrEnum):
    """What a user's path is."""

    LOG_DIRECTORY = "log directory"
    FOLDER = "folder of log directories"
    PARTITION = "partition"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class FoundPath:
    """A user's path, and what it is.

    Attributes:
        path: without a slash at its end; ends with the directory's name.
        directories: the log directories that it stands for, in order: itself, or those in it; none for other kinds.
        by_name: a partition only because of its name: no file of a log is in it.
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
    """One log directory, as listed once. Its checkpoint files are read when they are asked for."""

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

    @functools.cached_property
    def _by_name(self) -> Mapping[str, FileInfo]:
        return {info.name: info for info in self.entries}

    def info(self, name: str) -> FileInfo | None:
        """A file of the directory itself, if it is there."""
        return self._by_name.get(name)

    @property
    def is_brokers(self) -> bool:
        """Whether a broker made it; otherwise it is a folder that partitions were copied into."""
        return any(name in self._by_name for name in _MARKS)

    @property
    def clean_shutdown(self) -> bool:
        """Whether the last broker shut down cleanly."""
        return self.info(filenames.CLEAN_SHUTDOWN) is not None

    @property
    def crashed(self) -> bool:
        """Whether its broker did not shut down cleanly.

        What is not a broker's directory has none; nor has our copy of one, with no more than the cleaner's checkpoint.
        """
        brokers = any(self.info(name) is not None for name in (filenames.META_PROPERTIES, filenames.RECOVERY_POINTS))
        return brokers and not self.clean_shutdown

    @functools.cached_property
    def holder(self) -> LockHolder | None:
        """The process that holds the directory's lock, if one on this machine does."""
        return self.fs.lock_holder(self.path)

    @property
    def live(self) -> bool:
        """Whether a broker is running on it."""
        return self.holder is not None and self.holder.is_broker

    def stop_of(self, name: PartitionDirectory) -> Stop:
        """How the broker of one of its partitions stopped, as far as a load, ours or a broker's, goes by it."""
        if self.live:
            return Stop(live=True)
        if not self.crashed:
            return Stop(clean=self.clean_shutdown)
        current = name.state is DirectoryState.CURRENT
        return Stop(recovery_point=max(0, self.recovery_points.get(name.topic_partition, 0)) if current else 0)

    @functools.cached_property
    def problems(self) -> list[DataError]:
        """Problems of the directory's own files that were read so far."""
        return []

    def _decoded(self, name: str, decode: Callable[[bytes, str], T]) -> T | None:
        """The contents of a file of the directory itself; None if it is missing or cannot be read."""
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
        """Per partition the first offset not known to be flushed."""
        return self._checkpoint(filenames.RECOVERY_POINTS)

    @functools.cached_property
    def log_start_offsets(self) -> Mapping[TopicPartition, int]:
        """Per partition the log start offset, where it is not that of the first segment."""
        return self._checkpoint(filenames.LOG_START_OFFSETS)

    @functools.cached_property
    def cleaner_offsets(self) -> Mapping[TopicPartition, int]:
        """Per partition the first dirty offset."""
        return self._checkpoint(filenames.CLEANER_OFFSETS)

    @functools.cached_property
    def high_watermarks(self) -> Mapping[TopicPartition, int]:
        """Per partition the high watermark."""
        return self._checkpoint(filenames.HIGH_WATERMARKS)

    @functools.cached_property
    def meta(self) -> properties.MetaProperties | None:
        """What meta.properties says, if it is there and readable."""
        return self._decoded(
            filenames.META_PROPERTIES,
            lambda data, path: properties.meta_properties(properties.decode_properties(data, path), path),
        )

    @property
    def failure(self) -> DataError | None:
        """Why a broker takes the directory offline when it loads it; None if its checkpoints do not make it.

        A malformed checkpoint does, as an I/O error. With a wrong value in one the broker starts and uses 0.
        """
        _ = self.recovery_points, self.log_start_offsets  # to read them is to find out
        paths = {f"{self.path}/{name}" for name in (filenames.RECOVERY_POINTS, filenames.LOG_START_OFFSETS)}
        return next((one for one in self.problems if one.path in paths and one.kind is not TextProblem.VALUE), None)

    @property
    def unreadable(self) -> tuple[DataError, ...]:
        """What keeps checkpoints and meta.properties from being read; all of them are read for that."""
        _ = self.failure, self.cleaner_offsets, self.high_watermarks, self.meta
        return tuple(self.problems)

    @property
    def cleaner_failure(self) -> DataError | None:
        """Why the cleaner's checkpoint cannot be read, so that nothing can be recorded in it; None if it can."""
        _ = self.cleaner_offsets  # to read them is to find out
        return self._problem(filenames.CLEANER_OFFSETS)

    @property
    def high_watermarks_failure(self) -> DataError | None:
        """Why the checkpoint of high watermarks cannot be read; None if it can."""
        _ = self.high_watermarks  # to read them is to find out
        return self._problem(filenames.HIGH_WATERMARKS)

    def _problem(self, name: str) -> DataError | None:
        path = f"{self.path}/{name}"
        return next((one for one in self.problems if one.path == path), None)

    def no_high_watermark(self, name: TopicPartition) -> str:
        """Why nothing says which of a partition's records are on all replicas, for an error; it has no entry here."""
        path, error = f"{self.path}/{filenames.HIGH_WATERMARKS}", self.high_watermarks_failure
        why = f"{path} has no entry for {name}" if error is None else f"{path} cannot be read ({error.what})"
        return f"{why}, so nothing says which records of {name} are on all replicas"

    def log(self, partition: Partition) -> LogView:
        """Open one of its partitions."""
        start = 0
        if partition.name.state is DirectoryState.CURRENT:
            start = self.log_start_offsets.get(partition.name.topic_partition, 0)
        return LogView(partition.path, fs=self.fs, live=self.live, log_start_offset=start)


def twice_in_cleaner_offsets(
    directories: Sequence[LogDirectory],
) -> Iterator[tuple[TopicPartition, LogDirectory, LogDirectory]]:
    """Yield partitions in the cleaner checkpoints of two directories: the name, the first directory, a later one.

    Kafka merges the checkpoints of a node, and its cleaner threads end at such a duplicate.

    Source: Kafka LogCleanerManager.allCleanerCheckpoints.
    """
    seen: dict[TopicPartition, LogDirectory] = {}
    for directory in directories:
        for name in directory.cleaner_offsets:
            if (first := seen.setdefault(name, directory)) is not directory:
                yield name, first, directory


def is_wanted(name: TopicPartition, topics: Sequence[str] = (), partitions: Sequence[str] = ()) -> bool:
    """Whether a partition is selected.

    Args:
        partitions: numbers or names (`3`, `orders-3`) or globs of either; none: any.
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
    """The error for a choice that no partition matches, with what a misspelled topic may have meant.

    Args:
        known: topics that are there.
        asked_by: the option that made the choice, where it is not plain.
    """
    from difflib import get_close_matches  # only a misspelled name needs it

    names = sorted({topic for topic in known if topic is not None})
    alike = {one: None for topic in topics for one in get_close_matches(topic, names, n=1)}
    meant = f"; did you mean {', '.join(map(printable, alike))}?" if alike and not {*topics} & {*names} else ""
    what = " ".join(filter(None, [asked_by, ", ".join([*topics, *partitions])]))
    return NotFoundError(f"No partition in {', '.join(paths)}" + (f" matches {what}" if what else "") + meant)


def look(fs: Store, path: str) -> FoundPath:
    """Decide what a path is.

    Raises:
        NotFoundError: there is nothing there, or a directory without any log.
        RequestError: it is a directory in which both partitions and log directories are.
    """
    path = path.rstrip("/") or "/"
    if posixpath.basename(path) in (".", ".."):
        path = fs.real_path(path)  # whether it is a partition depends on its name
    try:
        entries = _entries(fs, path)
    except FileNotFoundError as error:
        why = ": there is no such bucket" if "bucket" in (error.strerror or "") else ""
        if not why and not fs.reads_by_request(path) and fs.is_link(path):
            why = ": it is a link whose target is missing"
        if not why and re.search(r"[*?]|\[.+\]", path):
            why = ". Patterns in paths are not expanded: name the directories, or one that holds them all"
        raise NotFoundError(f"{path} does not exist{why}") from None
    if entries is None:
        return FoundPath(path, PathKind.FILE)
    found = _Directory(fs, path, entries)
    if found.is_partition:
        return FoundPath(path, PathKind.PARTITION)
    if found.is_marked:
        return FoundPath(path, PathKind.LOG_DIRECTORY, (path,))
    return _look_inside(found)


def _entries(fs: Store, path: str) -> Sequence[FileInfo] | None:
    """The entries of a directory; None for a file. Listed first: object stores list to stat one, too."""
    try:
        entries = fs.list(path)
    except NotADirectoryError:
        return None if not fs.stat(path).is_directory else ()
    # A store without directories lists nothing for a file, and nothing for a missing path.
    return entries if entries or fs.stat(path).is_directory else None


def check_outside_logs(fs: Store, path: str) -> None:
    """Refuse a new folder in a log directory, of whatever broker: it does not start while a foreign folder is in it.

    Raises:
        RequestError: it is in one.
    """
    folder = fs.real_path(path)
    while (parent := posixpath.dirname(folder)) != folder:
        if any(fs.exists(f"{parent.rstrip('/')}/{name}") for name in sorted(_MARKS)):
            raise RequestError(f"{path} is in {parent}, where a broker would stumble over it. Name a folder elsewhere")
        folder = parent


class _Directory:
    """The evidence for a directory's kind; directories in it are listed only where that decides."""

    def __init__(self, fs: Store, path: str, entries: Sequence[FileInfo]) -> None:
        self._fs = fs
        self.path = path
        self.entries = entries
        files = {info.name for info in entries if not info.is_directory}
        self._kinds = {file.kind for name in files if (file := parse_file(name)) is not None} - {FileKind.FOREIGN}
        self.is_named = filenames.parsed_directory(fs.absolute_path(path)) is not None
        self.is_marked = not files.isdisjoint(_MARKS)
        self.is_ours = not files.isdisjoint(_OURS)

    @property
    def has_log_files(self) -> bool:
        """Whether files are in it that only a partition has."""
        return FileKind.LOG in self._kinds or (bool(self._kinds) and (self.is_named or not self.is_marked))

    @property
    def is_partition(self) -> bool:
        """Whether it is one by the files in it."""
        if not self.has_log_files or (self.is_named and not self.is_marked):
            return self.has_log_files
        return not any(inner.has_log_files for inner in self.inner(named=True))

    @property
    def has_named(self) -> bool:
        """Whether directories that are named like partitions are in it."""
        return any(info.is_directory and _is_named(info) for info in self.entries)

    def inner(self, *, named: bool) -> Iterator[_Directory]:
        """The directories in it, those that are named like partitions or the others."""
        for info in self.entries:
            if info.is_directory and info.name not in _PASSED_OVER and _is_named(info) is named:
                path = f"{self.path.rstrip('/')}/{info.name}"
                try:
                    yield _Directory(self._fs, path, self._fs.list(path))
                except OSError:
                    continue  # it is no evidence; whoever reads it reports why it cannot be read


def _is_named(info: FileInfo) -> bool:
    return filenames.parsed_directory(info.name) is not None


def _look_inside(folder: _Directory) -> FoundPath:
    """Decide what a directory is that has neither a partition's files nor a broker's."""
    path, partition, disks = folder.path, "", []
    for inner in folder.inner(named=True):
        if inner.is_partition:
            partition = inner.path  # the others are taken for partitions, too: there may be thousands
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
    if not folder.entries:
        raise NotFoundError(f"{path} is empty: there is no log directory or partition in it")
    raise NotFoundError(f"{path} is neither a log directory (with topic-0/ in it) nor a partition (with .log files)")
