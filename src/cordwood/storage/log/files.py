"""Operations on files that all of storage shares: small files, parts of indexes, copies, owners and folders."""

from __future__ import annotations

import errno
import posixpath
import uuid
from collections.abc import Mapping

import crc32c
import numpy as np
import numpy.typing as npt

from cordwood.common.errors import CorruptFileError, RequestError
from cordwood.common.types import TopicPartition
from cordwood.fs.base import (
    COPY_BUFFER_BYTES,
    OWNER_WRITES,
    Bytes,
    FileInfo,
    Link,
    LocalFileSystem,
    ReadableFile,
    Store,
    TargetStore,
)
from cordwood.fs.workspace import remove_tree
from cordwood.storage.formats import checkpoints, filenames, leader_epochs, time_index
from cordwood.storage.formats.entries import take_apart
from cordwood.storage.formats.filenames import (
    INDEX_FOLDER,
    WORK_FOLDER,
    Temporary,
    index_folder,
    is_key_index,
    parse_file,
    parse_tier_manifest,
)
from cordwood.storage.formats.leader_epochs import LeaderEpochs
from cordwood.storage.formats.properties import decode_partition_metadata

#: Size limits of files that are read whole. Files named by an offset are indexes and producer snapshots: a segment of
#: 2 GiB has no more batches than fit 256 MiB of index. The others are text files with about a line per partition.
OFFSET_FILE_BYTES_MAX = 256 << 20
TEXT_FILE_BYTES_MAX = 16 << 20
#: A key index has 8.5 bytes per record.
KEY_INDEX_BYTES_MAX = 1 << 30
#: A manifest of 100,000 segments in a tier has 25 MB.
TIER_MANIFEST_BYTES_MAX = 32 << 20
#: An offset or time index up to this size is read at once; of a larger one, pieces of `_PIECE_ENTRIES`.
_SMALL_INDEX_BYTES = 32 << 10
_PIECE_ENTRIES = 64


def read_file(fs: Store, path: str) -> bytes:
    """Read all bytes of a file other than a log.

    Raises:
        OSError: it is unreadable; or, with EFBIG, it is larger than any file of its kind that Kafka writes.
    """
    with fs.open(path) as file:
        size = file.size()
        if size > _bytes_max(posixpath.basename(path)):
            raise OSError(errno.EFBIG, f"{size} bytes are more than such a file ever has", path)
        return file.read(0, size)


class IndexEntries:
    """The used entries of an offset or time index, of which only the requested ones are read.

    Used entries end where zeros begin, see `entries`; but a time index with room for one entry has one, see
    `time_index`. The index of an active segment is 10 MiB of mostly zeros.

    Attributes:
        max_entries: number of whole entries in the file, including its zeros.
        rest: fewer bytes than one entry, behind them.
    """

    def __init__(self, file: ReadableFile, entry: np.dtype[np.void]) -> None:
        self._file, self._entry, self._piece_entries = file, entry, _PIECE_ENTRIES
        self._pieces: dict[int, npt.NDArray[np.void]] = {}
        start = file.read(0, _SMALL_INDEX_BYTES)
        if len(start) < _SMALL_INDEX_BYTES:
            entries, self.max_entries, self.rest = take_apart(start, entry)
            self._piece_entries = self.max_entries
            self._pieces[0] = np.frombuffer(start, entry, self.max_entries)
            self._count = 1 if entry == time_index.ENTRY and self.max_entries == 1 else entries.size
            return
        self.max_entries, odd_bytes = divmod(file.size(), entry.itemsize)
        self.rest = file.read(self.max_entries * entry.itemsize, odd_bytes) if odd_bytes else b""
        self._count = self.max_entries
        if any(self[self._count - 1].tobytes()):
            return
        used = 0
        while used < self._count:  # entries below `used` are used, entries from `_count` on are zeros
            middle = (used + self._count) // 2
            if any(self[middle].tobytes()):
                used = middle + 1
            else:
                self._count = middle

    def __len__(self) -> int:
        return self._count

    @property
    def loaded(self) -> npt.NDArray[np.void]:
        """The used entries that were read so far, in their order."""
        starts = {number: number * self._piece_entries for number in sorted(self._pieces)}
        parts = [self._pieces[number][: max(0, self._count - start)] for number, start in starts.items()]
        return np.concatenate([np.empty(0, self._entry), *parts])

    def __getitem__(self, number: int) -> np.void:
        piece, at = divmod(number, self._piece_entries)
        if piece not in self._pieces:
            size = self._piece_entries * self._entry.itemsize
            # A file that its broker has shortened meanwhile has zeros here, and these fit no batch.
            data = self._file.read(piece * size, size).ljust(size, b"\0")
            self._pieces[piece] = np.frombuffer(data, self._entry)
        return self._pieces[piece][at]  # type: ignore[no-any-return]


def read_topic_id(fs: Store, partition: str) -> uuid.UUID | None:
    """Read the topic id in the `partition.metadata` of a directory; return None if the file is missing or unreadable.

    Brokers before 2.8 wrote no such file; `check` reports a bad one.
    """
    path = f"{partition}/{filenames.FileKind.PARTITION_METADATA}"
    try:
        return decode_partition_metadata(read_file(fs, path), path).topic_id
    except (OSError, CorruptFileError):
        return None


