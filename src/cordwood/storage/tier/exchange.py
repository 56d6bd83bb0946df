"""Replace segments of a tier while no broker runs. A crash at any point leaves the old log, or the new one.

    journal     name the new segments in the partition's work folder; durable before their first object
    upload      write their objects, under new ids
    compare     read every new object back, as a broker would, and compare it with the file that it was made from
    commit      append one batch to the metadata partition: the new segments are finished, the deletion of the old began
    delete      remove the objects of the old segments
    forget      append: the old segments are deleted; then remove the journal

A crash before the commit leaves objects that no record names. A crash after it leaves segments whose deletion began; a
broker that starts deletes them, too. `resume` completes or undoes either.
"""

from __future__ import annotations

import base64
import contextlib
import json
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cordwood.common.errors import CorruptFileError, DataError, StoreError
from cordwood.common.text import number
from cordwood.common.types import NONE
from cordwood.fs.base import COPY_BUFFER_BYTES, LocalFileSystem, ReadableFile, Store, TargetStore
from cordwood.storage.formats import leader_epochs, offset_index, time_index
from cordwood.storage.formats.filenames import WORK_FOLDER, FileKind, offset_name
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.formats.text import parse_json
from cordwood.storage.log.files import checksum, read_file, write_file
from cordwood.storage.tier.local import Layout
from cordwood.storage.tier.metadata_log import MetadataLog
from cordwood.storage.tier.packed import SIZED, TierSegment
from cordwood.storage.tier.replacing import SegmentPiece, deleted, events_of
from cordwood.storage.tier.segments import CopyState, RemoteSegment, SegmentEvent, decode_event, encode_event
from cordwood.storage.tier.store import RemotePart, TierStore

_JOURNAL = "new-remote-segments.json"
_INDEXES = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX)


@dataclass(slots=True)
class Moved:
    """Objects that were written and deleted.

    Attributes:
        kept: paths of the old segments' objects, if they stay.
    """

    objects_written: int = 0
    bytes_written: int = 0
    objects_deleted: int = 0
    bytes_deleted: int = 0
    kept: list[str] = field(default_factory=list)


# ---- the files of a new segment --------------------------------------------------------------------------------------


def stage(
    store: TierStore,
    path: str,
    piece: SegmentPiece,
    lineage: Sequence[EpochEntry],
    snapshot: bytes,
    written: str,
    folder: str,
) -> dict[FileKind, str]:
    """Put the files of a piece into a folder, as its new segment has them; return their paths.

    Args:
        path: the partition's directory.
        lineage: leader epochs up to the end of the piece.
        snapshot: the producers at its end, as in a `.snapshot`.
        written: the folder with the outputs of the clean.
        folder: an empty folder.
    """
    source = written if piece.is_written else path
    files = {}
    for kind in (FileKind.LOG, *_INDEXES):
        name = offset_name(piece.base_offset, kind)
        if not store.exists(f"{source}/{name}"):
            continue
        if piece.is_written and piece.base_offset == piece.first_offset:
            files[kind] = f"{source}/{name}"
            continue
        files[kind] = f"{folder}/{offset_name(piece.first_offset, kind)}"
        if piece.base_offset == piece.first_offset or kind in (FileKind.LOG, FileKind.TRANSACTION_INDEX):
            store.copy(f"{source}/{name}", files[kind])
        else:
            write_file(store, files[kind], _rebased(store, f"{source}/{name}", kind, piece))
    if FileKind.TRANSACTION_INDEX in files and not store.stat(files[FileKind.TRANSACTION_INDEX]).size_bytes:
        del files[FileKind.TRANSACTION_INDEX]
    for kind, data in (
        (FileKind.LEADER_EPOCHS, leader_epochs.encode(lineage)),
        (FileKind.PRODUCER_SNAPSHOT, snapshot),
    ):
        files[kind] = f"{folder}/{piece.first_offset:020d}-{kind.lstrip('.')}"
        write_file(store, files[kind], data)
    return files


