"""The live log of one partition: Kafka's calls, and simple calls for programs without a broker.

    log = load_log("/data/orders-0", config, LogEnvironment(fs, clock, scheduler, failures))
    log.append_as_leader(batch, leader_epoch=3)
    log.update_high_watermark(log.log_end_offset)
    log.read(0, 1 << 20, FetchIsolation.HIGH_WATERMARK)

Kafka's calls are in `unified_log`; the calls here are for a log without other replicas.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from cordwood.common.arguments import AnyPath, checked, text_paths
from cordwood.common.config import TopicConfig
from cordwood.common.errors import BadNameError, RequestError
from cordwood.fs.base import LocalFileSystem
from cordwood.live import convenience
from cordwood.live.convenience import Pairs
from cordwood.live.environment import Checkpointed, LogConfig, LogEnvironment, ProducerLimits
from cordwood.live.loading import Loader
from cordwood.live.local_log import LocalLog
from cordwood.live.partition_files import LeaderEpochCache, TopicIdFile
from cordwood.live.producer_state import ProducerState
from cordwood.live.unified_log import FetchIsolation, UnifiedLog
from cordwood.live.work_folder import remove_leftovers
from cordwood.record.record import Record
from cordwood.storage.formats.filenames import DirectoryState, parse_directory
from cordwood.storage.index.history import KeyRecord

__all__ = ["Checkpointed", "FetchIsolation", "Log", "LogEnvironment", "ProducerLimits", "load_log"]


class Log(UnifiedLog):
    """The log of one partition; `Log.open` or a `LogManager` opens one."""

    @classmethod
    @contextmanager
    def open(cls, path: AnyPath, configs: Mapping[str, str | int] | None = None) -> Iterator[Log]:
        """Open one log for a `with` block; create it if it is missing.

        During the block, a `LogManager` runs for its log directory, so other logs in this directory are opened, too. At
        the end of the block, all of them are flushed and closed.

        Args:
            path: the partition's directory, such as `data/orders-0`; its parent is the log directory.
            configs: topic configs, such as `{"cleanup.policy": "compact"}`. They are stored beside the log. No
                record is deleted unless a policy and its limits are set.

        Raises:
            BadNameError: the directory name is not a partition's.
            ConfigError: Kafka would refuse a config.
            LockedError: a broker or another program has locked the log directory.
            TypeError: `path` is not a path, or a config is neither text nor a whole number.
        """
        # Import the public names, as a program would: a manager is made of logs, not the reverse.
        from cordwood import LogManager, PosixFileSystem, overrides

        configs = checked("configs", Mapping[str, str | int] | None, configs) or {}
        fs = PosixFileSystem()
        (text,) = text_paths([path])
        parent, _, name = fs.absolute_path(text).rpartition("/")
        directory = parse_directory(name)
        if directory.state is not DirectoryState.CURRENT:
            raise BadNameError(f"{name} is a directory that is deleted, moved or stray; open one like topic-0")
        partition = directory.topic_partition
        layers = overrides(f"{partition.topic}:{key}={value}" for key, value in configs.items())
        with LogManager(fs, [parent or "/"], layers) as manager:
            yield manager.get_or_create_log(partition)

    def append(self, pairs: Pairs, *, timestamp_ms: int | None = None) -> int:
        """Append records to a log without other replicas: as one batch if `max.message.bytes` allows it.

        Args:
            pairs: a mapping of keys to values, or `(key, value)` and `(key, value, headers)`. Text is encoded as UTF-8;
                a value of None deletes its key.
            timestamp_ms: timestamp of the records; None: now.

        Returns:
            the offset of the first record; the records are readable at once.

        Raises:
            TypeError, ValueError: a key, value or header is not valid; nothing was appended.
            LogError: the log refuses the records. If they take several batches, the first ones may be in the log; in a
                transaction, those are not readable.
        """
        return convenience.append(self, pairs, timestamp_ms)

    def transaction(self, producer_id: int, epoch: int = 0) -> AbstractContextManager[convenience.Transaction]:
        """Begin a transaction: records appended in the block become readable at its end, but never after an error.

        Args:
            producer_id: id of the producer, which can have one transaction at a time.
            epoch: epoch of the producer; a higher epoch than before aborts a transaction that a program left open.

        Raises:
            InvalidTxnStateError: a transaction of this producer is open.
            LogError: the log refuses the transaction, for example because a newer producer has replaced this one.
        """
        return convenience.transaction(self, producer_id, epoch)

    def records(
        self,
        start: int | None = None,
        *,
        follow: bool = False,
        timeout_seconds: float | None = None,
        stop: threading.Event | None = None,
    ) -> Iterator[Record]:
        """Yield the committed records in order, without markers and aborted records.

        Args:
            start: offset of the first record; None: the log start.
            follow: wait at the end for new records.
            timeout_seconds: end after this time without committed records; None: wait forever.
            stop: end soon after another thread sets it.

        Raises:
            OffsetOutOfRangeError: the offset is below the log start or above the log end.
            RequestError: `timeout_seconds` or `stop` without `follow`.
            KafkaStorageError: the log was closed while it was followed.
        """
        if not follow and (timeout_seconds is not None or stop is not None):
            raise RequestError("timeout_seconds and stop are for follow=True; without it, records end at the log's end")
        wait_seconds = checked("timeout_seconds", float | None, timeout_seconds)
        return convenience.records(self, start, follow=follow, timeout_seconds=wait_seconds, stop=stop)

    def get(self, key: bytes | str, *, last: bool = False) -> list[KeyRecord]:
        """Return all records of a key from the log start offset to the log end, in order.

        In closed segments with a valid key index, the index finds the records. No lock is held meanwhile.

        Args:
            key: text is encoded as UTF-8.
            last: return only the newest committed record, if the key has one.

        Raises:
            DataError: a file that this call must read is damaged.
            NotFoundError: the log was deleted.
        """
        return convenience.get(self, self._local.fs, key, last=last)


def load_log(
    directory: str,
    config: TopicConfig,
    environment: LogEnvironment,
    checkpointed: Checkpointed = Checkpointed(),  # noqa: B008 - frozen
    *,
    topic_id: uuid.UUID | None = None,
    on_recovered: Callable[[int], None] = lambda _: None,
) -> Log:
    """Load a partition's directory, or create a new log there.

    Args:
        directory: the partition's directory; created if it is missing.
        topic_id: id of the log's topic; None: the id in its files.
        on_recovered: called with the number of segments that are still to be recovered, before each one and at the end.

    Raises:
        OSError: a file cannot be read or written, or is a text file that is not in its format.
        CorruptFileError: a file is not in the format of its name, and cannot be rebuilt.
        InconsistentTopicIdError: the log belongs to another topic.
    """
    fs, limits = environment.fs, environment.limits
    directory = fs.absolute_path(directory)
    _prepare(fs, directory)
    name = directory.rpartition("/")[2]
    settings = LogConfig.of(config)
    state = ProducerState(expiration_ms=limits.expiration_ms, transaction_verification=limits.transaction_verification)
    guard = environment.failures.guarded(directory.rpartition("/")[0], "writing leader epochs", name)
    epochs = LeaderEpochCache(fs, directory, name, environment.scheduler, guard)
    loaded = Loader(environment, directory, settings, epochs, state, checkpointed, on_recovered).load()
    local = LocalLog(environment, settings, loaded)
    local.delete_files(loaded.discarded)
    log = Log(local, loaded, environment, TopicIdFile(fs, directory, name))
    if topic_id is not None:
        log.assign_topic_id(topic_id)
    return log


def _prepare(fs: LocalFileSystem, directory: str) -> None:
    """Create a partition's directory, or remove leftovers of cleans in it."""
    if fs.exists(directory):
        remove_leftovers(fs, directory)
    else:
        fs.make_directory(directory)
        # Otherwise a power cut could remove the directory with all flushed records in it.
        fs.sync_directory(directory.rpartition("/")[0] or "/")
