"""Is a key index of the segment beside it, as the segment is now?

The segment may have been restored, copied, truncated, or cleaned by a broker since the index was made. So an index has
an identity: size, times and inode of the segment's files, and when they looked like this. Two levels of trust follow:

    the same file     the identity matches: no byte of the segment is read
    a valid index     otherwise a sample of the segment matches: enough to search; a clean compares all headers besides

**Why the same state means the same bytes.** No program can set a file's ctime: the kernel sets it to its clock at each
change of bytes, times, name or owner. It does not move within a tick of that clock, so a file could change once more
after the look and keep its ctime. So a state counts only if its ctime was older than the look by more than a tick. Then
each later change gives the file another ctime, unless somebody sets the clock back to that very nanosecond. Where times
are whole seconds that could happen, so there they never count; nor do looks in the future, which a clock has left that
was set back. A network file system may show an old state, so no look is taken there; a store without ctimes has none.

The objects of a tier never change, and the id of their segment is never used again. So a store that shows a tier shows
a number made of that id as their ctime, which is negative. The time of the look does not matter then.

    look ─── at .log, .index, .timeindex       before their bytes are read for the index; or of a clean's own outputs
    settle ─ once outputs are in their place   a rename changes only the ctime, so all other values must agree

**A sample** compares the base offset, the covered length (a truncated segment is shorter), the header of the last
covered batch (Kafka's cleaner moves it whenever it removes a record), and 64 other batches by position and checksum.

A wrong index that passed for valid could hide the record that supersedes another. It could not make a clean remove a
wrong record: every candidate is compared by the bytes of its key.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from cordwood.common.errors import CorruptFileError
from cordwood.common.types import NONE
from cordwood.fs.base import FileInfo, ReadableFile, Store, TargetStore
from cordwood.kernels.layout import HEADER, HEADER_BYTES, LEGACY_HEADER, MAGIC_AT, PREFIX_BYTES, BatchRows
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.formats.key_index import HEADER as INDEX_HEADER
from cordwood.storage.formats.key_index import (
    FileState,
    Flag,
    Header,
    Identity,
    KeyIndex,
    crc_of_header,
    decode_header,
    decode_identity,
    encode_identity,
    index_crc,
)
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.segment_writer import IndexLimits, SegmentIndexes

#: Longer than a tick of any kernel's clock.
TICK_NS = 20_000_000
_SECOND_NS = 1_000_000_000
#: Smaller segments are compared faster than a tick takes, so nothing waits for them.
_WAIT_BYTES_MIN = 1 << 20
#: Number of batches to compare with the segment, besides the last one.
_SAMPLES = 64
_KINDS = (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX)


# ---- the same file ---------------------------------------------------------------------------------------------------


def look(
    fs: Store, directory: str, base_offset: int, limits: IndexLimits | None = None, *, in_place: bool = True
) -> Identity | None:
    """Look at the files of a segment, before reading them; return None if the store has no ctimes.

    Args:
        limits: limits by which a clean would make the same offset index and time index; None if they are unknown.
        in_place: False for outputs that get their place later; `settle` completes their identity then.
    """
    looked_ns = time.time_ns() if in_place else 0
    files = tuple(_state(fs, f"{directory}/{offset_name(base_offset, kind)}") for kind in _KINDS)
    if not files[0].ctime_ns:
        return None
    return Identity(looked_ns, files) if limits is None else Identity(looked_ns, files, *_numbers(limits))


def _numbers(limits: IndexLimits) -> tuple[int, int]:
    return limits.interval_bytes, limits.size_bytes


def _state(fs: Store, path: str) -> FileState:
    try:
        return _state_of(fs.stat(path))
    except FileNotFoundError:
        return FileState()


def _state_of(info: FileInfo) -> FileState:
    return FileState(info.size_bytes, info.mtime_ns, info.ctime_ns, info.inode)


def is_same_log(identity: Identity | None, segment: Segment, *, in_order: bool = False) -> bool:
    """Return whether the segment's `.log` has not changed since the look.

    Args:
        in_order: only if the look was one at batches whose offsets ascend.
    """
    if identity is None or (in_order and not identity.interval_bytes):
        return False
    return _is_same(identity, segment, _KINDS[:1])


def is_same_output(segment: Segment, limits: IndexLimits) -> bool:
    """Return whether a clean that keeps all records of a segment would write the same files.

    The identity in the segment's key index decides; a missing or damaged one never matches.
    """
    _, identity = _header_of(segment)
    if identity is None or (identity.interval_bytes, identity.index_bytes) != _numbers(limits):
        return False
    return _is_same(identity, segment, _KINDS)


class OutputComparison:
    """Compares a segment with the files that a clean would write if it kept all of its batches.

    Attributes:
        ascends: whether the offsets of the added batches ascend.
    """

    def __init__(self, segment: Segment, limits: IndexLimits) -> None:
        self.ascends = True
        self._segment = segment
        self._indexes = SegmentIndexes(segment.base_offset, limits)
        self._fits = True
        self._last = NONE

    def add(self, batches: BatchRows) -> bool:
        """Add the next batches, BATCH_ROW[batches]; return whether all of them fit the limits."""
        firsts, lasts = batches["base_offset"], batches["last_offset"]
        self.ascends = self.ascends and firsts[0] > self._last and bool((firsts[1:] > lasts[:-1]).all())
        self._last = int(lasts[-1])
        self._fits = self._fits and self._indexes.fit(batches)
        return self._fits

    def is_same(self) -> bool:
        """Return whether offset index and time index are as a clean would write them, once all batches are added."""
        files = self._indexes.files()
        return self._fits and all(self._segment.read_index(kind) == data for kind, data in files.items())


def has_no_transactions(segment: Segment) -> bool:
    """Return whether the segment's key index shows that it has neither markers nor data of transactions."""
    header, identity = _header_of(segment)
    if header is None or header.covered_bytes != segment.size_bytes:
        return False
    return not header.flags & (Flag.CONTROL | Flag.TRANSACTIONAL) and is_same_log(identity, segment)


