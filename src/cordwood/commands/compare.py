"""`compare`: check whether consumers would see the same data after an election.

`comparison` compares a partition; this module finds its replicas in the directories of several brokers.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cordwood.cleaning.engine import progress
from cordwood.cleaning.engine.progress import Counters, OnProgress
from cordwood.cleaning.proof.pairs import Side
from cordwood.cleaning.proof.scratch import Scratch, explained
from cordwood.cleaning.proof.site import TaskSite
from cordwood.commands.opening import open_cluster, select_partitions
from cordwood.commands.options import CompareOptions, NamedBrokers, Selection
from cordwood.common.errors import ConfigError, NotFoundError
from cordwood.common.text import Cells, Column, Paged, bytes_text, key_text, number, printable, register
from cordwood.common.types import Clock, TopicPartition, system_clock
from cordwood.comparison.comparing import ReplicatedPartition, compare_partitions
from cordwood.comparison.entries import KeyShare
from cordwood.comparison.values import (
    MEANINGS,
    ComparedReplica,
    Difference,
    DifferenceKind,
    PairResult,
    PairRole,
    PartitionComparison,
    ReplicaState,
    Sum,
)
from cordwood.fs.base import Store
from cordwood.fs.paced import Limit, throttled_store
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.workspace import temporary_directory
from cordwood.storage.formats.filenames import CLUSTER_METADATA_TOPIC
from cordwood.storage.node.cluster import Cluster, Replica
from cordwood.tasks.runner import InThisProcess, given_up_after
from cordwood.tasks.tasks import paths_on_disk, run_each

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Name prefix of folders for the files that tasks of a comparison exchange.
FOLDERS = "cordwood-compare-"


@dataclass(frozen=True, slots=True)
class CompareResult(Paged):
    """The comparison of the replicas of partitions.

    Attributes:
        brokers: names of the brokers whose directories were given.
        partitions: partitions with two or more replicas here.
        alone: number of partitions with one replica here, which were not compared.
        sample: share of the keys whose values were compared.
        finished_ms: time of the end.
        seconds: total time, without the start of Spark.
    """

    brokers: tuple[str, ...]
    partitions: tuple[PartitionComparison, ...]
    alone: int
    sample: float
    finished_ms: int
    seconds: float = 0.0

    @property
    def agrees(self) -> bool:
        """Whether no consumer can see a difference after an election."""
        return all(one.agrees for one in self.partitions)

    @property
    def totals(self) -> dict[DifferenceKind, int]:
        """Number of differences of each kind, impossible checkpoints included."""
        found = dict.fromkeys(DifferenceKind, 0)
        for one in self.partitions:
            for pair in one.pairs:
                for kind, count in pair.totals.items():
                    found[kind] += count
            for _, checkpoint in one.checkpoints:
                found[checkpoint.kind] += 1
        return {kind: count for kind, count in found.items() if count}

    @property
    def sums(self) -> dict[str, int]:
        """Sums of equal data, and of differences that timing explains, by `Sum`."""
        pairs = [pair for one in self.partitions for pair in one.pairs]
        return {name: sum(pair.sums[name] for pair in pairs) for name in Sum}

    def prometheus(self) -> str:
        """Return metrics in Prometheus's text format, for the textfile collector of node_exporter."""
        return "".join(f"{line}\n" for line in _metrics(self))

    def __str__(self) -> str:
        return f"{number(len(self.partitions), 'partition')} of {number(len(self.brokers), 'broker')}: {verdict(self)}"


