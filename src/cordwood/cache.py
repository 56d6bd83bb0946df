"""Where this user's caches are: files that save time, and that nobody misses if they are gone."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder of all caches: in `$CORDWOOD_CACHE`, `$XDG_CACHE_HOME` or `~/.cache`."""
    named = os.environ.get("CORDWOOD_CACHE") or os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path("~/.cache").expanduser()) / "cordwood"
