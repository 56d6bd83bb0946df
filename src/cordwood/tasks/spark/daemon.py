"""Spark's daemon that forks Python workers, with the kernels loaded before it forks.

Spark starts `python -m cordwood.tasks.spark.daemon`. Each worker is a fork of it, so modules are loaded only once, or
not at all if `forking` provides the daemon.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from pathlib import Path

from cordwood.tasks.spark.forking import hand_over


def without_zips(paths: Sequence[str]) -> list[str]:
    """Return the module paths without the zip copies of pyspark that an installed pyspark contains.

    Spark puts the zips first. Python does not cache compiled modules from a zip, so every process would compile its
    pyspark imports again, which takes seconds. The installed package is the same code, and its compiled files are
    cached.
    """

    def is_installed(path: str) -> bool:
        # …/site-packages/pyspark/python/lib/pyspark.zip
        parents = Path(path).parents
        return path.endswith(".zip") and len(parents) > 3 and parents[2].name == "pyspark" and str(parents[3]) in paths

    return [path for path in paths if not is_installed(path)]


def load() -> None:
    """Import the modules that workers need."""
    import cordwood.tasks.packing  # noqa: F401 - for the kernels of tasks
    from cordwood.kernels.crc import crc32c

    # numba initializes itself at the first call.
    crc32c(0, 0)


def be_daemon() -> None:
    """Fork workers until Spark closes standard input."""
    load()
    # pyspark.worker imports neither pandas nor pyarrow: they may start threads, and forking requires a single thread.
    import pyspark.worker  # noqa: F401
    from pyspark.daemon import manager

    # Workers run the garbage collector after each task. Exclude all objects that exist now: they are never freed.
    gc.freeze()
    manager()


if __name__ == "__main__":
    sys.path[:] = without_zips(sys.path)
    if not hand_over():
        be_daemon()
