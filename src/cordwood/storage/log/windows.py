"""Read a segment's `.log` file in windows: whole batches, and the gaps between them if it is damaged.

A window is some MiB of the file, or one batch if that is larger. Bytes that cannot be a batch are a `Gap`:

    zeros     only zero bytes to the end: preallocated, or lost by a power cut
    torn      the file ends inside a batch, and nothing valid follows: normal after a crash
    damage    any other bytes; reading continues where valid batches start again

Whether a gap is bad depends on the segment's place in its log and on how the log was closed; see `LogView.is_end`,
`recovery` and `check`.

A valid batch is damage, too, if its offsets do not fit its place in the file. A leader sets a batch's base offset after
the producer has computed the checksum, so no checksum covers the base offset: if one of its bits flips, the batch stays
valid, but has other offsets. In a log each batch ends at a higher offset than the batch before it, and below the base
offset of the next segment. `BatchOrder` turns a batch that violates this into a gap:

    offsets   0–9 │ 10–19 │ 3–12 │ 30–39 │ 40–49        the third batch is wrong
    offsets   0–9 │ 90–99 │ 20–29 │ 30–39 │ 40–49       the second batch is wrong: 10–19 would fit before 20–29

In a compacted log offsets are missing between batches, so a wrong base offset may fit, too; then it cannot be detected.
Kafka also accepts a batch that starts below the end of the batch before it: a follower appends the batches of its
leader unchecked.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import crc32c
import numpy as np
import numpy.typing as npt

from cordwood.fs.base import ReadableFile
from cordwood.fs.direct import read_cached, read_direct
from cordwood.kernels import Deferred, is_loaded, layout
from cordwood.kernels.layout import (
    BATCH_ROW,
    CRC_START,
    HEADER,
    LEGACY_CRC_START,
    MAGIC_AT,
    MAGIC_END,
    MIN_ENTRY_BYTES,
    PREFIX,
    BatchRows,
    U8Array,
)
from cordwood.record import headers
from cordwood.record.columns import BatchWindow, is_valid

if TYPE_CHECKING:
    from cordwood.kernels import scan
else:
    scan = Deferred("scan")

#: Bytes per read. Two windows and their rows stay far below the memory that reading may use.
WINDOW_BYTES = 4 << 20
#: A batch above this size is not held whole: its window holds only the header.
LARGEST_WINDOW_BYTES = 64 << 20
#: Read size if only headers matter: small reads skip the bytes between them.
HEADER_WINDOW_BYTES = 64 << 10
#: Read size after the expected end.
SMALL_WINDOW_BYTES = 16 << 10
LARGEST_HEADER_WINDOW_BYTES = 1 << 20
#: Number of headers in the first read from the page cache, as a caller that looks for one batch seldom needs more. It
#: doubles with each read. If one read returns the rest of the file, all its headers are returned at once.
_FIRST_BATCHES = 8
#: If more bytes than this were found in the page cache, it is tried again after one window.
_CACHED_BYTES_MIN = 4 << 20
#: Maximum rows of one window.
MAX_BATCHES = 1 << 14
#: A segment's offsets are less than this above its base.
MAX_OFFSETS = 2**31
PIECE_BYTES = 1 << 20
#: Statuses of a scan that ended at bytes that are no valid start of an entry.
_BROKEN = (layout.PARTIAL, layout.BAD_SIZE, layout.BAD_MAGIC)
#: Added to the statuses of a scan: reading continues within the last batch, as it spans valid batches.
_SPANNED = -1
_SEARCH_BYTES = 8 << 20


class GapKind(Enum):
    """The kinds of bytes between batches."""

    ZEROS = "zeros"
    TORN = "torn"
    DAMAGE = "damage"


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes that are no batch.

    Attributes:
        what: why they are not a batch, or are a wrong one.
        between: the offsets [lowest, end) that they may hold, if known from the batches around them.
    """

    position: int
    size_bytes: int
    kind: GapKind
    what: str
    between: tuple[int, int] | None = None

    @property
    def end(self) -> int:
        """Position after the gap."""
        return self.position + self.size_bytes

    def may_end_log(self, *, live: bool) -> bool:
        """Return whether this is normal at a log's end: zeros or a torn batch, or anything while a broker writes."""
        return live or self.kind is not GapKind.DAMAGE


