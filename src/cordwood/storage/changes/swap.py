"""Replace segments by cleaned ones, in a directory that Kafka may load after any crash.

A loader decides by file names. It deletes, in this order: `.deleted` files; `.swap` files whose offset is at or above
the smallest `.cleaned` offset; `.cleaned` files; and live files with offsets from the first `.log.swap` up to the end
of the batches in all `.log.swap` files. Then it gives each `.swap` file its final name.

So a group is swapped in steps, each durable before the next begins. After a crash within a step, the disk may have any
subset of the step's renames:

    step                                          without its barrier, a crash could leave …
    1  outputs: folder → .cleaned                 a .swap without a .cleaned: a loader would already swap it in
    2  outputs but the first: → .swap             only the first output, which replaces all segments up to its own end
    3  the first output: → .swap; the commit      old files deleted, and outputs that a loader deletes
    4  old logs after the outputs' end,           records whose tombstone is already deleted; or aborted records
       one by one, lowest first: → .deleted       without their .txnindex
    5  other old files: → .deleted                an old .txnindex beside a new .log, which hides committed records
    6  .log.swap → .log, one by one               a .log between two .log.swap, or an index beside one: a loader would
                                                  delete it
    7  other .swap → live; .deleted removed       a cleaner checkpoint, written next, that is ahead of the log

A crash before the commit leaves the old group for a loader, a later crash the new group. The exception is old segments
after the outputs' end: a loader does not delete them, so a crash before or in step 4 leaves some. Kafka's own cleaner,
too, leaves such segments to the next clean. The end of an output without batches is its base offset, so a loader would
keep the `.txnindex` of the first old segment beside it. Such an output gets an empty `.txnindex` until the old files
are deleted.

A failure before the commit is undone. After the commit the next load, by Cordwood or a broker, completes the swap.

`Swap` holds the steps as values. A clean of files and a clean of a live log execute the same steps, but a live log
unlinks its old files later, when no reader has them open.

Source: Kafka LocalLog.replaceSegments, LogLoader. Differs: Kafka renames everything with one sync of the directory.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from cordwood.common.errors import RequestError
from cordwood.fs.base import FileInfo, LocalFileSystem
from cordwood.fs.users import User, group_name, user_name
from cordwood.storage.changes.copy import Replacement
from cordwood.storage.formats.filenames import (
    OFFSET_CHECKPOINTS,
    WORK_FOLDER,
    FileKind,
    Temporary,
    offset_name,
    parse_file,
)
from cordwood.storage.log.files import chown_like, write_file
from cordwood.storage.log.recovery import SegmentFiles, Verb, next_offset, plan_recovery
from cordwood.storage.log.segment import MAX_OFFSET, Segment

#: Called with a partition's path and the names of files that are about to be deleted or changed. When it returns, the
#: files have durable hard links elsewhere.
Keep = Callable[[str, Sequence[str]], None]

LIVE, CLEANED, SWAP, DELETED = Temporary.NONE, Temporary.CLEANED, Temporary.SWAP, Temporary.DELETED


@dataclass(frozen=True, slots=True)
class SwapStep:
    """Renames and deletions that are durable before the next step begins.

    Attributes:
        renames: (path, new path), in order.
        removes: paths to delete after the renames.
        syncs: directories to sync at the end.
    """

    renames: tuple[tuple[str, str], ...]
    removes: tuple[str, ...]
    syncs: tuple[str, ...]


def _suffixed(
    partition: str, names: Iterable[str], now: Temporary, then: Temporary, removes: Iterable[str] = ()
) -> SwapStep:
    """Return a step that renames files of a partition from one suffix to another, and deletes other files."""
    renames = tuple((f"{partition}/{name}{now}", f"{partition}/{name}{then}") for name in names)
    return SwapStep(renames, tuple(f"{partition}/{name}" for name in removes), (partition,))


def execute(fs: LocalFileSystem, steps: Iterable[SwapStep]) -> None:
    """Execute steps in order; each is durable before the next begins."""
    for step in steps:
        for source, target in step.renames:
            fs.rename(source, target)
        for path in step.removes:
            fs.unlink(path)
        for directory in step.syncs:
            fs.sync_directory(directory)


@dataclass(frozen=True, slots=True)
class Swap:
    """All steps of a swap, planned before the first is executed.

    Attributes:
        until_commit: steps 1 to 3.
        after_commit: steps 4 to 7.
    """

    fs: LocalFileSystem
    partition: str
    until_commit: tuple[SwapStep, ...]
    after_commit: tuple[SwapStep, ...]

    @classmethod
    def of(
        cls,
        fs: LocalFileSystem,
        partition: str,
        replacement: Replacement,
        old: Sequence[str],
        *,
        unlinks_old: bool = True,
    ) -> Swap:
        """Plan the steps that replace the old files of a group by its outputs.

        Args:
            old: names of the files to replace.
            unlinks_old: whether step 7 deletes them; otherwise they stay as `.deleted` files.
        """
        names = _with_transaction_index(fs, replacement, old)
        outputs = tuple((f"{replacement.folder}/{name}", f"{partition}/{name}{CLEANED}") for name in names)
        first_base = offset_name(min(replacement.outputs), ".")
        first = [name for name in names if name.startswith(first_base)]
        others = [name for name in names if name not in first]
        until_commit = [SwapStep(outputs, (), (replacement.folder, partition))]
        until_commit += [_suffixed(partition, some, CLEANED, SWAP) for some in (others, first) if some]
        behind = _behind_the_end(fs, replacement, old)
        rest = [name for name in old if name not in behind]
        gone = [f"{name}{DELETED}" for name in old] if unlinks_old else []
        # An added .txnindex is only needed until the old files are deleted, see `_with_transaction_index`.
        gone += set(names).difference(replacement.names)
        after_commit = [_suffixed(partition, some, LIVE, DELETED) for some in (*([name] for name in behind), rest)]
        after_commit += _into_place(partition, names, gone)
        return cls(fs, partition, tuple(until_commit), tuple(after_commit))

    def commit(self) -> None:
        """Execute steps 1 to 3: from then on every load uses the outputs.

        Raises:
            OSError: the swap is undone; the partition is unchanged.
        """
        try:
            execute(self.fs, self.until_commit)
        except BaseException:
            # Does nothing once every file is .swap: a loader would complete that state, so no file may disappear.
            with contextlib.suppress(OSError):
                _remove_unfinished(self.fs, self.partition)
            raise

    def finish(self) -> None:
        """Execute steps 4 to 7: give the outputs their final names; durable on return."""
        execute(self.fs, self.after_commit)


def swap_in(fs: LocalFileSystem, partition: str, replacement: Replacement, *, keep: Keep | None = None) -> None:
    """Replace one group of segments by its outputs; durable on return.

    The outputs get owner, group and permissions of the group's first segment before they are moved into the partition.

    Args:
        partition: path of a loaded partition that has no other writer.
        keep: called before files are deleted.

    Raises:
        RequestError: an interrupted clean or deletion left files there; nothing was changed.
        OSError: if raised before the commit, the partition is unchanged; after it, the next load completes the swap.
    """
    old = _old_files(fs, partition, replacement)
    own_like_old(fs, partition, replacement, min(replacement.replaced))
    if keep is not None:
        keep(partition, old)
    swap = Swap.of(fs, partition, replacement, old)
    swap.commit()
    swap.finish()


def own_like_old(fs: LocalFileSystem, partition: str, replacement: Replacement, base_offset: int) -> None:
    """Give the outputs the owner, group and permissions of the segment at `base_offset`; durable on return."""
    like = fs.stat(f"{partition}/{offset_name(base_offset, FileKind.LOG)}")
    for name in replacement.names:
        info = fs.stat(f"{replacement.folder}/{name}")
        if (info.uid, info.gid, info.mode) != (like.uid, like.gid, like.mode):
            chown_like(fs, f"{replacement.folder}/{name}", like)


def drop_segments(
    fs: LocalFileSystem, partition: str, base_offsets: Collection[int], log_end_offset: int, *, keep: Keep | None = None
) -> None:
    """Delete segments, the oldest first. If that deletes all, create an empty segment at the log end.

    After a crash some of the oldest segments are deleted and all later ones remain. So a record is never deleted before
    an older record that it supersedes, and a `.txnindex` never before its log.

    Args:
        partition: path of a loaded partition that has no other writer.
        base_offsets: base offsets of the segments to delete.
        keep: called before files are deleted.

    Raises:
        RequestError: an interrupted clean or deletion left files there; nothing was changed.
    """
    everything = Replacement(partition, (), frozenset(base_offsets), frozenset(), log_end_offset)
    old = _old_files(fs, partition, everything)
    logs = sorted(name for name in old if name.endswith(FileKind.LOG))
    others = [name for name in old if name not in logs]
    if keep is not None:
        keep(partition, old)
    if not any(info.name.endswith(FileKind.LOG) and info.name not in logs for info in fs.list(partition)):
        make_empty_segment(fs, partition, log_end_offset, fs.stat(f"{partition}/{logs[-1]}"))
    steps = [_suffixed(partition, names, LIVE, DELETED) for names in (*([name] for name in logs), others)]
    # Logs last, as in `_complete`.
    steps.append(_suffixed(partition, (), LIVE, LIVE, [f"{name}{DELETED}" for name in (*others, *logs)]))
    execute(fs, steps)


def make_empty_segment(fs: LocalFileSystem, partition: str, base_offset: int, like: FileInfo) -> None:
    """Create an empty segment at the end of a log; durable on return.

    The indexes are written first: if a crash leaves them without a log, a load deletes them.
    """
    for kinds in ((FileKind.OFFSET_INDEX, FileKind.TIME_INDEX), (FileKind.LOG,)):
        for kind in kinds:
            path = f"{partition}/{offset_name(base_offset, kind)}"
            write_file(fs, path, b"")
            chown_like(fs, path, like)
        fs.sync_directory(partition)


def _old_files(fs: LocalFileSystem, partition: str, replacement: Replacement) -> list[str]:
    """Return the files that a replacement removes. Raise RequestError if the partition has leftovers."""
    files = [info.name for info in fs.list(partition) if not info.is_directory]
    for name in files:
        if name.endswith((CLEANED, SWAP, DELETED)):
            raise RequestError(
                f"{partition}/{name} is left of an interrupted clean or deletion, so nothing was swapped in there. "
                "The next clean, or broker, that loads the partition completes or removes it"
            )
    return [name for name in files if replacement.removes(parse_file(name))]


def _with_transaction_index(fs: LocalFileSystem, replacement: Replacement, old: Sequence[str]) -> Sequence[str]:
    """Return the outputs' names. Add an empty .txnindex if a loader would keep the old one beside an empty log."""
    folder, first = replacement.folder, min(replacement.outputs)
    assert first == min(replacement.replaced), "the first output stands for the first segment"
    name = offset_name(first, FileKind.TRANSACTION_INDEX)
    if name not in old or name in replacement.names or _end_of(fs, folder, first) > first:
        return replacement.names
    write_file(fs, f"{folder}/{name}", b"")
    chown_like(fs, f"{folder}/{name}", fs.stat(f"{folder}/{offset_name(first, FileKind.LOG)}"))
    return [*replacement.names, name]


