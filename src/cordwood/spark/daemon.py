"""Spark's daemon of Python workers, with the kernels loaded before it forks.

Spark starts `python -m cordwood.spark.daemon`; each worker is a fork of it, so what is imported here is imported once.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from pathlib import Path

import cordwood.engine.task  # noqa: F401 - for its kernels


def without_zips(paths: Sequence[str]) -> list[str]:
    """Module paths without the zips that an installed pyspark brings of itself.

    Spark puts them in front. Python keeps nothing that it compiles of a zip, so that every process would compile all
    it imports of pyspark, which takes seconds; the installed package beside the zips is the same, and is compiled.
    """

    def is_installed(path: str) -> bool:
        # …/site-packages/pyspark/python/lib/pyspark.zip
        parents = Path(path).parents
        return path.endswith(".zip") and len(parents) > 3 and parents[2].name == "pyspark" and str(parents[3]) in paths

    return [path for path in paths if not is_installed(path)]


if __name__ == "__main__":
    sys.path[:] = without_zips(sys.path)
    # The worker's module needs neither pandas nor pyarrow, which may start threads: none must be there at a fork.
    import pyspark.worker  # noqa: F401
    from pyspark.daemon import manager

    # Workers collect garbage after each task. What is here stays for good, and is not gone through each time.
    gc.freeze()
    manager()
