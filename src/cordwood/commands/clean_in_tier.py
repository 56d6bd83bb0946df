"""A clean of tiered topics inside their tier, while their brokers are stopped; the steps in their order:

    lock      lock the given log directories until the end
    resume    complete or undo an interrupted run; see `storage.tier.exchange`
    plan      choose the partitions to clean; a range ends at the first segment that a replica has on its disk
    clean     tasks write the new segments to the partitions' work folders, and other processes prove them
    exchange  partition by partition, put the new segments into the tier, and take the old ones out
    record    write the cleaner's checkpoint

A broker does not compact tiered topics, so the policy must be given: `--config TOPIC:cleanup.policy=compact`.
"""

from __future__ import annotations

import contextlib
import functools
import posixpath
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import cordwood.commands.clean  # noqa: F401 - so that results can show themselves
from cordwood.cleaning.engine.progress import OnProgress
from cordwood.cleaning.engine.results import CleanResult, Fate, InTier, PartitionResult, result_of
from cordwood.cleaning.engine.task import Failure, FailureKind, Output, PartitionTask, tasks_of
from cordwood.cleaning.engine.tiered import new_segment, pieces_of_output, replaced_bytes
from cordwood.cleaning.rules.plan import Decision, PartitionPlan, Plan, Reason
from cordwood.commands.in_place.proving import Proofs, proved
from cordwood.commands.opening import open_node, select_partitions
from cordwood.commands.options import InTierOptions, PlanOptions, TaskOptions
from cordwood.commands.plan import plan_of, plan_with_facts
from cordwood.commands.why.facts import PlannedPartition
from cordwood.common.config import SourceKind, overrides
from cordwood.common.errors import DataError, RequestError
from cordwood.common.text import number
from cordwood.common.types import Clock, TopicPartition, system_clock
from cordwood.fs.base import DirectoryLock, LocalFileSystem
from cordwood.fs.by_url import local_path
from cordwood.fs.locks import check_local, directories_to_lock
from cordwood.fs.paced import Limit, throttled
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats import checkpoints
from cordwood.storage.formats.filenames import (
    CLEANER_OFFSETS,
    WORK_FOLDER,
    DirectoryState,
)
from cordwood.storage.formats.messages.topics import REMOTE_LOG_METADATA
from cordwood.storage.log.files import clear_work_folder, make_work_folder
from cordwood.storage.node.node import LocatedPartition, Node, list_places
from cordwood.storage.tier.exchange import (
    Moved,
    NewSegment,
    exchange,
    foretold,
    is_interrupted,
    resume,
)
from cordwood.storage.tier.metadata_log import MetadataLog
from cordwood.storage.tier.replacing import (
    Replacement,
    events_of,
    fault_after,
    plan_replacement,
)
from cordwood.storage.tier.store import RemotePart, TierStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROGRESS, _STAGED = "progress", "staged"


def clean_in_tier(
    paths: Sequence[str],
    options: PlanOptions,
    in_tier: InTierOptions,
    tasks: TaskOptions,
    *,
    spark: SparkSession | None = None,
    on_plan: Callable[[Plan, int], None] | None = None,
    on_progress: OnProgress | None = None,
    clock: Clock = system_clock,
) -> CleanResult:
    """Clean tiered topics inside their tier, while their brokers are stopped.

    New remote segments replace the segments that lose records. From then on the brokers' metadata lists the new ones.

    Args:
        paths: log directories of one broker, or partition directories. Nothing else may use them meanwhile.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        LockedError: a broker or another program holds one of the directories.
        RequestError: no tier or no policy is given, a directory had no clean shutdown, or a replica is missing; see
            also `plan`.
        StoreError: the tier failed. The partition that was being changed keeps its old segments or has its new ones.
    """
    started = time.monotonic()
    fs = PosixFileSystem()
    advice = "The log directory must be on this machine; only its tier may be in a bucket"
    sources, replicas = (
        [fs.absolute_path(local_path(path, advice)) for path in some] for some in (paths, in_tier.replicas)
    )
    options.named.refuse("clean")
    options, now_ms = _allowing_compaction(options).at(clock)
    with _locked(fs, sources, replicas, options, now_ms) as site:
        notes = site.resume(dry_run=in_tier.dry_run)
        site = site.reopened() if notes else site
        plan = site.plan(options)
        bytes_before = {place.path: place.log().size_bytes for place in site.places}
        failed = site.not_replaceable(plan)
        work = [task for task in tasks_of(plan, site.store.location()) if task.path not in failed]
        counters = site.make_work_folders([task.path for task in work])
        limited = throttled(site.store, Limit.of(tasks.rate, site.store, counters) if work else None)
        proofs, moved = Proofs(), Moved()
        with tasks.jobs(limited, counters, spark, on_progress) as jobs:
            if on_plan is not None:
                on_plan(plan, sum(task.size_bytes for task in work))
            outcomes = jobs.clean(work, None, proved=True)
            outcomes = proved(jobs, work, outcomes, site.names, proofs)
        found = failed | dict(zip((task.path for task in work), outcomes, strict=True))
        swaps: dict[str, _Swap] = {}
        for task in work:
            outcome = found[task.path]
            if not isinstance(outcome, Output):
                continue
            try:
                swap = site.staged(task, outcome)
                if in_tier.dry_run:
                    foretold(site.store, swap.new, swap.replacement.replaced, moved)
                else:
                    site.exchange(task, outcome, swap, moved, keep_old=in_tier.keep_old_objects)
                swaps[task.path] = swap
            except (RequestError, DataError) as error:
                found[task.path] = Failure(FailureKind.OTHER, f"{task.path}: {error}")
        return CleanResult(
            target="",
            now_ms=now_ms,
            partitions=tuple(site.results(plan, found, swaps, notes, bytes_before)),
            seconds=time.monotonic() - started,
            clean_seconds=jobs.seconds,
            in_tier=InTier(
                tier=site.store.tier.root,
                is_done=not in_tier.dry_run,
                segments_written=sum(len(one.new) for one in swaps.values()),
                segments_replaced=sum(len(one.replacement.replaced) for one in swaps.values()),
                objects_written=moved.objects_written,
                bytes_written=moved.bytes_written,
                objects_deleted=moved.objects_deleted,
                bytes_deleted=moved.bytes_deleted,
                kept=tuple(moved.kept),
                verified=proofs.verified,
                verify_seconds=proofs.seconds,
            ),
        )


