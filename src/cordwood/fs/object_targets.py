"""Object stores to make a directory in: complete with its manifest, or absent (`fs.manifest`).

An object is written whole or not at all, and cannot be changed. So a created file is an unnamed temporary file of this
machine, which disappears if the process is killed. `sync` or `close` uploads it, and `close` frees its space here.
Every object has the CRC-32C of its bytes and the modification time of its original as metadata.

A rename copies the object and deletes the old one, so it is only for files that no other process reads: the files of a
directory before it is published.

    begin      put the run's object if absent. If another run's object exists, and that run is dead, replace it on the
               condition that no other run has replaced it, and then remove the leftovers of the dead run
    work       tasks write below `.cordwood/RUN/`; only this process renames files to their final names
    publish    check that every file is as it was written; put the manifest if absent; remove the run's object

A run that was wrongly considered dead notices this when it publishes, as the run's object belongs to another run. Then
it does not write its manifest, or removes it; if it is killed in between, the manifest lists missing objects.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import posixpath
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import crc32c

from cordwood.common.errors import CorruptFileError, LockedError, RequestError, StoreError
from cordwood.common.types import override
from cordwood.fs.base import Bytes, File, FileInfo, PutMode, ReadableFile, Target, TargetStore, refuse_lock_file
from cordwood.fs.manifest import MANIFEST, OWN_NAMES, RUN, WORK, CopiedFile, Manifest
from cordwood.fs.object_requests import Patience, answer, client_of, normal_url, place_of
from cordwood.fs.objects import ObjectLocation, ObjectStore
from cordwood.fs.posix import PosixFile
from cordwood.fs.wrapped import WrappedFile

if TYPE_CHECKING:
    from obstore import Attributes, PutResult

#: Size of a read while a file is copied to or from a store, and of the parts of a large upload.
_PIECE_BYTES = 8 << 20
#: Maximum number of parts of one object in flight, and of files copied concurrently.
_PARTS_AT_ONCE, _COPIES_AT_ONCE = 2, 4
#: Metadata keys of an object. Stores keep metadata when they copy an object.
_CRC, _MTIME = "cordwood-crc32c", "cordwood-mtime-ns"


@dataclass(frozen=True, slots=True)
class ObjectTargetsLocation(ObjectLocation):
    """The location of all object stores, to make directories in."""

    @override
    def open(self) -> ObjectTargetStore:
        return ObjectTargetStore(self.patience, self.run)


class ObjectTargetStore(ObjectStore, TargetStore):
    """The object stores of URLs, for reading and for making directories in."""

    def __init__(self, patience: Patience | None = None, run: str = "") -> None:
        super().__init__(patience, run)
        self._changes = threading.Lock()
        #: Files open for writing, by URL.
        self._staged: dict[str, _StagedFile] = {}
        #: Acquired for each copy: a large file needs memory for several parts.
        self._limited_room = threading.Semaphore(_COPIES_AT_ONCE)
        #: Objects that this process wrote or renamed, by URL.
        self._written: dict[str, CopiedFile] = {}

    @override
    def location(self) -> ObjectTargetsLocation:
        return ObjectTargetsLocation(self.patience, self.run)

    @override
    def target(self, path: str, sources: Sequence[str]) -> Target:
        return ObjectCopy(self, self.written, path, sources)

    @override
    def list(self, path: str) -> Sequence[FileInfo]:
        return [self._as_written(path, info) for info in super().list(path)]

    @override
    def stat(self, path: str) -> FileInfo:
        return self._as_written(posixpath.dirname(path.rstrip("/")), super().stat(path))

    def _as_written(self, directory: str, info: FileInfo) -> FileInfo:
        written = self._written.get(f"{directory.rstrip('/')}/{info.name}")
        if written is None or info.is_directory:
            return info
        return replace(info, mtime_ns=written.mtime_ns)

    # ---- writing -----------------------------------------------------------------------------------------------------

    @override
    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:
        refuse_lock_file(path)
        path = normal_url(path)
        if exclusive and self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        staged = _StagedFile(path, self._upload_staged, self._forget_staged)
        with self._changes:
            self._staged[path] = staged
        return staged

    def _upload_staged(self, file: _StagedFile) -> None:
        def pieces() -> Iterator[bytes]:
            return (file.read(at, _PIECE_BYTES) for at in range(0, file.size(), _PIECE_BYTES))

        # Store the checksum with the object, for the process that renames it later.
        crc = 0
        for piece in pieces():
            crc = crc32c.crc32c(piece, crc)
        self._upload(file.path, pieces(), file.size(), file.mtime_ns, crc)

    def _forget_staged(self, file: _StagedFile) -> None:
        with self._changes:
            if self._staged.get(file.path) is file:
                del self._staged[file.path]

    def _upload(
        self, path: str, pieces: Iterator[bytes], size_bytes: int, mtime_ns: int | None, crc: int | None = None
    ) -> None:
        """Write an object from pieces of `size_bytes` in total, with their checksum as metadata if it is known."""
        import obstore

        path = normal_url(path)
        bucket, key = place_of(path)
        sent_crc = sent_bytes = 0

        def counted() -> Iterator[bytes]:
            nonlocal sent_crc, sent_bytes
            for piece in pieces:
                sent_crc = crc32c.crc32c(piece, sent_crc)
                sent_bytes += len(piece)
                yield piece
            if sent_bytes != size_bytes:
                # An error abandons the parts sent so far, as the object would be incomplete.
                raise OSError(errno.EIO, f"{sent_bytes} bytes came from a file of {size_bytes}", path)

        attributes = {_CRC: crc, _MTIME: mtime_ns}
        known: Attributes = {name: str(value) for name, value in attributes.items() if value is not None}
        self.forget(path)
        client = client_of(bucket, self.patience)

        def sent() -> PutResult:
            if size_bytes <= _PIECE_BYTES:
                return obstore.put(client, key, b"".join(counted()), attributes=known, use_multipart=False)
            return obstore.put(
                client, key, counted(), attributes=known, chunk_size=_PIECE_BYTES, max_concurrency=_PARTS_AT_ONCE
            )

        put = answer(path, sent)
        if crc is not None and crc != sent_crc:
            raise OSError(errno.EIO, "the file changed while it was uploaded", path)
        mtime_ns = time.time_ns() if mtime_ns is None else mtime_ns
        self._written[path] = CopiedFile(path, size_bytes, sent_crc, mtime_ns, put["e_tag"])

    def copy_in(self, source: ReadableFile, target: str) -> None:
        """Upload an open file."""
        with self._limited_room:
            self._upload(target, _pieces_of(source), source.size(), None)

    @override
    def copy(self, source: str, target: str, *, mode: int = 0o666) -> None:
        # Through this process, not within the store, to compute the checksum of the bytes that a reader gets.
        with self.open(source) as original:
            self.copy_in(original, target)

    def copy_out(self, source: str, target: File) -> None:
        """Download an object to a new file.

        Raises:
            CorruptFileError: its checksum differs from the one in the copy's manifest.
        """
        listed = self.copied_file(source)
        crc = position = 0
        with self.open(source) as original:
            for piece in _pieces_of(original):
                target.write(position, piece)
                position += len(piece)
                crc = crc32c.crc32c(piece, crc)
            if position != original.size():
                raise StoreError(f"{position} of {original.size()} bytes came", source)
        if listed is not None and crc != listed.crc32c:
            what = f"its bytes have the CRC-32C {crc:#010x}, and had {listed.crc32c:#010x} when the copy was made"
            raise CorruptFileError(what, path=source)

    @override
    def rename(self, source: str, target: str) -> None:
        import obstore

        source, target = normal_url(source), normal_url(target)
        if source == target:
            return
        (bucket, key), (target_bucket, target_key) = place_of(source), place_of(target)
        if bucket != target_bucket:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source)
        written = self._written.get(source) or self._read_back(source)
        client = client_of(bucket, self.patience)
        self.forget(target)
        answer(source, lambda: obstore.copy(client, key, target_key))
        meta = answer(source, lambda: obstore.head(client, target_key))
        if meta["size"] != written.size_bytes:
            what = f"the store made a copy of {meta['size']} bytes of an object of {written.size_bytes}"
            raise StoreError(what, target)
        self._written[target] = replace(written, path=target, e_tag=meta["e_tag"])
        self.unlink(source)

    def _read_back(self, path: str) -> CopiedFile:
        """Read size, checksum, time and ETag of an object that another process wrote."""
        import obstore

        bucket, key = place_of(path)
        client = client_of(bucket, self.patience)
        found = answer(path, lambda: obstore.get(client, key, options={"head": True}))
        attributes, meta = found.attributes, found.meta
        values = {str(name).lower(): str(value) for name, value in attributes.items()}
        if _CRC in values:
            crc = int(values[_CRC])
        else:  # the store kept no metadata
            with self.open(path) as file:
                crc = functools.reduce(lambda crc, piece: crc32c.crc32c(piece, crc), _pieces_of(file), 0)
        mtime_ns = int(values[_MTIME]) if _MTIME in values else self.stat(path).mtime_ns
        return CopiedFile(path, int(meta["size"]), crc, mtime_ns, meta["e_tag"])

    def written(self, path: str) -> CopiedFile:
        """Return size, checksum, time and ETag of an object of this process's copy."""
        return self._written.get(path) or self._read_back(path)

    @override
    def delete(self, path: str) -> None:
        self._written.pop(normal_url(path), None)
        super().delete(path)

    @override
    def delete_all(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._written.pop(normal_url(path), None)
        super().delete_all(paths)

    @override
    def unlink(self, path: str) -> None:
        self.delete(path)

    @override
    def set_mtime_ns(self, path: str, mtime_ns: int) -> None:
        path = normal_url(path)
        with self._changes:
            if (staged := self._staged.get(path)) is not None:
                staged.set_mtime_ns(mtime_ns)
                return
        # An object's metadata cannot be changed; the manifest will contain the time.
        self._written[path] = replace(self.written(path), mtime_ns=mtime_ns)

    @override
    def sync_file(self, path: str) -> None:
        """Do nothing: an object is durable as soon as it can be read."""

    @override
    def make_directory(self, path: str, *, mode: int = 0o777) -> None:
        """Do nothing: a directory exists as long as it contains an object."""

    @override
    def remove_directory(self, path: str) -> None:
        if self.list_with_tags(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)


def _pieces_of(file: ReadableFile) -> Iterator[bytes]:
    return (file.read(at, _PIECE_BYTES) for at in range(0, file.size(), _PIECE_BYTES))


class _StagedFile(WrappedFile):
    """A file of this machine, until it is complete and uploaded.

    Attributes:
        mtime_ns: modification time of the future object; None for the time of its upload.
    """

    def __init__(self, path: str, upload: Callable[[_StagedFile], None], forget: Callable[[_StagedFile], None]) -> None:
        # Without a name, so that the system removes it even if this process is killed.
        with tempfile.TemporaryFile(prefix="cordwood-") as file:
            name = f"{tempfile.gettempdir()} (a file that waits for its upload)"
            super().__init__(PosixFile(name, os.dup(file.fileno())))
        self.path = path
        self.mtime_ns: int | None = None
        self._upload = upload
        self._forget = forget
        self._is_uploaded = False
        self._is_closed = False

    def set_mtime_ns(self, mtime_ns: int) -> None:
        """Set the modification time of the future object; durable after `sync`."""
        self.mtime_ns = mtime_ns
        self._is_uploaded = False

    @override
    def write(self, position: int, data: Bytes) -> None:
        self._is_uploaded = False
        self._file.write(position, data)

    @override
    def truncate(self, size_bytes: int) -> None:
        self._is_uploaded = False
        self._file.truncate(size_bytes)

    @override
    def write_back(self, position: int, size_bytes: int) -> None:
        """Do nothing: the local copy need not be on disk."""

    @override
    def sync(self) -> None:
        if not self._is_uploaded:
            self._upload(self)
            self._is_uploaded = True

    @override
    def close(self) -> None:
        try:
            if not self._is_closed:
                self.sync()
        finally:
            self._is_closed = True
            self._forget(self)
            self._file.close()


# ---- a directory in the making ---------------------------------------------------------------------------------------

#: Runs of this process that are in progress.
_at_work: set[str] = set()


class ObjectCopy(Target):
    """A new directory in an object store, made in its final place.

    Tasks write their progress to a folder of this machine.
    """

    def __init__(
        self, objects: ObjectStore, written: Callable[[str], CopiedFile], target: str, sources: Iterable[str]
    ) -> None:
        """Check that the target is not within a source.

        Args:
            written: returns the facts of a file that was written to the new directory.
        """
        self._objects, self._written = objects, written
        self._progress = tempfile.TemporaryDirectory(prefix="cordwood-clean-", ignore_cleanup_errors=True)
        self.progress = self._progress.name
        self.target = self.path = self.data = objects.real_path(target)
        self._run = secrets.token_hex(8)
        self.outputs = f"{self.target}/{WORK}/{self._run}"
        self._is_published = False
        for source in sources:
            one, other = f"{self.target}/", f"{normal_url(source)}/"
            if one.startswith(other) or other.startswith(one):
                raise RequestError(f"{self.target} cannot be made there: {source} is only read. Name a place beside it")

    @override
    def __enter__(self) -> Self:
        self._begin()
        _at_work.add(self._run)
        try:
            self._remove_all(but=RUN)
        except BaseException as error:
            self._give_up(error)
            raise
        return self

    @override
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.cleanup()
        if not self._is_published:
            self._give_up(error)

    # ---- begin -------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Register this run as the maker of the directory.

        Raises:
            RequestError: the target is not empty.
            LockedError: another run makes it.
        """
        self._objects.run = self._run
        names = {info.name for info, _ in self._objects.list_with_tags(self.target)}
        if MANIFEST in names or (names and RUN not in names):
            raise RequestError(f"{self.target} exists and is not empty; give a new place for the copy")
        path = f"{self.target}/{RUN}"
        mine = {
            "run": self._run,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started_ms": time.time_ns() // 10**6,
        }
        data = json.dumps(mine).encode()
        try:
            self._objects.put(path, data, PutMode.CREATE)
            return
        except FileExistsError:
            pass
        tags = {info.name: tag for info, tag in self._objects.list_with_tags(self.target)}
        if RUN not in tags:
            raise LockedError(f"{self.target} is being made by another run, which has just ended. Start again")
        _check_dead(self.target, self._objects.content(path))
        if not self._objects.put_if_unchanged(path, data, tags[RUN]):
            raise LockedError(f"{self.target} is being made by another run, which has just started")

    def _is_mine(self) -> bool:
        path = f"{self.target}/{RUN}"
        self._objects.forget(path)
        try:
            return self._run.encode() in self._objects.content(path)
        except FileNotFoundError:
            return False

    # ---- publish -----------------------------------------------------------------------------------------------------

    @override
    def publish(self) -> None:
        lost = f"{self.target} was taken over by another run, which took this one for dead. Nothing of this run counts"
        if not self._is_mine():
            raise LockedError(lost)
        manifest = Manifest(self._run, tuple(sorted(self._files(self.target), key=lambda file: file.path)))
        path = f"{self.target}/{MANIFEST}"
        try:
            self._objects.put(path, manifest.encode(), PutMode.CREATE)
        except FileExistsError:
            raise LockedError(lost) from None
        if not self._is_mine():
            self._objects.delete(path)
            raise LockedError(lost)
        self._is_published = True
        _at_work.discard(self._run)
        # From here on the copy is complete; leftovers that cannot be removed do no harm.
        with contextlib.suppress(OSError, StoreError):
            self._remove(f"{self.target}/{WORK}")
            self._objects.delete(f"{self.target}/{RUN}")

    def _files(self, directory: str) -> Iterator[CopiedFile]:
        """Yield the files of the directory; raise OSError unless each object is as it was written."""
        for info, tag in self._objects.list_with_tags(directory):
            path = f"{directory}/{info.name}"
            if directory == self.target and info.name in OWN_NAMES:
                continue
            if info.is_directory:
                yield from self._files(path)
                continue
            written = self._written(path)
            if (info.size_bytes, tag) != (written.size_bytes, written.e_tag):
                raise OSError(f"{path} has changed since this run wrote it: another program writes to {self.target}")
            yield replace(written, path=posixpath.relpath(path, self.target))

    # ---- remove ------------------------------------------------------------------------------------------------------

    def _give_up(self, error: BaseException | None = None) -> None:
        """Remove the objects of this run, its own object last. Do not hide the error that ended the run."""
        _at_work.discard(self._run)
        try:
            if self._is_mine():
                self._remove_all(but=RUN)
                self._objects.delete(f"{self.target}/{RUN}")
        except (OSError, StoreError):
            if error is None:
                raise
            error.add_note(f"{self.target} has objects of this run; they do not count, and the next run removes them")

    def _remove_all(self, *, but: str) -> None:
        for info, _ in self._objects.list_with_tags(self.target):
            if info.is_directory:
                self._remove(f"{self.target}/{info.name}")
            elif info.name != but:
                self._objects.delete(f"{self.target}/{info.name}")

    def _remove(self, directory: str) -> None:
        for info, _ in self._objects.list_with_tags(directory):
            path = f"{directory}/{info.name}"
            if info.is_directory:
                self._remove(path)
            else:
                with contextlib.suppress(FileNotFoundError):
                    self._objects.delete(path)


def _check_dead(target: str, data: bytes) -> None:
    """Raise LockedError if a run is alive on this machine; a run on another machine cannot be checked, and counts as
    dead.
    """
    try:
        found: Any = json.loads(data)
        run, host, pid = str(found["run"]), str(found["host"]), int(found["pid"])
    except (ValueError, KeyError, TypeError):
        return
    if host != socket.gethostname() or (pid == os.getpid() and run not in _at_work):
        return
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return
    except PermissionError:
        pass
    raise LockedError(
        f"{target} is being made by another run, with pid {pid} on this machine. "
        f"If that is not a run of Cordwood any more, remove {target}/{RUN}"
    )
