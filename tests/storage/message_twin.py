"""The codec of Kafka's messages the other way round, in plain Python: fields to bytes; and values to try it with."""

from __future__ import annotations

import base64
import math
import re
import struct
from random import Random
from typing import Any, NamedTuple

from cordwood.storage.formats.messages.coordinator_records import ASSIGNMENT, SUBSCRIPTION
from cordwood.storage.formats.messages.metadata_records import CONTROL_RECORDS
from cordwood.storage.formats.messages.schema import UNKNOWN_TAGS, ZERO_UUID, Field, Message, uuid_text
from cordwood.storage.formats.messages.topics import INTERNAL_TOPICS

_FIXED = {"bool": ">?", "int8": ">b", "int16": ">h", "uint16": ">H", "int32": ">i", "int64": ">q", "float64": ">d"}
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


class Case(NamedTuple):
    """One version of one message."""

    message: Message
    version: int

    @property
    def is_flexible(self) -> bool:
        return self.version >= self.message.flexible_from

    def __str__(self) -> str:
        return f"{self.message.name} v{self.version}"


def all_messages() -> list[Message]:
    """All keys and values of internal topics, of control records and of consumer groups' metadata."""
    records = [one for topic in INTERNAL_TOPICS.values() for one in topic.records.values()]
    records += CONTROL_RECORDS.values()
    found = [message for one in records for message in (one.key, one.value) if message is not None]
    return [*found, SUBSCRIPTION, ASSIGNMENT]


CASES = [
    Case(message, version)
    for message in all_messages()
    for version in range(message.first_version, message.last_version + 1)
]


# ---- bytes -----------------------------------------------------------------------------------------------------------


def uvarint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + uvarint(value >> 7)


def encode(case: Case, fields: dict[str, Any]) -> bytes:
    """Encode a message; fields that its version lacks must have their defaults. Tagged fields with default values are
    left out.
    """
    return _struct(case.message.fields, case, fields)


def _struct(layout: tuple[Field, ...], case: Case, fields: dict[str, Any]) -> bytes:
    present = [one for one in layout if one.is_in(case.version)]
    body = b"".join(_field(one, case, fields[one.name]) for one in present if one.tag is None)
    if not case.is_flexible:
        return body
    tagged = {one.tag: one for one in present if one.tag is not None}
    contents = {
        tag: _field(one, case, fields[one.name]) for tag, one in tagged.items() if fields[one.name] != one.default
    }
    contents |= fields.get(UNKNOWN_TAGS, {})
    tags = (uvarint(tag) + uvarint(len(content)) + content for tag, content in sorted(contents.items()))
    return body + uvarint(len(contents)) + b"".join(tags)


def _field(one: Field, case: Case, value: Any) -> bytes:
    if one.is_array:
        if value is None:
            return _length(-1, case, ">i")
        items = (_struct(one.fields, case, v) if one.item == "struct" else _scalar(one.item, case, v) for v in value)
        return _length(len(value), case, ">i") + b"".join(items)
    if one.type != "struct":
        return _scalar(one.type, case, value)
    content = b"" if value is None else _struct(one.fields, case, value)
    if not one.nullable:
        return content
    if one.tag is not None:
        return b"\0" if value is None else b"\1" + content
    return b"\xff" if value is None else b"\1" + content


def _length(length: int, case: Case, layout: str) -> bytes:
    return uvarint(length + 1) if case.is_flexible else struct.pack(layout, length)


def _scalar(kind: str, case: Case, value: Any) -> bytes:
    if kind in _FIXED:
        return struct.pack(_FIXED[kind], value)
    if kind == "uuid":
        return base64.urlsafe_b64decode(f"{value}==")
    layout = ">h" if kind == "string" else ">i"
    if value is None:
        return _length(-1, case, layout)
    data: bytes = value.encode() if kind == "string" else value
    return _length(len(data), case, layout) + data


# ---- values ----------------------------------------------------------------------------------------------------------

_TEXTS = ("", "a", "orders", "Grüße", "∅ 🎈", "x" * 130)


def random_fields(case: Case, random: Random) -> dict[str, Any]:
    """Fields of a message in the codec's form; fields that its version lacks have their default."""
    return _random_struct(case.message.fields, case, random)


def _random_struct(layout: tuple[Field, ...], case: Case, random: Random) -> dict[str, Any]:
    return {one.name: _random_field(one, case, random) for one in layout}


