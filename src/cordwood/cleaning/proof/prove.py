"""Proves, from two states of a log, that a clean between them kept its promises.

    look          per partition: log start and end offsets, leader epochs, producer snapshots; the ranges to read
    compare       per range of offsets: both states side by side, decoded once; yields differences and key entries
    conclude      per partition: the producers in a broker's state; which transactions were and still are committed
    judge         per hash range: each key's last committed value, in a table of removed or of remaining records

One task proves a whole partition if it fits one range. Tasks write large results to files of a scratch folder; if such
a file is lost or damaged, the partition is compared again. Nothing is imported from `rules`, `engine` or their
kernels: the rules that decide whether a record may be removed are implemented a second time, independently.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.proof import states
from cordwood.cleaning.proof.compare import RangeResult, compare_range
from cordwood.cleaning.proof.facts import Facts
from cordwood.cleaning.proof.keys import KeyRules, Uncommitted, judge_hash_ranges
from cordwood.cleaning.proof.pairs import Pair, ViolationKind
from cordwood.cleaning.proof.producers import STEP, judge_producers, merge_seen
from cordwood.cleaning.proof.ranges import PairRange
from cordwood.cleaning.proof.room import CHUNK_ENTRIES
from cordwood.cleaning.proof.scratch import Kept, LostError, Scratch, no_space
from cordwood.cleaning.proof.states import RANGE_BYTES, Fault, LookedAt, look_at, look_at_producers
from cordwood.cleaning.proof.transactions import ABORTED, judge_transactions
from cordwood.cleaning.proof.violations import Verdict, ViolationNotes
from cordwood.common.errors import DataError, NoSpaceError
from cordwood.common.threads import Each
from cordwood.fs.base import Store, is_full
from cordwood.fs.location import Location
from cordwood.kernels.last_records import ENTRY

T = TypeVar("T")
#: One task proves a whole partition up to this number of bytes to read.
WHOLE_BYTES = RANGE_BYTES
#: Factor on `WHOLE_BYTES` with one core: there, more tasks gain nothing, and each process has to load and allocate.
_TIMES_ALONE = 64
#: Approximate minimum size of a record with a key, to bound the number of keys in a log.
_RECORD_BYTES = 32
_TASKS_PER_CORE = 4
#: Minimum number of key entries that a task judges, 12 MB.
_TASK_ENTRIES = 1 << 19
#: Number of ranges per core above which ranges become larger, up to `_TIMES_MAX` times `RANGE_BYTES`, because each task
#: has a fixed cost.
_RANGES_PER_CORE = 2
_TIMES_MAX = 16
#: Largest number of pairs whose first look runs here, without a task.
_LOOKS_MAX = 8
#: Most key entries of a range that stay in memory; a partition of up to `WHOLE_BYTES` may keep a whole chunk.
HERE_MAX = 1 << 12
WHOLE_HERE_MAX = CHUNK_ENTRIES
#: Number of attempts to compare a partition whose files are lost.
_ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class ProofSite:
    """The store and folders of a proof. All fields can be pickled.

    Attributes:
        location: location of the store that has both states.
        scratch: folder for files from one task to another; the caller removes it.
        counted: wraps the store to count the bytes read.
    """

    location: Location[Store]
    scratch: Scratch
    counted: Callable[[Store], Store] | None = None

    def open(self) -> Store:
        """Open the store inside a task."""
        store = self.location.open()
        return store if self.counted is None else self.counted(store)


def prove(each: Each, cores: int, fs: Store, pairs: Sequence[Pair], site: ProofSite) -> list[Verdict]:
    """Prove for each pair that a clean may turn the state before into the state after.

    Args:
        each: runs tasks, `cores` of them at a time.
        fs: the store that has both states.
        pairs: partitions, or parts of them.

    Returns:
        a verdict for each pair, in the order of `pairs`.

    Raises:
        NoSpaceError: the disk of the scratch folder is full.
    """
    notes = ViolationNotes(pairs)
    sizes = [_size_bytes(pair, fs) for pair in pairs]
    large: dict[int, _Large] = {}
    times = _times(2 * sum(sizes), cores)
    whole_bytes = WHOLE_BYTES * (1 if cores > 1 else _TIMES_ALONE)
    # If `first_uncleanable` is given, a look at a pair does not read its log, and needs no task.
    begun: dict[int, tuple[LookedAt, Facts | None]] = {
        at: (look_at(at, pair, fs, times=times), None)
        for at, pair in enumerate(pairs[:_LOOKS_MAX])
        if sizes[at] > whole_bytes and pair.first_uncleanable is not None
    }
    for _ in range(_ATTEMPTS):
        left = [at for at in range(len(pairs)) if at not in begun]
        items = [(at, pairs[at], times, whole_bytes) for at in left]
        found = _run(each, begin, site, items, [sizes[at] for at in left])
        begun |= {at: one for at, one in zip(left, found, strict=True) if not isinstance(one, _Lost)}
    _check_complete(begun, pairs, site)
    for number, (looked, facts) in sorted(begun.items()):
        for fault in looked.faults:
            notes.state(number, *fault)
        if facts is None:
            large[number] = _Large(pairs[number], looked, _rules_of(looked))
        else:
            notes.add(number, facts)
    if large:
        _prove_large(each, cores, site, large, notes)
    return notes.verdicts(fs)


@dataclass(frozen=True, slots=True)
class _Large:
    """A pair that needs several tasks."""

    pair: Pair
    looked: LookedAt
    rules: KeyRules


def _size_bytes(pair: Pair, fs: Store) -> int:
    try:
        return pair.before.open(fs).size_bytes
    except (DataError, OSError):
        return 0  # a task reports the error


def _times(size_bytes: int, cores: int) -> int:
    """Return the size of a range as a multiple of `RANGE_BYTES`, for a total of `size_bytes` to read."""
    ranges = _RANGES_PER_CORE * max(cores, 1)
    return max(min(size_bytes // (ranges * states.RANGE_BYTES), _TIMES_MAX), 1)


def _rules_of(looked: LookedAt) -> KeyRules:
    size_bytes = sum(part.size_bytes for part in looked.ranges)
    # Earlier cleans leave gaps between offsets, so keys_max may be far too high; limit it by the size, too.
    return KeyRules.of(min(looked.keys_max, size_bytes // _RECORD_BYTES))


# ---- lost files, full disks ------------------------------------------------------------------------------------------


class _Lost:
    """Replaces a task's result: a file that another task wrote is missing or damaged."""


