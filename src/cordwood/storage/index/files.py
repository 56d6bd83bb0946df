"""The key index of a segment as a file: it appears whole or not at all, and is used only if it matches the segment.

The presence of a file proves nothing: it may belong to another log, or to the segment before a broker cleaned it. An
index is valid if all of these match, and otherwise it counts as missing:

    its checksums and its own consistency             `formats.key_index.decode`
    the base offset, and the covered length           a truncated segment is shorter
    the header of the last covered batch              Kafka's cleaner moves it whenever it removes a record
    position and checksum of some earlier batches     for changes that do not move the last batch

`root` is a folder with a subfolder of indexes for each partition; without it, indexes are in the partition's directory.

A wrong index that passed these checks could hide the record that supersedes another. It could not make a clean remove a
wrong record: every candidate is compared by the bytes of its key.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from cordwood.common.errors import CorruptFileError, RequestError
from cordwood.fs.base import OWNER_WRITES, FileInfo, LocalFileSystem, ReadableFile, Store, TargetStore
from cordwood.fs.workspace import is_within, remove_tree
from cordwood.kernels.layout import HEADER, HEADER_BYTES, LEGACY_HEADER, MAGIC_AT, PREFIX_BYTES
from cordwood.storage.formats.filenames import (
    Temporary,
    index_folder,
    key_index_path,
    parse_key_index,
)
from cordwood.storage.formats.key_index import HEADER as INDEX_HEADER
from cordwood.storage.formats.key_index import KeyIndex, crc_of_header, decode, decode_header, encode
from cordwood.storage.log.files import make_work_folder, read_file
from cordwood.storage.log.segment import Segment

#: Number of batches to compare with the segment, besides the last one.
_SAMPLES = 64


def secret_of_most(fs: Store, partition: str, root: str | None = None) -> bytes | None:
    """Return the most frequent secret of a partition's indexes, valid or not; None without indexes."""
    secrets = Counter(_secret(fs, info.name) for _, info in indexes_in(fs, partition, root))
    del secrets[None]
    return max(secrets, key=lambda secret: secrets[secret], default=None)


def _secret(fs: Store, path: str) -> bytes | None:
    try:
        with fs.open(path) as file:
            return decode_header(file.read(0, INDEX_HEADER.itemsize), path).secret
    except (OSError, CorruptFileError):
        return None


def has_index(segment: Segment, secret: bytes | None) -> bool:
    """Return whether a segment has an index with this secret, without comparing the index with the log."""
    return secret is not None and _secret(segment.fs, segment.key_index_path) == secret


def write_index(fs: LocalFileSystem, partition: str, index: KeyIndex, root: str | None = None) -> None:
    """Write the index of a segment, replacing an existing one.

    The bytes are synced before the file gets its name. Only the owner of the log can read the file. The file and new
    folders belong to that owner, because the broker could not delete the partition otherwise.
    """
    path = key_index_path(partition, index.header.base_offset, root)
    owner = None if root is not None and not fs.exists(partition) else fs.stat(partition)
    folder = _make_folder(fs, partition, root, owner)
    beside = _beside(fs, path)
    create_index(fs, beside, index)
    _own(fs, beside, owner, is_elsewhere=root is not None)
    fs.rename(beside, path)
    fs.sync_directory(folder)


def _beside(fs: LocalFileSystem, path: str) -> str:
    """Return the temporary path for a file that is later renamed to `path`; remove an old file at this path."""
    beside = f"{path}{Temporary.TMP}"
    if fs.exists(beside):
        fs.unlink(beside)  # do not follow a link that somebody has put there
    return beside


def create_index(fs: TargetStore, path: str, index: KeyIndex) -> None:
    """Write and sync an index to a new file that only its owner can read."""
    with fs.create(path, mode=OWNER_WRITES) as file:
        at = 0
        for part in encode(index):
            file.write(at, part)
            at += len(part)
        file.sync()


def take_over_indexes(fs: LocalFileSystem, partition: str, paths: Sequence[str], root: str | None = None) -> None:
    """Move files from `create_index` into a partition's index folder.

    Call this after the segments that they describe are in place.
    """
    if not paths:
        return
    owner = fs.stat(partition)
    folder = _make_folder(fs, partition, root, owner)
    for path in paths:
        new = f"{folder}/{posixpath.basename(path)}"
        if root is not None:
            # The source may be on another disk, so copy it.
            path = _copied(fs, path, _beside(fs, new))
        _own(fs, path, owner, is_elsewhere=root is not None)
        fs.rename(path, new)
    fs.sync_directory(folder)


def _copied(fs: LocalFileSystem, path: str, beside: str) -> str:
    try:
        fs.copy(path, beside, mode=OWNER_WRITES)
        fs.sync_file(beside)
    except OSError:
        with contextlib.suppress(OSError):
            fs.unlink(beside)
        raise
    return beside


