"""What a plan says about how each partition's clean is divided."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from cordwood.api import plan as make_plan
from cordwood.cleaning.plan import Division, Plan
from cordwood.engine.division import RUN_BYTES_MIN, with_divisions
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.report import plan as report
from tests.commands.planned_logs import T0, batch, make_log

MB = 1 << 20


def planned(folder: Path, sizes: Sequence[int], **options: object) -> Plan:
    """A plan of a partition for each size, in MiB; a record for each MiB."""
    for number, size in enumerate(sizes):
        batches = [encode_batch([Record(at, T0, b"%d" % at, bytes(MB))]) for at in range(size)]
        make_log(folder / f"t-{number}", batches, [batch(size)])
    return make_plan(
        str(folder),
        overrides=["cleanup.policy=compact"],
        high_watermark="end",
        single_copy=True,
        **options,  # type: ignore[arg-type]
    )


def divisions(plan: Plan) -> list[Division]:
    return [one.division for one in plan.partitions if one.division is not None]


def test_one_task_cleans_a_partition_that_keeps_no_core_waiting(tmp_path: Path) -> None:
    plan = with_divisions(planned(tmp_path, [2, 1]), 4)
    assert divisions(plan) == [Division(), Division()]
    assert not [line for line in report.lines(plan) if "many tasks" in line]


def test_a_partition_larger_than_the_others_together_is_divided(tmp_path: Path) -> None:
    plan = with_divisions(planned(tmp_path, [130, 1]), 4)
    large, small = divisions(plan)
    assert (large.staged, large.run_bytes, large.runs) == (True, RUN_BYTES_MIN, 3)
    assert small == Division()
    lines = list(report.lines(plan))
    start = lines.index("cleaned by many tasks:")
    assert (
        lines[start + 1] == "  t-0: about 3 tasks that scan 67.1 MB each: otherwise, some of the 4 cores would be idle"
    )


def test_a_partition_whose_keys_take_more_than_a_task_has_is_divided_on_one_core(tmp_path: Path) -> None:
    batches = [encode_batch([Record(at * 9_000 + one, T0, b"k", b"") for one in range(9_000)]) for at in range(10)]
    make_log(tmp_path / "t-0", batches, [batch(90_000)])
    plan = with_divisions(planned(tmp_path, [], memory=MB), 1)
    (found,) = divisions(plan)
    assert found.staged
    assert found.reason.endswith("and a task has 1.0 MB")
    (again,) = divisions(with_divisions(planned(tmp_path, [], memory=64 * MB), 1))
    assert again == Division()


def test_json_has_the_division(tmp_path: Path) -> None:
    plan = with_divisions(planned(tmp_path, [1]), 1)
    found = json.loads(json.dumps(report.document(plan)))
    assert found["partitions"][0]["division"] == {"staged": False, "run_bytes": 0, "runs": 1, "reason": ""}


@pytest.mark.parametrize("cores", [1, 4])
def test_what_kafkas_offset_map_limits_is_never_divided(cores: int, tmp_path: Path) -> None:
    plan = with_divisions(planned(tmp_path, [130], strict_kafka=True), cores)
    assert divisions(plan) == [Division()]
