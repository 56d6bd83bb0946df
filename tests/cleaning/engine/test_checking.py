"""The check of a task's output finds every kind of difference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cordwood.api import plan as make_plan
from cordwood.cleaning.engine.task import Failure, FailureKind, Output, PartitionTask, check_output, run_task, tasks_of
from cordwood.fs.posix import PosixFileSystem
from tests.fixtures import fixture

pytestmark = pytest.mark.more

Spoil = Callable[[Path, Output], Output]


@pytest.fixture
def cleaned(tmp_path: Path) -> tuple[PartitionTask, Output]:
    """A partition of several segments, cleaned."""
    for name in ("outputs", "progress"):
        (tmp_path / name).mkdir()
    plan = make_plan(str(fixture("kraft-before")), partitions=["orders-0"], ignore_ratio=True)
    (task,) = tasks_of(plan, PosixFileSystem().location())
    output = run_task(task, str(tmp_path / "outputs"), str(tmp_path / "progress"))
    assert isinstance(output, Output)
    return task, output


def log_of(folder: Path) -> Path:
    return max(folder.glob("*.log"), key=lambda path: path.stat().st_size)


def _flip(suffix: str, position: int) -> Spoil:
    def spoil(folder: Path, output: Output) -> Output:
        path = log_of(folder).with_suffix(suffix)
        data = bytearray(path.read_bytes())
        data[position] ^= 1
        path.write_bytes(data)
        return output

    return spoil


def _cut(folder: Path, output: Output) -> Output:
    path = log_of(folder)
    path.write_bytes(path.read_bytes()[:-1])
    return output


def _cut_and_said(folder: Path, output: Output) -> Output:
    path = log_of(folder)
    _cut(folder, output)
    sizes = {name: size - (name == path.name) for name, size in output.files}
    return replace(output, files=tuple(sizes.items()))


def _lost(folder: Path, output: Output) -> Output:
    log_of(folder).with_suffix(".timeindex").unlink()
    return output


def _miscounted(folder: Path, output: Output) -> Output:
    counts = replace(output.cleaned.counts, records_kept=output.cleaned.counts.records_kept + 1)
    return replace(output, cleaned=replace(output.cleaned, counts=counts))


def _misplaced(folder: Path, output: Output) -> Output:
    outputs = tuple(tuple(base + 1 for base in group) for group in output.cleaned.outputs)
    return replace(output, cleaned=replace(output.cleaned, outputs=outputs))


def test_what_was_written_as_it_should_be_passes(cleaned: tuple[PartitionTask, Output]) -> None:
    task, output = cleaned
    assert check_output(task, output) is output
    assert output.cleaned.counts.bytes_written > 0


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_flip(".log", 30), "CRC-32C mismatch"),
        (_flip(".log", 7), "offsets"),  # not covered by a checksum
        (_flip(".index", 7), "offset index"),
        (_flip(".timeindex", 7), "time index"),
        (_cut, "the files are"),
        (_cut_and_said, "position"),
        (_lost, "the files are"),
        (_miscounted, "records are there"),
        (_misplaced, "the segments are"),
    ],
)
def test_what_is_something_else_is_our_fault(cleaned: tuple[PartitionTask, Output], spoil: Spoil, said: str) -> None:
    task, output = cleaned
    failure = check_output(task, spoil(Path(output.folder), output))
    assert isinstance(failure, Failure) and failure.kind is FailureKind.BUG
    assert said in failure.what and task.path in failure.what


def test_an_offset_beyond_the_range_is_found(cleaned: tuple[PartitionTask, Output]) -> None:
    task, output = cleaned
    failure = check_output(replace(task, first_uncleanable=task.first_uncleanable - 1), output)
    assert isinstance(failure, Failure) and "are not from" in failure.what
