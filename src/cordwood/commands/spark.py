"""Logs in Spark: the data source `cordwood`; and the records of Kafka's internal topics, as DataFrames or in Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cordwood.common.arguments import AnyPath, text_paths
from cordwood.common.errors import NotFoundError, RequestError
from cordwood.common.types import Isolation
from cordwood.fs.base import Store
from cordwood.fs.by_url import file_system_for
from cordwood.record.columns import OnDamage, raise_damage
from cordwood.storage.formats.filenames import DirectoryState
from cordwood.storage.formats.messages.schema import RecordType
from cordwood.storage.formats.messages.topics import INTERNAL_TOPICS, InternalTopic
from cordwood.storage.log.transactions import READ_UNCOMMITTED
from cordwood.storage.node.node import LocatedPartition, Node
from cordwood.tasks.spark.executors import check_version, prepare_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cordwood.tables.source.datasource import ReadCounter


def register(spark: SparkSession, *, push_filters: bool | None = None) -> ReadCounter:
    """Make `spark.read.format("cordwood")` and `spark.readStream.format("cordwood")` read logs from their directories.

    A path may be the URL of an object store. A session of local mode then runs its workers in this process's Python,
    unless PYSPARK_PYTHON chose another one: a virtual environment need not be activated.

    Args:
        spark: the session; a session of Spark Connect will do.
        push_filters: let readers evaluate conditions of a query, and skip records that fail them. Up to Spark 4.3, use
            it only if each loaded DataFrame serves one query: Spark mixes up the filters of several. Default: only if
            Spark keeps them apart. The option `pushFilters` overrides it for one reader.

    Returns:
        the counter of the session's reads.

    Raises:
        RequestError: Spark is not installed, or too old; or the session's workers run a Python that has no Cordwood.
    """
    check_version(spark.version)
    try:
        from cordwood.tables.source.datasource import register_source
    except ImportError as error:
        raise RequestError(
            f"The data source needs Spark 4.3 or newer:  pip install 'cordwood[spark]' ({error})"
        ) from None
    prepare_session(spark)
    return register_source(spark, file_system_for, push_filters=push_filters)


def internal_table(
    *paths: AnyPath,
    record: str,
    isolation: Isolation | str | None = READ_UNCOMMITTED,
    on_damage: OnDamage = raise_damage,
    fs: Store | None = None,
) -> pa.Table:
    """Return the records of one type in Kafka's internal topics as an Arrow table, with a column per field.

    Args:
        paths: log directories, folders of several, or partition directories.
        record: the record type, such as `OffsetCommit` or `TransactionLog`.
        isolation: `isolation.level` of the read; None: all records, including those below the log start offset.
        on_damage: called with each unreadable batch or record; if it returns, reading continues after it.

    Raises:
        NotFoundError: there is nothing at a path, or no partition of the topic that has such records.
        RequestError: no internal topic has such records.
        DataError: from the default `on_damage`.
    """
    import pyarrow as pa

    from cordwood.storage.log.arrow import internal_schema

    given = text_paths(paths)
    found, places = _places(fs or file_system_for(given), given, record)
    batches = (
        batch
        for place in places
        for batch in place.log().internal_batches(record, isolation=isolation, on_damage=on_damage)
    )
    return pa.Table.from_batches(batches, internal_schema(found))


def internal_dataframe(
    spark: SparkSession,
    *paths: AnyPath,
    record: str,
    isolation: Isolation | str | None = READ_UNCOMMITTED,
    fs: Store | None = None,
) -> DataFrame:
    """Return the records of one type in Kafka's internal topics as a Spark DataFrame, with a column per field.

    When the DataFrame is used, a task reads each log; damage fails the query.

    Args:
        paths: log directories, folders of several, or partition directories.
        record: the record type, such as `OffsetCommit` or `TransactionLog`.
        isolation: `isolation.level` of the read; None: all records, including those below the log start offset.
        fs: the file system; default: the one of the machine that runs the task.

    Raises:
        NotFoundError: there is nothing at a path, or no partition of the topic that has such records.
        RequestError: no internal topic has such records.
    """
    from cordwood.storage.log.arrow import internal_schema
    from cordwood.storage.log.view import LogSource
    from cordwood.tables.on_spark import internal_dataframe as make

    prepare_session(spark)
    given = text_paths(paths)
    store = fs or file_system_for(given)
    found, places = _places(store, given, record)
    logs = [
        # Tasks may run in another folder.
        LogSource(store.location(), store.absolute_path(place.path), place.log().log_start_offset, place.directory.live)
        for place in places
    ]
    return make(spark, logs, record, internal_schema(found), None if isolation is None else Isolation(isolation))


def _places(fs: Store, paths: Sequence[str], record: str) -> tuple[RecordType, list[LocatedPartition]]:
    topic, found = next(_types(record), (None, None))
    if topic is None or found is None:
        known = ", ".join(one.name for topic in INTERNAL_TOPICS.values() for one in topic.records.values())
        raise RequestError(f"No internal topic of Kafka's has records of type {record}; there are {known}")
    node = Node.open(fs, paths)
    places = [
        place
        for place in node.places
        if place.topic == topic.name and place.name is not None and place.name.state is DirectoryState.CURRENT
    ]
    if not places:
        raise NotFoundError(
            f"No partition of {topic.name} in {', '.join(paths)}, which has the records of type {record}"
        )
    return found, places


def _types(record: str) -> Iterator[tuple[InternalTopic, RecordType]]:
    for topic in INTERNAL_TOPICS.values():
        if (found := topic.record_type(record)) is not None:
            yield topic, found
