"""`Start`: the effects of a broker's start on some log directories, as a value.

`storage.check` derives it from the plan of a load, as all other code does; commands print it. It has an event for each
effect that an operator must hear of before the start, and the range of offsets that each partition serves.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from cordwood.common.text import bytes_text, names_text, number, printable
from cordwood.common.types import TopicPartition


class Effect(StrEnum):
    """Effects of a start, worst first. The values are used in `--json`."""

    DOES_NOT_START = "does not start"
    DIRECTORY_OFFLINE = "directory offline"
    PARTITION_OFFLINE = "partition offline"
    STRAY = "stray"
    STARTS_EMPTY = "starts empty"
    CUT = "cut"
    RECORDS_MISSING = "records missing"
    SEGMENT_DELETED = "segment deleted"
    CLEANER_ENDS = "cleaner ends"


#: After these events a broker does not serve the records in the partition's directory.
NOT_SERVED = frozenset({Effect.PARTITION_OFFLINE, Effect.STRAY, Effect.STARTS_EMPTY})


@dataclass(frozen=True, slots=True)
class Event:
    """An unwanted effect of a broker's start, or of the time soon after.

    Attributes:
        path: the file that causes the effect; for an offline directory, the directory.
        partition: the affected partition; None for a log directory or the whole node.
        offset: for a cut, the end offset of the log after it; for a deleted segment, its base offset.
        records: number of lost records, as far as they can be read; None if they are not counted.
        at_least: only a sample of the lost records was read, so `records` is a lower limit.
    """

    effect: Effect
    path: str
    why: str
    partition: TopicPartition | None = None
    offset: int | None = None
    records: int | None = None
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class Served:
    """The offsets that consumers of a partition can read: from `log_start_offset` on, below `log_end_offset`."""

    log_start_offset: int
    log_end_offset: int


@dataclass(frozen=True, slots=True)
class Start:
    """The effects of a broker's start.

    Attributes:
        is_node: True if the user named a broker's log directories, and not only partitions.
        partitions: number of partitions that the broker should serve.
        served: offsets of each served partition; empty if no log was read.
        offline: number of partitions in a directory that the broker takes offline.
        unread_bytes: size of segments that the start reads whole, of which a quick check read only a sample.
    """

    is_node: bool
    partitions: int
    events: tuple[Event, ...] = ()
    served: Mapping[TopicPartition, Served] = field(default_factory=dict)
    offline: int = 0
    unread_bytes: int = 0

    @property
    def starts(self) -> bool | None:
        """Whether the broker starts and keeps running; None if that depends on data that was not read."""
        if self.of(Effect.DOES_NOT_START):
            return False
        return None if self.unread_bytes else True

    @property
    def good(self) -> bool:
        """Whether the broker starts and serves all records in the directories, as far as they were read."""
        return not any(_matters(event) for event in self.events)

    def of(self, *effects: Effect) -> list[Event]:
        """Return the events with one of these effects."""
        return [event for event in self.events if event.effect in effects]

    def at(self, partition: TopicPartition) -> list[Event]:
        """Return the events of one partition."""
        return [event for event in self.events if event.partition == partition]

    @property
    def line(self) -> str:
        """Summary of the start in one line."""
        if not self.unread_bytes or self.starts is False:
            return self._line
        size = bytes_text(self.unread_bytes)
        return f"{self._line}, unless there is damage in the {size} that it reads first, of which a sample was read"

    @property
    def _line(self) -> str:
        if refused := self.of(Effect.DOES_NOT_START):
            more = f" (and for {number(len(refused) - 1, 'more reason')})" if len(refused) > 1 else ""
            return f"{self._broker} does not start: {_why(refused[0])}{more}"
        phrases = [*self._phrases()]
        if phrases:
            verb = "starts, but" if self.is_node else "loads them, but" if self.partitions != 1 else "loads it, but"
            return f"{self._broker} {verb} {'; '.join(phrases)}"
        if not self.is_node:
            return f"{self._broker} loads {'it' if self.partitions == 1 else 'them'} whole"
        if not self.partitions:
            return f"{self._broker} starts; there is no partition to serve"
        return f"{self._broker} starts and serves {_all(self.partitions)}"

    @property
    def _broker(self) -> str:
        if self.is_node:
            return "a broker"
        return "a broker that gets this partition" if self.partitions == 1 else "a broker that gets these partitions"

    def _phrases(self) -> Sequence[str]:
        found = []
        for event in self.of(Effect.DIRECTORY_OFFLINE):
            found.append(f"takes {printable(event.path)} offline: {event.why}")
        if self.offline:
            found.append(f"does not serve the {number(self.offline, 'partition')} there")
        texts = {
            Effect.PARTITION_OFFLINE: "does not serve {}",
            Effect.STRAY: "takes {} for a stray and serves none of its records",
            Effect.STARTS_EMPTY: "starts {} empty",
        }
        for what, text in texts.items():
            if events := self.of(what):
                found.append(f"{text.format(_names(events))}: {_why(events[0])}")
        if cuts := [event for event in self.of(Effect.CUT) if _matters(event)]:
            first = cuts[0]
            name = "the log" if first.partition is None else str(first.partition)
            least = "at least " if first.at_least else ""
            goes = "" if not first.records else f" ({least}{number(first.records, 'record')} behind it go)"
            more = f", and {number(len(cuts) - 1, 'more log')}" if len(cuts) > 1 else ""
            found.append(f"cuts {name} at offset {first.offset:,}{goes}{more}")
        if missing := self.of(Effect.RECORDS_MISSING):
            found.append(f"serves {_names(missing)} without records that are missing: {_why(missing[0])}")
        if deleted := self.of(Effect.SEGMENT_DELETED):
            found.append(f"deletes {number(len(deleted), 'segment')} of {_names(deleted)} at the first retention run")
        if ended := self.of(Effect.CLEANER_ENDS):
            found.append(f"its cleaner ends and compacts nothing: {_why(ended[0])}")
        if found and self.is_node and self.served:
            whole = len([one for one in self.served if not any(map(_matters, self.at(one)))])
            if whole < self.partitions:
                served = f"{whole:,} of {number(self.partitions, 'partition')}"
                found.append(f"{served} {'is' if whole == 1 else 'are'} served whole")
        return found


def _matters(event: Event) -> bool:
    """Return whether the event loses anything: a cut behind the last whole batch loses no readable record."""
    return event.effect is not Effect.CUT or bool(event.records)


def _why(event: Event) -> str:
    return f"{printable(event.path)}: {printable(event.why)}"


def _names(events: Sequence[Event]) -> str:
    of_partitions = [str(event.partition) for event in events if event.partition is not None]
    names = dict.fromkeys(of_partitions or [posixpath.basename(event.path) for event in events])
    return names_text(list(map(printable, names)))


def _all(partitions: int) -> str:
    return "its one partition" if partitions == 1 else f"all {partitions:,} partitions"
