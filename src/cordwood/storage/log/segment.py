"""One segment of a partition: its files, opened for reading.

A segment can be cut into ranges of bytes: between two batches, at positions in its offset index.

    position of an entry         the cut
             ▼                      ▼
    … │ batch, last offset 41 │ batch 42 to 47 │ …

An index entry points to a batch, and the cut is after that batch. Its last offset separates the offsets on both sides.
A cut before the batch would need its first offset, which the header of a wrapper (magic 0 or 1) does not hold. An entry
is used only if it points to a batch with the offset of the entry. A known cut is reused only while the same batch is
after it: if a cleaned file has replaced the file since then, another batch may start at the same position.

Consecutive small segments can be read as one. A window costs about a millisecond of calls whatever its size, so reading
thousands of small segments one by one takes seconds. Joined segments share a window, and `part_numbers` maps each
position back to its segment. Do not join segments for a reader that uses key indexes or transaction indexes: these are
read per segment. Opening a joined segment checks that a batch starts at the start of each part, and that all batches
have offsets of their part. Otherwise it raises CorruptBatchError. Then read each of `parts_of` by itself: the result is
the same, and errors have the right file and position.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cordwood.common.errors import CorruptBatchError, DataError
from cordwood.common.types import override
from cordwood.fs.base import ReadableFile, Store
from cordwood.kernels.layout import BATCH_ROW, HEADER, MIN_ENTRY_BYTES, BatchRows
from cordwood.record import headers
from cordwood.record.columns import BatchWindow, OnDamage, is_valid
from cordwood.storage.formats import offset_index, time_index, transaction_index
from cordwood.storage.formats.filenames import FileKind, key_index_path
from cordwood.storage.formats.offset_index import OffsetIndex
from cordwood.storage.log.files import IndexEntries, read_file
from cordwood.storage.log.recovery import SegmentFiles
from cordwood.storage.log.windows import (
    HEADER_WINDOW_BYTES,
    BatchOrder,
    Checks,
    Gap,
    WindowReader,
    headers_in_order,
    in_order,
    read_headers,
)

#: An offset above all offsets.
MAX_OFFSET = 2**63 - 1

_ENTRIES = {FileKind.OFFSET_INDEX: offset_index.ENTRY, FileKind.TIME_INDEX: time_index.ENTRY}


def last_entry(fs: Store, path: str, kind: FileKind) -> tuple[int, np.void | None]:
    """Return the number of used entries of an offset or time index, and the last one; read few of the others."""
    with fs.open(path) as file:
        entries = IndexEntries(file, _ENTRIES[kind])
        return len(entries), entries[len(entries) - 1] if len(entries) else None


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment: a `.log` file and its indexes, by the names they have now.

    Attributes:
        following: the next segment of its log.
        index_root: see `LogView`.
    """

    fs: Store
    directory: str
    files: SegmentFiles
    following: SegmentFiles | None = None
    index_root: str | None = None

    @property
    def base_offset(self) -> int:
        """The lowest offset that the segment may hold."""
        return self.files.base_offset

    @property
    def size_bytes(self) -> int:
        """Length of the `.log` file when the log was opened."""
        return self.files.log.size_bytes

    @property
    def mtime_ms(self) -> int:
        """Modification time of the `.log` file; Kafka uses it for a segment without timestamps."""
        return self.files.log.mtime_ns // 1_000_000

    @property
    def path(self) -> str:
        """Path of the `.log` file."""
        return f"{self.directory}/{self.files.log.name}"

    def open(self) -> ReadableFile:
        """Open the `.log` file."""
        return self.fs.open(self.path)

    def place_of(self, position: int) -> tuple[str, int]:
        """Return the file that holds a position, and the position in it."""
        return self.path, position

    @property
    def key_index_path(self) -> str:
        """Path of its key index, which may be missing."""
        return key_index_path(self.directory, self.base_offset, self.index_root)

    def index_path(self, kind: FileKind) -> str | None:
        """Return the path of an index file, or None if it is missing."""
        info = self.files.indexes.get(kind)
        return None if info is None else f"{self.directory}/{info.name}"

    def read_index(self, kind: FileKind) -> bytes | None:
        """Read an index file; None if it is missing."""
        path = self.index_path(kind)
        return None if path is None else read_file(self.fs, path)

    def offset_index(self) -> offset_index.OffsetIndex | None:
        """Read the offset index; None if it is missing."""
        data = self.read_index(FileKind.OFFSET_INDEX)
        return None if data is None else offset_index.decode(data, self.base_offset)

    def time_index(self) -> time_index.TimeIndex | None:
        """Read the time index; None if it is missing."""
        data = self.read_index(FileKind.TIME_INDEX)
        return None if data is None else time_index.decode(data, self.base_offset)

    def last_entry(self, kind: FileKind) -> tuple[int, np.void | None]:
        """Return `last_entry` of an offset or time index; (0, None) if it is missing."""
        path = self.index_path(kind)
        return (0, None) if path is None else last_entry(self.fs, path, kind)

    def lowest_since(self, since_ms: int) -> int | None:
        """Return an offset below which no record is from `since_ms` on; None if no record of the segment is.

        For a closed segment. Its time index counts if the entries are in order, and if the batch of the used entry has
        that timestamp. The batches after the last entry are read, as a stale index may lack entries for them.
        """
        try:
            index = self.time_index()
            if index is None or not index.entries or any(time_index.faults(index)):
                return self.base_offset
            timestamp, offset = index.lookup(since_ms - 1)
            if timestamp < 0:
                return self.base_offset
            has_later_entry = index.last_entry[0] >= since_ms
            ends_here = self.following is not None and offset + 1 >= self.following.base_offset
            is_confirmed = False
            with self.open() as file:
                start = self.position_of(file, offset)
                for item in read_headers(file, base_offset=self.base_offset, start=start):
                    if isinstance(item, Gap):
                        return self.base_offset
                    batches = item[item["last_offset"] >= offset]
                    if not batches.size:
                        continue
                    first = batches[0]
                    if not is_confirmed and (first["base_offset"] > offset or first["max_timestamp"] != timestamp):
                        return self.base_offset
                    is_confirmed = True
                    if has_later_entry or (batches["max_timestamp"] >= since_ms).any():
                        return offset + 1
                    if ends_here:
                        return None
        except OSError:
            return self.base_offset
        return None if is_confirmed else self.base_offset

    def transaction_index(self) -> transaction_index.TransactionIndex | None:
        """Read the transaction index; None if it is missing.

        Raises:
            CorruptFileError: its version is unknown to Kafka.
        """
        data = self.read_index(FileKind.TRANSACTION_INDEX)
        return None if data is None else transaction_index.decode(data, self.index_path(FileKind.TRANSACTION_INDEX))

    def position_of(self, file: ReadableFile, offset: int) -> int:
        """Return the position of the batch that holds `offset`, or of an earlier one; 0 if no index entry is usable."""
        try:
            if offset == MAX_OFFSET:
                _, last = self.last_entry(FileKind.OFFSET_INDEX)
                found, position = (
                    (0, 0) if last is None else (self.base_offset + int(last["offset"]), int(last["position"]))
                )
            else:
                index = self.offset_index()
                found, position = (0, 0) if index is None else index.lookup(offset)
        except OSError:
            return 0
        if position == 0 or not 0 < position < file.size():
            return 0
        # An entry of a broker before 4.0 holds the last offset of a whole append, which may be above the last offset of
        # the batch at this position.
        for item in read_headers(file, base_offset=self.base_offset, start=position, search=False):
            if isinstance(item, Gap):
                return 0
            first = item[0]
            fits = self.base_offset < first["last_offset"] <= found and first["base_offset"] <= offset
            return position if fits else 0
        return 0

    def last_batches(self, file: ReadableFile) -> int:
        """Return the position from which on to read the last batches; 0 if one read returns all headers anyway."""
        return 0 if self.size_bytes <= HEADER_WINDOW_BYTES else self.position_of(file, MAX_OFFSET)

    def headers_and_gaps(
        self, *, end: int | None = None, search: bool = True, ordered: bool = False
    ) -> Iterator[BatchRows | Gap]:
        """Yield the headers of all batches as BATCH_ROW arrays, and gaps, in file order.

        Args:
            end: position to stop at; None: the end of the file.
            search: look for valid batches after damage.
            ordered: report a batch that is out of order as a gap.
        """
        with self.open() as file:
            items = read_headers(file, base_offset=self.base_offset, end=end, search=search)
            yield from headers_in_order(items, self.order()) if ordered else items

    def headers(
        self, on_gap: Callable[[Gap], None] | None = None, *, search: bool = True, ordered: bool = False
    ) -> Iterator[BatchRows]:
        """Yield the headers of all batches as BATCH_ROW arrays, in file order.

        Args:
            on_gap: called with each gap; default: raise an error.
            search, ordered: see `headers_and_gaps`.

        Raises:
            CorruptBatchError: there is a gap, and `on_gap` is missing.
        """
        for item in self.headers_and_gaps(search=search, ordered=ordered):
            if not isinstance(item, Gap):
                yield item
            elif on_gap is None:
                raise gap_error(self, item)
            else:
                on_gap(item)

    def order(self, position: int = 0) -> BatchOrder:
        """Return a checker for the order of batches, to be used from a position on."""
        following = self.following
        if following is None:
            return BatchOrder(self.base_offset, MAX_OFFSET, at_start=not position)

        def is_there() -> bool:
            try:
                self.fs.stat(f"{self.directory}/{following.log.name}")
            except FileNotFoundError:
                return False
            return True

        return BatchOrder(self.base_offset, following.base_offset, is_there, at_start=not position)

    def windows(
        self,
        *,
        start_offset: int = 0,
        end_offset: int = MAX_OFFSET,
        checks: Checks = Checks.WHOLE,
        search: bool = True,
        start: Cut | None = None,
        end: Cut | None = None,
        ordered: bool = True,
    ) -> Iterator[BatchWindow | Gap]:
        """Yield the batches that hold any offset of [start_offset, end_offset), and gaps, in file order.

        Args:
            checks: how much of each batch is read, and who computes its checksum.
            search: look for valid batches after damage.
            start: a known cut below the range; None to use the offset index.
            end: a known cut above the range. As long as it matches the file, nothing after it is read.
            ordered: report a batch that is out of order as a gap, if it may hold any of these offsets.
        """
        with self.open() as file:
            at = self._start(file, start_offset, start)
            expected_end = None if end is None else end.position
            is_behind = False
            reader = WindowReader(
                file, checks, base_offset=self.base_offset, start=at, expected_end=expected_end, search=search
            )
            for item in in_order(iter(reader), self.order(at)) if ordered else reader:
                if isinstance(item, Gap):
                    if item.between is None or (item.between[0] < end_offset and item.between[1] > start_offset):
                        yield item
                    continue
                batches = item.batches
                below = batches["last_offset"] < start_offset
                if below[0]:
                    # A batch with a wrong CRC is never skipped: its offsets cannot be trusted.
                    batches = batches[~(below & is_valid(batches))]
                if not batches.size:
                    continue
                # Never true for a wrapper, whose base offset is unknown (-1).
                behind = batches["base_offset"] >= end_offset
                # One batch beyond the range may just have a wrong base offset, which no checksum covers. Stop at two.
                ends = np.flatnonzero(behind & np.concatenate([np.array([is_behind]), behind[:-1]]))
                is_behind = bool(behind[-1])
                batches = batches[: ends[0]] if ends.size else batches
                batches = batches[~behind[: batches.size]]
                if batches.size:
                    yield BatchWindow(item.position, item.data, batches, item.read)
                if ends.size or (expected_end is not None and _reaches(item, expected_end, end_offset)):
                    return

    def _start(self, file: ReadableFile, offset: int, known: Cut | None) -> int:
        """Return the position of a batch at or before the one that holds an offset."""
        if offset <= self.base_offset:
            return 0
        if known is not None and known.offset <= offset and known.still_holds(file):
            return known.position
        return self.position_of(file, offset)


