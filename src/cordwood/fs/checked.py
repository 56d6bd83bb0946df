"""A file system that asks, every few MiB, whether its user may go on.

A clean that is aborted stops at its next read or write. A task in another process cannot be notified; it checks for a
folder that is removed once the task's result is no longer wanted.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass

from cordwood.fs.base import TargetStore
from cordwood.fs.location import Location
from cordwood.fs.paced import PacedTargetStore

#: Called repeatedly; raises once its caller must stop.
Check = Callable[[], None]
#: A look at a folder costs a system call, so that it is not done for every few bytes.
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class _Checking:
    """A pace that asks before each piece."""

    check: Check
    piece_bytes: int = 4 << 20

    def wait_for(self, _: int) -> None:
        """Ask."""
        self.check()


def checked(store: TargetStore, check: Check) -> TargetStore:
    """A store on which every read and write of a few MiB is asked for."""
    return PacedTargetStore(store, lambda: _Checking(check))


@dataclass(frozen=True, slots=True)
class WantedLocation:
    """Where a file system is, for a task whose result is wanted as long as a folder is there.

    Attributes:
        folder: every read and write fails with FileNotFoundError soon after it was removed.
    """

    location: Location[TargetStore]
    folder: str

    @property
    def in_this_process(self) -> bool:
        """As the location below it."""
        return self.location.in_this_process

    def open(self) -> TargetStore:
        """The file system."""
        fs, folder, looked = self.location.open(), self.folder, 0.0

        def check() -> None:
            nonlocal looked
            now = time.monotonic()
            if now - looked >= _LOOK_SECONDS:
                looked = now
                if not fs.exists(folder):
                    raise FileNotFoundError(errno.ENOENT, "It was removed: the task's result is unwanted", folder)

        return checked(fs, check)
