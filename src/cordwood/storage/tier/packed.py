"""Segments of one partition's tier in little memory, as a live log keeps all of them for as long as it is open.

A segment takes a row of 83 bytes. Behind all rows are its leader epochs, 12 bytes each, and its custom metadata:

    rows      │ id, offsets, sizes, times, number of epochs, position in the details │ the next segment …
    details   │ epoch 4, start offset 8 │ … │ custom metadata │ details of the next segment …

A `TierSegment` object takes 600 bytes and more, so it is made only when a caller takes a segment out.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from cordwood.common.types import NONE, override
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.tier.segments import CopyState, RemoteSegment, TopicIdPartition

#: The kinds of files whose sizes a manifest has, beside the `.log`.
SIZED = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX, FileKind.PRODUCER_SNAPSHOT)
#: Maximum number of leader epochs of a segment.
EPOCHS_MAX = (1 << 16) - 1
_EPOCH = struct.Struct("<iq")
#: Bits of the field `flags`.
_NO_ABORTED, _HAS_CUSTOM, _NO_CRC = 1, 2, 4
_ROW = np.dtype(
    [
        ("id", "V16"),
        ("start", "<i8"),
        ("end", "<i8"),
        ("max_timestamp", "<i8"),
        ("event_time", "<i8"),
        ("size", "<i4"),
        ("broker", "<i4"),
        ("crc32c", "<u4"),
        *((f"size of {kind}", "<i4") for kind in SIZED),
        ("rest", "<u4"),
        ("epochs", "<u2"),
        ("flags", "u1"),
    ]
)
_BUT_REST = [name for name in _ROW.names or () if name != "rest"]


@dataclass(frozen=True, slots=True)
class TierSegment:
    """A segment of a log in its tier.

    Attributes:
        segment: in state `COPY_FINISHED`.
        crc32c: checksum of its `.log`; None if it was never computed.
        index_bytes: sizes of its files of the kinds `SIZED`; NONE where it has no such file.
    """

    segment: RemoteSegment
    crc32c: int | None
    index_bytes: tuple[int, ...]

    @property
    def sizes(self) -> dict[FileKind, int]:
        """The size of each of its files, in bytes."""
        sizes = {kind: size for kind, size in zip(SIZED, self.index_bytes, strict=True) if size != NONE}
        return {FileKind.LOG: self.segment.size_bytes, **sizes}


class PackedSegments(Sequence[TierSegment]):
    """Segments of one partition, in their order; a value.

    Args:
        rows, rest: see the module.
    """

    def __init__(self, partition: TopicIdPartition, rows: npt.NDArray[np.void], rest: bytes) -> None:
        self._partition = partition
        self._rows = rows
        self._rest = rest

    @classmethod
    def of(cls, partition: TopicIdPartition, segments: Iterable[TierSegment]) -> PackedSegments:
        """Pack segments."""
        rows, rest = [], bytearray()
        for one in segments:
            each = one.segment
            assert each.topic_id_partition == partition, "a segment of another partition"
            assert each.state is CopyState.COPY_FINISHED, "a segment whose copy did not finish"
            custom = each.custom_metadata
            rows.append(
                (
                    base64.urlsafe_b64decode(f"{each.id}=="),
                    each.start_offset,
                    each.end_offset,
                    each.max_timestamp_ms,
                    each.event_time_ms,
                    each.size_bytes,
                    each.broker,
                    one.crc32c or 0,
                    *one.index_bytes,
                    len(rest),
                    len(each.epochs),
                    _NO_ABORTED * each.transaction_index_empty
                    | _HAS_CUSTOM * (custom is not None)
                    | _NO_CRC * (one.crc32c is None),
                )
            )
            for entry in each.epochs:
                rest += _EPOCH.pack(entry.epoch, entry.start_offset)
            rest += custom or b""
        return cls(partition, np.array(rows, _ROW), bytes(rest))

    @property
    def size_bytes(self) -> int:
        """Size of all `.log` objects, before compression and encryption by the tier."""
        return int(self._rows["size"].sum(dtype=np.int64))

    @property
    def end_offsets(self) -> npt.NDArray[np.int64]:
        """int64[segments], the last offset of each."""
        return self._rows["end"]

    @property
    def max_timestamps(self) -> npt.NDArray[np.int64]:
        """int64[segments], the largest timestamp of each, in ms."""
        return self._rows["max_timestamp"]

    @property
    def overlapping(self) -> int | None:
        """Index of the first segment that does not start after the end of its predecessor; None without one."""
        overlaps = np.flatnonzero(self._rows["start"][1:] <= self._rows["end"][:-1])
        return int(overlaps[0]) + 1 if overlaps.size else None

    def changes_since(self, base: PackedSegments) -> tuple[list[TierSegment], list[str]]:
        """Return the segments that differ from a base, and the ids of the base's changed or removed segments.

        A changed segment is in both.
        """
        before, now = base._by_id(), self._by_id()
        added = [self[at] for at, (key, content) in enumerate(now.items()) if before.get(key) != content]
        return added, [_id(key) for key, content in before.items() if now.get(key) != content]

    def _by_id(self) -> dict[bytes, tuple[object, ...]]:
        rows, parts = self._rows[_BUT_REST].tolist(), zip(self._starts, self._ends, strict=True)
        return {row[0]: (*row, self._rest[start:end]) for row, (start, end) in zip(rows, parts, strict=True)}

    @property
    def _starts(self) -> list[int]:
        """Where the details of each segment start."""
        starts: list[int] = self._rows["rest"].tolist()
        return starts

    @property
    def _ends(self) -> list[int]:
        return [*self._starts, len(self._rest)][1:]

    @override
    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> TierSegment: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TierSegment]: ...
    @override
    def __getitem__(self, index: int | slice) -> TierSegment | Sequence[TierSegment]:
        places = range(len(self))[index]
        if isinstance(places, range):
            return [self._segment(at) for at in places]
        return self._segment(places)

    @override
    def __iter__(self) -> Iterator[TierSegment]:
        return map(self._made, self._rows.tolist(), self._ends)

    @override
    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedSegments):
            is_same = self._partition == other._partition and self._rest == other._rest
            return is_same and self._rows.tobytes() == other._rows.tobytes()
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    @override
    def __hash__(self) -> int:
        return hash((self._partition, self._rows.tobytes(), self._rest))

    @override
    def __repr__(self) -> str:
        return f"PackedSegments({list(self)!r})"

    def _segment(self, at: int) -> TierSegment:
        end = int(self._rows["rest"][at + 1]) if at + 1 < len(self) else len(self._rest)
        return self._made(self._rows[at].item(), end)

    def _made(self, row: tuple[Any, ...], rest_end: int) -> TierSegment:
        key, start, end, max_timestamp, event_time, size, broker, crc32c, *indexes, at, epochs, flags = row
        behind = at + epochs * _EPOCH.size
        segment = RemoteSegment(
            topic=self._partition.topic,
            topic_id=self._partition.topic_id,
            partition=self._partition.partition,
            id=_id(key),
            start_offset=start,
            end_offset=end,
            size_bytes=size,
            max_timestamp_ms=max_timestamp,
            event_time_ms=event_time,
            broker=broker,
            epochs=tuple(EpochEntry(*entry) for entry in _EPOCH.iter_unpack(self._rest[at:behind])),
            custom_metadata=self._rest[behind:rest_end] if flags & _HAS_CUSTOM else None,
            state=CopyState.COPY_FINISHED,
            transaction_index_empty=bool(flags & _NO_ABORTED),
        )
        return TierSegment(segment, None if flags & _NO_CRC else crc32c, tuple(indexes))


def _id(data: bytes) -> str:
    return base64.urlsafe_b64encode(data)[:-2].decode()