def is_of_objects(identity: Identity) -> bool:
    """Return whether an identity is that of a segment in a tier."""
    return identity.files[0].ctime_ns < 0


def of_objects(files: Mapping[FileKind, FileInfo], like: Identity | None) -> Identity:
    """Return the identity of a segment in a tier.

    Args:
        files: its objects as a store shows them.
        like: identity of the files that the objects have the bytes of; None if it is not known.
    """
    states = tuple(_state_of(files[kind]) if kind in files else FileState() for kind in _KINDS)
    assert states[0].ctime_ns < 0, "the store shows that they never change"
    sizes = [one.size_bytes for one in states]
    if like is None or sizes != [one.size_bytes for one in like.files]:
        return Identity(1, states)
    return Identity(1, states, like.interval_bytes, like.index_bytes)


def _is_same(identity: Identity, segment: Segment, kinds: tuple[FileKind, ...]) -> bool:
    if not 0 < identity.looked_ns <= time.time_ns() or segment.files.log.name != _name(segment, FileKind.LOG):
        return False
    for kind, known in zip(kinds, identity.files, strict=False):
        is_old = known.ctime_ns < identity.looked_ns - TICK_NS and (known.ctime_ns % _SECOND_NS or not known.ctime_ns)
        is_old = is_old or is_of_objects(identity)
        if not is_old or _state(segment.fs, f"{segment.directory}/{_name(segment, kind)}") != known:
            return False
    return True


def _name(segment: Segment, kind: FileKind) -> str:
    return offset_name(segment.base_offset, kind)


def _header_of(segment: Segment) -> tuple[Header | None, Identity | None]:
    try:
        with segment.fs.open(segment.key_index_path) as file:
            return read_header(file)
    except (OSError, CorruptFileError):
        return None, None


def read_header(file: ReadableFile) -> tuple[Header, Identity | None]:
    """Read the first and the last part of a key index.

    Raises:
        CorruptFileError: one of them is damaged.
    """
    # Otherwise Linux reads ahead, and again once a later read reaches a page that it has read ahead.
    file.expect_random_reads()
    data = file.read(0, INDEX_HEADER.itemsize)
    header = decode_header(data, file.path)
    end = file.read(header.identity_start, header.file_bytes - header.identity_start)
    return header, decode_identity(header, index_crc(data), end, file.path)


def settle(fs: TargetStore, directory: str, paths: Sequence[str], sources: Mapping[int, Segment] | None = None) -> None:
    """Complete the identities in key indexes of outputs, once these are in their place.

    Wait for the next tick if a large segment got its place in this one.

    Args:
        directory: the partition's directory.
        paths: the indexes; each gets its own name later, so a crash leaves none that is half written.
        sources: in a copy, the segments that it may share with its source, by base offset.
    """
    if fs.reads_by_request(directory):
        return  # an object has no ctime
    waited_ns = 0
    pending: list[tuple[str, Header, Identity]] = []
    for path in paths:
        try:
            with fs.open(path) as file:
                header, identity = read_header(file)
        except CorruptFileError:
            continue  # every reader finds that, too
        if identity is not None:
            pending.append((path, header, identity))
            now = look(fs, directory, header.base_offset)
            is_new = sources is not None or not identity.looked_ns
            if now is not None and is_new and header.covered_bytes >= _WAIT_BYTES_MIN:
                waited_ns = max(waited_ns, *(state.ctime_ns for state in now.files))
    is_local = fs.network_kind(directory) is None
    if is_local and 0 <= (left_ns := waited_ns + 2 * TICK_NS - time.time_ns()) <= 2 * TICK_NS:
        time.sleep(left_ns / _SECOND_NS)
    for path, header, recorded in pending:
        now, identity = look(fs, directory, header.base_offset), recorded
        if recorded.looked_ns and sources is not None:
            shared = sources.get(header.base_offset)
            copied = None if shared is None else in_copy(recorded, shared, fs, directory)
            identity = replace(recorded, looked_ns=0) if copied is None else copied
        settled = _settled(identity, now) if is_local and now is not None else replace(identity, looked_ns=0)
        if settled != recorded:
            with fs.open_for_update(path) as file:
                crc = index_crc(file.read(0, INDEX_HEADER.itemsize))
                file.write(header.identity_start, encode_identity(settled, crc))
                file.sync()


