"""The steps of a clean in place that only a joint clean has; see `commands.joint`.

    split      make the end of the common range the base offset of a segment in all replicas
    (waves)    clean each replica over the range; expired tombstones and markers stay, superseded records go
    compare    compare the replicas: if one has different data, all keep their tombstones
    horizon    choose the tombstones and markers that have expired on all replicas
    (waves)    clean all replicas again, from their log starts; these tombstones and markers go
    record     write the cleaner's checkpoint of the replica for which the first pass has not written it

A crash leaves no key that an election could bring back. Before the second pass each replica has all tombstones and no
record that one of them deletes; during it a replica may lack tombstones that another still has, which deletes the same
keys. The range stays dirty until the end, as one replica's checkpoint still names its start, so that the next clean
with the same options repeats both passes. Checkpoints of the other replicas name its end: without any such entry,
`compare` would take the removed records for lost ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cordwood.cleaning.engine.partition import behind
from cordwood.cleaning.engine.progress import Counters
from cordwood.cleaning.engine.task import Failure, FailureKind
from cordwood.cleaning.proof.scratch import Scratch, explained
from cordwood.cleaning.proof.site import TaskSite
from cordwood.cleaning.rules.plan import Decision, PartitionPlan, Plan
from cordwood.commands.compare import FOLDERS, replicas_of
from cordwood.commands.in_place.horizon import JointHorizon, joint_horizon
from cordwood.commands.in_place.room import plan_waves, refuse_full_disks
from cordwood.commands.in_place.wave import record_clean, run_wave
from cordwood.commands.in_place.work import InPlaceWork, Ledger, LockedDirectories
from cordwood.commands.joint import TOMBSTONES_STAY
from cordwood.commands.options import InPlaceOptions
from cordwood.common.errors import DataError, RequestError
from cordwood.common.threads import in_parallel
from cordwood.common.types import TopicPartition
from cordwood.comparison.comparing import compare_partitions
from cordwood.comparison.entries import KeyShare
from cordwood.comparison.values import PartitionComparison
from cordwood.fs.base import is_full
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.workspace import temporary_directory
from cordwood.storage.log.segment_writer import IndexLimits
from cordwood.storage.node.cluster import Cluster, brokers_text
from cordwood.storage.node.node import LocatedPartition
from cordwood.storage.recovery.split import split_segment
from cordwood.tasks.tasks import Jobs

#: Limit of an index of a split segment: as large as a whole segment may need.
_INDEX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class JointPartition:
    """A partition whose replicas are cleaned alike.

    Attributes:
        brokers: names of the brokers.
        paths: directories of all replicas.
        cleaned: those with segments in the range, which are cleaned; in the order of brokers.
        end: end of the range.
    """

    name: TopicPartition
    brokers: tuple[str, ...]
    paths: tuple[str, ...]
    cleaned: tuple[str, ...]
    end: int

    @property
    def recorded_last(self) -> str | None:
        """The replica whose checkpoint is written at the end; None if only one is cleaned."""
        return self.cleaned[-1] if len(self.cleaned) > 1 else None


def joint_partitions(plan: Plan) -> list[JointPartition]:
    """Return the partitions that a plan cleans jointly."""
    found: dict[TopicPartition, list[PartitionPlan]] = {}
    for one in plan.partitions:
        if one.jointly and one.topic_partition is not None:
            found.setdefault(one.topic_partition, []).append(one)
    return [
        JointPartition(
            name,
            tuple(one.broker for one in plans),
            tuple(one.path for one in plans),
            tuple(one.path for one in plans if one.decision is Decision.CLEAN),
            min(one.compaction.range.first_uncleanable_offset for one in plans if one.compaction is not None),
        )
        for name, plans in found.items()
        if any(one.decision is Decision.CLEAN for one in plans)
    ]


# ---- split -----------------------------------------------------------------------------------------------------------


def split_at_ends(site: LockedDirectories, plan: Plan) -> tuple[bool, dict[str, Failure]]:
    """Split the segments that the ends of joint ranges are in; return whether any was split, and failures by path."""
    places = {place.path: place for place in site.places}
    plans = [one for one in plan.with_decision(Decision.CLEAN) if one.jointly]

    def split(one: PartitionPlan) -> bool | Failure:
        try:
            return _split(site, places[one.path], one)
        except (DataError, RequestError) as error:
            return Failure(FailureKind.DAMAGE, f"{one.path}: {error}")
        except OSError as error:
            if not is_full(error):
                raise
            return Failure(FailureKind.FULL, f"{one.path}: no room to split a segment at offset {_end(one)}: {error}")

    results = dict(zip((one.path for one in plans), in_parallel(site.fs.concurrency, split, plans), strict=True))
    failures = {path: result for path, result in results.items() if isinstance(result, Failure)}
    return any(result is True for result in results.values()), failures


def _split(site: LockedDirectories, place: LocatedPartition, plan: PartitionPlan) -> bool:
    log = place.log()
    if not log.segments[0].base_offset < _end(plan) < log.segments[-1].base_offset:
        return False
    limits = IndexLimits(int(plan.setting("index.interval.bytes")), _INDEX_BYTES)
    return split_segment(site.fs, log, _end(plan), limits, keep=site.keep)


def _end(plan: PartitionPlan) -> int:
    assert plan.compaction is not None, "it is to be cleaned"
    return plan.compaction.range.first_uncleanable_offset


# ---- the second pass -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SecondPass:
    """How the second pass is planned and done.

    Attributes:
        plan: plans all replicas of some partitions, by path, to be cleaned from their log starts.
        index_root: see `LogView`.
    """

    plan: Callable[[Collection[str]], Plan]
    in_place: InPlaceOptions
    index_root: str | None


def remove_expired(
    site: LockedDirectories, jobs: Jobs, joint: Sequence[JointPartition], how: SecondPass, ledger: Ledger
) -> int:
    """Remove the tombstones and markers that have expired on all replicas; then record the clean of the last replica.

    Args:
        joint: partitions after the first pass.
        ledger: the first pass; the results of this pass are added.

    Returns:
        number of waves
    """
    ready = [one for one in joint if _is_done(one, ledger)]
    waves = _second_pass(site, jobs, ready, how, ledger) if ready else 0
    for one in joint:
        path = one.recorded_last
        if path is not None and path not in ledger.failures and ledger.progress[path].complete:
            record_clean(site, [path], ledger)
    return waves


def _is_done(one: JointPartition, ledger: Ledger) -> bool:
    """Whether the first pass has finished in all replicas."""
    return not any(path in ledger.failures for path in one.paths) and all(
        path in ledger.progress and ledger.progress[path].complete for path in one.cleaned
    )


def _second_pass(
    site: LockedDirectories,
    jobs: Jobs,
    ready: Sequence[JointPartition],
    how: SecondPass,
    ledger: Ledger,
) -> int:
    plan, in_place = how.plan({path for one in ready for path in one.paths}), how.in_place
    cluster = site.cluster.listed_again()
    horizons = dict(_horizons(site, cluster, joint_partitions(plan)))
    agreeing = set(_agreeing(jobs, cluster, [name for name, one in horizons.items() if one.is_due], ledger))
    chosen = tuple(one for one in plan.partitions if one.topic_partition in agreeing)
    work = InPlaceWork.of(replace(plan, partitions=chosen), site.fs, ledger.failures, in_place.indexes, how.index_root)
    work = replace(
        work,
        tasks={
            path: replace(
                task,
                settings=replace(task.settings, deletes_for_good=True, held=horizons[site.names[path]].held),
            )
            for path, task in work.tasks.items()
        },
    )
    second = Ledger()
    work = _all_or_none(site, refuse_full_disks(site, work, in_place, second.failures), second.failures)
    second.begin(work)
    waves = plan_waves(site, jobs, work, in_place, second.failures)
    work = _all_or_none(site, work, second.failures)
    for wave in waves.waves:
        own = {path: groups for path, groups in wave.items() if path in work.tasks}
        run_wave(site, jobs, work, own, second, verify=in_place.verify, unrecorded=set(work.tasks))
    for one in ready:
        _add_second(one, second, ledger)
    ledger.add(second)
    return len(waves.waves) if work.tasks else 0


def _horizons(
    site: LockedDirectories, cluster: Cluster, joint: Sequence[JointPartition]
) -> Iterator[tuple[TopicPartition, JointHorizon]]:
    """Yield the joint horizon of each partition."""

    def compute(one: JointPartition) -> JointHorizon:
        logs = [replica.log for replica in cluster.replicas(one.name)]
        return joint_horizon(logs, one.end, site.now_ms)

    found = in_parallel(site.fs.concurrency, compute, joint)
    return zip((one.name for one in joint), found, strict=True)


def _agreeing(
    jobs: Jobs, cluster: Cluster, names: Sequence[TopicPartition], ledger: Ledger
) -> Iterator[TopicPartition]:
    """Compare the replicas of partitions; yield the names of equal ones, and note the differences of all others."""
    if not names:
        return
    partitions = [replicas_of(cluster, name) for name in names]
    scratch = PosixFileSystem()
    with explained(), temporary_directory(scratch, FOLDERS) as folder:
        counters = Counters(jobs.location, jobs.progress)
        task_site = TaskSite(jobs.location, Scratch(scratch.location(), folder), counters.counting)
        cores = jobs.runner([1]).cores
        found = compare_partitions(jobs.each, cores, jobs.fs, partitions, task_site, KeyShare(1.0))
    for name, compared in zip(names, found, strict=True):
        if compared.agrees:
            yield name
            continue
        for replica in cluster.replicas(name):
            ledger.note(replica.path, f"{TOMBSTONES_STAY}: {_differing(compared)}")


def _differing(compared: PartitionComparison) -> str:
    wrong = [
        f"the replica of broker {pair.other.replica.name} has other data than that of broker {compared.newest}: "
        + ", ".join(f"{count:,} {kind}" for kind, count in pair.totals.items())
        for pair in compared.pairs
        if not pair.agrees
    ]
    return f"{'; '.join(wrong)} (cordwood compare lists them)"


def _all_or_none(site: LockedDirectories, work: InPlaceWork, failures: Mapping[str, Failure]) -> InPlaceWork:
    """Return the work without partitions that have a failed replica."""
    failed = {site.names[path] for path in failures}
    return work.without([path for path in work.tasks if site.names[path] in failed])


def _add_second(one: JointPartition, second: Ledger, ledger: Ledger) -> None:
    """Add the results of the second pass of a partition to those of the first, with a note for each replica."""
    failed = {path: second.failures[path] for path in one.paths if path in second.failures}
    changed = False
    for path in one.paths:
        progress = second.progress.get(path)
        if progress is not None and progress.cleaned is not None:
            counts = progress.cleaned.counts
            changed |= counts.tombstones_expired + counts.markers_expired > 0
            first = ledger.progress[path]
            assert first.cleaned is not None, "the first pass has cleaned it"
            first.cleaned = behind(first.cleaned, progress.cleaned)
    for path in one.paths:
        if failed:
            which = ", ".join(f"{path}: {failure.what}" for path, failure in failed.items())
            ledger.note(path, f"expired tombstones and markers may stay in some replicas; clean again: {which}")
        elif changed:
            what = f"tombstones and markers that have expired on {brokers_text(one.brokers)} are removed"
            ledger.note(path, f"{what} below offset {one.end}")
