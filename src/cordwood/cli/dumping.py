"""The output of `cordwood dump`: logs, and every other file that Kafka keeps beside them.

Logs are read window by window, as columns. The lines of each chunk of rows are made and written before the next chunk
is read, so memory stays bounded for files of any size. Damage is reported at its place, and reading continues after it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import posixpath
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cordwood.cli.formats import Control, LineOrigin, PatternPrinter, Printer
from cordwood.cli.main import named, tell
from cordwood.cli.small_files import IN_LOG_DIRECTORY, READERS
from cordwood.common.errors import CorruptFileError, DataError, NotFoundError, RequestError
from cordwood.common.types import ControlType, Isolation, TopicPartition
from cordwood.fs.base import Store
from cordwood.fs.by_url import file_system_for
from cordwood.kernels.layout import CODEC_MASK
from cordwood.record.batch import Batch, control_type, coordinator_epoch
from cordwood.record.columns import BatchWindow, RecordColumns, decode, report_wrong
from cordwood.storage.formats import (
    filenames,
)
from cordwood.storage.formats.filenames import DirectoryState, FileKind, PartitionFile, parse_file
from cordwood.storage.formats.key_index import Flag, KeyIndex
from cordwood.storage.index.files import read_index
from cordwood.storage.index.search import windows_with
from cordwood.storage.log.files import read_file, why_unreadable
from cordwood.storage.log.recovery import INDEX_KINDS, SegmentFiles
from cordwood.storage.log.searches import start_of_last
from cordwood.storage.log.segment import MAX_OFFSET, Segment
from cordwood.storage.log.tail import FollowedLog
from cordwood.storage.log.transactions import READ_COMMITTED, READ_UNCOMMITTED, Transactions
from cordwood.storage.log.view import LogView, holds_nothing
from cordwood.storage.log.windows import Gap
from cordwood.storage.node.directory import LogDirectory, PathKind, is_wanted, look, nothing_selected

#: Number of rows that are made into lines at once; then size in bytes at which lines are written.
_ROWS = 4096
_WRITE_BYTES = 1 << 16
#: Interval at which followed logs are polled, in seconds.
_FOLLOW_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Choice:
    """Which parts of a log are shown.

    Attributes:
        end_offset: first offset that is left out.
        since_ms: lowest timestamp of a record.
        isolation: show only records that a consumer with this isolation level gets.
        topics, partitions: choice within a log directory, as `is_wanted` takes them.
        limit: stop after this many records (batches if no records are shown, entries in other files).
        grep: show only records whose key or value contains these bytes.
        tail: show only the last `tail` records of each log; the other choices apply within these.
        follow: continue with appended records until interrupted or until the limit is reached.
    """

    batches: bool = True
    records: bool = True
    start_offset: int | None = None
    end_offset: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    key: bytes | None = None
    isolation: Isolation | None = None
    topics: Sequence[str] = ()
    partitions: Sequence[str] = ()
    limit: int | None = None
    grep: bytes | None = None
    tail: int | None = None
    follow: bool = False

    @property
    def judges_records(self) -> bool:
        """Whether records are chosen by more than their offset. Batches without a chosen record are then left out."""
        times = self.since_ms is not None or self.until_ms is not None
        return self.key is not None or self.grep is not None or times

    @property
    def needs_log(self) -> bool:
        """Whether the choice requires a whole log, not a single file."""
        return self.tail is not None or self.follow


class _LimitReached(Exception):  # noqa: N818
    """Ends the dump after `limit` lines; not an error."""


class Dump:
    """Dumps paths one after another."""

    def __init__(
        self,
        choice: Choice,
        printer: Printer,
        write: Callable[[bytes], object],
        *,
        fs: Store | None = None,
        index_dir: str | None = None,
    ) -> None:
        self.choice = choice
        self.printer = printer
        self.damaged = False
        self.unreadable = False
        self._fs: Store = fs or file_system_for([])
        self._index_root = None if index_dir is None else self._fs.absolute_path(index_dir)
        self._write = write
        self._lines: list[bytes] = []
        self._lines_bytes = 0
        self._left = choice.limit
        self._place = LineOrigin("")
        self._opened: dict[str, LogView] = {}
        self._followed: list[FollowedLog] = []
        self._reported: set[tuple[str, int | None, str]] = set()

    def run(self, paths: Sequence[str]) -> None:
        """Dump paths until the limit is reached."""
        try:
            if self._left == 0:
                return
            for path in paths:
                try:
                    self._dump(path)
                except OSError as error:
                    self._unreadable(error)
            while self._followed:
                self.flush()
                time.sleep(_FOLLOW_SECONDS)
                self._followed = [followed for followed in self._followed if self._goes_on(followed)]
        except _LimitReached:
            pass
        finally:
            self.flush()

    def flush(self) -> None:
        """Write the pending lines."""
        if self._lines:
            lines, self._lines, self._lines_bytes = self._lines, [], 0
            self._write(b"".join(lines))

    # ---- kinds of paths ----------------------------------------------------------------------------------------------

    def _dump(self, path: str) -> None:
        found = look(self._fs, path)
        if found.kind is PathKind.FILE:
            self._file(found.path)
        elif found.kind is PathKind.PARTITION:
            log = self._open(found.path)
            if not log.segments:
                raise holds_nothing(found.path)
            self._log(log)
        else:
            self._directories(found.directories)

    def _directories(self, paths: Sequence[str]) -> None:
        choice = self.choice
        found, topics = False, set()
        for path in paths:
            directory = LogDirectory.open(self._fs, path)
            for partition in sorted(directory.partitions, key=lambda one: (one.name.topic_partition, one.path)):
                topics.add(partition.name.topic_partition.topic)
                if not is_wanted(partition.name.topic_partition, choice.topics, choice.partitions):
                    continue
                found = True
                if choice.isolation is not None and partition.name.state is not DirectoryState.CURRENT:
                    continue  # no consumer reads a log that is being moved here or deleted
                try:
                    self._log(directory.log(partition))
                except NotFoundError:
                    continue  # a running broker deleted it
                except OSError as error:
                    self._unreadable(error)
        if not found and (choice.topics or choice.partitions):
            raise nothing_selected(topics, paths, choice.topics, choice.partitions)

    def _open(self, path: str) -> LogView:
        """Open the log in a directory that may belong to a running broker's log directory."""
        path = named(path or ".")
        try:
            live = LogDirectory.open(self._fs, posixpath.dirname(path) or ".").live
        except OSError:
            live = False
        return LogView(path, fs=self._fs, live=live)

    def _file(self, path: str) -> None:
        if self.choice.needs_log:
            raise RequestError(f"{path} is a file; --tail and --follow need a partition's directory")
        name = posixpath.basename(path)
        parsed = parse_file(name)
        if parsed is not None and parsed.kind is FileKind.LOG:
            directory = posixpath.dirname(path)
            if directory not in self._opened:
                self._opened = {directory: self._open(directory)}
            log = self._opened[directory]
            segment = next((one for one in log.segments if one.files.log.name == name), None)
            if segment is not None:
                self._log(log, segment, path)
            else:
                self._lone(path, parsed, log.name.topic_partition if log.name else None)
        elif name == filenames.BOOTSTRAP_CHECKPOINT:
            self._lone(path, PartitionFile(FileKind.CHECKPOINT_SNAPSHOT, 0), None)
        elif parsed is not None and parsed.kind is FileKind.CHECKPOINT_SNAPSHOT:
            self._lone(path, parsed, TopicPartition(filenames.CLUSTER_METADATA_TOPIC, 0))
        else:
            self._small(path, parsed)

    # ---- logs --------------------------------------------------------------------------------------------------------

    def _log(self, log: LogView, only: Segment | None = None, path: str = "") -> None:
        choice = self.choice
        if choice.follow and log.segments:
            first, _, _ = log.scope(
                start_offset=choice.start_offset,
                since_ms=choice.since_ms,
                isolation=None if choice.isolation is None else READ_UNCOMMITTED,
            )
            followed = FollowedLog(log, first, choice.isolation)
            followed.look()
            if choice.tail is not None:
                end = self._end(followed)
                followed.next_offset = start_of_last(
                    log, choice.tail, first, end, choice.isolation, followed.transactions
                )
            self._show_readable(followed)
            self._followed.append(followed)
            return
        first, end, transactions = log.scope(
            start_offset=choice.start_offset,
            end_offset=choice.end_offset,
            since_ms=choice.since_ms,
            isolation=choice.isolation,
        )
        if choice.tail is not None and log.segments:
            first = start_of_last(log, choice.tail, first, end, choice.isolation, transactions)
        self._range(log, first, end, transactions, only, path)
        if choice.isolation == READ_COMMITTED and only is None:
            log.report_behind(transactions, end, functools.partial(self._wrong_behind, log))

    def _goes_on(self, followed: FollowedLog) -> bool:
        """Show the records that became readable since the last poll. Return False if the log was deleted."""
        try:
            followed.look()
        except NotFoundError:
            return self._fs.exists(followed.log.path)
        self._show_readable(followed)
        if followed.damage is not None:
            self._wrong_behind(followed.log, followed.damage)
        return True

    def _show_readable(self, followed: FollowedLog) -> None:
        self._range(followed.log, followed.next_offset, self._end(followed), followed.transactions)
        followed.next_offset = max(followed.next_offset, followed.end_offset)

    def _end(self, followed: FollowedLog) -> int:
        limit = self.choice.end_offset
        return followed.end_offset if limit is None else min(followed.end_offset, limit)

    def _range(
        self,
        log: LogView,
        first: int,
        end: int,
        transactions: Transactions,
        only: Segment | None = None,
        path: str = "",
    ) -> None:
        """Show the part of a log, or of one of its segments, between two offsets."""
        if first >= end:
            return
        choice = self.choice
        name = log.name.topic_partition if log.name else None
        items: Iterator[tuple[Segment, BatchWindow | Gap]]
        if choice.key is not None and choice.isolation is None and not log.live and not choice.follow:
            segments = log.segments_from(first) if only is None else [only]
            segments = [replace(one, index_root=self._index_root) for one in segments]
            items = self._with_key(segments, choice.key, first, end)
        elif only is None:
            items = log.windows(
                start_offset=first, end_offset=end, on_unreadable=lambda _, error: self._unreadable(error)
            )
        else:
            windows = only.windows(start_offset=first, end_offset=end, search=not log.live)
            items = ((only, item) for item in windows)
        for segment, item in items:
            self._begin(path or segment.path, name)
            at_end = segment.base_offset == log.segments[-1].base_offset
            self._item(item, first, end, transactions, is_end=at_end, live=log.live)

    def _with_key(
        self, segments: Sequence[Segment], key: bytes, first: int, end: int
    ) -> Iterator[tuple[Segment, BatchWindow | Gap]]:
        """Yield batches that may hold a key: a few per segment with a key index, all batches of other segments."""
        for segment in segments:
            try:
                if segment.base_offset < end:
                    for item in self._windows_with_key(segment, key, first, end):
                        yield segment, item
            except OSError as error:
                self._unreadable(error)

    def _windows_with_key(self, segment: Segment, key: bytes, first: int, end: int) -> Iterator[BatchWindow | Gap]:
        index: KeyIndex | None
        try:
            index = read_index(segment)
        except (OSError, CorruptFileError):
            index = None
        # Control records are not indexed. Their keys begin with a version whose first byte is 0.
        if index is None or (index.header.flags & Flag.CONTROL and key.startswith(b"\0")):
            return segment.windows(start_offset=first, end_offset=end)
        return windows_with(segment, index, [key])

    def _lone(self, path: str, file: PartitionFile, name: TopicPartition | None) -> None:
        """Show a log file that is not, or no longer, part of a log."""
        if self.choice.isolation is not None:
            what = "is not part of a log that a consumer could read; leave out --isolation"
            raise RequestError(f"{path} {what}")
        directory, _, own_name = path.rpartition("/")
        directory = directory if "/" in path else "."
        names = {dataclasses.replace(file, kind=kind).name: kind for kind in INDEX_KINDS}
        siblings = [] if file.kind is not FileKind.LOG else self._fs.list(directory or "/")
        indexes = {names[info.name]: info for info in siblings if info.name in names}
        # Offsets in a snapshot number its records, from 0.
        base_offset = file.offset if file.kind is FileKind.LOG else 0
        info = dataclasses.replace(self._fs.stat(path), name=own_name)
        segment = Segment(self._fs, directory, SegmentFiles(base_offset, info, indexes))
        first = self.choice.start_offset or 0
        end = MAX_OFFSET if self.choice.end_offset is None else self.choice.end_offset
        self._begin(path, name)
        for item in segment.windows(start_offset=first, end_offset=end) if first < end else ():
            self._item(item, first, end, Transactions(), is_end=True, live=False)

    def _begin(self, path: str, name: TopicPartition | None) -> None:
        place = LineOrigin(path, name.topic, name.partition) if name else LineOrigin(path)
        if place != self._place:
            self._place = place
            self.printer.begin(place)

    def _item(
        self, item: BatchWindow | Gap, first: int, end: int, transactions: Transactions, *, is_end: bool, live: bool
    ) -> None:
        if isinstance(item, Gap):
            # Incomplete bytes at the end are normal after a crash, and while a broker appends.
            if is_end and self.choice.follow and item.may_end_log(live=False):
                return  # it may become a batch
            if is_end and item.may_end_log(live=live):
                fields = {"position": item.position, "size": item.size_bytes, "what": item.what}
                self.put(self.printer.entry("rest", fields))
            else:
                self._damage(item.what, item.position, size_bytes=item.size_bytes)
        else:
            if self.choice.isolation is not None:
                visible = transactions.visible(item.batches, self.choice.isolation)
                report_wrong(item.batches[~visible], self._wrong)
                item = BatchWindow(item.position, item.data, item.batches[visible], item.read)
            if item.batches.size:
                _DumpedWindow(self, item, first, end).show()
        self.flush()

    # ---- small files -------------------------------------------------------------------------------------------------

    def _small(self, path: str, parsed: PartitionFile | None) -> None:
        name = posixpath.basename(path)
        kind = parsed.kind if parsed else ""
        if filenames.is_key_index(name):
            kind = filenames.KEY_INDEX
        if filenames.parse_tier_manifest(name) is not None:
            kind = filenames.TIER_MANIFEST
        read = READERS.get(name.removesuffix(".tmp")) or READERS.get(kind)
        if read is None:
            kafkas = [kind for kind in FileKind if kind and kind is not FileKind.LOG_CONFIGS]
            own = ", ".join([filenames.KEY_INDEX, FileKind.LOG_CONFIGS, f"manifests ({filenames.TIER_MANIFEST})"])
            what = f"Kafka's are {', '.join([*kafkas, *IN_LOG_DIRECTORY])}; Cordwood's are {own}"
            raise RequestError(f"{path} is no file that Kafka or Cordwood writes, by its name; {what}")
        if isinstance(self.printer, PatternPrinter) or self.choice.isolation is not None:
            raise RequestError(f"{path} holds no records; leave out --format and --isolation")
        self._begin(path, None)
        try:
            for kind, fields in read(read_file(self._fs, path), parsed.offset if parsed else 0, path):
                self.put(self.printer.entry(kind, fields))
                if kind != "rest":
                    self.count(1)
        except DataError as error:
            self._wrong(error)

    # ---- lines -------------------------------------------------------------------------------------------------------

    def put(self, lines: bytes) -> None:
        """Queue lines for writing."""
        self._lines.append(lines)
        self._lines_bytes += len(lines)
        if self._lines_bytes >= _WRITE_BYTES:
            self.flush()

    def may_show(self, count: int) -> int:
        """Return how many of `count` lines the limit allows."""
        return count if self._left is None else min(count, self._left)

    def count(self, count: int) -> None:
        """Count lines towards the limit."""
        if self._left is not None:
            self._left -= count
            if self._left <= 0:
                raise _LimitReached

    def _wrong(self, error: DataError) -> None:
        self._damage(error.what, error.position, error.offset)

    def _wrong_behind(self, log: LogView, error: DataError) -> None:
        self._begin(error.path or log.path, log.name.topic_partition if log.name else None)
        self._wrong(error)

    def _damage(
        self, what: str, position: int | None, offset: int | None = None, size_bytes: int | None = None
    ) -> None:
        self.damaged = True
        if self.choice.follow:
            # The next poll may read a damaged batch again, as its offsets cannot be trusted.
            if (damage := (self._place.file, position, what)) in self._reported:
                return
            self._reported.add(damage)
        fields = {"position": position, "size": size_bytes, "offset": offset, "what": what}
        line = self.printer.entry("damage", fields)
        if line:
            self.put(line)
        else:
            # A pattern's output cannot contain it.
            tell(f"damage: {DataError(what, path=self._place.file, position=position, offset=offset)}")

    def _unreadable(self, error: OSError) -> None:
        """Report an unreadable file and continue; raise if stdout is what failed."""
        if error.filename is None:
            raise error
        self.unreadable = True
        tell(f"{error.filename} {why_unreadable(error)}")

    def damage(self, error: DataError) -> None:
        """Report damage at its place."""
        self._wrong(error)


