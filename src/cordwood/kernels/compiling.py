"""`njit` for the kernels: numba with the cache folder of these sources.

Numba caches compiled code. It notices changes to a kernel's file, but not to files that define functions called by the
kernel. So the name of the cache folder contains a digest of all kernel sources, and stale code is never used. The
folder is outside the installation, which may be read-only.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from pathlib import Path

from numba import config, types
from numba import njit as njit
from numba.core import event
from numba.core.base import BaseContext
from numba.core.caching import FunctionCache
from numba.core.runtime.nrt import rtsys

from cordwood.common import cache

_log = logging.getLogger(__name__)


#: Processes of one command compile at the same time; after a message, all processes are silent for this long.
_QUIET_SECONDS = 60


def cache_folder() -> Path:
    """Return the cache folder for these kernel sources: this user's, or a new one with a warning."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    name, named = f"kernels-{digest.hexdigest()[:16]}", os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(named) if named else cache.cache_folder() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
        why = "it is not writable"
    except OSError as error:
        why = error.strerror or str(error)
    # Not a fixed name in a shared folder, where other users could put code.
    other = tempfile.mkdtemp(prefix="cordwood-kernels-")
    _log.warning(
        "compiled kernels cannot be kept in %s (%s), so each start compiles them again, for up to half a minute; "
        "set %s to a folder that this user may write",
        *(folder, why, "NUMBA_CACHE_DIR" if named else "CORDWOOD_CACHE"),
    )
    os.environ["NUMBA_CACHE_DIR"] = other  # for child processes
    return Path(other)


class _Compiling(event.Listener):
    """Logs that kernels are compiled: once in a process, and only in the first of several that start together."""

    def __init__(self) -> None:
        self._has_told = False

    def on_start(self, event: event.Event) -> None:
        if self._has_told:
            return
        self._has_told = True
        begun = Path(str(config.CACHE_DIR)) / "begun"  # type: ignore[attr-defined]
        try:
            if begun.exists() and time.time() - begun.stat().st_mtime < _QUIET_SECONDS:
                return
            begun.touch()
        except OSError:
            pass
        _log.warning(
            "compiling for this processor, which takes up to half a minute, once; "
            "to compile everything now: cordwood cache --warm"
        )

    def on_end(self, event: event.Event) -> None:
        pass


_load_with_compiler = FunctionCache.load_overload


def _load_overload(self: FunctionCache, signature: types.Type, target: BaseContext) -> object:
    """Load a compiled kernel from the cache without importing numba's compiler.

    numba would first import its implementations of Python and numpy, which takes a third of a second in each process.
    Loaded machine code only needs the functions of numba's runtime. If the cache lacks the kernel, the compiler imports
    these implementations itself. A program's own numba functions are loaded as ever: they may call the implementations.
    """
    if not self._py_func.__module__.startswith(f"{__package__}."):
        return _load_with_compiler(self, signature, target)
    rtsys.initialize(target)
    with self._guard_against_spurious_io_errors():
        return self._load_overload(signature, target)


FunctionCache.load_overload = _load_overload
event.register("numba:compile", _Compiling())
config.CACHE_DIR = str(cache_folder())  # type: ignore[attr-defined]
