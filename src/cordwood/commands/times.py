"""Parses times in the formats that people write."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from cordwood.common.clock import system_clock
from cordwood.common.errors import RequestError

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_time(text: str) -> int:
    """Parse milliseconds since the epoch, an ISO time (default zone UTC), or an age such as 5m, to milliseconds."""
    if re.fullmatch(r"-?[0-9]{1,19}", text, re.ASCII):
        return int(text)
    if age := re.fullmatch(r"([0-9]{1,9})(ms|s|m|h|d)", text, re.ASCII):
        return system_clock() - int(age[1]) * _UNITS_MS[age[2]]
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        what = "no time: give 2026-11-21T09:25:45Z, milliseconds since the epoch, or an age such as 5m (ms, s, m, h, d)"
        raise RequestError(f"{text!r} is {what}") from None
    time = time.replace(tzinfo=UTC) if time.tzinfo is None else time
    since = time - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000
