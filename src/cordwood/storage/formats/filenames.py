"""Builds and parses the names of all files and directories of a log; no other module does.

A log directory holds some fixed files and a directory per partition; a partition directory holds segments, each a few
files that share a base offset, and some files with fixed names:

    orders-0/                                              topic, last '-', partition
      00000000000000000042.log                             %020d of an offset, then the kind of file
      00000000000000000042.log.deleted                     … and its state
      00000000000000000042-0000000003.checkpoint           a KRaft snapshot: offset and leader epoch
      leader-epoch-checkpoint
      cordwood.properties                                  Cordwood's own: configs that a program set explicitly
      .cordwood/index/00000000000000000042.keyhashes       Cordwood's own: the key index of a segment
    orders-0.0123456789abcdef0123456789abcdef-delete/      topic-partition.uniq-state

In the tier of a live log, `.cordwood-tier/00000000000000000007.json` is the seventh generation of its manifest.

Names come from disk and from checkpoint files, so they are not trusted: a name with `/` or NUL, and the names `.` and
`..`, are neither parsed nor built, and each built name is one path component. Kafka also reads names that are not in
their canonical form (`+7.log`, `orders-007`), but would look for the canonical name; to detect this, compare the `name`
of the parsed value with the original.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from enum import StrEnum

from cordwood.common.errors import BadNameError
from cordwood.common.types import NONE, TopicPartition
from cordwood.storage.formats.text import SPACE, parse_integer, shown

#: Files in a log directory.
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
OFFSET_CHECKPOINTS = (RECOVERY_POINTS, LOG_START_OFFSETS, CLEANER_OFFSETS, HIGH_WATERMARKS)
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"
BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
REMOTE_INDEX_CACHE = "remote-log-index-cache"

#: Folder for Cordwood's work in a partition's directory. Brokers and readers ignore it.
WORK_FOLDER = ".cordwood"
#: Folder of key indexes within the work folder; it remains after a run.
INDEX_FOLDER = "index"
KEY_INDEX = ".keyhashes"
#: End of the name of a manifest in the tier of a live log.
TIER_MANIFEST = ".json"

#: The topic of KRaft's own log: its directory is named like a partition but not loaded as one.
CLUSTER_METADATA_TOPIC = "__cluster_metadata"

DIRECTORY_NAME_LENGTH_MAX = 255
TOPIC_LENGTH_MAX = 249

_OFFSET_MAX = (1 << 63) - 1
_EPOCH_MAX = (1 << 31) - 1
_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_CHECKPOINT_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_KEY_INDEX = re.compile(rf"([0-9]{{20}}){re.escape(KEY_INDEX)}")
_TIER_KEY_INDEX = re.compile(rf"([0-9]{{20}})-([A-Za-z0-9_-]{{22}}){re.escape(KEY_INDEX)}")
_TIER_MANIFEST = re.compile(rf"([0-9]{{20}}){re.escape(TIER_MANIFEST)}")


class FileKind(StrEnum):
    """The kind of a partition's file; the value is the end of its name, or the whole name."""

    LOG = ".log"
    OFFSET_INDEX = ".index"
    TIME_INDEX = ".timeindex"
    TRANSACTION_INDEX = ".txnindex"
    PRODUCER_SNAPSHOT = ".snapshot"
    CHECKPOINT_SNAPSHOT = ".checkpoint"
    LEADER_EPOCHS = "leader-epoch-checkpoint"
    PARTITION_METADATA = "partition.metadata"
    QUORUM_STATE = "quorum-state"
    LOG_CONFIGS = "cordwood.properties"  #: Cordwood's own: the explicit configs of a live log. Brokers ignore it.
    FOREIGN = ""


class Temporary(StrEnum):
    """The state of a file; the value follows its full name."""

    NONE = ""
    DELETED = ".deleted"
    CLEANED = ".cleaned"
    SWAP = ".swap"
    TMP = ".tmp"


