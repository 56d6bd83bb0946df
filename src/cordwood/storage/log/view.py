"""Open a partition's log for reading: its segments in order, and their batches and records from any offset.

Opening reads names and sizes only. Reads use the indexes to save time: an entry of an offset index only if it points to
a batch with the offset of the entry, an entry of a time index only if a batch has its offset and timestamp.

A log that a broker is writing is read like any other. Its end moves, so the size of each segment is read once; an
incomplete last batch counts as not written yet; and after a file has vanished (deleted by retention, replaced by the
cleaner) the directory is listed again.
"""

from __future__ import annotations

import bisect
import contextlib
import copy
import functools
import posixpath
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np
import numpy.typing as npt

from cordwood.common.arguments import checked, shown
from cordwood.common.errors import CorruptFileError, NotFoundError
from cordwood.common.types import NONE, Isolation
from cordwood.fs.base import FileInfo, Store
from cordwood.fs.location import Location
from cordwood.record.batch import Batch, to_batches
from cordwood.record.columns import BatchWindow, OnDamage, RecordColumns, decode, is_valid, raise_damage, report_wrong
from cordwood.record.record import Record, to_records
from cordwood.storage.formats import filenames, producer_state
from cordwood.storage.formats.filenames import FileKind, parsed_directory
from cordwood.storage.log.files import read_file, read_log_starts
from cordwood.storage.log.recovery import Recovery, plan_recovery
from cordwood.storage.log.segment import MAX_OFFSET, Cut, Segment, gap_error, locate_damage, skip_gap
from cordwood.storage.log.transactions import READ_COMMITTED, READ_UNCOMMITTED, Transactions
from cordwood.storage.log.windows import Checks, Gap, headers_in_order, read_headers

if TYPE_CHECKING:
    import pyarrow as pa

    from cordwood.storage.log.internal import InternalRecord

_ATTEMPTS = 5

_Log = TypeVar("_Log", bound="LogView")


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


