"""A file system that checks every few MiB whether its user may continue.

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
#: Minimum interval between two looks at the folder, each of which costs a system call.
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class _Checking:
    """A pace that runs a check before each piece."""

    check: Check
    piece_bytes: int = 4 << 20

    def wait_for(self, _: int) -> None:
        """Run the check."""
        self.check()


def checked(store: TargetStore, check: Check) -> TargetStore:
    """Return a store that runs a check for every few MiB it reads or writes."""
    return PacedTargetStore(store, lambda: _Checking(check))


@dataclass(frozen=True, slots=True)
class WantedLocation:
    """The location of a file system, for a task whose result is wanted as long as a folder exists.

    Attributes:
        folder: every read and write fails with FileNotFoundError soon after this folder was removed.
    """

    location: Location[TargetStore]
    folder: str

    @property
    def in_this_process(self) -> bool:
        """Same as for the location below it."""
        return self.location.in_this_process

    def open(self) -> TargetStore:
        """Open the file system, with the check."""
        fs, folder, looked = self.location.open(), self.folder, 0.0

        def check() -> None:
            nonlocal looked
            now = time.monotonic()
            if now - looked >= _LOOK_SECONDS:
                looked = now
                if not fs.exists(folder):
                    raise FileNotFoundError(errno.ENOENT, "It was removed: the task's result is unwanted", folder)

        return checked(fs, check)
