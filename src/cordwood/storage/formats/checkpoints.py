"""Offset checkpoints: one offset per partition of a log directory, as text.

Four files share this format: recovery points, log start offsets, first dirty offsets of the cleaner, high watermarks.

    0              version
    2              number of entries
    foo 0 17       topic, partition, offset
    bar 3 4

Kafka writes the entries in no particular order. Here they keep their order, so a file that is read and written again
stays the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from cordwood.common.types import TopicPartition
from cordwood.fs.base import Bytes, LocalFileSystem, Store
from cordwood.storage.formats.filenames import Temporary
from cordwood.storage.formats.text import SPACE, decode_checkpoint, encode_checkpoint, entry_number

#: A topic that can be read back from its line. Surrogates represent bytes of a directory name that are not UTF-8.
_FITS_A_LINE = re.compile(f"[^{SPACE}\ud800-\udfff]+")


def decode(data: Bytes, path: str | None = None) -> dict[TopicPartition, int]:
    """Decode a checkpoint file; offsets are in the order of its lines.

    Like Kafka, accept impossible topics, partitions and offsets (such as negative ones), and use the last line of a
    partition that has several. Do not use a topic from here in a path without the checks of `filenames`.

    Raises:
        CorruptFileError: Kafka could not read the file; names the line.
    """
    offsets = {}
    for line, (topic, partition, offset) in decode_checkpoint(data, "topic partition offset", path):
        key = TopicPartition(topic, entry_number(line, "partition", partition, 32, path))
        offsets[key] = entry_number(line, "offset", offset, 64, path)
    return offsets


def encode(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Encode offsets in their order.

    Kafka writes any topic name unchanged, and then cannot read the file if the name breaks its line. Here such entries
    are left out: their partitions have no checkpoint, like new partitions, and all others keep theirs.
    """
    lines = {key: offset for key, offset in offsets.items() if _FITS_A_LINE.fullmatch(key.topic)}
    return encode_checkpoint([f"{key.topic} {key.partition} {offset}" for key, offset in lines.items()])


def entries_in(fs: Store, path: str) -> Mapping[TopicPartition, int]:
    """Return the entries of a checkpoint file; empty if the file is missing.

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
    """Return the entries, given as for `update`, that a checkpoint file does not have yet.

    Raises:
        CorruptFileError: Kafka could not read the file, and there are entries to compare.
    """
    known = entries_in(fs, path) if entries else {}
    return {key: offset for key, offset in entries.items() if known.get(key) != offset}


def update(fs: LocalFileSystem, path: str, changes: Mapping[TopicPartition, int | None]) -> None:
    """Set or remove entries of a checkpoint file; durable on return.

    All other entries stay unchanged, even impossible ones; entries that do not fit a line are left out, as by `encode`.
    As in a broker, a new file with the same owner, group and permissions replaces the old one.

    Args:
        path: path of the file, which is created if missing.
        changes: offset per partition, or None to remove the entry.

    Raises:
        CorruptFileError: Kafka could not read the file; it stays unchanged.
    """
    before, like = entries_in(fs, path), fs.stat(path) if fs.exists(path) else None
    after = {key: offset for key, offset in {**before, **changes}.items() if offset is not None}
    if after == before:
        return
    fs.put(path, encode(after), like=like, beside=path + Temporary.TMP)
