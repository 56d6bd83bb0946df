"""`tier export`, `tier adopt`: hand a tier over from a live log to its broker, or back. Objects stay where they are.

    lock       lock all given log directories; see `tier_site`
    check      all checks of all partitions precede the first change
    export     claim the log, which stops other programs, and delete objects that no manifest names;
               append the records of its segments in one batch; commit a manifest: a broker owns the tier
    adopt      commit a manifest with the segments; append in one batch that brokers deleted them

After an interruption, a partition may have both: a manifest, and records that name segments. Then readers use the
records, and no live log opens. The next call completes the change: an export only gives up the manifest, an adoption
commits a new one.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from cordwood.cleaning.engine.tiered import new_segment, producers_at
from cordwood.commands.options import HandOverOptions, Selection
from cordwood.commands.tier_site import TierSite
from cordwood.common.errors import NotFoundError, RequestError
from cordwood.common.text import Column, Presentable, bytes_text, names_text, number, register, table
from cordwood.common.types import NONE, Clock, TopicPartition, system_clock
from cordwood.storage.formats import checkpoints, leader_epochs
from cordwood.storage.formats.filenames import (
    LOG_START_OFFSETS,
    FileKind,
    offset_name,
    parse_tier_key_index,
)
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.formats.messages.topics import REMOTE_LOG_METADATA
from cordwood.storage.log.files import clear_work_folder, make_work_folder, read_leader_epochs, write_file
from cordwood.storage.log.view import LogView
from cordwood.storage.node.node import LocatedPartition
from cordwood.storage.recovery.into_copy import complete_indexes
from cordwood.storage.tier.aiven import AivenLayout
from cordwood.storage.tier.exchange import described
from cordwood.storage.tier.generations import Generations, check_store
from cordwood.storage.tier.handover import (
    Events,
    adoptable,
    adopted_state,
    export_events,
    export_start,
    forgotten_events,
    is_cut,
)
from cordwood.storage.tier.manifest import TierState
from cordwood.storage.tier.packed import SIZED, TierSegment
from cordwood.storage.tier.remote_log import Answer, RemoteLog
from cordwood.storage.tier.replacing import SegmentPiece
from cordwood.storage.tier.segments import CopyState, RemoteSegment, TopicIdPartition
from cordwood.storage.tier.store import RemotePart


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A partition whose tier has a new owner.

    Attributes:
        path: the partition's directory.
        metadata_partition: number of the partition of `__remote_log_metadata` with its records.
        segments: number of its segments in the tier.
        size_bytes: size of their `.log` objects.
        log_start_offset, end_offset: the part of the log that is in the tier; the end is not included.
        copied_segments: number of segments that were cut, as they overlap others.
        resumed: an interrupted run had done a part of it.
    """

    path: str
    partition: TopicPartition
    metadata_partition: int
    segments: int
    size_bytes: int
    log_start_offset: int
    end_offset: int
    copied_segments: int
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
    selection = Selection(
        topics=options.chosen.topics,
        partitions=options.chosen.partitions,
        metadata=options.metadata,
        tier_place=options.tier_place,
    )
    with _HandOverSite.locked(
        paths,
        selection,
        clock(),
        single_copy=options.single_copy,
        no_broker_elsewhere=options.no_broker_elsewhere,
    ) as site:
        changes = [*(site.exports() if to_broker else site.adoptions())]
        if not changes:
            raise NotFoundError(site.nothing(to_broker=to_broker))
        if not options.dry_run:
            check_store(site.layout.store, site.store.tier.root)
            for change in changes:
                site.confirm_locks()
                change.apply()
        done = tuple(change.result() for change in changes)
        return HandOverResult(to_broker, site.store.tier.root, done, done=not options.dry_run)


@dataclass(frozen=True, slots=True)
class _Selected:
    """A selected partition: its directory, its metadata partition, and its remote log by the records."""

    place: LocatedPartition
    key: TopicIdPartition
    metadata: TopicPartition
    log: RemoteLog

    @property
    def name(self) -> TopicPartition:
        """The partition's name."""
        return TopicPartition(self.key.topic, self.key.partition)


