"""The tree of imports, as `pyproject.toml` states it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def test_imports_go_down_the_layers_and_never_up() -> None:
    # In this process it would disable all loggers for the tests behind it.
    program = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run(
        [program, "--no-cache", "--config", PROJECT], check=False, capture_output=True, text=True, cwd=PROJECT.parent
    )
    assert done.returncode == 0, done.stdout
