"""How much work an action is, counted and not timed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType

from cordwood.common.types import override
from cordwood.fs.base import FileInfo
from cordwood.fs.wrapped import WrappedFileSystem


class CountedListings(WrappedFileSystem):
    """Counts the listings of directories."""

    listings = 0

    @override
    def list(self, path: str) -> Sequence[FileInfo]:
        self.listings += 1
        return super().list(path)


def calls_of(act: Callable[[], object]) -> int:
    """How many calls of Python functions an action makes: a measure of its work that no load of the machine changes."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return calls
