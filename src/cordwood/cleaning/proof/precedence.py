"""The keep rule of a proof: which record of a key has to survive a clean. Twin of `cleaning.rules.precedence`.

The record with the largest rank has to survive, and of equal ranks the record with the largest offset. Under *newest
offset*, Kafka's only rule, the rank is the offset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cordwood.kernels.layout import RecordRows, U8Array

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SurvivorRule:
    """A keep rule. A value that can be pickled.

    Attributes:
        ranks: a function of a module that returns int64[records], the rank of each record, from the bytes that contain
            the records, and their rows; None if the rank is the offset.
    """

    ranks: Callable[[U8Array, RecordRows], Int64Array] | None = None

    def ranks_of(self, data: U8Array, rows: RecordRows) -> Int64Array:
        """Return int64[records], the rank of each record."""
        found: Int64Array = rows["offset"] if self.ranks is None else self.ranks(data, rows)
        return found


NEWEST_OFFSET = SurvivorRule()
#: The rule of every log.
SURVIVOR_RULE = NEWEST_OFFSET
