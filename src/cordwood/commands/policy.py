"""Partitions that are never cleaned: the rules, in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cordwood.cleaning.plan import (
    Reason,
    config_reason,
)
from cordwood.config import TopicConfig
from cordwood.errors import ConfigError
from cordwood.storage.formats.filenames import CLUSTER_METADATA_TOPIC, DirectoryState
from cordwood.storage.node.node import LocatedPartition, Node

#: Of these a damaged metadata log may hide one that keeps records longer.
_KEEPING = ("min.compaction.lag.ms", "delete.retention.ms")


# ---- what is never cleaned -------------------------------------------------------------------------------------------


def _no_name(_node: Node, place: LocatedPartition) -> Reason | None:
    return Reason("not named like a partition (topic-number)") if place.name is None else None


def _state(_node: Node, place: LocatedPartition) -> Reason | None:
    assert place.name is not None, "asked before"
    words = {
        DirectoryState.DELETED: "a -delete directory: about to be removed",
        DirectoryState.FUTURE: "a -future directory: a copy in the making, for another log directory",
        DirectoryState.STRAY: "a -stray directory: the cluster does not know it",
    }
    return Reason(words[place.name.state]) if place.name.state in words else None


def _metadata_log(_node: Node, place: LocatedPartition) -> Reason | None:
    return Reason(f"{CLUSTER_METADATA_TOPIC} is never cleaned") if place.topic == CLUSTER_METADATA_TOPIC else None


def _twin(node: Node, place: LocatedPartition) -> Reason | None:
    assert place.name is not None, "asked before"
    for other in node.futures(place.name.topic_partition):
        return Reason(f"it is being moved to {other.path}", until="cleanable once it has been moved")
    for other in node.duplicates(place.name.topic_partition):
        if other.path != place.path:
            return Reason(f"it is also in {other.path}, and a broker refuses to start with both")
    return None


def _topic(node: Node, place: LocatedPartition) -> Reason | None:
    assert place.topic is not None, "asked before"
    return why_topic_is_left(node, place.topic)


def why_topic_is_left(node: Node, topic: str) -> Reason | None:
    """Why no partition of a topic may be cleaned or deleted from: it is tiered, or its policy is not known for sure."""
    if node.metadata is not None and node.metadata.is_tiered(topic):
        where = f"topic {topic} in {node.metadata_path}"
        return Reason("remote.storage.enable: a part of a tiered topic may be elsewhere", where)
    give = "give --config cleanup.policy=…, --server-properties or --metadata"
    try:
        doubt = node.doubt(topic)
        config = node.config_of(topic)
    except ConfigError as error:
        return Reason(f"cleanup.policy is unknown: {error}")
    if doubt is not None:
        return Reason(f"cleanup.policy is unknown: {doubt}", node.metadata_path or "", give)
    if config.flag("remote.storage.enable"):
        said = config["remote.storage.enable"]
        return config_reason("remote.storage.enable", said, "a part of a tiered topic may be elsewhere")
    return None


#: The first that has a reason decides.
NEVER_CLEANED: Sequence[Callable[[Node, LocatedPartition], Reason | None]] = (
    _no_name,
    _metadata_log,
    _state,
    _twin,
    _topic,
)


def policy_in_doubt(node: Node, config: TopicConfig) -> Reason | None:
    """Why unknown configs might keep records longer than the known ones do."""
    if node.metadata is None or not node.metadata.problems:
        return None
    for name in _KEEPING:
        if (doubt := node.doubt(config.topic, name)) is not None:
            what = f"{name} is unknown: {doubt}"
            return Reason(what, node.metadata_path or "", f"with --config {name}=…")
    return None
