"""A small log directory, and cleans in place of it without Spark: tests keep and restore files with them."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

from cordwood.cleaning.engine.facts import CleanSettings, load_producers
from cordwood.cleaning.engine.partition import CleanRequest, clean_partition
from cordwood.common.types import TopicPartition
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.workspace import remove_tree
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.changes.backup import KeepFolder
from cordwood.storage.changes.copy import Replacement
from cordwood.storage.changes.swap import drop_segments, swap_in
from cordwood.storage.formats import checkpoints, filenames, leader_epochs, producer_state
from cordwood.storage.formats.filenames import WORK_FOLDER, FileKind, offset_name, parse_file
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.log.segment_writer import IndexLimits, SegmentWriter
from cordwood.storage.log.view import LogView
from tests.logs import window

T0, OTHER = TopicPartition("t", 0), TopicPartition("other", 0)
NOW_MS = 1_763_700_000_000
SECOND_NS = 1_000_000_000
KEYS = "abacadacbabecadbaefafbaf"
#: Records of a segment; the last is active.
SEGMENT_RECORDS = 3
GROUP_SEGMENTS = 2

Tree = dict[str, tuple[object, ...]]


def make_directory(fs: LocalFileSystem, root: str) -> str:
    """A log directory with one partition of eight segments, as a broker leaves it; returns the partition's path."""
    partition = f"{root}/{T0}"
    for path in (root, partition):
        fs.make_directory(path)
    bases = range(0, len(KEYS), SEGMENT_RECORDS)
    for base in bases:
        append(fs, partition, base, KEYS[base : base + SEGMENT_RECORDS])
        if base:
            write(fs, f"{partition}/{offset_name(base, FileKind.PRODUCER_SNAPSHOT)}", producer_state.encode([]))
    end = len(KEYS)
    write(fs, f"{partition}/{offset_name(end, FileKind.PRODUCER_SNAPSHOT)}", producer_state.encode([]))
    write(fs, f"{partition}/{FileKind.LEADER_EPOCHS}", leader_epochs.encode([EpochEntry(0, 0)]))
    for name, offsets in (
        (filenames.RECOVERY_POINTS, {T0: end, OTHER: 7}),
        (filenames.HIGH_WATERMARKS, {OTHER: 7, T0: end}),
        (filenames.CLEANER_OFFSETS, {OTHER: 5}),
        (filenames.LOG_START_OFFSETS, {}),
    ):
        write(fs, f"{root}/{name}", checkpoints.encode(offsets))
    write(fs, f"{root}/{filenames.CLEAN_SHUTDOWN}", b"{}")
    for path in (partition, root, posixpath.dirname(root) or "/"):
        fs.sync_directory(path)
    return partition


def append(fs: LocalFileSystem, partition: str, base: int, keys: str, mode: int = 0o640) -> None:
    """Write a segment of a batch per record."""
    writer = SegmentWriter(fs, partition, base, IndexLimits(interval_bytes=64), mode=mode)
    for offset, key in enumerate(keys, base):
        data = encode_batch([Record(offset, 1000 + offset, key.encode(), b"%d" % offset)], leader_epoch=0)
        writer.append([window(data).data], window(data).batches)
    writer.finish(mtime_ns=NOW_MS * 1_000_000 + base * SECOND_NS)


def write(fs: LocalFileSystem, path: str, data: bytes) -> None:
    """Write a small file as brokers do: aside, then renamed."""
    with fs.create(f"{path}.tmp") as file:
        if data:
            file.write(0, data)
        file.sync()
    fs.rename(f"{path}.tmp", path)
    fs.sync_directory(posixpath.dirname(path))


