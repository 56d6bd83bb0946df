"""Walk a window of a log file from header to header: one row per batch, and why the walk ended.

The kernels of `kernels.scan` do this in nanoseconds per batch, but take a third of a second to load. So until something
else has loaded them, small windows are walked in Python: that costs a microsecond per batch, and some commands need no
kernel at all. Both walks follow the same rules, and tests compare them.
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import TYPE_CHECKING

import crc32c
import numpy as np
import numpy.typing as npt

from cordwood.common.types import NONE, ControlType
from cordwood.kernels import Deferred, is_loaded
from cordwood.kernels.layout import (
    ATTRIBUTES_AT,
    BAD_MAGIC,
    BAD_SIZE,
    BATCH_ROW,
    CODEC_MASK,
    CONTROL,
    CONTROL_BYTES,
    CRC_START_BY_MAGIC,
    END,
    HEADER_BYTES,
    HEADER_BYTES_BY_MAGIC,
    MAGIC_END,
    MIN_ENTRY_BYTES,
    MIN_SIZE_FIELD,
    PARTIAL,
    PREFIX_BYTES,
    ROWS,
    WINDOW,
    BatchRows,
    U8Array,
)
from cordwood.record.batch import KEY
from cordwood.record.plain import BrokenError, Cursor

if TYPE_CHECKING:
    from cordwood.kernels import scan as kernel
else:
    kernel = Deferred("scan")

#: Windows up to this size are walked in Python.
_PLAIN_BYTES_MAX = 1 << 20
#: Approximate microseconds of walking in Python before the kernels are loaded.
_PLAIN_COST_MAX = 200_000
#: Microseconds, roughly, for a walk besides its batches.
_COST_OF_A_WALK = 100

#: Offset, size, the CRC or leader epoch, and the magic of an entry.
_COMMON = Struct(">qiib")
assert _COMMON.size == MAGIC_END
_ATTRIBUTES = Struct(">h")
_CONTROL_TYPES = frozenset(map(int, ControlType))

#: The fields of a header, by magic.
_FIELDS = (
    np.dtype([("offset", ">i8"), ("size", ">i4"), ("crc", ">u4"), ("magic", "i1"), ("attributes", "u1")]),
    np.dtype(
        [
            *[("offset", ">i8"), ("size", ">i4"), ("crc", ">u4"), ("magic", "i1"), ("attributes", "u1")],
            ("timestamp", ">i8"),
        ]
    ),
    np.dtype(
        [
            ("base_offset", ">i8"),
            ("size", ">i4"),
            ("leader_epoch", ">i4"),
            ("magic", "i1"),
            ("crc", ">u4"),
            ("attributes", ">i2"),
            ("last_offset_delta", ">i4"),
            ("base_timestamp", ">i8"),
            ("max_timestamp", ">i8"),
            ("producer_id", ">i8"),
            ("producer_epoch", ">i2"),
            ("base_sequence", ">i4"),
            ("record_count", ">i4"),
        ]
    ),
)
assert tuple(form.itemsize for form in _FIELDS) == HEADER_BYTES_BY_MAGIC
#: Fields that a row has under the same name.
_SAME = tuple(name for name in _FIELDS[2].names or () if name in (BATCH_ROW.names or ()) and name != "magic")


class _Walked:
    """The time that Python has spent on walks in this process."""

    cost = 0


def scan_batches(
    data: U8Array, file_left: int, first_position: int, rows: BatchRows, *, whole_entries: bool
) -> tuple[int, int, int]:
    """Walk entries from the start of a window; see `kernels.scan.scan_batches`.

    Returns:
        (count, consumed, status): rows filled, the size of their entries in bytes, why the walk ended.
    """
    if _is_plain(data):
        return _scan_plainly(data, file_left, first_position, rows, whole_entries=whole_entries)
    found: tuple[int, int, int] = kernel.scan_batches(
        data.ctypes.data, data.size, file_left, first_position, whole_entries, rows
    )
    return found


def compute_crcs(data: U8Array, first_position: int, rows: BatchRows) -> None:
    """Fill in `computed_crc` of the entries that are completely within a window; see `kernels.scan.compute_crcs`."""
    if not _is_plain(data):
        kernel.compute_crcs(data.ctypes.data, data.size, first_position, rows)
        return
    view = memoryview(data)
    starts = (rows["position"] - first_position).tolist()
    for index, (at, size, magic) in enumerate(
        zip(starts, rows["size_bytes"].tolist(), rows["magic"].tolist(), strict=True)
    ):
        if at >= 0 and at + size <= data.size:
            covered = view[at + CRC_START_BY_MAGIC[magic] : at + size]
            rows["computed_crc"][index] = crc32c.crc32c(covered) if magic == 2 else zlib.crc32(covered)


def _is_plain(data: U8Array) -> bool:
    """Return whether Python should walk a window."""
    return data.size <= _PLAIN_BYTES_MAX and _Walked.cost < _PLAIN_COST_MAX and not is_loaded("scan")


def _scan_plainly(
    data: U8Array, file_left: int, first_position: int, rows: BatchRows, *, whole_entries: bool
) -> tuple[int, int, int]:
    starts, magics, controls, consumed, status = _walk(memoryview(data), file_left, rows.size, whole_entries)
    _Walked.cost += _COST_OF_A_WALK + len(starts)
    count = len(starts)
    if not count:
        return 0, consumed, status
    found, at, magic = rows[:count], np.array(starts), np.array(magics, np.int8)
    found["position"] = at + first_position
    found["size_bytes"] = np.diff(at, append=consumed)
    found["magic"] = magic
    for number in set(magics):
        chosen = magic == number
        if chosen.all():
            _fill(found, _headers(data, at, number), number)
        else:
            some = found[chosen]
            _fill(some, _headers(data, at[chosen], number), number)
            found[chosen] = some
    found["computed_crc"] = found["crc"]
    found["control_type"] = NONE
    for index in controls:
        body = data[starts[index] + HEADER_BYTES : starts[index] + int(found["size_bytes"][index])]
        if found["record_count"][index] > 0:
            found["control_type"][index] = _control_type(body.tobytes())
    return count, consumed, status


def _walk(
    data: memoryview, file_left: int, capacity: int, whole_entries: bool
) -> tuple[list[int], list[int], list[int], int, int]:
    """Return the start and magic of each entry, the indexes of whole control batches, the end, and why it ended."""
    starts: list[int] = []
    magics: list[int] = []
    controls: list[int] = []
    at = 0
    while True:
        left, here = file_left - at, len(data) - at
        if left <= MAGIC_END:
            return starts, magics, controls, at, END if left == 0 else PARTIAL
        if here < MAGIC_END:
            return starts, magics, controls, at, WINDOW
        if len(starts) == capacity:
            return starts, magics, controls, at, ROWS
        _, size_field, _, magic = _COMMON.unpack_from(data, at)
        if size_field < MIN_SIZE_FIELD:
            return starts, magics, controls, at, BAD_SIZE
        if not 0 <= magic <= 2:
            return starts, magics, controls, at, BAD_MAGIC
        size, smallest = size_field + PREFIX_BYTES, MIN_ENTRY_BYTES[magic]
        if size < smallest:
            return starts, magics, controls, at, BAD_SIZE
        if size > left:
            return starts, magics, controls, at, PARTIAL
        is_control = False
        if magic == 2 and here >= HEADER_BYTES:
            (attributes,) = _ATTRIBUTES.unpack_from(data, at + ATTRIBUTES_AT)
            is_control = attributes & (CONTROL | CODEC_MASK) == CONTROL
        is_whole = whole_entries or (is_control and size <= CONTROL_BYTES)
        if here < (size if is_whole else smallest):
            return starts, magics, controls, at, WINDOW
        if is_control and is_whole:
            controls.append(len(starts))
        starts.append(at)
        magics.append(magic)
        at += size


def _headers(data: U8Array, starts: npt.NDArray[np.int64], magic: int) -> npt.NDArray[np.void]:
    """Return the headers of entries of one magic."""
    form = _FIELDS[magic]
    taken = np.ascontiguousarray(data[starts[:, None] + np.arange(form.itemsize)])
    return taken.view(form)[:, 0]


def _fill(rows: BatchRows, headers: npt.NDArray[np.void], magic: int) -> None:
    """Copy headers of one magic into rows."""
    if magic == 2:
        for name in _SAME:
            rows[name] = headers[name]
        rows["last_offset"] = headers["base_offset"] + headers["last_offset_delta"]
        return
    # A wrapper's offset is the offset of its last message; its first offset is known only after decompression.
    is_wrapper = headers["attributes"] & CODEC_MASK != 0
    rows["last_offset"] = headers["offset"]
    rows["base_offset"] = np.where(is_wrapper, NONE, headers["offset"])
    rows["record_count"] = np.where(is_wrapper, NONE, 1)
    rows["base_timestamp"] = rows["max_timestamp"] = headers["timestamp"] if magic == 1 else NONE
    for name in ("crc", "attributes"):
        rows[name] = headers[name]
    for name in ("leader_epoch", "producer_id", "producer_epoch", "base_sequence"):
        rows[name] = NONE


def _control_type(body: bytes) -> int:
    """Return the control type in the first record of a control batch's body; -1 if it is unknown or invalid."""
    record = Cursor(body)
    try:
        length = record.zigzag(32)
        if not 1 <= length <= len(record.rest):
            return NONE
        record.take(1)
        for bits in (64, 32):
            record.zigzag(bits)
        if record.zigzag(32) < KEY.size:
            return NONE
        version, number = KEY.unpack(record.take(KEY.size))
    except BrokenError:
        return NONE
    return number if version >= 0 and number in _CONTROL_TYPES else NONE
