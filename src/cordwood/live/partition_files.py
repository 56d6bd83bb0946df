"""Two small files of a live log: which leader wrote which offsets, and the id of the topic.

Source: Kafka LeaderEpochFileCache (`leader-epoch-checkpoint`), PartitionMetadataFile (`partition.metadata`).
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from bisect import bisect_right

from cordwood.common.errors import CorruptFileError, IllegalArgumentError, InconsistentTopicIdError, KafkaStorageError
from cordwood.common.types import NONE
from cordwood.fs.base import LocalFileSystem
from cordwood.live.directories import Guard, io_error_of
from cordwood.live.scheduler import Scheduler
from cordwood.storage.formats import leader_epochs, properties
from cordwood.storage.formats.filenames import FileKind, Temporary
from cordwood.storage.formats.leader_epochs import EpochEntry, assign
from cordwood.storage.log.files import read_file


class LeaderEpochCache:
    """The leader epochs of a log. Only one thread at a time changes it."""

    def __init__(self, fs: LocalFileSystem, directory: str, name: str, scheduler: Scheduler, guard: Guard) -> None:
        """Read the file; create an empty one if it is missing.

        Args:
            guard: takes the log directory offline if a later write fails.

        Raises:
            OSError: the file cannot be read, or is not in its format.
            CorruptFileError: the file has something other than numbers.
            IllegalArgumentError: an epoch or offset in the file is negative.
        """
        self._fs = fs
        self._name = name
        self._scheduler = scheduler
        self._guard = guard
        self._path = f"{directory}/{FileKind.LEADER_EPOCHS}"
        self._entries: list[EpochEntry] = []
        #: Held while the file is written or renamed, because a scheduled task writes it, too.
        self._file = threading.Lock()
        if not fs.exists(self._path):
            fs.create(self._path).close()
        data = read_file(fs, self._path)
        try:
            entries = leader_epochs.decode(data, self._path) if data else ()
        except CorruptFileError as error:
            raise io_error_of(error) from error
        for entry in entries:
            self._add(entry)

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """The entries in ascending order."""
        return tuple(self._entries)

    @property
    def latest_epoch(self) -> int | None:
        """The last epoch; None without any."""
        return self._entries[-1].epoch if self._entries else None

    def _add(self, entry: EpochEntry) -> bool:
        if entry.epoch < 0 or entry.start_offset < 0:
            raise IllegalArgumentError(f"Received invalid partition leader epoch entry {entry}")
        before = list(self._entries)
        assign(self._entries, entry)
        return before != self._entries

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that a leader writes from an offset on; drop entries that contradict this. Write the file at once."""
        latest = self._entries[-1] if self._entries else None
        if latest is not None and latest.epoch == epoch and latest.start_offset <= start_offset:
            return
        if self._add(EpochEntry(epoch, start_offset)):
            self.write()

    def truncate_from_end(self, offset: int) -> None:
        """Drop the entries that start at an offset or above; write the file later."""
        if self._entries and self._entries[-1].start_offset >= offset:
            self._entries = [entry for entry in self._entries if entry.start_offset < offset]
            self._write_later()

    def truncate_from_start(self, offset: int) -> None:
        """Drop the epochs that end at or below an offset, and let the epoch of the offset start there.

        The file is written later.
        """
        below = [entry for entry in self._entries if entry.start_offset <= offset]
        if below:
            self._entries = [EpochEntry(below[-1].epoch, offset), *self._entries[len(below) :]]
            self._write_later()

    def clear(self) -> None:
        """Drop all entries; write the file at once."""
        self._entries = []
        self.write()

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Find the end of an epoch.

        Returns:
            (the largest known epoch up to this one, the start of the next known epoch); (NONE, NONE) if the epoch is
            NONE or above all known ones.
        """
        latest = self.latest_epoch
        if epoch == NONE or latest is None or epoch > latest:
            return NONE, NONE
        if epoch == latest:
            return epoch, log_end_offset
        at = bisect_right(self._entries, epoch, key=lambda entry: entry.epoch)
        return (self._entries[at - 1].epoch if at else epoch), self._entries[at].start_offset

    def move_to(self, directory: str) -> None:
        """Follow a rename of the partition's directory."""
        with self._file:
            self._path = f"{directory}/{FileKind.LEADER_EPOCHS}"

    def write(self) -> None:
        """Write the entries in memory to the file."""
        with self._file:
            self._fs.put(self._path, leader_epochs.encode(self._entries), beside=f"{self._path}.tmp")

    def _write_later(self) -> None:
        self._scheduler.schedule(f"leader-epoch-cache-flush-{self._name}", self._write_if_there)

    def _write_if_there(self) -> None:
        # A disk error takes the directory offline, which reports it; a missing file means that the log was deleted.
        with contextlib.suppress(KafkaStorageError), self._guard, contextlib.suppress(FileNotFoundError):
            self.write()


# ---- topic id --------------------------------------------------------------------------------------------------------


class TopicIdFile:
    """The topic id of a log. A new id is only in memory until `maybe_flush` writes it.

    Attributes:
        topic_id: None if the log has no topic id.
    """

    def __init__(self, fs: LocalFileSystem, directory: str, name: str) -> None:
        """Read the file, if it exists.

        Raises:
            OSError: the file cannot be read, or is not in its format.
            CorruptFileError: the file ends too early, or has no topic id; a broker would not start.
        """
        self.topic_id: uuid.UUID | None = None
        self._fs = fs
        self._name = name
        self._is_written = True
        #: Held while the file is written or renamed, because a scheduled task writes it, too.
        self._lock = threading.Lock()
        self._path = f"{directory}/{FileKind.PARTITION_METADATA}"
        if fs.exists(self._path):
            try:
                decoded = properties.decode_partition_metadata(read_file(fs, self._path), self._path)
            except CorruptFileError as error:
                raise io_error_of(error) from error
            self.topic_id = decoded.topic_id

    @property
    def is_pending(self) -> bool:
        """Whether the id is only in memory."""
        return not self._is_written

    def assign(self, topic_id: uuid.UUID) -> None:
        """Set the id; the next `maybe_flush` writes it.

        Raises:
            InconsistentTopicIdError: the log has another id.
        """
        with self._lock:
            if self.topic_id is None:
                self.topic_id, self._is_written = topic_id, False
            elif self.topic_id != topic_id:
                own, given = properties.encode_id(self.topic_id), properties.encode_id(topic_id)
                raise InconsistentTopicIdError(
                    f"Tried to assign topic ID {given} to log for topic partition {self._name}, but log already "
                    f"contained topic ID {own}"
                )

    def maybe_flush(self) -> None:
        """Write an id that is only in memory; durable on return."""
        if self._is_written:
            return
        with self._lock:
            if self.is_pending and self.topic_id is not None:
                data = properties.encode_partition_metadata(properties.PartitionMetadata(self.topic_id))
                self._fs.put(self._path, data, beside=f"{self._path}{Temporary.TMP}")
                self._is_written = True

    def move_to(self, directory: str) -> None:
        """Follow a rename of the partition's directory."""
        with self._lock:
            self._path = f"{directory}/{FileKind.PARTITION_METADATA}"
