"""The functions of `import cordwood` that take options, with each option as an argument.

Each function is written here with options values as parameters, like the functions of `commands`. `_with_arguments`
replaces such a parameter by an argument for each of its fields, and rejects arguments of another type. Editors and type
checkers read `api.pyi`, which `scripts/api-stub` writes.
"""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, get_origin

import cordwood.pages.results  # noqa: F401 - so that a result has its page
from cordwood.arguments import checked, misspelt, no_path
from cordwood.cleaning.causes import WhyResult
from cordwood.cleaning.found_keys import ErasureResult, GetResult
from cordwood.cleaning.plan import Plan
from cordwood.commands import abort_transaction as _abort_transaction
from cordwood.commands import clean as _clean
from cordwood.commands import clean_in_place as _clean_in_place
from cordwood.commands import cluster as _cluster
from cordwood.commands import erase_check as _erase_check
from cordwood.commands import get as _get
from cordwood.commands import groups as _groups
from cordwood.commands import index as _index
from cordwood.commands import plan as _plan
from cordwood.commands import plan_exact as _plan_exact
from cordwood.commands import read as _read
from cordwood.commands import table as _table
from cordwood.commands import transactions as _transactions
from cordwood.commands import verify as _verify
from cordwood.commands import view as _view
from cordwood.commands import why as _why
from cordwood.commands.engines import EngineOptions, Where
from cordwood.commands.explain_options import ExplainOptions
from cordwood.commands.key_options import EraseCheckOptions, GetOptions, IndexingOptions
from cordwood.commands.options import (
    AbortOptions,
    CopyOptions,
    InPlaceOptions,
    PlanOptions,
    RunOptions,
    TaskOptions,
    TransactionOptions,
    VerifyOptions,
)
from cordwood.commands.selection import BrokersOptions, ClusterOptions, GroupOptions, ListOptions, WhyOptions
from cordwood.commands.simulate_options import SimulateOptions
from cordwood.commands.table_options import TableFileOptions, TableOptions
from cordwood.commands.view import NodeLook
from cordwood.engine.progress import OnProgress
from cordwood.engine.results import CleanResult, ExactPlan
from cordwood.errors import CordwoodError
from cordwood.fs.base import LocalFileSystem, Store, TargetStore
from cordwood.option import OptionField, build, option_fields
from cordwood.pages.report import PARTITIONS, report_page
from cordwood.storage.index.partition import IndexResult
from cordwood.storage.node.cluster_view import BrokersListing, ConfigsListing, TopicsListing
from cordwood.storage.node.groups import GroupListing
from cordwood.storage.node.listing import Listing
from cordwood.storage.node.transaction_end import AbortResult
from cordwood.storage.node.transactions import TransactionListing
from cordwood.tables.result import TableResult
from cordwood.verification.result import VerifyResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cordwood.sizing.explained import ExplainResult
    from cordwood.sizing.result import SimulationResult

T = TypeVar("T")

#: Arguments that are paths, as text or as a `pathlib.Path`.
_PATHS = ("paths", "output", "before", "after")
#: The types of checked arguments other than options, by their annotation in the source.
_TYPES: Mapping[str, Any] = {"str": str, "int": int, "Sequence[bytes | str]": Sequence[bytes | str]}


def _with_arguments(function: Callable[..., T]) -> Callable[..., T]:
    """Replace the options values among a function's parameters by an argument for each field, with its help."""
    own = inspect.signature(function)
    parameters = own.parameters.values()
    kinds = {one.name: globals()[one.annotation] for one in parameters if _is_options(one.annotation)}
    options = [one for kind in kinds.values() for one in option_fields(kind)]
    kept = [one for one in parameters if one.name not in kinds]
    made = [
        inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.argument_text)
        for one in options
    ]
    said = [one.replace(annotation="AnyPath") if one.name in _PATHS else one for one in kept]
    signature = own.replace(parameters=[*said, *made])
    types = {one.name: _TYPES[one.annotation] for one in kept if one.annotation in _TYPES} | {
        one.name: one.type for one in options
    }

    @functools.wraps(function)
    def call(*positional: Any, **named: Any) -> T:
        try:
            bound = signature.bind(*positional, **named)
        except TypeError as error:
            raise misspelt(function.__name__, error, signature.parameters) from None
        bound.apply_defaults()
        if not bound.arguments.get("paths", True):
            raise no_path(function.__name__)
        for name, kind in types.items():
            bound.arguments[name] = _checked(function.__name__, name, kind, bound.arguments[name])
        try:
            given = {**bound.arguments, **{name: build(kind, bound.arguments) for name, kind in kinds.items()}}
            mine = inspect.BoundArguments(own, {name: given[name] for name in own.parameters})  # type: ignore[arg-type]
            return function(*mine.args, **mine.kwargs)
        except CordwoodError as error:
            error.args = tuple(_in_python(one, options, kept) for one in error.args)
            raise

    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__doc__ = _with_help(inspect.cleandoc(function.__doc__ or ""), options)
    return call


