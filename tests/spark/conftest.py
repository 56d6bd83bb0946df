"""One stock Spark session for all tests that need one; starting it takes seconds."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from cordwood.spark.java import find_java


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session as a user makes it, with none of our settings."""
    os.environ |= {name: value for name, value in find_java().settings.items() if value is not None}
    os.environ["PYSPARK_PYTHON"] = sys.executable
    made = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()
