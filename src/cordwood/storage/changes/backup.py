"""The backup of a clean in place: a folder that keeps the replaced and deleted files until a user deletes it or `undo`
restores them.

    DIR3/                                  same file system as the partitions, outside their log directories
      manifest.jsonl                       the old files, the removed ones, their replacements; see below
      kafka-logs/                          one folder per log directory, with its name
        cleaner-offset-checkpoint          … changed files of the log directory itself
        orders-0/
          00000000000000000000.log         … replaced or deleted files of a partition

Kept files are hard links. They use no more disk space than the old files did, and a restored file is the same file,
with its bytes, owner, permissions and modification time. The manifest identifies files by inode, so old and new files
can be distinguished no matter where a clean or an undo was interrupted, even after renames. It has one JSON record per
line, and each line is synced before the change that it describes:

    folders      version of the manifest; the backup folder of each log directory
    directory    files of a log directory itself, before the clean
    partition    files of a partition before the clean, as a broker would have loaded them
    step         names of removed files, and the files that replace them
    offsets      entries that the clean writes to a checkpoint
    undone       everything is restored; the rest of the folder may be deleted
"""

from __future__ import annotations

import contextlib
import itertools
import json
import posixpath
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cordwood.common.errors import BadNameError, CorruptFileError, NotFoundError, RequestError
from cordwood.common.types import TopicPartition
from cordwood.fs.base import FileInfo, LocalFileSystem
from cordwood.fs.workspace import is_within, mode_of
from cordwood.storage.formats import filenames
from cordwood.storage.formats.filenames import WORK_FOLDER, FileKind, is_component, parse_file
from cordwood.storage.log.files import read_file
from cordwood.storage.log.loaded import files_after_swaps
from cordwood.storage.log.recovery import SEGMENT_KINDS
from cordwood.storage.log.view import LogView

MANIFEST = "manifest.jsonl"
#: Files of a log directory itself that a clean may change.
_OWN_FILES = (*filenames.OFFSET_CHECKPOINTS, filenames.CLEAN_SHUTDOWN)
_FACTS = ("name", "size_bytes", "mtime_ns", "inode", "mode", "uid", "gid")

#: Entries written to checkpoints, per file and partition; None removes the entry.
Offsets = Mapping[str, Mapping[TopicPartition, int | None]]


# ---- keeping ---------------------------------------------------------------------------------------------------------


def check_folder(
    fs: LocalFileSystem, path: str, log_directories: Iterable[str], partitions: Iterable[str] = ()
) -> None:
    """Check that a folder can hold the backup of these log directories and partitions.

    Raises:
        NotFoundError: the folder's parent does not exist.
        RequestError: the folder exists and is not empty; it is inside one of the directories, or contains one; or a
            directory, or a file in it that a clean may change, is on another file system.
    """
    folder = fs.real_path(path)
    parent = posixpath.dirname(folder)
    places = [*log_directories, *partitions]
    for place in map(fs.real_path, places):
        if is_within(folder, place):
            raise RequestError(f"{path} is in {place}, where a broker would stumble over it. Name a folder elsewhere")
        if is_within(place, folder):
            raise RequestError(f"{place} is in {path}, which must hold only kept files. Name a folder elsewhere")
    if not fs.exists(parent):
        raise NotFoundError(f"{parent} does not exist, so {path} cannot be made in it")
    there = fs.exists(folder)
    if there and (not fs.stat(folder).is_directory or fs.list(folder)):
        raise RequestError(f"{path} exists and is not empty; give a new folder for the old files")
    device = fs.stat(folder if there else parent).device
    for place in places:
        if fs.stat(place).device != device:
            raise RequestError(
                f"{path} is on another file system than {place}, so its files cannot be kept there without a copy. "
                "Name a folder on the same one, or clean the directories of one disk at a time"
            )
        for info in fs.list(place):
            if info.device != device and _may_change(info):
                raise RequestError(
                    f"{place}/{info.name} is a link to another file system than that of {path}, so the file cannot be "
                    "kept there without a copy. Put the file itself in its place, or leave the partition out"
                )


def _may_change(info: FileInfo) -> bool:
    """Return whether a clean may change this file of a partition or a log directory."""
    parsed = None if info.is_directory else filenames.parse_file(info.name)
    return info.name in _OWN_FILES or (parsed is not None and parsed.kind is not filenames.FileKind.FOREIGN)


