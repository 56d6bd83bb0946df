r"""How `dump` shows bytes, and reads those that users write.

Keys and values are bytes. Each `ValueFormat` shows some of them. What it cannot show is shown another way, which cannot
be mistaken for it, so nothing is ever lost:

              for people                                  in JSON               else, and in JSON
    utf8      "text", with \n \t \r \" \\ and \xNN        "text"                (nothing)  {"hex": "…"}
    hex       00ff                                        "00ff"
    base64    AP8=                                        "AP8="
    json      the JSON value                              the JSON value        hex:00ff   {"hex": "…"}
    int       -5, of 1, 2, 4 or 8 bytes, big-endian       -5                    hex:00ff   {"hex": "…"}

Of a key, value or header of more than `SHOWN_BYTES` people are shown the start and its size, unless they ask for all
(`--full`); the start of a JSON value is no JSON, and is shown as utf8. A value of more than 16 MiB is shown by json as
what is no JSON. Null is null everywhere. (A JSON value may itself be {"hex": "…"}; only json within JSON is ambiguous.)
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from json.encoder import encode_basestring_ascii

from cordwood.cli import large
from cordwood.cli.large import SHOWN_BYTES, Pieces
from cordwood.cli.texts import json_string, quoted
from cordwood.errors import RequestError

Show = Callable[[memoryview | None], str]

#: A value above this is not looked at as JSON: to parse it takes many times its size in memory.
JSON_BYTES_MAX = 16 << 20


class ValueFormat(StrEnum):
    """How keys or values are shown."""

    UTF8 = "utf8"
    HEX = "hex"
    BASE64 = "base64"
    JSON = "json"
    INT = "int"


# ---- bytes as text ---------------------------------------------------------------------------------------------------


def _utf8(data: memoryview) -> str | None:
    try:
        return json_string(str(data, "utf-8"))
    except UnicodeDecodeError:
        return None


def _json(data: memoryview) -> str | None:
    """The JSON text in these bytes, digit by digit as it stands there but in one line."""
    try:
        text = str(data, "utf-8")
        _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    # Line breaks and tabs can only stand between its tokens, other characters that don't print only in its strings.
    return _NOT_PRINTED.sub(_as_escape, text.translate({9: " ", 10: " ", 13: " "}).strip())


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _as_escape(match: re.Match[str]) -> str:
    return match[0] if match[0].isprintable() else encode_basestring_ascii(match[0])[1:-1]


# Numbers stay text: whatever their length, they are shown as they stand.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse)
_NOT_PRINTED = re.compile(r"[^ -~]")


def _int(data: memoryview) -> str | None:
    return str(int.from_bytes(data, "big", signed=True)) if len(data) in (1, 2, 4, 8) else None


def _base64(data: memoryview) -> str:
    return base64.b64encode(data).decode()


_FOR_PEOPLE: Mapping[ValueFormat, Callable[[memoryview], str | None]] = {
    ValueFormat.UTF8: quoted,
    ValueFormat.HEX: memoryview.hex,
    ValueFormat.BASE64: _base64,
    ValueFormat.JSON: _json,
    ValueFormat.INT: _int,
}
_IN_JSON: Mapping[ValueFormat, Callable[[memoryview], str | None]] = {
    ValueFormat.UTF8: _utf8,
    ValueFormat.HEX: lambda data: f'"{data.hex()}"',
    ValueFormat.BASE64: lambda data: f'"{_base64(data)}"',
    ValueFormat.JSON: _json,
    ValueFormat.INT: _int,
}


def for_people(value_format: ValueFormat) -> Show:
    """What shows a key or value to people."""
    show = _FOR_PEOPLE[value_format]

    def shown(data: memoryview | None) -> str:
        if data is None:
            return "null"
        text = show(data)
        return f"hex:{data.hex()}" if text is None else text

    return shown


def in_json(value_format: ValueFormat) -> Show:
    """What shows a key or value as JSON."""
    show = _IN_JSON[value_format]

    def shown(data: memoryview | None) -> str:
        if data is None:
            return "null"
        text = show(data)
        return f'{{"hex":"{data.hex()}"}}' if text is None else text

    return shown


def start_for_people(value_format: ValueFormat) -> Show:
    """What shows a key or value to people, but only the start of a long one and its size."""
    show = for_people(value_format)
    # The start of a JSON value is no JSON.
    show_start = for_people(ValueFormat.UTF8 if value_format is ValueFormat.JSON else value_format)

    def shown(data: memoryview | None) -> str:
        if data is None or len(data) <= SHOWN_BYTES:
            return show(data)
        is_text = value_format in (ValueFormat.UTF8, ValueFormat.JSON)
        return f"{show_start(large.start(data) if is_text else data[:SHOWN_BYTES])}… ({len(data):,} bytes)"

    return shown


def _json_pieces(
    data: memoryview, shown: Callable[[ValueFormat], Show], before: bytes, behind: bytes
) -> Iterator[bytes]:
    """A JSON value, if it is not too large to find out whether it is one."""
    if len(data) <= JSON_BYTES_MAX:
        yield shown(ValueFormat.JSON)(data).encode()
    else:
        yield from large.between(before, large.hexadecimal(data), behind)


PIECES_FOR_PEOPLE: Mapping[ValueFormat, Pieces] = {
    ValueFormat.UTF8: large.quoted,
    ValueFormat.HEX: large.hexadecimal,
    ValueFormat.BASE64: large.base64,
    ValueFormat.JSON: lambda data: _json_pieces(data, for_people, b"hex:", b""),
    ValueFormat.INT: lambda data: large.between(b"hex:", large.hexadecimal(data), b""),
}
PIECES_IN_JSON: Mapping[ValueFormat, Pieces] = {
    ValueFormat.UTF8: large.json_text,
    ValueFormat.HEX: lambda data: large.between(b'"', large.hexadecimal(data), b'"'),
    ValueFormat.BASE64: lambda data: large.between(b'"', large.base64(data), b'"'),
    ValueFormat.JSON: lambda data: _json_pieces(data, in_json, b'{"hex":"', b'"}'),
    ValueFormat.INT: large.json_hex_object,
}


@dataclass(frozen=True, slots=True)
class Shown:
    """How keys, or values, or headers are shown.

    Attributes:
        text: the whole of one as text.
        pieces: a large one in pieces; None where `text` is short, however large it is.
    """

    text: Show
    pieces: Pieces | None


@dataclass(frozen=True, slots=True)
class ShownAs:
    """What shows keys and values in the place of their formats; None: the format does."""

    key: Shown | None = None
    value: Shown | None = None


BY_FORMAT = ShownAs()


# ---- what users write ------------------------------------------------------------------------------------------------


def parse_bytes(text: str) -> bytes:
    """Text, or bytes after `hex:` or `base64:`."""
    try:
        if text.startswith("hex:"):
            return bytes.fromhex(text[4:])
        if text.startswith("base64:"):
            return base64.b64decode(text[7:], validate=True)
    except (ValueError, binascii.Error) as error:
        raise RequestError(f"{text!r} is not {text.partition(':')[0]}: {error}") from None
    return text.encode("utf-8", "surrogateescape")


def parse_offsets(text: str) -> tuple[int | None, int | None]:
    """FROM, FROM:TO, FROM: or :TO; TO is not included."""
    match = re.fullmatch(r"([0-9]{1,19})?(?:(:)([0-9]{1,19})?)?", text, re.ASCII)
    if match is None or not text or text == ":":
        raise RequestError(f"{text!r} is not a range of offsets like 100 (and all after it) or 100:200 (200 left out)")
    return tuple(None if number is None else int(number) for number in match.group(1, 3))  # type: ignore[return-value]
