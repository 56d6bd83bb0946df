"""Loops over raw bytes and arrays, compiled by numba. They open nothing, allocate nothing and trust no length.

Kernels take integer addresses (of arrays that the caller keeps alive) beside the sizes that bound them: one compiled
version then serves read-only and writable buffers alike, and loads need no alignment.

Numba keeps compiled code in a cache folder and notices a change of the file that holds a kernel, but not of a file
whose functions that kernel calls. So the folder is named by a digest of all kernel sources: stale code is never met,
and an installation that cannot be written to works too.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from numba import config


def cache_folder() -> Path:
    """Where the compiled kernels of exactly these sources are kept: `$CORDWOOD_CACHE`, else the user's cache folder."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    named = os.environ.get("CORDWOOD_CACHE") or os.environ.get("XDG_CACHE_HOME")
    parent = Path(named) if named else Path("~/.cache").expanduser()
    folder = parent / "cordwood" / f"kernels-{digest.hexdigest()[:16]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    # Nobody else may be able to put code there, so no fixed name in a folder that all users share.
    return Path(tempfile.mkdtemp(prefix="cordwood-kernels-"))


if not os.environ.get("NUMBA_CACHE_DIR"):
    config.CACHE_DIR = str(cache_folder())  # type: ignore[attr-defined]
