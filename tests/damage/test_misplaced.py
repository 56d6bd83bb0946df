"""A flipped base offset, which no checksum covers, is reported by every reader of a log, and no record is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.api import clean, clean_in_place, plan_exact, write_table
from cordwood.cleaning.engine.results import Fate
from cordwood.cleaning.engine.task import FailureKind
from cordwood.cleaning.proof.pairs import Pair, Side, ViolationKind
from cordwood.common.errors import CorruptBatchError, DataError
from cordwood.fs.posix import PosixFileSystem
from cordwood.kernels.layout import BATCH_ROW
from cordwood.kernels.scan import scan_batches
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.log.segment_writer import IndexLimits, SegmentWriter
from cordwood.tables.source.slices import ReadCounts
from tests.cleaning.proof.proving import verify_pairs
from tests.commands.in_process import InThisProcess
from tests.tables.source.random_logs import read_rows

pytestmark = pytest.mark.more

RECORDS = 4
#: The first and the last batch of each segment; the last one is active.
SEGMENTS = ((0, 10), (10, 20), (20, 23))
OPTIONS: dict[str, Any] = {"now_ms": 1_900_000_000_000, "ignore_ratio": True, "overrides": ["cleanup.policy=compact"]}
#: Which batch gets which base offset. Keys of batch 15 occur nowhere else.
FLIPS: dict[str, tuple[int, int]] = {
    "a negative one": (15, 60 - (1 << 56)),
    "one below the segment": (15, 4),
    "one below the batch before": (15, 52),
    "one below the segment, of its first batch": (10, 4),
    "one of the next segment": (15, 84),
    "one above the log": (15, 1 << 40),
    "one above the batch behind": (15, 68),
    "one of the next segment, of its last batch": (19, 84),
}
ACTIVE: dict[str, tuple[int, int]] = {
    "a negative one in the active segment": (21, 84 - (1 << 56)),
    "a negative one of the last batch": (22, 88 - (1 << 56)),
    "one below the batch before, of the last batch": (22, 81),
}


def batch(number: int) -> bytes:
    def key(at: int) -> bytes:
        return b"own%d" % at if number == 15 else b"key%d" % (at % 9)

    first = RECORDS * number
    return encode_batch([Record(at, 1_000 + at, key(at), b"%d" % at) for at in range(first, first + RECORDS)])


def written(folder: Path, number: int | None = None, base_offset: int = 0) -> Path:
    """A log with one batch whose base offset was changed."""
    folder.mkdir(parents=True)
    for first, end in SEGMENTS:
        writer = SegmentWriter(PosixFileSystem(), str(folder), RECORDS * first, IndexLimits(interval_bytes=300))
        for at in range(first, end):
            data = np.frombuffer(batch(at), np.uint8)
            rows = np.empty(1, BATCH_ROW)
            scan_batches(data.ctypes.data, data.size, data.size, writer.size_bytes, False, rows)
            writer.append([data], rows)
        writer.finish(mtime_ns=10**18)
        if number is not None and first <= number < end:
            position = sum(len(batch(at)) for at in range(first, number))
            with (folder / f"{RECORDS * first:020}.log").open("r+b") as file:
                file.seek(position)
                file.write(base_offset.to_bytes(8, "big", signed=True))
    return folder


def every(choices: dict[str, tuple[int, int]]) -> Callable[[Any], Any]:
    return pytest.mark.parametrize(("number", "base_offset"), choices.values(), ids=choices)


@every(FLIPS | ACTIVE)
def test_reading_reports_the_batch_and_gives_out_all_others(tmp_path: Path, number: int, base_offset: int) -> None:
    log = cordwood.open_log(str(written(tmp_path / "t-0", number, base_offset)))
    damage: list[DataError] = []
    offsets = [record.offset for record in log.records(on_damage=damage.append)]
    own = range(RECORDS * number, RECORDS * (number + 1))
    assert offsets == [at for at in range(RECORDS * 23) if at not in own]
    assert len(damage) == 1 and "a batch of offsets" in str(damage[0]) and damage[0].path is not None
    for read in (log.records, log.columns, log.arrow_batches, log.batches):
        with pytest.raises(CorruptBatchError, match="a batch of offsets"):
            list(read())


@every(FLIPS)
def test_only_a_range_that_the_batch_may_belong_to_is_damaged(tmp_path: Path, number: int, base_offset: int) -> None:
    log = cordwood.open_log(str(written(tmp_path / "t-0", number, base_offset)))
    first, behind = RECORDS * number, RECORDS * (number + 1)
    whole = range(RECORDS * 23)
    assert [one.offset for one in log.records(end_offset=first)] == list(whole[:first])
    assert [one.offset for one in log.records(start_offset=behind)] == list(whole[behind:])
    for start, end in ((first, first + 1), (behind - 1, behind), (first - 1, behind + 1)):
        with pytest.raises(CorruptBatchError, match="a batch of offsets"):
            list(log.records(start_offset=start, end_offset=end))


def test_batches_of_which_one_has_a_wrong_size_of_offsets_hide_no_later_segment(tmp_path: Path) -> None:
    folder = written(tmp_path / "t-0")
    with (folder / f"{40:020}.log").open("r+b") as file:
        file.seek(sum(len(batch(at)) for at in range(10, 19)) + 23)
        file.write((1 << 20).to_bytes(4, "big"))  # the last offset delta, which the checksum covers
    damage: list[DataError] = []
    offsets = [record.offset for record in cordwood.open_log(str(folder)).records(on_damage=damage.append)]
    assert offsets == [*range(76), *range(80, 92)] and "CRC" in str(damage[0])


@every(FLIPS | ACTIVE)
@pytest.mark.parametrize("options", [{}, {"maxBytesPerPartition": "600"}])
def test_the_data_source_fails_or_counts_the_damage(
    tmp_path: Path, number: int, base_offset: int, options: dict[str, str]
) -> None:
    written(tmp_path / "t-0", number, base_offset)

    def read(fails: str) -> tuple[list[Any], ReadCounts]:
        return read_rows(PosixFileSystem(), {"failOnDamage": fails, **options}, root=str(tmp_path))

    with pytest.raises(CorruptBatchError, match="a batch of offsets"):
        read("true")
    rows, counts = read("false")
    assert counts.damaged >= 1 and len(rows) == RECORDS * 22


@every(FLIPS)
def test_a_clean_refuses_the_partition_and_changes_nothing(tmp_path: Path, number: int, base_offset: int) -> None:
    folder = written(tmp_path / "log" / "t-0", number, base_offset)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    spark: Any = InThisProcess()
    copied = clean(str(folder), output=str(tmp_path / "copy"), spark=spark, **OPTIONS)
    in_place = clean_in_place(str(folder), verify=False, spark=spark, **OPTIONS)
    exact = plan_exact(str(folder), spark=spark, **OPTIONS)
    kafkas = clean(str(folder), output=str(tmp_path / "kafka"), spark=spark, offset_map=4096, **OPTIONS)
    for result in (copied, in_place, exact.result, kafkas):
        assert not result.with_fate(Fate.CLEANED)
        (failure,) = [one.failure for one in result.partitions if one.failure is not None]
        assert failure.kind is FailureKind.DAMAGE and "a batch of offsets" in failure.what
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert {name: after[name] for name in before} == before


@every(FLIPS | ACTIVE)
def test_a_proof_says_that_the_state_before_is_damaged(tmp_path: Path, number: int, base_offset: int) -> None:
    folder = written(tmp_path / "t-0", number, base_offset)
    shutil.copytree(folder, tmp_path / "after")
    sides = Side(str(folder), 0), Side(str(tmp_path / "after"), 0)
    changed, same = (verify_pairs([Pair(None, sides[0], after)])[0] for after in (sides[1], sides[0]))
    assert ViolationKind.DAMAGE_BEFORE in changed.totals and ViolationKind.DAMAGE_BEFORE in same.totals


@every(FLIPS | ACTIVE)
def test_a_table_is_not_made(tmp_path: Path, number: int, base_offset: int) -> None:
    folder = written(tmp_path / "t-0", number, base_offset)
    with pytest.raises(CorruptBatchError, match="a batch of offsets"):
        write_table(str(folder), output=str(tmp_path / "table"), spark=InThisProcess())  # type: ignore[arg-type]


def test_damage_behind_what_a_clean_reads_is_no_fault_of_the_program(tmp_path: Path) -> None:
    folder = written(tmp_path / "log" / "t-0", *ACTIVE["a negative one of the last batch"])
    result = clean_in_place(str(folder), engine="here", **OPTIONS)
    (failure,) = [one.failure for one in result.partitions if one.failure is not None]
    assert failure.kind is FailureKind.DAMAGE
