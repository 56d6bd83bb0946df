"""`plan`: what a clean of a broker's directories would do, and why, without doing it.

Here facts are collected: names and sizes, checkpoints, indexes, configs, batch headers. No record is read, no Spark is
started, nothing is changed. What follows from the facts is decided in `cleaning.selection`.

A partition is left alone for the first of `_NEVER` that speaks. A policy counts only if somebody set it and it can be
nothing else (`Node.doubt`); so do the limits of retention.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypedDict

import numpy as np

from cordwood.cleaning import retention as retention_rules
from cordwood.cleaning import selection
from cordwood.cleaning.offset_map import keys_max, slots_of
from cordwood.cleaning.plan import (
    Choices,
    Decision,
    HeaderFacts,
    HighWatermark,
    LogFacts,
    OffsetMapSize,
    OpenTransaction,
    PartitionPlan,
    Plan,
    Reason,
    SegmentFacts,
    Setting,
    Threshold,
    config_reason,
)
from cordwood.config import Layer, TopicConfig, resolve_broker
from cordwood.errors import ConfigError, CorruptFileError, NotFoundError, RequestError
from cordwood.fs.base import FileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.layout import CODEC_MASK, DELETE_HORIZON, BatchRows
from cordwood.spark.tasks import CleanSettings, segment_facts
from cordwood.storage.filenames import CLUSTER_METADATA_TOPIC, META_PROPERTIES, DirectoryState, FileKind
from cordwood.storage.listing import is_asked_for
from cordwood.storage.log import Log, Segment, gap_error
from cordwood.storage.node import Node, Place
from cordwood.storage.producers import Producers, newest_snapshot
from cordwood.storage.restoring import LoadSettings
from cordwood.storage.segment import Checks, Gap, GapKind, read_headers
from cordwood.storage.segment_writer import IndexLimits
from cordwood.storage.transactions import is_control
from cordwood.types import NONE, TopicPartition

_ATTEMPTS = 5
#: The configs that a clean goes by.
SETTINGS = (
    "delete.retention.ms",
    "index.interval.bytes",
    "max.compaction.lag.ms",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "segment.bytes",
    "segment.index.bytes",
)
#: The broker's configs that Kafka's offset map goes by.
_MAP_CONFIGS = ("log.cleaner.dedupe.buffer.size", "log.cleaner.io.buffer.load.factor", "log.cleaner.threads")
#: Of these a damaged metadata log may hide one that keeps records longer.
_KEEPING = ("min.compaction.lag.ms", "delete.retention.ms")


class PlanOptions(TypedDict, total=False):
    """All that planning takes besides the paths; see `make_plan`."""

    topics: Sequence[str]
    partitions: Sequence[str]
    now_ms: int | None
    overrides: Iterable[str]
    server_properties: str | None
    metadata: str | None
    ignore_ratio: bool
    first_dirty: int | None
    high_watermark: int | Literal["end"] | None
    retention: bool
    single_copy: bool
    offset_map: int | None
    strict_kafka: bool
    memory: int | None


def make_plan(
    *paths: str,
    topics: Sequence[str] = (),
    partitions: Sequence[str] = (),
    now_ms: int | None = None,
    overrides: Iterable[str] = (),
    server_properties: str | None = None,
    metadata: str | None = None,
    ignore_ratio: bool = False,
    first_dirty: int | None = None,
    high_watermark: int | Literal["end"] | None = None,
    retention: bool = False,
    single_copy: bool = False,
    offset_map: int | None = None,
    strict_kafka: bool = False,
    memory: int | None = None,
    fs: FileSystem | None = None,
) -> Plan:
    """Plan a clean of one broker's directories.

    Args:
        paths: log directories, folders of several, or partitions' directories.
        topics: only topics of these names, or that match these globs; default: all.
        partitions: only these numbers or names (`3`, `orders-3`), or those that match these globs; default: all.
        now_ms: the time that everything is decided by; default: now.
        overrides: configs as `key=value` or `topic:key=value`.
        server_properties: path of the broker's settings.
        metadata: `__cluster_metadata-0`, or the directory it is in; default: in any of the directories.
        ignore_ratio: clean however little is dirty.
        first_dirty: clean from this offset on, whatever the checkpoint says.
        high_watermark: this offset, or `end`; default: what the directory says.
        retention: delete old segments, too.
        single_copy: no other replica exists, so that tombstones and markers may go for good.
        offset_map: clean in rounds, as Kafka would with a map of so many bytes; default: as Kafka would where somebody
            set `log.cleaner.dedupe.buffer.size`, else all at once.
        strict_kafka: do as Kafka wherever we would do better, and fail where Kafka's cleaner fails; see `Choices`.
        memory: bytes that all tasks on a machine may take for keys; default: a quarter of what this one has.
        fs: default: the machine's.

    Raises:
        NotFoundError: nothing is there, or nothing that was asked for.
        RequestError: a path is a file; the directories belong to different brokers; or an offset cannot be one;
            or the offset map has no room for a single key.
        ConfigError: a setting that Kafka would not take.
    """
    for name, offset in (("first dirty offset", first_dirty), ("high watermark", high_watermark)):
        if isinstance(offset, int) and offset < 0:
            raise RequestError(f"A {name} of {offset} cannot be: offsets start at 0")
    node = Node.open(fs or PosixFileSystem(), paths, metadata, server_properties, overrides)
    wanted = asked_for(node, paths, {"topics": topics, "partitions": partitions})
    choices = Choices(
        ignore_ratio, first_dirty, high_watermark, retention, single_copy, offset_map, strict_kafka, memory
    )
    size = offset_map_size(node, choices)
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    planned = (plan_partition(node, place, choices, now_ms) for place in wanted)
    return Plan(now_ms, tuple(_limited(one, size) for one in planned if one is not None), choices)


def settled(options: PlanOptions) -> tuple[PlanOptions, int]:
    """Options that mean the same whenever they are used, and their time."""
    now_ms = options.get("now_ms")
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    return {**options, "now_ms": now_ms, "overrides": tuple(options.get("overrides", ()))}, now_ms


def open_node(fs: FileSystem, paths: Sequence[str], options: PlanOptions) -> Node:
    """The directories, and what is said of their configs; see `Node.open`."""
    metadata, broker = options.get("metadata"), options.get("server_properties")
    return Node.open(fs, paths, metadata, broker, options.get("overrides", ()))


def asked_for(node: Node, paths: Sequence[str], options: PlanOptions) -> list[Place]:
    """The partitions that a user wants, of those in the paths.

    Raises:
        NotFoundError: there is none.
    """
    topics, partitions = options.get("topics", ()), options.get("partitions", ())
    wanted = [place for place in node.places if is_asked_for(place, topics, partitions)]
    if not wanted:
        what = ", ".join([*topics, *partitions])
        raise NotFoundError(f"No partition in {', '.join(paths)}" + (f" matches {what}" if what else ""))
    return wanted


def load_settings(node: Node, topic: str) -> LoadSettings:
    """What loading a topic's partitions goes by."""
    try:
        return LoadSettings(index_interval_bytes=node.config_of(topic).integer("index.interval.bytes"))
    except ConfigError:
        return LoadSettings()  # the plan says what is wrong with its configs


