"""Three small files: the topic of a partition's directory, the owner of a log directory, and its clean shutdown.

`partition.metadata`, in a partition's directory, without a line end at the end:

    version: 0
    topic_id: kh0ERQ6WToCnIzrMNpUr_A          16 bytes of UUID as URL-safe base64 without padding

`meta.properties`, in a log directory, as java.util.Properties stores it:

    #
    #Sat Nov 21 09:25:45 UTC 2026
    node.id=1                                 broker.id in version 0
    directory.id=onbF-9xXR-i1HI7Fph6dgA
    version=1
    cluster.id=FHD6uL-kSAK43AXeV00NKw

`.kafka_cleanshutdown`, in a log directory that was shut down cleanly. Only its existence matters; brokers before 3.7
left it empty:

    {"version":0,"brokerEpoch":128}
"""

from __future__ import annotations

import base64
import re
import uuid
from dataclasses import dataclass

from cordwood.common import java_properties
from cordwood.common.errors import CorruptFileError, TextProblem
from cordwood.common.java_properties import Properties, PropertiesError
from cordwood.fs.base import Bytes
from cordwood.storage.formats.text import SPACE, lines, parse_integer, parse_json, shown, split

# ── Topic and directory ids ──────────────────────────────────────────────────────────────────────────────────────────

#: Kafka's reserved id for "none".
NO_ID = uuid.UUID(int=0)
_ID = re.compile(r"[A-Za-z0-9_-]{22}(==)?")


def encode_id(value: uuid.UUID) -> str:
    """Encode a UUID as Kafka prints it: 22 characters."""
    return base64.urlsafe_b64encode(value.bytes).decode().removesuffix("==")


def decode_id(text: str) -> uuid.UUID | None:
    """Decode the UUID in a text, padded or not; None if the text is not a UUID."""
    if not _ID.fullmatch(text):
        return None
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text[:22] + "=="))


# ── partition.metadata ───────────────────────────────────────────────────────────────────────────────────────────────

_COLON = re.compile(f":[{SPACE}]+")


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """The topic that a partition's directory belongs to, regardless of its name."""

    topic_id: uuid.UUID
    version: int = 0


def decode_partition_metadata(data: Bytes, path: str | None = None) -> PartitionMetadata:
    """Decode `partition.metadata`. Like Kafka, ignore the names and further lines.

    Raises:
        CorruptFileError: Kafka would take the log directory offline or not start, depending on the kind.
    """
    found = lines(data, path)
    version = 0
    if found:
        version_text = _value(1, found[0], path)
        parsed = parse_integer(version_text, 32)
        if parsed is None or parsed < 0:
            what = f"line 1: version {shown(version_text)} is not an integer from 0 up"
            raise CorruptFileError(what, kind=TextProblem.MALFORMED, path=path)
        version = parsed
    if len(found) < 2:
        what = f"partition.metadata has {len(found)} lines; it has a version and a topic id"
        raise CorruptFileError(what, kind=TextProblem.MISSING_LINE, path=path)
    id_text = _value(2, found[1], path)
    topic_id = decode_id(id_text)
    if topic_id is None or topic_id == NO_ID:
        kind = TextProblem.VALUE if topic_id is None else TextProblem.MALFORMED
        raise CorruptFileError(f"line 2: {shown(id_text)} is not a topic id", kind=kind, path=path)
    return PartitionMetadata(topic_id, version)


def encode_partition_metadata(metadata: PartitionMetadata) -> bytes:
    """Encode `partition.metadata` as Kafka does."""
    return f"version: {metadata.version}\ntopic_id: {encode_id(metadata.topic_id)}".encode()


def _value(number: int, line: str, path: str | None) -> str:
    parts = split(_COLON, line)
    if len(parts) != 2:
        what = f"line {number} is not 'name: value': {shown(line)}"
        raise CorruptFileError(what, kind=TextProblem.MALFORMED, path=path)
    return parts[1]


# ── meta.properties ──────────────────────────────────────────────────────────────────────────────────────────────────

#: Far more than real files have. In memory, a parsed short line takes about a hundred times its bytes.
_PROPERTIES_BYTES_MAX = 1 << 20


def decode_properties(data: Bytes, path: str | None = None) -> Properties:
    """Parse the text of a `meta.properties` file.

    Raises:
        CorruptFileError: a malformed escape; carries the position of the entry. Or more than 1 MiB, which Kafka would
            accept.
    """
    if len(data) > _PROPERTIES_BYTES_MAX:
        what = f"{len(data)} bytes of properties; more than {_PROPERTIES_BYTES_MAX} are not looked into"
        raise CorruptFileError(what, path=path)
    try:
        return java_properties.decode(bytes(data))
    except PropertiesError as error:
        what = f"a \\u without four hexadecimal digits: {shown(error.line)}"
        raise CorruptFileError(what, path=path, position=error.position) from None


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The owner of a log directory.

    Attributes:
        version: 0 or 1 (KRaft).
        node_id: `broker.id` in version 0, where it may be missing.
        cluster_id: may be missing in version 0.
        directory_id: None before 3.7.
    """

    version: int
    node_id: int | None
    cluster_id: str | None
    directory_id: uuid.UUID | None


def meta_properties(properties: Properties, path: str | None = None) -> MetaProperties:
    """Interpret a `meta.properties` file. A missing version means 0.

    Raises:
        CorruptFileError: Kafka would not start on such a directory.

    Source: Kafka MetaProperties.Builder.
    """
    values = properties.values()
    version_text = values.get("version", "0")
    version = parse_integer(version_text.strip("".join(map(chr, range(33)))), 32)  # Java's trim
    if version not in (0, 1):
        raise CorruptFileError(f"version {shown(version_text)} of meta.properties; 0 and 1 are known", path=path)
    node_key = ("broker.id", "node.id")[version]
    node_id = None
    if version == 1 or node_key in values:
        node_id = parse_integer(values.get(node_key, ""), 32)
        if node_id is None:
            raise CorruptFileError(f"{node_key} {shown(values.get(node_key, ''))} is not an integer", path=path)
    cluster_id = values.get("cluster.id")
    if version == 1 and cluster_id is None:
        raise CorruptFileError("cluster.id is missing", path=path)
    directory_id = None
    if "directory.id" in values:
        directory_id = decode_id(values["directory.id"])
        if directory_id is None:
            raise CorruptFileError(f"directory.id {shown(values['directory.id'])} is not a UUID", path=path)
    return MetaProperties(version, node_id, cluster_id, directory_id)


# ── .kafka_cleanshutdown ─────────────────────────────────────────────────────────────────────────────────────────────


def decode_clean_shutdown(data: Bytes) -> int | None:
    """Return the broker epoch in a clean-shutdown file, or None without one; the shutdown was clean in both cases."""
    value = parse_json(bytes(data).decode(errors="replace"))
    epoch = value.get("brokerEpoch") if isinstance(value, dict) else None
    fits = type(epoch) is int and -(1 << 63) <= epoch < 1 << 63
    return epoch if fits else None


def encode_clean_shutdown(broker_epoch: int | None) -> bytes:
    """Encode a clean-shutdown file; empty without an epoch, as older brokers left it."""
    return b"" if broker_epoch is None else f'{{"version":0,"brokerEpoch":{broker_epoch}}}'.encode()