def compare(
    paths: Sequence[str],
    options: CompareOptions,
    *,
    spark: SparkSession | None = None,
    on_start: Callable[[str, int], None] | None = None,
    on_progress: OnProgress | None = None,
    fs: Store | None = None,
    clock: Clock = system_clock,
) -> CompareResult:
    """Compare the replicas of each partition in the directories of several brokers.

    Each replica is compared with the newest: the replica with the newest last leader epoch, then the highest end. The
    directories are only read.

    Args:
        paths: log directories of two or more brokers, folders of several, or partition directories.
        on_start: called with a description of the comparison, and the number of bytes that it will read.

    Raises:
        NotFoundError: there is nothing at a path, no partition was selected, or none has two replicas.
        RequestError: a path is a file; the directories belong to different clusters; or Spark does not start.
    """
    selection = options.selection
    given = options.named.with_paths(paths)
    fs = fs or selection.store(given)
    absolute = [fs.absolute_path(path) for path in paths]
    named = NamedBrokers(brokers=[f"{name}={fs.absolute_path(path)}" for name, path in options.named.named])
    cluster = _open(fs, absolute, selection, named)
    partitions, alone = _partitions(cluster, given, options)
    sizes = [_size_bytes(fs, one) for one in partitions]
    if on_start is not None:
        on_start(f"{number(len(partitions), 'partition')} to compare", sum(sizes))
    # Tasks keep their counters on this machine, as the store may be read-only.
    local = PosixFileSystem()
    with temporary_directory(local, "cordwood-compare-progress-") as folder:
        fs = throttled_store(fs, Limit.of(options.tasks.rate, local, folder))
        with options.tasks.where(spark).start(sizes) as runner:
            location = fs.location()
            if location.in_this_process:
                runner = InThisProcess()
            else:
                needs = "Name a folder that all machines share with TMPDIR"
                places = [replica.side.path for one in partitions for replica in one.replicas]
                runner.check(local, folder, paths_on_disk(fs, places), needs)
            started = time.monotonic()
            with (
                progress.ProgressWatch(local, folder, on_progress),
                given_up_after(local, folder, options.tasks.task_timeout),
                explained(),
                temporary_directory(local, FOLDERS) as scratch,
            ):
                site = TaskSite(
                    location, Scratch(local.location(), scratch), Counters(local.location(), folder).counting
                )
                each = functools.partial(run_each, runner)
                found = compare_partitions(each, runner.cores, fs, partitions, site, KeyShare(options.sample))
            seconds = time.monotonic() - started
    return CompareResult(cluster.brokers, tuple(found), alone, options.sample, clock(), seconds)


# ---- replicas --------------------------------------------------------------------------------------------------------


def _open(fs: Store, paths: Sequence[str], selection: Selection, brokers: NamedBrokers) -> Cluster:
    """Open the directories; without any `node.id`, each path is a broker of its own."""
    cluster = open_cluster(fs, paths, selection, brokers)
    if cluster.is_one_broker and cluster.nodes[0].node_id is None and len(paths) > 1 and not brokers.brokers:
        chosen = selection.metadata, selection.server_properties, selection.overrides
        return Cluster.open(fs, [], *chosen, named=[(path, path) for path in paths])
    return cluster


def _partitions(
    cluster: Cluster, given: Sequence[str], options: CompareOptions
) -> tuple[list[ReplicatedPartition], int]:
    """Return the partitions to compare, and the number of partitions with a single replica here."""
    places = [place for node in cluster.nodes for place in node.places]
    chosen = {
        place.name.topic_partition
        for place in select_partitions(places, given, options.selection)
        if place.name is not None and place.topic != CLUSTER_METADATA_TOPIC
    }
    found = [name for name in cluster.partitions if name in chosen]
    several = [name for name in found if len(cluster.replicas(name)) > 1]
    if not several:
        raise NotFoundError(
            f"No partition has two replicas in {', '.join(given)}: give directories of two or more brokers. A broker "
            "without meta.properties needs --broker NAME=DIR"
        )
    return [replicas_of(cluster, name) for name in several], len(found) - len(several)


def replicas_of(cluster: Cluster, name: TopicPartition) -> ReplicatedPartition:
    """Return the replicas of a partition, the newest one first."""
    choice = cluster.choose_replica(name)
    replicas = [choice.replica, *choice.others]
    policies = {_is_compacted(replica) for replica in replicas}
    compacted = policies.pop() if len(policies) == 1 else None
    return ReplicatedPartition(name, tuple(map(_replica, replicas)), compacted, _cleaned_below(cluster, name, replicas))


