"""What verifying reads of two states of a log: rows of facts for Spark's SQL, made in tasks.

Both states are read side by side, offset by offset, in windows. What one look at both can tell is told here: whether a
record is there, the same, in order; whether a batch's fields are those it had. What it takes the whole log to tell (a
key's last value, a transaction's end, a producer's last batch) becomes rows that `verifying` joins and aggregates.

Nothing of `cleaning` and none of its kernels has a part in it: keys, values and headers are compared as bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cordwood.errors import BatchTooLargeError, CorruptFileError, DataError
from cordwood.fs.base import FileSystem
from cordwood.fs.overlay import Overlay
from cordwood.kernels.gather import gather, lay_out, list_headers
from cordwood.record import plain
from cordwood.record.columns import BatchWindow, RecordColumns, decode
from cordwood.record.layout import (
    BATCH_ROW,
    CODEC_MASK,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchRows,
    U8Array,
)
from cordwood.record.record import to_records
from cordwood.storage.log import MAX_OFFSET, Log, Segment, gap_error
from cordwood.storage.segment import GapKind, read_headers
from cordwood.storage.transactions import is_control
from cordwood.types import NONE, Codec, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

BoolArray = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]

#: Of so many batches one is read by the plain reader, too, and the first of each range in any case.
_SAMPLE_EVERY = 256
_SAMPLE_RECORDS_MAX = 2000
_SAMPLE_BYTES_MAX = 1 << 20


class Broken(StrEnum):
    """What can be found broken. The value is what `--json` says; `MEANINGS` says it in words."""

    INVENTED = "invented"
    TWICE = "twice"
    ORDER = "order"
    KEY = "key-changed"
    VALUE = "value-changed"
    HEADERS = "headers-changed"
    TIMESTAMP = "timestamp-changed"
    BATCH_INVENTED = "batch-invented"
    BATCH_OFFSETS = "batch-offsets-changed"
    BATCH_EPOCH = "leader-epoch-changed"
    BATCH_PRODUCER = "producer-changed"
    BATCH_ATTRIBUTES = "attributes-changed"
    BATCH_TIME = "max-timestamp-changed"
    HORIZON = "horizon-changed"
    MARKER = "marker-lost"
    UNTOUCHED = "touched-above"
    DAMAGE_BEFORE = "damage-before"
    DAMAGE_AFTER = "damage-after"
    READERS = "readers-differ"
    VALUE_LOST = "value-lost"
    TOMBSTONE_LOST = "tombstone-lost"
    CAME_BACK = "deleted-key-back"
    ABORTED_VISIBLE = "aborted-visible"
    COMMITTED_HIDDEN = "committed-hidden"
    PRODUCER_LOST = "producer-lost"
    END_OFFSET = "end-offset"
    LOG_START = "log-start"
    LEADER_EPOCHS = "leader-epochs"
    PRODUCER_STATE = "producer-state"
    INDEX = "index-or-file"
    CHECKPOINT = "checkpoint"
    PARTITION = "partition"


class Count(StrEnum):
    """What was proved, and of how much."""

    RECORDS_BEFORE = "records_before"
    RECORDS_AFTER = "records_after"
    RECORDS_SAME = "records_same"
    BATCHES = "batches"
    BATCHES_ABOVE = "batches_above"
    MARKERS = "markers"
    SAMPLED = "sampled"
    UNCHANGED_BYTES = "unchanged_bytes"
    KEYS_KEPT = "keys_kept"
    KEYS_DELETED = "keys_deleted"
    TRANSACTIONAL = "transactional"
    PRODUCERS = "producers"


#: What a row says: a record of the state before; else something broken, or a count.
RECORD = 0
CODES: Mapping[str, int] = {name: at for at, name in enumerate([*Broken, *Count], 1)}
NAMES = {code: name for name, code in CODES.items()}


@dataclass(frozen=True, slots=True)
class Side:
    """One state of a partition: how its files are found. Plain values, to be pickled.

    Attributes:
        path: of its directory, as people know it.
        log_start_offset: of the log.
        files: path of the file that each name in the directory stands for; None: the directory as it is.
    """

    path: str
    log_start_offset: int
    files: Mapping[str, str] | None = None

    def open(self, fs: FileSystem) -> Log:
        """The log."""
        seen = fs if self.files is None else Overlay(fs, self.path, self.files)
        return Log(self.path, fs=seen, log_start_offset=self.log_start_offset)

    def file_of(self, segment: Segment) -> str:
        """Where a segment's `.log` really is."""
        name = segment.files.log.name
        return f"{self.path}/{name}" if self.files is None else self.files[name]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two states of a partition, and by what the change from one to the other is judged.

    Attributes:
        topic_partition: None if the directory is not named like one.
        before, after: the states.
        start: below it both are the same files, which are not looked at.
        first_uncleanable: from here on nothing may have changed. None: what a broker could know: the base of the active
            segment, limited by the last stable offset and `high_watermark`; where one lies in a segment, its base.
        high_watermark: None: the log's end.
        now_ms: the time of the change, or any time after it.
        deletes: tombstones and markers may be gone when their horizon has passed.
        legacy_horizon_ms: tombstones of magic 0 and 1 may be gone from segments that were modified up to then.
        new_horizon_ms: what a horizon is that was set by the change; None: not known.
        retention: segments may be gone from the start.
        producer_expiration_ms: who was not heard of for so long may be forgotten.
    """

    topic_partition: TopicPartition | None
    before: Side
    after: Side
    start: int = 0
    first_uncleanable: int | None = None
    high_watermark: int | None = None
    now_ms: int = 0
    deletes: bool = True
    legacy_horizon_ms: int | None = None
    new_horizon_ms: int | None = None
    retention: bool = False
    producer_expiration_ms: int = 86_400_000

    @property
    def lowest(self) -> int:
        """The lowest offset that is looked at."""
        moved = self.after.log_start_offset if self.retention else 0
        return max(self.start, self.before.log_start_offset, moved)


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets [start, end) of a pair: what one task looks at.

    Attributes:
        pair: its index.
        start, end: no batch of a good log reaches over them.
        limit: from here on nothing may have changed.
        same: both states have the same files there.
        size_bytes: to be read, of both.
    """

    pair: int
    start: int
    end: int
    limit: int
    same: bool
    size_bytes: int


