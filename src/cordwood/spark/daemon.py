"""Spark's daemon of Python workers, with the kernels loaded before it forks.

Spark starts `python -m cordwood.spark.daemon`; each worker is a fork of it, so what is imported here is imported once.
"""

from __future__ import annotations

import cordwood.spark.partitioning  # noqa: F401 - for its kernels

if __name__ == "__main__":
    from pyspark.daemon import manager

    manager()
