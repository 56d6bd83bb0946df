"""Logs as lists of batches that a test decodes, changes and writes again: to plant violations of a clean."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

import cordwood
from cordwood.cleaning.engine.results import CleanResult
from cordwood.common.types import NONE, Codec, ControlType, TimestampType
from cordwood.fs.posix import PosixFileSystem
from cordwood.kernels.layout import BATCH_ROW
from cordwood.kernels.scan import scan_batches
from cordwood.record.batch import KEY, MARKER_VALUE, Batch, encode_batch, encode_message_set
from cordwood.record.plain import read_batch
from cordwood.record.record import Record
from cordwood.storage.formats import leader_epochs, producer_state
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.formats.producer_state import ProducerEntry
from cordwood.storage.formats.transaction_index import AbortedTransaction, decode
from cordwood.storage.log.segment_writer import IndexLimits, SegmentWriter

NOW = 1_700_000_000_000


@dataclass
class Stored:
    """One entry of a log: its bytes, its header, its records."""

    data: bytes
    header: Batch
    records: list[Record]

    @classmethod
    def of(cls, data: bytes) -> Stored:
        rows = np.empty(1, BATCH_ROW)
        scan_batches(np.frombuffer(data, np.uint8).ctypes.data, len(data), len(data), 0, True, rows)
        return cls(data, Batch.of(rows[0]), read_batch(data))

    def rebuilt(self, records: Sequence[Record] | None = None, **changes: Any) -> Stored:
        """The same with other records, or with other fields in its header."""
        header = self.header
        assert header.magic == 2
        options: dict[str, Any] = {
            "base_offset": header.base_offset,
            "last_offset": header.last_offset,
            "codec": header.codec,
            "timestamp_type": header.timestamp_type,
            "max_timestamp": header.max_timestamp,
            "delete_horizon_ms": header.delete_horizon_ms,
            "leader_epoch": header.leader_epoch,
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "transactional": header.is_transactional,
            "control": header.is_control,
        }
        return Stored.of(encode_batch(self.records if records is None else records, **options | changes))


@dataclass
class State:
    """A partition: segments by base offset, transaction indexes, and the files beside them."""

    segments: dict[int, list[Stored]]
    aborted: dict[int, list[AbortedTransaction]] = field(default_factory=dict)
    epochs: list[EpochEntry] = field(default_factory=list)
    producers: list[ProducerEntry] = field(default_factory=list)
    end: int = 0

    @classmethod
    def read(cls, folder: Path, end: int) -> State:
        state = cls({}, end=end)
        for log in sorted(folder.glob("*.log")):
            data, at, entries = log.read_bytes(), 0, []
            while at < len(data):
                size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
                entries.append(Stored.of(data[at : at + size]))
                at += size
            state.segments[int(log.stem)] = entries
            index = log.with_suffix(FileKind.TRANSACTION_INDEX)
            if index.exists():
                state.aborted[int(log.stem)] = list(decode(index.read_bytes()).transactions())
        state.epochs = list(leader_epochs.decode((folder / FileKind.LEADER_EPOCHS).read_bytes()))
        snapshot = folder / offset_name(end, FileKind.PRODUCER_SNAPSHOT)
        state.producers = list(producer_state.decode(snapshot.read_bytes()))
        return state

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True)
        for base, entries in self.segments.items():
            writer = SegmentWriter(PosixFileSystem(), str(folder), base, IndexLimits(interval_bytes=200))
            for one in entries:
                rows = np.empty(1, BATCH_ROW)
                data = np.frombuffer(one.data, np.uint8)
                scan_batches(data.ctypes.data, data.size, data.size, writer.size_bytes, False, rows)
                writer.append([data], rows)
            writer.add_aborted(self.aborted.get(base, []))
            writer.finish(mtime_ns=(NOW - 1_000_000) * 1_000_000)
        (folder / FileKind.LEADER_EPOCHS).write_bytes(leader_epochs.encode(self.epochs))
        (folder / offset_name(self.end, FileKind.PRODUCER_SNAPSHOT)).write_bytes(producer_state.encode(self.producers))
        return folder

    def copy(self) -> State:
        return State(
            {base: list(entries) for base, entries in self.segments.items()},
            {base: list(entries) for base, entries in self.aborted.items()},
            list(self.epochs),
            list(self.producers),
            self.end,
        )

    def find(self, offset: int) -> tuple[list[Stored], int]:
        """The list that holds the batch of an offset, and its index in it."""
        for entries in self.segments.values():
            for at, one in enumerate(entries):
                if one.header.base_offset <= offset <= one.header.last_offset and one.header.base_offset >= 0:
                    return entries, at
        raise LookupError(offset)

    def batch(self, offset: int, change: Callable[[Stored], Stored | None]) -> None:
        """Change the batch that holds an offset; None removes it."""
        entries, at = self.find(offset)
        changed = change(entries[at])
        entries[at : at + 1] = [] if changed is None else [changed]

    def record(self, offset: int, **changes: Any) -> None:
        """Change one record."""

        def change(one: Stored) -> Stored:
            assert any(r.offset == offset for r in one.records), offset
            return one.rebuilt([replace(r, **changes) if r.offset == offset else r for r in one.records])

        self.batch(offset, change)

    def drop(self, offset: int) -> None:
        """Remove one record, and leave its batch."""

        def change(one: Stored) -> Stored:
            assert any(r.offset == offset for r in one.records), offset
            return one.rebuilt([r for r in one.records if r.offset != offset])

        self.batch(offset, change)


def data(offset: int, text: str, **options: Any) -> Stored:
    """A batch of records from an offset on, such as `a=1 b=2 c` (c without a value, `=3` without a key)."""
    records = []
    for at, word in enumerate(text.split(), offset):
        key, has_value, value = word.partition("=")
        headers = (("h", b"1"), ("n", None)) if key in ("b", "w") else ()
        records.append(
            Record(at, NOW - 5000 + at, key.encode() or None, value.encode() if has_value else None, headers)
        )
    options = {"leader_epoch": 0, **options}
    return Stored.of(encode_batch(records, **options))


def marker(offset: int, producer_id: int, kind: ControlType, *, days_ago: int = 0, **options: Any) -> Stored:
    """A transaction marker."""
    timestamp = NOW - 5000 + offset - days_ago * 86_400_000
    record = Record(offset, timestamp, KEY.pack(0, kind), MARKER_VALUE.pack(0, 7))
    options = {"leader_epoch": 0, "producer_epoch": 0, **options}
    return Stored.of(encode_batch([record], producer_id=producer_id, transactional=True, control=True, **options))


def messages(offset: int, text: str, codec: Codec = Codec.NONE) -> list[Stored]:
    """The same in magic 1: a message each, or one wrapper."""
    records = [replace(one, headers=()) for one in data(offset, text).records]
    groups = [records] if codec else [[one] for one in records]
    return [Stored.of(encode_message_set(1, group, codec=codec)) for group in groups]


def example() -> State:
    """A log with one example of every case that a clean considers."""
    abort, commit = ControlType.ABORT, ControlType.COMMIT
    of_transaction: dict[str, Any] = {"producer_epoch": 0, "transactional": True}
    segments = {
        0: [
            data(0, "a=1 b=1 c=1 x=0"),
            data(4, "x y=1", delete_horizon_ms=NOW - 1000),
            data(6, "z w=1", delete_horizon_ms=NOW + 1_000_000),
            data(8, "p=1", producer_id=1, base_sequence=0, **of_transaction),
            data(9, "q=1", producer_id=2, base_sequence=0, **of_transaction),
            marker(10, 1, abort),
            data(11, "r=1", producer_id=1, base_sequence=1, **of_transaction),
            marker(12, 1, commit),
            marker(13, 2, commit),
            marker(14, 3, commit, delete_horizon_ms=NOW + 1_000_000),
            marker(15, 4, commit, days_ago=2, delete_horizon_ms=NOW - 1000),
            data(16, "e=1 f=1 g=1 h=1", producer_id=9, producer_epoch=3, base_sequence=5),
        ],
        20: [
            *messages(20, "l1=1 l2=1"),
            *messages(22, "l3=1 l4=1 l5=1", Codec.GZIP),
            data(25, "i=1 j=1 =nokey k=1", codec=Codec.ZSTD),
            data(
                29,
                "late=1",
                timestamp_type=TimestampType.LOG_APPEND_TIME,
                max_timestamp=NOW - 100,
                leader_epoch=1,
            ),
            data(30, "u v=1", leader_epoch=1),
        ],
        40: [
            data(40, "a=2 b=2 l1=2 l4=2", leader_epoch=1),
            data(44, "e=2 h=2", leader_epoch=1),
            data(46, "s=1 t=1", producer_id=9, producer_epoch=3, base_sequence=9, leader_epoch=1),
            data(48, "t=2 c=2", leader_epoch=1),
        ],
        60: [
            data(60, "a=3 s=2", leader_epoch=2),
            data(62, "open=1", producer_id=6, base_sequence=0, leader_epoch=2, **of_transaction),
        ],
    }

    def state(id: int, epoch: int, sequence: int, offset: int, delta: int, open_at: int = NONE) -> ProducerEntry:
        return ProducerEntry(id, epoch, sequence, offset, delta, NOW - 5000 + offset, 7, open_at)

    producers = [
        state(1, 0, 1, 11, 0),
        state(2, 0, 0, 9, 0),
        replace(state(3, 0, NONE, NONE, 0), timestamp=NOW - 5000 + 14),
        state(9, 3, 10, 47, 1),
        state(6, 0, 0, 62, 0, 62),
    ]
    epochs = [EpochEntry(0, 0), EpochEntry(1, 29), EpochEntry(2, 60)]
    return State(segments, {0: [AbortedTransaction(1, 8, 10, 9)]}, epochs, producers, 63)


def copy_tree(source: Path, target: Path) -> Path:
    """A copy, modification times kept."""
    return Path(shutil.copytree(source, target, copy_function=shutil.copy2))


def cleaned_example(folder: Path, spark: SparkSession) -> tuple[Path, CleanResult]:
    """The example in `before`, and the output of a correct clean in `after`, each as partition `t-0`."""
    before = example().write(folder / "before" / "t-0")
    result = cordwood.clean(
        str(folder / "before"),
        output=str(folder / "after"),
        spark=spark,
        now_ms=NOW,
        overrides=["cleanup.policy=compact", "index.interval.bytes=200", "internal.segment.bytes=300"],
        ignore_ratio=True,
        single_copy=True,
    )
    return before, result
