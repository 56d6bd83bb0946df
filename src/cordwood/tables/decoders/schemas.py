"""Decoders with schemas, for messages from Confluent's serializers: Avro, Protobuf and JSON Schema.

    magic 0, u8 | schema id, i32 | only Protobuf: message index | the message

A folder has a file for each schema that was ever used, named by its id: `12.avsc`, `12.json`, or `12.desc` with the
FileDescriptorSet that `protoc --include_imports --descriptor_set_out` writes.

    avro          columns of the schema with the largest id; Avro's schema resolution converts other schemas' messages
    protobuf      JSON text, with the names of the .proto file
    jsonschema    JSON text, checked against its schema

Protobuf's message index identifies the message type in the file: a count and that many numbers, as zigzag varints. Each
is an index into the messages nested in the previous one; a single 0 means the first message of the file.

Source: Confluent's wire format, https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/
"""

from __future__ import annotations

import functools
import importlib
import io
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa

from cordwood.common.errors import RequestError
from cordwood.common.json_text import json_text
from cordwood.tables.decoders.plain import Decoded, json_problem

_PREFIX = struct.Struct(">bi")
_MESSAGE_INDEX_MAX = 32
#: Maximum length of a library's error text, in characters.
_WORDS_MAX = 200
#: Content of the schema file by schema id, as pairs.
Schemas = tuple[tuple[int, bytes], ...]
#: Reads a message: returns its value or raises an error.
Reader = Callable[[bytes], Any]


def library(name: str, package: str) -> Any:
    """Import a library that an extra installs, or raise RequestError."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise RequestError(
            f"{package} is not installed, which reads such schemas:  pip install 'cordwood[schemas]'"
        ) from None


@dataclass(frozen=True, slots=True)
class SchemaDecoder:
    """Decodes messages, each with the schema whose id it contains.

    Attributes:
        kind: kind of the schemas, a key of `ENDINGS`.
    """

    kind: str
    folder: str
    schemas: Schemas = field(repr=False)

    @property
    def type(self) -> pa.DataType:
        """See `Decoder.type`."""
        return _avro_type_of(self.schemas) if self.kind == "avro" else pa.string()

    @property
    def is_json(self) -> bool:
        """See `Decoder.is_json`."""
        return self.kind != "avro"

    def decode(self, raw: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode`."""
        problems: dict[int, str] = {}
        values: list[Any] = []
        readers = _READERS[self.kind](self.schemas)
        for i, one in enumerate(raw.to_pylist()):
            value = None
            if one is not None:
                value, problem = self._read(one, readers)
                if problem is not None:
                    problems[i] = problem
            values.append(value)
        return Decoded(_column(values, self.type, problems), problems)

    def _read(self, message: bytes, readers: Mapping[int, Reader]) -> tuple[Any, str | None]:
        if len(message) < _PREFIX.size or message[0] != 0:
            return None, "it does not begin with the magic byte 0 and the id of a schema"
        _, schema_id = _PREFIX.unpack_from(message)
        if schema_id not in readers:
            return None, f"{self.folder} has no schema {schema_id}"
        try:
            return readers[schema_id](message[_PREFIX.size :]), None
        # Given bytes that are not a message, libraries raise errors of many types.
        except Exception as error:
            words = " ".join(str(error).split())[:_WORDS_MAX] or type(error).__name__
            return None, f"no {self.kind} message of schema {schema_id}: {words}"


def _column(values: list[Any], kind: pa.DataType, problems: dict[int, str]) -> pa.Array:
    """Convert values to a column; record a problem for each value that the column cannot hold."""
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        pass
    for i, value in enumerate(values):
        try:
            pa.array([value], kind)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            problems[i], values[i] = f"no column holds this value: {error}", None
    return pa.array(values, kind)


# ---- Avro ------------------------------------------------------------------------------------------------------------

_AVRO_TYPES: Mapping[str, pa.DataType] = {
    "null": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_AVRO_TIMES: Mapping[str, pa.DataType] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
}


@functools.lru_cache
def _avro_readers(schemas: Schemas) -> Mapping[int, Reader]:
    fastavro = library("fastavro", "fastavro")
    parsed = {number: fastavro.parse_schema(_without_times(json.loads(text))) for number, text in schemas}
    newest = parsed[max(parsed)]
    _set_defaults(newest, {})

    def reader(schema: Any) -> Reader:
        def read(data: bytes) -> Any:
            stream = io.BytesIO(data)
            value = fastavro.schemaless_reader(stream, schema, newest)
            if rest := len(data) - stream.tell():
                raise ValueError(f"{rest} bytes follow it")
            return as_column(value)

        return read

    as_column = _avro_column(newest)
    return {number: reader(schema) for number, schema in parsed.items()}


