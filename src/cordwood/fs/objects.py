"""Object stores: Amazon S3 and compatible ones, Google Cloud Storage, Azure Blob Storage; read as a `Store`.

A path is a URL, such as `s3://bucket/backup/orders-0/00000000000000000000.log`. A directory is there as long as an
object is in it. docs/object-stores.md describes paths and credentials.

    list       one request per 1,000 names, with `/` as the delimiter
    stat       the object's head; a directory takes a listing, too
    open       nothing, if its directory was listed, else the object's head. Every read asks for the ETag that the
               object had then: an object that is replaced in between is an error, never a mixture of two
    read       ranges of at most `PART_BYTES`, several at a time; sequential reads are prefetched, and with
               a small file those that are beside it and of its kind

A request is repeated, with pauses that get longer, when the server answers with an error of its own (5xx), does not
answer at all, or cuts a body off. An answer of another length than was requested is an error. A store that failed is a
StoreError, which is no OSError: a handler for missing or unreadable files must not catch it.

A request is done by a thread of its own. Its caller waits only a few seconds more once the process is told to end; a
signal would otherwise have no effect until the library gives up.
"""

from __future__ import annotations

import calendar
import contextlib
import errno
import functools
import math
import os
import posixpath
import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from cordwood.errors import NotFoundError, RequestError, StoreAccessError, StoreError
from cordwood.fs.base import Bytes, FileInfo, PutMode, ReadableFile, Store, refuse_lock_file, view_of
from cordwood.fs.location import Location
from cordwood.fs.manifest import (
    MANIFEST,
    MANIFEST_BYTES_MAX,
    OWN_NAMES,
    RUN,
    CopiedFile,
    Manifest,
    decode,
    differences,
)
from cordwood.threads import ending
from cordwood.types import override

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore as Client

T = TypeVar("T")

