"""A node: all log directories of one broker, with its cluster's metadata about their topics.

A broker spreads its partitions over several disks (JBOD), and one of the directories, or one on another machine, holds
`__cluster_metadata-0`. So a partition's configs, its replicas, and whether it exists twice are properties of the node,
not of a directory. Call `doubt` before deleting anything: configs that may be incomplete are no reason to delete.

The metadata log is read to its end, as by a broker without a quorum. In a quorum of several controllers, the last
records may not be committed.
"""

from __future__ import annotations

import logging
import posixpath
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from cordwood.common.config import (
    Layer,
    Source,
    SourceKind,
    TopicConfig,
    internal_layers,
    log_directories,
    overrides,
    resolve,
    server_properties,
)
from cordwood.common.errors import CorruptBatchError, CorruptFileError, DataError, NotFoundError, RequestError
from cordwood.common.text import names_text
from cordwood.common.threads import in_portions
from cordwood.common.types import NONE, ControlType, TopicPartition
from cordwood.fs.base import FileInfo, Store
from cordwood.kernels.layout import is_control
from cordwood.record.columns import BatchWindow, OnDamage, RecordColumns, decode
from cordwood.storage.formats import cluster_metadata, filenames, log_configs
from cordwood.storage.formats.cluster_metadata import ClusterMetadata
from cordwood.storage.formats.filenames import (
    CLEANER_OFFSETS,
    META_PROPERTIES,
    DirectoryState,
    FileKind,
    PartitionDirectory,
    Temporary,
)
from cordwood.storage.formats.log_configs import LogConfigs
from cordwood.storage.log.files import read_file, read_topic_id
from cordwood.storage.log.loaded import LoadedLog, as_loaded
from cordwood.storage.log.position import LogPosition, log_position
from cordwood.storage.log.transactions import READ_UNCOMMITTED
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, Gap, WindowReader
from cordwood.storage.node.directory import LogDirectory, Partition, PathKind, is_wanted, look, twice_in_cleaner_offsets
from cordwood.storage.tier.store import TierStore

_log = logging.getLogger(__name__)
_ATTEMPTS = 5
#: Held while the configs of a topic are read.
_resolving = threading.Lock()
#: Error text for a metadata snapshot whose end is missing.
NO_FOOTER = "it ends before its footer, so a part of it is missing"


@dataclass(frozen=True, slots=True)
class LocatedPartition:
    """A partition's directory and its log directory.

    Attributes:
        name: the parsed directory name; None if the directory is not named like a partition.
    """

    directory: LogDirectory
    path: str
    name: PartitionDirectory | None

    @property
    def topic(self) -> str | None:
        """The topic; None if `name` is None."""
        return None if self.name is None else self.name.topic_partition.topic

    def inode(self) -> int:
        """Return the inode of the directory: file systems keep a directory's inodes and files near each other."""
        info = self.directory.info(posixpath.basename(self.path))
        return 0 if info is None else info.inode

    def topic_id(self) -> uuid.UUID | None:
        """Return the topic id in `partition.metadata`; see `read_topic_id`."""
        return read_topic_id(self.directory.fs, self.path)

    def names_topic(self) -> bool:
        """Return whether there is a `partition.metadata`, readable or not."""
        return self.directory.fs.exists(f"{self.path}/{FileKind.PARTITION_METADATA}")

    def log(self, entries: Sequence[FileInfo] | None = None) -> LogView:
        """Open the partition's log; `entries`: the files of its directory, if they were listed just now."""
        if self.name is None:
            return LogView(self.path, fs=self.directory.fs, live=self.directory.live, entries=entries)
        return self.directory.log(Partition(self.path, self.name), entries)

    def loaded(self, log: LogView, now_ms: int) -> LoadedLog:
        """Return the log as a load would leave it.

        Args:
            log: the log that `log()` returned.
            now_ms: time of the load.

        Raises:
            CorruptFileError: a load fails.
        """
        assert self.name is not None, "a load takes no other directory"
        return as_loaded(log, self.directory.stop_of(self.name), now_ms)


