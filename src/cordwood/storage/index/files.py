"""The key index of a segment as a file: it appears whole or not at all, and is used only if it matches the segment.

The presence of a file proves nothing: it may be torn, and it may not belong to the segment (`storage.index.identity`).
An invalid index counts as missing.

`root` is a folder with a subfolder of indexes for each partition; without it, indexes are in the partition's directory.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from cordwood.common.errors import CorruptFileError, RequestError
from cordwood.fs.base import OWNER_WRITES, FileInfo, LocalFileSystem, Store, TargetStore
from cordwood.fs.workspace import is_within, remove_tree
from cordwood.storage.formats.filenames import (
    Temporary,
    index_folder,
    is_key_index,
    key_index_name,
    parse_key_index,
)
from cordwood.storage.formats.key_index import HEADER as INDEX_HEADER
from cordwood.storage.formats.key_index import KeyIndex, decode, decode_header, encode
from cordwood.storage.index.identity import check_identity, settle
from cordwood.storage.log.files import make_work_folder, read_file
from cordwood.storage.log.segment import Segment


def secret_of_most(fs: Store, partition: str, root: str | None = None) -> bytes | None:
    """Return the most frequent secret of a partition's indexes, valid or not; None without indexes.

    Those of segments in a tier count, too, if they are on the disk.
    """
    folder = index_folder(partition, root)
    names = [info.name for info in fs.list(folder)] if fs.exists(folder) else []
    secrets = Counter(_secret(fs, f"{folder}/{name}") for name in names if is_key_index(name))
    del secrets[None]
    return max(secrets, key=lambda secret: secrets[secret], default=None)


def _secret(fs: Store, path: str) -> bytes | None:
    try:
        with fs.open(path) as file:
            file.expect_random_reads()
            return decode_header(file.read(0, INDEX_HEADER.itemsize), path).secret
    except (OSError, CorruptFileError):
        return None


def has_index(segment: Segment, secret: bytes | None) -> bool:
    """Return whether a segment has an index with this secret, without comparing the index with the log."""
    return secret is not None and _secret(segment.fs, segment.key_index_path) == secret


def write_index(
    fs: LocalFileSystem, partition: str, index: KeyIndex, root: str | None = None, name: str | None = None
) -> None:
    """Write the index of a segment, replacing an existing one.

    The bytes are synced before the file gets its name. Only the owner of the log can read the file. The file and new
    folders belong to that owner, because the broker could not delete the partition otherwise.

    Args:
        name: its name; None for that of a segment on the disk.
    """
    path = f"{index_folder(partition, root)}/{name or key_index_name(index.header.base_offset)}"
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
    """Move files from `create_index` into a partition's index folder, with their identities completed.

    Call this after the segments that they describe are in place.
    """
    if not paths:
        return
    settle(fs, partition, paths)
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
    check_identity(index, segment, path)
    return index


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