def _rebased(store: Store, path: str, kind: FileKind, piece: SegmentPiece) -> bytes:
    """Return an index with its offsets relative to the first offset of a piece."""
    data = read_file(store, path)
    if kind is FileKind.OFFSET_INDEX:
        return offset_index.encode(
            replace(offset_index.decode(data, piece.base_offset), base_offset=piece.first_offset)
        )
    return time_index.encode(replace(time_index.decode(data, piece.base_offset), base_offset=piece.first_offset))


def largest_timestamp(store: Store, files: Mapping[FileKind, str], piece: SegmentPiece, otherwise: int) -> int:
    """Return the largest timestamp of a piece, by its time index; `otherwise` if that has no entry."""
    if FileKind.TIME_INDEX not in files:
        return otherwise
    times = time_index.decode(read_file(store, files[FileKind.TIME_INDEX]), piece.first_offset)
    return times.last_entry[0] if times.entries else otherwise


def described(fs: Store, segment: RemoteSegment, files: Mapping[FileKind, str]) -> TierSegment:
    """Return a segment's manifest entry, from the files that it was uploaded from."""
    sizes = (fs.stat(files[kind]).size_bytes if kind in files else NONE for kind in SIZED)
    return TierSegment(segment, checksum(fs, files[FileKind.LOG]), tuple(sizes))


# ---- exchange --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A segment to upload.

    Attributes:
        files: path of each of its files.
        like: a segment that it replaces.
    """

    segment: RemoteSegment
    files: Mapping[FileKind, str]
    like: RemoteSegment


def exchange(
    store: TierStore,
    fs: LocalFileSystem,
    path: str,
    metadata: MetadataLog,
    new: Sequence[NewSegment],
    old: Sequence[RemoteSegment],
    *,
    keep_old: bool,
    confirm: Callable[[], None],
    moved: Moved,
) -> None:
    """Replace segments of a partition.

    Args:
        path: the partition's directory, which is locked.
        keep_old: leave the old segments' objects; afterwards no broker has metadata about them.
        confirm: called before the commit; raises if the locks are lost.
        moved: the sums that this adds to.
    """
    layout, segments = store.layout, [one.segment for one in new]
    _write_journal(fs, path, segments, [] if keep_old else [one.id for one in old])
    written = []
    for one in new:
        written.append((one.segment, layout.write(one.segment, one.files, one.like)))
        _compare(store, layout, one)
        sizes = _objects(store, layout, one.segment).values()
        moved.objects_written += len(sizes)
        moved.bytes_written += sum(sizes)
    confirm()
    metadata.append(events_of(written, old, is_deleted=keep_old))
    for segment in old:
        objects = _objects(store, layout, segment)
        if keep_old:
            moved.kept += objects
            continue
        store.delete_all([*reversed(objects)])
        moved.objects_deleted += len(objects)
        moved.bytes_deleted += sum(objects.values())
    if not keep_old:
        metadata.append(deleted(old, segments[0]))
    fs.delete(_journal_path(path))


def foretold(store: TierStore, new: Sequence[NewSegment], old: Sequence[RemoteSegment], moved: Moved) -> None:
    """Add up the objects and bytes that an exchange would write and delete, without the layout's manifests."""
    layout = store.layout
    for one in new:
        moved.objects_written += len(_objects(store, layout, one.like))
        moved.bytes_written += sum(store.stat(path).size_bytes for path in one.files.values())
    for segment in old:
        objects = _objects(store, layout, segment)
        moved.objects_deleted += len(objects)
        moved.bytes_deleted += sum(objects.values())


def _objects(store: TargetStore, layout: Layout, segment: RemoteSegment) -> dict[str, int]:
    """Return the sizes of a segment's existing objects by path, in the order of writing."""
    found = {}
    for path in layout.object_paths(segment):
        with contextlib.suppress(FileNotFoundError):
            found[path] = store.stat(path).size_bytes
    return found


