"""Planted damage is found at its position, and no other finding is reported.

Sites are single partitions that real brokers wrote and closed, with the checkpoints of their log directory, and some
built by our own encoders. A table line describes a change to a copy, and the expected finding.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cordwood.common.types import Codec
from cordwood.kernels.layout import HEADER
from cordwood.record.batch import (
    KEY,
    MARKER_VALUE,
    Marker,
    encode_batch,
    encode_marker,
    encode_message,
    encode_message_set,
    seal,
)
from cordwood.record.compression import compress
from cordwood.record.record import Record
from cordwood.storage.check.findings import CUTS, Severity
from cordwood.storage.formats import producer_state, transaction_index
from tests.storage.damage_sites import (
    CHECKPOINTS,
    FIRST,
    SITES,
    Plant,
    batch,
    built,
    change,
    check,
    damages,
    flip,
    places,
    records,
    site,
    small,
)

pytestmark = pytest.mark.more

# ---- sites -----------------------------------------------------------------------------------------------------------

META = "../meta.properties"
RECOVERY_POINTS, HIGH_WATERMARKS = (f"../{name}" for name in CHECKPOINTS)


# ---- Damage ----------------------------------------------------------------------------------------------------------


def put(name: str, position: int, data: bytes) -> Plant:
    def edit(old: bytearray) -> None:
        assert old[position : position + len(data)] != data, "the damage changes nothing"
        old[position : position + len(data)] = data

    return change(name, edit)


def cut(name: str, size: int) -> Plant:
    return change(name, lambda data: data[:size])


def append(name: str, data: bytes) -> Plant:
    return change(name, lambda old: old + data)


def insert(name: str, position: int, data: bytes) -> Plant:
    return change(name, lambda old: old[:position] + data + old[position:])


def write(name: str, data: bytes | str) -> Plant:
    def plant(partition: Path) -> None:
        (partition / name).write_bytes(data.encode() if isinstance(data, str) else data)

    return plant


def remove(*names: str) -> Plant:
    def plant(partition: Path) -> None:
        for name in names:
            (partition / name).unlink()

    return plant


def rename(source: str, target: str) -> Plant:
    return lambda partition: (partition / source).rename(partition / target)


FIELDS = [
    "base_offset",
    "size",
    "epoch",
    "magic",
    "crc",
    "attributes",
    "last_offset_delta",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "record_count",
]


def header(name: str, position: int, **fields: int) -> Plant:
    """Change fields of a batch's header, and give it the right checksum."""

    def edit(data: bytearray) -> None:
        values = dict(zip(FIELDS, HEADER.unpack_from(data, position), strict=True))
        end = position + 12 + values["size"]
        assert all(values[field] != value for field, value in fields.items()), "the damage changes nothing"
        packed = HEADER.pack(*(values | fields).values())
        data[position:end] = seal(packed + bytes(data[position + HEADER.size : end]))

    return change(name, edit)


def snapshot(name: str, index: int = 0, **fields: int) -> Plant:
    """Change an entry of a producer snapshot, with the right checksum."""

    def edit(data: bytearray) -> bytes:
        entries = list(producer_state.decode(data))
        entries[index] = replace(entries[index], **fields)
        return producer_state.encode(entries)

    return change(name, edit)


def aborted(name: str, index: int, **fields: int) -> Plant:
    """Change an entry of a transaction index."""

    def edit(data: bytearray) -> bytes:
        entries = list(transaction_index.decode(data).transactions())
        entries[index] = replace(entries[index], **fields)
        return transaction_index.encode(transaction_index.index_of(entries))

    return change(name, edit)


def in_directory(plant: Callable[[Path], object]) -> Plant:
    """Do something to the log directory."""
    return lambda partition: plant(partition.parent)


# ---- in partitions of real brokers -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One damage: its name, its site, and the expected kind, file, position and offset."""

    name: str
    site: str
    plant: Plant
    kind: str
    file: str
    position: int | None = None
    offset: int | None = None


S175, S327, S484 = (f"{base:020d}" for base in (175, 327, 484))
S37, S74 = (f"{base:020d}" for base in (37, 74))
S83 = f"{83:020d}"
EPOCHS = "leader-epoch-checkpoint"


def epochs(*entries: str) -> Plant:
    return write(EPOCHS, "\n".join(["0", str(len(entries)), *entries, ""]))


