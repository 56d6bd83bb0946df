"""Reading a segment's `.log` file in windows: whole batches, and what lies between them where it is damaged.

A window is some MiB of the file, or one batch if that is larger. What cannot be a batch is a `Gap`:

    zeros     nothing but zero bytes to the end: preallocated, or lost by a power cut
    torn      the file ends inside a batch, and nothing valid follows: normal after a crash
    damage    anything else; reading goes on where valid batches start again

Nothing here decides whether a gap is bad. That depends on where the segment stands in its log and how the log was
closed; see `recovery` and `check`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

import crc32c
import numpy as np

from cordwood.fs.base import File
from cordwood.kernels import scan
from cordwood.record.columns import BatchWindow
from cordwood.record.layout import (
    BATCH_ROW,
    CRC_START,
    HEADER,
    LEGACY_CRC_START,
    MAGIC_END,
    MIN_ENTRY_BYTES,
    PREFIX,
    BatchRows,
    U8Array,
)

#: Bytes read at once. Two windows and their rows stay far below the memory that reading may take.
WINDOW_BYTES = 4 << 20
#: A batch above this is not held whole: of its window only the header is filled.
LARGEST_WINDOW_BYTES = 64 << 20
#: When only headers matter, small reads skip what lies between them.
HEADER_WINDOW_BYTES = 64 << 10
LARGEST_HEADER_WINDOW_BYTES = 1 << 20
#: Rows of one window at the most.
MAX_BATCHES = 1 << 14
#: A segment's offsets are less than this above its base.
MAX_OFFSETS = 2**31
_PIECE_BYTES = 1 << 20
#: Ends of a walk at bytes that no entry starts with.
_BROKEN = (scan.PARTIAL, scan.BAD_SIZE, scan.BAD_MAGIC)
_SEARCH_BYTES = 8 << 20


class GapKind(Enum):
    """What is wrong between two batches."""

    ZEROS = "zeros"
    TORN = "torn"
    DAMAGE = "damage"


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes that are no batch.

    Attributes:
        position: where they start.
        size_bytes: how many they are.
        kind: of gap.
        what: why they are no batch.
    """

    position: int
    size_bytes: int
    kind: GapKind
    what: str

    @property
    def end(self) -> int:
        """Position behind the gap."""
        return self.position + self.size_bytes


