"""Start the Java process of our own session.

On this machine we use our own command line: Spark's launcher would first start a second Java to compute the command
line of the first. Spark's launcher is used if it considers more than our command line: for a cluster, and
if there are configuration files of Spark, or options for its launcher in the environment.
"""

from __future__ import annotations

import os
import shlex
import struct
import subprocess
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING

from cordwood.common.errors import RequestError
from cordwood.tasks.spark.archive import Archive
from cordwood.tasks.spark.java import Java
from cordwood.tasks.spark.requirements import NOT_INSTALLED

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]

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


def launcher_knows_more(settings: Mapping[str, str], environment: Mapping[str, str]) -> bool:
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
    if launcher_knows_more(settings, environment):
        words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        arguments = shlex.split(environment.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        return [f"{spark_home()}/bin/spark-submit", *words, *arguments]
    program, *words = _own_command(java, settings, environment)
    return [program, *(() if archive is None else archive.options()), *words, _MAIN]


def archive_for(java: Java, settings: Mapping[str, str], environment: Mapping[str, str]) -> Archive | None:
    """Return the class archive that Java may use; None if no archive can match, or options already select one."""
    if launcher_knows_more(settings, environment):
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
