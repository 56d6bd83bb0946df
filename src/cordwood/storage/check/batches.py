"""Checks one `.log` file: its batches, their order, and their records.

The file is read once, in windows, as columns. Rules about a header are a table; rules about order compare adjacent
batches; rules about records compare the output of `columns.decode` with the headers: offsets increase within the batch,
the largest timestamp equals the header's, and the values of transaction markers are valid. Observers (indexes, producer
state, leader epochs) get the headers of the same pass, so nothing is read twice or kept in memory.

A batch with a wrong checksum or an impossible header is reported once, and excluded from all other checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from cordwood.common.errors import BatchProblem, BatchTooLargeError, DataError
from cordwood.common.types import Codec, ControlType
from cordwood.fs.base import ReadableFile
from cordwood.kernels.layout import (
    CODEC_MASK,
    HEADER,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchRows,
    has_flag,
    is_control,
    is_marker,
)
from cordwood.record.batch import MARKER_VALUE
from cordwood.record.columns import BatchWindow, RecordColumns, crc_error, decode, is_valid
from cordwood.storage.check.findings import CUTS, FINDINGS_MAX, STOPS, Behind, Findings, Kind, Severity
from cordwood.storage.log.windows import MAX_OFFSETS, Checks, Gap, GapKind, WindowReader
from cordwood.storage.node.start import Effect

#: Size of the longest log file that a broker opens.
SEGMENT_BYTES_MAX = 2**31 - 1
#: A position behind all ends.
TO_END = 2**63 - 1


class Observer(Protocol):
    """Receives the headers of a segment's batches, in file order."""

    def add(self, batches: BatchRows) -> None:
        """Process the next batches, BATCH_ROW[batches]."""
        ...


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A `.log` file, and the offsets that it may hold.

    Attributes:
        base_offset: the lowest offset that it may hold.
        end_offset: base offset of the next segment; None for the last segment.
        live: a broker is running and may write to it.
        rebuilt: recovery reads it completely, and truncates an invalid end.
        recovered: a load reads it batch by batch, after a crash or because it has no offset index.
        closed: a clean shutdown closed it, so a load only looks for its end and does not check it.
        unread: the next recovery does not read it, because it was flushed before the crash.
        flushed_offset: offsets below this are known to be flushed to disk.
    """

    path: str
    base_offset: int = 0
    end_offset: int | None = None
    live: bool = False
    rebuilt: bool = False
    closed: bool = False
    recovered: bool = False
    unread: bool = False
    flushed_offset: int = 0


@dataclass(frozen=True, slots=True)
class _Rule:
    kind: Kind
    breaks: Callable[[BatchRows], BoolArray]
    what: str
    meaning: str | None = None
    effect: Effect | None = None


def _codec(batches: BatchRows) -> npt.NDArray[np.int16]:
    return np.asarray(batches["attributes"] & CODEC_MASK)


def _is_too_old_for(codec: Codec, batches: BatchRows) -> BoolArray:
    return np.asarray((_codec(batches) == codec) & (batches["magic"] < codec.magic_min))


def _wide(batches: BatchRows) -> BoolArray:
    """bool[batches]: more records than offsets. Subtracts, because the sum might overflow."""
    return np.asarray(batches["record_count"] - 1 > batches["last_offset"] - batches["base_offset"])


#: Rules for a single header. Only the first rule that a batch breaks is reported.
_RULES = (
    _Rule(
        Kind.UNKNOWN_CODEC,
        lambda b: _codec(b) > max(Codec),
        f"compression type {{codec}}; Kafka has 0 to {max(Codec):d}",
    ),
    *(
        _Rule(Kind.CODEC_NOT_ALLOWED, partial(_is_too_old_for, codec), f"{codec.label} in a message of magic {{magic}}")
        for codec in Codec
        if codec.magic_min
    ),
    _Rule(
        Kind.OFFSET_DELTA,
        lambda b: (b["magic"] == 2) & (b["last_offset"] < b["base_offset"]),
        "last offset {last_offset} is below base offset {base_offset}",
    ),
    _Rule(Kind.NEGATIVE_OFFSET, lambda b: b["last_offset"] < 0, "offset {last_offset} is negative"),
    _Rule(
        Kind.RECORD_COUNT,
        lambda b: (b["magic"] == 2) & (b["record_count"] < 0),
        "record count {record_count} is negative",
    ),
    _Rule(
        Kind.RECORD_COUNT,
        lambda b: (b["magic"] == 2) & _wide(b),
        "{record_count} records between offsets {base_offset} and {last_offset}",
    ),
    _Rule(
        Kind.TRAILING_BYTES,
        lambda b: (b["magic"] == 2) & (b["record_count"] == 0) & (b["size_bytes"] > HEADER.size),
        "record count 0, but there are records in its {size_bytes} bytes",
        "consumers skip the batch: they get none of its records, and no error",
        Effect.RECORDS_MISSING,
    ),
    _Rule(Kind.CONTROL_BATCH, lambda b: is_control(b) & (_codec(b) != 0), "a control batch is compressed ({codec})"),
    _Rule(
        Kind.CONTROL_BATCH,
        lambda b: is_marker(b) & (b["record_count"] > 1),
        "a transaction marker with {record_count} records",
    ),
    _Rule(
        Kind.CONTROL_BATCH,
        lambda b: (
            is_marker(b)
            & (b["record_count"] == 1)
            & ((b["control_type"] < 0) | (b["control_type"] > ControlType.COMMIT))
        ),
        "a transaction marker that is neither ABORT nor COMMIT",
    ),
    _Rule(
        Kind.CONTROL_BATCH,
        lambda b: is_control(b) & ~is_marker(b) & (b["producer_id"] >= 0),
        "a control batch of producer {producer_id} that is not transactional",
    ),
    _Rule(
        Kind.CONTROL_BATCH,
        lambda b: (
            is_control(b) & ~is_marker(b) & (b["record_count"] > 0) & (b["control_type"] < ControlType.LEADER_CHANGE)
        ),
        "a control batch of no known type",
    ),
    _Rule(
        Kind.CONTROL_BATCH,
        lambda b: is_marker(b) & (b["base_sequence"] != -1),
        "a transaction marker with sequence {base_sequence}",
    ),
    _Rule(
        Kind.BATCH_PRODUCER,
        lambda b: has_flag(b, TRANSACTIONAL) & (b["producer_id"] < 0),
        "a transactional batch without a producer id ({producer_id})",
    ),
    _Rule(
        Kind.BATCH_PRODUCER,
        lambda b: (b["producer_id"] >= 0) & (b["producer_epoch"] < 0),
        "producer {producer_id} with epoch {producer_epoch}",
    ),
    _Rule(
        Kind.BATCH_PRODUCER,
        lambda b: (b["producer_id"] >= 0) & ~is_control(b) & (b["base_sequence"] < 0),
        "producer {producer_id} with sequence {base_sequence}",
    ),
    _Rule(
        Kind.BATCH_PRODUCER,
        lambda b: (b["magic"] == 2) & (b["producer_id"] < -1),
        "producer id {producer_id}",
    ),
    _Rule(Kind.BATCH_LEADER_EPOCH, lambda b: b["leader_epoch"] < -1, "leader epoch {leader_epoch}"),
)
#: Bits of the attributes that no Kafka release sets, by magic.
_UNUSED_BITS = (0xF0, 0xF0, 0xFF80)

#: The kind of finding for a batch whose records cannot be decoded.
_UNREADABLE_RECORDS: dict[BatchProblem, Kind] = {
    BatchProblem.COMPRESSION: Kind.COMPRESSION,
    BatchProblem.RECORD: Kind.RECORD,
    BatchProblem.TRAILING_BYTES: Kind.TRAILING_BYTES,
    BatchProblem.MISSING_RECORDS: Kind.MISSING_RECORDS,
    BatchProblem.INNER_MESSAGE: Kind.INNER_MESSAGE,
    BatchProblem.INNER_CRC: Kind.INNER_CRC,
}
assert set(_UNREADABLE_RECORDS) == set(BatchProblem)


@dataclass(slots=True)
class LostTail:
    """Data that a recovery would cut off a log: everything behind the first damage that makes it cut.

    Attributes:
        path: path of the damaged file; None without such damage.
        position: position of the damage in the file.
        offset: end offset of the log after the cut.
        records: number of readable records behind the damage.
        size_bytes: size of the readable batches behind the damage.
        end_offset: offset behind the last of these batches.
        is_sampled: only a sample of the batches behind the damage was read, so records and size are lower limits.
    """

    path: str | None = None
    position: int = 0
    offset: int = 0
    records: int = 0
    size_bytes: int = 0
    end_offset: int = 0
    is_sampled: bool = False

    def begin(self, path: str, position: int, offset: int) -> None:
        """Note damage that makes a recovery cut the log, unless the recovery cuts at an earlier place.

        Damage in the same file may be reported out of order.
        """
        if self.path is None or (path == self.path and position < self.position):
            self.path, self.position, self.offset = path, position, offset

    def covers(self, path: str, batches: BatchRows) -> BoolArray:
        """Return which batches of a file are lost, bool[batches]."""
        if self.path is None:
            return np.zeros(batches.size, np.bool_)
        return np.asarray((batches["position"] > self.position) | (path != self.path))

    def add(self, batches: BatchRows) -> None:
        """Count lost batches. The caller counts their records when it decodes them."""
        self.size_bytes += int(batches["size_bytes"].sum())
        if batches.size:
            self.end_offset = int(batches["last_offset"][-1]) + 1

    def tell(self, findings: Findings) -> None:
        """Add the totals to the finding about the damage; not those of a sample."""
        if self.path is not None and self.records and not self.is_sampled:
            findings.add_behind(self.path, self.position, Behind(self.records, self.size_bytes, self.end_offset))


class LogCheck:
    """Checks one `.log` file.

    Attributes:
        first_offset: first offset of the first valid batch; None without one.
        has_holes: offsets are missing in its batches, as after a clean.
        hole: the first offsets [first, behind) that are missing between its batches; None if none are.
        last_offset: last offset of the last valid batch; below the base offset without one.
        end_position, ends_valid: end of the last batch, and whether that batch is valid.
        damaged: the log has errors, so other files cannot be compared with it.
    """

    def __init__(self, place: SegmentFile, findings: Findings, lost: LostTail) -> None:
        """Prepare the check; `run` reads the file.

        Args:
            lost: lost tail of the whole log, updated by the checks of earlier segments and by this one.
        """
        self.place = place
        self.findings = findings
        self._lost = lost
        self.batches = 0
        self.first_offset: int | None = None
        self.has_holes = False
        self.hole: tuple[int, int] | None = None
        self.last_offset = place.base_offset - 1
        self.end_position = 0
        self.ends_valid = True
        self.damaged = False
        self._records = RecordCheck(self._report)
        self._invalid: list[np.void] = []
        self._more_invalid = 0
        self._gap: Gap | None = None
        #: True if a broker that reads at the gap gets an error, and not the end of the log.
        self._fails = False
        #: True if the next valid batch does not follow the last one, as batches between them were not read.
        self._is_behind_jump = False

    def run(
        self,
        file: ReadableFile,
        observers: Sequence[Observer],
        see_all: Sequence[Observer],
        progress: Callable[[int], None],
        ranges: Iterable[tuple[int, int]] = ((0, TO_END),),
        on_jump: Callable[[], None] = lambda: None,
    ) -> None:
        """Read the file, and report its errors.

        Args:
            progress: called with the number of bytes read since the last call.
            ranges: start and end of each part to read, which is whole batches.
            on_jump: called before a part that does not follow the part before it.
        """
        size = file.size()
        if size > SEGMENT_BYTES_MAX:
            self._report(Kind.SEGMENT_SIZE, f"{size} bytes; a segment has at most {SEGMENT_BYTES_MAX}")
        place = self.place
        seen = 0
        for item in self._items(file, size, ranges, on_jump):
            if self._gap is not None:
                self._report_gap(self._gap, followed=True)
                self._gap = None
            if isinstance(item, Gap):
                self._gap = item
                head = file.read(item.position + _SIZE_AT, 4)
                size_there = int.from_bytes(head, "big", signed=True)
                self._fails = item.size_bytes >= _HEADER_BYTES and size_there < _LEAST_SIZE
                if place.live and place.end_offset is None:
                    break
                end = item.end
            else:
                self._window(item, observers, see_all)
                end = self.end_position
            progress(end - seen)
            seen = end
        self._records.end()
        if self._gap is not None:
            self._report_gap(self._gap, followed=False)
        self._report_invalid(followed=False)
        progress(size - seen)

    def _items(
        self,
        file: ReadableFile,
        size: int,
        ranges: Iterable[tuple[int, int]],
        on_jump: Callable[[], None],
    ) -> Iterator[BatchWindow | Gap]:
        place = self.place
        for start, end in ranges:
            if start != self.end_position:
                self._is_behind_jump = True
                on_jump()
            yield from WindowReader(
                file,
                Checks.WHOLE,
                base_offset=place.base_offset,
                start=start,
                end=min(end, size),
                search=not place.live,
            )

    # ---- headers -----------------------------------------------------------------------------------------------------

    def _window(self, window: BatchWindow, observers: Sequence[Observer], see_all: Sequence[Observer]) -> None:
        batches = window.batches
        self.batches += batches.size
        self.end_position = int(batches["position"][-1] + batches["size_bytes"][-1])
        for observer in see_all:
            observer.add(batches)
        good = is_valid(batches)
        followed = bool(good[0 if self._invalid else int(np.argmin(good)) :].any())
        invalid = np.flatnonzero(~good)
        kept = invalid[: max(0, FINDINGS_MAX - len(self._invalid))]
        self._invalid += [batches[i] for i in kept.tolist()]
        self._more_invalid += invalid.size - kept.size
        if self._invalid and followed:
            self._report_invalid(followed=True)
        good &= ~self._header_faults(batches, good)
        self.ends_valid = bool(good[-1])
        batches = batches[good]
        if not batches.size:
            return
        self._order(batches)
        self.last_offset = int(batches["last_offset"][-1])
        for observer in observers:
            observer.add(batches)
        believed = BatchWindow(window.position, window.data, batches, window.read)
        self._lost.add(batches[self._lost.covers(self.place.path, batches)])
        for columns in decode(believed, on_damage=self._on_damage):
            self._records.add(columns)
            if self._lost.path is not None:
                lost = self._lost.covers(self.place.path, columns.batches)
                self._lost.records += int(lost[columns.rows["batch"]].sum())
            del columns  # free a large record before the next one is decoded

    def _header_faults(self, batches: BatchRows, good: BoolArray) -> BoolArray:
        """Report batches with a correct CRC that break a rule; return their mask. Unused bits are only noted."""
        broken = np.zeros(batches.size, bool)
        for rule in _RULES:
            breaks = rule.breaks(batches)
            if not breaks.any():
                continue
            breaks &= good & ~broken
            # A recovery treats a negative offset as too high for the segment, tries to split it there, and fails.
            fails = rule.kind is Kind.NEGATIVE_OFFSET and self.place.recovered
            for i in np.flatnonzero(breaks).tolist():
                self._batch(
                    rule.kind, batches[i], rule.what, meaning=STOPS if fails else rule.meaning, effect=rule.effect
                )
            broken |= breaks
        unused = np.array(_UNUSED_BITS, np.uint16)[batches["magic"]]
        odd = batches["attributes"].astype(np.uint16) & unused
        for i in np.flatnonzero((odd != 0) & good & ~broken).tolist():
            self._batch(Kind.ATTRIBUTES, batches[i], f"attributes {{attributes}} have unused bits {odd[i]:#x} set")
        return broken

    def _order(self, batches: BatchRows) -> None:
        place = self.place
        last = batches["last_offset"]
        first = np.where(batches["base_offset"] < 0, last, batches["base_offset"])
        before = np.concatenate([np.array([self.last_offset]), last[:-1]])
        below = first < place.base_offset
        high = ~below & (last - np.int64(place.base_offset) >= MAX_OFFSETS)
        overlap = np.zeros(last.size, bool)
        if place.end_offset is not None and not place.live:
            overlap = ~below & ~high & (last >= place.end_offset)
        for kind, mask, what in (
            (Kind.OFFSET_BELOW_BASE, below, f"offset {{first}} is below the segment's base offset {place.base_offset}"),
            (
                Kind.OFFSET_TOO_HIGH,
                high,
                f"offset {{last_offset}} is 2^31 or more above the base offset {place.base_offset}",
            ),
            (
                Kind.SEGMENT_OVERLAP,
                overlap,
                f"offsets up to {{last_offset}}, but the next segment starts at {place.end_offset}",
            ),
        ):
            for i in np.flatnonzero(mask).tolist():
                # A recovery splits a segment only if its last offset is too high for it, and else fails.
                fails = place.recovered and (
                    last[i] < place.base_offset
                    if kind is Kind.OFFSET_BELOW_BASE
                    else kind is Kind.OFFSET_TOO_HIGH and not high[-1]
                )
                self._batch(kind, batches[i], what, meaning=STOPS if fails else None)
        # The header of a wrapper of magic 0 or 1 does not contain its first offset.
        self.has_holes |= bool((batches["base_offset"] < 0).any())
        # A clean that removes records from a batch keeps the first and last offset in its header.
        fewer = batches["record_count"] <= last - first
        self.has_holes |= bool((fewer & (batches["magic"] == 2) & ~is_control(batches)).any())
        if self.first_offset is None:
            self.first_offset = int(first[0])
            before[0] = self.first_offset - 1
        if self._is_behind_jump:
            before[0] = max(int(before[0]), int(first[0]) - 1)
            self._is_behind_jump = False
        if self.hole is None:
            for i in np.flatnonzero(first > before + 1)[:1].tolist():
                self.hole = int(before[i]) + 1, int(first[i])
        if self.batches == batches.size:
            before[0] = min(int(before[0]), int(first[0]) - 1)  # `below` covers the segment's first batch
        placed = below | high | overlap
        for i in np.flatnonzero(first <= before).tolist():
            # Report the batch of the two that breaks the order: without it, all remaining batches are in order.
            between = 0 < i < first.size - 1
            if between and first[i + 1] <= last[i - 1] and first[i] > before[i - 1]:
                blamed, where = i - 1, f"comes before a batch that starts at offset {first[i]}"
            else:
                blamed, where = i, f"follows offset {before[i]}"
            if not placed[blamed]:
                self._batch(
                    Kind.BATCH_ORDER, batches[blamed], f"a batch of offsets {{first}} to {{last_offset}} {where}"
                )

    # ---- gaps and wrong checksums ------------------------------------------------------------------------------------

    def _report_invalid(self, *, followed: bool) -> None:
        """Report batches with a wrong checksum. At the end of a log that crashed, they belong to the torn tail."""
        repaired = not followed and self._is_repaired()
        for batch in self._invalid:
            error = crc_error(batch)
            self._report(
                Kind.BATCH_CRC,
                error.what,
                position=error.position,
                offset=error.offset,
                severity=Severity.RECOVERY if repaired else None,
                meaning="partly written when the broker crashed: the next load cuts it off" if repaired else None,
            )
        self.findings.count(Kind.BATCH_CRC, self.place.path, self._more_invalid)
        self._invalid.clear()
        self._more_invalid = 0

    def _is_repaired(self) -> bool:
        """Whether a crash explains an invalid end of this segment: it was not flushed, and recovery truncates it."""
        place = self.place
        return place.rebuilt and place.end_offset is None and self.last_offset + 1 >= place.flushed_offset

    def _report_gap(self, gap: Gap, *, followed: bool) -> None:
        place = self.place
        if place.live and place.end_offset is None:
            return
        what = f"{gap.what}; {gap.size_bytes} bytes are not a batch"
        stops = place.closed and place.end_offset is None and not followed and self._fails
        if gap.kind is GapKind.DAMAGE and (followed or not self._is_repaired()):
            meaning = STOPS if stops else None
            self._report(Kind.NOT_A_BATCH, what, position=gap.position, offset=self.last_offset + 1, meaning=meaning)
        elif place.end_offset is not None:
            self._report(Kind.TORN_SEGMENT, what, position=gap.position, offset=self.last_offset + 1)
        else:
            kind = Kind.ZERO_TAIL if gap.kind is GapKind.ZEROS else Kind.TORN_TAIL
            damage = not self._is_repaired()
            self._report(
                kind,
                what if kind is Kind.TORN_TAIL else gap.what,
                position=gap.position,
                offset=self.last_offset + 1,
                severity=Severity.DAMAGE if damage else None,
                meaning=STOPS if stops else _FLUSHED_TAIL if damage else None,
            )

    # ---- records -----------------------------------------------------------------------------------------------------

    def _on_damage(self, error: DataError) -> None:
        if error.position is not None:
            self._records.spoil(error.position)
        if isinstance(error, BatchTooLargeError):
            kind = Kind.BATCH_TOO_LARGE
        else:
            assert isinstance(error.kind, BatchProblem), "decoding says what is wrong with the records of a batch"
            kind = _UNREADABLE_RECORDS[error.kind]
        self._report(kind, error.what, position=error.position, offset=error.offset)

    def _batch(
        self, kind: Kind, batch: np.void, what: str, *, meaning: str | None = None, effect: Effect | None = None
    ) -> None:
        values = {name: int(batch[name]) for name in batch.dtype.names or ()}
        first = values["base_offset"] if values["base_offset"] >= 0 else values["last_offset"]
        text = what.format(**values, first=first, codec=values["attributes"] & CODEC_MASK)
        self._report(kind, text, position=values["position"], offset=first, meaning=meaning, effect=effect)

    def _report(
        self,
        kind: Kind,
        what: str,
        *,
        position: int | None = None,
        offset: int | None = None,
        severity: Severity | None = None,
        meaning: str | None = None,
        effect: Effect | None = None,
    ) -> None:
        self.damaged |= kind is not Kind.ATTRIBUTES
        cuts = kind in CUTS and meaning != STOPS and severity is not Severity.RECOVERY and not self.place.unread
        if cuts and position is not None:
            self._lost.begin(self.place.path, position, self.last_offset + 1 if offset is None else offset)
        self.findings.add(
            kind,
            self.place.path,
            what,
            position=position,
            offset=offset,
            severity=severity,
            meaning=meaning,
            effect=effect,
        )


#: Position of the size field in a batch, bytes of its head up to the magic, and the smallest size that Kafka accepts.
_SIZE_AT, _HEADER_BYTES, _LEAST_SIZE = 8, 17, 14
_FLUSHED_TAIL = (
    "these bytes were flushed or closed cleanly, and are incomplete: records are lost, and a broker appends behind them"
)


# ---- records ---------------------------------------------------------------------------------------------------------

BoolArray = npt.NDArray[np.bool_]


class RecordCheck:
    """Compares records with the header of their batch, even if the records of a batch arrive in several parts."""

    def __init__(self, report: Callable[..., None]) -> None:
        self._report = report
        self._batch: np.void | None = None
        self._max_timestamp = 0
        self._last_offset = -1
        self._spoiled = -1

    def spoil(self, position: int) -> None:
        """Stop checking the batch at this position, because it cannot be decoded."""
        self._spoiled = position
        if self._batch is not None and self._batch["position"] == position:
            self._batch = None

    def add(self, columns: RecordColumns) -> None:
        """Check the next records."""
        rows, batches = columns.rows, columns.batches
        owner = rows["batch"]
        starts = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(np.diff(owner)) + 1])
        owners = owner[starts]
        largest = np.maximum.reduceat(rows["timestamp"], starts)
        goes_on = self._batch is not None and self._batch["position"] == batches["position"][owners[0]]
        if goes_on:
            largest[0] = max(int(largest[0]), self._max_timestamp)
        elif self._batch is not None:
            self.end()
        self._offsets(rows["offset"], owner, batches, starts, goes_on)
        self._markers(columns)
        differs = largest[:-1] != batches["max_timestamp"][owners[:-1]]
        for i in np.flatnonzero(differs).tolist():
            self._time(batches[owners[i]], int(largest[i]))
        self._batch = batches[owners[-1]].copy()
        self._max_timestamp = int(largest[-1])
        self._last_offset = int(rows["offset"][-1])

    def end(self) -> None:
        """Compare the last batch's timestamp, after all of its records."""
        if self._batch is not None:
            self._time(self._batch, self._max_timestamp)
        self._batch = None

    def _offsets(
        self,
        offsets: npt.NDArray[np.int64],
        owner: npt.NDArray[np.int32],
        batches: BatchRows,
        starts: npt.NDArray[np.int64],
        goes_on: bool,
    ) -> None:
        bad = (offsets < batches["base_offset"][owner]) | (offsets > batches["last_offset"][owner])
        follows = np.zeros(offsets.size, bool)
        follows[1:] = np.diff(offsets) <= 0
        follows[starts] = False
        if goes_on:
            follows[0] = offsets[0] <= self._last_offset
        elif batches["magic"][owner[0]] < 2:
            # A wrapper's first offset is its first message's. It must be above the last offset of the entry before.
            bad[0] |= offsets[0] <= self._last_offset and batches["last_offset"][owner[0]] > self._last_offset
        wrong = np.flatnonzero(bad | follows)
        _, first_of_batch = np.unique(owner[wrong], return_index=True)
        for i in wrong[first_of_batch].tolist():
            batch = batches[owner[i]]
            what = f"a record has offset {offsets[i]}, its batch {batch['base_offset']} to {batch['last_offset']}"
            if not bad[i]:
                before = offsets[i - 1] if i else self._last_offset
                what = f"a record of offset {offsets[i]} follows one of offset {before}"
            elif batch["magic"] < 2:
                what = (
                    f"a message of offset {offsets[i]} in a set that ends at {batch['last_offset']} "
                    f"and follows {self._last_offset}"
                )
            self._report(Kind.RECORD_OFFSET, what, position=int(batch["position"]), offset=int(offsets[i]))

    def _markers(self, columns: RecordColumns) -> None:
        """Check the values of transaction markers: their size and version."""
        rows, batches = columns.rows, columns.batches
        markers = is_marker(batches)
        if not markers.any():
            return
        chosen = np.flatnonzero(markers[rows["batch"]])
        short = rows["value_size"][chosen] < MARKER_VALUE.size
        signs = columns.data[np.where(short, 0, rows["value_start"][chosen])] & 0x80
        for i in chosen[short | (signs != 0)].tolist():
            size = max(int(rows["value_size"][i]), 0)
            what = "the value of a transaction marker has a negative version"
            if size < MARKER_VALUE.size:
                what = f"the value of a transaction marker has {size} bytes, not 6 or more"
            batch = batches[rows["batch"][i]]
            self._report(Kind.CONTROL_BATCH, what, position=int(batch["position"]), offset=int(batch["base_offset"]))

    def _time(self, batch: np.void, largest: int) -> None:
        if (
            batch["attributes"] & LOG_APPEND_TIME
            or batch["max_timestamp"] == largest
            or batch["position"] == self._spoiled
        ):
            return
        what = f"max timestamp {batch['max_timestamp']}, but the latest of its records is {largest}"
        offset = batch["base_offset"] if batch["base_offset"] >= 0 else batch["last_offset"]
        self._report(Kind.MAX_TIMESTAMP, what, position=int(batch["position"]), offset=int(offset))
