"""Keys and values in a cell of a table, and in JSON."""

from __future__ import annotations

from typing import Any

from cordwood.text import printable


def cut_off(text: str, characters_max: int) -> str:
    """The start of a text, for a cell. Only that start is looked at."""
    text = printable(text[: characters_max + 1])
    return text if len(text) <= characters_max else f"{text[: characters_max - 1]}…"


def as_json(value: Any) -> Any:
    """What JSON has no type for: bytes are {"hex": "…"}."""
    return {"hex": value.hex()} if isinstance(value, bytes | bytearray) else str(value)