def offset_map_size(node: Node, choices: Choices) -> OffsetMapSize | None:
    """The map of Kafka that a clean goes by; None: it goes by none.

    Raises:
        RequestError: it has no room for a single key.
        ConfigError: the broker would not take one of its configs.
    """
    config = resolve_broker(Layer(one.source, _only(_MAP_CONFIGS, one.texts)) for one in node.broker_layers())
    buffer, factor = config["log.cleaner.dedupe.buffer.size"], config.real("log.cleaner.io.buffer.load.factor")
    if choices.offset_map is not None:
        memory, source = choices.offset_map, f"--offset-map {choices.offset_map}"
    elif buffer.explicit or choices.strict_kafka:
        threads = max(1, config.integer("log.cleaner.threads"))
        memory = config.integer(buffer.name) // threads
        shared = f" for {threads} threads" if threads > 1 else ""
        source = f"{buffer.name}={buffer.value}{shared}, {buffer.source if buffer.explicit else '--strict-kafka'}"
    else:
        return None
    slots = slots_of(memory)
    keys = keys_max(slots, factor)
    if keys < 1:
        what = f"An offset map of {memory} bytes, of which {100 * factor:g} % may be filled, has no room for a key"
        raise RequestError(f"{what} ({source}): no clean would come any further")
    return OffsetMapSize(slots, factor, keys, source)


