"""Compares each replica of a partition with the newest one.

    look       lineage, checkpoints, and the committed offsets that both have
    batches    per range of offsets: whether both have the same batches; most comparisons end here
    records    per range: entries of keys, transactions, and differences that no cleaner explains
    markers    per pair: which transactions committed, and missing markers
    keys       per hash range: each key's last committed value in both

The comparison is as of one offset, its end: the lower high watermark, or the offset at which the replicas diverge.
Records above the end are read only to explain gaps: a replica that is ahead may have removed a record because a newer
record of its key is up there.

If a range has damage, the pair is compared again without the damaged offsets. If the leader epochs of batches differ,
the pair is compared again up to that offset. This package shares the proof's reading, so memory and files are bounded
alike; it has its own rules.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cordwood.cleaning.proof.keys import KeyRules
from cordwood.cleaning.proof.pairs import Facts, ViolationKind
from cordwood.cleaning.proof.reading import PairRange
from cordwood.cleaning.proof.room import HERE_BYTES, RANGE_BYTES, WHOLE_HERE_BYTES
from cordwood.cleaning.proof.scratch import Kept
from cordwood.cleaning.proof.site import ATTEMPTS, Lost, TaskSite, lost_too_often, run_tasks
from cordwood.cleaning.proof.violations import key_at
from cordwood.common.errors import CorruptFileError
from cordwood.common.threads import Each
from cordwood.common.types import TopicPartition
from cordwood.comparison.checkpoints import impossible_checkpoints
from cordwood.comparison.entries import KeyShare
from cordwood.comparison.judging import RecordRun, difference_of, joined_runs
from cordwood.comparison.keys import KeyTask, judge_keys
from cordwood.comparison.lineage import divergence_of
from cordwood.comparison.markers import MarkerFindings, OffsetKinds, judge_markers
from cordwood.comparison.ranges import How, RangeFindings, RangeTask, compare_records
from cordwood.comparison.reading import EqualBatches, Interval, ReplicaWindows, compare_batches, ranges_between
from cordwood.comparison.values import (
    ComparedReplica,
    Difference,
    DifferenceKind,
    PairFindings,
    PairResult,
    PairRole,
    PartitionComparison,
    ReplicaPair,
    ReplicaState,
    Sum,
)
from cordwood.fs.base import Store
from cordwood.storage.formats.leader_epochs import LeaderEpochs
from cordwood.storage.log.files import read_leader_epochs
from cordwood.storage.log.view import LogView

#: One task compares a whole partition up to this number of bytes of all replicas.
WHOLE_BYTES = RANGE_BYTES
#: Approximate minimum size of a record with a key, to bound the number of keys in a log.
_RECORD_BYTES = 32
_TASKS_PER_CORE = 4
#: Minimum number of key entries that a task judges, 12 MB.
_TASK_ENTRIES = 1 << 19


@dataclass(frozen=True, slots=True)
class ReplicatedPartition:
    """The replicas of a partition.

    Attributes:
        name: None if the directories are not named like a partition.
        replicas: at least two, the newest one first.
        compacted, cleaned_below: see `ReplicaPair`.
    """

    name: TopicPartition | None
    replicas: tuple[ComparedReplica, ...]
    compacted: bool | None = None
    cleaned_below: int | None = None


def compare_partitions(
    each: Each, cores: int, fs: Store, partitions: Sequence[ReplicatedPartition], site: TaskSite, sample: KeyShare
) -> list[PartitionComparison]:
    """Compare the replicas of each partition.

    Args:
        each: runs tasks, `cores` of them at a time.
        fs: the store that has all replicas.
        sample: the keys to compare; all batches are compared.

    Raises:
        NoSpaceError: the disk of the scratch folder is full.
        RequestError, DataError, OSError: a replica cannot be opened at all.
    """
    sizes = [sum(_size_bytes(one, fs) for one in partition.replicas) for partition in partitions]
    whole = [at for at, size in enumerate(sizes) if size <= WHOLE_BYTES or cores == 1]
    found: dict[int, PartitionComparison] = dict(
        zip(
            whole,
            each(
                functools.partial(_compare_whole, site, sample),
                [(partitions[at], WHOLE_HERE_BYTES if sizes[at] <= WHOLE_BYTES else HERE_BYTES) for at in whole],
                [*map(sizes.__getitem__, whole)],
            )
            if whole
            else [],
            strict=True,
        )
    )
    for at, partition in enumerate(partitions):
        if at not in found:
            found[at] = _compare_one(_Tasks(each, cores, site, HERE_BYTES), fs, partition, sample)
    return [found[at] for at in range(len(partitions))]


def _size_bytes(replica: ComparedReplica, fs: Store) -> int:
    try:
        return replica.side.open(fs).size_bytes
    except (CorruptFileError, OSError):
        return 0  # the comparison reports the error


def _compare_whole(site: TaskSite, sample: KeyShare, item: tuple[ReplicatedPartition, int]) -> PartitionComparison:
    """Compare all replicas of a partition in this process; keep up to a number of bytes of a range in memory."""
    partition, here_bytes = item

    def each(do: Callable[[Any], Any], items: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
        return [do(item) for item in items]

    with site.in_task() as own:
        return _compare_one(_Tasks(each, 1, site, here_bytes), own.open(), partition, sample)


def state_of(replica: ComparedReplica, fs: Store) -> ReplicaState:
    """Return the state of a replica, from its files and checkpoints."""
    log = replica.side.open(fs)
    try:
        epochs = read_leader_epochs(fs, log.path)
    except CorruptFileError:
        epochs = LeaderEpochs()
    return ReplicaState(replica, log.log_start_offset, log.next_offset, epochs, log.size_bytes)


@dataclass(frozen=True, slots=True)
class _Tasks:
    """Runs tasks; see `run_tasks`."""

    each: Each
    cores: int
    site: TaskSite
    here_bytes: int

    def run(self, do: Callable[[TaskSite, Any], Any], items: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
        return run_tasks(self.each, do, self.site, items, sizes) if items else []


def _compare_one(tasks: _Tasks, fs: Store, partition: ReplicatedPartition, sample: KeyShare) -> PartitionComparison:
    states = [state_of(one, fs) for one in partition.replicas]
    newest, *others = states
    pairs = []
    for state in others:
        pair = ReplicaPair(newest.replica, state.replica, partition.compacted, partition.cleaned_below)
        pairs.append(_PairComparison(tasks, fs, pair, newest, state, sample).result())
    checkpoints = [(state.replica.name, one) for state in states for one in impossible_checkpoints(state)]
    return PartitionComparison(partition.name, newest.replica.name, tuple(states), tuple(pairs), tuple(checkpoints))


class _DivergesError(Exception):
    """Batches of both replicas have other leader epochs from an offset on."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"diverged at {offset}")
        self.offset = offset