def _compare(store: TargetStore, layout: Layout, new: NewSegment) -> None:
    """Raise StoreError unless each file of a new segment can be read from the tier as it was written."""
    for kind, source in new.files.items():
        with store.open(source) as expected, layout.open(new.segment, kind) as found:
            if found.size() != expected.size() or any(
                a != b for a, b in zip(_blocks(found), _blocks(expected), strict=True)
            ):
                raise StoreError("reads differently from what was written, so it is not used", found.path)


def _blocks(file: ReadableFile) -> Iterator[bytes]:
    return (file.read(at, COPY_BUFFER_BYTES) for at in range(0, file.size(), COPY_BUFFER_BYTES))


def _begun(store: TargetStore, layout: Layout, segment: RemoteSegment) -> list[str]:
    """Return the paths of everything that an interrupted upload left of a segment, temporary files included."""
    paths = layout.object_paths(segment)
    folder, stem = posixpath.split(posixpath.commonprefix(paths))
    return [f"{folder}/{name}" for name in store.names_in(folder) if name.startswith(stem)]


# ---- after a crash ---------------------------------------------------------------------------------------------------


def resume(
    store: TierStore, fs: LocalFileSystem, path: str, part: RemotePart, metadata: Callable[[], MetadataLog]
) -> str:
    """Complete or undo an exchange that a crash interrupted; return a description of it, or "".

    Args:
        metadata: opens the metadata partition, if something has to be appended.
    """
    found = _read_journal(fs, path)
    if found is None:
        return ""
    new, old_ids = found
    # All replicas of the metadata must have the same records; otherwise another replica may have newer ones.
    appends = metadata()
    log, layout = part.log, store.layout
    started: list[RemoteSegment] = []
    if not any(one.id in log.segments for one in new):
        objects = [path for one in new for path in _begun(store, layout, one)]
        did = f"an interrupted clean had not replaced anything; its {number(len(objects), 'object')} were removed"
    else:
        old = [log.segments[one] for one in old_ids if one in log.segments]
        started = [one for one in old if one.state is CopyState.DELETE_STARTED]
        objects = [path for one in started for path in reversed(_objects(store, layout, one))]
        did = f"an interrupted clean was completed: {number(len(started), 'old segment')} deleted"
    store.delete_all(objects)
    if started:
        appends.append(deleted(started, new[0]))
    fs.delete(_journal_path(path))
    return did


def is_interrupted(fs: LocalFileSystem, path: str) -> bool:
    """Return whether a partition has a journal, so that `resume` must run before anything else."""
    return fs.exists(_journal_path(path))


def _journal_path(path: str) -> str:
    return f"{path}/{WORK_FOLDER}/{_JOURNAL}"


def _write_journal(fs: LocalFileSystem, path: str, new: Sequence[RemoteSegment], old_ids: Sequence[str]) -> None:
    content = {
        "version": 1,
        # A copy of the directory has another inode, and its metadata may lack segments that the original's has.
        "directory": fs.real_path(path),
        "inode": fs.stat(path).inode,
        "new": [base64.b64encode(encode_event(SegmentEvent(one))).decode() for one in new],
        "old": list(old_ids),
    }
    fs.put(_journal_path(path), json.dumps(content).encode(), beside=f"{_journal_path(path)}.tmp")
    fs.sync_directory(path)


def _read_journal(fs: LocalFileSystem, path: str) -> tuple[list[RemoteSegment], list[str]] | None:
    """Return the journal; None if it is missing, or belongs to another directory.

    Raises:
        CorruptFileError: it is damaged.
    """
    journal = _journal_path(path)
    try:
        content = parse_json(read_file(fs, journal).decode())
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        content = None
    try:
        if not isinstance(content, dict) or content["version"] != 1:
            raise TypeError
        if (content["directory"], content["inode"]) != (fs.real_path(path), fs.stat(path).inode):
            return None
        events = [decode_event(base64.b64decode(text, validate=True)) for text in content["new"]]
        old_ids = [str(one) for one in content["old"]]
    except (KeyError, TypeError, ValueError, DataError):
        what = "is not readable; check the tier for objects without metadata, and remove this file"
        raise CorruptFileError(what, path=journal) from None
    return [one.segment for one in events if isinstance(one, SegmentEvent)], old_ids
