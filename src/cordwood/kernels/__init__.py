"""Loops over raw bytes and arrays, compiled by numba. They check every length before they use it.

Except for `scan.walk_headers`, they do no I/O.

Kernels get integer addresses, of arrays that the caller keeps alive, with the sizes that bound them: one compiled
version then serves read-only and writable buffers, and loads need no alignment.

Numba caches compiled code. It notices changes to a kernel's file, but not to files that define functions called by the
kernel. So the name of the cache folder contains a digest of all kernel sources, and stale code is never used. The
folder is outside the installation, which may be read-only.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import pickle
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from numba import config, types
from numba.core import environment, event
from numba.core.base import BaseContext
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.runtime import _nrt_python  # type: ignore[attr-defined]
from typing_extensions import override

from cordwood.common import cache

_log = logging.getLogger(__name__)


#: Processes of one command compile at the same time; after a message, the others are silent for this long.
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

    numba would first import its implementations of Python and numpy, and compile the functions of its runtime, which
    takes 0.4 seconds in each process. Loaded machine code contains these functions; they only need the addresses of the
    runtime's functions in C. If the cache lacks the kernel, the compiler imports and compiles the rest itself. A
    program's own numba functions are loaded as ever: they may call what numba imports.
    """
    if not self._py_func.__module__.startswith(f"{__name__}."):
        return _load_with_compiler(self, signature, target)
    _add_runtime_symbols()
    self._cache_file._load_data = functools.partial(_load_data, self._cache_file)
    with self._guard_against_spurious_io_errors():
        return self._load_overload(signature, target)


@functools.cache
def _add_runtime_symbols() -> None:
    """Let loaded machine code call the functions in C of numba's runtime, as `rtsys.initialize` does."""
    for name, address in _nrt_python.c_helpers.items():
        llvm.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


def _load_data(file: IndexDataCacheFile, name: str) -> object:
    """Read a file of the cache, as `IndexDataCacheFile._load_data` does, with environments for our kernels."""
    with open(file._data_path(name), "rb") as stream:
        return _Unpickler(stream).load()


class _Unpickler(pickle.Unpickler):
    """Makes the environment of a function without importing the function's module.

    Kernels contain functions of `numba.np.arrayobj` and the like. An environment holds the constants that machine code
    uses, and the globals of the function's module, which only the interpreter's code (object mode) would use.
    """

    @override
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (environment.__name__, "_rebuild_env"):
            return _environment
        return super().find_class(module, name)


def _environment(module: str, constants: Sequence[object], name: str) -> environment.Environment:
    found = environment.lookup_environment(name)
    if found is None:
        found = environment.Environment({"__name__": module})
        found.consts[:] = constants
        found.env_name = name
        environment.Environment._memo[name] = found
    return found


FunctionCache.load_overload = _load_overload
event.register("numba:compile", _Compiling())
config.CACHE_DIR = str(cache_folder())  # type: ignore[attr-defined]
