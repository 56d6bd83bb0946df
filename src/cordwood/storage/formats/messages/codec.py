"""Kafka's message format: bytes → fields, for one message.

    fixed        intN, uint16, bool, float64, uuid: big-endian, of their size; a bool is true unless it is 0
    string       i16 length (-1: null), UTF-8        in flexible versions: uvarint of the length + 1 (0: null), UTF-8
    bytes        i32 length (-1: null), bytes                              uvarint of the length + 1 (0: null), bytes
    array        i32 count (-1: null), items                               uvarint of the count + 1 (0: null), items
    struct       its fields; in flexible versions then its tagged fields
    struct?      i8 1 (negative: null), the struct; in a tagged field: uvarint 1 (0: null), the struct
    tagged       uvarint count, then for each: uvarint tag, uvarint size, the field's bytes

A uvarint has seven bits a byte, the lowest first; here at most 31 bits.

Nothing is trusted: every length is compared with the bytes that are left before it is used, so that what is made is
never larger than a small multiple of what was read. `program` does the same for many messages at once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from struct import Struct
from typing import Any

from cordwood.errors import CorruptMessageError
from cordwood.storage.formats.messages.schema import Field, Message, uuid_text

#: Where a struct keeps the tagged fields that its message does not have: tag to bytes. Absent when there are none.
UNKNOWN_TAGS = "unknown_tags"
#: No string of Kafka's is longer.
STRING_BYTES_MAX = 0x7FFF
UVARINT_MAX = 0x7FFF_FFFF
#: Values above this are not decoded: as Python's objects, they may take 60 times as much.
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
_UUID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Decoded:
    """A message that was read.

    Attributes:
        message: what it is.
        version: of the message.
        fields: by name; arrays as tuples, structs as dicts, uuids as Kafka writes them. Those that its version does not
            have, and tagged fields that are not there, have their defaults.
        end: position behind it; bytes may follow.
        problem: of a later version than is known: why the fields behind some point have their defaults; else empty.
    """

    message: Message
    version: int
    fields: dict[str, Any]
    end: int
    problem: str = ""

    @property
    def is_later(self) -> bool:
        """Whether its version is later than those that are known."""
        return self.version > self.message.last_version


def decode(
    message: Message, version: int, data: bytes | memoryview, start: int = 0, *, text_errors: str = "replace"
) -> Decoded:
    """Read a message.

    A message of a later version than is known is read as the last one that is known, as far as that goes.

    Args:
        message: what it is.
        version: of the message.
        data: bytes that hold it.
        start: position of its first byte.
        text_errors: what becomes of bytes that are no UTF-8, as `bytes.decode` has it. Kafka replaces them.

    Raises:
        CorruptMessageError: the bytes are no such message, or of a version below the first.
    """
    fields: dict[str, Any] = {}
    reader = Reader(data, start, text_errors)
    problem = ""
    try:
        if version < message.first_version:
            raise CorruptMessageError(f"the first version is {message.first_version}")
        if len(data) - start > DECODED_BYTES_MAX:
            raise CorruptMessageError(f"{len(data) - start} bytes; more than {DECODED_BYTES_MAX} are not decoded")
        _struct(message, min(version, message.last_version))(reader, fields)
    except CorruptMessageError as error:
        problem = f"{message.name} of version {version}: {error.what}"
        if version <= message.last_version:
            raise CorruptMessageError(problem) from None
    return Decoded(message, version, fields, reader.position, problem)


class Reader:
    """Takes values off some bytes; CorruptMessageError where they are not there or not right.

    Attributes:
        position: of the next byte.
        end: position behind the last byte that may be read.
    """

    __slots__ = ("data", "end", "position", "text_errors")

    def __init__(self, data: bytes | memoryview, start: int = 0, text_errors: str = "replace") -> None:
        self.data = data
        self.position = start
        self.end = len(data)
        self.text_errors = text_errors

    @property
    def left(self) -> int:
        """Bytes that are left."""
        return self.end - self.position

    def skip(self, size_bytes: int) -> int:
        """Pass over some bytes, which must be there; returns the position of the first."""
        if size_bytes > self.end - self.position:
            raise CorruptMessageError(f"{size_bytes} bytes at byte {self.position}, where {self.left} are left")
        start = self.position
        self.position += size_bytes
        return start

    def take(self, size_bytes: int) -> bytes:
        """Some bytes."""
        start = self.skip(size_bytes)
        return bytes(self.data[start : self.position])

    def fixed(self, layout: Struct) -> Any:
        """A number."""
        return layout.unpack_from(self.data, self.skip(layout.size))[0]

    def uvarint(self) -> int:
        """A number of up to 31 bits, of variable length."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.data[self.skip(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        if byte >= 0x80 or value > UVARINT_MAX:
            raise CorruptMessageError(f"a varint of more than 31 bits before byte {self.position}")
        return value


# ---- from a schema to functions --------------------------------------------------------------------------------------

#: Reads a value.
_Read = Callable[[Reader], Any]
#: Reads a struct's fields into a dict, one by one: an error leaves those before it.
_ReadInto = Callable[[Reader, dict[str, Any]], None]
#: Reads a field into the dict of its struct.
_ReadField = Callable[[Reader, dict[str, Any], str], None]