def limit_of(pair: Pair, log: Log) -> int:
    """The first offset of the state before that no clean may have touched."""
    if pair.first_uncleanable is not None:
        return pair.first_uncleanable
    if not log.segments:
        return 0
    bases = [segment.base_offset for segment in log.segments]
    stable = log.transactions().last_stable_offset
    known = [bases[-1], *(one for one in (stable, pair.high_watermark) if one is not None)]
    # A segment is cleaned whole or not at all.
    return max((base for base in bases if base <= min(known)), default=0)


def ranges_of(number: int, pair: Pair, fs: FileSystem, *, range_bytes: int) -> list[Range]:
    """A pair cut at segments of the state before, into ranges of about so many bytes."""
    before, after = pair.before.open(fs), pair.after.open(fs)
    limit = limit_of(pair, before)

    def identity(side: Side, segment: Segment) -> tuple[int, ...] | tuple[str]:
        info = fs.stat(side.file_of(segment))
        return (info.device, info.inode) if info.inode else (side.file_of(segment),)

    there = {segment.base_offset: identity(pair.after, segment) for segment in after.segments}
    starts = [segment.base_offset for segment in after.segments]
    found: list[Range] = []
    ends = [*(segment.base_offset for segment in before.segments[1:]), MAX_OFFSET]
    lowest = pair.lowest
    for segment, end in zip(before.segments, ends, strict=True):
        if end <= lowest:
            continue
        base = segment.base_offset
        at = np.searchsorted(starts, base, side="right")
        next_start = starts[at] if at < len(starts) else MAX_OFFSET
        same = there.get(base) == identity(pair.before, segment) and next_start == end
        size = segment.size_bytes * (1 if same else 2)
        if found and found[-1].same == same and found[-1].size_bytes + size <= range_bytes:
            last = found.pop()
            found.append(Range(number, last.start, end, limit, same, last.size_bytes + size))
        else:
            found.append(Range(number, max(base, lowest) if found else lowest, end, limit, same, size))
    return found


# ---- records, both states side by side -------------------------------------------------------------------------------


