"""The backup of a clean in place: replaced and deleted files are kept in a folder, until it is deleted or undone.

    DIR3/                                  on the file system of the partitions, in none of their log directories
      manifest.jsonl                       what was there, what goes, what replaces it; each line synced first
      kafka-logs/                          a folder per log directory, by its name
        cleaner-offset-checkpoint          … the directory's own files that change
        orders-0/
          00000000000000000000.log         … a partition's files that are replaced or deleted

Kept files are hard links: they only hold the room that the old files have anyway, and a file that is put back is the
same file, with its bytes, owner, permissions and modification time. The manifest identifies files by inode, so that old
and new files are distinguished wherever a clean or an undo was interrupted, even after renames:

    directory    a log directory's own files, as they were
    partition    a partition's files, as they were when a broker would have loaded it
    step         which of them go, and what replaces them
    offsets      entries that are written to a checkpoint
    undone       everything is put back; the rest of the folder may be deleted

`undo` puts it back.
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

from cordwood.errors import BadNameError, CorruptFileError, NotFoundError, RequestError
from cordwood.fs.base import FileInfo, LocalFileSystem
from cordwood.fs.folders import mode_of
from cordwood.fs.workspace import is_within
from cordwood.storage.formats import filenames
from cordwood.storage.formats.filenames import WORK_FOLDER, FileKind, is_component, parse_file
from cordwood.storage.log.files import read_file
from cordwood.storage.log.recovered import files_after_swaps
from cordwood.storage.log.recovery import SEGMENT_KINDS
from cordwood.storage.log.view import LogView
from cordwood.types import TopicPartition

MANIFEST = "manifest.jsonl"
#: A directory's own files that a clean may change.
_OWN_FILES = (*filenames.OFFSET_CHECKPOINTS, filenames.CLEAN_SHUTDOWN)
_FACTS = ("name", "size_bytes", "mtime_ns", "inode", "mode", "uid", "gid")

#: Entries written to checkpoints, per file and partition; None for none.
Offsets = Mapping[str, Mapping[TopicPartition, int | None]]


# ---- keeping ---------------------------------------------------------------------------------------------------------


def check_folder(
    fs: LocalFileSystem, path: str, log_directories: Iterable[str], partitions: Iterable[str] = ()
) -> None:
    """Refuse a folder that cannot hold the backup of some directories.

    Raises:
        RequestError: it is not new or empty, lies in a directory or around one, or is on another disk than one or a
            file in it.
    """
    folder = fs.real_path(path)
    parent = posixpath.dirname(folder)
    places = [*log_directories, *partitions]
    for place in map(fs.real_path, places):
        if is_within(folder, place):
            raise RequestError(f"{path} is in {place}, where a broker would stumble over it. Name a folder elsewhere")
        if is_within(place, folder):
            raise RequestError(f"{place} is in {path}, which is to hold only what is kept. Name a folder elsewhere")
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
    """Whether a clean may change a file of a partition or a log directory."""
    parsed = None if info.is_directory else filenames.parse_file(info.name)
    return info.name in _OWN_FILES or (parsed is not None and parsed.kind is not filenames.FileKind.FOREIGN)


class KeepFolder:
    """The folder while a clean fills it. Several threads may use it."""

    def __init__(
        self, fs: LocalFileSystem, path: str, log_directories: Sequence[str], partitions: Iterable[str] = ()
    ) -> None:
        """Make the folder, durably.

        Raises:
            RequestError: it cannot be used, see `check_folder`.
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
        """Close the manifest; nothing more is kept. A folder in which nothing was kept is removed."""
        self._manifest.close()
        if self.is_empty:
            with contextlib.suppress(OSError):
                self._fs.unlink(f"{self.path}/{MANIFEST}")
                if self._is_new:
                    self._fs.remove_directory(self.path)
                    self._fs.sync_directory(posixpath.dirname(self.path))

    @property
    def is_empty(self) -> bool:
        """Whether nothing was kept so far, so that there is nothing to undo."""
        return not self._before

    def keep(self, partition: str, names: Sequence[str]) -> None:
        """Keep files of a partition that are about to be deleted or changed. On return they are durable in the folder.

        Leftovers of an earlier clean or deletion, which the next load would remove, are not kept.

        Raises:
            RequestError: the file system does not give files stable inode numbers. Nothing of these files is changed.
        """
        fs, partition = self._fs, self._fs.absolute_path(partition)
        with self._mutex:
            if partition not in self._before:
                self._before[partition] = files_by_name(fs, partition)
                self._known[partition] = {info.inode for info in self._before[partition].values()}
                # Before there is anything in the folder that the manifest does not name.
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
                            f"{source} and a hard link to it do not have the same inode number, so what is kept here "
                            "could not be restored later. Clean without keeping old files, or keep a copy of your own"
                        )
                    self.bytes_kept += before[name].size_bytes
            fs.sync_directory(folder)
            found = _outputs(fs, partition, going)
            # Files that a failed attempt left are noted with the group that they were for, and not again.
            made = [info for info in found if info.inode not in known]
            known.update(info.inode for info in made)
            step = {"record": "step", "path": partition, "going": going}
            self._write({**step, "coming": _facts({info.name: info for info in made})})

    def checkpoints(self, directory: str, offsets: Offsets, *, clean_shutdown: bool = False) -> None:
        """Keep a log directory's own files. On return they are durable, and the manifest says what replaces them.

        Args:
            offsets: the entries about to be written.
            clean_shutdown: the clean-shutdown file is about to be written.
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
        """The folder for a log directory's own files, or for those of a partition in it; it is made durably."""
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
    """The names of log directories, made unique."""
    found: list[str] = []
    for directory in log_directories:
        name = posixpath.basename(fs.real_path(directory)) or "disk"
        tries = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        found.append(next(one for one in tries if one not in (*found, MANIFEST)))
    return found