def _without_times(schema: Any) -> Any:
    """Remove logical types that no column can have from a schema; their values keep the underlying types."""
    if isinstance(schema, list):
        return [_without_times(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _without_times(one) for name, one in schema.items() if name not in ("default", "symbols")}
    found |= {name: schema[name] for name in ("default", "symbols") if name in schema}
    if found.get("logicalType") not in (None, "decimal", *_AVRO_TIMES):
        del found["logicalType"]
    return found


def _set_defaults(schema: Any, named: dict[str, Any]) -> None:
    """Convert the defaults of fields to values of their columns; fastavro returns them as in the schema's JSON."""
    if isinstance(schema, list):
        for one in schema:
            _set_defaults(one, named)
    elif isinstance(schema, dict):
        if "name" in schema:
            named[schema["name"]] = schema
        for one in schema.get("fields", ()):
            _set_defaults(one["type"], named)
            if "default" in one:
                one["default"] = _default(one["type"], one["default"], named)
        for inner in ("items", "values"):
            _set_defaults(schema.get(inner), named)


def _default(schema: Any, value: Any, named: Mapping[str, Any]) -> Any:
    if isinstance(schema, list):
        return _default(schema[0], value, named)  # in Avro, a union's default has the type of its first branch
    if isinstance(schema, str):
        if schema in named:
            return _default(named[schema], value, named)
        return value.encode("latin-1") if schema == "bytes" else value
    kind, logical = schema["type"], schema.get("logicalType")
    if kind in ("record", "error"):
        given = {one["name"]: value.get(one["name"], one.get("default")) for one in schema["fields"]}
        return {one["name"]: _default(one["type"], given[one["name"]], named) for one in schema["fields"]}
    if kind == "array":
        return [_default(schema["items"], one, named) for one in value]
    if kind == "map":
        return {key: _default(schema["values"], one, named) for key, one in value.items()}
    if logical == "decimal":
        unscaled = int.from_bytes(value.encode("latin-1"), "big", signed=True)
        return Decimal(unscaled).scaleb(-schema.get("scale", 0))
    if logical == "timestamp-millis":
        return 1000 * value
    return value.encode("latin-1") if kind in ("bytes", "fixed") else value


@functools.lru_cache
def _avro_type_of(schemas: Schemas) -> pa.DataType:
    fastavro = library("fastavro", "fastavro")
    parsed = fastavro.parse_schema(_without_times(json.loads(max(schemas)[1])))
    return _avro_type(parsed, {}, ())


def _branches(schema: Sequence[Any]) -> list[Any]:
    return [one for one in schema if one != "null"]


def _avro_type(schema: Any, named: dict[str, Any], within: tuple[str, ...]) -> pa.DataType:
    """Return the type of a column. A union of several types or a recursive type has none, and becomes JSON text."""
    if isinstance(schema, list):
        branches = _branches(schema)
        return _avro_type(branches[0], named, within) if len(branches) == 1 else pa.string()
    if isinstance(schema, str):
        if schema in _AVRO_TYPES:
            return _AVRO_TYPES[schema]
        return pa.string() if schema in within else _avro_type(named[schema], named, within)
    kind, name = schema["type"], schema.get("name", "")
    if name:
        named[name] = schema
    if kind in ("record", "error"):
        inner = (*within, name)
        return pa.struct([pa.field(one["name"], _avro_type(one["type"], named, inner)) for one in schema["fields"]])
    if kind == "array":
        return pa.list_(_avro_type(schema["items"], named, within))
    if kind == "map":
        return pa.map_(pa.string(), _avro_type(schema["values"], named, within))
    if schema.get("logicalType") == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if schema.get("logicalType") in _AVRO_TIMES:
        return _AVRO_TIMES[schema["logicalType"]]
    return _AVRO_TYPES[kind] if isinstance(kind, str) and kind in _AVRO_TYPES else _avro_type(kind, named, within)


def _avro_column(schema: Any) -> Callable[[Any], Any]:
    """Return a function that converts a value from fastavro to a value of its column."""
    kind = _avro_type(schema, {}, ())

    def fit(value: Any, kind: pa.DataType) -> Any:
        if value is None:
            return None
        if pa.types.is_struct(kind) and isinstance(value, dict):
            return {one.name: fit(value.get(one.name), one.type) for one in kind}
        if pa.types.is_map(kind) and isinstance(value, dict):
            return [(key, fit(one, kind.item_type)) for key, one in value.items()]
        if pa.types.is_list(kind) and isinstance(value, list):
            return [fit(one, kind.value_type) for one in value]
        if pa.types.is_string(kind) and not isinstance(value, str):
            return json_text(value)
        return value

    return lambda value: fit(value, kind)


# ---- Protobuf --------------------------------------------------------------------------------------------------------


@functools.lru_cache
def _protobuf_readers(schemas: Schemas) -> Mapping[int, Reader]:
    return {number: _protobuf_reader(data) for number, data in schemas}


def _protobuf_reader(data: bytes) -> Reader:
    modules = ("descriptor_pb2", "descriptor_pool", "json_format", "message_factory")
    descriptor_pb2, descriptor_pool, json_format, message_factory = (
        library(f"google.protobuf.{name}", "protobuf") for name in modules
    )
    files = descriptor_pb2.FileDescriptorSet.FromString(data)
    pool = descriptor_pool.DescriptorPool()
    for one in files.file:
        pool.Add(one)
    # The files that the last one imports come before it.
    last = files.file[-1]

    def read(message: bytes) -> str:
        path, rest = _message_index(message)
        messages, names = last.message_type, [last.package] if last.package else []
        for at in path:
            names.append(messages[at].name)
            messages = messages[at].nested_type
        made = message_factory.GetMessageClass(pool.FindMessageTypeByName(".".join(names)))()
        made.ParseFromString(rest)
        found = json_format.MessageToDict(
            made, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        return json.dumps(found, ensure_ascii=False)

    return read


def _message_index(data: bytes) -> tuple[Sequence[int], bytes]:
    """Return the message index and the bytes of the message."""
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value >> 1 ^ -(value & 1)
            if shift > 28:
                raise ValueError("a number of its message index is too large")

    count = varint()
    if not 0 <= count <= _MESSAGE_INDEX_MAX:
        raise ValueError(f"a message index of {count} numbers")
    path = [varint() for _ in range(count)] or [0]
    if min(path) < 0:
        raise ValueError("a message index below 0")
    return path, data[position:]


# ---- JSON Schema -----------------------------------------------------------------------------------------------------


@functools.lru_cache
def _json_readers(schemas: Schemas) -> Mapping[int, Reader]:
    jsonschema = library("jsonschema", "jsonschema")

    def reader(schema: Any) -> Reader:
        validator = jsonschema.validators.validator_for(schema)(schema)

        def read(data: bytes) -> str:
            text = str(data, "utf-8")
            if (problem := json_problem(text)) is not None:
                raise ValueError(problem)
            if (wrong := next(validator.iter_errors(json.loads(text)), None)) is not None:
                raise ValueError(f"{wrong.json_path}: {wrong.message}")
            return text

        return read

    return {number: reader(json.loads(text)) for number, text in schemas}


_READERS: Mapping[str, Callable[[Schemas], Mapping[int, Reader]]] = {
    "avro": _avro_readers,
    "protobuf": _protobuf_readers,
    "jsonschema": _json_readers,
}
#: Suffixes of schema files, by kind.
ENDINGS: Mapping[str, str] = {"avro": ".avsc", "protobuf": ".desc", "jsonschema": ".json"}


def schema_decoder(kind: str, folder: str, files: Mapping[str, bytes]) -> SchemaDecoder:
    """Return a decoder with the schemas of a folder.

    Args:
        kind: kind of the schemas, a key of `ENDINGS`.

    Raises:
        RequestError: there is no schema, one cannot be read, or the library is missing.
    """
    ending = ENDINGS[kind]
    names = {name: name.removesuffix(ending) for name in files if name.endswith(ending)}
    numbered = {int(stem): files[name] for name, stem in names.items() if stem.isascii() and stem.isdigit()}
    if not numbered:
        raise RequestError(f"{folder} has no schema; files are named by the ids of their schemas, such as 12{ending}")
    for number, data in sorted(numbered.items()):
        try:
            _READERS[kind](((number, data),))
        except RequestError:
            raise
        except Exception as error:
            raise RequestError(f"{folder}/{number}{ending} is no schema that {kind} knows: {error}") from error
    decoder = SchemaDecoder(kind, folder, tuple(sorted(numbered.items())))
    _ = decoder.type  # raises now if the schema cannot become a column
    return decoder
