"""Functions of C libraries that kernels call by address, and the contexts that these functions work with."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def address_of(library: ctypes.CDLL, name: str) -> int:
    """The address of a function; AttributeError if the library has none of this name."""
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def create(function: Any, *arguments: int) -> int:
    """The address of a context that a function makes."""
    function.restype = ctypes.c_void_p
    context: int | None = function(*arguments)
    if context is None:
        raise MemoryError(f"{function.__name__} found no memory")
    return context


class Contexts:
    """Contexts of one kind. As many are made as threads use at the same time, and they last as long as the process."""

    def __init__(self, create_one: Callable[[], int]) -> None:
        self._create_one = create_one
        self._idle: list[int] = []

    @contextmanager
    def one(self) -> Iterator[int]:
        """A context that no other thread uses in the block."""
        try:
            context = self._idle.pop()
        except IndexError:
            context = self._create_one()
        try:
            yield context
        finally:
            self._idle.append(context)
