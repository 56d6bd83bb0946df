"""Kernels are compiled by the first process that needs them, which says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CRC = """
import logging, sys
logging.basicConfig(level=logging.INFO)
import numpy as np
from cordwood.kernels.crc import crc32c
zeros = np.zeros(8, np.uint8)
crc32c(zeros.ctypes.data, zeros.size)
"""


def said_by_a_process(cache: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"CORDWOOD_CACHE": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", CRC], env=environment, stderr=subprocess.PIPE, text=True, check=True)
    return done.stderr


def test_given_an_empty_cache_the_first_process_says_that_it_compiles(tmp_path: Path) -> None:
    assert said_by_a_process(tmp_path).count("compiling for this processor") == 1
    assert said_by_a_process(tmp_path) == ""
    for compiled in tmp_path.rglob("*.nb?"):
        compiled.unlink()
    assert said_by_a_process(tmp_path) == ""
