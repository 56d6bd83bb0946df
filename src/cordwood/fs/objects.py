"""Object stores: Amazon S3 and compatible ones, Google Cloud Storage, Azure Blob Storage; read as a `Store`.

A path is a URL, such as `s3://bucket/backup/orders-0/00000000000000000000.log`. A directory exists as long as it
contains an object. docs/object-stores.md describes paths and credentials.

    list       one request per 1,000 names, with `/` as the delimiter
    stat       the object's head; a directory also needs a listing
    open       no request if its directory was listed, else the object's first 64 KiB
    read       ranges, several at a time and ahead of a sequential reader; a small file also prefetches its siblings of
               the same type

Every read requires the ETag that the object had when it was opened: if the object is replaced meanwhile, reading fails
instead of mixing two objects. An answer of another length than requested is an error, too.
"""

from __future__ import annotations

import calendar
import contextlib
import errno
import functools
import os
import posixpath
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from cordwood.common.errors import NotFoundError, RequestError, StoreAccessError, StoreError
from cordwood.common.types import override
from cordwood.fs.base import Bytes, FileInfo, PutMode, ReadableFile, Store, refuse_lock_file, view_of
from cordwood.fs.location import Location
from cordwood.fs.manifest import (
    MANIFEST,
    MANIFEST_BYTES_MAX,
    OWN_NAMES,
    RUN,
    TIER_FOLDER,
    CopiedFile,
    Manifest,
    decode,
    differences,
)
from cordwood.fs.object_requests import (
    ObjectPlace,
    Patience,
    answer,
    client_of,
    explained,
    normal_url,
    patiently,
    place_of,
    result_of,
)

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta

#: Number of small files to prefetch with one of the same type: the next ones by name.
_SIBLINGS = 64
#: Maximum depth of a directory below its manifest: a copy contains log directories, or disks with log directories, and
#: partitions contain key indexes.
_COPY_DEPTH = 5
#: Permissions of a copied object or directory, before the umask of the process.
_FILE_MODE, _DIRECTORY_MODE = 0o666, 0o777

#: Entries of a directory, each object with its ETag.
_Listed = list[tuple[FileInfo, str | None]]


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """The location of all object stores; each process opens it with its own credentials."""

    patience: Patience
    run: str = ""

    @property
    def in_this_process(self) -> bool:
        """False: every process with credentials sees the same objects."""
        return False

    def open(self) -> ObjectStore:
        """Open the stores."""
        return ObjectStore(self.patience, self.run)


