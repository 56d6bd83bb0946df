r"""Java's properties format, as `java.util.Properties.load` of JDK 17 reads it: Latin-1, one key and value per line.

    # comment                      also with !
    key=value                      also `key: value` and `key value`; blanks around the separator do not count
    long = a, \
        b                          an odd number of backslashes at its end continues a line; leading blanks are dropped
    tab=\t  e=\u00e9             escapes; a backslash before any other character is dropped

If a key occurs more than once, the last value counts. Kafka reads `server.properties` and `meta.properties` with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile

# Whitespace excludes the vertical tab, unlike in regular expressions.
_BLANK = " \t\f"
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_KEY = re.compile(rf"((?:[^\\=:{_BLANK}]|\\.)*)[{_BLANK}]*[=:]?[{_BLANK}]*", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class PropertiesError(ValueError):
    """A backslash and `u` without four hexadecimal digits, where Java's parser throws."""

    def __init__(self, line: str, position: int) -> None:
        super().__init__(f"\\u without four hexadecimal digits in {line!r}")
        self.line = line
        self.position = position


@dataclass(frozen=True, slots=True)
class Property:
    """One entry of a properties file, or a comment or blank line.

    Attributes:
        text: the line as in the file, including its line end; several lines if it is continued.
        key: None for a comment or blank line.
        value: None for a comment or blank line.
    """

    text: str
    key: str | None = None
    value: str | None = None


@dataclass(frozen=True, slots=True)
class Properties:
    """A properties file: all of its lines, in order."""

    entries: tuple[Property, ...] = ()

    def values(self) -> dict[str, str]:
        """Return keys and values; for a repeated key the last value."""
        return {one.key: one.value for one in self.entries if one.key is not None and one.value is not None}


def decode(data: bytes) -> Properties:
    """Parse a properties file, keeping comments and blank lines, which Java drops."""
    text = data.decode("latin-1")
    entries: list[Property] = []
    start = position = 0
    logical, continued = "", False
    for match in _LINE.finditer(text):
        position = match.end()
        line = match[0].rstrip("\r\n").lstrip(_BLANK)
        if not logical and (not line or line[0] in "#!"):
            entries.append(Property(text[start:position]))
            start, continued = position, False
            continue
        slashes = sum(1 for _ in takewhile("\\".__eq__, reversed(line)))
        continued = slashes % 2 == 1
        logical += line[:-1] if continued else line
        if not continued:
            entries.append(_parse(text[start:position], logical, start))
            start, logical = position, ""
    if continued:
        entries.append(_parse(text[start:], logical, start))
    return Properties(tuple(entries))


def encode(properties: Properties) -> bytes:
    """Encode a properties file; returns the bytes that it was decoded from."""
    return "".join(one.text for one in properties.entries).encode("latin-1")


def _parse(text: str, logical: str, position: int) -> Property:
    match = _KEY.match(logical)
    assert match, "every part of the pattern may be empty"
    try:
        return Property(text, _unescape(match[1]), _unescape(logical[match.end() :]))
    except ValueError:
        raise PropertiesError(logical, position) from None


def _unescape(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        code = match[1]
        if code == "u":
            raise ValueError(text)
        return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPED.get(code, code)

    # \u escapes are UTF-16: two of them may form one character, and a lone surrogate stays, as in Java.
    return _ESCAPE.sub(character, text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