def is_asked_for(place: LocatedPartition, topics: Sequence[str], partitions: Sequence[str]) -> bool:
    """Return whether a user's choice includes this place; arguments as for `directory.is_wanted`."""
    if place.name is None:
        return not topics and not partitions
    return is_wanted(place.name.topic_partition, topics, partitions)


@dataclass(frozen=True)
class Node:
    """Log directories of one broker.

    Attributes:
        places: the partitions at `paths`, ordered by topic and partition.
        metadata: the cluster's metadata; None without a metadata log.
        paths: the paths that the user named.
        said: config layers from outside the metadata: server.properties and `--config`.
        opens_tier: its logs are live ones, which open their tier themselves.
        broker: the broker's name, if the user gave one.
    """

    fs: Store
    directories: tuple[LogDirectory, ...]
    places: tuple[LocatedPartition, ...]
    metadata: ClusterMetadata | None = None
    metadata_path: str | None = None
    paths: tuple[str, ...] = ()
    said: tuple[Layer, ...] = ()
    opens_tier: bool = False
    broker: str | None = None
    _configs: dict[str, TopicConfig] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(
        cls,
        fs: Store,
        paths: Sequence[str],
        metadata: str | None = None,
        server_properties: str | None = None,
        overrides: Iterable[str] = (),
    ) -> Node:
        """List the directories of one broker, and read the cluster's metadata.

        Args:
            paths: log directories, folders of several, or partitions' directories.
            metadata: path of `__cluster_metadata-0`, or of the directory that contains it; None: search the log
                directories.
            server_properties: path of the broker's server.properties.
            overrides: `key=value` for all topics or the broker, `topic:key=value` for one topic.

        Raises:
            NotFoundError: a path does not exist or has no log, or `metadata` has no metadata log.
            RequestError: a path is a file, or the directories belong to different brokers.
            ConfigError: Kafka would reject a setting.
        """
        said = given_layers(fs, server_properties, overrides)
        directories, places = list_places(fs, paths)
        _check_one_broker(directories)
        others = other_directories(fs, paths, directories, server_properties)
        read, path = newest_metadata(fs, [*directories, *others], metadata)
        return cls(fs, directories, places, read, path, tuple(paths), said)

    def listed_again(self, paths: Sequence[str] | None = None) -> Node:
        """Return the node with its directories, or some of them, as they are now; its metadata is not read again."""
        paths = self.paths if paths is None else tuple(paths)
        directories, places = list_places(self.fs, paths)
        return replace(self, directories=directories, places=places, paths=paths)

    def with_overrides(self, arguments: Iterable[str]) -> Node:
        """Return the node with further configs, `key=value` or `topic:key=value`, which override all others.

        Raises:
            ConfigError: Kafka would reject a setting.
        """
        return replace(self, said=(*self.said, *overrides(arguments)), _configs={})

    @property
    def has_tier(self) -> bool:
        """Whether the remote segments of tiered topics are read, too."""
        return self.opens_tier or isinstance(self.fs, TierStore)

    @cached_property
    def node_id(self) -> int | None:
        """`node.id` of the broker; None if no meta.properties contains it, and the user's name for it is no number."""
        ids = [directory.meta.node_id for directory in self.directories if directory.meta is not None]
        known = next((one for one in ids if one is not None), None)
        return int(self.broker) if known is None and self.broker is not None and self.broker.isdecimal() else known

    @property
    def name(self) -> str:
        """The broker's name: the user's, else `node.id`; empty without either."""
        if self.broker is not None:
            return self.broker
        return "" if self.node_id is None else str(self.node_id)

    @cached_property
    def partitions(self) -> Mapping[TopicPartition, LocatedPartition]:
        """All partitions in the log directories, whether or not the user named them; the first of duplicates.

        Partitions that are future, stray or to be deleted are left out.
        """
        current = DirectoryState.CURRENT
        return {name: places[0] for (name, state), places in self._by_name.items() if state is current}

    def config_of(self, topic: str) -> TopicConfig:
        """Return a topic's configs, each with its source.

        Raises:
            ConfigError: a source contains a value that Kafka would reject.
        """
        if topic not in self._configs:
            with _resolving:  # threads that list partitions of a topic would all read the same files
                if topic not in self._configs:
                    self._configs[topic] = self._resolved(topic)
        return self._configs[topic]

    def _resolved(self, topic: str) -> TopicConfig:
        layers = internal_layers(topic) if self.metadata is None else ()
        if self.metadata is not None:
            layers = self.metadata.layers(topic, self.node_id, self.metadata_path or cluster_metadata.NAME)
        return resolve(topic, (*layers, *self.said), self._remembered(topic), compacts_tiered=self.opens_tier)

    def _remembered(self, topic: str) -> Layer | None:
        """Return the configs that a live log of a topic last wrote to a file; None if the metadata has the topic."""
        if self.metadata is not None and topic in self.metadata.topics:
            return None
        places = self._current_places.get(topic, ())
        portions = in_portions(self.fs.concurrency, _remembered_at, places, disk_order=LocatedPartition.inode)
        found = [one for portion in portions for one in portion if one is not None]
        if not found:
            return None
        path, configs = max(found, key=lambda one: one[1].written_ms)
        return Layer(Source(SourceKind.REMEMBERED, path, topic), configs.texts)

    @cached_property
    def _current_places(self) -> Mapping[str, Sequence[LocatedPartition]]:
        """Partition directories by topic, except for directories that are future, stray or to be deleted.

        A live log can only have written its configs to one of these.
        """
        found: dict[str, list[LocatedPartition]] = {}
        for (name, state), places in self._by_name.items():
            if state is DirectoryState.CURRENT:
                found.setdefault(name.topic, []).extend(places)
        return found

    def broker_layers(self) -> tuple[Layer, ...]:
        """Return the sources of the broker's own configs, for `config.resolve_broker`."""
        layers: tuple[Layer, ...] = ()
        if self.metadata is not None:
            layers = self.metadata.layers("", self.node_id, self.metadata_path or cluster_metadata.NAME)
        return (*layers, *self.said)

    def doubt(self, topic: str, name: str = "cleanup.policy") -> str | None:
        """Return why a topic's actual config may differ from `config_of`; None if it is certain."""
        kind = self.config_of(topic)[name].source.kind
        if kind in (SourceKind.OVERRIDE, SourceKind.TOPIC_OVERRIDE, SourceKind.REMEMBERED):
            return None
        if self.metadata is None:
            # No other source counts: the user named this server.properties, or Kafka set the config when it created
            # the topic.
            return None if kind in (SourceKind.SERVER_PROPERTIES, SourceKind.INTERNAL) else "no metadata log"
        if self.metadata.problems:
            return "damaged metadata log"
        return None if topic in self.metadata.topics else "not in the metadata"

    def replica_count(self, partition: TopicPartition) -> int | None:
        """Return the number of a partition's replicas; None if unknown."""
        if self.metadata is None or self.metadata.problems:
            return None
        return self.metadata.replica_count(partition.topic, partition.partition)

    def ends_at_log_end(self, place: LocatedPartition) -> bool:
        """Return whether the high watermark of a partition is its log's end, because there are no other replicas.

        This is true outside of a broker's directory, and if the metadata lists a single replica.
        """
        if place.directory.info(META_PROPERTIES) is None:
            return True
        return place.name is not None and self.replica_count(place.name.topic_partition) == 1

    @cached_property
    def _by_name(self) -> Mapping[tuple[TopicPartition, DirectoryState], Sequence[LocatedPartition]]:
        found: dict[tuple[TopicPartition, DirectoryState], list[LocatedPartition]] = {}
        for directory in self.directories:
            for place in _places_in(directory):
                if place.name is not None:
                    found.setdefault((place.name.topic_partition, place.name.state), []).append(place)
        return found

    @cached_property
    def topics(self) -> frozenset[str]:
        """Names of all known topics: from the metadata, and of all partitions in the directories, selected or not."""
        here = {name.topic for name, _ in self._by_name}
        return frozenset(here if self.metadata is None else here | self.metadata.topics.keys())

    def duplicates(self, partition: TopicPartition) -> Sequence[LocatedPartition]:
        """Return all places of a partition that exists twice, so that a broker does not start; empty for others."""
        places = self._by_name.get((partition, DirectoryState.CURRENT), ())
        return places if len(places) > 1 else ()

    @cached_property
    def cleaner_twin(self) -> str | None:
        """Why a broker's cleaner threads end: a partition is in two cleaner checkpoints. None if no partition is."""
        for partition, first, other in twice_in_cleaner_offsets(self.directories):
            return (
                f"{partition} is in {CLEANER_OFFSETS} of both {first.path} and {other.path}: a broker's cleaner "
                "threads end at such a duplicate, and nothing is compacted any more; remove the entry where "
                "the partition is not"
            )
        return None

    def futures(self, partition: TopicPartition) -> Sequence[LocatedPartition]:
        """Return the directories, in other log directories, to which the partition is being copied."""
        return self._by_name.get((partition, DirectoryState.FUTURE), ())


