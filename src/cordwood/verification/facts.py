"""Facts of a comparison as rows of a DataFrame: counts, violations, and entries of keys."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cordwood.kernels.last_records import ENTRY
from cordwood.kernels.layout import (
    BatchRows,
    U8Array,
)
from cordwood.record.headers import is_control
from cordwood.types import NONE

if TYPE_CHECKING:
    import pyarrow as pa
from cordwood.verification.keys import LastRecords, by_bucket, judge
from cordwood.verification.pairs import CODES, NAMES, RECORD, ViolationKind
from cordwood.verification.violations import NAMED_MAX

BoolArray = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]


# ---- records, both states side by side -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyRules:
    """How the keys of a pair are fingerprinted and divided into hash ranges (buckets).

    Attributes:
        points: for fingerprints, the same in all tasks; see `keys.secret_points`.
        first_bucket, buckets: number of the pair's first hash range, and how many it has.
        not_committed: int64[batches], ascending: base offsets of batches of the state before whose transaction was
            aborted, or is open.
    """

    points: tuple[int, int]
    first_bucket: int
    buckets: int
    not_committed: Int64Array


class Keys:
    """Collects the keys of a pair, and packs them into rows for Spark, one or more per hash range."""

    def __init__(self, pair: int, rules: KeyRules, records: LastRecords | None = None) -> None:
        self.pair = pair
        self.rules = rules
        self._records = records or LastRecords()
        self._full: deque[npt.NDArray[np.void]] = deque()

    def add(self, entries: npt.NDArray[np.void]) -> None:
        """Add entries of records of the state before, ENTRY[n]."""
        self._full.extend(self._records.add(entries))

    def take(self, *, last: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the entries of full tables, as record batches of `FACT_SCHEMA`; with `last`, all remaining entries."""
        if last:
            self._full.append(self._records.take())
        while self._full:
            for bucket, entries in by_bucket(self._full.popleft(), self.rules.buckets):
                for start in range(0, entries.size, _ROW_ENTRIES_MAX):
                    packed = entries[start : start + _ROW_ENTRIES_MAX].tobytes()
                    yield _rows(self.pair, self.rules.first_bucket + bucket, [(RECORD, None, 0, 0, packed)])


@dataclass(slots=True)
class Facts:
    """The facts of one range of a pair: all are counted, and up to `NAMED_MAX` violations of each kind are named."""

    pair: int
    counts: dict[str, int] = field(default_factory=dict)
    _named: dict[str, list[tuple[int, bytes | None]]] = field(default_factory=dict)

    def count(self, what: str, number: int) -> None:
        """Add to a count."""
        self.counts[what] = self.counts.get(what, 0) + int(number)

    def broken(self, what: ViolationKind, offset: int, key: bytes | None = None) -> None:
        """Report one violation."""
        self.count(what, 1)
        named = self._named.setdefault(what, [])
        if len(named) < NAMED_MAX:
            named.append((offset, key))

    def broken_batches(self, what: ViolationKind, batches: BatchRows, bad: BoolArray) -> None:
        """Report a violation for each batch where `bad`, bool[batches], is set."""
        for row in batches[bad]:
            self.broken(what, int(row["base_offset"] if row["base_offset"] >= 0 else row["last_offset"]))

    def broken_records(self, what: ViolationKind, piece: Piece, bad: npt.NDArray[np.int64] | BoolArray) -> None:
        """Report a violation for each bad record; `bad` is int64 indexes or bool[records]."""
        import pyarrow as pa

        from cordwood.storage.log.arrow import byte_strings

        rows = piece.rows[bad]
        if not rows.size:
            return
        some = rows[:NAMED_MAX]
        keys = byte_strings(piece.data, some["key_start"], some["key_size"], pa.binary()).to_pylist()
        for key, offset in zip(keys, some["offset"].tolist(), strict=True):
            self.broken(what, offset, key)
        self.count(what, rows.size - some.size)

    def add(self, code: int, at: int, key: bytes | None, number: int) -> None:
        """Add a row that `rows` made."""
        what = NAMES[code]
        if number:
            self.count(what, number)
        elif len(named := self._named.setdefault(what, [])) < NAMED_MAX:
            named.append((at, key))

    def rows(self, bucket: int) -> pa.RecordBatch:
        """All facts, as one record batch of `FACT_SCHEMA`."""
        counts = [(CODES[what], None, NONE, number, None) for what, number in self.counts.items() if number]
        named = [(CODES[what], key, at, 0, None) for what, some in self._named.items() for at, key in some]
        return _rows(self.pair, bucket, [*counts, *named])


#: A row is a count (n > 0), names a violation (n = 0), or holds entries of keys (code `RECORD`).
FACT_NAMES = ["pair", "bucket", "code", "key", "at", "n", "entries"]
FACT_SCHEMA = "pair int, bucket int, code int, key binary, at bigint, n bigint, entries binary"
#: Limits a row to 4 MB.
_ROW_ENTRIES_MAX = (4 << 20) // ENTRY.itemsize


def _rows(pair: int, bucket: int, rows: Sequence[tuple[int, bytes | None, int, int, bytes | None]]) -> pa.RecordBatch:
    import pyarrow as pa

    columns = list(zip(*rows, strict=True)) if rows else [()] * 5
    types = [pa.int32(), pa.binary(), pa.int64(), pa.int64(), pa.binary()]
    own = [pa.array([number] * len(rows), pa.int32()) for number in (pair, bucket)]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays([*own, *arrays], FACT_NAMES)


def merge_facts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merge rows of `FACT_SCHEMA` into counts and named violations, one bucket (hash range) at a time.

    Rows arrive sorted by bucket, and no bucket is split between calls. A bucket belongs to one pair, and its keys fit
    in memory; see `keys.BUCKET_KEYS`.
    """
    pair = bucket = NONE
    facts, records = Facts(NONE), LastRecords(slots_max=None)
    for batch in batches:
        for row in batch.to_pylist():
            if row["bucket"] != bucket:
                if bucket != NONE:
                    yield _judged(facts, records, bucket)
                pair, bucket = row["pair"], row["bucket"]
                facts, records = Facts(pair), LastRecords(slots_max=None)
            if row["code"] == RECORD:
                for _ in records.add(np.frombuffer(row["entries"], ENTRY)):
                    raise AssertionError("it grows as far as it has to")
            else:
                facts.add(row["code"], row["at"], row["key"], row["n"])
    if bucket != NONE:
        yield _judged(facts, records, bucket)


def _judged(facts: Facts, records: LastRecords, bucket: int) -> pa.RecordBatch:
    counts, wrong = judge(records.take())
    for count, number in counts.items():
        facts.count(count, number)
    for kind, offsets in wrong.items():
        for offset in np.sort(offsets)[:NAMED_MAX].tolist():
            facts.broken(kind, offset)
        facts.count(kind, max(offsets.size - NAMED_MAX, 0))
    return facts.rows(bucket)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some records of one state, in ascending order of offsets.

    Attributes:
        data, rows, batches: as in `RecordColumns`.
        mtime_ms: when their segment was last modified.
    """

    data: U8Array
    rows: npt.NDArray[np.void]
    batches: BatchRows
    mtime_ms: int

    @property
    def offsets(self) -> Int64Array:
        """int64[records]: the records' offsets."""
        return np.ascontiguousarray(self.rows["offset"])

    @property
    def control(self) -> BoolArray:
        """bool[records]: whether the record is in a control batch."""
        return np.asarray(is_control(self.batches)[self.rows["batch"]])
