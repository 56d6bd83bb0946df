"""A clean of tiered topics inside their tier, while their brokers are stopped; the steps in their order:

    lock      lock all given log directories until the end; see `tier_site`
    resume    complete or undo an interrupted run; see `storage.tier.exchange`
    plan      plan the newest replica of each partition, up to the first segment that any replica has on its disk
    clean     tasks write the new segments to the partitions' work folders, and other processes prove them
    exchange  partition by partition, put the new segments into the tier, and take the old ones out
    record    write the cleaner's checkpoint of every replica, as the next run may read another one

A broker does not compact tiered topics, so the policy must be given: `--config TOPIC:cleanup.policy=compact`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import cordwood.commands.clean  # noqa: F401 - so that results can show themselves
from cordwood.cleaning.engine.progress import OnProgress
from cordwood.cleaning.engine.results import CleanResult, Fate, InTier, PartitionResult, result_of
from cordwood.cleaning.engine.task import Failure, FailureKind, Output, PartitionTask, tasks_of
from cordwood.cleaning.engine.tiered import new_segment, pieces_of_output, replaced_bytes
from cordwood.cleaning.rules.plan import Choices, Decision, PartitionPlan, Plan, Reason
from cordwood.commands.in_place.proving import Proofs, proved
from cordwood.commands.options import InTierOptions, PlanOptions, TaskOptions
from cordwood.commands.plan import plan_of, plan_with_facts
from cordwood.commands.tier_site import TierSite
from cordwood.commands.why.facts import PlannedPartition
from cordwood.common.config import SourceKind, overrides
from cordwood.common.errors import DataError, RequestError
from cordwood.common.types import Clock, TopicPartition, system_clock
from cordwood.fs.paced import Limit, throttled
from cordwood.storage.formats import checkpoints
from cordwood.storage.formats.filenames import CLEANER_OFFSETS, WORK_FOLDER
from cordwood.storage.log.files import clear_work_folder, make_work_folder
from cordwood.storage.node.node import LocatedPartition, Node
from cordwood.storage.tier.exchange import (
    Moved,
    NewSegment,
    exchange,
    foretold,
    is_interrupted,
    resume,
)
from cordwood.storage.tier.replacing import (
    TierReplacement,
    events_of,
    fault_after,
    plan_replacement,
)
from cordwood.storage.tier.store import RemotePart

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
        paths: log directories of all brokers with replicas of the partitions or of `__remote_log_metadata`, or
            partition directories in these. Nothing else may use them meanwhile.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        LockedError: a broker or another program holds one of the directories.
        RequestError: no tier or no policy is given; a replica of the metadata is missing, or replicas differ; a
            directory was not shut down cleanly; see also `plan`.
        StoreError: the tier failed. The partition that was being changed keeps its old segments or has its new ones.
    """
    started = time.monotonic()
    options.named.refuse("clean --in-tier")
    options, now_ms = _allowing_compaction(options).at(clock)
    single_copy = options.choices.single_copy
    with _Site.locked(paths, options.selection, now_ms, single_copy=single_copy) as site, ExitStack() as held:
        notes = site.resume(dry_run=in_tier.dry_run)
        site = replace(site) if notes else site  # to open the directories again
        held.callback(site.remove_work_folders)
        plan = site.plan(options.choices)
        bytes_before = {path: place.log().size_bytes for path, place in site.places.items()}
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


@dataclass(frozen=True, slots=True)
class _Swap:
    """The segments of a partition to exchange.

    Attributes:
        source_bytes: size of the `.log` files that the new segments replace.
    """

    replacement: TierReplacement
    new: Sequence[NewSegment]
    source_bytes: int


