"""The time of day, passed in: everything is decided as of one time, and a test may say which."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Returns the time in milliseconds since 1970.
Clock = Callable[[], int]


def system_clock() -> int:
    """The time that this machine's clock shows, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
