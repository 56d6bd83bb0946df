"""The first dirty offset of each live log, the range that a clean of the log would cover, and whether a clean is due.

The offsets are in the file `cleaner-offset-checkpoint` of each log directory; `rules.selection` has the rules.

Source: Kafka LogToClean, LogCleanerManager.cleanableOffsets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from cordwood.cleaning.rules.plan import HeaderFacts, SegmentFacts
from cordwood.cleaning.rules.selection import (
    clean_range,
    first_dirty_offset,
    non_active_from,
    overdue_ms,
    segments_between,
)
from cordwood.common.config import LONG_MAX
from cordwood.common.errors import CorruptFileError, KafkaStorageError
from cordwood.common.types import NONE, TopicPartition
from cordwood.fs.base import LocalFileSystem
from cordwood.live.directories import LogDirFailureChannel, io_error_of
from cordwood.live.environment import LogConfig
from cordwood.live.log import Log
from cordwood.live.segment import LogSegment
from cordwood.storage.formats import checkpoints, filenames
from cordwood.storage.log.files import read_file
from cordwood.storage.tier.manifest import TierState

# ---- checkpoints -----------------------------------------------------------------------------------------------------

_log = logging.getLogger(__name__)


class CleanerCheckpoints:
    """The checkpoint files; a missing file is created empty.

    Args:
        lock: guards the files; the caller may hold it already.
    """

    def __init__(
        self,
        fs: LocalFileSystem,
        log_dirs: Iterable[str],
        logs: Callable[[], Mapping[TopicPartition, Log]],
        failures: LogDirFailureChannel,
        lock: AbstractContextManager[object],
    ) -> None:
        self._fs = fs
        self._logs = logs
        self._failures = failures
        self._lock = lock
        self._files = {
            fs.absolute_path(path): f"{fs.absolute_path(path)}/{filenames.CLEANER_OFFSETS}" for path in log_dirs
        }
        #: The bytes of each file and its decoded entries.
        self._decoded: dict[str, tuple[bytes, dict[TopicPartition, int]]] = {}
        for path in self._files.values():
            if not fs.exists(path):
                fs.create(path).close()

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """The directories that have not failed."""
        return tuple(self._files)

    def all_cleaner_checkpoints(self) -> dict[TopicPartition, int]:
        """Return the first dirty offset of each log that was ever cleaned.

        If the files of two directories have an entry for a partition, use the entry in the directory of its log; if
        there is no such entry, use the smaller offset.
        """
        with self._lock:
            read: dict[str, dict[TopicPartition, int]] = {}
            for path in self._files:
                try:
                    read[path] = self._read(path)
                except KafkaStorageError:
                    _log.exception("Failed to access checkpoint file in dir %s", path)
            found: dict[TopicPartition, int] = {}
            twice: set[TopicPartition] = set()
            for offsets in read.values():
                both = found.keys() & offsets.keys()
                found |= offsets | {one: min(offsets[one], found[one]) for one in both}
                twice |= both
            for one in twice:
                log = self._logs().get(one)
                own = {} if log is None else read.get(log.parent_directory, {})
                found[one] = own.get(one, found[one])
            return found

    def update_checkpoints(
        self,
        log_dir: str,
        *,
        add: tuple[TopicPartition, int] | None = None,
        remove: TopicPartition | None = None,
    ) -> None:
        """Change a directory's file and drop entries of partitions without a log. A storage error is only logged."""
        self.replace(log_dir, {} if add is None else dict([add]), remove)

    def replace(self, log_dir: str, added: Mapping[TopicPartition, int], removed: TopicPartition | None = None) -> None:
        """Set the offsets of some partitions and remove one partition's entry; see `update_checkpoints`."""
        with self._lock:
            path = self._fs.absolute_path(log_dir)
            if path not in self._files:
                return
            known = self._logs()
            try:
                kept = {one: offset for one, offset in self._read(path).items() if one in known and one != removed}
                self._write(path, {**kept, **added})
            except KafkaStorageError:
                _log.exception("Failed to access checkpoint file in dir %s", path)

    def maybe_truncate_checkpoint(self, log_dir: str, partition: TopicPartition, offset: int) -> None:
        """Lower the entry of a truncated log to an offset, because later offsets are not clean any more.

        Raises:
            KafkaStorageError: the disk failed.
        """
        with self._lock:
            path = self._fs.absolute_path(log_dir)
            log = self._logs().get(partition)
            if path not in self._files or log is None or not log.config.compact:
                return
            known = self._read(path)
            if known.get(partition, 0) > offset:
                self._write(path, known | {partition: offset})

    def move(self, partition: TopicPartition, source: str, target: str) -> None:
        """Move the entry of a log that has moved to another directory. A storage error is only logged."""
        with self._lock:
            try:
                offset = self._read(source).get(partition) if source in self._files else None
                if offset is not None:
                    self.update_checkpoints(source, remove=partition)
                    self.update_checkpoints(target, add=(partition, offset))
            except KafkaStorageError:
                _log.exception("Failed to access checkpoint file in dir %s", source)

    def forget(self, log_dir: str) -> None:
        """Ignore the file of a failed directory from now on."""
        with self._lock:
            self._files.pop(self._fs.absolute_path(log_dir), None)

    def _read(self, path: str) -> dict[TopicPartition, int]:
        file = self._files[path]
        with self._failures.guarded(path, f"reading {filenames.CLEANER_OFFSETS}", "the log directory"):
            data = read_file(self._fs, file)
            if path in self._decoded and self._decoded[path][0] == data:
                return self._decoded[path][1]
            try:
                self._decoded[path] = data, checkpoints.decode(data, file)
                return self._decoded[path][1]
            except CorruptFileError as error:
                known = io_error_of(error)
                if isinstance(known, OSError):
                    raise known from error
                # A bad number ends Kafka's cleaner thread. Here the file is ignored: without an offset, a clean only
                # reads more.
                _log.error("%s does not count, its logs are cleaned from their starts: %s", file, error)
                return {}

    def _write(self, path: str, offsets: Mapping[TopicPartition, int]) -> None:
        file = self._files[path]
        with self._failures.guarded(path, f"writing {filenames.CLEANER_OFFSETS}", "the log directory"):
            self._fs.put(file, checkpoints.encode(offsets), beside=f"{file}.tmp")