REAL = [
    # the log
    Case("a bit of a record", "orders", flip(f"{FIRST}.log", 900 + 61), "batch-crc", f"{FIRST}.log", 882, 13),
    Case(
        "a bit of the stored checksum", "orders", flip(f"{S327}.log", 1340 + 17), "batch-crc", f"{S327}.log", 1340, 347
    ),
    Case("a bit of the last batch", "orders", flip(f"{S484}.log", 2838), "batch-crc", f"{S484}.log", 1813, 510),
    Case("a bit of a wrapper", "wrappers", flip(f"{FIRST}.log", 150), "batch-crc", f"{FIRST}.log", 92, 13),
    Case("a size of zero", "orders", put(f"{FIRST}.log", 882 + 8, bytes(4)), "not-a-batch", f"{FIRST}.log", 882, 13),
    Case(
        "a negative size", "orders", put(f"{FIRST}.log", 882 + 8, b"\xff\xff"), "not-a-batch", f"{FIRST}.log", 882, 13
    ),
    Case(
        "a size beyond the file",
        "orders",
        put(f"{S175}.log", 1404 + 8, b"\x7f"),
        "not-a-batch",
        f"{S175}.log",
        1404,
        195,
    ),
    Case(
        "an unknown magic", "orders", put(f"{FIRST}.log", 1988 + 16, b"\x03"), "not-a-batch", f"{FIRST}.log", 1988, 30
    ),
    Case(
        "foreign bytes between batches",
        "orders",
        insert(f"{S484}.log", 885, b"x" * 40),
        "not-a-batch",
        f"{S484}.log",
        885,
        496,
    ),
    Case("zeros over a batch", "orders", put(f"{S175}.log", 1404, bytes(127)), "not-a-batch", f"{S175}.log", 1404, 195),
    Case("a closed segment cut off", "orders", cut(f"{S175}.log", 10700), "torn-segment", f"{S175}.log", 10265, 320),
    Case("the closed last segment cut off", "orders", cut(f"{S484}.log", 2800), "torn-tail", f"{S484}.log", 1813, 510),
    Case(
        "zeros behind the closed log", "orders", append(f"{S484}.log", bytes(64)), "zero-tail", f"{S484}.log", 2839, 526
    ),
    Case("codec 5", "orders", header(f"{FIRST}.log", 1988, attributes=5), "unknown-codec", f"{FIRST}.log", 1988, 30),
    Case(
        "a codec that was not used",
        "orders",
        header(f"{FIRST}.log", 1988, attributes=4),
        "compression",
        f"{FIRST}.log",
        1988,
        30,
    ),
    Case(
        "last offset below the first",
        "orders",
        header(f"{FIRST}.log", 1988, last_offset_delta=-3),
        "offset-delta",
        f"{FIRST}.log",
        1988,
        30,
    ),
    Case(
        "a negative record count",
        "orders",
        header(f"{FIRST}.log", 1988, record_count=-1),
        "record-count",
        f"{FIRST}.log",
        1988,
        30,
    ),
    Case(
        "more records than offsets",
        "orders",
        header(f"{FIRST}.log", 1988, record_count=10),
        "record-count",
        f"{FIRST}.log",
        1988,
        30,
    ),
    Case(
        "fewer records than are there",
        "orders",
        header(f"{FIRST}.log", 1988, record_count=8),
        "trailing-bytes",
        f"{FIRST}.log",
        1988,
        30,
    ),
    Case(
        "more records than are there",
        "orders",
        header(f"{S484}.log", 1813, record_count=17, last_offset_delta=16),
        "missing-records",
        f"{S484}.log",
        1813,
        510,
    ),
    Case(
        "a max timestamp too late",
        "orders",
        header(f"{FIRST}.log", 1988, max_timestamp=1795006050956),
        "max-timestamp",
        f"{FIRST}.log",
        1988,
        30,
    ),
    Case(
        "a batch of offsets that were before",
        "orders",
        put(f"{FIRST}.log", 1988, (20).to_bytes(8, "big")),
        "batch-order",
        f"{FIRST}.log",
        1988,
        20,
    ),
    Case(
        "a batch of offsets that come later",
        "orders",
        put(f"{FIRST}.log", 1988, (60).to_bytes(8, "big")),
        "batch-order",
        f"{FIRST}.log",
        1988,
        60,
    ),
    Case(
        "a batch below the segment's base",
        "orders",
        put(f"{S175}.log", 0, (17).to_bytes(8, "big")),
        "offset-below-base",
        f"{S175}.log",
        0,
        17,
    ),
    Case(
        "an offset 2^31 above the base",
        "orders",
        put(f"{S484}.log", 1813, (484 + 2**31).to_bytes(8, "big")),
        "offset-too-high",
        f"{S484}.log",
        1813,
        484 + 2**31,
    ),
    Case(
        "a segment that reaches into the next",
        "orders",
        put(f"{S175}.log", 10265, (325).to_bytes(8, "big")),
        "segment-overlap",
        f"{S175}.log",
        10265,
        325,
    ),
    Case(
        "a leader epoch that was over",
        "orders",
        put(f"{S327}.log", 1340 + 12, bytes(4)),
        "batch-leader-epoch",
        f"{S327}.log",
        1340,
        347,
    ),
    Case(
        "transactional data without a producer",
        "payments",
        header(f"{FIRST}.log", 270, producer_id=-1),
        "batch-producer",
        f"{FIRST}.log",
        270,
        4,
    ),
    Case(
        "a producer without an epoch",
        "orders",
        header(f"{S484}.log", 1813, producer_epoch=-1),
        "batch-producer",
        f"{S484}.log",
        1813,
        510,
    ),
    Case(
        "a producer without a sequence",
        "orders",
        header(f"{S484}.log", 1813, base_sequence=-1),
        "batch-producer",
        f"{S484}.log",
        1813,
        510,
    ),
    Case(
        "data called a marker",
        "payments",
        header(f"{FIRST}.log", 444, attributes=0x30),
        "control-batch",
        f"{FIRST}.log",
        444,
        6,
    ),
    Case(
        "a marker with a sequence",
        "payments",
        header(f"{FIRST}.log", 660, base_sequence=4),
        "control-batch",
        f"{FIRST}.log",
        660,
        8,
    ),
    Case(
        "a marker that is not transactional",
        "payments",
        header(f"{FIRST}.log", 660, attributes=0x20),
        "control-batch",
        f"{FIRST}.log",
        660,
        8,
    ),
    # offset indexes
    Case(
        "an entry that points into a batch",
        "orders",
        put(f"{FIRST}.index", 12, (2000).to_bytes(4, "big")),
        "offset-index-position",
        f"{FIRST}.index",
        8,
        38,
    ),
    Case(
        "an entry that points at another batch",
        "orders",
        put(f"{FIRST}.index", 36, (4866).to_bytes(4, "big")),
        "offset-index-offset",
        f"{FIRST}.index",
        32,
        72,
    ),
    Case(
        "an entry with too small an offset",
        "orders",
        put(f"{FIRST}.index", 8, (37).to_bytes(4, "big")),
        "offset-index-offset",
        f"{FIRST}.index",
        8,
        37,
    ),
    Case(
        "an entry with too large an offset",
        "orders",
        put(f"{FIRST}.index", 8, (39).to_bytes(4, "big")),
        "offset-index-offset",
        f"{FIRST}.index",
        8,
        39,
    ),
    Case(
        "an entry below the one before",
        "orders",
        put(f"{FIRST}.index", 8, (5).to_bytes(4, "big")),
        "offset-index-order",
        f"{FIRST}.index",
        8,
        5,
    ),
    Case(
        "an entry with a negative position",
        "orders",
        put(f"{FIRST}.index", 12, b"\xff"),
        "offset-index-order",
        f"{FIRST}.index",
        8,
        38,
    ),
    Case(
        "an entry beyond the log",
        "orders",
        append(f"{S484}.index", struct.pack(">ii", 42, 2839)),
        "offset-index-position",
        f"{S484}.index",
        16,
        526,
    ),
    Case(
        "part of an index entry", "orders", append(f"{S175}.index", b"\0\0\1"), "index-size", f"{S175}.index", 80, None
    ),
    Case(
        "an index padded with zeros",
        "orders",
        append(f"{S175}.index", bytes(80)),
        "index-padded",
        f"{S175}.index",
        80,
        None,
    ),
    Case(
        "an index without its log",
        "orders",
        write(f"{600:020d}.index", b""),
        "index-without-log",
        f"{600:020d}.index",
        None,
        600,
    ),
    # time indexes
    Case(
        "a timestamp one too early",
        "orders",
        put(f"{FIRST}.timeindex", 12, (1795006050954).to_bytes(8, "big")),
        "time-index-entry",
        f"{FIRST}.timeindex",
        12,
        38,
    ),
    Case(
        "a timestamp of an earlier offset",
        "orders",
        put(f"{FIRST}.timeindex", 20, (29).to_bytes(4, "big")),
        "time-index-entry",
        f"{FIRST}.timeindex",
        12,
        29,
    ),
    Case(
        "timestamps that go back",
        "orders",
        put(f"{FIRST}.timeindex", 12, (1795001558517).to_bytes(8, "big")),
        "time-index-order",
        f"{FIRST}.timeindex",
        12,
        38,
    ),
    Case(
        "the last time entry lost",
        "orders",
        cut(f"{S484}.timeindex", 12),
        "time-index-end",
        f"{S484}.timeindex",
        0,
        None,
    ),
    Case("a time index lost", "orders", remove(f"{S175}.timeindex"), "index-missing", f"{S175}.timeindex", None, None),
    Case(
        "a time entry beyond the segment",
        "orders",
        append(f"{S484}.timeindex", struct.pack(">qi", 1795166332550, 42)),
        "time-index-entry",
        f"{S484}.timeindex",
        24,
        526,
    ),
    Case(
        "part of a time entry",
        "orders",
        append(f"{S484}.timeindex", b"\1"),
        "index-size",
        f"{S484}.timeindex",
        24,
        None,
    ),
    # transaction indexes
    Case(
        "an aborted transaction lost",
        "payments",
        cut(f"{FIRST}.txnindex", 34),
        "transaction-index-missing",
        f"{FIRST}.txnindex",
        None,
        35,
    ),
    Case(
        "a transaction index lost",
        "payments",
        remove(f"{115:020d}.txnindex"),
        "transaction-index-missing",
        f"{115:020d}.txnindex",
        None,
        140,
    ),
    Case(
        "an aborted transaction that was none",
        "payments",
        append(f"{FIRST}.txnindex", struct.pack(">hqqqq", 0, 17, 19, 36, 19)),
        "transaction-index-extra",
        f"{FIRST}.txnindex",
        68,
        36,
    ),
    Case(
        "a committed transaction called aborted",
        "payments",
        write(f"{230:020d}.txnindex", struct.pack(">hqqqq", 0, 1015, 230, 231, 230)),
        "transaction-index-entry",
        f"{230:020d}.txnindex",
        0,
        231,
    ),
    Case(
        "another producer's transaction",
        "payments",
        aborted(f"{FIRST}.txnindex", 1, producer_id=21),
        "transaction-index-entry",
        f"{FIRST}.txnindex",
        34,
        35,
    ),
    Case(
        "a transaction that starts too late",
        "payments",
        aborted(f"{FIRST}.txnindex", 1, first_offset=33),
        "transaction-index-entry",
        f"{FIRST}.txnindex",
        34,
        35,
    ),
    Case(
        "a transaction that starts in the one before",
        "payments",
        aborted(f"{S37}.txnindex", 1, first_offset=11),
        "transaction-index-entry",
        f"{S37}.txnindex",
        34,
        53,
    ),
    Case(
        "a last stable offset too high",
        "payments",
        aborted(f"{FIRST}.txnindex", 1, last_stable_offset=36),
        "transaction-index-entry",
        f"{FIRST}.txnindex",
        34,
        35,
    ),
    Case(
        "a transaction that ends before it starts",
        "payments",
        aborted(f"{FIRST}.txnindex", 1, first_offset=35),
        "transaction-index-order",
        f"{FIRST}.txnindex",
        34,
        35,
    ),
    Case(
        "an unknown version of an entry",
        "payments",
        put(f"{FIRST}.txnindex", 34, b"\1"),
        "transaction-index-version",
        f"{FIRST}.txnindex",
        34,
        None,
    ),
    Case(
        "part of a transaction entry",
        "payments",
        append(f"{FIRST}.txnindex", bytes(10)),
        "index-size",
        f"{FIRST}.txnindex",
        68,
        None,
    ),
    # producer snapshots
    Case(
        "a bit of a snapshot",
        "orders",
        flip(f"{S175}.snapshot", 30),
        "snapshot-unreadable",
        f"{S175}.snapshot",
        2,
        None,
    ),
    Case(
        "an empty snapshot file",
        "orders",
        write(f"{S175}.snapshot", b""),
        "snapshot-unreadable",
        f"{S175}.snapshot",
        None,
        None,
    ),
    Case(
        "a snapshot beyond the log",
        "orders",
        rename(f"{526:020d}.snapshot", f"{527:020d}.snapshot"),
        "snapshot-beyond-end",
        f"{527:020d}.snapshot",
        None,
        527,
    ),
    Case(
        "an offset at the snapshot's end",
        "orders",
        snapshot(f"{S175}.snapshot", last_offset=175),
        "snapshot-entry",
        f"{S175}.snapshot",
        10,
        175,
    ),
    Case(
        "a sequence that was not written",
        "orders",
        snapshot(f"{S175}.snapshot", last_sequence=175),
        "snapshot-entry",
        f"{S175}.snapshot",
        10,
        174,
    ),
    Case(
        "an offset that is long past",
        "orders",
        snapshot(f"{S327}.snapshot", last_offset=300),
        "snapshot-entry",
        f"{S327}.snapshot",
        10,
        300,
    ),
    Case(
        "a producer that never wrote",
        "orders",
        snapshot(f"{S327}.snapshot", producer_id=77),
        "snapshot-entry",
        f"{S327}.snapshot",
        10,
        326,
    ),
    Case(
        "an epoch that is over",
        "payments",
        snapshot(f"{S74}.snapshot", 1, producer_epoch=3),
        "snapshot-entry",
        f"{S74}.snapshot",
        56,
        70,
    ),
    Case(
        "an open transaction forgotten",
        "payments",
        snapshot(f"{S74}.snapshot", 1, current_transaction_first_offset=-1),
        "snapshot-entry",
        f"{S74}.snapshot",
        56,
        70,
    ),
    Case(
        "an open transaction that is not",
        "payments",
        snapshot(f"{115:020d}.snapshot", 1, current_transaction_first_offset=107),
        "snapshot-entry",
        f"{115:020d}.snapshot",
        56,
        109,
    ),
    # leader epochs, partition.metadata
    Case(
        "an epoch that starts too late",
        "orders",
        epochs("0 0", "2 400", "4 526"),
        "leader-epochs-mismatch",
        EPOCHS,
        None,
        234,
    ),
    Case(
        "an epoch that starts too early",
        "orders",
        epochs("0 0", "2 100", "4 526"),
        "leader-epochs-mismatch",
        EPOCHS,
        None,
        226,
    ),
    Case("epochs out of order", "orders", epochs("0 0", "2 234", "1 300"), "leader-epochs-order", EPOCHS, None, 300),
    Case(
        "an epoch beyond the log",
        "orders",
        epochs("0 0", "2 234", "4 527"),
        "leader-epochs-beyond-end",
        EPOCHS,
        None,
        527,
    ),
    Case(
        "a negative epoch",
        "orders",
        epochs("-1 0", "0 0", "2 234", "4 526"),
        "leader-epochs-unreadable",
        EPOCHS,
        None,
        None,
    ),
    Case(
        "fewer epochs than announced",
        "orders",
        write(EPOCHS, "0\n3\n0 0\n"),
        "leader-epochs-unreadable",
        EPOCHS,
        None,
        None,
    ),
    Case("no epochs at all", "orders", remove(EPOCHS), "leader-epochs-missing", EPOCHS, None, 0),
    Case(
        "a topic id cut off",
        "orders",
        cut("partition.metadata", 30),
        "partition-metadata",
        "partition.metadata",
        None,
        None,
    ),
    # names
    Case("a log with a name of letters", "orders", write("abc.log", b""), "bad-file-name", "abc.log", None, None),
    Case(
        "a snapshot named without zeros",
        "orders",
        rename(f"{526:020d}.snapshot", "526.snapshot"),
        "name-not-canonical",
        "526.snapshot",
        None,
        526,
    ),
    # the log directory
    Case(
        "a checkpoint that is no text",
        "orders",
        write(RECOVERY_POINTS, b"\xff\xfe"),
        "checkpoint-unreadable",
        RECOVERY_POINTS,
        0,
        None,
    ),
    Case(
        "a high watermark that is no number",
        "orders",
        write(HIGH_WATERMARKS, "0\n1\norders 0 x\n"),
        "checkpoint-unreadable",
        HIGH_WATERMARKS,
        None,
        None,
    ),
    Case(
        "a recovery point beyond the end",
        "orders",
        write(RECOVERY_POINTS, "0\n1\norders 0 527\n"),
        "checkpoint-beyond-end",
        RECOVERY_POINTS,
        None,
        527,
    ),
    Case(
        "a high watermark beyond the end",
        "orders",
        write(HIGH_WATERMARKS, "0\n1\norders 0 900\n"),
        "checkpoint-beyond-end",
        HIGH_WATERMARKS,
        None,
        900,
    ),
    Case(
        "a log start beyond the end",
        "orders",
        write("../log-start-offset-checkpoint", "0\n1\norders 0 527\n"),
        "checkpoint-beyond-end",
        "../log-start-offset-checkpoint",
        None,
        527,
    ),
    Case(
        "a first dirty offset beyond the end",
        "orders",
        write("../cleaner-offset-checkpoint", "0\n1\norders 0 530\n"),
        "checkpoint-beyond-end",
        "../cleaner-offset-checkpoint",
        None,
        530,
    ),
    Case(
        "a negative recovery point",
        "orders",
        write(RECOVERY_POINTS, "0\n1\norders 0 -5\n"),
        "checkpoint-offset",
        RECOVERY_POINTS,
        None,
        -5,
    ),
    Case(
        "meta.properties without a node",
        "orders",
        write(META, "version=1\ncluster.id=x\n"),
        "meta-properties",
        META,
        None,
        None,
    ),
    Case(
        "a directory that is no partition",
        "orders",
        in_directory(lambda d: (d / "lost+found").mkdir()),
        "bad-directory-name",
        "../lost+found",
        None,
        None,
    ),
    Case(
        "a partition without a log",
        "orders",
        in_directory(lambda d: (d / "orders-1").mkdir()),
        "no-segment",
        "../orders-1",
        None,
        None,
    ),
    Case(
        "a partition's number with zeros",
        "orders",
        in_directory(lambda d: shutil.copytree(d / "orders-0", d / "orders-007")),
        "name-not-canonical",
        "../orders-007",
        None,
        None,
    ),
]

