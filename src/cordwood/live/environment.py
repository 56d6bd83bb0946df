"""The inputs for loading a log: the objects it shares with its manager's other logs, and its checkpointed offsets."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from cordwood.common.clock import Clock
from cordwood.fs.base import LocalFileSystem
from cordwood.live.failures import LogDirFailureChannel
from cordwood.live.metrics import LogStats
from cordwood.live.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class ProducerLimits:
    """Limits for producers and transactions."""

    expiration_ms: int = 86_400_000
    expiration_check_interval_ms: int = 600_000
    transaction_max_timeout_ms: int = 900_000
    transaction_verification: bool = True


@dataclass(frozen=True, slots=True)
class LogEnvironment:
    """The objects that the logs of a manager share.

    Attributes:
        failures: takes a log directory offline after an I/O error.
    """

    fs: LocalFileSystem
    clock: Clock
    scheduler: Scheduler
    failures: LogDirFailureChannel
    limits: ProducerLimits = field(default_factory=ProducerLimits)
    stats: LogStats = field(default_factory=LogStats)
    random: Random = field(default_factory=Random)


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """A log's entries in the checkpoints of its log directory, and whether it was closed properly."""

    log_start_offset: int = 0
    recovery_point: int = 0
    clean_shutdown: bool = True
