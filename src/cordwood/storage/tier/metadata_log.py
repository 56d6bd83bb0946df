"""Appends to a partition of `__remote_log_metadata` while its brokers are stopped.

The records get a segment of their own, which appears with one rename: first its indexes, then its `.log`. A broker that
starts on the directory takes it for the active segment. So after a crash all records of an append are there, or none.

All replicas of the metadata partition get the same segment. If one of them lacked it and led next, it would cut it off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cordwood.common.errors import RequestError
from cordwood.common.partitioner import partition_of
from cordwood.common.types import NONE
from cordwood.fs.base import LocalFileSystem
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.formats import leader_epochs, time_index
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.formats.properties import decode_id
from cordwood.storage.formats.time_index import TimeIndex
from cordwood.storage.log.files import read_leader_epochs
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap, read_headers
from cordwood.storage.tier.segments import SegmentEvent, TopicIdPartition, UpdateEvent, encode_event

_TEMPORARY = "cordwood.tmp"


def metadata_partition(partition: TopicIdPartition, count: int) -> int:
    """Return the partition of `__remote_log_metadata` with the records about a partition.

    Source: Kafka RemoteLogMetadataTopicPartitioner.
    """
    topic_id = decode_id(partition.topic_id)
    assert topic_id is not None, "an id that was decoded"
    half = (1 << 64) - 1
    found = 31 + _java_hash(topic_id.int & half)
    found = found * 31 + _java_hash(topic_id.int >> 64)
    found = (found * 31 + partition.partition) & 0xFFFFFFFF
    return partition_of(found.to_bytes(4, "big"), count)


def _java_hash(word: int) -> int:
    return (word ^ word >> 32) & 0xFFFFFFFF


class MetadataLog:
    """One partition of `__remote_log_metadata`, in the locked directories of its replicas.

    Args:
        paths: its directory at each replica.
        time_ms: timestamp of all records.

    Raises:
        RequestError: the replicas differ, or one of them is damaged at its end.
    """

    def __init__(self, fs: LocalFileSystem, paths: Sequence[str], time_ms: int) -> None:
        self._fs = fs
        self._paths = tuple(paths)
        self._time_ms = time_ms
        ends = {path: _End.of(fs, path) for path in paths}
        newest = max(ends.values(), key=lambda one: len(one.epochs))
        for path, end in ends.items():
            if end.next_offset != newest.next_offset or end.with_records() != newest.with_records():
                raise RequestError(
                    f"{path} ends at {end.next_offset}, and another replica at {newest.next_offset}, or their leader "
                    "epochs differ. Start their brokers, wait until the replicas are in sync, and stop them"
                )
        self._base_offset = newest.next_offset
        # A leader begins its epoch before its first record, and its followers learn of the epoch by that record.
        self._epochs = newest.epochs
        self._epoch = newest.epochs[-1].epoch if newest.epochs else NONE
        self._batches: list[bytes] = []
        self._next_offset = self._base_offset

    def append(self, events: Sequence[SegmentEvent | UpdateEvent]) -> None:
        """Append events as one batch; on return it is durable at all replicas."""
        records = [
            Record(offset=self._next_offset + at, timestamp=self._time_ms, key=None, value=encode_event(event))
            for at, event in enumerate(events)
        ]
        batch = encode_batch(records, leader_epoch=self._epoch)
        data, next_offset = b"".join([*self._batches, batch]), self._next_offset + len(records)
        for path in self._paths:
            self._put(path, data, is_new=not self._batches, last_offset=next_offset - 1)
        self._batches.append(batch)
        self._next_offset = next_offset

    def _put(self, path: str, data: bytes, *, is_new: bool, last_offset: int) -> None:
        def name(kind: FileKind) -> str:
            return f"{path}/{offset_name(self._base_offset, kind)}"

        def put(name: str, data: bytes) -> None:
            # The next append overwrites a file that a crash left under this name.
            self._fs.put(name, data, like=like, beside=f"{path}/{_TEMPORARY}")

        like = LogView(path, fs=self._fs).segments[-1].files.log
        if is_new:
            # A later batch has the same time, so the index stays right.
            times, offsets = np.array([self._time_ms], np.int64), np.array([last_offset], np.int64)
            entries = time_index.encode(TimeIndex(self._base_offset, times, offsets, 1))
            if self._epochs:
                put(f"{path}/{FileKind.LEADER_EPOCHS}", leader_epochs.encode(self._epochs))
            put(name(FileKind.OFFSET_INDEX), b"")
            put(name(FileKind.TIME_INDEX), entries)
        put(name(FileKind.LOG), data)


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a metadata partition at one replica."""

    next_offset: int
    epochs: tuple[EpochEntry, ...]

    @classmethod
    def of(cls, fs: LocalFileSystem, path: str) -> _End:
        """Read the end of a partition.

        Raises:
            RequestError: its active segment is damaged.
        """
        log = LogView(path, fs=fs)
        active = log.segments[-1]
        with active.open() as file:
            for item in read_headers(file, base_offset=active.base_offset, search=False):
                if isinstance(item, Gap):
                    raise RequestError(
                        f"{active.path} is damaged at byte {item.position}: {item.what}. Start its broker once, which "
                        "repairs its end, and stop it"
                    )
        return cls(log.next_offset, read_leader_epochs(fs, path).entries)

    def with_records(self) -> list[EpochEntry]:
        """Return the leader epochs that began below the end."""
        return [entry for entry in self.epochs if entry.start_offset < self.next_offset]
