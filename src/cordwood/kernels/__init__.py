"""Loops over raw bytes and arrays, compiled by numba. They check every length before they use it.

They do no I/O, but for `scan.walk_headers`.

Kernels take integer addresses, of arrays that the caller keeps alive, with the sizes that bound them: one compiled
version then serves read-only and writable buffers, and loads need no alignment.

Numba caches compiled code. It notices changes to the file of a kernel, but not to files whose functions that kernel
calls. So the name of the cache folder contains a digest of all kernel sources, and stale code is never used. The folder
is outside the installation, which may be read-only.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from pathlib import Path

from numba import config
from numba.core import event

from cordwood import cache

_log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """The cache folder for these kernel sources: in this user's, or a new one."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    folder = cache.cache_folder() / f"kernels-{digest.hexdigest()[:16]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    # Other users must not be able to put code there, so no fixed name in a shared folder.
    return Path(tempfile.mkdtemp(prefix="cordwood-kernels-"))


class _Compiling(event.Listener):
    """Logs that kernels are compiled, by the first of all processes that does so for a cache folder."""

    def on_start(self, event: event.Event) -> None:
        try:
            (Path(str(config.CACHE_DIR)) / "begun").touch(exist_ok=False)  # type: ignore[attr-defined]
        except OSError:
            return
        _log.info("compiling for this processor, which takes half a minute, once")

    def on_end(self, event: event.Event) -> None:
        pass


event.register("numba:compile", _Compiling())
if not os.environ.get("NUMBA_CACHE_DIR"):
    config.CACHE_DIR = str(cache_folder())  # type: ignore[attr-defined]
