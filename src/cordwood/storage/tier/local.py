"""The layout of Kafka's LocalTieredStorage: a folder per partition, and in it the files of its segments.

    kafka-tiered-storage/
      orders-0-_g7okdM1Sa2skkomIJ_ErA/                                topic, partition, topic id
        00000000000000000175-LvsJ_gDKRN2LDyWWHmhQog.log               start offset, segment id; written in this order
        00000000000000000175-LvsJ_gDKRN2LDyWWHmhQog.index
        00000000000000000175-LvsJ_gDKRN2LDyWWHmhQog.timeindex
        00000000000000000175-LvsJ_gDKRN2LDyWWHmhQog.txnindex          only with aborted transactions
        00000000000000000175-LvsJ_gDKRN2LDyWWHmhQog.leader_epoch_checkpoint
        00000000000000000175-LvsJ_gDKRN2LDyWWHmhQog.snapshot

Every file is a copy of the local one, byte for byte. Files get their names before their bytes, so a copy that a crash
interrupted lacks the last files; the snapshot comes last. Topics and ids come from records or file names, so they are
not trusted: `check_names` refuses names that could lead to another folder.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import posixpath
import re
from abc import abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cordwood.common.errors import BadNameError, CorruptFileError
from cordwood.common.types import NONE, TopicPartition, override
from cordwood.fs.base import FileInfo, ReadableFile, TargetStore
from cordwood.storage.formats import leader_epochs, offset_index, time_index
from cordwood.storage.formats.filenames import FileKind, check_topic, offset_name, parse_directory
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.formats.properties import decode_id, encode_id
from cordwood.storage.formats.text import shown
from cordwood.storage.log.segment import MAX_OFFSET, header_at
from cordwood.storage.tier.segments import CopyState, RemoteSegment, TopicIdPartition

FOLDER = "kafka-tiered-storage"
#: Characters of an id in base64.
ID_LENGTH = 22
#: Larger indexes, snapshots and leader epochs are refused.
SMALL_FILE_BYTES_MAX = 64 << 20
_PARTITION_MAX = (1 << 31) - 1
#: The files of a segment, by the ends of their names.
_KINDS = {
    ".log": FileKind.LOG,
    ".index": FileKind.OFFSET_INDEX,
    ".timeindex": FileKind.TIME_INDEX,
    ".txnindex": FileKind.TRANSACTION_INDEX,
    ".leader_epoch_checkpoint": FileKind.LEADER_EPOCHS,
    ".snapshot": FileKind.PRODUCER_SNAPSHOT,
}
_ENDINGS = {kind: ending for ending, kind in _KINDS.items()}
_NAME = re.compile(rf"([0-9]{{20}}-[A-Za-z0-9_-]{{{ID_LENGTH}}})({'|'.join(map(re.escape, _KINDS))})")


@dataclass(frozen=True, slots=True)
class StoredObjects:
    """The objects of one segment, complete or not; or one that is not named like an object of a segment.

    Attributes:
        path: path of the first one.
        partition: None if it is not named like an object of a segment; then `segment_id` is empty.
    """

    path: str
    size_bytes: int
    count: int = 1
    partition: TopicIdPartition | None = None
    segment_id: str = ""
    start_offset: int = NONE


class Layout(Protocol):
    """Where a tier keeps the files of its segments.

    Attributes:
        store: has its objects.
    """

    store: TargetStore

    @abstractmethod
    def kinds(self, segment: RemoteSegment) -> Mapping[FileKind, int | None]:
        """Return the files of a segment, each with its size in bytes, or None if only opening it shows the size.

        The size of a `.log` is always there. A layout that lists files returns an empty mapping if it finds none;
        another one returns the files that the segment's record implies, and `open` may find that a file is missing.
        """

    @abstractmethod
    def open(self, segment: RemoteSegment, kind: FileKind) -> ReadableFile:
        """Open a file of a segment, to read the bytes that the broker had on its disk.

        Raises:
            FileNotFoundError: the segment has no such file.
            BadNameError: the topic or an id of the segment cannot be part of an object's name.
            CorruptFileError: the objects contradict each other.
        """

    @abstractmethod
    def segments(self, topic: str | None = None, without: Container[TopicIdPartition] = ()) -> Iterator[RemoteSegment]:
        """Yield the complete segments whose objects are in the tier, regardless of the brokers' metadata.

        Segments of a partition follow one another, in the order of their start offsets.

        Args:
            topic: only segments of this topic.
            without: pass over these partitions.
        """

    @abstractmethod
    def objects(self) -> Iterator[StoredObjects]:
        """Yield everything that is in the tier, by segment. Folders that are not a partition's are not opened."""

    @abstractmethod
    def epochs(self, segment: RemoteSegment) -> Sequence[EpochEntry]:
        """Return the leader epochs that the objects of a segment have for it.

        Raises:
            FileNotFoundError: the object with its epochs is missing.
            CorruptFileError: it is invalid.
        """

    @abstractmethod
    def check_replaceable(self, segment: RemoteSegment) -> None:
        """Raise RequestError if the bytes of a segment may not be written to a new one, as it is encrypted."""

    @abstractmethod
    def write(self, segment: RemoteSegment, files: Mapping[FileKind, str], like: RemoteSegment | None) -> bytes | None:
        """Write the objects of a new segment; they are durable on return.

        Args:
            files: path of each file on this machine.
            like: a segment that is replaced by it; its settings are kept where both can have them. None: the layout's
                defaults.

        Returns:
            the custom metadata of the segment.
        """

    @abstractmethod
    def object_paths(self, segment: RemoteSegment) -> list[str]:
        """Return the paths that the objects of a segment have if they exist, in the order of writing."""


