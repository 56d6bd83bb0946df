"""Finds the files for `erase-check`, and their roles: log, leftover, kept file, Cordwood's own, or other."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from cordwood.commands.selection import Selection
from cordwood.commands.why.found_keys import Role
from cordwood.common.errors import NotFoundError, RequestError
from cordwood.fs.base import FileInfo, Store
from cordwood.storage.changes.backup import MANIFEST
from cordwood.storage.formats import filenames
from cordwood.storage.formats.filenames import (
    DIRECTORY_NAME_LENGTH_MAX,
    WORK_FOLDER,
    DirectoryState,
    FileKind,
    PartitionDirectory,
    Temporary,
    parse_file,
    parse_key_index,
)
from cordwood.storage.log.files import why_unreadable
from cordwood.storage.node.directory import is_wanted


@dataclass(frozen=True, slots=True)
class FileToCheck:
    """A file to search.

    Attributes:
        directory: directory of the file's partition, in any state; None outside partitions.
        partition: the parsed name of that directory.
        problem: the error if this is a directory that cannot be listed; else empty.
    """

    path: str
    info: FileInfo
    role: Role
    directory: str | None
    partition: PartitionDirectory | None
    problem: str = ""

    @property
    def state(self) -> tuple[int, int, int]:
        """A value that changes whenever the file does."""
        return self.info.inode, self.info.size_bytes, self.info.mtime_ns


def files_in(fs: Store, root: str, chosen: Selection) -> Iterator[FileToCheck]:
    """Yield all selected files in a directory and its subdirectories.

    Raises:
        NotFoundError: the directory does not exist.
    """
    if not fs.exists(root):
        raise NotFoundError(f"{root} does not exist")
    #: Visited directories, each alone and with the names of the partitions through which they were visited.
    seen: set[tuple[int, int] | tuple[int, int, str]] = set()
    is_kept = _is_within_kept(fs, root)

    def walk(path: str, directory: str | None, *, kept: bool, work: bool) -> Iterator[FileToCheck]:
        try:
            listed, dead = fs.list(path), fs.dead_links(path)
        except FileNotFoundError:
            return  # removed or renamed meanwhile
        except OSError as error:
            yield FileToCheck(path, fs.stat(path), Role.OTHER, directory, None, why_unreadable(error))
            return
        kept = kept or any(info.name == MANIFEST and not info.is_directory for info in listed)
        if not work and filenames.parsed_directory(path) is not None:
            directory = path
        what = None if directory is None else filenames.parsed_directory(directory)
        for name in dead:
            below, info = f"{path.rstrip('/')}/{name}", FileInfo(name, 0, 0, is_directory=False)
            yield FileToCheck(below, info, Role.OTHER, directory, what, "it is a link whose target is missing")
        # Visit links last: their target often has its own name here too, which identifies the partition.
        paths = [(f"{path.rstrip('/')}/{info.name}", info) for info in listed]
        for below, info in sorted(paths, key=lambda found: found[1].is_directory and fs.is_link(found[0])):
            if info.is_directory:
                identity = info.device, info.inode
                partition = below if filenames.parsed_directory(below) is not None else directory
                name = "" if partition is None or work else posixpath.basename(partition)
                if info.inode and ((*identity, name) if name else identity) in seen:
                    continue  # a symlink to a parent, or to a directory that was already visited
                seen.update((identity, (*identity, name)))
                yield from walk(below, directory, kept=kept, work=work or info.name == WORK_FOLDER)
            elif info.name != filenames.LOCK:
                yield FileToCheck(below, info, _role(below, what, kept=kept, work=work), directory, what)

    if not fs.stat(root).is_directory:
        raise RequestError(f"{root} is a file, not a directory")
    for file in walk(root, None, kept=is_kept, work=f"/{WORK_FOLDER}/" in f"{root}/"):
        if file.problem or _is_asked_for(file.partition, chosen):
            yield file


def _is_within_kept(fs: Store, root: str) -> bool:
    """Whether a directory is within a folder of kept files: a log directory's part of it, or a partition's."""
    if fs.path_on_disk(root) is None:
        return False  # only a clean in place keeps files
    parent = posixpath.dirname(fs.absolute_path(root))
    return any(fs.exists(f"{path}/{MANIFEST}") for path in (parent, posixpath.dirname(parent)))


def _is_asked_for(partition: PartitionDirectory | None, chosen: Selection) -> bool:
    if not chosen.topics and not chosen.partitions:
        return True
    if partition is None:
        return False
    if is_wanted(partition.topic_partition, chosen.topics, chosen.partitions):
        return True
    # The name of a directory that a broker is about to delete may lack the end of its topic.
    is_cut = partition.state is not DirectoryState.CURRENT and len(partition.name) >= DIRECTORY_NAME_LENGTH_MAX
    start = partition.topic_partition.topic
    return is_cut and any(topic.startswith(start) or fnmatchcase(start, topic) for topic in chosen.topics)


def _role(path: str, partition: PartitionDirectory | None, *, kept: bool, work: bool) -> Role:
    name = posixpath.basename(path)
    if kept:
        return Role.KEPT
    if parse_key_index(name) is not None:
        return Role.KEY_INDEX
    if work:
        return Role.WORK
    file = parse_file(name)
    if partition is None or file is None:
        return Role.OTHER
    if partition.state is not DirectoryState.CURRENT or file.temporary is not Temporary.NONE:
        return Role.LEFTOVER
    return Role.LOG if file.kind is FileKind.LOG else Role.OTHER
