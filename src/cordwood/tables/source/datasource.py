"""The data source as Spark's Python API defines it, its registration with a session, and the counts of a session.

Spark creates a `LogDataSource` in a separate process, calls its `reader` there, and sends the pickled reader to tasks.
So all state here is plain values, and heavy modules are imported only when they are needed.

Each registration creates a subclass that holds the session's accumulator: tasks report counts, which it sums up.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from cordwood.common.errors import RequestError
from cordwood.common.types import override
from cordwood.fs.base import Store, TargetStore
from cordwood.fs.location import Location
from cordwood.storage.tier.store import with_tier
from cordwood.tables.decoders.keys import schema_folder
from cordwood.tables.source.options import BYTES, ReadOptions, comment_of, from_comments, parse
from cordwood.tables.source.readers import FilteringLogReader, LogReader, LogStreamReader
from cordwood.tables.source.schema import RowFormat, check_schema, column_names, schema_text
from cordwood.tables.source.slices import ReadCounts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cordwood.tables.decoders.plain import Decoder

NAME = "cordwood"
#: Returns the store for the paths in a reader's options.
StoreOf = Callable[[Iterable[str | None]], TargetStore]
#: Unless this is set, Spark pushes no filters down and rejects a reader that implements `pushFilters`.
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def keeps_filters_apart() -> bool:
    """Return whether this Spark keeps the filters of different queries apart.

    Up to 4.3, Spark stores the plan of a Python data source, made for the filters of one query, with the DataFrame, and
    reuses it for all other queries of that DataFrame, even for those without a filter: they then lack rows.
    The release that plans each query separately also has `pushLimit`, which needed this.
    """
    return hasattr(DataSourceReader, "pushLimit")


def register_source(spark: SparkSession, store_of: StoreOf, *, push_filters: bool | None) -> ReadCounter:
    """Register the data source with a session; see `cordwood.register`.

    Args:
        store_of: returns the store for some paths; pickled by name when sent to other processes.
        push_filters: whether readers take conditions from Spark by default.
    """
    accumulator: Accumulator[ReadCounts] | None = None
    if hasattr(spark, "_jsparkSession"):  # not a session of Spark Connect
        accumulator = spark.sparkContext.accumulator(ReadCounts(), CountsAccumulator())
    pushes = keeps_filters_apart() if push_filters is None else push_filters

    class RegisteredSource(LogDataSource):
        _accumulator = accumulator
        _pushes_filters = pushes

        @staticmethod
        @override
        def _store_of(paths: Iterable[str | None]) -> TargetStore:
            return store_of(paths)

    spark.dataSource.register(RegisteredSource)
    spark.conf.set(_PUSHDOWN, "true")
    return ReadCounter(accumulator)


class LogDataSource(DataSource):
    """Kafka logs, read from their directories."""

    _accumulator: ClassVar[Accumulator[ReadCounts] | None]
    _pushes_filters: ClassVar[bool]

    @classmethod
    @override
    def name(cls) -> str:
        return NAME

    @override
    def schema(self) -> str:
        options = parse(self.options)
        return schema_text(column_names(options), comment_of(self.options), _types(self._format_of(options)))

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        options = _parsed(self.options, schema)
        options.batch_limits()
        pushes = self._pushes_filters if options.push_filters is None else options.push_filters
        kind = FilteringLogReader if pushes else LogReader
        row_format = self._format_of(options)
        names = _names(schema, row_format)
        return kind(options, names, self._location_of(options), self._accumulator, row_format)

    @override
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = _parsed(self.options, schema)
        options.stream_start()
        row_format = self._format_of(options)
        names = _names(schema, row_format)
        return LogStreamReader(options, names, self._location_of(options), self._accumulator, row_format)

    @staticmethod
    @abstractmethod
    def _store_of(paths: Iterable[str | None]) -> TargetStore:
        """Return the store for these paths."""

    def _location_of(self, options: ReadOptions) -> Location[Store]:
        location = self._store(options).location()
        if location.in_this_process:
            raise RequestError("memory:// is the memory of one process, and the tasks of a table are in others")
        return location

    def _store(self, options: ReadOptions) -> Store:
        folders = [schema_folder(one) for one in (options.key_format, options.value_format)]
        store = self._store_of([*options.all_paths, options.metadata, options.index_dir, options.tier, *folders])
        return with_tier(
            store, options.tier, () if options.tier_key is None else (options.tier_key,), options.all_paths
        )

    def _format_of(self, options: ReadOptions) -> RowFormat:
        """Choose the decoders of keys and values; schemas are read here, once for all tasks."""
        decoders: dict[str, Decoder] = {}
        for name, text in (("key", options.key_format), ("value", options.value_format)):
            if text != BYTES:
                from cordwood.tables.decoders.choice import decoder_of

                try:
                    decoders[name] = decoder_of(text, self._store(options))
                except RequestError as error:
                    raise RequestError(f"{name}Format: {error}") from None
        return RowFormat(decoders, options.undecodable == "null")


def _types(row_format: RowFormat) -> dict[str, str]:
    """Return Spark's name for the type of each decoded column."""
    from pyspark.sql.pandas.types import from_arrow_type

    return {name: from_arrow_type(one.type).simpleString() for name, one in row_format.decoders.items()}


def _parsed(options: Mapping[str, str], schema: StructType) -> ReadOptions:
    comments = (field.metadata.get("comment", "") for field in schema.fields)
    return parse({**from_comments(comments), **{name.lower(): text for name, text in options.items()}})


def _names(schema: StructType, row_format: RowFormat) -> tuple[str, ...]:
    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    return check_schema(fields, _types(row_format))


# ---- counts ----------------------------------------------------------------------------------------------------------


class CountsAccumulator(AccumulatorParam[ReadCounts]):
    """Adds counts in a Spark accumulator."""

    @override
    def zero(self, value: ReadCounts) -> ReadCounts:
        return ReadCounts()

    @override
    def addInPlace(self, value1: ReadCounts, value2: ReadCounts) -> ReadCounts:  # noqa: N802
        return value1 + value2


class ReadCounter:
    """Counts records and bytes that all reads of a session's data source read and skipped.

    Each task reports its counts when it ends. A task that runs twice, because it failed or was slow, may count twice.
    """

    def __init__(self, accumulator: Accumulator[ReadCounts] | None) -> None:
        self._accumulator = accumulator
        self._taken = ReadCounts()

    @property
    def total(self) -> ReadCounts:
        """All counts since the registration.

        Raises:
            RequestError: the session uses Spark Connect, which has no accumulators.
        """
        if self._accumulator is None:
            raise RequestError(
                "Spark Connect does not hand counts to its clients. Set spark.sql.pyspark.worker.logging.enabled to "
                "true, and find them in spark.tvf.python_worker_logs()"
            )
        return self._accumulator.value

    def take(self) -> ReadCounts:
        """Return the counts since the last call.

        Raises:
            RequestError: as `total`.
        """
        total = self.total
        found, self._taken = total - self._taken, total
        return found
