"""Disk space that a partition's directory uses, by use of its files.

Bytes are allocated blocks, as `du` counts them: the indexes of an active segment are mostly holes and use less space
than their file sizes. Directories count, too. An object store has no blocks; there, file sizes count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from cordwood.fs.base import FileInfo, Store
from cordwood.storage.formats.filenames import WORK_FOLDER, FileKind, is_key_index, parse_file
from cordwood.storage.log.recovery import INDEX_KINDS, Verb
from cordwood.storage.log.view import LogView
from cordwood.storage.node.directory import LogDirectory


class FileUse(StrEnum):
    """Uses of files in a partition's directory. Each value is a field of `DiskUsage`."""

    LOG = "logs"
    INDEX = "indexes"
    STATE = "states"  #: producer snapshots, leader epochs, partition.metadata; snapshots of the metadata log
    KEY_INDEX = "key_indexes"
    LEFTOVER = "leftovers"  #: the next load, or the next clean, removes it
    FOREIGN = "foreign"  #: Kafka has no use for it, and nothing removes it
    DIRECTORY = "directories"


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Bytes on the disk, by use; `leftover_files` and `foreign_files` name the files of these uses."""

    logs: int = 0
    indexes: int = 0
    states: int = 0
    key_indexes: int = 0
    leftovers: int = 0
    foreign: int = 0
    directories: int = 0
    leftover_files: tuple[str, ...] = ()
    foreign_files: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Bytes of all uses together."""
        return (
            self.logs + self.indexes + self.states + self.key_indexes + self.leftovers + self.foreign + self.directories
        )


assert {str(use) for use in FileUse} == {one.name for one in fields(DiskUsage)} - {"leftover_files", "foreign_files"}

#: Device and inode of a file.
Identity = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LinkedFile:
    """A file that has, or may have, names in other directories, too (hard links)."""

    identity: Identity
    use: FileUse
    name: str
    disk_bytes: int


def usage_of(fs: Store, log: LogView, linked: list[LinkedFile] | None = None) -> DiskUsage:
    """Return the disk space that the directory of a log uses; a file with several names in it counts once.

    Args:
        linked: receives the files to pass to `counted_once`.
    """
    counted: set[Identity] = set()
    sums: Counter[str] = Counter()
    names: dict[FileUse, list[str]] = {FileUse.LEFTOVER: [], FileUse.FOREIGN: []}
    for use, name, info in _files(fs, log):
        if info.inode and info.links != 1 and not info.is_directory:
            identity = info.device, info.inode
            if identity in counted:
                continue
            counted.add(identity)
            if linked is not None:
                linked.append(LinkedFile(identity, use, name, info.disk_bytes))
        sums[use] += info.disk_bytes
        if use in names:
            names[use].append(name)
    if not fs.reads_by_request(log.path):
        sums[FileUse.DIRECTORY] += fs.stat(log.path).disk_bytes
    return DiskUsage(**sums, leftover_files=tuple(names[FileUse.LEFTOVER]), foreign_files=tuple(names[FileUse.FOREIGN]))


def counted_once(usage: DiskUsage, linked: Iterable[LinkedFile], counted: set[Identity]) -> DiskUsage:
    """Return the usage without files that were counted in another directory.

    Args:
        linked: files from `usage_of`.
        counted: such files of all directories so far; this call adds to it.
    """
    for file in linked:
        if file.identity not in counted:
            counted.add(file.identity)
            continue
        less: dict[str, Any] = {file.use: getattr(usage, file.use) - file.disk_bytes}
        if file.use in (FileUse.LEFTOVER, FileUse.FOREIGN):
            field = "leftover_files" if file.use is FileUse.LEFTOVER else "foreign_files"
            less[field] = tuple(name for name in getattr(usage, field) if name != file.name)
        usage = replace(usage, **less)
    return usage


def own_bytes(directory: LogDirectory) -> int:
    """Return the disk space of a log directory and its own files, without partitions and other directories in it."""
    files = sum(info.disk_bytes for info in directory.entries if not info.is_directory)
    if directory.fs.reads_by_request(directory.path):
        return files
    return files + directory.fs.stat(directory.path).disk_bytes


def _files(fs: Store, log: LogView) -> Iterator[tuple[FileUse, str, FileInfo]]:
    removed = {action.file for action in log.recovery.actions if action.verb is Verb.DELETE}
    foreign = set(log.recovery.foreign)
    for info in log.entries:
        if info.is_directory:
            is_ours = info.name == WORK_FOLDER
            yield FileUse.DIRECTORY if is_ours else FileUse.FOREIGN, f"{info.name}/", info
            yield from _below(fs, log.path, info.name, FileUse.LEFTOVER if is_ours else FileUse.FOREIGN)
        else:
            yield _use(info.name, removed, foreign), info.name, info


def _use(name: str, removed: set[str], foreign: set[str]) -> FileUse:
    if name in removed:
        return FileUse.LEFTOVER
    file = parse_file(name)
    if name in foreign or file is None:
        return FileUse.FOREIGN
    if file.kind is FileKind.LOG:
        return FileUse.LOG
    return FileUse.INDEX if file.kind in INDEX_KINDS else FileUse.STATE


def _below(fs: Store, root: str, folder: str, use: FileUse) -> Iterator[tuple[FileUse, str, FileInfo]]:
    """Yield the files below a folder in a partition; Kafka creates no such folders. Key indexes are no leftovers."""
    try:
        listed = fs.list(f"{root}/{folder}")
    except (FileNotFoundError, PermissionError):
        return
    for info in listed:
        name = f"{folder}/{info.name}"
        if info.is_directory:
            yield FileUse.DIRECTORY, f"{name}/", info
            yield from _below(fs, root, name, use)
        else:
            is_index = use is FileUse.LEFTOVER and is_key_index(info.name)
            yield FileUse.KEY_INDEX if is_index else use, name, info
