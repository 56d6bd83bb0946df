r"""How `dump` writes what it finds: bytes as text, and lines as JSON, for people, or after a pattern of the user's.

Keys and values are bytes. Each `ValueFormat` shows some of them, and what it cannot show is shown another way that no
one can mistake for it, so nothing is ever lost:

              for people                                  in JSON               else, and in JSON
    utf8      "text", with \n \t \r \" \\ and \xNN        "text"                (nothing)  {"hex": "…"}
    hex       00ff                                        "00ff"
    base64    AP8=                                        "AP8="
    json      the JSON value                              the JSON value        hex:00ff   {"hex": "…"}
    int       -5, of 1, 2, 4 or 8 bytes, big-endian       -5                    hex:00ff   {"hex": "…"}

Of a key, value or header of more than `SHOWN_BYTES` people are shown the start and its size, unless they ask for all
(`--full`); the start of a JSON value is no JSON and shown as utf8. Lines with a key, value or header larger than
`LARGE_BYTES` are made in pieces. A value of more than 16 MiB is shown by json as what is no JSON.

Null is null everywhere. (A JSON value may itself be {"hex": "…"}; only json within JSON is open to that doubt.)
A `Printer` turns batches, records and the rest into lines of one kind.
"""

from __future__ import annotations

import base64
import binascii
import functools
import itertools
import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from json.encoder import encode_basestring_ascii
from typing import Protocol

from cordwood.cli import large
from cordwood.cli.decoded_form import Decode, DecodedForm
from cordwood.cli.large import SHOWN_BYTES, Pieces
from cordwood.cli.texts import json_string, quoted, time_text
from cordwood.errors import RequestError
from cordwood.record.batch import Batch
from cordwood.record.record import read_varint
from cordwood.storage.formats.filenames import BOOTSTRAP_CHECKPOINT, CLUSTER_METADATA_TOPIC
from cordwood.types import NONE

#: A decoded RECORD_ROW: offset, timestamp, batch, start and size of key and value, start and number of headers.
Row = tuple[int, int, int, int, int, int, int, int, int]
#: What a control record says: its type's name, and of a marker the coordinator epoch.
Control = tuple[str | None, int | None]
Fields = Mapping[str, object]
Show = Callable[[memoryview | None], str]
#: A header as it stands in the data: its name and its value.
HeaderViews = tuple[memoryview, memoryview | None]

#: Keys, values and headers above this are never held as one string.
LARGE_BYTES = 1 << 20
#: A value above this is not looked at as JSON: to parse it takes many times its size in memory.
JSON_BYTES_MAX = 16 << 20
#: Headers of a record that people are shown.
_SHOWN_HEADERS = 1000


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


