"""Long lists of which a run takes a share: another one every time, and all of them when asked.

CORDWOOD_KAFKA_SEED  decides which; default: another one every time
CORDWOOD_SHARE       one in so many; default 4, 1 takes all
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

#: The processes of one run (pytest-xdist) have to agree on it; they inherit it.
SEED = int(os.environ.setdefault("CORDWOOD_KAFKA_SEED", str(int(time.time()))))
SHARE = int(os.environ.get("CORDWOOD_SHARE", "4"))


def drawn(items: Sequence[T]) -> list[T]:
    """Those that this run takes."""
    return [item for at, item in enumerate(items) if at % SHARE == SEED % SHARE]
