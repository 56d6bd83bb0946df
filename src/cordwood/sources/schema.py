"""The columns of the data source: those of Kafka's own source, with their names and types, and more on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cordwood.errors import RequestError
from cordwood.sources.options import ReadOptions

HEADERS = "headers"
#: Stands for the columns of Kafka's source among those that are asked for.
_ALL = "*"


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column that a reader may ask for.

    Attributes:
        type: as Spark writes it. All columns may be null.
        what: is in it, for the docs.
    """

    type: str
    what: str


KAFKA_COLUMNS: Mapping[str, SourceColumn] = {
    "key": SourceColumn("binary", "null: the record has no key"),
    "value": SourceColumn("binary", "null: a tombstone"),
    "topic": SourceColumn("string", ""),
    "partition": SourceColumn("int", ""),
    "offset": SourceColumn("bigint", ""),
    "timestamp": SourceColumn("timestamp", "-1, which is none, is one millisecond before 1970"),
    "timestampType": SourceColumn("int", "0: CreateTime, 1: LogAppendTime, -1: none, in magic 0"),
    HEADERS: SourceColumn("array<struct<key:string,value:binary>>", "null: there are none. With `includeHeaders`"),
}
MORE_COLUMNS: Mapping[str, SourceColumn] = {
    "keySize": SourceColumn("int", "bytes of the key; null without one"),
    "valueSize": SourceColumn("int", "bytes of the value; null for a tombstone"),
    "batchOffset": SourceColumn("bigint", "base offset of the record's batch"),
    "batchSize": SourceColumn("bigint", "bytes of that batch in the file"),
    "codec": SourceColumn("string", "how that batch is compressed: none, gzip, snappy, lz4, zstd"),
    "leaderEpoch": SourceColumn("int", "of the leader that wrote it; null in magic 0 and 1"),
    "producerId": SourceColumn("bigint", "null: neither idempotent nor transactional"),
    "producerEpoch": SourceColumn("int", ""),
    "sequence": SourceColumn("int", "the record's number among those of its producer"),
    "transaction": SourceColumn("string", "committed, aborted or open; null: not in a transaction"),
    "file": SourceColumn("string", "path of the `.log`"),
    "position": SourceColumn("bigint", "of the batch in that file"),
}
COLUMNS: Mapping[str, SourceColumn] = {**KAFKA_COLUMNS, **MORE_COLUMNS}
TRANSACTION = "transaction"


def column_names(options: ReadOptions) -> tuple[str, ...]:
    """The columns that options ask for, in order.

    Raises:
        RequestError: a column does not exist, or is asked for twice.
    """
    usual = [name for name in KAFKA_COLUMNS if name != HEADERS or options.include_headers]
    asked = usual if options.columns is None else options.columns
    names = [name for one in asked for name in (usual if one == _ALL else [_spelled(one)])]
    if len(set(names)) < len(names):
        raise RequestError(f"columns: {', '.join(asked)}: a column is there twice")
    return tuple(names)


def schema_text(names: Sequence[str], comment: str | None = None) -> str:
    """The schema of these columns, as Spark reads it; a comment is one of the last column."""
    text = ", ".join(f"`{name}` {COLUMNS[name].type}" for name in names)
    if comment is None:
        return text
    escaped = comment.replace("\\", "\\\\").replace("'", "\\'")
    return f"{text} COMMENT '{escaped}'"


def check_schema(fields: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The columns of a schema that a user gave.

    Raises:
        RequestError: a column does not exist, or has another type.
    """
    for name, kind in fields:
        spelled = _spelled(name)
        if COLUMNS[spelled].type != kind or spelled != name:
            wanted = f"{spelled} {COLUMNS[spelled].type}"
            raise RequestError(f"The schema says {name} {kind}; that column is {wanted}")
    return tuple(name for name, _ in fields)


def _spelled(name: str) -> str:
    """A column's name with its case."""
    found = next((one for one in COLUMNS if one.lower() == name.lower()), None)
    if found is None:
        raise RequestError(f"There is no column {name}. There are {', '.join(COLUMNS)}")
    return found
