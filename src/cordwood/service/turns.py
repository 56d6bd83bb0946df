"""Readers let appends go first.

Python runs one thread of a process at a time. A thread that appends releases the interpreter at each write. To get it
back it competes with all readers, each of which may keep it for 5 ms (`sys.getswitchinterval`), and the longest waiter
is not preferred: beside eight busy readers an append took up to a second. So a reader that finds an append in progress
sleeps for a moment before its next batch, once. The interpreter is one per process, and so are these turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

#: Long enough for the readers' own turns to be over, and short beside a read from disk.
_GIVE_WAY_SECONDS = 0.0005
#: An entry for each append in progress. Both calls on it are atomic.
_appending: list[None] = []


class Appending:
    """A `with` block that readers give way to."""

    def __enter__(self) -> None:
        _appending.append(None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _appending.pop()


def give_way(sleep: Callable[[float], object] = time.sleep) -> None:
    """Called by a reader before each read: sleep for a moment if an append is in progress."""
    if _appending:
        sleep(_GIVE_WAY_SECONDS)
