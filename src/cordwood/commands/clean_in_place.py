"""A clean of the directories themselves, from top to bottom, told in the order in which it happens.

    lock      every log directory, until the last task has ended
    load      what an interrupted clean or a crash left is completed or undone, as a broker's start would do
    plan      which partitions are cleaned, from where to where, and in how many waves, by the room there is
    try       a partition that takes several waves is cleaned without writing, so that damage stops it before any change
    wave      Spark's workers write outputs to the partitions' work folders; others check them; `verify` proves them
    swap      group by group they take the places of what they stand for, which goes; see `storage.swapping`
    retain    with --retention, old segments go
    record    the cleaner's checkpoint

What is finished stays finished, whatever happens next; what is not is as it was. A folder `.cordwood` that is left in a
partition is nobody's: a broker takes no notice of it, and the next clean removes it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import cordwood.report.clean  # noqa: F401 - so that results can show themselves
from cordwood.cleaning.plan import Decision, PartitionPlan, Plan
from cordwood.cleaning.waves import Load, Wave, Waves, schedule
from cordwood.clock import Clock, system_clock
from cordwood.commands.options import (
    InPlaceOptions,
    PlanOptions,
    RunOptions,
    open_node,
    recovery_settings,
    select_partitions,
)
from cordwood.commands.plan import make_plan, retain_after
from cordwood.engine.partition import Cleaned, CleanState, GroupRange
from cordwood.engine.progress import Counters
from cordwood.engine.results import CleanResult, Fate, InPlace, PartitionResult, result_of
from cordwood.engine.task import Failure, FailureKind, Output, PartitionTask, tasks_of
from cordwood.errors import DataError
from cordwood.fs.base import DirectoryLock, LocalFileSystem
from cordwood.fs.locks import check_local, directories_to_lock
from cordwood.fs.posix import PosixFileSystem
from cordwood.spark.jobs import Jobs
from cordwood.spark.verify_sql import verify_pairs
from cordwood.storage.changes.backup import KeepFolder
from cordwood.storage.changes.ownership import check_ownership
from cordwood.storage.changes.recover_copy import Recovered
from cordwood.storage.changes.recover_in_place import recover_in_place
from cordwood.storage.changes.swap import Keep, drop_segments, swap_in
from cordwood.storage.formats import checkpoints, filenames, properties
from cordwood.storage.formats.filenames import WORK_FOLDER, DirectoryState, FileKind, parse_file
from cordwood.storage.log.files import remove_tree, write_file
from cordwood.storage.log.recovered import broker_would_load
from cordwood.storage.node.directory import LogDirectory
from cordwood.storage.node.node import LocatedPartition, Node
from cordwood.threads import in_parallel
from cordwood.types import TopicPartition
from cordwood.verification.pairs import Count, Pair, Side
from cordwood.verification.violations import Verdict

#: Outputs leave this much of the free space of a disk: for checkpoints, the manifest of a keep folder, other programs.
RESERVE_BYTES = 8 << 20
_PLENTY_BYTES = 1 << 62
#: The folder of tasks' counters, in a work folder.
_PROGRESS = "progress"


def clean_in_place(
    paths: Sequence[str],
    options: PlanOptions,
    in_place: InPlaceOptions,
    run: RunOptions,
    *,
    fs: LocalFileSystem | None = None,
    clock: Clock = system_clock,
) -> CleanResult:
    """Clean one broker's directories themselves; see `cordwood.clean_in_place`."""
    started = time.monotonic()
    fs = fs or PosixFileSystem()
    options, now_ms = options.at(clock)
    selection = options.selection
    sources = [fs.absolute_path(path) for path in paths]
    node = open_node(fs, sources, selection)
    to_lock = directories_to_lock(fs, (place.path for place in select_partitions(node, sources, selection)))
    with ExitStack() as held:
        for path in to_lock:
            check_local(fs, path, no_broker_elsewhere=in_place.no_broker_elsewhere)
        locks = [held.enter_context(fs.lock_directory(path)) for path in to_lock]
        # Before that somebody may have been at work.
        node = open_node(fs, sources, selection)
        places = [place for place in select_partitions(node, sources, selection) if broker_would_load(place.name)]
        check_ownership(fs, [place.path for place in places])
        kept = None
        if in_place.keep_old is not None:
            directories = [directory.path for directory in node.directories]
            kept = held.enter_context(
                contextlib.closing(KeepFolder(fs, in_place.keep_old, directories, [place.path for place in places]))
            )
        work = _Work(fs, node, places, locks, kept, now_ms)
        try:
            for lock in locks:
                lock.confirm()
            work.load()
            return work.clean(sources, options, in_place, run, started)
        except BaseException as error:
            for note in work.finished():
                error.add_note(note)
            raise
        finally:
            work.remove_folders()


