"""Every error that Cordwood raises on purpose, in one tree.

    CordwoodError
    ├ RequestError                 you asked for something impossible
    │ ├ NotFoundError                there is no such file, directory or partition
    │ ├ ConfigError                  a config name or value that Kafka would reject
    │ ├ LockedError                  a broker or another program holds the directory
    │ ├ NoSpaceError                 a disk is too small for the output
    │ ├ TooLittleMemoryError         the keys of a partition need more memory than its task may use
    │ └ MissingCodecError            the library for a compression codec is not installed
    ├ StoreError                   an object store failed; the state of the data there is unknown
    │ └ StoreAccessError             it refuses access
    ├ LogError                     a live log rejects a call; each class below has Kafka's name and protocol error
    │ ├ InvalidRecordError, RecordValidationError, CorruptRecordError, …   of an append
    │ ├ OffsetOutOfRangeError, …                                         of a read
    │ └ KafkaStorageError                                                the disk, or a log directory that failed
    └ DataError                    the data is not what it claims to be
      ├ CorruptBatchError            a batch, message or record of a .log file
      ├ CorruptMessageError          the key or value of a record of one of Kafka's internal topics
      ├ UndecodableError             a key or value that the chosen decoder cannot decode
      ├ CorruptFileError             an index, snapshot, checkpoint or property file
      ├ BadNameError                 a file or directory name that Kafka could not have given
      └ BatchTooLargeError           a batch that decompresses to more than max_batch_bytes

A message names the problem, its location, the evidence and the next step. The same facts are attributes: ``path`` and
``position`` (byte in that file), for a batch its ``offset``, and ``kind``, the problem in a word; each is None if it
does not apply. Code that treats errors differently checks their class or kind; the wording of a message may change.

Code that only sees bytes (`record`) raises with ``path=None``; the code that opened the file fills it in with `at`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Self


class CordwoodError(Exception):
    """Root of all errors of this package."""


class RequestError(CordwoodError):
    """The request cannot be met with any data."""


class NotFoundError(RequestError):
    """Nothing exists at a requested path."""


class ConfigError(RequestError):
    """A config name or value that Kafka would reject."""


class LockedError(RequestError):
    """Another process holds the log directory."""


class StoreError(CordwoodError):
    """An object store failed: the network, the server, or an answer that cannot be used.

    So the state of the data there is unknown: the failure does not mean that data is damaged or a file is missing.

    Attributes:
        path: the requested path; empty if the message contains it.
    """

    def __init__(self, what: str, path: str = "") -> None:
        super().__init__(what, path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path}: {self.args[0]}" if self.path else str(self.args[0])


class StoreAccessError(StoreError):
    """An object store refuses access: the credentials are missing, wrong, expired or insufficient."""


class UnsupportedError(StoreError):
    """An object store does not support this kind of request."""


class NoSpaceError(RequestError):
    """There is no space for the output; the message names the disk."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """The memory that a table of keys needs, and the memory available for it.

    Attributes:
        keys: number of keys that the table has to hold so far.
        bytes_needed: memory of the table for these keys.
        bytes_allowed: memory that a task may use.
        tasks: number of concurrent tasks with the same limit.
        bytes_enough: maximum memory of the table, however many keys follow; None if unknown.
    """

    keys: int
    bytes_needed: int
    bytes_allowed: int
    tasks: int = 1
    bytes_enough: int | None = None

    @property
    def memory_min(self) -> int:
        """The `--memory` below which the same task would fail again at the same record."""
        return self.bytes_needed * self.tasks

    @property
    def memory_enough(self) -> int | None:
        """The smallest `--memory` that is certainly enough for the task; None if unknown."""
        return None if self.bytes_enough is None else self.bytes_enough * self.tasks

    def __str__(self) -> str:
        each = f", a task's share: {self.tasks} tasks run at once" if self.tasks > 1 else ""
        text = (
            f"A table of {self.keys} keys takes {self.bytes_needed} bytes, and {self.bytes_allowed} are allowed "
            f"(--memory {self.bytes_allowed * self.tasks}{each}). Give at least --memory {self.memory_min}"
        )
        if self.memory_enough is not None:
            text += f"; --memory {self.memory_enough} is enough, however many keys follow"
        if self.tasks > 1:
            alone = f"at least {self.bytes_needed}" if self.bytes_enough is None else f"{self.bytes_enough}"
            text += f". Cleaned alone (--topic, --partition), this partition needs --memory {alone}"
        return text


class TooLittleMemoryError(RequestError):
    """The keys of a partition need more memory than its task may use."""

    def __init__(self, need: MemoryNeed) -> None:
        super().__init__(need)
        self.need = need

    @property
    def bytes_needed(self) -> int:
        """Memory needed by the key table, in bytes."""
        return self.need.bytes_needed

    @property
    def bytes_allowed(self) -> int:
        """Memory that the task may use, in bytes."""
        return self.need.bytes_allowed


class TasksHangError(RequestError):
    """Tasks made no progress for too long, and were cancelled. A later run may succeed."""


class MissingCodecError(RequestError):
    """A compression library is missing; the message names the package to install."""


class BatchProblem(StrEnum):
    """The `kind` of a `CorruptBatchError` about a batch whose records cannot be read."""

    #: The codec is unknown or not allowed, or cannot decompress the records.
    COMPRESSION = "compression"
    #: The fields of a record are invalid.
    RECORD = "record"
    #: Bytes follow the last record.
    TRAILING_BYTES = "trailing-bytes"
    #: The batch ends before its last record.
    MISSING_RECORDS = "missing-records"
    #: A compressed message set (magic 0 and 1), or a message in it, is invalid.
    INNER_MESSAGE = "inner-message"
    #: The CRC of a message in a compressed message set is wrong.
    INNER_CRC = "inner-crc"


class IndexProblem(StrEnum):
    """The `kind` of a `CorruptFileError` about an index file."""

    #: An entry is invalid, or does not fit the previous one.
    ENTRY = "entry"
    #: The file ends inside an entry.
    INCOMPLETE_ENTRY = "incomplete-entry"
    #: An entry has a version that Kafka does not support.
    VERSION = "version"


class TextProblem(StrEnum):
    """The `kind` of a `CorruptFileError` about a checkpoint file or `partition.metadata`.

    For MALFORMED, Kafka's readers raise an I/O error, which takes the log directory offline. For the others they raise
    errors that no code of Kafka expects there; most of them stop the start of the broker.
    """

    #: The file violates its format: version, shape of a line, number of entries.
    MALFORMED = "malformed"
    #: The format is right, but a value is invalid: not a number, negative, or not a topic id.
    VALUE = "value"
    #: The file ends too early.
    MISSING_LINE = "missing-line"


class DataError(CordwoodError):
    """Bytes that are not what their name or header claims.

    Attributes:
        kind: the problem in a word; None if no caller needs to distinguish it from other errors of its class.
        path: the file, as the user would name it; None while only bytes are known.
        position: byte in that file where the damage starts.
        offset: log offset of the affected batch or record.
        advice: a sentence about the next step, if it depends on other data; else empty.
    """

    def __init__(
        self,
        what: str,
        *,
        kind: BatchProblem | IndexProblem | TextProblem | None = None,
        path: str | None = None,
        position: int | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.kind = kind
        self.path = path
        self.position = position
        self.offset = offset
        self.advice = ""

    def at(self, path: str) -> Self:
        """Fill in the file, and return this same error.

        It changes in place instead of being copied, because a copy would lose the traceback, the cause and the notes.
        """
        self.path = path
        return self

    def __str__(self) -> str:
        place = "" if self.path is None else f" in {self.path}"
        if self.position is not None:
            place += f" at position {self.position}"
        if self.offset is not None:
            place += f" (offset {self.offset})"
        return self.what + place + (f". {self.advice}" if self.advice else "")


class CorruptBatchError(DataError):
    """A batch, message or record that Kafka would reject."""


class CorruptMessageError(DataError, ValueError):
    """The key or value of a record in an internal topic does not have the format of that topic."""


class UndecodableError(DataError):
    """The decoder chosen by the user cannot decode a key or value; `path` is its partition's directory."""


