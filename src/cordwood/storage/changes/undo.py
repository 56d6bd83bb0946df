"""Undo a clean in place: restore the files that it kept (see `backup`).

First the log directories are compared with the manifest. If a cleaned log changed after the clean, nothing is restored.
Then these files are restored, each step durable before the next:

    checkpoints          first, because older entries beside cleaned segments only make a cleaner repeat work, but
                         with the newer log start offsets a broker would delete restored segments below them
    cleaned segments     by the same swap as in the clean: kept files are linked into the work folder and replace the
                         clean's outputs. Segments that the clean did not replace are not touched
    deleted segments     one by one, starting next to the remaining ones, so the log never has a hole
    other files          producer snapshots, leader epochs, indexes
    kept files           deleted after the manifest records that everything is restored

An undo may be interrupted at any time and called again: kept files stay until the end, and old and new files are
distinguished by inode, not by name. A broker that starts in between finds either the old or the new segments of each
group, never a mix.
"""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from cordwood.common.errors import CorruptFileError, RequestError
from cordwood.common.text import Presentable
from cordwood.common.types import TopicPartition
from cordwood.fs.base import FileInfo, LocalFileSystem
from cordwood.fs.workspace import remove_tree
from cordwood.storage.changes.backup import (
    MANIFEST,
    BackupStep,
    KeptDirectory,
    KeptPartition,
    base_of,
    files_by_name,
    mark_undone,
    read_manifest,
)
from cordwood.storage.changes.copy import Replacement
from cordwood.storage.changes.swap import finish_interrupted, swap_in
from cordwood.storage.formats import checkpoints, filenames
from cordwood.storage.formats.filenames import WORK_FOLDER, FileKind, Temporary, parse_file
from cordwood.storage.log.files import clear_work_folder, make_work_folder
from cordwood.storage.log.recovery import SEGMENT_KINDS

#: Folder in a partition's work folder for links to kept files, before they are renamed into the partition.
_UNDO = "undo"


@dataclass(frozen=True, slots=True)
class PutBack:
    """Segments that an undo restored in a partition, and segments of the clean that it removed."""

    path: str
    segments: int
    size_bytes: int
    removed_segments: int
    removed_bytes: int


@dataclass(frozen=True, slots=True)
class Changed:
    """A change after the clean, which an undo would lose."""

    path: str
    what: str


@dataclass(frozen=True, slots=True)
class UndoResult(Presentable):
    """The result of an undo. With `changes`, nothing was restored.

    Attributes:
        folder: path of the backup folder.
        checkpoints: paths of restored files of the log directories themselves.
        removed: whether the folder is removed; it stays if it contains other files.
    """

    folder: str
    partitions: tuple[PutBack, ...] = ()
    checkpoints: tuple[str, ...] = ()
    changes: tuple[Changed, ...] = ()
    removed: bool = False

    @property
    def done(self) -> bool:
        """Whether everything is restored."""
        return not self.changes


def put_back(fs: LocalFileSystem, path: str) -> UndoResult:
    """Restore the files in a backup folder; see `commands.undo`."""
    path = fs.real_path(path)
    manifest = read_manifest(fs, path)
    directories = [directory for _, directory in sorted(manifest.directories.items())]
    restored, written = [], []
    if not manifest.undone:
        with ExitStack() as locks:
            _check_inodes(fs, directories)
            changes = [Changed(one.path, "it is gone") for one in directories if not fs.exists(one.path)]
            if not changes:
                held = [locks.enter_context(fs.lock_directory(one.path)) for one in directories]
                changes = [change for directory in directories for change in _changes(fs, directory)]
            if changes:
                return UndoResult(path, changes=tuple(changes))
            for lock in held:
                lock.confirm()
            for directory in directories:
                written += _put_back_own_files(fs, directory)
                restored += [_put_back(fs, partition) for _, partition in sorted(directory.partitions.items())]
            mark_undone(fs, path, manifest.size_bytes)
    removed = _remove_folder(fs, path, directories)
    return UndoResult(path, tuple(one for one in restored if one is not None), tuple(written), removed=removed)


