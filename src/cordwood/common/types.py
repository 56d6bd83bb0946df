"""Small values shared by every layer, and the clocks. They use neither files nor Spark."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import override as override
else:

    def override(method):
        """Mark a method that overrides a method of a base class; type checkers verify this.

        Like `typing.override` of Python 3.12; importing `typing_extensions` would take time at every start.
        """
        method.__override__ = True
        return method


#: Kafka's value for a missing timestamp, producer id or epoch, sequence, leader epoch or offset.
NONE = -1


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of a topic. Its text form is the name of its directory."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


#: The bits of a batch's attributes that hold its codec.
CODEC_MASK = 7


class Codec(IntEnum):
    """Compression of a batch's records: the low three bits of its attributes.

    Names and numbers are Kafka's. A new codec is a member here, and its functions are a row of the table at the end of
    `record.compression`; a fast path for many batches is a row of `record.bodies`.
    """

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def label(self) -> str:
        """Kafka's name of the codec, as in `compression.type`."""
        return self.name.lower()

    @property
    def magic_min(self) -> int:
        """The lowest magic of the batches that Kafka allows the codec in."""
        return 2 if self is Codec.ZSTD else 0

    @classmethod
    def of(cls, attributes: int) -> Codec | None:
        """Return the codec in a batch's attributes, or None if Kafka has no codec of the number."""
        number = attributes & CODEC_MASK
        return cls(number) if number <= max(cls) else None

    @classmethod
    def label_in(cls, attributes: int) -> str:
        """Return the label of the codec in a batch's attributes; for an unknown codec, its number."""
        codec = cls.of(attributes)
        return f"unknown({attributes & CODEC_MASK})" if codec is None else codec.label


class TimestampType(IntEnum):
    """The meaning of a record's timestamp; magic 0 has no timestamp."""

    NONE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1

    @property
    def label(self) -> str:
        """Kafka's name, as in `message.timestamp.type`."""
        return {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}[self.value]


class Isolation(StrEnum):
    """Kafka's `isolation.level` of a consumer."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class ControlType(IntEnum):
    """The type of a control record: the second number in its key."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


# ---- clocks ----------------------------------------------------------------------------------------------------------

# They are passed as arguments, so that a test may move them.
#
#     wall        the time of day, for records and for people; it can be set, even by hours
#     monotonic   advances evenly from an arbitrary start; for delays, periods and timeouts

#: Returns milliseconds; the wall clock counts them since 1970.
Clock = Callable[[], int]


def system_clock() -> int:
    """Return the time of this machine's wall clock."""
    return time.time_ns() // 1_000_000


def monotonic_clock() -> int:
    """Return the time of this machine's monotonic clock."""
    return time.monotonic_ns() // 1_000_000
