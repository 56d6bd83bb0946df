"""How long something stays: superseded records, tombstones.

What is still there at the end has stayed for at least as long as it has been there. Left out, the long stays would be
missing, and with its time so far counted as all of it they would be too short. The estimate of Kaplan and Meier counts
each of them for as long as it was seen: of those that were seen to stay until a time, so many left just then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

#: The moment of something that has not happened.
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Stay:
    """How long things of one kind stay, in milliseconds. None: longer than was seen.

    Attributes:
        still_there: how many of them were there at the end.
        min_ms: the shortest that was seen to end.
        median_ms: half of them stay at most so long.
        most_ms: 95 % of them do.
        max_ms: the longest that was seen to end; or, if it is longer, the longest so far.
    """

    count: int
    still_there: int
    min_ms: float | None
    median_ms: float | None
    most_ms: float | None
    max_ms: float

    @classmethod
    def of(
        cls,
        began_ms: npt.NDArray[np.int64],
        ended_ms: npt.NDArray[np.int64],
        now_ms: int,
        factor: float = 1,
        *,
        lost_ms: npt.NDArray[np.int64] | None = None,
    ) -> Self | None:
        """Of things that came and went; None: there were none.

        Args:
            began_ms: int64[things], when each came.
            ended_ms: int64[things], when each went, or `NEVER`.
            now_ms: up to when they were watched.
            factor: how many each stands for.
            lost_ms: int64[things], when each became something else, of which nothing more is to be said, or `NEVER`.
        """
        if not began_ms.size:
            return None
        until_ms = np.full(began_ms.size, now_ms) if lost_ms is None else np.minimum(lost_ms, now_ms)
        # What was lost and went in one moment went because it was lost.
        went = (ended_ms != NEVER) & ((ended_ms < until_ms) | (until_ms == now_ms))
        stays = np.where(went, ended_ms, until_ms) - began_ms
        times, group = np.unique(stays, return_inverse=True)
        ended = np.bincount(group, weights=went, minlength=times.size)
        seen_until = stays.size - np.concatenate([[0], np.cumsum(np.bincount(group, minlength=times.size))[:-1]])
        staying = np.cumprod(1 - ended / seen_until)

        def quantile(share: float) -> float | None:
            reached = np.flatnonzero(staying <= 1 - share + 1e-12)
            return float(times[reached[0]]) if reached.size else None

        is_there = ~went & (until_ms == now_ms)
        return cls(
            round(stays.size * factor),
            round(int(is_there.sum()) * factor),
            float(stays[went].min()) if went.any() else None,
            quantile(0.5),
            quantile(0.95),
            float(stays.max()),
        )
