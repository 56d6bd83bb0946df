"""`plan`: the decisions of a clean of the directories of one or more brokers, with reasons, without changes.

This module collects facts: names and sizes, checkpoints, indexes, configs, batch headers. It reads no record, starts no
Spark and changes no file. `rules.selection` makes the decisions from the facts.

The first of the rules in `rules.selection` that applies excludes a partition. A policy counts only if it is set
explicitly and beyond doubt (`Node.doubt`); the same holds for the limits of retention.
"""

from __future__ import annotations

import functools
import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any, TypeVar

from cordwood.cleaning.engine.division import with_divisions
from cordwood.cleaning.engine.facts import log_facts
from cordwood.cleaning.rules import retention as retention_rules
from cordwood.cleaning.rules import selection
from cordwood.cleaning.rules.plan import (
    AgreedRange,
    Bound,
    Choices,
    Compaction,
    Decision,
    LogFacts,
    PartitionPlan,
    Plan,
    PlanTotals,
    Reason,
    RetentionTotals,
    SegmentFacts,
    Setting,
    Taken,
    config_reason,
    utc,
)
from cordwood.cleaning.rules.selection import Obstacle, policy_in_doubt, why_never
from cordwood.commands.joint import with_joint_plans
from cordwood.commands.opening import limited_by_map, offset_map_size, open_cluster, select_partitions
from cordwood.commands.options import PlanOptions
from cordwood.commands.why.facts import PlannedPartition, Planner, cleaner_enabled, collect_facts
from cordwood.commands.why.reasons import causes_of
from cordwood.common.config import ConfigValue, TopicConfig
from cordwood.common.errors import CorruptFileError, NotFoundError, RequestError
from cordwood.common.text import (
    Column,
    by_sentence,
    bytes_text,
    count_text,
    html_table,
    names_text,
    number,
    printable,
    register,
    table,
)
from cordwood.common.threads import in_portions
from cordwood.common.types import Clock, TopicPartition, system_clock
from cordwood.fs.base import FileInfo, Store
from cordwood.fs.machine import local_cores
from cordwood.storage.formats.filenames import META_PROPERTIES, FileKind, offset_name
from cordwood.storage.log.header_sample import UNITS
from cordwood.storage.log.loaded import LoadCut, LoadedLog, Stop, as_it_is, as_loaded, broker_would_load
from cordwood.storage.log.view import LogView
from cordwood.storage.node.cluster import Cluster, Replica
from cordwood.storage.node.node import LocatedPartition, Node
from cordwood.tasks.proof_room import proof_bytes

T = TypeVar("T")

_ATTEMPTS = 5
_IN_ROUNDS = "it is cleaned in rounds, by Kafka's offset map"
#: The configs that affect a clean.
SETTINGS = (
    "delete.retention.ms",
    "index.interval.bytes",
    "max.compaction.lag.ms",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "segment.bytes",
    "segment.index.bytes",
)


def plan(paths: Sequence[str], options: PlanOptions, *, fs: Store | None = None, clock: Clock = system_clock) -> Plan:
    """Plan a clean of the directories of one or more brokers, without reading records or changing anything.

    If the directories hold all replicas of a partition, they are cleaned alike; see `commands.joint`.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file; the directories belong to different clusters; an offset is negative; or the
            offset map has no room for a single key.
        ConfigError: Kafka would not accept a config.
    """
    selection, given = options.selection, options.named.with_paths(paths)
    fs = fs or selection.store(given)
    cluster = open_cluster(fs, paths, selection, options.named)
    options, now_ms = options.at(clock)
    held = {
        place.path: f"{place.directory.path} is held by {place.directory.holder}"
        for node in cluster.nodes
        for place in node.places
        if not cluster.is_one_broker and place.directory.holder is not None
    }
    return plan_cluster(cluster, given, options, now_ms, unable=held, with_causes=True)


