"""Keys and values as a decoder renders them in `dump`: the same decoders as in `get` and `table`, schemas included.

A value that the decoder rejects is shown as `hex:00ff`, in JSON as `{"hex": "00ff"}`, as `cli.values` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from cordwood.cli.texts import json_string, quoted
from cordwood.cli.values import Show, Shown
from cordwood.common.json_text import json_text
from cordwood.fs.base import Store
from cordwood.tables.decoders.choice import decoder_of


def shown_by(decoder: str, fs: Store, *, in_json: bool) -> Shown:
    """Return how a decoder shows keys or values.

    Args:
        decoder: a decoder's name, as `decoder_of` accepts it.

    Raises:
        RequestError, NotFoundError: see `decoder_of`.
    """
    chosen = decoder_of(decoder, fs)

    def decode(data: memoryview) -> tuple[Any, bool]:
        found = chosen.decode(pa.array([bytes(data)], pa.binary()))
        return found.values[0].as_py(), bool(found.problems)

    return Shown(_shown(decode, is_json=chosen.is_json, in_json=in_json), None)


def _shown(decode: Callable[[memoryview], tuple[Any, bool]], *, is_json: bool, in_json: bool) -> Show:
    def shown(data: memoryview | None) -> str:
        if data is None:
            return "null"
        value, is_wrong = decode(data)
        if is_wrong:
            return f'{{"hex":"{data.hex()}"}}' if in_json else f"hex:{data.hex()}"
        if value is None:
            return "null"
        if is_json:
            return str(value)
        if isinstance(value, str):
            return json_string(value) if in_json else quoted(value.encode())
        return json_text(value)

    return shown