class _Site(TierSite):
    """Locked log directories of brokers whose tier is cleaned."""

    @cached_property
    def parts(self) -> Mapping[str, RemotePart]:
        """The remote part of each selected partition that has one, by path.

        Raises:
            RequestError: it belongs to a live log.
        """
        parts = {path: part for path in self.places if (part := self.store.remote_part(path)) is not None}
        for path, part in parts.items():
            if part.state is not None:
                raise RequestError(
                    f"{path} is a live log: manifests name its segments in the tier, not a broker's metadata. The "
                    "program that owns it cleans it; to clean a copy instead: --output DIR2"
                )
        return parts

    @cached_property
    def names(self) -> Mapping[str, TopicPartition]:
        """The selected partitions, by path."""
        return {path: place.name.topic_partition for path, place in self.places.items() if place.name is not None}

    @property
    def replicas(self) -> Mapping[str, str]:
        """The selected path of each partition with a remote part, by the path of each of its replicas."""
        return {one.path: path for path in self.parts for one in self.cluster.replicas(self.names[path])}

    # ---- plan --------------------------------------------------------------------------------------------------------

    def plan(self, choices: Choices) -> Plan:
        """Plan a clean of the segments that are only in the tier."""

        def plan_one(node: Node, place: LocatedPartition) -> PlannedPartition | None:
            if place.path not in self.parts:
                reason = Reason("it has no remote segment")
                return PlannedPartition(PartitionPlan(place.path, self.names[place.path], Decision.LEAVE, reason))
            return plan_with_facts(node, place, choices, self.now_ms, local_start=self._local_start(place.path))

        plans = [
            plan_of(
                node,
                [place for place in self.places.values() if self.cluster.node_of(place) is node],
                partial(plan_one, node),
                choices,
                self.now_ms,
                with_causes=False,
            )
            for node in self.cluster.nodes
        ]
        return Plan(self.now_ms, tuple(one for plan in plans for one in plan.partitions), choices)

    def _local_start(self, path: str) -> int:
        """Return the first offset of a segment that any replica of a partition has on its disk."""
        starts = []
        for replica in self.cluster.replicas(self.names[path]):
            part, segments = self.store.remote_part(replica.path), replica.log.segments
            starts.append(part.local_start if part is not None else segments[0].base_offset if segments else 0)
        answers, start = self.parts[path].answers, min(starts)
        return min((one.first_offset for one in answers if one.segment.end_offset >= start), default=start)

    def not_replaceable(self, plan: Plan) -> dict[str, Output | Failure]:
        """Return the planned partitions whose segments cannot be replaced, by path.

        Raises:
            RequestError: a replica of the metadata is missing, or they differ.
        """
        failed: dict[str, Output | Failure] = {}
        for one in plan.with_decision(Decision.CLEAN):
            assert one.compaction is not None, "or there would be nothing to clean"
            part, end = self.parts[one.path], one.compaction.range.first_uncleanable_offset
            self.metadata_log(one.path)
            try:
                for answer in part.answers:
                    if answer.first_offset < end:
                        self.store.layout.check_replaceable(answer.segment)
            except (RequestError, DataError, FileNotFoundError) as error:
                failed[one.path] = Failure(FailureKind.OTHER, f"{one.path}: {error}")
        return failed

    # ---- exchange ----------------------------------------------------------------------------------------------------

    def resume(self, *, dry_run: bool) -> dict[str, str]:
        """Complete or undo interrupted runs on any replica; return a note for each of them, by selected path.

        Raises:
            RequestError: there is an interrupted run, and `dry_run` forbids changes.
        """
        interrupted = {path: selected for path, selected in self.replicas.items() if is_interrupted(self.fs, path)}
        if dry_run and interrupted:
            raise RequestError(f"a clean of {', '.join(interrupted)} was interrupted: run once without --dry-run")
        found = {
            selected: resume(self.store, self.fs, path, self.parts[selected], partial(self.metadata_log, selected))
            for path, selected in interrupted.items()
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
                broker=self.cluster.node_of(self.places[task.path]).node_id,
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
        if swap.new:
            exchange(
                self.store,
                self.fs,
                task.path,
                self.metadata_log(task.path),
                swap.new,
                swap.replacement.replaced,
                keep_old=keep_old,
                confirm=self.confirm_locks,
                moved=moved,
            )
        self.confirm_locks()
        name = self.names[task.path]
        for one in self.cluster.replicas(name):
            checkpoint = f"{one.place.directory.path}/{CLEANER_OFFSETS}"
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
        for path in self.replicas:
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
        for place in self.places.values():
            own = (notes[place.path],) if place.path in notes else ()
            one = result_of(place, plans.get(place.path), found.get(place.path), own, otherwise=Fate.LEFT)
            before, swap = bytes_before[place.path], swaps.get(place.path)
            after = before
            if swap is not None:
                after += sum(new.segment.size_bytes for new in swap.new) - swap.source_bytes
            yield replace(one, bytes_before=before, bytes_after=after)