class LogView:
    """The log of one partition at the time it was opened.

    Attributes:
        name: parsed from the directory's name; None if the directory is not named like a partition.
        segments: by base offset; the last is the active one.
        recovery: steps of a load of the log.
        log_start_offset: lowest offset that a consumer gets, from the log directory's checkpoint, else from the first
            segment.
        live: a broker writes to it.
        index_root: the parent folder of its key indexes' folder; None if they are in its own directory.
    """

    def __init__(
        self,
        path: str,
        *,
        fs: Store,
        live: bool = False,
        log_start_offset: int | None = None,
        index_root: str | None = None,
        entries: Sequence[FileInfo] | None = None,
    ) -> None:
        """Open a log; `entries`: the files of its directory, if they were listed just now."""
        self.fs = fs
        self.index_root = index_root
        self.path = path.rstrip("/") or "/"
        self.live = live
        self.name = parsed_directory(self.path)
        self._checkpointed_start = log_start_offset
        self._list(entries)

    def with_indexes_in(self, root: str | None) -> Self:
        """Return the log with its key indexes in another folder; None for its own directory."""
        found = copy.copy(self)
        found.index_root = root
        found.segments = tuple(replace(segment, index_root=root) for segment in self.segments)
        return found

    def on(self, fs: Store) -> Self:
        """Return the log, as it was listed, with its files read through another store."""
        found = copy.copy(self)
        found.fs = fs
        found.segments = tuple(replace(segment, fs=fs) for segment in self.segments)
        return found

    def with_segments(self, segments: Sequence[Segment]) -> Self:
        """Return the log with only these segments."""
        found = copy.copy(self)
        found.segments = tuple(segments)
        return found

    def _list(self, entries: Sequence[FileInfo] | None = None) -> None:
        last: OSError | None = None
        for _ in range(_ATTEMPTS):
            try:
                self.entries = tuple(self.fs.list(self.path) if entries is None else entries)
                entries = None
                self.recovery: Recovery = plan_recovery(self.fs, self.path, self.entries)
                break
            except FileNotFoundError as error:
                # A broker renamed or removed a file between listing and reading it.
                last = error
        else:
            raise NotFoundError(f"{self.path} is gone, or changes too fast to be read") from last
        listed = self.recovery.segments
        following = [*listed[1:], None]
        one = functools.partial(Segment, self.fs, self.path, index_root=self.index_root)
        self.segments = tuple(map(one, listed, following))
        self._transaction_indexed = tuple(
            segment for segment in self.segments if FileKind.TRANSACTION_INDEX in segment.files.indexes
        )

    def list_again(self) -> None:
        """List the files again, after one of them has vanished, and forget the log start offset that was read.

        Raises:
            NotFoundError: the log was deleted.
        """
        self._list()
        self._checkpointed_start = None

    def __repr__(self) -> str:
        return f"LogView({self.path!r}, {len(self.segments)} segments, {self.size_bytes} bytes)"

    @property
    def size_bytes(self) -> int:
        """Size of all `.log` files."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def first_offset(self) -> int:
        """Base offset of the first segment."""
        return self.segments[0].base_offset if self.segments else 0

    @property
    def log_start_offset(self) -> int:
        """The lowest offset that a consumer gets."""
        if self._checkpointed_start is None:
            self._checkpointed_start = self._read_log_start()
        return max(self._checkpointed_start, self.first_offset)

    def _read_log_start(self) -> int:
        if self.name is None or self.name.state is not filenames.DirectoryState.CURRENT:
            return 0
        return read_log_starts(self.fs, posixpath.dirname(self.path)).get(self.name.topic_partition, 0)

    @property
    def next_offset(self) -> int:
        """The log end offset: the offset of the next record."""
        for segment in reversed(self.segments):
            with segment.open() as file:
                start = segment.last_batches(file)
                last = segment.base_offset - 1
                found = read_headers(file, base_offset=segment.base_offset, start=start, search=not self.live)
                for item in headers_in_order(found, segment.order(start)):
                    if not isinstance(item, Gap):
                        last = int(item["last_offset"][-1])
            # If the active segment has no batch, the log ends at its base offset, also if earlier segments have none.
            return last + 1
        return 0

    @property
    def ends_below_start(self) -> bool:
        """Whether the log start offset is beyond the log's end: a load then replaces the whole log by an empty one.

        Source: Kafka LogLoader.load, deleteSegmentsIfLogStartGreaterThanLogEnd; also after a clean shutdown.
        """
        last_base = self.segments[-1].base_offset if self.segments else 0
        return self.log_start_offset > last_base and self.log_start_offset > self.next_offset

    def windows(
        self,
        *,
        start_offset: int = 0,
        end_offset: int = MAX_OFFSET,
        checks: Checks = Checks.WHOLE,
        on_unreadable: Callable[[Segment, OSError], None] | None = None,
        start: Cut | None = None,
        end: Cut | None = None,
        on_lost: Callable[[int, int], None] | None = None,
    ) -> Iterator[tuple[Segment, BatchWindow | Gap]]:
        """Yield batches of all segments from the segment that holds `start_offset` on.

        Args:
            end_offset: batches from here on are left out.
            checks: how much of each batch is read, and who computes its checksum.
            on_unreadable: called with each unreadable segment; reading then continues with the next segment.
                None raises the error.
            start, end: known cuts below and above the offsets; see `Segment.windows`.
            on_lost: called with the offsets [lowest, end) of segments that vanish before they are read.
        """
        done: set[int] = set()
        next_base = start_offset
        for _ in range(_ATTEMPTS):
            try:
                for segment in self.segments_from(next_base):
                    if segment.base_offset >= end_offset:
                        return
                    if segment.base_offset in done:
                        continue
                    items = segment.windows(
                        start_offset=next_base,
                        end_offset=end_offset,
                        checks=checks,
                        search=not self.live,
                        start=start if start is not None and start.segment == segment.base_offset else None,
                        end=end if end is not None and end.segment == segment.base_offset else None,
                    )
                    for item in _reporting(items, segment, on_unreadable):
                        yield segment, item
                        if isinstance(item, BatchWindow) and (right := item.batches[is_valid(item.batches)]).size:
                            next_base = int(right["last_offset"][-1]) + 1
                        del item  # free a large one before reading the next
                    done.add(segment.base_offset)
                return
            except FileNotFoundError:
                self._list()
                if on_lost is not None and next_base < min(self.first_offset, end_offset):
                    on_lost(next_base, min(self.first_offset, end_offset))
                    next_base = self.first_offset
        raise NotFoundError(f"{self.path} is gone, or changes too fast to be read")

    def segments_from(self, offset: int) -> tuple[Segment, ...]:
        """Return the segments from the segment that holds, or would hold, `offset` on."""
        behind = bisect.bisect_right(self.segments, offset, key=_base_offset)
        return self.segments[max(0, behind - 1) :]

    def transaction_indexed_from(self, offset: int) -> tuple[Segment, ...]:
        """Like `segments_from`, but return only segments with a transaction index, usually few or none."""
        if not (indexed := self._transaction_indexed):
            return ()
        behind = bisect.bisect_right(self.segments, offset, key=_base_offset)
        first = self.segments[max(0, behind - 1)].base_offset
        return indexed[bisect.bisect_left(indexed, first, key=_base_offset) :]

    def columns(
        self,
        *,
        start_offset: int | None = None,
        end_offset: int | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        isolation: Isolation | str | None = READ_UNCOMMITTED,
        on_damage: OnDamage = raise_damage,
        max_batch_bytes: int | None = None,
    ) -> Iterator[RecordColumns]:
        """Yield the records of the log as columns.

        Args:
            start_offset: lowest offset; default: the log start offset, or without isolation the log's first.
            end_offset: offsets from here on are left out; default: the log's end, with read_committed the last stable
                offset.
            until_ms: timestamps from here on are left out.
            isolation: yield only records that a consumer with this `isolation.level` gets: no control records, and with
                read_committed no records of aborted and open transactions. None yields all records.
            on_damage: called with each damage; when it returns, reading continues after it.
            max_batch_bytes: decompressed bytes above which a batch is damage; default: half of the memory that the
                machine, or its container, has, and at most 2 GiB.
        """
        for _, columns in self.located_columns(
            start_offset=start_offset,
            end_offset=end_offset,
            since_ms=since_ms,
            until_ms=until_ms,
            isolation=isolation,
            on_damage=on_damage,
            max_batch_bytes=max_batch_bytes,
        ):
            yield columns
            del columns  # free a large record before decoding the next

    def located_columns(
        self,
        *,
        start_offset: int | None = None,
        end_offset: int | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        isolation: Isolation | str | None = READ_UNCOMMITTED,
        on_damage: OnDamage = raise_damage,
        max_batch_bytes: int | None = None,
    ) -> Iterator[tuple[Segment, RecordColumns]]:
        """Like `columns`, but yield each item with the segment of its records."""
        for name, offset in {"start_offset": start_offset, "end_offset": end_offset}.items():
            checked(name, int | None, offset)
        for name, time_ms in {"since_ms": since_ms, "until_ms": until_ms}.items():
            checked(name, float | None, time_ms)
        isolation = None if isolation is None else _isolation(isolation)
        start_offset, end_offset, transactions = self.scope(
            start_offset=start_offset, end_offset=end_offset, since_ms=since_ms, isolation=isolation
        )
        for segment, item in self.windows(start_offset=start_offset, end_offset=end_offset):
            if isinstance(item, Gap):
                if not self.is_end(segment, item):
                    on_damage(gap_error(segment, item))
                continue
            window, on_wrong = item, locate_damage(on_damage, segment)
            if isolation is not None:
                keep = transactions.visible(item.batches, isolation)
                if not keep.all():
                    report_wrong(item.batches[~keep], on_wrong)
                    window = BatchWindow(item.position, item.data, item.batches[keep], item.read)
            for columns in decode(window, on_damage=on_wrong, max_batch_bytes=max_batch_bytes):
                offsets, timestamps = columns.rows["offset"], columns.rows["timestamp"]
                mask: npt.NDArray[np.bool_] = (offsets >= start_offset) & (offsets < end_offset)
                if since_ms is not None:
                    mask &= timestamps >= since_ms
                if until_ms is not None:
                    mask &= timestamps < until_ms
                selected = columns.select(mask)
                if selected.rows.size:
                    yield segment, selected
                del columns, selected  # as above
        if isolation == READ_COMMITTED:
            self.report_behind(transactions, end_offset, on_damage)

    def report_behind(self, transactions: Transactions, end_offset: int, on_damage: OnDamage) -> None:
        """Report damage after the start of an open transaction, which stops readers of committed data.

        The damage may be what keeps the transaction open: its end marker, or the batch that seems to begin it.

        Args:
            end_offset: end of the reading.
        """
        stable = transactions.last_stable_offset
        if stable is None or end_offset < stable:
            return
        for segment, item in self.windows(start_offset=stable):
            if isinstance(item, BatchWindow):
                report_wrong(item.batches, locate_damage(on_damage, segment))
            elif not self.is_end(segment, item):
                on_damage(gap_error(segment, item))
            del item

    def scope(
        self,
        *,
        start_offset: int | None = None,
        end_offset: int | None = None,
        since_ms: int | None = None,
        isolation: Isolation | str | None = READ_UNCOMMITTED,
    ) -> tuple[int, int, Transactions]:
        """Return the start and end offset that the arguments of `columns` select, and the transactions of the log.

        Reads transactions only for read_committed; otherwise they are empty.

        Raises:
            NotFoundError: a broker replaced files faster than they could be read.
        """
        for _ in range(_ATTEMPTS):
            try:
                first, end, transactions = start_offset or 0, end_offset, Transactions()
                if isolation is not None:
                    first = max(first, self.log_start_offset)
                if isolation == READ_COMMITTED:
                    transactions = self.transactions()
                    # It is unknown whether records that a broker wrote since then are committed.
                    stable = transactions.last_stable_offset
                    if stable is None:
                        stable = transactions.next_offset if self.live else MAX_OFFSET
                    end = stable if end is None else min(end, stable)
                if since_ms is not None:
                    first = max(first, next((offset for _, offset in self.segments_since(since_ms)), 0))
                return first, MAX_OFFSET if end is None else end, transactions
            except FileNotFoundError:
                self._list()
        raise NotFoundError(f"{self.path} is gone, or changes too fast to be read")

    def is_end(self, segment: Segment, gap: Gap) -> bool:
        """Return whether a gap is a normal end of the log: in its last segment, and of a kind that may end a log."""
        return segment.base_offset == self.segments[-1].base_offset and gap.may_end_log(live=self.live)

    def segments_since(self, since_ms: int) -> Iterator[tuple[Segment, int]]:
        """Yield the segments that may hold records from `since_ms` on, each with the lowest possible offset of such a
        record.

        Closed segments are skipped by their time indexes, as far as these agree with the batches; see
        `Segment.lowest_since`. The active segment is searched from its start.
        """
        for segment in self.segments:
            lowest = segment.base_offset if segment is self.segments[-1] else segment.lowest_since(since_ms)
            if lowest is not None:
                yield segment, lowest

    def transactions(self) -> Transactions:
        """Return aborted and open transactions, from all batch headers of the log."""
        found = Transactions(open=self.open_below_start())
        for segment in self.segments:
            for batches in segment.headers(skip_gap, search=not self.live):
                found.add(batches)
        return found

    def open_below_start(self) -> dict[int, int]:
        """Return the first offsets of open transactions whose first batches were deleted, by producer.

        Only producer snapshots list them. The newest one counts, as the log may no longer have the markers of others.
        """
        if not self.first_offset or not self.recovery.snapshots:
            return {}
        end = self.next_offset
        for offset, info in sorted(self.recovery.snapshots.items(), reverse=True):
            if self.first_offset <= offset <= end:
                with contextlib.suppress(CorruptFileError, FileNotFoundError):
                    rows = producer_state.decode_rows(read_file(self.fs, f"{self.path}/{info.name}"))
                    first = rows["current_transaction_first_offset"]
                    rows = rows[(first != NONE) & (first < self.first_offset)]
                    return dict(rows[["producer_id", "current_transaction_first_offset"]].tolist())
        return {}

    def batches(
        self, *, start_offset: int = 0, end_offset: int = MAX_OFFSET, on_damage: OnDamage = raise_damage
    ) -> Iterator[Batch]:
        """Yield the batches that hold any offset of [start_offset, end_offset), as objects."""
        for segment, item in self.windows(start_offset=start_offset, end_offset=end_offset):
            if isinstance(item, Gap):
                if not self.is_end(segment, item):
                    on_damage(gap_error(segment, item))
            else:
                yield from to_batches(item.batches)

    def records(
        self,
        *,
        start_offset: int | None = None,
        end_offset: int | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        isolation: Isolation | str | None = READ_UNCOMMITTED,
        on_damage: OnDamage = raise_damage,
        max_batch_bytes: int | None = None,
    ) -> Iterator[Record]:
        """Yield the records of the log as objects; see `columns` for the arguments, and for large logs."""
        for columns in self.columns(
            start_offset=start_offset,
            end_offset=end_offset,
            since_ms=since_ms,
            until_ms=until_ms,
            isolation=isolation,
            on_damage=on_damage,
            max_batch_bytes=max_batch_bytes,
        ):
            yield from to_records(columns.data, columns.rows)
            del columns

    def __iter__(self) -> Iterator[Record]:
        return self.records()

    def arrow_batches(self, **choice: object) -> Iterator[pa.RecordBatch]:
        """Yield the records as Arrow record batches of bounded size; arguments as for `columns`."""
        from cordwood.storage.log.arrow import to_arrow

        for columns in self.columns(**choice):  # type: ignore[arg-type]
            yield to_arrow(columns, self.name.topic_partition if self.name else None)
            del columns

    def to_arrow(self, **choice: object) -> pa.Table:
        """Return the records as one Arrow table, in memory; arguments as for `columns`."""
        import pyarrow as pa

        from cordwood.storage.log.arrow import SCHEMA

        return pa.Table.from_batches(self.arrow_batches(**choice), SCHEMA)

    def internal_records(self, *, on_damage: OnDamage = raise_damage, **choice: object) -> Iterator[InternalRecord]:
        """Yield the records of one of Kafka's internal topics, decoded, as objects; arguments as for `columns`.

        An unreadable record is damage. Records of unknown types and versions are decoded as far as possible.
        Control records are left out.

        Raises:
            RequestError: the log belongs to another topic.
        """
        from cordwood.storage.log.internal import data_records, internal_topic, to_internal_records

        topic, partition = internal_topic(self.name, self.path)
        for segment, columns in self.located_columns(on_damage=on_damage, **choice):  # type: ignore[arg-type]
            yield from to_internal_records(data_records(columns), topic, partition, locate_damage(on_damage, segment))
            del columns

    def internal_batches(
        self, record: str, *, on_damage: OnDamage = raise_damage, **choice: object
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of `internal_arrow` as Arrow record batches of bounded size."""
        from cordwood.storage.log.arrow import record_type, to_internal_arrow
        from cordwood.storage.log.internal import data_records, internal_topic

        topic, partition = internal_topic(self.name, self.path)
        wanted = record_type(topic, record)
        for segment, columns in self.located_columns(on_damage=on_damage, **choice):  # type: ignore[arg-type]
            yield to_internal_arrow(data_records(columns), topic, wanted, partition, locate_damage(on_damage, segment))
            del columns

    def internal_arrow(self, record: str, *, on_damage: OnDamage = raise_damage, **choice: object) -> pa.Table:
        """Return the records of one type of an internal topic as one Arrow table, in memory.

        Args:
            record: the record type, such as `OffsetCommit`.
            on_damage: see `columns`; an unreadable record is damage, too.
            choice: as for `columns`.

        Raises:
            RequestError: the log belongs to another topic, or the topic has no such records.
        """
        import pyarrow as pa

        from cordwood.storage.log.arrow import internal_schema, record_type
        from cordwood.storage.log.internal import internal_topic

        topic, _ = internal_topic(self.name, self.path)
        schema = internal_schema(record_type(topic, record))
        return pa.Table.from_batches(self.internal_batches(record, on_damage=on_damage, **choice), schema)