def given_layers(fs: Store, path: str | None, arguments: Iterable[str]) -> tuple[Layer, ...]:
    """Read the configs that a user gives, in a server.properties and as arguments.

    Args:
        path: path of the server.properties, or None.
        arguments: `key=value` or `topic:key=value`; these override the file.

    Raises:
        NotFoundError: the file does not exist.
        RequestError: Kafka would reject a config.
    """
    layers = overrides(arguments)
    if path is None:
        return layers
    try:
        data = read_file(fs, path)
    except FileNotFoundError:
        raise NotFoundError(f"{path} does not exist; it was to be the broker's server.properties") from None
    return (server_properties(data, path), *layers)


# ---- which partitions ------------------------------------------------------------------------------------------------


def list_places(fs: Store, paths: Sequence[str]) -> tuple[tuple[LogDirectory, ...], tuple[LocatedPartition, ...]]:
    """Return the log directories and the partitions at some paths, without reading metadata.

    For the path of a partition, the log directory is its parent, and the parent's other partitions are left out.

    Raises:
        NotFoundError, RequestError: as `Node.open`.
    """
    directories: dict[str, LogDirectory] = {}
    places: dict[str, LocatedPartition] = {}

    def directory_at(path: str) -> LogDirectory:
        if path not in directories:
            directories[path] = LogDirectory.open(fs, path)
        return directories[path]

    for path in paths:
        found = look(fs, path)
        if found.kind is PathKind.FILE:
            raise RequestError(
                f"{found.path} is a file, not a directory. To see what is in it:  cordwood dump {found.path}"
            )
        if found.kind is PathKind.PARTITION:
            place = LocatedPartition(
                directory_at(posixpath.dirname(found.path) or "."), found.path, filenames.parsed_directory(found.path)
            )
            places.setdefault(found.path, place)
        for one in found.directories:
            places.update({place.path: place for place in _places_in(directory_at(one))})
    return tuple(directories.values()), tuple(sorted(places.values(), key=place_order))


