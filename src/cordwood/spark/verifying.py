"""Proves of two states of a log that a clean between them kept its promises.

    look        per partition: where the log starts and ends, leader epochs, producer snapshots; ranges to read
    headers     batches that have a producer, and transaction indexes, as a DataFrame: who sees what, who may go on
    records     both states side by side, as a DataFrame: each key's last committed value

`verifying_reader` makes the rows; here Spark's SQL joins and aggregates them. Nothing of `cleaning` and none of its
kernels has a part in either: what decides whether a record may go is written down a second time, in other words.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from cordwood.errors import CordwoodError, CorruptFileError
from cordwood.fs.base import FileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.spark.progress import Counted
from cordwood.spark.session import cores as cores_of
from cordwood.spark.verifying_reader import (
    ABORT,
    BATCH_SCHEMA,
    CODES,
    COMMIT,
    DISORDER,
    ENTRY,
    FACT_SCHEMA,
    NAMES,
    PLAIN,
    RECORD,
    TRANSACTION,
    UNREADABLE,
    Broken,
    Count,
    Pair,
    Range,
    Reader,
    Side,
    compare,
    headers,
    ranges_of,
)
from cordwood.storage import leader_epochs
from cordwood.storage.filenames import FileKind
from cordwood.storage.log import Log, read_file
from cordwood.storage.producers import Producers, headers_from, newest_snapshot
from cordwood.types import NONE, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Broken", "Count", "Pair", "Side", "Verdict", "Violation", "verify_pairs"]

T = TypeVar("T")
#: Of a producer: epoch, last sequence, last offset, start of its open transaction; NONE for what there is none of.
_State = tuple[int, int, int, int]
#: Of producers that a broker knows: epoch and last data offset.
_PRODUCER_SCHEMA = "pair int, pid bigint, epoch int, last bigint"

#: Of each kind of violation in a partition so many are named; all are counted.
NAMED_MAX = 20
_RANGE_BYTES = 128 << 20
_TASKS_PER_CORE = 4
_SHUFFLE_BYTES = 64 << 20
#: For joins of millions of rows, unlike the handfuls that plans are; see `session.SETTINGS`.
_SETTINGS = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
}

#: What each kind of violation says.
MEANINGS: Mapping[Broken, str] = {
    Broken.INVENTED: "a record is there that was not there before",
    Broken.TWICE: "a record is there twice",
    Broken.ORDER: "records or batches are not in the order of their offsets",
    Broken.KEY: "the record had another key",
    Broken.VALUE: "the record had another value",
    Broken.HEADERS: "the record had other headers",
    Broken.TIMESTAMP: "the record had another timestamp",
    Broken.BATCH_INVENTED: "a batch is there whose offsets no batch had before",
    Broken.BATCH_OFFSETS: "the batch had other first and last offsets",
    Broken.BATCH_EPOCH: "the batch had another leader epoch",
    Broken.BATCH_PRODUCER: "the batch had another producer id, epoch or sequence",
    Broken.BATCH_ATTRIBUTES: "the batch had other attributes (codec, timestamp type, transactional, control)",
    Broken.BATCH_TIME: "the batch had another largest timestamp",
    Broken.HORIZON: "the batch's delete horizon is not the one that it had, or should have got",
    Broken.MARKER: "a transaction marker or control record is gone before its time",
    Broken.UNTOUCHED: "a batch above the first uncleanable offset was changed or is gone",
    Broken.DAMAGE_BEFORE: "the state before is damaged here, so nothing can be proved; `cordwood check` says more",
    Broken.DAMAGE_AFTER: "damaged; `cordwood check` says more",
    Broken.READERS: "two readers do not agree on what this batch holds",
    Broken.VALUE_LOST: "the last committed value of a key is gone",
    Broken.TOMBSTONE_LOST: "the tombstone of a key is gone before its time",
    Broken.CAME_BACK: "a deleted key has a value again",
    Broken.ABORTED_VISIBLE: "readers of committed data see an aborted transaction",
    Broken.COMMITTED_HIDDEN: "readers of committed data miss a committed transaction, or it counts as open or aborted",
    Broken.PRODUCER_LOST: "the last batch of an active producer is gone: rebuilt from the log, its state is lost",
    Broken.END_OFFSET: "the log ends elsewhere",
    Broken.LOG_START: "the log starts elsewhere",
    Broken.LEADER_EPOCHS: "the history of leader epochs is another",
    Broken.PRODUCER_STATE: "a broker that loads it knows something else of a producer",
    Broken.INDEX: "an index or another file does not fit the log",
    Broken.CHECKPOINT: "a checkpoint does not fit",
    Broken.PARTITION: "a partition is missing, or was not there before",
}
assert set(MEANINGS) == set(Broken)
#: Violations whose record is in the state before only.
_IN_BEFORE = {
    *(Broken.MARKER, Broken.UNTOUCHED, Broken.DAMAGE_BEFORE, Broken.VALUE_LOST, Broken.TOMBSTONE_LOST),
    Broken.PRODUCER_LOST,
}


@dataclass(frozen=True, slots=True)
class Violation:
    """One promise that was not kept.

    Attributes:
        kind: of violation.
        what: in words.
        path: the file that it is in; of something that is gone, where it was.
        offset: of the record or batch, if it is about one.
        key: of the record; None if it is about none, or that has none.
    """

    kind: Broken
    what: str
    path: str
    offset: int | None = None
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one pair.

    Attributes:
        pair: what was compared.
        counts: how much was proved, by `Count`.
        violations: of each kind the first `NAMED_MAX` or so.
        totals: per kind of violation, how many there are.
    """

    pair: Pair
    counts: Mapping[str, int]
    violations: tuple[Violation, ...] = ()
    totals: Mapping[str, int] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether all is proved."""
        return not self.totals


def verify_pairs(spark: SparkSession, pairs: Sequence[Pair], *, progress: str | None = None) -> list[Verdict]:
    """Prove of each pair that what is in it now is what a clean may leave of what was in it.

    Args:
        spark: a session; its settings stay as they are.
        pairs: partitions, or parts of them.
        progress: folder for counters of the bytes read, see `spark.progress`.
    """
    if not pairs:
        return []
    own = _session(spark)
    cores = cores_of(spark)
    looked = _look(own, pairs, cores)
    parts = [part for one in looked for part in one.ranges]
    size_bytes = sum(part.size_bytes for part in parts)
    own.conf.set("spark.sql.shuffle.partitions", str(max(min(cores, len(parts)), size_bytes // _SHUFFLE_BYTES, 1)))
    notes = _Notes(pairs)
    for number, one in enumerate(looked):
        for kind, what, path in one.faults:
            notes.state(number, kind, what, path)

    # Read once, looked at in many ways; there are none in most logs.
    batches = _frame(own, pairs, parts, cores, headers, BATCH_SCHEMA, None).persist()
    try:
        kinds = {row["what"] for row in batches.select("what").distinct().collect()}
        for row in _sampled(_of_batches(batches, _known(own, looked), kinds)) if kinds else ():
            notes.add(row)
        records = _frame(own, pairs, parts, cores, compare, FACT_SCHEMA, progress)
        if TRANSACTION in kinds:
            records = records.join(_not_committed(batches), ["pair", "batch"], "left_anti")
        judged = _judged(records)
        for row in judged.groupBy("pair", "code").sum("n").withColumnRenamed("sum(n)", "n").collect():
            notes.total(row)
        if notes.has_violations:
            broken = [CODES[kind] for kind in Broken]
            for row in _sampled(judged.filter(judged["code"].isin(broken))):
                notes.name(row)
    finally:
        batches.unpersist()
    return notes.verdicts()


def _session(spark: SparkSession) -> SparkSession:
    own = spark.newSession()
    for name, value in _SETTINGS.items():
        own.conf.set(name, value)
    return own


# ---- look ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Looked:
    """What files other than logs say of a pair, and what is to be read of it."""

    ranges: tuple[Range, ...] = ()
    faults: tuple[tuple[Broken, str, str], ...] = ()
    #: Id, epoch and last data offset of those that a broker knew which loaded the state before.
    producers: tuple[tuple[int, int, int], ...] = ()


def _known(spark: SparkSession, looked: Sequence[_Looked]) -> DataFrame:
    """The producers of all pairs. `createDataFrame` would leave our session behind as the thread's active one."""
    rows = [(number, *one) for number, found in enumerate(looked) for one in found.producers]

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        types = {"pair": pa.int32(), "pid": pa.int64(), "epoch": pa.int32(), "last": pa.int64()}
        for _ in batches:
            yield pa.RecordBatch.from_pylist([dict(zip(types, row, strict=True)) for row in rows], pa.schema(types))

    return spark.range(0, 1, 1, 1).mapInArrow(run, _PRODUCER_SCHEMA)


