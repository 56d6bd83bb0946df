"""Parses times as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from cordwood.errors import RequestError


def parse_time(text: str) -> int:
    """Milliseconds since the epoch, from just that or from an ISO time; without a zone it is UTC."""
    if re.fullmatch(r"-?[0-9]{1,19}", text, re.ASCII):
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        what = "neither milliseconds since the epoch nor a time like 2026-11-21T09:25:45Z"
        raise RequestError(f"{text!r} is {what}") from None
    time = time.replace(tzinfo=UTC) if time.tzinfo is None else time
    since = time - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000