class CorruptFileError(DataError):
    """An index, snapshot, checkpoint or property file that Kafka would reject."""


class BadNameError(DataError):
    """A name that does not follow Kafka's rules; never used as a path."""


class BatchTooLargeError(DataError):
    """A batch decompresses to more bytes than `max_batch_bytes` allows."""


# ---- live logs -------------------------------------------------------------------------------------------------------


class LogError(CordwoodError):
    """A live log rejects a call. Kafka's exception of the same name ends in `Exception` instead of `Error`.

    Attributes:
        protocol_error: name of the error in a broker's answer to a client; None if it has none of its own.
    """

    protocol_error: ClassVar[str | None] = None


class KafkaError(LogError):
    """An error without a class in Kafka."""

    protocol_error = "UNKNOWN_SERVER_ERROR"


class IllegalArgumentError(LogError, ValueError):
    """An argument that the caller should not have passed: a negative offset, an unknown version."""

    protocol_error = "UNKNOWN_SERVER_ERROR"


class Rejection(StrEnum):
    """Reasons for rejecting batches or records, as counted by brokers."""

    MAGIC = "magic"  #: formats are mixed
    CHECKSUM = "checksum"  #: it differs from the checksum of the bytes
    OFFSET_OR_SEQUENCE = "offset or sequence"  #: offsets, counts, sequences, or markers of a client
    NO_KEY = "no key"  #: a record without a key for a compacted topic


