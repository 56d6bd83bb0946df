"""Undoing a clean in place: the files that it kept (see `backup`) are put back.

First everything is compared with the manifest; if a cleaned log was changed since, nothing is touched. Then, each step
durable before the next:

    checkpoints          older entries fit new segments, too: work is only repeated. Newer
                         entries beside old segments would let a broker delete what retention took
    cleaned segments     by the swap that cleaned them: kept files are linked into the work folder and replace what
                         the clean wrote. Old segments between them are never touched
    deleted segments     one by one, beginning next to the remaining ones, so that the log never has a hole
    other files          producer snapshots, leader epochs, indexes
    kept files           deleted, once the manifest says that all is back

It may be interrupted at any instant and called again: kept files stay until the end, and old and new files are
distinguished by inode, not by name. A broker that is started in between finds each group of segments old or new.
"""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from cordwood.errors import CorruptFileError, RequestError
from cordwood.fs.base import FileInfo, LocalFileSystem
from cordwood.fs.folders import remove_tree
from cordwood.presentable import Presentable
from cordwood.storage.changes.backup import (
    MANIFEST,
    KeptDirectory,
    KeptPartition,
    Step,
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
from cordwood.types import TopicPartition

#: Where files that are put back wait for their turn, within a partition's work folder.
_UNDO = "undo"


@dataclass(frozen=True, slots=True)
class PutBack:
    """What was put back of a partition."""

    path: str
    segments: int
    size_bytes: int
    removed_segments: int
    removed_bytes: int


@dataclass(frozen=True, slots=True)
class Changed:
    """A change since the clean, which an undo would lose."""

    path: str
    what: str


@dataclass(frozen=True, slots=True)
class UndoResult(Presentable):
    """What an undo did; nothing if there were changes.

    Attributes:
        checkpoints: paths of the log directories' own files that were put back.
        removed: the folder is removed; it stays if it holds other files.
    """

    folder: str
    partitions: tuple[PutBack, ...] = ()
    checkpoints: tuple[str, ...] = ()
    changes: tuple[Changed, ...] = ()
    removed: bool = False

    @property
    def done(self) -> bool:
        """Whether everything is as it was before the clean."""
        return not self.changes


def put_back(fs: LocalFileSystem, path: str) -> UndoResult:
    """Put back what the folder at a path keeps; see `commands.undo`."""
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
    """Make sure that kept files still have the inode numbers of the manifest.

    Raises:
        RequestError: one has another; old files could not be told from those that the clean wrote.
    """
    for directory in directories:
        for kept in directory.partitions.values():
            for name, info in _files_in(fs, kept.folder).items():
                before = kept.before.get(name)
                if before is not None and _version(info) == _version(before) and info.inode != before.inode:
                    raise RequestError(
                        f"{kept.folder}/{name} is the file that was kept, but its inode number is another: the files "
                        "were copied to where they are now, or this file system does not give them stable numbers. "
                        "Old files cannot be told from those that the clean wrote, so nothing was changed. To go back "
                        f"by hand, while no broker runs: delete what {MANIFEST} lists as coming for {kept.path}, and "
                        f"move the files in {kept.folder} there"
                    )


class _View:
    """A partition as it is now, compared with the manifest: which segments are old, which the clean wrote."""

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
        """Whether a file is the one that was there."""
        return name in self.live and name in self.before and self.live[name].inode == self.before[name].inode

    def is_made(self, name: str) -> bool:
        """Whether the clean wrote a file. The empty log of a partition that lost all others counts."""
        if name not in self.live or self.is_old(name):
            return False
        info = self.live[name]
        is_empty_log = not info.size_bytes and name not in self.before and base_of(name) is not None
        return is_empty_log or (name, info.inode) in self._made

    @property
    def is_changed(self) -> bool:
        """Whether any segment is another than before the clean."""
        return bool(self.missing) or any(map(self.is_made, self.live))

    @property
    def is_as_before(self) -> bool:
        """Whether the logs are what they were."""
        logs = {_log_name(base) for base in self.old}
        return not (self.is_changed or self.unknown) and all(
            _version(self.live[name]) == _version(self.before[name]) for name in logs
        )


def _log_name(base_offset: int) -> str:
    return filenames.offset_name(base_offset, FileKind.LOG)


def _changes(fs: LocalFileSystem, directory: KeptDirectory) -> Iterator[Changed]:
    """What was done to a directory since it was cleaned."""
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
            # A broker leaves out the log start where it is the start of the first segment.
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
            what = f"stands for none of what is kept; {_log_name(gap.cleaned[0])} would be put behind it"
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


def _is_taken(name: str, steps: Sequence[Step], view: _View) -> bool:
    """Whether a step removed a log, and its replacement is there or was removed by a later step."""
    for behind, step in enumerate(steps, 1):
        if name in step.going:
            logs = {info.name for info in step.coming if base_of(info.name) is not None}
            if all(view.is_made(one) or _is_taken(one, steps[behind:], view) for one in logs):
                return True
    return False


def _files_of(before: Mapping[str, FileInfo], base_offset: int) -> list[str]:
    """A segment's files."""
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
        raise CorruptFileError(
            f"{error}. Move that file away, and undo again: the one that was there comes back"
        ) from error


def _put_back(fs: LocalFileSystem, kept: KeptPartition) -> PutBack | None:
    """Restore a partition; None if the clean did not change it."""
    finish_interrupted(fs, kept.path)
    view = _View(fs, kept)
    if view.is_changed:
        for gap in _gaps(view):
            _put_back_segments(fs, kept, view, gap)
    # Else the clean never changed this partition, which may have been used since.
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
    """Adjacent old segments that are missing, between two that are there.

    Attributes:
        deleted: base offsets of those without a replacement: retention took them.
        cleaned: of those that `made` replaced.
        made: of what the clean wrote. Without `cleaned` it is the empty segment of a log that lost all others.
        end: base offset of the old segment behind them, or beyond all.
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
    # Beginning next to the remaining segments, so there is no hole; each log after its indexes, so none is rebuilt.
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
    """Kept files under one more name, in the partition's work folder."""
    folder = f"{make_work_folder(fs, kept.path)}/{_UNDO}"
    if fs.exists(folder):
        remove_tree(fs, folder)
    fs.make_directory(folder)
    for name in names:
        fs.link(f"{kept.folder}/{name}", f"{folder}/{name}")
    fs.sync_directory(folder)
    return folder


def _put_back_others(fs: LocalFileSystem, kept: KeptPartition) -> None:
    """Put back other files, and indexes of segments that stayed; remove files that were not there."""
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
        # A swap gives an output without batches an empty transaction index for as long as it takes.
        is_empty_index = file.kind is FileKind.TRANSACTION_INDEX and not info.size_bytes
        if file.kind is FileKind.PRODUCER_SNAPSHOT or view.is_made(name) or is_empty_index:
            fs.unlink(f"{kept.path}/{name}")
    for name, info in kept.before.items():
        _restore_owner(fs, f"{kept.path}/{name}", info)
    fs.sync_directory(kept.path)


def _restore_owner(fs: LocalFileSystem, path: str, before: FileInfo) -> None:
    """Outputs of a swap, as kept files are in an undo, get the owner and permissions of those that they replace."""
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
    """Restore a log directory's own files, as far as they concern the partitions that were cleaned."""
    if directory.before is None:
        return []
    written = []
    mark = f"{directory.path}/{filenames.CLEAN_SHUTDOWN}"
    # First: from here on the next load recovers what the clean recovered.
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
            # Other partitions were used meanwhile: their entries stay.
            checkpoints.update(fs, path, {key: before.get(key) for key in entries})
        elif info is not None:
            _replace(fs, f"{directory.folder}/{name}", path)
        elif fs.exists(path):
            fs.unlink(path)
            fs.sync_directory(directory.path)
    return written


def _replace(fs: LocalFileSystem, source: str, target: str) -> None:
    """Give a file one more name, in the place of another file."""
    aside = target + Temporary.TMP
    if fs.exists(aside):
        fs.unlink(aside)
    fs.link(source, aside)
    fs.sync_directory(posixpath.dirname(target))
    fs.rename(aside, target)
    fs.sync_directory(posixpath.dirname(target))


def _remove_folder(fs: LocalFileSystem, path: str, directories: Iterable[KeptDirectory]) -> bool:
    """Remove what a clean kept, the manifest last. Other files stay, and the folder with them."""
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
    """The links to a log directory's own files that a clean made, and was killed before it wrote them down."""
    if not fs.exists(directory.folder):
        return []
    live = {info.name: info.inode for info in fs.list(directory.path)}
    return [info.name for info in fs.list(directory.folder) if info.inode and live.get(info.name) == info.inode]


def _remove_files(fs: LocalFileSystem, folder: str, names: Iterable[str]) -> None:
    """Remove files of a folder, and the folder if it is empty then; durably."""
    if not fs.exists(folder):
        return
    for name in names:
        if fs.exists(f"{folder}/{name}"):
            fs.unlink(f"{folder}/{name}")
    fs.sync_directory(folder)
    if not fs.list(folder):
        fs.remove_directory(folder)
        fs.sync_directory(posixpath.dirname(folder))