def _places_in(directory: LogDirectory) -> Iterator[LocatedPartition]:
    for partition in directory.partitions:
        yield LocatedPartition(directory, partition.path, partition.name)


def place_order(place: LocatedPartition) -> tuple[TopicPartition, str]:
    """Return the sort key of a partition's directory: its topic and partition, then its path."""
    name = place.name
    return (TopicPartition(posixpath.basename(place.path), -1) if name is None else name.topic_partition, place.path)


def _check_one_broker(directories: Sequence[LogDirectory]) -> None:
    """Raise RequestError if directories belong to different brokers, or if one is a copy of another."""
    check_one_cluster(directories)
    known = [(one, one.meta.node_id) for one in directories if one.meta is not None]
    for one, node_id in known[1:]:
        if node_id != known[0][1]:
            raise RequestError(
                f"{known[0][0].path} is of node {known[0][1]}, {one.path} of node {node_id}. "
                "This takes the directories of one broker at a time: each cleans and keeps its logs by itself."
            )


def check_one_cluster(directories: Sequence[LogDirectory]) -> None:
    """Raise RequestError if directories belong to different clusters, or if one is a copy of another."""
    _check_cluster_ids(directories)
    by_id: dict[object, LogDirectory] = {}
    for one in directories:
        if one.meta is None or one.meta.directory_id is None:
            continue
        twin = by_id.setdefault(one.meta.directory_id, one)
        if twin is not one:
            raise RequestError(
                f"{twin.path} and {one.path} have the same directory.id: one is a copy of the other. "
                "Name one at a time."
            )