def _checked(function: str, name: str, kind: Any, given: Any) -> Any:
    """Return an argument, or all positional arguments, with paths as text; raise TypeError for another type."""
    try:
        if name == "paths":
            return tuple(checked("a path", kind, one) for one in given)
        return checked(name, kind, given)
    except TypeError as error:
        raise TypeError(f"{function}(): {error}") from None


#: A whole command in an error, which stays as it is; or an option of the command line, perhaps with its value.
_FLAG = re.compile(
    r"""`?cordwood\ [a-z][^;,`]*
      | (--[a-z][a-z-]*)
        (?: \ ( \S+(?=:\ ) | -?\d[\w.]* | [A-Z]+\b(?:\|\w+)? | \S+=[^\s,;:)]* | (?:end|null|here|spark)\b
                | \w+\[[^]]*\] ) )?""",
    re.VERBOSE,
)


def _in_python(said: Any, options: Sequence[OptionField], others: Sequence[inspect.Parameter]) -> Any:
    """Return an error's words with Python's arguments in place of the command line's options.

    `give --high-watermark end` becomes `give high_watermark='end'`, and `--retention` becomes `retention=True`.

    Args:
        said: an argument of the error; returned unchanged if it contains no flag.
        options: options of the function.
        others: its other arguments, such as `output`.
    """
    by_flag = {f"--{one.name}": (one.name, str) for one in others} | {one.flag: (one.name, one.type) for one in options}

    def argument(found: re.Match[str]) -> str:
        name, kind = by_flag.get(found[1] or "", ("", None))
        if not name:
            return found[0]
        value = found[2] or ""
        if kind is bool:
            return f"{name}={not found[1].startswith('--no-') or name.startswith('no_')}" + (value and f" {value}")
        if value and get_origin(kind) is Sequence:
            return f"{name}={[value]}"
        if not value:
            return f"{name}="
        return f"{name}={value}" if value[0].isdigit() or value[0] == "-" or value.isupper() else f"{name}={value!r}"

    text = str(said)
    return _FLAG.sub(argument, text) if "--" in text else said


def _is_options(annotation: str) -> bool:
    return annotation.endswith("Options") and annotation in globals()


def _with_help(text: str, options: Sequence[OptionField]) -> str:
    """Return a docstring with a section of options before its section `Raises`."""
    lines = [
        textwrap.fill(f"{one.name}: {one.option.help}", 112, initial_indent=" " * 4, subsequent_indent=" " * 8)
        for one in options
    ]
    before, raises, after = text.partition("Raises:")
    return before + "\n".join(["Options:", *lines, "", ""]) + raises + after


@_with_arguments
def ls(
    *paths: str,
    fs: Store | None = None,
    options: ListOptions,
) -> Listing:
    """List the partitions of one broker's directories.

    Args:
        paths: log directories, folders of several, or partition directories.
        fs: the file system; default: this machine's.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file; or the directories belong to different brokers.
        ConfigError: Kafka would not accept a config.
    """
    return _read.ls(paths, options, fs=fs)


@_with_arguments
def view_html(
    *paths: str,
    on_progress: Callable[[int, int], None] | None = None,
    fs: Store | None = None,
    options: WhyOptions,
) -> str:
    """The pages of one broker's directories as the text of one HTML file, which needs no network.

    The directories are only read; a broker may be running.

    Args:
        paths: log directories, folders of several, or partition directories.
        on_progress: called with how many partitions a step has looked at, and how many there are.
        fs: the file system; default: this machine's.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file; or the directories belong to different brokers.
        ConfigError: Kafka would not accept a config.
    """

    def tell(look: NodeLook) -> None:
        if on_progress is not None:
            on_progress(look.partitions_done, look.partitions_all)

    return report_page(*_view.look_at_all(paths, options, PARTITIONS, on_look=tell, fs=fs))


