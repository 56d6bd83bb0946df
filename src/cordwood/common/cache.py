"""The folder of this user's caches: files that save time, and that may be deleted at any time."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder of all caches: in `$CORDWOOD_CACHE`, `$XDG_CACHE_HOME` or `~/.cache`."""
    named = os.environ.get("CORDWOOD_CACHE") or os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path("~/.cache").expanduser()) / "cordwood"