@cache
def _struct(message: Message, version: int) -> _ReadInto:
    return _fields(message.fields, version, version >= message.flexible_from)


def _fields(all_fields: tuple[Field, ...], version: int, flexible: bool) -> _ReadInto:
    defaults = {one.name: one.default for one in all_fields}
    present = [one for one in all_fields if one.is_in(version)]
    in_order = [(one.name, _field(one, version, flexible)) for one in present if one.tag is None]
    tagged: dict[int, tuple[str, _ReadField]] = {
        one.tag: (one.name, _field(one, version, flexible)) for one in present if one.tag is not None
    }

    # Each message gets structs of its own.
    copied = {name for name, default in defaults.items() if isinstance(default, dict)}

    def read(reader: Reader, fields: dict[str, Any]) -> None:
        fields.update(defaults)
        fields.update({name: copy.deepcopy(defaults[name]) for name in copied})
        for name, read_field in in_order:
            read_field(reader, fields, name)
        if flexible:
            _read_tagged(reader, fields, tagged)

    return read


def _read_tagged(reader: Reader, fields: dict[str, Any], tagged: Mapping[int, tuple[str, _ReadField]]) -> None:
    met = set()
    for _ in range(reader.uvarint()):
        tag = reader.uvarint()
        size = reader.uvarint()
        if tag not in tagged:
            unknown = reader.take(size)
            fields.setdefault(UNKNOWN_TAGS, {})[tag] = unknown
            continue
        if tag in met:
            raise CorruptMessageError(f"tag {tag} for the second time before byte {reader.position}")
        met.add(tag)
        name, read_field = tagged[tag]
        start = reader.skip(size)
        outer, reader.end, reader.position = reader.end, reader.position, start
        read_field(reader, fields, name)
        if reader.left:
            raise CorruptMessageError(f"{reader.left} bytes too many")
        reader.end = outer


def _field(one: Field, version: int, flexible: bool) -> _ReadField:
    if one.is_array:
        return _array(one, version, flexible)
    if one.type == "struct":
        return _nested(one, version, flexible)
    read = _scalar(one, flexible)

    def read_field(reader: Reader, fields: dict[str, Any], name: str) -> None:
        fields[name] = read(reader)

    return read_field


def _scalar(one: Field, flexible: bool) -> _Read:
    if one.item in _FIXED:
        layout = _FIXED[one.item]
        return lambda reader: reader.fixed(layout)
    if one.item == "uuid":
        return lambda reader: uuid_text(reader.take(_UUID_BYTES))
    is_text = one.item == "string"
    length = _length(flexible, _FIXED["int16" if is_text else "int32"], one.nullable and not one.is_array)

    def read(reader: Reader) -> Any:
        size = length(reader)
        if size < 0:
            return None
        if not is_text:
            return reader.take(size)
        if size > STRING_BYTES_MAX:
            raise CorruptMessageError(f"a string of {size} bytes before byte {reader.position}")
        try:
            return reader.take(size).decode("utf-8", reader.text_errors)
        except UnicodeDecodeError as error:
            raise CorruptMessageError(str(error)) from None

    return read


def _length(flexible: bool, layout: Struct, nullable: bool) -> Callable[[Reader], int]:
    """What reads a length or count; negative is null, which may not be there unless `nullable`."""

    def read(reader: Reader) -> int:
        length: int = reader.uvarint() - 1 if flexible else reader.fixed(layout)
        if length < 0 and not nullable:
            raise CorruptMessageError(f"null before byte {reader.position}, where it is not allowed")
        return length

    return read


def _array(one: Field, version: int, flexible: bool) -> _ReadField:
    count_of = _length(flexible, _FIXED["int32"], one.nullable)
    read_struct = _fields(one.fields, version, flexible) if one.item == "struct" else None
    read_item = _scalar(one, flexible) if read_struct is None else None

    def read(reader: Reader, fields: dict[str, Any], name: str) -> None:
        count = count_of(reader)
        if count < 0:
            fields[name] = None
            return
        if count > reader.left:  # an item has a byte at least: what the bytes can't hold is never made room for
            raise CorruptMessageError(f"{count} items at byte {reader.position}, where {reader.left} bytes are left")
        items: list[Any] = []
        try:
            for _ in range(count):
                if read_item is not None:
                    items.append(read_item(reader))
                elif read_struct is not None:
                    items.append({})
                    read_struct(reader, items[-1])
        finally:
            fields[name] = tuple(items)

    return read


def _nested(one: Field, version: int, flexible: bool) -> _ReadField:
    read_struct = _fields(one.fields, version, flexible)

    def is_null(reader: Reader) -> bool:
        if not one.nullable:
            return False
        return bool(reader.fixed(_FIXED["int8"]) < 0 if one.tag is None else reader.uvarint() == 0)

    def read(reader: Reader, fields: dict[str, Any], name: str) -> None:
        if is_null(reader):
            fields[name] = None
            return
        fields[name] = {}
        read_struct(reader, fields[name])

    return read
