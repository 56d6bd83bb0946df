"""Messages as Confluent's serializers write them."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro


def framed(schema_id: int, message: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + message


def avro(schema_id: int, schema: Any, value: Any) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return framed(schema_id, target.getvalue())
