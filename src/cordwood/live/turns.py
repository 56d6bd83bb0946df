"""Makes readers give way to appends.

Python runs one thread of a process at a time. A thread that appends releases the interpreter at each write. To get it
back it competes with all readers, each of which may keep it for 5 ms (`sys.getswitchinterval`), and the longest waiter
is not preferred: beside eight busy readers an append took up to a second. So during an append a reader sleeps before
its next batch, in proportion to its CPU time since its last sleep and to the number of sleeping readers. One reader
uses about a quarter of the time, and eight not much more. There is one interpreter per process, so these variables are
global.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: CPU time after which a reader sleeps, and the most CPU time that counts: after 5 ms Python switches threads anyway.
_TURN_SECONDS, _TURN_SECONDS_MAX = 0.0002, 0.005
#: Seconds of sleep per second of CPU time and per sleeping reader.
_SHARE = 3
#: An entry for each append in progress, and for each sleeping reader. All calls on these lists are atomic.
_appending: list[None] = []
_sleeping: list[None] = []
#: `begin_append(None)` and `end_append()`: readers give way between these two calls.
begin_append, end_append = _appending.append, _appending.pop


class _Reader(threading.local):
    """CPU seconds of a thread at its last sleep."""

    since = 0.0


_reader = _Reader()


def give_way(sleep: Callable[[float], object] = time.sleep) -> None:
    """Sleep if an append is in progress and this reader has used its turn; readers call this before each batch."""
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