class ObjectStore(Store):
    """The object stores of URLs.

    Copies made by Cordwood are compared with their manifests, which also provide the times of their files.

    Args:
        run: id of this process's run; its own unfinished copy may be read.
    """

    def __init__(self, patience: Patience | None = None, run: str = "") -> None:
        self.patience = patience or Patience()
        self.run = run
        #: The manifest of each directory that was checked, or None if it has none.
        self._manifests: dict[str, Manifest | None] = {}
        self._lock = threading.Lock()
        #: Objects of each directory at its last listing.
        self._listings: OrderedDict[str, dict[str, ObjectMeta]] = OrderedDict()
        #: Contents of small files, by path and ETag.
        self._small: OrderedDict[tuple[str, str | None], Future[memoryview]] = OrderedDict()

    @property
    @override
    def concurrency(self) -> int:
        return REQUESTS

    @override
    def reads_by_request(self, path: str) -> bool:
        return True

    @override
    def location(self) -> Location[Store]:
        return ObjectLocation(self.patience, self.run)

    @override
    def list(self, path: str) -> Sequence[FileInfo]:
        entries = self.list_with_tags(path)
        files = self._files_of_copy(path, frozenset(info.name for info, _ in entries))
        if files is None:
            return [info for info, _ in entries]
        there = [(info.name, info.size_bytes, tag) for info, tag in entries if not info.is_directory]
        directories = [info.name for info, _ in entries if info.is_directory]
        for what in differences(files, there, directories):
            advice = "This copy has changed since it was made. Make it again"
            raise OSError(errno.EIO, f"its manifest does not fit: {what}. {advice}", path)
        # In a partition's copy, key indexes may be in a folder with the same name as our work folder.
        hidden = OWN_NAMES - files.keys()
        return [_with_time(info, files.get(info.name)) for info, _ in entries if info.name not in hidden]

    def _files_of_copy(self, path: str, names: frozenset[str] | None) -> Mapping[str, CopiedFile | None] | None:
        """Return the files that the manifest lists for a directory, or None outside a finished Cordwood copy.

        Args:
            names: entries of the directory, or None if they are unknown.

        Raises:
            RequestError: the directory belongs to an unfinished copy.
        """
        # The folders above a live log's manifests have many objects, and would be listed for each log that is opened.
        if not self._place(path).bucket or _is_tier_folder(path):
            return None
        root, below = normal_url(path), ""
        for _ in range(_COPY_DEPTH):
            manifest = self._manifest_in(root, names)
            if manifest is not None:
                return manifest.by_directory.get(below, {})
            above, name = posixpath.split(root)
            if not self._place(above).bucket:
                return None
            root, below, names = above, f"{name}/{below}".rstrip("/"), None
        return None

    def _manifest_in(self, root: str, names: frozenset[str] | None) -> Manifest | None:
        """Return the manifest in a directory, or None."""
        if root in self._manifests:
            return self._manifests[root]
        manifest = None
        if names is None:
            try:
                names = frozenset(info.name for info, _ in self.list_with_tags(root))
            except StoreAccessError:
                names = frozenset()  # a user may have access to a directory but not to its parents
        if MANIFEST in names:
            manifest = decode(self.content(f"{root}/{MANIFEST}"), f"{root}/{MANIFEST}")
        elif RUN in names and not (self.run and self.run.encode() in self.content(f"{root}/{RUN}")):
            raise RequestError(
                f"{root} is an unfinished copy: it has no manifest ({MANIFEST}), so its files do not count. The run "
                "that makes it is still at work, or was killed. The same clean, started again, removes these files and "
                "makes the copy again"
            )
        self._manifests[root] = manifest
        return manifest

    def is_finished_copy(self, path: str) -> bool:
        """Return whether a directory belongs to a finished Cordwood copy.

        Raises:
            RequestError: the copy is unfinished.
        """
        return self._files_of_copy(path, None) is not None

    def copied_file(self, path: str) -> CopiedFile | None:
        """Return the file's manifest entry, or None outside a Cordwood copy."""
        directory, name = posixpath.split(normal_url(path))
        return (self._files_of_copy(directory, None) or {}).get(name)

    def content(self, path: str) -> bytes:
        """Read a small object of ours, which must exist."""
        with self.open(path) as file:
            if file.size() > MANIFEST_BYTES_MAX:
                raise OSError(errno.EFBIG, "more bytes than a manifest ever has", path)
            return file.read(0, file.size())

    def list_with_tags(self, path: str) -> Sequence[tuple[FileInfo, str | None]]:
        """Return the entries of a directory, each object with its ETag; empty if there is no such directory."""
        import obstore

        bucket, key = self._place(path)
        if not bucket:
            return []
        client = client_of(bucket, self.patience)
        found = patiently(self.patience, path, lambda: obstore.list_with_delimiter(client, key or None))
        entries: _Listed = [(_directory(posixpath.basename(prefix)), None) for prefix in found["common_prefixes"]]
        # Some consoles create an object for the directory itself.
        metas = [meta for meta in found["objects"] if meta["path"] != key]
        entries += [(_file(meta), meta["e_tag"]) for meta in metas]
        with self._lock:
            self._listings[normal_url(path)] = {posixpath.basename(meta["path"]): meta for meta in metas}
            if len(self._listings) > _LISTINGS:
                self._listings.popitem(last=False)
        return sorted(entries, key=lambda entry: entry[0].name)

    @override
    def stat(self, path: str) -> FileInfo:
        bucket, key = self._place(path)
        if key and (meta := self._head(path)) is not None:
            files = self._files_of_copy(posixpath.dirname(normal_url(path)), None)
            return _with_time(_file(meta), None if files is None else files.get(posixpath.basename(key)))
        if bucket and not key:
            self.list_with_tags(path)  # fails if there is no such bucket
            return _directory(posixpath.basename(bucket))
        if (info := self._not_found(path)) is not None:
            return info
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    @override
    def exists(self, path: str) -> bool:
        try:
            self.stat(path)
        except FileNotFoundError:
            return False
        return True

    @override
    def open(self, path: str) -> ReadableFile:
        refuse_lock_file(path)
        file = self._opened(path)
        if file is not None:
            return file
        if self._not_found(path) is not None:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def _not_found(self, path: str) -> FileInfo | None:
        """Return the directory at a path that is not an object, or None if there is none either.

        Raises:
            StoreError: the store lists an object at this path. Not FileNotFoundError, which readers interpret as a file
                that a broker has deleted, and ignore.
        """
        parent, name = posixpath.split(path.rstrip("/"))
        for info, _ in self.list_with_tags(parent):
            if info.name == name and not info.is_directory:
                raise StoreError("the object store lists this object, and answers 404 when asked for it", path)
            if info.name == name:
                return info
        return None

    def _opened(self, path: str) -> ReadableFile | None:
        parent, name = posixpath.split(path.rstrip("/"))
        listed = self._listed(parent)
        meta = listed.get(name)
        if meta is None:
            return self._opened_unlisted(path)
        whole = self._small_file(path, meta) if meta["size"] <= _FIRST_BYTES else None
        if whole is not None and not _is_tier_folder(parent):
            self._ask_for_siblings(parent, name, listed)
        return _ObjectFile(path, meta, self.patience, whole)

    def _opened_unlisted(self, path: str) -> ReadableFile | None:
        """Open an object by reading its first bytes: asking for its size alone would take a request, too."""
        import obstore

        bucket, key = self._place(path)
        if not key:
            return None
        client = client_of(bucket, self.patience)

        def read() -> tuple[ObjectMeta, memoryview]:
            found = obstore.get(client, key, options={"range": (0, _FIRST_BYTES)})
            return found.meta, memoryview(found.bytes())

        try:
            meta, start = patiently(self.patience, path, read)
        except FileNotFoundError:
            return None
        except StoreError:
            found = self._head(path)
            if found is None or found["size"]:
                raise
            meta, start = found, memoryview(b"")  # an empty object has no such range
        first = Future[memoryview]()
        first.set_result(start)
        if meta["size"] <= _FIRST_BYTES:
            return _ObjectFile(path, meta, self.patience, first)
        return _ObjectFile(path, meta, self.patience, None, _Block(0, len(start), first))

    @override
    def put(self, path: str, data: Bytes, mode: PutMode = PutMode.REPLACE) -> None:
        import obstore

        bucket, key = place_of(path)
        whole = bytes(view_of(data))
        self.forget(path)
        try:
            client = client_of(bucket, self.patience)
            if mode is PutMode.CREATE:
                answer(path, lambda: obstore.put(client, key, whole, mode="create", use_multipart=False))
            else:
                answer(path, lambda: obstore.put(client, key, whole))
        except FileExistsError:
            # The library repeats a request whose answer was lost, and then finds its own object.
            if not self._is(path, whole):
                raise

    def put_if_unchanged(self, path: str, data: bytes, e_tag: str | None) -> bool:
        """Replace an object; return False if its ETag is no longer `e_tag`."""
        import obstore
        from obstore.exceptions import PreconditionError

        bucket, key = place_of(path)
        self.forget(path)
        client = client_of(bucket, self.patience)

        def put() -> bool:
            try:
                obstore.put(client, key, data, mode={"e_tag": e_tag or ""}, use_multipart=False)
            except PreconditionError:
                return False
            return True

        return answer(path, put)

    def forget(self, path: str) -> None:
        """Drop the cached listing of an object's directory, as the object is about to change."""
        with self._lock:
            self._listings.pop(posixpath.dirname(normal_url(path)), None)

    def _listed(self, directory: str) -> dict[str, ObjectMeta]:
        with self._lock:
            return self._listings.get(normal_url(directory), {}) if self._place(directory).bucket else {}

    def _small_file(self, path: str, meta: ObjectMeta) -> Future[memoryview]:
        """Return the content of a file that one request can read; the request may still be running."""
        key = (path, meta["e_tag"])
        with self._lock:
            known = self._small.get(key)
            if known is None or (known.done() and known.exception() is not None):
                known = self._small[key] = _asked_for(path, meta, 0, int(meta["size"]), self.patience)
                while len(self._small) > _SMALL_BYTES // _FIRST_BYTES:
                    self._small.popitem(last=False)
            return known

    def _ask_for_siblings(self, directory: str, name: str, listed: dict[str, ObjectMeta]) -> None:
        """Prefetch a log's other indexes: a reader of one index reads them all."""
        suffix = posixpath.splitext(name)[1]
        siblings = [one for one in sorted(listed) if one > name and one.endswith(suffix)] if suffix else []
        for one in siblings[:_SIBLINGS]:
            if listed[one]["size"] <= _FIRST_BYTES:
                self._small_file(f"{directory}/{one}", listed[one])

    def _is(self, path: str, data: bytes) -> bool:
        with self.open(path) as file:
            return file.size() == len(data) and file.read(0, len(data)) == data

    @override
    def delete(self, path: str) -> None:
        import obstore

        bucket, key = place_of(path)
        if self._head(path) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self.forget(path)
        client = client_of(bucket, self.patience)
        patiently(self.patience, path, lambda: obstore.delete(client, key))

    @override
    def delete_all(self, paths: Sequence[str]) -> None:
        import obstore

        by_bucket: dict[str, list[str]] = {}
        for path in paths:
            bucket, key = place_of(path)
            by_bucket.setdefault(bucket, []).append(key)
            self.forget(path)
        for bucket, keys in by_bucket.items():
            client = client_of(bucket, self.patience)
            for at in range(0, len(keys), _DELETED_AT_ONCE):
                some = keys[at : at + _DELETED_AT_ONCE]
                with contextlib.suppress(FileNotFoundError):  # a store may report objects that are gone already
                    patiently(self.patience, bucket, functools.partial(obstore.delete, client, some))

    @override
    def absolute_path(self, path: str) -> str:
        return normal_url(path)

    def _place(self, path: str) -> ObjectPlace:
        """Like `place_of`, but return two empty strings for a path above all buckets."""
        try:
            return place_of(path)
        except NotFoundError:
            return ObjectPlace("", "")

    def _head(self, path: str) -> ObjectMeta | None:
        """Return the object's metadata from the store, or None if it does not exist."""
        import obstore

        bucket, key = self._place(path)
        if not key:
            return None
        try:
            client = client_of(bucket, self.patience)
            return answer(path, lambda: obstore.head(client, key))
        except FileNotFoundError:
            return None


