"""The two states of a partition that are compared, and the kinds of violations and counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from cordwood.common.types import TopicPartition
from cordwood.fs.base import Store
from cordwood.fs.overlay import Overlay
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
    BATCHES = "batches"
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
        legacy_horizon_ms: tombstones of magic 0 and 1 may be removed from segments last modified at or before this
            time.
        new_horizon_ms: the delete horizon that the change sets. None: unknown, but not earlier than
            `delete_retention_ms` after the segment's last write or after `now_ms`, whichever is earlier.
        delete_retention_ms: `delete.retention.ms` of the topic; 0 if unknown.
        times_known: the segments' modification times are the times of their last writes. If not, facts that depend on
            them are counted as not judged.
        retention: segments at the start of the log may be removed.
        producer_expiration_ms: producers that have been inactive for this long may be forgotten.
    """

    topic_partition: TopicPartition | None
    before: Side
    after: Side
    first_uncleanable: int | None = None
    superseding_end: int | None = None
    high_watermark: int | None = None
    now_ms: int = 0
    deletes_for_good: bool = True
    legacy_horizon_ms: int | None = None
    new_horizon_ms: int | None = None
    delete_retention_ms: int = 0
    times_known: bool = True
    retention: bool = False
    producer_expiration_ms: int = 86_400_000

    @property
    def lowest(self) -> int:
        """The lowest offset that is compared."""
        moved = self.after.log_start_offset if self.retention else 0
        return max(self.before.log_start_offset, moved)
