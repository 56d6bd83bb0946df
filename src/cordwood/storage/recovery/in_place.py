"""Recovery of a partition in place, like a broker's start: completes or undoes interrupted work.

    1  remove leftovers of a killed run from .cordwood/, the work folder; key indexes stay
    2  execute the plan of `recovery`: delete leftovers, complete swaps, delete indexes without a log
    3  without a crash: build the indexes of undamaged segments without an offset index; delete stray snapshots
       after a crash: see `into_copy`; write new files to .cordwood/recovery/ and rename them over the old ones
       in both cases: replace a log that ends below its log start offset by an empty one

Recovery may be interrupted anywhere: the next load, by Cordwood or a broker, reaches the same state. A valid file is
removed only after its replacement is durable. In step 3 the order matters only for these:

    segments after a cut       are deleted before the cut: after a shorter segment they would look like its continuation
    .index                     is renamed last: while it is missing, the next load rebuilds all indexes of the segment
    old producer snapshots     are deleted last: the new ones are computed from them

No file is changed in place, as it may have other names elsewhere (hard links): new files replace old ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from cordwood.common.errors import CorruptBatchError, DataError
from cordwood.fs.base import ALL_READ_AND_WRITE, FileInfo, LocalFileSystem
from cordwood.storage.changes.copy import Replacement
from cordwood.storage.changes.swap import Keep, finish_interrupted, swap_in
from cordwood.storage.formats.filenames import (
    LOG_START_OFFSETS,
    WORK_FOLDER,
    FileKind,
    PartitionFile,
    offset_name,
    parse_file,
)
from cordwood.storage.log.files import chown_like, clear_work_folder, make_work_folder
from cordwood.storage.log.loaded import LoadCut, stray_snapshots
from cordwood.storage.log.recovery import INDEX_KINDS, SEGMENT_KINDS
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.into_copy import (
    Recovered,
    RecoveredFiles,
    RecoverySettings,
    rewrite_indexes,
    rewrite_unflushed,
    start_anew,
    whole_behind,
)

#: Folder within the work folder for the new files of a log, until they are renamed.
_FOLDER = "recovery"


def recover_in_place(
    fs: LocalFileSystem,
    log: LogView,
    *,
    crashed: bool,
    recovery_point: int,
    now_ms: int,
    settings: RecoverySettings | None = None,
    keep: Keep | None = None,
) -> Recovered:
    """Bring a partition into the state that a broker's start would leave; durable on return.

    Args:
        log: the partition's log, which no other process uses. The value is out of date afterwards.
        crashed: whether it was not shut down cleanly, so that everything from the recovery point on is checked.
        recovery_point: everything below this offset was flushed.
        now_ms: producers that have expired at this time are dropped.
        keep: called before files are deleted or changed.

    Raises:
        DataError: after a crash, a segment holds offsets that don't belong there; or without a backup the log would be
            cut before whole batches, or be emptied. Only steps 1 and 2 were done.
    """
    path, start = log.path, log.log_start_offset
    if any(info.name == WORK_FOLDER and info.is_directory for info in log.entries):
        clear_work_folder(fs, path)
    if log.recovery.actions:
        if keep is not None:
            touched = {name for action in log.recovery.actions for name in (action.file, action.target)}
            keep(path, [info.name for info in log.entries if info.name in touched])
        finish_interrupted(fs, path)
        log = LogView(path, fs=fs, log_start_offset=start)
    with _folder(fs, path) as work:
        if crashed:
            new = rewrite_unflushed(
                fs, log, work, recovery_point=recovery_point, now_ms=now_ms, settings=settings, whole_too=False
            )
            return _put_in_place(fs, log, work, new, keep)
        if log.ends_below_start:
            return _put_in_place(fs, log, work, start_anew(fs, log, work, clean_shutdown=True), keep)
        for segment, paths in rewrite_indexes(fs, log, work, now_ms=now_ms, settings=settings):
            _take_over(fs, log, work, [path.rpartition("/")[2] for path in paths], {segment.base_offset}, keep)
    _remove(fs, log, stray_snapshots(log), keep)
    return Recovered(log.next_offset)


def _put_in_place(fs: LocalFileSystem, log: LogView, work: str, new: RecoveredFiles, keep: Keep | None) -> Recovered:
    """Replace files of a log by the new ones in the work folder."""
    if keep is None and new.cuts:
        for cut in new.cuts:
            _check_cut(log, cut)
    elif keep is None and not new.kept and log.size_bytes:
        # One wrong digit in a checkpoint, or an older copy of the log beside it, is enough to cause this.
        raise DataError(
            f"{log.path} ends at offset {log.next_offset}, below its log start offset {log.log_start_offset}, so a "
            f"broker's start would delete all of it. To keep the log, correct its line in {LOG_START_OFFSETS}. "
            "Otherwise clean into a copy (--output), keep the deleted files (--keep-old), or let a broker start on it"
        )
    files = _files(fs, log.path)
    goes = {name: file for name, file in files.items() if not new.stays(log, name, file)}
    gone = [name for name, file in goes.items() if file.kind in SEGMENT_KINDS and file.offset not in new.kept]
    _remove(fs, log, gone, keep)

    made = _files(fs, work)
    split = {base: became for base, became in new.segments.items() if len(became) > 1}
    parts = {
        base: [name for name, file in made.items() if file.kind in SEGMENT_KINDS and file.offset in became]
        for base, became in split.items()
    }
    apart = {name for names in parts.values() for name in names}
    names = [name for name in made if name not in apart]
    # An emptied log gets its segment last: until then it has no segment, and the next load makes an empty one too.
    last = [] if new.kept else [name for name in names if name.endswith(FileKind.LOG)]
    _take_over(fs, log, work, [name for name in names if name not in last], new.segments.keys() - split.keys(), keep)
    if last:
        _take_over(fs, log, work, last, (), keep)
    for base, names in parts.items():
        bases = frozenset({base}), frozenset(split[base])
        swap_in(fs, log.path, Replacement(work, tuple(names), *bases, new.next_offset), keep=keep)
    old = [name for name, file in goes.items() if file.kind is FileKind.PRODUCER_SNAPSHOT and name not in made]
    _remove(fs, log, old, keep)
    return Recovered(new.next_offset, new.notes)


def _check_cut(log: LogView, cut: LoadCut) -> None:
    """Raise CorruptBatchError if a cut would delete whole batches: a broker does so, but this may be the only copy."""
    if whole_behind(log, cut):
        raise CorruptBatchError(
            "no whole batch, but whole batches behind it. A broker's start would cut the log here, and delete them. "
            "Clean into a copy (--output), keep the deleted files (--keep-old), or let a broker start on it",
            path=f"{log.path}/{offset_name(cut.base_offset, FileKind.LOG)}",
            position=cut.position,
        )


def _take_over(
    fs: LocalFileSystem, log: LogView, work: str, names: Sequence[str], bases: Collection[int], keep: Keep | None
) -> None:
    """Replace old files by new ones; `bases` are the segments whose indexes are all rebuilt."""
    path, new = log.path, set(names)
    indexes = (offset_name(base, kind) for base in bases for kind in INDEX_KINDS)
    stale = [name for name in indexes if name not in new and fs.exists(f"{path}/{name}")]
    replaced = {name: fs.stat(f"{path}/{name}") for name in names if fs.exists(f"{path}/{name}")}
    if keep is not None:
        keep(path, [*stale, *replaced])
    like = log.segments[0].files.log if log.segments else _as_file(fs.stat(path))
    for name in names:
        chown_like(fs, f"{work}/{name}", replaced.get(name) or like)
    for name in stale:
        fs.unlink(f"{path}/{name}")
    last = {name for name in names if name.endswith(FileKind.OFFSET_INDEX)}
    for some in ([name for name in names if name not in last], sorted(last)):
        for name in some:
            fs.rename(f"{work}/{name}", f"{path}/{name}")
        fs.sync_directory(work)
        fs.sync_directory(path)


def _remove(fs: LocalFileSystem, log: LogView, names: Sequence[str], keep: Keep | None) -> None:
    if not names:
        return
    if keep is not None:
        keep(log.path, names)
    for name in names:
        fs.unlink(f"{log.path}/{name}")
    fs.sync_directory(log.path)


def _as_file(directory: FileInfo) -> FileInfo:
    """Return a directory's owner and permissions for a file in it: without the right to execute."""
    return replace(directory, mode=directory.mode & ALL_READ_AND_WRITE)


def _files(fs: LocalFileSystem, path: str) -> dict[str, PartitionFile]:
    parsed = ((info.name, parse_file(info.name)) for info in fs.list(path) if not info.is_directory)
    return {name: file for name, file in parsed if file is not None}


@contextmanager
def _folder(fs: LocalFileSystem, partition: str) -> Iterator[str]:
    folder = f"{make_work_folder(fs, partition)}/{_FOLDER}"
    fs.make_directory(folder, mode=0o700)
    try:
        yield folder
    finally:
        clear_work_folder(fs, partition)
