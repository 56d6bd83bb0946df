"""The rules that exclude partitions from cleaning, in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cordwood.cleaning.rules.plan import Reason, config_reason
from cordwood.common.config import TopicConfig
from cordwood.common.errors import ConfigError
from cordwood.storage.formats.filenames import CLUSTER_METADATA_TOPIC, DirectoryState
from cordwood.storage.node.node import LocatedPartition, Node

#: Configs that keep records longer; a damaged metadata log may hide a value of one.
_KEEPING = ("min.compaction.lag.ms", "delete.retention.ms")


# ---- partitions that are never cleaned -------------------------------------------------------------------------------


class ObstacleKind(StrEnum):
    """Kind of the rule that excludes a partition from cleaning."""

    NO_PARTITION = "no partition"
    TO_BE_DELETED = "to be deleted"
    STRAY = "stray"
    FUTURE = "copy in the making"
    MOVING = "being moved"
    DUPLICATE = "duplicate"
    METADATA_LOG = "metadata log"
    WRONG_CONFIG = "wrong config"
    UNKNOWN_POLICY = "unknown policy"
    TIERED = "remote copies"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """The reason why a partition is never cleaned."""

    kind: ObstacleKind
    reason: Reason


def _no_name(_node: Node, place: LocatedPartition) -> Obstacle | None:
    if place.name is not None:
        return None
    return Obstacle(ObstacleKind.NO_PARTITION, Reason("not named like a partition (topic-number)"))


_STATES = {
    DirectoryState.DELETED: (ObstacleKind.TO_BE_DELETED, "a -delete directory: about to be removed"),
    DirectoryState.FUTURE: (
        ObstacleKind.FUTURE,
        "a -future directory: a copy in the making, for another log directory",
    ),
    DirectoryState.STRAY: (ObstacleKind.STRAY, "a -stray directory: the cluster does not know it"),
}


def _state(_node: Node, place: LocatedPartition) -> Obstacle | None:
    assert place.name is not None, "asked before"
    if place.name.state not in _STATES:
        return None
    kind, what = _STATES[place.name.state]
    return Obstacle(kind, Reason(what))


def _metadata_log(_node: Node, place: LocatedPartition) -> Obstacle | None:
    if place.topic != CLUSTER_METADATA_TOPIC:
        return None
    return Obstacle(ObstacleKind.METADATA_LOG, Reason(f"{CLUSTER_METADATA_TOPIC} is never cleaned"))


def _twin(node: Node, place: LocatedPartition) -> Obstacle | None:
    assert place.name is not None, "asked before"
    for other in node.duplicates(place.name.topic_partition):
        if other.path != place.path:
            reason = Reason(f"it is also in {other.path}, and a broker refuses to start with both")
            return Obstacle(ObstacleKind.DUPLICATE, reason)
    for other in node.futures(place.name.topic_partition):
        reason = Reason(f"it is being moved to {other.path}", until="cleanable once it has been moved")
        return Obstacle(ObstacleKind.MOVING, reason)
    return None


def _topic(node: Node, place: LocatedPartition) -> Obstacle | None:
    assert place.topic is not None, "asked before"
    return _topic_obstacle(node, place.topic)


def _topic_obstacle(node: Node, topic: str) -> Obstacle | None:
    if node.metadata is not None and node.metadata.is_tiered(topic):
        where = f"topic {topic} in {node.metadata_path}"
        reason = Reason("remote.storage.enable: a part of a tiered topic may be elsewhere", where)
        return Obstacle(ObstacleKind.TIERED, reason)
    give = "give --config cleanup.policy=…, --server-properties or --metadata"
    try:
        doubt = node.doubt(topic)
        config = node.config_of(topic)
    except ConfigError as error:
        return Obstacle(ObstacleKind.WRONG_CONFIG, Reason(f"cleanup.policy is unknown: {error}"))
    if doubt is not None:
        reason = Reason(f"cleanup.policy is unknown: {doubt}", node.metadata_path or "", give)
        return Obstacle(ObstacleKind.UNKNOWN_POLICY, reason)
    if config.flag("remote.storage.enable"):
        said = config["remote.storage.enable"]
        reason = config_reason("remote.storage.enable", said, "a part of a tiered topic may be elsewhere")
        return Obstacle(ObstacleKind.TIERED, reason)
    return None


def why_topic_is_left(node: Node, topic: str) -> Reason | None:
    """Return why cleaning must not touch a topic: it is tiered, or its policy is uncertain; None if it may."""
    obstacle = _topic_obstacle(node, topic)
    return None if obstacle is None else obstacle.reason


#: The rules; the first that returns an obstacle decides.
_NEVER_CLEANED: Sequence[Callable[[Node, LocatedPartition], Obstacle | None]] = (
    _no_name,
    _metadata_log,
    _state,
    _twin,
    _topic,
)


def why_never(node: Node, place: LocatedPartition) -> Obstacle | None:
    """Return the reason why a partition is never cleaned, or None if it may be."""
    return next((found for rule in _NEVER_CLEANED if (found := rule(node, place)) is not None), None)


def policy_in_doubt(node: Node, config: TopicConfig) -> Reason | None:
    """Return a reason if unknown configs might keep records longer than the known ones, else None."""
    if node.metadata is None or not node.metadata.problems:
        return None
    for name in _KEEPING:
        if (doubt := node.doubt(config.topic, name)) is not None:
            what = f"{name} is unknown: {doubt}"
            return Reason(what, node.metadata_path or "", f"with --config {name}=…")
    return None
