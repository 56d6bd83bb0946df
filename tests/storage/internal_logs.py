"""Records of Kafka's internal topics as bytes, and small logs of them."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cordwood.common.types import Codec
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.formats.messages.schema import Field
from cordwood.storage.formats.messages.topics import INTERNAL_TOPICS, Framing
from tests.storage.message_twin import Case, encode, uvarint

#: Key and value.
Pair = tuple[bytes | None, bytes | None]
TIME = 1_700_000_000_000


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
    value = None if offset is None else {"offset": offset, "metadata": "m", "commit_timestamp": TIME}
    return internal_record("OffsetCommit", value, key, version)


def batch(base_offset: int, pairs: Iterable[Pair], *, producer: int | None = None, codec: Codec = Codec.NONE) -> bytes:
    """A batch of records; of a transaction if there is a producer."""
    own: dict[str, Any] = {} if producer is None else {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
    records = [Record(at, TIME + at, key, value) for at, (key, value) in enumerate(pairs, base_offset)]
    return encode_batch(records, codec=codec, transactional=producer is not None, **own)


def write_log(folder: Path, *batches: bytes) -> Path:
    """A partition's directory with one segment."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / offset_name(0, FileKind.LOG)).write_bytes(b"".join(batches))
    return folder