def _only(names: Collection[str], texts: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in texts.items() if name in names}


def _limited(partition: PartitionPlan, size: OffsetMapSize | None) -> PartitionPlan:
    if size is None or partition.decision is not Decision.CLEAN:
        return partition
    note = f"cleaned in rounds of at most {size.keys} keys, by Kafka's offset map ({size.source})"
    return replace(partition, offset_map=size, notes=(*partition.notes, note))


def plan_partition(node: Node, place: Place, choices: Choices, now_ms: int) -> PartitionPlan | None:
    """Plan one partition; None if it is gone."""
    for _ in range(_ATTEMPTS):
        try:
            return _plan(node, place, choices, now_ms)
        except FileNotFoundError:
            continue  # deleted, or replaced by the cleaner of a running broker
        except NotFoundError:
            return None
        except (RequestError, CorruptFileError) as error:
            reason = Reason(f"damaged: {error}", until="once it is repaired")
            return PartitionPlan(place.path, _topic_partition(place), Decision.REFUSE, reason)
    return None


def clean_settings(partition: PartitionPlan, choices: Choices | None = None) -> CleanSettings:
    """What a task that cleans a planned partition goes by."""
    choices = choices or Choices()
    size = partition.offset_map
    ratio = NONE if choices.ignore_ratio else partition.setting("min.cleanable.dirty.ratio")
    return CleanSettings(
        delete_retention_ms=int(partition.setting("delete.retention.ms")),
        segment_bytes=int(partition.setting("segment.bytes")),
        index=IndexLimits(
            interval_bytes=int(partition.setting("index.interval.bytes")),
            size_bytes=int(partition.setting("segment.index.bytes")),
        ),
        deletes_for_good=partition.deletes_for_good,
        offset_map_slots=None if size is None else size.slots,
        offset_map_load_factor=0.9 if size is None else size.load_factor,
        threshold=Threshold(
            cleanable_ratio=ratio,
            min_compaction_lag_ms=int(partition.setting("min.compaction.lag.ms")),
            max_compaction_lag_ms=int(partition.setting("max.compaction.lag.ms")),
        ),
        strict_kafka=choices.strict_kafka,
    )


def retain_after(
    node: Node,
    place: Place,
    log: Log,
    found: PartitionPlan,
    replaced: Collection[int],
    outputs: Sequence[SegmentFacts],
    now_ms: int,
) -> PartitionPlan:
    """The plan of a partition with what retention takes once it is cleaned.

    Args:
        node, place, log: the partition as the clean reads it.
        found: its plan, without retention.
        replaced: base offsets of the segments that go.
        outputs: those that come.
        now_ms: the time of the plan.
    """
    if found.high_watermark is None or place.topic is None or not log.segments:
        return found
    facts = _facts(place, log, found.log_end_offset, found.high_watermark, now_ms, headers=True)
    left = [one for one in facts.segments if one.base_offset not in replaced]
    segments = tuple(sorted([*left, *outputs], key=lambda one: one.base_offset))
    return _with_retention(found, node, replace(facts, segments=segments), node.config_of(place.topic), now_ms)


