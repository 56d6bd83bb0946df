"""A writer for `cordwood run --demo`: appends to three topics, one of each policy, without pause."""

from __future__ import annotations

import random
import threading

from cordwood.common.errors import LogError
from cordwood.common.types import TopicPartition
from cordwood.live.log_manager import LogManager

_USERS, _ORDERS, _SESSIONS = "demo-users", "demo-orders", "demo-sessions"
#: Small limits, so that something happens every few seconds.
DEMO_CONFIGS = (
    f"{_USERS}:cleanup.policy=compact",
    f"{_SESSIONS}:cleanup.policy=compact,delete",
    f"{_ORDERS}:cleanup.policy=delete",
    f"{_ORDERS}:retention.bytes=8388608",
    f"{_SESSIONS}:retention.ms=60000",
    f"{_USERS}:delete.retention.ms=10000",
    "segment.bytes=1048576",
    "file.delete.delay.ms=1000",
    "log.cleaner.backoff.ms=1000",
    "log.initial.task.delay.ms=1000",
    "log.retention.check.interval.ms=2000",
    "log.segment.delete.delay.ms=1000",
)
_PARTITIONS = 2
_USERS_COUNT = 2_000
_PAUSE_SECONDS = 0.1


class DemoWriter:
    """Appends to the demo's topics in its own thread."""

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._write, name="demo-writer", daemon=True)

    def start(self) -> None:
        """Create the topics and start writing."""
        self._thread.start()

    def stop(self) -> None:
        """Stop writing."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _write(self) -> None:
        chosen = random.Random(0)
        logs = [
            self._manager.get_or_create_log(TopicPartition(topic, number), is_new=True)
            for topic in (_USERS, _ORDERS, _SESSIONS)
            for number in range(_PARTITIONS)
        ]
        while not self._stopping.wait(_PAUSE_SECONDS):
            for log in logs:
                pairs = [self._pair(chosen) for _ in range(100)]
                try:
                    log.append(pairs)
                except LogError:
                    return  # the disk has failed, and the log reports it

    @staticmethod
    def _pair(chosen: random.Random) -> tuple[str, str | None]:
        key = f"user-{chosen.randrange(_USERS_COUNT)}"
        return key, None if chosen.random() < 0.02 else chosen.randbytes(250).hex()
