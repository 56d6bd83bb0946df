"""Output formats of `dump`: a `Printer` turns batches, records and other entries into lines: text, JSON, or a pattern.

A line with a key, value or header larger than `LARGE_BYTES` is made in pieces.
"""

from __future__ import annotations

import functools
import itertools
import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cordwood.cli import large
from cordwood.cli.large import SHOWN_BYTES
from cordwood.cli.values import (
    BY_FORMAT,
    PIECES_FOR_PEOPLE,
    PIECES_IN_JSON,
    Decode,
    DecodedForm,
    Shown,
    ShownAs,
    ValueFormat,
    for_people,
    in_json,
    json_string,
    quoted,
    start_for_people,
    time_text,
)
from cordwood.common.errors import RequestError
from cordwood.common.types import NONE
from cordwood.record.batch import Batch
from cordwood.record.record import read_varint
from cordwood.storage.formats.filenames import BOOTSTRAP_CHECKPOINT, CLUSTER_METADATA_TOPIC

#: A decoded RECORD_ROW: offset, timestamp, batch, start and size of key and of value, start and number of headers.
Row = tuple[int, int, int, int, int, int, int, int, int]
#: Decoded control record: the name of its type, and a marker's coordinator epoch.
Control = tuple[str | None, int | None]
Fields = Mapping[str, object]
#: A header in the encoded data: its name and its value.
HeaderViews = tuple[memoryview, memoryview | None]

#: Maximum number of a record's headers in a line for people.
_SHOWN_HEADERS = 1000


@dataclass(frozen=True, slots=True)
class LineOrigin:
    """The file that lines are from, and its partition if the directory name identifies it."""

    file: str
    topic: str | None = None
    partition: int | None = None


def _as_bytes(key: memoryview | None, value: memoryview | None, control: str | None) -> tuple[None, str]:
    return None, ""


def _decoder(place: LineOrigin, form: DecodedForm) -> Decode:
    """Return the decoder for a file's records: by name for internal topics, else none."""
    is_bootstrap = posixpath.basename(place.file) == BOOTSTRAP_CHECKPOINT
    if not is_bootstrap and not (place.topic or "").startswith("__"):
        return _as_bytes
    # Import here: only internal topics need it.
    from cordwood.cli.decoded import decoder

    return decoder(CLUSTER_METADATA_TOPIC if is_bootstrap else place.topic, form) or _as_bytes


class Printer(Protocol):
    """Makes lines, each with its line end. Call `begin` before the lines of a file.

    Lines of records are yielded in pieces; the caller writes each piece before it requests the next, as a line may be
    of any length.
    """

    def begin(self, place: LineOrigin) -> None:
        """Set the file that the following lines are about."""
        ...

    def batch(self, batch: Batch) -> bytes:
        """Format a batch, or a message or wrapper of an old format."""
        ...

    def records(
        self, data: memoryview, rows: Sequence[Row], batch: Batch, controls: Sequence[Control]
    ) -> Iterator[bytes]:
        """Format records of one batch. `controls` has an entry per record of a control batch, and is empty
        otherwise.
        """
        ...

    def entry(self, kind: str, fields: Fields) -> bytes:
        """Format an entry of another file, bytes at a file's end ("rest"), or damage ("damage")."""
        ...


def _batch_fields(batch: Batch) -> dict[str, object]:
    """Return the fields of a batch's header; null where its format lacks the field."""
    is_wrapper = batch.magic < 2 and batch.record_count < 0
    return {
        "position": batch.position,
        "size": batch.size_bytes,
        "magic": batch.magic,
        "base_offset": None if is_wrapper and batch.base_offset == NONE else batch.base_offset,
        "last_offset": batch.last_offset,
        "count": None if is_wrapper else batch.record_count,
        "leader_epoch": batch.leader_epoch,
        "crc": f"{batch.crc:08x}",
        "valid": batch.is_valid,
        "codec": batch.codec_label,
        "timestamp_type": batch.timestamp_type.label,
        "transactional": batch.is_transactional,
        "control": batch.is_control,
        "delete_horizon_ms": batch.delete_horizon_ms,
        "attributes": batch.attributes,
        "base_timestamp": batch.base_timestamp,
        "max_timestamp": batch.max_timestamp,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        "last_sequence": batch.last_sequence,
    }