class DirectoryState(StrEnum):
    """The state of a partition's directory; the value is the end of its name."""

    CURRENT = ""
    DELETED = "-delete"
    FUTURE = "-future"
    STRAY = "-stray"


#: Kinds with only an offset in the name.
OFFSET_KINDS = (
    FileKind.LOG,
    FileKind.OFFSET_INDEX,
    FileKind.TIME_INDEX,
    FileKind.TRANSACTION_INDEX,
    FileKind.PRODUCER_SNAPSHOT,
)
_OFFSET_KINDS = {str(kind): kind for kind in OFFSET_KINDS}
_USUAL = re.compile(rf"([0-9]{{20}})({'|'.join(map(re.escape, _OFFSET_KINDS))})")
_TEMPORARIES = tuple(one for one in Temporary if one)
FIXED_KINDS = {
    str(kind): kind
    for kind in (FileKind.LEADER_EPOCHS, FileKind.PARTITION_METADATA, FileKind.QUORUM_STATE, FileKind.LOG_CONFIGS)
}


#: Cache size: a command lists a partition several times, and many partitions have files with the same names.
_FILES_REMEMBERED = 1 << 15


@dataclass(frozen=True, slots=True)
class PartitionFile:
    """A file of a partition, parsed from its name.

    Attributes:
        kind: FOREIGN for a file that neither Kafka nor a live log uses.
        offset: base offset of the segment, end offset of a snapshot, or NONE for a name without an offset.
        temporary: state of the file.
        leader_epoch: leader epoch of a CHECKPOINT_SNAPSHOT, else NONE.
    """

    kind: FileKind
    offset: int = NONE
    temporary: Temporary = Temporary.NONE
    leader_epoch: int = NONE

    @property
    def name(self) -> str:
        """The canonical name; not for a foreign file."""
        assert self.kind is not FileKind.FOREIGN, "a foreign file is known by its own name only"
        if self.kind is FileKind.CHECKPOINT_SNAPSHOT:
            return checkpoint_snapshot_name(self.offset, self.leader_epoch) + self.temporary
        if self.kind in OFFSET_KINDS:
            return offset_name(self.offset, self.kind + self.temporary)
        return self.kind + self.temporary


@dataclass(frozen=True, slots=True)
class PartitionDirectory:
    """A partition's directory, parsed from its name.

    Attributes:
        topic_partition: in a deleted or stray directory, the end of the topic may be missing.
        uniq: unique part of a deleted, future or stray directory, 32 hex digits if Kafka made it; else empty.
    """

    topic_partition: TopicPartition
    state: DirectoryState = DirectoryState.CURRENT
    uniq: str = ""

    @property
    def name(self) -> str:
        """The directory's name; for a deleted or stray one cut to 255 characters by dropping the topic's end.

        Raises:
            BadNameError: the topic or uniq cannot be part of a file name.
        """
        topic, partition = self.topic_partition.topic, self.topic_partition.partition
        end = f"-{partition}"
        if self.state is not DirectoryState.CURRENT:
            end += f".{self.uniq}{self.state}"
        if self.state in (DirectoryState.DELETED, DirectoryState.STRAY):
            topic = topic[: max(DIRECTORY_NAME_LENGTH_MAX - len(end), 0)]
        return _component(topic + end)


def offset_name(offset: int, suffix: str) -> str:
    """Build a file name from an offset: twenty digits and a suffix, such as `FileKind.LOG`.

    Raises:
        BadNameError: the offset is negative or does not fit 64 bits, or the suffix cannot be part of a file name.
    """
    if not 0 <= offset <= _OFFSET_MAX:
        raise BadNameError(f"offset {offset} cannot name a file: it is not within [0, 2**63)")
    return _component(f"{offset:020d}{suffix}")


