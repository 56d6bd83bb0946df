"""Addresses of C library functions that kernels call, and the contexts for these functions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def address_of(library: ctypes.CDLL, name: str) -> int:
    """Return the address of a function; AttributeError if the library does not export it."""
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def create(function: Any, *arguments: int) -> int:
    """Create a context by calling a function, and return its address."""
    function.restype = ctypes.c_void_p
    context: int | None = function(*arguments)
    if context is None:
        raise MemoryError(f"{function.__name__} found no memory")
    return context


class Contexts:
    """A pool of contexts of one kind; it grows to the number that threads have used at the same time."""

    def __init__(self, create_one: Callable[[], int]) -> None:
        self._create_one = create_one
        self._idle: list[int] = []

    @contextmanager
    def one(self) -> Iterator[int]:
        """Yield a context that no other thread uses in the block."""
        try:
            context = self._idle.pop()
        except IndexError:
            context = self._create_one()
        try:
            yield context
        finally:
            self._idle.append(context)
