"""Environment variables of a test run. A run without any of these is a function of the commit.

CORDWOOD_SEED           seed of random logs, scripts and examples; `now` uses the time, and the last lines show it
CORDWOOD_EFFORT         multiplies counts: logs, scripts, kills, power cuts, seconds; `full` takes the full counts
CORDWOOD_REWRITE        1 rewrites expectations, pages and recorded answers, to be reviewed as a diff
CORDWOOD_REQUIRE_KAFKA  1 lets a test fail, rather than skip, where Kafka's classes cannot run, or there is no
                        browser, no axe-core or no Prometheus
CORDWOOD_PICTURES       a folder that the tests of pages leave pictures of them in
CORDWOOD_TURN           3/8 takes every eighth slow test, the fourth eighth of them, and every second test of
                        `make test-all`; without it all run

Hypothesis derives its examples from each test's source, unless a seed is given.
"""

from __future__ import annotations

import math
import os
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

T = TypeVar("T")

FIXED_SEED = 20_261_122
#: A run takes one of this number of items of a long list.
_SHARE = 24


def _is_set(name: str) -> bool:
    return os.environ.get(name, "") not in ("", "0")


if os.environ.get("CORDWOOD_SEED") == "now":
    # The processes of one run (pytest-xdist) inherit the seed, so that they agree on it.
    os.environ["CORDWOOD_SEED"] = str(int(time.time()))
#: Whether this run draws other data than the gate does.
IS_FRESH = bool(os.environ.get("CORDWOOD_SEED"))
SEED = int(os.environ["CORDWOOD_SEED"]) if IS_FRESH else FIXED_SEED
EFFORT = {"full": math.inf}.get(effort := os.environ.get("CORDWOOD_EFFORT") or "1") or float(effort)
IS_FULL = math.inf == EFFORT
REWRITE = _is_set("CORDWOOD_REWRITE")
REQUIRE_KAFKA = _is_set("CORDWOOD_REQUIRE_KAFKA")
PICTURES = os.path.abspath(os.environ["CORDWOOD_PICTURES"]) if os.environ.get("CORDWOOD_PICTURES") else ""
TURN, TURNS = (int(number) for number in (os.environ.get("CORDWOOD_TURN") or "0/1").split("/"))


def scaled(usual: int, full: int) -> int:
    """Number of cases that a run tries: `usual` times the effort, from 1 to `full`."""
    return full if IS_FULL else max(1, min(full, round(usual * EFFORT)))


def step(usual: int) -> int:
    """Distance between the items that a run takes from a sequence, at this run's effort; `usual` at effort 1."""
    return max(1, round(usual / EFFORT))


def drawn(items: Sequence[T]) -> list[T]:
    """The items of a long list that this run takes: at least one, and over all seeds each of them."""
    share = step(_SHARE)
    return list(items[SEED % min(share, len(items)) :: share])


def in_turns(items: Iterable[T], *always: T, ids: Callable[[T], str] = str) -> list[ParameterSet]:
    """Parameters of a test: `always` in each run, the other items as slow tests, which have turns."""
    return [pytest.param(item, id=ids(item), marks=[] if item in always else [pytest.mark.slow]) for item in items]


def has_its_turn(name: str, turns: int = TURNS) -> bool:
    """Whether a test is in this run, if such tests have a number of turns."""
    turns = min(turns, TURNS)
    return zlib.crc32(name.encode()) % turns == TURN % turns