def _behind_the_end(fs: LocalFileSystem, replacement: Replacement, old: Iterable[str]) -> list[str]:
    """Return logs of old segments that a loader would not delete, as they are after the outputs' end; lowest first."""
    last = max(replacement.outputs)
    if max(replacement.replaced) <= last:
        return []
    end = _end_of(fs, replacement.folder, last)
    logs = {offset_name(base, FileKind.LOG) for base in replacement.replaced if base >= end and base != last}
    return sorted(logs.intersection(old))


def _end_of(fs: LocalFileSystem, folder: str, base_offset: int) -> int:
    """Return the offset after the last batch of an output."""
    log, index = (
        fs.stat(f"{folder}/{offset_name(base_offset, kind)}") for kind in (FileKind.LOG, FileKind.OFFSET_INDEX)
    )
    segment = Segment(fs, folder, SegmentFiles(base_offset, log, {FileKind.OFFSET_INDEX: index}))
    with segment.open() as file:
        start = segment.position_of(file, MAX_OFFSET)
    return next_offset(fs, segment.path, base_offset, start)


def _into_place(partition: str, names: Iterable[str], removes: Iterable[str] = ()) -> Iterator[SwapStep]:
    """Yield steps 6 and 7: give .swap files their final names, logs one by one, and delete the files `removes`."""
    logs = sorted(name for name in names if name.endswith(FileKind.LOG))
    others = [name for name in names if name not in logs]
    for name in logs:
        yield _suffixed(partition, [name], SWAP, LIVE)
    yield _suffixed(partition, others, SWAP, LIVE, removes)


