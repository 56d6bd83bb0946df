"""Open transactions for people and as JSON: a line per transaction, and a line per log with an open part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cordwood.commands.report.groups import coverage_text, partitions_text
from cordwood.common.presentable import register
from cordwood.common.text import Column, cells_of, number, printable, table, time_text
from cordwood.common.types import TopicPartition
from cordwood.storage.node.transactions import (
    OpenInLog,
    OpenTransaction,
    Outlook,
    TransactionalId,
    TransactionListing,
)

# ---- JSON ------------------------------------------------------------------------------------------------------------


def document(listing: TransactionListing) -> dict[str, Any]:
    """Return the listing as one JSON value; null means not applicable or unknown."""
    return {
        "now_ms": listing.now_ms,
        "transactions": [_transaction(one) for one in listing.transactions],
        "transactional_ids": [_transactional_id(one) for one in listing.transactional_ids],
        "state_topic": {
            "topic": listing.state_topic.topic,
            "partitions": list(listing.state_topic.partitions),
            "partition_count": listing.state_topic.partition_count,
        },
        "logs": listing.logs,
        "problems": [str(error) for error in listing.problems],
    }


def _transaction(transaction: OpenTransaction) -> dict[str, Any]:
    return {
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "outlook": transaction.outlook,
        "transactional_id": None if transaction.known is None else transaction.known.transactional_id,
        "state": None if transaction.known is None else transaction.known.state,
        "timeout_ms": None if transaction.known is None else transaction.known.timeout_ms,
        "start_timestamp": transaction.start_timestamp_ms,
        "age_ms": transaction.age_ms,
        "partitions": None
        if transaction.known is None
        else [_partition(each) for each in transaction.known.partitions],
        "logs": [_log(each) for each in transaction.logs],
    }


def _log(open_log: OpenInLog) -> dict[str, Any]:
    return {
        **_partition(open_log.partition),
        "outlook": open_log.outlook,
        "producer_epoch": open_log.producer_epoch,
        "first_offset": open_log.first_offset,
        "last_offset": open_log.last_offset,
        "start_timestamp": open_log.start_timestamp_ms,
        "last_timestamp": open_log.last_timestamp_ms,
        "last_stable_offset": open_log.last_stable_offset,
        "log_end_offset": open_log.log_end_offset,
        "is_first": open_log.is_first,
        "first_uncleanable_offset": open_log.first_uncleanable_offset,
    }


def _transactional_id(entry: TransactionalId) -> dict[str, Any]:
    return {
        "transactional_id": entry.transactional_id,
        "coordinator": entry.coordinator,
        "producer_id": entry.producer_id,
        "producer_epoch": entry.producer_epoch,
        "state": entry.state,
        "timeout_ms": entry.timeout_ms,
        "start_timestamp": entry.start_timestamp_ms,
        "update_timestamp": entry.update_timestamp_ms,
        "partitions": [_partition(each) for each in entry.partitions],
        "problem": entry.problem or None,
    }


def _partition(topic_partition: TopicPartition) -> dict[str, Any]:
    return {"topic": topic_partition.topic, "partition": topic_partition.partition}


# ---- text ------------------------------------------------------------------------------------------------------------

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def duration_text(milliseconds: int | None) -> str:
    """Return a duration in its largest unit."""
    if milliseconds is None:
        return "-"
    for unit, name in _UNITS:
        if milliseconds >= unit:
            return f"{milliseconds / unit:,.1f} {name}"
    return f"{milliseconds} ms"


def _known(show: Callable[[TransactionalId], str]) -> Callable[[OpenTransaction], str]:
    return lambda one: "-" if one.known is None else show(one.known)


def held_back(open_log: OpenInLog) -> int:
    """Count the offsets that readers of committed data cannot read because of this transaction."""
    return open_log.log_end_offset - open_log.last_stable_offset if open_log.is_first else 0


def _uncleanable(open_log: OpenInLog) -> str:
    return "-" if open_log.first_uncleanable_offset is None else f"from {open_log.first_uncleanable_offset} on"


TRANSACTION_COLUMNS: Sequence[tuple[Column, Callable[[OpenTransaction], str]]] = (
    (Column("TRANSACTIONAL ID"), _known(lambda known: printable(known.transactional_id))),
    (Column("PRODUCER", right=True), lambda one: str(one.producer_id)),
    (Column("EPOCH", right=True), lambda one: str(one.producer_epoch)),
    (Column("OUTLOOK"), lambda one: one.outlook),
    (Column("STATE"), _known(lambda known: known.state)),
    (Column("BEGAN (UTC)"), lambda one: time_text(one.start_timestamp_ms)),
    (Column("AGE", right=True), lambda one: duration_text(one.age_ms)),
    (Column("TIMEOUT", right=True), _known(lambda known: duration_text(known.timeout_ms))),
    (Column("OPEN IN"), lambda one: printable(partitions_text(log.partition for log in one.logs))),
)
LOG_COLUMNS: Sequence[tuple[Column, Callable[[OpenInLog], str]]] = (
    (Column("PARTITION"), lambda one: printable(str(one.partition))),
    (Column("PRODUCER", right=True), lambda one: str(one.producer_id)),
    (Column("OUTLOOK"), lambda one: one.outlook),
    (Column("FIRST OFFSET", right=True), lambda one: str(one.first_offset)),
    (Column("LAST STABLE", right=True), lambda one: str(one.last_stable_offset)),
    (Column("END", right=True), lambda one: str(one.log_end_offset)),
    (Column("HELD BACK", right=True), lambda one: f"{held_back(one):,}"),
    (Column("UNCLEANABLE", right=True), _uncleanable),
)
ID_COLUMNS: Sequence[tuple[Column, Callable[[TransactionalId], str]]] = (
    (Column("TRANSACTIONAL ID"), lambda one: printable(one.transactional_id)),
    (Column("PRODUCER", right=True), lambda one: str(one.producer_id)),
    (Column("EPOCH", right=True), lambda one: str(one.producer_epoch)),
    (Column("STATE"), lambda one: one.state),
    (Column("UPDATED (UTC)"), lambda one: time_text(one.update_timestamp_ms)),
    (Column("COORDINATOR", right=True), lambda one: str(one.coordinator)),
)

#: The meaning of each outlook, and the advice.
MEANINGS: Mapping[Outlook, str] = {
    Outlook.HANGING: "no coordinator will end it, and it holds back readers and the cleaner until it is aborted:",
    Outlook.UNKNOWN: "__transaction_state does not tell: some of it is not here, or could not be read",
    Outlook.LONG: "open for longer than its timeout: once a broker runs, its coordinator aborts it",
    Outlook.OPEN: "its producer ends it, or its coordinator aborts it when its timeout is over. If the producer is "
    "gone, a new one with its transactional id aborts it, or kafka-transactions.sh forceTerminateTransaction",
    Outlook.ENDING: "decided; once a broker runs, its coordinator writes the markers that are missing",
}


def lines(listing: TransactionListing, *, all_ids: bool = False) -> Iterator[str]:
    """Yield lines for people: open transactions and their logs; with `all_ids` also all transactional ids."""
    if listing.state_topic.partitions:
        yield f"{listing.state_topic.topic}: {coverage_text(listing.state_topic)}"
    else:
        yield f"no partition of {listing.state_topic.topic} is here, so only what the logs say is known"
    yield ""
    if all_ids:
        yield from table(*cells_of(ID_COLUMNS, listing.transactional_ids))
        yield ""
    if listing.transactions:
        yield from table(*cells_of(TRANSACTION_COLUMNS, listing.transactions))
        yield ""
        logs = sorted((log for one in listing.transactions for log in one.logs), key=_by_partition)
        if logs:
            yield from table(*cells_of(LOG_COLUMNS, logs))
            yield ""
    yield from _summary(listing)


def _by_partition(open_log: OpenInLog) -> tuple[TopicPartition, int]:
    return open_log.partition, open_log.first_offset


def _summary(listing: TransactionListing) -> Iterator[str]:
    counts = {outlook: len(listing.with_outlook(outlook)) for outlook in reversed(Outlook)}
    found = ", ".join(f"{count:,} {outlook}" for outlook, count in counts.items() if count) or "none is open"
    ids = number(len(listing.transactional_ids), "transactional id")
    yield f"{number(len(listing.transactions), 'open transaction')} in {number(listing.logs, 'log')}, {ids}: {found}"
    for outlook, meaning in MEANINGS.items():
        if counts[outlook]:
            yield f"{outlook}: {meaning}"
        if outlook is Outlook.HANGING:
            yield from ends_of(listing)
    for error in listing.problems[:_PROBLEMS_SHOWN]:
        yield f"not read: {printable(str(error))}"
    if len(listing.problems) > _PROBLEMS_SHOWN:
        yield f"and {len(listing.problems) - _PROBLEMS_SHOWN:,} more that could not be read"


def ends_of(listing: TransactionListing) -> Iterator[str]:
    """Yield the commands that end hanging transactions, with a running broker and with a stopped one."""
    hanging = [log for one in listing.transactions for log in one.logs if log.outlook is Outlook.HANGING]
    if not hanging:
        return
    where = [f"--topic {printable(log.partition.topic)} --partition {log.partition.partition}" for log in hanging]
    shown = list(zip(hanging, where, strict=True))[:_ENDS_SHOWN]
    more = [f"  and {len(hanging) - _ENDS_SHOWN:,} more"] if len(hanging) > _ENDS_SHOWN else []
    for log, place in shown:
        yield f"  kafka-transactions.sh --bootstrap-server … abort {place} --start-offset {log.first_offset}"
    yield from more
    yield "or, while no broker with the partition runs:"
    for log, place in shown:
        yield f"  cordwood abort-transaction DIR… {place} --producer {log.producer_id}"
    yield from more


_PROBLEMS_SHOWN = 5
_ENDS_SHOWN = 10

register(TransactionListing, lines=lines, document=document)