#: Larger files are not read into memory to upload them.
_PUT_BYTES_MAX = 8 << 20


def upload(store: TargetStore, source: str, target: str) -> None:
    """Copy a file of this machine to an object. On a disk, its name is durable after the next `put` in its folder."""
    with store.open(source) as file:
        if (size := file.size()) <= _PUT_BYTES_MAX:
            store.put(target, file.read(0, size))
            return
    store.copy(source, target)
    store.sync_file(target)


def grouped(
    infos: Iterable[FileInfo], folder: str, names: re.Pattern[str], partition: TopicIdPartition
) -> Iterator[StoredObjects]:
    """Yield the objects in a partition's folder by segment.

    Args:
        names: matches an object's name; its first group is the name without ending.
    """
    stems: dict[str, list[FileInfo]] = {}
    for info in infos:
        match = names.fullmatch(info.name)
        if match and not info.is_directory:
            stems.setdefault(match[1], []).append(info)
        else:
            yield StoredObjects(f"{folder}/{info.name}", info.size_bytes)
    for stem, files in sorted(stems.items()):
        size_bytes, path = sum(info.size_bytes for info in files), f"{folder}/{files[0].name}"
        yield StoredObjects(path, size_bytes, len(files), partition, stem[-ID_LENGTH:], int(stem[:20]))


def check_names(segment: RemoteSegment) -> None:
    """Raise BadNameError unless the names of a segment's objects stay in the tier's folder."""
    check_partition(segment.topic_id_partition)
    _check_id(segment.id)


def check_partition(partition: TopicIdPartition) -> None:
    """Raise BadNameError unless the name of a partition's folder stays in the tier's folder."""
    check_topic(partition.topic)
    if not 0 <= partition.partition <= _PARTITION_MAX:
        raise BadNameError(f"{partition.partition} is not the number of a partition")
    _check_id(partition.topic_id)


def _check_id(text: str) -> None:
    if not is_id(text):
        raise BadNameError(f"{shown(text)} is not an id, which has {ID_LENGTH} characters of base64")


def is_id(text: str) -> bool:
    """Return whether a text is an id as Kafka prints it."""
    value = decode_id(text)
    return value is not None and encode_id(value) == text


def object_stem(segment: RemoteSegment) -> str:
    """Return the name that the files of a segment share, without folder and ending."""
    return offset_name(segment.start_offset, f"-{segment.id}")


