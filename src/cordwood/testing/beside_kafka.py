"""The same log cleaned by Kafka's own cleaner and by ours: how fast each is, and whether the same comes out.

Kafka's is the `oracle` of a checkout (tests/kafka), which runs Kafka's classes without a broker. Both get one
partition: for Kafka the work of one thread, for us one task, which reads, decodes and writes side by side. Both sync
what they write, and both run on files that are in memory, in a process that did the same before, in turns; the best
run of each counts. Kafka's time is what it reports of itself, map and copy, without the start of its JVM and the
opening of the log. Ours is that of the Spark jobs, from start to result, the check of what was written among them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import cordwood
from cordwood.api import clean
from cordwood.engine.results import CleanResult, Fate
from cordwood.errors import RequestError
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats import filenames
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.log.view import LogView
from cordwood.testing.generate import Shape, write_keyed_log
from cordwood.types import Codec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PARTITION = "bench-0"
#: Runs of each side; the first is not counted.
_RUNS = 5
#: Later than all that is generated.
_NOW_MS = 1_800_000_000_000
_INDEXES = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX)


@dataclass(frozen=True, slots=True)
class Task:
    """A log to be cleaned.

    Attributes:
        shape: of its records.
        share: of the size that is asked for.
        records_per_key: on average.
    """

    shape: Shape
    share: float
    records_per_key: int


TASKS = {
    "A: 1 KiB, none": Task(Shape(value_bytes=1024), 4.0, 4),
    "B: 100 B, none": Task(Shape(), 4.0, 16),
    "B-lz4: 100 B, lz4": Task(Shape(codec=Codec.LZ4), 1.2, 8),
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What both made of one log.

    Attributes:
        log: which.
        log_mb: its size, 10^6 bytes as stored.
        cleaned_mb: what is left of it.
        records: in it.
        kafka_s, cordwood_s: the clean.
        cordwood_all_s: with everything around it: planning, copying the rest, checkpoints.
        equal: how far the results were compared and found equal.
    """

    log: str
    log_mb: float
    cleaned_mb: float
    records: int
    kafka_s: float
    cordwood_s: float
    cordwood_all_s: float
    equal: str

    @property
    def ratio(self) -> float:
        """How many times faster ours is."""
        return self.kafka_s / self.cordwood_s


def find_oracle() -> Path:
    """The program that runs Kafka's cleaner; its jars are there, too.

    Raises:
        RequestError: something is missing, with what to do.
    """
    folder = Path(cordwood.__file__).parents[2] / "tests" / "kafka"
    if not (folder / "oracle").is_file():
        raise RequestError(
            "Kafka's cleaner is run by tests/kafka/oracle, which an installed package lacks. In a checkout:\n"
            "  make && .venv/bin/cordwood bench --against-kafka"
        )
    for program in ("java", "javac"):
        if shutil.which(program) is None:
            raise RequestError(f"{program} is not on the path. Install a Java JDK, 17 or later")
    fetched = subprocess.run([folder / "fetch-kafka"], capture_output=True, text=True, check=False)
    if fetched.returncode:
        raise RequestError(
            f"Kafka's jars are not here: {fetched.stderr.strip()}\n"
            f"  Fetch them with Maven, once:  {folder / 'fetch-kafka'}\n"
            "  or set KAFKA_LIBS to the folder libs of an unpacked Kafka 4.3.1"
        )
    return folder / "oracle"


def compare(oracle: Path, folder: Path, name: str, size_bytes: int, spark: SparkSession) -> Comparison:
    """Generate one log, have it cleaned by both, remove it.

    Raises:
        RequestError: one of them fails, or the results differ.
    """
    source = folder / "source"
    records = _generate(source, TASKS[name], size_bytes)
    kafkas = [folder / f"kafka-{run}" for run in range(_RUNS)]
    for copy in kafkas:
        shutil.copytree(source, copy, copy_function=_link_or_copy)
    target = folder / "ours"
    kafka_seconds, results = [], []
    with _Kafka(oracle) as kafka:
        # In turns, so that what else the machine does meets both.
        for copy in kafkas:
            os.sync()
            kafka_seconds.append(kafka.clean(copy))
            shutil.rmtree(target, ignore_errors=True)
            os.sync()
            results.append(_ours(source, target, spark))
    best = min(results[1:], key=lambda result: result.clean_seconds)
    found = Comparison(
        log=name,
        log_mb=best.partitions[0].bytes_before / 1e6,
        cleaned_mb=best.partitions[0].bytes_after / 1e6,
        records=records,
        kafka_s=min(kafka_seconds[1:]),
        cordwood_s=best.clean_seconds,
        cordwood_all_s=best.seconds,
        equal=compared(kafkas[-1] / _PARTITION, target / _PARTITION, compressed=bool(TASKS[name].shape.codec)),
    )
    for made in (source, target, *kafkas):
        shutil.rmtree(made)
    return found