class _HandOverSite(TierSite):
    """Locked log directories whose tier gets another owner."""

    @cached_property
    def layout(self) -> AivenLayout:
        """The layout of the tier.

        Raises:
            RequestError: live logs do not have this layout.
        """
        if not isinstance(self.store.layout, AivenLayout):
            raise RequestError(
                f"{self.store.tier.root} has the layout of Kafka's LocalTieredStorage, which is for tests. Live logs "
                "have the layout of Aiven's plugin"
            )
        return self.store.layout

    @cached_property
    def selected(self) -> Sequence[_Selected]:
        """The selected partitions that can be tiered."""
        found = []
        for path, place in self.places.items():
            if (key := self.store.partition_at(path)) is not None:
                log = self.store.remote_log(place.directory.path, key) or RemoteLog()
                found.append(_Selected(place, key, self.metadata_of(key), log))
        return tuple(found)

    def nothing(self, *, to_broker: bool) -> str:
        """Return an error for a selection in which nothing can be handed over."""
        names = names_text([str(one.name) for one in self.selected])
        if to_broker:
            return f"{self.store.tier.root} has no manifest of {names}: no live log owns their tier"
        return f"no record of {REMOTE_LOG_METADATA} names a segment of {names}: no broker has their tier"

    def broker(self, one: _Selected) -> int:
        """Return the id of a partition's broker."""
        node_id = self.cluster.node_of(one.place).node_id
        return 0 if node_id is None else node_id

    # ---- export ------------------------------------------------------------------------------------------------------

    def exports(self) -> Iterator[_Export]:
        """Yield the changes that give live logs to a broker.

        Raises:
            RequestError: a broker would not read the same log, or its metadata cannot get the records.
        """
        for one in self.selected:
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
                events = () if resumed else export_events(state, one.log, lineage, start, self.broker(one), self.now_ms)
            except RequestError as error:
                raise RequestError(f"{path}: {error}") from None
            if not resumed:
                self._check_objects(state)
            self.metadata_log(path)  # or raise before the first change
            yield _Export(self, one, generations, state, start, lineage, events)

    def _local_bases(self, path: str) -> list[int]:
        """Return the base offsets of the segments on the disk."""
        return [one.base_offset for one in LogView(path, fs=self.fs).segments]

    def _lineage(self, path: str, start: int) -> Sequence[EpochEntry]:
        """Return the leader epochs of a log; a log without any is in epoch 0."""
        return read_leader_epochs(self.fs, path).entries or (EpochEntry(0, start),)

    def _check_objects(self, state: TierState) -> None:
        """Raise RequestError if an object of a segment is missing."""
        folder = self.layout.folder(state.partition)
        there = {f"{folder}/{name}" for name in self.layout.names_in(folder)}
        for segment in (one.segment for one in state.segments):
            for path in self.layout.object_paths(segment):
                if path.startswith(folder) and path not in there:
                    raise RequestError(f"{path} is missing, so no broker could read it. Look: cordwood check --tier")

    # ---- adopt -------------------------------------------------------------------------------------------------------

    def adoptions(self) -> Iterator[_Adoption]:
        """Yield the changes that give a broker's topics to live logs.

        Raises:
            RequestError: a manifest cannot describe the log, or the broker's metadata cannot get the records.
        """
        for one in self.selected:
            if not one.log.segments:
                continue
            path, generations = one.place.path, Generations(self.layout.store, self.layout, one.key)
            part = self.store.remote_part(path)
            assert part is not None, "records name its segments"
            try:
                found = adoptable(one.log, self._lineage(path, part.log_start), part.log_start, self._local_bases(path))
                described = {answer: self._described(answer.segment) for answer in found}
            except RequestError as error:
                raise RequestError(f"{path}: {error}") from None
            self.metadata_log(path)  # or raise before the first change
            resumed = generations.newest() is not None
            yield _Adoption(self, one, part, generations, described, resumed=resumed)

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

    site: _HandOverSite
    selected: _Selected
    generations: Generations
    state: TierState
    start: int
    lineage: Sequence[EpochEntry]
    events: Events

    def apply(self) -> None:
        """Hand the tier over."""
        fs, place, name = self.site.fs, self.selected.place, self.selected.name
        state = self.generations.claim(secrets.token_hex(8), socket.gethostname())
        if state.segments != self.state.segments:
            raise RequestError(
                f"{place.path}: another program changed its tier in the meantime. Stop it, and try again"
            )
        state = self.generations.commit(replace(state, gone=()))
        self.generations.sweep(state)
        layout = self.site.layout
        folder = layout.folder(self.selected.key)
        # No broker would delete the key indexes.
        indexes = [one for one in layout.names_in(folder) if parse_tier_key_index(one) is not None]
        layout.store.delete_all([f"{folder}/{one}" for one in indexes])
        if not read_leader_epochs(fs, place.path).entries:
            epochs = f"{place.path}/{FileKind.LEADER_EPOCHS}"
            fs.put(epochs, leader_epochs.encode(self.lineage), beside=f"{epochs}.tmp")
        starts = f"{place.directory.path}/{LOG_START_OFFSETS}"
        checkpoints.update(fs, starts, {name: self.start})
        if self.events:
            self.site.metadata_log(place.path).append(self.events)
        self.generations.hand_over(state)

    def result(self) -> HandedOver:
        """Describe it."""
        return HandedOver(
            self.selected.place.path,
            self.selected.name,
            self.selected.metadata.partition,
            len(self.state.segments),
            self.state.packed.size_bytes,
            self.start,
            self.state.copied_end,
            copied_segments=0,
            resumed=bool(self.selected.log.segments),
        )


