"""Java begins to start before a command is loaded and planned, and is ended if the command does not need it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.command import ENVIRONMENT, Ended, run_alone
from tests.logs import batch, make_log

pytestmark = pytest.mark.more

#: Python runs this when it starts. It notes each program that a process starts, and whether kernels are loaded by then.
SITE = """
import os, sys

def note(event, arguments):
    if event == "subprocess.Popen":
        with open(os.environ["TMPDIR"] + "/started", "a") as file:
            print(*arguments[1], "llvmlite" in sys.modules, file=file)

sys.addaudithook(note)
"""


def clean_with(java: str, folder: Path, *words: object, exits: int) -> Ended:
    """Run `cordwood clean` with a Java that is a shell script, with `folder` for temporary files."""
    (folder / "sitecustomize.py").write_text(SITE)
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"""#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "21"' >&2; exit; fi
{java}
""")
    program.chmod(0o755)
    environment = {"JAVA_HOME": str(folder), "TMPDIR": str(folder)}
    environment["PYTHONPATH"] = f"{folder}:{ENVIRONMENT['PYTHONPATH']}"
    words = ("clean", *words, "--output", folder / "copy", "--engine", "spark")
    return run_alone(*words, environment=environment, exits=exits)


def two_segments(folder: Path) -> Path:
    """A log with something to clean, for a config that allows it."""
    make_log(folder / "t-0", [batch(0), batch(1)], [batch(2)])
    return folder / "t-0"


def test_java_is_started_before_the_kernels_are_loaded(tmp_path: Path) -> None:
    done = clean_with(
        "exit 1",
        tmp_path,
        two_segments(tmp_path),
        *("--config", "cleanup.policy=compact", "--ignore-ratio"),
        exits=2,
    )
    assert "Spark does not start: Java has ended" in done.stderr
    version, started = (tmp_path / "started").read_text().splitlines()
    assert " -version" in version and " -cp " in started and started.endswith(" False")


@pytest.mark.parametrize("exists", [True, False], ids=["nothing to clean", "a refusal"])
def test_given_no_task_java_is_ended(exists: bool, tmp_path: Path) -> None:
    log = two_segments(tmp_path) if exists else tmp_path / "t-0"
    clean_with(f"echo $$ >{tmp_path}/pid; exec sleep 600", tmp_path, log, exits=0 if exists else 2)
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not list(tmp_path.glob("cordwood-spark-*"))
