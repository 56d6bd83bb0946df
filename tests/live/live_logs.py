"""A live log in memory, with a clock that is set by hand."""

from __future__ import annotations

from random import Random
from typing import Any

from cordwood.common.types import NONE
from cordwood.fs.base import LocalFileSystem
from cordwood.live.directories import LogDirFailureChannel
from cordwood.live.log import Checkpointed, FetchIsolation, Log, LogEnvironment, ProducerLimits, load_log
from cordwood.live.scheduler import SteppedScheduler
from cordwood.live.validation import read_batches, read_records
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.testing.memory import MemoryFileSystem
from tests.live.live_script import config_of

NOW_MS = 1_700_000_000_000
PATH = "logs/t-0"


class World:
    """A log directory, its clock and its tasks."""

    def __init__(self, fs: LocalFileSystem | None = None) -> None:
        self.now_ms = NOW_MS
        self.fs = MemoryFileSystem(lambda: self.now_ms * 1_000_000) if fs is None else fs
        self.scheduler = SteppedScheduler(lambda: self.now_ms)
        self.failures = LogDirFailureChannel()
        if not self.fs.exists("logs"):
            self.fs.make_directory("logs")

    def load(
        self,
        config: dict[str, str] | None = None,
        *,
        limits: ProducerLimits | None = None,
        random: Random | None = None,
        **checkpointed: Any,
    ) -> Log:
        shared = self.fs, lambda: self.now_ms, self.scheduler, self.failures, limits or ProducerLimits()
        environment = LogEnvironment(*shared, random=random or Random())
        return load_log(PATH, config_of(config or {}), environment, Checkpointed(**checkpointed))

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.scheduler.run_due()


def batch(
    *values: str,
    base_offset: int = 0,
    producer_id: int = NONE,
    sequence: int = 0,
    epoch: int = 0,
    transactional: bool = False,
) -> bytes:
    """A batch as a producer sends it: each value is a record, whose key is its first letter."""
    records = [Record(at, NOW_MS, value[:1].encode(), value.encode()) for at, value in enumerate(values, base_offset)]
    return encode_batch(
        records,
        base_offset=base_offset,
        leader_epoch=0,
        producer_id=producer_id,
        producer_epoch=epoch if producer_id >= 0 else NONE,
        base_sequence=sequence if producer_id >= 0 else NONE,
        transactional=transactional,
    )


def read_all(log: Log) -> dict[int, str]:
    """All records from the log start on, by offset."""
    found: dict[int, str] = {}
    at = log.log_start_offset
    while at < log.log_end_offset:
        data = log.read(at, 1 << 20, FetchIsolation.LOG_END).records
        batches = list(read_batches(data))
        if not batches:
            break
        for one in batches:
            for record in read_records(data, one):
                assert record.value is not None
                found[record.offset] = record.value.decode()
        at = batches[-1].last_offset + 1
    return {offset: value for offset, value in found.items() if offset >= log.log_start_offset}
