r"""Formats in which `dump` shows bytes, and parsers of bytes and offsets that users type.

Keys and values are bytes. Each `ValueFormat` can show some bytes. All others are shown in a second form that cannot be
mistaken for the first, so nothing is ever lost:

              for people                                  in JSON               else, and in JSON
    utf8      "text", with \n \t \r \" \\ and \xNN        "text"                (nothing)  {"hex": "…"}
    hex       00ff                                        "00ff"
    base64    AP8=                                        "AP8="
    json      the JSON value                              the JSON value        hex:00ff   {"hex": "…"}
    int       -5, of 1, 2, 4 or 8 bytes, big-endian       -5                    hex:00ff   {"hex": "…"}

A key, value or header of more than `SHOWN_BYTES` is shortened for people and followed by its size, unless they choose
`--full`. The start of a JSON value is not JSON, so it is shown as utf8. The json format does not parse a value of more
than 16 MiB, and shows it as it shows values that are not JSON. Null is always null. (A JSON value may itself be
{"hex": "…"}; only json within JSON is ambiguous.)
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from enum import Enum, StrEnum
from functools import lru_cache
from json.encoder import encode_basestring, encode_basestring_ascii

from cordwood.cli import large
from cordwood.cli.large import SHOWN_BYTES, Pieces
from cordwood.common.errors import RequestError
from cordwood.common.types import NONE

Show = Callable[[memoryview | None], str]

#: Decodes a record's key, its value and the type of a control record. Returns the decoded record or None, and the text
#: that the line shows of a problem.
Decode = Callable[[memoryview | None, memoryview | None, str | None], tuple[str | None, str]]

#: Size above which a value is not parsed as JSON: parsing takes many times its size in memory.
JSON_BYTES_MAX = 16 << 20


class ValueFormat(StrEnum):
    """Format of keys or values."""

    UTF8 = "utf8"
    HEX = "hex"
    BASE64 = "base64"
    JSON = "json"
    INT = "int"


class DecodedForm(Enum):
    """How `dump` shows records of internal topics: shortened or in full for people, or as JSON."""

    START = "start"
    FULL = "full"
    JSON = "json"


# ---- texts, numbers and times ----------------------------------------------------------------------------------------


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


def _utf8(data: memoryview) -> str | None:
    try:
        return json_string(str(data, "utf-8"))
    except UnicodeDecodeError:
        return None


def _json(data: memoryview) -> str | None:
    """Return the JSON text in these bytes, with every digit unchanged but on one line."""
    try:
        text = str(data, "utf-8")
        _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    # Line breaks and tabs occur only between its tokens; other unprintable characters only in its strings.
    return _NOT_PRINTED.sub(_as_escape, text.translate({9: " ", 10: " ", 13: " "}).strip())


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _as_escape(match: re.Match[str]) -> str:
    return match[0] if match[0].isprintable() else encode_basestring_ascii(match[0])[1:-1]


# Keep numbers as text, so that they are shown unchanged at any length.
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
    """Return a function that shows a key or value to people."""
    show = _FOR_PEOPLE[value_format]

    def shown(data: memoryview | None) -> str:
        if data is None:
            return "null"
        text = show(data)
        return f"hex:{data.hex()}" if text is None else text

    return shown


def in_json(value_format: ValueFormat) -> Show:
    """Return a function that shows a key or value as JSON."""
    show = _IN_JSON[value_format]

    def shown(data: memoryview | None) -> str:
        if data is None:
            return "null"
        text = show(data)
        return f'{{"hex":"{data.hex()}"}}' if text is None else text

    return shown


def start_for_people(value_format: ValueFormat) -> Show:
    """Return a function that shows people the start of a long key or value, followed by its size."""
    show = for_people(value_format)
    # The start of a JSON value is not JSON.
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
    """Yield a value as JSON if it is JSON and small enough to parse."""
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
    """Functions that show keys, values or headers.

    Attributes:
        text: the whole value as text.
        pieces: a large value in pieces; None if `text` is always short.
    """

    text: Show
    pieces: Pieces | None


@dataclass(frozen=True, slots=True)
class ShownAs:
    """How keys and values are shown instead of by their formats; None uses the format."""

    key: Shown | None = None
    value: Shown | None = None


BY_FORMAT = ShownAs()


# ---- user input ------------------------------------------------------------------------------------------------------


def parse_bytes(text: str) -> bytes:
    """Parse text, or bytes after `hex:` or `base64:`."""
    try:
        if text.startswith("hex:"):
            return bytes.fromhex(text[4:])
        if text.startswith("base64:"):
            return base64.b64decode(text[7:], validate=True)
    except (ValueError, binascii.Error) as error:
        raise RequestError(f"{text!r} is not {text.partition(':')[0]}: {error}") from None
    return text.encode("utf-8", "surrogateescape")


def parse_offsets(text: str) -> tuple[int | None, int | None]:
    """Parse FROM, FROM:TO, FROM: or :TO; TO is not included."""
    match = re.fullmatch(r"([0-9]{1,19})?(?:(:)([0-9]{1,19})?)?", text, re.ASCII)
    if match is None or not text or text == ":":
        raise RequestError(f"{text!r} is not a range of offsets like 100 (and all after it) or 100:200 (200 left out)")
    return tuple(None if number is None else int(number) for number in match.group(1, 3))  # type: ignore[return-value]