#: Real brokers were started on these: a start repairs the file, and everything is served as before.
REPAIRED = {
    "part of an index entry",
    "part of a time entry",
    "a bit of a snapshot",
    "an empty snapshot file",
    "a negative recovery point",
}


@pytest.mark.parametrize("name", SITES)
def test_the_sites_are_whole_before_anything_is_planted(name: str, tmp_path: Path) -> None:
    assert check(site(name, tmp_path).parent) == []


@pytest.mark.parametrize("case", REAL, ids=lambda case: case.name)
def test_damage_to_a_real_partition_is_found_in_its_place_and_nowhere_else(case: Case, tmp_path: Path) -> None:
    partition = site(case.site, tmp_path)
    case.plant(partition)
    found = check(partition.parent)
    assert places(check(partition.parent, quick=small())) <= places(found)
    if case.name in REPAIRED:
        assert {one.severity for one in found} == {Severity.RECOVERY}
        found = [replace(one, severity=Severity.DAMAGE) for one in found]
    assert damages(found, partition) == [(case.kind, case.file, case.position, case.offset)]


# ---- in logs that we build -------------------------------------------------------------------------------------------


def raw_batch(
    first: int, body: bytes, count: int, *, attributes: int = 0, max_timestamp: int = 1000, last_delta: int = 0
) -> bytes:
    """A batch with a body of our choice and a right checksum."""
    fields = (first, 49 + len(body), -1, 2, 0, attributes, last_delta, 1000, max_timestamp, -1, -1, -1, count)
    return seal(HEADER.pack(*fields) + body)


