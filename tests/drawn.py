"""What a run draws: seeds of random logs and scripts, and the share of long lists that it takes.

A run is a function of the commit: the seed is fixed, and Hypothesis derives its examples from each test's source.
Fresh data takes a switch, and a run with a seed of its own can be repeated:

CORDWOOD_FRESH=1     takes the seed from the clock; the run's last lines show it
CORDWOOD_KAFKA_SEED  gives the seed, such as that of a fresh run that failed
CORDWOOD_SHARE       takes one of so many items of a long list, by the seed; default 24, 1 takes all

Tests that take long have their turns: of CORDWOOD_TURNS (default 1: all run) this run takes CORDWOOD_TURN. The gate
gets its turn from the commit, so that some dozens of commits have run each test.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

_NAME = "CORDWOOD_KAFKA_SEED"
_FIXED_SEED = 20_261_122

if os.environ.get("CORDWOOD_FRESH", "") not in ("", "0") and not os.environ.get(_NAME):
    # The processes of one run (pytest-xdist) have to agree on the seed; they inherit it.
    os.environ[_NAME] = str(int(time.time()))
#: Whether this run draws other data than the gate does.
FRESH = bool(os.environ.get(_NAME))
SEED = int(os.environ[_NAME]) if FRESH else _FIXED_SEED
TURNS = int(os.environ.get("CORDWOOD_TURNS", "1"))
TURN = int(os.environ.get("CORDWOOD_TURN", "0")) % TURNS
SHARE = int(os.environ.get("CORDWOOD_SHARE", "24"))


def drawn(items: Sequence[T]) -> list[T]:
    """Those that this run takes: at least one, and over all seeds each of them."""
    return list(items[SEED % min(SHARE, len(items)) :: SHARE])


def has_its_turn(name: str) -> bool:
    """Whether a test that takes long is one of this run."""
    return zlib.crc32(name.encode()) % TURNS == TURN
