"""A key index made the slow way: entry by entry, record by record, with `struct` and no arrays."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from crc32c import crc32c
from hypothesis import strategies as st

from cordwood.record.batch import Marker, encode_batch, encode_marker
from cordwood.record.record import Record
from cordwood.testing.reference import siphash128
from cordwood.testing.strategies import batches

SECRET = bytes(range(16))
BLOCK = 65536

#: An entry as it is in the log, and the records in it.
Entry = tuple[bytes, Sequence[Record]]


def entries_of(parts: Sequence[tuple[bytes, Sequence[Record]]]) -> Iterator[Entry]:
    """The entries of a log, from the output of `encode_batch` and `encode_message_set`, each with its records."""
    for data, records in parts:
        found = []
        while data:
            (size,) = struct.unpack_from(">i", data, 8)
            found.append(data[: 12 + size])
            data = data[12 + size :]
        # A message of magic 0 or 1 is an entry by itself, unless all messages are compressed together.
        groups = [records] if len(found) == 1 else [[record] for record in records]
        yield from zip(found, groups, strict=True)


def _is_control(data: bytes) -> bool:
    return data[16] == 2 and bool(data[22] & 0x20)


def _flags(entries: Sequence[Entry]) -> int:
    flags = 0
    for data, records in entries:
        horizon = data[16] == 2 and data[22] & 0x40
        flags |= 2 if _is_control(data) else 0
        flags |= 4 if data[16] == 2 and data[22] & 0x10 else 0
        flags |= 8 if not records else 0
        flags |= 32 if data[16] < 2 else 0
        for record in [] if _is_control(data) else records:
            flags |= 1 if record.key is not None and record.value is None and not horizon else 0
            flags |= 16 if record.key is None else 0
    return flags


def file_of(entries: Sequence[Entry], base_offset: int, secret: bytes = SECRET, bits: int | None = None) -> bytes:
    """The whole file of the index of these entries."""
    keys: list[tuple[int, int]] = []
    records = 0
    horizon = (1 << 63) - 1
    for data, some in entries:
        for record in some:
            if record.key is not None and not _is_control(data):
                keys.append((struct.unpack("<QQ", siphash128(record.key, secret))[1], records))
            records += 1
        if data[16] == 2 and data[22] & 0x40:
            horizon = min(horizon, struct.unpack_from(">q", data, 27)[0])
    if bits is None:
        bits = next((bits for bits in range(24, 1, -1) if 8 << bits <= len(keys)), 1)
    buckets: list[list[tuple[int, int]]] = [[] for _ in range(1 << bits)]
    for hashed, ordinal in keys:
        buckets[hashed >> 64 - bits].append((hashed >> 32 - bits & 0xFFFFFFFF, ordinal))
    starts = [sum(map(len, buckets[:at])) for at in range(len(buckets) + 1)]
    flat = [entry for bucket in buckets for entry in bucket]
    arrays = [
        [len(data) for data, _ in entries],
        [len(some) for _, some in entries],
        [struct.unpack_from(">I", data, 17 if data[16] == 2 else 12)[0] for data, _ in entries],
        starts,
        [tag for tag, _ in flat],
        [ordinal for _, ordinal in flat],
    ]
    payload = b"".join(struct.pack(f"<{len(array)}I", *array) for array in arrays)
    blocks = b"".join(struct.pack("<I", crc32c(payload[at : at + BLOCK])) for at in range(0, len(payload), BLOCK))
    last, _ = entries[-1]
    next_offset = struct.unpack_from(">q", last)[0] + 1
    if last[16] == 2:
        next_offset += struct.unpack_from(">i", last, 23)[0]
    head = struct.pack(
        "<8sHHIqqqqIIII16sI",
        b"CWKEYHSH",
        1,
        bits,
        _flags(entries),
        base_offset,
        next_offset,
        sum(arrays[0]),
        horizon,
        len(entries),
        records,
        len(keys),
        crc32c(last[:61]),
        secret,
        crc32c(blocks),
    )
    return head + struct.pack("<I", crc32c(head)) + blocks + payload


@st.composite
def parts(draw: st.DrawFn) -> list[Entry]:
    """Entries of a segment from offset 100 on; some are of a transaction, control, or empty."""
    found: list[Entry] = []
    offset = 100
    for _ in range(draw(st.integers(1, 6))):
        match draw(st.sampled_from(["records", "records", "marker", "empty"])):
            case "records":
                data, records = draw(batches(offset))
                found += entries_of([(data, records)])
                offset = records[-1].offset + 4
            case "marker":
                found.append((marker(offset), [Record(offset, 0, b"key of a marker", b"")]))
            case _:
                found.append((encode_batch([], base_offset=offset, last_offset=offset), []))
        offset += 1
    return found


def marker(offset: int) -> bytes:
    return encode_marker(Marker(offset, 1000, 7, 0, committed=True))
