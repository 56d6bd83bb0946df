"""Keys and values as a decoder gives them, in `dump`: the choice that `get` and `table` have, schemas included.

What cannot be decoded is shown as `hex:00ff`, in JSON as `{"hex": "00ff"}`, as by the formats of `cli.values`.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from cordwood.cli.texts import json_string, quoted
from cordwood.cli.values import Show, Shown
from cordwood.decoders.choice import decoder_of
from cordwood.fs.base import Store
from cordwood.report.values import as_json


def shown_by(decoder: str, fs: Store, *, in_json: bool) -> Shown:
    """What shows keys or values by a decoder.

    Args:
        decoder: as `decoder_of` takes it.

    Raises:
        RequestError, NotFoundError: see `decoder_of`.
    """
    chosen = decoder_of(decoder, fs)

    def decode(data: memoryview) -> tuple[Any, bool]:
        found = chosen.decode(pa.array([bytes(data)], pa.binary()))
        return found.values[0].as_py(), bool(found.problems)

    return Shown(_in_json(decode, chosen.is_json) if in_json else _for_people(decode, chosen.is_json), None)


def _in_json(decode: Any, is_json: bool) -> Show:
    def shown(data: memoryview | None) -> str:
        if data is None:
            return "null"
        value, is_wrong = decode(data)
        if is_wrong:
            return f'{{"hex":"{data.hex()}"}}'
        if is_json and value is not None:
            return str(value)
        return json_string(value) if isinstance(value, str) else json.dumps(value, default=as_json)

    return shown


def _for_people(decode: Any, is_json: bool) -> Show:
    def shown(data: memoryview | None) -> str:
        if data is None:
            return "null"
        value, is_wrong = decode(data)
        if is_wrong:
            return f"hex:{data.hex()}"
        if is_json:
            return str(value)
        return quoted(value.encode()) if isinstance(value, str) else json.dumps(value, default=as_json)

    return shown
