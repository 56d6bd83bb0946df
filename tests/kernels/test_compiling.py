"""The first process that needs a kernel compiles it, and logs that, or that the cache cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures import fixture

pytestmark = pytest.mark.more

CRC = """
import logging, sys
logging.basicConfig(level=logging.INFO)
import numpy as np
from cordwood.kernels.crc import crc32c
zeros = np.zeros(8, np.uint8)
crc32c(zeros.ctypes.data, zeros.size)
if "numba.np.linalg" in sys.modules:
    print("imported what only the compiler needs", file=sys.stderr)
"""


def said_by_a_process(cache: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"CORDWOOD_CACHE": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", CRC], env=environment, stderr=subprocess.PIPE, text=True, check=True)
    return done.stderr


def test_given_an_empty_cache_the_first_process_says_that_it_compiles(tmp_path: Path) -> None:
    assert said_by_a_process(tmp_path).count("compiling for this processor") == 1
    assert said_by_a_process(tmp_path) == "", "nor does it import what only the compiler needs"
    for compiled in tmp_path.rglob("*.nb?"):
        compiled.unlink()
    (begun,) = tmp_path.rglob("begun")
    os.utime(begun, (2**32, 2**32))
    said = said_by_a_process(tmp_path)
    assert "compiling for" not in said, "of processes that begin together one is enough"
    for compiled in tmp_path.rglob("*.nb?"):
        compiled.unlink()
    os.utime(begun, (0, 0))
    assert said_by_a_process(tmp_path).count("compiling for this processor") == 1


@pytest.mark.parametrize("variable", ["CORDWOOD_CACHE", "NUMBA_CACHE_DIR"])
def test_a_cache_that_cannot_be_written_is_named_with_the_variable_to_set(tmp_path: Path, variable: str) -> None:
    (tmp_path / "file").touch()
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    environment |= {variable: str(tmp_path / "file" / "cache")}
    words = [sys.executable, "-c", "import cordwood.kernels.crc"]
    said = subprocess.run(words, env=environment, stderr=subprocess.PIPE, text=True, check=True).stderr
    assert f"cannot be kept in {tmp_path}/file/cache" in said and f"set {variable} to a folder" in said


@pytest.mark.slow
def test_after_warming_the_cache_a_clean_compiles_nothing(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"CORDWOOD_CACHE": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}

    def errors_of(*words: str) -> str:
        command = [sys.executable, "-m", "cordwood", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr

    warming = errors_of("cache", "--warm")
    assert "compiling kernels: clean" in warming and "failed" not in warming
    source, copy = str(fixture("kraft-before")), str(tmp_path / "copy")
    assert "compiling" not in errors_of("clean", source, "--output", copy, "--engine", "here")
