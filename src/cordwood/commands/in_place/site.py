"""The site of a clean in place: locked log directories, and the selected partitions in them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cordwood.common.types import TopicPartition
from cordwood.fs.base import DirectoryLock, LocalFileSystem
from cordwood.fs.folders import remove_tree
from cordwood.storage.changes.backup import KeepFolder
from cordwood.storage.changes.swap import Keep
from cordwood.storage.formats import checkpoints, filenames, properties
from cordwood.storage.formats.filenames import INDEX_FOLDER, WORK_FOLDER
from cordwood.storage.log.files import clear_work_folder, make_work_folder, write_file
from cordwood.storage.node.directory import LogDirectory
from cordwood.storage.node.node import LocatedPartition, Node

#: The folder of task counters within a work folder.
PROGRESS = "progress"


@dataclass(frozen=True, slots=True)
class LockedDirectories:
    """Locked log directories of one broker.

    Attributes:
        places: the selected partitions that a broker would load.
        kept: the folder that keeps replaced files, or None.
        now_ms: the time of all decisions.
    """

    fs: LocalFileSystem
    node: Node
    places: Sequence[LocatedPartition]
    locks: Sequence[DirectoryLock]
    kept: KeepFolder | None
    now_ms: int

    @property
    def keep(self) -> Keep | None:
        """The function that keeps files before they are deleted, or None."""
        return None if self.kept is None else self.kept.keep

    def confirm_locks(self) -> None:
        """Make sure that this process still holds the locks."""
        for lock in self.locks:
            lock.confirm()

    def record(
        self,
        directory: LogDirectory,
        offsets: Mapping[str, Mapping[TopicPartition, int | None]],
        *,
        clean_shutdown: bool = False,
    ) -> None:
        """Write entries to a directory's checkpoints, by file name, and optionally its clean-shutdown file."""
        files = {name: f"{directory.path}/{name}" for name in offsets}
        found = {name: checkpoints.changed(self.fs, files[name], entries) for name, entries in offsets.items()}
        offsets = {name: entries for name, entries in found.items() if entries}
        if self.kept is not None and (offsets or clean_shutdown):
            self.kept.checkpoints(directory.path, offsets, clean_shutdown=clean_shutdown)
        for name, entries in offsets.items():
            checkpoints.update(self.fs, files[name], entries)
        if clean_shutdown:
            data = properties.encode_clean_shutdown(None)
            write_file(self.fs, f"{directory.path}/{filenames.CLEAN_SHUTDOWN}", data)
            self.fs.sync_directory(directory.path)

    def make_work_folders(self, paths: Sequence[str]) -> str:
        """Make the partitions' work folders; return the folder for task counters, which is in the first of them."""
        for path in paths:
            make_work_folder(self.fs, path)
        folder = f"{paths[0] if paths else ''}/{WORK_FOLDER}/{PROGRESS}"
        if paths:
            self.fs.make_directory(folder)
        return folder

    def empty_work_folder(self, path: str) -> None:
        """Remove all task outputs from a partition's work folder, those of abandoned attempts included."""
        for info in self.fs.list(f"{path}/{WORK_FOLDER}"):
            if info.name not in (PROGRESS, INDEX_FOLDER):
                remove_tree(self.fs, f"{path}/{WORK_FOLDER}/{info.name}")

    def remove_work_folders(self) -> None:
        """Remove the work folders, except for key indexes."""
        for place in self.places:
            with contextlib.suppress(OSError):
                clear_work_folder(self.fs, place.path)
