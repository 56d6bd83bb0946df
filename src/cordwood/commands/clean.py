"""A clean of log directories into a copy; the steps in their order:

    lay out   choose the location of each directory's copy; refuse locked directories
    load      recover each directory after a broker crash into its copy, which is then the source
    plan      choose the partitions to clean, and their ranges
    run       pack partitions into Spark tasks; each returns its outputs, or the reason for its failure
    check     another process checks the files that a task wrote
    build     copy the other partitions, move the cleaned ones in, write checkpoints
    retain    with --retention, delete old segments of the copy
    index     put key indexes beside the segments, both new ones and those of the source
    publish   give the copy its name

No step before the last is visible. A failed partition does not stop the others: it is copied unchanged, and the result
reports its damage.

`plan_exact` takes the same steps up to the tasks, which only count their output; it checks and builds no files.
"""

from __future__ import annotations

import contextlib
import posixpath
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from cordwood.cleaning.engine.progress import OnProgress
from cordwood.cleaning.engine.results import (
    CleanResult,
    Fate,
    InPlace,
    InTier,
    PartitionResult,
    SegmentResult,
    result_of,
)
from cordwood.cleaning.engine.task import Failure, Indexes, Output
from cordwood.cleaning.rules.plan import PartitionPlan, Plan
from cordwood.cleaning.rules.rewrite import Counts
from cordwood.commands.clean_of_cluster import merge_cluster
from cordwood.commands.copies import (
    explain_full_disk,
    left_by_another_run,
    left_out_bytes,
    name_source,
    not_loaded,
    plan_loaded,
    run_tasks,
    with_retention,
)
from cordwood.commands.load import Loaded, load_into_copies
from cordwood.commands.opening import open_to_copy, recovery_settings, select_partitions
from cordwood.commands.options import CopyOptions, IndexOptions, PlanOptions, TaskOptions
from cordwood.common.errors import MemoryNeed
from cordwood.common.text import (
    Column,
    by_sentence,
    bytes_text,
    cells_of,
    html_table,
    names_text,
    number,
    printable,
    register,
    table,
)
from cordwood.common.threads import in_parallel
from cordwood.common.types import Clock, system_clock
from cordwood.fs.base import Link, Target, TargetStore, waits_for_each_read
from cordwood.fs.paced import Limit, throttled
from cordwood.fs.workspace import leftovers, mode_of
from cordwood.fs.wrapped import SyncsLater, synced_together
from cordwood.storage.changes.copy import (
    DirectoryCopy,
    Replacement,
    check_space,
    check_unchanged,
    copy_partition,
    copy_unchanged,
    has_room_beside,
    lay_out,
    remove_segments,
    replace_segments,
)
from cordwood.storage.check.placement import text, warnings
from cordwood.storage.formats.filenames import CLUSTER_METADATA_TOPIC, LOG_START_OFFSETS, DirectoryState
from cordwood.storage.formats.messages.topics import REMOTE_LOG_METADATA
from cordwood.storage.index.build import SEGMENT_SHARE, bring_indexes
from cordwood.storage.log.loaded import broker_would_load, zero_bytes
from cordwood.storage.log.view import LogView
from cordwood.storage.node.directory import check_outside_logs
from cordwood.storage.node.node import LocatedPartition, Node
from cordwood.storage.recovery.into_copy import complete_indexes, start_anew

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def clean(
    paths: Sequence[str],
    output: str,
    options: PlanOptions,
    copy: CopyOptions,
    tasks: TaskOptions,
    *,
    spark: SparkSession | None = None,
    on_plan: Callable[[Plan, int], None] | None = None,
    on_progress: OnProgress | None = None,
    fs: TargetStore | None = None,
    on_forecast: Callable[[Sequence[str]], None] | None = None,
    clock: Clock = system_clock,
) -> CleanResult:
    """Write a cleaned copy of one broker's directories, or of a cluster's, on which a broker can start.

    Partitions that are not selected are copied. Of a cluster, one replica of each partition is copied. Retention is
    computed from the sizes and times after the clean.

    Args:
        paths: log directories, folders of several, or partition directories; they are only read.
        output: the new directory, which must not exist or be empty; for several log directories, the folder of their
            copies.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        LockedError: a broker or another program holds one of the directories.
        RequestError: the output exists and is not empty; see also `plan`.
        NoSpaceError: the disk is too small, or full.
        OSError: the disk fails. After any error, nothing is left of the output.
    """
    started = time.monotonic()
    given = options.named.with_paths(paths)
    fs = fs or options.selection.store([*given, output, *options.paths])
    options, now_ms = options.at(clock)
    sources = [fs.absolute_path(path) for path in paths]
    merged = None
    if copy.of == "cluster":
        named = [(name, fs.absolute_path(path)) for name, path in options.named.named]
        merged = merge_cluster(fs, sources, output, options.selection, named)
        sources = [*sources, *(path for _, path in named)]
        node = merged.node
    else:
        options.named.refuse("clean")
        node = open_to_copy(fs, sources, options.selection)
    read_only = [*sources, *(one.path for one in node.directories if one.is_brokers)]
    select_partitions(node.places, sources, options.selection)  # or raise before a directory is recovered in vain
    # The merged node is no broker's, so what its directories have in common is no problem.
    foretold = warnings(node) if merged is None else []
    if on_forecast is not None:
        on_forecast([text(one) for one in foretold])
    root = options.index_place.root(fs, [place.path for place in node.places])
    linked = Link.HARD if copy.link else None
    work = fs.target(output, read_only)
    if fs.path_on_disk(output) is not None:
        check_outside_logs(fs, output)
    copies = lay_out(fs, node, sources, work.data) if merged is None else merged.lay_out(work.data)
    with explain_full_disk(fs, output), _with_space(fs, copies, work, link=linked):
        fs = throttled(fs, Limit.of(tasks.rate, fs, work.progress))
        loaded = load_into_copies(fs, node, copies, work.data, now_ms, link=linked)
        plan = plan_loaded(fs, node, copies, loaded, options)
        made = _indexes_to_make(fs, copies, work, copy.indexes, link=linked)
        with tasks.jobs(fs, _progress_folder(fs, work, tasks, spark), spark, on_progress) as jobs:
            failed = not_loaded(copies, loaded)
            outcomes = run_tasks(
                jobs,
                plan,
                failed,
                work.outputs,
                on_plan,
                indexes=made,
                index_root=root,
                retained=options.choices.retention,
            )
        if options.choices.retention:
            plan = with_retention(fs, node, copies, loaded, plan, outcomes)

        built = _build(fs, copies, plan, outcomes, loaded, node, now_ms, link=linked)
        if merged is not None:
            merged.write_metadata(fs, work.data, now_ms)
        _retain(fs, built)
        if made is not Indexes.NONE:
            _bring_indexes(fs, built, root, copy.indexes.index_max)
        results = [_measured(fs, one) for one in built]
        for directory in node.directories:
            check_unchanged(directory)
        work.publish()
    notes = [f"{path} is not a partition and was not copied" for copy in copies for path in copy.left_out]
    notes += [
        f"{copy.source.path} had no clean shutdown; the copy was recovered, as a broker does at its next start"
        for copy in copies
        if copy.clean_shutdown
    ]
    if merged is not None:
        notes += merged.notes
    if node.has_tier:
        notes.append(
            f"the copy has all segments, but not {CLUSTER_METADATA_TOPIC} and {REMOTE_LOG_METADATA}: a broker that "
            "starts with them would delete remote segments of the original by retention"
        )
    notes += [f"{one.path}: {one.what}. In the source as in the copy, {one.meaning}" for one in foretold]
    notes += [left_by_another_run(path) for path in leftovers(fs, output)]
    return CleanResult(
        target=work.target,
        now_ms=now_ms,
        partitions=tuple(results),
        seconds=time.monotonic() - started,
        clean_seconds=jobs.seconds,
        notes=tuple(notes),
    )


