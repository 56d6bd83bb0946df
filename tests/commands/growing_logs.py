"""Logs of large records that grow and are cleaned, with key indexes."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.cleaning.engine import scan
from cordwood.cleaning.engine.results import CleanResult, Fate
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.index.files import indexes_in
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView
from cordwood.storage.node.node import Node
from tests.fixtures import facts, fixture
from tests.logs import batch, make_log
from tests.storage.index_twins import believed

FS = PosixFileSystem()


def files(partition: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(partition.iterdir()) if path.is_file()}


OPTIONS: dict[str, Any] = {
    "overrides": ["cleanup.policy=compact", "internal.segment.bytes=120000"],
    "high_watermark": "end",
    "ignore_ratio": True,
    "single_copy": True,
    "engine": "here",
}


def clean(logs: Path, **choice: Any) -> CleanResult:
    result = cordwood.clean_in_place(str(logs), verify=False, **(OPTIONS | choice))
    assert not result.with_fate(Fate.FAILED), result.text()
    return result


def grown(logs: Path, source: random.Random, base: int) -> int:
    """Append segments behind the last one; their end."""
    partition = logs / "t-0"
    for _ in range(source.randint(1, 3)):
        count = source.randint(1, 12)
        keys = [b"%d" % source.randrange(400) for _ in range(count)]
        make_log(partition, (base, [batch(base + at, (key, b"v" * 2_000)) for at, key in enumerate(keys)]))
        base += count
    return base


def start(logs: Path, size: int = 2_000) -> int:
    (logs / "t-0").mkdir(parents=True)
    for base in range(0, 400, 40):
        make_log(logs / "t-0", (base, [batch(at, (b"%d" % at, b"v" * size)) for at in range(base, base + 40)]))
    return 400


def indexes(logs: Path) -> list[int]:
    """The sizes of the key indexes, in the order of their segments."""
    return [info.size_bytes for _, info in sorted(indexes_in(FS, str(logs / "t-0")), key=lambda found: found[0])]


def clean_copy(logs: Path | str, output: Path | str, **choice: Any) -> CleanResult:
    result = cordwood.clean(str(logs), output=str(output), **(OPTIONS | choice))
    assert not result.with_fate(Fate.FAILED), result.text()
    return result


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def closed(logs: Path, topic: str = "t-0") -> list[int]:
    return sorted(int(path.stem) for path in (logs / topic).glob("*.log"))[:-1]


def indexed(logs: Path, topic: str = "t-0") -> list[int]:
    """Return the segments with a valid index; fail if there are other index files."""
    found = list(believed(LogView(str(logs / topic), fs=FS, log_start_offset=0)))
    assert {base for base, _ in indexes_in(FS, str(logs / topic))} == set(found)
    return found


def segments_searched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The base offsets of segments that an index speaks for in this process."""
    found: list[int] = []
    original = scan.scan_by_index

    def noted(segment: Segment, *args: Any, **choice: Any) -> Any:
        run = original(segment, *args, **choice)
        found.extend([segment.base_offset] if run is not None else [])
        return run

    monkeypatch.setattr(scan, "scan_by_index", noted)
    return found


# ---- before and after a broker's clean -------------------------------------------------------------------------------


#: Between a clean's clock and the line in the broker's log.
LOGGED_WITHIN_MS = 100


@dataclass(frozen=True)
class Pair:
    """A directory before and after a clean by a broker of 4.3.1.

    Attributes:
        family: family of the facts.
        before, after: names of fixtures.
        ended: name of the fact with the time at which retention and all cleans had ended.
        foreign: the partitions of another broker, given to 4.3.1; their configs are in its own directory.
    """

    family: str
    before: str
    after: str
    ended: str = "cleaning_ended_ms"
    foreign: bool = False

    @property
    def now_ms(self) -> int:
        return int(facts(self.family)[self.ended])

    @property
    def times_ms(self) -> dict[str, int]:
        """When each partition was cleaned, by its name. The delete horizon in its batches is the best source."""
        found = facts(self.family)["archives"][self.after]
        exact = found["clean_times_ms_from_delete_horizons"]
        times = {}
        for name, (cleaning,) in found["cleanings"].items():
            logged = cleaning["at_ms"]
            times[name] = next((one for one in exact.get(name, ()) if abs(one - logged) < LOGGED_WITHIN_MS), logged)
        return times

    @property
    def end_offsets(self) -> dict[str, int]:
        found = facts(self.family)["archives"][self.after]["cleanings"]
        return {name: cleaning["end_offset"] for name, (cleaning,) in found.items()}

    @property
    def server_properties(self) -> str:
        """The broker's own settings."""
        said = {"log.cleaner.min.cleanable.ratio": 0} | facts(self.family).get("broker_settings_cleaning", {})
        return "".join(f"{key}={value}\n" for key, value in said.items())

    @property
    def overrides(self) -> list[str]:
        """Configs that the partitions of a foreign broker got."""
        if not self.foreign:
            return []
        metadata = Node.open(PosixFileSystem(), [str(fixture(self.after))]).metadata
        assert metadata is not None
        return [
            f"{topic}:{key}={value}" for topic in metadata.topics for key, value in metadata.topic_config(topic).items()
        ]


PAIRS = (
    *(Pair("kraft", f"kraft-before{n}", f"kraft-after{n}", f"cleaning_{n[1:] or 1}_ended_ms") for n in ("", "-2")),
    *(
        Pair("kraft-classic", f"kraft-classic-before{n}", f"kraft-classic-after{n}", f"cleaning_{n[1:] or 1}_ended_ms")
        for n in ("", "-2", "-3")
    ),
    Pair("kraft-jbod", "kraft-jbod-before", "kraft-jbod-after"),
    Pair("other-clients", "other-clients-before", "other-clients-after"),
    *(
        Pair(family, f"{family}-before", f"{family}-after-4.3.1", "cleaning_431_ended_ms", foreign=True)
        for family in ("legacy-v0", "legacy-v1", "legacy-mixed")
    ),
)
