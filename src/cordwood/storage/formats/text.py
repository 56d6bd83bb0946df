r"""Small text files and numbers, read the way Kafka's Java reads them.

Kafka keeps offsets, epochs and topic ids in short text files and trusts Java's own parsers with them, so what counts as
a line, a space, a digit or a number is Java's opinion: lines end with `\n`, `\r` or `\r\n`, only the six ASCII
characters are space, and `+007` is seven.

Checkpoint files, of offsets as of leader epochs, share one frame:

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

from cordwood.errors import CorruptFileError, TextProblem
from cordwood.fs.base import Bytes

SPACE = " \t\n\x0b\f\r"

_SPACES = re.compile(f"[{SPACE}]+")
_LINE_END = re.compile(r"\r\n|\r|\n")
_CHECKPOINT_VERSION = 0


def parse_integer(text: str, bits: int) -> int | None:
    """The number that Java's Integer.parseInt (32 bits) or Long.parseLong (64 bits) makes of a text.

    Returns:
        the number; None where Java throws: no digits, spaces, anything else than digits after one sign, out of range.
    """
    sign, digits = (text[0], text[1:]) if text.startswith(("+", "-")) else ("+", text)
    if not digits.isdecimal() or max(digits) > "\uffff":  # Java looks at UTF-16 units, and halves are no digits
        return None
    if not digits.isascii():
        digits = "".join(str(unicodedata.decimal(digit)) for digit in digits)
    digits = digits.lstrip("0") or "0"
    if len(digits) > 19:  # int() of untrusted text must not take quadratic time
        return None
    number = int(sign + digits)
    return number if -(1 << bits - 1) <= number < 1 << bits - 1 else None


def split(pattern: re.Pattern[str], text: str) -> list[str]:
    """Java's Pattern.split: empty parts at the end are dropped, one at the start stays."""
    parts = pattern.split(text)
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return parts if parts[-1] or not text else []


def lines(data: Bytes, path: str | None = None) -> list[str]:
    """The lines of a UTF-8 file, without their ends.

    Raises:
        CorruptFileError: the bytes are not UTF-8; carries the position of the first that is not.
    """
    try:
        text = bytes(data).decode()
    except UnicodeDecodeError as error:
        what = "the text is not UTF-8"
        raise CorruptFileError(what, kind=TextProblem.MALFORMED, path=path, position=error.start) from None
    found = _LINE_END.split(text)
    return found if found[-1] else found[:-1]


def shown(text: str) -> str:
    """Untrusted text, short and quoted, for a message."""
    return repr(text if len(text) <= 80 else text[:80] + "…")


def parse_json(text: str) -> object:
    """The first JSON value in a text, with Jackson's tolerance for anything after it; None if there is none."""
    try:
        return _JSON.raw_decode(text.lstrip(" \t\r\n"))[0]
    except (ValueError, RecursionError):
        return None


def _refuse_constant(name: str) -> object:
    raise ValueError(name)  # Python's json takes NaN and Infinity, Jackson does not


_JSON = json.JSONDecoder(parse_constant=_refuse_constant)


def decode_checkpoint(data: Bytes, form: str, path: str | None = None) -> list[tuple[int, list[str]]]:
    """Take a checkpoint file out of its frame.

    An empty file is what Kafka creates before it first writes one, and has no entries; nor has one that ends after its
    version.

    Args:
        form: the names of an entry's fields, as `topic partition offset`.

    Returns:
        per entry its line number, counted from 1, and its fields.

    Raises:
        CorruptFileError: not UTF-8, another version, a line with other fields, not as many entries as announced.
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
    """Frame the lines of a checkpoint file."""
    return "".join(f"{line}\n" for line in (str(_CHECKPOINT_VERSION), str(len(entries)), *entries)).encode()


def entry_number(line: int, name: str, text: str, bits: int, path: str | None) -> int:
    """A number in an entry of a checkpoint file, or the error that names its line."""
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
    """A number; Kafka's reader treats one that is none differently in the first two lines and in entries."""
    number = parse_integer(text, bits)
    if number is None:
        raise CorruptFileError(f"line {line}: {name} {shown(text)} is not a {bits}-bit integer", kind=kind, path=path)
    return number