def plan_cluster(
    cluster: Cluster,
    paths: Sequence[str],
    options: PlanOptions,
    now_ms: int,
    *,
    unable: Mapping[str, str] = MappingProxyType({}),
    only: Collection[str] | None = None,
    with_causes: bool = False,
) -> Plan:
    """Plan a clean of the directories of one or more brokers, as they were when they were opened.

    Args:
        unable: see `with_joint_plans`.
        only: paths of the partitions to plan; None: all that are selected.
        with_causes: also add the main cause of each partition's size.
    """
    if cluster.is_one_broker and not unable and only is None:
        return plan_node(cluster.nodes[0], paths, options, with_causes=with_causes)
    choices = options.choices
    _check_choices(choices)
    everything = [place for node in cluster.nodes for place in node.places]
    selected = {place.path for place in select_partitions(everything, paths, options.selection)}
    selected = selected if only is None else selected.intersection(only)
    places = {node.name: [place for place in node.places if place.path in selected] for node in cluster.nodes}
    planned: dict[str, PlannedPartition] = {}
    unable = dict(unable)
    for node in cluster.nodes:
        alone = functools.partial(_plan_alone, node, choices, now_ms)
        planned |= {path: found for path, found in _on_each(node, alone, places[node.name]) if found is not None}
        if offset_map_size(node, choices) is not None:
            unable |= {place.path: _IN_ROUNDS for place in places[node.name]}
    joint = with_joint_plans(cluster, planned, functools.partial(_over_agreed_range, choices, now_ms), unable)
    plans: list[PartitionPlan] = []
    for node in cluster.nodes:
        shown = {
            place.path: replace(planned[place.path], plan=replace(joint[place.path], broker=node.name))
            for place in places[node.name]
            if place.path in planned
        }
        found = plan_of(
            node,
            [place for place in places[node.name] if place.path in shown],
            functools.partial(_planned_before, shown),
            choices,
            now_ms,
            with_causes=with_causes,
        )
        plans += found.partitions
    plans.sort(key=lambda one: one.topic_partition or TopicPartition(one.path, -1))
    return Plan(now_ms, tuple(plans), choices)


def _plan_alone(
    node: Node, choices: Choices, now_ms: int, place: LocatedPartition
) -> tuple[str, PlannedPartition | None]:
    return place.path, plan_with_facts(node, place, choices, now_ms)


def _planned_before(planned: Mapping[str, PlannedPartition], place: LocatedPartition) -> PlannedPartition:
    return planned[place.path]


def _over_agreed_range(
    choices: Choices, now_ms: int, replica: Replica, planned: PlannedPartition, agreed: AgreedRange
) -> PartitionPlan:
    """Plan a replica for a joint clean, from its facts."""
    left, node = planned.plan, replica.node
    assert planned.facts is not None and left.topic_partition is not None, "or it would take no part"
    facts, config = replace(planned.facts, agreed=agreed), node.config_of(left.topic_partition.topic)
    found = _with_compaction(replace(left, jointly=True), node, facts, config, choices, now_ms)
    later = facts
    if found.decision is Decision.CLEAN and found.compaction is not None:
        later = replace(facts, segments=retention_rules.merge_groups(facts.segments, found.compaction.groups))
    return _with_retention(found, node, later, config, now_ms, included=choices.retention)


def _check_choices(choices: Choices) -> None:
    for name, offset in (("first dirty offset", choices.first_dirty), ("high watermark", choices.high_watermark)):
        if isinstance(offset, int) and offset < 0:
            raise RequestError(f"The {name} cannot be {offset}: offsets start at 0")


def plan_node(
    node: Node,
    paths: Sequence[str],
    options: PlanOptions,
    *,
    clock: Clock = system_clock,
    with_causes: bool = False,
    exact: bool = False,
) -> Plan:
    """Plan a clean of a node's directories, as they were when it was opened.

    Args:
        with_causes: also add the main cause of each partition's size.
        exact: see `log_facts`.
    """
    selection, choices = options.selection, options.choices
    _check_choices(choices)
    places = select_partitions(node.places, paths, selection)
    _, now_ms = options.at(clock)
    return plan_of(
        node,
        places,
        lambda place: plan_with_facts(node, place, choices, now_ms, exact=exact),
        choices,
        now_ms,
        with_causes=with_causes,
    )


