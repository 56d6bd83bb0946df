"""Directories before and after a clean by a real broker."""

from __future__ import annotations

from dataclasses import dataclass

from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.node.node import Node
from tests.fixtures import facts, fixture

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
