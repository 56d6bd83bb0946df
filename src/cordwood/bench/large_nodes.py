"""Makes log directories that are large, and written in seconds: of many partitions, of many brokers, or of terabytes.

The partitions of `write_many` and `write_cluster` are copies of one. The segments of `write_terabytes` are sparse: each
batch in them has one record, with a value of 16 MB of zeros, so that only its header takes a block on the disk:

    position   0               about 500 B                                 1 GiB
               first batch     64 batches of one record each, mostly hole  last batch

All batches are valid, checksums included, and the indexes have an entry for each of them but the first.
"""

from __future__ import annotations

import functools
import os
import struct
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import crc32c
import numpy as np

from cordwood.common.types import TopicPartition
from cordwood.fs.posix import PosixFileSystem
from cordwood.kernels.layout import BASE_TIMESTAMP_AT, BATCH_ROW, CRC_AT, CRC_START, MAX_TIMESTAMP_AT
from cordwood.record import headers
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.formats import (
    checkpoints,
    filenames,
    leader_epochs,
    offset_index,
    producer_state,
    properties,
    time_index,
)
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.formats.messages.topics import CONSUMER_OFFSETS
from cordwood.storage.formats.properties import PartitionMetadata
from cordwood.storage.log.segment_writer import IndexLimits, SegmentWriter
from cordwood.storage.node.transactions import partition_of

_NOW_MS = 1_700_000_000_000
_DAY_MS = 86_400_000
#: Segments of each partition of `write_many`, and the records of each.
SEGMENTS, _RECORDS = 3, 100
_PARTITIONS_OF_A_TOPIC = 100
#: Brokers of `write_cluster`, and replicas of each partition.
_BROKERS, _REPLICAS = 30, 3
#: Partitions of `__consumer_offsets`, and commits of each group.
_OFFSETS_PARTITIONS, _COMMITS = 50, 3
_SPARSE_BATCHES = 64
SPARSE_SEGMENT_BYTES = 1 << 30
#: A checkpoint's entries.
_Offsets = dict[TopicPartition, int]


def write_many(folder: Path, partitions: int) -> None:
    """Write a log directory with partitions of three small segments each, in topics of 100 partitions.

    The cleaner's checkpoint of each partition is at the start of one of its segments, or missing.
    """
    _write_broker(folder, _names(partitions), node_id=1)


