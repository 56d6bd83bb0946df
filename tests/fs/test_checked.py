"""A file system that calls a check before operations: the number of calls, and the effect of a failed check."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.fs.base import File, TargetStore
from cordwood.fs.paced import Limit, WantedLocation, checked, throttled
from cordwood.fs.posix import PosixFileSystem
from cordwood.testing.memory import MemoryFileSystem
from tests.fs import contract
from tests.fs.contract import target_outcome

MIB = 1 << 20


class StoppedError(Exception):
    """The user has to stop."""


def memory() -> MemoryFileSystem:
    return MemoryFileSystem(lambda: 0)


@pytest.mark.parametrize(
    "act",
    [
        lambda fs: fs.open("/f").read_into(0, memoryview(bytearray(10 * MIB))),
        lambda fs: fs.open("/f").read(0, 10 * MIB),
        lambda fs: fs.create("/g").write(0, bytes(10 * MIB)),
    ],
)
def test_reads_and_writes_are_asked_for_every_four_mib(act: Callable[[TargetStore], object]) -> None:
    below, asked = memory(), 0
    with below.create("/f") as file:
        file.write(0, bytes(10 * MIB))

    def check() -> None:
        nonlocal asked
        asked += 1
        if asked > stops_after:
            raise StoppedError

    fs, stops_after = checked(below, check), 100
    act(fs)
    assert asked == 3
    for stops_after in range(3):
        asked = 0
        if below.exists("/g"):
            below.unlink("/g")
        with pytest.raises(StoppedError):
            act(fs)
        if below.exists("/g"):
            assert below.stat("/g").size_bytes == stops_after * 4 * MIB


@given(st.lists(contract.target_steps, max_size=20))
def test_while_all_is_well_it_behaves_as_the_one_below(steps: list[tuple[Any, ...]]) -> None:
    plain, below = memory(), memory()
    fs = checked(below, lambda: None)
    for either in (plain, fs):
        either.make_directory("/folder")
    for step in steps:
        assert target_outcome(fs, "/folder", *step) == target_outcome(plain, "/folder", *step)


def test_blocks_of_a_file_are_shared_as_the_one_below_shares_them() -> None:
    below, stopped = memory(), False

    def check() -> None:
        if stopped:
            raise StoppedError

    fs = checked(below, check)
    source, target = fs.create("/f"), fs.create("/g")
    source.write(0, bytes(MIB))
    target.write_shared(0, bytes(MIB), source, 0)
    assert (below.shared_bytes, target.size()) == (MIB, MIB)
    stopped = True
    with pytest.raises(StoppedError):
        target.write_shared(MIB, bytes(MIB), source, 0)


def read_on(file: File) -> None:
    """Read again and again: there is not a look at the folder before each read."""
    while True:
        file.read(0, 100)


def test_a_task_in_another_process_ends_soon_after_its_folder_is_gone(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "f").write_bytes(bytes(100))
    below = throttled(PosixFileSystem(), Limit.of(1 << 40, PosixFileSystem(), str(tmp_path)))
    location = WantedLocation(below.location(), str(tmp_path / "made"))
    assert not location.in_this_process
    fs = pickle.loads(pickle.dumps(location)).open()
    file, made = fs.open(f"{tmp_path}/f"), fs.create(f"{tmp_path}/made/g")
    assert file.read(0, 100) == bytes(100)
    made.write(0, bytes(10))
    made.close()
    (tmp_path / "made" / "g").unlink()
    (tmp_path / "made").rmdir()
    with pytest.raises(FileNotFoundError, match="is unwanted"):
        read_on(file)
    with pytest.raises(FileNotFoundError):
        fs.create(f"{tmp_path}/made/h")
