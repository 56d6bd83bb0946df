"""The interface of engines that run tasks, and the simplest engine: this process.

    here      `InThisProcess`            for stores that no other process can open
    Spark     `tasks.spark.runner`             our own session or the user's
    pool      `pool`                     processes of this machine, without Java

All three share the division and packing of work, the functions of tasks, and the reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from cordwood.fs.base import TargetStore

#: An item or its outcome, with the item's number.
Numbered = tuple[int, Any]
#: A step of a task: takes the numbered items of a pack, or the outcomes of the previous step, and yields outcomes. A
#: value that can be pickled.
Step = Callable[[Iterable[Numbered]], Iterator[Numbered]]


class Runner(Protocol):
    """Runs tasks."""

    @property
    def cores(self) -> int:
        """Number of tasks that run concurrently."""
        ...

    @property
    def is_on_this_machine(self) -> bool:
        """Whether all tasks run on this machine."""
        ...

    def check(self, fs: TargetStore, folder: str, paths: Sequence[str], needs: str = "") -> None:
        """Raise RequestError if processes cannot run tasks, or see other files than this process.

        Args:
            folder: folder of this run, in which tasks write.
            paths: partitions that tasks read from disks.
            needs: advice for the message if tasks do not see the folder.
        """
        ...

    def run(self, packs: Sequence[Sequence[Numbered]], steps: Sequence[Step]) -> dict[int, Any]:
        """Run a task for each pack.

        Args:
            steps: the first step gets the items of the pack, each later one the outcomes of the previous step. A step
                runs in another process than the step before it.

        Returns:
            the outcomes of the last step, by number.
        """
        ...


#: Starts a runner, and ends it with the `with` block. The argument is the size in bytes of each of the first tasks,
#: which may decide how many of them run concurrently.
Start = Callable[[Sequence[int]], AbstractContextManager[Runner]]


@dataclass(frozen=True, slots=True)
class InThisProcess:
    """Runs tasks in this process, one after the other."""

    cores: int = 1
    is_on_this_machine: bool = True

    def check(self, fs: TargetStore, folder: str, paths: Sequence[str], needs: str = "") -> None:
        """Accept: tasks in this process see the same files."""

    def run(self, packs: Sequence[Sequence[Numbered]], steps: Sequence[Step]) -> dict[int, Any]:
        """See `Runner`; all steps run in this process."""
        found: dict[int, Any] = {}
        for pack in packs:
            rows: Iterable[Numbered] = pack
            for step in steps:
                rows = step(rows)
            found.update(rows)
        return found
