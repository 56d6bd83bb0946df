"""Packages built from the project, and an environment that has only one of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 600


def built(kind: str, folder: Path, source: Path = ROOT) -> Path:
    """The `wheel` or the `sdist` of a source tree, in a folder."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(folder)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False, timeout=SECONDS_MAX)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return found