@dataclass(frozen=True, slots=True)
class _Adoption:
    """The tier of a broker's topic that a live log gets.

    Attributes:
        described: the parts of the log in the tier, each with its segment.
        resumed: an interrupted run has committed a manifest.
    """

    site: _HandOverSite
    selected: _Selected
    part: RemotePart
    generations: Generations
    described: Mapping[Answer, TierSegment]
    resumed: bool

    @property
    def cut(self) -> list[Answer]:
        """The parts that get a segment of their own."""
        return [one for one in self.described if is_cut(one, self.part.log_start)]

    def apply(self) -> None:
        """Take the tier over."""
        fs, path, log = self.site.fs, self.selected.place.path, self.selected.log
        clear_work_folder(fs, path)
        work = make_work_folder(fs, path)
        copied = {one: self._copied(one, f"{work}/{one.first_offset}") for one in self.cut}
        segments = [copied.get(one, described) for one, described in self.described.items()]
        state = adopted_state(self.selected.key, log, segments, self.part.log_start, self.site.now_ms)
        self.generations.adopt(state, secrets.token_hex(8), socket.gethostname())
        forgotten = forgotten_events(log, self.site.broker(self.selected), self.site.now_ms)
        self.site.metadata_log(path).append(forgotten)
        clear_work_folder(fs, path)

    def _copied(self, answer: Answer, folder: str) -> TierSegment:
        """Write a part of a segment into the tier, as a segment with its own indexes."""
        fs, store, path = self.site.fs, self.site.store, self.selected.place.path
        log = LogView(path, fs=store)
        bases = {one.base_offset: one for one in log.segments}
        # The first one may begin below the log start.
        first = answer.first_offset if answer.first_offset in bases else answer.segment.start_offset
        shown = bases[first]
        fs.make_directory(folder)
        fs.make_directory(f"{folder}/indexed")
        store.copy(shown.path, f"{folder}/indexed/{offset_name(first, FileKind.LOG)}")
        snapshot = f"{folder}/indexed/{offset_name(first, FileKind.PRODUCER_SNAPSHOT)}"
        write_file(fs, snapshot, producers_at(log, first))
        complete_indexes(fs, LogView(f"{folder}/indexed", fs=fs), f"{folder}/indexed", now_ms=self.site.now_ms)
        new = new_segment(
            fs,
            store,
            log,
            SegmentPiece(first, first, answer.last_offset, shown.size_bytes, is_written=True, is_new=True),
            [answer],
            self.part.lineage,
            f"{folder}/indexed",
            f"{folder}/staged",
            broker=NONE,
            now_ms=self.site.now_ms,
        )
        segment = replace(new.segment, state=CopyState.COPY_FINISHED)
        self.site.layout.write(segment, new.files, None)
        return described(fs, segment, new.files)

    def result(self) -> HandedOver:
        """Describe it."""
        segments = self.described.values()
        end = max((one.last_offset + 1 for one in self.described), default=self.part.log_start)
        return HandedOver(
            self.selected.place.path,
            self.selected.name,
            self.selected.metadata.partition,
            len(segments),
            sum(one.segment.size_bytes for one in segments),
            self.part.log_start,
            end,
            len(self.cut),
            self.resumed,
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
        yield f"{many} in {result.tier} {now}: {owner} will own the tier from now on"
    else:
        yield f"{many} in {result.tier} can be {now}: {owner} would own the tier. Nothing was changed"
    rows = [
        [
            str(one.partition),
            f"{one.segments:,}",
            bytes_text(one.size_bytes),
            f"{one.log_start_offset:,} to {one.end_offset:,}",
            f"{REMOTE_LOG_METADATA}-{one.metadata_partition}",
            ", ".join(_notes(one)),
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


def _notes(one: HandedOver) -> Iterator[str]:
    if one.copied_segments:
        yield f"{number(one.copied_segments, 'segment')} cut, as they overlap"
    if one.resumed:
        yield "after an interruption"


def _document(result: HandOverResult) -> dict[str, Any]:
    names = ("path", "metadata_partition", "segments", "size_bytes", "log_start_offset", "end_offset")
    return {
        "action": "export" if result.to_broker else "adopt",
        "tier": result.tier,
        "done": result.done,
        "partitions": [
            {"partition": str(one.partition), **{name: getattr(one, name) for name in names}}
            | {"copied_segments": one.copied_segments, "resumed": one.resumed}
            for one in result.partitions
        ],
    }


register(HandOverResult, lines=_lines, document=_document)