def _generate(source: Path, task: Task, size_bytes: int) -> int:
    partition = source / _PARTITION
    partition.mkdir(parents=True)
    record_bytes = (task.shape.value_bytes + task.shape.key_bytes + 11) * (0.65 if task.shape.codec else 1)
    records = write_keyed_log(
        PosixFileSystem(),
        str(partition),
        size_bytes=size_bytes,
        keys=max(1, int(size_bytes / record_bytes / task.records_per_key)),
        shape=task.shape,
    )
    (source / filenames.CLEAN_SHUTDOWN).write_bytes(b"")
    return records


def _link_or_copy(source: str, target: str) -> None:
    """Kafka writes to no log that it cleans: a second name will do. Indexes it maps and cuts."""
    if source.endswith(FileKind.LOG):
        os.link(source, target)
    else:
        shutil.copy2(source, target)


class _Kafka:
    """A process that runs Kafka's cleaner, clean by clean."""

    def __init__(self, oracle: Path) -> None:
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in __exit__
        # Batches of commands are otherwise compiled for a quick start; a broker's Java compiles for speed.
        options = {**os.environ, "ORACLE_JAVA_OPTS": "-XX:TieredStopAtLevel=4"}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [oracle, "batch"], stdin=pipe, stdout=pipe, stderr=self._said, text=True, env=options
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()
        self._said.close()

    def clean(self, root: Path) -> float:
        """Clean a directory's partition; the seconds that it took.

        Raises:
            RequestError: it failed.
        """
        assert self._process.stdin is not None, "it is a pipe"
        assert self._process.stdout is not None, "it is a pipe"
        with contextlib.suppress(BrokenPipeError):  # then there is no answer, either
            print(json.dumps(["clean", str(root), "--now", str(_NOW_MS)]), file=self._process.stdin, flush=True)
        seconds: float | None = None
        for line in map(json.loads, self._process.stdout):
            if line.get("type") == "clean":
                seconds = line["total_seconds"]
            if "exit" in line:
                break
        if seconds is None:
            self._said.seek(0)
            raise RequestError(f"Kafka's cleaner failed: {self._said.read().strip()[-2000:]}")
        return seconds


def _ours(source: Path, target: Path, spark: SparkSession) -> CleanResult:
    result = clean(
        str(source),
        output=str(target),
        spark=spark,
        now_ms=_NOW_MS,
        overrides=["cleanup.policy=compact"],
        ignore_ratio=True,
        high_watermark="end",
        single_copy=True,
    )
    if not result.with_fate(Fate.CLEANED):
        raise RequestError(f"It was not cleaned: {result.partitions[0].why}")
    return result


def compared(kafka: Path, ours: Path, *, compressed: bool) -> str:
    """Compare two partitions, but for the active segment's indexes; returns what is equal.

    Raises:
        RequestError: they differ, or one is damaged.
    """
    names, own = (sorted(path.name for path in folder.glob("*.log")) for folder in (kafka, ours))
    if names != own:
        raise RequestError(f"Kafka has the segments {', '.join(names)}, we have {', '.join(own)}")
    if compressed:
        theirs, mine = LogView(str(kafka), fs=PosixFileSystem()), LogView(str(ours), fs=PosixFileSystem())
        if not theirs.to_arrow(isolation=None).equals(mine.to_arrow(isolation=None)):
            raise RequestError(f"The records differ from Kafka's, of {names[0]} on")
        return "records"
    for name in names:
        kinds = (FileKind.LOG, *(_INDEXES if name != names[-1] else ()))
        for path in (name.removesuffix(FileKind.LOG) + kind for kind in kinds):
            if (kafka / path).read_bytes() != (ours / path).read_bytes():
                raise RequestError(f"{path} differs from Kafka's")
    return "bytes"
