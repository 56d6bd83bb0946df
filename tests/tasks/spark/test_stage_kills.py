"""Kills and losses in every stage of a clean by many tasks: the result is the same, and no file is left over.

`tests/tasks/spark/killing.py` has the cases. A killed driver cannot remove its work folder; then the directory is
unchanged except for that folder, and the next clean has the same result.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.commands.killing import wait_for
from tests.summary import lines_of
from tests.tasks.spark.killed_cleans import LOCAL, Cleans, run_all
from tests.tasks.spark.killing import FEW_CLUSTER, FEW_LOCAL, chosen, table
from tests.tasks.spark.standalone import Cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds Spark's processes in /proc"),
]


def test_a_clean_survives_what_is_killed_or_lost_in_any_stage(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    cases = chosen(FEW_LOCAL, all_=True)
    with Cleans(LOCAL, tmp_path, list) as cleans:
        run_all(cleans, cases)
    record_property(*lines_of(table(LOCAL, cases)))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with contextlib.ExitStack() as started:
        with monkeypatch.context() as patch:
            patch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))
            found = started.enter_context(Cluster(tmp_path / "spark"))
        yield found


@pytest.mark.cluster
def test_a_clean_on_a_cluster_survives_what_is_killed_or_lost_in_any_stage(
    cluster: Cluster, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    cases = chosen(FEW_CLUSTER, all_=False)
    folder = tmp_path / "cleans"
    folder.mkdir()
    with Cleans(cluster.url, folder, cluster.executors) as cleans:
        run_all(cleans, cases)
    assert wait_for(lambda: not [path for path in (tmp_path / "local").rglob("*") if path.is_file()])
    record_property(*lines_of(table("a cluster", cases)))