def plan_of(
    node: Node,
    places: Iterable[LocatedPartition],
    planner: Planner,
    choices: Choices,
    now_ms: int,
    *,
    with_causes: bool,
) -> Plan:
    """Plan partitions with `planner`; see `plan_node`."""
    size = offset_map_size(node, choices)
    enabled = cleaner_enabled(node)
    never = () if enabled.value else (f"the broker does not clean at all: log.cleaner.enable={enabled}",)

    def plan_one(place: LocatedPartition) -> PartitionPlan | None:
        planned = planner(place)
        if planned is None:
            return None
        one = _with_cause(node, place, planned, enabled, now_ms) if with_causes else planned.plan
        one = one if one.compaction is None else replace(one, notes=(*never, *one.notes))
        return limited_by_map(one, size)

    partitions = tuple(one for one in _on_each(node, plan_one, list(places)) if one is not None)
    return with_divisions(Plan(now_ms, partitions, choices), local_cores())


def _on_each(node: Node, do: Callable[[LocatedPartition], T], places: Sequence[LocatedPartition]) -> Iterator[T]:
    """Yield the results of a function for partitions of a node, which it reads concurrently."""
    by_request = any(node.fs.reads_by_request(one.path) for one in node.directories)
    portions = in_portions(node.fs.concurrency, do, places, disk_order=LocatedPartition.inode, is_remote=by_request)
    return (one for portion in portions for one in portion)


def _with_cause(
    node: Node, place: LocatedPartition, planned: PlannedPartition, enabled: ConfigValue, now_ms: int
) -> PartitionPlan:
    try:
        facts = collect_facts(node, place, planned, enabled, now_ms)
    except (FileNotFoundError, NotFoundError):
        return planned.plan  # a running broker deleted it
    return replace(planned.plan, cause=causes_of(facts)[0].what)


def plan_partition(node: Node, place: LocatedPartition, choices: Choices, now_ms: int) -> PartitionPlan | None:
    """Plan one partition; None if it was deleted."""
    planned = plan_with_facts(node, place, choices, now_ms)
    return None if planned is None else planned.plan


def plan_with_facts(
    node: Node,
    place: LocatedPartition,
    choices: Choices,
    now_ms: int,
    *,
    exact: bool = False,
    entries: Sequence[FileInfo] | None = None,
    local_start: int | None = None,
) -> PlannedPartition | None:
    """Plan one partition and keep the facts; None if it was deleted.

    Args:
        exact: see `log_facts`.
        entries: the files of its directory, if they were listed just now.
        local_start: see `LogFacts.local_start_offset`.
    """
    for _ in range(_ATTEMPTS):
        try:
            return _plan(node, place, place.log(entries), choices, now_ms, exact=exact, local_start=local_start)
        except FileNotFoundError:
            entries = None  # deleted, or replaced by the cleaner of a running broker
        except NotFoundError:
            return None
        except (RequestError, CorruptFileError) as error:
            reason = Reason(f"damaged: {error}", until="cleanable once it is repaired")
            return PlannedPartition(PartitionPlan(place.path, _topic_partition(place), Decision.REFUSE, reason))
        except OSError as error:
            reason = Reason(
                f"cannot be read: {error.strerror or error}: {error.filename or place.path}",
                until="cleanable once it can be read",
            )
            return PlannedPartition(
                PartitionPlan(place.path, _topic_partition(place), Decision.REFUSE, reason, is_unreadable=True)
            )
    return None


def retain_after(
    node: Node,
    place: LocatedPartition,
    log: LogView,
    found: PartitionPlan,
    replaced: Collection[int],
    outputs: Sequence[SegmentFacts],
    now_ms: int,
) -> PartitionPlan:
    """Add the deletions by retention to the plan of a partition, computed for the log after the clean."""
    if found.high_watermark is None or place.topic is None or not log.segments:
        return found
    assert place.name is not None, "what has a topic has a name"
    stop = place.directory.stop_of(place.name)
    # A crashed log has been recovered by now.
    loaded = as_loaded(log, Stop(clean=True) if stop.crashed else stop, now_ms)
    facts = log_facts(place, loaded, found.high_watermark, now_ms, headers=False)
    left = [one for one in facts.segments if one.base_offset not in replaced]
    segments = tuple(sorted([*left, *outputs], key=lambda one: one.base_offset))
    config = node.config_of(place.topic)
    return _with_retention(found, node, replace(facts, segments=segments), config, now_ms, included=True)