def _check_inodes(fs: LocalFileSystem, directories: Iterable[KeptDirectory]) -> None:
    """Check that kept files still have the inode numbers of the manifest.

    Raises:
        RequestError: an inode number differs, so old files cannot be distinguished from the clean's outputs.
    """
    for directory in directories:
        for kept in directory.partitions.values():
            for name, info in _files_in(fs, kept.folder).items():
                before = kept.before.get(name)
                if before is not None and _version(info) == _version(before) and info.inode != before.inode:
                    raise RequestError(
                        f"{kept.folder}/{name} is the kept file, but its inode number has changed: the files were "
                        "copied here, or this file system has no stable inode numbers. So undo cannot distinguish old "
                        "files from files that the clean wrote, and changed nothing. To restore the old files by hand, "
                        f"while no broker runs: delete the files that {MANIFEST} lists as coming for {kept.path}, and "
                        f"move the files in {kept.folder} there"
                    )


class _View:
    """A partition's present files, compared with the manifest.

    Attributes:
        live: present files, by the names that they have after a load.
        before: files before the clean.
        missing: base offsets of segments that existed before the clean and do not now.
        made: base offsets of segments that the clean wrote.
        old: base offsets of segments that the clean left unchanged.
        unknown: names of logs that are neither old nor written by the clean.
    """

    def __init__(self, fs: LocalFileSystem, kept: KeptPartition) -> None:
        self.live = files_by_name(fs, kept.path)
        self.before = kept.before
        self._made = kept.made()
        logs = {info.name: base_of(info.name) for info in (*kept.before.values(), *self.live.values())}
        bases = {name: base for name, base in logs.items() if base is not None}
        self.missing = sorted(base for name, base in bases.items() if name in self.before and not self.is_old(name))
        self.made = sorted(base for name, base in bases.items() if self.is_made(name))
        self.old = sorted(base for name, base in bases.items() if self.is_old(name))
        self.unknown = [
            name for name in bases if name in self.live and not self.is_old(name) and not self.is_made(name)
        ]

    def is_old(self, name: str) -> bool:
        """Return whether a file is the same inode as before the clean."""
        return name in self.live and name in self.before and self.live[name].inode == self.before[name].inode

    def is_made(self, name: str) -> bool:
        """Return whether the clean wrote a file; true for an empty new log, the only log if it deleted all others."""
        if name not in self.live or self.is_old(name):
            return False
        info = self.live[name]
        is_empty_log = not info.size_bytes and name not in self.before and base_of(name) is not None
        return is_empty_log or (name, info.inode) in self._made

    @property
    def is_changed(self) -> bool:
        """Whether any segment differs from before the clean."""
        return bool(self.missing) or any(map(self.is_made, self.live))

    @property
    def is_as_before(self) -> bool:
        """Whether all logs are the files from before the clean, with the same sizes and modification times."""
        logs = {_log_name(base) for base in self.old}
        return not (self.is_changed or self.unknown) and all(
            _version(self.live[name]) == _version(self.before[name]) for name in logs
        )


def _log_name(base_offset: int) -> str:
    return filenames.offset_name(base_offset, FileKind.LOG)


def _changes(fs: LocalFileSystem, directory: KeptDirectory) -> Iterator[Changed]:
    """Yield the changes to a log directory after the clean."""
    first_offsets = {}
    for kept in directory.partitions.values():
        if not fs.exists(kept.path):
            yield Changed(kept.path, "the partition is gone")
            continue
        view = _View(fs, kept)
        if view.is_changed:
            first_offsets[posixpath.basename(kept.path)] = min((*view.old, *view.made), default=0)
            yield from _changes_of_logs(fs, kept, view)
    for name, word in ((filenames.CLEANER_OFFSETS, "cleaned"), (filenames.LOG_START_OFFSETS, "deleted from")):
        now, before = (_offsets(fs, f"{folder}/{name}") for folder in (directory.path, directory.folder))
        for key, written in directory.offsets.get(name, {}).items():
            entry = now.get(key)
            if entry in (before.get(key), *written):
                continue
            # A broker writes no log start offset that equals the base offset of the first segment.
            if name == filenames.LOG_START_OFFSETS and (entry or 0) <= first_offsets.get(str(key), 0):
                continue
            what = f"{key} is at {entry} now, and the clean left it at {written[-1]}: it was {word} since"
            yield Changed(f"{directory.path}/{name}", what)


