"""Requirements of an executor, checked before its first task."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cordwood.common.errors import RequestError
from cordwood.fs.posix import PosixFileSystem
from cordwood.tasks.spark import executors, probe
from cordwood.tasks.spark.executors import check_executors, faults
from cordwood.tasks.spark.runner import SessionRunner

pytestmark = pytest.mark.more

FOLDER = "/shared/run"


def answers(**other: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """An executor's answer, and this process's environment."""
    here = probe.environment()
    return copy.deepcopy({**here, "file": "probe 1", "paths": {"/logs/a-0": "0" * 64}, **other}), here


def first_fault(answer: dict[str, Any], here: dict[str, Any], **other: Any) -> str:
    known = {"/logs/a-0": "0" * 64}
    return next((f"{fault}. {advice}" for fault, advice in faults(answer, here, known, "probe 1", FOLDER, **other)), "")


def test_an_executor_like_this_process_has_no_fault() -> None:
    assert first_fault(*answers(), needs="") == ""


@pytest.mark.parametrize(
    ("name", "version", "said"),
    [
        ("cordwood", "0.0.1", "it has cordwood 0.0.1, and this process has "),
        ("numba", None, "numba is not installed for its Python, /usr/bin/python"),
    ],
)
def test_other_versions_are_refused(name: str, version: str | None, said: str) -> None:
    answer, here = answers(executable="/usr/bin/python")
    answer["versions"][name] = version
    assert first_fault(answer, here, needs="").startswith(said)
    assert "`cordwood pack`" in first_fault(answer, here, needs="")


def test_another_user_is_refused() -> None:
    said = first_fault(*answers(uid=os.getuid() + 1), needs="")
    assert said.startswith(f"it runs as the user with number {os.getuid() + 1}, and this process as {os.getuid()}")


def test_a_folder_of_the_same_name_on_another_machine_is_refused() -> None:
    missing, another = answers(file="No such file or directory"), answers(file="probe 2")
    assert "has written to /shared/run: No such file or directory. All machines" in first_fault(*missing, needs="")
    assert first_fault(*another, needs="Share it").endswith("probe 2. Share it")


def test_another_log_of_the_same_name_is_refused() -> None:
    other, missing = answers(paths={"/logs/a-0": "1" * 64}), answers(paths={"/logs/a-0": "Permission denied"})
    assert "a-0 at /logs/a-0 has other segments there" in first_fault(*other, needs="")
    assert "a-0 at /logs/a-0 cannot be read: Permission denied there" in first_fault(*missing, needs="")


def test_a_log_is_known_by_its_closed_segments(tmp_path: Path) -> None:
    for name in ("0.log", "5.log", "9.log", "5.index"):
        (tmp_path / name).write_bytes(b"data")
    before = probe.identity(str(tmp_path))
    (tmp_path / "9.log").write_bytes(b"more data")  # a broker appends
    (tmp_path / "5.index").unlink()
    assert probe.identity(str(tmp_path)) == before
    os.utime(tmp_path / "5.log", ns=(0, 1))
    assert probe.identity(str(tmp_path)) != before
    assert probe.identity(str(tmp_path / "missing")) == "No such file or directory"


def test_a_users_local_session_is_asked_once(spark: SparkSession, tmp_path: Path) -> None:
    executors._passed.clear()
    for _ in range(2):
        check_executors(SessionRunner(spark), PosixFileSystem(), str(tmp_path), ["/missing"])
    assert executors._passed == {spark.sparkContext.applicationId}
    assert os.listdir(tmp_path) == []


def test_workers_that_cannot_run_are_refused_in_words(spark: SparkSession, tmp_path: Path) -> None:
    executors._passed.clear()
    python = spark.sparkContext.pythonExec
    spark.sparkContext.pythonExec = str(tmp_path / "python")
    try:
        with pytest.raises(RequestError, match=f"there is no Python {tmp_path}/python. Give the executors"):
            check_executors(SessionRunner(spark), None, "", ())
    finally:
        spark.sparkContext.pythonExec = python
