"""`verify`: compare two states of log directories, partition by partition, and the files around them.

`cleaning.proof` proves a partition; `verify_pairs` runs it on an engine, also for a clean in place.
"""

from __future__ import annotations

import functools
import posixpath
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

from cordwood.cleaning.engine import progress
from cordwood.cleaning.engine.progress import Counters, OnProgress
from cordwood.cleaning.proof.pairs import Count, Pair, Side, ViolationKind
from cordwood.cleaning.proof.prove import prove
from cordwood.cleaning.proof.scratch import Scratch, explained
from cordwood.cleaning.proof.site import TaskSite
from cordwood.cleaning.proof.violations import MEANINGS, Verdict, VerifyResult, Violation
from cordwood.commands.opening import open_to_copy
from cordwood.commands.options import VerifyOptions
from cordwood.common.errors import ConfigError, NotFoundError
from cordwood.common.text import Cells, Column, bytes_text, key_text, number, printable, register
from cordwood.common.types import Clock, system_clock
from cordwood.fs.base import Store, TargetStore
from cordwood.fs.paced import Limit, throttled_store
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.workspace import temporary_directory
from cordwood.storage.check import Check, Finding, Severity
from cordwood.storage.formats.filenames import CLUSTER_METADATA_TOPIC, DirectoryState
from cordwood.storage.log.view import LogView
from cordwood.storage.node.node import LocatedPartition, Node, is_asked_for
from cordwood.storage.recovery.replay import DEFAULT_EXPIRATION_MS
from cordwood.tasks.runner import InThisProcess, Runner, given_up_after
from cordwood.tasks.tasks import paths_on_disk, run_each

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: An offset below all others: no part of the log was cleaned.
_NOTHING = 0
#: If all segments' modification times are within this range, a copying program set them.
_RESTORED_TOGETHER_NS = 1_000_000_000


def verify(
    before: str,
    after: str,
    options: VerifyOptions,
    *,
    spark: SparkSession | None = None,
    on_start: Callable[[str, int], None] | None = None,
    on_progress: OnProgress | None = None,
    fs: Store | None = None,
    clock: Clock = system_clock,
) -> VerifyResult:
    """Prove that a clean may turn one state of log directories into another.

    The configs are those of the state before. They decide which partitions may have been cleaned; where a topic's
    policy is unknown, they all may.

    Args:
        before: a log directory, a folder of several, or a partition directory, as it was; it is only read.
        after: the same after the clean; it is only read.
        on_start: called with a description of what will be compared, and the number of bytes that will be read.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file; the directories belong to different brokers; or Spark does not start.
    """
    selection, high_watermark, retention = options.selection, options.high_watermark, options.retention
    topics, partitions = selection.topics, selection.partitions
    fs = fs or selection.store([before, after])
    now_ms = clock() if options.now_ms is None else options.now_ms
    before, after = fs.absolute_path(before), fs.absolute_path(after)
    was = open_to_copy(fs, [before], selection)
    now = Node.open(fs, [after])
    twins, violations = _twins(was, now, topics, partitions)
    pairs, excused = [], []
    for mine, theirs in twins:
        one = _pair(was, mine, theirs, now_ms, high_watermark, retention)
        starts = one.before.log_start_offset, one.after.log_start_offset
        if retention and starts[1] > starts[0]:
            excused.append(f"{posixpath.basename(mine.path)} started at {starts[0]}, and starts at {starts[1]}")
        pairs.append(one)
    sizes = [sum(place.log().size_bytes for place in twin) for twin in twins]
    if on_start is not None:
        on_start(f"{number(len(pairs), 'partition')} to compare", sum(sizes))
    # Tasks keep their counters on this machine, as the store may be read-only.
    local = PosixFileSystem()
    with temporary_directory(local, "cordwood-verify-") as folder:
        fs = throttled_store(fs, Limit.of(options.tasks.rate, local, folder))
        with options.tasks.where(spark).start(sizes) as runner:
            if not fs.location().in_this_process:
                needs = "Name a folder that all machines share with TMPDIR"
                runner.check(local, folder, paths_on_disk(fs, (one.before.path for one in pairs)), needs)
            started = time.monotonic()
            with (
                progress.ProgressWatch(local, folder, on_progress),
                given_up_after(local, folder, options.tasks.task_timeout),
            ):
                counters = progress.Counters(local.location(), folder)
                verdicts = verify_pairs(runner, fs, pairs, local, counters=counters)
            violations += _checkpoints(twins)
            changed = [theirs for _, theirs in twins]
            violations += _files(fs, before, after, changed, whole=not topics and not partitions)
            seconds = time.monotonic() - started
    return VerifyResult(before, after, now_ms, tuple(verdicts), tuple(violations), tuple(excused), seconds)