def _check_cluster_ids(directories: Sequence[LogDirectory]) -> None:
    known = [(one, one.meta.cluster_id) for one in directories if one.meta is not None and one.meta.cluster_id]
    for one, cluster_id in known[1:]:
        if cluster_id != known[0][1]:
            raise RequestError(
                f"{known[0][0].path} is of the cluster {known[0][1]}, {one.path} of {cluster_id}. "
                "Name the directories of one cluster, and its own metadata."
            )


def other_directories(
    fs: Store, paths: Sequence[str], directories: Sequence[LogDirectory], properties: str | None
) -> list[LogDirectory]:
    """Open the log directories of a server.properties that the user did not name, and warn that their partitions are
    left out.

    Return nothing if the file lists none of the named directories: it may belong to another machine. Do not warn if the
    user named only partitions.
    """
    if properties is None:
        return []
    given = {fs.real_path(one.path) for one in directories}
    named = log_directories(read_file(fs, properties), properties)
    others = [one for one in named if fs.real_path(one) not in given]
    if len(others) == len(named):
        return []
    here = [one for one in others if fs.exists(one)]
    gone = [one for one in others if one not in here]
    asked = {fs.real_path(path) for path in paths}
    if any(path in asked or posixpath.dirname(path) in asked for path in given):
        if here:
            said = f"{properties} names {names_text(here)}, too: partitions there are not looked at; give all of them"
            _log.warning("%s", said)
        if gone:
            _log.warning("%s names %s, too, which is not there: a broker does not start", properties, names_text(gone))
    return [LogDirectory.open(fs, one) for one in here]


# ---- the metadata log ------------------------------------------------------------------------------------------------


def newest_metadata(
    fs: Store, directories: Sequence[LogDirectory], asked: str | None
) -> tuple[ClusterMetadata | None, str | None]:
    """Read the newest metadata log of some directories, and return its contents and path; None without one.

    If several are equally new, a damaged one is read only if all are damaged.

    Args:
        asked: path of the metadata log or of its log directory; None: search `directories`.

    Raises:
        NotFoundError: `asked` has no metadata log.
        RequestError: the log belongs to another cluster than the directories.
    """
    found = _newest_logs(fs, directories, asked)
    _check_cluster_ids([*directories, *(directory for directory, _ in found)])
    first: tuple[ClusterMetadata, str] | None = None
    for directory, path in found:
        read = read_metadata(fs, path, live=directory.live)
        if not read.problems:
            return read, path
        first = first or (read, path)
    return first or (None, None)


def _newest_logs(fs: Store, directories: Sequence[LogDirectory], asked: str | None) -> list[tuple[LogDirectory, str]]:
    """Return the newest metadata logs, with their log directories; several if they are equally new."""
    found = _metadata_logs(fs, directories, asked)
    if len(found) < 2:
        return found
    positions = [_metadata_position(fs, directory, path) for directory, path in found]
    return [one for one, position in zip(found, positions, strict=True) if position == max(positions)]


