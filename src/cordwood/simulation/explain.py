"""`cordwood.explain`: one log under other configs, at once and over the last weeks.

log ─► trace     simulation.trace: which records were written, and when
 │      └► span  simulation.replay: the time to replay, and the state before it
 └► for each set of configs
      ├► plan    commands.plan: what a broker would do with the log as it is
      └► replay  simulation.measure: the live log in memory, as for `simulate`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

import cordwood.simulation.report  # noqa: F401 - so that a result can show itself
from cordwood.cleaning.rules.plan import Choices, Decision, PartitionPlan
from cordwood.commands.opening import open_cluster, select_replicas
from cordwood.commands.plan import plan_partition
from cordwood.commands.replicas import replica_lines
from cordwood.common.config import (
    DAY_MS,
    SYNONYMS,
    TOPIC_CONFIGS,
    Layer,
    Source,
    SourceKind,
    TopicConfig,
    resolve_broker,
    show,
    topic_of_override,
)
from cordwood.common.errors import NotFoundError, RequestError
from cordwood.common.text import bytes_text, names_text
from cordwood.common.types import Clock, system_clock
from cordwood.fs.base import Store
from cordwood.simulation.batches import BatchEncoder, Records, Room, Written
from cordwood.simulation.measure import TOPIC, ConfigSet, run_writer
from cordwood.simulation.options import ExplainOptions
from cordwood.simulation.sizing.notes import compare, notes_on
from cordwood.simulation.sizing.result import AtOnce, ExplainResult, Outcome, ReplayedLog
from cordwood.simulation.sizing.workload import RECORD_EXTRA_BYTES_MAX, RECORDS_MAX, Scale, Workload, choose_scale
from cordwood.simulation.trace import LogTrace, TraceRows, last_of_keys, read_trace
from cordwood.simulation.world import START_MS
from cordwood.storage.log.view import LogView
from cordwood.storage.node.node import LocatedPartition, Node
from cordwood.storage.node.read_replica import ReadReplica

#: Receives the name of the current step and the finished share, 0 to 1.
OnPart = Callable[[str, float], None]
#: Label of the log's own configs.
NOW = "now"
#: Add a note if the replayed log and the real log differ in size by more than this share.
_DIFFERS = 0.2


def explain(
    paths: Sequence[str],
    options: ExplainOptions,
    *,
    on_progress: Callable[[str, float], None] | None = None,
    fs: Store | None = None,
    clock: Clock = system_clock,
) -> ExplainResult:
    """Predict the effect of other configs on a topic's log: at once, and if its last weeks happened under them.

    The log's records are replayed into a live log in memory, with retention and a cleaner: under the log's own configs,
    and under each other set. Of several partitions the largest is replayed. Nothing is changed.

    Args:
        paths: log directories of one or more brokers, or partition directories. Of several replicas of a partition, the
            newest is replayed.
        on_progress: called with a description of the step, and the finished part of it, up to 1.
        fs: the file system; default: that of this machine, or the object store of the paths.

    Raises:
        NotFoundError: there is nothing at a path, or no such partition.
        RequestError: several topics; no records; a value that cannot be; or more segments than can be replayed.
        ConfigError: Kafka would not accept a config.
    """
    report = on_progress or (lambda _what, _part: None)
    chosen = options.selection
    given = options.replicas.with_paths(paths)
    fs = fs or chosen.store(given)
    now_ms = clock() if options.now_ms is None else options.now_ms
    cluster = open_cluster(fs, paths, replace(chosen, overrides=()), options.replicas)
    selected, choices = select_replicas(cluster, given, chosen, options.replicas.replica)
    places = _of_one_topic(selected)
    sizes = {one.path: one.log().size_bytes for one in places}
    place = max(places, key=lambda one: (sizes[one.path], one.path))
    name = place.name
    assert name is not None, "it is of a topic"
    node = cluster.node_of(place)
    _check_topic((*chosen.overrides, *options.against), name.topic_partition.topic)
    nodes = _nodes(node, options)
    sets = [_config_set(label, one, name.topic_partition.topic) for label, one in nodes.items()]
    trace = _trace(place.log(), options, now_ms, report)
    topics = [one.topic for one in sets]
    span = choose_span(trace, topics, options.days)
    script = _script(trace, span, topics, options)
    outcomes = []
    for number, one in enumerate(sets):

        def on_part(part: float, number: int = number) -> None:
            report("replaying", (number + part) / len(sets))

        outcomes.append(_replayed(one, script, options.seed, on_part))
    at_once = {label: _at_once(one, place, now_ms) for label, one in nodes.items()}
    replayed = ReplayedLog(
        name.topic_partition.topic,
        name.topic_partition.partition,
        len(places),
        sum(sizes.values()) - sizes[place.path] + trace.log_bytes,
        trace.log_bytes,
        trace.records,
        trace.gone,
        trace.first_ms,
        trace.end_ms,
        span.measured_ms,
        span.repeated_ms,
        "" if trace.damage is None else str(trace.damage),
    )
    verdict = [line for first, second in pairwise(outcomes) for line in compare(first, second)]
    choice = choices.get(name.topic_partition)
    notes = (*replica_lines([] if choice is None else [ReadReplica.of(choice)]), *_notes(trace, span, outcomes[0]))
    return ExplainResult(now_ms, replayed, options.seed, script.scale, at_once, tuple(outcomes), tuple(verdict), notes)


# ---- which log, which configs ----------------------------------------------------------------------------------------


def _nodes(node: Node, options: ExplainOptions) -> dict[str, Node]:
    """Return the node under each set of configs, by label."""
    overrides = options.selection.overrides
    nodes = {NOW: node}
    if overrides:
        nodes["A"] = node.with_overrides(overrides)
    if options.against:
        nodes["B"] = node.with_overrides([*overrides, *options.against])
    return nodes


def _check_topic(overrides: Iterable[str], topic: str) -> None:
    """Raise RequestError for configs of another topic, which would change nothing."""
    for one in overrides:
        if topic_of_override(one) not in ("", topic):
            raise RequestError(f"--config {one} is not for {topic}, the topic that is explained")


def _of_one_topic(places: Sequence[LocatedPartition]) -> list[LocatedPartition]:
    named = [place for place in places if place.topic is not None]
    topics = sorted({place.topic or "" for place in named})
    if not topics:
        raise NotFoundError(f"{places[0].path} is not named like a partition, so it has no configs")
    if len(topics) > 1:
        raise RequestError(f"explain takes one topic at a time; choose one with --topic: {names_text(topics)}")
    return named


def _config_set(label: str, node: Node, topic: str) -> ConfigSet:
    """Turn a topic's configs into those of the simulated topic."""
    config, broker = node.config_of(topic), resolve_broker(node.broker_layers())
    of_topic = {name: show(value.value) for name, value in config.items() if value.explicit and name in TOPIC_CONFIGS}
    of_broker = {name: show(value.value) for name, value in broker.items() if value.explicit and name not in SYNONYMS}
    layers = (
        Layer(Source(SourceKind.OVERRIDE), of_broker),
        # A topic layer, as in metadata: such configs may be older than a limit that Kafka checks for --config.
        Layer(Source(SourceKind.TOPIC, subject=TOPIC), of_topic),
    )
    return ConfigSet(label, layers, config, broker)


