"""A partition's plan with the underlying facts, and the further facts that explain the partition's size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from cordwood.cleaning.engine.facts import first_timestamp, old_bytes
from cordwood.cleaning.rules.plan import Decision, LogFacts, PartitionPlan
from cordwood.cleaning.rules.policy import Obstacle
from cordwood.commands.opening import broker_config
from cordwood.commands.why.causes import CauseKind, CleanerFacts, PartitionFacts
from cordwood.common.config import ConfigValue, TopicConfig
from cordwood.common.types import NONE
from cordwood.storage.formats.filenames import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    DirectoryState,
)
from cordwood.storage.log.view import LogView
from cordwood.storage.node.directory import LogDirectory
from cordwood.storage.node.disk_usage import DiskUsage, usage_of
from cordwood.storage.node.node import LocatedPartition, Node

#: Files that a running broker keeps rewriting.
_SIGNS_OF_LIFE = (HIGH_WATERMARKS, RECOVERY_POINTS, LOG_START_OFFSETS)


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """A plan and the facts behind it.

    Attributes:
        log: None if it could not be opened.
        facts: None if the plan needed no facts, or they could not be read.
        obstacle: the reason why it is never cleaned, or None.
    """

    plan: PartitionPlan
    log: LogView | None = None
    facts: LogFacts | None = None
    obstacle: Obstacle | None = None


#: Plans one partition; returns None if the partition was deleted.
Planner = Callable[[LocatedPartition], PlannedPartition | None]


def cleaner_enabled(node: Node) -> ConfigValue:
    """Return the config that enables the broker's cleaner."""
    return broker_config(node, ["log.cleaner.enable"])["log.cleaner.enable"]


def collect_facts(
    node: Node, place: LocatedPartition, planned: PlannedPartition, enabled: ConfigValue, now_ms: int
) -> PartitionFacts:
    """Collect the facts that explain a partition's size, except for keys and transactions.

    Raises:
        FileNotFoundError: a running broker deleted the partition.
    """
    log, facts = planned.log, planned.facts
    config = None if facts is None or place.topic is None else node.config_of(place.topic)
    return PartitionFacts(
        plan=planned.plan,
        usage=DiskUsage() if log is None else usage_of(node.fs, log),
        cleaner=_cleaner(node, place.directory, enabled),
        now_ms=now_ms,
        kind=_kind(place, planned),
        log=facts,
        config=config,
        active_first_ms=NONE if log is None or facts is None else _first_timestamp(log),
        old_bytes={} if log is None or facts is None or config is None else _old_bytes(log, facts, config, now_ms),
    )


def _old_bytes(log: LogView, facts: LogFacts, config: TopicConfig, now_ms: int) -> Mapping[int, int]:
    """Return the old bytes of the first segment with a record that retention by time keeps, and of the active segment.

    See `PartitionFacts`.
    """
    limit_ms = config.integer("retention.ms")
    if not config.delete or limit_ms < 0 or log.fs.reads_by_request(log.path):
        return {}
    horizon_ms = now_ms - limit_ms
    young = [one.base_offset for one in facts.segments if one.largest_timestamp >= horizon_ms]
    asked = {*young[:1], *(base for base in young[-1:] if base == facts.segments[-1].base_offset)}
    try:
        return {one.base_offset: old_bytes(one, horizon_ms) for one in log.segments if one.base_offset in asked}
    except OSError:
        return {}


def _cleaner(node: Node, directory: LogDirectory, enabled: ConfigValue) -> CleanerFacts:
    failure = directory.cleaner_failure
    facts = CleanerFacts(
        enabled=enabled,
        live=directory.live,
        holder=str(directory.holder or ""),
        checkpoint_path=f"{directory.path}/{CLEANER_OFFSETS}",
        failure=f"its checkpoint cannot be read: {failure}" if failure is not None else node.cleaner_twin or "",
        in_store=directory.fs.reads_by_request(directory.path),
    )
    if facts.in_store:
        return facts
    written = [info.mtime_ns // 1_000_000 for name in _SIGNS_OF_LIFE if (info := directory.info(name)) is not None]
    checkpoint = directory.info(CLEANER_OFFSETS)
    checkpoint_ms = None if checkpoint is None else checkpoint.mtime_ns // 1_000_000
    return replace(facts, alive_ms=max(written, default=None), checkpoint_ms=checkpoint_ms)


def _kind(place: LocatedPartition, planned: PlannedPartition) -> CauseKind | None:
    if planned.obstacle is not None:
        return CauseKind(planned.obstacle.kind)
    is_current = place.name is not None and place.name.state is DirectoryState.CURRENT
    if is_current and planned.plan.decision is Decision.REFUSE and not place.directory.live and place.directory.failure:
        return CauseKind.OFFLINE
    return None


def _first_timestamp(log: LogView) -> int:
    """Return `engine.facts.first_timestamp` of the active segment; NONE also if it cannot be read."""
    segment = log.segments[-1]
    if log.fs.reads_by_request(segment.path):
        return NONE  # the roll time is not worth a request per partition
    try:
        return first_timestamp(segment)
    except OSError:
        return NONE
