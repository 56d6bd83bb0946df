"""`cordwood plan`: a line per partition, then the reasons. Equal reasons stand once, with the partitions they are for.

What may go is an upper bound, and says so: `≤`. Whether a record is superseded only its key tells, and no record is
read here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence

from cordwood.cleaning.plan import Bound, Compaction, Decision, PartitionPlan, Plan, utc
from cordwood.cli.main import EXIT_DAMAGE, EXIT_OK, named, printable
from cordwood.cli.options import (
    Config,
    Directories,
    FirstDirty,
    HighWatermark,
    IgnoreRatio,
    Json,
    Metadata,
    Now,
    OnlyPartition,
    OnlyTopic,
    Retention,
    ServerProperties,
    SingleCopy,
    high_watermark_of,
)
from cordwood.cli.tables import Column, bytes_text, names_text, number, table
from cordwood.spark.planning import make_plan


def main(
    directories: Directories,
    topic: OnlyTopic = None,
    partition: OnlyPartition = None,
    now: Now = None,
    config: Config = None,
    server_properties: ServerProperties = None,
    metadata: Metadata = None,
    ignore_ratio: IgnoreRatio = False,
    first_dirty: FirstDirty = None,
    high_watermark: HighWatermark = None,
    retention: Retention = False,
    single_copy: SingleCopy = False,
    as_json: Json = False,
) -> int:
    """Say what a clean would do to each partition, or why it would leave it alone, and when that changes.

    Nothing is changed, and a running broker is no obstacle. No record is read, so what would go is given as a bound.
    Exit status 1 when a partition cannot be cleaned because it is damaged.
    """
    plan = make_plan(
        *(named(directory) for directory in directories),
        topics=topic or (),
        partitions=partition or (),
        now_ms=now,
        overrides=config or (),
        server_properties=server_properties,
        metadata=metadata,
        ignore_ratio=ignore_ratio,
        first_dirty=first_dirty,
        high_watermark=high_watermark_of(high_watermark),
        retention=retention,
        single_copy=single_copy,
    )
    print(json.dumps(plan.document(), indent=1) if as_json else "\n".join(text(plan)))
    return EXIT_DAMAGE if plan.of(Decision.REFUSE) else EXIT_OK


def _of(show: Callable[[Compaction], str]) -> Callable[[PartitionPlan], str]:
    return lambda one: "-" if one.compaction is None else show(one.compaction)


def _ratio(compaction: Compaction) -> str:
    ratio = compaction.cleanable_ratio
    return "-" if ratio is None else f"{100 * ratio:.1f} %"


def _groups(compaction: Compaction) -> str:
    return f"{sum(map(len, compaction.groups))} → {len(compaction.groups)}" if compaction.groups else "-"


def _may_go(one: PartitionPlan) -> str:
    if one.compaction is None or one.decision is not Decision.CLEAN:
        return "-"
    bounds = one.compaction.bounds
    records = "?" if bounds.records_max is None else f"{bounds.records_max:,}"
    return f"≤ {records} records, ≤ {bytes_text(bounds.bytes_max)}"


_COLUMNS: Sequence[tuple[Column, Callable[[PartitionPlan], str]]] = (
    (Column("PARTITION"), lambda one: printable(one.name)),
    (Column("DECISION"), lambda one: one.decision),
    (Column("START", right=True), lambda one: str(one.log_start_offset)),
    (Column("FIRST DIRTY", right=True), _of(lambda one: str(one.range.first_dirty_offset))),
    (Column("UNCLEANABLE", right=True), _of(lambda one: str(one.range.first_uncleanable_offset))),
    (Column("END", right=True), lambda one: str(one.log_end_offset)),
    (Column("CLEAN", right=True), _of(lambda one: bytes_text(one.clean_bytes))),
    (Column("DIRTY", right=True), _of(lambda one: bytes_text(one.cleanable_bytes))),
    (Column("RATIO", right=True), _of(_ratio)),
    (Column("SEGMENTS", right=True), _of(_groups)),
    (Column("MAY GO"), _may_go),
)


def text(plan: Plan) -> Iterator[str]:
    """The plan as lines for people."""
    yield from table(
        [column for column, _ in _COLUMNS], [[cell(one) for _, cell in _COLUMNS] for one in plan.partitions]
    )
    for title, sentences in (
        (f"{Decision.CLEAN}, because", _reasons(plan, Decision.CLEAN)),
        ("up to", _ends(plan)),
        (f"{Decision.LEAVE}, because", _reasons(plan, Decision.LEAVE)),
        (f"{Decision.REFUSE}, because", _reasons(plan, Decision.REFUSE)),
        ("retention takes", _taken(plan)),
        ("notes", ((note, one.name) for one in plan.partitions for note in one.notes)),
        ("hints", ((one.hint, one.name) for one in plan.partitions if one.hint)),
    ):
        yield from _section(title, sentences)
    yield ""
    yield _totals(plan)


def _reasons(plan: Plan, decision: Decision) -> Iterator[tuple[str, str]]:
    return ((str(one.reason), one.name) for one in plan.of(decision))


def _ends(plan: Plan) -> Iterator[tuple[str, str]]:
    for one in plan.of(Decision.CLEAN):
        assert one.compaction is not None, "it is to be cleaned"
        # That the active one is left out goes without saying.
        if one.compaction.range.bound is not Bound.ACTIVE_SEGMENT:
            yield f"{one.compaction.range.first_uncleanable_offset}: {one.compaction.bound_reason}", one.name


def _taken(plan: Plan) -> Iterator[tuple[str, str]]:
    for one in plan.partitions:
        before = ", as they are before the clean" if one.decision is Decision.CLEAN else ""
        for some in one.retention:
            count = number(len(some.base_offsets), "segment")
            last = some.base_offsets[-1]
            yield f"{count} up to {last} ({bytes_text(some.size_bytes)}{before}) by {some.reason}", one.name


def _section(title: str, sentences: Iterable[tuple[str, str]]) -> Iterator[str]:
    names: dict[str, list[str]] = {}
    for sentence, name in sentences:
        names.setdefault(sentence, []).append(name)
    if names:
        yield from ("", f"{title}:")
    for sentence, some in names.items():
        yield f"  {printable(names_text(some))}: {printable(sentence)}"


def _totals(plan: Plan) -> str:
    clean = plan.of(Decision.CLEAN)
    found = [one.compaction for one in clean if one.compaction is not None]
    dirty = bytes_text(sum(one.cleanable_bytes for one in found))
    rewritten = bytes_text(sum(one.bounds.bytes_max for one in found))
    counts = [f"{len(clean)} of {number(len(plan.partitions), 'partition')} to clean"]
    counts += [f"{len(plan.of(Decision.REFUSE))} refused"] if plan.of(Decision.REFUSE) else []
    return f"{', '.join(counts)}: {dirty} dirty, {rewritten} to read; planned for {utc(plan.now_ms)}"
