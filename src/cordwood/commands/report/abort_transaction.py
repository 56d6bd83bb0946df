"""Aborted hanging transactions for people and as JSON: the transactions, and the markers that end them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cordwood.common.presentable import register
from cordwood.common.text import bytes_text, number, printable, time_text
from cordwood.common.types import NONE
from cordwood.storage.node.transaction_end import AbortResult, TransactionEnd


def document(result: AbortResult) -> dict[str, Any]:
    """Return the result as one JSON value."""
    return {"done": result.done, "transactions": [_document(end) for end in result.ends]}


def _document(end: TransactionEnd) -> dict[str, Any]:
    found, marker, known = end.open_in_log, end.marker, end.known
    return {
        "topic": found.partition.topic,
        "partition": found.partition.partition,
        "producer_id": marker.producer_id,
        "producer_epoch": marker.producer_epoch,
        "transactional_id": None if known is None else known.transactional_id,
        "state": None if known is None else known.state,
        "first_offset": found.first_offset,
        "start_timestamp": found.start_timestamp_ms,
        "batches": end.batches,
        "records": end.records,
        "size_bytes": end.size_bytes,
        "marker": {
            "type": "ABORT",
            "offset": marker.offset,
            "timestamp": marker.timestamp,
            "coordinator_epoch": marker.coordinator_epoch,
            "leader_epoch": end.leader_epoch,
        },
        "last_stable_offset_before": found.last_stable_offset,
        "last_stable_offset_after": end.next_stable_offset,
        "replicas": [printable(path) for path in end.replicas],
        "done_before": [printable(path) for path in end.done_before],
    }


def lines(result: AbortResult) -> Iterator[str]:
    """Yield lines for people: the changes, done or planned."""
    for end in result.ends:
        yield from map(printable, _lines(end, done=result.done))
        yield ""
    if result.done:
        yield f"{number(len(result.ends), 'transaction')} aborted"
    else:
        yield "Nothing was changed. To abort, give --yes"


def _lines(end: TransactionEnd, *, done: bool) -> Iterator[str]:
    found, marker = end.open_in_log, end.marker
    began = "" if found.start_timestamp_ms is None else f", {time_text(found.start_timestamp_ms)} UTC"
    yield f"{found.partition}: the transaction of producer {marker.producer_id} hangs"
    yield f"  open      from offset {found.first_offset} on{began}; epoch {marker.producer_epoch}"
    yield f"  data      {number(end.records, 'record')} in {_batches(end.batches)}, {bytes_text(end.size_bytes)}"
    yield f"  why       {_why(end)}"
    leader = "none" if end.leader_epoch == NONE else str(end.leader_epoch)
    epochs = f"coordinator epoch {marker.coordinator_epoch}, leader epoch {leader}"
    yield f"  marker    ABORT at offset {marker.offset}, {epochs}"
    yield f"  then      its data is aborted; {_stable_text(found.last_stable_offset, end.next_stable_offset)}"
    for path in end.replicas:
        yield f"  {'written' if done else 'write to':<10}{path}"
    for path in end.done_before:
        yield f"  has it    {path}"


def _stable_text(before: int, after: int) -> str:
    if before == after:
        return f"the last stable offset stays {before}, where another transaction is open"
    return f"the last stable offset moves from {before} to {after}"


def _batches(count: int) -> str:
    return f"{count:,} {'batch' if count == 1 else 'batches'}"


def _why(end: TransactionEnd) -> str:
    if end.known is None:
        return "no coordinator knows the producer"
    known = end.known
    return f"its coordinator has {known.transactional_id} as {known.state}, and writes no marker to this partition"


register(AbortResult, lines=lines, document=document)
