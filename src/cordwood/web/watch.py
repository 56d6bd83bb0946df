"""The look at a node that pages show: begun at the start, and again when a page is asked for and the last one is old.

A look takes from milliseconds to minutes. Pages never wait for one: they show how far the first has come, and the last
complete one while another is under way.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from cordwood.clock import Clock, monotonic_clock
from cordwood.commands.view import NodeLook, OnLook, Step
from cordwood.threads import in_background

#: A look counts as old after so many times as long as it took, and not before so many milliseconds.
_OLD_AFTER, _OLD_AFTER_MS = 10, 10_000

_log = logging.getLogger(__name__)


class Watch:
    """Looks in the background, one look at a time."""

    def __init__(self, look: Callable[[OnLook], NodeLook], first: NodeLook, clock: Clock = monotonic_clock) -> None:
        """Nothing is looked at yet.

        Args:
            look: takes a look, and tells how far it has come.
            first: what is shown before anything is known.
        """
        self._look = look
        self._clock = clock
        self._lock = threading.Lock()
        self._latest = first
        self._is_looking = False
        self._old_at_ms = 0

    def start(self) -> None:
        """Begin to look, unless a look is under way."""
        with self._lock:
            if self._is_looking:
                return
            self._is_looking = True
        in_background(self._run, "look")

    def latest(self) -> NodeLook:
        """What is known now."""
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
            self._old_at_ms = now + max(_OLD_AFTER_MS, _OLD_AFTER * (now - began))
            self._latest = found

    def _show(self, look: NodeLook) -> None:
        self._latest = look


def _stopped(look: NodeLook) -> NodeLook:
    """What is known of a node whose look has failed."""
    step = look.step or Step.LS
    return replace(look, step=None, failures={**look.failures, step: "the log of this program says what failed"})
