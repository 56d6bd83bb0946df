"""The codec of Kafka's messages the other way round, in plain Python: fields to bytes; and values to try it with."""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from cordwood.common import java_properties
from cordwood.common.errors import CorruptFileError
from cordwood.storage.formats import (
    checkpoints,
    filenames,
    leader_epochs,
    offset_index,
    producer_state,
    properties,
    quorum_state,
    time_index,
    transaction_index,
)
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.formats.messages.coordinator_records import ASSIGNMENT, SUBSCRIPTION
from cordwood.storage.formats.messages.metadata_records import CONTROL_RECORDS
from cordwood.storage.formats.messages.schema import UNKNOWN_TAGS, ZERO_UUID, Field, Message, uuid_text
from cordwood.storage.formats.messages.topics import INTERNAL_TOPICS, Framing
from tests.logs import T0, Pair

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


# ---- formats ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Format:
    """Functions that read a kind of file and write it back; `sample` is a valid file."""

    again: Callable[[bytes, int], bytes]
    faults: Callable[[bytes, int], list[CorruptFileError]]
    sample: bytes


def none(data: bytes, offset: int) -> list[CorruptFileError]:
    """The faults of a format that raises all of them."""
    return []


FORMATS: dict[str, Format] = {
    FileKind.OFFSET_INDEX: Format(
        lambda data, base: offset_index.encode(offset_index.decode(data, base)),
        lambda data, base: list(offset_index.faults(offset_index.decode(data, base))),
        bytes.fromhex("0000000500000000 0000003200001068"),
    ),
    FileKind.TIME_INDEX: Format(
        lambda data, base: time_index.encode(time_index.decode(data, base)),
        lambda data, base: list(time_index.faults(time_index.decode(data, base))),
        bytes.fromhex("00000000000003e800000005 00000000000007d000000032"),
    ),
    FileKind.TRANSACTION_INDEX: Format(
        lambda data, base: transaction_index.encode(transaction_index.decode(data)),
        lambda data, base: list(transaction_index.faults(transaction_index.decode(data), base)),
        bytes.fromhex("0000 0000000000000007 0000000000000065 000000000000006e 000000000000006c"),
    ),
    FileKind.PRODUCER_SNAPSHOT: Format(
        lambda data, _: producer_state.encode(producer_state.decode(data)),
        none,
        producer_state.encode([producer_state.ProducerEntry(7, 2, 7, 102, 2, 1005, -1, 100)]),
    ),
    FileKind.LEADER_EPOCHS: Format(
        lambda data, _: leader_epochs.encode(leader_epochs.history(leader_epochs.decode(data)).entries),
        none,
        b"0\n2\n0 0\n5 1187\n",
    ),
    FileKind.PARTITION_METADATA: Format(
        lambda data, _: properties.encode_partition_metadata(properties.decode_partition_metadata(data)),
        none,
        b"version: 0\ntopic_id: kh0ERQ6WToCnIzrMNpUr_A",
    ),
    FileKind.QUORUM_STATE: Format(
        lambda data, _: quorum_state.encode(quorum_state.decode(data)),
        none,
        b'{"leaderId":1,"leaderEpoch":2,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}',
    ),
    "offset checkpoint": Format(
        lambda data, _: checkpoints.encode(checkpoints.decode(data)), none, b"0\n2\nfoo 0 17\nbar 3 4\n"
    ),
    filenames.META_PROPERTIES: Format(
        lambda data, _: java_properties.encode(properties.decode_properties(data)),
        none,
        b"#\n#now\nnode.id=1\nversion=1\ncluster.id=a\\u0041\n",
    ),
    filenames.CLEAN_SHUTDOWN: Format(
        lambda data, _: properties.encode_clean_shutdown(properties.decode_clean_shutdown(data)),
        none,
        b'{"version":0,"brokerEpoch":128}',
    ),
}
#: Damage made by hand in `kraft-crashed-torn`.
DAMAGE = {
    ("kraft-crashed-torn", "full-index-0/00000000000000000000.index"): "offset -1 is below",
    ("kraft-crashed-torn", "trans-0/00000000000000000203.txnindex"): "24 bytes after the last whole entry",
    ("kraft-crashed-torn", "short-0/00000000000000000553.snapshot"): "CRC-32C mismatch",
}


# ---- records of internal topics --------------------------------------------------------------------------------------


def complete(fields: Iterable[Field], given: dict[str, Any]) -> dict[str, Any]:
    """Fields with defaults where none are given, at all depths."""
    found = {}
    for one in fields:
        value = given.get(one.name, one.default)
        if one.item == "struct" and value is not None:
            many = value if one.is_array else (value,)
            value = tuple(complete(one.fields, each) for each in many)
            value = value if one.is_array else value[0]
        found[one.name] = value
    assert given.keys() <= found.keys(), given.keys() - found.keys()
    return found


def internal_record(
    name: str, value: dict[str, Any] | None, key: dict[str, Any] | None = None, version: int | None = None
) -> Pair:
    """A record of a type as its topic frames it; None as the value: null. The version: the last one unless given."""
    topic = next(one for one in INTERNAL_TOPICS.values() if one.record_type(name))
    record = topic.record_type(name)
    assert record is not None
    version = record.value.last_version if version is None else version
    case = Case(record.value, version)
    body = None if value is None else encode(case, complete(record.value.fields, value))
    if topic.framing is Framing.COORDINATOR:
        assert record.key is not None
        of_key = encode(Case(record.key, 0), complete(record.key.fields, key or {}))
        prefix = struct.pack(">h", version)
        return struct.pack(">h", record.number) + of_key, None if body is None else prefix + body
    assert body is not None
    return None, uvarint(1) + uvarint(record.number) + uvarint(version) + body


def offset_commit(group: str, topic: str, partition: int, offset: int | None, version: int = 3) -> Pair:
    """A committed offset; None deletes it."""
    key = {"group": group, "topic": topic, "partition": partition}
    value = None if offset is None else {"offset": offset, "metadata": "m", "commit_timestamp": T0}
    return internal_record("OffsetCommit", value, key, version)
