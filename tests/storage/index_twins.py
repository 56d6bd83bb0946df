"""Key indexes of whole logs, and their slow twins: entry by entry, with `struct` and no arrays."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence

from crc32c import crc32c
from hypothesis import strategies as st

from cordwood.common.errors import CorruptFileError
from cordwood.fs.base import LocalFileSystem
from cordwood.record.batch import encode_batch
from cordwood.record.columns import BatchWindow, decode
from cordwood.record.record import Record, to_records
from cordwood.storage.index.build import build
from cordwood.storage.index.files import read_index, write_index
from cordwood.storage.index.history import KeyRecord, TransactionOutcome
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap
from cordwood.testing.reference import siphash128
from cordwood.testing.strategies import batches
from tests.logs import marker

# ---- indexes of a log ------------------------------------------------------------------------------------------------


def believed(log: LogView) -> Iterator[int]:
    """Return the base offsets of segments with a valid index; fail if its contents are wrong."""
    for segment in log.segments:
        try:
            index = read_index(segment)
        except (OSError, CorruptFileError):
            continue
        again = build(segment, index.header.secret, 1 << 30)
        assert again is not None and again.payload.tobytes() == index.payload.tobytes()
        yield segment.base_offset


def index_all(fs: LocalFileSystem, log: LogView) -> int:
    """Make an index of each segment, however small its records are; return the number of indexes."""
    found = [build(one, bytes(range(16)), 1 << 30) for one in log.segments]
    for index in found:
        if index is not None:
            write_index(fs, log.path, index)
    return sum(index is not None for index in found)


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
                found.append((marker(offset, 7, committed=True), [Record(offset, 0, b"key of a marker", b"")]))
            case _:
                found.append((encode_batch([], base_offset=offset, last_offset=offset), []))
        offset += 1
    return found


# ---- records by key, the slow way ------------------------------------------------------------------------------------

# The records of keys found the slow way: every record of a log as an object, every header for its transactions.


def plain_history(log: LogView, keys: Collection[bytes]) -> list[KeyRecord]:
    """All records of some keys from the log start offset on, in order."""
    found = [one for one in _records(log) if one.key in keys and one.offset >= log.log_start_offset]
    return [_with_successor(one, found[at + 1 :]) for at, one in enumerate(found)]


def all_keys(log: LogView) -> list[bytes]:
    """All keys of a log."""
    return sorted({one.key for one in _records(log)})


def _with_successor(record: KeyRecord, later: list[KeyRecord]) -> KeyRecord:
    same = (one.offset for one in later if one.key == record.key and one.outcome is TransactionOutcome.COMMITTED)
    names = ("key", "offset", "timestamp", "value", "base_offset", "segment", "position", "producer_id", "outcome")
    fields = {name: getattr(record, name) for name in names}
    return KeyRecord(**fields, superseded_by=next(same, None), delete_horizon_ms=record.delete_horizon_ms)


def _records(log: LogView) -> Iterator[KeyRecord]:
    transactions = log.transactions()
    for segment, item in log.windows():
        if isinstance(item, Gap):
            continue
        for at in range(item.batches.size):
            batch = item.batches[at : at + 1]
            if batch["magic"][0] == 2 and batch["attributes"][0] & 0x20:
                continue
            in_transaction = batch["magic"][0] == 2 and bool(batch["attributes"][0] & 0x10)
            horizon = batch["magic"][0] == 2 and bool(batch["attributes"][0] & 0x40)
            outcome = TransactionOutcome.COMMITTED
            if in_transaction and transactions.aborted_data(batch)[0]:
                outcome = TransactionOutcome.ABORTED
            elif in_transaction and transactions.open_data(batch)[0]:
                outcome = TransactionOutcome.OPEN
            for columns in decode(BatchWindow(item.position, item.data, batch, item.read), on_damage=lambda _: None):
                for record in to_records(columns.data, columns.rows):
                    if record.key is not None:
                        yield KeyRecord(
                            record.key,
                            record.offset,
                            record.timestamp,
                            record.value,
                            int(columns.batches["base_offset"][0]),
                            segment.base_offset,
                            int(batch["position"][0]),
                            int(batch["producer_id"][0]) if in_transaction else -1,
                            outcome,
                            None,
                            int(batch["base_timestamp"][0]) if horizon else None,
                        )