class LocalLayout(Layout):
    """The files of LocalTieredStorage.

    Args:
        root: the folder that `dir` configures, or `kafka-tiered-storage` in it.
    """

    def __init__(self, store: TargetStore, root: str) -> None:
        self.store = store
        self._root = root.rstrip("/") or "/"
        self._folder: str | None = None
        #: Files of each partition's folder at its last listing, by the stems of their names.
        self._listings: dict[str, dict[str, dict[FileKind, FileInfo]]] = {}

    @override
    def kinds(self, segment: RemoteSegment) -> Mapping[FileKind, int | None]:
        check_names(segment)
        folder, stem = self._folder_of(segment), object_stem(segment)
        files = self._listings.get(folder, {}).get(stem)
        if files is None:  # it may be newer than the listing
            files = self._list(folder).get(stem, {})
        return {kind: info.size_bytes for kind, info in files.items()}

    @override
    def open(self, segment: RemoteSegment, kind: FileKind) -> ReadableFile:
        check_names(segment)
        if kind not in _ENDINGS:
            raise FileNotFoundError(errno.ENOENT, "a tier has no such files", kind)
        return self.store.open(posixpath.join(self._folder_of(segment), object_stem(segment) + _ENDINGS[kind]))

    @override
    def segments(self, topic: str | None = None, without: Container[TopicIdPartition] = ()) -> Iterator[RemoteSegment]:
        for name, is_directory in self.store.names_in(self._top()).items():
            partition = _partition_of(name) if is_directory else None
            if partition is None or topic not in (None, partition[0].topic):
                continue
            if TopicIdPartition(partition[1], partition[0].topic, partition[0].partition) in without:
                continue
            stems = {
                stem: files
                for stem, files in self._list(posixpath.join(self._top(), name)).items()
                if FileKind.PRODUCER_SNAPSHOT in files and FileKind.LOG in files
            }
            bases = sorted({int(stem[:20]) for stem in stems})
            following = dict(itertools.pairwise(bases))
            for stem, files in sorted(stems.items()):
                yield self._segment(partition, posixpath.join(self._top(), name, stem), files, following)

    @override
    def objects(self) -> Iterator[StoredObjects]:
        for info in self.store.list(self._top()):
            path = posixpath.join(self._top(), info.name)
            found = _partition_of(info.name) if info.is_directory else None
            if found is None:
                yield StoredObjects(path, info.size_bytes)
                continue
            topic_partition, topic_id = found
            partition = TopicIdPartition(topic_id, topic_partition.topic, topic_partition.partition)
            yield from grouped(self.store.list(path), path, _NAME, partition)

    @override
    def epochs(self, segment: RemoteSegment) -> Sequence[EpochEntry]:
        path = posixpath.join(self._folder_of(segment), object_stem(segment))
        data = self._read_small(path, FileKind.LEADER_EPOCHS)
        entries = leader_epochs.decode(data, path + _ENDINGS[FileKind.LEADER_EPOCHS])
        return _epochs_within(leader_epochs.history(entries).entries, segment.start_offset, segment.end_offset)

    @override
    def check_replaceable(self, segment: RemoteSegment) -> None:
        """Do nothing: files are never encrypted."""

    @override
    def write(self, segment: RemoteSegment, files: Mapping[FileKind, str], like: RemoteSegment | None) -> bytes | None:
        for kind, path in zip(_ENDINGS, self.object_paths(segment), strict=True):
            if kind in files:
                upload(self.store, files[kind], path)
        self._listings.pop(self._folder_of(segment), None)
        return None

    @override
    def object_paths(self, segment: RemoteSegment) -> list[str]:
        check_names(segment)
        stem = posixpath.join(self._folder_of(segment), object_stem(segment))
        return [stem + ending for ending in _ENDINGS.values()]

    def _segment(
        self,
        partition: tuple[TopicPartition, str],
        path: str,
        files: Mapping[FileKind, FileInfo],
        following: Mapping[int, int],
    ) -> RemoteSegment:
        """Describe a segment by its files.

        Args:
            path: path of its files, without ending.
            following: for each start offset in the partition the next one.
        """
        stem, (topic_partition, topic_id) = posixpath.basename(path), partition
        start, log = int(stem[:20]), files[FileKind.LOG]
        # Its last offsets may have no record; after a change of leader, it may reach beyond the next start.
        end = max(self._last_offset(path, start), following.get(start, start + 1) - 1)
        times = time_index.decode(self._read_small(path, FileKind.TIME_INDEX), start)
        entries = leader_epochs.decode(
            self._read_small(path, FileKind.LEADER_EPOCHS), path + _ENDINGS[FileKind.LEADER_EPOCHS]
        )
        written_ms = log.mtime_ns // 1_000_000
        return RemoteSegment(
            topic=topic_partition.topic,
            topic_id=topic_id,
            partition=topic_partition.partition,
            id=stem[-ID_LENGTH:],
            start_offset=start,
            end_offset=end,
            size_bytes=log.size_bytes,
            max_timestamp_ms=times.last_entry[0] if times.entries else written_ms,
            event_time_ms=written_ms,
            broker=NONE,
            epochs=_epochs_within(leader_epochs.history(entries).entries, start, end),
            custom_metadata=None,
            state=CopyState.COPY_FINISHED,
            transaction_index_empty=FileKind.TRANSACTION_INDEX not in files,
        )

    def _last_offset(self, path: str, start: int) -> int:
        """Return the last offset of a segment's log, found from the last entry of its index on."""
        index = offset_index.decode(self._read_small(path, FileKind.OFFSET_INDEX), start)
        last, position = start, int(index.positions[-1]) if index.entries else 0
        with self.store.open(path + _ENDINGS[FileKind.LOG]) as file:
            while (batch := header_at(file, position)) is not None:
                last = max(last, int(batch["last_offset"]))
                position += int(batch["size_bytes"])
        return last

    def _read_small(self, path: str, kind: FileKind) -> bytes:
        path += _ENDINGS[kind]
        with self.store.open(path) as file:
            if (size := file.size()) > SMALL_FILE_BYTES_MAX:
                raise CorruptFileError(f"{size} bytes, more than such a file ever has", path=path)
            return file.read(0, size)

    def _top(self) -> str:
        """Return the folder of the partitions' folders."""
        if self._folder is None:
            below = FOLDER in self.store.names_in(self._root)
            self._folder = posixpath.join(self._root, FOLDER) if below else self._root
        return self._folder

    def _folder_of(self, segment: RemoteSegment) -> str:
        return posixpath.join(self._top(), f"{segment.topic}-{segment.partition}-{segment.topic_id}")

    def _list(self, folder: str) -> dict[str, dict[FileKind, FileInfo]]:
        files: dict[str, dict[FileKind, FileInfo]] = {}
        # A file can lie where a partition's folder would be: then Kafka's copies fail.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for info in self.store.list(folder):
                match = _NAME.fullmatch(info.name)
                if match and not info.is_directory and int(match[1][:20]) <= MAX_OFFSET:
                    files.setdefault(match[1], {})[_KINDS[match[2]]] = info
        self._listings[folder] = files
        return files


def _partition_of(folder: str) -> tuple[TopicPartition, str] | None:
    """Return the partition and topic id in the name of a folder, or None for another name."""
    name, topic_id = folder[: -ID_LENGTH - 1], folder[-ID_LENGTH:]
    try:
        found = parse_directory(name)
        check_topic(found.topic_partition.topic)
    except BadNameError:
        return None
    is_canonical = f"{found.topic_partition}-{topic_id}" == folder and found.topic_partition.partition >= 0
    return (found.topic_partition, topic_id) if is_canonical and is_id(topic_id) else None


def _epochs_within(entries: Sequence[EpochEntry], start: int, end: int) -> tuple[EpochEntry, ...]:
    """Return the part of a lineage that a segment covers: the epoch of its start begins there."""
    before = [EpochEntry(entry.epoch, start) for entry in entries if entry.start_offset <= start]
    return (*before[-1:], *(entry for entry in entries if start < entry.start_offset <= end))