def _reaches(window: BatchWindow, end: int, end_offset: int) -> bool:
    """Return whether a window reaches the end of a range, by position and by offset; neither is trusted alone."""
    last = window.batches[-1]
    return bool(last["position"] + last["size_bytes"] >= end and last["last_offset"] >= end_offset - 1)


def skip_gap(_: Gap) -> None:
    """Skip damage in `Segment.headers`, for readers of what is intact."""


def gap_error(segment: Segment, gap: Gap) -> CorruptBatchError:
    """Convert a gap to an error with its location."""
    return CorruptBatchError(f"{gap.what} ({gap.size_bytes} bytes)", path=segment.path, position=gap.position)


def locate_damage(on_damage: OnDamage, segment: Segment) -> OnDamage:
    """Return a callback that adds the segment's path to each error and passes the error to `on_damage`."""

    def placed(error: DataError) -> None:
        path = segment.path
        if error.position is not None:
            path, error.position = segment.place_of(error.position)
        on_damage(error.at(path))

    return placed


# ---- cuts ------------------------------------------------------------------------------------------------------------

#: Bytes to read: enough for any header, and for a control batch, which the scan reads whole.
_HEADER_READ_BYTES = 4096 + HEADER.size
#: Index entries to try. Entries of brokers before 4.0 have the last offset of a whole append but the position of its
#: first batch, so the batch that ends at or above an offset may be some entries further on.
_ENTRIES_TRIED = 16


