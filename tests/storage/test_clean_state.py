"""The state files of a clean with `--min-dead`: read, written, damaged, and compared with the log."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from cordwood.cli.main import app
from cordwood.common.errors import CorruptFileError
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats import clean_checkpoint, pending_records
from cordwood.storage.formats.clean_checkpoint import CleanCheckpoint, CleanSegment
from cordwood.storage.formats.filenames import clean_checkpoint_path, index_folder, pending_name
from cordwood.storage.formats.key_index import crc_of_header
from cordwood.storage.formats.pending_records import PendingRecords, pending_of
from cordwood.storage.index.files import create_pending, forget_clean_state, remove_pending, write_checkpoint
from cordwood.storage.log.clean_state import believed_checkpoint, read_pending
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap, read_headers
from tests.cleaning.engine.logs import data, make_log
from tests.storage.damage_sites import check

FS = PosixFileSystem()


def pending(marked: list[bool], base_offset: int = 7, **other: int) -> PendingRecords:
    facts = {"size_bytes": 900, "first_killer": 5_000, "batches_crc": 77} | other
    bits = np.packbits(np.array(marked, np.bool_), bitorder="little")
    return pending_of(bits, records=len(marked), base_offset=base_offset, **facts)


SAMPLE = pending([True, False, False, True, True, False, False, False, False, True])
ROWS = (CleanSegment(7, 900, 830, 1_000, 60, 0xABCD, 0x1234), CleanSegment(40, 0, 0, 1_000, 0, 0, 0))
CHECKPOINT = CleanCheckpoint(80, 50, ROWS)


@given(st.lists(st.booleans(), min_size=1, max_size=40).filter(any))
def test_pending_records_are_read_as_they_were_written(marked: list[bool]) -> None:
    found = pending_records.decode(pending_records.encode(pending(marked)))
    assert found.header == pending(marked).header
    assert pending_records.ordinals(found.bits).tolist() == [at for at, one in enumerate(marked) if one]
    assert found.header.pending == sum(marked)


@given(st.lists(st.integers(1, 100), min_size=0, max_size=8), st.integers(0, 20))
def test_a_checkpoint_is_read_as_it_was_written(steps: list[int], behind: int) -> None:
    bases = np.cumsum([0, *steps])[: len(steps)].tolist()
    rows = tuple(CleanSegment(base, base + 9, base, base * 7, base + 1, base, base) for base in bases)
    checkpoint = CleanCheckpoint(sum(steps) + behind, sum(steps), rows)
    assert clean_checkpoint.decode(clean_checkpoint.encode(checkpoint)) == checkpoint
    assert checkpoint.garbage_bytes == sum(base + 1 for base in bases)


@pytest.mark.parametrize(
    ("whole", "decode"),
    [
        (pending_records.encode(SAMPLE), pending_records.decode),
        (clean_checkpoint.encode(CHECKPOINT), clean_checkpoint.decode),
    ],
    ids=["pending records", "checkpoint"],
)
def test_every_flipped_bit_and_every_length_is_refused(whole: bytes, decode: Callable[[bytes], Any]) -> None:
    decode(whole)
    for at in range(len(whole)):
        for bit in range(8):
            with pytest.raises(CorruptFileError):
                decode(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
        with pytest.raises(CorruptFileError):
            decode(whole[:at])
    with pytest.raises(CorruptFileError):
        decode(whole + b"\0")


def forged(header: dict[str, int], bits: bytes | None = None) -> bytes:
    """The sample with other figures, under right checksums."""
    whole = pending_records.encode(SAMPLE)
    row = np.frombuffer(whole[: pending_records.HEADER.itemsize], pending_records.HEADER).copy()
    for name, value in header.items():
        row[name] = value
    bits = whole[pending_records.HEADER.itemsize :] if bits is None else bits
    row["bits_crc"] = crc32c(bits)
    row["header_crc"] = crc32c(row.tobytes()[:-4])
    return row.tobytes() + bits


@pytest.mark.parametrize(
    ("header", "bits"),
    [
        ({"pending": 0}, bytes(2)),
        ({"pending": 3}, None),
        ({"pending": 11}, None),
        ({"records": 17}, None),
        ({"records": 9}, None),
        ({"first_killer": 7}, None),
        ({"base_offset": -1}, None),
        ({"size_bytes": 0}, None),
        ({}, b"\x19\x06"),
        ({"pending": 5}, b"\x19\x06"),
        ({"version": 2}, None),
    ],
)
def test_pending_records_that_cannot_be_are_refused(header: dict[str, int], bits: bytes | None) -> None:
    assert forged({}) == pending_records.encode(SAMPLE)
    with pytest.raises(CorruptFileError):
        pending_records.decode(forged(header, bits))


@pytest.mark.parametrize(
    "wrong",
    [
        replace(CHECKPOINT, cleaned_to=40, first_killer=40),
        replace(CHECKPOINT, first_killer=81),
        replace(CHECKPOINT, first_killer=-1),
        replace(CHECKPOINT, segments=ROWS[::-1]),
        replace(CHECKPOINT, segments=(replace(ROWS[0], base_offset=-1),)),
        replace(CHECKPOINT, segments=(replace(ROWS[0], last_position=900),)),
        replace(CHECKPOINT, segments=(replace(ROWS[0], garbage_bytes=901),)),
        replace(CHECKPOINT, segments=(replace(ROWS[1], size_bytes=-1),)),
    ],
)
def test_a_checkpoint_that_cannot_be_is_refused(wrong: CleanCheckpoint) -> None:
    with pytest.raises(CorruptFileError, match="cannot be"):
        clean_checkpoint.decode(clean_checkpoint.encode(wrong))


# ---- beside a log ----------------------------------------------------------------------------------------------------


def log_of(partition: Path) -> LogView:
    return LogView(str(partition), fs=FS, log_start_offset=0)


def remembered(segment: Segment, marked: list[int]) -> tuple[CleanSegment, PendingRecords | None]:
    """The entry of a checkpoint for a segment with pending records."""
    with segment.open() as file:
        found = [item for item in read_headers(file, base_offset=segment.base_offset) if not isinstance(item, Gap)]
        batches = np.concatenate(found)
        position = int(batches["position"][-1])
        crc = crc_of_header(file, position, segment.size_bytes - position)
    size, records = segment.size_bytes, int(batches["record_count"].sum())
    if not marked:
        return CleanSegment(segment.base_offset, size, position, 5, 0, crc, 0), None
    bits = np.packbits(np.isin(np.arange(records), marked), bitorder="little")
    own = pending_of(
        bits, records=records, base_offset=segment.base_offset, size_bytes=size, first_killer=95,
        batches_crc=pending_records.crc_of_batches(batches["position"], batches["crc"]),
    )  # fmt: skip
    return CleanSegment(segment.base_offset, size, position, 5, 9, crc, own.header.header_crc), own


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """Four segments; records of the first and the third are pending, and the last is dirty."""
    partition = tmp_path / "logs" / "t-0"
    partition.mkdir(parents=True)
    for base in range(0, 40, 10):
        make_log(partition, (base, [data(at, b"%02d" % at) for at in range(base, base + 10)]))
    known = [
        remembered(one, marked) for one, marked in zip(log_of(partition).segments, ([1, 4], [], [9]), strict=False)
    ]
    write_checkpoint(FS, str(partition), CleanCheckpoint(30, 25, tuple(row for row, _ in known)))
    for row, own in known:
        if own is not None:
            create_pending(FS, f"{index_folder(str(partition))}/{pending_name(row.base_offset)}", own)
    return partition


def test_a_checkpoint_is_believed_with_the_log_it_was_written_for(partition: Path) -> None:
    checkpoint = believed_checkpoint(log_of(partition))
    assert checkpoint is not None and (checkpoint.cleaned_to, checkpoint.garbage_bytes) == (30, 18)
    found = [read_pending(*pair) for pair in zip(log_of(partition).segments, checkpoint.segments, strict=False)]
    assert [None if one is None else one.header.pending for one in found] == [2, None, 1]
    assert {path.stat().st_mode & 0o777 for path in Path(index_folder(str(partition))).iterdir()} == {0o600}


def test_deleted_segments_at_the_start_change_nothing(partition: Path) -> None:
    removed(partition, 0)
    checkpoint = believed_checkpoint(log_of(partition))
    assert checkpoint is not None and [one.base_offset for one in checkpoint.segments] == [10, 20]


def removed(partition: Path, base: int) -> None:
    for path in partition.glob(f"{base:020d}.*"):
        path.unlink()


def cut(partition: Path, base: int, size: int) -> None:
    path = partition / f"{base:020d}.log"
    path.write_bytes(path.read_bytes()[:size])


def replaced(path: Path, old: bytes, new: bytes) -> None:
    whole = path.read_bytes()
    assert len(old) == len(new) and whole.count(old) == 1
    path.write_bytes(whole.replace(old, new))


def overwritten(path: Path, at: int, new: bytes) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + new + whole[at + len(new) :])


CHANGES: dict[str, Callable[[Path], object]] = {
    "the log ends before": lambda one: removed(one, 30),
    "a segment in the middle is gone": lambda one: removed(one, 10),
    "a segment is shorter": lambda one: cut(one, 10, 100),
    "a last batch is another": lambda one: replaced(one / f"{10:020d}.log", data(19, b"19"), data(19, b"91")),
    "pending records are gone": lambda one: os.unlink(f"{index_folder(str(one))}/{pending_name(0)}"),
    "pending records are others": lambda one: (Path(index_folder(str(one))) / pending_name(0)).write_bytes(
        pending_records.encode(pending([True]))
    ),
    "the checkpoint is torn": lambda one: overwritten(Path(clean_checkpoint_path(str(one))), 41, b"\xff"),
    "the checkpoint is gone": lambda one: os.unlink(clean_checkpoint_path(str(one))),
    "it is forgotten": lambda one: forget_clean_state(FS, str(one)),
    "pending records are removed": lambda one: remove_pending(FS, str(one), but=[0]),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_checkpoint_is_not_believed_once_anything_else_is_there(partition: Path, change: str) -> None:
    CHANGES[change](partition)
    assert believed_checkpoint(log_of(partition)) is None


def test_check_compares_it_with_all_batches(partition: Path) -> None:
    kinds = ("clean-state-stale", "clean-state-unreadable")

    def found() -> set[tuple[str, str]]:
        return {(one.kind, Path(one.path).name) for one in check(partition.parent) if one.kind in kinds}

    assert found() == set()
    first, own = partition / f"{0:020d}.log", Path(index_folder(str(partition)))
    replaced(first, data(4, b"04"), data(4, b"40"))
    assert found() == {("clean-state-stale", pending_name(0))}
    replaced(first, data(4, b"40"), data(4, b"04"))
    cut(partition, 10, 200)
    assert found() == {("clean-state-stale", "cleaned")}
    make_log(partition, (10, [data(at, b"%02d" % at) for at in range(10, 20)]))
    overwritten(own / pending_name(20), 56, b"\xff")
    assert found() == {("clean-state-unreadable", pending_name(20))}
    overwritten(Path(clean_checkpoint_path(str(partition))), 20, b"\xff")
    assert found() == {("clean-state-unreadable", "cleaned")}


def test_dump_shows_what_is_pending(partition: Path) -> None:
    def dumped(name: str) -> list[dict[str, Any]]:
        result = CliRunner().invoke(app, ["dump", "--json", f"{index_folder(str(partition))}/{name}"])
        assert result.exit_code == 0, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]

    head, *records = dumped(pending_name(0))
    assert (head["type"], head["records"], head["pending"], head["first_killer"]) == ("pending_records", 10, 2, 95)
    assert [one["record"] for one in records] == [1, 4]
    head, *rows = dumped("cleaned")
    assert (head["type"], head["cleaned_to"], head["garbage_bytes"]) == ("clean_checkpoint", 30, 18)
    assert [one["base_offset"] for one in rows] == [0, 10, 20]
