"""Key indexes, `.cordwood/index/<base offset>.keyhashes`: the keys of a segment, and their records.

A record is identified by its ordinal: its number in the segment, from 0. A key is identified by the upper half of its
SipHash under the secret in the file: the first `bits` bits select a bucket, and the next 32 bits are stored as a tag.
So an entry shows that a record *may* have a key; only the bytes of the key prove it.

    header                88 bytes, see `HEADER`; its last field is its own checksum
    block checksums       u32 for each 64 KiB of the arrays; the last block may be shorter
    batches               lengths    u32[batches]           in the order of the segment
                          counts     u32[batches]           of records
                          checksums  u32[batches]           as stored in the batches
    keys                  starts     u32[2^bits + 1]        a bucket's entries are from its start to the next start
                          tags       u32[entries]           the 32 hash bits after those of the bucket
                          ordinals   u32[entries]           of the records, ascending within a bucket
    identity              128 bytes, see `IDENTITY`; in version 2 only

All numbers are little-endian, and the arrays are used in place, as they are in the file. With a checksum per block, a
reader can verify the blocks that it uses without reading the others.

The presence of a file proves nothing: it may be torn, of another log, or of a segment that has changed since. Its
checksums, `faults` and `storage.index.identity` decide. Rejecting an index costs time, but never makes a result wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import IntFlag

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from cordwood.common.errors import CorruptFileError, IndexProblem
from cordwood.fs.base import Bytes, ReadableFile
from cordwood.kernels.layout import HEADER_BYTES, MIN_ENTRY_BYTES, U8Array

#: A file without and with an identity; nothing else differs.
VERSION, VERSION_WITH_IDENTITY = 1, 2
MAGIC = b"CWKEYHSH"

HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u2"),
        ("bits", "<u2"),
        ("flags", "<u4"),
        ("base_offset", "<i8"),
        ("next_offset", "<i8"),
        ("covered_bytes", "<i8"),
        ("delete_horizon_ms", "<i8"),
        ("batches", "<u4"),
        ("records", "<u4"),
        ("entries", "<u4"),
        ("last_header_crc", "<u4"),
        ("secret", "V16"),
        ("blocks_crc", "<u4"),
        ("header_crc", "<u4"),
    ]
)
#: A file as a directory shows it; all zeros if it is missing.
STATE = np.dtype([("size_bytes", "<i8"), ("mtime_ns", "<i8"), ("ctime_ns", "<i8"), ("inode", "<u8")])
#: The last field is the checksum of the bytes before it. `index_crc` is the checksum in the header of the same file.
IDENTITY = np.dtype(
    [
        ("looked_ns", "<i8"),
        ("interval_bytes", "<i8"),
        ("index_bytes", "<i8"),
        ("files", STATE, (3,)),
        ("index_crc", "<u4"),
        ("identity_crc", "<u4"),
    ]
)
BLOCK_BYTES = 1 << 16
#: Limits of `bits`. Between them a bucket has 8 to 16 entries. With 0 bits a hash would be shifted by all its 64 bits,
#: which is undefined.
BITS_MIN, BITS_MAX = 1, 24
#: Bits of a tag.
TAG_BITS = 32
#: Bytes per batch in an index.
BATCH_BYTES = 12
#: `delete_horizon_ms` of a segment whose batches have no delete horizon.
NO_HORIZON = (1 << 63) - 1

_NUMBER = np.dtype("<u4")
_FIELDS = (
    "bits",
    "flags",
    "base_offset",
    "next_offset",
    "covered_bytes",
    "delete_horizon_ms",
    "batches",
    "records",
    "entries",
    "last_header_crc",
    "version",
)
assert (HEADER.itemsize, IDENTITY.itemsize, _NUMBER.itemsize) == (88, 128, 4)

U32Array = npt.NDArray[np.uint32]


class Flag(IntFlag):
    """Contents of a segment that a clean may remove or change even without newer records of their keys."""

    #: Tombstones in batches without a delete horizon.
    TOMBSTONES = 1
    CONTROL = 2
    TRANSACTIONAL = 4
    #: Batches without records.
    EMPTY_BATCHES = 8
    KEYLESS = 16
    #: Entries of magic 0 or 1.
    OLD_MAGIC = 32


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a key index.

    Attributes:
        secret: 16 bytes, the key of the hashes.
        bits: number of hash bits that select a bucket.
        flags: see `Flag`.
        base_offset: base offset of the segment.
        next_offset: the offset after the last covered batch.
        covered_bytes: length of the covered part, from the start of the segment.
        delete_horizon_ms: the earliest delete horizon of all batches, or NO_HORIZON.
        records: records in the batches; more than `entries` if some have no key, or are markers.
        last_header_crc: `crc_of_header` of the last covered batch.
        version: VERSION, or VERSION_WITH_IDENTITY.
    """

    secret: bytes = field(repr=False)
    bits: int
    flags: int
    base_offset: int
    next_offset: int
    covered_bytes: int
    delete_horizon_ms: int
    batches: int
    records: int
    entries: int
    last_header_crc: int
    version: int = VERSION

    @property
    def payload_bytes(self) -> int:
        """Size of all arrays."""
        return _NUMBER.itemsize * sum(self._counts())

    @property
    def blocks(self) -> int:
        """Number of block checksums."""
        return -(-self.payload_bytes // BLOCK_BYTES)

    @property
    def payload_start(self) -> int:
        """Position of the arrays in the file."""
        return HEADER.itemsize + _NUMBER.itemsize * self.blocks

    @property
    def file_bytes(self) -> int:
        """Size of the file."""
        return self.identity_start + (0 if self.version == VERSION else IDENTITY.itemsize)

    @property
    def identity_start(self) -> int:
        """Position behind the arrays, where the identity begins, if there is one."""
        return self.payload_start + self.payload_bytes

    def arrays(self, payload: U8Array) -> tuple[U32Array, ...]:
        """Split a payload into its arrays: lengths, counts and checksums of batches; starts, tags and ordinals."""
        numbers = payload.view(_NUMBER)
        return tuple(np.split(numbers, np.cumsum(self._counts())[:-1]))

    @property
    def batches_bytes(self) -> int:
        """Size of the arrays of batches, which are first."""
        return _NUMBER.itemsize * 3 * self.batches

    def _counts(self) -> tuple[int, ...]:
        return (self.batches,) * 3 + ((1 << self.bits) + 1, self.entries, self.entries)


@dataclass(frozen=True, slots=True)
class FileState:
    """A file as a directory shows it; all zeros if it is missing."""

    size_bytes: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0
    inode: int = 0


@dataclass(frozen=True, slots=True)
class Identity:
    """The files of the segment that an index was made of: see `storage.index.identity`.

    Attributes:
        looked_ns: time at which the files looked like this; 0 if they were not in their place yet.
        files: the `.log`, the `.index` and the `.timeindex`.
        interval_bytes, index_bytes: `index.interval.bytes` and `segment.index.bytes`, by which a clean would make the
            same offset index and time index; 0 if they differ, or offsets do not ascend.
    """

    looked_ns: int
    files: tuple[FileState, ...]
    interval_bytes: int = 0
    index_bytes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class KeyIndex:
    """A key index as arrays, all of them views of its payload.

    Attributes:
        identity: None if the file has none.
        lengths, counts, crcs: uint32[batches].
        starts: uint32[2^bits + 1].
        tags, ordinals: uint32[entries].
    """

    header: Header
    payload: U8Array
    lengths: U32Array
    counts: U32Array
    crcs: U32Array
    starts: U32Array
    tags: U32Array
    ordinals: U32Array
    identity: Identity | None = None


def index_in(header: Header, payload: U8Array, identity: Identity | None = None) -> KeyIndex:
    """Return an index whose arrays are views of a payload, which may be filled later."""
    lengths, counts, crcs, starts, tags, ordinals = header.arrays(payload)
    return KeyIndex(header, payload, lengths, counts, crcs, starts, tags, ordinals, identity)


def with_identity(index: KeyIndex, identity: Identity | None) -> KeyIndex:
    """Return the index with another identity, or with none."""
    version = VERSION if identity is None else VERSION_WITH_IDENTITY
    return replace(index, header=replace(index.header, version=version), identity=identity)


def crc_of_header(file: ReadableFile, position: int, size_bytes: int) -> int:
    """Return the CRC-32C of a batch's first 61 bytes, or of a shorter whole batch; it identifies the batch."""
    return int(crc32c(file.read(position, min(size_bytes, HEADER_BYTES))))


def encode(index: KeyIndex) -> tuple[bytes, U8Array, bytes]:
    """Encode an index in three parts: header and block checksums, the arrays, and the identity, which may be empty."""
    header = index.header
    blocks = np.array([crc32c(block) for block in _blocks(index.payload)], _NUMBER).tobytes()
    row = np.zeros((), HEADER)
    row["magic"] = MAGIC
    for name in _FIELDS:
        row[name] = getattr(header, name)
    row["secret"] = np.void(header.secret)
    row["blocks_crc"] = crc32c(blocks)
    row["header_crc"] = crc32c(row.tobytes()[: -_NUMBER.itemsize])
    identity = b"" if index.identity is None else encode_identity(index.identity, int(row["header_crc"]))
    return row.tobytes() + blocks, index.payload, identity


def encode_identity(identity: Identity, index_crc: int) -> bytes:
    """Encode the last part of a file; `index_crc`: the checksum in its header."""
    row = np.zeros((), IDENTITY)
    for name in ("looked_ns", "interval_bytes", "index_bytes"):
        row[name] = getattr(identity, name)
    row["files"] = [(state.size_bytes, state.mtime_ns, state.ctime_ns, state.inode) for state in identity.files]
    row["index_crc"] = index_crc
    row["identity_crc"] = crc32c(row.tobytes()[: -_NUMBER.itemsize])
    return row.tobytes()


def index_crc(data: Bytes) -> int:
    """Return the checksum in the header in the first bytes of a file."""
    return int(np.frombuffer(bytes(data[: HEADER.itemsize]), HEADER)[0]["header_crc"])


def decode_identity(header: Header, index_crc: int, data: Bytes, path: str | None = None) -> Identity | None:
    """Decode the bytes of a file from `identity_start` on; return None in a version without an identity.

    Raises:
        CorruptFileError: its checksum is wrong, or it belongs to another index.
    """
    if header.version == VERSION:
        return None
    data = bytes(data)
    row = np.frombuffer(data, IDENTITY)[0] if len(data) == IDENTITY.itemsize else None
    if row is None or crc32c(data[: -_NUMBER.itemsize]) != row["identity_crc"] or row["index_crc"] != index_crc:
        what = "CRC-32C mismatch in the identity of the key index"
        raise CorruptFileError(what, path=path, position=header.identity_start)
    files = tuple(FileState(*state) for state in row["files"].tolist())
    return Identity(int(row["looked_ns"]), files, int(row["interval_bytes"]), int(row["index_bytes"]))


def decode_header(data: Bytes, path: str | None = None) -> Header:
    """Decode the header in the first bytes of a file.

    Raises:
        CorruptFileError: it is not a key index, has another version, a wrong checksum, or impossible values.
    """
    data = bytes(data[: HEADER.itemsize])
    if len(data) < HEADER.itemsize or not data.startswith(MAGIC):
        raise CorruptFileError("it does not begin like a key index", path=path, position=0)
    row = np.frombuffer(data, HEADER)[0]
    if row["version"] not in (VERSION, VERSION_WITH_IDENTITY):
        what = f"key index version {row['version']}, only {VERSION} and {VERSION_WITH_IDENTITY} are known"
        raise CorruptFileError(what, kind=IndexProblem.VERSION, path=path, position=8)
    if crc32c(data[: -_NUMBER.itemsize]) != row["header_crc"]:
        raise CorruptFileError("CRC-32C mismatch in the header of the key index", path=path, position=0)
    header = Header(row["secret"].tobytes(), *(int(row[name]) for name in _FIELDS))
    if what := _header_fault(header):
        raise CorruptFileError(f"the header of the key index cannot be: {what}", path=path, position=0)
    return header


def _header_fault(header: Header) -> str:
    if not BITS_MIN <= header.bits <= BITS_MAX:
        return f"buckets of {header.bits} bits"
    if not 0 <= header.base_offset < header.next_offset:
        return f"offsets from {header.base_offset} to {header.next_offset - 1}"
    if not 0 < header.batches * MIN_ENTRY_BYTES[0] <= header.covered_bytes:
        return f"{header.batches} batches in {header.covered_bytes} bytes"
    without_key = header.records - header.entries
    if without_key < 0 or (without_key > 0 and not header.flags & (Flag.KEYLESS | Flag.CONTROL)):
        return f"{header.entries} keys of {header.records} records"
    return ""


def decode(data: Bytes, path: str | None = None) -> KeyIndex:
    """Decode a whole file; the arrays are views of `data`.

    Raises:
        CorruptFileError: see `decode_header`; or the file's length differs from the header, a checksum is wrong, or an
            array has impossible values.
    """
    header = decode_header(data, path)
    if len(data) != header.file_bytes:
        what = f"a key index of {len(data)} bytes, but its header says {header.file_bytes}"
        raise CorruptFileError(what, path=path)
    blocks = decode_blocks(header, data, path)
    payload = np.frombuffer(data, np.uint8)[header.payload_start : header.identity_start]
    for at, block in enumerate(_blocks(payload)):
        check_block(header, blocks, at, block, path)
    index = index_in(header, payload, decode_identity(header, index_crc(data), data[header.identity_start :], path))
    for fault in faults(index):
        fault.path = path
        raise fault
    return index


def decode_blocks(header: Header, data: Bytes, path: str | None = None) -> U32Array:
    """Decode the checksums of the blocks from a file's first `payload_start` bytes.

    Raises:
        CorruptFileError: there are too few of them, or their own checksum is wrong.
    """
    head = bytes(data[: header.payload_start])
    row = np.frombuffer(head, HEADER, 1)[0]
    if len(head) < header.payload_start or crc32c(head[HEADER.itemsize :]) != row["blocks_crc"]:
        what = "CRC-32C mismatch in the block checksums of the key index"
        raise CorruptFileError(what, path=path, position=HEADER.itemsize)
    return np.frombuffer(head, _NUMBER, offset=HEADER.itemsize)


def check_block(header: Header, blocks: U32Array, at: int, block: Bytes, path: str | None = None) -> None:
    """Compare a block of the arrays with its checksum.

    Raises:
        CorruptFileError: they differ.
    """
    if crc32c(block) != blocks[at]:
        what = f"CRC-32C mismatch in block {at} of the key index"
        raise CorruptFileError(what, path=path, position=header.payload_start + at * BLOCK_BYTES)


def _blocks(payload: U8Array) -> Iterator[U8Array]:
    for at in range(0, payload.size, BLOCK_BYTES):
        yield payload[at : at + BLOCK_BYTES]


def faults(index: KeyIndex) -> Iterator[CorruptFileError]:
    """Yield inconsistencies that no writer of an index would produce, even if all checksums are right."""
    yield from batch_faults(index)
    yield from entry_faults(index)


def batch_faults(index: KeyIndex) -> Iterator[CorruptFileError]:
    """Yield the `faults` in the arrays of batches."""
    header = index.header
    sums = (int(index.lengths.sum(dtype=np.uint64)), int(index.counts.sum(dtype=np.uint64)))
    if sums != (header.covered_bytes, header.records):
        yield _fault(f"its batches have {sums[0]} bytes and {sums[1]} records, its header says otherwise")
    if (index.lengths < MIN_ENTRY_BYTES[0]).any():
        yield _fault("a batch of fewer bytes than a batch can have")


def entry_faults(index: KeyIndex) -> Iterator[CorruptFileError]:
    """Yield the `faults` in the arrays of keys."""
    header, starts = index.header, index.starts
    if starts[0] != 0 or starts[-1] != header.entries or (starts[1:] < starts[:-1]).any():
        yield _fault(f"its buckets do not divide {header.entries} entries")
    elif (index.ordinals >= header.records).any():
        yield _fault(f"an entry is of a record that is none of {header.records}")


def _fault(what: str) -> CorruptFileError:
    return CorruptFileError(f"a key index that cannot be: {what}", kind=IndexProblem.ENTRY)
