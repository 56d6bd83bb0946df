"""Sessions that cannot do what is asked of them are refused in words."""

from __future__ import annotations

import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.errors import RequestError
from cordwood.spark.requirements import check_python, check_version


class OldSession:
    """All that is looked at of a session that is too old."""

    version = "4.1.0"


@pytest.mark.parametrize("version", ["3.5.1", "4.1.0", "4.1.0.dev3"])
def test_a_spark_that_is_too_old_is_refused_and_a_newer_one_is_not(version: str) -> None:
    with pytest.raises(RequestError, match=f"This is Spark {version}, and Cordwood needs 4.2 or newer"):
        check_version(version)
    for new in ("4.2.0", "4.3.0", "5.0.0-preview1"):
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


def test_workers_without_the_package_are_refused_with_what_to_set(tmp_path: Path) -> None:
    check_python(sys.executable)
    venv.create(tmp_path / "other", symlinks=True)
    python = str(tmp_path / "other" / "bin" / "python")
    for other in (python, "no-such-python"):
        with pytest.raises(RequestError, match=f"run {other}, which has no Cordwood.* PYSPARK_PYTHON={sys.executable}"):
            check_python(other)
