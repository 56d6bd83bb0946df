"""Cleans in place in several waves, with faults planted in the tasks: the proof of a wave notices each.

The tasks run in this process, where they can be given faults; the proofs are tasks on Spark, as for a user. The log is
written by hand, so that each fault has a record that it harms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from cordwood.api import clean_in_place
from cordwood.cleaning.engine import task as task_module
from cordwood.cleaning.engine.results import CleanResult, Fate
from cordwood.cleaning.engine.task import FailureKind, Output, PartitionTask, clean_task
from cordwood.cleaning.proof.pairs import ViolationKind
from cordwood.cleaning.proof.violations import MEANINGS
from cordwood.common.types import ControlType
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.log.view import LogView
from tests.cleaning.proof.planting import NOW, State, data, marker
from tests.commands.in_process import InThisProcess

pytestmark = pytest.mark.more


class ProvingInThisProcess(InThisProcess):
    """Tasks run in this process; tasks on Spark prove their output."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.sparkContext = spark.sparkContext

    def newSession(self) -> SparkSession:  # noqa: N802
        """The session whose tasks prove."""
        return self._spark.newSession()


#: One group of one segment fits, two do not.
ROOM_BYTES = 25_000
#: The active segment, and the dirty section's end.
ACTIVE = 30
Fault = Callable[[PartitionTask], PartitionTask]


def log() -> State:
    """Four segments, each cleaned in a wave of its own, and the active one; all data is dirty."""
    transactional = {"producer_epoch": 0, "transactional": True}
    return State(
        {
            0: [data(0, "a=1 b=1 c=1 d=1 e=1")],
            5: [data(5, "b=2 t=1", producer_id=1, base_sequence=0, **transactional), data(7, "f=1")],
            8: [
                data(8, "a", delete_horizon_ms=NOW - 1000),
                data(9, "g", delete_horizon_ms=NOW + 1_000_000),
                data(10, "c=2"),
            ],
            11: [marker(11, 1, ControlType.COMMIT, delete_horizon_ms=NOW - 1000), data(12, "d=2 h=1")],
            ACTIVE: [data(ACTIVE, "e=2 h=2")],
        },
        end=ACTIVE + 2,
    )


def cleaned(spark: SparkSession, root: Path, fault: Fault = lambda task: task) -> CleanResult:
    """The log cleaned in place in waves, by tasks that may have a fault."""
    log().write(root / "t-0")

    def run(task: PartitionTask, *arguments: Any, **options: Any) -> Any:
        outcome = clean_task(task if options.get("discard") else fault(task), *arguments, **options)
        assert isinstance(outcome, Output), outcome
        return outcome

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_module, "clean_task", run)
        return clean_in_place(
            str(root),
            spark=cast(SparkSession, ProvingInThisProcess(spark)),
            now_ms=NOW,
            single_copy=True,
            ignore_ratio=True,
            no_broker_elsewhere=True,
            overrides=["cleanup.policy=compact", "internal.segment.bytes=100"],
            work_space=ROOM_BYTES,
        )


def segments(root: Path) -> dict[int, bytes]:
    return {int(path.stem): path.read_bytes() for path in (root / "t-0").glob("*.log")}


def test_a_clean_in_a_wave_for_each_segment_is_proved(spark: SparkSession, tmp_path: Path) -> None:
    result = cleaned(spark, tmp_path)
    assert not result.with_fate(Fate.FAILED), result.text()
    assert result.in_place is not None
    assert result.in_place.waves == 4
    # Each wave is proved against the whole log: a record that it drops may matter to a record that an earlier wave
    # kept.
    assert result.in_place.verified == 16 + 12 + 12 + 11
    kept = [(record.offset, record.key) for record in LogView(str(tmp_path / "t-0"), fs=PosixFileSystem()).records()]
    assert kept == [(4, b"e"), (5, b"b"), (6, b"t"), (7, b"f"), (9, b"g"), (10, b"c"), (12, b"d"), (13, b"h"),
                    (30, b"e"), (31, b"h")]  # fmt: skip


def takes_keys_to(end: Callable[[PartitionTask], int]) -> Fault:
    return lambda task: replace(task, first_uncleanable=end(task))


def forgets_transactions(task: PartitionTask) -> PartitionTask:
    assert task.part is not None
    return replace(task, part=replace(task.part, carried=None))


#: The fault, the first segment of the wave that has it, that of the wave whose proof notices it, and the violation.
FAULTS = {
    "keys from above the dirty section": (takes_keys_to(lambda _: ACTIVE + 2), 0, 0, ViolationKind.VALUE_LOST),
    "a tombstone before its time": (
        lambda task: replace(task, now_ms=NOW + 2_000_000), 8, 8, ViolationKind.TOMBSTONE_LOST
    ),
    # Old values stay, which is no harm until a later wave drops the tombstone above them.
    "keys from this wave only": (takes_keys_to(lambda task: task.end), 0, 8, ViolationKind.CAME_BACK),
    # The marker is due, but the data of its transaction was kept by an earlier wave.
    "a marker of data in an earlier wave": (forgets_transactions, 11, 11, ViolationKind.COMMITTED_HIDDEN),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_a_wave_is_noticed_before_the_wave_is_swapped_in(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    fault, faulty, noticed, violation = FAULTS[name]
    log().write(tmp_path / "before" / "t-0")
    before = segments(tmp_path / "before")
    result = cleaned(
        spark,
        tmp_path / "logs",
        lambda task: fault(task) if task.part is not None and task.part.groups[0][0] == faulty else task,
    )
    (failed,) = result.with_fate(Fate.FAILED)
    assert failed.failure is not None
    assert failed.failure.kind is FailureKind.BUG
    assert MEANINGS[violation] in failed.failure.what
    after = segments(tmp_path / "logs")
    assert {base: data for base, data in after.items() if base >= noticed} == {
        base: data for base, data in before.items() if base >= noticed
    }
