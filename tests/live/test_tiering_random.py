"""Random scripts on a log with a tier, and on the same log without: readers get the same bytes.

Logs that are compacted have the same segments besides, as their cleans are those of the same log on a disk.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from pathlib import Path

import pytest

from cordwood.common.errors import LogError
from cordwood.live.log import FetchIsolation, Log
from cordwood.storage.formats.transaction_index import AbortedTransaction
from cordwood.storage.index import build
from tests import knobs
from tests.live.tiered_nodes import NOW, Node

SCRIPTS = knobs.scaled(25, 500)


def everything(log: Log, isolation: FetchIsolation) -> list[tuple[bytes, tuple[AbortedTransaction, ...]]]:
    """All batches from the log start on, a batch per read, each with the aborted transactions that overlap it."""
    found, at = list[tuple[bytes, tuple[AbortedTransaction, ...]]](), log.log_start_offset
    while at < (log.last_stable_offset if isolation is FetchIsolation.TXN_COMMITTED else log.high_watermark):
        data = log.read(at, 1, isolation)
        if not data.records:
            break
        last = data.offset + int.from_bytes(data.records[23:27], "big")
        # A read may return more than these, depending on the entries of an index.
        found.append((data.records, tuple(one for one in data.aborted or () if one.first_offset <= last)))
        at = last + 1
    return found


class Twins:
    """A node with a tier, and one without, which gets the same appends."""

    def __init__(self, root: Path, source: random.Random) -> None:
        self.root, self.source, self.number, self.runs = root, source, 0, 0
        (root / "plain-root").mkdir()
        limits = {"local.retention.ms": source.choice(["1000", "30000"]), "local.retention.bytes": "-2"}
        self.limits = {**limits, "retention.bytes": source.choice(["-1", "-1", "8000"])}
        self.is_compacted = source.random() < 0.6
        self.has_indexes = source.random() < 0.7
        if self.is_compacted:
            self.limits |= {
                "cleanup.policy": "compact",
                "min.cleanable.dirty.ratio": source.choice(["0", "0.3"]),
                "delete.retention.ms": source.choice(["0", "100000"]),
                # By time, local retention would roll the active segment of one log alone.
                "local.retention.ms": "-1",
                "local.retention.bytes": source.choice(["-1", "3000"]),
            }
        self.start(NOW)

    def start(self, now_ms: int) -> None:
        """Start both nodes: a load forgets producers without a record above the log start."""
        self.tiered = Node(self.root, f"logs-{self.runs}", now_ms, configs=self.limits)
        self.plain = Node(
            self.root / "plain-root",
            now_ms=now_ms,
            with_tier=False,
            configs=self.limits | {"retention.bytes": "-1"},
        )
        for one in (self.tiered, self.plain):
            one.manager.startup(index=self.has_indexes and one is self.tiered)

    @property
    def both(self) -> tuple[Log, Log]:
        return self.tiered.log, self.plain.log

    def append(self) -> None:
        for _ in range(self.source.randint(1, 12)):
            self.number += 1
            pair = {f"key-{self.number % 7}": f"{self.number}".rjust(self.source.choice([20, 100, 300]))}
            for log in self.both:
                log.append(pair, timestamp_ms=NOW + 1000 * self.number)

    def transaction(self) -> None:
        self.number += 1
        is_aborted, count = self.source.random() < 0.5, self.source.randint(1, 20)
        for log in self.both:
            with contextlib.suppress(InterruptedError), log.transaction(self.number % 3) as pending:
                for number in range(count):
                    pending.append({"t": f"{number}".rjust(100)}, timestamp_ms=NOW + 1000 * self.number)
                if is_aborted:
                    raise InterruptedError

    def roll(self) -> None:
        for log in self.both:
            log.roll()

    def step(self) -> None:
        """Let time pass; then the cleaners of both nodes run."""
        ms = self.source.choice([500, 40_000])
        for one in (self.tiered, self.plain):
            one.step(ms)

    def spoil_indexes(self) -> None:
        """Cut, remove or exchange some key indexes on the disk and in the tier."""
        for folder in (self.tiered.log.directory, self.tiered.tiering.root):
            paths = sorted(Path(folder).rglob("*.keyhashes"))
            contents = [path.read_bytes() for path in paths]
            for path in self.source.sample(paths, len(paths) // 3):
                match self.source.choice(["cut", "remove", "exchange"]):
                    case "cut":
                        path.write_bytes(path.read_bytes()[:-1])
                    case "remove":
                        path.unlink()
                    case _:
                        path.write_bytes(self.source.choice(contents))

    def delete_records(self) -> None:
        log = self.tiered.log
        if log.high_watermark > log.log_start_offset:
            log.delete_records(self.source.randint(log.log_start_offset, log.high_watermark))

    def restart(self) -> None:
        self.compare()
        self.close()
        self.start(self.tiered.now_ms + 1000)

    def lose_the_disk(self) -> None:
        """Continue on an empty disk; the records that were not copied yet are appended again."""
        self.step()
        if self.tiered.log.open_transactions():
            return
        self.roll()
        self.step()
        log, state = self.tiered.log, self.tiered.state
        if state.copied_end != log.log_end_offset:
            return
        self.compare()
        self.close()
        shutil.rmtree(self.root / f"logs-{self.runs}")
        self.runs += 1
        self.start(self.tiered.now_ms + 1000)

    def compare(self) -> None:
        tiered, plain = self.both
        assert tiered.log_end_offset == plain.log_end_offset
        if not self.is_compacted:
            plain.delete_records(tiered.log_start_offset)
        for isolation in (FetchIsolation.HIGH_WATERMARK, FetchIsolation.TXN_COMMITTED):
            assert everything(tiered, isolation) == everything(plain, isolation)
        if self.is_compacted:
            files = ([data for data in one.files().values() if data] for one in (self.tiered, self.plain))
            assert next(files) == next(files)
            return
        times = [NOW + 1000 * self.source.randint(0, self.number + 1) for _ in range(5)]
        # Kafka searches the first segment with a late record, even if that record is below the log start.
        for time_ms in times if not tiered.log_start_offset else ():
            assert tiered.fetch_offset_by_timestamp(time_ms) == plain.fetch_offset_by_timestamp(time_ms)

    def close(self) -> None:
        for one in (self.tiered, self.plain):
            one.manager.shutdown()


@pytest.mark.more
def test_readers_get_the_same_with_a_tier_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "SEGMENT_SHARE", 0)  # segments of this size would have no key index
    in_tier = cleaned = indexed = 0
    for seed in range(knobs.SEED, knobs.SEED + SCRIPTS):
        source = random.Random(seed)
        (tmp_path / str(seed)).mkdir()
        twins = Twins(tmp_path / str(seed), source)
        steps = [*[twins.append] * 6, *[twins.transaction] * 3, twins.roll, *[twins.step] * 4]
        steps += [twins.delete_records, twins.restart, twins.lose_the_disk, twins.spoil_indexes]
        for number in range(30):
            step = source.choice(steps)
            with contextlib.suppress(LogError) if step == twins.delete_records else contextlib.nullcontext():
                step()
            if number % 5 == 4:
                twins.compare()
        twins.step()
        twins.compare()
        in_tier += len(twins.tiered.state.segments)
        cleaned += twins.tiered.state.local_floor > 0
        indexed += any(Path(twins.tiered.tiering.root).rglob("*.keyhashes"))
        twins.close()
        shutil.rmtree(tmp_path / str(seed))
    assert in_tier > SCRIPTS
    assert cleaned > SCRIPTS / 4
    assert indexed > SCRIPTS / 8
