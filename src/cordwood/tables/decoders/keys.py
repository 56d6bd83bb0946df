"""Encode keys as people write them into bytes: the inverse of the decoders, to search for a key.

hex:00ff, base64:AP8=     the bytes, with any decoder
utf8, json, uuid          the text, encoded as UTF-8
bytes, hex                hexadecimal digits
short … double            the number, big-endian
avro:DIR …                a JSON value, encoded with each schema of the folder, as the bytes contain the schema's id
"""

from __future__ import annotations

import base64
import binascii
import functools
import io
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cordwood.common.errors import RequestError
from cordwood.fs.base import Store

if TYPE_CHECKING:
    from cordwood.tables.decoders.plain import Decoder

_NUMBERS = {"short": ">h", "int": ">i", "long": ">q", "float": ">f", "double": ">d"}
_TEXTS = ("utf8", "json", "uuid")
_PREFIX = struct.Struct(">bi")
#: Protobuf's index of the first message of a file.
_FIRST_MESSAGE = b"\0"


def schema_folder(text: str) -> str | None:
    """Return the folder or URL of a decoder's schemas, or None if it needs none."""
    return text.partition(":")[2] or None


class Coder:
    """Encodes and decodes keys, or values, with one decoder, whose schemas are read once."""

    def __init__(self, decoder: str, fs: Store) -> None:
        """Choose a decoder; nothing is read yet.

        Args:
            decoder: as for `decoder_of`.
            fs: the store that contains the schemas.
        """
        self._name = decoder
        self._fs = fs

    @functools.cached_property
    def _decoder(self) -> Decoder:
        # This loads Arrow and libraries of schemas; most searches for a key need neither.
        from cordwood.tables.decoders.choice import decoder_of

        return decoder_of(self._name, self._fs)

    def encode(self, key: bytes | str) -> tuple[bytes, ...]:
        """Return the bytes that a key may have: one result, or with schemas one for each schema that can encode it.

        Args:
            key: text as a person writes it, or bytes, which are returned unchanged.

        Raises:
            RequestError: the text is not a valid key, or the decoder does not exist.
        """
        if isinstance(key, bytes):
            return (key,)
        text = key
        for prefix, parse in (("hex:", bytes.fromhex), ("base64:", _base64)):
            if text.startswith(prefix):
                return (_parsed(text.removeprefix(prefix), prefix.rstrip(":"), parse),)
        name = self._name
        if name in _TEXTS:
            return (text.encode("utf-8", "surrogateescape"),)
        if name in ("bytes", "hex"):
            return (_parsed(text, "hex", bytes.fromhex),)
        if name in _NUMBERS:
            read = float if name in ("float", "double") else int
            return (_parsed(text, name, lambda digits: struct.pack(_NUMBERS[name], read(digits))),)
        from cordwood.tables.decoders.schemas import SchemaDecoder

        assert isinstance(self._decoder, SchemaDecoder), "all others are named above"
        found = tuple(_written(self._decoder, _parsed(text, "JSON", json.loads), text))
        if not found:
            raise RequestError(f"no schema of {name} can write the key {text}")
        return found

    def decode(self, raw: Sequence[bytes | None]) -> list[Any]:
        """Decode keys or values; JSON is parsed, and bytes that cannot be decoded stay bytes."""
        if self._name == "utf8":  # load no library for most topics
            return [_text(one) for one in raw]
        import pyarrow as pa

        found = self._decoder.decode(pa.array(raw, pa.binary()))
        values: list[Any] = found.values.to_pylist()
        for at, one in enumerate(values):
            if at in found.problems:
                values[at] = raw[at]
            elif self._decoder.is_json and one is not None:
                values[at] = json.loads(one)
        return values


def _base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _parsed(text: str, what: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text)
    except (ValueError, binascii.Error, struct.error, OverflowError) as error:
        raise RequestError(f"the key {text!r} is no {what}: {error}") from None


def _written(decoder: Any, value: Any, text: str) -> Sequence[bytes]:
    """Encode the key with each schema that can encode it."""
    found = []
    for schema_id, schema in decoder.schemas:
        try:
            body = _WRITERS[decoder.kind](schema, value, text)
        # If a value does not fit the schema, libraries raise errors of many types.
        except Exception:
            continue
        found.append(_PREFIX.pack(0, schema_id) + body)
    return found


def _write_avro(schema: bytes, value: Any, _text: str) -> bytes:
    from cordwood.tables.decoders.schemas import library

    fastavro = library("fastavro", "fastavro")
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(schema)), value)
    return stream.getvalue()


def _write_protobuf(schema: bytes, value: Any, _text: str) -> bytes:
    """Encode a key as the first message type of the file, which most topics use."""
    from cordwood.tables.decoders.schemas import library

    descriptor_pb2, descriptor_pool, json_format, message_factory = (
        library(f"google.protobuf.{name}", "protobuf")
        for name in ("descriptor_pb2", "descriptor_pool", "json_format", "message_factory")
    )
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(schema).file
    for file in files:
        pool.Add(file)
    name = ".".join(filter(None, (files[-1].package, files[-1].message_type[0].name)))
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()
    json_format.ParseDict(value, made)
    return _FIRST_MESSAGE + bytes(made.SerializeToString(deterministic=True))


def _write_json(_schema: bytes, _value: Any, text: str) -> bytes:
    return text.encode()


_WRITERS: Mapping[str, Callable[[bytes, Any, str], bytes]] = {
    "avro": _write_avro,
    "protobuf": _write_protobuf,
    "jsonschema": _write_json,
}


def _text(raw: bytes | None) -> str | bytes | None:
    try:
        return None if raw is None else raw.decode()
    except UnicodeDecodeError:
        return raw