@_with_arguments
def get(
    *paths: str,
    keys: Sequence[bytes | str],
    on_progress: Callable[[int, int], None] | None = None,
    fs: Store | None = None,
    options: GetOptions,
) -> GetResult:
    """Find all records of some keys, and what will happen to each of them next.

    The directories are only read; a broker may be running. Segments with a key index are searched through it, all
    others are read. If the number of partitions is known, a key is looked for in the partition that Kafka's
    partitioner writes it to, and in the others if it is not there.

    Args:
        paths: log directories of one broker, folders of several, or partition directories.
        keys: bytes, or text as `key_as` says.
        on_progress: called with the bytes of segments that were searched, and of all.
        fs: the file system; default: this machine's.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file; the directories belong to different brokers; or a key is not what `key_as` says.
        ConfigError: Kafka would not accept a config.
    """
    return _get.get(paths, keys, options, on_progress=on_progress, fs=fs)


@_with_arguments
def erase_check(
    *paths: str,
    keys: Sequence[bytes | str],
    on_progress: Callable[[int, int], None] | None = None,
    fs: Store | None = None,
    options: EraseCheckOptions,
) -> ErasureResult:
    """Look for traces of keys in all files of some directories, and list the steps that remain.

    Every byte of every file is read, and nothing is changed; brokers may be running. `page()` of the result is the
    certificate as an HTML file.

    Args:
        paths: directories of brokers, copies, folders of kept files: all that may have traces.
        keys: bytes, or text as `key_as` says.
        on_progress: called with the bytes of files that were looked at, and of all.
        fs: the file system; default: this machine's.

    Raises:
        NotFoundError: there is nothing at a path, or no file was selected.
        RequestError: a path is a file; or a key is not what `key_as` says.
        ConfigError: Kafka would not accept a config.
    """
    return _erase_check.erase_check(paths, keys, options, on_progress=on_progress, fs=fs)


@_with_arguments
def index(
    *paths: str,
    fs: LocalFileSystem | None = None,
    options: IndexingOptions,
) -> IndexResult:
    """Make the key indexes of partitions, or remove them.

    Indexes that are up to date stay. No file of the log changes.

    Args:
        paths: log directories, folders of several, or partition directories.
        fs: the file system; default: this machine's.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file, or belongs to another user.
        LockedError: a broker or another program holds one of the log directories.
    """
    return _index.index(paths, options, fs=fs)


@_with_arguments
def groups(
    *paths: str,
    fs: Store | None = None,
    options: GroupOptions,
) -> GroupListing:
    """List the consumer groups in one broker's directories: members, committed offsets, and lag.

    Args:
        paths: log directories, folders of several, or partition directories.
        fs: the file system; default: this machine's.

    Raises:
        NotFoundError: there is nothing at a path, no partition of `__consumer_offsets`, or no group was selected.
        RequestError: a path is a file; or the directories belong to different brokers.
    """
    return _groups.list_groups(paths, options, fs=fs)


@_with_arguments
def transactions(
    *paths: str,
    fs: Store | None = None,
    options: TransactionOptions,
) -> TransactionListing:
    """List the open transactions in one broker's directories, and what they hold back.

    Args:
        paths: log directories, folders of several, or partition directories.
        fs: the file system; default: this machine's.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file; or the directories belong to different brokers.
        ConfigError: Kafka would not accept a config.
    """
    return _transactions.list_transactions(paths, options, fs=fs)


@_with_arguments
def topics(
    *paths: str,
    fs: Store | None = None,
    options: ClusterOptions,
) -> TopicsListing:
    """List the topics of a cluster: partitions, replicas and configs.

    Read from its metadata log and snapshots, as of the end, an offset or a time.

    Args:
        paths: log directories of one broker, or folders of several; one of them holds `__cluster_metadata-0`.
        fs: the file system; default: this machine's.

    Raises:
        NotFoundError: there is nothing at a path, no metadata log, or no topic was selected.
        RequestError: the log does not reach back to this offset or time.
    """
    return _cluster.topics(paths, options, fs=fs)