class Checks(Enum):
    """How much of each batch is read, and who computes its checksum.

    HEADERS    Only headers are read; small reads skip the bytes between them. No checksum is computed: each row's
               `computed_crc` equals its `crc`. The data of a window may lack the end of its last batch.
               Memory: one window of at most `LARGEST_HEADER_WINDOW_BYTES`, or one control batch.
    WHOLE      Whole batches are read, and their checksums are computed before the window is yielded. A batch above
               `LARGEST_WINDOW_BYTES` is not held: the data of its window is the header only, its checksum is computed
               from pieces, and `BatchWindow.read` reads its bytes again.
               Memory: one window, or one batch of at most `LARGEST_WINDOW_BYTES`.
    ONCE       As WHOLE, for a file that is not read again soon: bytes outside the page cache are read without adding
               them to it, if that is supported, so that they do not evict the files of other readers.
    DEFERRED   Whole batches are read, and their consumer computes the checksums with `compute_crcs`, perhaps in another
               thread and after the file is closed. So every batch is held whole, however large, and nothing after the
               first wrong checksum is of use: the search for the next valid batch depends on checksums.
               Memory: one window, or one batch of any size.
    """

    HEADERS = "headers"
    WHOLE = "whole"
    ONCE = "once"
    DEFERRED = "deferred"


_WHOLE = (Checks.WHOLE, Checks.ONCE)