@dataclass(frozen=True, slots=True)
class _Full:
    """Replaces a task's result: there was no room for a file."""

    why: str


def _run(
    each: Each, do: Callable[[ProofSite, T], Any], site: ProofSite, items: Sequence[T], sizes: Sequence[int]
) -> list[Any]:
    """Run tasks. The result is `_Lost` for a task that could not read another task's file.

    Raises:
        NoSpaceError: the disk of the scratch folder is full.
    """
    found = each(functools.partial(_attempt, do, site), items, sizes)
    if (full := next((one for one in found if isinstance(one, _Full)), None)) is not None:
        raise NoSpaceError(full.why)
    return found


def _attempt(do: Callable[[ProofSite, T], Any], site: ProofSite, item: T) -> Any:
    try:
        return do(site, item)
    except LostError:
        return _Lost()
    except OSError as error:
        if not is_full(error):
            raise
        return _Full(str(no_space(error, site.scratch.path)))


def _check_complete(results: Sized, items: Sized, site: ProofSite) -> None:
    if len(results) < len(items):
        what = f"what the tasks of this proof wrote for each other was lost or damaged {_ATTEMPTS} times, so nothing is"
        advice = "proved. Look after that disk, or name a folder on another one with TMPDIR"
        raise DataError(f"{what} {advice}", path=site.scratch.path)