# ---- topics and directories ------------------------------------------------------------------------------------------


def _allowing_compaction(options: PlanOptions) -> PlanOptions:
    """Return the options with only the topics that the user wants compacted, although they are tiered.

    Raises:
        RequestError: the user names no such topic, or asks for retention.
    """
    if options.choices.retention:
        raise RequestError("--retention: a broker applies retention to its tier itself")
    said = [layer for layer in overrides(options.selection.overrides) if layer.source.kind is SourceKind.TOPIC_OVERRIDE]
    topics = [one.source.subject for one in said if "compact" in one.texts.get("cleanup.policy", "").split(",")]
    asked = options.selection.topics
    if not topics or not set(asked).issubset(topics):
        missing = ", ".join(sorted(set(asked).difference(topics))) or "TOPIC"
        raise RequestError(
            f"no broker compacts a tiered topic, so say that you want it: --config {missing}:cleanup.policy=compact"
        )
    # Kafka's rule that these two configs exclude each other is what this command is for.
    untiered = [f"{topic}:remote.storage.enable=false" for topic in topics]
    selection = replace(
        options.selection, overrides=(*options.selection.overrides, *untiered), topics=asked or tuple(topics)
    )
    return replace(options, selection=selection)


@contextlib.contextmanager
def _locked(
    fs: LocalFileSystem, sources: Sequence[str], replicas: Sequence[str], options: PlanOptions, now_ms: int
) -> Iterator[_Site]:
    """Lock the log directories, and open them; at the end, remove all work folders.

    Raises:
        RequestError: no tier is given, or a directory had no clean shutdown.
    """
    _, found = list_places(fs, sources)
    chosen = [place.path for place in select_partitions(found, sources, options.selection)]
    _, others = list_places(fs, replicas) if replicas else ((), ())
    with ExitStack() as held:
        to_lock = directories_to_lock(fs, [*chosen, *(place.path for place in others)])
        for path in to_lock:
            check_local(fs, path, no_broker_elsewhere=False)
        locks = [held.enter_context(fs.lock_directory(path)) for path in to_lock]
        site = _Site.open(fs, sources, replicas, options, locks, now_ms)
        held.callback(site.remove_work_folders)
        yield site


@dataclass(frozen=True, slots=True)
class _Swap:
    """The segments of a partition to exchange.

    Attributes:
        source_bytes: size of the `.log` files that the new segments replace.
    """

    replacement: Replacement
    new: Sequence[NewSegment]
    source_bytes: int


