"""`tier export`, `tier adopt`: hand a tier over from a live log to its broker, or back. No object moves.

    lock       lock the log directories of all replicas of the metadata partitions
    check      all checks of all partitions precede the first change
    export     claim the log, so that no other program can write it, and delete what no manifest names;
               append the records of its segments in one batch; commit a manifest: a broker owns the tier
    adopt      commit a manifest with the segments; append the records that they are deleted, in one batch

Whatever is interrupted in between has both: a manifest, and records that name segments. Then the records count, for
readers, too, and no live log opens. Call the command again: an export has only to give the manifest up, and an adoption
makes it anew.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from cordwood.commands.opening import select_believed
from cordwood.commands.options import HandOverOptions
from cordwood.common.errors import NotFoundError, RequestError
from cordwood.common.text import Column, Presentable, bytes_text, names_text, number, register, table
from cordwood.common.types import NONE, Clock, TopicPartition, system_clock
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.by_url import local_path
from cordwood.fs.locks import check_local, directories_to_lock
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats import checkpoints, leader_epochs
from cordwood.storage.formats.filenames import CLUSTER_METADATA_TOPIC, LOG_START_OFFSETS, FileKind
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.formats.messages.topics import INTERNAL_TOPICS, REMOTE_LOG_METADATA
from cordwood.storage.formats.properties import encode_id
from cordwood.storage.log.files import read_leader_epochs
from cordwood.storage.log.view import LogView
from cordwood.storage.node.cluster import Cluster
from cordwood.storage.node.node import LocatedPartition
from cordwood.storage.tier.aiven import AivenLayout
from cordwood.storage.tier.generations import Generations, check_store
from cordwood.storage.tier.handover import Events, adopted_state, export_events, export_start, forgotten_events
from cordwood.storage.tier.manifest import TierState
from cordwood.storage.tier.metadata_log import MetadataLog, metadata_partition
from cordwood.storage.tier.packed import SIZED, TierSegment
from cordwood.storage.tier.remote_log import RemoteLog
from cordwood.storage.tier.segments import RemoteSegment, TopicIdPartition
from cordwood.storage.tier.store import TierStore


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A partition whose tier has a new owner.

    Attributes:
        path: the partition's directory.
        metadata_partition: number of the partition of `__remote_log_metadata` with its records.
        segments: number of its segments in the tier.
        size_bytes: size of their `.log` objects.
        log_start_offset, end_offset: the part of the log that is in the tier; the end is not included.
        resumed: an interrupted run had done a part of it.
    """

    path: str
    partition: TopicPartition
    metadata_partition: int
    segments: int
    size_bytes: int
    log_start_offset: int
    end_offset: int
    resumed: bool


@dataclass(frozen=True, slots=True)
class HandOverResult(Presentable):
    """The tiers that were handed over, or would be.

    Attributes:
        to_broker: from live logs to brokers; otherwise the other way.
        tier: the place of the tier.
        done: False if nothing was changed.
    """

    to_broker: bool
    tier: str
    partitions: tuple[HandedOver, ...]
    done: bool


def export_tier(paths: Sequence[str], options: HandOverOptions, *, clock: Clock = system_clock) -> HandOverResult:
    """Hand the tier of live logs over to the broker on their log directories, which finds the segments from then on.

    Args:
        paths: the log directories of the broker, and of all brokers with replicas of `__remote_log_metadata`. Nothing
            else may use them meanwhile.

    Raises:
        NotFoundError: there is nothing at a path, or no such partition has a manifest in the tier.
        LockedError: a broker or another program holds one of the directories.
        RequestError: a broker would not read the same log; a replica of the metadata is missing, or replicas differ; a
            directory was not shut down cleanly.
        StoreError: the tier failed; call it again.
    """
    return _hand_over(paths, options, clock, to_broker=True)


def adopt_tier(paths: Sequence[str], options: HandOverOptions, *, clock: Clock = system_clock) -> HandOverResult:
    """Take the tier of a stopped broker's topics over for live logs on its log directories.

    Args:
        paths: the log directories of the broker, and of all brokers with replicas of `__remote_log_metadata`. Nothing
            else may use them meanwhile.

    Raises:
        NotFoundError: there is nothing at a path, or no such partition has a segment in the tier.
        LockedError: a broker or another program holds one of the directories.
        RequestError: a live log cannot have the tier; a replica of the metadata is missing, or replicas differ; a
            directory was not shut down cleanly.
        StoreError: the tier failed; call it again.
    """
    return _hand_over(paths, options, clock, to_broker=False)