@dataclass(slots=True)
class Facts:
    """Rows on their way to Spark: whole columns, and single findings and counts."""

    pair: int
    columns: deque[pa.RecordBatch] = field(default_factory=deque)
    counts: dict[str, int] = field(default_factory=dict)
    _single: list[tuple[int, bytes | None, int]] = field(default_factory=list)

    def count(self, what: Count, number: int) -> None:
        """Add to a count."""
        self.counts[what] = self.counts.get(what, 0) + int(number)

    def broken(self, what: Broken, offset: int, key: bytes | None = None) -> None:
        """One thing that is broken."""
        self._single.append((CODES[what], key, offset))

    def broken_batches(self, what: Broken, batches: BatchRows, bad: BoolArray) -> None:
        """Batches that are broken, bool[batches]."""
        for row in batches[bad]:
            self.broken(what, int(row["base_offset"] if row["base_offset"] >= 0 else row["last_offset"]))

    def broken_records(self, what: Broken, piece: Piece, bad: npt.NDArray[np.int64] | BoolArray) -> None:
        """Records that are broken, by their index or as bool[records]."""
        rows = piece.rows[bad]
        if rows.size:
            keys = binary(piece.data, rows["key_start"], rows["key_size"]).to_pylist()
            for key, offset in zip(keys, rows["offset"].tolist(), strict=True):
                self.broken(what, offset, key)

    def add(self, keys: pa.Array, rows: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Records of the state before."""
        import pyarrow as pa

        size = len(keys)
        pairs = pa.array(np.full(size, self.pair, np.int32))
        codes = pa.array(np.full(size, RECORD, np.int8))
        ones = pa.array(np.ones(size, np.int64))
        columns = [pairs, codes, keys, *(pa.array(rows[name]) for name in ("at", "batch")), ones]
        flags = [pa.array(rows[name]) for name in ("there", "value", "may_go")]
        self.columns.append(pa.RecordBatch.from_arrays([*columns, *flags], FACT_NAMES))

    def take(self, *, last: bool = False) -> Iterator[pa.RecordBatch]:
        """What there is so far."""
        import pyarrow as pa

        while self.columns:
            yield self.columns.popleft()
        single = [(code, key, offset, 1) for code, key, offset in self._single]
        self._single.clear()
        if last:
            single += [(CODES[what], None, 0, number) for what, number in self.counts.items()]
        if single:
            codes, keys, offsets, numbers = zip(*single, strict=True)
            size = len(single)
            no = pa.array(np.zeros(size, np.bool_))
            columns = [
                *(
                    pa.array(np.full(size, self.pair, np.int32)),
                    pa.array(codes, pa.int8()),
                    pa.array(keys, pa.binary()),
                ),
                *(
                    pa.array(offsets, pa.int64()),
                    pa.array(np.full(size, NONE, np.int64)),
                    pa.array(numbers, pa.int64()),
                ),
                *(no, no, no),
            ]
            yield pa.RecordBatch.from_arrays(columns, FACT_NAMES)


FACT_NAMES = ["pair", "code", "key", "at", "batch", "n", "there", "value", "may_go"]
FACT_SCHEMA = (
    "pair int, code tinyint, key binary, at bigint, batch bigint, n bigint,"
    " there boolean, value boolean, may_go boolean"
)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some records of one side, ascending.

    Attributes:
        data, rows, batches: as of `RecordColumns`.
        mtime_ms: of their segment.
    """

    data: U8Array
    rows: npt.NDArray[np.void]
    batches: BatchRows
    mtime_ms: int

    @property
    def offsets(self) -> Int64Array:
        """int64[records]."""
        return np.ascontiguousarray(self.rows["offset"])

    @property
    def control(self) -> BoolArray:
        """bool[records]: of control batches."""
        return np.asarray(is_control(self.batches)[self.rows["batch"]])


class _Stream:
    """One side of a range, read as far as it has to be.

    Attributes:
        upto: all up to this offset is read.
    """

    def __init__(self, log: Log, part: Range, facts: Facts, damage: Broken) -> None:
        self.upto = part.start - 1
        self.damage = damage
        self._log = log
        self._part = part
        self._facts = facts
        self._batches: deque[BatchRows] = deque()
        self._records: deque[Piece] = deque()
        self._last = -1
        self._seen = 0
        self._steps = self._read()

    def read_on(self) -> None:
        """Read one step further."""
        try:
            if next(self._steps, None) is None:
                self.upto = MAX_OFFSET
        except (DataError, OSError) as error:
            at = error.offset if isinstance(error, DataError) else None
            self._facts.broken(self.damage, self.upto + 1 if at is None else at)
            self.upto = MAX_OFFSET

    def take_batches(self, bound: int) -> BatchRows:
        """All batches that end at or below an offset."""
        batches = []
        while self._batches and (below := self._batches[0]["last_offset"] <= bound).any():
            rows = self._batches.popleft()
            batches.append(rows[below])
            if not below.all():
                self._batches.appendleft(rows[~below])
                break
        return np.concatenate(batches) if batches else np.empty(0, BATCH_ROW)

    def take_records(self, bound: int) -> list[Piece]:
        """All records at or below an offset."""
        records = []
        while self._records and self._records[0].rows["offset"][0] <= bound:
            piece = self._records.popleft()
            count = int(np.searchsorted(piece.offsets, bound, side="right"))
            records.append(Piece(piece.data, piece.rows[:count], piece.batches, piece.mtime_ms))
            if count < piece.rows.size:
                self._records.appendleft(Piece(piece.data, piece.rows[count:], piece.batches, piece.mtime_ms))
                break
        return records

    def _read(self) -> Iterator[bool]:
        start, end = self._part.start, self._part.end
        for segment, item in self._log.windows(start_offset=start, end_offset=end):
            if not isinstance(item, BatchWindow):
                if segment.base_offset != self._log.segments[-1].base_offset or item.kind is GapKind.DAMAGE:
                    raise gap_error(segment, item)
                continue  # what a stop leaves
            lasts = item.batches["last_offset"]
            batches = item.batches[(lasts >= start) & (lasts < end)]
            if not batches.size:
                continue
            self._batches.append(batches)
            window = BatchWindow(item.position, item.data, batches, item.read)
            try:
                for columns in decode(window):
                    yield from self._take_in(columns, segment, window)
            except DataError as error:
                raise error.at(segment.path) from None
            self.upto = max(self.upto, int(batches["last_offset"].max()))
            yield True

    def _take_in(self, columns: RecordColumns, segment: Segment, window: BatchWindow) -> Iterator[bool]:
        piece = Piece(columns.data, columns.rows, columns.batches, segment.mtime_ms)
        self._sample(columns, window)
        offsets = piece.offsets
        before = np.maximum.accumulate(np.concatenate([np.array([self._last]), offsets[:-1]]))
        ascend = offsets > before
        if not ascend.all():
            self._facts.broken_records(Broken.TWICE, piece, offsets == before)
            self._facts.broken_records(Broken.ORDER, piece, offsets < before)
            piece = Piece(piece.data, piece.rows[ascend], piece.batches, piece.mtime_ms)
        if piece.rows.size:
            self._last = int(piece.rows["offset"][-1])
            self._records.append(piece)
            self.upto = max(self.upto, self._last)
            yield True

    def _sample(self, columns: RecordColumns, window: BatchWindow) -> None:
        """Read some batches with the plain reader, too."""
        owners = columns.rows["batch"]
        starts = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(np.diff(owners)) + 1])
        first = -self._seen % _SAMPLE_EVERY
        self._seen += starts.size
        for at in range(first, starts.size, _SAMPLE_EVERY):
            end = int(starts[at + 1]) if at + 1 < starts.size else owners.size
            rows = columns.rows[starts[at] : end]
            batch = columns.batches[rows["batch"][0]]
            position, size = int(batch["position"]) - window.position, int(batch["size_bytes"])
            unpacked = int(np.maximum(rows["value_size"], 0).sum() + np.maximum(rows["key_size"], 0).sum())
            is_whole = position + size <= window.data.size and rows.size == batch["record_count"]
            if batch["magic"] < 2:
                ends = rows["offset"][0] == batch["base_offset"], rows["offset"][-1] == batch["last_offset"]
                # Magic 0 has LZ4 frames with a wrong checksum, which only Kafka and we can read.
                readable = batch["magic"] == 1 or batch["attributes"] & CODEC_MASK != Codec.LZ4
                is_whole = position + size <= window.data.size and all(ends) and readable
            if not is_whole or rows.size > _SAMPLE_RECORDS_MAX or max(size, unpacked) > _SAMPLE_BYTES_MAX:
                continue
            self._facts.count(Count.SAMPLED, rows.size)
            try:
                found = plain.read_batch(window.data[position : position + size].tobytes())
            except plain.BrokenError:
                found = []
            if found != list(to_records(columns.data, rows)):
                self._facts.broken(Broken.READERS, int(rows["offset"][0]))


