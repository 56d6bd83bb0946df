"""Read the damaged batches of a log from another replica of its partition.

    the log      │ 0–9 │ 10–19 │ ▒▒▒▒▒ │ 30–39 │       damaged between offset 19 and 30
    a replica    │ 0–9 │ 10–19 │ 20–29 │ 30–39 │       has as many bytes there, of the same leader epoch
    healed       │ 0–9 │ 10–19 │ 20–29 │ 30–39 │       the same positions, so that all indexes fit

A leader epoch has one leader, and followers copy its batches unchanged. So two replicas with the same leader epochs at
some offsets have the same bytes there, until a cleaner changes them in one of the two. Bytes of another replica are
used only if

    * both replicas have the same leader epochs at these offsets, by `leader-epoch-checkpoint`;
    * its batches are whole: right checksums, ascending offsets, records that can be decoded;
    * they take exactly as many bytes as the damage.

The last condition excludes batches that only one replica has cleaned. Such a batch could bring back a deleted value:

    the log      │ 0–9 │ ▒▒▒▒▒ │ 30–39 │               a cleaner removed 10–19 with k=1, and later the tombstone of k
    a replica    │ 0–9 │ 10–19: k=1 │ 20–29 │ 30–39 │  not cleaned: its 10–29 take more bytes, and are not used

Nothing is written: a `HealedStore` shows the log with these bytes. Readers check the bytes again, so a file that
changes meanwhile is damage for them, and never a wrong record.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from cordwood.common.errors import DataError, NotFoundError
from cordwood.common.types import override
from cordwood.fs.base import ReadableFile, Store
from cordwood.fs.location import Location
from cordwood.fs.wrapped import WrappedReadableFile, WrappedStore
from cordwood.kernels.layout import BATCH_ROW, BatchRows, is_control
from cordwood.record.columns import BatchWindow, decode, is_valid
from cordwood.storage.formats.leader_epochs import LeaderEpochs
from cordwood.storage.log.files import read_leader_epochs
from cordwood.storage.log.segment import MAX_OFFSET, Segment
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap

_T = TypeVar("_T")


# ---- values ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OtherReplica:
    """Another replica of a partition: the name of its broker, and its directory. A plain value."""

    broker: str
    path: str


@dataclass(frozen=True, slots=True)
class Patch:
    """Bytes of a `.log` file that are read from another file.

    Attributes:
        position: first of these bytes in the damaged file.
        broker: name of the other file's broker.
        source: path of the other file.
        source_position: first of these bytes in the other file.
        batches: number of batches in these bytes.
        start_offset, end_offset: the offsets [start, end) of the batches.
    """

    position: int
    size_bytes: int
    broker: str
    source: str
    source_position: int
    batches: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class HealedLog:
    """The batches of a log that were read from another replica.

    Attributes:
        path: the log's directory.
        broker: name of the other replica's broker.
        start_offset, end_offset: the lowest offset of these batches, and the offset behind the highest.
    """

    path: str
    broker: str
    batches: int
    size_bytes: int
    start_offset: int
    end_offset: int

    def __str__(self) -> str:
        what = "1 damaged batch was" if self.batches == 1 else f"{self.batches:,} damaged batches were"
        offsets = f"offsets {self.start_offset} to {self.end_offset - 1}"
        return f"healed: {what} read from broker {self.broker}, in {offsets} of {self.path}"


#: Patches by the path of the damaged file, by position.
Patches = Mapping[str, Sequence[Patch]]


@dataclass(frozen=True, slots=True)
class _Damage:
    """A damaged part of a segment, between two whole batches.

    Attributes:
        low, high: the offsets [low, high) that it may hold.
        rows: the headers of its batches, if these make up all of the part.
    """

    position: int
    size_bytes: int
    low: int
    high: int
    rows: BatchRows | None = None

    def parts(self) -> Iterator[_Damage]:
        """Yield the damage by batch, as far as the headers are readable."""
        for row in () if self.rows is None or self.rows.size < 2 else self.rows:
            low, high = int(row["base_offset"]), int(row["last_offset"]) + 1
            if self.low <= low < high <= self.high:
                yield _Damage(int(row["position"]), int(row["size_bytes"]), low, high)


# ---- find damage -----------------------------------------------------------------------------------------------------


def _damage_of(log: LogView, segment: Segment) -> Iterator[_Damage]:
    """Yield the damaged parts of a segment."""
    low, rows, position = segment.base_offset, [np.empty(0, BATCH_ROW)], None

    def damage(end: int, high: int) -> _Damage:
        assert position is not None, "a part was begun"
        found = np.concatenate(rows)
        ends = np.cumsum(found["size_bytes"]) + position
        fills = found.size and ends[-1] == end and (found["position"] == ends - found["size_bytes"]).all()
        return _Damage(position, end - position, low, high, found if fills else None)

    for item in segment.windows(search=not log.live):
        if isinstance(item, Gap):
            if position is None and log.is_end(segment, item):
                return
            position = item.position if position is None else min(position, item.position)
            continue
        whole = _is_whole(item)
        for some in np.split(np.arange(whole.size), np.flatnonzero(np.diff(whole)) + 1):
            batches = item.batches[some]
            if not whole[some[0]]:
                position = int(batches["position"][0]) if position is None else position
                rows.append(batches)
                continue
            if position is not None:
                yield damage(int(batches["position"][0]), int(_first_offsets(batches)[0]))
            low, rows, position = int(batches["last_offset"][-1]) + 1, [np.empty(0, BATCH_ROW)], None
        del item
    if position is not None:
        yield damage(segment.size_bytes, MAX_OFFSET if segment.following is None else segment.following.base_offset)


def _is_whole(window: BatchWindow) -> npt.NDArray[np.bool_]:
    """bool[batches]: whether the checksum of each batch is right, and its records can be decoded."""
    whole = is_valid(window.batches)
    wrong: list[DataError] = []
    data = window.batches[whole & ~is_control(window.batches)]
    for columns in decode(BatchWindow(window.position, window.data, data, window.read), on_damage=wrong.append):
        del columns
    return np.asarray(
        whole & ~np.isin(window.batches["position"], [-1 if one.position is None else one.position for one in wrong])
    )


def _first_offsets(batches: BatchRows) -> npt.NDArray[np.int64]:
    # The header of a wrapper of magic 0 or 1 may lack its first offset; its last one bounds damage before it, too.
    return np.where(batches["base_offset"] >= 0, batches["base_offset"], batches["last_offset"])


# ---- find the same bytes in other replicas ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """Another replica, opened to look for batches."""

    replica: OtherReplica
    log: LogView

    @cached_property
    def epochs(self) -> LeaderEpochs:
        """Its history of leader epochs."""
        return _epochs_of(self.log)

    def patches(self, damage: _Damage, epochs: LeaderEpochs) -> list[Patch] | str:
        """Return the bytes that replace a damaged part, or the reason why this replica cannot heal it."""
        found = [
            (segment.path, item.batches[_is_whole(item)])
            for segment, item in self.log.windows(start_offset=damage.low, end_offset=damage.high)
            if isinstance(item, BatchWindow)
        ]
        located = [
            (path, rows[(rows["last_offset"] < damage.high) & (_first_offsets(rows) >= damage.low)])
            for path, rows in found
        ]
        located = _up_to(located, damage) if damage.high == MAX_OFFSET else located
        size_bytes = sum(int(rows["size_bytes"].sum()) for _, rows in located)
        if not size_bytes:
            return "has no whole batch at these offsets"
        if size_bytes != damage.size_bytes:
            what = f"has {size_bytes} bytes at these offsets instead of {damage.size_bytes}"
            return f"{what}: one of the two was cleaned or cut"
        end = max(int(rows["last_offset"][-1]) for _, rows in located if rows.size) + 1
        own, other = (_between(one, damage.low, end) for one in (epochs, self.epochs))
        if own != other or not own:
            return f"has other leader epochs at these offsets: {_epochs_text(other)} instead of {_epochs_text(own)}"
        return list(_patches(located, damage.position, self.replica.broker))


def _up_to(located: Sequence[tuple[str, BatchRows]], damage: _Damage) -> list[tuple[str, BatchRows]]:
    """Return the first batches that take as many bytes as damage at the end of the log, if their offsets follow it."""
    kept, left, next_offset = [], damage.size_bytes, damage.low
    for path, rows in located:
        ends = np.cumsum(rows["size_bytes"], dtype=np.int64)
        some = rows[ends <= left]
        if some.size and int(_first_offsets(some)[0]) == next_offset:
            kept.append((path, some))
            left -= int(ends[some.size - 1])
            next_offset = int(some["last_offset"][-1]) + 1
    return kept


def _patches(located: Iterable[tuple[str, BatchRows]], position: int, broker: str) -> Iterator[Patch]:
    """Yield a patch for each run of batches that are neighbours in their file."""
    for path, rows in located:
        ends = rows["position"] + rows["size_bytes"]
        for some in np.split(rows, np.flatnonzero(rows["position"][1:] != ends[:-1]) + 1) if rows.size else ():
            size_bytes = int(some["size_bytes"].sum())
            offsets = int(_first_offsets(some)[0]), int(some["last_offset"][-1]) + 1
            yield Patch(position, size_bytes, broker, path, int(some["position"][0]), some.size, *offsets)
            position += size_bytes


def _epochs_of(log: LogView) -> LeaderEpochs:
    try:
        return read_leader_epochs(log.fs, log.path)
    except (DataError, OSError):
        return LeaderEpochs()


def _between(epochs: LeaderEpochs, low: int, end: int) -> tuple[tuple[int, int], ...]:
    """Return the leader epochs of the offsets [low, end), each with its first offset there; empty if one is unknown."""
    if epochs.epoch_for_offset(low) is None:
        return ()
    starts = {low, *(one.start_offset for one in epochs.entries if low < one.start_offset < end)}
    return tuple((start, epochs.epoch_for_offset(start) or 0) for start in sorted(starts))


def _epochs_text(epochs: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{epoch} from {start}" for start, epoch in epochs) or "none"


# ---- the log with these bytes ----------------------------------------------------------------------------------------


class HealedStore(WrappedStore):
    """Shows files with patches; delegates everything else to another store."""

    def __init__(self, store: Store, patches: Patches) -> None:
        super().__init__(store)
        self._patches = patches

    @override
    def location(self) -> Location[Store]:
        return HealedLocation(self._store.location(), self._patches)

    @override
    def open(self, path: str) -> ReadableFile:
        file, patches = super().open(path), self._patches.get(path)
        return _HealedFile(file, self._store, patches) if patches else file


@dataclass(frozen=True, slots=True)
class HealedLocation:
    """The location of a store with patches. A plain value that can be pickled."""

    location: Location[Store]
    patches: Patches

    @property
    def in_this_process(self) -> bool:
        """Whether only this process can open the store."""
        return self.location.in_this_process

    def open(self) -> Store:
        """Open the store."""
        return HealedStore(self.location.open(), self.patches)


class _HealedFile(WrappedReadableFile):
    def __init__(self, file: ReadableFile, store: Store, patches: Sequence[Patch]) -> None:
        super().__init__(file)
        self._store = store
        self._patches = patches

    @override
    def read_into(self, position: int, target: memoryview) -> int:
        count = self._file.read_into(position, target)
        for patch in self._patches:
            low = max(position, patch.position)
            high = min(position + count, patch.position + patch.size_bytes)
            if low < high:
                with self._store.open(patch.source) as source:
                    source.read_into(
                        patch.source_position + low - patch.position, target[low - position : high - position]
                    )
        return count

    @override
    def read(self, position: int, size_bytes: int) -> bytes:
        data = bytearray(max(0, min(size_bytes, self.size() - position)))
        return bytes(data[: self.read_into(position, memoryview(data))])


# ---- heal damage that a reader finds ---------------------------------------------------------------------------------


@dataclass
class Healer:
    """Heals logs when a reader finds damage in them.

    A whole segment is searched once a reader finds damage in it; a sound log costs nothing.

    Args:
        heals: whether the user wants logs healed; otherwise errors only mention that another replica can heal them.
        flag: the option that enables healing.

    Attributes:
        patches: all patches so far.
    """

    heals: bool = False
    flag: str = "--heal"
    patches: dict[str, tuple[Patch, ...]] = field(default_factory=dict)
    _logs: dict[str, tuple[LogView, tuple[OtherReplica, ...]]] = field(default_factory=dict)
    #: By path of a damaged file: its patches, and the reasons why other damage in it cannot be healed.
    _found: dict[str, tuple[list[Patch], list[str]]] = field(default_factory=dict)

    def know(self, log: LogView, others: Sequence[OtherReplica]) -> None:
        """Note the other replicas of a log."""
        if others:
            self._logs[log.path] = log, tuple(others)

    def healed(self, log: LogView) -> LogView:
        """Return the log with its patches."""
        is_patched = any(posixpath.dirname(path) == log.path for path in self.patches)
        return log.on(HealedStore(log.fs, self.patches)) if is_patched else log

    def location(self, location: Location[Store]) -> Location[Store]:
        """Return the location of the store with all patches."""
        return HealedLocation(location, dict(self.patches)) if self.patches else location

    def heal(self, errors: Iterable[DataError]) -> bool:
        """Look for whole bytes in place of damage; return whether new patches were found.

        Errors get advice if no replica can heal them, or if the user does not want logs healed.
        """
        is_healed = False
        for path, some in groupby(sorted(errors, key=lambda one: one.path or ""), lambda one: one.path or ""):
            if posixpath.dirname(path) not in self._logs:
                continue
            if path not in self._found:
                log, others = self._logs[posixpath.dirname(path)]
                self._found[path] = _find(log, path, others)
            patches, reasons = self._found[path]
            if patches and self.heals and path not in self.patches:
                self.patches[path] = tuple(patches)
                is_healed = True
            for error in some:
                error.advice = _advice(patches, reasons, "" if self.heals else self.flag)
        return is_healed

    @property
    def logs(self) -> tuple[HealedLog, ...]:
        """The healed batches by log and broker."""
        found: dict[tuple[str, str], list[Patch]] = {}
        for path, patches in self.patches.items():
            for one in patches:
                found.setdefault((posixpath.dirname(path), one.broker), []).append(one)
        return tuple(
            HealedLog(
                *key,
                sum(one.batches for one in some),
                sum(one.size_bytes for one in some),
                min(one.start_offset for one in some),
                max(one.end_offset for one in some),
            )
            for key, some in sorted(found.items())
        )

    def until_healed(self, read: Callable[[], _T]) -> _T:
        """Return the result of a function that reads logs; call it again after its damage is healed.

        Raises:
            DataError: from `read`, if no replica has whole bytes in place of the damage.
        """
        while True:
            try:
                return read()
            except DataError as error:
                if not self.heal([error]):
                    raise


def _find(log: LogView, path: str, others: Sequence[OtherReplica]) -> tuple[list[Patch], list[str]]:
    """Return the patches of a segment's file, and the reasons why other damage in it cannot be healed."""
    segment = next((one for one in log.segments if one.path == path), None)
    if segment is None:
        return [], []
    epochs, sources = _epochs_of(log), []
    for one in others:
        try:
            sources.append(_Source(one, LogView(one.path, fs=log.fs)))
        except (OSError, NotFoundError):
            continue
    patches: list[Patch] = []
    reasons: list[str] = []
    for damage in _damage_of(log, segment):
        found, why = _patched(damage, sources, epochs)
        if not found and (parts := list(damage.parts())):
            each = [_patched(part, sources, epochs) for part in parts]
            found, why = [patch for some, _ in each for patch in some], [text for _, some in each for text in some]
        patches += found
        reasons += why
    return sorted(patches, key=lambda one: one.position), reasons


def _patched(damage: _Damage, sources: Sequence[_Source], epochs: LeaderEpochs) -> tuple[list[Patch], list[str]]:
    reasons = []
    for source in sources:
        try:
            found = source.patches(damage, epochs)
        except (OSError, NotFoundError) as error:
            found = f"cannot be read: {error}"
        if not isinstance(found, str):
            return found, []
        reasons.append(f"that of broker {source.replica.broker} {found}")
    return [], reasons


def _advice(patches: Sequence[Patch], reasons: Sequence[str], flag: str) -> str:
    if patches and flag:
        brokers = ", ".join(sorted({one.broker for one in patches}))
        return f"The replica of broker {brokers} has these bytes undamaged: {flag} reads them from there"
    if reasons and not flag:
        return f"No other replica can heal it: {'; '.join(dict.fromkeys(reasons))}"
    return ""