def _is_tier_folder(path: str) -> bool:
    return posixpath.basename(path.rstrip("/")) == TIER_FOLDER


def _directory(name: str) -> FileInfo:
    return FileInfo(name, 0, 0, is_directory=True, mode=_DIRECTORY_MODE)


def _file(meta: ObjectMeta) -> FileInfo:
    name = posixpath.basename(meta["path"])
    return FileInfo(name, meta["size"], _ns(meta["last_modified"]), is_directory=False, mode=_FILE_MODE)


def _with_time(info: FileInfo, file: CopiedFile | None) -> FileInfo:
    return info if file is None else replace(info, mtime_ns=file.mtime_ns)


def _ns(moment: datetime) -> int:
    """Return nanoseconds since the epoch, computed with integers, as a float is not exact."""
    return calendar.timegm(moment.utctimetuple()) * 1_000_000_000 + moment.microsecond * 1_000


# ---- an open object --------------------------------------------------------------------------------------------------

#: Maximum size of one request.
PART_BYTES = 4 << 20
#: Minimum size: a request for one byte takes about as long.
_FIRST_BYTES = 64 << 10
#: Maximum number of bytes to prefetch for sequential reads.
_AHEAD_BYTES = 12 << 20
#: A large read is divided into steps, which limits the memory used besides the reader's own buffer.
_STEP_BYTES = 8 << 20
#: Maximum number of concurrent requests, for all files of a process.
REQUESTS = 16