def _hand_over(paths: Sequence[str], options: HandOverOptions, clock: Clock, *, to_broker: bool) -> HandOverResult:
    fs = PosixFileSystem()
    advice = "The log directories must be on this machine; only the tier may be in a bucket"
    sources = [fs.absolute_path(local_path(path, advice)) for path in paths]
    with ExitStack() as held:
        site = _Site.open(fs, sources, options, clock())
        paths_used = [one.place.path for one in site.selected()] + [place.path for place in site.metadata_places()]
        to_lock = directories_to_lock(fs, paths_used)
        for path in to_lock:
            check_local(fs, path, no_broker_elsewhere=options.no_broker_elsewhere)
        locks = [held.enter_context(fs.lock_directory(path)) for path in to_lock]
        # Open again: another process may have changed the directories before they were locked.
        site = _Site.open(fs, sources, options, clock())
        site.check_shut_down()
        changes = [*(site.exports() if to_broker else site.adoptions())]
        if not changes:
            raise NotFoundError(site.nothing(to_broker=to_broker))
        if not options.dry_run:
            check_store(site.layout.store, site.store.tier.root)
            for change in changes:
                for lock in locks:
                    lock.confirm()
                change.apply()
        done = tuple(change.result() for change in changes)
        return HandOverResult(to_broker, site.store.tier.root, done, done=not options.dry_run)


@dataclass(frozen=True, slots=True)
class _Selected:
    """A selected partition: its directory, its metadata partition, and what the records say about it."""

    place: LocatedPartition
    key: TopicIdPartition
    metadata: TopicPartition
    log: RemoteLog


