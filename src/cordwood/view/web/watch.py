"""Scans for pages: a scan starts on demand, and again when a page is requested and the last scan is old.

A scan takes from milliseconds to minutes. The pages of the node never wait for it: they show the progress of the first
scan, and later the last complete scan while another is running. The page of a partition waits for part of a second.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace

from cordwood.common.threads import in_background
from cordwood.common.types import Clock, monotonic_clock
from cordwood.view.node_look import NodeLook, OnLook, Step
from cordwood.view.partition_look import PartitionLook

#: A scan becomes old after this multiple of its own duration, but not before this many milliseconds.
_OLD_AFTER, _OLD_AFTER_MS = 10, 10_000
#: Number of partition scans to keep, and number of partitions scanned concurrently.
_KEPT, _AT_ONCE = 16, 2
#: Time that a page waits for a partition scan.
_PATIENCE_SECONDS = 0.6

_log = logging.getLogger(__name__)


class Watch:
    """Scans a node in the background, one scan at a time."""

    def __init__(self, look: Callable[[OnLook], NodeLook], first: NodeLook, clock: Clock = monotonic_clock) -> None:
        """Prepare; `start` begins the first scan.

        Args:
            look: scans the node and reports its progress.
            first: the state before the first scan.
        """
        self._look = look
        self._clock = clock
        self._lock = threading.Lock()
        self._latest = first
        self._is_looking = False
        self._old_at_ms = 0

    def start(self) -> None:
        """Begin a scan, unless one is running."""
        with self._lock:
            if self._is_looking:
                return
            self._is_looking = True
        in_background(self._run, "look")

    def latest(self) -> NodeLook:
        """Return the latest scan; start another if it is old."""
        with self._lock:
            is_old = self._latest.is_done and self._clock() >= self._old_at_ms
        if is_old:
            self.start()
        return self._latest

    def _run(self) -> None:
        began = self._clock()
        is_first = not self._latest.is_done
        try:
            found = self._look(self._show if is_first else lambda _: None)
        except Exception:
            _log.exception("the look at the directories failed")
            found = _stopped(self._latest)
        now = self._clock()
        with self._lock:
            self._is_looking = False
            self._old_at_ms = _old_at(began, now)
            self._latest = found

    def _show(self, look: NodeLook) -> None:
        self._latest = look


def _stopped(look: NodeLook) -> NodeLook:
    """Mark the running step of a failed scan as failed."""
    step = look.step or Step.LS
    return replace(look, step=None, failures={**look.failures, step: "the log of this program says what failed"})


def _old_at(began_ms: int, ended_ms: int) -> int:
    """Return when a scan becomes old."""
    return ended_ms + max(_OLD_AFTER_MS, _OLD_AFTER * (ended_ms - began_ms))


@dataclass
class _KeptLook:
    """A partition scan, and when it becomes old, in milliseconds; None while it is running."""

    look: Future[PartitionLook]
    old_at_ms: int | None = None


class PartitionLooks:
    """Scans partitions and keeps the last few scans."""

    def __init__(self, look: Callable[[str], PartitionLook], clock: Clock = monotonic_clock) -> None:
        """Prepare; `of` begins a scan.

        Args:
            look: scans the partition in a directory.
        """
        self._look = look
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _KeptLook] = OrderedDict()

    def of(self, path: str) -> PartitionLook | None:
        """Return the scan of a partition, or None if it is still running or waits for other scans.

        Raises:
            CordwoodError, OSError: the partition cannot be scanned.
        """
        with self._lock:
            kept = self._kept.get(path)
            if kept is not None and kept.old_at_ms is not None and self._clock() >= kept.old_at_ms:
                del self._kept[path]
                kept = None
            if kept is None:
                if sum(not one.look.done() for one in self._kept.values()) >= _AT_ONCE:
                    return None
                kept = self._begin(path)
            self._kept.move_to_end(path)
        try:
            return kept.look.result(_PATIENCE_SECONDS)
        except FutureTimeoutError:
            if kept.look.done():
                raise  # the scan itself timed out
            return None

    def _begin(self, path: str) -> _KeptLook:
        began = self._clock()
        kept = self._kept[path] = _KeptLook(in_background(lambda: self._look(path), f"look at {path}"))
        kept.look.add_done_callback(lambda _: setattr(kept, "old_at_ms", _old_at(began, self._clock())))
        ended = [name for name, one in self._kept.items() if one.look.done()]
        for name in ended[: max(0, len(self._kept) - _KEPT)]:
            del self._kept[name]
        return kept