class InvalidRecordError(LogError):
    """A producer may not send this batch: its offsets, its sequence or its kind are invalid.

    Attributes:
        rejection: reason under which brokers count it; None if they do not.
    """

    protocol_error = "INVALID_RECORD"

    def __init__(self, message: str, rejection: Rejection | None = None) -> None:
        super().__init__(message)
        self.rejection = rejection


@dataclass(frozen=True, slots=True)
class RecordProblem:
    """The problem of one record in a rejected batch.

    Attributes:
        index: index of the record in its batch.
        rejection: reason under which brokers count it; None if they do not.
    """

    index: int
    message: str
    rejection: Rejection | None = None


class RecordValidationError(LogError):
    """Records of a batch are rejected, and with them the whole batch.

    Attributes:
        problems: one per rejected record.
    """

    def __init__(self, problems: tuple[RecordProblem, ...], *, timestamps: bool) -> None:
        super().__init__("One or more records have been rejected: " + "; ".join(p.message for p in problems[:3]))
        self.problems = problems
        self.protocol_error = "INVALID_TIMESTAMP" if timestamps else "INVALID_RECORD"  # type: ignore[misc]


class CorruptRecordError(LogError):
    """The bytes of an append do not form a batch, or do not match their checksum.

    Attributes:
        rejection: reason under which brokers count it; None if they do not.
    """

    protocol_error = "CORRUPT_MESSAGE"

    def __init__(self, message: str, rejection: Rejection | None = None) -> None:
        super().__init__(message)
        self.rejection = rejection


class RecordTooLargeError(LogError):
    """A batch is larger than `max.message.bytes`."""

    protocol_error = "MESSAGE_TOO_LARGE"


class RecordBatchTooLargeError(LogError):
    """An append is larger than the maximum size of a segment."""

    protocol_error = "RECORD_LIST_TOO_LARGE"


class UnsupportedForMessageFormatError(LogError):
    """Idempotent or transactional records for a message format that cannot hold them."""

    protocol_error = "UNSUPPORTED_FOR_MESSAGE_FORMAT"


class OffsetsOutOfOrderError(LogError):
    """The batches of a follower's append do not ascend."""


class UnexpectedAppendOffsetError(LogError):
    """A follower's append begins below the end of the log."""

    def __init__(self, message: str, first_offset: int, last_offset: int) -> None:
        super().__init__(message)
        self.first_offset = first_offset
        self.last_offset = last_offset


class OffsetOutOfRangeError(LogError):
    """An offset below the log's start, or above its end or high watermark."""

    protocol_error = "OFFSET_OUT_OF_RANGE"


class InvalidProducerEpochError(LogError):
    """A newer producer with the same id has written before."""

    protocol_error = "INVALID_PRODUCER_EPOCH"


class OutOfOrderSequenceError(LogError):
    """A producer's batch does not follow its previous one."""

    protocol_error = "OUT_OF_ORDER_SEQUENCE_NUMBER"


class InvalidTxnStateError(LogError):
    """A batch does not fit the state of its producer's transaction."""

    protocol_error = "INVALID_TXN_STATE"


class TransactionCoordinatorFencedError(LogError):
    """A marker from a coordinator that has been replaced."""

    protocol_error = "TRANSACTION_COORDINATOR_FENCED"


class PolicyViolationError(LogError):
    """The topic's policy does not allow the call."""

    protocol_error = "POLICY_VIOLATION"


class IllegalStateError(LogError):
    """The call is not possible in the current state of the log."""

    protocol_error = "UNKNOWN_SERVER_ERROR"


class InvalidOffsetError(LogError):
    """An index entry is below the last one."""


class LogSegmentOffsetOverflowError(LogError):
    """An offset does not fit the 31 bits above its segment's base offset."""


class LogCleaningAbortedError(LogError):
    """The clean of a log was aborted."""


class CleanFailedError(LogError):
    """A live log could not be cleaned; it is unchanged, or only some of its groups of segments are cleaned.

    Attributes:
        kind: the reason in a word: `damage`, `full` (the disk; nothing is wrong with the log), `memory`, `other`, …
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class InconsistentTopicIdError(LogError):
    """The partition's directory belongs to another topic of the same name."""

    protocol_error = "INCONSISTENT_TOPIC_ID"


class LogDirNotFoundError(LogError):
    """The log directory was not configured."""

    protocol_error = "LOG_DIR_NOT_FOUND"


class KafkaStorageError(LogError):
    """A file could not be read or written, or the log directory failed before."""

    protocol_error = "KAFKA_STORAGE_ERROR"


class HangingError(KafkaStorageError):
    """The disk does not answer, and operations that wait for it were abandoned."""
