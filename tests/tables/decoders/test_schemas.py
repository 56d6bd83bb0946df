"""Decoders with schemas, beside the libraries that write such messages."""

from __future__ import annotations

import json
import random
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from cordwood.common.errors import NotFoundError, RequestError
from cordwood.fs.posix import PosixFileSystem
from cordwood.tables.decoders.choice import decoder_of
from cordwood.tables.decoders.plain import Decoder
from tests.tables.decoders.framing import avro, framed

ORDER_1 = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "id", "type": "long"}]}
ORDER_2 = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 5000},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 0},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}, "default": 0},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            "default": "\u0001\u0000",
        },
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}, "default": "A"},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "counts", "type": {"type": "map", "values": "int"}, "default": {}},
        {"name": "either", "type": ["int", "string"], "default": 0},
        {"name": "parent", "type": ["null", "Order"], "default": None},
    ],
}


def schemas(folder: Path, **files: Any) -> str:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        path = folder / name.strip("_").replace("__", ".")
        path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    return str(folder)


def decoded(decoder: Decoder, *messages: bytes | None) -> tuple[list[Any], dict[int, str]]:
    found = decoder.decode(pa.array(messages, pa.binary()))
    assert found.values.type == decoder.type
    return found.values.to_pylist(), dict(found.problems)


def test_avro_messages_of_several_schemas_are_rows_of_the_newest(tmp_path: Path) -> None:
    folder = schemas(tmp_path / "s", _1__avsc=ORDER_1, _2__avsc=ORDER_2, README__md=b"")
    decoder = decoder_of(f"avro:{folder}", PosixFileSystem())
    parent: dict[str, Any] = {
        "id": 1, "name": None, "at": datetime(2026, 1, 2, tzinfo=UTC), "day": date(2026, 1, 2), "clock": 5,
        "price": Decimal("1.50"), "kind": "B", "tags": [], "counts": {}, "either": 7, "parent": None,
    }  # fmt: skip
    order = {**parent, "id": 2, "name": "n", "tags": ["x"], "counts": {"y": 3}, "either": "text", "parent": parent}
    plain = json.loads(json.dumps(ORDER_2))
    plain["fields"][4]["type"] = "int"
    values, problems = decoded(
        decoder, avro(2, plain, order), None, avro(1, ORDER_1, {"id": 3}), framed(9, b"x"), b"\0\0", framed(2, b"")
    )
    assert values[0] | {"parent": None} == order | {"counts": [("y", 3)], "parent": None}
    # A record within itself is no column, but JSON.
    assert json.loads(values[0]["parent"])["price"] == "1.50"
    assert values[1] is None
    assert (values[2]["id"], values[2]["name"], values[2]["tags"]) == (3, None, [])
    # Default values are of the column's type.
    assert (values[2]["at"], values[2]["price"]) == (datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC), Decimal("2.56"))
    assert values[3:] == [None, None, None]
    assert problems[3] == f"{folder} has no schema 9"
    assert problems[4] == "it does not begin with the magic byte 0 and the id of a schema"
    assert problems[5].startswith("no avro message of schema 2: ")


def test_random_bytes_are_problems_and_never_errors(tmp_path: Path) -> None:
    source = random.Random(1)
    decoder = decoder_of(f"avro:{schemas(tmp_path / 's', _2__avsc=ORDER_2)}", PosixFileSystem())
    messages = [framed(2, source.randbytes(source.randrange(60))) for _ in range(300)]
    values, problems = decoded(decoder, *messages)
    assert len(problems) > 250
    assert all((value is None) == (at in problems) for at, value in enumerate(values))


def proto() -> tuple[bytes, type[Any]]:
    """A file with a message in a message, as a FileDescriptorSet; and the class of the inner one."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    for outer in ("First", "Second"):
        message = file.message_type.add(name=outer)
        inner = message.nested_type.add(name="Item")
        field = descriptor_pb2.FieldDescriptorProto
        inner.field.add(name="item_id", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
        inner.field.add(name="name", number=2, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
        message.field.add(name="name", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Second.Item"))
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString(), found


def test_protobuf_messages_are_json_by_the_message_that_they_name(tmp_path: Path) -> None:
    data, item = proto()
    decoder = decoder_of(f"protobuf:{schemas(tmp_path / 's', _5__desc=data)}", PosixFileSystem())
    message = item(item_id=7).SerializeToString()
    # Zigzag: two numbers, 1 and 0. A single 0 is the first message.
    values, problems = decoded(
        decoder, framed(5, b"\4\2\0" + message), framed(5, b"\0" + b"\n\1x"), framed(5, b"\2\x12" + message),
        framed(5, b""), framed(5, b"\xff" * 9),
    )  # fmt: skip
    assert [json.loads(one) for one in values[:2]] == [{"item_id": "7", "name": ""}, {"name": "x"}]
    assert sorted(problems) == [2, 3, 4]
    assert decoder.is_json


def test_messages_with_a_json_schema_are_checked_against_it(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    decoder = decoder_of(f"jsonschema:{schemas(tmp_path / 's', _3__json=schema)}", PosixFileSystem())
    values, problems = decoded(decoder, framed(3, b'{"id": 1}'), framed(3, b'{"id": "x"}'), framed(3, b"{"))
    assert values == ['{"id": 1}', None, None]
    assert problems[1] == "no jsonschema message of schema 3: $.id: 'x' is not of type 'integer'"
    assert problems[2].startswith("no jsonschema message of schema 3: not JSON")


def test_folders_without_usable_schemas_are_refused_in_words(tmp_path: Path) -> None:
    fs = PosixFileSystem()
    with pytest.raises(NotFoundError, match="is no folder; it was to hold the schemas of avro:"):
        decoder_of(f"avro:{tmp_path / 'nowhere'}", fs)
    with pytest.raises(
        RequestError, match=r"has no schema; files are named by the ids of their schemas, such as 12\.avsc"
    ):
        decoder_of(f"avro:{schemas(tmp_path / 'a', order__avsc=ORDER_1)}", fs)
    with pytest.raises(RequestError, match=r"7\.avsc is no schema that avro knows: "):
        decoder_of(f"avro:{schemas(tmp_path / 'b', _7__avsc={'type': 'rekord'})}", fs)
    with pytest.raises(RequestError, match=r"'thrift:x' is no decoder; there are utf8, .*, avro:DIR"):
        decoder_of("thrift:x", fs)


def test_a_missing_library_is_named_with_what_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(RequestError, match=r"jsonschema is not installed.*pip install 'cordwood\[schemas\]'"):
        decoder_of(f"jsonschema:{schemas(tmp_path / 's', _1__json={})}", PosixFileSystem())