def marker(offset: int, key: bytes, value: bytes | None, **options: object) -> bytes:
    record = Record(offset, 1000, key, value)
    defaults: dict[str, object] = {"producer_id": 7, "producer_epoch": 0, "transactional": True, "control": True}
    return encode_batch([record], **(defaults | options))  # type: ignore[arg-type]


def wrapper(offset: int, inner: bytes, *, magic: int = 1, timestamp: int = 1000, codec: Codec = Codec.GZIP) -> bytes:
    value = compress(codec, inner, magic=min(magic, 1))
    return encode_message(magic, offset=offset, timestamp=timestamp, value=value, attributes=int(codec))


def inner(*offsets: int, magic: int = 1, timestamp: int = 1000, attributes: int = 0) -> bytes:
    messages = [
        encode_message(magic, offset=o, timestamp=timestamp, value=b"v", attributes=attributes) for o in offsets
    ]
    return b"".join(messages)


def _broken(message: bytes) -> bytes:
    return message[:-1] + bytes([message[-1] ^ 1])


COMMIT, VALUE = KEY.pack(0, 1), MARKER_VALUE.pack(0, 0)
A_RECORD = bytes.fromhex("10000000026b027600")

#: Name: (entries behind a good first one, kind, offset). The damage is behind the first entry.
BUILT: dict[str, tuple[bytes, str, int]] = {
    "a record that is longer than its batch": (raw_batch(2, b"\x7e\x00", 1), "record", 2),
    "a record whose length does not fit": (raw_batch(2, b"\x12" + A_RECORD[1:] + b"\0\0", 1), "record", 2),
    "a number that does not end": (raw_batch(2, b"\xff" * 12, 1), "record", 2),
    "bytes behind the last record": (raw_batch(2, A_RECORD + b"\0", 1), "trailing-bytes", 2),
    "a record less than announced": (raw_batch(2, A_RECORD, 2, last_delta=1), "missing-records", 2),
    "a record beyond its batch": (raw_batch(2, A_RECORD[:3] + b"\x08" + A_RECORD[4:], 1), "record-offset", 6),
    "records out of order": (raw_batch(2, A_RECORD * 2, 2, last_delta=1), "record-offset", 2),
    "a max timestamp too early": (raw_batch(2, A_RECORD, 1, max_timestamp=999), "max-timestamp", 2),
    "gzip that is none": (raw_batch(2, b"not gzip", 1, attributes=1), "compression", 2),
    "zstd cut off": (raw_batch(2, compress(Codec.ZSTD, A_RECORD)[:-4], 1, attributes=4), "compression", 2),
    "lz4 with a wrong descriptor checksum": (
        raw_batch(2, compress(Codec.LZ4, A_RECORD, magic=0), 1, attributes=3),
        "compression",
        2,
    ),
    "a compressed record behind the last": (
        raw_batch(2, compress(Codec.GZIP, A_RECORD * 2), 1, attributes=1),
        "trailing-bytes",
        2,
    ),
    "zstd in an old message": (
        encode_message(1, offset=2, timestamp=1, value=b"x", attributes=4),
        "codec-not-allowed",
        2,
    ),
    "a wrong checksum inside a wrapper": (wrapper(3, inner(0) + _broken(inner(1))), "inner-crc", 3),
    "a compressed message inside a wrapper": (wrapper(3, inner(0, 1, attributes=1)), "inner-message", 3),
    "a wrapper of nothing": (wrapper(2, b""), "inner-message", 2),
    "a wrapper below its messages": (wrapper(3, inner(0, 9)), "inner-message", 3),
    "a wrapper earlier than its messages": (wrapper(3, inner(0, 1), timestamp=999), "max-timestamp", 2),
    "messages out of order in a wrapper": (wrapper(4, inner(0, 2, 1, 2)), "record-offset", 3),
    "a wrapper that reaches back": (wrapper(3, inner(0, 1, 2, 3)), "record-offset", 0),
    "a message without a value": (encode_message(0, offset=2, value=None, attributes=1), "inner-message", 2),
    "a marker of an unknown type": (marker(2, KEY.pack(0, 9), VALUE), "control-batch", 2),
    "a marker with a short key": (marker(2, b"\0\0", VALUE), "control-batch", 2),
    "a marker with a short value": (marker(2, COMMIT, b"\0\0\0"), "control-batch", 2),
    "a marker without a value": (marker(2, COMMIT, None), "control-batch", 2),
    "a marker with a negative version": (marker(2, COMMIT, b"\xff" * 6), "control-batch", 2),
    "a compressed marker": (marker(2, COMMIT, VALUE, codec=Codec.GZIP), "control-batch", 2),
    "a marker without a producer": (marker(2, COMMIT, VALUE, producer_id=-1), "batch-producer", 2),
    "two markers in one batch": (
        encode_batch(
            [Record(2, 1000, COMMIT, VALUE), Record(3, 1000, COMMIT, VALUE)],
            producer_id=7,
            producer_epoch=0,
            transactional=True,
            control=True,
        ),
        "control-batch",
        2,
    ),
    "a control batch of no known type": (
        encode_batch([Record(2, 1000, b"\0\0\0\x63", b"")], control=True),
        "control-batch",
        2,
    ),
    "a producer id below none": (batch(2, producer_id=-2), "batch-producer", 2),
    "a negative offset": (encode_message(1, offset=-5, timestamp=1000, value=b"v"), "negative-offset", -5),
}