class KeepFolder:
    """The backup folder while a clean fills it. Thread-safe."""

    def __init__(
        self, fs: LocalFileSystem, path: str, log_directories: Sequence[str], partitions: Iterable[str] = ()
    ) -> None:
        """Create the folder and its manifest, durably.

        Raises:
            NotFoundError, RequestError: the folder cannot be used, see `check_folder`.
        """
        check_folder(fs, path, log_directories, partitions)
        log_directories = [fs.absolute_path(directory) for directory in log_directories]
        self.path = fs.real_path(path)
        self._fs = fs
        self._mutex = threading.Lock()
        self._folders = dict(zip(log_directories, _folder_names(fs, log_directories), strict=True))
        self._before: dict[str, Mapping[str, FileInfo]] = {}
        self._known: dict[str, set[int]] = {}
        self._mode = mode_of(fs, *log_directories)
        self._is_new = not fs.exists(self.path)
        self._make_folder(self.path)
        self._manifest = fs.create(f"{self.path}/{MANIFEST}", mode=self._mode & 0o666)
        self._size = 0
        self.bytes_kept = 0
        self._write()
        fs.sync_directory(self.path)

    def close(self) -> None:
        """Close the manifest. Remove the folder if no file was kept."""
        self._manifest.close()
        if self.is_empty:
            with contextlib.suppress(OSError):
                self._fs.unlink(f"{self.path}/{MANIFEST}")
                if self._is_new:
                    self._fs.remove_directory(self.path)
                    self._fs.sync_directory(posixpath.dirname(self.path))

    @property
    def is_empty(self) -> bool:
        """Whether no file has been kept so far, so an undo would change nothing."""
        return not self._before

    def keep(self, partition: str, names: Sequence[str]) -> None:
        """Keep files of a partition that are about to be deleted or changed; durable on return.

        Leftovers of an earlier clean or deletion are not kept, as the next load would remove them anyway.

        Raises:
            RequestError: the file system does not give files stable inode numbers. The files are unchanged.
        """
        fs, partition = self._fs, self._fs.absolute_path(partition)
        with self._mutex:
            if partition not in self._before:
                self._before[partition] = files_by_name(fs, partition)
                self._known[partition] = {info.inode for info in self._before[partition].values()}
                # Record the files before linking any, so the folder never holds a file that the manifest does not name.
                self._write({"record": "partition", "path": partition, "files": _facts(self._before[partition])})
            before, known = self._before[partition], self._known[partition]
            going = [name for name in names if fs.stat(f"{partition}/{name}").inode in known]
            folder = self._folder_of(posixpath.dirname(partition), posixpath.basename(partition))
            kept = {info.name for info in fs.list(folder)}
            for name in _that_go(before, going):
                source = f"{partition}/{name}"
                if name not in kept and fs.exists(source) and fs.stat(source).inode == before[name].inode:
                    fs.link(source, f"{folder}/{name}")
                    if fs.stat(f"{folder}/{name}").inode != before[name].inode:
                        fs.unlink(f"{folder}/{name}")
                        raise RequestError(
                            f"{source} and a hard link to it do not have the same inode number, so undo could not "
                            "restore kept files. Clean without keeping old files, or keep a copy of your own"
                        )
                    self.bytes_kept += before[name].size_bytes
            fs.sync_directory(folder)
            found = _outputs(fs, partition, going)
            # Outputs of a failed attempt were recorded in the step of their group; do not record them twice.
            made = [info for info in found if info.inode not in known]
            known.update(info.inode for info in made)
            step = {"record": "step", "path": partition, "going": going}
            self._write({**step, "coming": _facts({info.name: info for info in made})})

    def checkpoints(self, directory: str, offsets: Offsets, *, clean_shutdown: bool = False) -> None:
        """Keep the files of a log directory itself, and record the entries that replace theirs; durable on return.

        Args:
            offsets: entries that the caller will write next.
            clean_shutdown: whether the caller will also write the clean-shutdown file.
        """
        fs, directory = self._fs, self._fs.absolute_path(directory)
        with self._mutex:
            lines: list[Mapping[str, Any]] = []
            if directory not in self._before:
                files = {info.name: info for info in fs.list(directory) if info.name in _OWN_FILES}
                self._before[directory] = files
                folder = self._folder_of(directory)
                for name in files:
                    fs.link(f"{directory}/{name}", f"{folder}/{name}")
                fs.sync_directory(folder)
                lines.append({"record": "directory", "path": directory, "files": _facts(files)})
            for name, entries in offsets.items():
                rows = [[key.topic, key.partition, offset] for key, offset in entries.items()]
                lines.append({"record": "offsets", "path": directory, "file": name, "entries": rows})
            if clean_shutdown:
                lines.append({"record": "offsets", "path": directory, "file": filenames.CLEAN_SHUTDOWN, "entries": []})
            self._write(*lines)

    def _folder_of(self, directory: str, name: str = "") -> str:
        """Return the backup folder of a log directory, or of the named partition in it; create it durably if needed."""
        folder = f"{self.path}/{self._folders[directory]}"
        self._make_folder(folder)
        if name:
            folder = f"{folder}/{name}"
            self._make_folder(folder)
        return folder

    def _make_folder(self, path: str) -> None:
        if not self._fs.exists(path):
            self._fs.make_directory(path, mode=self._mode)
            self._fs.sync_directory(posixpath.dirname(path))

    def _write(self, *lines: Mapping[str, Any]) -> None:
        if not self._size:
            folders = {"record": "folders", "version": 1, "folders": self._folders}
            lines = (folders, *lines)
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        self._manifest.write(self._size, data)
        self._manifest.sync()
        self._size += len(data)