# ---- interrupted swaps -----------------------------------------------------------------------------------------------


def finish_interrupted(fs: LocalFileSystem, partition: str) -> None:
    """Undo or complete an interrupted swap or deletion, as a loader does; durable on return."""
    _remove_unfinished(fs, partition)
    _complete(fs, partition)


def _remove_unfinished(fs: LocalFileSystem, partition: str) -> None:
    """Undo an uncommitted swap. Delete its .cleaned files last, as they mark the .swap files as incomplete."""
    files = {info.name: parse_file(info.name) for info in fs.list(partition) if not info.is_directory}
    bases = {name: file.offset for name, file in files.items() if file is not None and file.temporary is CLEANED}
    if not bases:
        return
    first = min(bases.values())
    for name, file in files.items():
        if file is not None and file.temporary is SWAP and file.offset >= first:
            fs.unlink(f"{partition}/{name}")
    fs.sync_directory(partition)
    for name in bases:
        fs.unlink(f"{partition}/{name}")
    fs.sync_directory(partition)


def _complete(fs: LocalFileSystem, partition: str) -> None:
    """Complete a committed swap in the order of `Swap`; delete .deleted files, and indexes without a log."""
    actions = plan_recovery(fs, partition, fs.list(partition)).actions
    # Delete .deleted files last: a .log.deleted explains why indexes have no log.
    gone = sorted(
        (action.file for action in actions if action.verb is Verb.DELETE),
        key=lambda name: name.endswith(DELETED),
    )
    for name in gone:
        fs.unlink(f"{partition}/{name}")
    fs.sync_directory(partition)
    names = [action.target for action in actions if action.verb is Verb.RENAME and action.file not in gone]
    execute(fs, _into_place(partition, names))


