"""Measures how long superseded records and tombstones stay.

Records that are still present at the end have stayed at least until then (they are censored). To leave them out would
lose the long stays; to count their time so far as complete would make the result too short. The Kaplan–Meier estimator
uses each record for as long as it was observed: for each duration, it computes the share of records that leave at that
age, among all records that were observed for at least that long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

#: The time of an event that has not happened.
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Stay:
    """Durations of one kind of stay, in milliseconds. None: longer than the observed time.

    Attributes:
        still_there: number still present at the end.
        min_ms: shortest completed stay.
        median_ms: half of all stays are at most this long.
        most_ms: 95 % of all stays are at most this long.
        max_ms: longest stay, completed or not.
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
        """Compute the durations, or return None without any stays.

        Args:
            began_ms: int64[things], start of each stay.
            ended_ms: int64[things], end of each stay, or `NEVER`.
            now_ms: end of the observation.
            factor: number of real stays that each of these represents.
            lost_ms: int64[things], time at which observation of each ended because its kind changed, or `NEVER`.
        """
        if not began_ms.size:
            return None
        until_ms = np.full(began_ms.size, now_ms) if lost_ms is None else np.minimum(lost_ms, now_ms)
        # If observation and stay end at the same moment, the change of kind was the cause.
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
