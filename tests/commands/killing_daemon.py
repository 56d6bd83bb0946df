"""Spark's daemon of Python workers, on a slow disk."""

from __future__ import annotations

from tests.commands.killing import be_slow

be_slow()

if __name__ == "__main__":
    from pyspark.daemon import manager

    manager()
