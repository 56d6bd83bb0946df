"""Proves, from two states of a log, that a clean between them kept its promises.

    look        per partition: log start and end offsets, leader epochs, producer snapshots; ranges to read
    headers     batches with a producer id, and transaction indexes: what read_committed sees, which producers survive
    records     both states side by side: what differs, and each key's last record, packed by hash range
    merge       one hash range at a time: each key's last committed value

`verification` makes the rows and merges them. This module joins the rows about producers with Spark SQL, and shuffles
the others to the tasks that merge them. Neither imports anything from `cleaning` or its kernels: the rules that decide
whether a record may go are implemented a second time, independently.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from cordwood.engine.progress import Counters
from cordwood.fs.base import Store
from cordwood.fs.location import Location
from cordwood.spark.session import collect, with_settings
from cordwood.spark.session import cores as cores_of
from cordwood.verification.compare import compare
from cordwood.verification.facts import FACT_SCHEMA, KeyRules, merge_facts
from cordwood.verification.headers import (
    ABORT,
    BATCH_SCHEMA,
    COMMIT,
    DISORDER,
    ENTRY,
    PLAIN,
    TRANSACTION,
    UNREADABLE,
    headers,
)
from cordwood.verification.keys import BUCKET_KEYS, secret_points
from cordwood.verification.pairs import CODES, Count, Pair, ViolationKind
from cordwood.verification.ranges import Range
from cordwood.verification.states import LookedAt, look_at
from cordwood.verification.violations import NAMED_MAX, Verdict, ViolationNotes

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

T = TypeVar("T")
#: Makes rows from ranges, each given with its pair.
Reader = Callable[[Sequence[tuple[Range, Pair]], Store], Iterator["pa.RecordBatch"]]
#: Producers that a broker knows: id, epoch and last data offset.
_PRODUCER_SCHEMA = "pair int, pid bigint, epoch int, last bigint"
_TASKS_PER_CORE = 4
_SHUFFLE_BYTES = 64 << 20
#: The least bytes of the log per hash range.
_BUCKET_BYTES_MIN = 1 << 20
#: For joins of millions of rows; `session.SETTINGS` suits the few rows of a plan.
_SETTINGS = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
}


def verify_pairs(
    spark: SparkSession, fs: Store, pairs: Sequence[Pair], *, counters: Counters | None = None
) -> list[Verdict]:
    """Prove for each pair that a clean may turn the state before into the state after.

    Args:
        spark: a session; its settings are not changed.
        fs: where both states are. If no other process can open it, this process reads it; the rest runs on Spark.
        pairs: partitions, or parts of them.
        counters: where tasks report how many bytes they have read.

    Returns:
        a verdict for each pair, in the order of `pairs`.
    """
    if not pairs:
        return []
    own = with_settings(spark, _SETTINGS)
    cores = cores_of(spark)
    looked = _look(own, fs, pairs, cores)
    parts = [part for one in looked for part in one.ranges]
    size_bytes = sum(part.size_bytes for part in parts)
    own.conf.set("spark.sql.shuffle.partitions", str(max(min(cores, len(parts)), size_bytes // _SHUFFLE_BYTES, 1)))
    notes = ViolationNotes(pairs)
    for number, one in enumerate(looked):
        for kind, what, path in one.faults:
            notes.state(number, kind, what, path)

    def frame(read: Reader, schema: str, counters: Counters | None = None) -> DataFrame:
        return _frame(own, fs.location(), pairs, parts, cores, read, schema, counters)

    # Persisted because several queries use these rows. Most logs have none.
    with _persisted(frame(headers, BATCH_SCHEMA)) as batches:
        kinds = {row["what"] for row in collect(batches.select("what").distinct())}
        for row in _sampled(_of_batches(batches, _known(own, looked), kinds)) if kinds else ():
            notes.total(row)
            notes.name(row)
        not_committed = collect(_not_committed(batches)) if TRANSACTION in kinds else []
    rules = _key_rules(looked, not_committed)
    buckets = sum(one.buckets for one in rules.values())
    facts = frame(functools.partial(compare, rules=rules), FACT_SCHEMA, counters)
    together = facts.repartition(min(buckets, _TASKS_PER_CORE * cores), "bucket").sortWithinPartitions("bucket")
    for row in collect(together.mapInArrow(merge_facts, FACT_SCHEMA)):
        if row["n"]:
            notes.total(row)
        else:
            notes.name(row)
    return notes.verdicts(fs)


def _key_rules(looked: Sequence[LookedAt], not_committed: Iterable[Any]) -> dict[int, KeyRules]:
    """Decide how the keys of each pair are divided into hash ranges, and which batches are not committed."""
    points = secret_points()
    bases: dict[int, list[int]] = defaultdict(list)
    for row in not_committed:
        bases[row["pair"]].append(row["batch"])
    rules = {}
    first = 0
    for number, one in enumerate(looked):
        size_bytes = sum(part.size_bytes for part in one.ranges)
        # Earlier cleans leave gaps between offsets, so keys_max may be far too high; the size bounds it, too.
        buckets = max(1, min(-(-one.keys_max // BUCKET_KEYS), size_bytes // _BUCKET_BYTES_MIN))
        rules[number] = KeyRules(points, first, buckets, np.sort(np.array(bases[number], np.int64)))
        first += buckets
    return rules


@contextlib.contextmanager
def _persisted(rows: DataFrame) -> Iterator[DataFrame]:
    """Persist rows in Spark until the `with` block ends."""
    kept = rows.persist()
    try:
        yield kept
    finally:
        with contextlib.suppress(Exception):  # Java may have ended, for which another exception is already raised
            kept.unpersist()


def _known(spark: SparkSession, looked: Sequence[LookedAt]) -> DataFrame:
    """The producers that a broker knows, of all pairs, as a DataFrame."""
    import pyarrow as pa

    rows = [(number, *one) for number, found in enumerate(looked) for one in found.producers]
    types = {"pair": pa.int32(), "pid": pa.int64(), "epoch": pa.int32(), "last": pa.int64()}
    known = pa.RecordBatch.from_pylist([dict(zip(types, row, strict=True)) for row in rows], pa.schema(types))
    return _given(spark, [known], _PRODUCER_SCHEMA)


def _given(spark: SparkSession, rows: Sequence[pa.RecordBatch], schema: str) -> DataFrame:
    """Make a DataFrame from rows in this process. `createDataFrame` would make our session the thread's active one."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield from rows

    return spark.range(0, 1, 1, 1).mapInArrow(run, schema)


