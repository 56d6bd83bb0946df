"""The two states of a partition that are compared, and the result of a comparison: counts, and violations by kind.

Only the first violations of each kind are named, with offset and key; all are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.proof.precedence import SURVIVOR_RULE, SurvivorRule
from cordwood.common.types import NONE, TopicPartition
from cordwood.fs.base import Store
from cordwood.fs.wrapped import Overlay
from cordwood.kernels.layout import BatchRows, RecordRows, U8Array
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView


class ViolationKind(StrEnum):
    """Kinds of violations. Each value is used in `--json`; `violations.MEANINGS` has the text."""

    INVENTED = "invented"
    TWICE = "twice"
    ORDER = "order"
    KEY = "key-changed"
    VALUE = "value-changed"
    HEADERS = "headers-changed"
    TIMESTAMP = "timestamp-changed"
    BATCH_INVENTED = "batch-invented"
    BATCH_OFFSETS = "batch-offsets-changed"
    BATCH_EPOCH = "leader-epoch-changed"
    BATCH_PRODUCER = "producer-changed"
    BATCH_ATTRIBUTES = "attributes-changed"
    BATCH_TIME = "max-timestamp-changed"
    HORIZON = "horizon-changed"
    MARKER = "marker-lost"
    UNTOUCHED = "touched-above"
    DAMAGE_BEFORE = "damage-before"
    DAMAGE_AFTER = "damage-after"
    READERS = "readers-differ"
    VALUE_LOST = "value-lost"
    TOMBSTONE_LOST = "tombstone-lost"
    CAME_BACK = "deleted-key-back"
    ABORTED_VISIBLE = "aborted-visible"
    COMMITTED_HIDDEN = "committed-hidden"
    PRODUCER_LOST = "producer-lost"
    END_OFFSET = "end-offset"
    LOG_START = "log-start"
    LEADER_EPOCHS = "leader-epochs"
    PRODUCER_STATE = "producer-state"
    INDEX = "index-or-file"
    CHECKPOINT = "checkpoint"
    PARTITION = "partition"
    TOPIC_ID = "topic-id-changed"


class Count(StrEnum):
    """Kinds of comparisons and proofs; each count is a number of records, batches, keys, producers or bytes."""

    RECORDS_BEFORE = "records_before"
    RECORDS_AFTER = "records_after"
    RECORDS_SAME = "records_same"
    RECORDS_WRITTEN = "records_written"
    BATCHES = "batches"
    BATCHES_WRITTEN = "batches_written"
    BATCHES_ABOVE = "batches_above"
    MARKERS = "markers"
    SAMPLED = "sampled"
    UNCHANGED_BYTES = "unchanged_bytes"
    KEYS_KEPT = "keys_kept"
    KEYS_DELETED = "keys_deleted"
    TRANSACTIONAL = "transactional"
    PRODUCERS = "producers"
    NOT_JUDGED = "not_judged"


@dataclass(frozen=True, slots=True)
class Side:
    """One state of a partition: where its files are. All fields can be pickled.

    Attributes:
        path: its directory, as shown to users.
        files: for each name in the directory, the path of its file; None: the files in the directory itself.
    """

    path: str
    log_start_offset: int
    files: Mapping[str, str] | None = None

    def open(self, fs: Store) -> LogView:
        """Open the log of this state."""
        seen = fs if self.files is None else Overlay(fs, self.path, self.files)
        return LogView(self.path, fs=seen, log_start_offset=self.log_start_offset)

    def file_of(self, segment: Segment) -> str:
        """Return the real path of a segment's `.log`."""
        name = segment.files.log.name
        return f"{self.path}/{name}" if self.files is None else self.files[name]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two states of a partition, and the limits of the changes that a clean between them may make.

    Attributes:
        topic_partition: None if the directory's name is not a partition's.
        first_uncleanable: no record from this offset on may have changed. None: the base offset of the last segment
            that starts at or below the active segment's base offset, the last stable offset and `high_watermark`.
        superseding_end: records below this offset supersede older ones; None: records below `first_uncleanable`. It is
            higher than `first_uncleanable` for one wave of a clean: the wave may remove a record if a later wave, which
            has not changed its segments yet, holds a newer record of its key.
        high_watermark: None: the log's end.
        now_ms: the time of the change, or any later time.
        deletes_for_good: tombstones and markers may be removed once their delete horizon has passed.
        held: ranges of offsets, [start, end), in ascending order, whose tombstones and markers may not be removed.
        legacy_horizon_ms: tombstones of magic 0 and 1 may be removed from segments last modified at or before this
            time.
        new_horizon_ms: the delete horizon that the change sets. None: unknown, but not earlier than
            `delete_retention_ms` after the segment's last write or after `now_ms`, whichever is earlier.
        delete_retention_ms: `delete.retention.ms` of the topic; 0 if unknown.
        times_known: the segments' modification times are the times of their last writes. If not, facts that depend on
            them are counted as not judged.
        retention: segments at the start of the log may be removed.
        producer_expiration_ms: producers that have been inactive for this long may be forgotten.
        survivor: the keep rule.
        witnesses: read unchanged files only as far as the removed records need them, see `witnesses`.
        first_dirty: records from this offset on probably supersede the removed ones; a hint for what to read first.
        written: base offsets of segments of the state after: their offset and time indexes are compared with their
            batches, and their batches and records are counted.
    """

    topic_partition: TopicPartition | None
    before: Side
    after: Side
    first_uncleanable: int | None = None
    superseding_end: int | None = None
    high_watermark: int | None = None
    now_ms: int = 0
    deletes_for_good: bool = True
    held: tuple[tuple[int, int], ...] = ()
    legacy_horizon_ms: int | None = None
    new_horizon_ms: int | None = None
    delete_retention_ms: int = 0
    times_known: bool = True
    retention: bool = False
    producer_expiration_ms: int = 86_400_000
    survivor: SurvivorRule = SURVIVOR_RULE
    witnesses: bool = False
    first_dirty: int = 0
    written: frozenset[int] = frozenset()

    @property
    def lowest(self) -> int:
        """The lowest offset that is compared."""
        moved = self.after.log_start_offset if self.retention else 0
        return max(self.before.log_start_offset, moved)


# ---- facts -----------------------------------------------------------------------------------------------------------

#: Number of violations of one kind that are named per partition; all are counted.
NAMED_MAX = 20

BoolArray = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some records of one state, in ascending order of offsets.

    Attributes:
        data, rows, batches: as in `RecordColumns`.
        mtime_ms: time of the last modification of their segment.
    """

    data: U8Array
    rows: RecordRows
    batches: BatchRows
    mtime_ms: int

    def part(self, start: int, end: int) -> Piece:
        """Return the records of an index range."""
        return Piece(self.data, self.rows[start:end], self.batches, self.mtime_ms)


