"""Rounds of cleans with key indexes equal Kafka's byte for byte, for many kinds of changes of the log between them."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from cordwood.storage.formats.filenames import CLEANER_OFFSETS, WORK_FOLDER
from cordwood.storage.index import identity
from tests import knobs
from tests.cleaning.against_kafka import differences
from tests.commands.changed_rounds import WAYS, ChangedLog, Way, cleaned_by_kafka, keep_backup
from tests.kafka_tools import Oracle

SCRIPTS = knobs.scaled(36, 2000)
ROUNDS = 4
#: Scripts whose files are there at once.
SLICE = 60


@pytest.mark.slow
def test_cleans_by_index_equal_kafkas_however_the_log_changed_between(
    kafka_oracle: Oracle, tmp_path: Path, other_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small files are the same, too, once a clean has waited for the next tick.
    monkeypatch.setattr(identity, "_WAIT_BYTES_MIN", 1)
    seen = Counter[str]()
    for first in range(knobs.SEED, knobs.SEED + SCRIPTS, SLICE):
        seeds = range(first, min(first + SLICE, knobs.SEED + SCRIPTS))
        logs = [ChangedLog(tmp_path / str(seed), other_disk, random.Random(seed)) for seed in seeds]
        for number in range(ROUNDS):
            # Over all seeds each way follows each other way.
            ways = [WAYS[(seed + number * (1 + seed // len(WAYS))) % len(WAYS)] for seed in seeds]
            _round(kafka_oracle, logs, ways, tmp_path / "kafka", seen)
        for log in logs:
            shutil.rmtree(log.root)
    print(f"{SCRIPTS} scripts of {ROUNDS} rounds: {dict(seen)}")
    assert len(WAYS) > SCRIPTS or all(seen[way.__name__] for way in WAYS)
    assert seen["indexes of the same file"] > SCRIPTS


def _round(oracle: Oracle, logs: Sequence[ChangedLog], ways: Sequence[Way], kafkas: Path, seen: Counter[str]) -> None:
    """Change each log, let it grow, clean it, and compare with Kafka's clean of a copy."""
    copies = list[Path]()
    for log, way in zip(logs, ways, strict=True):
        if log.rounds:
            way(log)
            seen[way.__name__] += 1
        seen["indexes of the same file"] += log.trusted()
        log.grow(log.source.randint(4, 6) if not log.rounds else log.source.randint(1, 2))
        keep_backup(log)
        is_kafkas = log.rounds and way is cleaned_by_kafka
        copies.append(log.root if is_kafkas else kafkas / log.root.name)
        if not is_kafkas:
            shutil.copytree(log.root, copies[-1], ignore=shutil.ignore_patterns(WORK_FOLDER))
    answers = oracle.batch(_command(log, copy) for log, copy in zip(logs, copies, strict=True))
    for log, way, copy, lines in zip(logs, ways, copies, answers, strict=True):
        name = f"{log.root.name} after {way.__name__}"
        assert any(line["type"] == "pass" for line in lines), f"{name}: {lines}"
        if copy != log.root:
            log.clean()
            assert list(differences(copy / "t-0", log.partition)) == [], name
            assert (copy / CLEANER_OFFSETS).read_text() == (log.root / CLEANER_OFFSETS).read_text(), name
            shutil.rmtree(copy)
        log.rounds += 1


def _command(log: ChangedLog, copy: Path) -> list[str | Path]:
    configs = [word for one in log.configs("segment.bytes") for word in ("--config", one)]
    return ["clean", copy, "--now", str(log.now_ms), *configs]