def _look(spark: SparkSession, pairs: Sequence[Pair], cores: int) -> list[_Looked]:
    packs = _packed(list(enumerate(pairs)), [1] * len(pairs), cores)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for pack in batch.column(0).to_pylist():
                for number, pair in packs[pack]:
                    found = pickle.dumps(_look_at(number, pair, PosixFileSystem()))
                    yield pa.RecordBatch.from_arrays([pa.array([number]), pa.array([found])], ["at", "found"])

    rows = spark.range(0, len(packs), 1, len(packs)).mapInArrow(run, "at bigint, found binary").collect()
    found: dict[int, _Looked] = {row["at"]: pickle.loads(row["found"]) for row in rows}
    return [found[number] for number in range(len(pairs))]


def _look_at(number: int, pair: Pair, fs: FileSystem) -> _Looked:
    try:
        ranges = ranges_of(number, pair, fs, range_bytes=_RANGE_BYTES)
        before, after = pair.before.open(fs), pair.after.open(fs)
        noted, was, done = _producers(before, pair)
        _, now, _ = _producers(after, pair)
        start = after.log_start_offset
        # At the start of a log, too, a broker that loads it passes over a snapshot.
        gone_below = start if pair.retention and done <= start else NONE
        faults = (*_state_faults(pair, before, after), *_producer_faults(pair, noted, was, now, gone_below))
        known = tuple((id, epoch, last_offset) for id, (epoch, _, last_offset, _) in was.items())
        return _Looked(tuple(ranges), faults, known)
    except (CordwoodError, OSError) as error:
        return _Looked(faults=((Broken.DAMAGE_AFTER, f"cannot be read: {error}", pair.after.path),))