def clean(fs: LocalFileSystem, partition: str, folder: str | None, *, first_dirty: int = 0, retained: int = 0) -> None:
    """Clean all but the active segment in place, in several groups.

    Args:
        fs: file system of the partition.
        partition: its path.
        folder: keeps the replaced files.
        first_dirty: first offset whose keys are read.
        retained: retention deletes segments below this offset, after the clean.
    """
    root = posixpath.dirname(partition)
    kept = None if folder is None else KeepFolder(fs, folder, [root], [partition])
    end = clean_groups(fs, partition, kept, first_dirty)
    offsets: dict[str, dict[TopicPartition, int | None]] = {filenames.CLEANER_OFFSETS: {T0: end}}
    if retained:
        offsets[filenames.LOG_START_OFFSETS] = {T0: retained}
    if kept is not None:
        kept.checkpoints(root, offsets)
    if retained:
        _retain(fs, partition, retained, kept)
    for name, entries in offsets.items():
        set_offsets(fs, f"{root}/{name}", entries)
    if kept is not None:
        kept.close()


def clean_groups(fs: LocalFileSystem, partition: str, kept: KeepFolder | None, first_dirty: int = 0) -> int:
    """Clean and swap in; returns the new first dirty offset."""
    log = LogView(partition, fs=fs)
    work = f"{partition}/{WORK_FOLDER}"
    for path in (work, f"{work}/1"):
        if not fs.exists(path):
            fs.make_directory(path)
    group_bytes = GROUP_SEGMENTS * max(segment.size_bytes for segment in log.segments)
    cleaned = clean_partition(
        fs,
        log,
        f"{work}/1",
        CleanRequest(
            first_dirty=first_dirty,
            first_uncleanable=log.segments[-1].base_offset,
            now_ms=NOW_MS,
            settings=CleanSettings(segment_bytes=group_bytes, index=IndexLimits(interval_bytes=64)),
            producers=load_producers(log, now_ms=NOW_MS),
        ),
    )
    for replaced, outputs in cleaned.written:
        names = [info.name for info in fs.list(f"{work}/1") if _offset(info.name) in outputs]
        group = Replacement(f"{work}/1", tuple(names), frozenset(replaced), frozenset(outputs), cleaned.end_offset)
        swap_in(fs, partition, group, keep=None if kept is None else kept.keep)
    remove_tree(fs, work)
    return cleaned.end_offset


def _retain(fs: LocalFileSystem, partition: str, start: int, kept: KeepFolder | None) -> None:
    log = LogView(partition, fs=fs)
    bases = [segment.base_offset for segment in log.segments if segment.base_offset < start]
    drop_segments(fs, partition, bases, log.next_offset, keep=None if kept is None else kept.keep)


def set_offsets(fs: LocalFileSystem, path: str, entries: Mapping[TopicPartition, int | None]) -> None:
    """Change entries of a checkpoint."""
    with fs.open(path) as file:
        now = checkpoints.decode(file.read(0, file.size()))
    changed = {**now, **entries}
    write(fs, path, checkpoints.encode({key: offset for key, offset in changed.items() if offset is not None}))


def _offset(name: str) -> int:
    file = parse_file(name)
    return -1 if file is None else file.offset


def tree(fs: LocalFileSystem, path: str, *, but: Sequence[str] = (filenames.LOCK,)) -> Tree:
    """All files of a directory: bytes, permissions and time of modification."""
    found: Tree = {}
    for info in fs.list(path):
        if info.is_directory:
            found[f"{info.name}/"] = ()
            found.update({f"{info.name}/{name}": one for name, one in tree(fs, f"{path}/{info.name}", but=but).items()})
        elif info.name not in but:
            with fs.open(f"{path}/{info.name}") as file:
                found[info.name] = (file.read(0, info.size_bytes), info.mode, info.mtime_ns)
    return found


def records(fs: LocalFileSystem, partition: str) -> dict[int, tuple[bytes | None, bytes | None]]:
    """Keys and values of a partition's records by offset, as a reader gets them."""
    return {one.offset: (one.key, one.value) for one in LogView(partition, fs=fs)}