def _folder_names(fs: LocalFileSystem, log_directories: Sequence[str]) -> list[str]:
    """Return a unique folder name for each log directory: its base name, with a number if it occurs twice."""
    found: list[str] = []
    for directory in log_directories:
        name = posixpath.basename(fs.real_path(directory)) or "disk"
        tries = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        found.append(next(one for one in tries if one not in (*found, MANIFEST)))
    return found


def files_by_name(fs: LocalFileSystem, partition: str) -> dict[str, FileInfo]:
    """Return the files of a partition by the names that they have after a load; stray snapshots are included."""
    return {name: replace(info, name=name) for info, name in files_after_swaps(LogView(partition, fs=fs))}


def _that_go(before: Mapping[str, FileInfo], names: Sequence[str]) -> list[str]:
    """Return the names of files to keep when the files `names` are removed.

    If a `.log` is removed, all files of its segment are kept, so the segment can be restored completely. Producer
    snapshots are always kept: they are small, and a load that completes a swap removes some.
    """
    bases = {file.offset for file in map(parse_file, names) if file is not None and file.kind is FileKind.LOG}
    wanted = set(names)
    for name in before:
        file = parse_file(name)
        if file is not None and (
            file.kind is FileKind.PRODUCER_SNAPSHOT or (file.kind in SEGMENT_KINDS and file.offset in bases)
        ):
            wanted.add(name)
    return sorted(wanted & before.keys())


def _outputs(fs: LocalFileSystem, partition: str, names: Sequence[str]) -> list[FileInfo]:
    """Return the output files in a partition's work folder that replace the segments of `names`; all if it is empty."""
    work = f"{partition}/{WORK_FOLDER}"
    if not fs.exists(work):
        return []
    going = {file.offset for file in map(parse_file, names) if file is not None and file.kind in SEGMENT_KINDS}
    first, end = min(going, default=0), 1 << 63
    if going:
        logs = (base_of(info.name) for info in fs.list(partition) if not info.is_directory)
        end = min((base for base in logs if base is not None and base > max(going)), default=end)
    found = []
    for info in _walk(fs, work):
        file = parse_file(info.name)
        if file is not None and file.kind in SEGMENT_KINDS and first <= file.offset < end:
            found.append(info)
    return found


def base_of(name: str) -> int | None:
    """Return the base offset of a `.log` file, or None for any other file."""
    file = parse_file(name)
    return file.offset if file is not None and file.kind is FileKind.LOG and not file.temporary else None


def _walk(fs: LocalFileSystem, folder: str) -> Iterator[FileInfo]:
    for info in fs.list(folder):
        if info.is_directory:
            yield from _walk(fs, f"{folder}/{info.name}")
        else:
            yield info


def _facts(files: Mapping[str, FileInfo]) -> list[dict[str, Any]]:
    return [{fact: getattr(info, fact) for fact in _FACTS} for info in files.values()]


# ---- the manifest ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BackupStep:
    """One replacement or deletion of segments.

    Attributes:
        going: names of the removed files.
        coming: the files that replace them; empty if they were only deleted.
    """

    going: tuple[str, ...]
    coming: tuple[FileInfo, ...]


