"""The location of a store: a small picklable value that is sent with a task and opened where the task runs."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol, TypeVar

#: A store.
S = TypeVar("S", covariant=True)


class Location(Protocol[S]):
    """A picklable value that opens a store."""

    @property
    def in_this_process(self) -> bool:
        """Whether only this process can open the store, so that tasks on it cannot run in another process."""
        ...

    def open(self) -> S:
        """Open the store."""
        ...


@dataclass(frozen=True, slots=True)
class ProcessLocation:
    """The location of a store in the memory of one process; no other process can open it.

    Attributes:
        number: identifies the store within its process.
    """

    number: int

    @property
    def in_this_process(self) -> bool:
        """True."""
        return True

    def open(self) -> Any:
        """Return the store.

        Raises:
            LookupError: the store belongs to another process, or no longer exists.
        """
        if (store := _stores.get(self.number)) is None:
            raise LookupError(f"Store {self.number} is in the memory of another process, or is gone")
        return store


_numbers = count(1)
#: The stores of this process by number, as weak references.
_stores: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def location_in_this_process(store: object) -> ProcessLocation:
    """Return a location for a store in this process's memory. The caller must keep the store alive."""
    number = next(_numbers)
    _stores[number] = store
    return ProcessLocation(number)
