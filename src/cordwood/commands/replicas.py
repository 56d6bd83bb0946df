"""The replicas that a command read, if it was given directories of several brokers: as text and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from cordwood.common.text import printable
from cordwood.storage.log.healing import HealedLog, Healer, OtherReplica
from cordwood.storage.node.cluster import ChosenReplica
from cordwood.storage.node.read_replica import ReadReplica

#: Maximum number of partitions whose replicas are listed for people.
_SHOWN = 20


def replica_lines(replicas: Sequence[ReadReplica]) -> Iterator[str]:
    """Yield a line for each of the first partitions, and the number of further ones; no lines for a single broker."""
    yield from (printable(str(one)) for one in replicas[:_SHOWN])
    if len(replicas) > _SHOWN:
        yield f"and {len(replicas) - _SHOWN:,} more partitions, which --json lists"


def replica_documents(replicas: Iterable[ReadReplica]) -> list[dict[str, Any]]:
    """Return the replicas as JSON values."""
    return [
        {
            "topic": one.topic_partition.topic,
            "partition": one.topic_partition.partition,
            "broker": one.broker,
            "path": printable(one.path),
            "reason": one.reason,
            "others": list(one.others),
        }
        for one in replicas
    ]


def know_replicas(healer: Healer, choices: Iterable[ChosenReplica]) -> None:
    """Give the healer the other replicas of the partitions that are read.

    Raises:
        OSError, NotFoundError: a chosen replica is unreadable.
    """
    for one in choices:
        healer.know(one.replica.log, [OtherReplica(other.broker, other.path) for other in one.others])


def healed_documents(logs: Iterable[HealedLog]) -> list[dict[str, Any]]:
    """Return the healed logs as JSON values."""
    return [{**asdict(one), "path": printable(one.path)} for one in logs]
