"""Shows a log directory together with its tier, as one store.

A tiered partition's directory has its local segments only. Here it also has the files of its remote segments, under
the names that they would have on disk, so that everything above reads the whole log without knowing of tiers:

    1  events      the batches of all `__remote_log_metadata` partitions of the log directory; for a live log, whose
                   tier has manifests, the newest manifest
    2  answers     for each offset below the local start, the segment that answers for it, by the partition's lineage
    3  files       each answer's files, from the tier's layout; a segment that answers only for a part of its offsets
                   is cut between two batches, and has no indexes

A broker does not cut segments when it reads a tier; see `docs/differences-from-kafka.md`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import posixpath
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial

from cordwood.common.errors import CorruptFileError, DataError, RequestError, StoreError
from cordwood.common.types import NONE, TopicPartition, override
from cordwood.fs.base import FileInfo, Link, ReadableFile, TargetStore, copy_bytes
from cordwood.fs.location import Location
from cordwood.fs.wrapped import WrappedReadableFile, WrappedTargetStore
from cordwood.storage.formats import checkpoints
from cordwood.storage.formats.filenames import (
    CLUSTER_METADATA_TOPIC,
    LOG_START_OFFSETS,
    DirectoryState,
    FileKind,
    PartitionDirectory,
    offset_name,
    parse_file,
    parse_key_index,
    parsed_directory,
    partition_of_key_index,
    tier_key_index_name,
)
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.formats.messages.topics import INTERNAL_TOPICS, REMOTE_LOG_METADATA
from cordwood.storage.formats.properties import encode_id
from cordwood.storage.log.files import read_leader_epochs, read_log_starts, read_topic_id
from cordwood.storage.log.segment import MAX_OFFSET
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap, read_headers
from cordwood.storage.tier.aiven import AivenLayout, key_prefix
from cordwood.storage.tier.chunks import read_key
from cordwood.storage.tier.configured import ConfiguredTier, LayoutKind
from cordwood.storage.tier.generations import Generations
from cordwood.storage.tier.local import FOLDER, Layout, LocalLayout
from cordwood.storage.tier.manifest import TierState, answers_of, lineage_of
from cordwood.storage.tier.packed import TierSegment
from cordwood.storage.tier.remote_log import (
    FAILED_COPIES,
    Answer,
    Attempts,
    RemoteLog,
    answers,
    apply_event,
    copied_log,
)
from cordwood.storage.tier.segments import CopyState, RemoteSegment, TopicIdPartition, decode_event

#: Topics that a copy must not have: by them a broker would delete remote segments of the original.
NOT_COPIED_FROM_TIER = (CLUSTER_METADATA_TOPIC, REMOTE_LOG_METADATA)
_INDEXES = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX)
_NAMED_BY_OFFSET = (FileKind.LOG, *_INDEXES, FileKind.PRODUCER_SNAPSHOT)


@dataclass(frozen=True, slots=True)
class Tier:
    """Where a tier is.

    Attributes:
        root: the folder of LocalTieredStorage, or the bucket and key prefix of Aiven's plugin.
        keys: files with private keys of encrypted segments.
        places: the paths of the command; other log directories of the broker may be among them, or in them.
        kind: its layout, if that is configured; None: its names show it.
    """

    root: str
    keys: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    kind: LayoutKind | None = None

    def open(self, store: TargetStore) -> Layout:
        """Return the layout of the tier. If it is configured, nothing of the tier is read before it is needed.

        Raises:
            RequestError: there is nothing at its place, or a key cannot be read.
        """
        if self.kind is LayoutKind.LOCAL:
            return LocalLayout(store, self.root)
        if self.kind is LayoutKind.AIVEN:
            return self._aiven(store, self.root)
        try:
            names = store.names_in(self.root)
        except (FileNotFoundError, NotADirectoryError):
            names = {}
        if names and (FOLDER in names or posixpath.basename(self.root.rstrip("/")) == FOLDER):
            return LocalLayout(store, self.root)
        root = self.root if names else key_prefix(store, self.root)
        if root is None:
            raise RequestError(f"the tier {self.root}: nothing is there, so remote segments cannot be read")
        return self._aiven(store, root)

    def _aiven(self, store: TargetStore, root: str) -> AivenLayout:
        return AivenLayout(store, root, [read_key(store, path) for path in self.keys])


def with_tier(
    store: TargetStore, root: str | None, keys: Sequence[str] = (), places: Iterable[str] = ()
) -> TargetStore:
    """Return a store that shows log directories with their tier; `store` itself without one.

    Raises:
        RequestError: there is nothing at its place, or a key cannot be read.
    """
    if root is None:
        return store
    tier = Tier(
        store.absolute_path(root), tuple(map(store.absolute_path, keys)), tuple(map(store.absolute_path, places))
    )
    return TierStore(store, tier, tier.open(store))


def with_configured_tier(
    store: TargetStore, found: ConfiguredTier, keys: Sequence[str] = (), places: Iterable[str] = ()
) -> TargetStore:
    """Return a store that shows log directories with the tier of a server.properties, which is not looked at before.

    Raises:
        RequestError: a key cannot be read.
    """
    files = tuple(map(store.absolute_path, (*keys, *found.keys)))
    tier = Tier(store.absolute_path(found.root), files, tuple(map(store.absolute_path, places)), found.kind)
    return TierStore(store, tier, tier.open(store))


@dataclass(frozen=True, slots=True)
class TierLocation:
    """The location of a store that shows logs with their tier.

    Attributes:
        local: location of the log directories.
        remote: location of the store that has the tier.
        states: what live logs have in the tier, by directory; others have what the tier says when it is read.
    """

    local: Location[TargetStore]
    tier: Tier
    remote: Location[TargetStore]
    states: Mapping[str, TierState]

    @property
    def in_this_process(self) -> bool:
        """Whether only this process can open the store."""
        return self.local.in_this_process or self.remote.in_this_process

    def open(self) -> TierStore:
        """Open the store."""
        return TierStore(self.local.open(), self.tier, self.tier.open(self.remote.open()), states=self.states)


@dataclass(frozen=True, slots=True)
class RemotePart:
    """The part of a partition's log that is in its tier.

    Attributes:
        log: all remote segments that the metadata topic, or the manifest, lists.
        answers: the segments that answer for the offsets from the log start up to the local start.
        lineage: leader epochs of the partition.
        log_start: the log start offset in the checkpoint; 0 without an entry.
        local_start: first offset on the disk; MAX_OFFSET without a local segment.
        state: what the manifest of a live log's tier has; None for a broker's tier.
    """

    log: RemoteLog
    answers: tuple[Answer, ...]
    lineage: tuple[EpochEntry, ...]
    log_start: int
    local_start: int
    state: TierState | None = None

    @property
    def copied(self) -> Sequence[RemoteSegment]:
        """All segments whose copies were finished; some may answer for no offset of the log."""
        return [one for one in self.log.segments.values() if one.state is CopyState.COPY_FINISHED]

    @property
    def copied_offset(self) -> int:
        """The last offset that was copied; NONE without any. A broker copies the segments above it next.

        Source: Kafka RemoteLogManager.findHighestRemoteOffset.
        """
        if self.state is not None:
            return self.state.copied_end - 1
        ends = [*(entry.start_offset for entry in self.lineage[1:]), MAX_OFFSET]
        for entry, end in reversed([*zip(self.lineage, ends, strict=False)]):
            if (highest := self.log.highest(entry.epoch)) is not None:
                return min(highest, end - 1)
        return NONE

    @property
    def gaps(self) -> Sequence[tuple[int, int]]:
        """The ranges of offsets from the log start to the first local segment that no segment answers for."""
        end = self.local_start
        if end == MAX_OFFSET:
            end = self.answers[-1].last_offset + 1 if self.answers else 0
        found, at = [], self.log_start
        for first, last in [*((one.first_offset, one.last_offset) for one in self.answers), (end, end)]:
            if at < min(first, end):
                found.append((at, min(first, end) - 1))
            at = max(at, last + 1)
        return found

    @property
    def failing_copies(self) -> Mapping[int, Attempts]:
        """The segments whose copies failed again and again and that are still to be copied, by start offset."""
        tries = self.log.failed_copies
        copied = self.copied_offset
        return {start: one for start, one in tries.items() if one.count >= FAILED_COPIES and start > copied}


class _InfoOfIndex(FileInfo):
    """An index in an object store: its size is read with its segment's manifest, once somebody needs it."""

    __slots__ = ("_read_size", "_size")
    _size: int | None
    _read_size: Callable[[], int]

    @classmethod
    def of(cls, like: FileInfo, read_size: Callable[[], int]) -> _InfoOfIndex:
        """Return the attributes of a file whose size `read_size` returns."""
        info = cls(like.name, 0, like.mtime_ns, is_directory=False, allocated_bytes=0, ctime_ns=like.ctime_ns)
        info._size, info._read_size = None, read_size
        return info

    @property
    def size_bytes(self) -> int:
        """Its size."""
        if self._size is None:
            self._size = self._read_size()
        return self._size

    @size_bytes.setter
    def size_bytes(self, size: int) -> None:
        self._size = size

    @override
    def __reduce__(self) -> tuple[object, ...]:
        return FileInfo, astuple(self)