@dataclass(frozen=True, slots=True)
class _Site:
    """Locked log directories of a broker, and of other replicas' brokers, with their tier.

    Attributes:
        places: the selected partitions.
        parts: the remote part of each partition that has one, by path.
        replicas: log directories of other brokers.
        others: the partitions in them, in all topics.
    """

    fs: LocalFileSystem
    store: TierStore
    node: Node
    places: Sequence[LocatedPartition]
    parts: Mapping[str, RemotePart]
    replicas: Sequence[str]
    others: Sequence[LocatedPartition]
    options: PlanOptions
    locks: Sequence[DirectoryLock]
    now_ms: int

    @classmethod
    def open(
        cls,
        fs: LocalFileSystem,
        sources: Sequence[str],
        replicas: Sequence[str],
        options: PlanOptions,
        locks: Sequence[DirectoryLock],
        now_ms: int,
    ) -> _Site:
        """Open directories; see `_locked`."""
        selection = options.selection
        store = selection.store([*sources, *replicas])
        if not isinstance(store, TierStore):
            raise RequestError("give the tier: --tier DIR|URL")
        node = open_node(store, sources, selection)
        directories, others = list_places(store, replicas) if replicas else ((), ())
        for directory in (*node.directories, *directories):
            if directory.crashed:
                raise RequestError(
                    f"{directory.path} had no clean shutdown. Start its broker once, which repairs it, and stop it"
                )
        places = [
            place
            for place in select_partitions(node.places, sources, selection)
            if place.name is not None and place.name.state is DirectoryState.CURRENT
        ]
        parts = {place.path: part for place in places if (part := store.remote_part(place.path)) is not None}
        for path, part in parts.items():
            if part.state is not None:
                raise RequestError(
                    f"{path} is a live log: manifests name its segments in the tier, not a broker's metadata. The "
                    "program that owns it cleans it; to clean a copy instead: --output DIR2"
                )
        return cls(fs, store, node, places, parts, replicas, others, options, locks, now_ms)

    def reopened(self) -> _Site:
        """Return the same directories as they are now."""
        return _Site.open(self.fs, self.node.paths, self.replicas, self.options, self.locks, self.now_ms)

    @property
    def names(self) -> Mapping[str, TopicPartition]:
        """The partition in each directory, by path."""
        return {place.path: place.name.topic_partition for place in self.places if place.name is not None}

    def confirm_locks(self) -> None:
        """Make sure that this process still holds the locks."""
        for lock in self.locks:
            lock.confirm()

    # ---- plan --------------------------------------------------------------------------------------------------------

    def plan(self, options: PlanOptions) -> Plan:
        """Plan a clean of the segments that are only in the tier."""

        def plan_one(place: LocatedPartition) -> PlannedPartition | None:
            part = self.parts.get(place.path)
            if part is None:
                reason = Reason("it has no remote segment")
                return PlannedPartition(PartitionPlan(place.path, self.names[place.path], Decision.LEAVE, reason))
            start = self._local_start(place, part)
            return plan_with_facts(self.node, place, options.choices, self.now_ms, local_start=start)

        return plan_of(self.node, self.places, plan_one, options.choices, self.now_ms, with_causes=False)

    def _local_start(self, place: LocatedPartition, part: RemotePart) -> int:
        """Return the first offset of a segment that any given replica has on its disk."""
        starts = [part.local_start]
        for other in self._copies(self.names[place.path]):
            theirs = self.store.remote_part(other.path)
            segments = other.log().segments
            starts.append(theirs.local_start if theirs is not None else segments[0].base_offset if segments else 0)
        start = min(starts)
        return min((one.first_offset for one in part.answers if one.segment.end_offset >= start), default=start)

    def _copies(self, name: TopicPartition) -> list[LocatedPartition]:
        """Return the places of a partition at the other replicas."""
        return [
            place
            for place in self.others
            if place.name is not None
            and place.name.topic_partition == name
            and place.name.state is DirectoryState.CURRENT
        ]

    def metadata(self, part: RemotePart) -> MetadataLog:
        """Open the metadata partition of a partition, at all replicas.

        Raises:
            RequestError: a replica of it is missing, or they differ.
        """
        assert part.metadata_path is not None, "the records come from a log directory"
        name = TopicPartition(REMOTE_LOG_METADATA, int(part.metadata_path.rpartition("-")[2]))
        paths = [part.metadata_path, *(place.path for place in self._copies(name))]
        count = self.node.replica_count(name)
        if len(paths) != count and not (count is None and self.options.choices.single_copy):
            has = "an unknown number of replicas" if count is None else number(count, "replica")
            raise RequestError(
                f"{name} has {has}, and {len(paths)} of them are given. All replicas must get the new records, or the "
                "next leader may cut them off. Stop their brokers and give their log directories: --replica DIR"
            )
        return MetadataLog(self.fs, paths, self.now_ms)

    def not_replaceable(self, plan: Plan) -> dict[str, Output | Failure]:
        """Return the planned partitions whose segments cannot be replaced, by path.

        Raises:
            RequestError: a replica of the metadata is missing, or they differ.
        """
        failed: dict[str, Output | Failure] = {}
        for one in plan.with_decision(Decision.CLEAN):
            assert one.compaction is not None, "or there would be nothing to clean"
            part, end = self.parts[one.path], one.compaction.range.first_uncleanable_offset
            self.metadata(part)
            try:
                for answer in part.answers:
                    if answer.first_offset < end:
                        self.store.layout.check_replaceable(answer.segment)
            except (RequestError, DataError, FileNotFoundError) as error:
                failed[one.path] = Failure(FailureKind.OTHER, f"{one.path}: {error}")
        return failed

    # ---- exchange ----------------------------------------------------------------------------------------------------

    def resume(self, *, dry_run: bool) -> dict[str, str]:
        """Complete or undo interrupted runs; return a note for each of them, by path of the partition.

        Raises:
            RequestError: there is an interrupted run, and `dry_run` forbids changes.
        """
        interrupted = [path for path in self.parts if is_interrupted(self.fs, path)]
        if dry_run and interrupted:
            raise RequestError(f"a clean of {', '.join(interrupted)} was interrupted: run once without --dry-run")
        found = {
            path: resume(self.store, self.fs, path, part, functools.partial(self.metadata, part))
            for path, part in self.parts.items()
        }
        return {path: did for path, did in found.items() if did}

    def staged(self, task: PartitionTask, output: Output) -> _Swap:
        """Prepare the exchange of the outputs for the segments that they replace.

        Raises:
            RequestError: the segments cannot be replaced.
            CorruptFileError: an object of the tier is damaged.
        """
        part, log = self.parts[task.path], task.log(self.store)
        replacement = plan_replacement(pieces_of_output(log, output), part.answers)
        new = [
            new_segment(
                self.fs,
                self.store,
                log,
                piece,
                sources,
                part.lineage,
                output.folder,
                f"{task.path}/{WORK_FOLDER}/{_STAGED}-{piece.first_offset}",
                broker=self.node.node_id,
                now_ms=self.now_ms,
            )
            for piece, sources in zip(replacement.pieces, replacement.sources, strict=True)
        ]
        events = events_of([(one.segment, None) for one in new], replacement.replaced, is_deleted=False)
        fault = fault_after(
            part.log,
            events,
            replacement,
            [one.segment.id for one in new],
            part.lineage,
            part.log_start,
            part.local_start,
        )
        if fault:
            raise RequestError(f"its segments cannot be replaced, and nothing was changed: {fault}")
        return _Swap(replacement, new, replaced_bytes(log, replacement.pieces))

    def exchange(self, task: PartitionTask, output: Output, swap: _Swap, moved: Moved, *, keep_old: bool) -> None:
        """Exchange the segments of a partition, and record up to where it is clean."""
        part, name = self.parts[task.path], self.names[task.path]
        if swap.new:
            exchange(
                self.store,
                self.fs,
                task.path,
                self.metadata(part),
                swap.new,
                swap.replacement.replaced,
                keep_old=keep_old,
                confirm=self.confirm_locks,
                moved=moved,
            )
        self.confirm_locks()
        checkpoint = f"{posixpath.dirname(task.path)}/{CLEANER_OFFSETS}"
        checkpoints.update(self.fs, checkpoint, {name: output.cleaned.end_offset})

    # ---- work folders and results ------------------------------------------------------------------------------------

    def make_work_folders(self, paths: Sequence[str]) -> str:
        """Make the partitions' work folders; return the folder for task counters, which is in the first of them."""
        for path in paths:
            clear_work_folder(self.fs, path)
            make_work_folder(self.fs, path)
        folder = f"{paths[0]}/{WORK_FOLDER}/{_PROGRESS}" if paths else ""
        if paths:
            self.fs.make_directory(folder)
        return folder

    def remove_work_folders(self) -> None:
        """Remove the work folders, unless one has the journal of an exchange that was interrupted."""
        for path in self.parts:
            if not is_interrupted(self.fs, path):
                with contextlib.suppress(OSError):
                    clear_work_folder(self.fs, path)

    def results(
        self,
        plan: Plan,
        found: Mapping[str, Output | Failure],
        swaps: Mapping[str, _Swap],
        notes: Mapping[str, str],
        bytes_before: Mapping[str, int],
    ) -> Iterator[PartitionResult]:
        """Yield the result of each partition."""
        plans = {one.path: one for one in plan.partitions}
        for place in self.places:
            own = (notes[place.path],) if place.path in notes else ()
            one = result_of(place, plans.get(place.path), found.get(place.path), own, otherwise=Fate.LEFT)
            before, swap = bytes_before[place.path], swaps.get(place.path)
            after = before
            if swap is not None:
                after += sum(new.segment.size_bytes for new in swap.new) - swap.source_bytes
            yield replace(one, bytes_before=before, bytes_after=after)