@dataclass(frozen=True, slots=True)
class _Room:
    """What outputs may take on one disk.

    Attributes:
        free_bytes: of the disk; None: unknown.
        work_space: the limit that was asked for; None: there is none.
    """

    free_bytes: int | None
    work_space: int | None

    @property
    def of_disk(self) -> int:
        """What the disk itself allows."""
        return _PLENTY_BYTES if self.free_bytes is None else max(0, self.free_bytes - RESERVE_BYTES)

    @property
    def size_bytes(self) -> int:
        """What outputs may take."""
        return self.of_disk if self.work_space is None else min(self.of_disk, self.work_space)

    def __str__(self) -> str:
        limits = []
        if self.work_space is not None:
            limits.append(f"--work-space is {self.work_space:,} B")
        if self.free_bytes is not None:
            limits.append(f"{self.free_bytes:,} B of the disk are free, of which {RESERVE_BYTES:,} B stay in reserve")
        return f"new segments may take {self.size_bytes:,} B: {' and '.join(limits)}"

    def advice(self, needed_bytes: int) -> str:
        """What makes room for so much; empty if there is."""
        advice = []
        if self.of_disk < needed_bytes:
            advice.append(f"free at least {needed_bytes - self.of_disk:,} B of that disk")
        if self.work_space is not None and self.work_space < needed_bytes:
            advice.append(f"give at least --work-space {needed_bytes}")
        return " and ".join(advice)


@dataclass
class _Progress:
    """How far a partition is.

    Attributes:
        groups: how many it has.
        done: how many of them are in place.
        cleaned: what was done in whole waves; None: nothing yet.
    """

    groups: int
    done: int = 0
    cleaned: Cleaned | None = None

    def add(self, part: Cleaned) -> None:
        """Add what one more wave did."""
        if self.cleaned is None:
            self.cleaned = part
            return
        before, counts = self.cleaned, replace(self.cleaned.counts)
        counts.add(part.counts)
        self.cleaned = replace(
            part,
            replaced=before.replaced + part.replaced,
            outputs=before.outputs + part.outputs,
            segments=before.segments + part.segments,
            counts=counts,
        )


