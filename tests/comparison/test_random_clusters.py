"""Random clusters: the same appends, cleaned by Kafka at different times and with different configs.

A comparison names a key exactly if a slow twin, with plain dictionaries, finds that its last value differs.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from cordwood.fs.posix import PosixFileSystem
from cordwood.kernels.layout import is_control, is_transactional_data
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.log.view import LogView
from tests import knobs
from tests.cleaning.random_logs import INDEX, LARGE
from tests.comparison.comparing import compare_replicas, replica
from tests.comparison.twin import differing_keys
from tests.kafka_tools import PROFILES, Oracle, Word
from tests.logs import window

CLUSTERS = knobs.scaled(10, 300)
NOW = 1_700_000_100_000
SMALL = [one for one in PROFILES if one not in LARGE]
PROFILE_BY_TURN = [*SMALL, "transactional", "tombstones"]


def make_clusters(oracle: Oracle, seeds: range, work: Path) -> dict[int, list[Path]]:
    """Generate a log for each seed, copy it to two brokers, of which one may lag, and let Kafka clean each."""
    shapes = {seed: PROFILE_BY_TURN[seed % len(PROFILE_BY_TURN)] for seed in seeds}
    config = ("--config", "segment.bytes=20000", "--config", f"{INDEX}=10485760")
    oracle.batch(
        ("generate", work / f"{seed}" / "1", "--seed", f"{seed}", "--profile", shape, "--size", "60000", *config)
        for seed, shape in shapes.items()
    )
    found = {}
    asked: list[tuple[Word, ...]] = []
    for seed in seeds:
        draw = random.Random(seed)
        folders = [work / f"{seed}" / name for name in ("1", "2")]
        shutil.copytree(folders[0], folders[1])
        if draw.random() < 0.5:
            cut_off(folders[draw.randrange(2)] / "topic-0", draw.randrange(1, 3))
        found[seed] = [folder / "topic-0" for folder in folders]
        for folder in folders:
            now = NOW
            for _ in range(draw.randrange(3)):
                now += draw.randrange(2_000)
                retention = ("--config", f"delete.retention.ms={draw.choice([0, 500, 5_000])}")
                asked.append(("clean", folder, "--now", f"{now}", "--first-dirty", "0", *config, *retention))
    oracle.batch(asked, exits=(0, 1))
    return found


def cut_off(folder: Path, count: int) -> None:
    """Remove the last segments of a log."""
    logs = sorted(folder.glob("*.log"))
    for path in logs[max(len(logs) - count, 1) :]:
        for file in folder.glob(f"{path.stem}.*"):
            file.unlink()


def lose_batch(folder: Path, draw: random.Random) -> None:
    """Remove a batch of data that belongs to no transaction."""
    path = draw.choice(sorted(folder.glob("*.log")))
    data = path.read_bytes()
    rows = window(data).batches
    rows = rows[~is_control(rows) & ~is_transactional_data(rows)]
    if rows.size:
        row = rows[draw.randrange(rows.size)]
        start, size = int(row["position"]), int(row["size_bytes"])
        path.write_bytes(data[:start] + data[start + size :])
        for kind in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
            path.with_suffix(kind).unlink(missing_ok=True)


@pytest.mark.slow
def test_a_comparison_is_silent_exactly_if_the_last_values_agree(kafka_oracle: Oracle, tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    clusters = make_clusters(kafka_oracle, range(knobs.SEED, knobs.SEED + CLUSTERS), tmp_path)
    for seed, folders in clusters.items():
        draw = random.Random(-seed)
        for _ in range(draw.choice([0, 0, 1, 3])):
            lose_batch(draw.choice(folders), draw)
        logs = [LogView(str(folder), fs=PosixFileSystem()) for folder in folders]
        start, end = max(log.log_start_offset for log in logs), min(log.next_offset for log in logs)
        expected = differing_keys(folders[0], folders[1], start, end)
        found = compare_replicas(tmp_path / f"scratch-{seed}", [replica(one) for one in folders], compacted=True).pairs[
            0
        ]
        assert (found.start, found.end) == (start, end), seed
        assert sum(found.totals.values()) == len(expected), (seed, found.totals, expected)
        assert {one.key for one in found.differences} <= expected, seed
        seen["differing" if expected else "equal"] += 1
    print(dict(seen))
    assert min(seen["differing"], seen["equal"]) > CLUSTERS // 10