@dataclass(frozen=True, slots=True)
class _Site:
    """Log directories with their tier.

    Attributes:
        opened: the metadata partitions that get records, each opened once, as appends to one follow each other.
    """

    fs: LocalFileSystem
    store: TierStore
    layout: AivenLayout
    cluster: Cluster
    sources: Sequence[str]
    options: HandOverOptions
    now_ms: int
    opened: dict[TopicPartition, MetadataLog] = field(default_factory=dict)

    @classmethod
    def open(cls, fs: LocalFileSystem, sources: Sequence[str], options: HandOverOptions, now_ms: int) -> _Site:
        """Open directories with their tier.

        Raises:
            RequestError: no tier is given, or one of another kind.
        """
        selection = options.selection
        store = selection.store(sources)
        if not isinstance(store, TierStore):
            raise RequestError("give the tier: --tier DIR|URL")
        if not isinstance(store.layout, AivenLayout):
            raise RequestError(
                f"{store.tier.root} has the layout of Kafka's LocalTieredStorage, which is for tests. Live logs have "
                "the layout of Aiven's plugin"
            )
        chosen = selection.metadata, selection.server_properties, selection.overrides
        cluster = Cluster.open(store, sources, *chosen)
        return cls(fs, store, store.layout, cluster, sources, options, now_ms)

    def check_shut_down(self) -> None:
        """Raise RequestError or DataError for a directory whose logs must first be recovered."""
        for directory in (one for node in self.cluster.nodes for one in node.directories):
            if directory.crashed:
                raise RequestError(
                    f"{directory.path} was not shut down cleanly. Start the broker or the program that it belongs to "
                    "once, which repairs it, and stop it"
                )
            if directory.failure is not None:
                raise directory.failure

    def selected(self) -> Iterator[_Selected]:
        """Yield the selected partitions that have a topic id; internal topics are not tiered."""
        count = self._metadata_partitions()
        for place in select_believed(self.cluster, self.sources, self.options.selection):
            topic_id = place.topic_id()
            if place.name is None or topic_id is None or place.topic in (*INTERNAL_TOPICS, CLUSTER_METADATA_TOPIC):
                continue
            name = place.name.topic_partition
            key = TopicIdPartition(encode_id(topic_id), name.topic, name.partition)
            log = self.store.remote_logs(place.directory.path).get(key)
            for node in self.cluster.nodes:
                for directory in node.directories:
                    log = log or self.store.remote_logs(directory.path).get(key)
            yield _Selected(
                place, key, TopicPartition(REMOTE_LOG_METADATA, metadata_partition(key, count)), log or RemoteLog()
            )

    def _metadata_partitions(self) -> int:
        metadata = self.cluster.metadata
        topic = None if metadata is None else metadata.topics.get(REMOTE_LOG_METADATA)
        count = len(topic.partitions if topic is not None else self.cluster.partitions_of(REMOTE_LOG_METADATA))
        if not count:
            raise RequestError(
                f"no directory has {REMOTE_LOG_METADATA}, the topic by which a broker finds remote segments. Start the "
                "broker with its tier once, and stop it"
            )
        return count

    def metadata_places(self) -> list[LocatedPartition]:
        """Return the directories of the metadata partitions in question."""
        names = {one.metadata for one in self.selected()}
        return [one.place for name in names for one in self.cluster.replicas(name)]

    def nothing(self, *, to_broker: bool) -> str:
        """Return an error for a selection in which nothing can be handed over."""
        names = names_text([f"{one.key.topic}-{one.key.partition}" for one in self.selected()])
        if to_broker:
            return f"{self.store.tier.root} has no manifest of {names}: no live log owns their tier"
        return f"no record of {REMOTE_LOG_METADATA} names a segment of {names}: no broker has their tier"

    def _appends(self, one: _Selected) -> MetadataLog:
        """Open the metadata partition of a partition, at all replicas."""
        if one.metadata not in self.opened:
            replicas = self.cluster.all_replicas(one.metadata, single_copy=self.options.single_copy)
            self.opened[one.metadata] = MetadataLog(self.fs, [replica.path for replica in replicas], self.now_ms)
        return self.opened[one.metadata]

    def _broker(self, one: _Selected) -> int:
        node_id = self.cluster.node_of(one.place).node_id
        return 0 if node_id is None else node_id

    # ---- export ------------------------------------------------------------------------------------------------------

    def exports(self) -> Iterator[_Export]:
        """Yield the changes that give live logs to a broker.

        Raises:
            RequestError: a broker would not read the same log, or its metadata cannot get the records.
        """
        for one in self.selected():
            generations = Generations(self.layout.store, self.layout, one.key)
            if (state := generations.newest()) is None:
                continue
            path, resumed = one.place.path, bool(one.log.segments)
            bases = self._local_bases(path)
            if leftovers := [base for base in bases if base < state.local_floor]:
                raise RequestError(
                    f"{path}: the segment at offset {leftovers[0]} is left from a clean. Open the log once with the "
                    "program that it belongs to, and close it"
                )
            try:
                start = export_start(state, min(bases, default=state.copied_end))
                lineage = self._lineage(path, start)
                events = (
                    () if resumed else export_events(state, one.log, lineage, start, self._broker(one), self.now_ms)
                )
            except RequestError as error:
                raise RequestError(f"{path}: {error}") from None
            self._check_objects(state, resumed=resumed)
            yield _Export(self, one, generations, state, start, lineage, events, self._appends(one))

    def _local_bases(self, path: str) -> list[int]:
        """Return the base offsets of the segments on the disk."""
        return [one.base_offset for one in LogView(path, fs=self.fs).segments]

    def _lineage(self, path: str, start: int) -> Sequence[EpochEntry]:
        """Return the leader epochs of a log; a log without any is in epoch 0."""
        return read_leader_epochs(self.fs, path).entries or (EpochEntry(0, start),)

    def _check_objects(self, state: TierState, *, resumed: bool) -> None:
        """Raise RequestError if an object of a segment is missing."""
        folder = self.layout.folder(state.partition)
        names = self.layout.names_in(folder)
        for segment in (one.segment for one in state.segments):
            paths = self.layout.object_paths(segment)
            for missing in (path for path in paths if path.startswith(folder) and path[len(folder) + 1 :] not in names):
                if not resumed:
                    raise RequestError(f"{missing} is missing, so no broker could read it. Look: cordwood check --tier")

    # ---- adopt -------------------------------------------------------------------------------------------------------

    def adoptions(self) -> Iterator[_Adoption]:
        """Yield the changes that give a broker's topics to live logs.

        Raises:
            RequestError: a manifest cannot describe the log, or the broker's metadata cannot get the records.
        """
        for one in self.selected():
            if not one.log.segments:
                continue
            path = one.place.path
            part = self.store.remote_part(path)
            assert part is not None, "records name its segments"
            generations = Generations(self.layout.store, self.layout, one.key)
            lineage = self._lineage(path, part.log_start)
            try:
                state = adopted_state(
                    one.key, one.log, lineage, part.log_start, self._local_bases(path), self._described, self.now_ms
                )
            except RequestError as error:
                raise RequestError(f"{path}: {error}") from None
            events = forgotten_events(one.log, self._broker(one), self.now_ms)
            resumed = generations.newest() is not None
            yield _Adoption(one, generations, state, events, self._appends(one), resumed=resumed)

    def _described(self, segment: RemoteSegment) -> TierSegment:
        """Return a segment as a manifest has it.

        Raises:
            RequestError: it is encrypted.
            CorruptFileError: its object is damaged.
        """
        found = self.layout.manifest(segment)
        if found.encryption is not None:
            raise RequestError(
                f"segment {segment.id} is encrypted, and live logs read no encrypted segments. Restore the topic "
                "instead: cordwood fetch --tier"
            )
        return TierSegment(segment, None, tuple(found.sizes.get(kind, NONE) for kind in SIZED))


