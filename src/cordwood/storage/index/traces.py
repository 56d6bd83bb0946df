"""Searches one file of any kind for traces of keys.

    logs, and parts of logs            every batch is decoded, even with a wrong checksum or after damage; bytes outside
                                       batches are searched without decoding
    key indexes                        the hash of a key shows that a record may have the key; the index contains the
                                       secret for the hash
    all other files                    the bytes are searched for keys of at least four bytes

A key in a torn compressed batch cannot be found. So bytes outside batches are reported as a problem: the file was not
searched completely.
"""

from __future__ import annotations

import functools
import hashlib
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from cordwood.common.config import LONG_MAX
from cordwood.common.errors import CorruptFileError, DataError
from cordwood.fs.base import ReadableFile, Store
from cordwood.kernels.hashing import hash_keys
from cordwood.kernels.layout import BatchRows, U8Array, is_control
from cordwood.record.columns import BatchWindow, Ranks, RecordColumns, decode, is_valid
from cordwood.storage.formats import key_index
from cordwood.storage.formats.filenames import (
    BOOTSTRAP_CHECKPOINT,
    FileKind,
    is_key_index,
    parse_file,
)
from cordwood.storage.index.history import KeyFinder, KeyRecord, key_record
from cordwood.storage.index.search import entries_of_each, hash_of_each, hash_of_keys
from cordwood.storage.log.files import read_file, why_unreadable
from cordwood.storage.log.windows import Checks, Gap, GapKind, WindowReader

#: Length of the base offset in a segment's file name.
_OFFSET_DIGITS = 20
#: Maximum number of described traces per file; all are counted.
DESCRIBED_MAX = 10_000
_PIECE_BYTES = 1 << 20
_LOG_KINDS = (FileKind.LOG, FileKind.CHECKPOINT_SNAPSHOT)