@dataclass
class KeptPartition:
    """The manifest's records of a partition.

    Attributes:
        folder: its folder in the backup.
        before: its files before the clean, by name.
    """

    path: str
    folder: str
    before: Mapping[str, FileInfo]
    steps: list[BackupStep] = field(default_factory=list)

    def made(self) -> set[tuple[str, int]]:
        """Return (name, inode) of every file that the clean wrote."""
        return {(info.name, info.inode) for step in self.steps for info in step.coming}


@dataclass
class KeptDirectory:
    """The manifest's records of a log directory.

    Attributes:
        folder: its folder in the backup.
        before: the directory's own files before the clean, by name; None if the clean did not change them.
        offsets: every entry that the clean wrote, per checkpoint and partition, in order.
        clean_shutdown: whether the clean wrote the clean-shutdown file.
    """

    path: str
    folder: str
    before: Mapping[str, FileInfo] | None = None
    offsets: dict[str, dict[TopicPartition, list[int | None]]] = field(default_factory=dict)
    clean_shutdown: bool = False
    partitions: dict[str, KeptPartition] = field(default_factory=dict)


@dataclass
class BackupManifest:
    """A decoded manifest.

    Attributes:
        undone: an undo restored everything; the kept files are no longer needed.
        size_bytes: size of its complete lines.
    """

    directories: dict[str, KeptDirectory] = field(default_factory=dict)
    undone: bool = False
    size_bytes: int = 0


def read_manifest(fs: LocalFileSystem, path: str) -> BackupManifest:
    """Read the manifest of a backup folder.

    An incomplete last line is ignored: its change was never made, as each line is synced before its change.

    Raises:
        NotFoundError: the folder has no manifest.
        CorruptFileError: the manifest is damaged.
    """
    manifest = f"{path}/{MANIFEST}"
    if not fs.exists(manifest):
        raise NotFoundError(f"{path} has no {MANIFEST}: no clean kept old files there")
    found = BackupManifest()
    for at, line in enumerate(read_file(fs, manifest).split(b"\n")[:-1], 1):
        found.size_bytes += len(line) + 1
        try:
            _take(found, path, json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, BadNameError) as error:
            raise CorruptFileError(f"line {at} is not as it was written ({error!r})", path=manifest) from None
    return found


def _take(manifest: BackupManifest, path: str, line: dict[str, Any]) -> None:
    directories = manifest.directories
    match line["record"]:
        case "undone":
            manifest.undone = True
        case "folders":
            if line["version"] != 1:
                raise ValueError(f"version {line['version']}, only 1 is known")
            for directory, folder in line["folders"].items():
                directories[directory] = KeptDirectory(directory, f"{path}/{_component(folder)}")
        case "directory":
            directories[line["path"]].before = _infos(line["files"])
        case "offsets":
            directory = directories[line["path"]]
            name = line["file"]
            if name == filenames.CLEAN_SHUTDOWN:
                directory.clean_shutdown = True
                return
            if name not in filenames.OFFSET_CHECKPOINTS:
                raise ValueError(f"{name!r} is no checkpoint")
            entries = directory.offsets.setdefault(name, {})
            for topic, partition, offset in line["entries"]:
                entries.setdefault(TopicPartition(topic, partition), []).append(offset)
        case "partition":
            directory, name = directories[posixpath.dirname(line["path"])], posixpath.basename(line["path"])
            folder = f"{directory.folder}/{_component(name)}"
            directory.partitions[line["path"]] = KeptPartition(line["path"], folder, _infos(line["files"]))
        case "step":
            directory = directories[posixpath.dirname(line["path"])]
            step = BackupStep(tuple(map(_component, line["going"])), tuple(_infos(line["coming"]).values()))
            directory.partitions[line["path"]].steps.append(step)
        case other:
            raise ValueError(f"unknown record {other!r}")


def _infos(rows: Iterable[Mapping[str, Any]]) -> dict[str, FileInfo]:
    infos = (FileInfo(is_directory=False, **{fact: row[fact] for fact in _FACTS}) for row in rows)
    return {_component(info.name): info for info in infos}


def _component(name: str) -> str:
    if not is_component(name):
        raise BadNameError(f"{name!r} cannot be the name of a file")
    return name


def mark_undone(fs: LocalFileSystem, path: str, end: int) -> None:
    """Record that everything is restored: from here on kept files may be deleted, and changed logs are no obstacle.

    Args:
        end: size of the manifest's complete lines; an incomplete last line is cut off.
    """
    with fs.open_for_update(f"{path}/{MANIFEST}") as file:
        file.truncate(end)
        file.write(end, json.dumps({"record": "undone"}).encode() + b"\n")
        file.sync()