def files_by_name(fs: LocalFileSystem, partition: str) -> dict[str, FileInfo]:
    """The files of a partition by the names that they have once it is loaded; all snapshots, also stray ones."""
    return {name: replace(info, name=name) for info, name in files_after_swaps(LogView(partition, fs=fs))}


def _that_go(before: Mapping[str, FileInfo], names: Sequence[str]) -> list[str]:
    """Which files to keep when some go.

    If a `.log` goes, all files of its segment are kept, so that the segment can be put back complete; and the producer
    snapshots, which are small, and which a load that completes a swap removes.
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
    """The files in a partition's work folder that belong to some segments; all of them if none is named."""
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
    """The base offset of a log; None for other files."""
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
class Step:
    """What was removed, and what replaced it."""

    going: tuple[str, ...]
    coming: tuple[FileInfo, ...]


@dataclass
class KeptPartition:
    """What the manifest says of a partition."""

    path: str
    folder: str
    before: Mapping[str, FileInfo]
    steps: list[Step] = field(default_factory=list)

    def made(self) -> set[tuple[str, int]]:
        """(name, inode) of every file that the clean put there."""
        return {(info.name, info.inode) for step in self.steps for info in step.coming}


@dataclass
class KeptDirectory:
    """What the manifest says of a log directory.

    Attributes:
        folder: where its files are kept.
        before: its own files as they were; None if they were not changed.
        offsets: per checkpoint and partition all entries that were written.
    """

    path: str
    folder: str
    before: Mapping[str, FileInfo] | None = None
    offsets: dict[str, dict[TopicPartition, list[int | None]]] = field(default_factory=dict)
    clean_shutdown: bool = False
    partitions: dict[str, KeptPartition] = field(default_factory=dict)


@dataclass
class Manifest:
    """All that a manifest says.

    Attributes:
        undone: everything was put back; the kept files are no longer needed.
    """

    directories: dict[str, KeptDirectory] = field(default_factory=dict)
    undone: bool = False
    size_bytes: int = 0


def read_manifest(fs: LocalFileSystem, path: str) -> Manifest:
    """Read what a folder keeps. An incomplete last line belongs to a change that was never made.

    Raises:
        NotFoundError: the folder is no backup of a clean.
        CorruptFileError: the manifest is damaged.
    """
    manifest = f"{path}/{MANIFEST}"
    if not fs.exists(manifest):
        raise NotFoundError(f"{path} has no {MANIFEST}: no clean kept old files there")
    found = Manifest()
    for at, line in enumerate(read_file(fs, manifest).split(b"\n")[:-1], 1):
        found.size_bytes += len(line) + 1
        try:
            _take(found, path, json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, BadNameError) as error:
            raise CorruptFileError(f"line {at} is not as it was written ({error!r})", path=manifest) from None
    return found


def _take(manifest: Manifest, path: str, line: dict[str, Any]) -> None:
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
            step = Step(tuple(map(_component, line["going"])), tuple(_infos(line["coming"]).values()))
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
    """Record that everything was put back: from here on the kept files may go, and changes of the logs do not count."""
    with fs.open_for_update(f"{path}/{MANIFEST}") as file:
        file.truncate(end)
        file.write(end, json.dumps({"record": "undone"}).encode() + b"\n")
        file.sync()
