"""Makes key indexes of what a clean leaves, for the next one: see `storage.index`.

An index is made of each segment that was written, and of each that stays as it is and has none. It lies beside the
outputs, synced, until its segment is in place. Without memory or room for an index there is none, which costs the next
clean time, and nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from cordwood.cleaning.key_table import MemoryShare
from cordwood.engine.partition import Cleaned
from cordwood.engine.readahead import segment_windows_from
from cordwood.fs.base import TargetStore
from cordwood.fs.folders import remove_tree
from cordwood.storage.formats.filenames import key_index_name
from cordwood.storage.index.build import build, is_worth_keeping
from cordwood.storage.index.files import create_index, has_index
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks

#: For the keys of a segment, if the clean has no limit of its own.
_MEMORY_BYTES = 1 << 30


def make_indexes(
    fs: TargetStore,
    folder: str,
    before: LogView,
    outputs: LogView,
    cleaned: Cleaned,
    secret: bytes,
    memory: MemoryShare | None,
) -> tuple[str, ...]:
    """Make the indexes in a new folder; returns their paths, none if the disk is full."""
    memory_bytes = _MEMORY_BYTES if memory is None else memory.size_bytes
    kept = [one for one in before.segments if one.base_offset in cleaned.kept and not has_index(one, secret)]
    try:
        fs.make_directory(folder)
        return tuple(_made(fs, folder, [*outputs.segments, *kept], secret, memory_bytes))
    except OSError:
        with contextlib.suppress(OSError):
            remove_tree(fs, folder)
        return ()


def _made(fs: TargetStore, folder: str, segments: Sequence[Segment], secret: bytes, memory_bytes: int) -> list[str]:
    paths = []
    for segment in segments:
        # This clean has compared their checksums, or has just written them.
        index = build(segment, secret, memory_bytes, segment_windows_from(segment, 0, Checks.DEFERRED))
        if index is not None and is_worth_keeping(index, segment):
            paths.append(f"{folder}/{key_index_name(segment.base_offset)}")
            create_index(fs, paths[-1], index)
    return paths
