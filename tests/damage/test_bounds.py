"""False sizes cost no memory: memory is bounded by a file's size, not by the sizes in its headers.

Every header here has a right checksum, so a reader trusts it until the bytes contradict it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import crc32c
import lz4.frame
import pytest
import zstandard

from cordwood.common.errors import BatchTooLargeError, CordwoodError, CorruptBatchError
from cordwood.common.types import Codec
from cordwood.fs.machine import container_cores, container_memory_bytes
from cordwood.kernels.layout import HEADER
from cordwood.record import columns as record_columns
from cordwood.record.batch import encode_batch, encode_message, encode_message_set, seal
from cordwood.record.compression import compress, largest_batch_bytes
from cordwood.record.record import Record, encode_record, write_varint
from cordwood.storage.formats import checkpoints, offset_index, producer_state, time_index, transaction_index
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.log.view import LogView
from tests.damage.samples import PARTITION, memory, read_log
from tests.knobs import in_turns

pytestmark = pytest.mark.more

LARGEST = 2**31 - 1
FILE = offset_name(0, FileKind.LOG)
MIB = 1 << 20


def batch(body: bytes, *, count: int = 1, codec: Codec = Codec.NONE, length: int | None = None) -> bytes:
    """A batch with any body, record count and length, and the right checksum."""
    head = HEADER.pack(0, 49 + len(body) if length is None else length, -1, 2, 0, codec, 0, 0, 0, -1, -1, -1, count)
    return seal(head + body)


def record(*fields: int | bytes, length: int | None = None) -> bytes:
    """A record of varints and bytes; its length is right unless it is given."""
    body = b"\0" + b"".join(field if isinstance(field, bytes) else write_varint(field) for field in fields)
    return write_varint(len(body) if length is None else length) + body


GOOD = encode_record(Record(0, 0, b"k", b"v"), base_offset=0, base_timestamp=0)


def message(key_size: int, rest: bytes, *, attributes: int = 0) -> bytes:
    """A message of magic 1 with any key size, and the right checksum."""
    data = b"\1" + bytes([attributes]) + bytes(8) + key_size.to_bytes(4, "big", signed=True) + rest
    return bytes(8) + (4 + len(data)).to_bytes(4, "big") + zlib.crc32(data).to_bytes(4, "big") + data


def wrapper(codec: Codec, payload: bytes) -> bytes:
    return encode_message(1, offset=0, timestamp=0, value=payload, attributes=codec)


INNER_CLAIM = bytes(8) + LARGEST.to_bytes(4, "big") + bytes(30)

CLAIMS = {
    "record count": batch(GOOD, count=LARGEST),
    "negative record count": batch(GOOD, count=-1),
    "record count, compressed": batch(compress(Codec.LZ4, GOOD), count=LARGEST, codec=Codec.LZ4),
    "record length": batch(record(0, 0, 1, b"k", 1, b"v", 0, length=LARGEST)),
    "negative record length": batch(record(0, 0, 1, b"k", 1, b"v", 0, length=-5)),
    "key size": batch(record(0, 0, LARGEST, b"k", 1, b"v", 0)),
    "value size": batch(record(0, 0, 1, b"k", LARGEST, b"v", 0)),
    "header count": batch(record(0, 0, 1, b"k", 1, b"v", LARGEST)),
    "negative header count": batch(record(0, 0, 1, b"k", 1, b"v", -1)),
    "header name size": batch(record(0, 0, 1, b"k", 1, b"v", 1, LARGEST, b"n")),
    "negative header name size": batch(record(0, 0, 1, b"k", 1, b"v", 1, -1, b"n")),
    "header value size": batch(record(0, 0, 1, b"k", 1, b"v", 1, 1, b"n", LARGEST)),
    "varint without end": batch(b"\xff" * 40),
    "gzip of nothing": batch(compress(Codec.GZIP, b""), codec=Codec.GZIP),
    "snappy length": batch(b"\xff\xff\xff\xff\x0f\0", codec=Codec.SNAPPY),
    "snappy chunk": batch(b"\x82SNAPPY\0\0\0\0\1\0\0\0\1\x7f\xff\xff\xff", codec=Codec.SNAPPY),
    "lz4 content size": batch(
        lz4.frame.compress(GOOD, content_checksum=False)[:4] + b"\x48\x70" + b"\xff" * 8 + b"\0\0", codec=Codec.LZ4
    ),
    "lz4 block": batch(bytes.fromhex("04224d18604082") + b"\xff\xff\xff\x7f", codec=Codec.LZ4),
    "zstd content size": batch(b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 8 + b"\1\0\0", codec=Codec.ZSTD),
    "zstd window": batch(b"\x28\xb5\x2f\xfd\0\xff" + b"\1\0\0", codec=Codec.ZSTD),
    "zstd run of one byte": batch(
        b"\x28\xb5\x2f\xfd\0\x58" + (1 | 1 << 1 | 0x1FFFFF << 3).to_bytes(3, "little") + b"a", codec=Codec.ZSTD
    ),
    "unknown codec": batch(GOOD, codec=5),  # type: ignore[arg-type]
    "key size, magic 1": message(LARGEST, b"k" + bytes(4)),
    "value size, magic 1": message(-1, LARGEST.to_bytes(4, "big")),
    "inner message size": wrapper(Codec.GZIP, compress(Codec.GZIP, INNER_CLAIM, magic=1)),
    "wrapper without messages": wrapper(Codec.LZ4, compress(Codec.LZ4, b"", magic=1)),
    "wrapper in a wrapper": wrapper(
        Codec.GZIP, compress(Codec.GZIP, encode_message_set(1, [Record(0, 0)], codec=Codec.GZIP), magic=1)
    ),
    "wrapper's value size": message(-1, LARGEST.to_bytes(4, "big") + b"x", attributes=Codec.GZIP),
    "wrapper without a value": message(-1, (-1).to_bytes(4, "big", signed=True), attributes=Codec.GZIP),
}
AFTER = encode_batch([Record(1, 5, b"after", b"the damage")])


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_batch_that_claims_more_than_it_holds_is_reported_and_costs_no_memory(claim: str) -> None:
    log = LogView(PARTITION, fs=memory({f"{PARTITION}/{FILE}": CLAIMS[claim] + AFTER}))
    read_log(log)  # compiled and imported
    tracemalloc.start()
    try:
        found = read_log(log)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    (error,) = found.damage
    assert isinstance(error, CorruptBatchError) and error.position == 0 and error.path == f"{PARTITION}/{FILE}"
    assert [record.key for record in found.facts[1]] == [b"after"]  # type: ignore[attr-defined]
    assert peak < 4 * MIB


@pytest.mark.parametrize("length", [LARGEST, 2**30, 1_000_000, 13, 0, -1, -(2**31)])
def test_a_batch_length_that_cannot_be_costs_no_memory(length: int) -> None:
    log = LogView(PARTITION, fs=memory({f"{PARTITION}/{FILE}": batch(GOOD, length=length) + AFTER}))
    tracemalloc.start()
    try:
        found = read_log(log)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    (error,) = found.damage
    assert error.position == 0
    assert [record.key for record in found.facts[1]] == [b"after"]  # type: ignore[attr-defined]
    assert peak < 4 * MIB


def _snapshot_claim() -> object:
    data = bytearray(producer_state.encode([]))
    data[6:10] = LARGEST.to_bytes(4, "big")
    data[2:6] = crc32c.crc32c(bytes(data[6:])).to_bytes(4, "big")
    return producer_state.decode(bytes(data))


@pytest.mark.parametrize(
    "read",
    [
        _snapshot_claim,
        lambda: checkpoints.decode(b"0\n2147483647\norders 0 1\n"),
        lambda: checkpoints.decode(b"0\n" + b"9" * 1_000_000),
        lambda: list(offset_index.faults(offset_index.decode(b"\xff" * (MIB >> 4), 2**63 - 1))),
        lambda: list(time_index.faults(time_index.decode(b"\xff" * (MIB >> 4), 0)))[:1],
        lambda: list(transaction_index.faults(transaction_index.decode(bytes(MIB >> 4)), 0))[:1],
    ],
)
def test_a_small_file_costs_no_more_than_a_multiple_of_its_size(read: Callable[[], object]) -> None:
    tracemalloc.start()
    try:
        read()
    except CordwoodError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 32 * MIB


# ---- bombs -----------------------------------------------------------------------------------------------------------


def squeezed(codec: Codec, parts: Iterator[bytes]) -> bytes:
    """Compress data that would not fit into memory in one piece."""
    match codec:
        case Codec.GZIP:
            deflater = zlib.compressobj(1, zlib.DEFLATED, 31)
            return b"".join([*map(deflater.compress, parts), deflater.flush()])
        case Codec.LZ4:
            packer = lz4.frame.LZ4FrameCompressor(block_linked=False, block_size=4)
            return b"".join([packer.begin(), *map(packer.compress, parts), packer.flush()])
        case Codec.ZSTD:
            squeezer = zstandard.ZstdCompressor().compressobj()
            return b"".join([*map(squeezer.compress, parts), squeezer.flush()])
        case _:
            return b"".join(compress(codec, part) for part in parts)


def bomb(codec: Codec, mib: int) -> bytes:
    """A batch of as many records from offset 1 on, each with a value of a mebibyte of zeros."""
    value = bytes(MIB)
    records = (encode_record(Record(i, 0, b"k", value), base_offset=0, base_timestamp=0) for i in range(mib))
    body = squeezed(codec, records)
    head = HEADER.pack(1, 49 + len(body), -1, 2, 0, codec, mib - 1, 0, 0, -1, -1, -1, mib)
    return seal(head + body)


BEHIND = encode_batch([Record(20, 5, b"after", b"the damage")])
PACKED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]


@pytest.mark.parametrize("codec", PACKED, ids=lambda codec: codec.label)
def test_a_batch_above_max_batch_bytes_is_damage_in_its_place(codec: Codec) -> None:
    before = encode_batch([Record(0, 1, b"before", b"")])
    log = LogView(PARTITION, fs=memory({f"{PARTITION}/{FILE}": before + bomb(codec, 12) + BEHIND}))
    for limit in (MIB, 10 * MIB):  # below and above the size of one decoding step
        damage: list[Exception] = []
        keys = []
        for columns in log.columns(on_damage=damage.append, max_batch_bytes=limit):
            keys += [bytes(columns.data[row["key_start"] :][: row["key_size"]]) for row in columns.rows]
        (error,) = damage
        assert isinstance(error, BatchTooLargeError)
        assert (error.path, error.position, error.offset) == (f"{PARTITION}/{FILE}", len(before), 1)
        assert (keys[0], keys[-1]) == (b"before", b"after")
        assert len(keys) < 12 and set(keys[1:-1]) <= {b"k"}
    assert sum(columns.rows.size for columns in log.columns()) == 14


@pytest.mark.parametrize("codec", PACKED, ids=lambda codec: codec.label)
def test_a_batch_above_half_of_the_memory_is_damage_by_default(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogView(PARTITION, fs=memory({f"{PARTITION}/{FILE}": bomb(codec, 12) + BEHIND}))
    monkeypatch.setattr(record_columns, "memory_bytes", lambda: 20 * MIB)
    damage: list[Exception] = []
    rows = sum(part.rows.size for part in log.columns(on_damage=damage.append))
    (error,) = damage
    assert isinstance(error, BatchTooLargeError) and error.position == 0
    assert rows < 12
    monkeypatch.setattr(record_columns, "memory_bytes", lambda: 30 * MIB)
    assert sum(part.rows.size for part in log.columns()) == 13


def test_the_limit_of_a_container_counts_as_its_memory() -> None:
    gib = 1 << 30
    for limits, expected in (
        ({}, 8 * gib),
        ({"memory.max": b"max\n"}, 8 * gib),
        ({"memory.max": b"3221225472\n"}, 3 * gib),
        ({"memory/memory.limit_in_bytes": b"3221225472\n"}, 3 * gib),
        ({"memory/memory.limit_in_bytes": b"9223372036854771712\n"}, 8 * gib),
    ):
        fs = memory({f"/sys/fs/cgroup/{name}": text for name, text in limits.items()})
        assert container_memory_bytes(fs, 8 * gib) == expected
    assert [largest_batch_bytes(size * gib) for size in (1, 2, 4, 64)] == [gib // 2, gib, 2 * gib, 2 * gib]


def test_cores_are_as_many_as_the_container_may_keep_busy() -> None:
    v1 = {"cpu/cpu.cfs_quota_us": b"250000\n", "cpu/cpu.cfs_period_us": b"100000\n"}
    for limits, expected in (
        ({}, 8),
        ({"cpu.max": b"max 100000\n"}, 8),
        ({"cpu.max": b"200000 100000\n"}, 2),
        ({"cpu.max": b"20000 100000\n"}, 1),
        ({"cpu.max": b"9900000 100000\n"}, 8),
        ({"cpu.max": b"200000 0\n"}, 8),
        (v1, 3),
        ({**v1, "cpu/cpu.cfs_quota_us": b"-1\n"}, 8),
    ):
        fs = memory({f"/sys/fs/cgroup/{name}": text for name, text in limits.items()})
        assert container_cores(fs, 8) == expected


READ = """
import resource, sys
from cordwood.storage.log.view import LogView
from cordwood.fs.posix import PosixFileSystem
log = LogView(sys.argv[1], fs=PosixFileSystem())
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
list(LogView(sys.argv[2], fs=PosixFileSystem()).columns())
before = peak()
count = sum(columns.rows.size for columns in log.columns())
print(count, before, peak() - before)
"""


@pytest.mark.parametrize(
    "codec",
    in_turns(PACKED, Codec.ZSTD, ids=lambda codec: codec.label),
)
def test_a_batch_that_holds_hundreds_of_megabytes_is_read_in_bounded_memory(codec: Codec, tmp_path: Path) -> None:
    for name, mib in (("large-0", 300), ("small-0", 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / FILE).write_bytes(bomb(codec, mib))
    assert (tmp_path / "large-0" / FILE).stat().st_size < 20 * MIB
    paths = [str(tmp_path / name) for name in ("large-0", "small-0")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", READ, *paths], capture_output=True, text=True, check=True, env=environment, timeout=120
    )
    count, before, above = map(int, ran.stdout.split())
    print(f"{codec.label}: {count} records, {before} MiB before, {above} MiB above")
    assert count == 300
    assert above < 100