# ---- at once ---------------------------------------------------------------------------------------------------------


def _at_once(node: Node, place: LocatedPartition, now_ms: int) -> AtOnce:
    plan = plan_partition(node, place, Choices(retention=True), now_ms)
    if plan is None:
        raise NotFoundError(f"{place.path} is gone")
    return _in_figures(plan)


def _in_figures(plan: PartitionPlan) -> AtOnce:
    compaction, is_cleaned = plan.compaction, plan.decision is Decision.CLEAN
    return AtOnce(
        plan.bytes_retained_away,
        len(plan.retained_away),
        tuple(str(taken.reason) for taken in plan.retention),
        is_cleaned,
        str(plan.reason),
        None if compaction is None else compaction.cleanable_ratio,
        compaction.bounds.bytes_max if compaction is not None and is_cleaned else 0,
    )


# ---- over time -------------------------------------------------------------------------------------------------------


def _trace(log: LogView, options: ExplainOptions, now_ms: int, report: OnPart) -> LogTrace:
    offsets = max(1, log.next_offset - log.log_start_offset)
    factor = options.scale or max(1.0, offsets / RECORDS_MAX)
    trace = read_trace(
        log,
        factor,
        now_ms,
        options.seed,
        on_progress=lambda done, size: report("reading", done / max(size, 1)),
    )
    if not trace.rows.size:
        raise RequestError(f"{log.path} has no records to replay" + ("" if factor == 1 else f" at --scale {factor:g}"))
    return trace


@dataclass(frozen=True)
class _Script:
    """The records to replay, and their scale.

    Attributes:
        rows: TRACE_ROW[records], by time.
        less_bytes: see `Replay`.
    """

    rows: TraceRows
    span: ReplayedSpan
    scale: Scale
    less_bytes: int