def _changes_of_logs(fs: LocalFileSystem, kept: KeptPartition, view: _View) -> Iterator[Changed]:
    came = {(info.name, info.inode): info for step in kept.steps for info in step.coming}
    for base in (*view.old, *view.made):
        name = _log_name(base)
        path, now = f"{kept.path}/{name}", view.live[name]
        then = view.before[name] if view.is_old(name) else came.get((name, now.inode), now)
        if now.size_bytes != then.size_bytes:
            word = "appended to" if now.size_bytes > then.size_bytes else "truncated"
            yield Changed(path, f"{word} since: it had {then.size_bytes} bytes, and has {now.size_bytes}")
        elif now.mtime_ns != then.mtime_ns:
            yield Changed(path, "written to since: its time of modification is another")
    for name in view.unknown:
        yield Changed(f"{kept.path}/{name}", "written since, by appends or by another clean")
    for gap in _gaps(view):
        if gap.cleaned and gap.cleaned[0] != gap.made[0]:
            what = f"replaces no kept segment; undo would put {_log_name(gap.cleaned[0])} behind it"
            yield Changed(f"{kept.path}/{_log_name(gap.made[0])}", what)
    there = _files_in(fs, kept.folder)
    for base in view.missing:
        name = _log_name(base)
        if not _is_taken(name, kept.steps, view):
            yield Changed(f"{kept.path}/{name}", "deleted since, or what stood in its place was")
        for one in _files_of(view.before, base):
            if not view.is_old(one) and (one not in there or there[one].inode != view.before[one].inode):
                yield Changed(f"{kept.folder}/{one}", "no longer there; it cannot be put back")
        if name in there and _version(there[name]) != _version(view.before[name]):
            yield Changed(f"{kept.folder}/{name}", "written to since")


def _is_taken(name: str, steps: Sequence[BackupStep], view: _View) -> bool:
    """Return whether a step removed a log, and its replacement is present or was removed by a later step."""
    for behind, step in enumerate(steps, 1):
        if name in step.going:
            logs = {info.name for info in step.coming if base_of(info.name) is not None}
            if all(view.is_made(one) or _is_taken(one, steps[behind:], view) for one in logs):
                return True
    return False


def _files_of(before: Mapping[str, FileInfo], base_offset: int) -> list[str]:
    found = []
    for name in before:
        file = parse_file(name)
        if file is not None and file.kind in SEGMENT_KINDS and file.offset == base_offset:
            found.append(name)
    return found


def _files_in(fs: LocalFileSystem, folder: str) -> Mapping[str, FileInfo]:
    return {info.name: info for info in fs.list(folder)} if fs.exists(folder) else {}


def _version(info: FileInfo) -> tuple[int, int]:
    return info.size_bytes, info.mtime_ns


def _offsets(fs: LocalFileSystem, path: str) -> Mapping[TopicPartition, int]:
    try:
        return checkpoints.entries_in(fs, path)
    except CorruptFileError as error:
        raise CorruptFileError(f"{error}. Move that file away, and undo again: undo restores the old file") from error


def _put_back(fs: LocalFileSystem, kept: KeptPartition) -> PutBack | None:
    """Restore a partition. Return None if its segments are those from before the clean."""
    finish_interrupted(fs, kept.path)
    view = _View(fs, kept)
    if view.is_changed:
        for gap in _gaps(view):
            _put_back_segments(fs, kept, view, gap)
    # Otherwise the clean never changed this partition, and somebody has used it since.
    if view.is_changed or view.is_as_before:
        _put_back_others(fs, kept)
        assert _View(fs, kept).is_as_before, f"{kept.path} is not what it was"
    work = f"{kept.path}/{WORK_FOLDER}"
    if fs.exists(work) and not fs.is_link(work):
        clear_work_folder(fs, kept.path)
        fs.sync_directory(kept.path)
    if not view.is_changed:
        return None
    size_bytes = sum(view.before[_log_name(base)].size_bytes for base in view.missing)
    removed_bytes = sum(view.live[_log_name(base)].size_bytes for base in view.made)
    return PutBack(kept.path, len(view.missing), size_bytes, len(view.made), removed_bytes)


