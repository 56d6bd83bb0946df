"""The replica that a verb read of a partition, if it was given directories of several brokers."""

from __future__ import annotations

from dataclasses import dataclass

from cordwood.common.types import TopicPartition
from cordwood.storage.node.cluster import ChosenReplica, brokers_text


@dataclass(frozen=True, slots=True)
class ReadReplica:
    """The replica of a partition that was read.

    Attributes:
        broker: name of its broker.
        path: its directory.
        reason: why this one, in words that follow the broker's name.
        others: names of the brokers whose replicas were not read.
    """

    topic_partition: TopicPartition
    broker: str
    path: str
    reason: str
    others: tuple[str, ...]

    @classmethod
    def of(cls, choice: ChosenReplica) -> ReadReplica:
        """Return the replica of a choice."""
        chosen = choice.replica
        others = tuple(one.broker for one in choice.others)
        return cls(chosen.name, chosen.broker, chosen.path, choice.reason, others)

    def __str__(self) -> str:
        return f"{self.topic_partition} is read from {brokers_text([self.broker])}: {self.reason}"
