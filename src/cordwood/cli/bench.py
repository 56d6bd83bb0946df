"""`cordwood bench`: how fast this machine reads a log, measured on logs that are generated for it.

Figures are MB (10^6 bytes) of log as stored, per second of one core: the process's own CPU time, best of several passes
over a file in the page cache, so that neighbours on the machine count little. `cp` of the same file, timed the same
way, gives the scale.

With `--against-kafka` it is cleans that are timed, by the clock: `cordwood.testing.beside_kafka`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cordwood.commands.read import open_log
from cordwood.fs.posix import PosixFileSystem
from cordwood.spark.session import session
from cordwood.tables import Column, table
from cordwood.testing.generate import Shape, write_log
from cordwood.types import Codec

if TYPE_CHECKING:
    from cordwood.testing.beside_kafka import Comparison

#: Name, shape, and share of the asked-for size: compressed ones take longer.
SHAPES = {
    "100 B, none": (Shape(), 1.0),
    "1 KiB, none": (Shape(value_bytes=1024), 1.0),
    "100 B, lz4": (Shape(codec=Codec.LZ4), 0.25),
    "100 B, snappy": (Shape(codec=Codec.SNAPPY), 0.25),
    "100 B, zstd": (Shape(codec=Codec.ZSTD), 0.25),
    "100 B, gzip": (Shape(codec=Codec.GZIP), 0.1),
}


@dataclass(frozen=True)
class Figures:
    """What was measured on one log.

    Attributes:
        log: its shape.
        log_mb: its size.
        records: in it.
        cp_mb_s: copying the file, by `cp`.
        scan_mb_s: walk over the headers and check of the CRCs.
        decode_mb_s, decode_records_s: walk, CRC and decode of every record into columns.
        arrow_mb_s, arrow_records_s: the same into Arrow record batches.
        decode_memory_mb, arrow_memory_mb: most memory held, above that of a bare interpreter; all imports count.
    """

    log: str
    log_mb: float
    records: int
    cp_mb_s: float
    scan_mb_s: float
    decode_mb_s: float
    decode_records_s: float
    arrow_mb_s: float
    arrow_records_s: float
    decode_memory_mb: float
    arrow_memory_mb: float


def main(
    size: Annotated[
        int, typer.Option(min=1, help="MB of the largest log; --against-kafka makes logs of four times that.")
    ] = 500,
    passes: Annotated[int, typer.Option(min=1, help="Passes over each log; the best counts.")] = 4,
    directory: Annotated[
        str | None, typer.Option("--dir", help="Where to put the logs for a while; default: the temporary folder.")
    ] = None,
    against_kafka: Annotated[
        bool, typer.Option("--against-kafka", help="Clean logs beside Kafka's own cleaner instead.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Measure how fast this machine reads a log, beside cp; or how fast it cleans one, beside Kafka's own cleaner."""
    if against_kafka:
        _against_kafka(size, directory, as_json=as_json)
        return
    found = []
    with tempfile.TemporaryDirectory(prefix="cordwood-bench-", dir=directory) as folder:
        for name, (shape, share) in SHAPES.items():
            if sys.stderr.isatty():
                print(f"\r{name} …   ", end="", file=sys.stderr, flush=True)
            found.append(measure(Path(folder), name, shape, int(size * share * 1e6), passes))
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    if as_json:
        print(json.dumps([asdict(figures) for figures in found], indent=2))
        return
    print("MB/s and million records/s of one core; memory is what a process takes above a bare interpreter")
    row = "{:<15}{:>7}{:>9}{:>9}{:>9}{:>8}{:>9}{:>8}{:>12}{:>12}"
    print(row.format("log", "MB", "cp", "scan+CRC", "decode", "M/s", "Arrow", "M/s", "decode mem", "Arrow mem"))
    for f in found:
        print(
            row.format(
                f.log,
                f"{f.log_mb:.0f}",
                f"{f.cp_mb_s:.0f}",
                f"{f.scan_mb_s:.0f}",
                f"{f.decode_mb_s:.0f}",
                f"{f.decode_records_s / 1e6:.1f}",
                f"{f.arrow_mb_s:.0f}",
                f"{f.arrow_records_s / 1e6:.1f}",
                f"{f.decode_memory_mb:.0f} MB",
                f"{f.arrow_memory_mb:.0f} MB",
            )
        )