class TraceKind(StrEnum):
    """The kind of a trace of a key."""

    RECORD = "record"  #: a record of the key that nothing supersedes
    SUPERSEDED = "superseded record"  #: a newer record has the key, or its transaction was aborted
    TOMBSTONE = "tombstone"  #: a record without a value
    VALUE = "within a record"  #: its bytes in a value, a header, or another key
    INDEX = "key index"  #: the hash of the key
    BYTES = "bytes"  #: its bytes outside records


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace of a key.

    Attributes:
        position: position in the file of the batch, or of the bytes.
        record: the found record, without its value; None for other traces.
    """

    kind: TraceKind
    key: bytes
    position: int
    record: KeyRecord | None = None


@dataclass
class SearchedFile:
    """A searched file.

    Attributes:
        size_bytes: number of bytes that were read.
        sha256: hash of these bytes, in hexadecimal digits.
        batches, records: number of decoded data batches and records, without control batches and markers.
        counts: number of traces of each kind.
        traces: the first traces.
        problems: unreadable parts, in which traces would not be found.
    """

    path: str
    size_bytes: int = 0
    mtime_ns: int = 0
    sha256: str = ""
    batches: int = 0
    records: int = 0
    counts: Counter[TraceKind] = field(default_factory=Counter)
    traces: list[Trace] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, trace: Trace) -> None:
        """Count a trace, and keep it up to a limit."""
        self.counts[trace.kind] += 1
        if len(self.traces) < DESCRIBED_MAX:
            self.traces.append(trace)


class TraceSearch:
    """Searches files for some keys; thread-safe."""

    def __init__(self, fs: Store, keys: Iterable[bytes], *, values: bool, ranks: Ranks | None = None) -> None:
        """Prepare the search.

        Args:
            values: also search within values, headers and other keys.
            ranks: see `KeyHistory`.
        """
        self._fs, self._ranks = fs, ranks
        self._finder = KeyFinder(tuple(keys))
        self._bytes = ByteSearch(self._finder.keys)
        self._values = values

    def look_at(self, path: str) -> SearchedFile:
        """Search a file for the keys.

        Raises:
            FileNotFoundError: the file was deleted.
        """
        found = SearchedFile(path)
        try:
            with self._fs.open(path) as file:
                found.size_bytes, found.mtime_ns = file.size(), self._fs.stat(path).mtime_ns
                found.sha256 = _sha256(file, found.size_bytes)
                self._look(file, found)
        except FileNotFoundError:
            raise
        except OSError as error:
            found.problems.append(why_unreadable(error))
        return found

    def _look(self, file: ReadableFile, found: SearchedFile) -> None:
        name = found.path.rpartition("/")[2]
        kind = parse_file(name)
        if is_key_index(name):
            self._key_index(file, found)
        elif (
            (kind is not None and kind.kind in _LOG_KINDS) or name == BOOTSTRAP_CHECKPOINT or _holds_batches(file, name)
        ):
            # The name of a metadata snapshot holds its end offset, not a base offset.
            is_snapshot = kind is not None and kind.kind is FileKind.CHECKPOINT_SNAPSHOT
            self._log(file, 0 if is_snapshot else _offset_in(name), found)
        else:
            self._plain(file, found)

    def _plain(self, file: ReadableFile, found: SearchedFile, start: int = 0, end: int | None = None) -> None:
        for position, key in self._bytes.find_in_file(file, start, found.size_bytes if end is None else end):
            found.add(Trace(TraceKind.BYTES, key, position))

    # ---- key indexes -------------------------------------------------------------------------------------------------

    def _key_index(self, file: ReadableFile, found: SearchedFile) -> None:
        try:
            index = key_index.decode(read_file(self._fs, found.path), found.path)
        except CorruptFileError as error:
            found.problems.append(f"a key index that cannot be read: {error.what}")
            self._plain(file, found)
            return
        counts = entries_of_each(index, hash_of_each(self._finder.keys, index.header.secret))
        for at in np.flatnonzero(counts).tolist():
            for _ in range(int(counts[at])):
                found.add(Trace(TraceKind.INDEX, self._finder.keys[at], index.header.payload_start))

    # ---- logs --------------------------------------------------------------------------------------------------------

    def _log(self, file: ReadableFile, base_offset: int, found: SearchedFile) -> None:
        for item in WindowReader(file, Checks.WHOLE, base_offset=base_offset, end=found.size_bytes):
            if isinstance(item, Gap):
                self._gap(file, item, found)
                continue
            self._damaged_batches(file, item, found)
            data = item.batches[~is_control(item.batches)]
            # Records in a batch with a wrong checksum count too, as far as they can be decoded.
            data["computed_crc"] = data["crc"]
            found.batches += data.size
            window = BatchWindow(item.position, item.data, data, item.read)
            for columns in decode(window, on_damage=functools.partial(self._undecodable, file, found, data)):
                found.records += columns.rows.size
                for at, key in self._finder.rows(columns):
                    record = key_record(columns, at, key, base_offset, with_value=False, ranks=self._ranks)
                    kind = TraceKind.TOMBSTONE if columns.rows["value_size"][at] < 0 else TraceKind.RECORD
                    found.add(Trace(kind, key, record.position, record))
                if self._values:
                    self._within(columns, found)

    def _undecodable(self, file: ReadableFile, found: SearchedFile, batches: BatchRows, error: DataError) -> None:
        found.problems.append(f"a batch cannot be decoded: {error}")
        for batch in batches[batches["position"] == error.position]:
            start = int(batch["position"])
            self._plain(file, found, start, start + int(batch["size_bytes"]))

    def _gap(self, file: ReadableFile, gap: Gap, found: SearchedFile) -> None:
        """Search bytes outside batches. Zeros hold nothing; in other bytes a compressed key would not be found."""
        if gap.kind is GapKind.ZEROS:
            return
        found.problems.append(f"{gap.size_bytes} bytes at position {gap.position} are no batch ({gap.what})")
        self._plain(file, found, gap.position, min(gap.end, found.size_bytes))

    def _damaged_batches(self, file: ReadableFile, window: BatchWindow, found: SearchedFile) -> None:
        """Also search batches with a wrong checksum as bytes: their records may be misplaced."""
        batches = window.batches
        for batch in batches[batches["crc"] != batches["computed_crc"]]:
            start = int(batch["position"])
            found.problems.append(f"the batch at position {start} has a wrong checksum")
            self._plain(file, found, start, start + int(batch["size_bytes"]))

    def _within(self, columns: RecordColumns, found: SearchedFile) -> None:
        """Find keys within values, headers and other keys."""
        rows, data = columns.rows, columns.data
        starts = rows["key_start"].astype(np.int64)
        last = rows[-1:]
        ends_at = np.maximum(last["value_start"] + np.maximum(last["value_size"], 0), last["headers_start"])
        low, high = int(starts.min()), data.size if last["header_count"][0] else int(ends_at[0])
        for at, key in self._bytes.find(data[low:high]):
            position = low + at
            row = max(0, int(np.searchsorted(starts, position, side="right")) - 1)
            if position == starts[row] and rows["key_size"][row] == len(key):
                continue  # it is the record's own key
            record = key_record(columns, row, key, 0, with_value=False)
            found.add(Trace(TraceKind.VALUE, key, record.position, record))


def _holds_batches(file: ReadableFile, name: str) -> bool:
    """Return whether a file has a batch with a correct checksum, at any position."""
    for item in WindowReader(file, Checks.WHOLE, base_offset=_offset_in(name)):
        if isinstance(item, BatchWindow) and is_valid(item.batches).any():
            return True
        del item
    return False


def _offset_in(name: str) -> int:
    """Return the base offset at the start of a name of a log or of a copy (`00000000000000000042.log.bak`), or 0."""
    digits = name[:_OFFSET_DIGITS]
    return int(digits) if digits.isascii() and digits.isdecimal() and int(digits) <= LONG_MAX else 0


def _sha256(file: ReadableFile, size_bytes: int) -> str:
    found = hashlib.sha256()
    for position in range(0, size_bytes, _PIECE_BYTES):
        found.update(file.read(position, min(_PIECE_BYTES, size_bytes - position)))
    return found.hexdigest()


# ---- keys as bytes ---------------------------------------------------------------------------------------------------

#: Shorter keys are not searched.
KEY_BYTES_MIN = 4
_SEARCHED_PIECE_BYTES = 4 << 20
_TABLE_BITS = 16
_MULTIPLIER = np.uint32(0x9E3779B1)

Int64Array = npt.NDArray[np.int64]


class ByteSearch:
    """Searches bytes for any of several keys.

    A position is a candidate if a key may begin with the four bytes there; a table of the hashes of the keys' first
    four bytes rejects most positions. At each candidate, as many bytes as a key has are hashed, for each length of a
    key, and then compared with the keys. Keys of fewer than four bytes are not searched, because they occur everywhere
    by chance.
    """

    def __init__(self, keys: Collection[bytes]) -> None:
        self.keys = frozenset(key for key in keys if len(key) >= KEY_BYTES_MIN)
        self._secret = secrets.token_bytes(16)
        self._by_length = {
            length: hash_of_keys([key for key in self.keys if len(key) == length], self._secret)
            for length in sorted({len(key) for key in self.keys})
        }
        starts = np.frombuffer(b"".join(key[:KEY_BYTES_MIN] for key in sorted(self.keys)), "<u4")
        self._begins = np.zeros(1 << _TABLE_BITS, np.bool_)
        self._begins[_hashes(starts)] = True
        self.longest = max(self._by_length, default=0)

    def find(self, data: U8Array) -> Iterator[tuple[int, bytes]]:
        """Yield the start of each occurrence with its key; shorter keys first."""
        candidates = self._candidates(data)
        low, high = np.frombuffer(self._secret, np.uint64)
        for length, wanted in self._by_length.items():
            starts = candidates[candidates + length <= data.size]
            hashes = np.empty((starts.size, 2), np.uint64)
            sizes = np.full(starts.size, length, np.int32)
            all_of_them = np.ones(starts.size, np.bool_)
            hash_keys(data.ctypes.data, starts.astype(np.int32), sizes, all_of_them, low, high, hashes)
            at = np.minimum(np.searchsorted(wanted, hashes[:, 1]), wanted.size - 1)
            for start in starts[wanted[at] == hashes[:, 1]].tolist():
                key = data[start : start + length].tobytes()
                if key in self.keys:
                    yield start, key

    def _candidates(self, data: U8Array) -> Int64Array:
        """Return the positions at which a key may begin, int64[candidates], ascending."""
        if data.size < KEY_BYTES_MIN or not self.keys:
            return np.empty(0, np.int64)
        found = []
        for first in range(KEY_BYTES_MIN):
            words = data[first : first + (data.size - first) // 4 * 4].view("<u4")
            found.append(4 * np.flatnonzero(self._begins[_hashes(words)]) + first)
        return np.sort(np.concatenate(found))

    def find_in_file(self, file: ReadableFile, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield the position of each occurrence in a part of a file, with its key."""
        overlap = max(0, self.longest - 1)
        for position in range(start, end, _SEARCHED_PIECE_BYTES):
            size = min(end, position + _SEARCHED_PIECE_BYTES + overlap) - position
            data = np.frombuffer(file.read(position, size), np.uint8)
            for at, key in self.find(data):
                # The next piece finds a key that begins in the overlap.
                if at < _SEARCHED_PIECE_BYTES:
                    yield position + at, key


def _hashes(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    return np.asarray((words * _MULTIPLIER) >> np.uint32(32 - _TABLE_BITS))