@dataclass(slots=True)
class Facts:
    """Facts of a part of a pair: counts, and up to `NAMED_MAX` named violations of each kind.

    Attributes:
        named: offset and key of violations, by kind.
        deleted_max: offset of the newest removed tombstone that was its key's last record; NONE without one.
    """

    counts: dict[str, int] = field(default_factory=dict)
    named: dict[ViolationKind, list[tuple[int, bytes | None]]] = field(default_factory=dict)
    deleted_max: int = NONE

    def count(self, what: str, number: int) -> None:
        """Add to a count."""
        if number:
            self.counts[what] = self.counts.get(what, 0) + int(number)

    def broken(self, what: ViolationKind, offset: int, key: bytes | None = None) -> None:
        """Report one violation."""
        self.count(what, 1)
        named = self.named.setdefault(what, [])
        if len(named) < NAMED_MAX:
            named.append((offset, key))

    def broken_at(self, what: ViolationKind, offsets: Int64Array) -> None:
        """Report a violation at each offset; the lowest are named."""
        for offset in np.sort(offsets)[:NAMED_MAX].tolist():
            self.broken(what, offset)
        self.count(what, max(offsets.size - NAMED_MAX, 0))

    def broken_batches(self, what: ViolationKind, batches: BatchRows, bad: BoolArray) -> None:
        """Report a violation for each batch where `bad`, bool[batches], is set."""
        if bad.any():
            rows = batches[bad]
            self.broken_at(what, np.where(rows["base_offset"] >= 0, rows["base_offset"], rows["last_offset"]))

    def broken_records(self, what: ViolationKind, piece: Piece, bad: BoolArray) -> None:
        """Report a violation for each record where `bad`, bool[records], is set."""
        rows = piece.rows[bad]
        for row in rows[:NAMED_MAX]:
            start, size = int(row["key_start"]), int(row["key_size"])
            key = piece.data[start : start + size].tobytes() if size >= 0 else None
            self.broken(what, int(row["offset"]), key)
        self.count(what, max(rows.size - NAMED_MAX, 0))

    def violations(self) -> Facts:
        """Return the violations alone."""
        return Facts({kind: self.counts[kind] for kind in ViolationKind if kind in self.counts}, self.named)

    def add(self, other: Facts) -> None:
        """Add the facts of another part."""
        for what, number in other.counts.items():
            self.count(what, number)
        for kind, named in other.named.items():
            self.named.setdefault(kind, []).extend(named)
        self.deleted_max = max(self.deleted_max, other.deleted_max)
