"""`dump --format`: print records by a pattern, as kcat does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cordwood.cli import large
from cordwood.cli.formats import (
    Control,
    Fields,
    LineOrigin,
    Row,
    has_large_headers,
    header_name,
    header_views,
    key_and_value,
)
from cordwood.cli.values import (
    BY_FORMAT,
    PIECES_FOR_PEOPLE,
    Shown,
    ShownAs,
    ValueFormat,
    for_people,
)
from cordwood.common.errors import RequestError
from cordwood.common.types import NONE
from cordwood.record.batch import Batch


@dataclass(frozen=True, slots=True)
class _Record:
    """The values that a pattern's letters can print."""

    topic: bytes
    partition: int
    row: Row
    data: memoryview
    key: Callable[[memoryview | None], bytes | Iterator[bytes]]
    value: Callable[[memoryview | None], bytes | Iterator[bytes]]
    control: Control | None = None

    def shown_key(self) -> bytes | Iterator[bytes]:
        if self.control is not None and self.control[0] is not None:
            return self.control[0].encode()
        return self.key(key_and_value(self.data, self.row)[0])

    def shown_value(self) -> bytes | Iterator[bytes]:
        if self.control is not None and self.control[1] is not None:
            return b"coordinator_epoch=%d" % self.control[1]
        return self.value(key_and_value(self.data, self.row)[1])

    def headers(self) -> bytes | Iterator[bytes]:
        if has_large_headers(self.data, self.row):
            return self._header_pieces()
        pairs = ((header_name(name).encode(), value) for name, value in header_views(self.data, self.row))
        return b",".join(name + b"=" + (b"NULL" if value is None else value) for name, value in pairs)

    def _header_pieces(self) -> Iterator[bytes]:
        for number, (name, value) in enumerate(header_views(self.data, self.row)):
            yield (b"," if number else b"") + header_name(name).encode() + b"="
            yield from [b"NULL"] if value is None else large.raw(value)


_LETTERS: Mapping[str, Callable[[_Record], bytes | Iterator[bytes]]] = {
    "t": lambda record: record.topic,
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.row[0],
    "k": _Record.shown_key,
    "s": _Record.shown_value,
    "K": lambda record: b"%d" % record.row[4],
    "S": lambda record: b"%d" % record.row[6],
    "R": lambda record: record.row[6].to_bytes(4, "big", signed=True),
    "T": lambda record: b"%d" % record.row[1],
    "h": _Record.headers,
}
_PIECES = re.compile(r"%(.?)|\\(x[0-9a-fA-F]{1,2}|0[0-7]{0,3}|[1-9][0-9]{0,2}|.)|((?:[^%\\]|\\\Z)+)", re.DOTALL)
_CONTROLS = {"n": b"\n", "r": b"\r", "t": b"\t"}
#: Base of a number after a backslash, by its first character, as in C.
_BASES = {"x": 16, "0": 8, **dict.fromkeys("123456789", 10)}


class PatternPrinter:
    """Prints records by kcat's pattern, with nothing between them; leaves out batches and other lines."""

    def __init__(
        self,
        pattern: str,
        key_format: ValueFormat | None,
        value_format: ValueFormat | None,
        *,
        decode: bool = True,
        shown: ShownAs = BY_FORMAT,
    ) -> None:
        self._decode = decode
        self._pieces = [self._piece(match) for match in _PIECES.finditer(pattern)]
        self._key, self._value = (
            _text(other) if other is not None else _raw if own is None else _encoded(own)
            for own, other in ((key_format, shown.key), (value_format, shown.value))
        )

    @staticmethod
    def _piece(match: re.Match[str]) -> bytes | Callable[[_Record], bytes | Iterator[bytes]]:
        letter, escape, text = match.groups()
        if letter is not None:
            if letter == "%":
                return b"%"
            if letter not in _LETTERS:
                known = " ".join(f"%{one}" for one in _LETTERS)
                raise RequestError(f"%{letter} is not known in --format; there are {known} and %%")
            return _LETTERS[letter]
        if escape is not None:
            if escape[0] in _BASES and escape != "x":
                return bytes([int(escape.lstrip("x"), _BASES[escape[0]]) & 0xFF])
            return _CONTROLS.get(escape, escape.encode("utf-8", "surrogateescape"))
        return text.encode("utf-8", "surrogateescape")

    def begin(self, place: LineOrigin) -> None:
        """See Printer."""
        self._topic = (place.topic or "").encode("utf-8", "surrogateescape")
        self._partition = NONE if place.partition is None else place.partition

    def batch(self, batch: Batch) -> bytes:
        """See Printer."""
        return b""

    def records(
        self, data: memoryview, rows: Sequence[Row], batch: Batch, controls: Sequence[Control]
    ) -> Iterator[bytes]:
        """See Printer."""
        made: list[bytes] = []
        size = 0
        for number, row in enumerate(rows):
            control = controls[number] if controls and self._decode else None
            record = _Record(self._topic, self._partition, row, data, self._key, self._value, control)
            for piece in self._pieces:
                shown = piece if isinstance(piece, bytes) else piece(record)
                if isinstance(shown, bytes):
                    made.append(shown)
                    size += len(shown)
                if size > large.LARGE_BYTES or not isinstance(shown, bytes):
                    yield b"".join(made)
                    made, size = [], 0
                    if not isinstance(shown, bytes):
                        yield from shown
        yield b"".join(made)

    def entry(self, kind: str, fields: Fields) -> bytes:
        """See Printer."""
        return b""


def _raw(data: memoryview | None) -> bytes | Iterator[bytes]:
    if data is None:
        return b""
    return bytes(data) if len(data) <= large.LARGE_BYTES else large.raw(data)


def _text(shown: Shown) -> Callable[[memoryview | None], bytes | Iterator[bytes]]:
    return lambda data: shown.text(data).encode()


def _encoded(value_format: ValueFormat) -> Callable[[memoryview | None], bytes | Iterator[bytes]]:
    show, pieces = for_people(value_format), PIECES_FOR_PEOPLE[value_format]
    return lambda data: show(data).encode() if data is None or len(data) <= large.LARGE_BYTES else pieces(data)