def _plan(node: Node, place: Place, choices: Choices, now_ms: int) -> PartitionPlan:
    why_never = next((reason for rule in _NEVER if (reason := rule(node, place)) is not None), None)
    log = place.log()
    start, end = log.log_start_offset, log.next_offset
    left = PartitionPlan(
        place.path,
        _topic_partition(place),
        Decision.LEAVE,
        why_never or Reason("it has no segments"),
        log_start_offset=start,
        log_end_offset=end,
        notes=tuple(_notes(place, log)),
    )
    if why_never is not None or place.topic is None or not log.segments:
        return left
    if log.ends_below_start and not place.directory.live:
        what = f"it ends at offset {end}, below its log start offset: the next load replaces it by an empty log"
        return replace(left, reason=Reason(what, f"{start} in log-start-offset-checkpoint"), log_end_offset=start)
    config = node.config_of(place.topic)
    name = left.topic_partition
    assert name is not None, "what has a topic has a name"
    replicas = node.replica_count(name)
    mark = selection.high_watermark(
        place.directory.high_watermarks.get(name),
        start,
        end,
        brokers=place.directory.info(META_PROPERTIES) is not None,
        replicas=replicas,
        asked=choices.high_watermark,
    )
    left = replace(
        left,
        high_watermark=mark,
        replicas=replicas,
        deletes_for_good=choices.single_copy or replicas == 1,
        settings=tuple(_settings(config)),
    )
    if not config.compact and not choices.retention:
        return _only_delete(left, config)
    facts = _facts(place, log, end, mark, now_ms, headers=config.compact)
    found = (
        _with_compaction(left, node, facts, config, choices, now_ms) if config.compact else _only_delete(left, config)
    )
    return _with_retention(found, node, facts, config, now_ms) if choices.retention else found


def _only_delete(left: PartitionPlan, config: TopicConfig) -> PartitionPlan:
    policy = config["cleanup.policy"]
    what = "only old segments are deleted, with --retention" if config.delete else "everything is kept"
    return replace(left, reason=config_reason("cleanup.policy", policy, what))


def _with_compaction(
    left: PartitionPlan, node: Node, facts: LogFacts, config: TopicConfig, choices: Choices, now_ms: int
) -> PartitionPlan:
    compaction = selection.plan_compaction(facts, config, choices, now_ms)
    decision, reason = selection.decide(compaction, facts, config, choices, now_ms)
    if decision is Decision.CLEAN and (doubtful := _doubtful(node, config)) is not None:
        decision, reason = Decision.LEAVE, doubtful
    notes = [*left.notes, *_notes_on_range(facts, compaction.range.first_dirty_offset)]
    if decision is Decision.LEAVE:
        notes += [f"damaged: {one.damage}" for one in facts.headers if one.damage]
    return replace(
        left,
        decision=decision,
        reason=reason,
        compaction=compaction,
        notes=tuple(notes),
        hint=selection.hint(compaction, deletes_for_good=left.deletes_for_good),
    )


def _with_retention(
    found: PartitionPlan, node: Node, facts: LogFacts, config: TopicConfig, now_ms: int
) -> PartitionPlan:
    if not config.policy_known:
        return replace(found, notes=(*found.notes, "no retention: cleanup.policy is set by nobody"))
    if found.decision is Decision.REFUSE:
        return found

    def beyond_doubt(name: str) -> bool:
        return config[name].explicit and node.doubt(config.topic, name) is None

    taken, notes = retention_rules.retention(facts, config, beyond_doubt, now_ms)
    return replace(found, retention=taken, notes=(*found.notes, *notes))


# ---- what is never cleaned -------------------------------------------------------------------------------------------


def _no_name(_node: Node, place: Place) -> Reason | None:
    return Reason("not named like a partition (topic-number)") if place.name is None else None


def _state(_node: Node, place: Place) -> Reason | None:
    assert place.name is not None, "asked before"
    words = {
        DirectoryState.DELETED: "a -delete directory: about to be removed",
        DirectoryState.FUTURE: "a -future directory: a copy in the making, for another log directory",
        DirectoryState.STRAY: "a -stray directory: the cluster does not know it",
    }
    return Reason(words[place.name.state]) if place.name.state in words else None


def _metadata_log(_node: Node, place: Place) -> Reason | None:
    return Reason(f"{CLUSTER_METADATA_TOPIC} is never cleaned") if place.topic == CLUSTER_METADATA_TOPIC else None


