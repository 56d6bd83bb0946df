"""Unsuitable sessions are refused with a clear message."""

from __future__ import annotations

import os
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import cordwood
from cordwood.common.errors import RequestError
from cordwood.common.types import TopicPartition
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.record import Record
from cordwood.tasks.spark.executors import check_python, check_version
from tests.tables.source.random_logs import NOW_MS, Writer

pytestmark = pytest.mark.more

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
