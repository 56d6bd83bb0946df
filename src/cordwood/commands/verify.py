"""`cordwood.verify`: compares two states of log directories, partition by partition, and the files around them."""

from __future__ import annotations

import posixpath
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal

import cordwood.commands.report.verify  # noqa: F401 - so that a result can show itself
from cordwood.cleaning.engine import progress
from cordwood.cleaning.engine.progress import OnProgress
from cordwood.cleaning.proof.pairs import Pair, Side, ViolationKind
from cordwood.cleaning.proof.violations import Violation
from cordwood.commands.opening import open_node
from cordwood.commands.options import VerifyOptions
from cordwood.commands.proving import verify_pairs
from cordwood.common.clock import Clock, system_clock
from cordwood.common.errors import ConfigError, NotFoundError
from cordwood.common.text import number
from cordwood.fs.base import Store
from cordwood.fs.by_url import file_system_for
from cordwood.fs.folders import temporary_directory
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.throttled import Limit, throttled_store
from cordwood.storage.check import Check, Finding, Severity
from cordwood.storage.formats.filenames import CLUSTER_METADATA_TOPIC, DirectoryState
from cordwood.storage.log.view import LogView
from cordwood.storage.node.node import LocatedPartition, Node, is_asked_for
from cordwood.storage.recovery.replay import DEFAULT_EXPIRATION_MS
from cordwood.tasks.hanging import given_up_after
from cordwood.tasks.tasks import paths_on_disk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
from cordwood.cleaning.proof.result import VerifyResult

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
    """Prove that one state of log directories is what a clean may leave of another.

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
    fs = fs or file_system_for([before, after, selection.metadata, selection.server_properties])
    now_ms = clock() if options.now_ms is None else options.now_ms
    before, after = fs.absolute_path(before), fs.absolute_path(after)
    was = open_node(fs, [before], selection)
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
        raise NotFoundError(f"No partition in {', '.join(one.path for one in was.directories)} was asked for")
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
            what = (
                f"the cleaner's checkpoint says that all is clean up to {clean}; the active segment starts at {active}"
            )
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
