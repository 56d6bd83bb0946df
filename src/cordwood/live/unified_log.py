"""The live log of one partition as Kafka has it: append, read, roll, flush, retain, truncate.

One lock guards all changes. Reads take no lock. The calls have the names of Kafka's UnifiedLog, and fail with its
errors (`LogError`); an I/O error takes the log directory offline.

Source: Kafka UnifiedLog.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum

from cordwood.cleaning.rules.retention import RETENTION_RULES, RetentionRule
from cordwood.common.arguments import check_number, check_whole, shown
from cordwood.common.config import LONG_MAX, TopicConfig
from cordwood.common.errors import (
    IllegalArgumentError,
    KafkaStorageError,
    LogError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    RecordBatchTooLargeError,
)
from cordwood.common.types import NONE, Codec
from cordwood.fs.base import Bytes
from cordwood.fs.workspace import remove_tree
from cordwood.live import reading
from cordwood.live.appending import Append, AppendInfo, check_producers
from cordwood.live.environment import LogConfig, LogEnvironment
from cordwood.live.loading import LogParts, rebuild_producer_state
from cordwood.live.local_log import FetchData, LocalLog
from cordwood.live.metrics import Removal, Removals
from cordwood.live.partition_files import LeaderEpochCache, TopicIdFile
from cordwood.live.producer_state import (
    NO_GUARD,
    UNKNOWN_VERSION,
    AppendOrigin,
    ProducerAppend,
    ProducerState,
)
from cordwood.live.reading import Watermarks
from cordwood.live.remote_tail import RemoteTail
from cordwood.live.scheduler import Scheduled
from cordwood.live.segment import LogSegment, SegmentGoneError
from cordwood.live.segments import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    RecordAtTime,
    first_record_since,
    newest_record,
)
from cordwood.live.validation import assign_plain, encode_plain
from cordwood.record.batch import Batch
from cordwood.record.record import Record
from cordwood.storage.changes.copy import Replacement
from cordwood.storage.formats.producer_state import ProducerRows
from cordwood.storage.formats.transaction_index import AbortedTransaction
from cordwood.storage.recovery.replay import CompletedTransaction

_log = logging.getLogger(__name__)
_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1


class FetchIsolation(Enum):
    """The upper bound of a read."""

    LOG_END = "log_end"
    HIGH_WATERMARK = "high_watermark"
    TXN_COMMITTED = "txn_committed"


class UnifiedLog:
    """The log of one partition.

    Its state, by the lock that guards it:

        the lock of the log     producers and their snapshots, leader epochs, segments, log end, recovery point
        locks of their own      watermarks, topic id, the file of the leader epochs
        no lock                 `retention_size_percent`, `deletes_for_good`: one thread sets them

    Readers take no lock. They use values that are replaced as a whole: watermarks, segments, log end.

    Attributes:
        retention_size_percent: `RetentionSizeInPercent`, as of the last retention run.
        deletes_for_good: whether a clean removes expired tombstones and markers. Another replica that has not yet seen
            such a delete could bring its key back.
        appended_bytes, deleted_bytes: bytes appended, and bytes of deleted old segments, since the log was loaded. Only
            the lock's holder adds to them.
        truncations: number of truncations at the end since the log was loaded. Only the lock's holder adds to it.
        before_truncation: called under the lock before a truncation, with its offset; 0 if it removes all records.
        remote: the segments in the tier; None for a log that is not tiered, or not opened in its tier yet.
    """

    def __init__(self, local: LocalLog, loaded: LogParts, environment: LogEnvironment, topic_id: TopicIdFile) -> None:
        self._local = local
        self._topic_id = topic_id
        self._stats = environment.stats
        self.retention_size_percent = 0
        self.deletes_for_good = True
        self.appended_bytes = self.deleted_bytes = self.truncations = 0
        self._removals = Removals(environment.stats, local.topic_partition)
        self.before_truncation: Callable[[int], object] = lambda _: None
        self.remote: RemoteTail | None = None
        self._has_tier = environment.has_tier
        #: The producers of open `transaction` blocks.
        self.producers_in_use: set[int] = set()
        self._lock = threading.RLock()
        self._limits = limits = environment.limits
        self._snapshots = loaded.snapshots
        self._producers = loaded.snapshots.state
        self._epochs = loaded.epochs
        self._watermarks = Watermarks(local, loaded.log_start_offset)
        self._expiry: Scheduled = local.scheduler.schedule(
            "PeriodicProducerExpirationCheck",
            lambda: self.remove_expired_producers(local.clock()),
            delay_ms=limits.expiration_check_interval_ms,
            period_ms=limits.expiration_check_interval_ms,
        )
        with self._lock:
            self._update_first_unstable()
        for one in loaded.lost:
            where = one.start_offset, one.end_offset, one.segments, one.size_bytes
            self._removals.report(Removal.RECOVERY, f"the load of the log, {one.why}", *where)

    def __repr__(self) -> str:
        return f"Log({self._local.directory!r}, {self.log_start_offset} to {self.log_end_offset})"

    # ---- properties --------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Topic and partition."""
        return self._local.name

    @property
    def topic_id(self) -> uuid.UUID | None:
        """The id of the topic; None if the log has no topic id."""
        return self._topic_id.topic_id

    @property
    def directory(self) -> str:
        """The partition's directory."""
        return self._local.directory

    @property
    def parent_directory(self) -> str:
        """The log directory of the partition's directory."""
        return self._local.log_directory

    @property
    def config(self) -> LogConfig:
        """The topic's current configs."""
        return self._local.config

    @property
    def log_start_offset(self) -> int:
        """The lowest offset that a consumer can read."""
        return self._watermarks.now.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """Offset of the next record."""
        return self._local.log_end_offset

    @property
    def high_watermark(self) -> int:
        """All in-sync replicas have the records below this offset."""
        return self._watermarks.now.high_watermark

    @property
    def first_unstable_offset(self) -> int | None:
        """The start of the earliest transaction that is open, or whose marker is not replicated."""
        return self._watermarks.now.first_unstable_offset

    @property
    def last_stable_offset(self) -> int:
        """All transactions below this offset are decided; a reader of committed records stops here."""
        return self._watermarks.now.last_stable_offset

    @property
    def recovery_point(self) -> int:
        """All records below this offset are on disk."""
        return self._local.recovery_point

    @property
    def last_flush_ms(self) -> int:
        """Time of the last change of the recovery point."""
        return self._local.last_flush_ms

    @property
    def size_bytes(self) -> int:
        """Size of all batches."""
        return self._local.segments.size_bytes

    @property
    def removed_bytes(self) -> Mapping[Removal, int]:
        """Bytes removed since the log was loaded, by reason."""
        return self._removals.size_bytes

    @property
    def log_segments(self) -> tuple[LogSegment, ...]:
        """All segments, ascending."""
        return self._local.segments.all

    @property
    def active_segment(self) -> LogSegment:
        """The segment that gets the appends."""
        return self._local.segments.active

    @property
    def leader_epochs(self) -> LeaderEpochCache:
        """Which leader wrote which offsets."""
        return self._epochs

    @property
    def producers(self) -> ProducerState:
        """The state of all producers."""
        return self._producers

    def assign_topic_id(self, topic_id: uuid.UUID) -> None:
        """Set the topic of the log; `partition.metadata` is written soon, or by the next append.

        Raises:
            InconsistentTopicIdError: the log belongs to another topic.
        """
        if not isinstance(topic_id, uuid.UUID):
            raise TypeError(f"topic_id is a uuid.UUID, not {shown(topic_id)}")
        self._topic_id.assign(topic_id)
        if self._topic_id.is_pending:
            self._local.scheduler.schedule("flush-metadata-file", self._maybe_flush_metadata_file)

    def _maybe_flush_metadata_file(self) -> None:
        if self._topic_id.is_pending:
            with self._local.guarded("flushing partition.metadata"):
                self._topic_id.maybe_flush()

    def flush_topic_id(self) -> None:
        """Write `partition.metadata`, if that has to be done."""
        self._maybe_flush_metadata_file()

    def use_remote(self, remote: RemoteTail, log_start_offset: int) -> None:
        """Read the segments in the tier, too, from a log start offset on that may be below the first local segment."""
        with self._lock:
            self.remote = remote
            self._watermarks.set_log_start_offset(log_start_offset)
            if self.high_watermark < log_start_offset:
                self._set_high_watermark(log_start_offset)

    @property
    def is_partial(self) -> bool:
        """Whether a part of the log may be in a tier that is not open, so that no clean would see all keys."""
        return self.remote is None and self.config.tiered

    @property
    def _waits_for_tier(self) -> bool:
        """Whether the log is tiered, but not open in its tier yet: nothing of it may be deleted."""
        return self._has_tier and self.is_partial

    def update_config(self, config: TopicConfig) -> None:
        """Use these configs from now on."""
        with self._lock:
            self._local.config = LogConfig.of(config)

    def read_committed(self, start: int, max_bytes: int) -> FetchData:
        """Read batches up to the last stable offset, with the aborted transactions among them."""
        return self.read(start, max_bytes, FetchIsolation.TXN_COMMITTED)

    @property
    def asks_for_verification(self) -> bool:
        """Whether an append that opens a transaction needs a guard."""
        return self._limits.transaction_verification

    def now_ms(self) -> int:
        """Return the time of the log's clock."""
        return self._local.clock()

    # ---- appending ---------------------------------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: Bytes,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        *,
        guard: int = NO_GUARD,
        transaction_version: int = 0,
        magic: int = 2,
    ) -> AppendInfo:
        """Check batches, assign offsets, append them.

        Args:
            guard: from `maybe_start_transaction_verification`.
            magic: format of the log; only tests of old logs pass a value other than 2.

        Raises:
            LogError: the log refuses the batches; the error's class is the reason, see the table of errors in the
                documentation.
        """
        assigned = None if origin is AppendOrigin.RAFT_LEADER else magic
        return self._append(records, origin, leader_epoch, assigned, guard, transaction_version)

    def append_record(self, record: Record) -> int | None:
        """Append a record without a producer as a batch of its own, and commit it.

        The batch is encoded with its final offset, so it needs no decoding or change.

        Returns:
            the record's offset; None if the batch needs changes or further checks; then nothing was appended.

        Raises:
            LogError: as `append_as_leader`.
        """
        reading.begin_append(None)
        try:
            if self._topic_id.is_pending:
                self._maybe_flush_metadata_file()
            local = self._local
            with self._lock:
                with local.appending:
                    local.check_open()
                    end, config, leader_epoch = local.end.offset, local.config, self._epochs.latest_epoch or 0
                    plain = encode_plain(record, config, end, leader_epoch, local.clock())
                    if plain is None or len(plain[0]) > config.segment_bytes:
                        return None
                    data, batch = plain
                    info = AppendInfo(end, end, record.timestamp)
                    self._append_placed(data, [batch], info, AppendOrigin.CLIENT, NO_GUARD, 0)
                self.commit_all()
                return end
        finally:
            reading.end_append()

    def append_as_follower(self, records: Bytes, leader_epoch: int) -> AppendInfo:
        """Append batches with the offsets that their leader assigned.

        Args:
            leader_epoch: leader epoch of the replica; batches of a later leader are left out.

        Raises:
            OffsetsOutOfOrderError, UnexpectedAppendOffsetError, CorruptRecordError, LogError: the log refuses the
                batches.
        """
        return self._append(records, AppendOrigin.REPLICATION, leader_epoch, None, NO_GUARD, UNKNOWN_VERSION)

    def _append(
        self,
        records: Bytes,
        origin: AppendOrigin,
        leader_epoch: int,
        magic: int | None,
        guard: int,
        transaction_version: int,
    ) -> AppendInfo:
        check_number("leader_epoch", leader_epoch, _INT_MIN, _INT_MAX)
        reading.begin_append(None)
        try:
            if self._topic_id.is_pending:
                self._maybe_flush_metadata_file()
            data = bytearray(memoryview(records))
            size_bytes = len(data)
            try:
                if origin is AppendOrigin.CLIENT and magic == 2:
                    plain = self._append_plain(data, leader_epoch, guard, transaction_version)
                    if plain is not None:
                        return plain
                append = Append(self.name, origin, leader_epoch, self.config, magic)
                return self._append_checked(append, data, guard, transaction_version)
            except LogError as error:
                self._stats.refused(self._local.topic_partition.topic, error, size_bytes)
                raise
        finally:
            reading.end_append()

    def _append_plain(
        self, data: bytearray, leader_epoch: int, guard: int, transaction_version: int
    ) -> AppendInfo | None:
        """Append a client's single batch that needs only its offsets; return None for any other data.

        Most appends are of this kind, and small, so this skips all other work.
        """
        local = self._local
        with self._lock, local.appending:
            local.check_open()
            end = local.end.offset
            plain = assign_plain(data, local.config, end, leader_epoch, local.clock())
            if plain is None:
                return None
            batch, sent_leader_epoch = plain
            _, size_bytes, _, last_offset, _, max_timestamp, *_ = batch
            info = AppendInfo(
                *(end, last_offset, max_timestamp, NONE, self._watermarks.now.log_start_offset, sent_leader_epoch),
                *(Codec.NONE, size_bytes, last_offset - end),
            )
            return self._append_placed(data, [batch], info, AppendOrigin.CLIENT, guard, transaction_version)

    def _append_checked(self, append: Append, data: bytearray, guard: int, transaction_version: int) -> AppendInfo:
        """Append batches of any kind."""
        info, batches = append.analyse(data, self.log_start_offset)
        if not batches:
            return info
        del data[info.valid_bytes :]
        local = self._local
        with self._lock, local.appending:
            local.check_open()
            data, batches, info = append.place(data, batches, info, local.log_end_offset, local.clock())
            return self._append_placed(data, batches, info, append.origin, guard, transaction_version)

    def _append_placed(
        self,
        data: bytearray,
        batches: list[Batch],
        info: AppendInfo,
        origin: AppendOrigin,
        guard: int,
        transaction_version: int,
    ) -> AppendInfo:
        """Append batches that have their final offsets; the caller holds the lock."""
        local = self._local
        if info.last_offset >= LONG_MAX:
            raise IllegalArgumentError(f"The log end offset of partition {self.name} would be above {LONG_MAX}")
        for batch in batches:
            if batch.magic == 2:
                self._epochs.assign(batch.leader_epoch, batch.base_offset)
            elif self._epochs.entries:
                self._epochs.clear()
        if len(data) > local.config.segment_bytes:
            raise RecordBatchTooLargeError(
                f"Message batch size is {len(data)} bytes in append to partition {self.name}, which exceeds the "
                f"maximum configured segment size of {local.config.segment_bytes}."
            )
        if local.must_roll(len(data), info.max_timestamp, info.last_offset):
            # The header of a message set of magic 0 or 1 has no base offset.
            self.roll(info.first_offset if info.first_offset != NONE else info.last_offset - _INT_MAX)
        duplicate, appends, completed = check_producers(
            self._producers, data, batches, origin, guard, transaction_version, name=self.name
        )
        if duplicate is not None:
            return info._replace(
                first_offset=duplicate.first_offset,
                last_offset=duplicate.last_offset,
                append_time=duplicate.timestamp,
                log_start_offset=self.log_start_offset,
                is_duplicate=True,
            )
        segment, end = local.segments.active, info.last_offset + 1
        segment.append(info.last_offset, data, batches)
        self.appended_bytes += len(data)
        local.move_end(end)
        if self._watermarks.now.high_watermark >= end:
            self._set_high_watermark(end)
        self._finish_append(segment, appends, completed)
        if end - local.recovery_point >= local.config.flush_messages:
            self.flush()
        return info

    def _finish_append(
        self, segment: LogSegment, appends: dict[int, ProducerAppend], completed: Sequence[CompletedTransaction]
    ) -> None:
        state = self._producers
        for append in appends.values():
            state.update(append)
        for done in completed:
            aborted = state.complete(done)
            if aborted is not None:
                segment.transactions.append(aborted)
        state.end_offset = self._local.log_end_offset
        if appends:
            self._update_first_unstable()

    def maybe_start_transaction_verification(
        self, producer_id: int, sequence: int, epoch: int, *, supports_epoch_bump: bool
    ) -> int:
        """Return a guard for the append that opens a transaction; before that append, the caller asks the coordinator.

        Raises:
            InvalidProducerEpochError: the epoch is below the producer's.
        """
        with self._lock:
            return self._producers.start_verification(
                producer_id, sequence, epoch, self._local.clock(), supports_epoch_bump=supports_epoch_bump
            )

    # ---- rolling and flushing ----------------------------------------------------------------------------------------

    def roll(self, expected_next_offset: int = 0) -> LogSegment:
        """Begin a new segment; the old one is flushed in the background."""
        local = self._local
        with self._lock, local.guarded("rolling log segment"):
            segment = local.roll(expected_next_offset)
            # Taken at the new base offset, so that recovery of the new segment can begin with this snapshot.
            self._producers.end_offset = segment.base_offset
            snapshot = self._snapshots.take(sync=False)
            if self.high_watermark >= local.log_end_offset:
                self._set_high_watermark(local.log_end_offset)
            local.scheduler.schedule("flush-log", lambda: self._flush_rolled(segment.base_offset, snapshot))
            return segment

    def go_on_at(self, offset: int) -> None:
        """Let the next record be at an offset above the log end; the offsets in between stay unused."""
        local = self._local
        with self._lock, local.guarded("rolling"):
            if offset > local.log_end_offset:
                self.roll(offset)
                local.move_end(offset)

    def _flush_rolled(self, base_offset: int, snapshot: str | None) -> None:
        local = self._local
        if snapshot is not None:
            with local.guarded(f"flushing producer state snapshot {snapshot}"):
                try:
                    with local.fs.open(snapshot) as file:
                        file.sync()
                except FileNotFoundError:
                    pass  # deleted meanwhile
        try:
            self._flush_to(base_offset, base_offset)
        except KafkaStorageError:
            if not local.is_closed:  # otherwise the log was deleted or has moved meanwhile
                raise

    def flush(self, *, force_active_segment: bool = False) -> None:
        """Make the log durable; an empty active segment only with `force_active_segment`."""
        end = self._local.log_end_offset
        self._flush_to(end + 1 if force_active_segment else end, end)

    def _flush_to(self, offset: int, recovery_point: int) -> None:
        local = self._local
        with local.guarded("flushing log"):
            while offset > local.recovery_point:
                with self._lock:  # waits for a truncation that is already counted but not finished
                    truncations = self.truncations
                local.flush(offset)
                with self._lock:
                    # Records that were appended after a truncation meanwhile may not be on disk.
                    if self.truncations == truncations:
                        local.mark_flushed(recovery_point)
                        return
                    recovery_point = min(recovery_point, local.log_end_offset)
                    offset = min(offset, local.log_end_offset)

    # ---- offsets -----------------------------------------------------------------------------------------------------

    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark, limited to log start and log end; return it."""
        check_whole("offset", offset)
        with self._lock:
            start = self.log_start_offset
            # As in Kafka, a high watermark that was raised to the log start is looked up, even if it is the log end.
            self._set_high_watermark(min(max(offset, start), self._local.log_end_offset), is_placed=offset >= start)
            return self.high_watermark

    def commit_all(self) -> None:
        """Raise the high watermark to the log end."""
        with self._lock:
            self._raise_high_watermark(self._local.end.offset)

    def maybe_increment_high_watermark(self, offset: int) -> int | None:
        """Raise the high watermark; return the old one, or None if it is not lower.

        Raises:
            IllegalArgumentError: the offset is above the log end.
        """
        check_whole("offset", offset)
        with self._lock:
            if offset > self._local.log_end_offset:
                raise IllegalArgumentError(
                    f"High watermark {offset} update exceeds current log end offset {self._local.log_end_offset}"
                )
            return self._raise_high_watermark(offset)

    def _raise_high_watermark(self, offset: int) -> int | None:
        old = self._watermarks.now.high_watermark
        if offset <= old:
            return None
        self._set_high_watermark(offset)
        return old

    def _set_high_watermark(self, offset: int, *, is_placed: bool = True) -> None:
        self._watermarks.set_high_watermark(offset, is_placed=is_placed)
        self._producers.on_high_watermark(offset)
        self._update_first_unstable()

    def _update_first_unstable(self) -> None:
        unstable = self._producers.first_unstable()
        if unstable is None:
            self._watermarks.set_first_unstable_offset(None)
            return
        offset, is_placed = unstable
        if not is_placed or offset < self.log_start_offset:
            # It must be the first offset of a batch: readers stop between batches.
            offset = self._local.base_of_batch(max(offset, self.log_start_offset))
        self._watermarks.set_first_unstable_offset(offset)

    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """Raise the log start offset; return whether it was lower.

        Raises:
            OffsetOutOfRangeError: the offset is above the high watermark.
        """
        check_whole("offset", offset)
        local = self._local
        with (
            self._lock,
            local.guarded("increasing log start offset"),
        ):
            if offset > self.high_watermark:
                raise OffsetOutOfRangeError(
                    f"Cannot increment the log start offset to {offset} of partition {self.name} since it is larger "
                    f"than the high watermark {self.high_watermark}"
                )
            local.check_open()
            if offset <= self.log_start_offset:
                return False
            self._watermarks.set_log_start_offset(offset)
            if self.high_watermark < offset:
                self._set_high_watermark(offset)
            local.recovery_point = max(local.recovery_point, offset)
            self._epochs.truncate_from_start(offset)
            self._snapshots.on_log_start(offset)
            self._update_first_unstable()
            return True

    def delete_records(self, offset: int) -> int:
        """Delete the records below an offset; -1: below the high watermark. Return the log start offset.

        Raises:
            PolicyViolationError: the topic's policy is `compact` without `delete`.
            OffsetOutOfRangeError: the offset is negative, or above the high watermark.
        """
        if self.config.compact and not self.config.delete:
            raise PolicyViolationError(
                f"Records of partition {self.name} can not be deleted due to the configured policy"
            )
        check_whole("offset", offset)
        offset = self.high_watermark if offset == NONE else offset
        if offset < 0:
            raise OffsetOutOfRangeError(f"The offset {offset} for partition {self.name} is not valid")
        if self.maybe_increment_log_start_offset(offset):
            _log.info("the records of %s below offset %d were deleted by delete_records", self.name, offset)
        return self.log_start_offset

    # ---- leader epochs -----------------------------------------------------------------------------------------------

    def assign_epoch_start_offset(self, epoch: int, start_offset: int) -> None:
        """Note that a leader writes from an offset on.

        Raises:
            TypeError, ValueError: the epoch or the offset is not a valid number; nothing has changed.
            IllegalArgumentError: the epoch or the offset is negative.
        """
        check_number("epoch", epoch, _INT_MIN, _INT_MAX)
        check_number("start_offset", start_offset, -LONG_MAX - 1, LONG_MAX)
        local = self._local
        with self._lock, local.guarded("assigning a leader epoch"):
            local.check_open()
            self._epochs.assign(epoch, start_offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the (epoch, offset) at which an epoch ended; see `LeaderEpochCache.end_offset_for`."""
        return self._epochs.end_offset_for(epoch, self.log_end_offset)

    # ---- reading -----------------------------------------------------------------------------------------------------

    def read(
        self,
        start_offset: int,
        max_bytes: int,
        isolation: FetchIsolation = FetchIsolation.HIGH_WATERMARK,
        *,
        min_one_message: bool = True,
    ) -> FetchData:
        """Read batches from an offset on.

        Args:
            start_offset: offset of the first requested record; its whole batch is returned.
            max_bytes: largest size to return; the last batch may be cut off.
            isolation: upper bound of the read; with TXN_COMMITTED the aborted transactions are returned, too.
            min_one_message: return the first batch even if it is larger.

        Raises:
            OffsetOutOfRangeError: the offset is below the log start or above the log end.
            IllegalArgumentError: `max_bytes` is negative.
        """
        check_whole("start_offset", start_offset)
        if not isinstance(isolation, FetchIsolation):
            raise TypeError(f"isolation is one of {', '.join(map(str, FetchIsolation))}, not {shown(isolation)}")
        reading.give_way()
        local = self._local
        with local.guarded("reading"):
            if start_offset < self.log_start_offset:
                raise OffsetOutOfRangeError(
                    f"Received request for offset {start_offset} for partition {self.name}, but we only have log "
                    f"segments starting from offset: {self.log_start_offset}."
                )
            while True:
                segments = local.segments.all
                if start_offset < segments[0].base_offset and (self.remote is not None or self._waits_for_tier):
                    break
                with contextlib.suppress(SegmentGoneError):
                    data = self._read(start_offset, max_bytes, isolation, min_one_message)
                    # If the segments changed meanwhile, the bound and the read may refer to different segments.
                    if local.segments.all is segments:
                        return data
        if (remote := self.remote) is None:
            raise KafkaStorageError(f"{self.name} is not open in its tier yet, which has offset {start_offset}")
        found = remote.read(
            start_offset,
            max_bytes,
            min_one_message=min_one_message,
            collect_local=self._collect_aborted if isolation is FetchIsolation.TXN_COMMITTED else None,
        )
        if found is not None:
            return found
        # A clean has removed the last records below the first local segment.
        return self.read(segments[0].base_offset, max_bytes, isolation, min_one_message=min_one_message)

    def _collect_aborted(self, start: int, end: int, found: list[AbortedTransaction]) -> None:
        """Add the aborted transactions that overlap offsets [start, end), from the segments on the disk."""
        while True:
            own: list[AbortedTransaction] = []
            with contextlib.suppress(SegmentGoneError):
                for segment in self._local.segments.all:
                    if segment.transactions.collect(start, end, own):
                        break
                found += own
                return

    def _read(self, start_offset: int, max_bytes: int, isolation: FetchIsolation, min_one_message: bool) -> FetchData:
        committed = isolation is FetchIsolation.TXN_COMMITTED
        at_end = isolation is FetchIsolation.LOG_END
        bound = self._local.end if at_end else self._watermarks.bound(committed=committed)
        return self._local.read(start_offset, max_bytes, bound, min_one_message=min_one_message, with_aborted=committed)

    def fetch_offset_by_timestamp(self, timestamp: int) -> RecordAtTime | None:
        """Return the first record with this timestamp or a later one; None without such a record.

        LATEST and EARLIEST return the log end and the log start offset, without a timestamp; MAX_TIMESTAMP returns the
        record with the largest timestamp.
        """
        check_whole("timestamp", timestamp)
        local = self._local
        with local.guarded("fetching offset by timestamp"):
            remote = self.remote
            if timestamp == EARLIEST_LOCAL and remote is not None:
                return RecordAtTime(max(self.log_start_offset, local.segments.first.base_offset))
            if timestamp in (EARLIEST, EARLIEST_LOCAL):
                first = self._epochs.entries[:1]
                known = bool(first) and first[0].start_offset <= self.log_start_offset
                return RecordAtTime(self.log_start_offset, leader_epoch=first[0].epoch if known else None)
            if timestamp == LATEST:
                return RecordAtTime(self.log_end_offset, leader_epoch=self._epochs.latest_epoch)
            if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
                if remote is None:
                    return RecordAtTime(NONE, leader_epoch=NONE)
                return RecordAtTime(remote.copied_end - (timestamp == LATEST_TIERED))
        if remote is not None and timestamp >= 0:
            local_start = local.segments.first.base_offset
            record, is_final = remote.first_since(timestamp, self.log_start_offset, local_start)
            if is_final:
                return record
        with local.guarded("fetching offset by timestamp"):
            while True:
                with contextlib.suppress(SegmentGoneError):
                    if timestamp == MAX_TIMESTAMP:
                        return newest_record(local.segments.all)
                    return first_record_since(local.segments.all, timestamp, self.log_start_offset)

    # ---- retention ---------------------------------------------------------------------------------------------------

    def delete_old_segments(self) -> int:
        """Delete segments below the log start or beyond `retention.bytes` or `retention.ms`; return their number."""
        config = self.config
        if self._waits_for_tier:
            return 0
        try:
            with self._lock:  # otherwise two calls at once would each delete the excess
                now_ms = self._local.clock()
                rules = [rule for rule in RETENTION_RULES if config.delete or not rule.policy or config.tiered]
                return sum(self._delete_by(rule, config, now_ms) for rule in rules)
        finally:
            limit = config.retention_bytes
            self.retention_size_percent = self.size_bytes * 100 // limit if limit > 0 else 0

    def _delete_by(self, rule: RetentionRule, config: LogConfig, now_ms: int) -> int:
        """Delete the segments that a rule of retention deletes; return their number."""
        match why := Removal(rule.name):
            case Removal.RETENTION_BYTES:
                limit = config.retention_bytes if self.remote is None else config.local_retention_bytes
                words = f"{rule.name}={limit}, as the log had {self.size_bytes} bytes"
            case Removal.RETENTION_MS:
                limit = config.retention_ms if self.remote is None else config.local_retention_ms
                words = f"{rule.name}={limit}, as their records were older"
            case Removal.LOG_START_OFFSET:
                limit = self.log_start_offset
                words = f"below the log start offset {limit}"
            case _:
                raise AssertionError(f"{why} is no rule of retention")
        with self._lock, self._local.guarded("deleting segments"):
            segments, end = self._local.segments.all, self.log_end_offset
            deletable = rule.deletable(segments, limit, now_ms, end, self.high_watermark)
            if deletable and self.remote is not None:
                deletable = self._copied(deletable, self.remote.copied_end)
            if deletable:
                self._delete(deletable, why, words)
            return len(deletable)

    def _copied(self, segments: Sequence[LogSegment], copied_end: int) -> Sequence[LogSegment]:
        """Return the first segments that are in the tier; roll the active one if it is due, so that it is copied."""
        if segments[-1] is self._local.segments.active and segments[-1].size_bytes:
            self.roll()
        bases = [segment.base_offset for segment in self._local.segments.all[1 : len(segments) + 1]]
        # A segment below the log start needs no copy.
        end = max(copied_end, self.log_start_offset)
        return segments[: sum(base <= end for base in bases)]

    def _delete(self, deletable: Sequence[LogSegment], why: Removal, words: str) -> None:
        local = self._local
        removed = list(deletable)
        if len(local.segments) == len(deletable) and deletable[-1].base_offset == self.roll().base_offset:
            removed.pop()  # the roll has already replaced it
        local.check_open()
        if removed:
            following = local.segments.higher(removed[-1].base_offset)
            assert following is not None, "there is always an active segment"
            if self.remote is None:
                self.maybe_increment_log_start_offset(following.base_offset)
            size_bytes = sum(segment.size_bytes for segment in removed)
            self.deleted_bytes += size_bytes
            local.remove(removed)
            self._delete_snapshots(deletable)
            self._removals.report(why, words, removed[0].base_offset, following.base_offset, len(removed), size_bytes)

    def note_deleted(self) -> None:
        """Report the deletion of the whole log."""
        offsets = self.log_start_offset, self.log_end_offset
        words = "the deletion of the partition; its files go later"
        self._removals.report(Removal.PARTITION_DELETION, words, *offsets, len(self._local.segments), self.size_bytes)

    def _delete_snapshots(self, segments: Sequence[LogSegment]) -> None:
        """Schedule the removal of removed segments' producer snapshots."""
        local = self._local
        paths = [self._snapshots.mark_deleted(segment.base_offset) for segment in segments]
        marked = [path.rpartition("/")[2] for path in paths if path is not None]

        def delete() -> None:
            for name in marked:
                path = f"{local.directory}/{name}"
                with local.guarded(f"deleting producer snapshot {path}"), contextlib.suppress(FileNotFoundError):
                    local.fs.unlink(path)

        if marked:
            delay = local.config.file_delete_delay_ms
            local.scheduler.schedule("delete-producer-snapshot", delete, delay_ms=delay)

    # ---- cleaning ----------------------------------------------------------------------------------------------------

    def producer_rows(self) -> ProducerRows:
        """Return the known producers as a snapshot would have them, PRODUCER_ROW[producers]."""
        with self._lock:
            return self._producers.rows()

    def swap_in(self, replacement: Replacement) -> None:
        """Replace the segments of a group with the outputs of a clean. Readers are not interrupted."""
        with self._lock, self._local.guarded("swapping in cleaned segments"):
            local = self._local
            segments, size_bytes = len(local.segments), self.size_bytes
            self._delete_snapshots(local.swap_in(replacement))
            # Count them, but write no line: the cleaner writes a line for each clean.
            removed = max(0, segments - len(local.segments)), max(0, size_bytes - self.size_bytes)
            self._removals.count(Removal.COMPACTION, *removed)

    def drop_below(self, offset: int) -> None:
        """Remove the segments on the disk below an offset: the tier has the log up to there, and differs from them."""
        with self._lock, self._local.guarded("removing segments that were replaced in the tier"):
            replaced = [one for one in self._local.segments.all[:-1] if one.base_offset < offset]
            if replaced:
                self._local.check_open()
                self._local.remove(replaced)
                self._delete_snapshots(replaced)

    # ---- truncation --------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> bool:
        """Remove the records at an offset and above, and the whole batch that holds it; return whether any existed.

        Raises:
            IllegalArgumentError: the offset is negative.
        """
        check_whole("offset", offset)
        if offset < 0:
            raise IllegalArgumentError(f"Cannot truncate partition {self.name} to a negative offset ({offset}).")
        if self.remote is not None and offset < self.remote.copied_end:
            raise IllegalArgumentError(
                f"Cannot truncate partition {self.name} to offset {offset}: the tier has its records up to "
                f"{self.remote.copied_end}."
            )
        local = self._local
        with (
            self._lock,
            local.guarded(f"truncating log to offset {offset}"),
        ):
            if offset >= local.log_end_offset:
                # A new leader may have begun an epoch here, while this replica has another epoch from here on.
                self._epochs.truncate_from_end(local.log_end_offset)
                return False
            local.check_open()
            if local.segments.first.base_offset > offset:
                self.truncate_fully_and_start_at(offset)
                return True
            self._begin_truncation(offset)
            before = local.log_end_offset, len(local.segments), self.size_bytes
            self._delete_snapshots(local.truncate_to(offset))
            self._note_truncated(offset, *before)
            self._epochs.truncate_from_end(offset)
            self._watermarks.set_log_start_offset(min(offset, self.log_start_offset))
            self._rebuild_producers(offset)
            if self.high_watermark >= local.log_end_offset:
                self._set_high_watermark(local.log_end_offset)
            return True

    def truncate_fully_and_start_at(self, offset: int, log_start_offset: int | None = None) -> None:
        """Remove all records, and continue at an offset.

        Raises:
            TypeError, ValueError: no record can have such an offset; nothing has changed.
        """
        check_number("offset", offset, 0, LONG_MAX)
        if log_start_offset is not None:
            check_number("log_start_offset", log_start_offset, 0, offset)
        local = self._local
        with (
            self._lock,
            local.guarded("truncating the entire log"),
        ):
            self._begin_truncation(0)
            before = self.log_start_offset, local.log_end_offset, len(local.segments), self.size_bytes
            local.truncate_fully_and_start_at(offset)
            self._note_truncated(*before)
            self._epochs.clear()
            self._snapshots.truncate_fully_and_start_at(offset)
            self._watermarks.set_log_start_offset(offset if log_start_offset is None else log_start_offset)
            self._rebuild_producers(offset)
            self._set_high_watermark(local.log_end_offset)

    def _note_truncated(self, start_offset: int, end_offset: int, segments: int, size_bytes: int) -> None:
        """Report a truncation, given the log's end, segments and size before it."""
        removed = max(0, segments - len(self._local.segments)), max(0, size_bytes - self.size_bytes)
        self._removals.report(Removal.TRUNCATION, "a truncation", start_offset, end_offset, *removed)

    def _begin_truncation(self, offset: int) -> None:
        self.before_truncation(offset)
        self.truncations += 1

    def _rebuild_producers(self, offset: int) -> None:
        self._local.check_open()
        rebuild_producer_state(
            self._snapshots, self._local.segments, self.log_start_offset, offset, self._local.clock()
        )

    # ---- producers ---------------------------------------------------------------------------------------------------

    def remove_expired_producers(self, now_ms: int) -> None:
        """Forget producers that have not written for too long."""
        with self._lock:
            self._producers.expire_all(now_ms)

    def open_transactions(self) -> list[tuple[int, int]]:
        """Return (first offset, producer id) of each transaction that is open, or whose marker is not replicated."""
        with self._lock:
            return self._producers.open_transactions()

    def has_late_transaction(self, now_ms: int) -> bool:
        """Return whether the producer of the earliest open transaction has been silent for too long.

        The limit is `transaction.max.timeout.ms` plus five minutes.
        """
        with self._lock:
            return self._producers.has_late_transaction(now_ms, self._limits.transaction_max_timeout_ms + 300_000)

    # ---- end ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close properly: write a producer snapshot, cut the indexes, sync the log."""
        local = self._local
        with self._lock:
            local.check_open()
            self._expiry.cancel()
            self._maybe_flush_metadata_file()
            with local.guarded("closing"):
                self._snapshots.take()
                local.close()

    def close_handlers(self) -> None:
        """Release all files without writing, after a disk failure, a move or a deletion."""
        with self._lock:
            self._expiry.cancel()
            self._local.close_handlers()

    @property
    def is_closed(self) -> bool:
        """Whether the log takes no more changes."""
        return self._local.is_closed

    def check_open(self) -> None:
        """Raise KafkaStorageError if the log was closed, deleted or moved, and so takes no more appends."""
        self._local.check_open()

    def refuse_changes(self) -> None:
        """Let every later change fail; reads still work until the files are removed."""
        with self._lock:
            self._local.refuse_changes()

    def unchanged(self) -> AbstractContextManager[object]:
        """Prevent other threads from appending to the log, or changing it, during the block."""
        return self._lock

    def rename_directory(self, directory: str) -> None:
        """Rename the partition's directory, in the same log directory; readers are not interrupted."""
        with self._lock, self._local.guarded("renaming the directory"):
            self._topic_id.maybe_flush()
            self._local.rename_directory(directory)
            self._snapshots.directory = directory
            self._epochs.move_to(directory)
            self._topic_id.move_to(directory)

    def delete(self) -> None:
        """Remove the partition's directory with all its files."""
        local = self._local
        with self._lock, local.guarded("deleting the log"):
            self.close_handlers()
            remove_tree(local.fs, local.directory)
            local.fs.sync_directory(local.log_directory)