# ---- partitions and their configs ------------------------------------------------------------------------------------


def _twins(
    was: Node, now: Node, topics: Sequence[str], partitions: Sequence[str]
) -> tuple[list[tuple[LocatedPartition, LocatedPartition]], list[Violation]]:
    """Match the partitions of both states; partitions in only one of them are violations."""
    mine = [place for place in was.places if is_asked_for(place, topics, partitions)]
    theirs = [place for place in now.places if is_asked_for(place, topics, partitions)]
    if not mine:
        raise NotFoundError(f"No partition in {', '.join(one.path for one in was.directories)} was selected")
    if len(mine) == len(theirs) == 1:
        return [(mine[0], theirs[0])], []
    left = {posixpath.basename(place.path): place for place in theirs}
    twins, violations = [], []
    for place in mine:
        twin = left.pop(posixpath.basename(place.path), None)
        if twin is not None:
            twins.append((place, twin))
        elif place.name is None or place.name.state is not DirectoryState.DELETED:  # a broker was about to remove it
            violations.append(Violation(ViolationKind.PARTITION, "the partition is missing", place.path))
    violations += [
        Violation(ViolationKind.PARTITION, "the partition was not there before", one.path) for one in left.values()
    ]
    return twins, violations


def _pair(
    node: Node,
    mine: LocatedPartition,
    theirs: LocatedPartition,
    now_ms: int,
    mark: int | Literal["end"] | None,
    retention: bool,
) -> Pair:
    before, after = mine.log(), theirs.log()
    name = mine.name.topic_partition if mine.name is not None else None
    legacy: int | None = None
    delete_retention_ms = 0
    cleaned = mine.name is None or (mine.name.state is DirectoryState.CURRENT and mine.topic != CLUSTER_METADATA_TOPIC)
    if name is not None and cleaned:
        try:
            config = node.config_of(name.topic)
            if config.policy_known and node.doubt(name.topic) is None:
                cleaned = config.compact
            first_dirty = max(mine.directory.cleaner_offsets.get(name, 0), before.log_start_offset)
            clean = [segment for segment in before.segments if segment.base_offset < first_dirty]
            legacy = clean[-1].mtime_ms - config.integer("delete.retention.ms") if clean else 0
            # Use a default only if no other source could have set a value.
            if config["delete.retention.ms"].explicit or node.metadata is not None:
                delete_retention_ms = config.integer("delete.retention.ms")
        except ConfigError:
            cleaned = False  # no broker would start with it
    high: int | None = None
    if mark is None and name is not None:
        high = mine.directory.high_watermarks.get(name)
    elif isinstance(mark, int):
        high = mark
    return Pair(
        name,
        Side(mine.path, before.log_start_offset),
        Side(theirs.path, after.log_start_offset),
        first_uncleanable=None if cleaned else _NOTHING,
        high_watermark=high,
        now_ms=now_ms,
        legacy_horizon_ms=legacy,
        delete_retention_ms=delete_retention_ms,
        times_known=_times_known(before, after),
        retention=retention,
        producer_expiration_ms=DEFAULT_EXPIRATION_MS,
    )


