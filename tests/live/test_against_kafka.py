"""Random scripts about a log, done by Kafka's classes and by the live log: the same results, errors and files."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from cordwood.cleaning.engine.scan import scan_by_index
from cordwood.common.types import TopicPartition
from cordwood.storage.formats import checkpoints, filenames
from cordwood.storage.log.files import read_file
from tests import knobs
from tests.kafka_tools import Oracle
from tests.live.cleaning import with_indexes
from tests.live.comparing import differences
from tests.live.live_script import LiveScript
from tests.live.log_scripts import LogScript

SCRIPTS = knobs.scaled(200, 2000)
STEPS = 60
SHARES = 4
#: Every fourth script compresses, and does not look at sizes.
COMPRESSED_EVERY = 4
#: Scripts per process of the oracle.
SLICE = 50


@pytest.mark.kafka
@pytest.mark.parametrize("indexed", [False, True], ids=["", "with key indexes"])
@pytest.mark.parametrize("share", range(SHARES))
def test_random_interleavings_of_all_calls_do_what_kafkas_log_does(
    kafka_oracle: Oracle, tmp_path: Path, share: int, indexed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = list(range(knobs.SEED + share, knobs.SEED + SCRIPTS, SHARES))
    used = counted_scans(monkeypatch)
    seen: Counter[str] = Counter()
    found = []
    for first in range(0, len(seeds), SLICE):
        scripts = {
            seed: LogScript(seed, STEPS, compressed=_compresses(seed)).script() for seed in seeds[first : first + SLICE]
        }
        for seed, script in scripts.items():
            (tmp_path / f"{seed}.json").write_text(json.dumps(script))
        answers = kafka_oracle.batch([("run", tmp_path / f"{seed}.json", tmp_path / str(seed)) for seed in scripts])
        for (seed, script), lines in zip(scripts.items(), answers, strict=True):
            shutil.rmtree(tmp_path / str(seed))
            with with_indexes() if indexed else nullcontext():
                for what in differences(script, lines, compressed=_compresses(seed), seen=seen):
                    found.append(f"seed {seed}, {what}")
    print(dict(sorted(seen.items())))
    assert not found, "\n".join(found[:20])
    assert seen["append: done"] > 10 * len(seeds)
    assert not indexed or used["believed"], used


def counted_scans(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the segments with a valid index, and those without."""
    used: Counter[str] = Counter()

    def scan(*args: Any, **choice: Any) -> Any:
        run = scan_by_index(*args, **choice)
        used["none" if run is None else "believed"] += 1
        return run

    monkeypatch.setattr("cordwood.cleaning.engine.scan.scan_by_index", scan)
    return used


def _compresses(seed: int) -> bool:
    return seed // SHARES % COMPRESSED_EVERY == 0


@pytest.mark.kafka
def test_kafka_loads_what_a_live_log_left_without_a_repair(kafka_oracle: Oracle, tmp_path: Path) -> None:
    asked = []
    for seed in range(knobs.SEED, knobs.SEED + 24):
        live = LiveScript(LogScript(seed, STEPS).script())
        for _ in live.lines():
            pass
        for name, log in live.logs.items():
            log.flush(force_active_segment=True)
            log.close()
            folder = tmp_path / str(seed) / name
            folder.mkdir(parents=True)
            for info in live.fs.list(log.directory):
                (folder / info.name).write_bytes(read_file(live.fs, f"{log.directory}/{info.name}"))
            partition = TopicPartition("t", 0)
            starts = checkpoints.encode({partition: log.log_start_offset})
            (folder.parent / filenames.LOG_START_OFFSETS).write_bytes(starts)
            size = log.config.segment_index_bytes
            asked.append(("check", folder, "--config", f"segment.index.bytes={size}"))
    answers = kafka_oracle.batch(asked, exits=(0, 1))
    assert len(answers) > 15
    assert [line["problems"] for (line,) in answers] == [[] for _ in answers]


@pytest.mark.kafka
def test_a_segment_that_was_cleaned_and_truncated_has_the_time_index_of_kafkas(
    kafka_oracle: Oracle, tmp_path: Path
) -> None:
    # Kafka's cleaner keeps the largest timestamp of its output, so the truncation searches for a remaining record with
    # it.
    late = 1_700_000_070_000
    steps = [
        {"op": "append", "records": [["a", "1", late, None]]},
        {"op": "append", "records": [["b", "1", late + 1, None]]},
        {"op": "roll"},
        {"op": "clean"},
        {"op": "append", "records": [["b", "2", late + 2, None]]},
        {"op": "roll"},
        {"op": "clean"},
        {"op": "truncate_to", "offset": 1},
        {"op": "append", "records": [["c", "1", None, None]]},
        {"op": "roll"},
        {"op": "dump"},
    ]
    script = {"now": late - 70_000, "logs": {"t-0": {"cleanup.policy": "compact"}}, "steps": steps}
    (tmp_path / "script.json").write_text(json.dumps(script))
    (lines,) = kafka_oracle.batch([("run", tmp_path / "script.json", tmp_path / "out")])
    assert lines[-1]["segments"][0]["time_index"] == [[late, 0]]
    assert list(differences(script, lines, compressed=False, seen=Counter())) == []
