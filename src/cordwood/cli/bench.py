"""`cordwood bench`: measure how fast this machine reads a log, on generated logs.

Figures are MB (10^6 bytes) of log as stored, per second of one core: CPU time of the process, best of several passes
over a file in the page cache, so that other load on the machine hardly counts. `cp` of the same file, timed the same
way, gives the scale.

`--against-kafka` times cleans by the wall clock: see `cordwood.bench.beside_kafka`. `--live`, `--source`,
`--questions`, `--replicas` and `--tier` are separate measurements: see `live_log`, `spark_source`, `questions`,
`replicas` and `tier` in `cordwood.bench`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cordwood.bench.beside_kafka import ratio_chart, shares_chart
from cordwood.bench.generate import Shape, write_log
from cordwood.bench.workloads import BY_SHARE, USUAL, WORKLOADS, BenchWorkload, SpeedTarget
from cordwood.commands.opening import open_log
from cordwood.common.errors import RequestError
from cordwood.common.text import Column, table
from cordwood.common.types import Codec
from cordwood.fs.posix import PosixFileSystem

if TYPE_CHECKING:
    from cordwood.bench.beside_kafka import Comparison, Measuring, Seconds

#: Name, shape, and share of the requested size; compressed logs take longer, so they are smaller.
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
    """Measurements of one log.

    Attributes:
        cp_mb_s: speed of `cp` on the file.
        scan_mb_s: speed of walking the headers and checking the CRCs.
        decode_mb_s, decode_records_s: speed of walk, CRC and decoding of every record into columns.
        arrow_mb_s, arrow_records_s: the same into Arrow record batches.
        decode_memory_mb, arrow_memory_mb: peak memory above that of a bare interpreter; includes all imports.
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