def _plan(
    node: Node,
    place: LocatedPartition,
    log: LogView,
    choices: Choices,
    now_ms: int,
    *,
    exact: bool,
    local_start: int | None,
) -> PlannedPartition:
    obstacle = why_never(node, place)
    unknown = None
    try:
        loaded = _loaded(place, log, obstacle, now_ms)
    except OSError as error:
        assert place.topic is not None, "what has no name is not looked into"
        if node.config_of(place.topic).compact or choices.retention or isinstance(error, FileNotFoundError):
            raise
        # The clean will not touch this partition, so an unreadable index is no reason to stop.
        loaded, unknown = as_it_is(log), f"what --retention would delete is not known: {error}"
    start, end = log.log_start_offset, loaded.log_end_offset
    left = PartitionPlan(
        place.path,
        _topic_partition(place),
        Decision.LEAVE,
        Reason("it has no segments") if obstacle is None else obstacle.reason,
        log_start_offset=start,
        log_end_offset=end,
        notes=tuple(_notes(node, place, loaded)),
    )
    if obstacle is not None or place.topic is None or not log.segments:
        return PlannedPartition(left, log, obstacle=obstacle)
    if place.directory.failure is not None and not place.directory.live:
        what = f"a broker takes its log directory offline: {place.directory.failure}"
        reason = Reason(what, until="once the file is repaired or removed")
        return PlannedPartition(replace(left, decision=Decision.REFUSE, reason=reason), log)
    if loaded.is_emptied:
        what = f"it ends at offset {end}, below its log start offset: the next load replaces it by an empty log"
        reason = Reason(what, f"{start} in log-start-offset-checkpoint")
        return PlannedPartition(replace(left, reason=reason, log_end_offset=start), log)
    if unknown is not None:
        left = replace(left, notes=(*left.notes, unknown))
        return PlannedPartition(_only_delete(left, node.config_of(place.topic), choices), log)
    return _plan_log(node, place, loaded, left, choices, now_ms, exact=exact, local_start=local_start)


def _loaded(place: LocatedPartition, log: LogView, obstacle: Obstacle | None, now_ms: int) -> LoadedLog:
    """Return the log as a load would leave it; unchanged if Cordwood will not load it."""
    if obstacle is not None or (place.directory.failure is not None and not place.directory.live):
        return as_it_is(log)
    return place.loaded(log, now_ms)