@dataclass(frozen=True, slots=True)
class _RemoteFile:
    """A file of a remote segment, under its name in the partition's directory.

    Attributes:
        part: the part of the object that is shown, [first, end) in bytes; None for all of it.
    """

    segment: RemoteSegment
    kind: FileKind
    info: FileInfo
    part: tuple[int, int] | None = None

    @classmethod
    def of(cls, segment: RemoteSegment, kind: FileKind, offset: int, size: int) -> _RemoteFile:
        """Return the file of a kind, named by an offset."""
        return cls(segment, kind, _info_of(segment, kind, offset, size))


def infos_of(one: TierSegment) -> dict[FileKind, FileInfo]:
    """Return the files of a segment as a store shows them, all of it."""
    segment = one.segment
    return {kind: _info_of(segment, kind, segment.start_offset, size) for kind, size in one.sizes.items()}


def _info_of(segment: RemoteSegment, kind: FileKind, offset: int, size: int) -> FileInfo:
    digest = hashlib.sha256(segment.id.encode()).digest()
    return FileInfo(
        offset_name(offset, kind),
        size,
        segment.event_time_ms * 1_000_000,
        is_directory=False,
        allocated_bytes=0,
        # Its objects never change, and its id is never used again.
        ctime_ns=-1 - (int.from_bytes(digest[:8]) >> 1),
    )