def bench(
    size: Annotated[
        int, typer.Option(min=1, help="MB of the largest log; with --against-kafka a quarter of it.")
    ] = 500,
    passes: Annotated[
        int, typer.Option(min=1, help="Measured passes over each log, after an unmeasured pass; cleans have one more.")
    ] = 4,
    directory: Annotated[
        str | None, typer.Option("--dir", help="A folder for the logs meanwhile. Default: the temporary folder.")
    ] = None,
    against_kafka: Annotated[
        bool, typer.Option("--against-kafka", help="Clean logs beside Kafka's own cleaner instead.")
    ] = False,
    against_copy: Annotated[
        bool, typer.Option("--against-copy", help="With --against-kafka: measure cp and a sync, too.")
    ] = False,
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            metavar="NAME",
            help=f"With --against-kafka: which logs, of {', '.join(WORKLOADS)}; or all. Repeatable.",
        ),
    ] = None,
    by_share: Annotated[
        bool,
        typer.Option(
            "--by-share",
            help="With --against-kafka: logs with a growing share of new data, with key indexes and without.",
        ),
    ] = False,
    threads: Annotated[
        int,
        typer.Option(min=1, help="With --against-kafka: threads of Kafka's cleaner, for logs of several partitions."),
    ] = 2,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="Append to, read, recover and load live logs instead; with --against-kafka beside Kafka's own.",
        ),
    ] = False,
    source: Annotated[
        bool,
        typer.Option(
            "--source",
            help="Read a log into Spark instead; with --against-kafka beside Spark's Kafka source and a broker.",
        ),
    ] = False,
    questions: Annotated[
        bool,
        typer.Option("--questions", help="Count the bytes that commands read of one large log instead (on Linux)."),
    ] = False,
    replicas: Annotated[
        bool, typer.Option("--replicas", help="Compare replicas instead, beside a proof and beside reading both.")
    ] = False,
    tier: Annotated[
        bool,
        typer.Option(
            "--tier",
            help="Count requests and bytes of reads, copies and cleans in a tier, and restore a log, instead.",
        ),
    ] = False,
    chart: Annotated[
        str | None, typer.Option("--svg", metavar="FILE", help="With --against-kafka: also the results as a chart.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Measure how fast this machine reads a log, beside cp; or how fast it cleans one, beside Kafka's own cleaner."""
    separate = {"live": live, "source": source, "questions": questions, "replicas": replicas, "tier": tier}
    others = [name for name, given in separate.items() if given]
    if len(others) > 1:
        raise RequestError(f"--{others[0]} and --{others[1]} are two measurements: one at a time")
    if others and (against_copy or shapes or chart or by_share):
        raise RequestError(f"--against-copy, --shape, --by-share and --svg do not go with --{others[0]}")
    if (replicas or questions or tier) and against_kafka:
        raise RequestError(f"--{others[0]} does not go with --against-kafka, which has no such commands")
    if replicas or tier:
        (_replicas if replicas else _tier)(directory, size * 1_000_000, passes, as_json=as_json)
        return
    if questions:
        _questions(directory, size / 500, as_json=as_json)
        return
    if live or source:
        run = _live if live else _source
        run(directory, size * 1_000_000, passes, against_kafka=against_kafka, as_json=as_json)
        return
    if against_kafka:
        if by_share and shapes:
            raise RequestError("--by-share has logs of its own; it does not go with --shape")
        names = list(WORKLOADS) if shapes == ["all"] else shapes or list(USUAL)
        if unknown := sorted(set(names) - WORKLOADS.keys()):
            raise RequestError(f"--shape {unknown[0]}: there are {', '.join(WORKLOADS)}, and all")
        from cordwood.bench.beside_kafka import Measuring

        workloads = BY_SHARE if by_share else {name: WORKLOADS[name] for name in names}
        compared = _compare(workloads, directory, Measuring(size / 500, passes + 2, threads, with_copy=against_copy))
        if chart is not None:
            Path(chart).write_text((shares_chart if by_share else ratio_chart)(compared))
        if as_json:
            print(json.dumps([{**asdict(one), "ratio": one.ratio} for one in compared], indent=2))
        else:
            print(_comparison_text(compared, full_size=size == 500))
        return
    if against_copy or shapes or chart or by_share:
        raise RequestError("--against-copy, --shape, --by-share and --svg go with --against-kafka")
    found = []
    with tempfile.TemporaryDirectory(prefix="cordwood-bench-", dir=directory) as folder:
        for name, (shape, share) in SHAPES.items():
            _show_step(f"{name} …")
            found.append(measure(Path(folder), name, shape, int(size * share * 1e6), passes))
    _show_step("")
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


def _show_step(step: str) -> None:
    """Replace the progress line on a terminal with this step; an empty step removes the line."""
    if sys.stderr.isatty():
        print(f"\r{step:<40}\r{step}", end="", file=sys.stderr, flush=True)


def _live(directory: str | None, size_bytes: int, runs: int, *, against_kafka: bool, as_json: bool) -> None:
    from cordwood.bench import beside_kafka, live_log

    oracle = beside_kafka.find_oracle() if against_kafka else None
    _show_step("appending to a live log …")
    with tempfile.TemporaryDirectory(prefix="cordwood-bench-", dir=directory) as folder:
        ours, kafkas = live_log.measure(Path(folder), size_bytes, runs, oracle)
    _show_step("")
    if as_json:
        print(json.dumps({"cordwood": ours, "kafka": kafkas}, indent=2))
        return
    titles = ("CORDWOOD", "KAFKA", "RATIO", "TARGET")
    rows = []
    for target in live_log.TARGETS:
        unit, divisor = target.unit
        values = [figures.get(target.name) if figures else None for figures in (ours, kafkas)]
        shown = ["-" if value is None else f"{value / divisor:,.4g} {unit}" for value in values]
        ratio, by = live_log.speed(target, ours, kafkas), "Kafka's" if target.beside is None else "alone"
        rows.append([target.title, *shown, "-" if ratio is None else f"{ratio:.2f}", f"{target.limit:g} of {by}"])
    columns = [Column("ONE THREAD, A LIVE LOG"), *(Column(title, right=True) for title in titles)]
    print("\n".join(table(columns, rows)))


def _replicas(directory: str | None, size_bytes: int, runs: int, *, as_json: bool) -> None:
    from cordwood.bench import replicas

    _show_step("comparing replicas …")
    with tempfile.TemporaryDirectory(prefix="cordwood-bench-", dir=directory) as folder:
        found = replicas.measure(Path(folder), size_bytes, runs)
    _show_step("")
    if as_json:
        print(json.dumps(asdict(found), indent=2))
        return
    columns = [
        Column("ONE CORE, 100 B VALUES"),
        *(Column(title, right=True) for title in ("SECONDS", "RATIO", "BOUND")),
    ]
    rows = [
        ["read two equal replicas", f"{found.reading:.2f}", "", ""],
        ["compare them", f"{found.equal:.2f}", f"{found.equal / found.reading:.2f}", f"{replicas.EQUAL_TO_READING}"],
        ["prove the clean of one", f"{found.proof:.2f}", "", ""],
        [
            "compare it with an uncleaned one",
            *(f"{found.cleaned:.2f}", f"{found.cleaned / found.proof:.2f}", f"{replicas.CLEANED_TO_PROOF}"),
        ],
    ]
    size = f"{found.log_mb:,.0f} MB, {found.cleaned_mb:,.0f} MB once cleaned"
    print("\n".join([*table(columns, rows), "", f"CPU seconds, best of {runs}; a replica has {size}"]))


def _tier(directory: str | None, size_bytes: int, runs: int, *, as_json: bool) -> None:
    from cordwood.bench.tier import measure as measure_tier

    _show_step("reading and cleaning logs in a tier …")
    with tempfile.TemporaryDirectory(prefix="cordwood-bench-", dir=directory) as folder:
        found = measure_tier(Path(folder), size_bytes, runs)
    _show_step("")
    if as_json:
        print(json.dumps([asdict(one) for one in found], indent=2))
        return
    rows = [
        [one.title, f"{one.value:,.4g} {one.unit}".rstrip(), "-" if one.limit is None else f"{one.limit:,.4g}"]
        for one in found
    ]
    columns = [Column("LOGS IN A TIER"), Column("CORDWOOD", right=True), Column("AT MOST", right=True)]
    print("\n".join(table(columns, rows)))


def _source(directory: str | None, size_bytes: int, runs: int, *, against_kafka: bool, as_json: bool) -> None:
    from cordwood.bench import spark_source

    _show_step("reading a log into Spark …")
    with tempfile.TemporaryDirectory(prefix="cordwood-bench-", dir=directory) as folder:
        found = spark_source.measure(Path(folder), size_bytes, runs, against_kafka=against_kafka)
    _show_step("")
    if as_json:
        names = ("rows_per_second", "memory_rows_per_second", "kafka_rows_per_second")
        rates = {name: getattr(found, name) for name in names}
        print(json.dumps({**asdict(found), **rates, "ratio": found.ratio}, indent=2))
        return
    columns = [Column("TWO CORES, 100 B VALUES"), *(Column(title, right=True) for title in ("SECONDS", "ROWS/S"))]
    rows = [
        ["cordwood", _seconds(found.cordwood), f"{found.rows_per_second / 1e6:.2f} M"],
        ["Spark alone, rows from memory", _seconds(found.memory), f"{found.memory_rows_per_second / 1e6:.2f} M"],
    ]
    if found.kafka_rows_per_second is not None:
        rows.append(["Spark's Kafka source", _seconds(found.kafka), f"{found.kafka_rows_per_second / 1e6:.2f} M"])
    targets = [f"{spark_source.ROWS_PER_SECOND / 1e6:.0f} M rows/s"]
    if found.ratio is not None:
        targets.append(f"{spark_source.TIMES_KAFKA} times Kafka's source, and it is {found.ratio:.1f}")
    print("\n".join([*table(columns, rows), "", f"{found.records:,} records; to be reached: {', '.join(targets)}"]))


#: Figures of an answer that are computed.
_FIGURES = ("call_mib", "disk_mib", "cpu_seconds", "per_new_byte")


def _questions(directory: str | None, share: float, *, as_json: bool) -> None:
    from cordwood.bench.questions import ask

    with tempfile.TemporaryDirectory(prefix="cordwood-bench-", dir=directory) as folder:
        found = ask(Path(folder), share, _show_step)
    _show_step("")
    if as_json:
        print(json.dumps([asdict(one) | {name: getattr(one, name) for name in _FIGURES} for one in found], indent=2))
        return
    titles = (
        *("MiB BY CALLS", "AT MOST", "PER NEW BYTE", "MiB OFF DISK", "CPU S"),
        *("SECONDS", "OF IT START", "AGAIN", "FIRST OUTPUT", "MEMORY MiB"),
    )
    rows = [
        [
            one.question,
            f"{one.call_mib:,.1f}",
            "" if one.most_mib is None else f"{one.most_mib:,.0f}",
            "" if one.per_new_byte is None else f"{one.per_new_byte:.1f}",
            f"{one.disk_mib:,.1f}",
            f"{one.cpu_seconds:.2f}",
            f"{one.reads.seconds:.1f}",
            f"{one.start.seconds:.1f}",
            "" if one.again is None else f"{one.again.seconds:.1f}",
            f"{one.reads.first_seconds:.1f}",
            f"{one.reads.memory_bytes / (1 << 20):,.0f}",
        ]
        for one in found
    ]
    size = f"{found[0].log_bytes / (1 << 20):,.0f} MiB in {found[0].segments} segments"
    print(f"A log of {size}, 1 % of it new, not in the page cache")
    print("\n".join(table([Column("QUESTION"), *(Column(title, right=True) for title in titles)], rows)))


def _compare(workloads: Mapping[str, BenchWorkload], directory: str | None, measuring: Measuring) -> list[Comparison]:
    from cordwood.bench import beside_kafka

    oracle = beside_kafka.find_oracle()
    found = []
    # Outputs must be written to a disk: syncing to memory costs nothing.
    with tempfile.TemporaryDirectory(prefix="cordwood-bench-", dir=directory) as folder:
        for name, workload in workloads.items():
            _show_step(f"{name} …")
            found += beside_kafka.compare(oracle, Path(folder), name, workload, measuring)
    _show_step("")
    return found


def _comparison_text(found: list[Comparison], *, full_size: bool) -> str:
    """Render the results beside their targets; targets apply to full size only."""
    columns = [Column("LOG"), Column("CLEANED"), *(Column(title, right=True) for title in _CELLS)]
    rows = []
    for one in found:
        target = _WORKLOADS[one.workload].target(one.way) if full_size else None
        rows.append([one.workload, one.way, *(cell(one, target) for cell in _CELLS.values())])
    lines = [
        "Kafka 4.3.1's cleaner and ours, synced to disk: seconds of the median run, with the least and the most",
        *table(columns, rows),
        "",
        *(f"{name:<11} {_WORKLOADS[name].title}" for name in dict.fromkeys(one.workload for one in found)),
        *(f"Kafka had {one.kafka_threads} threads for {one.workload}" for one in found if one.kafka_threads > 1),
    ]
    return "\n".join(lines)


def _seconds(value: Seconds | None) -> str:
    return "" if value is None else f"{value.median:.2f} ({value.least:.2f}–{value.most:.2f})"


def _at_most(value: float | None, limit: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1f}" + ("" if limit is None else f" of {limit:.1f}")


_WORKLOADS = {**WORKLOADS, **BY_SHARE}
#: Title and cell of each column; a ratio is followed by its target and its stretch goal.
_CELLS: dict[str, Callable[[Comparison, SpeedTarget | None], str]] = {
    "MB": lambda one, _: f"{one.size_bytes / 1e6:,.0f}",
    "LEFT": lambda one, _: f"{one.cleaned_bytes / 1e6:,.0f}",
    "KAFKA": lambda one, _: _seconds(one.kafka),
    "CORDWOOD": lambda one, _: _seconds(one.cordwood),
    "RATIO": lambda one, target: (
        f"{one.ratio:.1f} of {target.ratio:.3g}/{target.stretch:.3g}" if target else f"{one.ratio:.1f}"
    ),
    "ONE PROCESS": lambda one, _: _seconds(one.one_process),
    "ITS CPU": lambda one, target: _at_most(one.one_process_cpu_seconds, target.cpu_s if target else None),
    "CPU": lambda one, _: f"{one.cpu_seconds:.1f}",
    "MEMORY MB": lambda one, _: f"{one.peak_bytes / 1e6:,.0f}",
    "CP": lambda one, _: _seconds(one.copied),
    "EQUAL": lambda one, _: one.equal,
}


def measure(folder: Path, name: str, shape: Shape, size_bytes: int, passes: int) -> Figures:
    """Generate one log, read it, and remove it."""
    partition = folder / "bench-0"
    partition.mkdir()
    records = write_log(PosixFileSystem(), str(partition), size_bytes=size_bytes, shape=shape)
    log = open_log(str(partition))

    def best(read: Callable[[], object]) -> float:
        times = []
        for _ in range(passes + 1):  # the first pass compiles kernels and fills the page cache
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


#: Not getrusage: its figure for a child starts at the memory that the parent had at the fork.
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
    """Return the peak memory of a process that reads the log once, minus that of an idle process."""

    def peak(code: str) -> float:
        command = [sys.executable, "-c", "import sys" + code + _PEAK, str(partition), method]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) * 1024 / 1e6

    return peak(_READ) - peak("")