@dataclass(frozen=True, slots=True)
class _Gap:
    """Missing segments, and outputs of the clean, between two adjacent segments that the clean left unchanged.

    Attributes:
        deleted: base offsets of missing segments without a replacement: retention deleted them.
        cleaned: base offsets of missing segments that `made` replaced.
        made: base offsets of the clean's outputs. If `cleaned` is empty, this is the empty segment that the clean
            created after it had deleted all others.
        end: base offset of the unchanged segment after the gap, or 2**63 if it is the last.
    """

    deleted: tuple[int, ...]
    cleaned: tuple[int, ...]
    made: tuple[int, ...]
    end: int


def _gaps(view: _View) -> Iterator[_Gap]:
    for start, end in itertools.pairwise([-1, *view.old, 1 << 63]):
        missing = [base for base in view.missing if start < base < end]
        made = tuple(base for base in view.made if start < base < end)
        first = made[0] if made else end
        if missing or made:
            deleted, cleaned = ([b for b in missing if b < first], [b for b in missing if b >= first])
            yield _Gap(tuple(deleted), tuple(cleaned), made, end)


def _put_back_segments(fs: LocalFileSystem, kept: KeptPartition, view: _View, gap: _Gap) -> None:
    if gap.cleaned:
        names = [name for base in gap.cleaned for name in _files_of(view.before, base)]
        folder, replaced = _links(fs, kept, names), frozenset(gap.made)
        swap_in(fs, kept.path, Replacement(folder, tuple(names), replaced, frozenset(gap.cleaned), gap.cleaned[-1]))
    # Start next to the remaining segments, so there is no hole. Restore a log after its indexes, so that a broker does
    # not rebuild them.
    is_first = not any(base < gap.end for base in view.old)
    for base in reversed(gap.deleted) if is_first else gap.deleted:
        *indexes, log = sorted(_files_of(view.before, base), key=lambda name: base_of(name) is not None)
        for names in filter(None, (indexes, [log])):
            folder = _links(fs, kept, names)
            for name in names:
                fs.rename(f"{folder}/{name}", f"{kept.path}/{name}")
            fs.sync_directory(folder)
            fs.sync_directory(kept.path)
    if not gap.cleaned:
        for base in gap.made:
            for info in fs.list(kept.path):
                file = parse_file(info.name)
                if not info.is_directory and file is not None and file.kind in SEGMENT_KINDS and file.offset == base:
                    fs.unlink(f"{kept.path}/{info.name}")
        fs.sync_directory(kept.path)


def _links(fs: LocalFileSystem, kept: KeptPartition, names: Iterable[str]) -> str:
    """Hard-link kept files into the partition's work folder. Return the folder with the links."""
    folder = f"{make_work_folder(fs, kept.path)}/{_UNDO}"
    if fs.exists(folder):
        remove_tree(fs, folder)
    fs.make_directory(folder)
    for name in names:
        fs.link(f"{kept.folder}/{name}", f"{folder}/{name}")
    fs.sync_directory(folder)
    return folder


def _put_back_others(fs: LocalFileSystem, kept: KeptPartition) -> None:
    """Restore other files, and indexes of unchanged segments; remove files that the clean added."""
    view = _View(fs, kept)
    there = _files_in(fs, kept.folder)
    names = [name for name in kept.before if name in there and not view.is_old(name)]
    if names:
        folder = _links(fs, kept, names)
        for name in names:
            fs.rename(f"{folder}/{name}", f"{kept.path}/{name}")
        fs.sync_directory(folder)
    for name, info in view.live.items():
        file = parse_file(name)
        if name in kept.before or file is None:
            continue
        # During a swap, an output without batches has an empty transaction index.
        is_empty_index = file.kind is FileKind.TRANSACTION_INDEX and not info.size_bytes
        if file.kind is FileKind.PRODUCER_SNAPSHOT or view.is_made(name) or is_empty_index:
            fs.unlink(f"{kept.path}/{name}")
    for name, info in kept.before.items():
        _restore_owner(fs, f"{kept.path}/{name}", info)
    fs.sync_directory(kept.path)


