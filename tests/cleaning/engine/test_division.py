"""A plan's description of how each partition's clean is divided."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from cordwood.api import clean
from cordwood.api import plan as make_plan
from cordwood.cleaning.engine.division import RUN_BYTES_MIN, tasks_at_once, with_divisions, with_probing
from cordwood.cleaning.engine.task import tasks_of
from cordwood.cleaning.rules.plan import Division, Plan
from cordwood.commands import clean as clean_report
from cordwood.commands import plan as report
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from tests.logs import T0, batch, write_log

MB = 1 << 20


def planned(folder: Path, sizes: Sequence[int], **options: object) -> Plan:
    """A plan of a partition for each size, in MiB; a record for each MiB."""
    for number, size in enumerate(sizes):
        batches = [encode_batch([Record(at, T0, b"%d" % at, bytes(MB))]) for at in range(size)]
        write_log(folder / f"t-{number}", batches, [batch(size)])
    return make_plan(
        str(folder),
        overrides=["cleanup.policy=compact"],
        high_watermark="end",
        ignore_ratio=True,
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
    assert lines[start + 1] == "  t-0: about 3 tasks that scan 67.1 MB each: otherwise, some cores would be idle"


@pytest.mark.parametrize(("cores", "at_once"), [(1, 1), (2, 1), (3, 2), (4, 3), (8, 5), (16, 10)])
def test_large_partitions_leave_cores_to_the_threads_of_tasks(cores: int, at_once: int) -> None:
    assert tasks_at_once([2_000_000_000], cores) == at_once
    assert tasks_at_once([50_000_000] * 100, cores) == cores
    assert tasks_at_once([], cores) == cores


def test_a_partition_whose_keys_take_more_than_a_task_has_is_divided_on_one_core(tmp_path: Path) -> None:
    batches = [encode_batch([Record(at * 9_000 + one, T0, b"k", b"") for one in range(9_000)]) for at in range(10)]
    write_log(tmp_path / "t-0", batches, [batch(90_000)])
    plan = with_divisions(planned(tmp_path, [], memory=MB), 1)
    (found,) = divisions(plan)
    assert found.staged
    assert found.reason.endswith("and a task has 1.0 MB")
    (again,) = divisions(with_divisions(planned(tmp_path, [], memory=64 * MB), 1))
    assert again == Division()


def test_json_has_the_division(tmp_path: Path) -> None:
    plan = with_divisions(planned(tmp_path, [1]), 1)
    found = json.loads(json.dumps(report.document(plan)))
    expected = {"staged": False, "run_bytes": 0, "runs": 1, "reason": "", "table_keys": 0}
    assert found["partitions"][0]["division"] == expected


@pytest.mark.parametrize("memory", [64 * MB, 100_000])
def test_records_are_looked_up_in_a_table_if_little_is_dirty_and_it_fits(memory: int, tmp_path: Path) -> None:
    plan = with_divisions(planned(tmp_path, [17], first_dirty=15, memory=memory), 1)
    (found,) = divisions(plan)
    title = "little is dirty, so all records are looked up in a table of the dirty keys:"
    assert (title in report.lines(plan)) == (memory > MB)
    if memory > MB:
        lines = list(report.lines(plan))
        assert lines[lines.index(title) + 1] == "  t-0: at most 2 keys"
    assert found.table_keys == (2 if memory > MB else 0)


def test_records_are_compared_in_chunks_if_much_is_dirty(tmp_path: Path) -> None:
    assert divisions(with_divisions(planned(tmp_path, [17], first_dirty=13), 1)) == [Division()]


def test_a_task_looks_records_up_where_the_plan_says_so(tmp_path: Path) -> None:
    for first_dirty in (13, 15):
        plan = with_divisions(planned(tmp_path, [17] if first_dirty == 13 else [], first_dirty=first_dirty), 2)
        (task,) = tasks_of(plan, PosixFileSystem().location())
        assert with_probing(task, 2).probing == (divisions(plan)[0].table_keys > 0) == (first_dirty == 15)


@pytest.mark.parametrize("first_dirty", [13, 15])
def test_the_result_says_whether_records_were_looked_up(first_dirty: int, tmp_path: Path) -> None:
    planned(tmp_path / "log", [17])
    result = clean(
        str(tmp_path / "log"),
        output=str(tmp_path / "copy"),
        overrides=["cleanup.policy=compact"],
        high_watermark="end",
        ignore_ratio=True,
        single_copy=True,
        first_dirty=first_dirty,
        engine="here",
    )
    line = "records looked up in a table of dirty keys, as little was dirty: 1 partition"
    is_little = first_dirty == 15
    assert (line in clean_report.lines(result)) == is_little
    assert clean_report.document(result)["partitions"][0]["probed"] == is_little


@pytest.mark.parametrize("cores", [1, 4])
def test_what_kafkas_offset_map_limits_is_never_divided(cores: int, tmp_path: Path) -> None:
    plan = with_divisions(planned(tmp_path, [130], strict_kafka=True), cores)
    assert divisions(plan) == [Division()]