def _state_faults(pair: Pair, before: Log, after: Log) -> Iterator[tuple[Broken, str, str]]:
    """Start, end and leader epochs of both."""
    path = pair.after.path
    ends = before.next_offset, after.next_offset
    if ends[0] != ends[1]:
        yield Broken.END_OFFSET, f"the log ended at {ends[0]}, and ends at {ends[1]}", path
    starts = before.log_start_offset, after.log_start_offset
    if starts[1] < starts[0] or (starts[1] > starts[0] and not pair.retention):
        excuse = "" if starts[1] < starts[0] else "; only retention, if it ran, excuses that"
        yield Broken.LOG_START, f"the log started at {starts[0]}, and starts at {starts[1]}{excuse}", path
    epochs = [_epochs(log, pair.lowest) for log in (before, after)]
    # A broker that starts on it begins an epoch at the end, in the place of one that wrote nothing.
    written = [[one for one in some if one[1] < ends[0]] for some in epochs]
    if written[0] != written[1] or epochs[1][-1:] < epochs[0][-1:]:
        what = f"leader epochs were {epochs[0]}, and are {epochs[1]}"
        yield Broken.LEADER_EPOCHS, what, f"{path}/{FileKind.LEADER_EPOCHS}"


def _producer_faults(
    pair: Pair, noted: Mapping[int, _State], was: Mapping[int, _State], now: Mapping[int, _State], gone_below: int
) -> Iterator[tuple[Broken, str, str]]:
    """Whether a broker that loads the log knows of producers what it would have known before.

    What it can no longer read, because retention took it, are batches below `gone_below`.
    """
    for id, one in was.items():
        rebuilt, new = noted.get(id) != one, now.get(id)
        if new == one or (rebuilt and _only_its_epoch_is_forgotten(one, new)) or _is_left(one, new, gone_below):
            continue
        what = f"producer {id}: epoch, last sequence, last offset, open transaction were {one}, and are {new}"
        yield Broken.PRODUCER_STATE, what, pair.after.path


