"""Where a store is: a small picklable value that a task carries, and opens where it runs."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from cordwood.fs.base import Store

S = TypeVar("S", bound="Store", covariant=True)


class Location(Protocol[S]):
    """Where a store is."""

    @property
    def in_this_process(self) -> bool:
        """Whether only this process can open it, so that work on it cannot be given to another process."""
        ...

    def open(self) -> S:
        """The store itself."""
        ...


@dataclass(frozen=True, slots=True)
class ProcessLocation:
    """A store that lives in the memory of one process, which is the only one that can open it.

    Attributes:
        number: of the store, in this process.
    """

    number: int

    @property
    def in_this_process(self) -> bool:
        """Always."""
        return True

    def open(self) -> Any:
        """The store itself.

        Raises:
            LookupError: it belongs to another process, or is gone.
        """
        if (store := _stores.get(self.number)) is None:
            raise LookupError(f"Store {self.number} is in the memory of another process, or is gone")
        return store


_numbers = count(1)
#: The stores of this process by their numbers. One that nobody uses any more goes.
_stores: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def location_in_this_process(store: Store) -> ProcessLocation:
    """The location of a store that only this process has. The caller keeps the store alive."""
    number = next(_numbers)
    _stores[number] = store
    return ProcessLocation(number)
