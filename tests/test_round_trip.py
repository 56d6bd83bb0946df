"""Decoding and encoding yields the same bytes, for every file of every fixture.

A `.log` is decoded into values (headers and records) and encoded from these alone. Bytes between the batches (a torn
tail) stay as they are. Compressed bytes depend on a library's version, so of a compressed batch the header, without its
size and CRC, and the decompressed records are compared.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from cordwood.common.errors import DataError
from cordwood.common.types import Codec
from cordwood.fs.posix import PosixFileSystem
from cordwood.kernels.layout import CRC_START, HEADER, LEGACY_CRC_START, LOG_APPEND_TIME, PREFIX
from cordwood.record.batch import Batch, encode_batch, encode_message, encode_message_set, to_batches
from cordwood.record.columns import BatchWindow, decode
from cordwood.record.compression import decompress
from cordwood.record.record import Record, to_records
from cordwood.storage.formats import filenames
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.log.windows import Checks, Gap, WindowReader
from tests.fixtures import NAMES, fixture
from tests.storage.messages import DAMAGE, FORMATS

pytestmark = pytest.mark.more

#: Files that hold batches: segments, and the two kinds of KRaft snapshot.
BATCH_KINDS = ("log", "bootstrap.checkpoint")
#: Has no content: it exists to be locked.
WITHOUT_FORMAT = (filenames.LOCK,)


def kind_of(name: str) -> str | None:
    """The kind of a file in a log directory or partition; None for a file without an encoder."""
    if name in filenames.OFFSET_CHECKPOINTS:
        return "offset checkpoint"
    if name in FORMATS or name in WITHOUT_FORMAT or name == filenames.BOOTSTRAP_CHECKPOINT:
        return name
    file = filenames.parse_file(name)
    if file is None or file.kind is FileKind.FOREIGN:
        return None
    return "log" if file.kind in (FileKind.LOG, FileKind.CHECKPOINT_SNAPSHOT) else str(file.kind)


@functools.cache
def files(name: str) -> tuple[tuple[str | None, Path], ...]:
    return tuple((kind_of(path.name), path) for path in sorted(fixture(name).rglob("*")) if path.is_file())


# ---- batches ---------------------------------------------------------------------------------------------------------


def records_as_stored(window: BatchWindow) -> dict[int, list[Record]]:
    """The records of each batch by the batch's position, with the timestamps that were sent, but for damaged ones.

    Where the broker's clock counts (LogAppendTime), a reader gives every record that time; the records still hold what
    their producer sent, and decode to it once that flag is taken off.
    """
    batches = window.batches.copy()
    batches["attributes"] &= ~np.int16(LOG_APPEND_TIME)
    damage: list[DataError] = []
    records: dict[int, list[Record]] = {int(position): [] for position in batches["position"]}
    for columns in decode(BatchWindow(window.position, window.data, batches, window.read), on_damage=damage.append):
        positions = columns.batches["position"][columns.rows["batch"]].tolist()
        for position, record in zip(positions, to_records(columns.data, columns.rows), strict=True):
            records[position].append(record)
    for error in damage:
        del records[error.position or 0]
    return records


def encoded(batch: Batch, records: list[Record]) -> bytes:
    """A batch, message or wrapper from its values."""
    if batch.magic == 2:
        return encode_batch(
            records,
            base_offset=batch.base_offset,
            last_offset=batch.last_offset,
            codec=batch.codec,
            timestamp_type=batch.timestamp_type,
            max_timestamp=batch.max_timestamp,
            base_timestamp=batch.base_timestamp,
            delete_horizon_ms=batch.delete_horizon_ms,
            leader_epoch=batch.leader_epoch,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            transactional=batch.is_transactional,
            control=batch.is_control,
        )
    if batch.codec is not Codec.NONE:
        return encode_message_set(
            batch.magic,
            records,
            codec=batch.codec,
            timestamp_type=batch.timestamp_type,
            append_time=batch.max_timestamp,
        )
    (record,) = records
    return encode_message(
        batch.magic,
        offset=record.offset,
        timestamp=record.timestamp,
        key=record.key,
        value=record.value,
        attributes=batch.attributes,
    )


def comparable(data: bytes, batch: Batch) -> tuple[bytes, ...]:
    """What two encodings of a batch must have in common: all of it, or all but what depends on a compressor."""
    if batch.codec is Codec.NONE:
        return (data,)
    offset, magic = data[:8], batch.magic
    if magic == 2:
        records = bytes(decompress(batch.codec, data[HEADER.size :], magic=2)) if batch.record_count else b""
        return offset, data[12:17], data[CRC_START : HEADER.size], records
    # A wrapper has no key; then come the size of its value and the compressed set.
    value = 30 if magic == 1 else 22
    size = int.from_bytes(data[value : value + 4], "big")
    assert PREFIX.size + int.from_bytes(data[8:12], "big") == value + 4 + size == len(data)
    return offset, data[LEGACY_CRC_START:value], bytes(decompress(batch.codec, data[value + 4 :], magic=magic))


def differences(path: Path, seen: Counter[str]) -> Iterator[tuple[int, str]]:
    """Positions of the entries of a file that are not encoded as before, and counts of compared entries."""
    original = path.read_bytes()
    position = 0
    with PosixFileSystem().open(str(path)) as file:
        for item in WindowReader(file, Checks.WHOLE):
            if isinstance(item, Gap):
                assert item.position == position
                seen[f"gap: {item.kind.value}"] += 1
                position = item.end
                continue
            records = records_as_stored(item)
            for batch in to_batches(item.batches):
                assert batch.position == position
                position += batch.size_bytes
                if batch.position not in records:
                    seen["damaged batches"] += 1
                    continue
                stored = records[batch.position]
                seen[f"magic {batch.magic} {batch.codec_label}"] += 1
                seen["records"] += len(stored)
                again = encoded(batch, stored)
                if comparable(again, batch) != comparable(original[batch.position : position], batch):
                    yield batch.position, f"magic {batch.magic} {batch.codec_label}, {len(stored)} records"
    assert position == len(original)


@pytest.fixture(scope="module")
def logs() -> dict[bytes, Path]:
    """Every file with batches, once however many fixtures have the same."""
    found: dict[bytes, Path] = {}
    for name in NAMES:
        for kind, path in files(name):
            if kind in BATCH_KINDS:
                found.setdefault(hashlib.blake2b(path.read_bytes(), digest_size=16).digest(), path)
    return found


def test_every_batch_of_a_broker_is_encoded_byte_for_byte_from_its_values(
    logs: dict[bytes, Path], record_property: Callable[[str, object], None]
) -> None:
    seen: Counter[str] = Counter()
    different = []
    for path in logs.values():
        seen["files"] += 1
        different += [(path, *difference) for difference in differences(path, seen)]
    for what, count in sorted(seen.items()):
        record_property(what, count)
    print(dict(seen))
    assert different == []
    assert seen["damaged batches"] == 1, "one bit was flipped by hand in kraft-crashed-torn"
    kinds = {f"magic 2 {codec.label}" for codec in Codec}
    kinds |= {f"magic {magic} {codec.label}" for magic in (0, 1) for codec in Codec if codec is not Codec.ZSTD}
    assert kinds <= seen.keys()
    assert seen["files"] > 2000 and seen["records"] > 50_000


def test_no_file_of_a_broker_is_of_a_kind_that_has_no_encoder(record_property: Callable[[str, object], None]) -> None:
    seen: Counter[str | None] = Counter()
    for name in NAMES:
        seen.update(kind for kind, _ in files(name))
    for kind, count in seen.items():
        record_property(f"files: {kind}", count)
    print(dict(seen))
    assert set(seen) == {*BATCH_KINDS, *FORMATS, *WITHOUT_FORMAT}


@pytest.mark.slow
def test_every_other_file_of_a_broker_is_encoded_byte_for_byte() -> None:
    # By format in storage/test_formats; here over all files of all fixtures, so that none falls between the tests.
    for name in NAMES:
        for kind, path in files(name):
            if kind is None or kind in BATCH_KINDS or kind in WITHOUT_FORMAT:
                continue
            place = (name, str(path.relative_to(fixture(name))))
            if place in DAMAGE:
                continue
            data = path.read_bytes()
            file = filenames.parse_file(path.name)
            again = FORMATS[kind].again(data, max(file.offset, 0) if file else 0)
            # Kafka creates offset checkpoints empty, and writes "no entries" later.
            assert again == data or (kind == "offset checkpoint" and not data and again == b"0\n0\n"), place
