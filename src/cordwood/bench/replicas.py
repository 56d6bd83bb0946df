"""How long a comparison of two replicas takes, beside a proof of the same bytes and beside reading both.

CPU seconds of one core, best of several runs in this process, over files in the page cache.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cordwood.bench.generate import KeyPattern, Shape, write_keyed_log
from cordwood.cleaning.engine.facts import CleanSettings, load_producers
from cordwood.cleaning.engine.partition import CleanRequest, clean_partition
from cordwood.cleaning.proof.pairs import Pair, Side
from cordwood.cleaning.proof.scratch import Scratch
from cordwood.cleaning.proof.site import TaskSite
from cordwood.commands.verify import verify_pairs
from cordwood.comparison.comparing import ReplicatedPartition, compare_partitions
from cordwood.comparison.entries import KeyShare
from cordwood.comparison.values import ComparedReplica
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, Gap
from cordwood.tasks.runner import InThisProcess

_NOW_MS = 1_800_000_000_000
_RECORD_BYTES = 127
#: The largest ratios that a comparison should have.
EQUAL_TO_READING, CLEANED_TO_PROOF = 1.3, 1.5


@dataclass(frozen=True, slots=True)
class ReplicaFigures:
    """CPU seconds of each.

    Attributes:
        log_mb, cleaned_mb: size of the log, and of the log once it was cleaned.
        reading: reading both of two equal replicas, with their checksums.
        equal: comparing them.
        proof: proving the clean of one.
        cleaned: comparing the cleaned replica with the uncleaned one.
    """

    log_mb: float
    cleaned_mb: float
    reading: float
    equal: float
    proof: float
    cleaned: float


def measure(folder: Path, size_bytes: int, runs: int) -> ReplicaFigures:
    """Measure with a log of a size, whose clean drops three of four records."""
    fs = PosixFileSystem()
    newest, equal, cleaned = (folder / name / "bench-0" for name in ("1", "2", "3"))
    for path in (newest, cleaned):
        path.mkdir(parents=True)
    records = size_bytes // _RECORD_BYTES
    write_keyed_log(fs, str(newest), records=records, keys=KeyPattern(records // 4), shape=Shape())
    shutil.copytree(newest, equal)
    _clean(fs, newest, cleaned)

    def compared(other: Path) -> None:
        scratch = folder / "scratch"
        scratch.mkdir()
        site = TaskSite(fs.location(), Scratch(fs.location(), str(scratch)))
        replicas = tuple(ComparedReplica(path.parent.name, Side(str(path), 0)) for path in (newest, other))
        (found,) = compare_partitions(_each, 1, fs, [ReplicatedPartition(None, replicas, True)], site, KeyShare())
        assert found.agrees
        shutil.rmtree(scratch)

    def proved() -> None:
        pair = Pair(None, Side(str(newest), 0), Side(str(cleaned), 0), now_ms=_NOW_MS)
        (verdict,) = verify_pairs(InThisProcess(), fs, [pair], fs)
        assert verdict.holds

    def read() -> None:
        for path in (newest, equal):
            for _, item in LogView(str(path), fs=fs).windows(checks=Checks.ONCE):
                assert not isinstance(item, Gap)

    return ReplicaFigures(
        LogView(str(newest), fs=fs).size_bytes / 1e6,
        LogView(str(cleaned), fs=fs).size_bytes / 1e6,
        *(_best(runs, do) for do in (read, lambda: compared(equal), proved, lambda: compared(cleaned))),
    )


def _clean(fs: PosixFileSystem, source: Path, target: Path) -> None:
    log = LogView(str(source), fs=fs, log_start_offset=0)
    active = log.segments[-1].base_offset
    producers = load_producers(log, now_ms=_NOW_MS)
    request = CleanRequest(
        first_dirty=0, first_uncleanable=active, now_ms=_NOW_MS, settings=CleanSettings(), producers=producers
    )
    clean_partition(fs, log, str(target), request)
    for file in source.glob(f"{active:020d}.*"):
        shutil.copy2(file, target)


def _each(do: Callable[[Any], Any], items: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    return [do(item) for item in items]


def _best(runs: int, do: Callable[[], None]) -> float:
    found = []
    for _ in range(runs + 1):
        began = time.process_time()
        do()
        found.append(time.process_time() - began)
    return min(found[1:])
