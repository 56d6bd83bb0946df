"""A clean of the directories themselves; the steps in their order:

    lock      lock every log directory until the last task has ended
    load      complete or undo an interrupted clean or a crash's leftovers, as a broker's start would do
    plan      choose the partitions to clean, their ranges, and the number of waves that the free room allows
    try       clean a partition that needs several waves without writing, so that damage stops it before any change
    wave      Spark's workers write outputs to the partitions' work folders; others check them; `verify` proves them
    swap      group by group, replace old segments by outputs and delete them; see `storage.changes.swap`
    joint     if the directories hold all replicas of a partition, remove the tombstones that have expired on all of
              them, in waves of their own; see `in_place.joint`
    retain    with --retention, delete old segments after proving each of them deletable
    record    write the cleaner's checkpoint

A finished group stays cleaned even if a later group fails; an unfinished group stays unchanged. A folder `.cordwood` in
a partition is a leftover: a broker ignores it, and the next clean removes it.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import cordwood.commands.clean  # noqa: F401 - so that results can show themselves
from cordwood.cleaning.engine.progress import OnProgress
from cordwood.cleaning.engine.results import CleanResult, Fate, InPlace, PartitionResult, result_of
from cordwood.cleaning.engine.task import Failure, FailureKind
from cordwood.cleaning.proof.retention import RetentionLimits, retention_faults
from cordwood.cleaning.rules.plan import Decision, PartitionPlan, Plan
from cordwood.cleaning.rules.waves import Waves
from cordwood.commands.in_place.joint import SecondPass, joint_partitions, remove_expired, split_at_ends
from cordwood.commands.in_place.room import plan_waves, refuse_full_disks
from cordwood.commands.in_place.wave import run_wave
from cordwood.commands.in_place.work import InPlaceWork, Ledger, LockedDirectories
from cordwood.commands.joint import TOMBSTONES_STAY
from cordwood.commands.load import Loaded, load_in_place
from cordwood.commands.opening import open_cluster, select_partitions
from cordwood.commands.options import InPlaceOptions, NamedBrokers, PlanOptions, TaskOptions
from cordwood.commands.plan import plan_cluster, retain_after
from cordwood.common.config import TopicConfig
from cordwood.common.errors import LockedError, RequestError
from cordwood.common.threads import in_parallel
from cordwood.common.types import NONE, Clock, system_clock
from cordwood.fs.base import DirectoryLock, LocalFileSystem
from cordwood.fs.by_url import local_path
from cordwood.fs.locks import check_local, directories_to_lock
from cordwood.fs.paced import Limit, throttled
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.changes.backup import KeepFolder
from cordwood.storage.changes.swap import check_apart, check_ownership, drop_segments
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.log.loaded import broker_would_load, zero_bytes
from cordwood.storage.node.cluster import list_brokers
from cordwood.storage.node.directory import check_outside_logs
from cordwood.storage.node.node import LocatedPartition, given_layers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def clean_in_place(
    paths: Sequence[str],
    options: PlanOptions,
    in_place: InPlaceOptions,
    tasks: TaskOptions,
    *,
    spark: SparkSession | None = None,
    on_plan: Callable[[Plan, int], None] | None = None,
    on_progress: OnProgress | None = None,
    fs: LocalFileSystem | None = None,
    clock: Clock = system_clock,
) -> CleanResult:
    """Clean the directories of one or more brokers in place.

    Only selected partitions are recovered and cleaned. Retention runs after the clean. Replicas of a partition are
    cleaned alike if all of them are here. Of several brokers, one that runs is left alone, with its directories.

    Args:
        paths: log directories, folders of several, or partition directories. Nothing else may use them meanwhile.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        LockedError: a broker or another program holds one of the directories; of several brokers, all are held.
        RequestError: this user may not give a new file the owner of the file that it replaces; the folder for old
            files cannot be used; see also `plan`.
        OSError: the disk fails. After any error, its notes (`__notes__`) list the finished work.
    """
    started = time.monotonic()
    if options.selection.tier_place.tier is not None:
        raise RequestError("--tier: segments in a tier cannot be cleaned in place. Give --output for a cleaned copy")
    fs = fs or PosixFileSystem()
    advice = "Write a cleaned copy instead: cordwood clean {} --output URL, or --output DIR"
    paths = [local_path(path, advice.format(path)) for path in paths]
    named = [(name, local_path(path, advice.format(path))) for name, path in options.named.named]
    options, now_ms = options.at(clock)
    sources = [fs.absolute_path(path) for path in paths]
    options = replace(options, named=NamedBrokers(brokers=[f"{name}={fs.absolute_path(path)}" for name, path in named]))
    with _locked(fs, sources, options, in_place, now_ms) as site:
        ledger = Ledger()
        try:
            site.confirm_locks()
            logs = {place.path: place.log() for place in site.places}
            bytes_before = {path: log.size_bytes - zero_bytes(log) for path, log in logs.items()}
            loaded = load_in_place(site, logs)
            ledger.failures |= loaded.failures
            plan = _plan(site, sources, options.without_retention(), ledger)
            joint = joint_partitions(plan)
            root = options.index_place.root(fs, [place.path for place in site.places])
            work = InPlaceWork.of(plan, fs, ledger.failures, in_place.indexes, root)
            work = refuse_full_disks(site, work, in_place, ledger.failures)
            ledger.begin(work)
            counters = site.make_work_folders(list(work.tasks))
            limited = throttled(fs, Limit.of(tasks.rate, fs, counters) if work.tasks else None)
            with tasks.jobs(limited, counters, spark, on_progress) as jobs:
                waves = plan_waves(site, jobs, work, in_place, ledger.failures)
                if on_plan is not None:
                    # The proof reads all existing data once more, and the outputs.
                    on_plan(plan, work.size_bytes + (2 * work.output_bytes_max if in_place.verify else 0))
                last = {path for one in joint if (path := one.recorded_last) is not None}
                for wave in waves.waves:
                    run_wave(site, jobs, work, wave, ledger, verify=in_place.verify, unrecorded=last)
                again = functools.partial(_plan_again, site, sources, options.without_retention())
                waves_after = remove_expired(site, jobs, joint, SecondPass(again, in_place, root), ledger)
            if options.choices.retention:
                plan = _retain(site, plan, ledger, verify=in_place.verify)
            return CleanResult(
                target="",
                now_ms=now_ms,
                partitions=_partitions(site, plan, loaded, ledger, bytes_before),
                seconds=time.monotonic() - started,
                clean_seconds=jobs.seconds,
                notes=tuple(_notes(site)),
                in_place=_in_place(site, work, waves, waves_after, ledger, verified=in_place.verify),
            )
        except BaseException as error:
            for note in ledger.notes():
                error.add_note(note)
            raise


def _plan(site: LockedDirectories, sources: Sequence[str], options: PlanOptions, ledger: Ledger) -> Plan:
    """Plan the clean; split segments where the common range of replicas ends, and plan once more.

    Args:
        ledger: partitions that cannot be cleaned are added.
    """

    def plan_now() -> Plan:
        failed = {path: failure.what for path, failure in ledger.failures.items()}
        unable = {**site.locked, **failed} if site.of_several else {}
        places = options.named.with_paths(sources)
        return plan_cluster(site.cluster.listed_again(), places, options, site.now_ms, unable=unable)

    plan = plan_now()
    is_split, failures = split_at_ends(site, plan)
    ledger.failures |= failures
    if is_split or failures:
        plan = plan_now()
    for one in plan.with_decision(Decision.CLEAN):
        if one.jointly and one.topic_partition is not None:
            before = site.place_of(one.path).directory.cleaner_offsets.get(one.topic_partition, 0)
            site.clean_before[one.path] = before if before <= one.log_end_offset else 0
    return plan


def _plan_again(site: LockedDirectories, sources: Sequence[str], options: PlanOptions, paths: Collection[str]) -> Plan:
    """Plan to clean some partitions once more, from their log starts."""
    options = replace(options, choices=replace(options.choices, first_dirty=0, ignore_ratio=True))
    places = options.named.with_paths(sources)
    return plan_cluster(site.cluster.listed_again(), places, options, site.now_ms, only=paths)


@contextlib.contextmanager
def _locked(
    fs: LocalFileSystem, sources: Sequence[str], options: PlanOptions, in_place: InPlaceOptions, now_ms: int
) -> Iterator[LockedDirectories]:
    """Lock the log directories and open them; at the end, remove all work folders."""
    selection, named = options.selection, options.named
    given = named.with_paths(sources)
    # Raise for wrong configs before any change: even a lock leaves a file behind.
    given_layers(fs, selection.server_properties, selection.overrides)
    by_broker, found = list_brokers(fs, sources, named.named)
    found = select_partitions(found, given, selection)
    with ExitStack() as held:
        for path in directories_to_lock(fs, (place.path for place in found)):
            check_local(fs, path, no_broker_elsewhere=in_place.no_broker_elsewhere)
        locks: list[DirectoryLock] = []
        locked: dict[str, str] = {}
        for broker, directories in by_broker.items():
            own = [place.path for place in found if place.directory in directories]
            try:
                locks += _lock(fs, directories_to_lock(fs, own), held)
            except LockedError as error:
                locked[broker or ""] = str(error)
                if len(locked) == len(by_broker):
                    raise
        # Open the directories only now: another process may have changed them before they were locked.
        whole = open_cluster(fs, sources, selection, named)
        cluster = whole.without(locked)
        selected = select_partitions((place for node in whole.nodes for place in node.places), given, selection)
        owners = [(whole.node_of(place).name, place) for place in selected]
        left = [(owner, place) for owner, place in owners if owner in locked]
        places = [place for owner, place in owners if owner not in locked and broker_would_load(place.name)]
        partitions = [place.path for place in places]
        check_apart(fs, partitions)
        check_ownership(fs, partitions)
        kept = None
        if in_place.keep_old is not None:
            check_outside_logs(fs, in_place.keep_old)
            names = [directory.path for node in cluster.nodes for directory in node.directories]
            kept = held.enter_context(contextlib.closing(KeepFolder(fs, in_place.keep_old, names, partitions)))
        site = LockedDirectories(fs, cluster, places, locks, kept, now_ms, locked, left)
        held.callback(site.remove_work_folders)
        yield site


def _lock(fs: LocalFileSystem, directories: Sequence[str], held: ExitStack) -> list[DirectoryLock]:
    """Lock all directories of a broker until `held` ends, or none of them.

    Raises:
        LockedError: one of them is in use.
    """
    with ExitStack() as own:
        locks = [own.enter_context(fs.lock_directory(path)) for path in directories]
        held.push(own.pop_all())
    return locks


def _notes(site: LockedDirectories) -> Iterator[str]:
    for directory in site.directories:
        if directory.crashed:
            yield f"{directory.path} had no clean shutdown; it was recovered, as a broker does at its next start"
    for broker, reason in site.locked.items():
        yield f"broker {broker} was left alone: {reason}"


def _in_place(
    site: LockedDirectories, work: InPlaceWork, waves: Waves, waves_after: int, ledger: Ledger, *, verified: bool
) -> InPlace:
    known = [one.cleaned for one in ledger.progress.values() if one.cleaned is not None]
    return InPlace(
        directories=tuple(directory.path for directory in site.directories),
        waves=len(waves.waves) + waves_after,
        work_bytes_max=sum(waves.peak_bytes.values()),
        proof_bytes_max=waves.proof_bytes_max,
        verified=ledger.proofs.verified if verified else None,
        verify_seconds=ledger.proofs.seconds,
        kept="" if site.kept is None or site.kept.is_empty else site.kept.path,
        kept_bytes=0 if site.kept is None else site.kept.bytes_kept,
        bytes_read=ledger.bytes_read,
        bytes_written=ledger.bytes_written,
        proof_bytes_read=ledger.proofs.bytes_read,
        bytes_new=work.new_bytes,
        index_bytes=ledger.index_bytes,
        segments_written=sum(len(replaced) for one in known for replaced, _ in one.written),
        segments_spared=sum(len(one.kept) for one in known),
    )


def _partitions(
    site: LockedDirectories, plan: Plan, loaded: Loaded, ledger: Ledger, bytes_before: Mapping[str, int]
) -> tuple[PartitionResult, ...]:
    plans = {one.path: one for one in plan.partitions}
    cleaned = tuple(
        replace(
            _partition(site, place, plans.get(place.path), loaded.notes(place), ledger),
            bytes_before=bytes_before[place.path],
        )
        for place in site.places
    )
    return (*cleaned, *(_of_locked(broker, place, site.locked[broker]) for broker, place in site.left_places))


def _of_locked(broker: str, place: LocatedPartition, what: str) -> PartitionResult:
    """Return the result of a partition of a broker that holds its directories."""
    name = None if place.name is None else place.name.topic_partition
    failure = Failure(FailureKind.LOCKED, what)
    return PartitionResult(place.path, name, Fate.FAILED, what, failure=failure, broker=broker)


def _partition(
    site: LockedDirectories,
    place: LocatedPartition,
    plan: PartitionPlan | None,
    notes: tuple[str, ...],
    ledger: Ledger,
) -> PartitionResult:
    path = place.path
    failure, progress = ledger.failures.get(path), ledger.progress.get(path)
    outcome = failure or (None if progress is None else progress.cleaned)
    notes = (*notes, *ledger.remarks.get(path, ()), *(() if plan is None else _on_replicas(plan)))
    result = result_of(place, plan, outcome, notes, otherwise=Fate.LEFT)
    broker = site.cluster.node_of(place).name if site.of_several else ""
    result = replace(result, broker=broker, jointly=plan is not None and plan.jointly)
    if failure is not None and progress is not None and progress.done:
        note = f"{progress.done} of its {progress.groups} groups of segments were cleaned, and stay so"
        result = replace(result, notes=(*result.notes, note))
    size = sum(info.size_bytes for info in site.fs.list(path) if info.name.endswith(FileKind.LOG))
    return replace(
        result,
        bytes_after=size - zero_bytes(place.log()),
        segments_retained_away=0 if plan is None else len(plan.retained_away),
        bytes_retained_away=0 if plan is None else plan.bytes_retained_away,
    )


def _on_replicas(plan: PartitionPlan) -> Iterator[str]:
    """Yield why expired tombstones stay, if replicas are missing."""
    yield from (note for note in plan.notes if note.startswith(TOMBSTONES_STAY))


# ---- retain ----------------------------------------------------------------------------------------------------------


def _retain(site: LockedDirectories, plan: Plan, ledger: Ledger, *, verify: bool) -> Plan:
    """Delete old segments, as retention requires; return the plan with the deletions.

    Args:
        ledger: failed partitions are left alone; a partition is added if a deletion cannot be proved right.
        verify: whether to prove each deletion first.
    """
    cluster = site.cluster.listed_again()
    places = {place.path: (node, place) for node in cluster.nodes for place in node.places}
    loaded = {place.path for place in site.places}.difference(ledger.failures)

    def retain_one(found: PartitionPlan) -> PartitionPlan:
        path = found.path
        if path not in loaded:
            return found
        node, place = places[path]
        log = place.log()
        taken = retain_after(node, place, log, found, (), (), site.now_ms)
        if not taken.retained_away:
            return taken
        if verify:
            assert taken.high_watermark is not None and place.topic is not None, "or nothing would be taken"
            limits = _limits(node.config_of(place.topic), taken.high_watermark.offset, site.now_ms)
            fault = next(retention_faults(log, taken.retained_away, limits), None)
            if fault is not None:
                what = f"{path}: what retention would delete cannot be proved right, so nothing is deleted: {fault}"
                ledger.failures[path] = Failure(FailureKind.BUG, what)
                return found
        drop_segments(site.fs, path, taken.retained_away, found.log_end_offset, keep=site.keep)
        return taken

    partitions = tuple(in_parallel(site.fs.concurrency, retain_one, plan.partitions))
    return replace(plan, partitions=partitions, choices=replace(plan.choices, retention=True))


def _limits(config: TopicConfig, high_watermark: int, now_ms: int) -> RetentionLimits:
    """Return the explicitly set limits; a default deletes nothing."""

    def limit(name: str) -> int:
        return config.integer(name) if "delete" in config.policy and config[name].explicit else NONE

    return RetentionLimits(high_watermark, now_ms, limit("retention.bytes"), limit("retention.ms"))
