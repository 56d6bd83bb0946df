"""The two clocks, passed as arguments, so that a test may move them.

wall        the time of day, for records and for people; it can be set, even by hours
monotonic   advances evenly from an arbitrary start; for delays, periods and timeouts
"""

from __future__ import annotations

import time
from collections.abc import Callable

#: Returns milliseconds; the wall clock counts them since 1970.
Clock = Callable[[], int]


def system_clock() -> int:
    """Return the time of this machine's wall clock."""
    return time.time_ns() // 1_000_000


def monotonic_clock() -> int:
    """Return the time of this machine's monotonic clock."""
    return time.monotonic_ns() // 1_000_000