@dataclass(frozen=True, slots=True)
class Cut:
    """A boundary between two batches of a segment, or the segment's start.

    Attributes:
        segment: base offset of the segment.
        position: position in its `.log` of the batch after the cut.
        offset: records before the cut have smaller offsets, records after it this one or larger ones.
        following: base and last offset of the batch after the cut; None if the file ended there, or it was not read.
    """

    segment: int
    position: int
    offset: int
    following: tuple[int, int] | None = None

    def still_holds(self, file: ReadableFile) -> bool:
        """Return whether the file still has the same batch after the cut as when the cut was found."""
        return self.position == 0 or (self.following is not None and _offsets_at(file, self.position) == self.following)


def cut_before(segment: int, batch: np.void) -> Cut:
    """Return the cut before a batch (a BATCH_ROW) whose records all have offsets from its base offset on."""
    base_offset, last_offset = int(batch["base_offset"]), int(batch["last_offset"])
    # A wrapper's header lacks its first offset; it is only certain that later batches are above its last offset.
    offset = base_offset if base_offset >= 0 else last_offset
    return Cut(segment, int(batch["position"]), offset, (base_offset, last_offset))


def last_cut(file: ReadableFile, index: OffsetIndex, offset: int) -> Cut:
    """Return the last known cut before all records from `offset` on; the segment's start if the index has none."""
    entry = int(np.searchsorted(index.offsets, offset - 1, side="right")) - 1
    for at in range(entry, max(entry - _ENTRIES_TRIED, -1), -1):
        if (cut := _cut_behind(file, index, at)) is not None:
            return cut
    return Cut(index.base_offset, 0, index.base_offset)


