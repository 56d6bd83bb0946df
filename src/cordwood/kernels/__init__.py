"""Loops over raw bytes and arrays, compiled by numba. They check every length before they use it.

Except for `scan.walk_headers`, they do no I/O.

Kernels get integer addresses, of arrays that the caller keeps alive, with the sizes that bound them: one compiled
version then serves read-only and writable buffers, and loads need no alignment.

Numba takes a third of a second to load, longer than most commands need for small logs. So modules that every command
imports use `Deferred` kernels.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import Any


class Deferred:
    """A module of kernels that is imported at the first use of one of its names."""

    def __init__(self, name: str) -> None:
        self._path = f"{__name__}.{name}"

    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module(self._path), name)
        setattr(self, name, value)
        return value


def is_loaded(name: str) -> bool:
    """Return whether some code of this process has imported a module of kernels."""
    return f"{__name__}.{name}" in sys.modules


def load_all() -> None:
    """Import all kernels, for a process whose forks need them."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
