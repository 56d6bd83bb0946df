"""The configs of a manager, of its broker and of topics, which change while it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cordwood.arguments import shown
from cordwood.config import (
    TOPIC_CONFIGS,
    BrokerConfig,
    Layer,
    Source,
    SourceKind,
    TopicConfig,
    resolve,
    resolve_broker,
    unknown_config,
)

#: What says the configs of a topic's own; others than these come from who started the manager.
_OWN = {SourceKind.TOPIC, SourceKind.UPDATE}


class Configs:
    """Layers, and what is made of them."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        self._layers = list(layers)
        for layer in self._layers:
            if not isinstance(layer, Layer):
                raise TypeError(f"layers come from cordwood.config.overrides([…]), not {shown(layer)}")
        self.broker: BrokerConfig = resolve_broker(self._layers)
        #: The configs of topics, with the layers that they are made of.
        self._topics: dict[str, tuple[list[Layer], TopicConfig]] = {}

    def topic(self, topic: str) -> TopicConfig:
        """The configs of a topic: the same object until they change."""
        layers = self._layers
        known = self._topics.get(topic)
        if known is None or known[0] is not layers:
            known = self._topics[topic] = layers, resolve(topic, layers)
        return known[1]

    def with_topic(self, topic: str, texts: Mapping[str, str]) -> list[Layer]:
        """The layers with other configs of a topic's own, which win over all others.

        Raises:
            ConfigError: Kafka has no such config of a topic; the error names the nearest one.
        """
        for name in texts:
            if name not in TOPIC_CONFIGS:
                raise unknown_config(name, TOPIC_CONFIGS)
        kept = [one for one in self._layers if one.source.kind not in _OWN or one.source.subject != topic]
        return [*kept, Layer(Source(SourceKind.UPDATE, subject=topic), texts)]

    def use(self, layers: list[Layer], broker: BrokerConfig | None = None) -> None:
        """Go on with other layers, and with the broker's configs that they make if those change."""
        self._layers, self.broker = layers, broker or self.broker
