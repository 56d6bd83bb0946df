"""Offset checkpoints: one offset per partition of a log directory, as text.

Four files share this format: recovery points, log start offsets, first dirty offsets of the cleaner, high watermarks.

    0              version
    2              number of entries
    foo 0 17       topic, partition, offset
    bar 3 4

Kafka writes the entries in no particular order; here they keep the order they have, so that a file that was read and
written again is the same file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from cordwood.fs.base import Bytes, LocalFileSystem, Store
from cordwood.storage.formats.filenames import Temporary
from cordwood.storage.formats.text import SPACE, decode_checkpoint, encode_checkpoint, entry_number
from cordwood.types import TopicPartition

#: A topic that can be read again from its line. Surrogates stand for bytes of a directory name that are no text.
_FITS_A_LINE = re.compile(f"[^{SPACE}\ud800-\udfff]+")


def decode(data: Bytes, path: str | None = None) -> dict[TopicPartition, int]:
    """The offsets of a checkpoint file, in the order of its lines.

    Like Kafka, it accepts impossible topics, partitions and offsets (such as negative ones), and takes the last line of
    a partition that has several. Do not use a topic from here as part of a path unchecked; `filenames` checks it.

    Raises:
        CorruptFileError: Kafka could not read the file; names the line.
    """
    offsets = {}
    for line, (topic, partition, offset) in decode_checkpoint(data, "topic partition offset", path):
        key = TopicPartition(topic, entry_number(line, "partition", partition, 32, path))
        offsets[key] = entry_number(line, "offset", offset, 64, path)
    return offsets


def encode(offsets: Mapping[TopicPartition, int]) -> bytes:
    """The checkpoint file of these offsets, in their order.

    Kafka writes any topic's name as it is, and then cannot read the file if the name breaks its line. Such entries are
    left out here: their partitions have no checkpoint, as a new one, and all others keep theirs.
    """
    lines = {key: offset for key, offset in offsets.items() if _FITS_A_LINE.fullmatch(key.topic)}
    return encode_checkpoint([f"{key.topic} {key.partition} {offset}" for key, offset in lines.items()])


def entries_in(fs: Store, path: str) -> Mapping[TopicPartition, int]:
    """The entries of a checkpoint file; none if it is missing.

    Raises:
        CorruptFileError: Kafka could not read the file.
    """
    if not fs.exists(path):
        return {}
    with fs.open(path) as file:
        return decode(file.read(0, file.size()), path)


def changed(
    fs: LocalFileSystem, path: str, entries: Mapping[TopicPartition, int | None]
) -> dict[TopicPartition, int | None]:
    """Those entries, as for `update`, of which a checkpoint file says something else.

    Raises:
        CorruptFileError: Kafka could not read the file, and there are entries to compare.
    """
    known = entries_in(fs, path) if entries else {}
    return {key: offset for key, offset in entries.items() if known.get(key) != offset}


def update(fs: LocalFileSystem, path: str, changes: Mapping[TopicPartition, int | None]) -> None:
    """Set or remove entries of a checkpoint file; when this returns, that is durable.

    All other entries stay as they are, even impossible ones; what no line can hold is left out, as by `encode`. The
    file is replaced as a whole, as a broker does it, by one with the same owner, group and permissions.

    Args:
        path: of the file; it is made where it is missing.
        changes: offset per partition, or None for no entry.

    Raises:
        CorruptFileError: Kafka could not read the file; it stays as it is.
    """
    before, like = entries_in(fs, path), fs.stat(path) if fs.exists(path) else None
    after = {key: offset for key, offset in {**before, **changes}.items() if offset is not None}
    if after == before:
        return
    fs.put(path, encode(after), like=like, beside=path + Temporary.TMP)