class TierStore(WrappedTargetStore):
    """Shows the partitions of log directories with the segments that are in their tier; remote files are read-only.

    Attributes:
        refused: records of the metadata topic that cannot be decoded, by log directory; only if they are passed over.
        damaged: partitions whose manifests cannot be decoded, by directory; only if they are passed over.
    """

    def __init__(
        self,
        store: TargetStore,
        tier: Tier,
        layout: Layout,
        logs: Mapping[str, Mapping[TopicIdPartition, RemoteLog]] = {},
        *,
        states: Mapping[str, TierState] = {},
        pass_over: bool = False,
    ) -> None:
        """Show a store with a tier.

        Args:
            logs: the remote logs of a directory that has no metadata topic.
            states: what live logs have in the tier, by directory, instead of their newest manifests.
            pass_over: pass over manifests, and records of the metadata topic, that cannot be decoded, instead of
                raising their errors.
        """
        super().__init__(store)
        self.tier = tier
        self.layout = layout
        self.refused: dict[str, list[DataError]] = {}
        self.damaged: dict[str, tuple[TopicIdPartition, CorruptFileError]] = {}
        self._pass_over = pass_over
        self._logs = dict(logs)
        self._states = dict(states)
        self._reading = threading.Lock()
        self._parts: dict[str, RemotePart | None] = {}
        self._files: dict[str, Mapping[str, _RemoteFile]] = {}
        #: Folders of topics in the tier, and log directories of the command, as of the last listing of one of these.
        self._topics: frozenset[str] | None = None
        self._directories: tuple[str, ...] | None = None
        #: Log start offsets of manifests that are above those in the checkpoint of their log directory.
        self._newer_starts: dict[str, dict[TopicPartition, int]] = {}
        #: Log start offsets in the checkpoint of each log directory, as of its last listing.
        self._log_starts: dict[str, Mapping[TopicPartition, int]] = {}

    @override
    def location(self) -> Location[TargetStore]:
        return TierLocation(self._store.location(), self.tier, self.layout.store.location(), self._states)

    def to_check(self) -> TierStore:
        """Return a store that reads the metadata topic anew, and passes over records that cannot be decoded."""
        return TierStore(self._store, self.tier, self.layout, pass_over=True)

    # ---- verbs -------------------------------------------------------------------------------------------------------

    @override
    def list(self, path: str) -> Sequence[FileInfo]:
        entries = super().list(path)
        self._parts.pop(path, None)
        self._files.pop(path, None)
        self._log_starts.pop(path, None)
        if parsed_directory(path) is None:
            self._topics = self._directories = None
        if (part := self.remote_part(path, entries)) is None:
            return entries
        found = {name: file.info for name, file in self._files_of(path).items()}
        found |= {info.name: info for info in entries if not _is_leftover(part, info.name)}
        return [found[name] for name in sorted(found)]

    @override
    def stat(self, path: str) -> FileInfo:
        file = self._remote(path)
        return super().stat(path) if file is None else file.info

    @override
    def exists(self, path: str) -> bool:
        return self._remote(path) is not None or super().exists(path)

    @override
    def open(self, path: str) -> ReadableFile:
        if starts := self._starts_for(path):
            known = read_log_starts(self._store, posixpath.dirname(path))
            return _Content(path, checkpoints.encode({**known, **starts}))
        if (indexed := self._remote_log_of(path)) is not None:
            return self._open_key_index(path, indexed)
        file = self._remote(path)
        return super().open(path) if file is None else self._opened(path, file)

    @override
    def reads_by_request(self, path: str) -> bool:
        return super().reads_by_request(path if self._remote(path) is None else self.tier.root)

    @override
    def path_on_disk(self, path: str) -> str | None:
        return super().path_on_disk(path) if self._remote(path) is None else None

    @override
    def copy(self, source: str, target: str, *, mode: int = 0o666) -> None:
        if self._remote(source) is None and not self._starts_for(source):
            super().copy(source, target, mode=mode)
            return
        with self.open(source) as file, self.create(target, mode=mode) as copied:
            copy_bytes(file, copied)

    @override
    def try_link(self, link: Link, source: str, target: str) -> bool:
        return self._remote(source) is None and super().try_link(link, source, target)

    # ---- partitions --------------------------------------------------------------------------------------------------

    def remote_part(self, path: str, entries: Sequence[FileInfo] | None = None) -> RemotePart | None:
        """Return the remote part of the log in a partition's directory; None if no metadata record is about it.

        Args:
            entries: the files on the disk, if they were listed just now.

        Raises:
            CorruptMessageError: a record of the metadata topic cannot be decoded.
        """
        if path not in self._parts:
            self._parts[path] = self._remote_part(path, entries)
        return self._parts[path]

    def _remote_part(self, path: str, entries: Sequence[FileInfo] | None) -> RemotePart | None:
        if (key := self.partition_at(path)) is None:
            return None
        directory, name = posixpath.dirname(path), TopicPartition(key.topic, key.partition)
        if entries is None:
            entries = super().list(path)
        if path in self._states:
            return self._part_of(self._states[path], path, entries, self._log_start(directory, name))
        log = self.remote_log(directory, key)
        # Records that name no segment are from before a live log adopted the tier.
        if (log is None or not log.segments) and (state := self._state_for(path, key)) is not None:
            return self._part_of(state, path, entries, self._log_start(directory, name))
        local_start, start = _local_start(entries, 0), self._log_start(directory, name)
        if log is None:
            # The checkpoint has an entry for each tiered log.
            if start is not None and start < local_start < MAX_OFFSET and not self._pass_over:
                raise RequestError(
                    f"{path} starts at {start}, and its first local segment at {local_start}, but no record of "
                    f"{REMOTE_LOG_METADATA} in {directory} is about it. Give all log directories of the broker"
                )
            return None
        lineage: Sequence[EpochEntry] = ()
        with contextlib.suppress(CorruptFileError):
            lineage = read_leader_epochs(self._store, path).entries
        found = answers(log, lineage, start := start or 0, local_start)
        return RemotePart(log, tuple(found), tuple(lineage), start, local_start)

    def state(self, partition: TopicIdPartition) -> TierState | None:
        """Read what the newest manifest of a live log's tier has; None if the log has no manifest.

        Raises:
            CorruptFileError: the manifest is damaged.
        """
        # A tier that a server.properties configures is a broker's.
        if not isinstance(self.layout, AivenLayout) or self.tier.kind is not None:
            return None
        if self._topics is None:
            self._topics = self.layout.topics()
        if f"{partition.topic}-{partition.topic_id}" not in self._topics:
            return None
        return Generations(self.layout.store, self.layout, partition).newest()

    def _state_for(self, path: str, partition: TopicIdPartition) -> TierState | None:
        self.damaged.pop(path, None)
        try:
            return self.state(partition)
        except CorruptFileError as error:
            if not self._pass_over:
                raise
            self.damaged[path] = partition, error
            return None

    def _part_of(self, state: TierState, path: str, entries: Sequence[FileInfo], start: int | None) -> RemotePart:
        """Return the remote part of a live log.

        Args:
            path: its directory, which may have no segment, as after the loss of its disk.
            start: its log start offset in the checkpoint, which may be older than the manifest's.
        """
        lineage: Sequence[EpochEntry] = ()
        with contextlib.suppress(CorruptFileError):
            lineage = read_leader_epochs(self._store, path).entries
        local_start = _local_start(entries, state.local_floor)
        newer = self._newer_starts.setdefault(posixpath.dirname(path), {})
        name = TopicPartition(state.partition.topic, state.partition.partition)
        newer.pop(name, None)
        if state.log_start_offset > (start := start or 0):
            newer[name] = start = state.log_start_offset
        log = copied_log(one.segment for one in state.segments)
        found = answers_of(state, start, local_start)
        return RemotePart(log, tuple(found), tuple(lineage or lineage_of(state)), start, local_start, state=state)

    def _starts_for(self, path: str) -> Mapping[TopicPartition, int]:
        """Return the log start offsets that a file should have by manifests; empty for all but a checkpoint of them."""
        directory, name = posixpath.split(path)
        return self._newer_starts.get(directory, {}) if name == LOG_START_OFFSETS else {}

    def _log_start(self, directory: str, partition: TopicPartition) -> int | None:
        if directory not in self._log_starts:
            self._log_starts[directory] = read_log_starts(self._store, directory)
        return self._log_starts[directory].get(partition)

    def _log_directories(self) -> Sequence[str]:
        """Return the log directories among the paths of the command, and in them."""
        if self._directories is None:
            found = dict[str, None]()
            for place in self.tier.places:
                below = [f"{place}/{name}" for name, is_folder in self._names_in(place).items() if is_folder]
                found |= dict.fromkeys((place, posixpath.dirname(place)))
                found |= dict.fromkeys(one for one in below if parsed_directory(one) is None)
            self._directories = tuple(path for path in found if self._names_in(path))
        return self._directories

    def _names_in(self, path: str) -> Mapping[str, bool]:
        try:
            return self._store.names_in(path)
        except OSError:
            return {}

    def _remote(self, path: str) -> _RemoteFile | None:
        folder, name = posixpath.split(path)
        parsed = parse_file(name)
        if parsed is None or parsed.kind not in _NAMED_BY_OFFSET:
            return None
        file = self._files_of(folder).get(name)
        if file is None or (not _is_leftover(self._parts[folder], name) and super().exists(path)):
            return None
        return file

    def _remote_log_of(self, path: str) -> _RemoteFile | None:
        """Return the `.log` of the remote segment whose key index a file is; None for other files."""
        if (directory := partition_of_key_index(path)) is None:
            return None
        base = parse_key_index(posixpath.basename(path))
        return None if base is None else self._remote(f"{directory}/{offset_name(base, FileKind.LOG)}")

    def _open_key_index(self, path: str, log: _RemoteFile) -> ReadableFile:
        """Open the key index of a remote segment: one on the disk that has its id in the name, or that in the tier.

        The one without an id is of a segment that was on the disk. A live log has those that the tier has on its disk.
        """
        folder = posixpath.dirname(path)
        own = f"{folder}/{tier_key_index_name(log.segment.start_offset, log.segment.id)}"
        with contextlib.suppress(FileNotFoundError):
            return super().open(own)
        directory = partition_of_key_index(path)
        state = None if directory is None or (part := self._parts[directory]) is None else part.state
        if state is None:
            return super().open(path)
        if directory in self._states or log.part is not None or not isinstance(self.layout, AivenLayout):
            raise FileNotFoundError(errno.ENOENT, "the segment has no key index", own)
        return self.layout.store.open(self.layout.key_index_path(log.segment))

    def _files_of(self, path: str) -> Mapping[str, _RemoteFile]:
        """Return the remote files of a partition's directory by name."""
        if path not in self._files:
            found: dict[str, _RemoteFile] = {}
            if (part := self.remote_part(path)) is not None:
                known = {} if part.state is None else {one.segment.id: one.sizes for one in part.state.segments}
                for one in part.answers:
                    is_first = not found and one.first_offset == part.log_start
                    sizes = known.get(one.segment.id) or self.layout.kinds(one.segment)
                    found |= {file.info.name: file for file in self._shown(one, sizes, is_first=is_first)}
            self._files[path] = found
        return self._files[path]

    def _shown(self, answer: Answer, sizes: Mapping[FileKind, int | None], *, is_first: bool) -> Iterator[_RemoteFile]:
        """Yield the files of an answer.

        Args:
            sizes: of the segment's files, as `Layout.kinds` returns them.
            is_first: it begins at the log start, maybe in mid-segment.
        """
        segment = answer.segment
        base = segment.start_offset if is_first else answer.first_offset
        is_whole = (base, answer.last_offset) == (segment.start_offset, segment.end_offset)
        log = _RemoteFile.of(segment, FileKind.LOG, base, sizes.get(FileKind.LOG) or segment.size_bytes)
        if not is_whole:
            log = replace(log, info=replace(log.info, ctime_ns=0))  # it is a part of the object
        if not is_whole and sizes:
            # Without the object nothing is cut, and its reader gets the error.
            with contextlib.suppress(FileNotFoundError, CorruptFileError):
                first, end = self._part(segment, base, answer.last_offset)
                log = replace(log, info=replace(log.info, size_bytes=end - first), part=(first, end))
        yield log
        wanted = {kind: base for kind in _INDEXES if is_whole}
        if answer.last_offset == segment.end_offset:
            wanted[FileKind.PRODUCER_SNAPSHOT] = segment.end_offset + 1
        for kind in sizes.keys() & wanted.keys():
            file = _RemoteFile.of(segment, kind, wanted[kind], sizes[kind] or 0)
            if sizes[kind] is None:
                file = replace(file, info=_InfoOfIndex.of(file.info, partial(self._size, segment, kind)))
            yield file

    def _size(self, segment: RemoteSegment, kind: FileKind) -> int:
        """Return the size of a file of a segment; 0 if the segment has no such file, or it cannot be read."""
        try:
            with self.layout.open(segment, kind) as file:
                return file.size()
        except (FileNotFoundError, CorruptFileError):
            return 0

    def _part(self, segment: RemoteSegment, first: int, last: int) -> tuple[int, int]:
        """Return the bytes of a segment's batches that begin at or above an offset, and end at or below another."""
        start = end = None
        with self.layout.open(segment, FileKind.LOG) as file:
            for rows in read_headers(file, base_offset=segment.start_offset, search=False):
                if isinstance(rows, Gap):
                    break
                chosen = rows[(rows["last_offset"] >= first) & (rows["last_offset"] <= last)]
                if chosen.size:
                    start = int(chosen["position"][0]) if start is None else start
                    end = int(chosen["position"][-1] + chosen["size_bytes"][-1])
        return (0, 0) if start is None or end is None else (start, end)

    def _opened(self, path: str, file: _RemoteFile) -> ReadableFile:
        try:
            opened = self.layout.open(file.segment, file.kind)
        except (FileNotFoundError, StoreError) as error:
            if isinstance(error, FileNotFoundError) and self._is_empty_index(file):
                return _Content(path, b"")
            state = None if (part := self._parts.get(posixpath.dirname(path))) is None else part.state
            if state is not None and self.state(state.partition) != state:
                # As after the deletion of a file by a broker, readers list again.
                raise FileNotFoundError(errno.ENOENT, "the log's writer deleted the segment", path) from error
            if isinstance(error, StoreError):
                raise
            what = f"segment {file.segment.id} is not in the tier {self.tier.root}, although its copy was finished"
            raise CorruptFileError(what, path=path) from error
        return _FilePart(opened, path, *(file.part or (0, opened.size())))

    def _is_empty_index(self, file: _RemoteFile) -> bool:
        """Return whether a file is the transaction index of a segment that turned out to have none."""
        if file.kind is not FileKind.TRANSACTION_INDEX or file.segment.transaction_index_empty:
            return False
        kinds = self.layout.kinds(file.segment)
        return FileKind.LOG in kinds and file.kind not in kinds

    # ---- facts of a partition ----------------------------------------------------------------------------------------

    def partition_at(self, path: str) -> TopicIdPartition | None:
        """Return the partition in a directory, with its topic id; None if it cannot be tiered, as an internal topic."""
        name = parsed_directory(path)
        if name is None or name.state is not DirectoryState.CURRENT or name.topic_partition.topic in INTERNAL_TOPICS:
            return None
        topic_id = read_topic_id(self._store, path)
        one = name.topic_partition
        return None if topic_id is None else TopicIdPartition(encode_id(topic_id), one.topic, one.partition)

    def remote_log(self, directory: str, partition: TopicIdPartition) -> RemoteLog | None:
        """Return the remote log of a partition by the metadata topic; None if no record is about it.

        A broker with several disks has each partition of the metadata topic on one of them. So the log directory of the
        partition is read first, then all others of the command.
        """
        if (log := self.remote_logs(directory).get(partition)) is not None:
            return log
        logs = (self.remote_logs(one).get(partition) for one in self._log_directories())
        return next((log for log in logs if log is not None), None)

    def remote_logs(self, directory: str) -> Mapping[TopicIdPartition, RemoteLog]:
        """Return the remote log of each topic id and partition, from the metadata topic in a log directory."""
        with self._reading:  # threads that list partitions ask at the same time
            if directory not in self._logs:
                self._logs[directory] = self._read_remote_logs(directory)
            return self._logs[directory]

    def _read_remote_logs(self, directory: str) -> Mapping[TopicIdPartition, RemoteLog]:
        logs: dict[TopicIdPartition, RemoteLog] = {}
        refused = self.refused.setdefault(directory, [])
        for info in super().list(directory):
            name = parsed_directory(info.name) if info.is_directory else None
            if name is None or name.state is not DirectoryState.CURRENT or not _is_metadata(name):
                continue
            path = f"{directory}/{info.name}"
            try:
                for record in LogView(path, fs=self._store).records():
                    try:
                        apply_event(logs, decode_event(record.value))
                    except DataError as error:
                        error.offset = record.offset
                        self._refuse(error.at(path), refused)
            except DataError as error:
                self._refuse(error, refused)
        return logs

    def _refuse(self, error: DataError, refused: MutableSequence[DataError]) -> None:
        if not self._pass_over:
            raise error
        refused.append(error)


