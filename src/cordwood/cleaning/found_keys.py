"""What was found of some keys, and what will happen to it next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cordwood.cleaning.next_step import NextStep
from cordwood.errors import DataError
from cordwood.presentable import Presentable
from cordwood.storage.index.history import KeyRecord
from cordwood.types import TopicPartition


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record of a key that was looked for.

    Attributes:
        path: the directory of its partition.
        record: where it is, and its key and value as bytes.
        key, value: what they mean, by the decoders that were asked for; bytes where those cannot decode them.
        next_step: what happens to it next.
    """

    topic_partition: TopicPartition
    path: str
    record: KeyRecord
    key: Any
    value: Any
    next_step: NextStep


@dataclass(frozen=True, slots=True)
class SearchedLog:
    """A log that was searched.

    Attributes:
        keys: how many of the keys were looked for in it.
        indexed: how many of its segments were searched through their key index.
        scanned: how many were read.
    """

    path: str
    keys: int
    indexed: int
    scanned: int


@dataclass(frozen=True, slots=True)
class GetResult(Presentable):
    """What became of some keys.

    Attributes:
        records: by key in the order that the keys were given in, then by partition, then by offset.
        unknown: keys of which there is no record.
        searched: the logs that were searched.
        notes: what a reader should know.
        problems: damage that was found on the way; records in it are not known.
    """

    records: tuple[FoundRecord, ...]
    unknown: tuple[Any, ...] = ()
    searched: tuple[SearchedLog, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[DataError, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        return f"{len(self.records)} records in {len(self.searched)} logs, {len(self.unknown)} keys unknown"