def _make_folder(fs: LocalFileSystem, partition: str, root: str | None, owner: FileInfo | None) -> str:
    folder = index_folder(partition, root)
    if fs.exists(folder):
        return folder
    if root is None:
        work = make_work_folder(fs, partition)
        _own(fs, work, owner)
        fs.make_directory(folder)
        _own(fs, folder, owner)
        fs.sync_directory(work)
        fs.sync_directory(partition)
    else:
        if not fs.exists(root):
            fs.make_directory(root)
        fs.make_directory(folder)
        _own(fs, folder, owner, is_elsewhere=True)
        fs.sync_directory(root)
    return folder


def _own(fs: LocalFileSystem, path: str, owner: FileInfo | None, *, is_elsewhere: bool = False) -> None:
    """Give a file to the owner of a log; outside the log's directory ignore a lack of permission."""
    info = fs.stat(path)
    if owner is not None and (info.uid, info.gid) != (owner.uid, owner.gid):
        with contextlib.suppress(*[PermissionError] if is_elsewhere else []):
            fs.set_owner(path, owner.uid, owner.gid)


def read_index(segment: Segment) -> KeyIndex:
    """Read the index of a segment, if it is valid.

    Raises:
        OSError: the index is missing or unreadable.
        CorruptFileError: it is torn, or does not match the segment.
    """
    path = segment.key_index_path
    index = decode(read_file(segment.fs, path), path)
    with segment.open() as file:
        check_identity(index, segment, file, path)
    return index


def check_identity(index: KeyIndex, segment: Segment, file: ReadableFile, path: str) -> None:
    """Raise unless an index matches the segment; this reads the index's arrays of batches.

    Args:
        file: the segment's `.log`.

    Raises:
        CorruptFileError: the index does not match the segment.
    """
    if what := _difference(index, segment, file):
        raise CorruptFileError(f"not the index of the segment as it is now: {what}", path=path)


def _difference(index: KeyIndex, segment: Segment, file: ReadableFile) -> str:
    """Compare an index with its segment by a few reads. Return a description of the first difference, or ""."""
    header = index.header
    if header.base_offset != segment.base_offset:
        return f"its base offset is {header.base_offset}"
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


def indexes_in(fs: Store, partition: str, root: str | None = None) -> Iterator[tuple[int, FileInfo]]:
    """Yield the key indexes of a partition, valid or not, with the base offsets of their segments."""
    folder = index_folder(partition, root)
    for info in fs.list(folder) if fs.exists(folder) else ():
        base_offset = parse_key_index(info.name)
        if base_offset is not None:
            yield base_offset, replace(info, name=f"{folder}/{info.name}")


def forget_indexes(fs: LocalFileSystem, partition: str, segments: Collection[int], root: str | None = None) -> None:
    """Remove the indexes of segments that are about to be replaced, and sync the removal.

    So even after a crash, a new segment never has the index of an old one.
    """
    gone = [info.name for base_offset, info in indexes_in(fs, partition, root) if base_offset in segments]
    for path in gone:
        fs.unlink(path)
    if gone:
        fs.sync_directory(index_folder(partition, root))


def limit_indexes(fs: LocalFileSystem, partition: str, bytes_max: int, root: str | None = None) -> None:
    """Remove the indexes of the newest segments, so that a partition's indexes take at most `bytes_max` together."""
    taken = 0
    for _, info in sorted(indexes_in(fs, partition, root), key=lambda found: found[0]):
        taken += info.size_bytes
        if taken > bytes_max:
            fs.unlink(info.name)


def remove_indexes(fs: LocalFileSystem, partition: str, but: Collection[int] = (), root: str | None = None) -> int:
    """Remove the indexes of a partition, except for some segments, and an empty folder; return the number removed."""
    gone = [info for base_offset, info in indexes_in(fs, partition, root) if base_offset not in but]
    for info in gone:
        fs.unlink(info.name)
    folder = index_folder(partition, root)
    if not but and fs.exists(folder):
        if root is None:
            remove_tree(fs, folder)
        else:
            # A folder named by the user may hold other files.
            for info in fs.list(folder):
                if (
                    info.name.endswith(Temporary.TMP)
                    and parse_key_index(info.name.removesuffix(Temporary.TMP)) is not None
                ):
                    fs.unlink(f"{folder}/{info.name}")
            with contextlib.suppress(OSError):
                fs.remove_directory(folder)
    return len(gone)


def check_root(fs: Store, root: str | None, partitions: Collection[str]) -> None:
    """Raise if the folder for indexes is within a log directory, or if two partitions would share a subfolder of it.

    Raises:
        RequestError: the folder cannot hold the indexes of all these partitions.
    """
    if root is None:
        return
    first: dict[str, str] = {}
    for partition in partitions:
        directory = posixpath.dirname(fs.real_path(partition))
        if is_within(fs.real_path(root), directory):
            raise RequestError(f"{root} is in {directory}, which may hold logs only. Name a folder elsewhere")
        other = first.setdefault(index_folder(partition, root), partition)
        if other != partition:
            what = f"{other} and {partition} have the same name, so they would share the key indexes in {root}"
            raise RequestError(f"{what}. Name one log directory at a time, each with a folder of its own")