@pytest.mark.parametrize("name", BUILT)
def test_damage_in_a_log_of_our_own_is_found_in_its_place_and_nowhere_else(name: str, tmp_path: Path) -> None:
    entry, kind, offset = BUILT[name]
    good = batch(0)
    partition = built(tmp_path, good, entry, batch(20))
    found = damages(check(partition), partition)
    assert found == [(kind, f"{FIRST}.log", len(good), offset)]


def flipped(entry: bytes) -> bytes:
    return entry[:-1] + bytes([entry[-1] ^ 1])


@pytest.mark.parametrize(
    ("first", "second", "behind"),
    [
        ([batch(0), flipped(batch(10)), batch(20)], [batch(100), batch(110)], [20, 100, 110]),
        ([batch(0), b"junk" * 40, batch(10), batch(20)], [batch(100)], [10, 20, 100]),
        ([batch(0), batch(10), batch(20)[:-1]], [batch(100), batch(110)], [100, 110]),
        ([batch(0), flipped(batch(10)), flipped(batch(20))], [batch(100), flipped(batch(110))], [100]),
        ([batch(0), flipped(batch(10)), b"junk" * 40, batch(20)], [batch(100)], [20, 100]),
        ([batch(0)], [flipped(batch(100)), batch(110, codec=Codec.GZIP)], [110]),
        ([batch(0)], [batch(100), flipped(batch(110))], []),
    ],
    ids=["checksum", "junk", "torn", "several", "checksum before junk", "compressed", "nothing"],
)
def test_what_a_recovery_would_delete_is_counted_behind_the_first_damage(
    first: list[bytes], second: list[bytes], behind: list[int], tmp_path: Path
) -> None:
    partition = built(tmp_path, *first)
    for kind, data in {"log": b"".join(second), "index": b"", "timeindex": b""}.items():
        (partition / f"{100:020d}.{kind}").write_bytes(data)
    damage = [finding for finding in check(partition) if finding.kind in CUTS]
    damage.sort(key=lambda finding: (finding.path, finding.position))
    counted = [one for finding in damage if (one := finding.behind) is not None]
    whole = {offset: entry for offset in behind for entry in (*first, *second) if entry[:8] == offset.to_bytes(8)}
    assert [(one.records, one.size_bytes, one.end_offset) for one in counted] == (
        [(2 * len(behind), sum(map(len, whole.values())), behind[-1] + 2)] if behind else []
    )
    assert not behind or damage[0].behind


def test_at_least_sixty_distinct_damages_are_planted() -> None:
    names = [case.name for case in REAL] + list(BUILT)
    assert len(names) == len(set(names)) >= 60
    kinds = {case.kind for case in REAL} | {kind for _, kind, _ in BUILT.values()}
    assert len(kinds) >= 45


def test_the_encoders_good_entries_give_no_finding(tmp_path: Path) -> None:
    partition = built(
        tmp_path,
        encode_message_set(0, records(0)),
        encode_message_set(1, records(2), codec=Codec.GZIP),
        *(batch(4 + 2 * codec, codec=codec) for codec in Codec),
        encode_batch(records(14), transactional=True, producer_id=7, producer_epoch=0, base_sequence=0),
        encode_marker(Marker(16, 1000, 7, 0, committed=True)),
        encode_batch([], base_offset=17, last_offset=19, max_timestamp=5),
    )
    assert check(partition) == []
