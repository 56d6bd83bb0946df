"""The result of writing a table."""

from __future__ import annotations

from dataclasses import dataclass

from cordwood.common.text import Presentable
from cordwood.storage.log.healing import HealedLog
from cordwood.storage.node.read_replica import ReadReplica


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """The offsets [start, end) of a partition that a table covers."""

    partition: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class TableResult(Presentable):
    """A written table.

    Attributes:
        is_changes: the table holds changes since an earlier table.
        deletes: number of rows that delete a key.
        undecodable: number of rows with a key or value that could not be decoded.
        replicas: the replica of each partition, if directories of several brokers were given.
        healed: damaged batches that were read from other replicas.
    """

    topic: str
    output: str
    format: str
    is_changes: bool
    partitions: tuple[PartitionOffsets, ...]
    rows: int
    deletes: int
    undecodable: int
    notes: tuple[str, ...]
    seconds: float
    replicas: tuple[ReadReplica, ...] = ()
    healed: tuple[HealedLog, ...] = ()
