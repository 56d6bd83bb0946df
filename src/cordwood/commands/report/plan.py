"""A plan for people: a line per partition, a line with totals, then the reasons. Each distinct reason appears once,
with its partitions.

The size of removable data is an upper bound, marked `≤`. Only the keys would show which records are superseded, and a
plan reads no records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from cordwood.cleaning.rules.plan import (
    Bound,
    Compaction,
    Decision,
    PartitionPlan,
    Plan,
    PlanTotals,
    RetentionTotals,
    Taken,
    utc,
)
from cordwood.common.presentable import register
from cordwood.common.text import Column, by_sentence, bytes_text, html_table, names_text, number, printable, table
from cordwood.tasks.proof_room import proof_bytes


def _of(show: Callable[[Compaction], str]) -> Callable[[PartitionPlan], str]:
    return lambda one: "-" if one.compaction is None else show(one.compaction)


def _ratio(compaction: Compaction) -> str:
    ratio = compaction.cleanable_ratio
    return "-" if ratio is None else f"{100 * ratio:.1f} %"


def _segments(before: int, after: int) -> str:
    return f"{before} → {after}" if before else "-"


def _removed(records_max: int | None, bytes_max: int) -> str:
    records = "?" if records_max is None else f"{records_max:,}"
    return f"≤ {records} records, ≤ {bytes_text(bytes_max)}"


def _may_remove(plan: PartitionPlan) -> str:
    if plan.compaction is None or plan.decision is not Decision.CLEAN:
        return "-"
    return _removed(plan.compaction.bounds.records_max, plan.compaction.bounds.bytes_max)


def _no_sum(_totals: PlanTotals) -> str:
    return ""


#: Each column with its cell for a partition, and for the totals.
_COLUMNS: Sequence[tuple[Column, Callable[[PartitionPlan], str], Callable[[PlanTotals], str]]] = (
    (Column("PARTITION"), lambda one: printable(one.name), lambda _: "total"),
    (
        Column("DECISION"),
        lambda one: one.decision,
        lambda totals: f"clean {totals.partitions_to_clean} of {totals.partitions}",
    ),
    (Column("START", right=True), lambda one: str(one.log_start_offset), _no_sum),
    (Column("FIRST DIRTY", right=True), _of(lambda one: str(one.range.first_dirty_offset)), _no_sum),
    (Column("UNCLEANABLE", right=True), _of(lambda one: str(one.range.first_uncleanable_offset)), _no_sum),
    (Column("END", right=True), lambda one: str(one.log_end_offset), _no_sum),
    (
        Column("CLEAN", right=True),
        _of(lambda one: bytes_text(one.clean_bytes)),
        lambda totals: bytes_text(totals.clean_bytes),
    ),
    (
        Column("DIRTY", right=True),
        _of(lambda one: bytes_text(one.cleanable_bytes)),
        lambda totals: bytes_text(totals.cleanable_bytes),
    ),
    (Column("RATIO", right=True), _of(_ratio), _no_sum),
    (
        Column("SEGMENTS", right=True),
        _of(lambda one: _segments(sum(map(len, one.groups)), len(one.groups))),
        lambda totals: _segments(totals.segments, totals.segments_after),
    ),
    (
        Column("MAY REMOVE"),
        _may_remove,
        lambda totals: _removed(totals.records_max, totals.bytes_max) if totals.partitions_to_clean else "-",
    ),
)


_MANY_TASKS = "cleaned by many tasks"
_IN_TABLE = "little is dirty, so all records are looked up in a table of the dirty keys"


def lines(plan: Plan, *, exact: bool = False) -> Iterator[str]:
    """Yield the plan as lines for people.

    Args:
        exact: whether the effect of retention was computed for the logs as they are after the clean.
    """
    columns, rows = _table(plan)
    yield from table(columns, [*rows, *_total_row(plan)])
    for title, sentences in (
        ("to clean", _reasons(plan, Decision.CLEAN)),
        ("cleaned up to", _ends(plan)),
        ("left alone", _reasons(plan, Decision.LEAVE)),
        ("refused", _reasons(plan, Decision.REFUSE)),
        ("deleted by retention", _taken(plan, lambda one: one.retention, exact=exact)),
        ("deleted only with --retention", _taken(plan, lambda one: one.only_with_retention, exact=False)),
        (_MANY_TASKS, _divisions(plan)),
        (_IN_TABLE, _tables(plan)),
        ("what keeps them from being smaller", ((one.cause, one.name) for one in plan.partitions if one.cause)),
        ("notes", ((note, one.name) for one in plan.partitions for note in one.notes)),
        ("hints", ((one.hint, one.name) for one in plan.partitions if one.hint)),
    ):
        yield from _section(title, sentences)
    yield ""
    yield _totals(plan)
    yield from _work_space(plan, exact=exact)


def document(plan: Plan) -> dict[str, Any]:
    """Return the plan as one JSON value; null means not applicable or unknown."""
    return {
        "now_ms": plan.now_ms,
        "choices": asdict(plan.choices),
        "partitions": [_partition_document(one) for one in plan.partitions],
        "totals": asdict(plan.totals),
    }


def _partition_document(plan: PartitionPlan) -> dict[str, Any]:
    values = asdict(plan)
    name = values.pop("topic_partition") or {"topic": None, "partition": None}
    values |= {"topic": name["topic"], "partition": name["partition"]}
    if plan.compaction is not None:
        values["compaction"] |= {
            "cleanable_ratio": plan.compaction.cleanable_ratio,
            "must_compact_now": plan.compaction.must_compact_now,
        }
    return values


def html(plan: Plan) -> str:
    """Return the table for a notebook."""
    columns, rows = _table(plan)
    return html_table(columns, rows, _totals(plan), last_rows=_total_row(plan))


def _table(plan: Plan) -> tuple[list[Column], list[list[str]]]:
    return [column for column, _, _ in _COLUMNS], [[cell(one) for _, cell, _ in _COLUMNS] for one in plan.partitions]


def _total_row(plan: Plan) -> list[list[str]]:
    """Return the row of totals, or no row for a single partition."""
    return [[cell(plan.totals) for _, _, cell in _COLUMNS]] if len(plan.partitions) > 1 else []


def _reasons(plan: Plan, decision: Decision) -> Iterator[tuple[str, str]]:
    return ((str(one.reason), one.name) for one in plan.with_decision(decision))


def _ends(plan: Plan) -> Iterator[tuple[str, str]]:
    for one in plan.with_decision(Decision.CLEAN):
        assert one.compaction is not None, "it is to be cleaned"
        # The active segment is never cleaned, so this reason is not worth a line.
        if one.compaction.range.bound is not Bound.ACTIVE_SEGMENT:
            yield f"{one.compaction.range.first_uncleanable_offset}: {one.compaction.bound_reason}", one.name


def _divisions(plan: Plan) -> Iterator[tuple[str, str]]:
    for one in plan.partitions:
        if one.division is not None and one.division.staged:
            runs, size = number(one.division.runs, "task"), bytes_text(one.division.run_bytes)
            yield f"about {runs} that scan {size} each: {one.division.reason}", one.name


def _tables(plan: Plan) -> Iterator[tuple[str, str]]:
    for one in plan.partitions:
        if one.division is not None and one.division.table_keys:
            yield f"at most {number(one.division.table_keys, 'key')}", one.name


def _taken(
    plan: Plan, rules_of: Callable[[PartitionPlan], Sequence[Taken]], *, exact: bool
) -> Iterator[tuple[str, str]]:
    for one in plan.partitions:
        before = ", as they are before the clean" if one.decision is Decision.CLEAN and not exact else ""
        for taken in rules_of(one):
            count = number(len(taken.base_offsets), "segment")
            last = taken.base_offsets[-1]
            yield f"{count} up to {last} ({bytes_text(taken.size_bytes)}{before}) by {taken.reason}", one.name


def _section(title: str, sentences: Iterable[tuple[str, str]]) -> Iterator[str]:
    names = by_sentence(sentences)
    if names:
        yield from ("", f"{title}:")
    for sentence, some in names.items():
        yield f"  {printable(names_text(some))}: {printable(sentence)}"


def _totals(plan: Plan) -> str:
    clean = plan.with_decision(Decision.CLEAN)
    found = [one.compaction for one in clean if one.compaction is not None]
    dirty = bytes_text(sum(one.cleanable_bytes for one in found))
    rewritten = bytes_text(sum(one.bounds.bytes_max for one in found))
    counts = [f"{len(clean)} of {number(len(plan.partitions), 'partition')} to clean"]
    counts += [f"{len(plan.with_decision(Decision.REFUSE))} refused"] if plan.with_decision(Decision.REFUSE) else []
    retained = "".join(f"; {one}" for one in _retained(plan.totals))
    return f"{', '.join(counts)}: {dirty} dirty, {rewritten} to read{retained}; planned as of {utc(plan.now_ms)}"


def _retained(totals: PlanTotals) -> Iterator[str]:
    def what(totals: RetentionTotals) -> str:
        segments = f"{number(totals.segments, 'segment')} ({bytes_text(totals.size_bytes)})"
        return f"{segments} of {number(totals.partitions, 'partition')}"

    if totals.retention.segments:
        yield f"retention deletes {what(totals.retention)}"
    if totals.only_with_retention.segments:
        yield f"--retention would delete {what(totals.only_with_retention)}"


#: Mention the worst case only if it exceeds the expected case by this factor.
_WORSE_MIN = 1.1


def _work_space(plan: Plan, *, exact: bool) -> Iterator[str]:
    """Describe the space that a clean in place needs beside the old segments: in total, and group by group."""
    found = [(one, one.compaction) for one in plan.with_decision(Decision.CLEAN) if one.compaction is not None]
    expected = [size for _, one in found for size in one.group_bytes_expected]
    if not expected:
        return
    # Rounds of Kafka's offset map cannot be divided into waves.
    steps = [
        sum(one.group_bytes_expected) if partition.offset_map is not None else max(one.group_bytes_expected, default=0)
        for partition, one in found
    ]
    at_once, at_a_time = sum(expected), max(steps)
    up_to = "" if exact else "up to "
    few = f", or {bytes_text(at_a_time)} at a time" if at_a_time < at_once else ""
    most = sum(size for _, one in found for size in one.group_bytes)
    worst = f"; {bytes_text(most)} in the worst case" if most > at_once * _WORSE_MIN else ""
    proofs = sum(proof_bytes(one) for _, one in found)
    proof = f"; for the proof up to {bytes_text(proofs)} of temporary files (TMPDIR)" if proofs else ""
    yield f"in place: {up_to}{bytes_text(at_once)} of work space{few} (--work-space){worst}{proof}"


register(Plan, lines=lines, document=document, html=html)
