"""Rows of facts on their way to a DataFrame."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cordwood.fs.base import Store
from cordwood.kernels.layout import (
    BatchRows,
    U8Array,
)
from cordwood.record.headers import is_control
from cordwood.types import NONE

if TYPE_CHECKING:
    import pyarrow as pa
from cordwood.verification.pairs import CODES, RECORD, Count, Pair, ViolationKind
from cordwood.verification.ranges import Range

BoolArray = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]


# ---- records, both states side by side -------------------------------------------------------------------------------


@dataclass(slots=True)
class Facts:
    """Rows on their way to Spark: whole columns, and single findings and counts."""

    pair: int
    columns: deque[pa.RecordBatch] = field(default_factory=deque)
    counts: dict[str, int] = field(default_factory=dict)
    _single: list[tuple[int, bytes | None, int]] = field(default_factory=list)

    def count(self, what: Count, number: int) -> None:
        """Add to a count."""
        self.counts[what] = self.counts.get(what, 0) + int(number)

    def broken(self, what: ViolationKind, offset: int, key: bytes | None = None) -> None:
        """One thing that is broken."""
        self._single.append((CODES[what], key, offset))

    def broken_batches(self, what: ViolationKind, batches: BatchRows, bad: BoolArray) -> None:
        """Batches that are broken, bool[batches]."""
        for row in batches[bad]:
            self.broken(what, int(row["base_offset"] if row["base_offset"] >= 0 else row["last_offset"]))

    def broken_records(self, what: ViolationKind, piece: Piece, bad: npt.NDArray[np.int64] | BoolArray) -> None:
        """Records that are broken, by their index or as bool[records]."""
        import pyarrow as pa

        from cordwood.storage.log.arrow import byte_strings

        rows = piece.rows[bad]
        if rows.size:
            keys = byte_strings(piece.data, rows["key_start"], rows["key_size"], pa.binary()).to_pylist()
            for key, offset in zip(keys, rows["offset"].tolist(), strict=True):
                self.broken(what, offset, key)

    def add(self, keys: pa.Array, rows: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Records of the state before."""
        import pyarrow as pa

        size = len(keys)
        pairs = pa.array(np.full(size, self.pair, np.int32))
        codes = pa.array(np.full(size, RECORD, np.int8))
        ones = pa.array(np.ones(size, np.int64))
        columns = [pairs, codes, keys, *(pa.array(rows[name]) for name in ("at", "batch")), ones]
        flags = [pa.array(rows[name]) for name in ("there", "value", "may_go")]
        self.columns.append(pa.RecordBatch.from_arrays([*columns, *flags], FACT_NAMES))

    def take(self, *, last: bool = False) -> Iterator[pa.RecordBatch]:
        """What there is so far."""
        import pyarrow as pa

        while self.columns:
            yield self.columns.popleft()
        single = [(code, key, offset, 1) for code, key, offset in self._single]
        self._single.clear()
        if last:
            single += [(CODES[what], None, 0, number) for what, number in self.counts.items()]
        if single:
            codes, keys, offsets, numbers = zip(*single, strict=True)
            size = len(single)
            no = pa.array(np.zeros(size, np.bool_))
            columns = [
                *(
                    pa.array(np.full(size, self.pair, np.int32)),
                    pa.array(codes, pa.int8()),
                    pa.array(keys, pa.binary()),
                ),
                *(
                    pa.array(offsets, pa.int64()),
                    pa.array(np.full(size, NONE, np.int64)),
                    pa.array(numbers, pa.int64()),
                ),
                *(no, no, no),
            ]
            yield pa.RecordBatch.from_arrays(columns, FACT_NAMES)


FACT_NAMES = ["pair", "code", "key", "at", "batch", "n", "there", "value", "may_go"]
FACT_SCHEMA = (
    "pair int, code tinyint, key binary, at bigint, batch bigint, n bigint,"
    " there boolean, value boolean, may_go boolean"
)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some records of one side, ascending.

    Attributes:
        data, rows, batches: as of `RecordColumns`.
        mtime_ms: of their segment.
    """

    data: U8Array
    rows: npt.NDArray[np.void]
    batches: BatchRows
    mtime_ms: int

    @property
    def offsets(self) -> Int64Array:
        """int64[records]."""
        return np.ascontiguousarray(self.rows["offset"])

    @property
    def control(self) -> BoolArray:
        """bool[records]: of control batches."""
        return np.asarray(is_control(self.batches)[self.rows["batch"]])


#: Makes rows of a range.
Reader = Callable[[Range, Pair, Store], Iterator["pa.RecordBatch"]]
