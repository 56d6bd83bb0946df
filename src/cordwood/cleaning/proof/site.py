"""Where the tasks of a proof, or of another comparison of logs, run: their store, and the files that they exchange."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from cordwood.cleaning.proof.scratch import LostError, Scratch, no_space
from cordwood.common.errors import DataError, NoSpaceError
from cordwood.common.threads import Each
from cordwood.fs.base import Store, is_full
from cordwood.fs.location import Location

T = TypeVar("T")
#: Number of attempts to compare a partition whose files are lost.
ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class TaskSite:
    """The store and folders of tasks that compare logs. All fields can be pickled.

    Attributes:
        location: location of the store that has both states.
        scratch: folder for files from one task to another; the caller removes it.
        counting: counts the bytes read from a store in a `with` block.
        opened: the store, within a task.
    """

    location: Location[Store]
    scratch: Scratch
    counting: Callable[[Store], AbstractContextManager[Store]] | None = None
    opened: Store | None = None

    @contextlib.contextmanager
    def in_task(self) -> Iterator[TaskSite]:
        """Open the store for a task."""
        store = self.location.open()
        with contextlib.nullcontext(store) if self.counting is None else self.counting(store) as opened:
            yield replace(self, opened=opened)

    def open(self) -> Store:
        """Return the store, within a task."""
        assert self.opened is not None, "the task has opened it"
        return self.opened


class Lost:
    """Replaces a task's result: a file that another task wrote is missing or damaged."""


@dataclass(frozen=True, slots=True)
class _Full:
    """Replaces a task's result: there was no room for a file."""

    why: str


def run_tasks(
    each: Each, do: Callable[[TaskSite, T], Any], site: TaskSite, items: Sequence[T], sizes: Sequence[int]
) -> list[Any]:
    """Run tasks. The result is `Lost` for a task that could not read another task's file.

    Raises:
        NoSpaceError: the disk of the scratch folder is full.
    """
    found = each(functools.partial(_attempt, do, site), items, sizes)
    if (full := next((one for one in found if isinstance(one, _Full)), None)) is not None:
        raise NoSpaceError(full.why)
    return found


def _attempt(do: Callable[[TaskSite, T], Any], site: TaskSite, item: T) -> Any:
    try:
        with site.in_task() as own:
            return do(own, item)
    except LostError:
        return Lost()
    except OSError as error:
        if not is_full(error):
            raise
        return _Full(str(no_space(error, site.scratch.path)))


def lost_too_often(site: TaskSite) -> DataError:
    """Return the error to raise after `ATTEMPTS` attempts."""
    what = f"temporary files of the tasks were lost or damaged {ATTEMPTS} times, so there is no"
    advice = "result. Check this disk, or name a folder on another one with TMPDIR"
    return DataError(f"{what} {advice}", path=site.scratch.path)