def compare(part: Range, pair: Pair, fs: FileSystem) -> Iterator[pa.RecordBatch]:
    """The facts of a range, as record batches of `FACT_SCHEMA`."""
    facts = Facts(part.pair)
    judge = _Judge(pair, part, facts)
    before = _Stream(pair.before.open(fs), part, facts, Broken.DAMAGE_BEFORE)
    if part.same:
        while before.upto < MAX_OFFSET:
            before.read_on()
            facts.count(Count.UNCHANGED_BYTES, before.take_batches(before.upto)["size_bytes"].sum())
            for piece in before.take_records(before.upto):
                facts.count(Count.RECORDS_SAME, piece.rows.size)
                facts.count(Count.RECORDS_BEFORE, piece.rows.size)
                facts.count(Count.RECORDS_AFTER, piece.rows.size)
                judge.records(piece, np.ones(piece.rows.size, np.bool_))
            yield from facts.take()
    else:
        after = _Stream(pair.after.open(fs), part, facts, Broken.DAMAGE_AFTER)
        done = part.start - 1
        while done < MAX_OFFSET:
            (before if before.upto <= after.upto else after).read_on()
            bound = min(before.upto, after.upto)
            if bound > done:
                judge.records_of_both(before.take_records(bound), after.take_records(bound))
                batches = before.take_batches(bound)
                # What became of a wrapper may end before the wrapper does, so it waits for that.
                ended = int(batches["last_offset"][-1]) if batches.size else NONE
                judge.batches(batches, after.take_batches(bound if bound == MAX_OFFSET else ended))
                done = bound
                yield from facts.take()
    yield from facts.take(last=True)