_PIECES_FOR_PEOPLE: Mapping[ValueFormat, Pieces] = {
    ValueFormat.UTF8: large.quoted,
    ValueFormat.HEX: large.hexadecimal,
    ValueFormat.BASE64: large.base64,
    ValueFormat.JSON: lambda data: _json_pieces(data, for_people, b"hex:", b""),
    ValueFormat.INT: lambda data: large.between(b"hex:", large.hexadecimal(data), b""),
}
_PIECES_IN_JSON: Mapping[ValueFormat, Pieces] = {
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


# ---- lines -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """The file that lines are from, and the partition that it belongs to if its directory tells."""

    file: str
    topic: str | None = None
    partition: int | None = None


def _as_bytes(key: memoryview | None, value: memoryview | None, control: str | None) -> tuple[None, str]:
    return None, ""


def _decoder(place: Place, form: DecodedForm) -> Decode:
    """What decodes the records of a file: those of internal topics by name, others not."""
    is_bootstrap = posixpath.basename(place.file) == BOOTSTRAP_CHECKPOINT
    if not is_bootstrap and not (place.topic or "").startswith("__"):
        return _as_bytes
    # Loaded only for such topics.
    from cordwood.cli.decoded import decoder

    return decoder(CLUSTER_METADATA_TOPIC if is_bootstrap else place.topic, form) or _as_bytes


class Printer(Protocol):
    """Makes lines, each with its end. What is from a file comes after a `begin` with its place.

    Lines of records come in pieces, which are written before the next is asked for: a line may be of any length.
    """

    def begin(self, place: Place) -> None:
        """The lines from here on are about this file."""
        ...

    def batch(self, batch: Batch) -> bytes:
        """A batch, or a message or wrapper of an old format."""
        ...

    def records(
        self, data: memoryview, rows: Sequence[Row], batch: Batch, controls: Sequence[Control]
    ) -> Iterator[bytes]:
        """Records of one batch; in a control batch each has its `Control`, else there are none."""
        ...

    def entry(self, kind: str, fields: Fields) -> bytes:
        """An entry of another file, bytes at a file's end ("rest"), or damage ("damage")."""
        ...


def batch_fields(batch: Batch) -> dict[str, object]:
    """All that a batch's header says; null where its format has no such field."""
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


def _slices(data: memoryview, row: Row) -> tuple[memoryview | None, memoryview | None]:
    _, _, _, key, key_size, value, value_size, _, _ = row
    return (
        None if key_size < 0 else data[key : key + key_size],
        None if value_size < 0 else data[value : value + value_size],
    )


def header_views(data: memoryview, row: Row) -> Iterator[HeaderViews]:
    """The headers of a record, without copying them."""
    at, count = row[-2:]
    for _ in range(count):
        size, at = read_varint(data, at)
        name = data[at : at + size]
        at += size
        size, at = read_varint(data, at)
        yield name, None if size < 0 else data[at : at + size]
        at += max(size, 0)


def _are_large(data: memoryview, row: Row) -> bool:
    """Whether the headers of a record are too many, or too large, for one string."""
    size = 0
    for number, (name, value) in enumerate(header_views(data, row)):
        size += len(name) + (0 if value is None else len(value))
        if number >= _SHOWN_HEADERS or size > LARGE_BYTES:
            return True
    return False


def _name(data: memoryview) -> str:
    """The name of a header; what is not UTF-8 gets replacement characters, as in Kafka's clients."""
    return str(data, "utf-8", "replace")


class _Lines:
    """Lines on their way out; a large cell is a mark in its line, and its pieces stand beside it."""

    #: Wide, so that no cell is filled up with spaces behind a large value. No shown text has a zero byte.
    _MARK = re.compile("\0([0-9]+) *\0")

    def __init__(self, heading: str = "") -> None:
        self._lines = [heading]
        self._size = 0
        self._pieces: list[Iterator[bytes]] = []

    def cell(self, shown: Shown, data: memoryview | None) -> str:
        """A key or value as part of a line."""
        if data is not None and shown.pieces is not None and len(data) > LARGE_BYTES:
            return self.large_cell(shown.pieces(data))
        return shown.text(data)

    def large_cell(self, pieces: Iterator[bytes]) -> str:
        """What stands for these pieces in a line."""
        self._pieces.append(pieces)
        return f"\0{len(self._pieces) - 1:<40}\0"

    def add(self, line: str) -> bool:
        """Add a line. True: it is time to `take` what there is."""
        self._lines.append(line)
        self._size += len(line)
        return self._size > LARGE_BYTES or bool(self._pieces)

    def take(self) -> Iterator[bytes]:
        """All that was added."""
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
    """A JSON object per line. With `decode`, records of internal topics by name."""

    def __init__(self, key_format: ValueFormat, value_format: ValueFormat, *, decode: bool = True) -> None:
        self._decoder = functools.partial(_decoder, form=DecodedForm.JSON) if decode else lambda _: _as_bytes
        self._key, self._value, self._header = (
            Shown(in_json(one), _PIECES_IN_JSON[one]) for one in (key_format, value_format, ValueFormat.UTF8)
        )

    def begin(self, place: Place) -> None:
        """See Printer."""
        self._where = {"topic": place.topic, "partition": place.partition}
        self._file = place.file
        self._decode = self._decoder(place)
        self._record = _object({"type": "record", **self._where})[:-1]

    def batch(self, batch: Batch) -> bytes:
        """See Printer."""
        return _line({"type": "batch", **self._where, "file": self._file, **batch_fields(batch)})

    def records(
        self, data: memoryview, rows: Sequence[Row], batch: Batch, controls: Sequence[Control]
    ) -> Iterator[bytes]:
        """See Printer."""
        of_batch = f'"timestamp_type":"{batch.timestamp_type.label}","leader_epoch":{batch.leader_epoch}'
        lines = _Lines()
        for i, row in enumerate(rows):
            key, value = _slices(data, row)
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
        if _are_large(data, row):
            return lines.large_cell(self._header_pieces(data, row))
        pairs = (f"[{json_string(_name(name))},{self._header.text(value)}]" for name, value in header_views(data, row))
        return ",".join(pairs)

    def _header_pieces(self, data: memoryview, row: Row) -> Iterator[bytes]:
        for number, (name, value) in enumerate(header_views(data, row)):
            lines = _Lines()
            lines.add(f"{',' if number else ''}[{json_string(_name(name))},{lines.cell(self._header, value)}]")
            yield from lines.take()


def _object(fields: Fields) -> str:
    return json.dumps(fields, separators=(",", ":"))


def _line(fields: Fields) -> bytes:
    return _object(fields).encode() + b"\n"


class TextPrinter:
    """A line per batch and record for people, under a heading per file.

    Of a long key, value or header it shows the start, unless `full`. With `decode`, it shows records of internal topics
    by name.
    """

    def __init__(
        self, key_format: ValueFormat, value_format: ValueFormat, *, full: bool = False, decode: bool = True
    ) -> None:
        self._key, self._value, self._header = (
            Shown(for_people(one), _PIECES_FOR_PEOPLE[one]) if full else Shown(start_for_people(one), None)
            for one in (key_format, value_format, ValueFormat.UTF8)
        )
        self._full = full
        form = DecodedForm.FULL if full else DecodedForm.START
        self._decoder = functools.partial(_decoder, form=form) if decode else lambda _: _as_bytes
        self._heading = ""

    def begin(self, place: Place) -> None:
        """See Printer."""
        self._heading = f"# {plain(place.file)}\n"
        self._decode = self._decoder(place)

    def batch(self, batch: Batch) -> bytes:
        """See Printer."""
        fields = batch_fields(batch)
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
            key, value = _slices(data, row)
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
        if self._full and _are_large(data, row):
            return lines.large_cell(self._header_pieces(data, row))
        views = itertools.islice(header_views(data, row), _SHOWN_HEADERS)
        more = f", … ({row[-1]:,} headers)" if row[-1] > _SHOWN_HEADERS else ""
        return ", ".join(f"{self._header_name(name)}={self._header.text(value)}" for name, value in views) + more

    def _header_pieces(self, data: memoryview, row: Row) -> Iterator[bytes]:
        for number, (name, value) in enumerate(header_views(data, row)):
            lines = _Lines()
            lines.add(f"{', ' if number else ''}{self._header_name(name)}={lines.cell(self._header, value)}")
            yield from lines.take()

    def _header_name(self, name: memoryview) -> str:
        if self._full or len(name) <= SHOWN_BYTES:
            return quoted(_name(name).encode())
        return f"{quoted(_name(large.start(name)).encode())}… ({len(name):,} bytes)"

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


#: Cells of a batch's line and the width they mostly have.
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
    """A name as it is; in quotes where it has spaces or what does not print."""
    harmless = text.isprintable() and not set(text) & {'"', "\\", " "}
    return text if harmless and text else quoted(text.encode("utf-8", "surrogateescape"))


# ---- kcat's patterns -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Record:
    """What a letter of a pattern can ask for."""

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
        return self.key(_slices(self.data, self.row)[0])

    def shown_value(self) -> bytes | Iterator[bytes]:
        if self.control is not None and self.control[1] is not None:
            return b"coordinator_epoch=%d" % self.control[1]
        return self.value(_slices(self.data, self.row)[1])

    def headers(self) -> bytes | Iterator[bytes]:
        if _are_large(self.data, self.row):
            return self._header_pieces()
        pairs = ((_name(name).encode(), value) for name, value in header_views(self.data, self.row))
        return b",".join(name + b"=" + (b"NULL" if value is None else value) for name, value in pairs)

    def _header_pieces(self) -> Iterator[bytes]:
        for number, (name, value) in enumerate(header_views(self.data, self.row)):
            yield (b"," if number else b"") + _name(name).encode() + b"="
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
#: The base of a number behind a backslash; its first character decides, as in C.
_BASES = {"x": 16, "0": 8, **dict.fromkeys("123456789", 10)}


class PatternPrinter:
    """Records after kcat's pattern, nothing between or behind them; batches and other lines are left out."""

    def __init__(
        self, pattern: str, key_format: ValueFormat | None, value_format: ValueFormat | None, *, decode: bool = True
    ) -> None:
        self._decode = decode
        self._pieces = [self._piece(match) for match in _PIECES.finditer(pattern)]
        self._key, self._value = (_raw if one is None else _encoded(one) for one in (key_format, value_format))

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

    def begin(self, place: Place) -> None:
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
                if size > LARGE_BYTES or not isinstance(shown, bytes):
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
    return bytes(data) if len(data) <= LARGE_BYTES else large.raw(data)


def _encoded(value_format: ValueFormat) -> Callable[[memoryview | None], bytes | Iterator[bytes]]:
    show, pieces = for_people(value_format), _PIECES_FOR_PEOPLE[value_format]
    return lambda data: show(data).encode() if data is None or len(data) <= LARGE_BYTES else pieces(data)