@_with_arguments
def configs(
    *paths: str,
    fs: Store | None = None,
    options: ClusterOptions,
) -> ConfigsListing:
    """List the configs that are set in a cluster: of topics, of brokers, and of all brokers.

    Read from its metadata log and snapshots, as of the end, an offset or a time.

    Args:
        paths: log directories of one broker, or folders of several; one of them holds `__cluster_metadata-0`.
        fs: the file system; default: this machine's.

    Raises:
        NotFoundError: there is nothing at a path, no metadata log, or no topic was selected.
        RequestError: the log does not reach back to this offset or time.
    """
    return _cluster.configs(paths, options, fs=fs)


@_with_arguments
def brokers(
    *paths: str,
    fs: Store | None = None,
    options: BrokersOptions,
) -> BrokersListing:
    """List the brokers of a cluster, and its features.

    Read from its metadata log and snapshots, as of the end, an offset or a time.

    Args:
        paths: log directories of one broker, or folders of several; one of them holds `__cluster_metadata-0`.
        fs: the file system; default: this machine's.

    Raises:
        NotFoundError: there is nothing at a path, no metadata log, or no topic was selected.
        RequestError: the log does not reach back to this offset or time.
    """
    return _cluster.brokers(paths, options, fs=fs)


@_with_arguments
def why(
    *paths: str,
    on_progress: Callable[[int, int], None] | None = None,
    fs: Store | None = None,
    options: WhyOptions,
) -> WhyResult:
    """Explain the size of the partitions in one broker's directories, and what to do about it.

    Partitions that could lose most come first. Nothing is changed; a broker may be running.

    Args:
        paths: log directories, folders of several, or partition directories.
        on_progress: called with how many partitions were looked at, and how many there are.
        fs: the file system; default: this machine's.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file; or the directories belong to different brokers.
        ConfigError: Kafka would not accept a config.
    """
    return _why.why(paths, options, on_progress=on_progress, fs=fs)


@_with_arguments
def plan(
    *paths: str,
    fs: Store | None = None,
    options: PlanOptions,
) -> Plan:
    """Show what a clean of one broker's directories would do, without reading records or changing anything.

    Args:
        paths: log directories, folders of several, or partition directories.
        fs: the file system; default: this machine's.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file; the directories belong to different brokers; an offset is negative; or the
            offset map has no room for a single key.
        ConfigError: Kafka would not accept a config.
    """
    return _plan.make_plan(paths, options, fs=fs)


@_with_arguments
def plan_exact(
    *paths: str,
    spark: SparkSession | None = None,
    on_plan: Callable[[Plan, int], None] | None = None,
    on_progress: OnProgress | None = None,
    fs: TargetStore | None = None,
    options: PlanOptions,
    engine: EngineOptions,
) -> ExactPlan:
    """Plan a clean, and run it without writing, for the figures that `clean` would report instead of bounds.

    The directories are only read; a broker may be running on them. A directory whose broker crashed is first recovered
    into the temporary folder, as `clean` does into its copy: that takes room for its unflushed segments. Retention is
    computed from the sizes and times after the clean.

    Args:
        paths: log directories, folders of several, or partition directories.
        spark: a session to use, which is left running; default: a new one.
        on_plan: called with the plan and the number of bytes that will be read.
        on_progress: called with the number of bytes read so far.
        fs: the file system; default: this machine's.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: see `plan`; or Spark does not start.
        NoSpaceError: the temporary folder has no room for a directory to recover.
    """
    tasks = TaskOptions(engine=engine.engine, master=engine.master)
    run = RunOptions(spark=spark, tasks=tasks, on_plan=on_plan, on_progress=on_progress)
    return _plan_exact.plan_exact(paths, options, run, fs=fs)


