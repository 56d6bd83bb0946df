"""The folder that Spark runs in: where Java was started, and where the processes that it starts stay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def folder_of(spark: SparkSession) -> Path:
    """Relative paths that Spark itself looks for are from here."""
    assert spark.sparkContext._jvm is not None
    return Path(spark.sparkContext._jvm.java.lang.System.getProperty("user.dir"))
