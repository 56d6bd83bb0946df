"""One clean of a live log, without a cleaner around it, and an abort that waits for its end.

In `with_indexes`, each clean makes key indexes, however small the segments are, and looks up records by the indexes of
earlier cleans.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from cordwood.common.types import TopicPartition
from cordwood.fs.base import LocalFileSystem
from cordwood.live.clean import CleanedLog, LiveClean, run_here
from cordwood.live.cleaner_manager import ABORTED, LogCleanerManager
from cordwood.live.log_to_clean import LogToClean

_INDEXED = [False]


def clean_log(
    fs: LocalFileSystem, found: LogToClean, now_ms: int, check: Callable[[], None], *, strict_kafka: bool = False
) -> CleanedLog:
    """Clean a live log, as a thread of the cleaner does it; `check` raises once the clean has to stop."""

    @contextlib.contextmanager
    def changing() -> Iterator[None]:
        check()
        yield

    with LiveClean(fs, found, now_ms, check, strict_kafka=strict_kafka, index=_INDEXED[0]) as clean:
        if _INDEXED[0]:
            clean.task = replace(clean.task, probing=clean.task.settings.offset_map_slots is None)
        check()
        outcome = run_here(clean.task, check)
        check()
        return clean.finish(outcome, changing)


def begin_abort(manager: LogCleanerManager, partition: TopicPartition) -> threading.Thread:
    """Put a compacted log to work, and have a thread abort that work; it waits until the work is reported done."""
    assert partition in manager.deletable_logs([partition])
    waiting = threading.Thread(target=manager.abort_and_pause_cleaning, args=(partition,), daemon=True)
    waiting.start()
    while manager.cleaning_state(partition) != ABORTED:
        time.sleep(0.001)
    return waiting