@_with_arguments
def clean(
    *paths: str,
    output: str,
    spark: SparkSession | None = None,
    on_plan: Callable[[Plan, int], None] | None = None,
    on_progress: OnProgress | None = None,
    fs: TargetStore | None = None,
    options: PlanOptions,
    copy: CopyOptions,
    tasks: TaskOptions,
) -> CleanResult:
    """Write a cleaned copy of one broker's directories, on which a broker can start.

    Partitions that are not selected are copied. Retention is computed from the sizes and times after the clean.

    Args:
        paths: log directories, folders of several, or partition directories; they are only read.
        output: the new directory, which must not exist or be empty; for several log directories, the folder of their
            copies.
        spark: a session to use, which is left running; default: a new one.
        on_plan: called with the plan and the number of bytes that will be read.
        on_progress: called with the number of bytes read so far.
        fs: the file system; default: this machine's.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        LockedError: a broker or another program holds one of the directories.
        RequestError: the output exists and is not empty; see also `plan`.
        NoSpaceError: the disk is too small, or full.
        OSError: the disk fails. After any error, nothing is left of the output.
    """
    run = RunOptions(spark=spark, tasks=tasks, on_plan=on_plan, on_progress=on_progress)
    return _clean.clean(paths, output, options, copy, run, fs=fs)


@_with_arguments
def clean_in_place(
    *paths: str,
    spark: SparkSession | None = None,
    on_plan: Callable[[Plan, int], None] | None = None,
    on_progress: OnProgress | None = None,
    fs: LocalFileSystem | None = None,
    options: PlanOptions,
    in_place: InPlaceOptions,
    tasks: TaskOptions,
) -> CleanResult:
    """Clean one broker's directories themselves.

    Only selected partitions are recovered and cleaned. Retention runs after the clean.

    Args:
        paths: log directories, folders of several, or partition directories. Nothing else may use them meanwhile.
        spark: a session to use, which is left running; default: a new one.
        on_plan: called with the plan and the number of bytes that will be read.
        on_progress: called with the number of bytes read so far.
        fs: the file system; default: this machine's.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        LockedError: a broker or another program holds one of the directories.
        RequestError: this user may not give new files to the owner of those that they replace; the folder for old
            files cannot be used; see also `plan`.
        OSError: the disk fails. After any error, its notes (`__notes__`) say what is finished.
    """
    run = RunOptions(spark=spark, tasks=tasks, on_plan=on_plan, on_progress=on_progress)
    return _clean_in_place.clean_in_place(paths, options, in_place, run, fs=fs)


@_with_arguments
def abort_transaction(
    *paths: str,
    topic: str,
    producer_id: int,
    fs: LocalFileSystem | None = None,
    options: AbortOptions,
) -> AbortResult:
    """Abort a hanging transaction in the logs of stopped brokers; without `yes`, only show what that would do.

    Args:
        paths: log directories of all brokers that have the partition, and of those that have `__transaction_state`.
        topic: of the partitions.
        producer_id: of the transaction.
        fs: the file system; default: this machine's.

    Raises:
        NotFoundError: there is nothing at a path, or no such partition.
        LockedError: a broker or another program holds one of the directories.
        RequestError: the transaction does not hang, or that is not certain; a replica is missing, or replicas differ;
            a directory was not shut down cleanly.
        DataError: a log is damaged, or torn at its end.
    """
    return _abort_transaction.abort_transaction(paths, topic, producer_id, options, fs=fs)


@_with_arguments
def verify(
    before: str,
    after: str,
    *,
    spark: SparkSession | None = None,
    on_start: Callable[[str, int], None] | None = None,
    on_progress: OnProgress | None = None,
    fs: Store | None = None,
    options: VerifyOptions,
) -> VerifyResult:
    """Prove that one state of log directories is what a clean may leave of another.

    The configs are those of the state before. They decide which partitions may have been cleaned; where a topic's
    policy is unknown, they all may.

    Args:
        before: a log directory, a folder of several, or a partition directory, as it was; it is only read.
        after: the same after the clean; it is only read.
        spark: a session to use, which is left running; default: a new one.
        on_start: called with a description of what will be compared, and the number of bytes that will be read.
        on_progress: called with the number of bytes read so far.
        fs: the file system; default: this machine's.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file; the directories belong to different brokers; or Spark does not start.
    """
    return _verify.verify(before, after, options, spark=spark, on_start=on_start, on_progress=on_progress, fs=fs)


@_with_arguments
def simulate(
    *,
    on_progress: Callable[[float], None] | None = None,
    options: SimulateOptions,
) -> SimulationResult:
    """Predict the disk that a topic will take, under one set of configs, or compare two.

    Runs the live log with its retention and its cleaner in memory, on a clock of its own, on a part of the workload.

    Args:
        on_progress: called with the part that is done, up to 1.

    Raises:
        RequestError: no rate; a value that cannot be; or more segments than can be simulated.
        ConfigError: Kafka would not accept a config.
        NotFoundError: there is no such server.properties.
    """
    # The live log, which no other function needs.
    from cordwood.simulation import simulate as _simulate

    return _simulate.simulate(options, on_progress=on_progress)


