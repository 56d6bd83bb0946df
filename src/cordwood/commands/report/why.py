"""Reasons for the size of partitions, for people and as JSON: the main cause first, then evidence and next steps.

orders-0: 20.9 kB on disk, up to 9.5 kB could go: its active segment … is never cleaned
because   segment.bytes=… (topic orders in …)
do        a smaller segment.bytes or segment.ms rolls it earlier
broker    nothing yet: it rolls after …
offline   nothing is cleanable
also      2.1 kB: tombstones or markers in … wait for their time
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from cordwood.commands.why.causes import Cause, CauseKind, WhyPartition, WhyResult, could_lose, sums
from cordwood.common.presentable import register
from cordwood.common.text import Column, bytes_text, html_table, names_text, number, printable, table
from cordwood.storage.index.key_sample import KeyCounts

_LABEL_WIDTH = 10


def lines(result: WhyResult, limit: int | None = None) -> Iterator[str]:
    """Yield the result for people.

    Args:
        limit: maximum number of partitions with details; the summary covers all. None: no limit.
    """
    shown = result.partitions[:limit]
    for partition in shown:
        yield from _partition_lines(partition)
        yield ""
    yield from table(*_summary(result))
    yield ""
    total, lost = map(bytes_text, sums(result.partitions))
    yield f"{number(len(result.partitions), 'partition')}: {total} on disk, up to {lost} could go"
    if 0 < len(shown) < len(result.partitions):
        yield f"the {len(shown):,} that could lose most are above; --limit shows more"
    if result.keys_not_counted:
        names = printable(names_text(result.keys_not_counted))
        yield f"keys were not counted in {names}: name them with --topic, or read more with --sample"


def _partition_lines(partition: WhyPartition) -> Iterator[str]:
    cause = partition.cause
    size, lost = bytes_text(partition.usage.total_bytes), partition.could_lose_disk_bytes
    could = f"up to {bytes_text(lost)} could go" if lost else "nothing could go"
    yield printable(f"{partition.name}: {size} on disk, {could}: {cause.what}")
    for evidence in cause.evidence:
        yield _line("because", str(evidence))
    if partition.keys is not None:
        yield _line("keys", keys_text(partition.keys))
    if cause.next_step:
        yield _line("do", cause.next_step)
    yield _line("broker", partition.broker)
    yield _line("offline", partition.offline)
    for other in partition.causes[1:]:
        held = f"{bytes_text(other.disk_bytes_max)}: " if other.bytes_max else ""
        yield _line("also", held + other.what + (f"; {other.next_step}" if other.next_step else ""))


def _line(label: str, text: str) -> str:
    return f"  {label.ljust(_LABEL_WIDTH)}{printable(text)}"


def keys_text(keys: KeyCounts) -> str:
    """Describe the known key counts of a log and their source."""
    parts = [f"about {number(keys.keys_in_log, 'key')} in {number(keys.keyed_in_log, 'record')}"]
    if keys.keyed:
        parts.append(f"{keys.superseded_share:.0%} of the records superseded")
    if keys.tombstones:
        parts.append(f"{keys.tombstones / keys.records:.0%} tombstones")
    if keys.keyless:
        parts.append(f"{keys.keyless / keys.records:.0%} without a key")
    read = (
        f", {bytes_text(keys.read_bytes)} of {bytes_text(keys.log_bytes)}" if keys.read_bytes < keys.log_bytes else ""
    )
    return f"{', '.join(parts)} (by {keys.source}{read if keys.key_bytes is not None else ''})"


def _summary(result: WhyResult) -> tuple[list[Column], list[list[str]]]:
    """Build a row for each kind of main cause, sorted by the data that it holds back."""
    figures = [Column(title, right=True) for title in ("PARTITIONS", "ON DISK", "COULD GO")]
    by_kind: dict[CauseKind, list[WhyPartition]] = {}
    for partition in result.partitions:
        by_kind.setdefault(partition.cause.kind, []).append(partition)
    ranked = sorted(((kind, some, sums(some)) for kind, some in by_kind.items()), key=lambda row: -row[2][1])
    rows = [[kind, f"{len(some):,}", *map(bytes_text, both)] for kind, some, both in ranked]
    return [Column("MAIN CAUSE"), *figures], rows


def document(result: WhyResult) -> dict[str, Any]:
    """Return the result as one JSON value; null means unknown."""
    total, lost = sums(result.partitions)
    return {
        "now_ms": result.now_ms,
        "partitions": [_partition(one) for one in result.partitions],
        "keys_not_counted": list(result.keys_not_counted),
        "totals": {
            "partitions": len(result.partitions),
            "disk_bytes": total,
            "could_lose_bytes": could_lose(result.partitions, on_disk=False),
            "could_lose_disk_bytes": lost,
        },
    }


def _partition(partition: WhyPartition) -> dict[str, Any]:
    name, keys = partition.topic_partition, partition.keys
    return {
        "path": partition.path,
        "topic": None if name is None else name.topic,
        "partition": None if name is None else name.partition,
        "disk_bytes": partition.usage.total_bytes,
        "usage": asdict(partition.usage),
        "could_lose_bytes": partition.could_lose_bytes,
        "could_lose_disk_bytes": partition.could_lose_disk_bytes,
        "causes": [_cause(one) for one in partition.causes],
        "broker": partition.broker,
        "offline": partition.offline,
        "keys": None if keys is None else _keys(keys),
        "notes": list(partition.notes),
    }


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "kind": cause.kind,
        "what": cause.what,
        "bytes_max": cause.bytes_max,
        "disk_bytes_max": cause.disk_bytes_max,
        "way": cause.way,
        "next_step": cause.next_step,
        "by_itself": cause.by_itself,
        "evidence": [asdict(one) for one in cause.evidence],
    }


def _keys(keys: KeyCounts) -> dict[str, Any]:
    return {
        "source": keys.source,
        "read_bytes": keys.read_bytes,
        "log_bytes": keys.log_bytes,
        "records": keys.records,
        "keyless": keys.keyless,
        "tombstones": keys.tombstones,
        "keys": keys.keys_in_log,
        "superseded_share": keys.superseded_share,
        "removable_share": keys.removable_share,
        "damage": None if keys.damage is None else str(keys.damage),
    }


def html(result: WhyResult) -> str:
    """Return a table for a notebook: a row for each partition."""
    columns = [Column("PARTITION"), Column("ON DISK", right=True), Column("COULD GO", right=True), Column("CAUSE")]
    rows = [
        [one.name, bytes_text(one.usage.total_bytes), bytes_text(one.could_lose_disk_bytes), one.cause.what]
        for one in result.partitions
    ]
    total, lost = sums(result.partitions)
    return html_table(columns, rows, f"{bytes_text(total)} on disk, up to {bytes_text(lost)} could go")


register(WhyResult, lines=lines, document=document, html=html)