@dataclass(frozen=True, slots=True)
class LogToClean:
    """The range that a clean of a log would cover.

    Attributes:
        uncleanable_offset: the lowest of the last stable offset, the start of the active segment, and the start of the
            first segment that `min.compaction.lag.ms` protects; at least the first dirty offset.
        first_uncleanable_offset: end of the range, at the base offset of a segment.
        force_update_checkpoint: the log's checkpoint is outside the log, and must be corrected.
        clean_bytes: size of the segments that begin below the first dirty offset.
        cleanable_bytes: size of the segments in the range; the first of them may be in `clean_bytes`, too.
        overdue_ms: time by which the oldest dirty batch exceeds `max.compaction.lag.ms`.
    """

    partition: TopicPartition
    log: Log
    first_dirty_offset: int
    uncleanable_offset: int
    first_uncleanable_offset: int
    force_update_checkpoint: bool
    clean_bytes: int
    cleanable_bytes: int
    overdue_ms: int

    @property
    def total_bytes(self) -> int:
        """Clean and cleanable bytes together."""
        return self.clean_bytes + self.cleanable_bytes

    @property
    def cleanable_ratio(self) -> float:
        """The dirty share; 0 for an empty log."""
        return self.cleanable_bytes / self.total_bytes if self.total_bytes else 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is dirty enough, or has waited for too long."""
        must = self.overdue_ms > 0 and self.cleanable_bytes > 0
        return must or self.cleanable_ratio > self.log.config.min_cleanable_dirty_ratio


class _Seen(NamedTuple):
    """The inputs that decide a clean's range if no lag is set; the current time then has no influence."""

    log: Log
    segments: tuple[LogSegment, ...]
    in_tier: TierState | None
    config: LogConfig
    offsets: tuple[int, int, int | None]

    def equals(self, other: _Seen) -> bool:
        """Return whether nothing has changed; a roll, a removal or a swap replaces the tuple of segments."""
        return (
            self.log is other.log
            and self.segments is other.segments
            and self.in_tier is other.in_tier
            and self.config is other.config
            and self.offsets == other.offsets
        )


