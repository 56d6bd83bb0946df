"""The columns of the data source: those of Kafka's own source, with their names and types, and optional ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cordwood.common.errors import RequestError
from cordwood.common.types import Codec
from cordwood.tables.source.options import ReadOptions

if TYPE_CHECKING:
    from cordwood.tables.decoders.plain import Decoder

HEADERS = "headers"
#: Added by default if undecodable keys and values become null.
UNDECODABLE = "undecodable"
#: In the option `columns`, means all columns of Kafka's source.
_ALL = "*"


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column that a reader may request.

    Attributes:
        type: Spark's name of the type. All columns may be null.
        what: the column's content, for the docs.
    """

    type: str
    what: str


KAFKA_COLUMNS: Mapping[str, SourceColumn] = {
    "key": SourceColumn("binary", "null: the record has no key"),
    "value": SourceColumn("binary", "null: a tombstone"),
    "topic": SourceColumn("string", ""),
    "partition": SourceColumn("int", ""),
    "offset": SourceColumn("bigint", ""),
    "timestamp": SourceColumn("timestamp", "one millisecond before 1970: the record has no timestamp (-1)"),
    "timestampType": SourceColumn("int", "0: CreateTime, 1: LogAppendTime, -1: none, in magic 0"),
    HEADERS: SourceColumn(
        "array<struct<key:string,value:binary>>", "null: the record has no headers. Only with `includeHeaders`"
    ),
}
MORE_COLUMNS: Mapping[str, SourceColumn] = {
    "keySize": SourceColumn("int", "bytes of the key; null without one"),
    "valueSize": SourceColumn("int", "bytes of the value; null for a tombstone"),
    "batchOffset": SourceColumn("bigint", "base offset of the record's batch"),
    "batchSize": SourceColumn("bigint", "bytes of that batch in the file"),
    "codec": SourceColumn("string", f"how that batch is compressed: {', '.join(codec.label for codec in Codec)}"),
    "leaderEpoch": SourceColumn("int", "epoch of the leader that wrote the batch; null in magic 0 and 1"),
    "producerId": SourceColumn("bigint", "null: neither idempotent nor transactional"),
    "producerEpoch": SourceColumn("int", ""),
    "sequence": SourceColumn("int", "the producer's sequence number of the record"),
    "transaction": SourceColumn("string", "committed, aborted or open; null: not in a transaction"),
    "file": SourceColumn("string", "path of the `.log`"),
    "position": SourceColumn("bigint", "position of the batch in that file"),
    UNDECODABLE: SourceColumn("boolean", "true: key or value is null because it cannot be decoded"),
}
COLUMNS: Mapping[str, SourceColumn] = {**KAFKA_COLUMNS, **MORE_COLUMNS}
TRANSACTION = "transaction"
#: The types of decoded columns if keys and values stay bytes.
NOT_DECODED: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class RowFormat:
    """How keys and values are decoded. Plain values that are sent to tasks.

    Attributes:
        decoders: by column, `key` or `value`; a column without a decoder stays bytes.
        null_undecodable: replace a key or value that cannot be decoded by null instead of raising an error.
    """

    decoders: Mapping[str, Decoder] = field(default_factory=dict)
    null_undecodable: bool = False


AS_BYTES = RowFormat()


def column_names(options: ReadOptions) -> tuple[str, ...]:
    """Return the requested columns, in order.

    Raises:
        RequestError: a column does not exist, or is requested twice.
    """
    usual = [name for name in KAFKA_COLUMNS if name != HEADERS or options.include_headers]
    usual += [UNDECODABLE] * (options.undecodable == "null")
    asked = usual if options.columns is None else options.columns
    names = [name for one in asked for name in (usual if one == _ALL else [_spelled(one)])]
    if len(set(names)) < len(names):
        raise RequestError(f"columns: {', '.join(asked)}: a column is there twice")
    return tuple(names)


def schema_text(names: Sequence[str], comment: str | None = None, decoded: Mapping[str, str] = NOT_DECODED) -> str:
    """Return the schema of these columns in Spark's syntax.

    Args:
        comment: comment on the last column.
        decoded: the types of decoded columns, by name.
    """
    text = ", ".join(f"`{name}` {decoded.get(name) or COLUMNS[name].type}" for name in names)
    if comment is None:
        return text
    escaped = comment.replace("\\", "\\\\").replace("'", "\\'")
    return f"{text} COMMENT '{escaped}'"


def check_schema(fields: Sequence[tuple[str, str]], decoded: Mapping[str, str] = NOT_DECODED) -> tuple[str, ...]:
    """Return the column names of a user's schema.

    Args:
        fields: names and types.
        decoded: see `schema_text`.

    Raises:
        RequestError: a column does not exist, or has another type.
    """
    for name, kind in fields:
        spelled = _spelled(name)
        of_column = decoded.get(spelled) or COLUMNS[spelled].type
        if of_column != kind or spelled != name:
            wanted = f"{spelled} {of_column}"
            raise RequestError(f"The schema has {name} {kind}; that column is {wanted}")
    return tuple(name for name, _ in fields)


def _spelled(name: str) -> str:
    """Return the column's name in its own case."""
    found = next((one for one in COLUMNS if one.lower() == name.lower()), None)
    if found is None:
        raise RequestError(f"There is no column {name}. There are {', '.join(COLUMNS)}")
    return found