# ---- tasks -----------------------------------------------------------------------------------------------------------


def begin(site: ProofSite, item: tuple[int, Pair, int, int]) -> tuple[LookedAt, Facts | None]:
    """Look at a pair; if there are few bytes to read, also prove it."""
    number, pair, times, whole_bytes = item
    fs = site.open()
    looked = look_at(number, pair, fs, times=times)
    size_bytes = sum(part.size_bytes for part in looked.ranges)
    if size_bytes > whole_bytes:
        return looked, None
    rules = _rules_of(looked)
    here_max = WHOLE_HERE_MAX if size_bytes <= WHOLE_BYTES else HERE_MAX
    results = _known([compare_range(part, pair, fs, rules, site.scratch, here_max=here_max) for part in looked.ranges])
    concluded = conclude(site, _Compared.of(pair, results))
    chunks = [chunk for result in results for chunk in result.keys]
    facts = concluded.facts
    facts.add(judge_hash_ranges(chunks, rules.hash_ranges, site.scratch, concluded.uncommitted))
    return replace(looked, faults=looked.faults + concluded.faults), facts


def compare(site: ProofSite, item: tuple[PairRange, Pair, KeyRules]) -> RangeResult:
    """Compare a range of offsets."""
    part, pair, rules = item
    return compare_range(part, pair, site.open(), rules, site.scratch, here_max=HERE_MAX)


def _known(results: Sequence[RangeResult]) -> list[RangeResult]:
    """Return the results of a pair; drop facts that depend on its whole log if the state before is damaged.

    The damaged part may hold the last record of any key, and the marker of any transaction.
    """
    if any(ViolationKind.DAMAGE_BEFORE in result.facts.counts for result in results):
        return [replace(result, keys=[], steps=[]) for result in results]
    return [*results]


@dataclass(frozen=True, slots=True)
class _Compared:
    """The results of a pair's ranges, without keys, as input for later tasks."""

    pair: Pair
    facts: Facts
    seen: npt.NDArray[np.void]
    steps: tuple[Kept, ...]
    aborted: npt.NDArray[np.void]

    @classmethod
    def of(cls, pair: Pair, results: Sequence[RangeResult]) -> _Compared:
        facts = Facts()
        for result in results:
            facts.add(result.facts)
        return cls(
            pair,
            facts,
            merge_seen(result.seen for result in results),
            tuple(chunk for result in results for chunk in result.steps),
            np.concatenate([np.empty(0, ABORTED), *(result.aborted for result in results)]),
        )

    @property
    def size_bytes(self) -> int:
        """Approximate number of bytes to read."""
        return sum(int(chunk.starts[-1]) * STEP.itemsize for chunk in self.steps) + self.seen.nbytes


@dataclass(frozen=True, slots=True)
class _Concluded:
    """Facts about a whole pair, without keys."""

    facts: Facts
    faults: tuple[Fault, ...]
    uncommitted: Uncommitted


def conclude(site: ProofSite, compared: _Compared) -> _Concluded:
    """Judge facts that depend on all ranges, without keys."""
    facts, uncommitted = compared.facts, Uncommitted.none()
    known = look_at_producers(compared.pair, site.open(), in_log=compared.seen.size > 0)
    judge_producers(compared.seen, known.before, facts)
    if compared.steps:
        found, uncommitted = judge_transactions(compared.steps, compared.aborted, site.scratch)
        facts.add(found)
    return _Concluded(facts, known.faults, uncommitted)


@dataclass(frozen=True, slots=True)
class _Judged:
    """Hash ranges of a pair for one task."""

    chunks: tuple[Kept, ...]
    hash_ranges: int
    uncommitted: Uncommitted

    @property
    def size_bytes(self) -> int:
        """Number of bytes to read."""
        return sum(int(chunk.starts[-1] - chunk.starts[0]) for chunk in self.chunks) * ENTRY.itemsize


