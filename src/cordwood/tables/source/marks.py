"""Marks that distinguish the partition that a stream read from a recreated one of the same name.

A checkpoint stores the mark with the partition's offset:

    kh0ERQ6WToCnIzrMNpUr_A         the topic id
    20:17ab03ff:1700000000000      without a topic id, the batch before the offset: base offset, checksum, max timestamp

Compaction may change the checksum of a batch, but it never changes the base offset, and never makes the max timestamp
newer. So it is another batch if the base offset differs, or if the checksum differs and the timestamp is newer.
"""

from __future__ import annotations

from cordwood.storage.log.cuts import Cut
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap, read_headers

_PART = ":"


def batch_mark(log: LogView, offset: int, near: Cut | None = None) -> str | None:
    """Return the mark of the batch with the last record below an offset, or None if that batch is missing.

    Args:
        near: a cut at or before that record, which saves an index lookup.
    """
    segment = next((segment for segment in reversed(log.segments) if segment.base_offset < offset), None)
    if segment is None:
        return None
    with segment.open() as file:
        if near is not None and near.segment == segment.base_offset and near.still_holds(file):
            start = near.position
        else:
            start = segment.position_of(file, offset - 1)
        for item in read_headers(file, base_offset=segment.base_offset, start=start):
            if isinstance(item, Gap):
                continue
            for batch in item[item["last_offset"] >= offset - 1][:1]:
                if batch["magic"] < 2 or batch["base_offset"] >= offset:
                    return None
                return f"{batch['base_offset']}{_PART}{batch['crc']:08x}{_PART}{batch['max_timestamp']}"
    return None


def is_topic_id(mark: str) -> bool:
    """Return whether a mark is a topic id."""
    return _PART not in mark


def is_anew(was: str, now: str | None) -> bool:
    """Return whether two marks of the same kind show different partitions; `now` is None if it is unknown."""
    if now is None or is_topic_id(was):
        return now is not None and now != was
    (base, crc, newest), (base_now, crc_now, newest_now) = was.split(_PART), now.split(_PART)
    return base != base_now or (crc != crc_now and int(newest_now) > int(newest))
