"""`cordwood clean`: does what `cordwood plan` says, into a copy, and says what it did.

The table has a line per partition that was cleaned, and its figures add up: what was read was kept, or dropped for one
of the reasons. Partitions that failed follow with the place of the damage, then those that were copied as they were.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated

import typer

from cordwood.cleaning.plan import Plan
from cordwood.cleaning.rewrite import Counts
from cordwood.cli.main import EXIT_DAMAGE, EXIT_OK, EXIT_OUR_FAULT, named, printable
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
from cordwood.errors import RequestError
from cordwood.spark.partitioning import FailureKind
from cordwood.spark.pipeline import clean
from cordwood.spark.results import CleanResult, Fate, PartitionResult
from cordwood.spark.session import LOCAL_MASTER

_PROGRESS_EVERY_SECONDS = 0.2


def main(
    directories: Directories,
    output: Annotated[
        str | None, typer.Option(metavar="DIR2", help="Write a cleaned copy here: a new folder, or an empty one.")
    ] = None,
    link: Annotated[
        bool, typer.Option("--link", help="Closed segments that stay as they are: hard links instead of copies.")
    ] = False,
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
    master: Annotated[str, typer.Option(metavar="URL", help="Where Spark runs.")] = LOCAL_MASTER,
    as_json: Json = False,
) -> int:
    """Clean logs as Kafka's cleaner would, into a copy that a broker can start on.

    DIR is only read. DIR2 is there at the end, whole, or not at all. Exit status 1 when a partition was damaged: it is
    copied as it was, and the others are cleaned.
    """
    if output is None:
        command = shlex.join(["cordwood", "plan", *directories])
        raise RequestError(
            f"Say where the cleaned copy goes:  --output DIR2\n  To see first what a clean would do:  {command}"
        )
    progress = _Progress(enabled=sys.stderr.isatty())
    try:
        result = clean(
            *(named(directory) for directory in directories),
            output=output,
            master=master,
            link=link,
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
            on_plan=progress.begin,
            on_progress=progress.update,
        )
    finally:
        progress.clear()
    print(json.dumps(result.document(), indent=1) if as_json else "\n".join(text(result)))
    failures = {one.failure.kind for one in result.partitions if one.failure is not None}
    return EXIT_OUR_FAULT if FailureKind.BUG in failures else EXIT_DAMAGE if failures else EXIT_OK


# ---- text ------------------------------------------------------------------------------------------------------------

#: What records were dropped for: title of the column, words in the summary, value.
_REASONS: Sequence[tuple[str, str, Callable[[Counts], int]]] = (
    ("SUPERSEDED", "superseded", lambda counts: counts.records_superseded),
    ("TOMBSTONES", "expired tombstones", lambda counts: counts.tombstones_expired),
    ("ABORTED", "of aborted transactions", lambda counts: counts.records_aborted),
    ("MARKERS", "expired markers", lambda counts: counts.markers_expired),
    ("NO KEY", "without a key", lambda counts: counts.records_without_key),
)


def _counter(value: Callable[[Counts], int]) -> Callable[[PartitionResult], str]:
    return lambda one: f"{value(one.counts):,}"


_COLUMNS: Sequence[tuple[Column, Callable[[PartitionResult], str]]] = (
    (Column("PARTITION"), lambda one: printable(one.name)),
    (Column("READ", right=True), _counter(lambda counts: counts.records_read)),
    (Column("KEPT", right=True), _counter(lambda counts: counts.records_kept)),
    *((Column(title, right=True), _counter(value)) for title, _, value in _REASONS),
    (Column("LOG BEFORE", right=True), lambda one: bytes_text(one.bytes_before)),
    (Column("AFTER", right=True), lambda one: bytes_text(one.bytes_after)),
    (Column("CLEAN UP TO", right=True), lambda one: "-" if one.end_offset is None else str(one.end_offset)),
)


def text(result: CleanResult) -> Iterator[str]:
    """The result as lines for people."""
    cleaned = result.of(Fate.CLEANED)
    if cleaned:
        yield from table([column for column, _ in _COLUMNS], [[cell(one) for _, cell in _COLUMNS] for one in cleaned])
        yield ""
    for one in result.of(Fate.FAILED):
        yield f"NOT CLEANED, copied as it was: {printable(one.name)}"
        yield f"  {printable(one.why)}"
        if one.failure is not None and one.failure.detail:
            yield one.failure.detail.rstrip()
    by_reason: dict[str, list[str]] = {}
    for one in result.of(Fate.COPIED):
        by_reason.setdefault(one.why, []).append(printable(one.name))
    for why, names in by_reason.items():
        yield f"copied as it was: {names_text(names)}\n  {printable(why)}"
    for one in result.partitions:
        yield from (f"{printable(one.name)}: {printable(note)}" for note in one.notes)
        if one.segments_retained_away:
            what = f"{number(one.segments_retained_away, 'old segment')}, {bytes_text(one.bytes_retained_away)}"
            yield f"{printable(one.name)}: retention deleted {what}"
    yield from map(printable, result.notes)
    yield ""
    yield from _summary(result)


def _summary(result: CleanResult) -> Iterable[str]:
    counts = result.counts
    fates = [f"{len(result.of(fate)):,} {fate}" for fate in Fate if result.of(fate)]
    yield f"{number(len(result.partitions), 'partition')}: {', '.join(fates)}"
    if result.of(Fate.CLEANED):
        why = ", ".join(f"{value(counts):,} {words}" for _, words, value in _REASONS if value(counts))
        dropped = counts.records_read - counts.records_kept
        yield (
            f"{number(counts.records_read, 'record')} read, {counts.records_kept:,} kept, {dropped:,} dropped"
            + (f": {why}" if why else "")
        )
        yield (
            f"{bytes_text(counts.bytes_read)} read, {bytes_text(counts.bytes_written)} written "
            f"in {result.clean_seconds:.1f} s, {bytes_text(round(result.bytes_per_second))}/s; "
            f"{result.seconds:.1f} s with all around it"
        )
    before, after = (sum(getattr(one, name) for one in result.partitions) for name in ("bytes_before", "bytes_after"))
    yield f"{printable(result.target)}: {bytes_text(after)} of logs, {bytes_text(before)} before"


class _Progress:
    """A line on a person's terminal: how much is read, how fast, and how long it will take."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._total = 0
        self._started = self._shown = 0.0
        self._width = 0

    def begin(self, plan: Plan, size_bytes: int) -> None:
        self._total = size_bytes
        self._started = 0.0
        if self._enabled:
            self._show(f"{plan}; starting Spark")

    def update(self, done: int) -> None:
        now = time.monotonic()
        if not self._enabled or not done or now - self._shown < _PROGRESS_EVERY_SECONDS:
            return
        self._started = self._started or now
        self._shown = now
        # What is read to be counted is about known; the last bytes are not worth a wrong figure.
        part = min(done / max(self._total, 1), 0.99)
        seconds = now - self._started
        rate = f", {bytes_text(round(done / seconds))}/s" if seconds > 1 else ""
        left = f", {seconds * (1 - part) / part:,.0f} s left" if seconds > 1 else ""
        self._show(f"{part:4.0%} of {bytes_text(self._total)}{rate}{left}")

    def _show(self, line: str) -> None:
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)

    def clear(self) -> None:
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0