def checkpoint_snapshot_name(end_offset: int, leader_epoch: int) -> str:
    """Build the name of a KRaft snapshot of all records below an offset."""
    if not 0 <= leader_epoch <= _EPOCH_MAX:
        raise BadNameError(f"leader epoch {leader_epoch} cannot name a file: it is not within [0, 2**31)")
    return offset_name(end_offset, f"-{leader_epoch:010d}{FileKind.CHECKPOINT_SNAPSHOT}")


@functools.lru_cache(_FILES_REMEMBERED)
def parse_file(name: str) -> PartitionFile | None:
    """Parse the name of a file in a partition's directory.

    Like Kafka's loader, decide by the end of the name, and take the offset before its first dot. Kafka deletes every
    file whose name ends with `.deleted`.

    Returns:
        the file, or None for a name that Kafka could not have given: it ends like a data file (or like one that is
        being cleaned or swapped in) but does not start with an offset within [0, 2**63), or it is not one path
        component. Kafka fails to load a partition with such a file, except for negative offsets.
    """
    # A shortcut for the code below, as a partition may have 10,000s of files.
    if (usual := _USUAL.fullmatch(name)) and (base := int(usual[1])) <= _OFFSET_MAX:
        return PartitionFile(_OFFSET_KINDS[usual[2]], base)
    if not is_component(name):
        return None
    temporary = next((one for one in _TEMPORARIES if name.endswith(one)), Temporary.NONE)
    stem = name.removesuffix(temporary)
    in_place = temporary not in (Temporary.CLEANED, Temporary.SWAP)
    if in_place and (fixed := FIXED_KINDS.get(stem)):
        return PartitionFile(fixed, temporary=temporary)
    if in_place and (match := _CHECKPOINT_SNAPSHOT.fullmatch(stem)):
        end_offset, leader_epoch = int(match[1]), int(match[2])
        if end_offset > _OFFSET_MAX or leader_epoch > _EPOCH_MAX:
            return None
        return PartitionFile(FileKind.CHECKPOINT_SNAPSHOT, end_offset, temporary, leader_epoch)
    kind = next((one for one in OFFSET_KINDS if stem.endswith(one)), FileKind.FOREIGN)
    if temporary is Temporary.TMP or (kind is FileKind.FOREIGN and in_place):
        return PartitionFile(FileKind.FOREIGN, temporary=temporary)
    offset = parse_integer(stem.partition(".")[0], 64)
    if offset is not None and offset >= 0:
        return PartitionFile(kind, offset, temporary)
    return PartitionFile(FileKind.FOREIGN, temporary=temporary) if temporary is Temporary.DELETED else None


def index_folder(partition: str, root: str | None = None) -> str:
    """Return the folder of a partition's key indexes, by the path of its directory.

    Args:
        root: folder with one index folder per partition; None if the index folder is in the partition's directory.
    """
    return f"{partition}/{WORK_FOLDER}/{INDEX_FOLDER}" if root is None else f"{root}/{partition.rpartition('/')[2]}"


def key_index_path(partition: str, base_offset: int, root: str | None = None) -> str:
    """Return the path of a segment's key index; `root`: see `index_folder`."""
    return f"{index_folder(partition, root)}/{key_index_name(base_offset)}"


def key_index_name(base_offset: int) -> str:
    """Return the name of a segment's key index."""
    return offset_name(base_offset, KEY_INDEX)


def parse_key_index(name: str) -> int | None:
    """Return the base offset in the name of a key index, or None for another name."""
    match = _KEY_INDEX.fullmatch(name)
    offset = NONE if match is None else int(match[1])
    return offset if 0 <= offset <= _OFFSET_MAX else None


def tier_key_index_name(base_offset: int, segment_id: str) -> str:
    """Return the name of the key index of a segment in a tier, both beside its objects and on the disk."""
    return f"{base_offset:020d}-{segment_id}{KEY_INDEX}"