def _progress_folder(fs: TargetStore, work: Target, tasks: TaskOptions, spark: SparkSession | None) -> str:
    """Return the folder for progress counters: one that all tasks can reach.

    Executors of a cluster need not share a disk with this machine, only the bucket. But a rate limit needs a shared
    disk, as tasks read and write its counters many times per second.
    """
    if fs.path_on_disk(work.outputs) is not None or tasks.rate is not None or tasks.where(spark).is_on_this_machine:
        return work.progress
    return f"{work.outputs}/progress"


@contextlib.contextmanager
def _with_space(fs: TargetStore, copies: Sequence[DirectoryCopy], work: Target, *, link: Link | None) -> Iterator[None]:
    """Make the work folder, if the disk has room for it and for the copies."""
    parent = posixpath.dirname(work.path)
    check_space(fs, parent, copies, link=link)
    with work:
        check_space(fs, parent, copies, link=link, work_folder=work.path)
        yield


def _indexes_to_make(
    fs: TargetStore, copies: Sequence[DirectoryCopy], work: Target, indexes: IndexOptions, *, link: Link | None
) -> Indexes:
    """Decide which partitions get key indexes; none if the indexes could take the room of the copies."""
    sizes = [room.logs // SEGMENT_SHARE for copy in copies for room in copy.rooms]
    most = sum(size if indexes.index_max is None else min(size, indexes.index_max) for size in sizes)
    if not has_room_beside(fs, posixpath.dirname(work.path), copies, most, link=link):
        return Indexes.NONE
    return Indexes.ALL if indexes.index else Indexes.KEPT_UP


# ---- build -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Built:
    """A partition in the copy.

    Attributes:
        log: its source, listed after the tasks. `check_unchanged` finds out whether a broker changes it from then on.
    """

    copy: DirectoryCopy
    place: LocatedPartition
    plan: PartitionPlan | None
    result: PartitionResult
    log: LogView
    output: Output | None

    @property
    def target(self) -> str:
        return self.copy.target_of(self.place)


def _build(
    fs: TargetStore,
    copies: Sequence[DirectoryCopy],
    plan: Plan,
    outcomes: Mapping[str, Output | Failure],
    loaded: Loaded,
    node: Node,
    now_ms: int,
    *,
    link: Link | None,
) -> list[_Built]:
    """Copy the other partitions, move the cleaned ones in, and write the checkpoints; return all partitions."""
    plans = {one.path: one for one in plan.partitions}
    work = [(copy, place, room.copied) for copy in copies for place, room in zip(copy.places, copy.rooms, strict=True)]

    def one(fs: TargetStore, copy: DirectoryCopy, place: LocatedPartition) -> _Built:
        is_loaded = copy.path in loaded.copies
        path = copy.target_of(place) if is_loaded else place.path
        outcome = outcomes.get(path)
        output = outcome if isinstance(outcome, Output) else None
        replacement = None if output is None else output.replacement
        log = place.log()
        if is_loaded:
            if replacement is not None:
                replace_segments(fs, path, replacement)
        else:
            _copy(fs, node, copy, place, log, replacement, now_ms, link=link)
        result = result_of(place, plans.get(path), outcome, loaded.notes(place))
        why = name_source(result.why, copy, place)
        result = replace(result, why=why, left_out_bytes=left_out_bytes(place, log, loaded))
        if log.ends_below_start and broker_would_load(place.name):
            result = replace(result, notes=(*result.notes, _emptied(log)))
        return _Built(copy, place, plans.get(path), result, log, output)

    built = _each_built(fs, one, work)
    for partition in built:
        name, end = partition.result.topic_partition, partition.result.end_offset
        if name is not None and end is not None:
            partition.copy.cleaner_offsets[name] = end
    for copy in copies:
        if copy.path not in loaded.copies:
            copy.copy_files(fs)
        copy.write_checkpoints(fs)
    return built


def _each_built(
    fs: TargetStore,
    build: Callable[[TargetStore, DirectoryCopy, LocatedPartition], _Built],
    work: Sequence[tuple[DirectoryCopy, LocatedPartition, int]],
) -> list[_Built]:
    """Build all partitions; on a disk small ones in this thread, as they take longer to sync than to write.

    Args:
        work: with the maximum size of each copy.
    """
    if any(waits_for_each_read(fs, path) for copy, place, _ in work[:1] for path in (copy.path, place.path)):
        return in_parallel(fs.concurrency, lambda item: build(fs, *item[:2]), work)
    built: dict[int, _Built] = {}
    with contextlib.closing(SyncsLater(fs)) as later:
        for portion in synced_together([size_bytes for *_, size_bytes in work]):
            for at in portion:
                built[at] = build(later, *work[at][:2])
            for error in later.sync_all().values():
                raise error
    others = [at for at in range(len(work)) if at not in built]
    built |= zip(others, in_parallel(fs.concurrency, lambda at: build(fs, *work[at][:2]), others), strict=True)
    return [built[at] for at in range(len(work))]


def _copy(
    fs: TargetStore,
    node: Node,
    copy: DirectoryCopy,
    place: LocatedPartition,
    log: LogView,
    replacement: Replacement | None,
    now_ms: int,
    *,
    link: Link | None,
) -> None:
    target = copy.target_of(place)
    fs.make_directory(target, mode=mode_of(fs, place.path))
    current = place.name is not None and place.name.state is DirectoryState.CURRENT
    if not current or not broker_would_load(place.name):
        copy_unchanged(fs, place.path, target)
        return
    copy_partition(fs, log, target, replacement, link=link)
    assert place.name is not None and place.topic is not None, "a partition that is loaded has a name"
    if log.ends_below_start:
        start = start_anew(fs, log, target, clean_shutdown=True).next_offset
        copy.recovery_points[place.name.topic_partition] = start
        return
    complete_indexes(fs, log, target, now_ms=now_ms, settings=recovery_settings(node, place.topic))


def _emptied(log: LogView) -> str:
    return (
        f"no record of it is in the copy: it ends at offset {log.next_offset}, below its log start offset "
        f"{log.log_start_offset}, and a broker that loads it empties it. If that is wrong, correct the entry in "
        f"{LOG_START_OFFSETS}, and clean again"
    )


def _retain(fs: TargetStore, built: Sequence[_Built]) -> None:
    """Delete old segments from the copy, as retention requires."""
    for one in built:
        found = one.plan
        if found is not None and found.retention:
            remove_segments(fs, one.target, found.retained_away, found.log_end_offset)


def _bring_indexes(fs: TargetStore, built: Sequence[_Built], root: str | None, bytes_max: int | None) -> None:
    """Give the partitions of the copy their key indexes."""

    def one(partition: _Built) -> None:
        if not broker_would_load(partition.place.name):
            return
        output, log = partition.output, partition.log.with_indexes_in(root)
        if output is None:
            bring_indexes(fs, log, partition.target, bytes_max=bytes_max)
        else:
            bring_indexes(fs, log, partition.target, output.indexes, output.replacement.replaced, bytes_max)

    in_parallel(fs.concurrency, one, built)


def _measured(fs: TargetStore, built: _Built) -> PartitionResult:
    logs = {info.name: info.size_bytes for info in fs.list(built.target) if info.name.endswith(".log")}
    log, zeros, found = built.log, zero_bytes(built.log), built.plan
    # A copy that no load has cut has the zeros, too.
    has_zeros = zeros and logs.get(log.segments[-1].files.log.name) == log.segments[-1].size_bytes
    return replace(
        built.result,
        bytes_before=log.size_bytes - zeros,
        bytes_after=sum(logs.values()) - (zeros if has_zeros else 0),
        segments_retained_away=0 if found is None else len(found.retained_away),
        bytes_retained_away=0 if found is None else found.bytes_retained_away,
    )


# ---- the result as text and HTML -------------------------------------------------------------------------------------

#: Reasons for dropped records: title of the column, words in the summary, value.
REASONS: Sequence[tuple[str, str, Callable[[Counts], int]]] = (
    ("SUPERSEDED", "superseded", lambda counts: counts.records_superseded),
    ("TOMBSTONES", "expired tombstones", lambda counts: counts.tombstones_expired),
    ("ABORTED", "aborted", lambda counts: counts.records_aborted),
    ("MARKERS", "expired markers", lambda counts: counts.markers_expired),
    ("NO KEY", "without a key", lambda counts: counts.records_without_key),
)

#: For fewer bytes a rate would mostly measure how long processes take to start.
_RATE_BYTES_MIN = 64_000_000


def _cells(value: Callable[[Counts], int]) -> Callable[[PartitionResult | SegmentResult], str]:
    return lambda one: f"{value(one.counts):,}"


#: Columns of both partitions and segments.
_COUNTS: Sequence[tuple[Column, Callable[[PartitionResult | SegmentResult], str]]] = (
    (Column("READ", right=True), _cells(lambda counts: counts.records_read)),
    (Column("KEPT", right=True), _cells(lambda counts: counts.records_kept)),
    *((Column(title, right=True), _cells(value)) for title, _, value in REASONS),
)
COLUMNS: Sequence[tuple[Column, Callable[[PartitionResult], str]]] = (
    (Column("PARTITION"), lambda one: printable(one.name)),
    *_COUNTS,
    (Column("LOG BEFORE", right=True), lambda one: bytes_text(one.bytes_before)),
    (Column("AFTER", right=True), lambda one: bytes_text(one.bytes_after)),
    (Column("CLEAN UP TO", right=True), lambda one: "-" if one.end_offset is None else str(one.end_offset)),
)
SEGMENT_COLUMNS: Sequence[tuple[Column, Callable[[SegmentResult], str]]] = (
    (Column("SEGMENT", right=True), lambda one: str(one.base_offset)),
    (Column("INTO", right=True), lambda one: ", ".join(map(str, one.outputs))),
    *_COUNTS,
    (Column("LOG BEFORE", right=True), lambda one: bytes_text(one.counts.bytes_read)),
    (Column("AFTER", right=True), lambda one: bytes_text(one.counts.bytes_written)),
)


def lines(result: CleanResult) -> Iterator[str]:
    """Yield the result as lines for people."""
    cleaned = result.with_fate(Fate.CLEANED)
    if cleaned:
        yield from table(*cells_of(COLUMNS, cleaned))
        yield ""
    yield from failed_lines(result, "NOT CLEANED, copied unchanged" if result.target else "NOT CLEANED")
    unchanged = [*_unchanged(result)]
    yield from unchanged
    notes = [*note_lines(result, "deleted")]
    yield from notes
    if unchanged or notes or result.with_fate(Fate.FAILED):
        yield ""
    yield from summary(result)


def _unchanged(result: CleanResult) -> Iterator[str]:
    for fate, what in ((Fate.COPIED, "copied unchanged"), (Fate.LEFT, str(Fate.LEFT))):
        for why, names in by_sentence((one.why, printable(one.name)) for one in result.with_fate(fate)).items():
            yield f"{what}: {names_text(names)}\n  {printable(why)}"


def failed_lines(result: CleanResult, what: str) -> Iterator[str]:
    """Yield the failed partitions by failure; `what` is the heading of each."""
    groups: dict[tuple[str, str], list[PartitionResult]] = {}
    for one in result.with_fate(Fate.FAILED):
        assert one.failure is not None, "it failed"
        groups.setdefault((one.failure.for_all or one.why, one.failure.detail), []).append(one)
    for (sentence, detail), same in groups.items():
        yield f"{what}: {names_text([printable(one.name) for one in same])}"
        yield f"  {printable(same[0].why if len(same) == 1 else _needs(same) + sentence)}"
        if detail:
            yield detail.rstrip()


def _needs(same: Sequence[PartitionResult]) -> str:
    """Return the space that each partition needs, if partitions failed for lack of space."""
    needed = [
        one.failure.bytes_needed for one in same if one.failure is not None and one.failure.bytes_needed is not None
    ]
    if not needed:
        return ""
    least, most = min(needed), max(needed)
    between = f"{most:,} B" if least == most else f"{least:,} to {most:,} B"
    return f"each takes up to {between} at once ({sum(needed):,} B all together), and "


def note_lines(result: CleanResult, deletes: str) -> Iterator[str]:
    """Yield the notes of each partition, then those on the whole; `deletes` is the verb for retention."""
    for one in result.partitions:
        yield from (f"{printable(one.name)}: {printable(note)}" for note in one.notes)
        if one.left_out_bytes:
            what = f"whole batches of {one.left_out_bytes:,} B are not in the copy: only the original has them"
            yield f"{printable(one.name)}: {what}"
        if one.segments_retained_away:
            what = f"{number(one.segments_retained_away, 'old segment')}, {bytes_text(one.bytes_retained_away)}"
            yield f"{printable(one.name)}: retention {deletes} {what}"
    yield from map(printable, result.notes)


def _fates(result: CleanResult) -> str:
    names = (
        {} if _is_done(result) else {Fate.CLEANED: "to clean", Fate.COPIED: "to leave alone", Fate.FAILED: "damaged"}
    )
    fates = [f"{len(result.with_fate(fate)):,} {names.get(fate, fate)}" for fate in Fate if result.with_fate(fate)]
    return f"{number(len(result.partitions), 'partition')}: {', '.join(fates)}"


def summary(result: CleanResult) -> Iterator[str]:
    """Yield the totals in sentences: counts, times, the proof, and kept copies."""
    counts = result.counts
    yield _fates(result)
    if result.with_fate(Fate.CLEANED):
        why = ", ".join(_counted(value(counts), words) for _, words, value in REASONS if value(counts))
        dropped = counts.records_read - counts.records_kept
        yield (
            f"{number(counts.records_read, 'record')} read, {counts.records_kept:,} kept, {dropped:,} dropped"
            + (f": {why}" if why else "")
        )
        probed = [one for one in result.partitions if one.probed]
        if probed:
            yield f"records looked up in a table of dirty keys, as little was dirty: {number(len(probed), 'partition')}"
        yield from _kept_for_replicas(result)
        written = counts.bytes_written if result.in_place is None else result.in_place.bytes_written
        yield (
            f"{bytes_text(counts.bytes_read)} read, {bytes_text(written)} "
            f"{'written; cleaned' if _is_done(result) else 'to write; counted'} "
            f"in {result.clean_seconds:.1f} s{_rate(result)} ({result.seconds:.1f} s in total)"
        )
    before, after = (sum(getattr(one, name) for one in result.partitions) for name in ("bytes_before", "bytes_after"))
    target = printable(result.target) or "after a clean"
    if result.in_place is not None:
        yield from _of_place(result.in_place)
        if _is_unchanged(result):
            yield "Nothing was changed"
        target = printable(", ".join(result.in_place.directories))
    if result.in_tier is not None:
        yield from _of_tier(result.in_tier)
        target = f"with {printable(result.in_tier.tier)}"
    yield f"{target}: {bytes_text(after)} of logs, {bytes_text(before)} before"


def _counted(count: int, words: str) -> str:
    return number(count, words.removesuffix("s")) if words.endswith("s") else f"{count:,} {words}"


def _is_done(result: CleanResult) -> bool:
    return bool(result.target) or result.in_place is not None or (result.in_tier is not None and result.in_tier.is_done)


def _is_unchanged(result: CleanResult) -> bool:
    """Whether a clean in place failed before it changed any file; a partition with notes was recovered or changed."""
    return (
        bool(result.with_fate(Fate.FAILED))
        and not result.with_fate(Fate.CLEANED)
        and not any(one.notes or one.segments_retained_away for one in result.partitions)
    )


def _of_place(found: InPlace) -> Iterator[str]:
    if found.waves:
        in_waves = f", in {number(found.waves, 'wave')}" if found.waves > 1 else ""
        proof = (
            f"; for the proof's temporary files {bytes_text(found.proof_bytes_max)}" if found.proof_bytes_max else ""
        )
        space = bytes_text(found.work_bytes_max)
        yield f"work space for new segments beside the old ones: up to {space}{proof}{in_waves}"
        if found.verified is None:
            yield "NOT VERIFIED (--no-verify): old segments were replaced without the proof"
        else:
            what = f"{number(found.verified, 'record')} in {found.verify_seconds:.1f} s"
            yield f"verified before anything was replaced: {what}"
    if found.index_bytes or found.bytes_read >= _RATE_BYTES_MIN:
        read = bytes_text(found.bytes_read + found.proof_bytes_read)
        proof = f", {bytes_text(found.proof_bytes_read)} of it by the proof" if found.proof_bytes_read else ""
        share = f": {found.bytes_written / found.bytes_new:.1f} for each byte that was new" if found.bytes_new else ""
        indexes = f", {bytes_text(found.index_bytes)} of it key indexes" if found.index_bytes else ""
        yield (
            f"{bytes_text(found.bytes_new)} of the logs were new; {read} read from the disk or its cache{proof}; "
            f"{bytes_text(found.bytes_written)} written{share}{indexes}"
        )
    if found.kept:
        command = shlex.join(["cordwood", "undo", found.kept])
        yield (
            f"the old files are in {printable(found.kept)} and take {bytes_text(found.kept_bytes)} there until you "
            f"delete it; to restore them: {printable(command)}"
        )


def _of_tier(found: InTier) -> Iterator[str]:
    yield f"verified before anything was replaced: {number(found.verified, 'record')} in {found.verify_seconds:.1f} s"
    does = "replaced" if found.is_done else "would be replaced"
    yield (
        f"{number(found.segments_replaced, 'remote segment')} {does} by {found.segments_written:,}: "
        f"{number(found.objects_written, 'object')} ({bytes_text(found.bytes_written)}) written, "
        f"{number(found.objects_deleted, 'object')} ({bytes_text(found.bytes_deleted)}) deleted"
    )
    if not found.is_done:
        yield "Nothing was changed (--dry-run)"
    if found.kept:
        yield f"{number(len(found.kept), 'object')} of replaced segments stay in the tier; no broker will delete them:"
        yield from (f"  {printable(path)}" for path in found.kept)


def _rate(result: CleanResult) -> str:
    if result.counts.bytes_read < _RATE_BYTES_MIN:
        return ""
    return f", {bytes_text(round(result.bytes_per_second))}/s"


_KEPT_FOR_REPLICAS = (
    (False, "other replicas may not have seen them; give the directories of all of them, stopped; or, without other "
     "replicas, use --single-copy"),
    (True, "they have not expired on all replicas, or differ there"),
)  # fmt: skip


def _kept_for_replicas(result: CleanResult) -> Iterator[str]:
    for jointly, why in _KEPT_FOR_REPLICAS:
        counts = [one.counts for one in result.partitions if one.jointly is jointly]
        tombstones = sum(one.tombstones_kept_for_replicas for one in counts)
        markers = sum(one.markers_kept_for_replicas for one in counts)
        named = ((tombstones, "expired tombstone"), (markers, "expired marker"))
        kept = [number(count, noun) for count, noun in named if count]
        if kept:
            yield f"{' and '.join(kept)} kept, as {why}"


def html(result: CleanResult) -> str:
    """Return the table of cleaned partitions, for a notebook."""
    *_, last = summary(result)
    return html_table(*cells_of(COLUMNS, result.with_fate(Fate.CLEANED)), f"{_fates(result)}; {last}")


# ---- the result as JSON ----------------------------------------------------------------------------------------------


def document(result: CleanResult) -> dict[str, Any]:
    """Return the result as one JSON value."""
    return {
        "target": result.target,
        "now_ms": result.now_ms,
        "cleaned": len(result.with_fate(Fate.CLEANED)),
        "copied": len(result.with_fate(Fate.COPIED)),
        "left_alone": len(result.with_fate(Fate.LEFT)),
        "failed": len(result.with_fate(Fate.FAILED)),
        **_counts_document(result.counts),
        "bytes_before": sum(one.bytes_before for one in result.partitions),
        "bytes_after": sum(one.bytes_after for one in result.partitions),
        "seconds": round(result.seconds, 3),
        "clean_seconds": round(result.clean_seconds, 3),
        "bytes_per_second": round(result.bytes_per_second),
        "notes": list(result.notes),
        "in_place": None if result.in_place is None else asdict(result.in_place),
        "in_tier": None if result.in_tier is None else asdict(result.in_tier),
        "partitions": [_partition_document(one) for one in result.partitions],
    }


def _partition_document(partition: PartitionResult) -> dict[str, Any]:
    name = partition.topic_partition
    return {
        "path": partition.path,
        "topic": None if name is None else name.topic,
        "partition": None if name is None else name.partition,
        "broker": partition.broker or None,
        "jointly": partition.jointly,
        "result": partition.fate,
        "why": partition.why,
        **_counts_document(partition.counts),
        "bytes_before": partition.bytes_before,
        "bytes_after": partition.bytes_after,
        "first_dirty_offset": partition.end_offset,
        "probed": partition.probed,
        "segments_retained_away": partition.segments_retained_away,
        "bytes_retained_away": partition.bytes_retained_away,
        "segments": [_segment_document(one) for one in partition.segments],
        "left_out_bytes": partition.left_out_bytes,
        "notes": list(partition.notes),
        "failure": None if partition.failure is None else partition.failure.kind,
        "memory": None if partition.failure is None else _memory_document(partition.failure.memory),
    }


def _segment_document(segment: SegmentResult) -> dict[str, Any]:
    return {
        "base_offset": segment.base_offset,
        "outputs": list(segment.outputs),
        **_counts_document(segment.counts),
    }


def _memory_document(need: MemoryNeed | None) -> dict[str, int | None] | None:
    if need is None:
        return None
    return {**asdict(need), "memory_min": need.memory_min, "memory_enough": need.memory_enough}


def _counts_document(counts: Counts) -> dict[str, int]:
    return {one.name: getattr(counts, one.name) for one in fields(counts)}


register(CleanResult, lines=lines, document=document, html=html)