@dataclass
class _Work:
    """One clean in place, of directories that are locked.

    Attributes:
        places: the partitions that are asked for, and that a broker would load.
        locks: of their log directories.
        restored: what loading did, by path.
        size_before: bytes of logs, by path.
        progress: of the partitions that are to be cleaned, by path.
        failed: those that could not be, by path.
        verified: records that were proved right.
        verify_seconds: how long that took.
    """

    fs: LocalFileSystem
    node: Node
    places: Sequence[LocatedPartition]
    locks: Sequence[DirectoryLock]
    kept: KeepFolder | None
    now_ms: int
    restored: dict[str, Recovered] = field(default_factory=dict)
    size_before: dict[str, int] = field(default_factory=dict)
    progress: dict[str, _Progress] = field(default_factory=dict)
    failed: dict[str, Failure] = field(default_factory=dict)
    verified: int = 0
    verify_seconds: float = 0.0

    @property
    def _keep(self) -> Keep | None:
        return None if self.kept is None else self.kept.keep

    # ---- load --------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Bring all partitions into the order in which a broker has them after its start."""

        def one(place: LocatedPartition) -> Recovered:
            assert place.name is not None and place.topic is not None, "or it would not be loaded"
            log = place.log()
            self.size_before[place.path] = log.size_bytes
            current = place.name.state is DirectoryState.CURRENT
            try:
                if place.directory.failure is not None:
                    raise place.directory.failure
                return recover_in_place(
                    self.fs,
                    log,
                    crashed=place.directory.crashed,
                    recovery_point=place.directory.recovery_points.get(place.name.topic_partition, 0) if current else 0,
                    now_ms=self.now_ms,
                    settings=recovery_settings(self.node, place.topic),
                    keep=self._keep,
                )
            except DataError as error:
                return Recovered(0, (f"it cannot be recovered: {error}",), complete=False)

        for place, came in zip(self.places, in_parallel(self.fs.concurrency, one, self.places), strict=True):
            self.restored[place.path] = came
            if not came.complete:
                self.failed[place.path] = Failure(FailureKind.DAMAGE, came.notes[0])
        for directory in self.node.directories:
            if directory.crashed:
                self._recovered(directory)

    def _recovered(self, directory: LogDirectory) -> None:
        """Record the recovery points of a directory's logs, and a clean shutdown if all of them were recovered."""
        ends = {
            place.name.topic_partition: self.restored[place.path].next_offset
            for place in self.places
            if place.directory is directory
            and self.restored[place.path].complete
            and place.name is not None
            and place.name.state is DirectoryState.CURRENT
        }
        marks = {name: end for name, end in ends.items() if directory.high_watermarks.get(name, 0) > end}
        loaded = {place.path for place in self.places if self.restored[place.path].complete}
        whole = all(one.path in loaded for one in directory.partitions if broker_would_load(one.name))
        self._record(
            directory, {filenames.RECOVERY_POINTS: ends, filenames.HIGH_WATERMARKS: marks}, clean_shutdown=whole
        )

    def _record(
        self,
        directory: LogDirectory,
        offsets: Mapping[str, Mapping[TopicPartition, int | None]],
        *,
        clean_shutdown: bool = False,
    ) -> None:
        """Write entries of checkpoints."""
        offsets = {name: entries for name, entries in offsets.items() if entries}
        if self.kept is not None and (offsets or clean_shutdown):
            self.kept.checkpoints(directory.path, offsets, clean_shutdown=clean_shutdown)
        for name, entries in offsets.items():
            checkpoints.update(self.fs, f"{directory.path}/{name}", entries)
        if clean_shutdown:
            data = properties.encode_clean_shutdown(None)
            write_file(self.fs, f"{directory.path}/{filenames.CLEAN_SHUTDOWN}", data)
            self.fs.sync_directory(directory.path)

    # ---- clean -------------------------------------------------------------------------------------------------------

    def clean(
        self,
        sources: Sequence[str],
        options: PlanOptions,
        in_place: InPlaceOptions,
        run: RunOptions,
        started: float,
    ) -> CleanResult:
        """Plan, run, swap, retain, record."""
        plan = make_plan(sources, options.without_retention(), fs=self.fs)
        tasks = {task.path: task for task in tasks_of(plan, self.fs.location()) if task.path not in self.failed}
        plans = {one.path: one for one in plan.partitions}
        self.progress = {path: _Progress(len(_groups(plans[path]))) for path in tasks}
        with Jobs(self.fs, self._progress_folder(tasks), run.spark, run.master, run.on_progress) as jobs:
            waves = self._waves(jobs, plans, tasks, in_place.work_space)
            if run.on_plan is not None:
                # To verify it what is there is read once more, and what was written.
                again = 2 * sum(_bytes(plans[path]) for path in tasks) if in_place.verify else 0
                run.on_plan(plan, sum(task.size_bytes for task in tasks.values()) + again)
            for wave in waves.waves:
                self._wave(jobs, plans, tasks, wave, verify=in_place.verify)
            seconds = jobs.seconds
        if options.choices.retention:
            plan = self._retain(sources, options, plan)
        plans = {one.path: one for one in plan.partitions}
        return CleanResult(
            target="",
            now_ms=self.now_ms,
            partitions=tuple(self._result(place, plans.get(place.path)) for place in self.places),
            seconds=time.monotonic() - started,
            clean_seconds=seconds,
            notes=tuple(self._notes()),
            in_place=InPlace(
                directories=tuple(directory.path for directory in self.node.directories),
                waves=len(waves.waves),
                work_bytes_max=sum(waves.peak_bytes.values()),
                verified=self.verified if in_place.verify else None,
                verify_seconds=self.verify_seconds,
                kept="" if self.kept is None or self.kept.is_empty else self.kept.path,
                kept_bytes=0 if self.kept is None else self.kept.bytes_kept,
            ),
        )

    def _progress_folder(self, tasks: Mapping[str, PartitionTask]) -> str:
        """A folder for the files by which tasks tell how far they are: in one of the work folders."""
        for path in tasks:
            self.fs.make_directory(f"{path}/{WORK_FOLDER}")
        folder = f"{next(iter(tasks), '')}/{WORK_FOLDER}/{_PROGRESS}"
        if tasks:
            self.fs.make_directory(folder)
        return folder

    def _waves(
        self,
        jobs: Jobs,
        plans: Mapping[str, PartitionPlan],
        tasks: dict[str, PartitionTask],
        work_space: int | None,
    ) -> Waves:
        """Share out groups; those that do not all fit are cleaned on trial first, for damage and for exact sizes."""
        loads = {path: self._load(plans[path]) for path in tasks}
        room = self._room({load.device: path for path, load in loads.items()}, work_space)
        sizes = {device: one.size_bytes for device, one in room.items()}
        waves = schedule(loads, sizes, kept=self.kept is not None)
        if len(waves.waves) > 1 or waves.too_large:
            tried = list(tasks.values())
            for task, outcome in zip(tried, jobs.clean(tried, None, discard=True), strict=True):
                if isinstance(outcome, Failure):
                    self.failed[task.path] = outcome
                    del tasks[task.path], loads[task.path]
                elif not loads[task.path].whole:
                    loads[task.path] = replace(loads[task.path], group_bytes=tuple(outcome.group_bytes()))
            waves = schedule(loads, sizes, kept=self.kept is not None)
        for path in waves.too_large:
            self.failed[path] = _too_large(path, loads[path], room[loads[path].device], keeps_old=self.kept is not None)
        return waves

    def _load(self, plan: PartitionPlan) -> Load:
        assert plan.compaction is not None, "what is to be cleaned has something to clean"
        device = self.fs.stat(plan.path).device
        return Load(device, plan.compaction.group_bytes, whole=plan.offset_map is not None)

    def _room(self, disks: Mapping[int, str], work_space: int | None) -> dict[int, _Room]:
        """What outputs may take on each disk, which a path on it stands for."""
        return {device: _Room(self.fs.free_bytes(path), work_space) for device, path in disks.items()}

    def _wave(
        self,
        jobs: Jobs,
        plans: Mapping[str, PartitionPlan],
        tasks: Mapping[str, PartitionTask],
        wave: Wave,
        *,
        verify: bool,
    ) -> None:
        """Clean some groups, and put the outputs into the places of what they stand for."""
        todo = [
            self._part(tasks[path], _groups(plans[path]), first, end)
            for path, (first, end) in wave.items()
            if path not in self.failed
        ]
        outcomes = jobs.clean(todo, None)
        if verify:
            outcomes = self._verified(jobs, todo, outcomes)
        for lock in self.locks:
            lock.confirm()
        in_parallel(self.fs.concurrency, lambda pair: self._swap(*pair), list(zip(todo, outcomes, strict=True)))
        whole = [task.path for task in todo if self.progress[task.path].done == self.progress[task.path].groups]
        self._record_cleaned(whole)

    def _part(self, task: PartitionTask, groups: Sequence[tuple[int, ...]], first: int, end: int) -> PartitionTask:
        if (first, end) == (0, len(groups)):
            return task
        behind = groups[end][0] if end < len(groups) else task.first_uncleanable
        cleaned = self.progress[task.path].cleaned
        carried: CleanState | None = None if cleaned is None else cleaned.carried
        return replace(task, part=GroupRange(tuple(groups[first:end]), behind, carried))

    def _swap(self, task: PartitionTask, outcome: Output | Failure) -> None:
        """Swap in the groups of a partition, in ascending order."""
        path = task.path
        if isinstance(outcome, Output):
            progress = self.progress[path]
            if task.part is None:
                # Rounds of Kafka's offset map end with groups of their own.
                progress.groups = len(outcome.cleaned.replaced)
            for part in outcome.by_group():
                swap_in(self.fs, path, part, keep=self._keep)
                progress.done += 1
            progress.add(outcome.cleaned)
        else:
            self.failed[path] = outcome
        # Other attempts at the same task, too, may have left something.
        for info in self.fs.list(f"{path}/{WORK_FOLDER}"):
            if info.name != _PROGRESS:
                remove_tree(self.fs, f"{path}/{WORK_FOLDER}/{info.name}")

    def _record_cleaned(self, paths: Iterable[str]) -> None:
        """Note in the cleaner's checkpoints how far partitions are clean."""
        by_path = {place.path: place for place in self.places}
        offsets: dict[str, dict[TopicPartition, int | None]] = {}
        for path in paths:
            place, cleaned = by_path[path], self.progress[path].cleaned
            assert place.name is not None and cleaned is not None, "it was cleaned"
            offsets.setdefault(place.directory.path, {})[place.name.topic_partition] = cleaned.end_offset
        for directory in self.node.directories:
            if directory.path in offsets:
                self._record(directory, {filenames.CLEANER_OFFSETS: offsets[directory.path]})

    # ---- verify ------------------------------------------------------------------------------------------------------

    def _verified(
        self, jobs: Jobs, todo: Sequence[PartitionTask], outcomes: Sequence[Output | Failure]
    ) -> list[Output | Failure]:
        """The outcomes, of which those that cannot be proved right are failures."""
        written = [at for at, outcome in enumerate(outcomes) if isinstance(outcome, Output)]
        if not written:
            return list(outcomes)
        pairs = [self._pair(todo[at], outcome) for at in written if isinstance(outcome := outcomes[at], Output)]
        started = time.monotonic()
        verdicts = verify_pairs(jobs.session(), self.fs, pairs, counters=Counters(self.fs.location(), jobs.progress))
        self.verify_seconds += time.monotonic() - started
        found = list(outcomes)
        for at, verdict in zip(written, verdicts, strict=True):
            self.verified += verdict.counts.get(Count.RECORDS_BEFORE, 0)
            if not verdict.holds:
                found[at] = Failure(FailureKind.BUG, _not_proved(todo[at].path, verdict))
        return found

    def _pair(self, task: PartitionTask, output: Output) -> Pair:
        """A partition as it is, and as it will be.

        The proof of each wave reads all of the log, the outputs of earlier waves, too. An earlier wave may have kept an
        old value because a tombstone in a later wave hides it: a=1 in wave 1, a=∅ in wave 2. If wave 2 drops the
        tombstone, a=1 is back. In the same way a marker in wave 2 must stay while wave 1 keeps data of its transaction.
        """
        path, cleaned, settings = task.path, output.cleaned, task.settings
        going = output.replacement
        files = {
            info.name: f"{path}/{info.name}"
            for info in self.fs.list(path)
            if not info.is_directory and not going.removes(parse_file(info.name))
        }
        files |= {name: f"{output.folder}/{name}" for name, _ in output.files}
        place = next(place for place in self.places if place.path == path)
        return Pair(
            None if place.name is None else place.name.topic_partition,
            Side(path, task.log_start_offset),
            Side(path, task.log_start_offset, files),
            first_uncleanable=task.end,
            superseding_end=task.first_uncleanable,
            now_ms=task.now_ms,
            deletes_for_good=settings.deletes_for_good,
            legacy_horizon_ms=None if cleaned.carried is None else cleaned.carried.old_horizon_ms,
            new_horizon_ms=task.now_ms + settings.delete_retention_ms,
            producer_expiration_ms=settings.producer_expiration_ms,
        )

    # ---- retain ------------------------------------------------------------------------------------------------------

    def _retain(self, sources: Sequence[str], options: PlanOptions, plan: Plan) -> Plan:
        """Delete what retention takes, by the sizes and times after the clean. Returns the plan with it."""
        node = open_node(self.fs, sources, options.selection)
        places = {place.path: place for place in node.places}

        def one(found: PartitionPlan) -> PartitionPlan:
            if found.path in self.failed or found.path not in self.restored:
                return found
            place = places[found.path]
            taken = retain_after(node, place, place.log(), found, (), (), self.now_ms)
            if taken.retained_away:
                drop_segments(self.fs, found.path, taken.retained_away, found.log_end_offset, keep=self._keep)
            return taken

        return replace(
            plan,
            partitions=tuple(in_parallel(self.fs.concurrency, one, plan.partitions)),
            choices=replace(plan.choices, retention=True),
        )

    # ---- say ---------------------------------------------------------------------------------------------------------

    def _result(self, place: LocatedPartition, plan: PartitionPlan | None) -> PartitionResult:
        path, outcome = place.path, self.failed.get(place.path)
        progress = self.progress.get(path)
        notes = list(self.restored[path].notes)
        cleaned = None if progress is None else progress.cleaned
        result = result_of(place, plan, outcome if outcome is not None else cleaned, tuple(notes), otherwise=Fate.LEFT)
        if outcome is not None and progress is not None and progress.done:
            note = f"{progress.done} of its {progress.groups} groups of segments were cleaned, and stay so"
            result = replace(result, notes=(*result.notes, note))
        after = sum(info.size_bytes for info in self.fs.list(path) if info.name.endswith(FileKind.LOG))
        return replace(
            result,
            bytes_before=self.size_before[path],
            bytes_after=after,
            segments_retained_away=0 if plan is None else len(plan.retained_away),
            bytes_retained_away=0 if plan is None else plan.bytes_retained_away,
        )

    def _notes(self) -> Iterator[str]:
        for directory in self.node.directories:
            if directory.crashed:
                yield f"{directory.path} had no clean shutdown; it was recovered, as a broker does at its next start"

    def finished(self) -> Iterator[str]:
        """Which partitions are cleaned, and how far, for those who ask after an interruption."""
        whole = [path for path, one in self.progress.items() if one.done == one.groups]
        if not self.progress:
            yield "no partition was cleaned"
            return
        yield f"{len(whole)} of {len(self.progress)} partitions are cleaned" + (
            f": {', '.join(whole)}" if whole else ""
        )
        for path, one in self.progress.items():
            if 0 < one.done < one.groups:
                yield f"{path}: {one.done} of its {one.groups} groups of segments are cleaned"
        if len(whole) < len(self.progress):
            yield "the others are as they were; clean again to go on"

    def remove_folders(self) -> None:
        """Remove the work folders."""
        for place in self.places:
            with contextlib.suppress(OSError):
                remove_tree(self.fs, f"{place.path}/{WORK_FOLDER}")