def first_cut(file: ReadableFile, index: OffsetIndex, offset: int) -> Cut | None:
    """Return the first cut after all records below `offset`; None if the index has none."""
    entry = int(np.searchsorted(index.offsets, offset - 1, side="left"))
    for at in range(entry, min(entry + _ENTRIES_TRIED, index.entries)):
        cut = _cut_behind(file, index, at)
        if cut is not None and cut.offset >= offset:
            return cut
    return None


def cuts_between(file: ReadableFile, index: OffsetIndex, start: int, end: int, every_bytes: int) -> Iterator[Cut]:
    """Yield cuts that divide the positions [start, end) into parts of about `every_bytes`, if the index has them."""
    parts = max(1, round((end - start) / every_bytes))
    offset = index.base_offset
    for wanted in (start + (end - start) * part // parts for part in range(1, parts)):
        entry = int(np.searchsorted(index.positions, wanted, side="left"))
        cut = _cut_behind(file, index, entry) if entry < index.entries else None
        if cut is not None and start < cut.position < end and cut.offset > offset:
            offset = cut.offset
            yield cut


def _cut_behind(file: ReadableFile, index: OffsetIndex, entry: int) -> Cut | None:
    """Return the cut after the batch of an index entry; None if no batch fits the entry."""
    cut = cut_behind(file, index.base_offset, int(index.positions[entry]))
    return cut if cut is not None and index.base_offset < cut.offset <= index.offsets[entry] + 1 else None


def cut_behind(file: ReadableFile, segment: int, position: int) -> Cut | None:
    """Return the cut after the batch at a position; None if there is no batch, or the next one does not end higher."""
    batch = header_at(file, position)
    if batch is None:
        return None
    end = position + int(batch["size_bytes"])
    following = _offsets_at(file, end)
    if following is not None and following[1] <= batch["last_offset"]:
        return None
    return Cut(segment, end, int(batch["last_offset"]) + 1, following)


def _offsets_at(file: ReadableFile, position: int) -> tuple[int, int] | None:
    """Return base and last offset of the batch at a position; None if no batch starts there."""
    batch = header_at(file, position)
    return None if batch is None else (int(batch["base_offset"]), int(batch["last_offset"]))


def header_at(file: ReadableFile, position: int) -> np.void | None:
    """Return the header of the whole batch at a position, as a BATCH_ROW; None if no batch starts there."""
    return _header_in(file, position, _HEADER_READ_BYTES)


def start_of_batch(file: ReadableFile, position: int) -> np.void | None:
    """Return `header_at` with a smaller read, and a second one for a control batch; for files on a disk."""
    found = _header_in(file, position, HEADER.size)
    return header_at(file, position) if found is None else found


def _header_in(file: ReadableFile, position: int, read_bytes: int) -> np.void | None:
    left = file.size() - position
    if position < 0 or left < MIN_ENTRY_BYTES[0]:
        return None
    data = np.frombuffer(file.read(position, min(left, read_bytes)), np.uint8)
    rows = np.empty(1, BATCH_ROW)
    count, _, _ = headers.scan_batches(data, left, position, rows, whole_entries=False)
    return rows[0] if count else None


# ---- small segments read as one --------------------------------------------------------------------------------------

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
        count, consumed, _ = headers.scan_batches(data, data.size, 0, rows, whole_entries=True)
        rows = rows[:count]
        starts, positions = _starts(segment), rows["position"]
        parts = np.searchsorted(starts, positions, side="right") - 1
        bases = np.array([part.base_offset for part in segment.parts])
        following = segment.following
        ends = np.append(bases[1:], MAX_OFFSET if following is None else following.base_offset)
        # Positions increase, so a look-up finds whether a batch begins at the start of each part.
        at = np.minimum(np.searchsorted(positions, starts), max(count - 1, 0))
        is_sound = consumed == data.size and count > 0 and (positions[at] == starts).all()
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
    if not isinstance(segment, JoinedSegment):
        return np.zeros(positions.size, np.int64)
    return np.searchsorted(_starts(segment), positions, side="right") - 1


def _starts(segment: JoinedSegment) -> npt.NDArray[np.int64]:
    """Return the position of each part in the joined segment."""
    sizes = [part.size_bytes for part in segment.parts]
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
