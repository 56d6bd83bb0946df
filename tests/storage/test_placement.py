"""Warnings of commands before they begin: a broker would not serve all of these directories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from cordwood.commands.clean import clean
from cordwood.commands.ls import ls
from cordwood.commands.options import CopyOptions, ListOptions, PlanOptions, TaskOptions
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.check.placement import texts
from tests.starts.faults import FAULTS


def disks(node: Path) -> list[str]:
    return [str(node / disk) for disk in ("a", "b")]


def test_a_node_that_starts_whole_is_not_warned_of(tmp_path: Path) -> None:
    assert texts(PosixFileSystem(), disks(FAULTS["stopped: nothing"].plant(tmp_path / "node"))) == []
    assert texts(PosixFileSystem(), [str(tmp_path / "nothing")]) == []


def test_a_clean_says_so_before_it_writes_anything(tmp_path: Path) -> None:
    class NothingWasWrittenError(Exception):
        pass

    def stop(lines: Sequence[str]) -> None:
        raise NothingWasWrittenError(*lines)

    node = FAULTS["stopped: nothing"].plant(tmp_path / "node")
    (node / "a" / "carts-0" / "partition.metadata").unlink()
    with pytest.raises(NothingWasWrittenError, match=r"carts-0/partition.metadata: missing.* for a stray"):
        clean(disks(node), str(tmp_path / "copy"), PlanOptions(), CopyOptions(), TaskOptions(), on_forecast=stop)
    assert not (tmp_path / "copy").exists()


def test_a_damaged_newest_metadata_snapshot_is_named_where_an_older_one_serves(tmp_path: Path) -> None:
    node = FAULTS["stopped: nothing"].plant(tmp_path / "node")
    newest = max((node / "a" / "__cluster_metadata-0").glob("*.checkpoint"))
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    (line,) = texts(PosixFileSystem(), disks(node))
    assert line.startswith(f"{newest}: CRC-32C mismatch") and line.endswith("a broker does not start")


def test_a_log_that_ends_below_its_start_starts_empty_in_a_listing(tmp_path: Path) -> None:
    node = FAULTS["stopped: nothing"].plant(tmp_path / "node")
    (node / "a" / "log-start-offset-checkpoint").write_text("0\n1\norders 0 900\n")
    listed = {one.name: one.states for one in ls(disks(node), ListOptions()).partitions}
    assert (listed["orders-0"], listed["carts-0"]) == (("starts empty",), ())