class _Judge:
    """Compares what both sides have of the same offsets."""

    def __init__(self, pair: Pair, part: Range, facts: Facts) -> None:
        self._pair = pair
        self._limit = part.limit
        self._facts = facts
        # Base offsets of batches after, and the newest timestamp of their records, or of some of them.
        self._newest: list[tuple[Int64Array, Int64Array]] = []

    def records_of_both(self, before: list[Piece], after: list[Piece]) -> None:
        """Records up to the same offset."""
        known = [np.zeros(piece.rows.size, np.bool_) for piece in after]
        for piece in before:
            there = np.zeros(piece.rows.size, np.bool_)
            for other, its_known in zip(after, known, strict=True):
                at, where = _matches(piece.offsets, other.offsets)
                there[at] = its_known[where] = True
                self._same(piece, other, at, where)
            self._facts.count(Count.RECORDS_BEFORE, piece.rows.size)
            self.records(piece, there)
        for piece, its_known in zip(after, known, strict=True):
            self._note_times(piece)
            self._facts.count(Count.RECORDS_AFTER, piece.rows.size)
            self._facts.count(Count.RECORDS_SAME, its_known.sum())
            self._facts.broken_records(Broken.INVENTED, piece, ~its_known)

    def _note_times(self, piece: Piece) -> None:
        owners = piece.rows["batch"]
        if owners.size:
            starts = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(np.diff(owners)) + 1])
            bases = piece.batches["base_offset"][owners[starts]]
            self._newest.append((bases, np.maximum.reduceat(piece.rows["timestamp"], starts)))

    def _newest_of(self, after: BatchRows) -> tuple[Int64Array, BoolArray]:
        """Per batch the newest timestamp of its records, and whether it has any; those behind are kept for later."""
        if not self._newest:
            return np.zeros(after.size, np.int64), np.zeros(after.size, np.bool_)
        bases, which = np.unique(np.concatenate([bases for bases, _ in self._newest]), return_inverse=True)
        times = np.full(bases.size, np.iinfo(np.int64).min)
        np.maximum.at(times, which, np.concatenate([times for _, times in self._newest]))
        at = np.minimum(np.searchsorted(bases, after["base_offset"]), bases.size - 1)
        later = bases > (after["base_offset"].max() if after.size else NONE)
        self._newest = [(bases[later], times[later])] if later.any() else []
        return times[at], bases[at] == after["base_offset"]

    def records(self, piece: Piece, there: BoolArray) -> None:
        """Facts about keys: which records of the state before are there after, and which may not be."""
        rows = piece.rows
        chosen = ~piece.control & (rows["key_size"] >= 0)
        chosen &= (rows["offset"] < self._limit) & (rows["offset"] >= self._pair.lowest)
        if not chosen.all():
            rows, there = rows[chosen], there[chosen]
        if not rows.size:
            return
        batches = piece.batches[rows["batch"]]
        value = rows["value_size"] >= 0
        horizon = self._pair.legacy_horizon_ms
        legacy = horizon is not None and piece.mtime_ms <= horizon
        may_go = ~value & np.where(batches["magic"] == 2, self._is_due(batches), legacy) & self._pair.deletes
        self._facts.add(
            binary(piece.data, rows["key_start"], rows["key_size"]),
            {
                "at": np.ascontiguousarray(rows["offset"]),
                "batch": np.ascontiguousarray(batches["base_offset"]),
                "there": there,
                "value": value,
                "may_go": may_go,
            },
        )

    def _is_due(self, batches: BatchRows) -> BoolArray:
        flagged = batches["attributes"] & DELETE_HORIZON != 0
        return np.asarray(flagged & (batches["base_timestamp"] <= self._pair.now_ms))

    def _same(self, before: Piece, after: Piece, at: Int64Array, where: Int64Array) -> None:
        """Records that both have, by their indexes."""
        mine, theirs = before.rows[at], after.rows[where]
        changed = {
            Broken.TIMESTAMP: mine["timestamp"] != theirs["timestamp"],
            Broken.KEY: ~_same_bytes(before.data, after.data, mine, theirs, "key"),
            Broken.VALUE: ~_same_bytes(before.data, after.data, mine, theirs, "value"),
            Broken.HEADERS: ~_same_headers(before.data, after.data, mine, theirs),
        }
        for what, bad in changed.items():
            if bad.any():
                self._facts.broken_records(what, after, where[bad])

    def batches(self, before: BatchRows, after: BatchRows) -> None:
        """Batches up to the same offset."""
        newest, known = self._newest_of(after)
        self._facts.count(Count.BATCHES, after.size)
        if before.size:
            owner = np.searchsorted(before["last_offset"], after["last_offset"])
            found = owner < before.size
        else:
            owner, found = np.zeros(after.size, np.int64), np.zeros(after.size, np.bool_)
        self._facts.broken_batches(Broken.BATCH_INVENTED, after, ~found)
        after, owner = after[found], owner[found]
        if before.size:
            self._fields(before[owner], after, newest[found], known[found])
            self._lost(before, after, owner)

    def _fields(self, was: BatchRows, now: BatchRows, newest: Int64Array, known: BoolArray) -> None:
        """What batches say, against what they said, and against the newest time of their records where it is known."""
        legacy, empty = was["magic"] < 2, now["record_count"] == 0
        late = was["attributes"] & LOG_APPEND_TIME != 0
        offsets = (was["base_offset"] != now["base_offset"]) | (was["last_offset"] != now["last_offset"])
        whole = was["record_count"] == now["record_count"]
        latest, said = was["max_timestamp"], now["max_timestamp"]
        # Where nothing is left there is nothing to compress.
        compared = np.where(empty, ~(DELETE_HORIZON | CODEC_MASK), ~DELETE_HORIZON)
        had, has = (rows["attributes"] & DELETE_HORIZON != 0 for rows in (was, now))
        new = self._pair.new_horizon_ms
        broken = {
            Broken.BATCH_OFFSETS: np.where(legacy, now["base_offset"] > now["last_offset"], offsets),
            Broken.BATCH_EPOCH: was["leader_epoch"] != now["leader_epoch"],
            Broken.BATCH_PRODUCER: (was["producer_id"] != now["producer_id"])
            | (was["producer_epoch"] != now["producer_epoch"])
            | (was["base_sequence"] != now["base_sequence"]),
            Broken.BATCH_ATTRIBUTES: ((was["attributes"] ^ now["attributes"]) & compared != 0)
            | (now["magic"] < was["magic"])
            | (~legacy & (now["record_count"] > was["record_count"])),
            Broken.BATCH_TIME: (said > latest)
            | ((late | empty | (whole & ~legacy)) & (said != latest))
            | (known & (said != latest) & (said != newest)),
            Broken.HORIZON: (had & ~empty & (~has | (was["base_timestamp"] != now["base_timestamp"])))
            | ((has & ~had & (now["base_timestamp"] != new)) if new is not None else np.zeros(now.size, np.bool_)),
        }
        for what, bad in broken.items():
            if bad.any():
                self._facts.broken_batches(what, now, np.asarray(bad))

    def _lost(self, before: BatchRows, after: BatchRows, owner: Int64Array) -> None:
        """Batches that should be there, as they were or with their marker."""
        filled = np.zeros(before.size, np.bool_)
        filled[owner[after["record_count"] != 0]] = True
        markers = is_control(before) & (before["record_count"] > 0)
        self._facts.count(Count.MARKERS, (markers & filled).sum())
        may_go = self._is_due(before) & (before["last_offset"] < self._limit) & self._pair.deletes
        self._facts.broken_batches(Broken.MARKER, before, markers & ~filled & ~may_go)

        above = before["last_offset"] >= self._limit
        if above.any():
            same = np.zeros(before.size, np.bool_)
            mine = before[owner]
            names = ("base_offset", "last_offset", "crc", "size_bytes", "magic", "leader_epoch")
            same[owner[np.logical_and.reduce([mine[name] == after[name] for name in names])]] = True
            self._facts.count(Count.BATCHES_ABOVE, (above & same).sum())
            self._facts.broken_batches(Broken.UNTOUCHED, before, above & ~same)


