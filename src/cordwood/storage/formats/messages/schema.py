"""Kafka's messages: the schema of a message, read from a table, and the decoding of its bytes by it.

A message has versions. A field is in all versions, in those from a first one on, or in those up to a last one; in the
others it has its default. From some version on a message is *flexible*: lengths are varints, and every struct ends with
tagged fields; readers skip unknown tags.

The tables of the topics are text, a line per field, in the order of the wire:

    OffsetCommit 1                                  record type and its number
      key
        group               string                  name and type
      value 0-4 flexible 4+                         versions, and those that are flexible
        offset              int64
        leader_epoch        int32     3+  = -1      from version 3 on; the default before
        expire_timestamp    int64     1-1 = -1      in version 1 only
        topic_id            uuid      4+  tag 0     a tagged field
        rack                string?                 may be null
        partitions          []int32                 an array
        members             []                      an array of structs, whose fields are indented below it
        endpoint            {}?                     a struct that may be null
        struct TaskIds                              a struct with a name, for fields of type []TaskIds

The bytes, big-endian:

    fixed        intN, uint16, bool, float64, uuid, of their size; a bool is true unless it is 0
    string       i16 length (-1: null), UTF-8        in flexible versions: uvarint of the length + 1 (0: null), UTF-8
    bytes        i32 length (-1: null), bytes                              uvarint of the length + 1 (0: null), bytes
    array        i32 count (-1: null), items                               uvarint of the count + 1 (0: null), items
    struct       its fields; in flexible versions then its tagged fields
    struct?      i8 1 (negative: null), the struct; in a tagged field: uvarint 1 (0: null), the struct
    tagged       uvarint count, then for each: uvarint tag, uvarint size, the field's bytes

A uvarint has seven bits a byte, the lowest first; here at most 31 bits.

No input is trusted: every length is compared with the remaining bytes before it is used, so the result is never larger
than a small multiple of the input.
"""

from __future__ import annotations

import base64
import copy
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from struct import Struct
from types import MappingProxyType
from typing import Any, NamedTuple

from cordwood.common.errors import CorruptMessageError

#: `until` of a field in all later versions.
NO_LIMIT = 1 << 15
#: `flexible_from` of a message without flexible versions.
NEVER = NO_LIMIT
#: Types of single values; [] before one of them, or before `struct`, makes an array.
SCALARS = ("bool", "int8", "int16", "uint16", "int32", "int64", "float64", "uuid", "string", "bytes")
#: The uuid of 16 zero bytes, which means no uuid.
ZERO_UUID = "AAAAAAAAAAAAAAAAAAAAAA"