def _only_its_epoch_is_forgotten(was: _State, now: _State | None) -> bool:
    """Whether it was known by a marker alone, and no longer is.

    A broker that rebuilds it from the log passes over a marker that a clean has emptied, Kafka's as ours. That
    something is left of it is proved elsewhere, see `_of_producers`.
    """
    return was[1:] == (NONE, NONE, NONE) and (now is None or (now[0] < was[0] and now[-1] == NONE))


def _is_left(was: _State, now: _State | None, gone_below: int) -> bool:
    """Whether that is what is known of a producer without the batches below an offset."""
    _, _, last_offset, transaction_start = was
    if last_offset < gone_below:
        return now is None or now[:-1] == (was[0], NONE, NONE)
    return now is not None and now[:-1] == was[:-1] and NONE < transaction_start < gone_below


def _epochs(log: Log, lowest: int) -> list[tuple[int, int]]:
    """The history from an offset on; none without a file, nor from one that cannot be read, of which `check` tells."""
    path = f"{log.path}/{FileKind.LEADER_EPOCHS}"
    try:
        known = leader_epochs.history(leader_epochs.decode(read_file(log.fs, path), path))
    except (FileNotFoundError, CorruptFileError):
        return []
    first = known.epoch_for_offset(lowest)
    later = [(one.epoch, one.start_offset) for one in known.entries if one.start_offset > lowest]
    return later if first is None else [(first, lowest), *later]


def _producers(log: Log, pair: Pair) -> tuple[dict[int, _State], dict[int, _State], int]:
    """What the newest snapshot says of producers, what a broker that loads the log then knows of them.

    Only those that it still knows at the pair's time. Last, the offset that the snapshot is of.
    """
    end = log.next_offset
    settings = {"now_ms": pair.now_ms, "expiration_ms": pair.producer_expiration_ms}
    known: Producers
    known, done = newest_snapshot(log, end, **settings)
    noted = _states(known)
    for rows in headers_from(log, done) if done < end else ():
        known.replay(rows[rows["base_offset"] >= done])
    known.expire(**settings)
    return noted, _states(known), done


def _states(producers: Producers) -> dict[int, _State]:
    return {
        id: (one.epoch, one.last_sequence, one.last_offset, one.transaction_start)
        for id, one in producers.by_id.items()
    }


# ---- rows ------------------------------------------------------------------------------------------------------------


def _frame(
    spark: SparkSession,
    pairs: Sequence[Pair],
    parts: Sequence[Range],
    cores: int,
    read: Reader,
    schema: str,
    progress: str | None,
) -> DataFrame:
    """What a reader makes of all ranges, as a DataFrame."""
    packs = _packed([(part, pairs[part.pair]) for part in parts], [part.size_bytes for part in parts], cores)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from uuid import uuid4

        fs: FileSystem = PosixFileSystem()
        if progress is not None:
            fs = Counted(fs, f"{progress}/{uuid4().hex}")
        for batch in batches:
            for pack in batch.column(0).to_pylist():
                for part, pair in packs[pack]:
                    yield from read(part, pair, fs)

    return spark.range(0, len(packs), 1, max(len(packs), 1)).mapInArrow(run, schema)