def _key_and_value(data: memoryview, row: Row) -> tuple[memoryview | None, memoryview | None]:
    """Return the bytes of a record's key and value."""
    _, _, _, key, key_size, value, value_size, _, _ = row
    return (
        None if key_size < 0 else data[key : key + key_size],
        None if value_size < 0 else data[value : value + value_size],
    )


def _header_views(data: memoryview, row: Row) -> Iterator[HeaderViews]:
    """Yield the headers of a record without copying them."""
    at, count = row[-2:]
    for _ in range(count):
        size, at = read_varint(data, at)
        name = data[at : at + size]
        at += size
        size, at = read_varint(data, at)
        yield name, None if size < 0 else data[at : at + size]
        at += max(size, 0)


def _has_large_headers(data: memoryview, row: Row) -> bool:
    """Whether the headers of a record are too many or too large for one string."""
    size = 0
    for number, (name, value) in enumerate(_header_views(data, row)):
        size += len(name) + (0 if value is None else len(value))
        if number >= _SHOWN_HEADERS or size > large.LARGE_BYTES:
            return True
    return False


def _header_name(data: memoryview) -> str:
    """Decode the name of a header; replace bytes that are not UTF-8, as Kafka's clients do."""
    return str(data, "utf-8", "replace")


class _Lines:
    """Pending lines. A large cell is a mark in its line; its pieces are kept separately."""

    #: A mark. Marks are wide, so that no cell is padded with spaces after a large value; shown text has no zero byte.
    _MARK = re.compile("\0([0-9]+) *\0")

    def __init__(self, heading: str = "") -> None:
        self._lines = [heading]
        self._size = 0
        self._pieces: list[Iterator[bytes]] = []

    def cell(self, shown: Shown, data: memoryview | None) -> str:
        """Return a key or value as part of a line."""
        if data is not None and shown.pieces is not None and len(data) > large.LARGE_BYTES:
            return self.large_cell(shown.pieces(data))
        return shown.text(data)

    def large_cell(self, pieces: Iterator[bytes]) -> str:
        """Return the mark that represents these pieces in a line."""
        self._pieces.append(pieces)
        return f"\0{len(self._pieces) - 1:<40}\0"

    def add(self, line: str) -> bool:
        """Add a line. Return True when the caller should `take` the lines."""
        self._lines.append(line)
        self._size += len(line)
        return self._size > large.LARGE_BYTES or bool(self._pieces)

    def take(self) -> Iterator[bytes]:
        """Yield and forget the added lines."""
        text = "".join(self._lines)
        self._lines, self._size = [], 0
        if not self._pieces:
            yield text.encode("utf-8", "surrogateescape")
            return
        parts = self._MARK.split(text)
        for at, part in enumerate(parts):
            if at % 2:
                yield from self._pieces[int(part)]
            else:
                yield part.encode("utf-8", "surrogateescape")
        self._pieces = []


