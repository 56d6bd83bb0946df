"""Results of searches for keys: records, traces, and what will happen to them next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cordwood.commands.why.next_step import NextStep
from cordwood.common.errors import DataError
from cordwood.common.text import Paged, Presentable, number
from cordwood.common.types import TopicPartition
from cordwood.storage.index.history import KeyRecord
from cordwood.storage.index.traces import SearchedFile, TraceKind
from cordwood.storage.log.healing import HealedLog
from cordwood.storage.node.read_replica import ReadReplica


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record with one of the searched keys.

    Attributes:
        path: directory of its partition.
        record: its location, and its key and value as bytes.
        key, value: decoded by the chosen decoders; bytes if they cannot decode them.
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
        keys: number of keys that were searched for.
        indexed: number of segments that were searched through their key index.
        scanned: number of segments that were read.
    """

    path: str
    keys: int
    indexed: int
    scanned: int


@dataclass(frozen=True, slots=True)
class GetResult(Presentable):
    """History of some keys.

    Attributes:
        records: sorted by key (in the order of the request), then by partition, then by offset.
        unknown: keys without any record.
        searched: the logs that were searched.
        notes: hints for the reader.
        problems: damage that the search met; records inside it are missing from the result.
        replicas: the replica of each searched partition, if directories of several brokers were given.
        healed: damaged batches that were read from other replicas.
    """

    records: tuple[FoundRecord, ...]
    unknown: tuple[Any, ...] = ()
    searched: tuple[SearchedLog, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[DataError, ...] = field(default=(), repr=False)
    replicas: tuple[ReadReplica, ...] = ()
    healed: tuple[HealedLog, ...] = ()

    def __str__(self) -> str:
        found, unknown = number(len(self.records), "record"), number(len(self.unknown), "key")
        return f"{found} in {number(len(self.searched), 'log')}; {unknown} unknown"


# ---- traces ----------------------------------------------------------------------------------------------------------


class Role(StrEnum):
    """Role of a file that is searched for traces."""

    LOG = "log"
    LEFTOVER = "leftover"  # from a deletion, a clean or a move; a broker removes or finishes it
    WORK = "work file"  # from an interrupted clean by Cordwood
    KEPT = "kept file"  # from a clean that keeps the files it replaces
    KEY_INDEX = "key index"
    OTHER = "other file"


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """A trace that is a record.

    Attributes:
        timestamp: milliseconds since the epoch; -1 without a timestamp.
        is_tombstone: whether it deletes its key.
        superseded_by: offset of the next committed record with the same key; None without one.
    """

    offset: int
    timestamp: int
    is_tombstone: bool
    superseded_by: int | None


@dataclass(frozen=True, slots=True)
class FoundTrace:
    """A trace of a key, and how it will be removed.

    Attributes:
        path: path of its file.
        key: the key decoded by the chosen decoder; bytes if it cannot decode it.
        record: the record, if the trace is one; None for other traces.
        next_step: action that removes the trace.
        broker: name of the broker that the file belongs to; empty if it is unknown.
    """

    path: str
    role: Role
    kind: TraceKind
    key: Any
    position: int
    record: TraceRecord | None
    next_step: NextStep
    broker: str = ""


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A file that was searched.

    Attributes:
        role: role of the file.
        found: its size, its checksum, and its traces.
        counts: number of traces of each kind.
        broker: name of the broker that the file belongs to; empty if it is unknown.
    """

    role: Role
    found: SearchedFile
    counts: Mapping[TraceKind, int]
    broker: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaTraces:
    """The traces in a replica of a partition.

    Attributes:
        broker: name of its broker; empty if it is unknown.
        path: its directory.
        counts: number of traces of each kind.
    """

    topic_partition: TopicPartition
    broker: str
    path: str
    counts: Mapping[TraceKind, int]


class ErasureVerdict(StrEnum):
    """Conclusion after all files were searched."""

    CLEAR = "no trace"
    INCOMPLETE = "no trace in what could be read"
    TRACES = "traces remain"


@dataclass(frozen=True, slots=True)
class ErasureResult(Paged):
    """Whether any trace of some keys remains: a certificate if there is no trace.

    Attributes:
        version: version of the Cordwood that searched.
        started_ms, ended_ms: start and end of the search.
        paths: the searched paths as the user gave them; files are named likewise.
        absolute_paths: the same as absolute paths, resolved during the search.
        topics, partitions: filter on the paths; empty for all.
        keys: number of keys.
        keys_sha256: checksum of the keys: each preceded by its length, 4 bytes big-endian, sorted by bytes. The keys
            themselves would be a trace.
        values: whether values, headers and other keys were searched, too.
        files: all searched files.
        traces: at most the first `DESCRIBED_MAX` traces of each file.
        unknown: facts that could not be established.
        replicas: the replicas that have traces.
        brokers: names of the brokers whose directories were searched.
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
    replicas: tuple[ReplicaTraces, ...] = ()
    brokers: tuple[str, ...] = ()

    @property
    def verdict(self) -> ErasureVerdict:
        """Conclusion from the traces in all files, and from files that could not be read in full."""
        if any(one.counts for one in self.files):
            return ErasureVerdict.TRACES
        return ErasureVerdict.INCOMPLETE if any(one.found.problems for one in self.files) else ErasureVerdict.CLEAR

    @property
    def counts(self) -> Mapping[TraceKind, int]:
        """Count the traces of each kind."""
        return {kind: sum(one.counts.get(kind, 0) for one in self.files) for kind in TraceKind}

    def __str__(self) -> str:
        return f"{self.verdict}: {number(self.keys, 'key')} in {number(len(self.files), 'file')}"
