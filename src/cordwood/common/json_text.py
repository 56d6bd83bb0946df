"""Convert any decoded value to valid JSON.

JSON has no bytes, no NaN, no infinities, and a lone surrogate only as an escape. Python's `json` prints NaN and
infinities, which other readers reject, and lone surrogates unescaped, which no terminal can encode. Here

    the bytes 0 and 255   become {"hex": "00ff"}
    NaN, inf, -inf        become "NaN", "Infinity", "-Infinity": Java's names, as Spark writes them
    a lone surrogate      becomes an escape
    any other object      becomes its text
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def real_text(value: float) -> str:
    """Return Java's name for NaN or an infinity."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def json_text(value: Any, *, separators: tuple[str, str] | None = None) -> str:
    """Write a value as JSON."""
    plain = json_value(value)
    text = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=separators)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(plain, allow_nan=False, separators=separators)
    return text


def json_value(value: Any) -> Any:
    """Convert a value to types that JSON supports."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else real_text(value)
        case bytes() | bytearray() | memoryview():
            return {"hex": value.hex()}
        case Mapping():
            return {str(name): json_value(one) for name, one in value.items()}
        case list() | tuple():
            return [json_value(one) for one in value]
        case _:
            return str(value)