class WindowReader:
    """Iterates over the batches of a log file, from the position of one of them to the end.

    It reads one window after another and yields the batches that the scan finds. Only one iteration at a time is
    possible, as the reader holds the position in the file.
    """

    def __init__(
        self,
        file: ReadableFile,
        checks: Checks,
        *,
        base_offset: int = 0,
        start: int = 0,
        end: int | None = None,
        expected_end: int | None = None,
        search: bool = True,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        """Start at a position; read nothing yet.

        Args:
            file: the open `.log` file.
            checks: how much of each batch is read, and who computes its checksum.
            base_offset: base offset of the segment; batches found after damage must be in its range.
            start: position of a batch.
            end: position to stop at; default the file's size now, so that the reading of a growing file ends.
            expected_end: position up to which the caller expects to read. Reads do not extend beyond it
                before they must, and are small from there on.
            search: look for valid batches after damage. The end of a file that is being written is incomplete, but
                not damaged.
            window_bytes: size of a read; batches that are not held whole are read in pieces of at most that size.
        """
        self._file = file
        self._piece_bytes = min(window_bytes, PIECE_BYTES)
        self._checks = checks
        self._base_offset = base_offset
        self._window_bytes = window_bytes
        self._read_at = read_direct if checks is Checks.ONCE else read_cached
        self._end = file.size() if end is None else min(end, file.size())
        self._expected_end = expected_end
        #: Position of the next byte that is not in any yielded window or gap.
        self._position = start
        #: Size of the next read.
        self._read_bytes = self._up_to_expected_end(window_bytes)
        #: Last offset of the last batch with a correct checksum. A batch found after damage must end above it.
        self._last_offset = base_offset - 1
        #: Bytes over which the search may still compute checksums; negative disables the search.
        self._search_budget = 4 * (self._end - start) + LARGEST_WINDOW_BYTES if search else -1

    def __iter__(self) -> Iterator[BatchWindow | Gap]:
        """Yield the windows and gaps, in file order."""
        return self._windows(math.inf)

    def _windows(self, count: float) -> Iterator[BatchWindow | Gap]:
        """Yield the results of at most `count` reads."""
        while count > 0 and self._position < self._end:
            yield from self._next_window()
            count -= 1

    def _next_window(self) -> Iterator[BatchWindow | Gap]:
        """Yield the results of one read."""
        data = self._read()
        scanned, status, next_valid = 0, layout.ROWS, -1
        while status == layout.ROWS:  # more batches in this window than rows: scan on in the same bytes
            before = self._last_offset
            rows, consumed, status = self._scan(data, scanned)
            rows, next_valid = self._search_within(rows, before)
            if next_valid >= 0:
                status = _SPANNED
            elif status in _BROKEN:
                rows, next_valid = self._search_overrun(rows)
            if rows.size:
                pieces = pieces_of(self._file, self._piece_bytes)
                yield BatchWindow(self._position, data[scanned : scanned + consumed], rows, pieces)
            scanned += consumed
            self._position += consumed
        self._read_bytes = self._usual_read_bytes(data.size, scanned)
        match status:
            case layout.END:  # the last batch ends where the file does
                pass
            case layout.WINDOW if scanned:  # the window ends inside a batch: the next window starts with that batch
                pass
            case layout.WINDOW:  # not even one batch fits into the window: the next window is as large as this batch
                size = _entry_bytes(data)
                if size <= LARGEST_WINDOW_BYTES or self._checks is Checks.DEFERRED:
                    self._read_bytes = size
                else:
                    before = self._last_offset
                    large = self._too_large(size)
                    yield large
                    _, found = self._search_within(large.batches, before)
                    self._position = found if found >= 0 else self._position + size
            case _ if next_valid >= 0:  # the last batches overran valid ones, and none starts here: continue at those
                overrun_end = int(rows["position"][-1] + rows["size_bytes"][-1])
                if next_valid > overrun_end:
                    what = "bytes behind a batch with a wrong CRC"
                    yield Gap(overrun_end, next_valid - overrun_end, GapKind.DAMAGE, what)
                self._position = next_valid
            case _:  # PARTIAL, BAD_SIZE, BAD_MAGIC: no batch starts here
                gap = self._gap(status, data[scanned:])
                yield gap
                self._position = gap.end

    def headers(self) -> Iterator[BatchRows | Gap]:
        """Yield the batches without their bytes, and the gaps, in file order."""
        windows = 1
        while self._position < self._end:
            began = self._position
            yield from self._cached_headers()
            # If the page cache holds much of the file, try it again after one window; otherwise less and less often.
            windows = 1 if self._position - began > _CACHED_BYTES_MIN else 2 * windows
            for item in self._windows(windows):
                yield item.batches if isinstance(item, BatchWindow) else item

    def _cached_headers(self) -> Iterator[BatchRows]:
        """Yield headers up to the first bytes outside the page cache, skipping the bytes between headers.

        For bytes on disk, or a request away, reading everything in large pieces takes less time.
        """
        left = self._end - self._position
        if left <= SMALL_WINDOW_BYTES or (left <= HEADER_WINDOW_BYTES and not is_loaded("scan")):
            return  # one read returns the rest of a small file
        reads = self._file.cached_reads()
        if reads is None:
            return
        buffer = np.empty(HEADER_WINDOW_BYTES, np.uint8)
        status, capacity = layout.ROWS, _FIRST_BATCHES if left > HEADER_WINDOW_BYTES else MAX_BATCHES
        while status == layout.ROWS and self._position < self._end:
            rows = np.empty(min(capacity, (self._end - self._position) // MIN_ENTRY_BYTES[0] + 1), BATCH_ROW)
            capacity = min(2 * capacity, MAX_BATCHES)
            count, self._position, status = scan.walk_headers(
                reads.function, reads.descriptor, reads.flags, self._position, self._end, buffer, rows
            )
            if count:
                self._last_offset = int(rows["last_offset"][count - 1])
                yield rows[:count]

    def _read(self) -> U8Array:
        wanted = min(self._read_bytes, self._end - self._position)
        data = self._read_at(self._file, self._position, wanted)
        if data.size < wanted:
            self._end = self._position + data.size  # the file's owner truncated it while we read
        return data

    def _scan(self, data: U8Array, at: int) -> tuple[BatchRows, int, int]:
        """Return rows of the batches from `data[at]` on, the size of these batches, and why the scan ended."""
        rows = np.empty(min(MAX_BATCHES, data.size // MIN_ENTRY_BYTES[0] + 1), BATCH_ROW)
        count, consumed, status = headers.scan_batches(
            data[at:],
            self._end - self._position,
            self._position,
            rows,
            whole_entries=self._checks is not Checks.HEADERS,
        )
        rows = rows[:count]
        if self._checks is Checks.HEADERS:  # no checksum is computed
            self._last_offset = int(rows["last_offset"][-1]) if count else self._last_offset
            return rows, consumed, status
        if self._checks in _WHOLE:
            headers.compute_crcs(data[at:], self._position, rows)
            valid = np.flatnonzero(rows["crc"] == rows["computed_crc"])
            last = int(valid[-1]) if valid.size else -1
        else:
            last = int(count) - 1  # no checksum is computed yet
        if last >= 0:
            self._last_offset = int(rows["last_offset"][last])
        return rows, consumed, status

    def _search_overrun(self, rows: BatchRows) -> tuple[BatchRows, int]:
        """Look for valid batches within the last batches of a scan, if their checksums are wrong.

        No batch starts at the end of the last one. So the size of the first batch with a wrong checksum after the last
        valid one may be damaged: then this batch, and the batches found after it, span bytes of valid batches.

        Returns:
            (rows up to that first wrong batch, position of the first valid batch in it or after it); (rows, -1) if
            there is none.
        """
        valid = np.flatnonzero(rows["crc"] == rows["computed_crc"])
        first_wrong = int(valid[-1]) + 1 if valid.size else 0
        if first_wrong == rows.size:
            return rows, -1
        next_valid = self._search(int(rows["position"][first_wrong]) + 1)
        return (rows, -1) if next_valid < 0 else (rows[: first_wrong + 1], next_valid)

    def _search_within(self, rows: BatchRows, last_offset: int) -> tuple[BatchRows, int]:
        """Look for valid batches within a batch that has a wrong checksum and ends where another batch starts.

        Its size may be damaged, so that it includes whole batches after it. These follow each other up to its end. This
        distinguishes them from a record that contains a batch: the content of a record does not reach to the end of its
        batch.

        Args:
            rows: rows of a scan, or the row of a batch that is not held whole.
            last_offset: last offset of the last valid batch before them.

        Returns:
            (rows up to the batch that spans valid batches, position of the first of these); (rows, -1) if there is no
            such batch.
        """
        if self._checks not in _WHOLE:
            return rows, -1
        valid, last_valid = rows["crc"] == rows["computed_crc"], self._last_offset
        if valid.all():
            return rows, -1
        # If the offsets of the next batch continue those of a wrong one, no batch is missing between them.
        goes_on = np.append(rows["base_offset"][1:] == rows["last_offset"][:-1] + 1, False)
        for at in np.flatnonzero(~valid & ~goes_on).tolist():
            before = rows["last_offset"][:at][valid[:at]]
            self._last_offset = int(before[-1]) if before.size else last_offset
            position, end = int(rows["position"][at]), int(rows["position"][at] + rows["size_bytes"][at])
            found = self._search(position + 1, end)
            if found >= 0 and self._is_chain(found, end):
                return rows[: at + 1], found
        self._last_offset = last_valid
        return rows, -1

    def _is_chain(self, start: int, end: int) -> bool:
        """Return whether batches follow each other without a gap from `start` to `end`."""
        reader = WindowReader(self._file, Checks.HEADERS, start=start, end=end, search=False)
        return not any(isinstance(item, Gap) for item in reader)

    def _usual_read_bytes(self, window_bytes: int, scanned: int) -> int:
        """Return the size of the next read. `scanned` exceeds the window if the last batch extends beyond it."""
        reads_on = self._checks is not Checks.HEADERS
        if reads_on or scanned > window_bytes + window_bytes // 4:
            return self._up_to_expected_end(self._window_bytes)
        # Only headers are needed, but the last read skipped few bytes between them: fewer and larger reads cost less.
        return max(self._window_bytes, min(2 * window_bytes, LARGEST_HEADER_WINDOW_BYTES))

    def _up_to_expected_end(self, size_bytes: int) -> int:
        """Limit the size of a read so that it does not pass the expected end."""
        if self._expected_end is None:
            return size_bytes
        left = self._expected_end - self._position
        # Read at least a header, or the scan finds no batch.
        return min(size_bytes, max(left, HEADER.size) if left > 0 else SMALL_WINDOW_BYTES)

    def _too_large(self, size: int) -> BatchWindow:
        """Return the window of a batch that is not held whole; compute its checksum from pieces."""
        header = read_cached(self._file, self._position, HEADER.size)
        rows = np.empty(1, BATCH_ROW)
        headers.scan_batches(header, size, self._position, rows, whole_entries=False)
        row = rows[0]
        pieces = pieces_of(self._file, self._piece_bytes)
        if self._checks in _WHOLE:
            crc = 0
            if row["magic"] == 2:
                for piece in pieces(self._position + CRC_START, size - CRC_START):
                    crc = crc32c.crc32c(piece, crc)
            else:
                for piece in pieces(self._position + LEGACY_CRC_START, size - LEGACY_CRC_START):
                    crc = zlib.crc32(piece, crc)
            row["computed_crc"] = crc
        return BatchWindow(self._position, header, rows, pieces)

    def _gap(self, status: int, data: U8Array) -> Gap:
        """Return the gap from the present position to the next valid batch."""
        position, left = self._position, self._end - self._position
        if only_zeros(self._file, position, self._end, self._piece_bytes):
            return Gap(position, left, GapKind.ZEROS, f"{left} zero bytes")
        what = _describe(status, data, left)
        found = self._search(position + 1)
        if found >= 0:
            return Gap(position, found - position, GapKind.DAMAGE, what)
        return Gap(position, left, GapKind.TORN if status == layout.PARTIAL else GapKind.DAMAGE, what)

    def _search(self, at: int, end: int | None = None) -> int:
        """Return the position from `at` on of a valid batch that fits the segment and ends up to `end`, or -1."""
        end = self._end if end is None else end
        below = min(self._base_offset + MAX_OFFSETS, 2**63 - 1)
        while self._search_budget >= 0 and at < end:
            data = read_cached(self._file, at, min(_SEARCH_BYTES, end - at))
            found, self._search_budget = scan.find_batch(
                data.ctypes.data, data.size, end - at, self._last_offset, below, self._search_budget
            )
            if found >= 0:
                return at + int(found)
            if data.size < _SEARCH_BYTES:
                break
            # Advance half a window, so that every batch of up to half a window is seen whole.
            at += _SEARCH_BYTES // 2
        return -1


def read_headers(
    file: ReadableFile, *, base_offset: int = 0, start: int = 0, end: int | None = None, search: bool = True
) -> Iterator[BatchRows | Gap]:
    """Yield the headers of a log file's batches, without their bytes: BATCH_ROW arrays, CRCs not checked."""
    reader = WindowReader(
        file,
        Checks.HEADERS,
        base_offset=base_offset,
        start=start,
        end=end,
        search=search,
        window_bytes=HEADER_WINDOW_BYTES,
    )
    return reader.headers()


def compute_crcs(window: BatchWindow, chosen: npt.NDArray[np.bool_] | None = None) -> None:
    """Compute the checksums of a window that was read with `Checks.DEFERRED`; of the chosen batches only, if given."""
    batches = window.batches
    if chosen is None or chosen.all():
        headers.compute_crcs(window.data, window.position, batches)
        return
    if not chosen.any():
        return
    rows = batches[chosen]
    headers.compute_crcs(window.data, window.position, rows)
    batches["computed_crc"][chosen] = rows["computed_crc"]


def _entry_bytes(data: U8Array) -> int:
    return PREFIX.size + int(PREFIX.unpack_from(data)[1])


def pieces_of(file: ReadableFile, piece_bytes: int) -> Callable[[int, int], Iterator[bytes]]:
    """See `BatchWindow.read`."""

    def pieces(position: int, size_bytes: int) -> Iterator[bytes]:
        for at in range(position, position + size_bytes, piece_bytes):
            yield file.read(at, min(piece_bytes, position + size_bytes - at))

    return pieces


def _describe(status: int, data: U8Array, left: int) -> str:
    if data.size < MAGIC_END:
        return f"{left} bytes are too few for a batch header"
    size = int(PREFIX.unpack_from(data)[1])
    magic = int(data[MAGIC_AT].astype(np.int8))
    if status == layout.PARTIAL:
        return f"a batch of {size + PREFIX.size} bytes starts here, but the file ends after {left}"
    if status == layout.BAD_MAGIC:
        return f"magic {magic} is none that Kafka writes"
    return f"a size field of {size} is too small for a batch of magic {magic}"


def only_zeros(file: ReadableFile, position: int, end: int, piece_bytes: int = PIECE_BYTES) -> bool:
    """Return whether all bytes of a part of a file are zero: preallocated, or lost in a power cut."""
    for at in range(position, end, piece_bytes):
        if read_cached(file, at, min(piece_bytes, end - at)).any():
            return False
    return True


# ---- order -----------------------------------------------------------------------------------------------------------

_MAX = 2**63 - 1


class BatchOrder:
    """Checks the order of a segment's batches, and separates the wrong ones as gaps."""

    def __init__(
        self, base_offset: int, end_offset: int, still_ends: Callable[[], bool] = lambda: True, *, at_start: bool = True
    ) -> None:
        """Start before the first batch.

        Args:
            base_offset: base offset of the segment.
            end_offset: base offset of the next segment.
            still_ends: returns whether the next segment still exists. Called before a batch counts as wrong because it
                ends beyond `end_offset`: a cleaner may have merged the two segments.
            at_start: whether the first batch is the first of the segment; False if an index entry points to it.
        """
        self._base_offset = base_offset
        self._end_offset = end_offset
        self._still_ends = still_ends
        #: The last correct batch, and the last offset of the batch before it.
        self._right: np.void | None = None
        self._before = base_offset - 1
        self._knows_before = at_start

    @property
    def _last(self) -> int:
        return self._before if self._right is None else int(self._right["last_offset"])

    def split(self, rows: BatchRows) -> Iterator[BatchRows | Gap]:
        """Yield the next batches in file order: correct ones as rows, and each wrong one as a gap."""
        if not rows.size:
            return
        if rows.size == 1 and self._follows(rows[0]):  # there may be thousands of segments of one batch
            self._before, self._right = self._last, rows[0]
            yield rows
            return
        firsts, lasts, right = _first_offsets(rows), rows["last_offset"], is_valid(rows)
        if not self._knows_before:
            self._before, self._knows_before = max(self._before, int(firsts[0]) - 1), True
        if (lasts >= self._end_offset).any() and not self._still_ends():
            self._end_offset = _MAX
        ascend = (lasts > np.concatenate([np.array([self._last]), lasts[:-1]])) & (lasts >= firsts)
        ascend &= firsts >= self._base_offset
        if lasts[-1] < self._end_offset and (ascend & right).all():
            self._before = int(lasts[-2]) if lasts.size > 1 else self._last
            self._right = rows[-1]
            yield rows
            return
        known = self._right, self._before, self._last
        wrong = self._judge(rows)
        right[[at for at in wrong if at >= 0]] = False
        done = 0
        for at in sorted(wrong):
            if at > done:
                yield rows[done:at]
            done = at + 1
            batch, below = (rows[at], known[2]) if at >= 0 else (known[0], known[1])
            earlier, later = lasts[: max(at, 0)][right[: max(at, 0)]], firsts[at + 1 :][right[at + 1 :]]
            behind = int(later[0]) if later.size else self._end_offset
            between = min(int(earlier[-1] if earlier.size else below) + 1, behind - 1), behind
            assert batch is not None, "a batch that was given out is known"
            what = f"a batch of offsets {_first_offsets(batch)} to {batch['last_offset']} {wrong[at]}"
            yield Gap(int(batch["position"]), int(batch["size_bytes"]), GapKind.DAMAGE, what, between)
        if done < rows.size:
            yield rows[done:]

    def _follows(self, batch: np.void) -> bool:
        """Return whether a batch is certainly correct; if False, `_judge` has to decide."""
        first, last = int(batch["base_offset"]), int(batch["last_offset"])
        is_in_place = self._base_offset <= first <= last < self._end_offset and last > self._last
        return is_in_place and self._knows_before and bool(batch["crc"] == batch["computed_crc"])

    def _judge(self, rows: BatchRows) -> dict[int, str]:
        """Return order violations by batch index; index -1 is the last batch already yielded."""
        wrong: dict[int, str] = {}
        base, end, index = self._base_offset, self._end_offset, -1
        facts = zip(_first_offsets(rows).tolist(), rows["last_offset"].tolist(), is_valid(rows).tolist(), strict=True)
        for at, (first, last, is_right) in enumerate(facts):
            if not is_right:
                continue  # decoding reports its wrong checksum
            if not base <= first <= last < end:
                above = "" if end == _MAX else f" and end below {end}"
                wrong[at] = f"is not in its segment, whose offsets begin at {base}{above}"
                continue
            if last <= self._last:
                if not self._is_earlier_wrong(rows[at], rows[at + 1 :][is_valid(rows[at + 1 :])][:1]):
                    wrong[at] = f"follows offset {self._last}"
                    continue
                wrong[index] = f"comes before a batch that starts at offset {first}"
            else:
                self._before = self._last
            self._right, index = rows[at], at
        return wrong

    def _is_earlier_wrong(self, batch: np.void, following: BatchRows) -> bool:
        """Return whether, of the last correct batch and this one, which does not ascend, the earlier one is wrong.

        The earlier one may be wrong if its offsets would fit below this batch. This batch may be wrong if its offsets
        would fit above the earlier one, and below the following one. If both may be wrong, choose the earlier one if it
        would fill the gap below exactly, or if there is no following batch: most flipped bits make an offset larger.

        Args:
            following: the next valid batch, or no batch.
        """
        assert self._right is not None, "this one lies above the base offset"
        room = _likely_first(batch) - 1 - self._before
        size, own_size = (int(one["last_offset"]) - _likely_first(one) + 1 for one in (self._right, batch))
        fits_above = following.size and int(_first_offsets(following)[0]) - 1 - self._last >= own_size
        return room == size or (room > size and not fits_above)


def in_order(items: Iterator[BatchWindow | Gap], order: BatchOrder) -> Iterator[BatchWindow | Gap]:
    """Yield the windows and gaps of a segment; turn batches that are out of order into gaps."""
    for item in items:
        if isinstance(item, Gap):
            yield item
            continue
        for part in order.split(item.batches):
            yield part if isinstance(part, Gap) else BatchWindow(item.position, item.data, part, item.read)
        del item  # free a large one before reading the next


def headers_in_order(items: Iterator[BatchRows | Gap], order: BatchOrder) -> Iterator[BatchRows | Gap]:
    """Like `in_order`, for the items of `read_headers`."""
    for item in items:
        yield from [item] if isinstance(item, Gap) else order.split(item)


def _first_offsets(rows: BatchRows | np.void) -> npt.NDArray[np.int64]:
    # The header of a wrapper of magic 0 or 1 lacks its first offset.
    return np.where((rows["magic"] < 2) & (rows["base_offset"] < 0), rows["last_offset"], rows["base_offset"])


def _likely_first(batch: np.void) -> int:
    # A wrapper's first offset is unknown; assume two messages, as it seldom holds one.
    return int(batch["last_offset"]) - 1 if _first_offsets(batch) != batch["base_offset"] else int(batch["base_offset"])