def _packed(items: Sequence[T], sizes: Sequence[int], cores: int) -> list[list[T]]:
    """Neighbours together, in about as many packs as there should be tasks."""
    wanted = max(sum(sizes) / (_TASKS_PER_CORE * max(cores, 1)), 1)
    packs: list[list[T]] = []
    room = 0.0
    for item, size in zip(items, sizes, strict=True):
        if room <= 0:
            packs.append([])
            room = wanted
        packs[-1].append(item)
        room -= size
    return packs


# ---- what the rows prove ---------------------------------------------------------------------------------------------


def _judged(records: DataFrame) -> DataFrame:
    """Rows (pair, code, key, at, n): each key of the state before with its verdict; and all that was found before."""
    from pyspark.sql import functions as f

    def last(which: Column) -> Column:
        return f.max(f.when(which, f.col("at")))

    there, value, may_go = (f.col(name) for name in ("there", "value", "may_go"))
    keys = records.groupBy("pair", "code", "key").agg(
        f.sum("n").alias("n"),
        f.min("at").alias("first"),
        f.max("at").alias("last"),
        last(there).alias("last_there"),
        last(there & value).alias("value_there"),
        last(may_go).alias("last_may_go"),
        last(~value).alias("last_tombstone"),
    )
    is_record = f.col("code") == RECORD
    gone_rightly = f.col("last_may_go") == f.col("last")
    verdict = (
        f.when(~is_record, f.col("code"))
        .when(f.col("last_there") == f.col("last"), f.lit(CODES[Count.KEYS_KEPT]))
        .when(gone_rightly & f.col("value_there").isNull(), f.lit(CODES[Count.KEYS_DELETED]))
        .when(gone_rightly, f.lit(CODES[Broken.CAME_BACK]))
        .when(f.col("last_tombstone") == f.col("last"), f.lit(CODES[Broken.TOMBSTONE_LOST]))
        .otherwise(f.lit(CODES[Broken.VALUE_LOST]))
        .cast("int")
    )
    at = (
        f.when(~is_record, f.col("first"))
        .when(verdict == CODES[Broken.CAME_BACK], f.col("value_there"))
        .otherwise(f.col("last"))
    )
    return keys.select(
        "pair",
        verdict.alias("code"),
        "key",
        at.alias("at"),
        f.when(is_record, f.lit(1)).otherwise(f.col("n")).alias("n"),
    )


def _sampled(found: DataFrame) -> list[Any]:
    """Rows (pair, code, n, at, key): of each pair and code up to `NAMED_MAX`, whose n add up to all."""
    from pyspark.sql import functions as f

    spread = f.pmod(f.xxhash64("at", "key"), f.lit(NAMED_MAX))
    buckets = found.groupBy("pair", "code", spread.alias("bucket"))
    rows = buckets.agg(f.sum("n").alias("n"), f.min(f.struct("at", "key")).alias("one"))
    return rows.select("pair", "code", "n", "one.at", "one.key").collect()