def _twin(node: Node, place: Place) -> Reason | None:
    assert place.name is not None, "asked before"
    for other in node.futures(place.name.topic_partition):
        return Reason(f"it is being moved to {other.path}", until="once it has been")
    for other in node.duplicates(place.name.topic_partition):
        if other.path != place.path:
            return Reason(f"it is also in {other.path}, and a broker refuses to start with both")
    return None


def _tiered(node: Node, place: Place) -> Reason | None:
    assert place.topic is not None, "asked before"
    if node.metadata is not None and node.metadata.is_tiered(place.topic):
        said = f"topic {place.topic} in {node.metadata_path}"
        return Reason("remote.storage.enable: a part of a tiered topic may be elsewhere", said)
    return None


def _unknown_policy(node: Node, place: Place) -> Reason | None:
    assert place.topic is not None, "asked before"
    give = "with --config cleanup.policy=…, --server-properties or --metadata"
    try:
        doubt = node.doubt(place.topic)
        config = node.config_of(place.topic)
    except ConfigError as error:
        return Reason(f"cleanup.policy is unknown: {error}")
    if doubt is not None:
        return Reason(f"cleanup.policy is unknown: {doubt}", node.metadata_path or "", give)
    if config.flag("remote.storage.enable"):
        said = config["remote.storage.enable"]
        return config_reason("remote.storage.enable", said, "a part of a tiered topic may be elsewhere")
    return None


#: The first that has a reason decides.
_NEVER: Sequence[Callable[[Node, Place], Reason | None]] = (
    _no_name,
    _metadata_log,
    _state,
    _twin,
    _tiered,
    _unknown_policy,
)


def _doubtful(node: Node, config: TopicConfig) -> Reason | None:
    """Why records might have to stay longer than the configs say that are known."""
    if node.metadata is None or not node.metadata.problems:
        return None
    for name in _KEEPING:
        if (doubt := node.doubt(config.topic, name)) is not None:
            what = f"{name} is unknown: {doubt}"
            return Reason(what, node.metadata_path or "", f"with --config {name}=…")
    return None


def _topic_partition(place: Place) -> TopicPartition | None:
    return None if place.name is None else place.name.topic_partition


def _settings(config: TopicConfig) -> Iterator[Setting]:
    for name in SETTINGS:
        value = config.segment_bytes if name == "segment.bytes" else config[name]
        assert isinstance(value.value, int | float)
        said = str(value.source) if value.name == name else f"{value.name}, {value.source}"
        yield Setting(name, value.value, said)


def _notes(place: Place, log: Log) -> Iterator[str]:
    if place.directory.live:
        yield "a broker is running on its directory: what is planned may be outdated, and no clean will start"
    if log.recovery.actions:
        count = len(log.recovery.actions)
        yield f"planned as it will be after loading, which changes {count} file{'s' * (count != 1)}"


def _notes_on_range(facts: LogFacts, first_dirty: int) -> Iterator[str]:
    usual, _ = selection.first_dirty_offset(facts.checkpoint, facts.log_start_offset, facts.log_end_offset)
    if first_dirty > usual:
        yield f"offsets {usual} to {first_dirty - 1} would count as clean without having been cleaned"


# ---- facts of one log ------------------------------------------------------------------------------------------------


@dataclass
class _Replay:
    """Producers at the high watermark, from the newest readable snapshot below it and the batches behind that."""

    producers: Producers
    start: int
    end: int

    @classmethod
    def from_snapshot(cls, log: Log, end: int, now_ms: int) -> _Replay:
        producers, start = newest_snapshot(log, end, now_ms=now_ms)
        return cls(producers, start, end)

    def add(self, batches: BatchRows) -> None:
        self.producers.replay(batches[(batches["last_offset"] >= self.start) & (batches["base_offset"] < self.end)])

    def open_transactions(self) -> tuple[OpenTransaction, ...]:
        known = self.producers.by_id.items()
        found = [OpenTransaction(p.transaction_start, id) for id, p in known if p.transaction_start != NONE]
        return tuple(sorted(found, key=lambda one: (one.first_offset, one.producer_id)))


