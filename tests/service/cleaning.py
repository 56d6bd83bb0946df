"""One clean of a live log, without a cleaner around it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from cordwood.fs.base import LocalFileSystem
from cordwood.service.clean import CleanedLog, LiveClean, run_here
from cordwood.service.cleaner_manager import LogToClean


def clean_log(
    fs: LocalFileSystem, found: LogToClean, now_ms: int, check: Callable[[], None], *, strict_kafka: bool = False
) -> CleanedLog:
    """Clean a live log, as a thread of the cleaner does it; `check` raises once the clean has to stop."""

    @contextlib.contextmanager
    def changing() -> Iterator[None]:
        check()
        yield

    with LiveClean(fs, found, now_ms, check, strict_kafka=strict_kafka) as clean:
        check()
        outcome = run_here(clean.task, check)
        check()
        return clean.finish(outcome, changing)