def _times_known(before: LogView, after: LogView) -> bool:
    """Whether the modification times of segments are those of their last append.

    A clean keeps them: an output has the time of one of its source segments. A state that was restored without them has
    new times, which are all close together if the state is small.
    """
    times = [segment.files.log.mtime_ns for segment in before.segments]
    if len(times) > 1 and max(times) - min(times) < _RESTORED_TOGETHER_NS:
        return False
    bases = [segment.base_offset for segment in before.segments]
    for segment, following in zip_longest(after.segments, after.segments[1:]):
        first = max(bisect_right(bases, segment.base_offset) - 1, 0)
        end = len(bases) if following is None else bisect_left(bases, following.base_offset)
        # Kafka sets times in whole milliseconds.
        if any(segment.files.log.mtime_ns in (one, one // 1_000_000 * 1_000_000) for one in times[first:end]):
            return True
    return False


# ---- files around the partitions -------------------------------------------------------------------------------------


def _checkpoints(twins: Sequence[tuple[LocatedPartition, LocatedPartition]]) -> Iterator[Violation]:
    """Check the high watermarks and the cleaner's offsets of the later state."""
    for mine, theirs in twins:
        if mine.name is None or theirs.name is None or mine.name.state is not DirectoryState.CURRENT:
            continue
        name = mine.name.topic_partition
        log = theirs.log()
        end, active = log.next_offset, log.segments[-1].base_offset if log.segments else 0
        was, now = (place.directory.high_watermarks.get(name) for place in (mine, theirs))
        of_brokers = mine.directory.is_brokers and theirs.directory.is_brokers
        if of_brokers and was is not None and (now is None or now < min(was, end)):
            what = f"the high watermark was {was}, and is {'gone' if now is None else now}"
            yield Violation(ViolationKind.CHECKPOINT, what, theirs.directory.path, now)
        clean = theirs.directory.cleaner_offsets.get(name)
        if clean is not None and clean > max(active, mine.directory.cleaner_offsets.get(name, 0)):
            what = f"the cleaner's checkpoint is {clean}, above the start of the active segment, {active}"
            yield Violation(ViolationKind.CHECKPOINT, what, theirs.directory.path, clean)


def _files(
    fs: Store, before: str, after: str, places: Sequence[LocatedPartition], *, whole: bool
) -> Iterator[Violation]:
    """Yield damage that `check` finds in the later state but not in the earlier one."""
    found = _damage(fs, [after] if whole else [place.path for place in places])
    if not found:
        return
    known = {(posixpath.relpath(one.path, before), one.kind, one.offset) for one in _damage(fs, [before])}
    for one in found:
        if (posixpath.relpath(one.path, after), one.kind, one.offset) not in known:
            yield Violation(ViolationKind.INDEX, f"{one.kind}: {one.what}", one.path, one.offset)


def _damage(fs: Store, paths: Sequence[str]) -> list[Finding]:
    return [finding for finding in Check(fs).run(paths) if finding.severity is Severity.DAMAGE]


# ---- run a proof on the engine of the tasks --------------------------------------------------------------------------

#: Name prefix of folders for the files that tasks of a proof exchange.
FOLDERS = "cordwood-proof-"


def verify_pairs(
    runner: Runner, fs: Store, pairs: Sequence[Pair], scratch: TargetStore, *, counters: Counters | None = None
) -> list[Verdict]:
    """Prove pairs; see `proof.prove`.

    Args:
        runner: runs the tasks, unless only this process can open the store.
        scratch: store of a temporary folder that all tasks can reach.
        counters: counters for the bytes that tasks have read.

    Raises:
        NoSpaceError: the disk of the temporary folder is full.
    """
    if not pairs:
        return []
    location = fs.location()
    runner = InThisProcess() if location.in_this_process else runner
    with explained(), temporary_directory(scratch, FOLDERS) as folder:
        if not runner.is_on_this_machine:
            runner.check(scratch, folder, [], "Name a folder that all machines share with TMPDIR")
        counting = None if counters is None else counters.counting
        site = TaskSite(location, Scratch(scratch.location(), folder), counting)
        return prove(functools.partial(run_each, runner), runner.cores, fs, pairs, site)


# ---- the result as text and JSON -------------------------------------------------------------------------------------

_PROVED = (
    (Count.RECORDS_SAME, "records unchanged: key, value, headers, timestamp, offset, order"),
    (Count.KEYS_KEPT, "keys that lost records, and kept their last committed value or its tombstone"),
    (Count.KEYS_DELETED, "deleted keys removed with their tombstones, after their delete horizon"),
    (Count.BATCHES, "batches with unchanged producer, epochs, timestamps and attributes"),
    (Count.BATCHES_ABOVE, "batches above the first uncleanable offset, byte for byte unchanged"),
    (Count.MARKERS, "markers kept"),
    (Count.TRANSACTIONAL, "transactional batches as visible to read_committed consumers as before"),
    (Count.PRODUCERS, "active producers with the batch that their state is rebuilt from"),
    (Count.SAMPLED, "records also read by a second, independent reader"),
)


def _lines(result: VerifyResult) -> Iterator[str]:
    for compared in result.verdicts:
        if compared.holds:
            continue
        yield f"{printable(compared.pair.before.path)} → {printable(compared.pair.after.path)}"
        yield from _violation_lines(compared.violations, compared.totals)
    if result.violations:
        yield "Other files"
        totals: dict[str, int] = {}
        for one in result.violations:
            totals[one.kind] = totals.get(one.kind, 0) + 1
        yield from _violation_lines(result.violations, totals)
    yield from proved(result)
    yield verdict(result)


def proved(result: VerifyResult) -> Iterator[str]:
    """Yield a line for each guarantee that was proved, with its count."""
    counts = result.counts
    yield (
        f"{number(len(result.verdicts), 'partition')}: {counts[Count.RECORDS_BEFORE]:,} records before,"
        f" {counts[Count.RECORDS_AFTER]:,} after"
    )
    for name, what in _PROVED:
        if counts[name]:
            yield f"  {counts[name]:>12,}  {what}"
    if unchanged := counts[Count.UNCHANGED_BYTES]:
        yield f"  {bytes_text(unchanged):>12}  in unchanged files"
    yield from (f"  allowed by --retention: {printable(what)}" for what in result.excused)
    if unknown := counts[Count.NOT_JUDGED]:
        yield (
            f"  {unknown:>12,}  not judged: delete horizons or old tombstones whose time depends on when segments were "
            "written, and a copy has lost that"
        )


def verdict(result: VerifyResult) -> str:
    """Return the verdict as a sentence, with the next step where configs may explain the violations."""
    if result.holds:
        return "All guarantees hold that can be judged" if result.counts[Count.NOT_JUDGED] else "All guarantees hold"
    found = f"{number(sum(result.totals.values()), 'violation')}: a correct clean cannot leave this"
    if result.totals.get(ViolationKind.UNTOUCHED):
        found += (
            "\nHow far a clean may go depends on the topic's configs: if it was given --config, --server-properties, "
            "--metadata or --high-watermark, give verify the same."
        )
    return found


def all_violations(result: VerifyResult) -> list[Violation]:
    """Return the named violations of the directories and of each partition."""
    return [*result.violations, *(violation for verdict in result.verdicts for violation in verdict.violations)]


def kinds(result: VerifyResult) -> Iterator[tuple[str, int, str]]:
    """Yield each kind of violation with its total and meaning."""
    for kind, total in result.totals.items():
        yield kind, total, MEANINGS[ViolationKind(kind)]


#: Counts that only a clean in place compares, with its own figures.
_OF_A_CLEAN = frozenset({Count.BATCHES_WRITTEN, Count.RECORDS_WRITTEN})


def _document(result: VerifyResult) -> dict[str, Any]:
    return {
        "before": result.before,
        "after": result.after,
        "now_ms": result.now_ms,
        "holds": result.holds,
        "partition_count": len(result.verdicts),
        **{name: count for name, count in result.counts.items() if name not in _OF_A_CLEAN},
        "violations": sum(result.totals.values()),
        "by_kind": dict(result.totals),
        "named": [_violation_document(violation) for violation in all_violations(result)],
        "excused": list(result.excused),
        "seconds": round(result.seconds, 3),
    }


def _violation_document(violation: Violation) -> dict[str, Any]:
    """Return a violation as one JSON value."""
    key = None if violation.key is None else key_text(violation.key)
    return {
        "kind": violation.kind,
        "what": violation.what,
        "file": violation.path,
        "offset": violation.offset,
        "key": key,
    }


def _violation_lines(violations: Sequence[Violation], totals: Mapping[str, int]) -> Iterator[str]:
    for kind, total in totals.items():
        named = [one for one in violations if one.kind == kind]
        yield f"  {kind}: {total:,} – {MEANINGS[ViolationKind(kind)]}"
        for one in named:
            offset = "" if one.offset is None else f"offset {one.offset}"
            key = "" if one.key is None else f"key {key_text(one.key)}"
            said = "" if one.what == MEANINGS[one.kind] else printable(one.what)
            yield "    " + ", ".join(part for part in (printable(one.path), offset, key, said) if part)
        if total > len(named):
            yield f"    … and {total - len(named):,} more"


#: Columns of a table of violations.
VIOLATIONS: Cells = (
    (Column("KIND"), lambda violation: violation.kind),
    (Column("FILE"), lambda violation: printable(violation.path) or "-"),
    (Column("OFFSET", right=True), lambda violation: "-" if violation.offset is None else str(violation.offset)),
    (Column("KEY"), lambda violation: "-" if violation.key is None else key_text(violation.key)),
    (Column("FACT"), lambda violation: printable(violation.what)),
)

register(VerifyResult, lines=_lines, document=_document)
