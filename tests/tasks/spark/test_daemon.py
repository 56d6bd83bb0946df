"""Modules that Spark's Python workers start with: the kernels, a compiled pyspark, and no slow import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from cordwood.tasks.spark.daemon import without_zips

pytestmark = pytest.mark.more


def test_only_zips_beside_an_installed_pyspark_are_left_out() -> None:
    site = "/venv/lib/python3.11/site-packages"
    zips = [f"{site}/pyspark/python/lib/pyspark.zip", f"{site}/pyspark/python/lib/py4j-0.10.9.9-src.zip"]
    others = ["/job", "/opt/spark/python/lib/pyspark.zip", "/usr/lib/python311.zip", "a.zip"]
    assert without_zips([*zips, *others, site]) == [*others, site]
    # A pyspark that exists as a zip only.
    assert without_zips([*zips, *others]) == [*zips, *others]


#: The modules in a worker, from a task of a session of our own.
ASKED = """
import json
from cordwood.tasks.tasks import run_each
from cordwood.tasks.spark.runner import running_on_spark

def modules(names):
    import sys
    return [getattr(sys.modules.get(name), "__file__", None) for name in names]

asked = ("cordwood.kernels.scan", "pyspark", "pandas")
with running_on_spark() as runner:
    # Twice: what a row that is sent back makes a worker load is there the second time.
    for _ in range(2):
        found = run_each(runner, modules, [asked], [1])
print(json.dumps(found[0]))
"""


@pytest.mark.slow
def test_workers_have_the_kernels_and_the_installed_pyspark_and_no_pandas() -> None:
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True)
    kernels, package, pandas = json.loads(done.stdout.splitlines()[-1])
    assert kernels is not None
    assert Path(package).parent == Path(pyspark.__file__).parent
    assert pandas is None