class _DumpedWindow:
    """One window while it is shown: its batches in order, each with its damage and its records."""

    def __init__(self, dump: Dump, window: BatchWindow, first: int, end: int) -> None:
        self.dump = dump
        self.choice = dump.choice
        self.window = window
        self.first = first
        self.end = end
        self.positions: list[int] = window.batches["position"].tolist()
        self.next = 0  # index of the first batch that is not shown yet
        self.damage: list[DataError] = []  # not reported yet

    def show(self) -> None:
        choice, batches = self.choice, self.window.batches
        # A wrapper's first offset is known only from its messages.
        wrappers = (batches["magic"] < 2) & (batches["attributes"] & CODEC_MASK != 0)
        if choice.records or choice.judges_records or wrappers.any():
            is_consumer = choice.isolation is not None
            for columns in decode(self.window, on_damage=self.damage.append, even_invalid=not is_consumer):
                self._columns(columns)
                del columns  # free a large record before decoding the next
        self._pass_over(len(self.positions))
        self._tell(None)

    def _columns(self, columns: RecordColumns) -> None:
        rows = columns.rows
        keep = self._keep(columns)
        if self.choice.judges_records:
            rows, keep = rows[keep], keep[keep]
        edges = [0, *(np.flatnonzero(np.diff(rows["batch"])) + 1).tolist(), rows.size]
        everything = bool(keep.all())
        for start, end in itertools.pairwise(edges):
            if start < end:
                batch = Batch.of(columns.batches[rows["batch"][start]])
                self._meet(batch)
                if self.choice.records:
                    some = rows[start:end]
                    self._records(columns.data.data, some if everything else some[keep[start:end]], batch)

    def _keep(self, columns: RecordColumns) -> npt.NDArray[np.bool_]:
        choice, rows = self.choice, columns.rows
        keep = np.asarray((rows["offset"] >= self.first) & (rows["offset"] < self.end))
        if choice.since_ms is not None:
            keep &= rows["timestamp"] >= choice.since_ms
        if choice.until_ms is not None:
            keep &= rows["timestamp"] < choice.until_ms
        if choice.key is not None:
            size = len(choice.key)
            keep &= rows["key_size"] == size
            data = columns.data.data
            same = np.flatnonzero(keep)
            starts: list[int] = rows["key_start"][same].tolist()
            keep[same] = [bytes(data[start : start + size]) == choice.key for start in starts]
        if choice.grep is not None and keep.any():
            keep &= _have(columns, choice.grep)
        return keep

    def _meet(self, batch: Batch) -> None:
        """Move on to a batch with records, unless it is the current one."""
        at = self.positions.index(batch.position, max(self.next - 1, 0))
        if at >= self.next:
            self._pass_over(at)
            self._tell(batch.position)
            self._batch(batch)
            self.next = at + 1
            self._tell(batch.position + 1)

    def _pass_over(self, end: int) -> None:
        """Move past batches without records."""
        for at in range(self.next, end):
            self._tell(self.positions[at])
            if not self.choice.judges_records:
                self._batch(Batch.of(self.window.batches[at]))
            self.next = at + 1
            self._tell(self.positions[at] + 1)

    def _tell(self, position: int | None) -> None:
        """Report the damage before a position."""
        while self.damage and (position is None or (self.damage[0].position or 0) < position):
            self.dump.damage(self.damage.pop(0))

    def _batch(self, batch: Batch) -> None:
        if self.choice.batches and batch.base_offset < self.end:
            self.dump.damaged |= not batch.is_valid
            self.dump.put(self.dump.printer.batch(batch))
            if not self.choice.records:
                self.dump.count(1)

    def _records(self, data: memoryview, rows: npt.NDArray[np.void], batch: Batch) -> None:
        for start in range(0, rows.size, _ROWS):
            some = rows[start : start + _ROWS].tolist()
            some = some[: self.dump.may_show(len(some))]
            controls = [self._control(data, row, batch) for row in some] if batch.is_control else []
            for lines in self.dump.printer.records(data, some, batch, controls):
                self.dump.put(lines)
            self._tell(batch.position + 1)
            self.dump.count(len(some))

    def _control(self, data: memoryview, row: tuple[int, ...], batch: Batch) -> Control:
        offset, _, _, key, key_size, value, value_size, _, _ = row
        name = None
        try:
            kind = control_type(None if key_size < 0 else data[key : key + key_size])
            name = kind.name
            if kind not in (ControlType.ABORT, ControlType.COMMIT):
                return name, None
            return name, coordinator_epoch(None if value_size < 0 else data[value : value + value_size])
        except DataError as error:
            error.position, error.offset = batch.position, offset
            self.damage.append(error)
            return name, None


def _have(columns: RecordColumns, sought: bytes) -> npt.NDArray[np.bool_]:
    """bool[records]: whether the key or value contains `sought`. Searches all bytes in one pass."""
    # A lookahead also matches overlapping occurrences.
    places = re.finditer(b"(?=" + re.escape(sought) + b")", columns.data.data)
    at = np.array([*(place.start() for place in places), np.iinfo(np.int64).max], np.int64)
    found = np.zeros(columns.rows.size, np.bool_)
    for name in ("key", "value"):
        starts, sizes = (columns.rows[f"{name}_{what}"].astype(np.int64) for what in ("start", "size"))
        found |= (sizes >= 0) & (at[np.searchsorted(at, starts)] <= starts + sizes - len(sought))
    return found
