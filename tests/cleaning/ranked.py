"""A keep rule besides Kafka's, for tests: the largest timestamp of a key wins, and of equal ones the later record."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.proof.precedence import SurvivorRule
from cordwood.cleaning.rules.precedence import Precedence
from cordwood.kernels.layout import RecordRows, U8Array
from cordwood.record.columns import RecordColumns
from cordwood.record.record import Record


def timestamps(columns: RecordColumns) -> npt.NDArray[np.int64]:
    return surviving(columns.data, columns.rows)


def surviving(_: U8Array, rows: RecordRows) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = rows["timestamp"]
    return found


def timestamp(record: Record) -> int:
    return record.timestamp


#: For a clean, and for its proof.
LARGEST_TIMESTAMP, LARGEST_SURVIVES = Precedence("largest timestamp", timestamps), SurvivorRule(surviving)