def read_leader_epochs(fs: Store, partition: str) -> LeaderEpochs:
    """Read the `leader-epoch-checkpoint` of a directory; empty if the file is missing.

    Raises:
        CorruptFileError: the file cannot be read.
    """
    path = f"{partition}/{filenames.FileKind.LEADER_EPOCHS}"
    try:
        data = read_file(fs, path)
    except FileNotFoundError:
        return LeaderEpochs()
    return leader_epochs.history(leader_epochs.decode(data, path), path)


def read_log_starts(fs: Store, directory: str) -> Mapping[TopicPartition, int]:
    """Read the log start offsets of partitions in the checkpoint of a log directory.

    As in Kafka, an unreadable checkpoint has no entry; `check` reports it.
    """
    try:
        return checkpoints.decode(read_file(fs, posixpath.join(directory, filenames.LOG_START_OFFSETS)))
    except (OSError, CorruptFileError):
        return {}


def _bytes_max(name: str) -> int:
    if is_key_index(name):
        return KEY_INDEX_BYTES_MAX
    if parse_tier_manifest(name) is not None:
        return TIER_MANIFEST_BYTES_MAX
    parsed = parse_file(name)
    has_offset = parsed is not None and parsed.kind in filenames.OFFSET_KINDS
    return OFFSET_FILE_BYTES_MAX if has_offset else TEXT_FILE_BYTES_MAX


def checksum(fs: Store, path: str) -> int:
    """Return the CRC-32C of a file."""
    crc = 0
    with fs.open(path) as file:
        for at in range(0, file.size(), COPY_BUFFER_BYTES):
            crc = crc32c.crc32c(file.read(at, COPY_BUFFER_BYTES), crc)
    return crc


def why_unreadable(error: OSError) -> str:
    """Describe an error of `read_file`, or of opening a log, for a sentence that names the file."""
    return f"cannot be read: {error.strerror or error}"


# ---- files -----------------------------------------------------------------------------------------------------------


def copy_file(
    fs: TargetStore, source: str, target: str, *, info: FileInfo | None = None, link: Link | None = None
) -> None:
    """Copy a file to a new name, with its modification time; on return its bytes are on disk.

    Makes the copy of a key index readable by its owner only, as the index contains a secret.

    Args:
        target: path; no file exists there.
        info: attributes of the source, if they are known.
        link: make a link instead, if the file system supports it.
    """
    if link is not None and fs.try_link(link, source, target):
        return
    info = fs.stat(source) if info is None else info
    is_secret = is_key_index(posixpath.basename(target))
    fs.copy(source, target, mode=OWNER_WRITES if is_secret else info.mode | OWNER_WRITES)
    fs.set_mtime_ns(target, info.mtime_ns)
    fs.sync_file(target)


def chown_like(fs: LocalFileSystem, path: str, like: FileInfo) -> None:
    """Give a file the owner, group and mode of another file; these, its bytes and its times are durable on return."""
    info = fs.stat(path)
    if (info.uid, info.gid) != (like.uid, like.gid):
        fs.set_owner(path, like.uid, like.gid)
    if info.mode != like.mode:
        fs.set_mode(path, like.mode)
    fs.sync_file(path)


def write_file(fs: TargetStore, path: str, data: Bytes) -> None:
    """Create or overwrite a small file; its bytes are durable on return."""
    with fs.create(path, exclusive=False) as file:
        file.write(0, data)
        file.sync()


# ---- the work folder of a partition ----------------------------------------------------------------------------------


def make_work_folder(fs: TargetStore, partition: str) -> str:
    """Make the work folder of a partition if it is missing; return its path.

    Raises:
        RequestError: it is a link.
    """
    path = f"{partition}/{WORK_FOLDER}"
    _check_own(fs, path)
    if not fs.exists(path):
        fs.make_directory(path)
    return path


def _check_own(fs: TargetStore, work: str) -> None:
    """Raise if the work folder is a link: its files may belong to others, and all of them would be removed."""
    if fs.is_link(work):
        raise RequestError(
            f"{work} is a link. Commands delete leftover files in this folder, so it must be a directory of the "
            "partition itself. Remove the link; its target stays as it is."
        )


def clear_work_folder(fs: TargetStore, partition: str) -> None:
    """Remove leftovers of ended runs from the work folder of a partition, but not its key indexes.

    No other process may be using the folder. Removes the folder, too, unless it contains indexes.

    Raises:
        RequestError: it is a link.
    """
    work, indexes = f"{partition}/{WORK_FOLDER}", index_folder(partition)
    _check_own(fs, work)
    if not fs.exists(work):
        return
    if not fs.exists(indexes):
        remove_tree(fs, work)
        return
    for info in fs.list(work):
        if info.is_directory and info.name != INDEX_FOLDER:
            remove_tree(fs, f"{work}/{info.name}")
        elif not info.is_directory:
            fs.unlink(f"{work}/{info.name}")
    if fs.is_link(indexes):
        return
    for info in fs.list(indexes):
        if info.name.endswith(Temporary.TMP) and not info.is_directory:
            fs.unlink(f"{indexes}/{info.name}")