@dataclass(frozen=True, slots=True)
class _Export:
    """The tier of a live log that a broker gets.

    Attributes:
        start: the broker's log start offset.
        lineage: its leader epochs.
        events: to append; empty if that is done.
    """

    site: _Site
    selected: _Selected
    generations: Generations
    state: TierState
    start: int
    lineage: Sequence[EpochEntry]
    events: Events
    metadata: MetadataLog

    def apply(self) -> None:
        """Hand the tier over."""
        fs, place, name = self.site.fs, self.selected.place, self.selected.key
        state = self.generations.claim(secrets.token_hex(8), socket.gethostname())
        if state.segments != self.state.segments:
            raise RequestError(
                f"{place.path}: another program changed its tier in the meantime. Stop it, and try again"
            )
        state = self.generations.commit(replace(state, gone=()))
        self.generations.sweep(state)
        if not read_leader_epochs(fs, place.path).entries:
            epochs = f"{place.path}/{FileKind.LEADER_EPOCHS}"
            fs.put(epochs, leader_epochs.encode(self.lineage), beside=f"{epochs}.tmp")
        starts = f"{place.directory.path}/{LOG_START_OFFSETS}"
        checkpoints.update(fs, starts, {TopicPartition(name.topic, name.partition): self.start})
        if self.events:
            self.metadata.append(self.events)
        self.generations.hand_over(state)

    def result(self) -> HandedOver:
        """Describe it."""
        return _described(self.selected, self.state, self.start, resumed=bool(self.selected.log.segments))


@dataclass(frozen=True, slots=True)
class _Adoption:
    """The tier of a broker's topic that a live log gets.

    Attributes:
        resumed: an interrupted run has committed a manifest.
    """

    selected: _Selected
    generations: Generations
    state: TierState
    events: Events
    metadata: MetadataLog
    resumed: bool

    def apply(self) -> None:
        """Take the tier over."""
        self.generations.adopt(self.state, secrets.token_hex(8), socket.gethostname())
        self.metadata.append(self.events)

    def result(self) -> HandedOver:
        """Describe it."""
        return _described(self.selected, self.state, self.state.log_start_offset, resumed=self.resumed)


def _described(selected: _Selected, state: TierState, start: int, *, resumed: bool) -> HandedOver:
    key = selected.key
    return HandedOver(
        selected.place.path,
        TopicPartition(key.topic, key.partition),
        selected.metadata.partition,
        len(state.segments),
        state.packed.size_bytes,
        start,
        state.copied_end,
        resumed,
    )


# ---- presentation ----------------------------------------------------------------------------------------------------


_COLUMNS = (
    Column("PARTITION"),
    Column("SEGMENTS", right=True),
    Column("SIZE", right=True),
    Column("OFFSETS"),
    Column("RECORDS IN"),
    Column("NOTE"),
)


def _lines(result: HandOverResult) -> Iterator[str]:
    many = number(len(result.partitions), "partition")
    owner, now = ("a broker", "handed over") if result.to_broker else ("live logs", "adopted")
    if result.done:
        yield f"{many} in {result.tier} {now}: {owner} will own the tier from now on. No object was moved"
    else:
        yield f"{many} in {result.tier} can be {now}: {owner} would own the tier. Nothing was changed"
    rows = [
        [
            str(one.partition),
            f"{one.segments:,}",
            bytes_text(one.size_bytes),
            f"{one.log_start_offset:,} to {one.end_offset:,}",
            f"{REMOTE_LOG_METADATA}-{one.metadata_partition}",
            "after an interruption" if one.resumed else "",
        ]
        for one in result.partitions
    ]
    yield from table(_COLUMNS, rows)
    if not result.done:
        yield "next: the same without --dry-run"
    elif result.to_broker:
        yield "next: start the broker. Its topics need remote.storage.enable=true and cleanup.policy=delete"
    else:
        yield f"next: cordwood run DIR --tier {result.tier}. Start no broker on these directories meanwhile"


def _document(result: HandOverResult) -> dict[str, Any]:
    names = ("path", "metadata_partition", "segments", "size_bytes", "log_start_offset", "end_offset", "resumed")
    return {
        "action": "export" if result.to_broker else "adopt",
        "tier": result.tier,
        "done": result.done,
        "partitions": [
            {"partition": str(one.partition), **{name: getattr(one, name) for name in names}}
            for one in result.partitions
        ],
    }


register(HandOverResult, lines=_lines, document=_document)