def _groups(plan: PartitionPlan) -> Sequence[tuple[int, ...]]:
    assert plan.decision is Decision.CLEAN and plan.compaction is not None, "it is to be cleaned"
    return plan.compaction.groups


def _bytes(plan: PartitionPlan) -> int:
    assert plan.compaction is not None, "it is to be cleaned"
    return plan.compaction.bounds.bytes_max


def _not_proved(path: str, verdict: Verdict) -> str:
    first, count = verdict.violations[0], sum(verdict.totals.values())
    where = "" if first.offset is None else f", offset {first.offset}"
    return (
        f"{path}: what was written for it cannot be proved right, so it is not used; {count} violations, such as: "
        f"{first.path}{where}: {first.what}"
    )


def _too_large(path: str, load: Load, room: _Room, *, keeps_old: bool) -> Failure:
    """There is no room for a partition."""
    whole = load.whole or keeps_old
    needed = sum(load.group_bytes) if whole else max(load.group_bytes)
    what = "its new segments take" if whole else "the new segments of its largest group take"
    because = ". With --keep-old, old segments make no room for new ones" if keeps_old else ""
    advice = room.advice(needed) or "clean it in a run of its own: other partitions of this run take the room"
    return Failure(
        FailureKind.FULL,
        f"{path}: {what} up to {needed:,} B at once, and {room}{because}. To clean it, {advice}",
        bytes_needed=needed,
        for_all=f"{room}{because}",
    )