def _plan_log(
    node: Node,
    place: LocatedPartition,
    loaded: LoadedLog,
    left: PartitionPlan,
    choices: Choices,
    now_ms: int,
    *,
    exact: bool,
    local_start: int | None,
) -> PlannedPartition:
    """Plan a log that may be cleaned; `left` is the plan that leaves it alone."""
    name, log = left.topic_partition, loaded.log
    assert name is not None, "what has a topic has a name"
    config, replicas = node.config_of(name.topic), node.replica_count(name)
    mark = selection.high_watermark(
        place.directory.high_watermarks.get(name),
        left.log_start_offset,
        left.log_end_offset,
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
    try:
        facts = log_facts(place, loaded, mark, now_ms, headers=config.compact, exact=exact)
        facts = replace(facts, local_start_offset=local_start)
    except (OSError, RequestError, CorruptFileError) as error:
        if config.compact or choices.retention or isinstance(error, FileNotFoundError):
            raise
        # The clean will not touch this partition, so an unreadable index is no reason to stop.
        note = f"what --retention would delete is not known: {error}"
        return PlannedPartition(_only_delete(replace(left, notes=(*left.notes, note)), config, choices), log)
    found = (
        _with_compaction(left, node, facts, config, choices, now_ms)
        if config.compact
        else _only_delete(left, config, choices)
    )
    later = facts
    if found.decision is Decision.CLEAN and found.compaction is not None:
        later = replace(facts, segments=retention_rules.merge_groups(facts.segments, found.compaction.groups))
    found = _with_retention(found, node, later, config, now_ms, included=choices.retention)
    return PlannedPartition(found, log, facts)


def _only_delete(left: PartitionPlan, config: TopicConfig, choices: Choices) -> PartitionPlan:
    policy = config["cleanup.policy"]
    deleted = (
        "only old segments are deleted" if choices.retention else "only old segments are deleted, with --retention"
    )
    what = deleted if config.delete else "everything is kept"
    return replace(left, reason=config_reason("cleanup.policy", policy, what))


def _with_compaction(
    left: PartitionPlan, node: Node, facts: LogFacts, config: TopicConfig, choices: Choices, now_ms: int
) -> PartitionPlan:
    compaction = selection.plan_compaction(facts, config, choices, now_ms)
    decision, reason = selection.decide(compaction, facts, config, choices, now_ms)
    if decision is Decision.CLEAN and (doubtful := policy_in_doubt(node, config)) is not None:
        decision, reason = Decision.LEAVE, doubtful
    added = [*_notes_on_range(facts, compaction)]
    if decision is not Decision.REFUSE:
        added += [f"damaged: {one.damage}" for one in facts.headers if one.damage]
    # The plan of the replica by itself may already have these notes.
    notes = [*left.notes, *(note for note in added if note not in left.notes)]
    return replace(
        left,
        decision=decision,
        reason=reason,
        compaction=compaction,
        notes=tuple(notes),
        hint=selection.hint(compaction, deletes_for_good=left.deletes_for_good or left.jointly),
    )


def _with_retention(
    found: PartitionPlan, node: Node, facts: LogFacts, config: TopicConfig, now_ms: int, *, included: bool
) -> PartitionPlan:
    """Add the deletions by retention to the plan, or (not `included`) the deletions that retention would make."""
    if not config.policy_known:
        if not included:
            return found
        return replace(found, notes=(*found.notes, "no retention: cleanup.policy is not set"))
    if found.decision is Decision.REFUSE:
        return found

    def beyond_doubt(name: str) -> bool:
        return config[name].explicit and node.doubt(config.topic, name) is None

    taken, notes = retention_rules.retention(facts, config, beyond_doubt, now_ms)
    # The plan before the clean may already have these notes.
    notes = tuple(note for note in notes if note not in found.notes)
    return replace(
        found,
        retention=taken if included else (),
        only_with_retention=() if included else taken,
        notes=(*found.notes, *notes),
    )


def _topic_partition(place: LocatedPartition) -> TopicPartition | None:
    return None if place.name is None else place.name.topic_partition


def _settings(config: TopicConfig) -> Iterator[Setting]:
    for name in SETTINGS:
        value = config[config.segment_bytes_name if name == "segment.bytes" else name]
        assert isinstance(value.value, int | float)
        yield Setting(name, value.value, config_reason(name, value).source)


def _notes(node: Node, place: LocatedPartition, loaded: LoadedLog) -> Iterator[str]:
    log = loaded.log
    if node.cleaner_twin is not None:
        yield node.cleaner_twin
    if place.directory.live:
        yield "a broker is running on this directory: the plan may be outdated, and a clean will refuse to start"
    elif place.directory.holder is None and place.directory.crashed and broker_would_load(place.name):
        yield "no clean shutdown: planned as of after the recovery at the next start (--exact compares all checksums)"
    for cut in loaded.cuts:
        yield _on_cut(loaded, cut)
    if not (place.directory.live or loaded.is_emptied):
        yield from _notes_on_times(loaded)
    for error in (place.directory.cleaner_failure, place.directory.high_watermarks_failure):
        if error is not None:
            yield f"planned as if it had no entry in a file that cannot be read: {error}"
    if log.recovery.actions and place.directory.holder is None:
        count = len(log.recovery.actions)
        yield f"planned as of after the recovery at the next start, which changes {count} file{'s' * (count != 1)}"


def _on_cut(loaded: LoadedLog, cut: LoadCut) -> str:
    """Describe the data that a load cuts off."""
    segment = next(one for one in loaded.log.segments if one.base_offset == cut.base_offset)
    size = segment.size_bytes - cut.position
    behind = ""
    if cut.is_end and loaded.left_out:
        also = sum(one.size_bytes for one in loaded.left_out)
        behind = f", and {number(len(loaded.left_out), 'segment')} behind it, {bytes_text(also)}"
    if cut.only_zeros:
        return (
            f"the next start cuts {posixpath.basename(segment.path)} at position {cut.position}, the end of its "
            f"batches: {bytes_text(size)} of zeros go, preallocated or lost in a power cut{behind}"
        )
    return (
        f"the next start cuts {posixpath.basename(segment.path)} at position {cut.position}, where a batch is not "
        f"whole: {bytes_text(size)} go{behind}"
    )


def _notes_on_times(loaded: LoadedLog) -> Iterator[str]:
    """Yield notes on segments that look very old to retention, because their time indexes end with zeros."""
    padded = [one for one in loaded.segments if not one.is_rebuilt and one.newest_ms == 0]
    if padded:
        first = offset_name(padded[0].segment.base_offset, FileKind.TIME_INDEX)
        yield (
            f"{first} ends with zeros{_and_others(len(padded) - 1)}: retention, a broker's and ours, takes the segment "
            f"for one of 1970. Remove {offset_name(padded[0].segment.base_offset, FileKind.OFFSET_INDEX)}, and a load "
            "rebuilds both indexes from the records"
        )


def _and_others(count: int) -> str:
    return f", as {count} others do" if count else ""


def _notes_on_range(facts: LogFacts, compaction: Compaction) -> Iterator[str]:
    first_dirty = compaction.range.first_dirty_offset
    usual, _ = selection.first_dirty_offset(facts.checkpoint, facts.log_start_offset, facts.log_end_offset)
    if first_dirty > usual:
        yield f"offsets {usual} to {first_dirty - 1} would count as clean without having been cleaned"


# ---- the plan as text, HTML and JSON ---------------------------------------------------------------------------------


def _of(show: Callable[[Compaction], str]) -> Callable[[PartitionPlan], str]:
    return lambda one: "-" if one.compaction is None else show(one.compaction)


def _ratio(compaction: Compaction) -> str:
    ratio = compaction.cleanable_ratio
    return "-" if ratio is None else f"{100 * ratio:.1f} %"


def _segments(before: int, after: int) -> str:
    return f"{before} → {after}" if before else "-"


def _removed(records_max: int | None, bytes_max: int, estimates: Sequence[str]) -> str:
    is_estimate = "records_max" in estimates
    records = "?" if records_max is None else count_text(records_max, is_estimate=is_estimate)
    return f"{'' if is_estimate else '≤ '}{records} records, ≤ {bytes_text(bytes_max)}"


def _may_remove(plan: PartitionPlan) -> str:
    if plan.compaction is None or plan.decision is not Decision.CLEAN:
        return "-"
    bounds = plan.compaction.bounds
    return _removed(bounds.records_max, bounds.bytes_max, plan.compaction.estimates)


def _no_sum(_totals: PlanTotals) -> str:
    return ""


#: Each column with its cell for a partition, and for the totals.
_COLUMNS: Sequence[tuple[Column, Callable[[PartitionPlan], str], Callable[[PlanTotals], str]]] = (
    (Column("PARTITION"), lambda one: printable(one.name), lambda _: "total"),
    (
        Column("DECISION"),
        lambda one: one.decision,
        lambda totals: f"clean {totals.partitions_to_clean} of {totals.partitions}",
    ),
    (Column("START", right=True), lambda one: str(one.log_start_offset), _no_sum),
    (Column("FIRST DIRTY", right=True), _of(lambda one: str(one.range.first_dirty_offset)), _no_sum),
    (Column("UNCLEANABLE", right=True), _of(lambda one: str(one.range.first_uncleanable_offset)), _no_sum),
    (Column("END", right=True), lambda one: str(one.log_end_offset), _no_sum),
    (
        Column("CLEAN", right=True),
        _of(lambda one: bytes_text(one.clean_bytes)),
        lambda totals: bytes_text(totals.clean_bytes),
    ),
    (
        Column("DIRTY", right=True),
        _of(lambda one: bytes_text(one.cleanable_bytes)),
        lambda totals: bytes_text(totals.cleanable_bytes),
    ),
    (Column("RATIO", right=True), _of(_ratio), _no_sum),
    (
        Column("SEGMENTS", right=True),
        _of(lambda one: _segments(sum(map(len, one.groups)), len(one.groups))),
        lambda totals: _segments(totals.segments, totals.segments_after),
    ),
    (
        Column("MAY REMOVE"),
        _may_remove,
        lambda totals: (
            _removed(totals.records_max, totals.bytes_max, totals.estimates) if totals.partitions_to_clean else "-"
        ),
    ),
)


_MANY_TASKS = "cleaned by many tasks"
_IN_TABLE = "little is dirty, so all records are looked up in a table of the dirty keys"


def lines(plan: Plan, *, exact: bool = False) -> Iterator[str]:
    """Yield the plan as lines for people.

    Args:
        exact: whether the effect of retention was computed for the logs as they are after the clean.
    """
    columns, rows = _table(plan)
    yield from table(columns, [*rows, *_total_row(plan)])
    for title, sentences in (
        ("to clean", _reasons(plan, Decision.CLEAN)),
        ("cleaned up to", _ends(plan)),
        ("left alone", _reasons(plan, Decision.LEAVE)),
        ("refused", _reasons(plan, Decision.REFUSE)),
        ("deleted by retention", _taken(plan, lambda one: one.retention, exact=exact)),
        ("deleted only with --retention", _taken(plan, lambda one: one.only_with_retention, exact=False)),
        (_MANY_TASKS, _divisions(plan)),
        (_IN_TABLE, _tables(plan)),
        ("what keeps them from being smaller", ((one.cause, one.name) for one in plan.partitions if one.cause)),
        ("notes", ((note, one.name) for one in plan.partitions for note in one.notes)),
        ("hints", ((one.hint, one.name) for one in plan.partitions if one.hint)),
    ):
        yield from _section(title, sentences)
    yield ""
    yield _totals(plan)
    yield from _work_space(plan, exact=exact)
    if note := sample_note(plan.partitions):
        yield f"{note}; --exact runs the clean without writing"


def sample_note(partitions: Iterable[PartitionPlan]) -> str:
    """Describe the figures that are estimates; empty if all are exact."""
    if not any(one.compaction is not None and one.compaction.estimates for one in partitions):
        return ""
    return (
        f"records, expired tombstones and work space are estimates, from {UNITS} places in each segment of large logs"
    )


def document(plan: Plan) -> dict[str, Any]:
    """Return the plan as one JSON value; null means not applicable or unknown."""
    return {
        "now_ms": plan.now_ms,
        "choices": asdict(plan.choices),
        "partitions": [_partition_document(one) for one in plan.partitions],
        "totals": asdict(plan.totals),
    }


def _partition_document(plan: PartitionPlan) -> dict[str, Any]:
    values = asdict(plan)
    name = values.pop("topic_partition") or {"topic": None, "partition": None}
    values |= {"topic": name["topic"], "partition": name["partition"]}
    if plan.compaction is not None:
        values["compaction"] |= {
            "cleanable_ratio": plan.compaction.cleanable_ratio,
            "must_compact_now": plan.compaction.must_compact_now,
        }
    return values


def html(plan: Plan) -> str:
    """Return the table for a notebook."""
    columns, rows = _table(plan)
    return html_table(columns, rows, _totals(plan), last_rows=_total_row(plan))


def _table(plan: Plan) -> tuple[list[Column], list[list[str]]]:
    return [column for column, _, _ in _COLUMNS], [[cell(one) for _, cell, _ in _COLUMNS] for one in plan.partitions]


def _total_row(plan: Plan) -> list[list[str]]:
    """Return the row of totals, or no row for a single partition."""
    return [[cell(plan.totals) for _, _, cell in _COLUMNS]] if len(plan.partitions) > 1 else []


def _reasons(plan: Plan, decision: Decision) -> Iterator[tuple[str, str]]:
    return ((str(one.reason), one.name) for one in plan.with_decision(decision))


def _ends(plan: Plan) -> Iterator[tuple[str, str]]:
    for one in plan.with_decision(Decision.CLEAN):
        assert one.compaction is not None, "it is to be cleaned"
        # The active segment is never cleaned, so this reason is not worth a line.
        if one.compaction.range.bound is not Bound.ACTIVE_SEGMENT:
            yield f"{one.compaction.range.first_uncleanable_offset}: {one.compaction.bound_reason}", one.name


def _divisions(plan: Plan) -> Iterator[tuple[str, str]]:
    for one in plan.partitions:
        if one.division is not None and one.division.staged:
            runs, size = number(one.division.runs, "task"), bytes_text(one.division.run_bytes)
            yield f"about {runs} that scan {size} each: {one.division.reason}", one.name


def _tables(plan: Plan) -> Iterator[tuple[str, str]]:
    for one in plan.partitions:
        if one.division is not None and one.division.table_keys:
            yield f"at most {number(one.division.table_keys, 'key')}", one.name


def _taken(
    plan: Plan, rules_of: Callable[[PartitionPlan], Sequence[Taken]], *, exact: bool
) -> Iterator[tuple[str, str]]:
    for one in plan.partitions:
        before = ", as they are before the clean" if one.decision is Decision.CLEAN and not exact else ""
        for taken in rules_of(one):
            count = number(len(taken.base_offsets), "segment")
            last = taken.base_offsets[-1]
            yield f"{count} up to {last} ({bytes_text(taken.size_bytes)}{before}) by {taken.reason}", one.name


def _section(title: str, sentences: Iterable[tuple[str, str]]) -> Iterator[str]:
    names = by_sentence(sentences)
    if names:
        yield from ("", f"{title}:")
    for sentence, some in names.items():
        yield f"  {printable(names_text(some))}: {printable(sentence)}"


def _totals(plan: Plan) -> str:
    clean = plan.with_decision(Decision.CLEAN)
    found = [one.compaction for one in clean if one.compaction is not None]
    dirty = bytes_text(sum(one.cleanable_bytes for one in found))
    rewritten = bytes_text(sum(one.bounds.bytes_max for one in found))
    counts = [f"{len(clean)} of {number(len(plan.partitions), 'partition')} to clean"]
    counts += [f"{len(plan.with_decision(Decision.REFUSE))} refused"] if plan.with_decision(Decision.REFUSE) else []
    retained = "".join(f"; {one}" for one in _retained(plan.totals))
    return f"{', '.join(counts)}: {dirty} dirty, {rewritten} to read{retained}; planned as of {utc(plan.now_ms)}"


def _retained(totals: PlanTotals) -> Iterator[str]:
    def what(totals: RetentionTotals) -> str:
        segments = f"{number(totals.segments, 'segment')} ({bytes_text(totals.size_bytes)})"
        return f"{segments} of {number(totals.partitions, 'partition')}"

    if totals.retention.segments:
        yield f"retention deletes {what(totals.retention)}"
    if totals.only_with_retention.segments:
        yield f"--retention would delete {what(totals.only_with_retention)}"


#: Mention the worst case only if it exceeds the expected case by this factor.
_WORSE_MIN = 1.1


def _work_space(plan: Plan, *, exact: bool) -> Iterator[str]:
    """Describe the space that a clean in place needs beside the old segments: in total, and group by group."""
    found = [(one, one.compaction) for one in plan.with_decision(Decision.CLEAN) if one.compaction is not None]
    expected = [size for _, one in found for size in one.group_bytes_expected]
    if not expected:
        return
    # Rounds of Kafka's offset map cannot be divided into waves.
    steps = [
        sum(one.group_bytes_expected) if partition.offset_map is not None else max(one.group_bytes_expected, default=0)
        for partition, one in found
    ]
    at_once, at_a_time = sum(expected), max(steps)
    up_to = "" if exact else "up to "
    few = f", or {bytes_text(at_a_time)} at a time" if at_a_time < at_once else ""
    most = sum(size for _, one in found for size in one.group_bytes)
    worst = f"; {bytes_text(most)} in the worst case" if most > at_once * _WORSE_MIN else ""
    proofs = sum(proof_bytes(one) for _, one in found)
    proof = f"; for the proof up to {bytes_text(proofs)} of temporary files (TMPDIR)" if proofs else ""
    yield f"in place: {up_to}{bytes_text(at_once)} of work space{few} (--work-space){worst}{proof}"


register(Plan, lines=lines, document=document, html=html)
