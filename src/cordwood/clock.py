"""The two clocks, passed in, so that a test may move them.

wall        the time of day, for records and for people; somebody may set it, by hours too
monotonic   goes on evenly, from any start; for delays, periods and timeouts
"""

from __future__ import annotations

import time
from collections.abc import Callable

#: Returns milliseconds: of the wall clock since 1970.
Clock = Callable[[], int]


def system_clock() -> int:
    """The wall clock of this machine."""
    return time.time_ns() // 1_000_000


def monotonic_clock() -> int:
    """The monotonic clock of this machine."""
    return time.monotonic_ns() // 1_000_000
