"""Cleans in a pool have the same output as on Spark; options that only Spark has are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cordwood.api import clean, clean_in_place, plan_exact
from cordwood.cleaning.engine.results import Fate
from cordwood.common.errors import RequestError
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.workspace import leftovers
from tests.commands.in_process import InThisProcess
from tests.fixtures import copy_of, fixture

OPTIONS: dict[str, Any] = {"now_ms": 1_900_000_000_000, "single_copy": True, "ignore_ratio": True}


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["kraft-before", pytest.param("kraft-classic-before", marks=pytest.mark.more)])
def test_a_pool_makes_the_copy_that_one_process_makes(tmp_path: Path, name: str) -> None:
    read: list[int] = []
    here = clean(
        str(fixture(name)),
        output=str(tmp_path / "here"),
        engine="here",
        on_progress=read.append,
        rate=1 << 40,
        **OPTIONS,
    )
    alone = clean(str(fixture(name)), output=str(tmp_path / "alone"), spark=InThisProcess(), **OPTIONS)  # type: ignore[arg-type]
    assert contents(tmp_path / "here") == contents(tmp_path / "alone")
    assert here.counts == alone.counts
    assert len(here.with_fate(Fate.CLEANED)) == len(alone.with_fate(Fate.CLEANED)) > 0
    assert leftovers(PosixFileSystem(), str(tmp_path / "here")) == []


@pytest.mark.more
def test_a_pool_cleans_in_place_what_it_cleans_into_a_copy(tmp_path: Path) -> None:
    mine = copy_of(fixture("kraft-before"), tmp_path / "mine")
    copy = clean(str(mine), output=str(tmp_path / "copy"), engine="here", **OPTIONS)
    exact = plan_exact(str(mine), engine="here", **OPTIONS)
    result = clean_in_place(str(mine), engine="here", **OPTIONS)
    found, expected = contents(mine), contents(tmp_path / "copy")
    assert {name: found[name] for name in found if name.endswith(".log")} == {
        name: expected[name] for name in expected if name.endswith(".log")
    }
    assert result.counts == copy.counts == exact.result.counts
    assert result.in_place is not None and result.in_place.verified, "it was proved, in the pool, too"


@pytest.mark.parametrize(
    "choice", [{"master": "local[2]"}, {"archive": "environment.tar.gz"}, {"spark": InThisProcess()}]
)
def test_options_of_spark_are_refused_with_another_engine(tmp_path: Path, choice: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="engine='here' runs without Spark"):
        clean(str(fixture("kraft-before")), output=str(tmp_path / "copy"), engine="here", **OPTIONS, **choice)
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="engine='dask': give here or spark"):
        clean(str(fixture("kraft-before")), output=str(tmp_path / "copy"), engine="dask", **OPTIONS)
