r"""Reads small text files and numbers like Kafka's Java code.

Kafka keeps offsets, epochs and topic ids in short text files and parses them with Java's own parsers, so Java defines
lines, spaces, digits and numbers: lines end with `\n`, `\r` or `\r\n`, only the six ASCII characters are space, and
`+007` is seven.

Checkpoint files, both of offsets and of leader epochs, share one frame:

    0              version
    2              number of entries
    foo 0 17       one entry per line, its fields separated by single spaces; every line ends with \n
    bar 3 4
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Collection

from cordwood.common.errors import CorruptFileError, TextProblem
from cordwood.fs.base import Bytes

SPACE = " \t\n\x0b\f\r"

_SPACES = re.compile(f"[{SPACE}]+")
_LINE_END = re.compile(r"\r\n|\r|\n")
_CHECKPOINT_VERSION = 0


def parse_integer(text: str, bits: int) -> int | None:
    """Parse a number like Java's Integer.parseInt (32 bits) or Long.parseLong (64 bits).

    Returns:
        the number, or None where Java throws: no digits, spaces, other characters after one sign, out of range.
    """
    sign, digits = (text[0], text[1:]) if text.startswith(("+", "-")) else ("+", text)
    if not digits.isdecimal() or max(digits) > "\uffff":  # Java reads UTF-16 units, and surrogates are not digits
        return None
    if not digits.isascii():
        digits = "".join(str(unicodedata.decimal(digit)) for digit in digits)
    digits = digits.lstrip("0") or "0"
    if len(digits) > 19:  # int() of untrusted text must not take quadratic time
        return None
    number = int(sign + digits)
    return number if -(1 << bits - 1) <= number < 1 << bits - 1 else None


def split(pattern: re.Pattern[str], text: str) -> list[str]:
    """Split like Java's Pattern.split: drop empty parts at the end, and keep one at the start."""
    parts = pattern.split(text)
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return parts if parts[-1] or not text else []


def lines(data: Bytes, path: str | None = None) -> list[str]:
    """Split a UTF-8 file into lines, without their ends.

    Raises:
        CorruptFileError: the bytes are not UTF-8; carries the position of the first invalid byte.
    """
    try:
        text = bytes(data).decode()
    except UnicodeDecodeError as error:
        what = "the text is not UTF-8"
        raise CorruptFileError(what, kind=TextProblem.MALFORMED, path=path, position=error.start) from None
    found = _LINE_END.split(text)
    return found if found[-1] else found[:-1]


def shown(text: str) -> str:
    """Quote and shorten untrusted text for a message."""
    return repr(text if len(text) <= 80 else text[:80] + "…")


def parse_json(text: str) -> object:
    """Parse the first JSON value in a text and, like Jackson, ignore anything after it; None without one."""
    try:
        return _JSON.raw_decode(text.lstrip(" \t\r\n"))[0]
    except (ValueError, RecursionError):
        return None


def _refuse_constant(name: str) -> object:
    raise ValueError(name)  # Python's json accepts NaN and Infinity, Jackson does not


_JSON = json.JSONDecoder(parse_constant=_refuse_constant)


def decode_checkpoint(data: Bytes, form: str, path: str | None = None) -> list[tuple[int, list[str]]]:
    """Split a checkpoint file into the fields of its entries.

    Kafka creates the file empty before its first write; an empty file has no entries, and neither has a file that ends
    after its version.

    Args:
        form: the names of an entry's fields, as `topic partition offset`.

    Returns:
        for each entry its line number, from 1, and its fields.

    Raises:
        CorruptFileError: not UTF-8, another version, a line with other fields, or a wrong number of entries.
    """
    found = lines(data, path)
    if not found:
        return []
    version = _number(1, found[0], "version", path)
    if version != _CHECKPOINT_VERSION:
        what = f"line 1: version {version}, only {_CHECKPOINT_VERSION} is known"
        raise CorruptFileError(what, kind=TextProblem.MALFORMED, path=path)
    if len(found) == 1:
        return []
    announced = _number(2, found[1], "number of entries", path)
    if announced < 0:
        what = f"line 2 announces {announced} entries, the file has {len(found) - 2}"
        raise CorruptFileError(what, kind=TextProblem.VALUE, path=path)
    width = len(form.split())
    entries = []
    for number, line in enumerate(found[2:], start=3):
        fields = split(_SPACES, line)
        if len(fields) != width:
            what = f"line {number} is not '{form}': {shown(line)}"
            raise CorruptFileError(what, kind=TextProblem.MALFORMED, path=path)
        entries.append((number, fields))
    if len(entries) != announced:
        what = f"line 2 announces {announced} entries, the file has {len(entries)}"
        raise CorruptFileError(what, kind=TextProblem.MALFORMED, path=path)
    return entries


def encode_checkpoint(entries: Collection[str]) -> bytes:
    """Encode the lines of a checkpoint file."""
    return "".join(f"{line}\n" for line in (str(_CHECKPOINT_VERSION), str(len(entries)), *entries)).encode()


def entry_number(line: int, name: str, text: str, bits: int, path: str | None) -> int:
    """Parse a number in an entry of a checkpoint file; an error names the line."""
    return _number(line, text, name, path, bits=bits, kind=TextProblem.VALUE)


def _number(
    line: int,
    text: str,
    name: str,
    path: str | None,
    *,
    bits: int = 32,
    kind: TextProblem = TextProblem.MALFORMED,
) -> int:
    """Parse a number; `kind` reflects that Kafka handles errors in the first two lines and in entries differently."""
    number = parse_integer(text, bits)
    if number is None:
        raise CorruptFileError(f"line {line}: {name} {shown(text)} is not a {bits}-bit integer", kind=kind, path=path)
    return number
