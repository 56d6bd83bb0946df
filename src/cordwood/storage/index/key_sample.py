"""How many keys a log has, and how many of its records a newer one supersedes: from what can be read in bounded time.

    key indexes     of all segments: every key by its hash; only what they do not cover is read
    all records     of a small log
    a sample        of a large one: pieces at equal distances

Keys are counted by their hashes. If there are too many, a part of the hashes stands for all: those below a limit, which
is halved as often as needed. So counts from indexes and from all records are right to a part in a thousand or so.

A sample shows how often keys repeat within it. How many keys are written at all is estimated from those that were seen
once and twice (Chao, 1984), and how many of these occur in the log as if each record chose one by chance. A key that is
written in bursts repeats within a piece, so the estimate may have too few keys.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from cordwood.errors import CorruptFileError, DataError
from cordwood.record.columns import BatchWindow, RecordColumns, decode
from cordwood.record.headers import is_control
from cordwood.record.key_hashes import key_hashes
from cordwood.storage.formats.key_index import TAG_BITS, KeyIndex
from cordwood.storage.index.files import indexes_in, read_index
from cordwood.storage.index.probe import hashes_in
from cordwood.storage.log.segment import Segment, locate_damage
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, Gap, WindowReader

#: A sample is read in pieces of this size, or of one batch if that is larger.
_PIECE_BYTES = 1 << 20
#: Hashes that are kept of all keys.
_HASHES_MAX = 1 << 22
#: A batch that decompresses to more is passed over.
_BATCH_BYTES_MAX = 256 << 20
_HASH_BITS = 64

U64Array = npt.NDArray[np.uint64]


class KeySource(StrEnum):
    """What keys were counted from."""

    INDEX = "key indexes"
    ALL = "all records"
    SAMPLE = "a sample"


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """What is known of the keys of a log.

    Attributes:
        read_bytes: of the log that were read.
        log_bytes: of the log as a whole.
        records: data records that were looked at; aborted ones are among them.
        keyless: of these without a key.
        tombstones: of these with a key and no value; None: an index does not say.
        keys, once, twice: different keys among them, and those that occur once, or twice.
        key_bytes, value_bytes: of the records with a key; None: an index does not say.
        damage: the first that was met.
    """

    source: KeySource
    read_bytes: int
    log_bytes: int
    records: int
    keyless: int
    tombstones: int | None
    keys: int
    once: int
    twice: int
    key_bytes: int | None
    value_bytes: int | None
    damage: DataError | None = None

    @property
    def keyed(self) -> int:
        """Records with a key that were looked at."""
        return self.records - self.keyless

    @property
    def keyed_in_log(self) -> int:
        """Records with a key in the whole log, about."""
        if self.source is not KeySource.SAMPLE or not self.read_bytes:
            return self.keyed
        return max(self.keyed, round(self.keyed * self.log_bytes / self.read_bytes))

    @property
    def keys_in_log(self) -> int:
        """Different keys in the whole log, about."""
        if self.source is not KeySource.SAMPLE:
            return min(self.keys, self.keyed)
        written = self.keys + self.once * (self.once - 1) / (2 * (self.twice + 1))
        occur = written * -math.expm1(-self.keyed_in_log / written) if written else 0
        return max(self.keys, min(round(occur), self.keyed_in_log))

    @property
    def superseded_share(self) -> float:
        """What part of the records with a key has a newer one of its key, about."""
        return 1 - self.keys_in_log / self.keyed_in_log if self.keyed_in_log else 0.0

    @property
    def removable_share(self) -> float:
        """What part of all records a compaction of the whole log would remove, about: tombstones apart."""
        if not self.records:
            return 0.0
        return (self.keyless + self.superseded_share * self.keyed) / self.records


def count_keys(log: LogView, budget_bytes: int, *, read_all: bool = False) -> KeyCounts | None:
    """Count the keys of a log.

    Args:
        budget_bytes: of the log that are read at most, if no key index helps.
        read_all: read the whole log, however large it is.

    Returns:
        None: nothing could be read.
    """
    segments = [segment for segment in log.segments if segment.size_bytes]
    if not segments or budget_bytes <= 0:
        return None
    size = sum(segment.size_bytes for segment in segments)
    found = None if read_all else _from_indexes(log, segments, budget_bytes)
    if found is None:
        tally = _Tally(secrets.token_bytes(16))
        is_whole = read_all or size <= budget_bytes
        items = _whole(segments) if is_whole else _pieces(segments, max(1, budget_bytes // _PIECE_BYTES))
        tally.add_all(items)
        found = tally.counts(KeySource.ALL if is_whole else KeySource.SAMPLE)
    return replace(found, log_bytes=size)


# ---- what is read ----------------------------------------------------------------------------------------------------


def _whole(segments: Sequence[Segment]) -> Iterator[tuple[Segment, BatchWindow]]:
    for segment in segments:
        for item in segment.windows():
            if not isinstance(item, Gap):
                yield segment, item


def _pieces(segments: Sequence[Segment], count: int) -> Iterator[tuple[Segment, BatchWindow]]:
    """Pieces of a log at equal distances, by the offset indexes of its segments."""
    ends = np.cumsum([segment.size_bytes for segment in segments])
    seen: set[tuple[int, int]] = set()
    for at in ((np.arange(count) + 0.5) * ends[-1] / count).astype(np.int64).tolist():
        number = int(np.searchsorted(ends, at, side="right"))
        segment = segments[number]
        position = at - (int(ends[number]) - segment.size_bytes)
        with segment.open() as file:
            start = _position_below(segment, position)
            if (segment.base_offset, start) in seen:
                continue
            seen.add((segment.base_offset, start))
            reader = WindowReader(
                file,
                Checks.WHOLE,
                base_offset=segment.base_offset,
                start=start,
                search=False,
                window_bytes=_PIECE_BYTES,
            )
            first = next(iter(reader), None)
            if first is not None and not isinstance(first, Gap):
                yield segment, first


def _position_below(segment: Segment, position: int) -> int:
    """The start of a batch at or before a position, as the offset index tells; 0 without one.

    The reader checks what stands there: if it is no batch, the piece is left out.
    """
    try:
        index = segment.offset_index()
    except (OSError, CorruptFileError):
        return 0
    if index is None or not index.entries:
        return 0
    positions = index.positions[: index.entries]
    below = positions[positions <= position]
    return int(below[-1]) if below.size else 0


# ---- key indexes -----------------------------------------------------------------------------------------------------


def _from_indexes(log: LogView, segments: Sequence[Segment], budget_bytes: int) -> KeyCounts | None:
    """Counts from key indexes that cover the log but for `budget_bytes`; None if they do not."""
    if not any(True for _ in indexes_in(log.fs, log.path, log.index_root)):
        return None
    tally: _Tally | None = None
    rest: list[tuple[Segment, int]] = []
    bits = _HASH_BITS
    for segment in segments:
        try:
            header = (index := read_index(segment)).header
        except (OSError, CorruptFileError):
            rest.append((segment, 0))
        else:
            if tally is None:
                tally = _Tally(header.secret)
            if tally.secret != header.secret:
                return None
            bits = min(bits, header.bits + TAG_BITS)
            tally.add_index(index)
            rest += [(segment, header.covered_bytes)] if segment.size_bytes > header.covered_bytes else []
        if sum(one.size_bytes - start for one, start in rest) > budget_bytes:
            return None
    if tally is None:
        return None
    for segment, start in rest:
        with segment.open() as file:
            reader = WindowReader(file, Checks.WHOLE, base_offset=segment.base_offset, start=start)
            tally.add_all((segment, item) for item in reader if not isinstance(item, Gap))
    found = tally.counts(KeySource.INDEX, bits=bits)
    return replace(found, tombstones=None, key_bytes=None, value_bytes=None)


# ---- counting --------------------------------------------------------------------------------------------------------


class _Tally:
    """Counts of what was looked at so far, and the hashes of keys below a limit."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self._limit_bits = 0
        self._hashes: list[U64Array] = []
        self._kept = 0
        self.records = self.keyless = self.tombstones = self.key_bytes = self.value_bytes = self.read_bytes = 0
        self.damage: DataError | None = None

    def add_all(self, items: Iterator[tuple[Segment, BatchWindow]]) -> None:
        """Go on with windows of a log."""
        for segment, window in items:
            data = window.batches[~is_control(window.batches)]
            self.read_bytes += int(window.batches["size_bytes"].sum())
            of_data = BatchWindow(window.position, window.data, data, window.read)
            on_damage = locate_damage(self._on_damage, segment)
            for columns in decode(of_data, on_damage=on_damage, max_batch_bytes=_BATCH_BYTES_MAX):
                self._add(columns)
                del columns

    def _on_damage(self, error: DataError) -> None:
        self.damage = self.damage or error

    def _add(self, columns: RecordColumns) -> None:
        rows = columns.rows
        has_key = np.asarray(rows["key_size"] >= 0)
        self.records += rows.size
        self.keyless += int((~has_key).sum())
        self.tombstones += int((has_key & (rows["value_size"] < 0)).sum())
        self.key_bytes += int(rows["key_size"][has_key].sum(dtype=np.int64))
        self.value_bytes += int(np.maximum(rows["value_size"][has_key], 0).sum(dtype=np.int64))
        self._keep(key_hashes(columns, has_key, self.secret)[has_key, 1])

    def add_index(self, index: KeyIndex) -> None:
        """Go on with all keys of a segment. Markers have none; they are not told from records without a key."""
        known = hashes_in(index)
        self.records += known.size
        self._keep(known)

    def _keep(self, hashes: U64Array) -> None:
        self._hashes.append(self._below_limit(hashes))
        self._kept += self._hashes[-1].size
        while self._kept > _HASHES_MAX and self._limit_bits < _HASH_BITS // 2:
            self._limit_bits += 1
            self._hashes = [self._below_limit(np.concatenate(self._hashes))]
            self._kept = self._hashes[0].size

    def _below_limit(self, hashes: U64Array) -> U64Array:
        """Those of which the upper `_limit_bits` are 0."""
        if not self._limit_bits:
            return hashes
        return np.asarray(hashes[hashes >> np.uint64(_HASH_BITS - self._limit_bits) == 0])

    def counts(self, source: KeySource, *, bits: int = _HASH_BITS) -> KeyCounts:
        """What the counts add up to.

        Args:
            bits: upper ones of each hash that are known.
        """
        kept = np.concatenate([np.empty(0, np.uint64), *self._hashes])
        if bits < _HASH_BITS:
            kept = kept >> np.uint64(_HASH_BITS - bits)
        _, times = np.unique(kept, return_counts=True)
        scale = 1 << self._limit_bits
        return KeyCounts(
            source,
            self.read_bytes,
            0,
            self.records,
            self.keyless,
            self.tombstones,
            scale * times.size,
            scale * int((times == 1).sum()),
            scale * int((times == 2).sum()),
            self.key_bytes,
            self.value_bytes,
            self.damage,
        )