@functools.lru_cache(maxsize=1)
def _threads(_process: int) -> ThreadPoolExecutor:
    """Return the threads of a process for requests; a forked process gets its own."""
    return ThreadPoolExecutor(REQUESTS, thread_name_prefix="cordwood-objects")


class _Block(NamedTuple):
    """A requested range [start, end) of an object."""

    start: int
    end: int
    data: Future[memoryview]


class _ObjectFile(ReadableFile):
    """An object as it was when it was opened."""

    def __init__(
        self,
        path: str,
        meta: ObjectMeta,
        patience: Patience,
        whole: Future[memoryview] | None,
        start: _Block | None = None,
    ) -> None:
        self.path = path
        self._meta = meta
        self._size = int(meta["size"])
        self._patience = patience
        #: Content of a small file, shared with other readers.
        self._whole = whole
        self._is_closed = False
        #: Held during a read: the fields below describe the requests of one reader.
        self._lock = threading.Lock()
        #: Adjacent requested ranges, in order.
        self._blocks: deque[_Block] = deque([] if start is None else [start])
        #: End of the last read, and the number of bytes to prefetch behind a read.
        self._end_of_last_read = -1
        self._ahead_bytes = 0

    @override
    def size(self) -> int:
        self._check_open()
        return self._size

    @override
    def read_into(self, position: int, target: memoryview) -> int:
        self._check_open()
        if position < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.path)
        target = target.cast("B")
        count = max(0, min(target.nbytes, self._size - position))
        with self._lock:
            for at in range(0, count, _STEP_BYTES):
                step = target[at : min(count, at + _STEP_BYTES)]
                self._read_step(position + at, step)
        return count

    @override
    def read(self, position: int, size_bytes: int) -> bytes:
        if size_bytes < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.path)
        # The size may come from a damaged file, so it is limited before a buffer is made.
        data = bytearray(max(0, min(size_bytes, self._size - position)))
        self.read_into(position, memoryview(data))
        return bytes(data)

    @override
    def close(self) -> None:
        self._is_closed = True
        for block in list(self._blocks):
            block.data.cancel()
        self._blocks.clear()

    def _check_open(self) -> None:
        if self._is_closed:
            raise OSError(errno.EBADF, "the file is closed", self.path)

    def _read_step(self, position: int, target: memoryview) -> None:
        """Fill the target from a range within the object."""
        end = position + target.nbytes
        if self._whole is not None:
            target[:] = result_of(self._whole, self.path)[position:end]
            return
        self._ask_for(position, end)
        for block in self._blocks:
            if block.start >= end:
                break
            start, stop = max(block.start, position), min(block.end, end)
            if start < stop:
                data = result_of(block.data, self.path)
                target[start - position : stop - position] = data[start - block.start : stop - block.start]
        self._end_of_last_read = end

    def _ask_for(self, position: int, end: int) -> None:
        """Request all of a range, and bytes behind it if the file is read sequentially."""
        blocks = self._blocks
        # A reader whose window ends within a batch continues at the start of that batch.
        follows = self._end_of_last_read - _STEP_BYTES <= position <= self._end_of_last_read + _FIRST_BYTES
        self._ahead_bytes = min(_AHEAD_BYTES, max(2 * self._ahead_bytes, end - position)) if follows else 0
        while blocks and (blocks[0].end <= position or blocks[0].start > position):
            blocks.popleft().data.cancel()
        start = blocks[-1].end if blocks else position
        until = min(self._size, max(end + self._ahead_bytes, position + _FIRST_BYTES))
        # Prefetch only whole parts, or up to the end of the object.
        while start < end or until - start >= PART_BYTES or (start < until == self._size):
            stop = min(start + PART_BYTES, max(until, end))
            blocks.append(_Block(start, stop, _asked_for(self.path, self._meta, start, stop, self._patience)))
            start = stop