class JsonPrinter:
    """Prints a JSON object per line. With `decode`, decodes records of internal topics."""

    def __init__(
        self,
        key_format: ValueFormat,
        value_format: ValueFormat,
        *,
        decode: bool = True,
        shown: ShownAs = BY_FORMAT,
    ) -> None:
        self._decoder = functools.partial(_decoder, form=DecodedForm.JSON) if decode else lambda _: _as_bytes
        self._key, self._value, self._header = (
            Shown(in_json(one), PIECES_IN_JSON[one]) for one in (key_format, value_format, ValueFormat.UTF8)
        )
        self._key, self._value = shown.key or self._key, shown.value or self._value

    def begin(self, place: LineOrigin) -> None:
        """See Printer."""
        self._where = {"topic": place.topic, "partition": place.partition}
        self._file = place.file
        self._decode = self._decoder(place)
        self._record = _object({"type": "record", **self._where})[:-1]

    def batch(self, batch: Batch) -> bytes:
        """See Printer."""
        return _line({"type": "batch", **self._where, "file": self._file, **_batch_fields(batch)})

    def records(
        self, data: memoryview, rows: Sequence[Row], batch: Batch, controls: Sequence[Control]
    ) -> Iterator[bytes]:
        """See Printer."""
        of_batch = f'"timestamp_type":"{batch.timestamp_type.label}","leader_epoch":{batch.leader_epoch}'
        lines = _Lines()
        for i, row in enumerate(rows):
            key, value = _key_and_value(data, row)
            headers = self._headers(data, row, lines) if row[-1] else ""
            control = ""
            if controls:
                control = f",{_object(dict(zip(('control', 'coordinator_epoch'), controls[i], strict=True)))[1:-1]}"
            content, problem = self._decode(key, value, controls[i][0] if controls else None)
            if content is None:
                shown = f'"key":{lines.cell(self._key, key)},"value":{lines.cell(self._value, value)}'
                content = f"{shown}{problem}"
            line = (
                f'{self._record},"offset":{row[0]},"timestamp":{row[1]},{of_batch}{control},'
                f'{content},"headers":[{headers}]}}\n'
            )
            if lines.add(line):
                yield from lines.take()
        yield from lines.take()

    def entry(self, kind: str, fields: Fields) -> bytes:
        """See Printer."""
        return _line({"type": kind, "file": self._file, **fields})

    def _headers(self, data: memoryview, row: Row, lines: _Lines) -> str:
        if _has_large_headers(data, row):
            return lines.large_cell(self._header_pieces(data, row))
        views = _header_views(data, row)
        pairs = (f"[{json_string(_header_name(name))},{self._header.text(value)}]" for name, value in views)
        return ",".join(pairs)

    def _header_pieces(self, data: memoryview, row: Row) -> Iterator[bytes]:
        for number, (name, value) in enumerate(_header_views(data, row)):
            lines = _Lines()
            lines.add(f"{',' if number else ''}[{json_string(_header_name(name))},{lines.cell(self._header, value)}]")
            yield from lines.take()


def _object(fields: Fields) -> str:
    return json.dumps(fields, separators=(",", ":"))


def _line(fields: Fields) -> bytes:
    return _object(fields).encode() + b"\n"


class TextPrinter:
    """Prints a line per batch and record for people, under a heading per file.

    Shortens a long key, value or header unless `full`. With `decode`, decodes records of internal topics.
    """

    def __init__(
        self,
        key_format: ValueFormat,
        value_format: ValueFormat,
        *,
        full: bool = False,
        decode: bool = True,
        shown: ShownAs = BY_FORMAT,
    ) -> None:
        self._key, self._value, self._header = (
            Shown(for_people(one), PIECES_FOR_PEOPLE[one]) if full else Shown(start_for_people(one), None)
            for one in (key_format, value_format, ValueFormat.UTF8)
        )
        self._key, self._value = shown.key or self._key, shown.value or self._value
        self._full = full
        form = DecodedForm.FULL if full else DecodedForm.START
        self._decoder = functools.partial(_decoder, form=form) if decode else lambda _: _as_bytes
        self._heading = ""

    def begin(self, place: LineOrigin) -> None:
        """See Printer."""
        self._heading = f"# {plain(place.file)}\n"
        self._decode = self._decoder(place)

    def batch(self, batch: Batch) -> bytes:
        """See Printer."""
        fields = _batch_fields(batch)
        cells = [f"{name}={_shown(name, fields[name])}".ljust(width) for name, width in _BATCH_CELLS.items()]
        if batch.producer_id != NONE:
            cells += [f"{name}={fields[name]}" for name in _PRODUCER_CELLS]
        cells += [name for name in ("transactional", "control") if fields[name]]
        if batch.delete_horizon_ms is not None:
            cells.append(f"delete_horizon={time_text(batch.delete_horizon_ms)}")
        cells.append(f"crc={fields['crc']}")
        cells.append("valid" if batch.is_valid else f"INVALID (computed {batch.computed_crc:08x})")
        return self._lines([f"batch  {' '.join(cells)}\n"])

    def records(
        self, data: memoryview, rows: Sequence[Row], batch: Batch, controls: Sequence[Control]
    ) -> Iterator[bytes]:
        """See Printer."""
        lines = _Lines(self._heading)
        self._heading = ""
        for i, row in enumerate(rows):
            key, value = _key_and_value(data, row)
            line = f"record {f'offset={row[0]}':<18} time={time_text(row[1]):<24}"
            if controls:
                kind, epoch = controls[i]
                line += f" control={kind or 'unreadable'}"
                line += "" if epoch is None else f" coordinator_epoch={epoch}"
            content, problem = self._decode(key, value, controls[i][0] if controls else None)
            if content is not None:
                line += content
            elif not controls or controls[i][1] is None:
                line += f" {f'key={lines.cell(self._key, key)}':<20} value={lines.cell(self._value, value)}{problem}"
            if row[-1]:
                line += f" headers=[{self._headers(data, row, lines)}]"
            if lines.add(f"{line}\n"):
                yield from lines.take()
        yield from lines.take()

    def _headers(self, data: memoryview, row: Row, lines: _Lines) -> str:
        if self._full and _has_large_headers(data, row):
            return lines.large_cell(self._header_pieces(data, row))
        views = itertools.islice(_header_views(data, row), _SHOWN_HEADERS)
        more = f", … ({row[-1]:,} headers)" if row[-1] > _SHOWN_HEADERS else ""
        return ", ".join(f"{self._header_name(name)}={self._header.text(value)}" for name, value in views) + more

    def _header_pieces(self, data: memoryview, row: Row) -> Iterator[bytes]:
        for number, (name, value) in enumerate(_header_views(data, row)):
            lines = _Lines()
            lines.add(f"{', ' if number else ''}{self._header_name(name)}={lines.cell(self._header, value)}")
            yield from lines.take()

    def _header_name(self, name: memoryview) -> str:
        if self._full or len(name) <= SHOWN_BYTES:
            return quoted(_header_name(name).encode())
        return f"{quoted(_header_name(large.start(name)).encode())}… ({len(name):,} bytes)"

    def entry(self, kind: str, fields: Fields) -> bytes:
        """See Printer."""
        name = "DAMAGE" if kind == "damage" else kind
        is_place = "what" in fields
        cells = [
            f"{field}={_shown(field, value)}".ljust(_PLACE_CELL if is_place else _ENTRY_CELL)
            for field, value in fields.items()
            if field != "what" and not (is_place and value is None)
        ]
        what = f" {fields['what']}" if is_place else ""
        return self._lines([f"{name:<6} {' '.join(cells).rstrip()}{what}\n"])

    def _lines(self, lines: Sequence[str]) -> bytes:
        heading, self._heading = self._heading, ""
        return (heading + "".join(lines)).encode("utf-8", "surrogateescape")


