"""The configs of live logs in directories from another program: only explicit settings delete data.

Kafka's defaults delete segments older than a week. The owner of the broker accepted these defaults, but not for every
program that opens the directory. So, as in `plan` and `clean`, a topic is compacted or its segments are deleted only if
the policy and the limits are set explicitly and unambiguously; all its other configs are resolved as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cordwood.cleaning.rules.plan import Reason
from cordwood.cleaning.rules.policy import policy_in_doubt, why_topic_is_left
from cordwood.common.config import Layer, Source, SourceKind, TopicConfig, show
from cordwood.storage.node.node import Node

_LIMITS = ("retention.ms", "retention.bytes")


@dataclass(frozen=True, slots=True)
class ExplicitConfigs:
    """The configs for a manager.

    Attributes:
        layers: configs of the broker and of all topics, in order of precedence.
        left_alone: reasons by topic, for topics without any compaction or retention.
        only_compacted: reasons by topic, for topics whose limits of time and size are ignored.
    """

    layers: tuple[Layer, ...]
    left_alone: Mapping[str, Reason]
    only_compacted: Mapping[str, Reason]


def explicit_configs(node: Node, *, retention: bool) -> ExplicitConfigs:
    """Return the explicit configs of a node's topics.

    Args:
        node: the directories, with the configs given for their topics.
        retention: whether to apply limits of time and size, too.
    """
    topics = sorted({place.topic for place in node.places if place.topic is not None})
    layers = list(node.broker_layers())
    left_alone: dict[str, Reason] = {}
    only_compacted: dict[str, Reason] = {}
    for topic in topics:
        reason = why_topic_is_left(node, topic)
        if reason is None:
            config = node.config_of(topic)
            reason = policy_in_doubt(node, config)
        if reason is not None:
            left_alone[topic] = reason
            layers.append(_own(topic, {"cleanup.policy": ""}))
            continue
        if node.metadata is not None:
            layers += node.metadata.layers(topic, node.node_id, node.metadata_path or "")
        layers += _remembered(config)
        removed = dict(_without_limits(node, config, retention=retention))
        if removed:
            layers.append(_own(topic, dict.fromkeys(removed, "-1")))
            if config.delete:
                only_compacted[topic] = next(iter(removed.values()))
    return ExplicitConfigs(tuple(layers), left_alone, only_compacted)


def _remembered(config: TopicConfig) -> Iterator[Layer]:
    """Yield the configs of a topic that are stored beside its logs."""
    found = {name: value for name, value in config.items() if value.source.kind is SourceKind.REMEMBERED}
    for value in list(found.values())[:1]:
        yield Layer(value.source, {name: show(each.value) for name, each in found.items()})


def _own(topic: str, texts: Mapping[str, str]) -> Layer:
    return Layer(Source(SourceKind.TOPIC_OVERRIDE, subject=topic), texts)


def _without_limits(node: Node, config: TopicConfig, *, retention: bool) -> Iterator[tuple[str, Reason]]:
    """Yield each ignored limit with the reason."""
    for name in _LIMITS:
        value = config[name]
        if not retention:
            yield name, Reason("nothing is deleted by time or size", until="with --retention")
        elif not value.explicit:
            yield name, Reason(f"{name} is not set", str(value))
        elif (doubt := node.doubt(config.topic, name)) is not None:
            yield name, Reason(f"{name} is unknown: {doubt}", until=f"with --config {name}=…")