def _metadata_position(fs: Store, directory: LogDirectory, path: str) -> LogPosition:
    """Return the position of a metadata log; its end may be that of a snapshot."""
    try:
        log = LogView(path, fs=fs, live=directory.live)
        position = log_position(log)
    except (OSError, NotFoundError):
        return LogPosition(NONE, 0)
    return replace(position, end_offset=max(position.end_offset, *snapshot_offsets(log), 0))


def _metadata_logs(fs: Store, directories: Sequence[LogDirectory], asked: str | None) -> list[tuple[LogDirectory, str]]:
    """Return the log directories that hold a metadata log, and the paths of these logs; arguments as above."""
    if asked is not None:
        asked = asked.rstrip("/") or "/"
        if posixpath.basename(asked) == cluster_metadata.NAME:
            asked = posixpath.dirname(asked) or "."
        if not fs.exists(f"{asked}/{cluster_metadata.NAME}"):
            raise NotFoundError(f"{asked} holds no {cluster_metadata.NAME}, so it has no metadata of topics")
        directories = [LogDirectory.open(fs, asked)]
    return [
        (directory, partition.path)
        for directory in directories
        for partition in directory.partitions
        if partition.name.name == posixpath.basename(partition.path) == cluster_metadata.NAME
    ]


def _remembered_at(place: LocatedPartition) -> tuple[str, LogConfigs] | None:
    """Read the configs of a partition's live log, and return them with their path; None if missing or invalid.

    Always None in an object store, where the look-up takes a request.
    """
    fs, path = place.directory.fs, f"{place.path}/{FileKind.LOG_CONFIGS}"
    if fs.reads_by_request(path):
        return None
    try:
        return path, log_configs.decode(read_file(fs, path), path)
    except (OSError, CorruptFileError):
        return None


def metadata_log(fs: Store, paths: Sequence[str], asked: str | None = None) -> tuple[str, bool]:
    """Return the path of the newest metadata log of some directories, and whether a broker is writing to it.

    Args:
        asked: as `metadata` of `Node.open`.

    Raises:
        NotFoundError: there is no metadata log.
        RequestError: the directories belong to different clusters.
    """
    directories, _ = list_places(fs, paths)
    check_one_cluster(directories)
    found = _newest_logs(fs, directories, asked)
    if not found:
        where = ", ".join(directory.path for directory in directories) or ", ".join(paths)
        raise NotFoundError(f"{where} holds no {cluster_metadata.NAME}; give --metadata DIR, the directory that does")
    directory, path = found[0]
    return path, directory.live


def read_metadata(
    fs: Store, path: str, *, live: bool = False, end_offset: int | None = None, as_broker: bool = False
) -> ClusterMetadata:
    """Read a metadata log: its newest snapshot, and the records after it. Damage in either becomes a problem.

    If the newest snapshot is damaged and an older one is read instead, this function logs a warning, because every
    command reads metadata here.

    Args:
        live: a broker is writing to the log.
        end_offset: read only records below this offset; None: read to the log's end.
        as_broker: accept a snapshot without its footer as complete, as a broker does.
    """
    for _ in range(_ATTEMPTS):
        problems: list[DataError] = []
        try:
            log = LogView(path, fs=fs, live=live)
            metadata = _newest_snapshot(log, problems.append, end_offset, needs_footer=not as_broker)
            gap_end = log.first_offset if end_offset is None else min(log.first_offset, end_offset)
            if log.segments and gap_end > metadata.next_offset:
                what = f"The metadata log has nothing of the offsets {metadata.next_offset} to {gap_end - 1}"
                problems.append(CorruptBatchError(what, path=path, offset=metadata.next_offset))
            records = log.columns(
                start_offset=metadata.next_offset,
                end_offset=end_offset,
                isolation=READ_UNCOMMITTED,
                on_damage=problems.append,
            )
            metadata = cluster_metadata.apply(_values(records), metadata)
        except FileNotFoundError:
            continue  # the broker made a newer snapshot and removed this one
        if metadata.passed_over:
            _log.warning("%s", passed_over_text(metadata.passed_over[0]))
        # List unreadable parts first: they explain why later records contradict the metadata.
        return replace(metadata, problems=(*problems, *metadata.problems))
    raise NotFoundError(f"{path} is gone, or changes too fast to be read")


