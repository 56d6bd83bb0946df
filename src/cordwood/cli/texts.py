"""Bytes and times as text in a line of `dump`."""

from __future__ import annotations

from datetime import date
from functools import lru_cache
from json.encoder import encode_basestring, encode_basestring_ascii

from cordwood.common.types import NONE


def quoted(data: memoryview | bytes) -> str:
    r"""Quote bytes as text; escape all but printable UTF-8 as \n, \t, \r or byte by byte as \xNN."""
    text = str(data, "utf-8", "surrogateescape")
    if not text.isprintable() or '"' in text or "\\" in text:
        text = "".join(map(_escaped, text))
    return f'"{text}"'


@lru_cache(1024)
def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def json_string(text: str) -> str:
    """Encode a text as JSON; escape non-ASCII characters unless all are harmless on a terminal."""
    return encode_basestring(text) if text.isprintable() else encode_basestring_ascii(text)


def time_text(timestamp: int) -> str:
    """Format milliseconds since the epoch as ISO time in UTC; outside of the calendar, as the bare number."""
    day, millis = divmod(timestamp, 86_400_000)
    name = _day(day)
    if timestamp == NONE or not name:
        return "none" if timestamp == NONE else str(timestamp)
    seconds, millis = divmod(millis, 1000)
    return f"{name}T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{millis:03}Z"


@lru_cache(1024)
def _day(day: int) -> str:
    try:
        return date.fromordinal(day + date(1970, 1, 1).toordinal()).isoformat()
    except (ValueError, OverflowError):
        return ""
