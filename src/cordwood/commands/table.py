"""`table`: the last value of each key of a topic, as a DataFrame, as files, or as rows to print.

First `prepare` determines the offsets of each partition from names, checkpoints and headers. The table depends only on
these offsets, so it can be computed again identically, even if records are appended meanwhile.
"""

from __future__ import annotations

import functools
import logging
import re
import secrets
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa

from cordwood.cleaning.engine import division
from cordwood.cleaning.engine.division import RUN_BYTES_MIN
from cordwood.cleaning.engine.exchange import BlobFolder, each_caught
from cordwood.cleaning.engine.progress import Counters, OnProgress, ProgressWatch
from cordwood.cleaning.engine.task import Failure
from cordwood.commands.options import TableFileOptions, TableOptions
from cordwood.commands.replicas import know_replicas
from cordwood.commands.table_output import check_format, table_folder
from cordwood.commands.table_point import TablePoint, encode_facts, find_point, partitions_of
from cordwood.common.errors import RequestError
from cordwood.common.threads import in_parallel
from cordwood.common.types import Clock, system_clock
from cordwood.fs.base import Store, TargetStore
from cordwood.fs.by_url import file_system_for
from cordwood.fs.workspace import remove_tree, temporary_directory
from cordwood.storage.log.healing import HealedLog, Healer
from cordwood.storage.node.cluster import Cluster
from cordwood.storage.node.read_replica import ReadReplica
from cordwood.tables.decoders.choice import decoder_of
from cordwood.tables.decoders.keys import schema_folder
from cordwood.tables.decoders.plain import Decoder
from cordwood.tables.newest import NewestTask, SegmentHeaders, SegmentTask, TableRun, cut, scan_by_tasks, scan_here
from cordwood.tables.on_spark import reason_of, table_dataframe
from cordwood.tables.result import PartitionOffsets, TableResult
from cordwood.tables.rows import FileFormat, RowCounts, TableFormat
from cordwood.tasks.engines import EngineOptions, Where
from cordwood.tasks.runner import InThisProcess, Runner
from cordwood.tasks.spark.executors import prepare_session
from cordwood.tasks.spark.runner import SessionRunner, SparkRunner, raise_task_error, running_on_spark
from cordwood.tasks.tasks import pack, run_each

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)
#: Up to this many bytes of log, this process finds the last records itself: Spark takes seconds to start, and its tasks
#: need a folder to exchange data.
HERE_BYTES_MAX = 64 << 20
_HASH_SECRET_BYTES = 16
#: Spark's error for an unknown format, or for a column that the format cannot hold.
_FORMAT_ERROR = re.compile(r"\[(DATA_SOURCE_NOT_FOUND|UNSUPPORTED_DATA_TYPE\w*)\].*")
#: Settings of Cordwood's own session when it writes files. Unlike in a clean, the output passes through Java, so it
#: needs memory. The timestamp type is one that other readers, and Cordwood's own writer, use.
_WRITER_SETTINGS = {"spark.driver.memory": "2g", "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
#: Otherwise Spark would trim blanks from keys and values, and make distinct ones equal.
_CSV_OPTIONS = {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}


@dataclass(frozen=True, slots=True)
class PreparedTable:
    """A table to compute."""

    point: TablePoint
    logs: Sequence[Sequence[TableRun]] = field(repr=False)
    rows_format: TableFormat

    @property
    def log_bytes(self) -> int:
        """Size of the runs. They are read twice: for the keys, and for the values."""
        return sum(run.size_bytes for runs in self.logs for run in runs)

    @property
    def is_small(self) -> bool:
        """Whether this process finds the last records itself."""
        return self.log_bytes <= HERE_BYTES_MAX


def prepare(
    paths: Sequence[str],
    options: TableOptions,
    *,
    runner: Runner | None = None,
    fs: Store | None = None,
    now_ms: int | None = None,
    counters: Counters | None = None,
    run_bytes: int | None = None,
    healer: Healer | None = None,
) -> PreparedTable:
    """Determine the offsets and the runs of a table.

    Args:
        paths: log directories, folders of several, or partition directories.
        runner: runs the tasks that read headers; None: threads of this process.
        fs: the store of the logs; default: by the paths.
        run_bytes: size of a run; default: by the size of the log and the number of cores.
        healer: its patches are applied; it gets to know the other replicas.
    """
    fs = fs or _file_system(paths, options)
    rows_format = TableFormat(
        _key_decoder(options.key, fs),
        decoder_of(options.value, fs),
        deletes=options.deletes or options.since is not None,
        null_undecodable=options.undecodable == "null",
    )
    paths = [fs.absolute_path(path) for path in paths]
    named = [(name, fs.absolute_path(path)) for name, path in options.replicas.named]
    cluster = Cluster.open(fs, paths, options.metadata, named=named)
    places, choices = partitions_of(
        cluster, options.replicas.with_paths(paths), options.topic, options.replicas.replica
    )

    healer = Healer() if healer is None else healer
    know_replicas(healer, choices)

    def each(
        do: Callable[[SegmentTask], SegmentHeaders], tasks: Sequence[SegmentTask], sizes: Sequence[int]
    ) -> list[SegmentHeaders]:
        if runner is None or sum(sizes) <= HERE_BYTES_MAX:
            return in_parallel(fs.concurrency, do, tasks)
        found = each_caught(functools.partial(run_each, runner), do, tasks, sizes)
        for failure in found:
            if isinstance(failure, Failure):
                raise failure.exception()
        return found

    def size_of_runs(size_bytes: int) -> int:
        if run_bytes is not None:
            return run_bytes
        return RUN_BYTES_MIN if runner is None else division.run_bytes(2 * size_bytes, runner.cores)

    point = find_point(
        fs,
        cluster,
        places,
        options,
        each,
        size_of_runs,
        system_clock() if now_ms is None else now_ms,
        healer=healer,
        counters=counters,
    )
    point = replace(point, replicas=tuple(map(ReadReplica.of, choices)))
    return PreparedTable(point, cut(point.slices, secrets.token_bytes(_HASH_SECRET_BYTES)), rows_format)


def _key_decoder(text: str, fs: Store) -> Decoder:
    """Return the decoder of keys. If `text` looks like a key, the error points to `get`, whose `--key` is a key."""
    try:
        return decoder_of(text, fs)
    except RequestError as error:
        if ":" in text:
            raise
        raise RequestError(f"{error}; to find the records of a key: cordwood get") from None


def _scanned_whole(
    healer: Healer,
    made: PreparedTable,
    prepare_again: Callable[[], PreparedTable],
    scan: Callable[[PreparedTable], list[NewestTask]],
) -> tuple[PreparedTable, list[NewestTask]]:
    """Scan a prepared table; after damage is healed, prepare and scan it again. Return the table that was scanned."""
    first = [made]

    def scanned() -> tuple[PreparedTable, list[NewestTask]]:
        table = first.pop() if first else prepare_again()
        return table, scan(table)

    return healer.until_healed(scanned)


def _scanned(made: PreparedTable, runner: Runner, folder: BlobFolder) -> list[NewestTask]:
    """Find the last record of each key: in this process if there is little to read, else in the runner's tasks."""
    if made.is_small:
        return scan_here(made.logs)
    return scan_by_tasks(functools.partial(run_each, runner), made.logs, folder, runner.cores)


@dataclass(frozen=True, slots=True)
class _Work:
    """Folders for the data that tasks exchange, and for their read counters."""

    blobs: BlobFolder
    counters: Counters


@contextmanager
def _work_folder(fs: TargetStore, work: str | None) -> Iterator[_Work]:
    """Make a new folder for tasks, in `work` or among temporary files; remove it at the end of the block."""
    with ExitStack() as made:
        if work is None:
            path = made.enter_context(temporary_directory(fs, "cordwood-table-"))
        else:
            fs = file_system_for([work])
            path = f"{fs.absolute_path(work).rstrip('/')}/cordwood-table-{secrets.token_hex(8)}"
            made.callback(remove_tree, fs, path)
            fs.make_directory(path, mode=0o700)
        blobs, counters = BlobFolder(fs.location(), f"{path}/blobs"), Counters(fs.location(), f"{path}/progress")
        for folder in (blobs.path, counters.path):
            fs.make_directory(folder)
        yield _Work(blobs, counters)


def _file_system(paths: Sequence[str], options: TableOptions) -> TargetStore:
    """Return the store of the paths of a table and its options."""
    folders = [schema_folder(one) for one in (options.key, options.value)]
    earlier = options.since if isinstance(options.since, str) else None
    given = options.replicas.with_paths(paths)
    return options.tier_place.store([*given, options.metadata, options.index_place.index_dir, earlier, *folders])


def table_offsets(paths: Sequence[str], options: TableOptions, *, fs: Store | None = None) -> dict[int, int]:
    """Return the end offset of a table by partition; the offset itself is not included.

    Pass the offsets to `latest_table` as `as_of`; later, as `since` they select the changes after them.

    Args:
        paths: log directories of one or more brokers, folders of several, or partition directories.

    Raises:
        NotFoundError, RequestError, DataError: see `latest_table`.
    """
    healer = Healer(options.replicas.heal)
    return healer.until_healed(lambda: prepare(paths, options, fs=fs, healer=healer)).point.offsets


def latest_table(
    spark: SparkSession, paths: Sequence[str], options: TableOptions, *, fs: Store | None = None
) -> DataFrame:
    """Return the last committed value of each key of a topic, as a Spark DataFrame.

    Many tasks read the logs twice: now for the keys, and for the values when the DataFrame is used. Their memory does
    not grow with the logs or the number of keys. The result of the first reading is kept in files until the session
    ends. A key that is in several partitions has a row for each.

    Columns: key and value, as their decoders give them; partition, offset and timestamp of the record that counts;
    `deleted`, with deletes or changes only; `undecodable`, where what cannot be decoded is null.

    Args:
        spark: the session.
        paths: log directories of one or more brokers, folders of several, or partition directories.
        fs: the file system; default: that of the machine that a task runs on.

    Raises:
        NotFoundError: there is nothing at a path, or no such topic.
        RequestError: the logs do not reach to this point, or no longer back to the earlier table; there is no such
            decoder, or its library is missing.
        DataError: headers are damaged. What is found damaged later, and what cannot be decoded, fails the job that uses
            the DataFrame.
    """
    prepare_session(spark)
    runner, healer = SessionRunner(spark), Healer(options.replicas.heal)

    def prepared() -> PreparedTable:
        return prepare(paths, options, runner=runner, fs=fs, healer=healer)

    made = healer.until_healed(prepared)
    with ExitStack() as kept:
        if made.is_small:
            made, tasks = _scanned_whole(healer, made, prepared, lambda table: scan_here(table.logs))
            _warn_of_healed(healer)
            return table_dataframe(spark, tasks, made.rows_format)
        work = kept.enter_context(_work_folder(file_system_for([]), options.work))
        made, tasks = _scanned_whole(healer, made, prepared, lambda table: _scanned(table, runner, work.blobs))
        _warn_of_healed(healer)
        found = table_dataframe(spark, tasks, made.rows_format)
        # Other DataFrames may derive from this one, so its last use is unknown: keep the folder until the session ends.
        weakref.finalize(spark, kept.pop_all().close)
    return found


def _warn_of_healed(healer: Healer) -> None:
    # A DataFrame has no other place for it.
    for one in healer.logs:
        _log.warning("%s", one)


# ---- rows to print ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShownTable:
    """A table as rows to print."""

    point: TablePoint
    rows_format: TableFormat
    rows: Iterator[Mapping[str, Any]]
    healed: tuple[HealedLog, ...] = ()


@contextmanager
def shown_table(
    paths: Sequence[str],
    options: TableOptions,
    *,
    where: Where = Where(),  # noqa: B008 - a frozen value
    fs: Store | None = None,
) -> Iterator[ShownTable]:
    """Yield a table whose rows are available within the block. This process computes a small one itself.

    Args:
        paths: log directories, folders of several, or partition directories.
        where: engine for the tasks of a larger table.
    """
    healer = Healer(options.replicas.heal)

    def prepared() -> PreparedTable:
        return prepare(paths, options, fs=fs, healer=healer)

    made = healer.until_healed(prepared)
    if made.is_small:
        made, tasks = _scanned_whole(healer, made, prepared, lambda table: scan_here(table.logs))
        batches = made.rows_format.batches(tasks)
        rows = (row for batch in batches for row in batch.to_pylist())
        yield ShownTable(made.point, made.rows_format, rows, healer.logs)
        return
    with where.start() as runner, _work_folder(file_system_for([]), options.work) as work:
        # Prepare again, with runs for the runner's cores.
        fixed = _as_of(options, made.point.offsets)

        def cut_anew() -> PreparedTable:
            return prepare(paths, fixed, runner=runner, fs=fs, healer=healer)

        made, tasks = _scanned_whole(healer, cut_anew(), cut_anew, lambda table: _scanned(table, runner, work.blobs))
        if isinstance(runner, SparkRunner):
            found = table_dataframe(runner.session, tasks, made.rows_format).toLocalIterator(prefetchPartitions=True)
            rows = (row.asDict(recursive=True) for row in found)
        else:
            batches = made.rows_format.batches(tasks)
            rows = (row for batch in batches for row in batch.to_pylist())
        yield ShownTable(made.point, made.rows_format, rows, healer.logs)


def _as_of(options: TableOptions, offsets: Mapping[int, int]) -> TableOptions:
    return replace(options, as_of=offsets)


# ---- files -----------------------------------------------------------------------------------------------------------


def write_table(
    paths: Sequence[str],
    output: str,
    options: TableOptions,
    files: TableFileOptions,
    engine: EngineOptions,
    *,
    spark: SparkSession | None = None,
    on_start: Callable[[str, int], None] | None = None,
    on_progress: OnProgress | None = None,
    fs: TargetStore | None = None,
    limit: int | None = None,
    clock: Clock = system_clock,
) -> TableResult:
    """Write the last committed value of each key of a topic to files, or what changed since an earlier table.

    Where the table ends is kept beside the files, in `_cordwood.json`, which is written last: without it the table is
    not whole. After an error nothing is left.

    Args:
        paths: log directories of one or more brokers, folders of several, or partition directories.
        output: the new folder.
        on_start: called with what is done, and the number of bytes that will be read.

    Raises:
        NotFoundError: there is nothing at a path, or no such topic.
        RequestError: the output is there already; see also `latest_table`.
        DataError: a log is damaged, or something cannot be decoded.
    """
    started, now_ms, where = time.monotonic(), clock(), engine.where(spark)
    fs = fs or _file_system([*paths, output], options)
    output = fs.absolute_path(output)
    writer_options = files.writer_options()
    if fs.path_on_disk(output) is None:
        _check_uploads(output, where)
    if not where.is_spark:
        FileFormat(files.format.lower(), writer_options)  # raise for wrong options first
    with (
        table_folder(fs, output, list(map(fs.absolute_path, options.replicas.with_paths(paths)))) as folder,
        _work_folder(fs, options.work) as work,
    ):
        # Raise for wrong options before Spark starts.
        healer = Healer(options.replicas.heal)
        made = healer.until_healed(lambda: prepare(paths, options, fs=fs, now_ms=now_ms, healer=healer))
        check_format(files.format, made.rows_format.schema, is_own_session=spark is None)
        if on_start is not None:
            on_start(f"table of {made.point.topic}", 2 * made.log_bytes)
        with _writing_runner(where, made) as runner:
            fixed = _as_of(options, made.point.offsets)

            def cut_anew() -> PreparedTable:
                counters = work.counters
                return prepare(paths, fixed, runner=runner, fs=fs, now_ms=now_ms, counters=counters, healer=healer)

            first = cut_anew()
            with ProgressWatch(work.counters.location.open(), work.counters.path, on_progress):
                scan = functools.partial(_scanned, runner=runner, folder=work.blobs)
                table, tasks = _scanned_whole(healer, first, cut_anew, scan)
                if isinstance(runner, SparkRunner):
                    rows = table_dataframe(runner.session, tasks, table.rows_format)
                    rows = rows if limit is None else rows.limit(limit)
                    counts = _write(rows, folder.path, files.format, writer_options, fs)
                else:
                    local = file_system_for([])
                    format_ = FileFormat(files.format.lower(), writer_options)
                    counts = write_parts(runner, local, folder.path, tasks, table.rows_format, format_, limit)
        folder.finish(encode_facts(made.point, options, now_ms, files.format, limit))
    return TableResult(
        made.point.topic,
        output,
        files.format,
        options.since is not None,
        tuple(PartitionOffsets(one.partition, one.start_offset, one.end_offset) for one in made.point.partitions),
        counts.rows,
        counts.deletes,
        counts.undecodable,
        made.point.notes,
        time.monotonic() - started,
        made.point.replicas,
        healer.logs,
    )


@contextmanager
def _writing_runner(where: Where, made: PreparedTable) -> Iterator[Runner]:
    """Start the runner for a table that is written to files."""
    if where.is_spark:
        with running_on_spark(where.spark, master=where.master, settings=_WRITER_SETTINGS) as runner:
            yield runner
    elif made.is_small:
        yield InThisProcess()
    else:
        with where.start() as runner:
            yield runner


def _check_uploads(output: str, where: Where) -> None:
    """Raise RequestError for a cluster, whose executors would write to their own disks."""
    if not where.is_on_this_machine:
        raise RequestError(
            f"--output {output}: files are uploaded from this machine, so Spark has to run on it (--master local[*]). "
            "On a cluster, write the DataFrame of cordwood.latest_table with what Spark itself has for that store"
        )


def _write(
    rows: DataFrame,
    output: str,
    format_name: str,
    writer_options: Mapping[str, str],
    fs: TargetStore,
) -> RowCounts:
    """Write the rows by Spark. After an error, leave no files."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    flags = {"deletes": "deleted", "undecodable": "undecodable"}
    sums = [
        f.sum(f.col(column).cast("long") if column in rows.columns else f.lit(0)).alias(name)
        for name, column in flags.items()
    ]
    seen = Observation()
    defaults = _CSV_OPTIONS if format_name.lower() == "csv" else {}
    try:
        observed = rows.observe(seen, f.count(f.lit(1)).alias("rows"), *sums)
        observed.write.format(format_name).options(**defaults, **writer_options).mode("errorifexists").save(output)
        return RowCounts(*(int(seen.get.get(name) or 0) for name in ("rows", *flags)))
    except BaseException as error:
        with suppress(OSError):
            remove_tree(fs, output)
        if isinstance(error, Exception):
            raise_task_error(error)
            if (words := _FORMAT_ERROR.search(f"{error}")) is not None:
                raise RequestError(f"--format {format_name}: {words[0]}") from error
            if (reason := reason_of(error)) is not None:
                raise RequestError(f"Spark cannot write {format_name} to {output}: {reason}") from error
        raise


# ---- files written by tasks ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _PartWriter:
    """Writes files of a table; can be pickled.

    Attributes:
        limit: maximum number of rows of a file; None: all.
    """

    folder: str
    rows_format: TableFormat
    file_format: FileFormat
    limit: int | None

    def __call__(self, tasks: Sequence[NewestTask]) -> tuple[str, RowCounts]:
        """Write the rows of some tasks; return the path of the file, and its row counts."""
        path = f"{self.folder}/{uuid4().hex}"
        return path, self.file_format.write(path, self.rows_format.schema, self._rows(tasks))

    def _rows(self, tasks: Sequence[NewestTask]) -> Iterator[pa.RecordBatch]:
        left = self.limit
        for batch in self.rows_format.batches(tasks):
            if left is None:
                yield batch
                continue
            yield batch.slice(0, left)
            left -= min(left, batch.num_rows)
            if not left:
                return


def write_parts(
    runner: Runner,
    fs: TargetStore,
    output: str,
    tasks: Sequence[NewestTask],
    rows_format: TableFormat,
    file_format: FileFormat,
    limit: int | None,
) -> RowCounts:
    """Write the rows of a table to files of a new folder; after an error, leave no files.

    Args:
        limit: maximum number of rows of the table; None: all.

    Raises:
        FileExistsError: the folder exists.
        DataError: a log is damaged, or a key or value cannot be decoded.
    """
    fs.make_directory(output)
    try:
        unfinished = f"{output}/_temporary"
        fs.make_directory(unfinished)
        sizes = [task.run.size_bytes for task in tasks]
        # A limit applies to all rows together, so it needs one file. Without rows, one file shows the columns.
        chosen = [list(range(len(tasks)))] if limit is not None or not tasks else pack(sizes, runner.cores)
        parts = [[tasks[at] for at in sorted(one)] for one in chosen]
        write = _PartWriter(unfinished, rows_format, file_format, limit)
        written = run_each(runner, write, parts, [sum(sizes[at] for at in one) for one in chosen])
        run = uuid4()
        for number, (path, _) in enumerate(written):
            fs.rename(path, f"{output}/part-{number:05}-{run}{file_format.suffix}")
        remove_tree(fs, unfinished)
        counts = RowCounts()
        for _, of_part in written:
            counts = counts.plus(of_part)
        return counts
    except BaseException:
        remove_tree(fs, output)
        raise
