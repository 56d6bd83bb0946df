"""Check a user's session: its Spark is new enough, and its workers have Cordwood."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from cordwood.common.errors import RequestError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOT_INSTALLED = "This runs on Spark, which is not installed:  pip install 'cordwood[spark]'"
_SPARK_MIN = (4, 3)
_LOOK_SECONDS = 60
_LOOK = (
    "import importlib.util as u, sys; print('{}.{}'.format(*sys.version_info[:2]), u.find_spec('cordwood') is not None)"
)
#: The workers' Python if PYSPARK_PYTHON is not set.
_DEFAULT_PYTHON = "python3"


def check_version(version: str) -> None:
    """Raise RequestError if Spark is too old.

    Raises:
        RequestError: the version is below 4.3.
    """
    if tuple(map(int, re.findall("[0-9]+", version)[:2])) < _SPARK_MIN:
        raise RequestError(f"This is Spark {version}, and Cordwood needs 4.3 or newer:  pip install 'cordwood[spark]'")


def prepare_session(spark: SparkSession) -> None:
    """Reject a user's session that cannot run tasks of Cordwood; let a local one run them in this process's Python.

    Spark's workers run `python3` from the path unless PYSPARK_PYTHON is set. In a virtual environment that is not
    activated this is another Python, without Cordwood. Spark reads the choice from the context at each query, so a
    local session can still get this process's Python. If the user chose a Python, it is kept, or rejected.

    Raises:
        RequestError: the session is too old; or its workers run a Python that the user chose and that has no Cordwood.
    """
    check_version(spark.version)
    if not hasattr(spark, "_jsparkSession"):  # Spark Connect: the workers belong to the server
        return
    context = spark.sparkContext
    if not (context.master or "").startswith("local"):  # on a cluster, `executors` checks the workers
        return
    if context.pythonExec == _DEFAULT_PYTHON and sys.executable:
        context.pythonExec = sys.executable
    check_python(context.pythonExec)


def check_python(python: str) -> None:
    """Raise RequestError if a Python for workers has another version, or no Cordwood; see `prepare_session`."""
    path = shutil.which(python)
    if path == sys.executable:
        return
    fault = "which does not exist"
    if path is not None:
        look = [path, "-c", _LOOK]
        found = subprocess.run(look, capture_output=True, text=True, timeout=_LOOK_SECONDS, check=False).stdout.split()
        mine = "{}.{}".format(*sys.version_info[:2])
        if found == [mine, "True"]:
            return
        is_other = found[:1] not in ([], [mine])
        fault = f"which is Python {found[0]}; this process runs {mine}" if is_other else "which has no Cordwood"
    raise RequestError(
        f"Spark's workers run {path or python}, {fault}. PYSPARK_PYTHON chose it. Unset that, or set it to the Python "
        f"of this process before the session starts:  export PYSPARK_PYTHON={sys.executable}"
    )