def _look(spark: SparkSession, fs: Store, pairs: Sequence[Pair], cores: int) -> list[LookedAt]:
    location = fs.location()
    if location.in_this_process:
        return [look_at(number, pair, fs) for number, pair in enumerate(pairs)]
    packs = _packed(list(enumerate(pairs)), [1] * len(pairs), cores)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for pack in batch.column(0).to_pylist():
                for number, pair in packs[pack]:
                    found = pickle.dumps(look_at(number, pair, location.open()))
                    yield pa.RecordBatch.from_arrays([pa.array([number]), pa.array([found])], ["at", "found"])

    rows = spark.range(0, len(packs), 1, len(packs)).mapInArrow(run, "at bigint, found binary")
    found: dict[int, LookedAt] = {row["at"]: pickle.loads(row["found"]) for row in collect(rows)}
    return [found[number] for number in range(len(pairs))]


# ---- rows ------------------------------------------------------------------------------------------------------------


def _frame(
    spark: SparkSession,
    location: Location[Store],
    pairs: Sequence[Pair],
    parts: Sequence[Range],
    cores: int,
    read: Reader,
    schema: str,
    counters: Counters | None,
) -> DataFrame:
    """Run a reader over all ranges, and return its rows as a DataFrame."""
    packs = _packed([(part, pairs[part.pair]) for part in parts], [part.size_bytes for part in parts], cores)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        fs = location.open()
        if counters is not None:
            fs = counters.counted(fs)
        for batch in batches:
            for pack in batch.column(0).to_pylist():
                yield from read(packs[pack], fs)

    if location.in_this_process:
        import pyarrow as pa

        return _given(spark, list(run([pa.RecordBatch.from_pydict({"id": list(range(len(packs)))})])), schema)
    return spark.range(0, len(packs), 1, max(len(packs), 1)).mapInArrow(run, schema)