def _replica(one: Replica) -> ComparedReplica:
    topic_id = one.place.topic_id()
    return ComparedReplica(
        one.broker,
        Side(one.path, one.log_start_offset),
        one.high_watermark,
        one.first_dirty_offset,
        one.recovery_point,
        None if topic_id is None else str(topic_id),
    )


def _is_compacted(one: Replica) -> bool | None:
    """Return whether the topic is compacted by its configs; None if they are unknown."""
    try:
        config = one.node.config_of(one.name.topic)
    except ConfigError:
        return None
    return config.compact if config.policy_known and one.node.doubt(one.name.topic) is None else None


def _cleaned_below(cluster: Cluster, name: TopicPartition, replicas: Sequence[Replica]) -> int | None:
    """Return an offset above all cleaned records of all replicas; None if it is unknown.

    A replica can fetch from a cleaned replica, so the directories need all replicas.
    """
    assigned = cluster.assignment(name)
    offsets = [one.first_dirty_offset for one in replicas if one.first_dirty_offset is not None]
    if assigned is None or not offsets or not {*assigned.replicas}.issubset(one.node.node_id for one in replicas):
        return None
    return max(offsets)


def _size_bytes(fs: Store, partition: ReplicatedPartition) -> int:
    return sum(replica.side.open(fs).size_bytes for replica in partition.replicas)


# ---- the result as text and JSON -------------------------------------------------------------------------------------

_SUMS = {
    Sum.BATCHES_EQUAL: "batches are equal, byte for byte",
    Sum.KEYS_EQUAL: "keys whose records were cleaned have the same last value",
}
_TIMING = {
    Sum.RECORDS_CLEANED: "records that one replica has cleaned away",
    Sum.BATCHES_REWRITTEN: "batches that one replica has cleaned, or both at different times",
    Sum.TOMBSTONES: "deleted keys whose tombstone one replica still has",
    Sum.MARKERS_CLEANED: "transaction markers that one replica has removed with their data",
    Sum.KEYS_ABOVE: "keys with newer records above the compared offsets",
    Sum.OFFSETS_BELOW: "offsets that one replica has deleted by retention",
    Sum.OFFSETS_ABOVE: "offsets that are not yet committed, or not yet replicated",
    Sum.OFFSETS_UNCOMMITTED: "offsets that were never committed; Kafka will truncate them",
}


def verdict(result: CompareResult) -> str:
    """Return the verdict as a sentence."""
    wrong = [one for one in result.partitions if not one.agrees]
    if wrong:
        return f"{number(len(wrong), 'partition')} with differences: consumers can see other data after an election"
    share = "" if result.sample == 1 else f" (of {result.sample:.3g} of the keys)"
    return f"All replicas agree{share}"


def _lines(result: CompareResult) -> Iterator[str]:
    for one in result.partitions:
        if not one.agrees or one.checkpoints:
            yield from _partition_lines(one)
    compared = sum(len(one.states) for one in result.partitions)
    alone = f"; {number(result.alone, 'partition')} with one replica here" if result.alone else ""
    yield f"{number(len(result.partitions), 'partition')}, {number(compared, 'replica')} compared{alone}"
    yield from summary(result)
    yield verdict(result)


def summary(result: CompareResult) -> Iterator[str]:
    """Yield a line for each sum."""
    sums = result.sums
    for name, what in _SUMS.items():
        if sums[name]:
            size = f" ({bytes_text(sums[Sum.BYTES_EQUAL])})" if name is Sum.BATCHES_EQUAL else ""
            yield f"  {sums[name]:>12,}  {what}{size}"
    for name, what in _TIMING.items():
        if sums[name]:
            yield f"  {sums[name]:>12,}  explained by timing: {what}"
    if sums[Sum.UNJUDGED_BYTES]:
        yield f"  {bytes_text(sums[Sum.UNJUDGED_BYTES]):>12}  not judged, next to damage"