def _matches(before: Int64Array, after: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Indexes of the offsets that both have; both ascend."""
    if not before.size or not after.size or before[-1] < after[0] or after[-1] < before[0]:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    where = np.searchsorted(before, after)
    found = np.flatnonzero(before[np.minimum(where, before.size - 1)] == after)
    return where[found], found


def _same_bytes(
    before: U8Array, after: U8Array, mine: npt.NDArray[np.void], theirs: npt.NDArray[np.void], name: str
) -> BoolArray:
    """bool[records]: whether both have the same bytes, or none."""
    starts, sizes = f"{name}_start", f"{name}_size"
    return _equal((before, mine[starts], mine[sizes]), (after, theirs[starts], theirs[sizes]))


def _same_headers(
    before: U8Array, after: U8Array, mine: npt.NDArray[np.void], theirs: npt.NDArray[np.void]
) -> BoolArray:
    same = np.asarray(mine["header_count"] == theirs["header_count"])
    there = np.flatnonzero(same & (mine["header_count"] > 0))
    if there.size:
        mine, theirs = mine[there], theirs[there]
        pairs = [_headers(data, rows) for data, rows in ((before, mine), (after, theirs))]
        equal = np.logical_and(*(_equal(left, right) for left, right in zip(*pairs, strict=True)))
        ends = np.cumsum(mine["header_count"], dtype=np.int64)
        same[there] = np.logical_and.reduceat(equal, ends - mine["header_count"])
    return same


_Strings = tuple[U8Array, npt.NDArray[np.int32], npt.NDArray[np.int32]]


def _headers(data: U8Array, rows: npt.NDArray[np.void]) -> tuple[_Strings, _Strings]:
    """Where names and values of all headers of some records are."""
    total = int(rows["header_count"].sum(dtype=np.int64))
    places = [np.empty(total, np.int32) for _ in range(4)]
    starts, counts = (np.ascontiguousarray(rows[name]) for name in ("headers_start", "header_count"))
    list_headers(data.ctypes.data, starts, counts, *places)
    return (data, places[0], places[1]), (data, places[2], places[3])


def _equal(left: _Strings, right: _Strings) -> BoolArray:
    """bool[strings]: whether they are the same, or both null."""
    import pyarrow.compute as pc

    sizes = [np.maximum(one[2], -1) for one in (left, right)]
    same = np.asarray(sizes[0] == sizes[1])
    there = np.flatnonzero(same & (sizes[0] > 0))
    if there.size:
        arrays = [
            binary(data, starts[there], one[there]) for (data, starts, _), one in zip((left, right), sizes, strict=True)
        ]
        same[there] = pc.equal(*arrays).to_numpy(zero_copy_only=False)
    return same


def binary(data: U8Array, starts: npt.NDArray[np.int32], sizes: npt.NDArray[np.int32]) -> pa.Array:
    """Byte strings that stand scattered in `data`, as an Arrow array; a negative size is null."""
    import pyarrow as pa

    starts, sizes = np.ascontiguousarray(starts), np.ascontiguousarray(sizes)
    offsets = np.empty(sizes.size + 1, np.int32)
    validity = np.zeros((sizes.size + 7) // 8, np.uint8)
    total, nulls = lay_out(sizes, offsets, validity)
    if total < 0:
        raise BatchTooLargeError("keys or values of more than 2 GiB do not fit one Arrow array")
    target = np.empty(total, np.uint8)
    gather(data.ctypes.data, starts, offsets, target.ctypes.data)
    buffers = [pa.py_buffer(validity) if nulls else None, pa.py_buffer(offsets), pa.py_buffer(target)]
    return pa.Array.from_buffers(pa.binary(), sizes.size, buffers, nulls)


# ---- batches of producers, from headers alone ------------------------------------------------------------------------

BATCH_SCHEMA = "pair int, after boolean, pid bigint, what tinyint, at bigint, upto bigint, epoch int, filled boolean"
BATCH_NAMES = [part.split()[0] for part in BATCH_SCHEMA.split(", ")]
#: What a batch row is: data outside of a transaction, in one; markers; other control batches; a transaction index's
#: entry; a batch out of order; a transaction index that cannot be read.
PLAIN, TRANSACTION, ABORT, COMMIT, OTHER, ENTRY, DISORDER, UNREADABLE = range(8)


def headers(part: Range, pair: Pair, fs: FileSystem) -> Iterator[pa.RecordBatch]:
    """Batches with a producer, and transaction indexes, of a range: record batches of `BATCH_SCHEMA`."""
    for after, side in ((False, pair.before), (True, pair.after)):
        if after and part.same:
            continue
        log = side.open(fs)
        bases = [*(segment.base_offset for segment in log.segments), MAX_OFFSET]
        for segment, end in zip(log.segments, bases[1:], strict=True):
            # The state after has its own segments; each is of the range that its base is in, or of the first.
            if end <= part.start or not (part.start <= max(segment.base_offset, pair.lowest) < part.end):
                continue
            for rows in _segment_headers(segment, end, pair, ordered=after or part.same):
                yield from _as_batch(rows, part.pair, after)
                if part.same:
                    yield from _as_batch(rows, part.pair, True)


def _segment_headers(
    segment: Segment, end: int, pair: Pair, *, ordered: bool
) -> Iterator[Mapping[str, npt.NDArray[np.generic]]]:
    last = segment.base_offset - 1
    with segment.open() as file:
        for rows in read_headers(file, base_offset=segment.base_offset):
            if not isinstance(rows, np.ndarray) or not rows.size:
                continue
            if ordered:
                lasts = rows["last_offset"]
                firsts = np.where(rows["base_offset"] >= 0, rows["base_offset"], lasts)
                bad = (firsts <= np.concatenate([np.array([last]), lasts[:-1]])) | (lasts >= end)
                last = int(lasts[-1])
                if bad.any():
                    yield _columns(rows[bad], np.full(int(bad.sum()), DISORDER, np.int8))
            chosen = rows[(rows["producer_id"] >= 0) & (rows["last_offset"] >= pair.lowest)]
            if chosen.size:
                control = is_control(chosen)
                data = np.where(chosen["attributes"] & TRANSACTIONAL != 0, TRANSACTION, PLAIN)
                kinds = chosen["control_type"]
                ended = np.where(kinds == 0, ABORT, np.where(kinds == 1, COMMIT, OTHER))
                yield _columns(chosen, np.where(control, ended, data).astype(np.int8))
    try:
        index = segment.transaction_index()
    except CorruptFileError:
        base = np.full(1, segment.base_offset)
        yield _index_rows(UNREADABLE, np.zeros(1, np.int64), base, base)
        return
    if index is not None and index.entries:
        yield _index_rows(ENTRY, index.producer_ids, index.first_offsets, index.last_offsets)


def _index_rows(
    what: int, pids: Int64Array, firsts: Int64Array, lasts: Int64Array
) -> Mapping[str, npt.NDArray[np.generic]]:
    yes = np.ones(pids.size, np.bool_)
    whats, epochs = np.full(pids.size, what, np.int8), np.zeros(pids.size, np.int32)
    return {"pid": pids, "what": whats, "at": firsts, "upto": lasts, "epoch": epochs, "filled": yes}


def _columns(rows: BatchRows, what: npt.NDArray[np.int8]) -> Mapping[str, npt.NDArray[np.generic]]:
    return {
        "pid": rows["producer_id"],
        "what": what,
        "at": np.where(rows["base_offset"] >= 0, rows["base_offset"], rows["last_offset"]),
        "upto": rows["last_offset"],
        "epoch": rows["producer_epoch"].astype(np.int32),
        "filled": rows["record_count"] > 0,
    }


def _as_batch(rows: Mapping[str, npt.NDArray[np.generic]], pair: int, after: bool) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    size = rows["pid"].size
    columns = [pa.array(np.full(size, pair, np.int32)), pa.array(np.full(size, after, np.bool_))]
    columns += [pa.array(np.ascontiguousarray(rows[name])) for name in BATCH_NAMES[2:]]
    yield pa.RecordBatch.from_arrays(columns, BATCH_NAMES)


#: Makes rows of a range.
Reader = Callable[[Range, Pair, FileSystem], Iterator["pa.RecordBatch"]]
