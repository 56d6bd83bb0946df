"""The explicit configs of a live log, `cordwood.properties` in its partition's directory, as java.util.Properties:

    #Configs of this log that a program has set. Cordwood's live log reads them; a broker ignores this file.
    written.ms=1764345600000                  the time of the change
    cleanup.policy=compact                    a line for each config, by its topic name
    segment.bytes=1048576

A live log opened without configs uses these, so a compacted log stays compacted, and limits stay in effect. All
partitions of a topic have the same configs; after a crash during a change, the newest file applies to all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cordwood.common.config import TOPIC_CONFIGS
from cordwood.common.errors import ConfigError, CorruptFileError
from cordwood.fs.base import Bytes
from cordwood.storage.formats.properties import decode_properties
from cordwood.storage.formats.text import parse_integer, shown

WRITTEN = "written.ms"
_HEAD = "#Configs of this log that a program has set. Cordwood's live log reads them; a broker ignores this file.\n"


@dataclass(frozen=True, slots=True)
class LogConfigs:
    """Explicitly set configs.

    Attributes:
        texts: values as text, by the names of topic configs.
        written_ms: the time of the change.
    """

    texts: Mapping[str, str]
    written_ms: int


def encode(configs: LogConfigs) -> bytes:
    """Encode the file."""
    pairs = [(WRITTEN, str(configs.written_ms)), *sorted(configs.texts.items())]
    lines = (f"{name}={_escaped(text)}\n" for name, text in pairs)
    return (_HEAD + "".join(lines)).encode("ascii")


def _escaped(text: str) -> str:
    """Escape the characters of a value that have a meaning in java.util.Properties."""
    return "".join(f"\\u{ord(each):04x}" if each in "\\ \t\n\r\f" or not " " < each < "\x7f" else each for each in text)


def decode(data: Bytes, path: str | None = None) -> LogConfigs:
    """Decode the file. Names that are not topic configs, such as those of a later version, are left out.

    Raises:
        CorruptFileError: it is not in the properties format, lacks the time, or has a value that Kafka would reject.
    """
    values = decode_properties(data, path).values()
    written_ms = parse_integer(values.get(WRITTEN, ""), 64)
    if written_ms is None:
        raise CorruptFileError(f"{WRITTEN} {shown(values.get(WRITTEN, ''))} is not an integer", path=path)
    texts = {name: text for name, text in values.items() if name in TOPIC_CONFIGS}
    for name, text in texts.items():
        try:
            TOPIC_CONFIGS[name].parse(text)
        except ConfigError as error:
            raise CorruptFileError(str(error), path=path) from None
    return LogConfigs(texts, written_ms)
