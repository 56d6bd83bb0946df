"""The result of a clean, for people: a line per cleaned partition, then notes on the others.

The figures of a line add up: each record read was kept, or dropped for one of the reasons.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any

from cordwood.cleaning.engine.results import CleanResult, ExactPlan, Fate, InPlace, PartitionResult, SegmentResult
from cordwood.cleaning.rules.rewrite import Counts
from cordwood.commands.report import plan
from cordwood.common.errors import MemoryNeed
from cordwood.common.presentable import register
from cordwood.common.text import (
    Column,
    by_sentence,
    bytes_text,
    cells_of,
    html_table,
    names_text,
    number,
    printable,
    table,
)

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
    yield from _failed(result, "NOT CLEANED, copied unchanged" if result.in_place is None else "NOT CLEANED")
    unchanged = [*_unchanged(result)]
    yield from unchanged
    notes = [*_notes(result, "deleted")]
    yield from notes
    if unchanged or notes or result.with_fate(Fate.FAILED):
        yield ""
    yield from summary(result)


def _unchanged(result: CleanResult) -> Iterator[str]:
    for fate, what in ((Fate.COPIED, "copied unchanged"), (Fate.LEFT, str(Fate.LEFT))):
        for why, names in by_sentence((one.why, printable(one.name)) for one in result.with_fate(fate)).items():
            yield f"{what}: {names_text(names)}\n  {printable(why)}"


def exact_lines(found: ExactPlan) -> Iterator[str]:
    """Yield the plan and the clean's exact result as lines for people."""
    yield from plan.lines(found.plan, exact=True)
    yield ""
    cleaned = found.result.with_fate(Fate.CLEANED)
    if cleaned:
        yield "exactly:"
        yield from table(*cells_of(COLUMNS, cleaned))
        rows = [(one.name, part) for one in cleaned for part in one.segments]
        if rows:
            yield ""
            yield from table(
                [Column("PARTITION"), *(column for column, _ in SEGMENT_COLUMNS)],
                [[printable(name), *(cell(part) for _, cell in SEGMENT_COLUMNS)] for name, part in rows],
            )
        yield ""
    yield from _failed(found.result, "cannot be cleaned")
    yield from _notes(found.result, "would delete")
    yield from summary(found.result)
    if cleaned:
        work = found.work
        yield (
            f"files: {number(work.segments_kept, 'segment')} kept, {work.segments_replaced} to be written anew as "
            f"{work.segments_written}; {bytes_text(work.bytes_read)} to read, {bytes_text(work.bytes_written)} to write"
        )


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
        "partitions": [_partition_document(one) for one in result.partitions],
    }


def exact_document(exact: ExactPlan) -> dict[str, Any]:
    """Return the plan and the clean's exact result as one JSON value."""
    return {**plan.document(exact.plan), "exact": {**document(exact.result), "work": asdict(exact.work)}}


def _partition_document(partition: PartitionResult) -> dict[str, Any]:
    name = partition.topic_partition
    return {
        "path": partition.path,
        "topic": None if name is None else name.topic,
        "partition": None if name is None else name.partition,
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


def html(result: CleanResult) -> str:
    """Return the table of cleaned partitions, for a notebook."""
    *_, last = summary(result)
    return html_table(*cells_of(COLUMNS, result.with_fate(Fate.CLEANED)), f"{_fates(result)}; {last}")


def exact_html(found: ExactPlan) -> str:
    """Return the tables of the plan and of its exact result, for a notebook."""
    return f"{plan.html(found.plan)}\n{html(found.result)}"


def _failed(result: CleanResult, what: str) -> Iterator[str]:
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


def _notes(result: CleanResult, deletes: str) -> Iterator[str]:
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
        yield from _kept_for_replicas(counts)
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
    yield f"{target}: {bytes_text(after)} of logs, {bytes_text(before)} before"


def _counted(count: int, words: str) -> str:
    return number(count, words.removesuffix("s")) if words.endswith("s") else f"{count:,} {words}"


def _is_done(result: CleanResult) -> bool:
    return bool(result.target) or result.in_place is not None


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
    if found.index_bytes:
        share = f": {found.bytes_written / found.bytes_new:.1f} for each byte that was new" if found.bytes_new else ""
        yield (
            f"with key indexes: {bytes_text(found.bytes_read)} read from the disk or its cache, "
            f"{bytes_text(found.bytes_written)} written{share}, {bytes_text(found.index_bytes)} of it indexes"
        )
    if found.kept:
        command = shlex.join(["cordwood", "undo", found.kept])
        yield (
            f"the old files are in {printable(found.kept)} and take {bytes_text(found.kept_bytes)} there until you "
            f"delete it; to restore them: {printable(command)}"
        )


def _rate(result: CleanResult) -> str:
    if result.counts.bytes_read < _RATE_BYTES_MIN:
        return ""
    return f", {bytes_text(round(result.bytes_per_second))}/s"


def _kept_for_replicas(counts: Counts) -> Iterator[str]:
    kept = [
        number(count, noun)
        for count, noun in (
            (counts.tombstones_kept_for_replicas, "expired tombstone"),
            (counts.markers_kept_for_replicas, "expired marker"),
        )
        if count
    ]
    if kept:
        what = f"{' and '.join(kept)} kept, as other replicas may not have seen them"
        yield f"{what}; if there are none, use --single-copy"


register(CleanResult, lines=lines, document=document, html=html)
register(ExactPlan, lines=exact_lines, document=exact_document, html=exact_html)