def _script(trace: LogTrace, span: ReplayedSpan, topics: Sequence[TopicConfig], options: ExplainOptions) -> _Script:
    """Choose the records to replay, of few enough keys that a replay takes seconds."""
    duration_ms = span.end_ms - span.begin_ms
    if options.scale is None:
        known_ms = trace.end_ms - trace.first_ms
        trace = trace.thinned(trace.factor * trace.rows.size / RECORDS_MAX * max(1.0, duration_ms / known_ms))
    rows = rows_of(trace, span)
    values = rows["size_bytes"][~rows["is_tombstone"]]
    size = max(RECORD_EXTRA_BYTES_MAX, round(float(values.mean())) if values.size else 0)
    per_second = max(1e-6, rows.size * trace.factor / (duration_ms / 1000))
    workload = Workload(rate=f"{per_second:.6f}", record_size=size, batch_records=trace.batch_records)
    scale = choose_scale(workload, topics, duration_ms, options.scale)
    if scale.factor < trace.factor:
        scale = choose_scale(workload, topics, duration_ms, trace.factor)
    if scale.factor > trace.factor:
        rows = rows_of(trace.thinned(scale.factor), span)
    less_bytes = max(0, size - scale.record_bytes)
    return _Script(rows, span, replace(scale, duration_ms=span.end_ms - span.measured_ms), less_bytes)


def _replayed(configs: ConfigSet, script: _Script, seed: int, on_progress: Callable[[float], None]) -> Outcome:
    span, scale = script.span, script.scale
    before_ms = span.measured_ms - span.begin_ms
    # Loading takes a step of its own, so that loaded records do not count as appended.
    lead_ms = 0 if before_ms else scale.step_ms
    replay = Replay(
        script.rows,
        span,
        configs.topic,
        batch_records=scale.batch_records,
        less_bytes=script.less_bytes,
        start_ms=START_MS + lead_ms,
    )
    outcome = run_writer(configs, replay, scale, seed, on_progress, before_ms=before_ms + lead_ms)
    return replace(outcome, notes=notes_on(outcome, configs.topic, configs.broker, 1))


def _notes(trace: LogTrace, span: ReplayedSpan, now: Outcome) -> list[str]:
    """Return notes that limit how far a replay can be trusted."""
    notes = []
    if trace.gone:
        share = trace.gone / (trace.gone + trace.records)
        notes.append(
            f"{share:.0%} of the records since the log's start were removed: their times are known, their keys and "
            "sizes are estimated from the remaining records"
        )
    if span.repeated_ms:
        days = span.repeated_ms / DAY_MS
        notes.append(
            f"the records before the log's first one are unknown: the replay repeats its last {days:.2g} days for them"
        )
    if trace.damage is not None:
        notes.append(f"the log is damaged, and unreadable records count as removed: {trace.damage}")
    real, replayed = trace.log_bytes, now.end_bytes
    if abs(real - replayed) > _DIFFERS * max(real, replayed):
        notes.append(
            f"the replay under the log's own configs ends with {bytes_text(replayed)}, the log has {bytes_text(real)}: "
            "its configs have changed, its cleaner did not run on time, or its records show too little about removed "
            "ones. Compare the sets with each other rather than with the log"
        )
    return notes


# ---- the replayed time -----------------------------------------------------------------------------------------------

# Rewrites the records of a real log to a log in memory, starting from the log's state at a chosen time.
#
#     rows of the log        ...........|.............................|
#                            repeated     as they were written
#     replay             |  before      |  measured                   |
#                        a compacted log starts with the last values from the time before, loaded at once
#
# Records that retention deleted are unknown. Where a replay begins before the log's first record, the log's own traffic
# is repeated there: in whole days if the log spans two days or more.

Int64Array = npt.NDArray[np.int64]

#: Records encoded at once when the initial state is loaded.
_LOADED_RECORDS = 4096
#: The measured time is at most this multiple of the log's own time.
_REPEATS_MAX = 60
#: The time before the measured time is at most this multiple of it.
_BEFORE_MAX = 2
#: The time before the measured time is at least this share of it: else it might begin just after a clean of everything.
_BEFORE_COMPACTED = 0.25


@dataclass(frozen=True, slots=True)
class ReplayedSpan:
    """The time to replay, in milliseconds since 1970.

    Attributes:
        begin_ms: start of the replay.
        measured_ms: start of the measured time.
        end_ms: end of the replay, and of the measured time.
        repeated_ms: length of the last part of the log, which is repeated before its first record; 0: not repeated.
    """

    begin_ms: int
    measured_ms: int
    end_ms: int
    repeated_ms: int = 0


