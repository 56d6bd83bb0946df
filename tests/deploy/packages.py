"""Packages built from the project, and an environment that has only one of them."""

from __future__ import annotations

import os
import re
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


def locked_versions() -> str:
    """The versions of requirements.lock as constraints: a wheel of our own has no hash there."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return "".join(f"{line.rstrip(' ' + chr(92))}\n" for line in lines if re.match(r"[\w.\[\]-]+==", line))


class Environment:
    """A bare virtual environment outside the project, with one wheel and its dependencies."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        self.python = folder / "bin/python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=SECONDS_MAX)
        constraints = folder / "constraints.txt"
        constraints.write_text(locked_versions())
        # pip's configured index applies.
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet", "--no-input"]
        subprocess.run([*command, "-c", str(constraints), str(wheel)], check=True, timeout=SECONDS_MAX)

    def run(self, *words: str, code: int = 0) -> str:
        """The output of one of its programs, started in its folder, which has no file of the project."""
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("CORDWOOD_", "PYTHONPATH"))
        }
        done = subprocess.run(
            [self.folder / "bin" / words[0], *words[1:]],
            cwd=self.folder,
            env=inherited | {"COLUMNS": "120"},
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS_MAX,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout
