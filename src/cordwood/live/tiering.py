"""Keeps the closed segments of tiered logs in a tier: copies and retains them, and restores logs after a lost disk.

    claim      opening a log commits its next manifest with a higher writer epoch, so that an earlier writer is stopped
    sweep      objects that the manifest does not name are deleted: a crash left them
    copy       closed segments below the last stable offset are uploaded, and one manifest names all of a run
    retain     local retention deletes only copied segments; remote retention commits a new log start, then deletes

The manifest decides: before a commit there are only objects that nobody names, after it the new log is whole. While the
tier cannot be reached, appends are possible, and segments stay on the disk until they are copied.

Source: Kafka RemoteLogManager.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from cordwood.common.errors import CordwoodError, KafkaStorageError, RequestError
from cordwood.common.types import NONE, TopicPartition
from cordwood.fs.base import LocalFileSystem, TargetStore
from cordwood.live.log import Log
from cordwood.live.metrics import MetricName, Total
from cordwood.live.pool import LogPool
from cordwood.live.remote_tail import RemoteSegments, RemoteTail
from cordwood.live.segment import LogSegment
from cordwood.live.tiered_log import TieredLog
from cordwood.storage.formats import checkpoints, leader_epochs, producer_state
from cordwood.storage.formats.filenames import CLEANER_OFFSETS, LOG_START_OFFSETS, FileKind, offset_name
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.formats.messages.topics import REMOTE_LOG_METADATA
from cordwood.storage.formats.properties import PartitionMetadata, decode_id, encode_id, encode_partition_metadata
from cordwood.storage.index.in_tier import TierKeyIndexes
from cordwood.storage.log.files import make_work_folder, write_file
from cordwood.storage.tier.aiven import AivenLayout
from cordwood.storage.tier.exchange import described
from cordwood.storage.tier.generations import FencedError, Generations, check_store, partitions_in
from cordwood.storage.tier.manifest import GoneSegment, TierState
from cordwood.storage.tier.packed import TierSegment
from cordwood.storage.tier.segments import CopyState, RemoteSegment, TopicIdPartition
from cordwood.storage.tier.store import Tier, TierStore

_log = logging.getLogger(__name__)
_EPOCHS = "tier-epochs"
#: Milliseconds until the next attempt after the first failure; twice as long after each further one.
_RETRY_MS, _RETRY_MS_MAX = 1_000, 60_000
_INDEXES = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX)


class Tiering:
    """The tiered logs of a manager.

    Args:
        root: bucket and key prefix of the tier, or a folder.

    Raises:
        RequestError: the store cannot create an object only if it is absent.
    """

    def __init__(self, pool: LogPool, store: TargetStore, root: str) -> None:
        self.root = root if root.endswith("/") else f"{root}/"
        self._pool = pool
        self._store = store
        # A listing of many segments would stay in memory, and be out of date after the next copy.
        self._layout = AivenLayout(store, self.root, lists=False)
        #: Segments that are being read, of all logs.
        self.segments = RemoteSegments(self._layout)
        self._run, self._host = secrets.token_hex(8), socket.gethostname()
        self._logs: dict[TopicPartition, TieredLog] = {}
        #: Logs that could not be opened in the tier, with the error.
        self._unopened: dict[TopicPartition, str] = {}
        self._lock = threading.Lock()
        check_store(store, self.root)

    # ---- opening -----------------------------------------------------------------------------------------------------

    def restore(self, log_dirs: Sequence[str]) -> None:
        """Make the directories of tiered logs that no log directory has, as after the loss of a disk.

        Raises:
            RequestError: a broker keeps the tier of these logs.
            StoreError, OSError, CorruptFileError: the tier or a log directory failed.
        """
        fs = self._pool.fs
        there = {info.name for path in log_dirs for info in fs.list(path)}
        if any(name.startswith(f"{REMOTE_LOG_METADATA}-") for name in there):
            self._refuse_brokers(log_dirs)
        for key in partitions_in(self._layout):
            name = TopicPartition(key.topic, key.partition)
            if str(name) in there or not self._pool.configs.topic(key.topic).flag("remote.storage.enable"):
                continue
            state = Generations(self._store, self._layout, key).newest()
            if state is not None:
                counts = Counter({path: len(fs.list(path)) for path in log_dirs})
                self._restore(min(log_dirs, key=counts.__getitem__), name, state)

    def _refuse_brokers(self, log_dirs: Sequence[str]) -> None:
        """Raise RequestError if a broker's records name segments in the tier."""
        brokers = TierStore(self._pool.fs, Tier(self.root), self._layout)
        for path in log_dirs:
            for key, log in brokers.remote_logs(path).items():
                if log.segments:
                    raise RequestError(
                        f"{path}: records of {REMOTE_LOG_METADATA} name segments of {key.topic}-{key.partition}, so a "
                        "broker keeps its tier. Take it over: cordwood tier adopt; or use another directory, or run "
                        "without a tier"
                    )

    def _restore(self, log_dir: str, name: TopicPartition, state: TierState) -> None:
        """Make a directory in which the next record gets the offset after the last one in the tier."""
        fs, path, end = self._pool.fs, f"{log_dir}/{name}", state.copied_end
        topic_id = decode_id(state.partition.topic_id)
        assert topic_id is not None, "a layout yields no other ids"
        fs.make_directory(path)
        write_file(fs, f"{path}/{FileKind.PARTITION_METADATA}", encode_partition_metadata(PartitionMetadata(topic_id)))
        if state.segments:
            newest = state.segments[-1].segment
            for kind, file_name in (
                (FileKind.LEADER_EPOCHS, str(FileKind.LEADER_EPOCHS)),
                (FileKind.PRODUCER_SNAPSHOT, offset_name(end, FileKind.PRODUCER_SNAPSHOT)),
            ):
                with self._layout.open(newest, kind) as file:
                    write_file(fs, f"{path}/{file_name}", file.read(0, file.size()))
        write_file(fs, f"{path}/{offset_name(end, FileKind.LOG)}", b"")
        fs.sync_directory(path)
        fs.sync_directory(log_dir)
        checkpoints.update(fs, f"{log_dir}/{LOG_START_OFFSETS}", {name: state.log_start_offset})
        if state.cleaner_checkpoint is not None:
            # The end of the log that was lost may have been clean, and other records get its offsets.
            checkpoints.update(fs, f"{log_dir}/{CLEANER_OFFSETS}", {name: min(state.cleaner_checkpoint, end)})
        _log.info("%s was restored from %s, up to offset %d", path, self.root, end)

    def open_all(self) -> None:
        """Open the logs of tiered topics that are not open in the tier yet."""
        for partition, log in self._pool.current_logs().items():
            with self._lock:
                is_known = partition in self._logs and self._logs[partition].log is log
            if not is_known and log.config.tiered:
                try:
                    self._open(partition, log)
                    self._unopened.pop(partition, None)
                except (OSError, CordwoodError) as error:
                    if partition not in self._unopened:
                        _log.error("%s cannot be opened in %s: %s", partition, self.root, error)
                    self._unopened[partition] = str(error)

    def _open(self, partition: TopicPartition, log: Log) -> None:
        """Claim a log; see `Generations.claim`."""
        if log.topic_id is None:
            for other in partitions_in(self._layout):
                if (other.topic, other.partition) == (partition.topic, partition.partition):
                    raise KafkaStorageError(
                        f"{log.directory} has no topic id, and the tier has such a partition of topic id "
                        f"{other.topic_id}: delete one of them, or write that id into its partition.metadata"
                    )
            log.assign_topic_id(uuid.uuid4())
        log.flush_topic_id()
        assert log.topic_id is not None, "it was assigned"
        key = TopicIdPartition(encode_id(log.topic_id), partition.topic, partition.partition)
        generations = Generations(self._store, self._layout, key)
        state = generations.claim(self._run, self._host)
        if count := generations.sweep(state):
            _log.info("%d objects of %s were deleted, which a crash left", count, partition)
        if log.log_end_offset < state.copied_end:
            self._continue_behind(log, state)
        log.drop_below(state.local_floor)
        local_start = log.log_segments[0].base_offset
        start = max(log.log_start_offset, state.log_start_offset)
        remote = RemoteTail(self.segments, self.root, state)
        log.use_remote(remote, start if state.segments else max(start, local_start))
        key_indexes = TierKeyIndexes(self._pool.fs, log.directory, self._layout)
        key_indexes.sweep(state.segments)
        key_indexes.expect(generations.key_indexed)
        with self._lock:
            self._logs[partition] = TieredLog(log, self._layout, generations, remote, key_indexes)

    def _continue_behind(self, log: Log, state: TierState) -> None:
        """Let a log continue after its last record in the tier: a crash has lost the end of its local part."""
        end, newest = state.copied_end, state.segments[-1].segment
        _log.warning("%s ends at %d, and its tier at %d: it continues there", log.name, log.log_end_offset, end)
        log.truncate_fully_and_start_at(end, state.log_start_offset)
        with self._layout.open(newest, FileKind.LEADER_EPOCHS) as file:
            entries = leader_epochs.decode(file.read(0, file.size()), file.path)
        for entry in entries:
            log.assign_epoch_start_offset(entry.epoch, entry.start_offset)
        log.commit_all()

    # ---- the periodic task -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Open new logs; copy and retain all others. A log that failed waits longer after each failure."""
        self.open_all()
        with self._lock:
            tiered = list(self._logs.items())
        for partition, one in tiered:
            if self._pool.get(partition) is not one.log:
                with self._lock:
                    self._logs.pop(partition, None)
                one.remote.close()
            elif not one.fenced and self._now() >= one.next_attempt_ms:
                self._attempt(one)

    def _attempt(self, one: TieredLog) -> None:
        if not one.lock.acquire(blocking=False):
            return  # a clean puts segments into the tier, which may take long
        try:
            if one.log.config.copies_to_tier:
                self._copy(one)
            self._retain(one)
            self._delete_gone(one)
            one.failures, one.failing_since_ms, one.last_error = 0, NONE, ""
        except FencedError as error:
            one.fence(error)
        except (OSError, CordwoodError) as error:
            now_ms = self._now()
            one.failing_since_ms = now_ms if not one.failures else one.failing_since_ms
            one.next_attempt_ms = now_ms + min(_RETRY_MS << min(one.failures, 16), _RETRY_MS_MAX)
            one.failures += 1
            one.last_error = str(error)
            _log.warning("%s: the tier failed %d times: %s", one.log.name, one.failures, error)
        finally:
            one.lock.release()

    def _now(self) -> int:
        return self._pool.clock()

    def _copy(self, one: TieredLog) -> None:
        """Copy closed segments, and commit all of them at once."""
        log, copied = one.log, list[TierSegment]()
        # What is not on the disk yet could be lost, and other records get its offsets.
        end = min(log.last_stable_offset, log.recovery_point)
        try:
            for segment, next_base in one.waiting():
                if next_base > end:
                    break
                if segment.size_bytes and next_base > log.log_start_offset:
                    copied.append(self._upload(one, segment, next_base))
        finally:
            if copied:
                state = replace(one.state, segments=(*one.state.segments, *copied))
                one.commit(replace(state, cleaner_checkpoint=self._cleaned_to(one)))
                one.copied_segments += len(copied)
                one.copied_bytes += sum(each.segment.size_bytes for each in copied)
                one.key_indexes.adopt(copied)

    def _cleaned_to(self, one: TieredLog) -> int | None:
        """Return the end of the cleaned part of a log; None before its first clean."""
        cleaner, known = self._pool.cleaner, one.state.cleaner_checkpoint
        if cleaner is None or not one.log.config.compact:
            return known
        here = cleaner.manager.all_cleaner_checkpoints().get(one.partition)
        return max((each for each in (known, here) if each is not None), default=None)

    def _upload(self, one: TieredLog, segment: LogSegment, next_base: int) -> TierSegment:
        fs, log, key = self._pool.fs, one.log, one.state.partition
        files = {FileKind.LOG: segment.path(FileKind.LOG)}
        files |= {kind: path for kind in _INDEXES if fs.exists(path := segment.path(kind))}
        if FileKind.TRANSACTION_INDEX in files and not fs.stat(files[FileKind.TRANSACTION_INDEX]).size_bytes:
            del files[FileKind.TRANSACTION_INDEX]
        entries = log.leader_epochs.entries
        work = make_work_folder(fs, log.directory)
        lineage = [entry for entry in entries if entry.start_offset < next_base]
        for kind, data in (
            (FileKind.LEADER_EPOCHS, leader_epochs.encode(lineage)),
            (FileKind.PRODUCER_SNAPSHOT, _snapshot(fs, log.directory, next_base)),
        ):
            files[kind] = f"{work}/{_EPOCHS}{kind}"
            fs.put(files[kind], data, beside=f"{work}/{_EPOCHS}.tmp")
        new = RemoteSegment(
            topic=key.topic,
            topic_id=key.topic_id,
            partition=key.partition,
            id=encode_id(uuid.uuid4()),
            start_offset=segment.base_offset,
            end_offset=next_base - 1,
            size_bytes=segment.size_bytes,
            max_timestamp_ms=segment.largest_timestamp,
            event_time_ms=self._now(),
            broker=NONE,
            epochs=_epochs_within(entries, segment.base_offset, next_base),
            custom_metadata=None,
            state=CopyState.COPY_FINISHED,
            transaction_index_empty=FileKind.TRANSACTION_INDEX not in files,
        )
        self._layout.write(new, files, None)
        return described(fs, new, files)

    def _retain(self, one: TieredLog) -> None:
        """Commit the deletions by remote retention, and a log start that moved."""
        state, log, now_ms = one.state, one.log, self._now()
        count, start = _expired(one, now_ms)
        if not count and start <= state.log_start_offset:
            return
        gone = tuple(GoneSegment(each.segment, now_ms) for each in state.segments[:count])
        one.commit(replace(state, log_start_offset=start, segments=state.segments[count:], gone=(*state.gone, *gone)))
        log.maybe_increment_log_start_offset(start)
        one.key_indexes.sweep(one.state.segments)

    def _delete_gone(self, one: TieredLog) -> None:
        """Delete the objects of segments that went long enough ago; the next manifest names them no more."""
        due_ms = self._now() - one.log.config.file_delete_delay_ms
        due = [each for each in one.state.gone if each.since_ms <= due_ms]
        if due:
            self._store.delete_all([path for each in due for path in self._layout.paths_to_delete(each.segment)])
            one.deleted_segments += len(due)
            one.remote.state = replace(one.state, gone=tuple(each for each in one.state.gone if each not in due))

    def delete(self, partition: TopicPartition) -> None:
        """Delete a log from the tier: first its manifest names no segment, then the objects go.

        Raises:
            FencedError, StoreError, OSError: not all is deleted; objects without a manifest stay.
        """
        with self._lock:
            one = self._logs.pop(partition, None)
        if one is None or one.fenced:
            return
        with one.lock:
            state = one.generations.commit(replace(one.state, segments=(), gone=()))
            one.generations.sweep(state)
            one.remote.close()

    def close(self) -> None:
        """Close the open segments of the tier."""
        with self._lock:
            for one in self._logs.values():
                one.remote.close()

    # ---- metrics -----------------------------------------------------------------------------------------------------

    def status(self, partition: TopicPartition) -> TieredLog | None:
        """Return a log's state in the tier; None if it is not open there."""
        with self._lock:
            return self._logs.get(partition)

    def errors(self) -> Mapping[TopicPartition, str]:
        """Return the last error of each log that fails, or that another writer has claimed."""
        with self._lock:
            failing = {partition: one.last_error for partition, one in self._logs.items() if one.last_error}
        return {**self._unopened, **failing}

    def metrics(self) -> Iterator[tuple[MetricName, int | float]]:
        """Yield the gauges and sums of each topic, by the names of Kafka's BrokerTopicMetrics."""
        sums: dict[str, Counter[str]] = {}
        with self._lock:
            logs = list(self._logs.items())
        for partition, one in logs:
            waiting = one.waiting()
            found = sums.setdefault(partition.topic, Counter())
            found.update(
                {
                    "RemoteCopyLagSegments": len(waiting),
                    "RemoteCopyLagBytes": sum(segment.size_bytes for segment, _ in waiting),
                    "RemoteLogSizeBytes": one.state.packed.size_bytes,
                    "RemoteLogMetadataCount": len(one.state.segments),
                    "RemoteDeleteLagSegments": len(one.state.gone),
                    "RemoteDeleteLagBytes": sum(each.segment.size_bytes for each in one.state.gone),
                }
            )
            totals = {
                "RemoteCopyBytesPerSec": one.copied_bytes,
                "RemoteCopyRequestsPerSec": one.copied_segments,
                "RemoteCopyErrorsPerSec": one.failures,
                "RemoteDeleteRequestsPerSec": one.deleted_segments,
                "RemoteFetchBytesPerSec": one.remote.fetched_bytes,
                "RemoteFetchRequestsPerSec": one.remote.fetches,
                "RemoteFetchErrorsPerSec": one.remote.errors,
            }
            found.update({f"total {name}": value for name, value in totals.items()})
        for topic, values in sums.items():
            for name, value in values.items():
                metric = MetricName(
                    "kafka.server", "BrokerTopicMetrics", name.removeprefix("total "), (("topic", topic),)
                )
                yield metric, Total(value) if name.startswith("total ") else value


def _expired(one: TieredLog, now_ms: int) -> tuple[int, int]:
    """Return how many segments remote retention deletes, and the log start offset after it.

    Differs from Kafka's: a segment that is deleted no longer counts as size, also while its deletion fails.
    """
    config, start, segments = one.log.config, one.log.log_start_offset, one.state.segments
    size = one.state.packed.size_bytes + sum(local.size_bytes for local, _ in one.waiting())
    count = 0
    for each in segments:
        segment = each.segment
        if segment.end_offset >= start:
            is_old = 0 <= config.retention_ms < now_ms - segment.max_timestamp_ms
            is_excess = 0 <= config.retention_bytes <= size - segment.size_bytes
            if not (config.delete and (is_old or is_excess)):
                break
            start = segment.end_offset + 1
        count += 1
        size -= segment.size_bytes
    return count, start


def _snapshot(fs: LocalFileSystem, directory: str, offset: int) -> bytes:
    """Return the producers at an offset, as their snapshot has them."""
    path = f"{directory}/{offset_name(offset, FileKind.PRODUCER_SNAPSHOT)}"
    if not fs.exists(path):
        return producer_state.encode([])
    with fs.open(path) as file:
        return file.read(0, file.size())


def _epochs_within(entries: Sequence[EpochEntry], start: int, end: int) -> tuple[EpochEntry, ...]:
    """Return the part of a lineage within offsets [start, end); a log without epochs is in epoch 0."""
    before = [entry.epoch for entry in entries if entry.start_offset <= start]
    first = EpochEntry(before[-1] if before else 0, start)
    return (first, *(entry for entry in entries if start < entry.start_offset < end))