def judge(site: ProofSite, item: _Judged | _Compared) -> Facts | _Concluded:
    """Judge some hash ranges; or conclude a pair without transactions, whose keys do not depend on the conclusion."""
    if isinstance(item, _Compared):
        return conclude(site, item)
    return judge_hash_ranges(item.chunks, item.hash_ranges, site.scratch, item.uncommitted)


# ---- stages of large pairs -------------------------------------------------------------------------------------------


def _prove_large(each: Each, cores: int, site: ProofSite, large: Mapping[int, _Large], notes: ViolationNotes) -> None:
    parts = [(part, one.pair, one.rules) for one in large.values() for part in one.looked.ranges]
    results: dict[int, RangeResult] = {}
    for _ in range(_ATTEMPTS):
        left = [at for at in range(len(parts)) if at not in results]
        sizes = [parts[at][0].size_bytes for at in left]
        results |= zip(left, _run(each, compare, site, [parts[at] for at in left], sizes), strict=True)
        by_pair: dict[int, list[RangeResult]] = {number: [] for number in large}
        for at, (part, _, _) in enumerate(parts):
            by_pair[part.pair].append(results[at])
        known = {number: _known(found) for number, found in by_pair.items()}
        lost = _finish_large(each, cores, site, large, known, notes)
        if not lost:
            return
        results = {at: result for at, result in results.items() if parts[at][0].pair not in lost}
    _check_complete(results, parts, site)


def _finish_large(
    each: Each,
    cores: int,
    site: ProofSite,
    large: Mapping[int, _Large],
    by_pair: Mapping[int, Sequence[RangeResult]],
    notes: ViolationNotes,
) -> set[int]:
    """Judge the results of all pairs' ranges; if files are lost, only return the numbers of their pairs."""
    compared = {number: _Compared.of(large[number].pair, found) for number, found in by_pair.items()}
    # Keys depend on the outcome of transactions, so only pairs with transactions are concluded first.
    first = {number: one for number, one in compared.items() if one.steps}
    found = _run(each, conclude, site, [*first.values()], [one.size_bytes for one in first.values()])
    concluded: dict[int, Any] = dict(zip(first, found, strict=True))
    if lost := {number for number, one in concluded.items() if isinstance(one, _Lost)}:
        return lost
    tasks: list[tuple[int, _Judged | _Compared]] = [
        (number, one) for number, one in compared.items() if number not in first
    ]
    for number, results in by_pair.items():
        chunks = [chunk for result in results for chunk in result.keys]
        uncommitted = concluded[number].uncommitted if number in first else Uncommitted.none()
        tasks += [(number, task) for task in _shared(chunks, large[number].rules.hash_ranges, uncommitted, cores)]
    judged = _run(each, judge, site, [one for _, one in tasks], [one.size_bytes for _, one in tasks])
    answers = [*concluded.items(), *((number, one) for (number, _), one in zip(tasks, judged, strict=True))]
    if lost := {number for number, one in answers if isinstance(one, _Lost)}:
        return lost
    for number, one in answers:
        notes.add(number, one.facts if isinstance(one, _Concluded) else one)
        for fault in one.faults if isinstance(one, _Concluded) else ():
            notes.state(number, *fault)
    return set()


def _shared(chunks: Sequence[Kept], hash_ranges: int, uncommitted: Uncommitted, cores: int) -> Iterable[_Judged]:
    """Divide the hash ranges of a pair between tasks."""
    entries = sum(int(chunk.starts[-1]) for chunk in chunks)
    count = min(hash_ranges, _TASKS_PER_CORE * max(cores, 1), max(-(-entries // _TASK_ENTRIES), 1))
    edges = [hash_ranges * at // count for at in range(count + 1)]
    for first, end in itertools.pairwise(edges):
        yield _Judged(tuple(chunk.sections(2 * first, 2 * end) for chunk in chunks), end - first, uncommitted)
