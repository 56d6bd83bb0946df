"""Flips that no checksum catches, in a whole log directory: `cordwood check` finds a flip if another file, or a
neighbour in the same file, contradicts it.

The directory is a small one that a broker closed cleanly: a partition of two segments with transactions, two leaders
and all its files, each consistent with all others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest

from cordwood.common.types import Codec, TopicPartition
from cordwood.record.batch import Marker, encode_batch, encode_marker
from cordwood.record.record import Record
from cordwood.storage.check import Check, Finding
from cordwood.storage.formats import checkpoints, filenames, leader_epochs, offset_index, producer_state, time_index
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.formats.transaction_index import AbortedTransaction, index_of
from cordwood.storage.formats.transaction_index import encode as encode_transaction_index
from cordwood.storage.log.view import LogView
from cordwood.testing.memory import MemoryFileSystem
from tests.damage.samples import (
    CLEAN_SHUTDOWN,
    FIELDS,
    META_PROPERTIES,
    PARTITION,
    PARTITION_METADATA,
    UNCOVERED,
    Field,
    flipped,
    memory,
    read_log,
    read_small,
)
from tests.damage.summary import PROPERTY, Tally

PATTERNS = (1, 128, 255)

GROUPS = (
    "log, magic 2",
    "offset index",
    "time index",
    "transaction index",
    "leader-epoch-checkpoint",
    "offset checkpoint",
)
#: Format and field: why a flip that makes the number smaller may be right, or harm nothing. Any other flip is found.
SMALLER = {
    ("log, magic 2", "leader epoch"): "a negative epoch is an unknown one",
    ("time index", "entry's offset"): "older brokers named the record that has the largest timestamp, not its batch",
    (
        "transaction index",
        "first offset",
    ): "what is aborted a little earlier takes no other data of that producer with it",
    ("transaction index", "last stable offset"): "a search for aborted transactions ends later",
    ("offset checkpoint", "offset"): "less was flushed, cleaned or replicated: more work, nothing wrong",
}
#: The same for a flip that makes it larger.
LARGER = {
    ("leader-epoch-checkpoint", "start offset"): "the oldest epoch may start anywhere: what was before was deleted"
}


def _segment(base_offset: int, batches: list[bytes], lasts: list[int], times: list[int]) -> dict[str, bytes]:
    """A segment's files: all batches but the first are indexed, as brokers do when they are large enough."""
    positions = np.cumsum([0, *map(len, batches)])[:-1]
    offsets = np.array(lasts)
    index = offset_index.OffsetIndex(base_offset, offsets[1:], positions[1:], len(batches) - 1)
    entries = time_index.TimeIndex(base_offset, np.array(times[1:]), offsets[1:], len(batches) - 1)
    return {
        offset_name(base_offset, FileKind.LOG): b"".join(batches),
        offset_name(base_offset, FileKind.OFFSET_INDEX): offset_index.encode(index),
        offset_name(base_offset, FileKind.TIME_INDEX): time_index.encode(entries),
    }