def in_copy(identity: Identity | None, segment: Segment, fs: TargetStore, target: str) -> Identity | None:
    """Return the identity for the copy of a segment, for `settle`; None unless the segment is still the same file.

    Args:
        identity: identity in the segment's index, which must be valid.
        target: the copy's directory, with the copied files.
    """
    copied = look(fs, target, segment.base_offset, in_place=False)
    if identity is None or copied is None or not _is_same(identity, segment, _KINDS):
        return None
    for known, state in zip(identity.files, copied.files, strict=True):
        # A load that cuts a file, or writes an index again, changes its time or size.
        if (known.size_bytes, known.mtime_ns) != (state.size_bytes, state.mtime_ns):
            return None
    return replace(copied, interval_bytes=identity.interval_bytes, index_bytes=identity.index_bytes)


def _settled(identity: Identity, now: Identity) -> Identity:
    """Return the state in its place; the same identity if it is another file, which will never match."""
    if identity.looked_ns:
        return identity
    for known, state in zip(identity.files, now.files, strict=True):
        if replace(known, ctime_ns=0) != replace(state, ctime_ns=0):
            return identity
    return replace(identity, looked_ns=now.looked_ns, files=now.files)


# ---- a valid index ---------------------------------------------------------------------------------------------------


def check_identity(index: KeyIndex, segment: Segment, path: str, log: ReadableFile | None = None) -> None:
    """Raise unless an index matches the segment, by its identity or by a sample.

    Args:
        log: the segment's `.log`. None: it is opened if a sample is needed, which in an object store is a request.

    Raises:
        OSError: the segment's `.log` cannot be opened.
        CorruptFileError: the index does not match the segment.
    """
    if what := _difference(index, segment, log):
        raise CorruptFileError(f"not the index of the segment as it is now: {what}", path=path)


def _difference(index: KeyIndex, segment: Segment, log: ReadableFile | None) -> str:
    """Compare an index with its segment. Return a description of the first difference, or ""."""
    if index.header.base_offset != segment.base_offset:
        return f"its base offset is {index.header.base_offset}"
    if is_same_log(index.identity, segment):
        return ""
    with segment.open() if log is None else contextlib.nullcontext(log) as file:
        return _difference_in(file, index)


def _difference_in(file: ReadableFile, index: KeyIndex) -> str:
    """Compare an index with a `.log` by a few reads."""
    header = index.header
    if file.size() < header.covered_bytes:
        return f"it covers {header.covered_bytes} bytes, the segment has {file.size()}"
    last_bytes = int(index.lengths[-1])
    if crc_of_header(file, header.covered_bytes - last_bytes, last_bytes) != header.last_header_crc:
        return "the last batch that it covers is another"
    return _differing_batch(index, np.unique(np.linspace(0, header.batches - 1, _SAMPLES, dtype=np.int64)), file)


def check_batches(index: KeyIndex, batches: npt.NDArray[np.int64], file: ReadableFile, path: str) -> None:
    """Raise unless batches have the positions and checksums that the index holds.

    Raises:
        CorruptFileError: a batch differs.
    """
    if what := _differing_batch(index, batches, file):
        raise CorruptFileError(f"not the index of the segment as it is now: {what}", path=path)


def _differing_batch(index: KeyIndex, batches: npt.NDArray[np.int64], file: ReadableFile) -> str:
    ends = np.cumsum(index.lengths, dtype=np.int64)
    for batch in batches.tolist():
        size_bytes = int(index.lengths[batch])
        position = int(ends[batch]) - size_bytes
        if _size_and_crc(file.read(position, HEADER_BYTES)) != (size_bytes, int(index.crcs[batch])):
            return f"the batch at position {position} is another"
    return ""


def _size_and_crc(data: bytes) -> tuple[int, int] | None:
    """Return size and stored CRC of the batch at the start of `data`, or None if it is too short."""
    if len(data) < LEGACY_HEADER.size:
        return None
    if data[MAGIC_AT] < 2:
        _, size, crc, *_ = LEGACY_HEADER.unpack_from(data)
        return PREFIX_BYTES + size, crc
    if len(data) < HEADER_BYTES:
        return None
    _, size, _, _, crc, *_ = HEADER.unpack_from(data)
    return PREFIX_BYTES + size, crc
