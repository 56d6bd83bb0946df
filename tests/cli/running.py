"""The command as a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"
COMMAND = [sys.executable, "-m", "cordwood", "clean"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SRC)}