def _restore_owner(fs: LocalFileSystem, path: str, before: FileInfo) -> None:
    """Give a restored file its old owner and permissions: `swap_in` gave it those of the file that it replaced."""
    if not fs.exists(path):
        return
    now = fs.stat(path)
    if now.inode != before.inode or (now.uid, now.gid, now.mode) == (before.uid, before.gid, before.mode):
        return
    if (now.uid, now.gid) != (before.uid, before.gid):
        fs.set_owner(path, before.uid, before.gid)
    if now.mode != before.mode:
        fs.set_mode(path, before.mode)
    with fs.open(path) as file:
        file.sync()


def _put_back_own_files(fs: LocalFileSystem, directory: KeptDirectory) -> list[str]:
    """Restore a log directory's own files: whole, or only the entries of cleaned partitions if others changed."""
    if directory.before is None:
        return []
    written = []
    mark = f"{directory.path}/{filenames.CLEAN_SHUTDOWN}"
    # Remove the clean-shutdown file first: from here on the next load repeats the recovery that the clean did.
    if directory.clean_shutdown and filenames.CLEAN_SHUTDOWN not in directory.before and fs.exists(mark):
        fs.unlink(mark)
        fs.sync_directory(directory.path)
        written.append(mark)
    for name, entries in directory.offsets.items():
        path, info = f"{directory.path}/{name}", directory.before.get(name)
        if info is not None and fs.exists(path) and fs.stat(path).inode == info.inode:
            continue
        before, now = (_offsets(fs, f"{folder}/{name}") for folder in (directory.folder, directory.path))
        target = {key: offset for key, offset in now.items() if key not in entries}
        target.update({key: before[key] for key in entries if key in before})
        if target != before and target == now:
            continue
        written.append(path)
        if target != before:
            # Other partitions were used after the clean, so their entries stay.
            checkpoints.update(fs, path, {key: before.get(key) for key in entries})
        elif info is not None:
            _replace(fs, f"{directory.folder}/{name}", path)
        elif fs.exists(path):
            fs.unlink(path)
            fs.sync_directory(directory.path)
    return written


def _replace(fs: LocalFileSystem, source: str, target: str) -> None:
    """Replace a file by a hard link to `source`, durably."""
    aside = target + Temporary.TMP
    if fs.exists(aside):
        fs.unlink(aside)
    fs.link(source, aside)
    fs.sync_directory(posixpath.dirname(target))
    fs.rename(aside, target)
    fs.sync_directory(posixpath.dirname(target))


def _remove_folder(fs: LocalFileSystem, path: str, directories: Iterable[KeptDirectory]) -> bool:
    """Remove kept files, then the manifest and the folder. Return False if the folder stays, as it has other files."""
    for directory in directories:
        for partition in directory.partitions.values():
            _remove_files(fs, partition.folder, partition.before)
        names = _linked(fs, directory) if directory.before is None else directory.before
        _remove_files(fs, directory.folder, names)
    if [info.name for info in fs.list(path)] != [MANIFEST]:
        return False
    remove_tree(fs, path)
    fs.sync_directory(posixpath.dirname(path))
    return True


def _linked(fs: LocalFileSystem, directory: KeptDirectory) -> list[str]:
    """Return links to a log directory's own files that a clean made before it was killed; the manifest lacks them."""
    if not fs.exists(directory.folder):
        return []
    live = {info.name: info.inode for info in fs.list(directory.path)}
    return [info.name for info in fs.list(directory.folder) if info.inode and live.get(info.name) == info.inode]


def _remove_files(fs: LocalFileSystem, folder: str, names: Iterable[str]) -> None:
    """Remove files of a folder, and then the folder if it is empty; durable on return."""
    if not fs.exists(folder):
        return
    for name in names:
        if fs.exists(f"{folder}/{name}"):
            fs.unlink(f"{folder}/{name}")
    fs.sync_directory(folder)
    if not fs.list(folder):
        fs.remove_directory(folder)
        fs.sync_directory(posixpath.dirname(folder))
