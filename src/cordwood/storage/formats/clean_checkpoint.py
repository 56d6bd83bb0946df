"""Cordwood's own cleaner checkpoint, `.cordwood/index/cleaned`: the first dirty offset of a log with pending records.

Kafka's checkpoint is the offset from which a broker has to clean: no record below it supersedes a remaining record. A
clean with `--min-dead` leaves superseded records, so Kafka's checkpoint stays below the records that superseded them:

    offsets       0 ………………… Kafka's checkpoint ………………… `cleaned_to` ………………… log end
                  └─ superseded records may stay here ──────┘
                            └─ … superseded by records from here on

Every superseded record that remains below `cleaned_to` is in a file of pending records. This checkpoint is valid only
while the log below `cleaned_to` consists of exactly these segments, except that the oldest may have been deleted: each
with this size, this last batch, and this file of pending records. If anything differs, the file counts as missing, and
the next clean begins at Kafka's checkpoint. That takes longer, and is never wrong.

    header      40 bytes, see `HEADER`; its last field is its own checksum
    segments    ROW[segments], ascending
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields

import numpy as np
from crc32c import crc32c

from cordwood.common.errors import CorruptFileError, IndexProblem
from cordwood.fs.base import Bytes

VERSION = 1
MAGIC = b"CWCLEAND"

HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("segments", "<u4"),
        ("cleaned_to", "<i8"),
        ("first_killer", "<i8"),
        ("segments_crc", "<u4"),
        ("header_crc", "<u4"),
    ]
)
ROW = np.dtype(
    [
        ("base_offset", "<i8"),
        ("size_bytes", "<i8"),
        ("last_position", "<i8"),
        ("written_ms", "<i8"),
        ("garbage_bytes", "<i8"),
        ("last_header_crc", "<u4"),
        ("pending_crc", "<u4"),
    ]
)
assert (HEADER.itemsize, ROW.itemsize) == (40, 48)
_CRC_BYTES = 4


@dataclass(frozen=True, slots=True)
class CleanSegment:
    """A segment as the last clean left it.

    Attributes:
        last_position: position of its last batch; 0 if it is empty.
        written_ms: time at which a clean wrote it, or else its modification time.
        garbage_bytes: approximate size of its pending records; 0 if it has none, and so no `.pending` file.
        last_header_crc: CRC-32C of the header of the last batch; 0 if the segment is empty.
        pending_crc: the checksum in the header of its pending records; 0 without any.
    """

    base_offset: int
    size_bytes: int
    last_position: int
    written_ms: int
    garbage_bytes: int
    last_header_crc: int
    pending_crc: int


@dataclass(frozen=True, slots=True)
class CleanCheckpoint:
    """The first dirty offset of a log, and the pending records below it.

    Attributes:
        cleaned_to: the first dirty offset; the base offset of a segment.
        first_killer: Kafka's checkpoint: no record below this offset superseded a pending one. `cleaned_to` if no
            record is pending.
        segments: the segments below `cleaned_to`.
    """

    cleaned_to: int
    first_killer: int
    segments: tuple[CleanSegment, ...]

    @property
    def garbage_bytes(self) -> int:
        """Approximate size of all pending records."""
        return sum(one.garbage_bytes for one in self.segments)


def encode(checkpoint: CleanCheckpoint) -> bytes:
    """Encode a file."""
    rows = np.zeros(len(checkpoint.segments), ROW)
    for at, one in enumerate(checkpoint.segments):
        rows[at] = tuple(getattr(one, field.name) for field in fields(one))
    row = np.zeros((), HEADER)
    row["magic"], row["version"], row["segments"] = MAGIC, VERSION, rows.size
    row["cleaned_to"], row["first_killer"] = checkpoint.cleaned_to, checkpoint.first_killer
    row["segments_crc"] = crc32c(rows.tobytes())
    row["header_crc"] = crc32c(row.tobytes()[:-_CRC_BYTES])
    return row.tobytes() + rows.tobytes()


def decode(data: Bytes, path: str | None = None) -> CleanCheckpoint:
    """Decode a file.

    Raises:
        CorruptFileError: it is another kind of file, has another version or length, a wrong checksum, or impossible
            values.
    """
    data = bytes(data)
    if len(data) < HEADER.itemsize or not data.startswith(MAGIC):
        raise CorruptFileError("it does not begin like Cordwood's cleaner checkpoint", path=path, position=0)
    row = np.frombuffer(data, HEADER, 1)[0]
    if row["version"] != VERSION:
        what = f"a cleaner checkpoint of version {row['version']}, only {VERSION} is known"
        raise CorruptFileError(what, kind=IndexProblem.VERSION, path=path, position=8)
    if crc32c(data[: HEADER.itemsize - _CRC_BYTES]) != row["header_crc"]:
        raise CorruptFileError("CRC-32C mismatch in the header of the cleaner checkpoint", path=path, position=0)
    body = data[HEADER.itemsize :]
    if len(body) != ROW.itemsize * int(row["segments"]):
        what = f"a cleaner checkpoint of {len(data)} bytes, but its header says {row['segments']} segments"
        raise CorruptFileError(what, path=path)
    if crc32c(body) != row["segments_crc"]:
        what = "CRC-32C mismatch in the segments of the cleaner checkpoint"
        raise CorruptFileError(what, path=path, position=HEADER.itemsize)
    segments = tuple(CleanSegment(*one) for one in np.frombuffer(body, ROW).tolist())
    checkpoint = CleanCheckpoint(int(row["cleaned_to"]), int(row["first_killer"]), segments)
    if what := _fault(checkpoint):
        raise CorruptFileError(f"a cleaner checkpoint that cannot be: {what}", path=path)
    return checkpoint


def _fault(checkpoint: CleanCheckpoint) -> str:
    ends = [*(one.base_offset for one in checkpoint.segments), checkpoint.cleaned_to]
    if ends[0] < 0 or any(one >= other for one, other in itertools.pairwise(ends)):
        return "its segments do not ascend"
    if not 0 <= checkpoint.first_killer <= checkpoint.cleaned_to:
        return f"superseded from {checkpoint.first_killer} on, cleaned to {checkpoint.cleaned_to}"
    for one in checkpoint.segments:
        if not 0 <= one.last_position < max(one.size_bytes, 1):
            return f"a last batch at position {one.last_position} of {one.size_bytes} bytes"
        if not 0 <= one.garbage_bytes <= one.size_bytes:
            return f"{one.garbage_bytes} bytes of {one.size_bytes} are superseded"
    return ""
