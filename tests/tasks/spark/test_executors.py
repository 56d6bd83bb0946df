"""Requirements of an executor, checked before its first task."""

from __future__ import annotations

import copy
import os
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

import cordwood
from cordwood.common.errors import RequestError
from cordwood.common.types import TopicPartition
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.record import Record
from cordwood.tasks.spark import executors, probe
from cordwood.tasks.spark.executors import check_executors, check_python, check_version, faults
from cordwood.tasks.spark.runner import SessionRunner
from tests.tables.source.random_logs import NOW_MS, Writer

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


# ---- requirements ----------------------------------------------------------------------------------------------------


if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class OldSession:
    """All that is looked at of a session that is too old."""

    version = "4.1.0"


@pytest.mark.parametrize("version", ["3.5.1", "4.2.0", "4.2.0.dev3"])
def test_a_spark_that_is_too_old_is_refused_and_a_newer_one_is_not(version: str) -> None:
    with pytest.raises(RequestError, match=f"This is Spark {version}, and Cordwood needs 4.3 or newer"):
        check_version(version)
    for new in ("4.3.0", "5.0.0-preview1"):
        check_version(new)


@pytest.mark.parametrize(
    "ask",
    [
        cordwood.register,
        lambda spark: cordwood.latest_table(spark, "logs"),
        lambda spark: cordwood.internal_dataframe(spark, "logs", record="OffsetCommit"),
    ],
)
def test_given_a_session_that_is_too_old_all_that_takes_one_says_so(ask: Callable[[Any], object]) -> None:
    with pytest.raises(RequestError, match=r"This is Spark 4\.1\.0"):
        ask(OldSession())


def test_workers_without_the_package_or_of_another_version_are_refused(tmp_path: Path) -> None:
    check_python(sys.executable)
    venv.create(tmp_path / "other", symlinks=True)
    python = str(tmp_path / "other" / "bin" / "python")
    older = tmp_path / "older"
    older.write_text("#!/bin/sh\necho 3.8 True\n")
    older.chmod(0o755)
    mine = "{}.{}".format(*sys.version_info[:2])
    for other, fault in (
        (python, "which has no Cordwood"),
        ("no-such-python", "which does not exist"),
        (str(older), f"which is Python 3.8; this process runs {mine}"),
    ):
        with pytest.raises(RequestError, match=f"run {other}, {fault}.* PYSPARK_PYTHON={sys.executable}"):
            check_python(other)


def test_without_activation_workers_run_the_python_of_the_program(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "python3")
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    logs = str(tmp_path / "logs")
    writer = Writer(PosixFileSystem(), logs, ())
    writer.append(TopicPartition("orders", 0), [Record(at, NOW_MS, b"key", b"value", ()) for at in range(2)])
    writer.manager.shutdown()
    cordwood.register(spark)
    assert spark.read.format("cordwood").load(logs).count() == 2
    assert spark.sparkContext.pythonExec == sys.executable


def test_a_python_that_the_user_chose_is_refused_before_any_task_runs(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "no-such-python")
    for ask in (cordwood.register, lambda spark: cordwood.latest_table(spark, "logs")):
        with pytest.raises(RequestError, match="run no-such-python, which does not exist"):
            ask(spark)
