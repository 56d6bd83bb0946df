"""Read consecutive small segments as one segment.

A window costs about a millisecond of calls whatever its size, so reading thousands of small segments one by one takes
seconds. Joined segments share a window, and `part_numbers` maps each position back to its segment.

Do not join segments for a reader that uses key indexes or transaction indexes: these are read per segment. Opening a
joined segment checks that a batch starts at the start of each part, and that all batches have offsets of their part.
Otherwise it raises CorruptBatchError. Then read each of `parts_of` by itself: the result is the same, and errors have
the right file and position.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cordwood.common.errors import CorruptBatchError
from cordwood.common.types import override
from cordwood.fs.base import ReadableFile
from cordwood.kernels import scan
from cordwood.kernels.layout import BATCH_ROW, MIN_ENTRY_BYTES
from cordwood.storage.log.recovery import SegmentFiles
from cordwood.storage.log.segment import MAX_OFFSET, Segment

#: Maximum bytes of a segment to join. Larger ones are read from their own file, whose blocks an output can share.
PART_BYTES_MAX = 256 << 10
#: Maximum bytes of a joined segment: one window.
JOINED_BYTES_MAX = 4 << 20


@dataclass(frozen=True, slots=True)
class JoinedSegment(Segment):
    """Several segments read as one: name and mode of the first, modification time of the last, no indexes."""

    parts: tuple[Segment, ...] = ()

    @override
    def open(self) -> ReadableFile:
        return _JoinedFile(self)

    @override
    def place_of(self, position: int) -> tuple[str, int]:
        at = int(part_numbers(self, np.array([position]))[0])
        return self.parts[at].path, position - int(_starts(self)[at])


class _JoinedFile(ReadableFile):
    """The bytes of joined segments, in memory."""

    def __init__(self, segment: JoinedSegment) -> None:
        self.path = segment.path
        self._data = np.empty(segment.size_bytes, np.uint8)
        view, at = memoryview(self._data), 0
        for part in segment.parts:
            with part.open() as file:
                count = file.read_into(0, view[at : at + part.size_bytes])
            if count < part.size_bytes:
                raise CorruptBatchError("the file is shorter than it was a moment ago", path=part.path, position=count)
            at += count
        self._check(segment)

    def _check(self, segment: JoinedSegment) -> None:
        """Raise CorruptBatchError unless each segment has only batches of its own offsets and of magic 2."""
        data = self._data
        rows = np.empty(data.size // MIN_ENTRY_BYTES[0] + 1, BATCH_ROW)
        count, consumed, _ = scan.scan_batches(data.ctypes.data, data.size, data.size, 0, True, rows)
        rows = rows[:count]
        parts = part_numbers(segment, rows["position"])
        bases = np.array([part.base_offset for part in segment.parts])
        following = segment.following
        ends = np.append(bases[1:], MAX_OFFSET if following is None else following.base_offset)
        is_sound = consumed == data.size and np.isin(_starts(segment), rows["position"]).all()
        if is_sound:
            belongs = (rows["base_offset"] >= bases[parts]) & (rows["last_offset"] < ends[parts])
            is_sound = (belongs & (rows["magic"] == 2)).all()
        if not is_sound:
            raise CorruptBatchError("these segments cannot be read as one", path=self.path)

    @override
    def size(self) -> int:
        return self._data.size

    @override
    def read_into(self, position: int, target: memoryview) -> int:
        data = self._data[position : position + len(target)]
        target[: data.size] = data.data
        return data.size

    @override
    def read(self, position: int, size_bytes: int) -> bytes:
        return self._data[position : position + size_bytes].tobytes()

    @override
    def close(self) -> None:
        pass


def parts_of(segment: Segment) -> tuple[Segment, ...]:
    """Return the segments that were joined; the segment itself if it is not joined."""
    return segment.parts if isinstance(segment, JoinedSegment) else (segment,)


def part_numbers(segment: Segment, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the index in `parts_of` of the segment that holds each position."""
    return np.searchsorted(_starts(segment), positions, side="right") - 1


def _starts(segment: Segment) -> npt.NDArray[np.int64]:
    """Return the position of each part in the joined segment."""
    sizes = [part.size_bytes for part in parts_of(segment)]
    return np.cumsum([0, *sizes[:-1]])


def joined(segments: Iterable[Segment], *, apart: Collection[int] = ()) -> Iterator[Segment]:
    """Yield segments in their order; join consecutive small ones.

    Args:
        segments: segments in log order.
        apart: base offsets of segments not to join.
    """
    parts: list[Segment] = []
    size = 0
    for segment in segments:
        # An empty part would start at the same position as the next one, so leave it apart.
        is_apart = not 0 < segment.size_bytes <= PART_BYTES_MAX or segment.base_offset in apart
        if parts and (is_apart or size + segment.size_bytes > JOINED_BYTES_MAX):
            yield _as_one(parts)
            parts, size = [], 0
        if is_apart:
            yield segment
            continue
        parts.append(segment)
        size += segment.size_bytes
    if parts:
        yield _as_one(parts)


def _as_one(parts: Sequence[Segment]) -> Segment:
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return first
    size = sum(part.size_bytes for part in parts)
    log = replace(first.files.log, size_bytes=size, mtime_ns=last.files.log.mtime_ns)
    files = SegmentFiles(first.base_offset, log, {})
    return JoinedSegment(first.fs, first.directory, files, last.following, first.index_root, tuple(parts))
