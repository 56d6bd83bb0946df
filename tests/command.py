"""How tests run the command `cordwood`: `run` in this process, `start` and `run_alone` in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from cordwood.cli.main import app

#: The command in a process of its own.
CORDWOOD = [sys.executable, "-m", "cordwood"]
#: Environment of a process that imports the Cordwood of this checkout.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src")}


@dataclass(frozen=True)
class Ended:
    """A command that ended in this process. `output` holds both streams, as a terminal shows them."""

    exit_code: int
    stdout_bytes: bytes
    stderr: str
    output: str

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode()

    @property
    def json(self) -> Any:
        """The printed JSON value."""
        return json.loads(self.stdout)

    @property
    def lines(self) -> list[Any]:
        """The values of the printed JSON lines."""
        return [json.loads(line) for line in self.stdout.splitlines()]


def run(*words: object, exits: int | None = 0, stdin: str | None = None) -> Ended:
    """Run `cordwood WORDS…` in this process. It must exit with the code `exits`; None allows any code."""
    done = CliRunner().invoke(app, [*map(str, words)], input=stdin, prog_name="cordwood")
    if not isinstance(done.exception, SystemExit | None):
        raise done.exception
    assert exits in (None, done.exit_code), (words, done.exit_code, done.output)
    return Ended(done.exit_code, done.stdout_bytes, done.stderr, done.output)


def start(*words: object, environment: Mapping[str, str] = {}, **options: Any) -> subprocess.Popen[str]:
    """Start `cordwood WORDS…` in a process of its own, for tests of signals, pipes, memory and exits.

    Args:
        environment: variables in addition to ENVIRONMENT.
        options: of Popen. By default stdout and stderr are pipes of text; `stderr=None` lets it print.
    """
    defaults = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*CORDWOOD, *map(str, words)], env={**ENVIRONMENT, **environment}, **(defaults | options))


def run_alone(
    *words: object, exits: int = 0, environment: Mapping[str, str] = {}, seconds_max: float = 600, **options: Any
) -> Ended:
    """Run `cordwood WORDS…` in a process of its own, like `start`, until it exits with the code `exits`."""
    with start(*words, environment=environment, **options) as process:
        try:
            stdout, stderr = process.communicate(timeout=seconds_max)
        finally:
            process.kill()
    assert process.returncode == exits, (words, process.returncode, stdout, stderr)
    return Ended(process.returncode, stdout.encode(), stderr, stdout + stderr)
