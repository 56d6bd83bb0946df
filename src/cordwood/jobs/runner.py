"""The interface of what runs tasks, and the simplest implementation: this process.

    here      `InThisProcess`            for stores that no other process can open
    Spark     `spark.runner`             a session of ours or of the user
    pool      `pool`                     processes of this machine, without Java

All else is the same for all of them: how work is divided and packed, what tasks do, and how they report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from cordwood.fs.base import TargetStore

#: An item, or its outcome, with the item's number.
Numbered = tuple[int, Any]
#: A step of a task: takes the numbered items of a pack, or the outcomes of the step before, and yields outcomes. A
#: value that can be pickled.
Step = Callable[[Iterable[Numbered]], Iterator[Numbered]]


class Runner(Protocol):
    """Runs tasks."""

    @property
    def cores(self) -> int:
        """How many tasks run at a time."""
        ...

    @property
    def is_on_this_machine(self) -> bool:
        """Whether all tasks run on this machine."""
        ...

    def check(self, fs: TargetStore, folder: str, paths: Sequence[str], needs: str = "") -> None:
        """Refuse processes that cannot run tasks, or see other files than this one.

        Args:
            folder: of this run; tasks write to it.
            paths: what tasks read from disks.
            needs: what to do if tasks do not see the folder.
        """
        ...

    def run(self, packs: Sequence[Sequence[Numbered]], steps: Sequence[Step]) -> dict[int, Any]:
        """Run a task for each pack.

        Args:
            steps: the first gets the items of the pack, each other one the outcomes of the step before. Each runs in
                another process than the one before it.

        Returns:
            the outcomes of the last step, by number.
        """
        ...


#: Starts what runs tasks, and ends it with the `with` block. How many bytes the first tasks read may
#: decide how many of them run at once.
Start = Callable[[Sequence[int]], AbstractContextManager[Runner]]


@dataclass(frozen=True, slots=True)
class InThisProcess:
    """Runs tasks in this process, one after the other."""

    cores: int = 1
    is_on_this_machine: bool = True

    def check(self, fs: TargetStore, folder: str, paths: Sequence[str], needs: str = "") -> None:
        """This process sees what it sees."""

    def run(self, packs: Sequence[Sequence[Numbered]], steps: Sequence[Step]) -> dict[int, Any]:
        """See `Runner`; both steps run in this process."""
        found: dict[int, Any] = {}
        for pack in packs:
            rows: Iterable[Numbered] = pack
            for step in steps:
                rows = step(rows)
            found.update(rows)
        return found