@_with_arguments
def explain(
    *paths: str,
    on_progress: Callable[[str, float], None] | None = None,
    fs: Store | None = None,
    options: ExplainOptions,
) -> ExplainResult:
    """Predict the effect of other configs on a topic's log: at once, and if its last weeks happened under them.

    The log's records are replayed into a live log in memory, with retention and a cleaner: under the log's own configs,
    and under the others. Of several partitions the largest is replayed. Nothing is changed.

    Args:
        paths: log directories of one broker, or partition directories.
        on_progress: called with what is being done, and the part of it that is done, up to 1.
        fs: the file system; default: that of this machine, or the object store of the paths.

    Raises:
        NotFoundError: there is nothing at a path, or no such partition.
        RequestError: several topics; no records; a value that cannot be; or more segments than can be replayed.
        ConfigError: Kafka would not accept a config.
    """
    # The live log, which only `simulate` needs besides.
    from cordwood.simulation import explain as _explain

    return _explain.explain(paths, options, on_progress=on_progress, fs=fs)


@_with_arguments
def latest_table(
    spark: SparkSession,
    *paths: str,
    fs: Store | None = None,
    options: TableOptions,
) -> DataFrame:
    """The last committed value of each key of a topic, as a Spark DataFrame.

    Many tasks read the logs twice: now for the keys, and for the values when the DataFrame is used. Their memory does
    not grow with the logs or the number of keys. The result of the first reading is kept in files until the session
    ends. A key that is in several partitions has a row for each.

    Columns: key and value, as their decoders give them; partition, offset and timestamp of the record that counts;
    `deleted`, with deletes or changes only; `undecodable`, where what cannot be decoded is null.

    Args:
        spark: the session.
        paths: log directories of one broker, folders of several, or partition directories.
        fs: the file system; default: that of the machine that a task runs on.

    Raises:
        NotFoundError: there is nothing at a path, or no such topic.
        RequestError: the logs do not reach to this point, or no longer back to the earlier table; there is no such
            decoder, or its library is missing.
        DataError: headers are damaged. What is found damaged later, and what cannot be decoded, fails the job that uses
            the DataFrame.
    """
    return _table.latest_table(spark, paths, options, fs=fs)


@_with_arguments
def table_offsets(
    *paths: str,
    fs: Store | None = None,
    options: TableOptions,
) -> dict[int, int]:
    """By partition, the offset that a table ends at, which is not included.

    Give them to `latest_table` as `as_of`; later, as `since` they select the changes after them.

    Args:
        paths: log directories of one broker, folders of several, or partition directories.
        fs: the file system; default: this machine's.

    Raises:
        NotFoundError, RequestError, DataError: see `latest_table`.
    """
    return _table.table_offsets(paths, options, fs=fs)


@_with_arguments
def write_table(
    *paths: str,
    output: str,
    spark: SparkSession | None = None,
    on_start: Callable[[str, int], None] | None = None,
    on_progress: OnProgress | None = None,
    fs: TargetStore | None = None,
    options: TableOptions,
    files: TableFileOptions,
    engine: EngineOptions,
) -> TableResult:
    """Write the last committed value of each key of a topic to files, or what changed since an earlier table.

    Where the table ends is kept beside the files, in `_cordwood.json`, which is written last: without it the table is
    not whole. After an error nothing is left.

    Args:
        paths: log directories of one broker, folders of several, or partition directories.
        output: the new folder.
        spark: a session to use, which is left running; default: a new one.
        on_start: called with what is done, and the number of bytes that will be read.
        on_progress: called with the number of bytes read so far.
        fs: the file system; default: this machine's.

    Raises:
        NotFoundError: there is nothing at a path, or no such topic.
        RequestError: the output is there already; see also `latest_table`.
        DataError: a log is damaged, or something cannot be decoded.
    """
    where = Where.of(engine, spark)
    run = _table.WriteRun(where=where, on_start=on_start, on_progress=on_progress)
    return _table.write_table(paths, output, options, files, run, fs=fs)
