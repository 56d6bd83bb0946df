"""Make a directory in an object store: complete with its manifest, or absent; see `cordwood.fs.manifest`.

    begin      put the run's object if absent. If another run's object exists, and that run is dead, replace it on the
               condition that no other run has replaced it, and then remove the leftovers of the dead run
    work       tasks write below `.cordwood/RUN/`; only this process renames files to their final names
    publish    check that every file is as it was written; put the manifest if absent; remove the run's object

A run that was wrongly considered dead notices this when it publishes, as the run's object belongs to another run. Then
it does not write its manifest, or removes it; if it is killed in between, the manifest lists missing objects.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from cordwood.common.errors import LockedError, RequestError, StoreError
from cordwood.common.types import override
from cordwood.fs.base import PutMode, Target
from cordwood.fs.manifest import MANIFEST, OWN_NAMES, RUN, WORK, CopiedFile, Manifest
from cordwood.fs.object_requests import normal_url
from cordwood.fs.objects import ObjectStore

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
                raise OSError(f"{path} is not what was written: somebody else writes to {self.target}")
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
            error.add_note(f"{self.target} holds what this run wrote; it does not count, and the next run removes it")

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
