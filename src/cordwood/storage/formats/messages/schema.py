"""The schema of a message: its fields in wire order, each with its versions.

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
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

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
