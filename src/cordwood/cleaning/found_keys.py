"""What was found of some keys, and what will happen to it next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cordwood.cleaning.next_step import NextStep
from cordwood.errors import DataError
from cordwood.presentable import Paged, Presentable
from cordwood.storage.index.history import KeyRecord
from cordwood.storage.index.traces import LookedAt, TraceKind
from cordwood.text import number
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
        found, unknown = number(len(self.records), "record"), number(len(self.unknown), "key")
        return f"{found} in {number(len(self.searched), 'log')}; {unknown} unknown"


# ---- traces ----------------------------------------------------------------------------------------------------------


class Role(StrEnum):
    """What a file is, where traces are looked for."""

    LOG = "log"
    LEFTOVER = "leftover"  #: of a deletion, a clean or a move, which a broker removes or finishes
    WORK = "work file"  #: of a clean by Cordwood that was interrupted
    KEPT = "kept file"  #: of a clean that keeps the files that it replaces
    KEY_INDEX = "key index"
    OTHER = "other file"


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """The record that a trace is.

    Attributes:
        timestamp: milliseconds since the epoch; -1: none.
        is_tombstone: whether it deletes its key.
        superseded_by: offset of the next committed record with the same key; None: there is none.
    """

    offset: int
    timestamp: int
    is_tombstone: bool
    superseded_by: int | None


@dataclass(frozen=True, slots=True)
class FoundTrace:
    """A trace of a key, and how it goes.

    Attributes:
        path: of its file.
        key: what it means, by the decoder that was asked for; bytes where that cannot decode it.
        record: the record that it is; None for other traces.
        next_step: what has to happen so that it goes.
    """

    path: str
    role: Role
    kind: TraceKind
    key: Any
    position: int
    record: TraceRecord | None
    next_step: NextStep


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A file that was looked at.

    Attributes:
        role: what it is.
        found: its size, checksum, and what is in it.
        counts: how many traces there are of each kind.
    """

    role: Role
    found: LookedAt
    counts: Mapping[TraceKind, int]


class Verdict(StrEnum):
    """What is known after all files were looked at."""

    CLEAR = "no trace"
    INCOMPLETE = "no trace in what could be read"
    TRACES = "traces remain"


@dataclass(frozen=True, slots=True)
class ErasureResult(Paged):
    """Whether any trace of some keys remains: a certificate if none does.

    Attributes:
        version: of the Cordwood that looked.
        started_ms, ended_ms: when files were looked at.
        paths: what was looked at, as it was asked for; the files are named likewise.
        absolute_paths: the same from the root, as it was found.
        topics, partitions: which of them; none: all.
        keys: how many keys.
        keys_sha256: of the keys: each with its length before it, 4 bytes big-endian, in the order of their bytes. The
            keys themselves would be a trace.
        values: whether values, headers and other keys were searched, too.
        files: all that was looked at.
        traces: what was found; of each file the first `DESCRIBED_MAX`.
        unknown: what cannot be known.
    """

    version: str
    started_ms: int
    ended_ms: int
    paths: tuple[str, ...]
    absolute_paths: tuple[str, ...]
    topics: tuple[str, ...]
    partitions: tuple[str, ...]
    keys: int
    keys_sha256: str
    values: bool
    files: tuple[CheckedFile, ...]
    traces: tuple[FoundTrace, ...]
    unknown: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """What all of it says."""
        if any(one.counts for one in self.files):
            return Verdict.TRACES
        return Verdict.INCOMPLETE if any(one.found.problems for one in self.files) else Verdict.CLEAR

    @property
    def counts(self) -> Mapping[TraceKind, int]:
        """How many traces there are of each kind."""
        return {kind: sum(one.counts.get(kind, 0) for one in self.files) for kind in TraceKind}

    def __str__(self) -> str:
        return f"{self.verdict}: {number(self.keys, 'key')} in {number(len(self.files), 'file')}"