def _asked_for(path: str, meta: ObjectMeta, start: int, end: int, patience: Patience) -> Future[memoryview]:
    """Request a range of an object in one of the threads."""
    if start == end:
        nothing: Future[memoryview] = Future()
        nothing.set_result(memoryview(b""))
        return nothing
    return _threads(os.getpid()).submit(_get, path, meta, start, end, patience)


def _get(path: str, meta: ObjectMeta, start: int, end: int, patience: Patience) -> memoryview:
    """Read a range from the server."""
    import obstore

    bucket, key = place_of(path)
    try:
        with explained(path):
            options: GetOptions = {"range": (start, end), "if_match": meta["e_tag"]}
            data = memoryview(obstore.get(client_of(bucket, patience), key, options=options).bytes())
    except FileNotFoundError:
        # Not FileNotFoundError, which readers interpret as a file that a broker has deleted.
        raise StoreError("the object store listed this object, and does not find it now", path) from None
    if len(data) != end - start:
        raise StoreError(f"the object store sent {len(data)} of {end - start} bytes from position {start} on", path)
    return data


#: Maximum number of objects that one request deletes, as S3 allows.
_DELETED_AT_ONCE = 1000
#: Maximum number of cached directory listings, and of cached bytes of small files.
_LISTINGS, _SMALL_BYTES = 64, 16 << 20