def _ended(batches: DataFrame) -> DataFrame:
    """Transactional batches with data, and how each one's transaction ended: by the next marker of its producer."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    # From the end, so that Spark goes over each producer's batches once.
    later = Window.partitionBy("pair", "after", "pid").orderBy(f.desc("upto")).rowsBetween(Window.unboundedPreceding, 0)
    marker = f.when(f.col("what").isin(ABORT, COMMIT), f.col("what"))
    steps = batches.filter(f.col("what").isin(TRANSACTION, ABORT, COMMIT))
    ended = steps.withColumn("ended", f.last(marker, ignorenulls=True).over(later))
    return ended.filter(f.col("what") == TRANSACTION)


def _not_committed(batches: DataFrame) -> DataFrame:
    """(pair, batch): batches of the state before whose transaction was aborted, or is open."""
    from pyspark.sql import functions as f

    was = _ended(batches).filter(~f.col("after"))
    return was.filter(f.col("ended").isNull() | (f.col("ended") == ABORT)).select("pair", f.col("at").alias("batch"))


def _hidden(batches: DataFrame) -> DataFrame:
    """(pair, pid, at, hidden, shown): whether readers of committed data miss a batch of the state after.

    A broker tells a reader that starts at an offset of all aborted transactions that end behind it. The reader leaves
    out a producer's batches from the first offset of such a one on, up to the next ABORT marker. `hidden`: someone
    misses the batch, whoever started early; `shown`: someone does not, who started right at it.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    place = f.when(f.col("what") == ENTRY, f.col("at")).otherwise(f.col("upto"))
    steps = batches.filter(f.col("after") & f.col("what").isin(TRANSACTION, ABORT, ENTRY)).withColumn("place", place)
    so_far = Window.partitionBy("pair", "pid").orderBy("place").rangeBetween(Window.unboundedPreceding, 0)

    def latest(what: int, column: str) -> Column:
        return f.coalesce(f.max(f.when(f.col("what") == what, f.col(column))).over(so_far), f.lit(-1))

    told = steps.select(
        *("pair", "pid", "what", "at", "filled"),
        (latest(ENTRY, "at") > latest(ABORT, "upto")).alias("hidden"),
        (latest(ENTRY, "upto") < f.col("at")).alias("shown"),
    )
    return told.filter((f.col("what") == TRANSACTION) & f.col("filled")).drop("what", "filled")


def _of_batches(batches: DataFrame, known: DataFrame, kinds: set[int]) -> DataFrame:
    """Rows (pair, code, key, at, n): what batches of producers prove."""
    from pyspark.sql import functions as f

    def rows(of: DataFrame, code: Column | int) -> DataFrame:
        number = f.lit(code).cast("int") if isinstance(code, int) else code.cast("int")
        key = f.lit(None).cast("binary").alias("key")
        return of.select("pair", number.alias("code"), key, "at", f.lit(1).cast("bigint").alias("n"))

    found = rows(batches.filter(f.col("what") == DISORDER), CODES[Broken.ORDER])
    found = found.unionByName(rows(batches.filter(f.col("after") & (f.col("what") == UNREADABLE)), CODES[Broken.INDEX]))
    found = found.unionByName(rows(*_of_producers(batches, known)))
    if TRANSACTION in kinds:
        ended = _ended(batches)
        was = ended.filter(~f.col("after")).select("pair", "pid", "at", f.col("ended").alias("was"))
        now = ended.filter(f.col("after")).select("pair", "pid", "at", f.col("ended").alias("now"))
        both = _hidden(batches).join(was, ["pair", "pid", "at"]).join(now, ["pair", "pid", "at"])
        same = f.col("was").eqNullSafe(f.col("now"))
        good = f.when(f.col("was") == ABORT, same & f.col("hidden") & ~f.col("shown")).otherwise(
            same & ~f.col("hidden") & f.col("shown")
        )
        code = (
            f.when(f.coalesce(good, same & ~f.col("hidden")), f.lit(CODES[Count.TRANSACTIONAL]))
            .when(f.col("was") == ABORT, f.lit(CODES[Broken.ABORTED_VISIBLE]))
            .otherwise(f.lit(CODES[Broken.COMMITTED_HIDDEN]))
        )
        found = found.unionByName(rows(both, code))
    return found


