"""The cause that an open transaction is: it holds back the cleaner, and the copies of a tiered log."""

from __future__ import annotations

from cordwood.cleaning.rules.plan import utc
from cordwood.commands.why.facts import Cause, CauseKind, Evidence, PartitionFacts
from cordwood.common.text import duration_text
from cordwood.storage.node.transactions import OpenTransaction, Outlook

_OF_OUTLOOK = {
    Outlook.HANGING: (CauseKind.HANGING_TRANSACTION, "hangs, so that no coordinator will ever end it"),
    Outlook.LONG: (CauseKind.LONG_TRANSACTION, "is open for longer than its timeout"),
    Outlook.OPEN: (CauseKind.OPEN_TRANSACTION, "is open"),
    Outlook.ENDING: (CauseKind.OPEN_TRANSACTION, "is decided, and its marker is still to be written"),
    Outlook.UNKNOWN: (CauseKind.UNKNOWN_TRANSACTION, "is open, and its coordinator's log is not all here"),
}
_OUTLOOK_STEPS = {
    CauseKind.HANGING_TRANSACTION: "abort it: kafka-transactions.sh abort {} --start-offset {}; or, with the broker "
    "stopped, cordwood abort-transaction DIR… {} --producer {}",
    CauseKind.LONG_TRANSACTION: "look at its coordinator, which should have aborted it",
    CauseKind.UNKNOWN_TRANSACTION: "cordwood transactions, with the directories of __transaction_state",
    CauseKind.OPEN_TRANSACTION: "wait for its end",
}


def transaction_cause(
    facts: PartitionFacts, producer_id: int, first_offset: int, effect: str, size: int, *evidence: Evidence
) -> Cause:
    """Make the cause of an open transaction.

    Args:
        producer_id: the producer whose transaction is open in this log, from `first_offset` on.
        effect: its effect, in words.
    """
    found = facts.transaction
    outlook = Outlook.UNKNOWN if found is None else _outlook(facts, found)
    kind, what = _OF_OUTLOOK[outlook]
    what = "is open" if found is None else what
    whose = f"producer {producer_id}"
    proofs = [Evidence(f"open since offset {first_offset}", facts.plan.path), *evidence]
    until, step = "", _OUTLOOK_STEPS[kind]
    if found is not None and found.known is not None:
        whose = f"{found.known.transactional_id} (producer {producer_id})"
        timeout = duration_text(found.known.timeout_ms)
        proofs.append(
            Evidence(f"state {found.known.state}, timeout {timeout}", f"__transaction_state-{found.known.coordinator}")
        )
        if outlook is Outlook.OPEN and found.start_timestamp_ms is not None:
            step += f"; a producer that starts as {found.known.transactional_id} aborts it (initTransactions)"
            until = f"its coordinator aborts it at {utc(found.start_timestamp_ms + found.known.timeout_ms)}"
    since = ""
    if found is not None and found.start_timestamp_ms is not None:
        since = f" since {utc(found.start_timestamp_ms)}"
    text = f"a transaction of {whose} {what}{since}: {effect}"
    if kind is CauseKind.HANGING_TRANSACTION and (name := facts.plan.topic_partition) is not None:
        where = f"--topic {name.topic} --partition {name.partition}"
        step = step.format(where, first_offset, where, producer_id)
    return Cause(kind, text, size, step, until, tuple(proofs))


def _outlook(facts: PartitionFacts, found: OpenTransaction) -> Outlook:
    here = [one.outlook for one in found.logs if one.partition == facts.plan.topic_partition]
    return here[0] if here else found.outlook