def passed_over_text(damage: DataError) -> str:
    """Return a warning that names a damaged metadata snapshot, and the source that replaces it."""
    return f"{damage.path}: {damage.what}; an older snapshot and the log are read instead of it"


def snapshot_offsets(log: LogView) -> Mapping[int, str]:
    """Return the file names of a metadata log's snapshots by end offset, in increasing order."""
    parsed = [(filenames.parse_file(info.name), info.name) for info in log.entries if not info.is_directory]
    snapshots = [
        (file.offset, file.leader_epoch, name)
        for file, name in parsed
        if file is not None and file.kind is FileKind.CHECKPOINT_SNAPSHOT and file.temporary is Temporary.NONE
    ]
    return {offset: name for offset, _, name in sorted(snapshots)}


def _newest_snapshot(log: LogView, on_damage: OnDamage, limit: int | None, *, needs_footer: bool) -> ClusterMetadata:
    """Read the newest snapshot. If it is damaged, read an older one whose later records are all in the log.

    If the log begins at offset 0, it replaces a snapshot altogether. If nothing replaces the damaged snapshot, report
    its damage and return its readable part.

    Args:
        limit: skip snapshots that end behind this offset.
    """
    snapshots = {end: name for end, name in snapshot_offsets(log).items() if limit is None or end <= limit}
    damaged: list[DataError] = []
    newest = cluster_metadata.EMPTY
    for end_offset, name in sorted(snapshots.items(), reverse=True):
        problems: list[DataError] = []
        records = _values(_snapshot(log.fs, f"{log.path}/{name}", problems.append, needs_footer=needs_footer))
        metadata = cluster_metadata.load_snapshot(records, end_offset)
        problems += [problem.at(f"{log.path}/{name}") for problem in metadata.problems]
        if not damaged:
            newest = metadata
        if not problems and (not damaged or log.first_offset <= end_offset):
            return replace(metadata, passed_over=tuple(damaged))
        damaged = damaged or problems
    if damaged and log.first_offset == 0 and log.segments:
        return replace(cluster_metadata.EMPTY, passed_over=tuple(damaged))
    for error in damaged[: len(damaged) - len(newest.problems)]:
        on_damage(error)
    return newest


def _snapshot(fs: Store, path: str, on_damage: OnDamage, *, needs_footer: bool) -> Iterator[RecordColumns]:
    """Yield the data records of a snapshot file.

    A broker renames the file to this name once it is complete, so a torn end is damage.
    """

    def placed(error: DataError) -> None:
        on_damage(error.at(path))

    is_ended = not needs_footer
    with fs.open(path) as file:
        for item in WindowReader(file, Checks.WHOLE):
            if isinstance(item, Gap):
                what = f"{item.what} ({item.size_bytes} bytes)"
                on_damage(CorruptBatchError(what, path=path, position=item.position))
                is_ended = True  # do not report the missing end as a second problem
                continue
            is_ended |= item.batches["control_type"][-1] == ControlType.SNAPSHOT_FOOTER
            data = item.batches[~is_control(item.batches)]
            yield from decode(BatchWindow(item.position, item.data, data, item.read), on_damage=placed)
    if not is_ended:
        on_damage(CorruptBatchError(NO_FOOTER, path=path))


def _values(columns: Iterable[RecordColumns]) -> Iterator[tuple[int, bytes | None]]:
    for some in columns:
        view = memoryview(some.data)
        names = ("offset", "value_start", "value_size")
        for offset, start, size in zip(*(some.rows[name].tolist() for name in names), strict=True):
            yield offset, None if size < 0 else bytes(view[start : start + size])