def open_log(path: str, *, fs: Store) -> LogView:
    """Open the log of one partition for reading; see `commands.read.open_log`."""
    return open_log_as(LogView, path, fs)


def open_log_as(kind: type[_Log], path: str, fs: Store) -> _Log:
    """Open the log of one partition as a kind of `LogView`."""
    path = path.rstrip("/") or "/"
    holder = fs.lock_holder(posixpath.dirname(path) or ".")
    log = kind(path, fs=fs, live=holder is not None and holder.is_broker)
    if not log.segments:
        raise holds_nothing(path)
    return log


def holds_nothing(path: str) -> NotFoundError:
    """Return the error for a partition directory without segments."""
    example = filenames.offset_name(0, FileKind.LOG)
    return NotFoundError(f"{path} holds no log segment; a partition's directory has files like {example}")


def _reporting(
    items: Iterator[BatchWindow | Gap], segment: Segment, on_unreadable: Callable[[Segment, OSError], None] | None
) -> Iterator[BatchWindow | Gap]:
    """Yield a segment's windows up to the first error; pass it to `on_unreadable`, but raise for a missing file."""
    try:
        yield from items
    except FileNotFoundError:
        raise
    except OSError as error:
        if on_unreadable is None:
            raise
        on_unreadable(segment, error)


def _isolation(given: object) -> Isolation:
    try:
        return Isolation(f"{given}".lower())
    except ValueError:
        raise ValueError(f"isolation is {' or '.join(Isolation)}, not {shown(given)}") from None


@dataclass(frozen=True, slots=True)
class LogSource:
    """The location of a log as plain values, for a task that opens it in another process or on another machine.

    Attributes:
        location: location of its store.
        path: path of the partition's directory in the store.
        log_start_offset: offset in the log directory's checkpoint.
        live: whether a broker writes to the log.
        index_root: see `LogView`.
    """

    location: Location[Store]
    path: str
    log_start_offset: int
    live: bool
    index_root: str | None = None

    def open(self) -> LogView:
        """Open the log."""
        return self.on(self.location.open())

    def on(self, store: Store) -> LogView:
        """Open the log in a substitute for its store, such as a store that counts bytes read."""
        start, root = self.log_start_offset, self.index_root
        return LogView(self.path, fs=store, live=self.live, log_start_offset=start, index_root=root)
