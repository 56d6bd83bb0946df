"""Proves, from two states of a log, that a clean between them kept its promises.

    look          per partition: log start and end offsets, leader epochs, producer snapshots; the ranges to read
    compare       per range of offsets: both states side by side, decoded once; yields differences and key entries
    conclude      per partition: the producers in a broker's state; which transactions were and still are committed
    judge         per hash range: each key's last committed value, in a table of removed or of remaining records

If many files are unchanged, only changed ranges are compared at first, and the steps are repeated with more ranges
until no unread range can turn the verdict; see `witnesses`.

One task proves a whole partition if it fits one range. Tasks write large results to files of a scratch folder; if such
a file is lost or damaged, the partition is compared again. Nothing is imported from `rules`, `engine` or their
kernels: the rules that decide whether a record may be removed are implemented a second time, independently.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.proof import room
from cordwood.cleaning.proof.compare import RangeResult, compare_range
from cordwood.cleaning.proof.keys import KeyRules, Uncommitted, judge_hash_ranges
from cordwood.cleaning.proof.pairs import Count, Facts, Pair, ViolationKind
from cordwood.cleaning.proof.producers import STEP, judge_producers, merge_seen
from cordwood.cleaning.proof.reading import PairRange, joined, ranges_of
from cordwood.cleaning.proof.scratch import Kept
from cordwood.cleaning.proof.site import ATTEMPTS, Lost, TaskSite, lost_too_often, run_tasks
from cordwood.cleaning.proof.transactions import ABORTED, judge_transactions
from cordwood.cleaning.proof.violations import Verdict, ViolationNotes
from cordwood.cleaning.proof.witnesses import RangeSearch
from cordwood.common.errors import CorruptFileError, DataError, RequestError
from cordwood.common.threads import Each
from cordwood.common.types import NONE
from cordwood.fs.base import Store
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.formats.properties import decode_partition_metadata, encode_id
from cordwood.storage.log.files import read_file, read_leader_epochs
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.replay import Producers, headers_from, newest_snapshot

# ---- states ----------------------------------------------------------------------------------------------------------

#: A producer's epoch, last sequence, last offset and the start of its open transaction; NONE for a missing value.
ProducerState = tuple[int, int, int, int]
#: A violation that is not about a record: its kind, its text and the path of the file.
Fault = tuple[ViolationKind, str, str]
RANGE_BYTES, HERE_BYTES, WHOLE_HERE_BYTES = room.RANGE_BYTES, room.HERE_BYTES, room.WHOLE_HERE_BYTES


@dataclass(frozen=True, slots=True)
class LookedAt:
    """Result of the first look at a pair: differences outside of the records, and the ranges to read.

    Attributes:
        keys_max: an upper bound of the number of keys in the state before.
        indexes_differ: both states have different transaction indexes; only looked up if witnesses are searched.
    """

    ranges: tuple[PairRange, ...] = ()
    faults: tuple[Fault, ...] = ()
    keys_max: int = 0
    indexes_differ: bool = False


def look_at(number: int, pair: Pair, fs: Store) -> LookedAt:
    """Compare everything but the records of a pair, and cut it into ranges. An unreadable state is a violation."""
    try:
        ranges = ranges_of(number, pair, fs)
        before, after = pair.before.open(fs), pair.after.open(fs)
        faults = (*_state_faults(pair, before, after), *_topic_id_faults(before, after))
        keys_max = max(before.next_offset - pair.lowest, 0)
        indexes_differ = pair.witnesses and _transaction_indexes(before) != _transaction_indexes(after)
        return LookedAt(tuple(ranges), faults, keys_max, indexes_differ)
    except (RequestError, DataError, OSError) as error:
        return LookedAt(faults=(_unreadable(pair, error),))


def _transaction_indexes(log: LogView) -> bytes:
    """Return the bytes of all transaction indexes. A clean moves entries only together with their segments."""
    segments = log.transaction_indexed_from(0)
    return b"".join(segment.read_index(FileKind.TRANSACTION_INDEX) or b"" for segment in segments)


def _unreadable(pair: Pair, error: Exception) -> Fault:
    return ViolationKind.DAMAGE_AFTER, f"cannot be read: {error}", pair.after.path


@dataclass(frozen=True, slots=True)
class KnownProducers:
    """The producers in a broker's state.

    Attributes:
        before: id, epoch and last data offset of each producer after a broker has loaded the state before.
    """

    before: tuple[tuple[int, int, int], ...] = ()
    faults: tuple[Fault, ...] = ()


def _look_at_producers(pair: Pair, fs: Store, *, in_log: bool) -> KnownProducers:
    """Compare the producers that a broker has after it loads the two states.

    Args:
        in_log: whether a compared batch of either log has a producer id. If not, only snapshots are read.
    """
    try:
        before, after = pair.before.open(fs), pair.after.open(fs)
        # The ranges begin at the lowest offset, so batches of producers below it have not been searched for.
        in_log = in_log or pair.lowest > before.first_offset
        noted, was, done = _producers(before, pair, in_log=in_log)
        _, now, _ = _producers(after, pair, in_log=in_log)
        start = after.log_start_offset
        # A broker that loads a log ignores a snapshot at or below the log start offset.
        gone_below = start if pair.retention and done <= start else NONE
        known = tuple((id, epoch, last_offset) for id, (epoch, _, last_offset, _) in was.items())
        return KnownProducers(known, tuple(_producer_faults(pair, noted, was, now, gone_below)))
    except (RequestError, DataError, OSError) as error:
        return KnownProducers(faults=(_unreadable(pair, error),))


def _state_faults(pair: Pair, before: LogView, after: LogView) -> Iterator[Fault]:
    """Yield differences of log start offset, end offset and leader epochs."""
    path = pair.after.path
    ends = before.next_offset, after.next_offset
    if ends[0] != ends[1]:
        yield ViolationKind.END_OFFSET, f"the log ended at {ends[0]}, and ends at {ends[1]}", path
    starts = before.log_start_offset, after.log_start_offset
    if starts[1] < starts[0] or (starts[1] > starts[0] and not pair.retention):
        excuse = "" if starts[1] < starts[0] else "; only retention, if it ran, excuses that"
        yield ViolationKind.LOG_START, f"the log started at {starts[0]}, and starts at {starts[1]}{excuse}", path
    epochs = [_epochs(log, pair.lowest) for log in (before, after)]
    # A broker that loads a log drops an epoch without records, and then begins a new one there. So compare only epochs
    # that have records; a different epoch at the end must be newer.
    written = [[one for one in some if one[1] < ends[0]] for some in epochs]
    empty = [[one for one in some if one[1] >= ends[0]][-1:] for some in epochs]
    if written[0] != written[1] or (empty[1] and empty[1] < empty[0]):
        what = f"leader epochs were {epochs[0]}, and are {epochs[1]}"
        yield ViolationKind.LEADER_EPOCHS, what, f"{path}/{FileKind.LEADER_EPOCHS}"


def _topic_id_faults(before: LogView, after: LogView) -> Iterator[Fault]:
    """Yield a violation if `partition.metadata` has lost its topic id; nothing if there was no readable id before."""
    path = f"{after.path}/{FileKind.PARTITION_METADATA}"
    was, now = _topic_id(before), _topic_id(after)
    if was is not None and was != now:
        yield ViolationKind.TOPIC_ID, f"the topic id was {was}, and is {now or 'unknown'}", path


def _topic_id(log: LogView) -> str | None:
    path = f"{log.path}/{FileKind.PARTITION_METADATA}"
    try:
        return encode_id(decode_partition_metadata(read_file(log.fs, path), path).topic_id)
    except (FileNotFoundError, CorruptFileError):
        return None


def _producer_faults(
    pair: Pair,
    noted: Mapping[int, ProducerState],
    was: Mapping[int, ProducerState],
    now: Mapping[int, ProducerState],
    gone_below: int,
) -> Iterator[Fault]:
    """Yield a violation for each producer whose state, as a broker rebuilds it on load, differs between both logs.

    Retention may have deleted batches below `gone_below`; a broker then rebuilds the state without them.
    """
    for id, one in was.items():
        rebuilt, new = noted.get(id) != one, now.get(id)
        if new == one or (rebuilt and _only_its_epoch_is_forgotten(one, new)) or _is_left(one, new, gone_below):
            continue
        what = f"producer {id}: epoch, last sequence, last offset, open transaction were {one}, and are {new}"
        yield ViolationKind.PRODUCER_STATE, what, pair.after.path


def _only_its_epoch_is_forgotten(was: ProducerState, now: ProducerState | None) -> bool:
    """Return whether the producer was known from a marker alone, and its epoch is now forgotten.

    A broker that rebuilds producer state from the log skips a marker batch that a clean (Kafka's or ours) has emptied.
    `producers.judge_producers` proves that the emptied batch, or another of that epoch, is still there.
    """
    return was[1:] == (NONE, NONE, NONE) and (now is None or (now[0] < was[0] and now[-1] == NONE))


def _is_left(was: ProducerState, now: ProducerState | None, gone_below: int) -> bool:
    """Return whether `now` equals `was` after a rebuild without the batches below an offset."""
    _, _, last_offset, transaction_start = was
    if last_offset < gone_below:
        return now is None or now[:-1] == (was[0], NONE, NONE)
    return now is not None and now[:-1] == was[:-1] and NONE < transaction_start < gone_below


def _epochs(log: LogView, lowest: int) -> list[tuple[int, int]]:
    """Return (epoch, start offset) from an offset on; empty if the file is missing or corrupt, as `check` reports."""
    try:
        known = read_leader_epochs(log.fs, log.path)
    except CorruptFileError:
        return []
    first = known.epoch_for_offset(lowest)
    later = [(one.epoch, one.start_offset) for one in known.entries if one.start_offset > lowest]
    return later if first is None else [(first, lowest), *later]


def _producers(
    log: LogView, pair: Pair, *, in_log: bool
) -> tuple[dict[int, ProducerState], dict[int, ProducerState], int]:
    """Rebuild producer state as a broker does when it loads a log, without producers expired at the pair's time.

    Returns:
        the state in the newest snapshot; the state after the later batches were replayed; the snapshot's offset.
    """
    end = log.next_offset
    settings = {"now_ms": pair.now_ms, "expiration_ms": pair.producer_expiration_ms}
    known: Producers
    known, done = newest_snapshot(log, end, **settings)
    noted = _states(known)
    for rows in headers_from(log, done) if in_log and done < end else ():
        known.replay(rows[rows["base_offset"] >= done])
    known.expire(**settings)
    return noted, _states(known), done


def _states(producers: Producers) -> dict[int, ProducerState]:
    rows = producers.rows()
    names = ("producer_epoch", "last_sequence", "last_offset", "current_transaction_first_offset")
    states = zip(*(rows[name].tolist() for name in names), strict=True)
    return dict(zip(rows["producer_id"].tolist(), states, strict=True))


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


def prove(each: Each, cores: int, fs: Store, pairs: Sequence[Pair], site: TaskSite) -> list[Verdict]:
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
    begun: dict[int, tuple[LookedAt, Facts | None]] = {}
    for at, pair in enumerate(pairs[:_LOOKS_MAX]):
        # If `first_uncleanable` is given, a look at a pair does not read its log, and needs no task.
        if sizes[at] > whole_bytes and pair.first_uncleanable is not None:
            looked = look_at(at, pair, fs)
            if _search(pair, looked).size_bytes > whole_bytes:
                begun[at] = (looked, None)
    for _ in range(ATTEMPTS):
        left = [at for at in range(len(pairs)) if at not in begun]
        items = [(at, pairs[at], times, whole_bytes) for at in left]
        found = run_tasks(each, begin, site, items, [sizes[at] for at in left])
        begun |= {at: one for at, one in zip(left, found, strict=True) if not isinstance(one, Lost)}
    if len(begun) < len(pairs):
        raise lost_too_often(site)
    for number, (looked, facts) in sorted(begun.items()):
        for fault in looked.faults:
            notes.state(number, *fault)
        if facts is None:
            pair = pairs[number]
            large[number] = _Large(pair, looked, _rules_of(pair, looked), _search(pair, looked))
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
    search: RangeSearch


def _search(pair: Pair, looked: LookedAt) -> RangeSearch:
    return RangeSearch.of(looked.ranges, pair, indexes_differ=looked.indexes_differ)


def _size_bytes(pair: Pair, fs: Store) -> int:
    try:
        return pair.before.open(fs).size_bytes
    except (DataError, OSError):
        return 0  # a task reports the error


def _times(size_bytes: int, cores: int) -> int:
    """Return the size of a range as a multiple of `RANGE_BYTES`, for a total of `size_bytes` to read."""
    ranges = _RANGES_PER_CORE * max(cores, 1)
    return max(min(size_bytes // (ranges * RANGE_BYTES), _TIMES_MAX), 1)


def _rules_of(pair: Pair, looked: LookedAt) -> KeyRules:
    size_bytes = sum(part.size_bytes for part in looked.ranges)
    # Earlier cleans leave gaps between offsets, so keys_max may be far too high; limit it by the size, too.
    return KeyRules.of(min(looked.keys_max, size_bytes // _RECORD_BYTES), pair.survivor)


# ---- tasks -----------------------------------------------------------------------------------------------------------


def begin(site: TaskSite, item: tuple[int, Pair, int, int]) -> tuple[LookedAt, Facts | None]:
    """Look at a pair; if there are few bytes to read, also prove it."""
    number, pair, times, whole_bytes = item
    fs = site.open()
    looked = look_at(number, pair, fs)
    search, rules = _search(pair, looked), _rules_of(pair, looked)
    here_bytes, read_bytes = WHOLE_HERE_BYTES, 0
    while (read_bytes := read_bytes + search.size_bytes) <= whole_bytes:
        for part in joined(search.wanted, range_bytes=times * RANGE_BYTES):
            result = compare_range(part, pair, fs, rules, site.scratch, here_bytes=here_bytes)
            here_bytes -= result.here_bytes
            search.add(part, result)
        if search.next_headers():
            continue
        results = _known(search.results())
        concluded = conclude(site, _Compared.of(pair, results))
        facts, uncommitted = concluded.facts, concluded.uncommitted
        chunks = [chunk for result in results for chunk in result.keys]
        facts.add(judge_hash_ranges(chunks, rules.hash_ranges, site.scratch, uncommitted, entry=rules.entry))
        if not search.next_ranges(facts, has_faults=bool(looked.faults or concluded.faults)):
            facts.count(Count.UNCHANGED_BYTES, search.unread_bytes)
            return replace(looked, faults=looked.faults + concluded.faults), facts
    return looked, None


def compare(site: TaskSite, item: tuple[PairRange, Pair, KeyRules]) -> RangeResult:
    """Compare a range of offsets."""
    part, pair, rules = item
    return compare_range(part, pair, site.open(), rules, site.scratch, here_bytes=HERE_BYTES)


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


def conclude(site: TaskSite, compared: _Compared) -> _Concluded:
    """Judge facts that depend on all ranges, without keys."""
    facts, uncommitted = compared.facts, Uncommitted.none()
    known = _look_at_producers(compared.pair, site.open(), in_log=compared.seen.size > 0)
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
    entry: np.dtype[np.void]

    @property
    def size_bytes(self) -> int:
        """Number of bytes to read."""
        return sum(int(chunk.starts[-1] - chunk.starts[0]) for chunk in self.chunks) * self.entry.itemsize


def judge(site: TaskSite, item: _Judged | _Compared) -> Facts | _Concluded:
    """Judge some hash ranges; or conclude a pair without transactions, whose keys do not depend on the conclusion."""
    if isinstance(item, _Compared):
        return conclude(site, item)
    return judge_hash_ranges(item.chunks, item.hash_ranges, site.scratch, item.uncommitted, entry=item.entry)


# ---- stages of large pairs -------------------------------------------------------------------------------------------


def _prove_large(each: Each, cores: int, site: TaskSite, large: Mapping[int, _Large], notes: ViolationNotes) -> None:
    left, losses = dict(large), 0
    while left:
        searches = [one.search for one in left.values()]
        times = _times(sum(search.size_bytes for search in searches), cores)
        wanted = itertools.chain.from_iterable(search.wanted for search in searches)
        parts = joined(wanted, range_bytes=times * RANGE_BYTES)
        items = [(part, large[part.pair].pair, large[part.pair].rules) for part in parts]
        found = run_tasks(each, compare, site, items, [part.size_bytes for part in parts])
        for part, result in zip(parts, found, strict=True):
            large[part.pair].search.add(part, result)
        want_headers = [search for search in searches if search.next_headers()]
        if want_headers:
            continue
        judged = _judge_large(each, cores, site, left)
        losses += any(one is None for one in judged.values())
        if losses == ATTEMPTS:
            raise lost_too_often(site)
        for number, answer in judged.items():
            search = large[number].search
            if answer is None:
                search.restart()
            elif not search.next_ranges(answer.facts, has_faults=bool(large[number].looked.faults or answer.faults)):
                answer.facts.count(Count.UNCHANGED_BYTES, search.unread_bytes)
                notes.add(number, answer.facts)
                for fault in answer.faults:
                    notes.state(number, *fault)
                del left[number]


def _judge_large(each: Each, cores: int, site: TaskSite, large: Mapping[int, _Large]) -> dict[int, _Concluded | None]:
    """Judge the results of all pairs' ranges; None for a pair whose files are lost."""
    by_pair = {number: _known(one.search.results()) for number, one in large.items()}
    compared = {number: _Compared.of(large[number].pair, found) for number, found in by_pair.items()}
    # Keys depend on the outcome of transactions, so only pairs with transactions are concluded first.
    first = {number: one for number, one in compared.items() if one.steps}
    found = run_tasks(each, conclude, site, [*first.values()], [one.size_bytes for one in first.values()])
    concluded: dict[int, Any] = dict(zip(first, found, strict=True))
    tasks: list[tuple[int, _Judged | _Compared]] = [
        (number, one) for number, one in compared.items() if number not in first
    ]
    lost = {number for number, one in concluded.items() if isinstance(one, Lost)}
    for number, results in by_pair.items():
        if number not in lost:
            chunks = [chunk for result in results for chunk in result.keys]
            uncommitted = concluded[number].uncommitted if number in first else Uncommitted.none()
            tasks += [(number, task) for task in _shared(chunks, large[number].rules, uncommitted, cores)]
    judged = run_tasks(each, judge, site, [one for _, one in tasks], [one.size_bytes for _, one in tasks])
    answers = [*concluded.items(), *((number, one) for (number, _), one in zip(tasks, judged, strict=True))]
    lost |= {number for number, one in answers if isinstance(one, Lost)}
    return {number: None if number in lost else _together(number, answers) for number in large}


def _together(number: int, answers: Iterable[tuple[int, _Concluded | Facts]]) -> _Concluded:
    """Add up the answers about a pair."""
    facts = Facts()
    faults: tuple[Fault, ...] = ()
    for owner, one in answers:
        if owner == number:
            facts.add(one.facts if isinstance(one, _Concluded) else one)
            faults += one.faults if isinstance(one, _Concluded) else ()
    return _Concluded(facts, faults, Uncommitted.none())


def _shared(chunks: Sequence[Kept], rules: KeyRules, uncommitted: Uncommitted, cores: int) -> Iterable[_Judged]:
    """Divide the hash ranges of a pair between tasks."""
    entries = sum(int(chunk.starts[-1]) for chunk in chunks)
    hash_ranges = rules.hash_ranges
    count = min(hash_ranges, _TASKS_PER_CORE * max(cores, 1), max(-(-entries // _TASK_ENTRIES), 1))
    edges = [hash_ranges * at // count for at in range(count + 1)]
    for first, end in itertools.pairwise(edges):
        some = tuple(chunk.sections(2 * first, 2 * end) for chunk in chunks)
        yield _Judged(some, end - first, uncommitted, rules.entry)
