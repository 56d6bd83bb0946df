"""The id of a live log's topic, and its file.

Source: Kafka PartitionMetadataFile.
"""

from __future__ import annotations

import threading
import uuid

from cordwood.common.errors import CorruptFileError, InconsistentTopicIdError
from cordwood.fs.base import LocalFileSystem
from cordwood.live.failures import io_error_of
from cordwood.storage.formats import properties
from cordwood.storage.formats.filenames import FileKind, Temporary
from cordwood.storage.log.files import read_file


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
