"""Kills and losses in every stage of a clean in a pool: the result is the same, and no file is left over."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.summary import lines_of
from tests.tasks.spark.killed_cleans import Cleans, run_all
from tests.tasks.spark.killing import FEW_LOCAL, HERE, Case, chosen, table

pytestmark = pytest.mark.more

FEW = (*FEW_LOCAL, Case("executor", "check"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_clean_in_a_pool_survives_what_is_killed_or_lost_in_any_stage(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    cases = chosen(FEW, all_=True)
    with Cleans(HERE, tmp_path, list) as cleans:
        run_all(cleans, cases)
    record_property(*lines_of(table("a pool", cases)))