def _against_kafka(size: int, directory: str | None, *, as_json: bool) -> None:
    from cordwood.testing import beside_kafka

    oracle = beside_kafka.find_oracle()
    found = []
    # Where outputs go must be a disk: syncing to memory costs nothing.
    with tempfile.TemporaryDirectory(prefix="cordwood-bench-", dir=directory) as folder, session() as spark:
        for name, task in beside_kafka.TASKS.items():
            if sys.stderr.isatty():
                print(f"\r{name} …   ", end="", file=sys.stderr, flush=True)
            found.append(beside_kafka.compare(oracle, Path(folder), name, int(size * task.share * 1e6), spark))
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    if as_json:
        print(json.dumps([{**asdict(one), "ratio": one.ratio} for one in found], indent=2))
        return
    print("one partition, cleaned by Kafka 4.3.1's cleaner and by ours; MB/s of log as stored, synced to disk")
    columns = [Column("LOG"), *(Column(title, right=True) for title in _AGAINST_KAFKA)]
    print("\n".join(table(columns, [[one.log, *(cell(one) for cell in _AGAINST_KAFKA.values())] for one in found])))


#: Title and cell of each column.
_AGAINST_KAFKA: dict[str, Callable[[Comparison], str]] = {
    "MB": lambda one: f"{one.log_mb:.0f}",
    "CLEANED": lambda one: f"{one.cleaned_mb:.0f}",
    "KAFKA S": lambda one: f"{one.kafka_s:.2f}",
    "MB/S": lambda one: f"{one.log_mb / one.kafka_s:.0f}",
    "CORDWOOD S": lambda one: f"{one.cordwood_s:.2f}",
    "MB/S ": lambda one: f"{one.log_mb / one.cordwood_s:.0f}",
    "RATIO": lambda one: f"{one.ratio:.1f}",
    "WITH ALL AROUND S": lambda one: f"{one.cordwood_all_s:.2f}",
    "EQUAL": lambda one: one.equal,
}


def measure(folder: Path, name: str, shape: Shape, size_bytes: int, passes: int) -> Figures:
    """Generate one log, read it, remove it."""
    partition = folder / "bench-0"
    partition.mkdir()
    records = write_log(PosixFileSystem(), str(partition), size_bytes=size_bytes, shape=shape)
    log = open_log(str(partition))

    def best(read: Callable[[], object]) -> float:
        times = []
        for _ in range(passes + 1):  # the first compiles kernels and fills the page cache
            began = time.process_time()
            read()
            times.append(time.process_time() - began)
        return min(times[1:])

    scan = best(lambda: sum(1 for _ in log.windows()))
    decode = best(lambda: sum(columns.rows.size for columns in log.columns()))
    arrow = best(lambda: sum(batch.num_rows for batch in log.arrow_batches()))
    copied = min(_copy_seconds(partition, folder / "copy") for _ in range(passes))
    mb = log.size_bytes / 1e6
    figures = Figures(
        log=name,
        log_mb=mb,
        records=records,
        cp_mb_s=mb / copied,
        scan_mb_s=mb / scan,
        decode_mb_s=mb / decode,
        decode_records_s=records / decode,
        arrow_mb_s=mb / arrow,
        arrow_records_s=records / arrow,
        decode_memory_mb=_memory_mb(partition, "columns"),
        arrow_memory_mb=_memory_mb(partition, "arrow_batches"),
    )
    shutil.rmtree(partition)
    return figures


def _copy_seconds(source: Path, target: Path) -> float:
    import resource

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    shutil.rmtree(target)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


#: Not getrusage: what it tells of a child's memory starts with what its parent had when it forked.
_PEAK = """
import resource
try:
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]
except OSError:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)
print(peak)
"""
_READ = """
import cordwood
for part in getattr(cordwood.open_log(sys.argv[1]), sys.argv[2])():
    pass
"""


def _memory_mb(partition: Path, method: str) -> float:
    """The peak of a process that reads the log once, less that of one that does nothing."""

    def peak(code: str) -> float:
        command = [sys.executable, "-c", "import sys" + code + _PEAK, str(partition), method]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) * 1024 / 1e6

    return peak(_READ) - peak("")
