"""Durations of cleans of live logs, by a thread and on Spark, and of aborts.

    python -m tests.live.clean_speed cleans [DIR]     logs of several sizes, one of them or many, in both ways
    python -m tests.live.clean_speed aborts [DIR]     the duration of an abort, and the processes that it ends

`TASKS_BYTES_MIN` of `live.clean` was chosen by the output of the first; it measures both ways one after the
other, as a machine's other load changes from minute to minute. DIR is a folder for the logs.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from cordwood.common.config import overrides
from cordwood.common.types import TopicPartition, system_clock
from cordwood.fs.posix import PosixFileSystem
from cordwood.live.clean import CleanRunner
from cordwood.live.log import Log
from cordwood.live.log_cleaner import LogCleaner
from cordwood.live.log_manager import LogManager
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.tasks.engines import Where
from cordwood.tasks.spark.session import session

#: Logs, and MB of each.
CASES = ((1, 1), (1, 16), (1, 64), (1, 256), (1, 512), (1, 1024), (4, 1), (16, 16))
ROUNDS = 3
ABORTS, ABORTED_MEGABYTES = 20, 256
_VALUE_BYTES, _BATCH_RECORDS, _KEY_SHARE = 200, 200, 0.4
_ALWAYS, _NEVER = 0, 1 << 62


@contextmanager
def manager_in(folder: str, segment_bytes: int) -> Iterator[LogManager]:
    """A manager without cleaner threads."""
    os.mkdir(f"{folder}/logs")
    configs = [
        "t:cleanup.policy=compact",
        f"t:segment.bytes={segment_bytes}",
        "t:min.cleanable.dirty.ratio=0.01",
        "log.cleaner.enable=false",
    ]
    manager = LogManager(PosixFileSystem(), [f"{folder}/logs"], overrides(configs))
    manager.startup()
    try:
        yield manager
    finally:
        manager.shutdown()
        shutil.rmtree(f"{folder}/logs")


def batches(megabytes: int) -> list[bytes]:
    """Batches, each appended several times, so that two records in five are the last of their key."""
    drawn = random.Random(1)
    count = max(1, int((megabytes << 20) / (_BATCH_RECORDS * (_VALUE_BYTES + 20)) * _KEY_SHARE))
    return [
        encode_batch(
            [
                Record(at, system_clock(), b"key-%09d" % (number * _BATCH_RECORDS + at), drawn.randbytes(_VALUE_BYTES))
                for at in range(_BATCH_RECORDS)
            ],
            base_offset=0,
        )
        for number in range(count)
    ]


def fill(log: Log, size_bytes: int, made: Sequence[bytes], drawn: random.Random) -> None:
    """Append batches."""
    while log.size_bytes < size_bytes:
        log.append_as_leader(drawn.choice(made), 0)
    log.roll()
    log.update_high_watermark(log.log_end_offset)
    log.flush()


def cleaner_of(manager: LogManager, spark: object, spark_bytes_min: int) -> LogCleaner:
    """A cleaner without threads."""
    return LogCleaner(
        *(PosixFileSystem(), manager.config, manager.live_log_dirs, lambda: manager.logs, manager.failures),
        runner=CleanRunner(PosixFileSystem(), Where(spark=spark), tasks_bytes_min=spark_bytes_min),  # type: ignore[arg-type]
    )


def seconds_of(
    folder: str, logs: int, megabytes: int, made: Sequence[bytes], spark_bytes_min: int, spark: object
) -> tuple[float, float]:
    """Wall time and this process's CPU time until all logs are clean."""
    with manager_in(folder, max(1 << 20, megabytes << 18)) as manager:
        for number in range(logs):
            log = manager.get_or_create_log(TopicPartition("t", number), is_new=True)
            fill(log, megabytes << 20, made, random.Random(number))
        cleaner = cleaner_of(manager, spark, spark_bytes_min)
        wall, cpu = time.perf_counter(), time.process_time()
        while cleaner.clean_filthiest_log():
            pass
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        assert len(cleaner.manager.all_cleaner_checkpoints()) == logs, "all of them are clean"
        cleaner.shutdown()
        return wall, cpu


def cleans(folder: str, spark: object) -> None:
    """Clean logs in both ways, and print a table."""
    print(f"{'logs':>4} {'MB each':>7} {'by a thread':>16} {'on Spark':>12}   CPU of the thread")
    for logs, megabytes in CASES:
        here, there = [], []
        made = batches(megabytes)
        for _ in range(ROUNDS):
            here.append(seconds_of(folder, logs, megabytes, made, _NEVER, spark))
            there.append(seconds_of(folder, logs, megabytes, made, _ALWAYS, spark))
        wall, cpu = (statistics.median(some) for some in zip(*here, strict=True))
        other = statistics.median(one for one, _ in there)
        print(f"{logs:4} {megabytes:7} {wall * 1000:13.0f} ms {other * 1000:9.0f} ms {cpu * 1000:9.0f} ms", flush=True)


def aborts(folder: str, spark: object) -> None:
    """Abort cleans at different moments, and print the durations."""
    made, drawn = batches(ABORTED_MEGABYTES), random.Random(1)
    print(f"{'':12} {'abort returns':>14} {'at most':>9} {'the clean ends after':>21} {'at most':>9}")
    for name, line in (("by a thread", _NEVER), ("on Spark", _ALWAYS)):
        returned: list[float] = []
        ended: list[float] = []
        with manager_in(folder, 4 << 20) as manager:
            log = manager.get_or_create_log(TopicPartition("t", 0), is_new=True)
            while len(returned) < ABORTS:
                fill(log, ABORTED_MEGABYTES << 20, made, drawn)
                cleaner = cleaner_of(manager, spark, line)
                thread = threading.Thread(target=cleaner.clean_filthiest_log)
                thread.start()
                time.sleep(drawn.random() * 2)
                if cleaner.manager.cleaning_state(TopicPartition("t", 0)) is not None:
                    start = time.perf_counter()
                    cleaner.abort_and_pause_cleaning(TopicPartition("t", 0))
                    returned.append(time.perf_counter() - start)
                    thread.join()
                    ended.append(time.perf_counter() - start)
                thread.join()
                cleaner.shutdown()
        figures = (
            f"{1000 * value:.1f} ms" for some in (returned, ended) for value in (statistics.median(some), max(some))
        )
        print("{:12} {:>14} {:>9} {:>21} {:>9}".format(name, *figures), flush=True)


def main() -> None:
    """Measure."""
    what = {"cleans": cleans, "aborts": aborts}[sys.argv[1]]
    with ExitStack() as held:
        parent = sys.argv[2] if len(sys.argv) > 2 else None
        folder = held.enter_context(tempfile.TemporaryDirectory(prefix="cordwood-speed-", dir=parent))
        spark = held.enter_context(session())
        for line in (_NEVER, _ALWAYS):
            seconds_of(folder, 8, 8, batches(8), line, spark)  # kernels are compiled, workers started
        what(folder, spark)


if __name__ == "__main__":
    main()
