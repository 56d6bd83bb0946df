"""`cordwood bench --tier` prints requests, memory and times of logs in a tier; the bounds hold for small logs, too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import run

pytestmark = pytest.mark.more


def test_requests_and_memory_stay_within_their_bounds(tmp_path: Path) -> None:
    done = run("bench", "--tier", "--size", "10", "--passes", "1", "--dir", tmp_path, "--json")
    found = {one["title"]: one for one in json.loads(done.stdout)}
    assert not list(tmp_path.iterdir())
    for title, one in found.items():
        if one["limit"] is not None and not title.startswith("restore"):
            assert one["value"] <= one["limit"], one
    assert sum(one["unit"] == "GETs" for one in found.values()) >= 4
    assert all(one["value"] > 0 for one in found.values())
