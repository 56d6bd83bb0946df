"""`cordwood cache`: lists the caches of this user, and removes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import run_alone

pytestmark = pytest.mark.more


def cache(folder: Path, *words: str) -> str:
    return run_alone("cache", *words, environment={"CORDWOOD_CACHE": str(folder)}).stdout


def test_caches_are_listed_and_removed_and_what_others_put_there_stays(tmp_path: Path) -> None:
    folder = tmp_path / "cordwood"
    (folder / "kernels-12").mkdir(parents=True)
    (folder / "kernels-12" / "a.nbi").write_bytes(bytes(2000))
    (folder / "java-12-34.jsa").write_bytes(bytes(3000))
    (folder / "mine").write_text("stays")
    listed = cache(tmp_path, "--json")
    found = {one["what"]: one["size_bytes"] for one in json.loads(listed)["cached"]}
    assert found["class archives for Java"] == 3000 and found["compiled kernels"] >= 2000
    assert f"{folder}: removed" in cache(tmp_path, "--drop")
    assert "mine" in {one.name for one in folder.iterdir()}
    assert not list(folder.glob("java-*"))


def test_an_empty_cache_says_so(tmp_path: Path) -> None:
    assert cache(tmp_path) == f"{tmp_path}/cordwood: nothing is cached\n"
