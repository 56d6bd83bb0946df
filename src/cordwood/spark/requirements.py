"""The requirements for a user's session: new enough, and with workers that have Cordwood."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from cordwood.errors import RequestError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOT_INSTALLED = "This runs on Spark, which is not installed:  pip install 'cordwood[spark]'"
_SPARK_MIN = (4, 2)
_LOOK_SECONDS = 60
_HAS_CORDWOOD = "import importlib.util as u, sys; sys.exit(u.find_spec('cordwood') is None)"


def check_version(version: str) -> None:
    """Refuse a Spark that is too old.

    Raises:
        RequestError: it is.
    """
    if tuple(map(int, re.findall("[0-9]+", version)[:2])) < _SPARK_MIN:
        raise RequestError(f"This is Spark {version}, and Cordwood needs 4.2 or newer:  pip install 'cordwood[spark]'")


def check_workers(spark: SparkSession) -> None:
    """Refuse a session on this machine whose Python workers have no Cordwood.

    Raises:
        RequestError: they have none.
    """
    if not hasattr(spark, "_jsparkSession"):  # a session of Spark Connect does not say
        return
    if (spark.sparkContext.master or "").startswith("local"):
        check_python(spark.sparkContext.pythonExec)


def check_python(python: str) -> None:
    """Refuse a Python for workers that has no Cordwood; see `check_workers`."""
    path = shutil.which(python)
    if path == sys.executable:
        return
    if path is not None:
        look = [path, "-c", _HAS_CORDWOOD]
        if subprocess.run(look, capture_output=True, timeout=_LOOK_SECONDS, check=False).returncode == 0:
            return
    raise RequestError(
        f"Spark's workers run {path or python}, which has no Cordwood. Before the session starts, set PYSPARK_PYTHON "
        f"to the Python that has it:  export PYSPARK_PYTHON={sys.executable}"
    )