def _partition_lines(one: PartitionComparison) -> Iterator[str]:
    for pair in one.pairs:
        if pair.agrees:
            continue
        names = pair.newest.replica.name, pair.other.replica.name
        where = f"offsets {pair.start:,} to {pair.end - 1:,}" if pair.end > pair.start else "no common offset"
        compared = f"broker {names[1]} compared with the newest replica, on broker {names[0]}"
        yield f"{partition_name(one)}: {compared}, {where}"
        for kind, total in pair.totals.items():
            yield f"  {kind}: {total:,} – {MEANINGS[kind]}"
            named = [difference for difference in pair.differences if difference.kind is kind]
            for difference in named:
                yield f"    {sentence(difference, pair)}"
            if total > len(named):
                yield f"    … and {total - len(named):,} more"
    for name, difference in one.checkpoints:
        yield f"{partition_name(one)}: broker {name}: {difference.what}"


def partition_name(one: PartitionComparison) -> str:
    """Return the name of a partition."""
    return printable(str(one.name)) if one.name is not None else "the partition"


def sentence(one: Difference, pair: PairResult) -> str:
    """Return a difference as a sentence: the offsets, the key, the facts, and the wrong replica."""
    names = [printable(replica.replica.name) for replica in (pair.newest, pair.other)]
    facts = []
    if one.kind is DifferenceKind.DIVERGED:
        facts.append(
            f"from there on {number(one.other_records, 'offset')} on broker {names[0]}, {one.records:,} on broker "
            f"{names[1]}"
        )
    elif one.records > 1:
        facts.append(number(one.records, "record"))
    if one.offsets is not None:
        facts += [f"{_last_text(one, role)} on broker {name}" for role, name in zip(PairRole, names, strict=True)]
    if one.what:
        facts.append(printable(one.what))
    subject = offsets_text(one) + ("" if one.key is None else f", key {key_text(one.key)}")
    return f"{subject}{': ' if facts else ''}{', '.join(facts)}; seen once broker {names[one.role]} leads"


def offsets_text(one: Difference) -> str:
    """Return the offsets of a difference in words."""
    last = one.end_offset - 1
    return f"offset {one.offset:,}" if last <= one.offset else f"offsets {one.offset:,} to {last:,}"


def _last_text(one: Difference, role: PairRole) -> str:
    assert one.offsets is not None
    offset = one.offsets[role]
    if offset is None:
        return "nothing"
    return f"a {'tombstone' if one.tombstones[role] else 'value'} at {offset:,}"


def rows(result: CompareResult) -> list[tuple[PartitionComparison, PairResult, Difference]]:
    """Return all named differences of pairs."""
    return [
        (one, pair, difference) for one in result.partitions for pair in one.pairs for difference in pair.differences
    ]


#: Columns of a table of named differences.
DIFFERENCES: Cells = (
    (Column("PARTITION"), lambda row: partition_name(row[0])),
    (Column("KIND"), lambda row: row[2].kind),
    (Column("OFFSETS", right=True), lambda row: offsets_text(row[2]).partition(" ")[2]),
    (Column("KEY"), lambda row: "-" if row[2].key is None else key_text(row[2].key)),
    (Column("FACT"), lambda row: sentence(row[2], row[1])),
)


def replicas(result: CompareResult) -> list[tuple[PartitionComparison, ReplicaState]]:
    """Return all compared replicas."""
    return [(one, state) for one in result.partitions for state in one.states]


#: Columns of a table of replicas.
REPLICAS: Cells = (
    (Column("PARTITION"), lambda row: partition_name(row[0])),
    (Column("BROKER"), lambda row: printable(row[1].replica.name)),
    (Column("NEWEST"), lambda row: "yes" if row[1].replica.name == row[0].newest else ""),
    (Column("START", right=True), lambda row: f"{row[1].start:,}"),
    (Column("END", right=True), lambda row: f"{row[1].end:,}"),
    (Column("SIZE", right=True), lambda row: bytes_text(row[1].size_bytes)),
)


def _document(result: CompareResult) -> dict[str, Any]:
    return {
        "brokers": list(result.brokers),
        "agrees": result.agrees,
        "partition_count": len(result.partitions),
        "partitions_alone": result.alone,
        "sample": result.sample,
        "differences": sum(result.totals.values()),
        "by_kind": dict(result.totals),
        **result.sums,
        "partitions": [_partition_document(one) for one in result.partitions],
        "finished_ms": result.finished_ms,
        "seconds": round(result.seconds, 3),
    }