def read_windows(
    file: File,
    *,
    base_offset: int = 0,
    start: int = 0,
    end: int | None = None,
    check_crcs: bool = True,
    crcs_later: bool = False,
    search: bool = True,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[BatchWindow | Gap]:
    """Read the batches of a log file from one of their positions on.

    Args:
        file: the open `.log` file.
        base_offset: of the segment; batches found behind damage must lie in its range.
        start: position of a batch.
        end: position to stop at; default the file's size at the first call, so that a file that grows comes to an end.
        check_crcs: read whole batches and compute their CRCs. Without, only headers are read, and a window's data may
            lack the end of its last batch.
        crcs_later: leave the CRCs to whoever gets the window, who calls `compute_crcs`, maybe when the file is closed:
            every batch is held whole then, however large. And what comes behind the first wrong one is of no use: the
            search for where batches start again goes by CRCs.
        search: look for valid batches behind damage. A file that is being written has an incomplete end, no damage.
        window_bytes: size of a read.
    """
    end = file.size() if end is None else min(end, file.size())
    position = start
    wanted = window_bytes
    last_offset = base_offset - 1
    budget = 4 * (end - start) + LARGEST_WINDOW_BYTES if search else -1
    while position < end:
        data = _read(file, position, min(wanted, end - position))
        if data.size < min(wanted, end - position):
            end = position + data.size  # cut off by its owner while we read
        at, status = 0, scan.ROWS
        while status == scan.ROWS:
            rows = np.empty(min(MAX_BATCHES, data.size // MIN_ENTRY_BYTES[0] + 1), BATCH_ROW)
            count, taken, status = scan.scan_batches(
                data.ctypes.data + at,
                data.size - at,
                end - position,
                position,
                check_crcs,
                rows,
            )
            rows = rows[:count]
            if check_crcs and not crcs_later:
                scan.compute_crcs(data.ctypes.data + at, data.size - at, position, rows)
            valid = np.flatnonzero(rows["crc"] == rows["computed_crc"])
            if valid.size:
                last_offset = int(rows["last_offset"][valid[-1]])
            swallowed = -1
            if status in _BROKEN and (run := int(valid[-1]) + 1 if valid.size else 0) < count:
                # Wrong CRCs, and where the last of these batches says that it ends, nothing starts. The size of the
                # first may be what is wrong: then good batches lie within what it and the next take for themselves.
                first = int(rows["position"][run])
                swallowed, budget = _search(file, first + 1, end, base_offset, last_offset, budget)
                if swallowed >= 0:
                    rows = rows[: run + 1]
            if rows.size:
                yield BatchWindow(position, data[at : at + taken], rows, _pieces_of(file))
            at += taken
            position += taken
        # Headers alone: while a read skips little of what lies between them, fewer and larger ones cost less.
        skips = check_crcs or at > data.size + data.size // 4
        wanted = window_bytes if skips else max(window_bytes, min(2 * data.size, LARGEST_HEADER_WINDOW_BYTES))
        if swallowed >= 0:
            position = int(rows["position"][-1] + rows["size_bytes"][-1])
            if swallowed > position:
                yield Gap(position, swallowed - position, GapKind.DAMAGE, "bytes behind a batch with a wrong CRC")
            position = swallowed
            continue
        if status == scan.END:
            return
        if status == scan.WINDOW:
            if at == 0:
                wanted = _entry_bytes(data)
                if wanted > LARGEST_WINDOW_BYTES and not crcs_later:
                    yield _too_large(file, position, wanted, check_crcs)
                    position += wanted
                    wanted = window_bytes
            continue
        what = _describe(status, data[at:], end - position)
        gap, budget = _gap(file, position, end, what, status, base_offset, last_offset, budget)
        yield gap
        position = gap.end


def read_headers(
    file: File, *, base_offset: int = 0, start: int = 0, end: int | None = None, search: bool = True
) -> Iterator[BatchRows | Gap]:
    """The headers of a log file's batches, without their bytes: BATCH_ROW[some], CRCs not checked."""
    for item in read_windows(
        file,
        base_offset=base_offset,
        start=start,
        end=end,
        check_crcs=False,
        search=search,
        window_bytes=HEADER_WINDOW_BYTES,
    ):
        yield item.batches if isinstance(item, BatchWindow) else item


def compute_crcs(window: BatchWindow) -> None:
    """Fill the CRCs of a window that was read without them."""
    scan.compute_crcs(window.data.ctypes.data, window.data.size, window.position, window.batches)


def _read(file: File, position: int, size_bytes: int) -> U8Array:
    data = np.empty(size_bytes, np.uint8)
    return data[: file.read_into(position, memoryview(data))]


def _entry_bytes(data: U8Array) -> int:
    return PREFIX.size + int(PREFIX.unpack_from(data)[1])


def _pieces_of(file: File) -> Callable[[int, int], Iterator[bytes]]:
    def pieces(position: int, size_bytes: int) -> Iterator[bytes]:
        for at in range(position, position + size_bytes, _PIECE_BYTES):
            yield file.read(at, min(_PIECE_BYTES, position + size_bytes - at))

    return pieces


def _too_large(file: File, position: int, size: int, check_crc: bool) -> BatchWindow:
    """The window of a batch that is not held whole; its CRC is computed from pieces."""
    header = _read(file, position, HEADER.size)
    rows = np.empty(1, BATCH_ROW)
    scan.scan_batches(header.ctypes.data, header.size, size, position, False, rows)
    row = rows[0]
    pieces = _pieces_of(file)
    if check_crc:
        crc = 0
        if row["magic"] == 2:
            for piece in pieces(position + CRC_START, size - CRC_START):
                crc = crc32c.crc32c(piece, crc)
        else:
            for piece in pieces(position + LEGACY_CRC_START, size - LEGACY_CRC_START):
                crc = zlib.crc32(piece, crc)
        row["computed_crc"] = crc
    return BatchWindow(position, header, rows, pieces)


def _describe(status: int, data: U8Array, left: int) -> str:
    if data.size < MAGIC_END:
        return f"{left} bytes are too few for a batch header"
    size = int(PREFIX.unpack_from(data)[1])
    magic = int(data[16].astype(np.int8))
    if status == scan.PARTIAL:
        return f"a batch of {size + PREFIX.size} bytes starts here, but the file ends after {left}"
    if status == scan.BAD_MAGIC:
        return f"magic {magic} is none that Kafka writes"
    return f"a size field of {size} is too small for a batch of magic {magic}"


def _gap(
    file: File,
    position: int,
    end: int,
    what: str,
    status: int,
    base_offset: int,
    last_offset: int,
    budget: int,
) -> tuple[Gap, int]:
    """The gap at `position`, reaching to where valid batches start again, and what is left of the search budget."""
    if _is_zero(file, position, end):
        return Gap(position, end - position, GapKind.ZEROS, f"{end - position} zero bytes"), budget
    found, budget = _search(file, position + 1, end, base_offset, last_offset, budget)
    if found >= 0:
        return Gap(position, found - position, GapKind.DAMAGE, what), budget
    kind = GapKind.TORN if status == scan.PARTIAL else GapKind.DAMAGE
    return Gap(position, end - position, kind, what), budget


def _search(file: File, at: int, end: int, base_offset: int, last_offset: int, budget: int) -> tuple[int, int]:
    """Where in [at, end) a valid batch starts that fits the segment, or -1; and what is left of the search budget."""
    below = min(base_offset + MAX_OFFSETS, 2**63 - 1)
    while budget >= 0 and at < end:
        data = _read(file, at, min(_SEARCH_BYTES, end - at))
        found, budget = scan.find_batch(data.ctypes.data, data.size, end - at, last_offset, below, budget)
        if found >= 0:
            return at + found, budget
        if data.size < _SEARCH_BYTES:
            break
        # Half a window on, so that every batch of up to half a window is seen whole.
        at += _SEARCH_BYTES // 2
    return -1, budget


def _is_zero(file: File, position: int, end: int) -> bool:
    for at in range(position, end, _PIECE_BYTES):
        if _read(file, at, min(_PIECE_BYTES, end - at)).any():
            return False
    return True
