"""Keys and values in a cell of a table."""

from __future__ import annotations

from cordwood.common.text import printable


def cut_off(text: str, characters_max: int) -> str:
    """Cut a text to the size of a cell. Only its start is made printable, so a huge text costs little."""
    text = printable(text[: characters_max + 1])
    return text if len(text) <= characters_max else f"{text[: characters_max - 1]}…"
