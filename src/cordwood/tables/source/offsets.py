"""The limits of a read in each partition, parsed from options, and the JSON that Kafka's source uses for them.

    earliest, latest                            Everywhere
    {"orders":{"0":23,"1":-2}}                  ByPartition: -2 is the earliest, -1 the latest
    1700000000000                               SinceTime
    {"orders":{"0":1700000000000}}              SinceTimes: in milliseconds

A stream's offsets have the second form. Each offset is that of the next record: an end is not included.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from cordwood.common.errors import RequestError
from cordwood.common.types import TopicPartition

EARLIEST = -2
LATEST = -1
_WORDS = {"earliest": EARLIEST, "latest": LATEST}

Offsets = Mapping[TopicPartition, int]
#: Identifies the partition that a stream read, even if its topic is recreated; see `marks`. A checkpoint stores it as a
#: topic without partitions, such as `orders-0@kh0ERQ6WToCnIzrMNpUr_A`: Kafka's source ignores it, and no topic has a @
#: in its name.
Marks = Mapping[TopicPartition, str]
_MARK = "@"
#: A stream's offsets as Spark's Python API passes them: topic, partition, offset.
OffsetsDocument = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Everywhere:
    """The same limit in all partitions: EARLIEST or LATEST."""

    offset: int


@dataclass(frozen=True, slots=True)
class ByPartition:
    """An offset for each partition; EARLIEST and LATEST are possible values."""

    offsets: Offsets


@dataclass(frozen=True, slots=True)
class SinceTime:
    """The first record at or after a time, in all partitions."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class SinceTimes:
    """A time for each partition."""

    timestamps: Offsets


Limit = Everywhere | ByPartition | SinceTime | SinceTimes


def parse_offsets(text: str) -> Limit:
    """Parse `startingOffsets` or `endingOffsets`."""
    word = text.strip().lower()
    if word in _WORDS:
        return Everywhere(_WORDS[word])
    offsets = _by_partition(text, 'earliest, latest, or offsets such as {"orders":{"0":23,"1":-1}}')
    for partition, offset in offsets.items():
        if offset < EARLIEST:
            raise RequestError(f"{offset} is no offset of {partition}. -2 is the earliest, -1 the latest")
    return ByPartition(offsets)


def parse_times(text: str) -> Limit:
    """Parse `startingOffsetsByTimestamp` or `endingOffsetsByTimestamp`."""
    return SinceTimes(_by_partition(text, 'milliseconds such as {"orders":{"0":1700000000000,"1":1700000000000}}'))


def parse_partitions(text: str) -> frozenset[TopicPartition]:
    """Parse `assign`, such as `{"orders":[0,1]}`."""
    document = _document(text)
    if (
        isinstance(document, dict)
        and all(isinstance(numbers, list) and all(_is_number(one) for one in numbers) for numbers in document.values())
        and any(document.values())
    ):
        return frozenset(TopicPartition(topic, one) for topic, numbers in document.items() for one in numbers)
    raise RequestError(f'{text!r}: give partitions such as {{"orders":[0,1]}}')


def to_document(offsets: Offsets, marks: Marks = MappingProxyType({})) -> OffsetsDocument:
    """Convert offsets to the document of Kafka's source in a checkpoint, sorted by partition, and append marks."""
    found: OffsetsDocument = {}
    for partition in sorted(offsets):
        found.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return found | {f"{partition}{_MARK}{marks[partition]}": {} for partition in sorted(marks)}


def marks_in(document: OffsetsDocument) -> dict[TopicPartition, str]:
    """Return the marks in a checkpoint."""
    found = {}
    for key in document:
        name, at, mark = key.rpartition(_MARK)
        topic, _, number = name.rpartition("-")
        if at:
            found[TopicPartition(topic, int(number))] = mark
    return found


def from_document(document: OffsetsDocument) -> dict[TopicPartition, int]:
    """Return the offsets in a checkpoint of this source, or of Kafka's."""
    return {
        TopicPartition(topic, int(number)): offset
        for topic, numbers in document.items()
        for number, offset in numbers.items()
    }


def check_limits(starting: Limit, ending: Limit) -> None:
    """Raise RequestError unless a batch can have these limits.

    Raises:
        RequestError: the start is the latest, the end is the earliest, or the two name different partitions.
    """
    if LATEST in _special(starting):
        raise RequestError("A batch cannot start at the latest offset: there is nothing behind it")
    if EARLIEST in _special(ending):
        raise RequestError("A batch cannot end at the earliest offset: there is nothing before it")
    match starting, ending:
        case (ByPartition(starts), ByPartition(ends)) | (SinceTimes(starts), SinceTimes(ends)):
            if starts.keys() != ends.keys():
                raise RequestError(f"Start and end are for different partitions: {_names(starts.keys() ^ ends.keys())}")


def _special(limit: Limit) -> set[int]:
    match limit:
        case Everywhere(offset):
            return {offset}
        case ByPartition(offsets):
            return set(offsets.values())
    return set()


class Readable(Protocol):
    """The readable offsets of one partition."""

    @property
    def start_offset(self) -> int:
        """The lowest offset that a consumer can read."""

    @property
    def end_offset(self) -> int:
        """The offset behind the last one that a consumer can read: the high watermark, or the last stable offset."""

    def first_since(self, timestamp: int) -> int | None:
        """Return the offset of the first readable record at or after a time, or None if all are older."""


def check_names(limit: Limit, partitions: Iterable[TopicPartition], what: str) -> None:
    """Raise RequestError unless a limit names exactly these partitions.

    Args:
        what: the option's name, for messages.
    """
    match limit:
        case ByPartition(wanted) | SinceTimes(wanted):
            if different := wanted.keys() ^ set(partitions):
                raise RequestError(
                    f"{what} must name all partitions that are read, and no other ones: {_names(different)}"
                )


def resolve(limit: Limit, partition: TopicPartition, there: Readable, *, what: str, newest_if_none: bool) -> int:
    """Return the offset of a limit in a partition.

    Args:
        partition: one of the partitions that the limit names, if it names any.
        there: the partition's readable offsets.
        what: the option's name, for messages.
        newest_if_none: if all records are older than the time, return the latest offset instead of raising an error.
    """
    match limit:
        case Everywhere(offset):
            wanted = offset
        case ByPartition(offsets):
            wanted = offsets[partition]
        case SinceTime(timestamp):
            wanted = _since(timestamp, partition, there, what=what, newest_if_none=newest_if_none)
        case SinceTimes(timestamps):
            wanted = _since(timestamps[partition], partition, there, what=what, newest_if_none=newest_if_none)
    return {EARLIEST: there.start_offset, LATEST: there.end_offset}.get(wanted, wanted)


def _since(timestamp: int, partition: TopicPartition, there: Readable, *, what: str, newest_if_none: bool) -> int:
    found = there.first_since(timestamp)
    if found is None and not newest_if_none:
        raise RequestError(
            f"{what}: no record of {partition} is as new as {timestamp}. To begin behind its last record then, set "
            "startingOffsetsByTimestampStrategy to latest"
        )
    return LATEST if found is None else found


def _by_partition(text: str, example: str) -> dict[TopicPartition, int]:
    document = _document(text)
    if isinstance(document, dict) and all(
        isinstance(numbers, dict) and all(key.isdecimal() and _is_number(one) for key, one in numbers.items())
        for numbers in document.values()
    ):
        return from_document(document)
    raise RequestError(f"{text!r}: give {example}")


def _document(text: str) -> object:
    try:
        found: object = json.loads(text)
    except ValueError:
        return None
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _names(partitions: set[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions)))