def parse_tier_key_index(name: str) -> tuple[int, str] | None:
    """Return the base offset and the segment id in the name of such a key index; None for another name."""
    match = _TIER_KEY_INDEX.fullmatch(name)
    return (int(match[1]), match[2]) if match and int(match[1]) <= _OFFSET_MAX else None


def is_key_index(name: str) -> bool:
    """Return whether a file is the key index of a segment, on the disk or in a tier, by its name."""
    return parse_key_index(name) is not None or parse_tier_key_index(name) is not None


def tier_manifest_name(generation: int) -> str:
    """Return the name of a generation of a tier's manifest."""
    return offset_name(generation, TIER_MANIFEST)


def parse_tier_manifest(name: str) -> int | None:
    """Return the generation in the name of a tier's manifest, from 1 on; None for another name."""
    match = _TIER_MANIFEST.fullmatch(name)
    return int(match[1]) if match and 0 < int(match[1]) <= _OFFSET_MAX else None


def partition_of_key_index(path: str) -> str | None:
    """Return the partition directory of a key index, by its path; None for other files."""
    folder, _, name = path.rpartition("/")
    if parse_key_index(name) is None or not folder.endswith(index_folder("")):
        return None
    return folder.removesuffix(index_folder("")) or "/"


@functools.lru_cache(_FILES_REMEMBERED)
def parse_directory(name: str) -> PartitionDirectory:
    """Parse the name of a sub-directory of a log directory: its partition and state.

    Like Kafka, do not check the topic against `topic_fault`.

    Raises:
        BadNameError: Kafka would refuse to load a directory of that name; or it is not one path component.

    Source: Kafka LocalLog.parseTopicPartitionName.
    """
    _component(name)
    state = next((one for one in DirectoryState if one and name.endswith(one)), DirectoryState.CURRENT)
    body, uniq = name.removesuffix(state), ""
    if state is not DirectoryState.CURRENT:
        if not _is_marked(body):
            raise BadNameError(f"directory name {shown(name)} is not topic-partition.uniq{state}")
        body, _, uniq = body.rpartition(".")
    topic, _, partition = body.rpartition("-")
    number = parse_integer(partition, 32)
    if not topic or number is None:
        raise BadNameError(f"directory name {shown(name)} is not topic-partition or topic-partition.uniq-delete")
    return PartitionDirectory(TopicPartition(topic, number), state, uniq)


def parsed_directory(path: str) -> PartitionDirectory | None:
    """Parse the last part of a path as the name of a partition's directory; None if it is another name."""
    try:
        return parse_directory(path.rpartition("/")[2])
    except BadNameError:
        return None


def _is_marked(body: str) -> bool:
    r"""Return whether `^(\S+)-(\S+)\.(\S+)$` matches, in linear time: the first dash against the last dot."""
    dash = body.find("-", 1)
    dot = body.rfind(".", 0, len(body) - 1)
    return 0 < dash < dot - 1 and not any(space in body for space in SPACE)


def topic_fault(topic: str) -> str | None:
    """Return why Kafka would not create a topic of this name, or None if it would."""
    if not topic:
        return "it is empty"
    if topic in (".", ".."):
        return "it is '.' or '..'"
    if len(topic) > TOPIC_LENGTH_MAX:
        return f"it has {len(topic)} characters, {TOPIC_LENGTH_MAX} are allowed"
    if not _TOPIC.fullmatch(topic):
        return "it has characters other than ASCII letters, digits, '.', '_' and '-'"
    return None


def check_topic(topic: str) -> None:
    """Raise unless this is a valid topic name.

    Raises:
        BadNameError: the name is invalid; has the reason.
    """
    if fault := topic_fault(topic):
        raise BadNameError(f"{shown(topic)} is not the name of a topic: {fault}")


def is_component(name: str) -> bool:
    """Return whether a name stays in its directory when it is appended to a path."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def _component(name: str) -> str:
    if not is_component(name):
        raise BadNameError(f"{shown(name)} cannot be the name of a file")
    return name
