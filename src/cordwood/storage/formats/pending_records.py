"""Pending records of a segment, `.cordwood/index/<base offset>.pending`: superseded records that a clean left in it.

A clean with `--min-dead` leaves some superseded records. The next clean does not read the records that superseded them
again, so this file marks them: a bit per record, in the order of the segment, including control records.

    header      56 bytes, see `HEADER`; its last field is its own checksum
    bits        u8[⌈records / 8⌉], the lowest bit first; 1: the record is superseded

The file is only used if `storage.formats.clean_checkpoint` names it, and if all batches of the segment are unchanged:
`batches_crc` covers the position and the stored checksum of each of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from crc32c import crc32c

from cordwood.common.errors import CorruptFileError, IndexProblem
from cordwood.fs.base import Bytes
from cordwood.kernels.layout import U8Array

VERSION = 1
MAGIC = b"CWPENDNG"

HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("records", "<u4"),
        ("base_offset", "<i8"),
        ("size_bytes", "<i8"),
        ("first_killer", "<i8"),
        ("pending", "<u4"),
        ("batches_crc", "<u4"),
        ("bits_crc", "<u4"),
        ("header_crc", "<u4"),
    ]
)
assert HEADER.itemsize == 56

_FIELDS = ("records", "base_offset", "size_bytes", "first_killer", "pending", "batches_crc", "bits_crc")
_CRC_BYTES = 4


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a file of pending records.

    Attributes:
        records: number of records in all batches, by their headers.
        base_offset, size_bytes: base offset and size of the segment.
        first_killer: no record below this offset superseded a pending one.
        pending: number of pending records.
        batches_crc: see `crc_of_batches`.
        bits_crc: CRC-32C of the bits.
        header_crc: identifies the file in `clean_checkpoint`.
    """

    records: int
    base_offset: int
    size_bytes: int
    first_killer: int
    pending: int
    batches_crc: int
    bits_crc: int
    header_crc: int

    @property
    def bits_bytes(self) -> int:
        """Size of the bits."""
        return -(-self.records // 8)


@dataclass(frozen=True, slots=True, eq=False)
class PendingRecords:
    """The pending records of a segment: a header, and its bits, uint8[⌈records / 8⌉]."""

    header: Header
    bits: U8Array


def pending_of(
    bits: U8Array, *, records: int, base_offset: int, size_bytes: int, first_killer: int, batches_crc: int
) -> PendingRecords:
    """Return pending records with these bits, and compute the rest of their header."""
    assert bits.size == -(-records // 8), "a bit per record"
    header = Header(
        records, base_offset, size_bytes, first_killer, count_of(bits), batches_crc, crc32c(bits.tobytes()), 0
    )
    return PendingRecords(decode_header(_header_bytes(header)), bits)


def crc_of_batches(positions: np.ndarray, crcs: np.ndarray) -> int:
    """Compute the CRC-32C over position and stored checksum of each batch, u32 both, to detect changed batches."""
    return int(crc32c(np.column_stack([positions, crcs]).astype("<u4").tobytes()))


def count_of(bits: U8Array) -> int:
    """Count the set bits."""
    return int(np.bitwise_count(bits).sum(dtype=np.int64))


def encode(found: PendingRecords) -> bytes:
    """Encode a file."""
    return _header_bytes(found.header) + found.bits.tobytes()


def _header_bytes(header: Header) -> bytes:
    row = np.zeros((), HEADER)
    row["magic"], row["version"] = MAGIC, VERSION
    for name in _FIELDS:
        row[name] = getattr(header, name)
    row["header_crc"] = crc32c(row.tobytes()[:-_CRC_BYTES])
    return row.tobytes()


def decode_header(data: Bytes, path: str | None = None) -> Header:
    """Decode the header in the first bytes of a file.

    Raises:
        CorruptFileError: it is another kind of file, has another version, a wrong checksum, or impossible values.
    """
    data = bytes(data[: HEADER.itemsize])
    if len(data) < HEADER.itemsize or not data.startswith(MAGIC):
        raise CorruptFileError("it does not begin like a file of pending records", path=path, position=0)
    row = np.frombuffer(data, HEADER)[0]
    if row["version"] != VERSION:
        what = f"pending records of version {row['version']}, only {VERSION} is known"
        raise CorruptFileError(what, kind=IndexProblem.VERSION, path=path, position=8)
    if crc32c(data[:-_CRC_BYTES]) != row["header_crc"]:
        raise CorruptFileError("CRC-32C mismatch in the header of pending records", path=path, position=0)
    header = Header(*(int(row[name]) for name in (*_FIELDS, "header_crc")))
    fits = 0 <= header.base_offset < header.first_killer and header.size_bytes > 0
    if not fits or not 0 < header.pending <= header.records:
        what = f"{header.pending} pending of {header.records} records, superseded from {header.first_killer} on"
        raise CorruptFileError(f"the header of pending records cannot be: {what}", path=path, position=0)
    return header


def decode(data: Bytes, path: str | None = None) -> PendingRecords:
    """Decode a whole file; the bits are a view of `data`.

    Raises:
        CorruptFileError: see `decode_header`; or the file's length or the number of bits differs from the header, or
            the checksum of the bits is wrong.
    """
    header = decode_header(data, path)
    if len(data) != HEADER.itemsize + header.bits_bytes:
        what = f"{len(data)} bytes for {header.records} records"
        raise CorruptFileError(f"a file of pending records that cannot be: {what}", path=path)
    bits = np.frombuffer(data, np.uint8, offset=HEADER.itemsize)
    if crc32c(bits.tobytes()) != header.bits_crc:
        raise CorruptFileError("CRC-32C mismatch in the bits of pending records", path=path, position=HEADER.itemsize)
    behind = int(bits[-1]) >> (header.records % 8 or 8)
    if behind or count_of(bits) != header.pending:
        what = f"its bits are not those of {header.pending} out of {header.records} records"
        raise CorruptFileError(f"a file of pending records that cannot be: {what}", path=path)
    return PendingRecords(header, bits)


def ordinals(bits: U8Array) -> np.ndarray:
    """Return the ordinals of the records whose bits are set, int64[pending], ascending."""
    some = np.flatnonzero(bits)
    found = np.unpackbits(bits[some], bitorder="little").reshape(-1, 8)
    return np.asarray((8 * some[:, np.newaxis] + np.arange(8))[found == 1])