def _of_producers(batches: DataFrame, known: DataFrame) -> tuple[DataFrame, Column]:
    """(pair, at) per producer that a broker knew, and whether what that is rebuilt from is still there.

    That is its last data batch, or, of one that is known by a marker alone, a marker of that epoch or what is left of
    one. Whom a broker did not know, whatever the log holds of it, Kafka's cleaner lets go.
    """
    from pyspark.sql import functions as f

    data = f.when(f.col("what").isin(PLAIN, TRANSACTION), f.col("upto"))
    epochs = batches.filter(~f.col("what").isin(ENTRY, DISORDER, UNREADABLE)).groupBy("pair", "after", "pid", "epoch")
    seen = epochs.agg(f.max(data).alias("data"), f.max("upto").alias("seen"))
    was = seen.filter(~f.col("after")).drop("after").join(known, ["pair", "pid", "epoch"])
    by_marker = f.col("last") < 0
    was = was.filter(by_marker | (f.col("data") == f.col("last")))
    now = seen.filter("after").select(
        "pair", "pid", "epoch", f.col("data").alias("now_data"), f.lit(True).alias("there")
    )
    both = was.join(now, ["pair", "pid", "epoch"], "left")
    kept = f.when(by_marker, f.col("there").isNotNull()).otherwise(f.col("now_data").eqNullSafe(f.col("last")))
    code = f.when(kept, f.lit(CODES[Count.PRODUCERS])).otherwise(f.lit(CODES[Broken.PRODUCER_LOST]))
    return both.withColumn("at", f.when(by_marker, f.col("seen")).otherwise(f.col("last"))), code


# ---- words -----------------------------------------------------------------------------------------------------------


class _Notes:
    """Takes rows down, pair by pair."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = pairs
        self._totals: list[dict[str, int]] = [{} for _ in pairs]
        self._violations: list[list[Violation]] = [[] for _ in pairs]

    @property
    def has_violations(self) -> bool:
        """Whether any promise was not kept."""
        return any(NAMES.get(CODES[name]) in MEANINGS for totals in self._totals for name in totals)

    def total(self, row: Any) -> None:
        """A row with pair, code and n."""
        name = NAMES[row["code"]]
        totals = self._totals[row["pair"]]
        totals[name] = totals.get(name, 0) + row["n"]

    def name(self, row: Any) -> None:
        """A row with pair, code, at and key, of a violation."""
        kind = Broken(NAMES[row["code"]])
        key = None if row["key"] is None else bytes(row["key"])
        self._violations[row["pair"]].append(Violation(kind, MEANINGS[kind], "", row["at"], key))

    def add(self, row: Any) -> None:
        """Both."""
        self.total(row)
        if NAMES[row["code"]] in MEANINGS:
            self.name(row)

    def state(self, number: int, kind: Broken, what: str, path: str) -> None:
        """A violation that is about no record."""
        totals = self._totals[number]
        totals[kind] = totals.get(kind, 0) + 1
        if totals[kind] <= NAMED_MAX:
            self._violations[number].append(Violation(kind, what, path))

    def verdicts(self) -> list[Verdict]:
        """All that was taken down."""
        return [self._verdict(number, pair) for number, pair in enumerate(self._pairs)]

    def _verdict(self, number: int, pair: Pair) -> Verdict:
        totals = self._totals[number]
        order = list(Broken)
        violations = sorted(
            _placed(pair, self._violations[number]), key=lambda one: (order.index(one.kind), one.offset or 0)
        )
        return Verdict(
            pair,
            {name: totals.get(name, 0) for name in Count},
            tuple(violations),
            {name: totals[name] for name in Broken if name in totals},
        )


def _placed(pair: Pair, violations: Sequence[Violation]) -> Iterator[Violation]:
    """The violations, each with its file."""
    fs = PosixFileSystem()
    places: dict[bool, Callable[[int], str]] = {}
    for one in violations:
        if one.path or one.offset is None:
            yield one
            continue
        in_before = one.kind in _IN_BEFORE
        if in_before not in places:
            places[in_before] = _finder(pair.before if in_before else pair.after, fs)
        yield Violation(one.kind, one.what, places[in_before](one.offset), one.offset, one.key)


def _finder(side: Side, fs: FileSystem) -> Callable[[int], str]:
    log = side.open(fs)
    return lambda offset: side.file_of(log.segments_from(offset)[0]) if log.segments else side.path


def partition_name(name: TopicPartition | None, path: str) -> str:
    """What a partition is called: its name, or its directory."""
    return path if name is None else str(name)
