"""One segment of a partition: its files, opened for reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from cordwood.common.errors import CorruptBatchError, DataError
from cordwood.fs.base import ReadableFile, Store
from cordwood.kernels.layout import BatchRows
from cordwood.record.columns import BatchWindow, OnDamage, is_valid
from cordwood.storage.formats import offset_index, time_index, transaction_index
from cordwood.storage.formats.filenames import FileKind, key_index_path
from cordwood.storage.log.cuts import Cut
from cordwood.storage.log.files import read_file
from cordwood.storage.log.order import BatchOrder, headers_in_order, in_order
from cordwood.storage.log.recovery import SegmentFiles
from cordwood.storage.log.windows import Checks, Gap, WindowReader, read_headers

#: An offset above all offsets.
MAX_OFFSET = 2**63 - 1


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
            index = self.offset_index()
        except OSError:
            return 0
        if index is None:
            return 0
        found, position = index.lookup(offset)
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