#: Cells of a batch's line and their usual widths.
_BATCH_CELLS = {
    "base_offset": 17,
    "last_offset": 17,
    "position": 18,
    "size": 12,
    "count": 10,
    "magic": 7,
    "codec": 12,
    "leader_epoch": 15,
    "timestamp_type": 25,
    "base_timestamp": 39,
    "max_timestamp": 38,
    "attributes": 13,
}
_PRODUCER_CELLS = ("producer_id", "producer_epoch", "base_sequence", "last_sequence")
_PLACE_CELL = 18
_ENTRY_CELL = 24


def _shown(name: str, value: object) -> str:
    if isinstance(value, int) and name.endswith("timestamp"):
        return time_text(value)
    return plain(value) if isinstance(value, str) else json.dumps(value)


def plain(text: str) -> str:
    """Return a name unchanged, or in quotes if it has spaces or unprintable characters."""
    harmless = text.isprintable() and not set(text) & {'"', "\\", " "}
    return text if harmless and text else quoted(text.encode("utf-8", "surrogateescape"))


# ---- records by a pattern, as kcat prints them -----------------------------------------------------------------------


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
        return self.key(_key_and_value(self.data, self.row)[0])

    def shown_value(self) -> bytes | Iterator[bytes]:
        if self.control is not None and self.control[1] is not None:
            return b"coordinator_epoch=%d" % self.control[1]
        return self.value(_key_and_value(self.data, self.row)[1])

    def headers(self) -> bytes | Iterator[bytes]:
        if _has_large_headers(self.data, self.row):
            return self._header_pieces()
        pairs = ((_header_name(name).encode(), value) for name, value in _header_views(self.data, self.row))
        return b",".join(name + b"=" + (b"NULL" if value is None else value) for name, value in pairs)

    def _header_pieces(self) -> Iterator[bytes]:
        for number, (name, value) in enumerate(_header_views(self.data, self.row)):
            yield (b"," if number else b"") + _header_name(name).encode() + b"="
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