def _partition_document(one: PartitionComparison) -> dict[str, Any]:
    return {
        "topic": None if one.name is None else one.name.topic,
        "partition": None if one.name is None else one.name.partition,
        "agrees": one.agrees,
        "newest": one.newest,
        "replicas": [
            {
                "broker": state.replica.name,
                "path": state.replica.side.path,
                "log_start_offset": state.start,
                "log_end_offset": state.end,
                "high_watermark": state.replica.high_watermark,
                "leader_epoch": None if state.epochs.latest is None else state.epochs.latest.epoch,
            }
            for state in one.states
        ],
        "pairs": [
            {
                "broker": pair.other.replica.name,
                "start_offset": pair.start,
                "end_offset": pair.end,
                "by_kind": dict(pair.totals),
                "named": [_difference_document(difference, pair) for difference in pair.differences],
            }
            for pair in one.pairs
        ],
        "checkpoints": [
            {"broker": name, "kind": difference.kind, "offset": difference.offset, "what": difference.what}
            for name, difference in one.checkpoints
        ],
    }


def _difference_document(one: Difference, pair: PairResult) -> dict[str, Any]:
    names = pair.newest.replica.name, pair.other.replica.name
    return {
        "kind": one.kind,
        "visible_with": names[one.role],
        "offset": one.offset,
        "end_offset": one.end_offset,
        "records": one.records,
        "key": None if one.key is None else key_text(one.key),
        "last_records": None
        if one.offsets is None
        else [
            {"broker": name, "offset": offset, "tombstone": tombstone}
            for name, offset, tombstone in zip(names, one.offsets, one.tombstones, strict=True)
        ],
        "what": sentence(one, pair),
    }


register(CompareResult, lines=_lines, document=_document)

# ---- metrics ---------------------------------------------------------------------------------------------------------


def _metrics(result: CompareResult) -> Iterator[str]:
    differing: dict[tuple[str, str, str, str], int] = {}
    for one in result.partitions:
        topic, partition = ("", "") if one.name is None else (one.name.topic, str(one.name.partition))
        for pair in one.pairs:
            for kind, count in pair.totals.items():
                differing[topic, partition, pair.other.replica.name, kind] = count
        for name, difference in one.checkpoints:
            at = topic, partition, name, str(difference.kind)
            differing[at] = differing.get(at, 0) + 1
    totals = result.totals
    labels = ("topic", "partition", "broker", "kind")
    yield from _metric("partitions", "Partitions whose replicas were compared.", [({}, len(result.partitions))])
    yield from _metric(
        "partitions_differing",
        "Partitions in which consumers can see other data after an election.",
        [({}, sum(not one.agrees for one in result.partitions))],
    )
    yield from _metric(
        "differences",
        "Differences by kind; `cordwood compare` names them.",
        [({"kind": kind}, totals.get(kind, 0)) for kind in DifferenceKind],
    )
    yield from _metric(
        "partition_differences",
        "Differences between a replica and the newest one, by kind, without replicas that agree.",
        [(dict(zip(labels, key, strict=True)), count) for key, count in sorted(differing.items())],
    )
    yield from _metric("sample_ratio", "Share of the compared keys.", [({}, result.sample)])
    yield from _metric("duration_seconds", "Duration of the comparison.", [({}, round(result.seconds, 3))])
    yield from _metric(
        "finished_timestamp_seconds", "Time of the end of the comparison.", [({}, result.finished_ms / 1000)]
    )


def _metric(name: str, meaning: str, values: Iterable[tuple[dict[str, str], float]]) -> Iterator[str]:
    yield f"# HELP cordwood_compare_{name} {meaning}"
    yield f"# TYPE cordwood_compare_{name} gauge"
    for labels, value in values:
        shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        yield f"cordwood_compare_{name}{'{' + shown + '}' if shown else ''} {value:.15g}"


def _escaped(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')