def _packed(items: Sequence[T], sizes: Sequence[int], cores: int) -> list[list[T]]:
    """Pack adjacent items together, into about `_TASKS_PER_CORE` packs per core of similar total size."""
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


def _sampled(found: DataFrame) -> list[Any]:
    """Reduce facts to at most `NAMED_MAX` rows (pair, code, n, at, key) per pair and code; their n keep the total."""
    from pyspark.sql import functions as f

    spread = f.pmod(f.xxhash64("at", "key"), f.lit(NAMED_MAX))
    buckets = found.groupBy("pair", "code", spread.alias("bucket"))
    rows = buckets.agg(f.sum("n").alias("n"), f.min(f.struct("at", "key")).alias("one"))
    return collect(rows.select("pair", "code", "n", "one.at", "one.key"))


def _ended(batches: DataFrame) -> DataFrame:
    """Transactional data batches, with how each one's transaction ended: by the producer's next marker."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    # In descending order, so that Spark passes over each producer's batches once.
    later = Window.partitionBy("pair", "after", "pid").orderBy(f.desc("upto")).rowsBetween(Window.unboundedPreceding, 0)
    marker = f.when(f.col("what").isin(ABORT, COMMIT), f.col("what"))
    steps = batches.filter(f.col("what").isin(TRANSACTION, ABORT, COMMIT))
    ended = steps.withColumn("ended", f.last(marker, ignorenulls=True).over(later))
    return ended.filter(f.col("what") == TRANSACTION)


def _not_committed(batches: DataFrame) -> DataFrame:
    """Rows (pair, batch): base offsets of batches of the state before whose transaction was aborted, or is open."""
    from pyspark.sql import functions as f

    was = _ended(batches).filter(~f.col("after"))
    return was.filter(f.col("ended").isNull() | (f.col("ended") == ABORT)).select("pair", f.col("at").alias("batch"))


def _hidden(batches: DataFrame) -> DataFrame:
    """Rows (pair, pid, at, hidden, shown): whether read_committed consumers skip a batch of the state after.

    A broker sends a consumer all aborted transactions that end at or after its fetch offset. The consumer skips the
    producer's batches from the first offset of such a transaction up to the next ABORT marker. `hidden`: a consumer
    that starts early skips the batch; `shown`: a consumer that starts exactly at it does not.
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
    """Rows (pair, code, key, at, n): violations and counts from batches with a producer id."""
    from pyspark.sql import functions as f

    def rows(of: DataFrame, code: Column | int) -> DataFrame:
        number = f.lit(code).cast("int") if isinstance(code, int) else code.cast("int")
        key = f.lit(None).cast("binary").alias("key")
        return of.select("pair", number.alias("code"), key, "at", f.lit(1).cast("bigint").alias("n"))

    found = rows(batches.filter(f.col("what") == DISORDER), CODES[ViolationKind.ORDER])
    found = found.unionByName(
        rows(batches.filter(f.col("after") & (f.col("what") == UNREADABLE)), CODES[ViolationKind.INDEX])
    )
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
            .when(f.col("was") == ABORT, f.lit(CODES[ViolationKind.ABORTED_VISIBLE]))
            .otherwise(f.lit(CODES[ViolationKind.COMMITTED_HIDDEN]))
        )
        found = found.unionByName(rows(both, code))
    return found


def _of_producers(batches: DataFrame, known: DataFrame) -> tuple[DataFrame, Column]:
    """Check, for each producer that a broker knew, that the batch from which its state is rebuilt is still there.

    That batch is the producer's last data batch. If the producer is known from a marker alone, it is any batch of that
    epoch, such as the marker or an emptied one. Producers that the broker did not know may disappear: Kafka's cleaner
    drops them, even if the log holds batches of them.

    Returns:
        rows with pair and at, one per producer; and the column with the code for each.
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
    code = f.when(kept, f.lit(CODES[Count.PRODUCERS])).otherwise(f.lit(CODES[ViolationKind.PRODUCER_LOST]))
    return both.withColumn("at", f.when(by_marker, f.col("seen")).otherwise(f.col("last"))), code
