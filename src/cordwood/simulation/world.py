"""Live logs in memory, their producers, and a clock that jumps from task to task.

    world = World(layers, step_ms=600_000)
    world.add(TopicPartition("orders", 0), traffic)
    world.run(30 * DAY_MS)

A step first appends the records of its whole interval to each log. Then it runs all tasks that are due in the interval,
each at its own time: retention, the cleaner, file deletion. Nothing happens between the times of steps and tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Protocol, Self

from cordwood.common.config import BROKER_DELETES, Layer
from cordwood.common.types import TopicPartition
from cordwood.live.log import Log
from cordwood.live.log_cleaner import CleanerStats
from cordwood.live.log_manager import LogManager
from cordwood.live.log_to_clean import LogToClean
from cordwood.live.scheduler import SteppedScheduler
from cordwood.simulation.batches import LEADER_EPOCH, Room, Written
from cordwood.simulation.recorder import Recorder
from cordwood.simulation.sizing.result import Rolls
from cordwood.storage.formats.filenames import FileKind, Temporary
from cordwood.testing.memory import MemoryFileSystem

#: Start of each simulation; any constant works.
START_MS = 1_735_689_600_000


class SimulatedWriter(Protocol):
    """Writes to a log over time."""

    def until(self, until_ms: int, now_ms: int, next_offset: int, room: Room) -> Iterator[Written]:
        """Yield the records up to a time, in parts; the caller appends each part before it takes the next.

        Args:
            room: returns the free bytes of the active segment, which limit a part; a part has at least one batch.
        """


class Member:
    """A log of the world, its writer, and the history of its records."""

    def __init__(self, log: Log, traffic: SimulatedWriter) -> None:
        self.log, self._traffic = log, traffic
        self.recorder = Recorder(log)
        self.rolls = Rolls()

    def count_anew(self) -> None:
        """Reset the counts; the recorder still tracks existing records."""
        self.rolls = Rolls()
        self.recorder.count_anew()

    def append(self, now_ms: int, until_ms: int) -> None:
        """Append the records up to a time."""
        log, config = self.log, self.log.config

        def room() -> int:
            return config.segment_bytes - log.active_segment.size_bytes

        for part in self._traffic.until(until_ms, now_ms, log.log_end_offset, room):
            active = log.active_segment
            by_size, by_index = room() < len(part.data), active.offset_index.is_full or active.time_index.is_full
            log.append_as_follower(part.data, LEADER_EPOCH)
            if log.active_segment is not active:
                self.rolls = self.rolls.with_one(active.size_bytes, by_size=by_size, by_index=by_index)
            log.update_high_watermark(log.log_end_offset)
            self.recorder.written(part)
        self.recorder.look(now_ms)


class World:
    """A broker's logs, on a disk in memory.

    Attributes:
        on_clean: called after each clean with the member, the cleaned range and the statistics.
    """

    def __init__(self, layers: Iterable[Layer], *, step_ms: int, seed: int = 0) -> None:
        """Create an empty log directory.

        Args:
            step_ms: length of a step; periodic tasks do not run more often.
        """
        self.now_ms = START_MS
        self.disk = DiskMeter()
        self.members: dict[TopicPartition, Member] = {}
        self.on_clean: Callable[[Member, LogToClean, CleanerStats], None] | None = None
        self._step_ms = step_ms
        self._scheduler = SteppedScheduler(lambda: self.now_ms, shortest_period_ms=step_ms)
        self.fs = MemoryFileSystem(lambda: self.now_ms * 1_000_000, can_crash=False, on_size=self.disk)
        self.manager = LogManager(
            self.fs,
            ["/logs"],
            [BROKER_DELETES, *layers],
            clock=lambda: self.now_ms,
            scheduler=self._scheduler,
            random=Random(seed),
            remember_configs=False,
        )

    def __enter__(self) -> Self:
        self.manager.startup()
        if self.manager.cleaner is not None:
            self.manager.cleaner.on_clean = self._cleaned
        return self

    def __exit__(self, *_: object) -> None:
        self.manager.shutdown()

    def add(self, partition: TopicPartition, traffic: SimulatedWriter) -> Member:
        """Create a log, and append the traffic to it in each step."""
        log = self.manager.get_or_create_log(partition, is_new=True)
        member = self.members[partition] = Member(log, traffic)
        return member

    def run(self, duration_ms: int, on_step: Callable[[], None] = lambda: None) -> None:
        """Advance the clock.

        Args:
            on_step: called at the end of each step, after its tasks; the logs were in that state for most of the step.
        """
        end_ms = self.now_ms + duration_ms
        while self.now_ms < end_ms:
            next_ms = min(self.now_ms + self._step_ms, end_ms)
            for member in self.members.values():
                member.append(self.now_ms, next_ms)
            self._run_tasks(next_ms)
            on_step()

    def _run_tasks(self, until_ms: int) -> None:
        """Run the due tasks, each at its own time."""
        while (due_ms := self._scheduler.next_due_ms) is not None and due_ms < until_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self._scheduler.run_due()
            for member in self.members.values():
                member.recorder.look(self.now_ms)
        self.now_ms = until_ms

    def _cleaned(self, found: LogToClean, stats: CleanerStats) -> None:
        if self.on_clean is not None:
            self.on_clean(self.members[found.partition], found, stats)


# ---- the disk --------------------------------------------------------------------------------------------------------

# Measures the disk that logs use in memory: segments and indexes, with any temporary suffix.

_KINDS = (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX)
#: File names from their first dot on; files that wait for deletion and the output of a running clean count too.
_COUNTED = frozenset(kind + suffix for kind in _KINDS for suffix in Temporary)


class DiskMeter:
    """Counts the bytes that a file system stores. The preallocated end of an index is a hole and counts as 0 bytes.

    Checkpoints, snapshots and other small files do not count.
    """

    def __init__(self) -> None:
        self.used_bytes = 0
        self._peak_bytes = 0

    def __call__(self, name: str, size_bytes: int) -> None:
        """Add a change in a file's size; the file system calls it with the file's name."""
        if name[name.find(".") :] in _COUNTED:
            self.used_bytes += size_bytes
            self._peak_bytes = max(self._peak_bytes, self.used_bytes)

    def take_peak(self) -> int:
        """Return the largest use since the last call, or since the start."""
        peak, self._peak_bytes = self._peak_bytes, self.used_bytes
        return peak