def write_cluster(folder: Path, partitions: int) -> None:
    """Write the log directories of `_BROKERS` brokers with this many partitions each, as `write_many` does.

    Each partition has replicas on three brokers in a row, and so has each of `__consumer_offsets`: there is a group for
    every second partition of a broker, and it has read a whole topic.
    """
    names = _names(_BROKERS * max(partitions, _REPLICAS) // _REPLICAS)
    offsets = list(_offsets_logs(names, groups=max(1, partitions // 2)).items())
    for broker in range(_BROKERS):
        own = [name for n, name in enumerate(names) if (broker - n) % _BROKERS < _REPLICAS]
        logs = dict(log for n, log in enumerate(offsets) if (broker - n) % _BROKERS < _REPLICAS)
        _write_broker(folder / f"broker-{broker + 1:02}", own, node_id=broker + 1, logs=logs)


def _offsets_logs(names: Sequence[TopicPartition], groups: int) -> dict[TopicPartition, list[list[Record]]]:
    """Return the batches of each partition of `__consumer_offsets`: three commits of each group."""
    topics: dict[str, list[TopicPartition]] = {}
    for name in names:
        topics.setdefault(name.topic, []).append(name)
    logs: dict[TopicPartition, list[list[Record]]] = {
        TopicPartition(CONSUMER_OFFSETS, number): [] for number in range(_OFFSETS_PARTITIONS)
    }
    ends = dict.fromkeys(logs, 0)
    for number in range(groups):
        group, read = f"group-{number:04}", list(topics.values())[number % len(topics)]
        log = TopicPartition(CONSUMER_OFFSETS, partition_of(group, _OFFSETS_PARTITIONS))
        for commit in range(1, _COMMITS + 1):
            end = ends[log]
            logs[log].append([_commit(end + at, group, name, 90 * commit) for at, name in enumerate(read)])
            ends[log] += len(read)
    return logs


def _commit(offset: int, group: str, name: TopicPartition, committed: int) -> Record:
    """Return the record of a committed offset.

    Source: OffsetCommitKey.json, version 1; OffsetCommitValue.json, version 3.
    """
    texts = b"".join(struct.pack(">h", len(text)) + text.encode() for text in (group, name.topic))
    key = struct.pack(">h", 1) + texts + struct.pack(">i", name.partition)
    return Record(offset, _NOW_MS + offset, key, struct.pack(">hqihq", 3, committed, 0, 0, _NOW_MS + offset))


def _names(partitions: int) -> list[TopicPartition]:
    return [
        TopicPartition(f"topic-{n // _PARTITIONS_OF_A_TOPIC:03}", n % _PARTITIONS_OF_A_TOPIC) for n in range(partitions)
    ]


def _write_broker(
    folder: Path,
    names: Sequence[TopicPartition],
    node_id: int,
    logs: Mapping[TopicPartition, list[list[Record]]] = MappingProxyType({}),
) -> None:
    folder.mkdir(parents=True)
    files = dict(_small_log(folder / str(names[0])))
    for name in names[1:]:
        (folder / str(name)).mkdir()
        for file, data in files.items():
            (folder / str(name) / file).write_bytes(data)
    for name, batches in logs.items():
        (folder / str(name)).mkdir()
        _write_segment(folder / str(name), 0, batches)
        _write_states(folder / str(name), [])
    for name in (*names, *logs):
        topic_id = uuid.uuid5(uuid.NAMESPACE_DNS, name.topic)
        data = properties.encode_partition_metadata(PartitionMetadata(topic_id))
        (folder / str(name) / FileKind.PARTITION_METADATA).write_bytes(data)
    end = SEGMENTS * _RECORDS
    dirty = {name: _RECORDS * (n % (SEGMENTS + 1)) for n, name in enumerate(names) if n % (SEGMENTS + 1)}
    ends = dict.fromkeys(names, end) | {name: sum(map(len, batches)) for name, batches in logs.items()}
    _write_brokers_files(folder, ends, dirty, node_id)


def _small_log(directory: Path) -> Iterator[tuple[str, bytes]]:
    """Write a partition; yield the name and bytes of each file."""
    directory.mkdir()
    for number in range(SEGMENTS):
        base = number * _RECORDS
        _write_segment(
            directory,
            base,
            [
                [Record(at, _NOW_MS + at, b"%04d" % (at % 150), b"value " * 10) for at in range(offset, offset + 10)]
                for offset in range(base, base + _RECORDS, 10)
            ],
        )
    _write_states(directory, [number * _RECORDS for number in range(1, SEGMENTS + 1)])
    for file in sorted(directory.iterdir()):
        yield file.name, file.read_bytes()


def _write_segment(directory: Path, base: int, batches: Sequence[Sequence[Record]]) -> None:
    """Write a segment with its indexes."""
    writer = SegmentWriter(PosixFileSystem(), str(directory), base, IndexLimits())
    for records in batches:
        data = np.frombuffer(encode_batch(records, leader_epoch=0), np.uint8)
        rows = np.empty(1, BATCH_ROW)
        headers.scan_batches(data, data.size, 0, rows, whole_entries=True)
        writer.append([data], rows)
    writer.finish(mtime_ns=(_NOW_MS + base + sum(map(len, batches))) * 10**6)


def _write_states(directory: Path, snapshots: list[int]) -> None:
    """Write the leader epochs and empty producer snapshots of a partition."""
    epochs = leader_epochs.encode([EpochEntry(0, 0)])
    (directory / FileKind.LEADER_EPOCHS).write_bytes(epochs)
    for offset in snapshots:
        (directory / offset_name(offset, FileKind.PRODUCER_SNAPSHOT)).write_bytes(producer_state.encode([]))


def _write_brokers_files(folder: Path, ends: _Offsets, dirty: Mapping[TopicPartition, int], node_id: int = 1) -> None:
    """Write the files of a broker that was shut down cleanly; it had no metadata log."""
    (folder / filenames.META_PROPERTIES).write_text(
        f"version=0\nbroker.id={node_id}\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\n"
    )
    (folder / filenames.CLEAN_SHUTDOWN).write_bytes(properties.encode_clean_shutdown(-1))
    for name in (filenames.HIGH_WATERMARKS, filenames.RECOVERY_POINTS):
        (folder / name).write_bytes(checkpoints.encode(ends))
    (folder / filenames.CLEANER_OFFSETS).write_bytes(checkpoints.encode(dirty))
    (folder / filenames.LOG_START_OFFSETS).write_bytes(checkpoints.encode({}))


def write_terabytes(folder: Path, segments: int) -> None:
    """Write a log directory with one partition of sparse segments of 1 GiB each.

    The last fifth of the segments is dirty.
    """
    name = TopicPartition("large", 0)
    directory = folder / str(name)
    directory.mkdir(parents=True)
    records = _SPARSE_BATCHES + 2
    for number in range(segments):
        _write_sparse(directory, number * records, _NOW_MS - (segments - number) * _DAY_MS // 10)
    _write_states(directory, [number * records for number in range(1, segments + 1)])
    topic_id = uuid.uuid5(uuid.NAMESPACE_DNS, name.topic)
    data = properties.encode_partition_metadata(PartitionMetadata(topic_id))
    (directory / FileKind.PARTITION_METADATA).write_bytes(data)
    _write_brokers_files(folder, {name: segments * records}, {name: segments * 4 // 5 * records})


def _write_sparse(directory: Path, base: int, time_ms: int) -> None:
    """Write a segment of 1 GiB with its indexes."""
    first, last = (_batch(base + at, time_ms, b"small") for at in (0, _SPARSE_BATCHES + 1))
    size = (SPARSE_SEGMENT_BYTES - len(first) - len(last)) // _SPARSE_BATCHES
    batch, hole_bytes = _with_hole(size, time_ms)
    positions = len(first) + (len(batch) + hole_bytes) * np.arange(_SPARSE_BATCHES + 1)
    path = directory / offset_name(base, FileKind.LOG)
    with path.open("wb") as file:
        file.write(first)
        for number, position in enumerate(positions[:-1].tolist(), 1):
            file.seek(position)
            file.write((base + number).to_bytes(8, "big") + batch[8:])
        file.seek(int(positions[-1]))
        file.write(last)
    os.utime(path, ns=(time_ms * 10**6, time_ms * 10**6))
    offsets = base + 1 + np.arange(positions.size)
    index = offset_index.OffsetIndex(base, offsets, positions, positions.size, b"")
    (directory / offset_name(base, FileKind.OFFSET_INDEX)).write_bytes(offset_index.encode(index))
    times = time_index.TimeIndex(base, np.array([time_ms]), np.array([base]), 1, b"")
    (directory / offset_name(base, FileKind.TIME_INDEX)).write_bytes(time_index.encode(times))


def _batch(offset: int, time_ms: int, value: bytes) -> bytes:
    return encode_batch([Record(offset, time_ms, b"key-%d" % (offset % 1000), value)], leader_epoch=0)


def _with_hole(size_bytes: int, time_ms: int) -> tuple[bytes, int]:
    """Return the begin of a batch of one record, from offset 0, and the number of zeros that follow.

    The zeros are the record's value, and its number of record headers.
    """
    whole = _zeroed(size_bytes)
    begin = len(whole.rstrip(b"\0"))
    # Only the times differ between segments, so only the checksum is computed again.
    head = bytearray(whole[:begin])
    for at in (BASE_TIMESTAMP_AT, MAX_TIMESTAMP_AT):
        head[at : at + 8] = time_ms.to_bytes(8, "big")
    checksum = crc32c.crc32c(memoryview(whole)[begin:], crc32c.crc32c(head[CRC_START:]))
    head[CRC_AT : CRC_AT + 4] = checksum.to_bytes(4, "big")
    return bytes(head), size_bytes - begin


@functools.cache
def _zeroed(size_bytes: int) -> bytes:
    """Encode a batch of 4 to 128 MB with a record of zeros, at time 0."""
    value_bytes = 4 << 20
    return _batch(0, 0, bytes(size_bytes - len(_batch(0, 0, bytes(value_bytes))) + value_bytes))