def log_to_clean(partition: TopicPartition, log: Log, checkpoint: int | None, now_ms: int) -> LogToClean:
    """Return the range that a clean of a log would cover now."""
    config = log.config
    first_dirty, why = first_dirty_offset(checkpoint, log.log_start_offset, log.log_end_offset)
    live = [*_in_tier_alone(log), *(_Segment.of(one) for one in log.log_segments)]
    dirty = {one.base_offset for one in non_active_from([_facts(one, NONE) for one in live], first_dirty)}
    # A timestamp may require a read; only a lag needs it, and only for dirty segments.
    asks = config.min_compaction_lag_ms > 0
    segments = [_facts(one, one.largest_timestamp() if asks and one.base_offset in dirty else NONE) for one in live]
    found = clean_range(
        segments,
        first_dirty,
        log.last_stable_offset,
        min_compaction_lag_ms=config.min_compaction_lag_ms,
        now_ms=now_ms,
    )
    end = found.first_uncleanable_offset
    headers = [HeaderFacts(first_timestamp=one.first_timestamp() if one.base_offset in dirty else NONE) for one in live]
    return LogToClean(
        partition,
        log,
        first_dirty,
        max(first_dirty, found.bound_offset),
        end,
        checkpoint is not None and bool(why),
        sum(one.size_bytes for one in segments if one.base_offset < first_dirty),
        sum(one.size_bytes for one in segments_between(segments, min(first_dirty, end), end)),
        overdue_ms(segments, headers, first_dirty, max_compaction_lag_ms=config.max_compaction_lag_ms, now_ms=now_ms),
    )


class _Segment(NamedTuple):
    """A segment on the disk or in the tier."""

    base_offset: int
    size_bytes: int
    largest_timestamp: Callable[[], int]
    first_timestamp: Callable[[], int]

    @classmethod
    def of(cls, one: LogSegment) -> _Segment:
        """Return a segment on the disk."""
        return cls(one.base_offset, one.size_bytes, lambda: one.largest_timestamp, lambda: one.first_timestamp)


def _in_tier_alone(log: Log) -> Iterator[_Segment]:
    """Yield the segments of a log that are not on the disk any more."""
    if (remote := log.remote) is None:
        return
    for one in remote.segments_between(log.log_start_offset, log.log_segments[0].base_offset):
        largest, first = partial(int, one.max_timestamp_ms), partial(remote.first_timestamp, one)
        yield _Segment(one.start_offset, one.size_bytes, largest, first)


def _facts(segment: _Segment, largest_timestamp: int) -> SegmentFacts:
    return SegmentFacts(segment.base_offset, segment.size_bytes, 0, 0, 0, largest_timestamp)


class LogsToClean:
    """Cached ranges of logs, computed again only after a change, because each round looks at up to 10,000 logs."""

    def __init__(self) -> None:
        self._known: dict[TopicPartition, tuple[_Seen, LogToClean]] = {}

    def forget_all_but(self, partitions: Container[TopicPartition]) -> None:
        """Forget logs that were removed."""
        self._known = {one: known for one, known in self._known.items() if one in partitions}

    def of(self, partition: TopicPartition, log: Log, checkpoint: int | None, now_ms: int) -> LogToClean:
        """See `log_to_clean`."""
        config = log.config
        if checkpoint is not None and checkpoint > log.log_end_offset:
            checkpoint = LONG_MAX  # so the cached range is computed again once the log end reaches the checkpoint
        stable = min(log.last_stable_offset, log.active_segment.base_offset)
        in_tier = None if log.remote is None else log.remote.state
        seen = _Seen(log, log.log_segments, in_tier, config, (log.log_start_offset, stable, checkpoint))
        before = self._known.get(partition)
        if before is not None and before[0].equals(seen):
            return before[1]
        found = log_to_clean(partition, log, checkpoint, now_ms)
        if config.min_compaction_lag_ms <= 0 and config.max_compaction_lag_ms == LONG_MAX:
            self._known[partition] = seen, found
        return found