@functools.cache
def directory() -> dict[str, bytes]:
    """The good directory, by path."""

    def data(first: int, count: int, epoch: int, producer: int, *, transactional: bool, codec: Codec) -> bytes:
        records = [Record(first + i, 1_000 + first + i, b"k%d" % i, b"value") for i in range(count)]
        return encode_batch(
            records,
            leader_epoch=epoch,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
            transactional=transactional,
            codec=codec,
        )

    def marker(offset: int, epoch: int, producer: int, *, committed: bool) -> bytes:
        return encode_marker(Marker(offset, 1_000 + offset, producer, 0, committed, 5), leader_epoch=epoch)

    first = [
        data(0, 3, 0, 7, transactional=True, codec=Codec.NONE),
        data(3, 2, 0, 8, transactional=True, codec=Codec.NONE),
        marker(5, 0, 7, committed=True),
        marker(6, 2, 8, committed=False),
    ]
    second = [
        data(7, 3, 2, 9, transactional=False, codec=Codec.LZ4),
        data(10, 3, 2, 10, transactional=False, codec=Codec.NONE),
        data(13, 1, 2, 11, transactional=False, codec=Codec.NONE),
    ]
    of_markers = [
        producer_state.ProducerEntry(7, 0, 2, 2, 2, 1_005, 5, -1),
        producer_state.ProducerEntry(8, 0, 1, 4, 1, 1_006, 5, -1),
    ]
    of_data = [
        producer_state.ProducerEntry(9, 0, 2, 9, 2, 1_009, -1, -1),
        producer_state.ProducerEntry(10, 0, 2, 12, 2, 1_012, -1, -1),
        producer_state.ProducerEntry(11, 0, 0, 13, 0, 1_013, -1, -1),
    ]
    epochs = [leader_epochs.EpochEntry(0, 0), leader_epochs.EpochEntry(2, 6)]
    partition = {
        **_segment(0, first, [2, 4, 5, 6], [1_002, 1_004, 1_005, 1_006]),
        **_segment(7, second, [9, 12, 13], [1_009, 1_012, 1_013]),
        offset_name(0, FileKind.TRANSACTION_INDEX): encode_transaction_index(
            index_of([AbortedTransaction(8, 3, 6, 7)])
        ),
        offset_name(7, FileKind.PRODUCER_SNAPSHOT): producer_state.encode(of_markers),
        offset_name(14, FileKind.PRODUCER_SNAPSHOT): producer_state.encode(of_markers + of_data),
        FileKind.LEADER_EPOCHS: leader_epochs.encode(epochs),
        FileKind.PARTITION_METADATA: PARTITION_METADATA,
    }
    orders = TopicPartition("orders", 0)
    return {
        **{f"{PARTITION}/{name}": content for name, content in partition.items()},
        f"/data/{filenames.RECOVERY_POINTS}": checkpoints.encode({orders: 14}),
        f"/data/{filenames.LOG_START_OFFSETS}": checkpoints.encode({}),
        f"/data/{filenames.CLEANER_OFFSETS}": checkpoints.encode({orders: 7}),
        f"/data/{filenames.HIGH_WATERMARKS}": checkpoints.encode({orders: 14}),
        f"/data/{filenames.META_PROPERTIES}": META_PROPERTIES,
        f"/data/{filenames.CLEAN_SHUTDOWN}": CLEAN_SHUTDOWN,
    }


_GROUPS = {
    FileKind.LOG: "log, magic 2",
    FileKind.OFFSET_INDEX: "offset index",
    FileKind.TIME_INDEX: "time index",
    FileKind.TRANSACTION_INDEX: "transaction index",
    FileKind.PRODUCER_SNAPSHOT: "producer snapshot",
    FileKind.LEADER_EPOCHS: "leader-epoch-checkpoint",
    FileKind.PARTITION_METADATA: "partition.metadata",
}


def group_of(path: str) -> str:
    name = path.rpartition("/")[2]
    if name in filenames.OFFSET_CHECKPOINTS:
        return "offset checkpoint"
    file = filenames.parse_file(name)
    return _GROUPS.get(file.kind, name) if file else name


def check(fs: MemoryFileSystem) -> list[Finding]:
    return list(Check(fs).run(["/data"]))


def is_reported(fs: MemoryFileSystem, path: str, data: bytes) -> bool:
    """Whether reading the file by itself already reports the flip."""
    group = group_of(path)
    if group.startswith("log"):
        return bool(read_log(LogView(PARTITION, fs=fs)).damage)
    file = filenames.parse_file(path.rpartition("/")[2])
    return bool(read_small(group, data, max(file.offset, 0) if file else 0).damage)


def number(group: str, data: bytes, field: Field) -> int:
    """The value of a numeric field; 0 for others."""
    found = data[field.start : field.end]
    if "checkpoint" not in group:
        return int.from_bytes(found, "big", signed=True)
    return int(found) if found.isdigit() else 0


def test_the_good_directory_has_nothing_wrong() -> None:
    assert check(memory(directory())) == []


@pytest.mark.parametrize("group", GROUPS)
def test_flips_without_a_checksum_are_found_by_what_contradicts_them(
    group: str, record_property: Callable[[str, object], None]
) -> None:
    tally = Tally("cross-checks", group)
    missed: list[str] = []
    fs = memory(directory())
    for path, data in directory().items():
        if group_of(path) != group:
            continue
        for field in FIELDS[group](data):
            if field.name not in UNCOVERED.get(group, {}):
                continue
            for position in range(field.start, field.end):
                for pattern in PATTERNS:
                    other = flipped(data, position, pattern)
                    with fs.open_for_update(path) as file:
                        file.write(0, other)
                    if is_reported(fs, path, other):
                        continue
                    found = check(fs)
                    tally.checked[field.name] += 1
                    tally.caught[field.name] += bool(found)
                    smaller = number(group, other, field) < number(group, data, field)
                    if not found and (group, field.name) not in (SMALLER if smaller else LARGER):
                        missed.append(f"{path} at {position}, {field.name}: {pattern:#x}")
        with fs.open_for_update(path) as file:
            file.write(0, data)
    assert check(fs) == []
    record_property(PROPERTY, tally.to_json())
    assert missed == []
    assert min((tally.caught & tally.checked).values()) > 0, "of every field some flips are found"