def _facts(place: Place, log: Log, end: int, mark: HighWatermark, now_ms: int, *, headers: bool) -> LogFacts:
    """Collect the facts of a log.

    Args:
        place: of the partition.
        log: of the partition, with at least one segment.
        end: the log end offset.
        mark: its high watermark.
        now_ms: the time of the plan.
        headers: read batch headers; retention alone does not need them.
    """
    segments = tuple(segment_facts(segment) for segment in log.segments)
    if not headers:
        nothing = (HeaderFacts(),) * len(segments)
        return LogFacts(segments, nothing, log.log_start_offset, end, mark)
    replay = _Replay.from_snapshot(log, mark.offset, now_ms)
    read = []
    for segment in log.segments:
        # Of the active segment only open transactions matter.
        if segment is not log.segments[-1] or replay.start < replay.end:
            read.append(_headers(log, segment, replay, now_ms))
        else:
            read.append(HeaderFacts())
    assert place.name is not None, "what is not named like a partition is left alone"
    open_transactions = replay.open_transactions()
    return LogFacts(
        tuple(_dated(segment, one, two) for segment, one, two in zip(log.segments, segments, read, strict=True)),
        tuple(read),
        log.log_start_offset,
        end,
        mark,
        place.directory.cleaner_offsets.get(place.name.topic_partition),
        open_transactions,
        _first_unstable_offset(log, open_transactions[0]) if open_transactions else None,
    )


def _first_unstable_offset(log: Log, transaction: OpenTransaction) -> int | None:
    """Base offset of the first batch from a transaction's start and the log start on; None if none is there.

    Source: Kafka UnifiedLog.maybeIncrementFirstUnstableOffset, which reads a batch there and takes its offset.
    """
    windows = log.windows(start_offset=max(transaction.first_offset, log.log_start_offset), checks=Checks.HEADERS)
    return next((int(item.batches["base_offset"][0]) for _, item in windows if not isinstance(item, Gap)), None)


def _dated(segment: Segment, facts: SegmentFacts, headers: HeaderFacts) -> SegmentFacts:
    """The largest timestamp as it is once loading has rebuilt the indexes of a segment that lacks them."""
    if FileKind.OFFSET_INDEX in segment.files.indexes or headers.max_timestamp < 0:
        return facts
    return replace(facts, largest_timestamp=headers.max_timestamp)


def _headers(log: Log, segment: Segment, replay: _Replay, now_ms: int) -> HeaderFacts:
    last = segment is log.segments[-1]
    first, largest, records, markers, expired = NONE, NONE, 0, 0, 0
    seen = wrappers = legacy = compressed = False
    damage = ""
    try:
        with segment.open() as file:
            for item in read_headers(file, base_offset=segment.base_offset, search=not log.live):
                if isinstance(item, Gap):
                    # At the log's end it may be what a stop leaves.
                    if not last or (item.kind is GapKind.DAMAGE and not log.live):
                        damage = damage or str(gap_error(segment, item))
                    continue
                replay.add(item)
                if not seen:
                    seen, first = True, int(item["max_timestamp"][0])
                largest = max(largest, int(item["max_timestamp"].max()))
                old = item["magic"] < 2
                packed = item["attributes"] & CODEC_MASK != 0
                hidden, control = old & packed, is_control(item)
                due = ~old & (item["attributes"] & DELETE_HORIZON != 0) & (item["base_timestamp"] <= now_ms)
                data = item["record_count"][~control & ~hidden]
                records += int(np.maximum(data, 0).sum()) + int(hidden.sum())
                wrappers, legacy = wrappers or bool(hidden.any()), legacy or bool(old.any())
                compressed, markers = compressed or bool(packed.any()), markers + int(control.sum())
                expired += int(due.sum())
    except RequestError as error:
        damage = str(error)
    return HeaderFacts(first, largest, records, wrappers, legacy, compressed, markers, expired, damage)
