"""The configs of a manager's broker and topics, which change while it runs.

A topic's configs come from the manager's layers and, for configs that the layers do not set, from the file
`cordwood.properties` beside its logs, which holds the explicit configs of earlier runs. A policy or limit that neither
of them sets is off: Kafka's defaults would delete records after a week.

For directories of another program, such as the broker's that `run` stands in for, only explicit settings delete data.
Kafka's defaults delete segments older than a week. The owner of the broker accepted these defaults, but not for every
program that opens the directory. So, as in `plan` and `clean`, a topic is compacted or its segments are deleted only if
the policy and the limits are set explicitly and unambiguously; all its other configs are resolved as in Kafka.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from cordwood.cleaning.rules.plan import Reason
from cordwood.cleaning.rules.selection import policy_in_doubt, why_topic_is_left
from cordwood.common.arguments import shown
from cordwood.common.config import (
    TOPIC_CONFIGS,
    BrokerConfig,
    Layer,
    Source,
    SourceKind,
    TopicConfig,
    explicit_texts,
    resolve,
    resolve_broker,
    show,
    unknown_config,
    without_default_deletion,
)
from cordwood.common.errors import CorruptFileError
from cordwood.fs.base import LocalFileSystem
from cordwood.storage.formats import log_configs
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.formats.log_configs import LogConfigs
from cordwood.storage.log.files import read_file
from cordwood.storage.node.node import Node

#: The sources of a topic's own configs, which `with_topic` replaces; layers from other sources stay.
_OWN = {SourceKind.TOPIC, SourceKind.UPDATE}
_log = logging.getLogger(__name__)
_LIMITS = ("retention.ms", "retention.bytes")


class Configs:
    """The layers, and the configs resolved from them.

    Args:
        compacts_tiered: a tiered topic may be compacted.
    """

    def __init__(self, layers: Iterable[Layer], *, compacts_tiered: bool = False) -> None:
        self._layers = list(layers)
        self._compacts_tiered = compacts_tiered
        for layer in self._layers:
            if not isinstance(layer, Layer):
                raise TypeError(f"layers come from cordwood.overrides([…]), not {shown(layer)}")
        self.broker: BrokerConfig = resolve_broker(self._layers)
        #: The configs of topics, with the layers and the file that they are resolved from.
        self._topics: dict[str, tuple[list[Layer], LogConfigs | None, TopicConfig]] = {}
        #: The remembered configs of topics, each with its file beside a log.
        self._remembered: dict[str, tuple[LogConfigs, str]] = {}
        self._lock = threading.Lock()

    def topic(self, topic: str) -> TopicConfig:
        """Return the configs of a topic: the same object until they change."""
        layers, (remembered, _) = self._layers, self._remembered.get(topic, (None, ""))
        known = self._topics.get(topic)
        if known is None or known[0] is not layers or known[1] is not remembered:
            known = self._topics[topic] = layers, remembered, self.resolved(topic, layers)
            _warn_of_idle_limits(known[2])
        return known[2]

    def resolved(self, topic: str, layers: Iterable[Layer]) -> TopicConfig:
        """Return the configs of a topic with these layers.

        Raises:
            ConfigError: Kafka would refuse a value, or the combination of two.
        """
        remembered = None
        if (found := self._remembered.get(topic)) is not None:
            remembered = Layer(Source(SourceKind.REMEMBERED, found[1], topic), found[0].texts)
        return without_default_deletion(resolve(topic, layers, remembered, compacts_tiered=self._compacts_tiered))

    # ---- the file beside a log ---------------------------------------------------------------------------------------

    def recall(self, fs: LocalFileSystem, directory: str, topic: str) -> None:
        """Read the configs remembered beside a log; the newest file of a topic's logs takes precedence."""
        path = f"{directory}/{FileKind.LOG_CONFIGS}"
        if (found := _read(fs, path)) is not None:
            with self._lock:
                known = self._remembered.get(topic)
                if known is None or known[0].written_ms < found.written_ms:
                    self._remembered[topic] = found, path

    def forget(self, topic: str) -> None:
        """Stop using the remembered configs of a topic."""
        with self._lock:
            self._remembered.pop(topic, None)

    def forget_given(self, topics: Iterable[str]) -> None:
        """Stop using remembered values of configs that the layers set, as the layers are about to be replaced."""
        for topic in topics:
            if topic in self._remembered:
                config, (found, path) = self.topic(topic), self._remembered[topic]
                kept = {
                    name: text
                    for name, text in found.texts.items()
                    if config[name].source.kind is SourceKind.REMEMBERED
                }
                self._remembered[topic] = replace(found, texts=kept), path

    def to_remember(self, fs: LocalFileSystem, directory: str, topic: str, now_ms: int) -> LogConfigs | None:
        """Return the configs to write beside a log of a topic; None if its file holds the explicit configs already."""
        texts, known = explicit_texts(self.topic(topic)), _read(fs, f"{directory}/{FileKind.LOG_CONFIGS}")
        if texts == (known.texts if known is not None else {}):
            return None
        # If the clock was set back, the new file must still be newer than the older ones.
        before = [one.written_ms for one in (known, self._remembered.get(topic, (None,))[0]) if one is not None]
        return LogConfigs(texts, max([now_ms, *(time_ms + 1 for time_ms in before)]))

    # ---- changes -----------------------------------------------------------------------------------------------------

    def with_topic(self, topic: str, texts: Mapping[str, str]) -> list[Layer]:
        """Return the layers with new own configs of a topic, which take precedence over all others.

        Raises:
            ConfigError: Kafka has no such config of a topic; the error names the nearest one.
        """
        for name in texts:
            if name not in TOPIC_CONFIGS:
                raise unknown_config(name, TOPIC_CONFIGS)
        kept = [one for one in self._layers if one.source.kind not in _OWN or one.source.subject != topic]
        return [*kept, Layer(Source(SourceKind.UPDATE, subject=topic), texts)]

    def use(self, layers: list[Layer], broker: BrokerConfig | None = None) -> None:
        """Replace the layers, and the broker's configs if they change."""
        self._layers, self.broker = layers, broker or self.broker


def _warn_of_idle_limits(config: TopicConfig) -> None:
    """Warn of explicit limits that delete nothing because no policy is set."""
    limits = [f"{name}={config[name]}" for name in _LIMITS if config[name].explicit and config.integer(name) >= 0]
    if limits and not config["cleanup.policy"].explicit:
        what = "no record is deleted by %s of topic %s: its cleanup.policy is not set. Set it to delete, or to compact"
        _log.warning(what, " and ".join(limits), config.topic)


def _read(fs: LocalFileSystem, path: str) -> LogConfigs | None:
    """Read the configs in a file; return None if it is missing or cannot be used."""
    try:
        return log_configs.decode(read_file(fs, path), path) if fs.exists(path) else None
    except (CorruptFileError, OSError) as error:
        _log.error("the remembered configs %s do not count: %s", path, error)
        return None


# ---- directories of another program ----------------------------------------------------------------------------------


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
