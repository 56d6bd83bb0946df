"""A progress line during long work, if stderr is a terminal: the finished part and the remaining time."""

from __future__ import annotations

import sys
import time
from typing import Self

from cordwood.common.text import bytes_text

_EVERY_SECONDS = 0.2
_AFTER_SECONDS = 2.0


class Line:
    """A line that appears once work takes long, and disappears after the `with` block."""

    def __init__(self) -> None:
        self._enabled = sys.stderr.isatty()
        self._width = 0
        self._started = self._shown = time.monotonic()

    def due_seconds(self) -> float | None:
        """Return the elapsed time if the line should be shown now, else None."""
        now = time.monotonic()
        seconds = now - self._started
        if not self._enabled or seconds < _AFTER_SECONDS or now - self._shown < _EVERY_SECONDS:
            return None
        self._shown = now
        return seconds

    def show(self, line: str) -> None:
        """Replace the line."""
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove the line, if it is shown."""
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0


class LogProgress(Line):
    """The line while logs are scanned one by one."""

    def update(self, done: int, total: int) -> None:
        """Report that `done` of `total` logs were scanned."""
        seconds = self.due_seconds()
        if seconds is not None:
            self.show(f"{done:,} of {total:,} logs, {seconds * (total - done) / done:,.0f} s left")


class Progress(Line):
    """The line while a command works: bytes read and speed. It appears at once."""

    def __init__(self) -> None:
        super().__init__()
        self._total = 0
        self._started = self._shown = 0.0

    def begin(self, what: object, size_bytes: int) -> None:
        """Announce the work and the number of bytes it will read."""
        self._total = size_bytes
        self._started = 0.0
        if self._enabled:
            self.show(f"{what}; starting")

    def of(self, done: int, total: int) -> None:
        """Report that `done` of `total` bytes are processed."""
        self._total = total
        self.update(done)

    def update(self, done: int) -> None:
        """Report the number of bytes read."""
        now = time.monotonic()
        if not self._enabled or not done or now - self._shown < _EVERY_SECONDS:
            return
        self._started = self._started or now
        self._shown = now
        # The total is an estimate; don't show a wrong figure for the last bytes.
        part = done / max(self._total, 1)
        seconds = now - self._started
        if part >= 0.99:
            self.show(f" 99% of {bytes_text(self._total)}; finishing")
            return
        rate = f", {bytes_text(round(done / seconds))}/s" if seconds > 1 else ""
        self.show(f"{part:4.0%} of {bytes_text(self._total)}{rate}{_left(seconds, part)}")

    def update_part(self, what: str, part: float) -> None:
        """Report the finished part of `what`, from 0 to 1."""
        now = time.monotonic()
        self._started = self._started or now
        if not self._enabled or now - self._shown < _EVERY_SECONDS:
            return
        self._shown = now
        seconds = now - self._started
        self.show(f"{what}: {part:4.0%}{_left(seconds, part)}")


def _left(seconds: float, part: float) -> str:
    """Estimate the remaining time from the elapsed time and the finished part; empty while it is too early."""
    return f", {seconds * (1 - part) / part:,.0f} s left" if seconds > 1 and part > 0 else ""