def _local_start(entries: Sequence[FileInfo], floor: int) -> int:
    """Return the first offset from `floor` on that is on the disk; MAX_OFFSET without a segment."""
    files = (parse_file(info.name) for info in entries)
    # A deleted segment is there for a while under another name, and no reader gets it.
    starts = [file.offset for file in files if file and file.kind is FileKind.LOG and not file.temporary]
    return min((one for one in starts if one >= floor), default=MAX_OFFSET)


def _is_leftover(part: RemotePart | None, name: str) -> bool:
    """Return whether a local file is of a segment that a live log replaced in its tier, and did not remove yet."""
    if part is None or part.state is None:
        return False
    file = parse_file(name)
    if file is None or file.temporary or not (file.kind is FileKind.LOG or file.kind in _INDEXES):
        return False
    return file.offset < part.state.local_floor


def _is_metadata(name: PartitionDirectory) -> bool:
    return name.topic_partition.topic == REMOTE_LOG_METADATA


class _Content(ReadableFile):
    """A file in memory."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self._data = data

    @override
    def size(self) -> int:
        return len(self._data)

    @override
    def read_into(self, position: int, target: memoryview) -> int:
        data = self.read(position, target.nbytes)
        target.cast("B")[: len(data)] = data
        return len(data)

    @override
    def read(self, position: int, size_bytes: int) -> bytes:
        return self._data[position : position + size_bytes]

    @override
    def close(self) -> None:
        pass


class _FilePart(WrappedReadableFile):
    """The part [first, end) of a file, under another path."""

    def __init__(self, file: ReadableFile, path: str, first: int, end: int) -> None:
        super().__init__(file)
        self.path = path
        self._first, self._end = first, end

    @override
    def size(self) -> int:
        return self._end - self._first

    @override
    def read_into(self, position: int, target: memoryview) -> int:
        count = max(min(len(target), self.size() - position), 0)
        return self._file.read_into(self._first + position, target[:count]) if count else 0

    @override
    def read(self, position: int, size_bytes: int) -> bytes:
        count = max(min(size_bytes, self.size() - position), 0)
        return self._file.read(self._first + position, count) if count else b""
