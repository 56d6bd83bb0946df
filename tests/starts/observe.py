"""Observe a real broker on a node: tests/kafka/Starts.java starts it and reads the records that it serves."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.kafka_tools import FOLDER, jars

Answer = dict[str, Any]

#: Broker settings, like those of `broker`: results do not depend on the date, and internal topics are small.
SETTINGS = {
    "log.retention.ms": "-1",
    "log.initial.task.delay.ms": "86400000",
    "log.cleaner.backoff.ms": "100",
    # The cleaner runs but finds no work, as a clean would race with the consumer.
    "log.cleaner.min.compaction.lag.ms": str(2**62),
    "log.cleaner.dedupe.buffer.size": "16777216",
    "offsets.retention.minutes": "2147483",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "86400000",
    # The session of the node's previous broker must expire first.
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "100",
    "controlled.shutdown.enable": "false",
    "num.network.threads": "1",
    "num.io.threads": "2",
}
LOGGING = {"showDateTime": "false", "showShortLogName": "true", "defaultLogLevel": "warn"}
#: Capabilities with which root bypasses file permissions; brokers usually run as a user without them.
POWERS = ("dac_override", "dac_read_search", "fowner")


class Starts:
    """A Java process that starts brokers, one after the other."""

    def __init__(self) -> None:
        words = [f"-Dorg.slf4j.simpleLogger.{name}={value}" for name, value in LOGGING.items()]
        words += ["-Xmx700m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"]
        limits = ["setpriv", "--bounding-set", ",".join(f"-{power}" for power in POWERS)] if os.getuid() == 0 else []
        command = [*limits, "java", *words, "-cp", f"{_compiled()}:{jars()[0].parent}/*", "Starts"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def __call__(self, node: Path) -> Answer:
        """Start a broker on `node/a` and `node/b`. Return its answer, plus removed and new directories.

        The broker changes the node.
        """
        assert self._process.stdin
        assert self._process.stdout
        before = _directories(node)
        asked = {"dirs": [str(node / "a"), str(node / "b")], "settings": SETTINGS}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer: Answer = json.loads(self._process.stdout.readline())
        after = _directories(node)
        return answer | {"gone": sorted(before - after), "new": sorted(after - before)}


def _directories(node: Path) -> set[str]:
    """Return disk and name of everything that is named like a partition directory, on readable disks."""
    return {
        f"{disk}/{name}"
        for disk in ("a", "b")
        if os.access(node / disk, os.R_OK) and (node / disk).is_dir()
        for name in os.listdir(node / disk)
        if "-" in name and "checkpoint" not in name
    }


def _compiled() -> Path:
    """Return the folder with the classes of Starts.java. Compile it only if its content is new."""
    source, library = FOLDER / "Starts.java", jars()[0].parent
    target = library.parent / f"Starts-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    if not target.exists():
        aside = target.with_name(f"{target.name}.{os.getpid()}")
        subprocess.run(["javac", "-nowarn", "-cp", f"{library}/*", "-d", aside, source], check=True)
        try:
            aside.rename(target)
        except OSError:  # another process was faster
            shutil.rmtree(aside)
    return target


if __name__ == "__main__":
    with Starts() as starts:
        for word in sys.argv[1:]:
            print(json.dumps(starts(Path(word)), indent=1))
