"""A live log that is open in its tier: its newest committed state, and the lock for changes.

A thread holds the lock while it changes the log's segments in the tier, or replaces segments that wait for a copy.
"""

from __future__ import annotations

import itertools
import logging
import threading
from dataclasses import dataclass, field

from cordwood.common.types import NONE, TopicPartition
from cordwood.live.log import Log
from cordwood.live.remote_tail import RemoteTail
from cordwood.live.segment import LogSegment
from cordwood.storage.index.in_tier import TierKeyIndexes
from cordwood.storage.tier.aiven import AivenLayout
from cordwood.storage.tier.generations import FencedError, Generations
from cordwood.storage.tier.manifest import TierState

_log = logging.getLogger(__name__)


@dataclass
class TieredLog:
    """A log that is open in its tier.

    Attributes:
        key_indexes: the key indexes of its segments in the tier.
        failures: failed attempts since the last success.
        failing_since_ms: time of the first of them.
        fenced: another writer has claimed the log.
        is_settled: it is known whether the last commit succeeded.
    """

    log: Log
    layout: AivenLayout
    generations: Generations
    remote: RemoteTail
    key_indexes: TierKeyIndexes
    failures: int = 0
    failing_since_ms: int = NONE
    next_attempt_ms: int = 0
    last_error: str = ""
    fenced: bool = False
    copied_bytes: int = 0
    copied_segments: int = 0
    deleted_segments: int = 0
    is_settled: bool = True
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def partition(self) -> TopicPartition:
        """The log's partition."""
        return TopicPartition(self.state.partition.topic, self.state.partition.partition)

    @property
    def state(self) -> TierState:
        """The newest committed state."""
        return self.remote.state

    def commit(self, state: TierState) -> None:
        """Commit a state; readers use it from now on.

        Raises:
            FencedError: another writer has claimed the log.
            StoreError, OSError: the tier failed; the state before still counts, or the next attempt finds this one.
        """
        self.is_settled = False
        self.remote.state = self.generations.commit(state)
        self.is_settled = True

    def settle(self) -> None:
        """Commit the newest known state again if a failed commit may have succeeded.

        Call it before segments that wait for a copy are replaced: the tier may name copies of them, and the next
        opening would find other segments beside these copies.

        Raises:
            FencedError, StoreError, OSError: see `commit`.
        """
        if not self.is_settled:
            self.commit(self.state)

    def fence(self, error: FencedError) -> None:
        """Take no more changes: another writer has claimed the log."""
        self.fenced, self.last_error = True, str(error)
        _log.error("%s", error)
        self.log.refuse_changes()

    def waiting(self) -> list[tuple[LogSegment, int]]:
        """Return the closed segments that are not copied yet, each with the base offset of the next one."""
        segments, end = self.log.log_segments, self.remote.copied_end
        pairs = itertools.pairwise(segments)
        return [(one, following.base_offset) for one, following in pairs if following.base_offset > end]