class _DamagedError(Exception):
    """A replica has damage in a range."""


@dataclass(slots=True)
class _PairComparison:
    """The comparison of two replicas, step by step."""

    tasks: _Tasks
    fs: Store
    pair: ReplicaPair
    newest: ReplicaState
    other: ReplicaState
    sample: KeyShare
    findings: PairFindings = field(default_factory=PairFindings)
    start: int = 0
    end: int = 0
    #: Unreadable offsets of each replica, once they are known.
    damage: tuple[list[Interval], list[Interval]] = field(default_factory=lambda: ([], []))

    def result(self) -> PairResult:
        states = self.newest, self.other
        self.start = max(one.start for one in states)
        self.end = max(min(*(one.committed for one in states), *(one.end for one in states)), self.start)
        ids = [one.replica.topic_id for one in states]
        if None not in ids and ids[0] != ids[1]:
            what = f"its topic id is {ids[1]}; the newest replica's is {ids[0]}"
            self.end = self.start
            self.findings.differ(Difference(DifferenceKind.TOPIC, PairRole.OTHER, self.start, self.start, 0, what=what))
        else:
            self._lineage()
            self._records()
        named = tuple(self._with_key(one) for one in self.findings.first_named())
        sums: dict[str, int] = {name: self.findings.sums.get(name, 0) for name in Sum}
        order = [kind for kind in DifferenceKind if kind in self.findings.totals]
        totals = {kind: self.findings.totals[kind] for kind in order}
        return PairResult(self.newest, self.other, self.start, self.end, named, totals, sums)

    def _lineage(self) -> None:
        states = self.newest, self.other
        found = divergence_of(*states)
        if found is not None and found.offset < max(one.committed for one in states):
            self._diverged(found.offset)
        elif found is not None:
            self.findings.sum(Sum.OFFSETS_UNCOMMITTED, found.newest_offsets + found.other_offsets)
            self.end = max(min(self.end, found.offset), self.start)
        self.findings.sum(Sum.OFFSETS_BELOW, sum(max(self.start - one.start, 0) for one in states))
        if found is None:
            self.findings.sum(Sum.OFFSETS_ABOVE, sum(max(one.end - self.end, 0) for one in states))

    def _diverged(self, offset: int) -> None:
        beyond = [max(one.end - offset, 0) for one in (self.newest, self.other)]
        self.end = max(min(self.end, offset), self.start)
        self.findings.differ(
            Difference(DifferenceKind.DIVERGED, PairRole.OTHER, offset, offset + max(beyond), beyond[1], beyond[0])
        )

    # ---- ranges ------------------------------------------------------------------------------------------------------

    def _records(self) -> None:
        """Compare batches and, unless they are equal, records."""
        # An attempt follows lost files, newly found damage, or a lower end.
        losses = 0
        while losses < ATTEMPTS:
            known = sum(map(len, self.damage))
            findings = PairFindings()
            try:
                if self._compared(findings):
                    self.findings.add(findings)
                    self._report_damage()
                    return
                losses += 1
            except _DivergesError as error:
                self._diverged(error.offset)
            except _DamagedError:
                assert sum(map(len, self.damage)) > known, "each attempt finds more damage"
        raise lost_too_often(self.tasks.site)

    def _compared(self, findings: PairFindings) -> bool:
        """Compare all ranges once; return False if a file of a task was lost."""
        log = self.newest.replica.side.open(self.fs)
        cuts = {offset for some in self.damage for one in some for offset in (one.first, one.end)}
        parts = ranges_between(log, self.start, self.end, self._cuts(cuts), range_bytes=RANGE_BYTES)
        unjudged = [part for part in parts if self._is_damaged(part)]
        parts = [part for part in parts if part not in unjudged]
        skips = bool(cuts)
        equal: list[EqualBatches] = self.tasks.run(
            _compare_batches, [(part, self.pair, skips) for part in parts], [part.size_bytes for part in parts]
        )
        if all(one.all_equal for one in equal) and not unjudged:
            for one in equal:
                findings.sum(Sum.BATCHES_EQUAL, one.batches)
                findings.sum(Sum.BYTES_EQUAL, one.size_bytes)
            return True
        todo = [
            *((part, How.SAME if one.all_equal else How.BOTH) for part, one in zip(parts, equal, strict=True)),
            *((part, How.UNJUDGED) for part in unjudged),
        ]
        todo.sort(key=lambda item: item[0].start)
        return self._compare_ranges(todo, findings, skips_damage=skips)

    def _cuts(self, damage: Iterable[int]) -> Iterable[int]:
        return damage if self.pair.cleaned_below is None else {*damage, self.pair.cleaned_below}

    def _is_damaged(self, part: PairRange) -> bool:
        return any(one.first <= part.start < one.end for some in self.damage for one in some)

    def _compare_ranges(
        self, todo: Sequence[tuple[PairRange, How]], findings: PairFindings, *, skips_damage: bool
    ) -> bool:
        size_bytes = sum(one.size_bytes for one in (self.newest, self.other))
        rules = KeyRules.of(size_bytes // _RECORD_BYTES)
        has_keys, keyless_stay, cleaned_below = self._cleaning()
        if has_keys:
            above = [(How.NEWEST_ABOVE, self.newest), (How.OTHER_ABOVE, self.other)]
            todo = [
                *todo,
                *(
                    (PairRange(0, self.end, one.end, one.end, same=False, size_bytes=0), how)
                    for how, one in above
                    if one.end > self.end
                ),
            ]
        items = [
            (
                RangeTask(part, how, rules, self.sample, has_keys, cleaned_below, keyless_stay, skips_damage),
                self.pair,
                self.tasks.here_bytes,
            )
            for part, how in todo
        ]
        found = self.tasks.run(_compare_records, items, [part.size_bytes for part, _ in todo])
        if any(isinstance(one, Lost) for one in found):
            return False
        self._look_for_more([part for part, _ in todo], found)
        runs: list[RecordRun] = []
        for one in found:
            findings.add(one.findings)
            runs += one.runs
        joined = joined_runs(runs)
        for run in joined:
            findings.differ(difference_of(run))
        lost = self._lost(joined)
        steps = [chunk for one in found for chunk in one.steps]
        keys = [chunk for one in found for chunk in one.keys]
        return self._judge(steps, keys, rules, lost, findings)

    def _look_for_more(self, parts: Sequence[PairRange], found: Sequence[RangeFindings]) -> None:
        """Raise if a range found damage, or other leader epochs."""
        more = [(part, one) for part, one in zip(parts, found, strict=True) if any(one.damage)]
        for part, one in more:
            known = sum(map(len, self.damage))
            for mine, new in zip(self.damage, one.damage, strict=True):
                mine += [interval for interval in new if interval not in mine]
            if sum(map(len, self.damage)) == known:  # the damage cannot be cut out
                self.damage[PairRole.OTHER].append(Interval(part.start, part.end, "this range cannot be compared"))
        if more:
            raise _DamagedError
        diverged = [one.diverged_at for one in found if one.diverged_at is not None]
        if diverged:
            raise _DivergesError(min(diverged))

    def _cleaning(self) -> tuple[bool, bool, int]:
        """Return the records that cleaners may have removed.

        Returns:
            whether to compare keys; whether both replicas must have all records without a key; the lowest offset above
            all cleaned records.
        """
        was_cleaned = any(one.clean_below is not None for one in (self.pair.newest, self.pair.other))
        if self.pair.compacted is False and not was_cleaned:
            return False, False, 0
        cleaned_below = self.end if self.pair.cleaned_below is None else self.pair.cleaned_below
        return True, not self.pair.compacted and not was_cleaned, cleaned_below

    def _lost(self, runs: Sequence[RecordRun]) -> tuple[list[range], list[range]]:
        """Return the offsets that each replica lacks by the earlier steps."""
        found: tuple[list[range], list[range]] = ([], [])
        for run in runs:
            if not run.fields:
                found[run.role].append(range(run.first, run.end))
        for mine, some in zip(found, self.damage, strict=True):
            mine += [range(one.first, one.end) for one in some]
        return found

    def _judge(
        self,
        steps: Sequence[Kept],
        keys: Sequence[Kept],
        rules: KeyRules,
        lost: tuple[Sequence[range], Sequence[range]],
        findings: PairFindings,
    ) -> bool:
        newest = other = OffsetKinds()
        if steps:
            item = (steps, self.end, (self.newest.end, self.other.end), lost)
            (judged,) = self.tasks.run(_judge_markers, [item], [0])
            if isinstance(judged, Lost):
                return False
            assert isinstance(judged, MarkerFindings)
            findings.add(judged.findings)
            newest, other = judged.newest, judged.other
        shares = [*_shared(keys, rules, newest, other, self.tasks.cores)]
        results = self.tasks.run(_judge_keys, shares, [_entries(one.chunks) for one in shares])
        for one in results:
            if isinstance(one, Lost):
                return False
            findings.add(one)
        return True

    # ---- the report --------------------------------------------------------------------------------------------------

    def _report_damage(self) -> None:
        for role, some in zip(PairRole, self.damage, strict=True):
            for one in some:
                self.findings.differ(
                    Difference(DifferenceKind.DAMAGED, role, one.first, one.end, one.end - one.first, what=one.what)
                )

    def _with_key(self, one: Difference) -> Difference:
        """Return a difference of a key with its key, from the log that has the record."""
        if one.offsets is None:
            return one
        holder = PairRole.NEWEST if one.offsets[0] == one.offset else PairRole.OTHER
        return replace(one, key=key_at(self.pair.of(holder).side.open(self.fs), one.offset))


# ---- tasks -----------------------------------------------------------------------------------------------------------


def _logs(site: TaskSite, pair: ReplicaPair) -> tuple[LogView, LogView]:
    fs = site.open()
    return pair.newest.side.open(fs), pair.other.side.open(fs)


def _compare_batches(site: TaskSite, item: tuple[PairRange, ReplicaPair, bool]) -> EqualBatches:
    part, pair, skips = item
    windows = [
        ReplicaWindows(log, part, part.start, Facts(), ViolationKind.DAMAGE_BEFORE, skips_damage=skips)
        for log in _logs(site, pair)
    ]
    return compare_batches(*windows)


def _compare_records(site: TaskSite, item: tuple[RangeTask, ReplicaPair, int]) -> RangeFindings:
    task, pair, here_bytes = item
    return compare_records(task, *_logs(site, pair), site.scratch, here_bytes=here_bytes)


def _judge_markers(site: TaskSite, item: tuple[Any, ...]) -> MarkerFindings:
    steps, end, ends, lost = item
    return judge_markers(steps, site.scratch, end, ends, lost)


def _judge_keys(site: TaskSite, task: KeyTask) -> PairFindings:
    return judge_keys(task, site.scratch)


def _entries(chunks: Iterable[Kept]) -> int:
    return sum(int(chunk.starts[-1] - chunk.starts[0]) for chunk in chunks)


def _shared(
    chunks: Sequence[Kept], rules: KeyRules, newest: OffsetKinds, other: OffsetKinds, cores: int
) -> Iterable[KeyTask]:
    """Divide the hash ranges of a pair between tasks."""
    hash_ranges = rules.hash_ranges
    count = min(hash_ranges, _TASKS_PER_CORE * max(cores, 1), max(-(-_entries(chunks) // _TASK_ENTRIES), 1))
    edges = [hash_ranges * at // count for at in range(count + 1)]
    for first, end in itertools.pairwise(edges):
        some = tuple(chunk.sections(2 * first, 2 * end) for chunk in chunks)
        yield KeyTask(some, end - first, newest, other)