#: The most bytes that one request asks for.
PART_BYTES = 4 << 20
#: The least: a request takes about as long for one byte.
_FIRST_BYTES = 64 << 10
#: How far sequential reads are prefetched.
_AHEAD_BYTES = 12 << 20
#: A large read is done in steps, so that no more than this is in memory beside the reader's own buffer.
_STEP_BYTES = 8 << 20
#: Directories whose listing is remembered, and bytes of small files that are.
_LISTINGS, _SMALL_BYTES = 64, 16 << 20
#: Small files that are asked for with one of their kind, from there on by name.
_SIBLINGS = 64
#: A copy holds log directories, or disks with them: so far above a partition may its manifest be.
_COPY_DEPTH = 3
#: Requests that are under way at once, of all files of a process.
_REQUESTS = 16
#: Codes with which S3 refuses access.
_REFUSALS = frozenset(["AccessDenied", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"])
#: More than fit into any time.
_RETRIES_MAX = 1_000_000
#: Permissions that a copy of an object or a directory gets, less the umask of its process.
_FILE_MODE, _DIRECTORY_MODE = 0o666, 0o777

#: The usual variables for an S3-like server other than Amazon's.
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")

#: A user's name or a password before the bucket, or a parameter that grants access. No name of a bucket has a colon.
_SECRET = re.compile(
    r"^[a-z0-9]+://[^/]*@|^(s3|s3a|s3n|gs|az):/+[^/]*:|^[a-z0-9]+://.*[?&][^=&/]*(secret|token|sig|key|credential|password)[^=&/]*=",
    re.DOTALL | re.IGNORECASE,
)
_URL = re.compile(r"(s3|gs|az|memory):(?:/{0,2}|//([^/]+)(?:/(.*))?)", re.DOTALL)


#: Entries of a directory, each object with its ETag.
Listed = list[tuple[FileInfo, str | None]]


class Place(NamedTuple):
    """Where an object is: its bucket as a URL (`s3://bucket`), and its key there, which is empty for the bucket."""

    bucket: str
    key: str


def is_object_url(path: str) -> bool:
    """Whether a path is in an object store."""
    return _URL.fullmatch(path) is not None


def refuse_secrets(path: str) -> None:
    """Refuse a URL that holds credentials, and do not repeat them: paths are printed, logged and seen by others."""
    if _SECRET.match(path):
        raise RequestError(
            f"{path.partition(':')[0]}://…: a URL must not hold credentials, because paths are printed and logged. "
            "Give them in the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and take those in this "
            "URL for known to others"
        )


def place_of(path: str) -> Place:
    """The bucket and the key of a URL.

    Raises:
        NotFoundError: the URL names no bucket.
        RequestError: it holds credentials.
    """
    refuse_secrets(path)
    match = _URL.fullmatch(path)
    if match is None or match[2] is None:
        raise NotFoundError(f"{path} names no bucket: write it as s3://BUCKET/PATH, gs://BUCKET/PATH or az://…")
    return Place(f"{match[1]}://{match[2]}", "/".join(part for part in (match[3] or "").split("/") if part))


def normal_url(path: str) -> str:
    """The URL without slashes that have no name between or behind them."""
    bucket, key = place_of(path)
    return f"{bucket}/{key}" if key else bucket


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a request is repeated that fails for the server's sake.

    Attributes:
        first_pause_ms: before the first of them; each later pause is up to twice as long as the one before.
        retry_seconds: no attempt starts later than that.
        timeout_seconds: of one attempt, from the connection to the last byte.
    """

    first_pause_ms: int = 100
    longest_pause_ms: int = 15_000
    retry_seconds: int = 180
    timeout_seconds: float = 60


#: How long an answer is waited for once the process is told to end, and how soon that is noticed.
_LAST_SECONDS, _LOOK_SECONDS = 3, 0.2


# ---- requests --------------------------------------------------------------------------------------------------------

#: The stores of `memory://` URLs, which last as long as the process.
_memory: dict[str, Client] = {}


def client_of(bucket: str, patience: Patience) -> Client:
    """What speaks to a bucket; the same one for a process, as long as its environment names the same server."""
    endpoint = next(filter(None, map(os.environ.get, _ENDPOINTS)), "")
    return _client_of(os.getpid(), bucket, endpoint, patience)


@functools.lru_cache(maxsize=64)
def _client_of(_process: int, bucket: str, endpoint: str, patience: Patience) -> Client:
    # Imported late: it starts threads of its own, which a process that forks must not have.
    from obstore.store import MemoryStore, from_url

    if bucket.startswith("memory:"):
        return _memory.setdefault(bucket, MemoryStore())
    plain = endpoint.startswith("http://")
    with explained(bucket):
        return from_url(
            bucket,
            # Without encryption only if such an address was given, or the usual variable asks for it.
            client_options={
                "timeout": timedelta(seconds=patience.timeout_seconds),
                "allow_http": plain or os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true"),
            },
            retry_config={
                "max_retries": _RETRIES_MAX,  # the time is what counts
                "retry_timeout": timedelta(seconds=patience.retry_seconds),
                "backoff": {
                    "init_backoff": timedelta(milliseconds=patience.first_pause_ms),
                    "max_backoff": timedelta(milliseconds=patience.longest_pause_ms),
                    "base": 2,
                },
            },
        )


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    """Turn the library's errors into Python's own, with the path and one line of what the server said."""
    from obstore import exceptions

    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
    except exceptions.PreconditionError:
        raise StoreError("was replaced while it was read. Do it again once nothing writes there", path) from None
    except exceptions.AlreadyExistsError:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise StoreAccessError(f"the object store refuses access: {_brief(error)}", path) from None
    except exceptions.BaseError as error:
        if _code(error) in _REFUSALS:  # the library knows only those of requests for one object
            raise StoreAccessError(f"the object store refuses access: {_code(error)}", path) from None
        if _code(error) == "NoSuchBucket":
            raise FileNotFoundError(errno.ENOENT, "there is no such bucket", path) from None
        raise StoreError(f"the object store failed: {_brief(error)}", path) from None


def _code(error: BaseException) -> str | None:
    """The code in the body of an answer of S3; the library has an exception of its own for some of them only."""
    found = re.search("<Code>([A-Za-z]+)</Code>", str(error))
    return None if found is None else found[1]


def _brief(error: BaseException) -> str:
    """The first line of an error, without the queries of URLs: they may hold a signature."""
    lines = str(error).splitlines()
    words = re.sub(r"(://[^\s?]*)\?\S*|, max_retries: \S+ retry_timeout: \S+", r"\1", lines[0] if lines else "")
    return words.strip()[:300] or type(error).__name__


def answer(path: str, request: Callable[[], T]) -> T:
    """What a server answers; its errors are Python's own.

    Raises:
        StoreError: it failed, or the process is told to end before it answers.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(request())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="cordwood-request", daemon=True).start()
    with explained(path):
        return result_of(future, path)


def result_of(future: Future[T], path: str) -> T:
    """The result of a request; see `answer`."""
    gives_up = math.inf
    while not wait([future], _LOOK_SECONDS).done:
        if ending.is_set():
            gives_up = min(gives_up, time.monotonic() + _LAST_SECONDS)
        if time.monotonic() > gives_up:
            raise StoreError("the run was told to end before the object store answered", path)
    return future.result()


def patiently(patience: Patience, path: str, request: Callable[[], T]) -> T:
    """Do a request, again and again if the body of its answer is cut off: the library repeats only reads for that."""
    ends, pause = time.monotonic() + patience.retry_seconds, patience.first_pause_ms / 1000
    while True:
        try:
            return answer(path, request)
        except StoreError as error:
            if "response body" not in str(error) or time.monotonic() + pause > ends:
                raise
        time.sleep(pause)
        pause = min(2 * pause, patience.longest_pause_ms / 1000)


@functools.lru_cache(maxsize=1)
def _threads(_process: int) -> ThreadPoolExecutor:
    """Threads for requests, of a process; a forked one gets others."""
    return ThreadPoolExecutor(_REQUESTS, thread_name_prefix="cordwood-objects")


# ---- the store -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """All object stores, with the credentials of the process that opens the location."""

    patience: Patience
    run: str = ""

    @property
    def in_this_process(self) -> bool:
        """Never: every process that has credentials sees the same objects."""
        return False

    def open(self) -> ObjectStore:
        """The stores."""
        return ObjectStore(self.patience, self.run)


class ObjectStore(Store):
    """The object stores that URLs lead to.

    A copy that Cordwood made is held against its manifest, from which its files also have their times.

    Args:
        run: of this process; its own unfinished copy may be read.
    """

    def __init__(self, patience: Patience | None = None, run: str = "") -> None:
        self.patience = patience or Patience()
        self.run = run
        #: What is known of directories above those that were listed: the manifest there, or None.
        self._manifests: dict[str, Manifest | None] = {}
        self._lock = threading.Lock()
        #: By directory: its objects as they were listed last.
        self._listings: OrderedDict[str, dict[str, ObjectMeta]] = OrderedDict()
        #: Contents of small files, by path and ETag.
        self._small: OrderedDict[tuple[str, str | None], Future[memoryview]] = OrderedDict()

    @property
    @override
    def concurrency(self) -> int:
        return _REQUESTS

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
            advice = "This copy is not what it was when it was made. Make it again"
            raise OSError(errno.EIO, f"its manifest does not fit: {what}. {advice}", path)
        return [_with_time(info, files.get(info.name)) for info, _ in entries if info.name not in OWN_NAMES]

    def _files_of_copy(self, path: str, names: frozenset[str] | None) -> Mapping[str, CopiedFile | None] | None:
        """What a directory must hold, if it belongs to a finished copy of ours; None: it does not.

        Args:
            names: what it holds; None: that is not known.

        Raises:
            RequestError: it belongs to a copy that is not finished.
        """
        if not self._place(path).bucket:
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
        """The manifest that lies in a directory, if one does."""
        if root in self._manifests:
            return self._manifests[root]
        manifest = None
        if names is None:
            try:
                names = frozenset(info.name for info, _ in self.list_with_tags(root))
            except StoreAccessError:
                names = frozenset()  # who may read a directory need not see what it is in
        if MANIFEST in names:
            manifest = decode(self.content(f"{root}/{MANIFEST}"), f"{root}/{MANIFEST}")
        elif RUN in names and not (self.run and self.run.encode() in self.content(f"{root}/{RUN}")):
            raise RequestError(
                f"{root} is a copy that is not finished: it has no manifest ({MANIFEST}), so its files do not count. "
                "The run that makes it is still at work, or was killed. The same clean, started again, removes what "
                "is left there and makes the copy anew"
            )
        self._manifests[root] = manifest
        return manifest

    def is_finished_copy(self, path: str) -> bool:
        """Whether a directory is of a copy that Cordwood made and finished.

        Raises:
            RequestError: the copy is not finished.
        """
        return self._files_of_copy(path, None) is not None

    def copied_file(self, path: str) -> CopiedFile | None:
        """What the manifest of its copy says of a file; None: it is in no copy of ours."""
        directory, name = posixpath.split(normal_url(path))
        return (self._files_of_copy(directory, None) or {}).get(name)

    def content(self, path: str) -> bytes:
        """A small object of ours, which is there."""
        with self.open(path) as file:
            if file.size() > MANIFEST_BYTES_MAX:
                raise OSError(errno.EFBIG, "more bytes than a manifest ever has", path)
            return file.read(0, file.size())

    def list_with_tags(self, path: str) -> Sequence[tuple[FileInfo, str | None]]:
        """The entries of a directory, each object with its ETag; nothing where there is no directory."""
        import obstore

        bucket, key = self._place(path)
        if not bucket:
            return []
        client = client_of(bucket, self.patience)
        found = patiently(self.patience, path, lambda: obstore.list_with_delimiter(client, key or None))
        entries: Listed = [(_directory(posixpath.basename(prefix)), None) for prefix in found["common_prefixes"]]
        # Some consoles make an object for a directory itself.
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
            self.list_with_tags(path)  # or there is no such bucket
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
        """There is no object of that name: the directory that has it, if one does.

        Raises:
            StoreError: the store lists such an object. Not FileNotFoundError, which a reader takes for a file that a
                broker has deleted, and goes on without.
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
        meta = listed.get(name) or self._head(path)
        if meta is None:
            return None
        whole = self._small_file(path, meta) if meta["size"] <= _FIRST_BYTES else None
        if whole is not None:
            self._ask_for_siblings(parent, name, listed)
        return _ObjectFile(path, meta, self.patience, whole)

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
            # A request whose answer got lost is repeated, and finds what it wrote.
            if not self._is(path, whole):
                raise

    def put_if_unchanged(self, path: str, data: bytes, e_tag: str | None) -> bool:
        """Replace an object; return False if it is not the object with this ETag any more."""
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
        """An object changes: what was listed with it counts no more."""
        with self._lock:
            self._listings.pop(posixpath.dirname(normal_url(path)), None)

    def _listed(self, directory: str) -> dict[str, ObjectMeta]:
        with self._lock:
            return self._listings.get(normal_url(directory), {}) if self._place(directory).bucket else {}

    def _small_file(self, path: str, meta: ObjectMeta) -> Future[memoryview]:
        """The content of a file that takes one request, which is under way."""
        key = (path, meta["e_tag"])
        with self._lock:
            known = self._small.get(key)
            if known is None or (known.done() and known.exception() is not None):
                known = self._small[key] = _asked(path, meta, 0, int(meta["size"]), self.patience)
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
    def absolute_path(self, path: str) -> str:
        return normal_url(path)

    def _place(self, path: str) -> Place:
        """As `place_of`; both parts are empty for what is above all buckets."""
        try:
            return place_of(path)
        except NotFoundError:
            return Place("", "")

    def _head(self, path: str) -> ObjectMeta | None:
        """What the store says of an object; None without one."""
        import obstore

        bucket, key = self._place(path)
        if not key:
            return None
        try:
            client = client_of(bucket, self.patience)
            return answer(path, lambda: obstore.head(client, key))
        except FileNotFoundError:
            return None


def _directory(name: str) -> FileInfo:
    return FileInfo(name, 0, 0, is_directory=True, mode=_DIRECTORY_MODE)


def _file(meta: ObjectMeta) -> FileInfo:
    name = posixpath.basename(meta["path"])
    return FileInfo(name, meta["size"], _ns(meta["last_modified"]), is_directory=False, mode=_FILE_MODE)


def _with_time(info: FileInfo, file: CopiedFile | None) -> FileInfo:
    return info if file is None else replace(info, mtime_ns=file.mtime_ns)


def _ns(moment: datetime) -> int:
    """Nanoseconds since the epoch; as a float they would not be exact."""
    return calendar.timegm(moment.utctimetuple()) * 1_000_000_000 + moment.microsecond * 1_000


# ---- an open object --------------------------------------------------------------------------------------------------


class _Block(NamedTuple):
    """A range of an object that was asked for: from `start` up to `end`."""

    start: int
    end: int
    data: Future[memoryview]


class _ObjectFile(ReadableFile):
    """An object, as it was when it was opened."""

    def __init__(self, path: str, meta: ObjectMeta, patience: Patience, whole: Future[memoryview] | None) -> None:
        self.path = path
        self._meta = meta
        self._size = int(meta["size"])
        self._patience = patience
        #: All of a small file, which others may read, too.
        self._whole = whole
        self._is_closed = False
        #: Held by a reader: what follows is one reader's view of what is under way.
        self._lock = threading.Lock()
        #: Adjacent ranges, in order.
        self._blocks: deque[_Block] = deque()
        #: Where the last read ended, and how far ahead of a reader ranges are asked for.
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
        """Fill the target, which ends within the object."""
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
        # The reader of a window that ends within a batch steps back to where the batch starts.
        follows = self._end_of_last_read - _STEP_BYTES <= position <= self._end_of_last_read + _FIRST_BYTES
        self._ahead_bytes = min(_AHEAD_BYTES, max(2 * self._ahead_bytes, end - position)) if follows else 0
        while blocks and (blocks[0].end <= position or blocks[0].start > position):
            blocks.popleft().data.cancel()
        start = blocks[-1].end if blocks else position
        until = min(self._size, max(end + self._ahead_bytes, position + _FIRST_BYTES))
        # Ahead, only whole parts are asked for, or the end.
        while start < end or until - start >= PART_BYTES or (start < until == self._size):
            stop = min(start + PART_BYTES, max(until, end))
            blocks.append(_Block(start, stop, _asked(self.path, self._meta, start, stop, self._patience)))
            start = stop


def _asked(path: str, meta: ObjectMeta, start: int, end: int, patience: Patience) -> Future[memoryview]:
    """A range of an object, in one of the threads."""
    if start == end:
        nothing: Future[memoryview] = Future()
        nothing.set_result(memoryview(b""))
        return nothing
    return _threads(os.getpid()).submit(_get, path, meta, start, end, patience)


def _get(path: str, meta: ObjectMeta, start: int, end: int, patience: Patience) -> memoryview:
    """The bytes of a range, from the server."""
    import obstore

    bucket, key = place_of(path)
    try:
        with explained(path):
            options: GetOptions = {"range": (start, end), "if_match": meta["e_tag"]}
            data = memoryview(obstore.get(client_of(bucket, patience), key, options=options).bytes())
    except FileNotFoundError:
        # Not FileNotFoundError, which a reader takes for a file that a broker has deleted.
        raise StoreError("the object store listed this object, and does not find it now", path) from None
    if len(data) != end - start:
        raise StoreError(f"the object store sent {len(data)} of {end - start} bytes from position {start} on", path)
    return data