def _random_field(one: Field, case: Case, random: Random) -> Any:
    if not one.is_in(case.version) or (one.tag is not None and random.random() < 0.4):
        return one.default
    if one.nullable and random.random() < 0.25:
        return None
    if not one.is_array:
        return _random_item(one, case, random)
    return tuple(_random_item(one, case, random) for _ in range(random.choice((0, 1, 2, 3))))


def _random_item(one: Field, case: Case, random: Random) -> Any:
    if one.item == "struct":
        return _random_struct(one.fields, case, random)
    if one.item in BITS:
        bits = random.randint(0, BITS[one.item] - 1)
        return random.choice((random.getrandbits(bits), -1 - random.getrandbits(bits)))
    return {
        "bool": lambda: random.random() < 0.5,
        "uint16": lambda: random.getrandbits(16),
        "float64": lambda: random.choice((0.0, -1.5, 1e300, random.random())),
        "uuid": lambda: random.choice((ZERO_UUID, uuid_text(random.randbytes(16)))),
        "string": lambda: random.choice(_TEXTS),
        "bytes": lambda: random.randbytes(random.choice((0, 1, 9, 200))),
    }[one.item]()


# ---- Kafka's JSON ----------------------------------------------------------------------------------------------------


def our_word(name: str) -> str:
    """Kafka's name of a field, in snake_case."""
    name = name.replace("KRaft", "Kraft").replace("kRaft", "kraft")
    return re.sub("[A-Z]", lambda big: f"_{big[0].lower()}", name).removeprefix("_")


def kafkas_word(name: str) -> str:
    """A field's name in Kafka's JSON."""
    name = re.sub("_([a-z])", lambda letter: letter[1].upper(), name)
    return re.sub("^kraft", "kRaft", name)


def to_json(layout: tuple[Field, ...], case: Case, fields: dict[str, Any]) -> dict[str, Any]:
    """Convert fields for Kafka's JSON converters: the version's fields, tagged ones unless they have their default."""
    return {
        kafkas_word(one.name): _json(one, case, fields[one.name])
        for one in layout
        if one.is_in(case.version) and not (one.tag is not None and fields[one.name] == one.default)
    }


def _json(one: Field, case: Case, value: Any) -> Any:
    if value is None:
        return None
    if one.is_array:
        return [_json_item(one, case, item) for item in value]
    return _json_item(one, case, value)


def _json_item(one: Field, case: Case, value: Any) -> Any:
    if one.item == "struct":
        return to_json(one.fields, case, value)
    return base64.b64encode(value).decode() if one.item == "bytes" else value


def from_json(layout: tuple[Field, ...], found: dict[str, Any]) -> dict[str, Any]:
    """Convert Kafka's JSON to fields; missing fields have their default."""
    ours = {our_word(name): value for name, value in found.items()}
    assert ours.keys() <= {one.name for one in layout}
    return {one.name: _value_of(one, ours[one.name]) if one.name in ours else one.default for one in layout}


def _value_of(one: Field, value: Any) -> Any:
    if value is None:
        return None
    if one.is_array:
        return tuple(_item_of(one, item) for item in value)
    return _item_of(one, value)


def _item_of(one: Field, value: Any) -> Any:
    if one.item == "struct":
        return from_json(one.fields, value)
    if one.item == "float64":
        return float(value)
    return base64.b64decode(value) if one.item == "bytes" else value


def known(fields: Any) -> Any:
    """Leave out fields that only the codec keeps; replace NaN by a word, as NaN does not equal itself.

    UTF-8 decoders differ in the number of replacement characters for a few invalid bytes; any number counts as one
    here.
    """
    if isinstance(fields, str):
        return re.sub("\ufffd+", "\ufffd", fields)
    if isinstance(fields, dict):
        return {name: known(value) for name, value in fields.items() if name != UNKNOWN_TAGS}
    if isinstance(fields, float) and math.isnan(fields):
        return "nan"
    return tuple(map(known, fields)) if isinstance(fields, tuple) else fields


# ---- damage ----------------------------------------------------------------------------------------------------------


def mutated(data: bytes, random: Random) -> bytes:
    """Bytes with some replaced, cut out or put in."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 3)):
        at = random.randint(0, len(changed))
        changed[at : at + random.randint(0, 3)] = random.choice((b"", b"\0", b"\xff", random.randbytes(2)))
    return bytes(changed)
