"""Spark's daemon of Python workers whose tasks carry out orders."""

from __future__ import annotations

from tests.tasks.spark.killing import plant

plant()

if __name__ == "__main__":
    from pyspark.daemon import manager

    manager()
