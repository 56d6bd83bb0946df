"""Choose the groups of segments that a clean with `--min-dead` writes, and those it spares although they hold garbage.

Kafka's cleaner rewrites a segment even if only one of its records is dropped. Here a share of the log may stay garbage,
so the clean writes the most profitable groups first, as a log-structured file system does:

    score = dead share × age ÷ (1 + live share)      space gained and how long it lasts, per byte read and written

until the remaining garbage is within the limit. It prefers old segments, because old data in a busy log has settled:
garbage removed from a young segment soon reappears. Groups that must be written for another reason are written at any
score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cordwood.common.errors import RequestError


def check_share(share: float | None, *, index: bool = True) -> None:
    """Raise RequestError unless the share is between 0 and 1.

    Args:
        share: value of `--min-dead`; None if it was not given.
        index: whether key indexes are made.

    Raises:
        RequestError: the share is out of range, or there are no key indexes.
    """
    if share is None:
        return
    if not 0 < share < 1:
        what = "give a share of the log between 0 and 100 %, such as 10%, which is 0.1 in Python"
        raise RequestError(f"--min-dead {share}: {what}")
    if not index:
        raise RequestError("--min-dead leaves superseded records, which are remembered beside key indexes: add --index")


def begins_anew(garbage_bytes: int, share: float, log_bytes: int) -> bool:
    """Whether earlier cleans left so much garbage that the next clean has to begin at Kafka's checkpoint.

    The limit is twice the share: a clean may leave that share of the log's size before the clean, and afterwards the
    log is smaller.
    """
    return garbage_bytes > 2 * share * log_bytes


@dataclass(frozen=True, slots=True)
class GroupShare:
    """Facts about a group of segments that a clean could merge.

    Attributes:
        segments: number of segments.
        garbage_bytes: bytes that may be dropped.
        age_ms: time since the last write to the youngest segment.
        must: whether the group has to be written.
    """

    segments: int
    size_bytes: int
    garbage_bytes: int
    age_ms: int
    must: bool

    @property
    def score(self) -> float:
        """Benefit of writing the group."""
        return self.garbage_bytes * (self.age_ms + 1) / max(2 * self.size_bytes - self.garbage_bytes, 1)


def groups_to_write(groups: Sequence[GroupShare], garbage_max: float, segment_bytes: int) -> list[bool]:
    """Choose the groups to write; the other groups keep their segments.

    A group of several segments is also written if the result is small, at most half of `segment.bytes`, so that small
    segments do not accumulate. Larger groups are not written only to merge them: that would rewrite a large segment for
    a small neighbour.

    Args:
        garbage_max: upper limit of the remaining garbage in all groups, in bytes.
        segment_bytes: `segment.bytes`.
    """
    written = [one.must or (one.segments > 1 and 2 * one.size_bytes <= segment_bytes) for one in groups]
    left = sum(one.garbage_bytes for one, is_written in zip(groups, written, strict=True) if not is_written)
    for at in sorted(range(len(groups)), key=lambda at: -groups[at].score):
        if left <= garbage_max:
            break
        if not written[at]:
            written[at] = True
            left -= groups[at].garbage_bytes
    return written
