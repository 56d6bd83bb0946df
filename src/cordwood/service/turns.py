"""Readers let appends go first.

Python runs one thread of a process at a time. A thread that appends releases the interpreter at each write. To get it
back it competes with all readers, each of which may keep it for 5 ms (`sys.getswitchinterval`), and the longest waiter
is not preferred: beside eight busy readers an append took up to a second. So a reader that finds an append in progress
sleeps before its next batch, in proportion to what it has computed since it slept last and to how many readers sleep.
One reader takes about a quarter of the time, and eight not much more. The interpreter is one per process, and so are
these turns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: How long a reader computes before it sleeps, and the longest time that counts: the system switches threads then.
_TURN_SECONDS, _TURN_SECONDS_MAX = 0.0002, 0.005
#: How long it sleeps for each second that it has computed, and for each reader that sleeps.
_SHARE = 3
#: An entry for each append in progress, and for each reader that sleeps. All calls on them are atomic.
_appending: list[None] = []
_sleeping: list[None] = []
#: `begin_append(None)` and `end_append()`: in between, readers give way.
begin_append, end_append = _appending.append, _appending.pop


class _Reader(threading.local):
    """What a thread had computed, in CPU seconds, when it slept last."""

    since = 0.0


_reader = _Reader()


def give_way(sleep: Callable[[float], object] = time.sleep) -> None:
    """Called by a reader before each batch: sleep, if an append is in progress and it has had its turn."""
    if not _appending:
        return
    now = time.thread_time()
    turn = min(now - _reader.since, _TURN_SECONDS_MAX)
    if turn < _TURN_SECONDS:
        return
    _sleeping.append(None)
    try:
        sleep(turn * _SHARE * len(_sleeping))
    finally:
        _sleeping.pop()
        _reader.since = now