_ZEROS: Mapping[str, Any] = {"bool": False, "float64": 0.0, "uuid": ZERO_UUID, "string": "", "bytes": b""}
_LITERALS: Mapping[str, Any] = {"null": None, "true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message.

    Attributes:
        name: Kafka's name, in snake_case.
        type: `struct` or one of `SCALARS`; with `[]` before it, an array of that type.
        since, until: the first and the last version with the field.
        tag: number of a tagged field, which may be absent even in these versions; else None.
        default: its value when absent.
        fields: fields of a struct, or of the structs in an array.
    """

    name: str
    type: str
    since: int = 0
    until: int = NO_LIMIT
    nullable: bool = False
    tag: int | None = None
    default: Any = None
    fields: tuple[Field, ...] = ()

    def is_in(self, version: int) -> bool:
        """Return whether a version has this field."""
        return self.since <= version <= self.until

    @property
    def item(self) -> str:
        """The type of an array's items; otherwise the field's type."""
        return self.type.removeprefix("[]")

    @property
    def is_array(self) -> bool:
        """Whether the field is an array."""
        return self.type.startswith("[]")


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """A message: its name, the versions of Kafka 4.3.1, the first flexible version, and its fields."""

    name: str
    first_version: int
    last_version: int
    flexible_from: int
    fields: tuple[Field, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class RecordType:
    """A type of records in a topic: its number in the log, its value, and its key if the topic has keys."""

    name: str
    number: int
    value: Message
    key: Message | None = None


def uuid_text(data: bytes | memoryview) -> str:
    """Encode 16 bytes as Kafka's text form of a uuid."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


# ---- tables ----------------------------------------------------------------------------------------------------------


def read_table(text: str, *, names: tuple[str, str] = ("{}Key", "{}Value")) -> dict[int, RecordType]:
    """Read the record types of a table, by number.

    Args:
        names: Kafka's name patterns for the messages of a record type's key and value.
    """
    found = {}
    for head, lines in _blocks(_Line.of(line) for line in text.splitlines() if line.strip()):
        parts = {part.words[0]: (part.words[1:], inside) for part, inside in _blocks(iter(lines))}
        words, inside = parts["value"]
        name, number = head.words[0], int(head.words[1])
        first, last = _versions(words[0])
        flexible = int(words[2].rstrip("+")) if "flexible" in words else NEVER
        value = Message(names[1].format(name), first, last, flexible, _fields(inside))
        key = Message(names[0].format(name), 0, 0, NEVER, _fields(parts["key"][1])) if "key" in parts else None
        found[number] = RecordType(name, number, value, key)
    return found


@dataclass(frozen=True, slots=True)
class _Line:
    indent: int
    words: list[str]

    @classmethod
    def of(cls, line: str) -> _Line:
        return cls(len(line) - len(line.lstrip()), line.split())


def _blocks(lines: Iterator[_Line]) -> Iterator[tuple[_Line, list[_Line]]]:
    """Yield each line with the lines below it that are indented further."""
    head, inside = next(lines, None), list[_Line]()
    for line in lines:
        assert head is not None
        if line.indent > head.indent:
            inside.append(line)
        else:
            yield head, inside
            head, inside = line, []
    if head is not None:
        yield head, inside


def _fields(lines: list[_Line], outer: Mapping[str, tuple[Field, ...]] = MappingProxyType({})) -> tuple[Field, ...]:
    structs = dict(outer)
    found = []
    for head, inside in _blocks(iter(lines)):
        if head.words[0] == "struct":
            structs[head.words[1]] = _fields(inside, structs)
        else:
            found.append(_field(head.words, inside, structs))
    return tuple(found)


_TYPE = re.compile(r"(\[\])?(\{\}|\w*)(\?)?")


def _field(words: list[str], inside: list[_Line], structs: Mapping[str, tuple[Field, ...]]) -> Field:
    match = _TYPE.fullmatch(words[1])
    assert match, words
    array, item, nullable = match[1] or "", match[2], match[3] is not None
    fields = structs.get(item) or _fields(inside, structs)
    made = Field(words[0], array + (item if item in SCALARS else "struct"), nullable=nullable, fields=fields)
    assert (made.item in SCALARS) == (not fields), words
    rest = iter(words[2:])
    for word in rest:
        if word == "tag":
            made = replace(made, tag=int(next(rest)))
        elif word == "=":
            text = next(rest)
            return replace(made, default=_LITERALS[text] if text in _LITERALS else int(text))
        else:
            since, until = _versions(word)
            made = replace(made, since=since, until=until)
    return replace(made, default=_zero(made))


def _zero(field: Field) -> Any:
    if field.is_array:
        return ()
    if field.type == "struct":
        return {inner.name: inner.default for inner in field.fields}
    return _ZEROS.get(field.type, 0)


def _versions(text: str) -> tuple[int, int]:
    """Parse a range of versions: 3+, 1-2, or 0."""
    if text.endswith("+"):
        return int(text[:-1]), NO_LIMIT
    first, _, last = text.partition("-")
    return int(first), int(last or first)


# ---- decoding --------------------------------------------------------------------------------------------------------

#: Key in a struct's dict for tagged fields that its message does not have, as tag to bytes. Absent without such fields.
UNKNOWN_TAGS = "unknown_tags"
#: Kafka's longest string.
STRING_BYTES_MAX = 0x7FFF
UVARINT_MAX = 0x7FFF_FFFF
#: Larger values are not decoded: as Python objects they may take 60 times as much memory.
DECODED_BYTES_MAX = 16 << 20

_FIXED = {
    "int8": Struct(">b"),
    "int16": Struct(">h"),
    "uint16": Struct(">H"),
    "int32": Struct(">i"),
    "int64": Struct(">q"),
    "float64": Struct(">d"),
    "bool": Struct(">?"),
}
_SHORT = _FIXED["int16"]
_UUID_BYTES = 16


class _StoppedError(CorruptMessageError):
    """An unreadable field, and the position up to which the bytes were decoded."""

    def __init__(self, what: str, position: int = 0) -> None:
        super().__init__(what)
        self.stopped_at = position


class DecodedMessage(NamedTuple):
    """A decoded message.

    Attributes:
        fields: by name; arrays as tuples, structs as dicts, uuids in Kafka's text form. Fields that its version
            lacks, and absent tagged fields, have their defaults.
        problem: for a version later than the known ones, why fields after some point have their defaults; else empty.
    """

    message: Message
    version: int
    fields: dict[str, Any]
    end: int
    problem: str = ""

    @property
    def is_later(self) -> bool:
        """Whether its version is later than the known versions."""
        return self.version > self.message.last_version


def decode(
    message: Message, version: int, data: bytes | memoryview, start: int = 0, *, text_errors: str = "replace"
) -> DecodedMessage:
    """Decode a message.

    A message of a later version is decoded as the last known version, as far as possible.

    Args:
        text_errors: handling of invalid UTF-8, as in `bytes.decode`. Kafka replaces it.

    Raises:
        CorruptMessageError: the bytes are not such a message, or its version is below the first.
    """
    fields: dict[str, Any] = {}
    try:
        if version < message.first_version:
            raise _StoppedError(f"the first version is {message.first_version}", start)
        if len(data) - start > DECODED_BYTES_MAX:
            raise _StoppedError(f"{len(data) - start} bytes; more than {DECODED_BYTES_MAX} are not decoded", start)
        read = _message(message, min(version, message.last_version), text_errors)
        end = read(bytes(data), start, len(data), fields)
    except _StoppedError as stop:
        problem = f"{message.name} of version {version}: {stop.what}"
        if version <= message.last_version:
            raise CorruptMessageError(problem) from None
        return DecodedMessage(message, version, fields, stop.stopped_at, problem)
    return DecodedMessage(message, version, fields, end)


def read_short(data: bytes | memoryview) -> int:
    """Decode the i16 at the start of some bytes."""
    if len(data) < _SHORT.size:
        raise _cut(_SHORT.size, 0, len(data))
    return int(_SHORT.unpack_from(data)[0])


def read_uvarint(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """Decode a varint of up to 31 bits; return it and the position after it."""
    if at < end and data[at] < 0x80:  # nearly all varints have one byte
        return data[at], at + 1
    value = 0
    for shift in range(0, 35, 7):
        if at >= end:
            raise _cut(1, at, end)
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    if byte >= 0x80 or value > UVARINT_MAX:
        raise _StoppedError(f"a varint of more than 31 bits before byte {at}", at)
    return value, at


def encode_uvarint(value: int) -> bytes:
    """Encode a varint of up to 31 bits."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _cut(size_bytes: int, at: int, end: int) -> _StoppedError:
    return _StoppedError(f"{size_bytes} bytes at byte {at}, where {end - at} are left", at)


# ---- from a schema to functions --------------------------------------------------------------------------------------

#: Reads a field from a position, before an end, into the dict of its struct; returns the position after it. After an
#: error, the fields read before stay.
_Read = Callable[[bytes, int, int, dict[str, Any]], int]
#: Reads a length or count; returns it with the position after it; a negative one is null.
_ReadLength = Callable[[bytes, int, int], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Wire:
    """The encoding of a version's fields."""

    version: int
    flexible: bool
    text_errors: str


@cache
def _message(message: Message, version: int, text_errors: str) -> _Read:
    return _struct(message.fields, _Wire(version, version >= message.flexible_from, text_errors))


def _struct(fields: tuple[Field, ...], wire: _Wire) -> _Read:
    defaults = {field.name: field.default for field in fields}
    # Copy the defaults of structs, so that messages do not share them.
    copied = [name for name, default in defaults.items() if isinstance(default, dict)]
    present = [field for field in fields if field.is_in(wire.version)]
    in_order = list(_in_order([field for field in present if field.tag is None], wire))
    tagged = {field.tag: _decode_field(field, wire) for field in present if field.tag is not None}

    def read(data: bytes, at: int, end: int, into: dict[str, Any]) -> int:
        into.update(defaults)
        for name in copied:
            into[name] = copy.deepcopy(defaults[name])
        for read_field in in_order:
            at = read_field(data, at, end, into)
        return _read_tagged(data, at, end, into, tagged) if wire.flexible else at

    return read


def _read_tagged(data: bytes, at: int, end: int, into: dict[str, Any], tagged: Mapping[int, _Read]) -> int:
    met = set()
    count, at = read_uvarint(data, at, end)
    for _ in range(count):
        tag, at = read_uvarint(data, at, end)
        size, at = read_uvarint(data, at, end)
        if tag in met:
            raise _StoppedError(f"tag {tag} for the second time before byte {at}", at)
        if size > end - at:
            raise _cut(size, at, end)
        if tag in tagged:
            met.add(tag)
            behind = tagged[tag](data, at, at + size, into)
            if behind < at + size:
                raise _StoppedError(f"{at + size - behind} bytes too many", behind)
        else:
            into.setdefault(UNKNOWN_TAGS, {})[tag] = data[at : at + size]
        at += size
    return at


def _in_order(fields: list[Field], wire: _Wire) -> Iterator[_Read]:
    """Yield a reader for each field, or for each run of adjacent numbers."""
    for are_numbers, run in groupby(fields, lambda field: field.type in _FIXED):
        adjacent = list(run)
        if are_numbers and len(adjacent) > 1:
            yield _numbers(adjacent)
        else:
            yield from (_decode_field(field, wire) for field in adjacent)


def _numbers(fields: list[Field]) -> _Read:
    layout = Struct(">" + "".join(_FIXED[field.type].format[1:] for field in fields))
    names, size, unpack = [field.name for field in fields], layout.size, layout.unpack_from
    one_by_one = [_number(field.name, _FIXED[field.type]) for field in fields]

    def read(data: bytes, at: int, end: int, into: dict[str, Any]) -> int:
        if size > end - at:
            for read_number in one_by_one:  # up to the first truncated number, which raises
                at = read_number(data, at, end, into)
        into.update(zip(names, unpack(data, at), strict=True))
        return at + size

    return read


def _decode_field(field: Field, wire: _Wire) -> _Read:
    if field.is_array:
        return _array(field, wire)
    if field.type == "struct":
        return _nested(field, wire)
    return _scalar(field, wire)


def _scalar(field: Field, wire: _Wire) -> _Read:
    """Return the reader of a field with one value, or of an item of an array of such values."""
    if field.item in _FIXED:
        return _number(field.name, _FIXED[field.item])
    if field.item == "uuid":
        return _uuid(field.name)
    is_text = field.item == "string"
    length = _length(wire.flexible, _FIXED["int16" if is_text else "int32"], field.nullable and not field.is_array)
    return _text(field.name, length, wire.text_errors) if is_text else _bytes(field.name, length)


def _number(name: str, layout: Struct) -> _Read:
    size, unpack = layout.size, layout.unpack_from

    def read(data: bytes, at: int, end: int, into: dict[str, Any]) -> int:
        if size > end - at:
            raise _cut(size, at, end)
        into[name] = unpack(data, at)[0]
        return at + size

    return read


def _uuid(name: str) -> _Read:
    def read(data: bytes, at: int, end: int, into: dict[str, Any]) -> int:
        if end - at < _UUID_BYTES:
            raise _cut(_UUID_BYTES, at, end)
        into[name] = uuid_text(data[at : at + _UUID_BYTES])
        return at + _UUID_BYTES

    return read


def _text(name: str, length: _ReadLength, errors: str) -> _Read:
    def read(data: bytes, at: int, end: int, into: dict[str, Any]) -> int:
        size, at = length(data, at, end)
        if size < 0:
            into[name] = None
            return at
        if size > STRING_BYTES_MAX:
            raise _StoppedError(f"a string of {size} bytes before byte {at}", at)
        if size > end - at:
            raise _cut(size, at, end)
        try:
            into[name] = data[at : at + size].decode("utf-8", errors)
        except UnicodeDecodeError as error:
            raise _StoppedError(str(error), at) from None
        return at + size

    return read


def _bytes(name: str, length: _ReadLength) -> _Read:
    def read(data: bytes, at: int, end: int, into: dict[str, Any]) -> int:
        size, at = length(data, at, end)
        if size > end - at:
            raise _cut(size, at, end)
        into[name] = data[at : at + size] if size >= 0 else None
        return at + max(size, 0)

    return read


def _length(flexible: bool, layout: Struct, nullable: bool) -> _ReadLength:
    width, unpack = layout.size, layout.unpack_from

    def null_refused(at: int) -> _StoppedError:
        return _StoppedError(f"null before byte {at}, where it is not allowed", at)

    def read_flexible(data: bytes, at: int, end: int) -> tuple[int, int]:
        length, at = read_uvarint(data, at, end)
        if length == 0 and not nullable:
            raise null_refused(at)
        return length - 1, at

    def read(data: bytes, at: int, end: int) -> tuple[int, int]:
        if width > end - at:
            raise _cut(width, at, end)
        length = unpack(data, at)[0]
        if length < 0 and not nullable:
            raise null_refused(at + width)
        return length, at + width

    return read_flexible if flexible else read


def _array(field: Field, wire: _Wire) -> _Read:
    name, is_struct = field.name, field.item == "struct"
    count_of = _length(wire.flexible, _FIXED["int32"], field.nullable)
    read_item = _struct(field.fields, wire) if is_struct else _scalar(field, wire)

    def read(data: bytes, at: int, end: int, into: dict[str, Any]) -> int:
        count, at = count_of(data, at, end)
        if count < 0:
            into[name] = None
            return at
        if count > end - at:  # an item has at least one byte: never allocate for more items than fit
            raise _StoppedError(f"{count} items at byte {at}, where {end - at} bytes are left", at)
        items: list[Any] = []
        try:
            for _ in range(count):
                item: dict[str, Any] = {}
                if is_struct:
                    items.append(item)
                    at = read_item(data, at, end, item)
                else:
                    at = read_item(data, at, end, item)
                    items.append(item[name])
        finally:
            into[name] = tuple(items)
        return at

    return read


def _nested(field: Field, wire: _Wire) -> _Read:
    name, read_struct = field.name, _struct(field.fields, wire)

    def is_null(data: bytes, at: int, end: int) -> tuple[bool, int]:
        if not field.nullable:
            return False, at
        if field.tag is not None:
            marker, at = read_uvarint(data, at, end)
            return marker == 0, at
        if at >= end:
            raise _cut(1, at, end)
        return data[at] >= 0x80, at + 1  # below 0, as a signed byte

    def read(data: bytes, at: int, end: int, into: dict[str, Any]) -> int:
        null, at = is_null(data, at, end)
        into[name] = None if null else {}
        return at if null else read_struct(data, at, end, into[name])

    return read
