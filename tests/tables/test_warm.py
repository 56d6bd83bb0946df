"""Tables by key indexes beside a plain replay: whichever segments have an index, and whatever is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from cordwood.commands.read import open_log
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.index.build import build
from cordwood.storage.index.files import write_index
from cordwood.tables.newest import NewestTask, scan_here
from cordwood.tables.runs import TableRun
from cordwood.tables.warm import scan_warm
from tests.knobs import scaled
from tests.tables.replayed_tables import RandomLog, points_of, random_log, table_of

LOGS = scaled(60, 2000)
SECRET = b"secret of indexs"
_FS = PosixFileSystem()


class Scan:
    """Scans each log by its indexes where they help, and counts where they did."""

    def __init__(self, read_share_max: float) -> None:
        self.read_share_max = read_share_max
        self.warm = self.cold = 0

    def __call__(self, logs: Sequence[Sequence[TableRun]]) -> list[NewestTask]:
        tasks = []
        for runs in logs:
            found = scan_warm(runs, read_share_max=self.read_share_max)
            self.warm += found is not None
            self.cold += found is None
            tasks += scan_here([runs]) if found is None else found
        return tasks


def index(log: RandomLog, random: Random, *, missing: float = 0.0, secrets: Sequence[bytes] = (SECRET,)) -> list[Path]:
    """Make key indexes of some segments; their files."""
    made = []
    for segment in open_log(str(log.path)).segments:
        found = build(segment, random.choice(secrets), 1 << 24) if random.random() >= missing else None
        if found is not None:
            write_index(_FS, str(log.path), found)
            made.append(Path(segment.key_index_path))
    return made


def same_as_replayed(log: RandomLog, random: Random, scan: Scan) -> None:
    for end in (log.last_stable_offset, *points_of(log, random, 3)):
        assert table_of(log.path, as_of=end, scan=scan) == log.replay(end)


def test_the_table_of_a_random_log_with_indexes_is_that_of_a_plain_replay(tmp_path: Path) -> None:
    scan = Scan(read_share_max=1)
    for seed in range(LOGS):
        random = Random(seed)
        log = random_log(random, tmp_path / f"{seed}/users-3", keyless=0)
        index(log, random, missing=random.choice((0, 0.3)))
        same_as_replayed(log, random, scan)
    assert scan.warm > LOGS / 2 and scan.cold > 0, "both ways were taken"


def test_indexes_that_are_wrong_cost_time_and_nothing_else(tmp_path: Path) -> None:
    scan = Scan(read_share_max=1)
    for seed in range(LOGS):
        random = Random(seed)
        log = random_log(random, tmp_path / f"{seed}/users-3", keyless=0)
        other = random_log(Random(seed + 1), tmp_path / f"others-{seed}/users-3", keyless=0)
        files = index(log, random, secrets=random.choice(([SECRET], [SECRET, b"some other words"])))
        for file in files:
            fate = random.random()
            if fate < 0.2:
                data = bytearray(file.read_bytes())
                data[random.randrange(len(data))] ^= 1 << random.randrange(8)
                file.write_bytes(data)
            elif fate < 0.3:
                file.write_bytes(file.read_bytes()[: random.randrange(file.stat().st_size)])
            elif fate < 0.4 and (theirs := index(other, random)):
                file.write_bytes(random.choice(theirs).read_bytes())
        same_as_replayed(log, random, scan)
    assert scan.warm


def test_a_log_of_which_much_would_be_read_is_scanned_as_a_whole(tmp_path: Path) -> None:
    scan = Scan(read_share_max=0.25)
    for seed in range(LOGS):
        random = Random(seed)
        log = random_log(random, tmp_path / f"{seed}/users-3", keyless=0)
        index(log, random)
        same_as_replayed(log, random, scan)
    assert scan.cold > scan.warm
