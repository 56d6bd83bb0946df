"""Which groups of segments a clean with `--min-dead` writes, and which it spares although some of their records may go.

Kafka's cleaner writes a segment again even if one record of it goes. Here the garbage that is left may be some share of
the log, so the clean writes what pays most, as a log-structured file system does:

    score = dead share × age ÷ (1 + live share)      what is gained, and for how long, by what is read and written

until no more garbage is left than it may. Old segments are preferred, as what is old in a busy log has settled: what
dies in a young one soon dies again. What has to be written for another reason is written whatever it costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cordwood.errors import RequestError


def check_share(share: float | None, *, index: bool = True) -> None:
    """Refuse a share that is none.

    Args:
        share: of `--min-dead`; None: it was not given.
        index: key indexes are made.

    Raises:
        RequestError: it is none, or there are no key indexes.
    """
    if share is None:
        return
    if not 0 < share < 1:
        what = "give a share of the log between 0 and 100 %, such as 10%, which is 0.1 in Python"
        raise RequestError(f"--min-dead {share}: {what}")
    if not index:
        raise RequestError("--min-dead leaves superseded records, which are remembered beside key indexes: add --index")


def begins_anew(garbage_bytes: int, share: float, log_bytes: int) -> bool:
    """Whether a clean begins where one would that knows nothing of garbage: much more was left than it may leave.

    A clean leaves a share of the log as it was before, which is smaller afterwards.
    """
    return garbage_bytes > 2 * share * log_bytes


@dataclass(frozen=True, slots=True)
class GroupShare:
    """What is known of a group of segments that a clean could make one.

    Attributes:
        segments: how many there are.
        garbage_bytes: what of them may go.
        age_ms: for how long nothing was written to the youngest of them.
        must: it has to be written.
    """

    segments: int
    size_bytes: int
    garbage_bytes: int
    age_ms: int
    must: bool

    @property
    def score(self) -> float:
        """What writing it gains."""
        return self.garbage_bytes * (self.age_ms + 1) / max(2 * self.size_bytes - self.garbage_bytes, 1)


def groups_to_write(groups: Sequence[GroupShare], garbage_max: float, segment_bytes: int) -> list[bool]:
    """Which of the groups are written; those that are not keep their segments.

    Several segments become one only where that leaves a small one, of at most half of `segment.bytes`: there are then
    never many small ones beside each other, and a large one is not written for a small neighbour.

    Args:
        garbage_max: the most garbage that may be left in all of them, in bytes.
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