def choose_span(trace: LogTrace, configs: list[TopicConfig], days: float) -> ReplayedSpan:
    """Choose the last days of a log, and enough time before them to bring the replay into the log's state at that time.

    A log that retention has not cut is measured at most from its first record.
    """
    first_ms, end_ms = trace.first_ms, trace.end_ms
    is_whole = trace.start_offset == 0
    measured_ms = min(round(days * DAY_MS), _REPEATS_MAX * (end_ms - first_ms))
    if is_whole:
        measured_ms = max(1, min(measured_ms, end_ms - first_ms))
    before = [round(_BEFORE_COMPACTED * measured_ms)]
    before += [one.integer("retention.ms") for one in configs if one.delete]
    if not is_whole:
        # The log holds as much as its retention keeps, by time or by size.
        before.append(end_ms - first_ms)
    before_ms = min(max(before), _BEFORE_MAX * measured_ms)
    begin_ms = end_ms - measured_ms - before_ms
    if is_whole:
        begin_ms = max(begin_ms, first_ms)
    repeated_ms = 0
    if begin_ms < first_ms:
        known_ms = end_ms - first_ms
        repeated_ms = known_ms // DAY_MS * DAY_MS if known_ms >= 2 * DAY_MS else known_ms
    return ReplayedSpan(begin_ms, end_ms - measured_ms, end_ms, repeated_ms)


def rows_of(trace: LogTrace, span: ReplayedSpan) -> TraceRows:
    """Return TRACE_ROW[records] until the end of a span, repeated records included, by time."""
    rows = trace.rows
    if not span.repeated_ms:
        return rows
    source = rows[rows["ms"] >= span.end_ms - span.repeated_ms]
    times = -(-(trace.first_ms - span.begin_ms) // span.repeated_ms)
    copies = []
    for number in range(times, 0, -1):
        copy = source.copy()
        # The last copy ends where the log begins.
        copy["ms"] -= span.end_ms - trace.first_ms + (number - 1) * span.repeated_ms
        copies.append(copy[copy["ms"] >= span.begin_ms])
    return np.concatenate([*copies, rows])


class Replay:
    """Writes records of a trace to one partition of a `World`, in batches of one size."""

    def __init__(
        self,
        rows: TraceRows,
        span: ReplayedSpan,
        config: TopicConfig,
        *,
        batch_records: int,
        less_bytes: int,
        start_ms: int,
    ) -> None:
        """Prepare the replay; `until` writes.

        Args:
            rows: TRACE_ROW[records], by time.
            config: the topic's configs, which decide the records present at the beginning.
            less_bytes: bytes by which each record shrinks. Smaller batches need more headers; smaller records keep the
                total size.
            start_ms: the time in the world at which the span begins.
        """
        _, keys = np.unique(rows["key"], return_inverse=True)
        before = int(np.searchsorted(rows["ms"], span.begin_ms))
        self._records = Records(
            np.asarray(keys, np.int64), rows["is_tombstone"], np.maximum(rows["size_bytes"] - less_bytes, 1)
        )
        self._ms = rows["ms"] - span.begin_ms + start_ms
        self._aborted = rows["is_aborted"]
        self._loaded = _loaded(keys[:before], rows["is_aborted"][:before], rows["is_tombstone"][:before], config)
        self._at, self._is_loaded = before, False
        self._appender = BatchEncoder(batch_records)

    def until(self, until_ms: int, now_ms: int, next_offset: int, room: Room) -> Iterator[Written]:
        """Yield the records up to a time, in parts; the caller appends each part before it takes the next."""
        if not self._is_loaded:
            self._is_loaded = True
            for start in range(0, self._loaded.size, _LOADED_RECORDS):
                own = self._loaded[start : start + _LOADED_RECORDS]
                yield from self._appender.plain(next_offset + start, self._chosen(own), now_ms, room)
            next_offset += self._loaded.size
        end = int(np.searchsorted(self._ms, until_ms))
        at, self._at = self._at, max(self._at, end)
        # Aborted and committed records alternate; write each run separately.
        edges = np.flatnonzero(np.diff(self._aborted[at:end])) + at + 1
        for first, behind in zip([at, *edges.tolist()], [*edges.tolist(), end], strict=True):
            if first >= behind:
                continue
            fated = self._chosen(np.arange(first, behind))
            if self._aborted[first]:
                yield from self._appender.transaction(next_offset, fated, now_ms, room, aborted=True)
                next_offset += 1
            else:
                yield from self._appender.plain(next_offset, fated, now_ms, room)
            next_offset += fated.count

    def _chosen(self, at: Int64Array) -> Records:
        records = self._records
        return Records(records.keys[at], records.tombstones[at], records.sizes[at])


def _loaded(
    keys: Int64Array, aborted: npt.NDArray[np.bool_], tombstones: npt.NDArray[np.bool_], config: TopicConfig
) -> Int64Array:
    """int64[records]: indices of the earlier records that are present when the span begins.

    A compacted log begins with the last value of each key. A log with `retention.ms` begins empty, because the span
    begins early enough to fill it before the measured time. Any other log begins with all records.
    """
    if config.compact:
        good = np.flatnonzero(~aborted)
        last = good[last_of_keys(keys[good])]
        return np.asarray(last[~tombstones[last]], np.int64)
    if config.delete and config.integer("retention.ms") >= 0:
        return np.zeros(0, np.int64)
    return np.asarray(np.flatnonzero(~aborted), np.int64)
