"""Damage in the records of a transaction's end: readers of committed data must report it."""

from __future__ import annotations

from pathlib import Path

import pytest

import cordwood
from cordwood.cli.main import EXIT_DAMAGE
from cordwood.common.errors import CorruptBatchError
from cordwood.kernels.layout import is_control
from cordwood.record.columns import BatchWindow
from tests.command import run

#: Bytes of the header of a batch, and the type in the key of a marker that has no headers and no timestamp delta.
PRODUCER_ID, PRODUCER_EPOCH, MARKER_TYPE = 50, 52, 69


def flipped(folder: Path, at: int, flip: int, *, marker: bool) -> tuple[Path, int]:
    """A log with one damaged batch of a transaction, and the batch's offset."""
    run("demo", "--dir", folder / "demo")
    log = folder / "demo" / "before" / "users-0"
    for segment, item in cordwood.open_log(str(log)).windows():
        assert isinstance(item, BatchWindow)
        chosen = item.batches[is_control(item.batches) == marker]
        chosen = chosen[chosen["producer_id"] >= 0]
        if chosen.size:
            data = bytearray(Path(segment.path).read_bytes())
            data[int(chosen["position"][0]) + at] ^= flip
            Path(segment.path).write_bytes(data)
            return log, int(chosen["base_offset"][0])
    raise AssertionError("the log has no transaction")


@pytest.mark.parametrize(
    ("at", "flip", "marker"),
    [
        pytest.param(MARKER_TYPE, 1, True, id="aborted and committed change places"),
        pytest.param(PRODUCER_ID, 4, True, id="a marker of another producer"),
        pytest.param(PRODUCER_ID, 4, False, id="a batch of another producer"),
        pytest.param(PRODUCER_EPOCH, 4, False, id="a batch of another epoch"),
    ],
)
def test_damage_that_hides_or_shows_a_transaction_is_told(tmp_path: Path, at: int, flip: int, marker: bool) -> None:
    log, offset = flipped(tmp_path, at, flip, marker=marker)
    told: list[int | None] = []
    read = cordwood.open_log(str(log)).records(
        isolation="read_committed", on_damage=lambda one: told.append(one.offset)
    )
    assert len(list(read)) > 0
    assert told == [offset]
    with pytest.raises(CorruptBatchError):
        list(cordwood.open_log(str(log)).records(isolation="read_committed"))
    result = run("dump", log, "--isolation", "read_committed", exits=EXIT_DAMAGE)
    assert [line for line in result.stdout.splitlines() if line.startswith("DAMAGE") and f"offset={offset} " in line]


def test_get_tells_the_damage_of_a_marker_that_a_key_hangs_on(tmp_path: Path) -> None:
    log, _ = flipped(tmp_path, MARKER_TYPE, 1, marker=True)
    arguments = ["get", str(log), "--key", "ben", "--config", "cleanup.policy=compact"]
    run(*arguments, exits=EXIT_DAMAGE)