# ---- before a change -------------------------------------------------------------------------------------------------


def check_ownership(fs: LocalFileSystem, partitions: Iterable[str], user: User | None = None) -> None:
    """Raise RequestError if this user cannot replace the partitions' files by files of the same owner and group.

    A broker that cannot write to one of its files takes the whole log directory offline. Only a privileged process can
    give a file to another user, and an unprivileged user can give it only to a group that the user is in.

    Args:
        partitions: paths of partition directories. The checkpoints beside them are checked, too.
        user: the user of this process if None.
    """
    user = user or User.current()
    if user.privileged:
        return
    found = list(_written_to(fs, partitions))
    owners = {info.uid for _, info in found}
    # If all files have one owner, that user can replace them; otherwise only root can.
    as_whom = user_name(owners.pop() if len(owners) == 1 else 0)
    for path, info in found:
        if not info.is_directory and info.uid != user.uid:
            raise RequestError(
                f"{path} belongs to {user_name(info.uid)}, and {user_name(user.uid)} cannot make files for another "
                f"user, so a broker might not be able to read the new file. Run this as {as_whom}"
            )
        if not info.is_directory and info.gid not in user.gids:
            raise RequestError(
                f"{path} belongs to the group {group_name(info.gid)}, which {user_name(user.uid)} is not in, so what "
                f"replaces it could not. Add the user to the group, or run this as {user_name(0)}"
            )
        if info.is_directory and not user.may_write(info):
            raise RequestError(
                f"{path} cannot be changed: {user_name(user.uid)} may not write to it. Run this as {as_whom}"
            )


def check_apart(fs: LocalFileSystem, partitions: Iterable[str]) -> None:
    """Raise RequestError if two paths are the same directory, such as a symlink: both would be changed at once."""
    known: dict[str, str] = {}
    for path in partitions:
        other = known.setdefault(fs.real_path(path), path)
        if other != path:
            raise RequestError(
                f"{path} and {other} are the same directory, and would be changed at the same time. Remove the link, "
                "or choose one of them with --partition"
            )


def _written_to(fs: LocalFileSystem, partitions: Iterable[str]) -> Iterator[tuple[str, FileInfo]]:
    partitions = [path.rstrip("/") for path in partitions]
    for path in partitions:
        yield path, fs.stat(path)
        for info in fs.list(path):
            if not info.is_directory or info.name == WORK_FOLDER:
                yield f"{path}/{info.name}", info
    for parent in dict.fromkeys(posixpath.dirname(path) or "." for path in partitions):
        yield parent, fs.stat(parent)
        for info in fs.list(parent):
            if info.name in OFFSET_CHECKPOINTS:
                yield f"{parent}/{info.name}", info
