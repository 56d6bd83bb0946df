"""Every call of a cleaner while it cleans, from many threads at once: no call hangs or fails unexpectedly, and no
record is lost.
"""

from __future__ import annotations

import errno
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from cordwood.common.config import overrides
from cordwood.common.errors import ConfigError, LogError
from cordwood.common.types import TopicPartition
from cordwood.fs.posix import PosixFileSystem
from cordwood.live.log_cleaner import LogCleaner
from cordwood.live.log_manager import LogManager
from cordwood.live.log_to_clean import LogToClean
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from tests.knobs import scaled
from tests.live.cleaner_nodes import send

pytestmark = pytest.mark.more

SECONDS = scaled(5, 300)
THREADS = 5
#: Longest pause between two calls of a thread; without a pause no clean would finish. It becomes longer while none
#: does: on a busy machine a clean takes long, and the longer the log gets meanwhile the longer.
PAUSE_SECONDS = 0.1
#: Logs that must not lose a record; and logs that are truncated and deleted.
KEPT = [TopicPartition("kept", number) for number in range(3)]
THROWN = [TopicPartition("thrown", number) for number in range(3)]
KEYS = [b"%d" % number for number in range(40)]
POLICIES = (*["compact"] * 4, "compact,delete", "delete")
#: Segments are small, so that a segment is always cleanable, and old files are deleted at once.
SMALL = {"internal.segment.bytes": "30000", "file.delete.delay.ms": "0", "min.cleanable.dirty.ratio": "0.01"}
TOPICS = [f"{topic}:{name}={value}" for topic in ("kept", "thrown") for name, value in SMALL.items()]
BROKER = ("log.cleaner.backoff.ms=5", "log.cleaner.delete.retention.ms=50", "kept:retention.ms=-1")


def configs(threads: int, *more: str) -> list[str]:
    return [*TOPICS, *BROKER, f"log.cleaner.threads={threads}", *more]


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[LogManager]:
    running = LogManager(
        PosixFileSystem(), [str(tmp_path / name) for name in ("d1", "d2", "d3")], overrides(configs(2))
    )
    for name in ("d1", "d2", "d3"):
        (tmp_path / name).mkdir()
    running.startup()
    for topic in ("kept", "thrown"):
        running.update_topic_config(topic, {"cleanup.policy": "compact"})
    yield running
    running.shutdown()


class Model:
    """The last value of each key of a log, by the only thread that writes there."""

    def __init__(self, manager: LogManager, partition: TopicPartition, seed: int) -> None:
        self._manager, self.partition = manager, partition
        self._chosen = random.Random(seed)
        self.count = self._end = 0
        self.last: dict[bytes, bytes | None] = {}

    def append(self) -> None:
        """Append some records; send unacknowledged records again, to the log that exists then."""
        keys = [self._chosen.choice(KEYS) for _ in range(self._chosen.randrange(1, 20))]
        self.count += 1
        values = [None if self._chosen.random() < 0.1 else b"%d" % self.count for _ in keys]
        records = [
            Record(at, int(time.time() * 1000), key, value)
            for at, (key, value) in enumerate(zip(keys, values, strict=True))
        ]
        batch = encode_batch(records, base_offset=0)
        while True:
            log = self._manager.get_log(self.partition)
            assert log is not None, "nobody deletes it"
            try:
                first = log.append_as_leader(batch, 0).first_offset
                log.update_high_watermark(log.log_end_offset)
                break
            except LogError:  # it has just moved
                time.sleep(0.001)
        assert first == self._end, f"{log} has lost offsets from {first} to {self._end}"
        self._end += len(records)
        self.last |= dict(zip(keys, values, strict=True))

    def check(self, manager: LogManager) -> None:
        """Check that no record is lost, and that no deleted record is back."""
        log = manager.get_log(self.partition)
        assert log is not None
        found: dict[bytes, bytes | None] = {}
        for record in log.records():
            assert record.key is not None
            found[record.key] = record.value
        alive = {key: value for key, value in self.last.items() if value is not None}
        assert {key: value for key, value in found.items() if value is not None} == alive


def calls_on_kept(
    manager: LogManager, cleaner: LogCleaner, chosen: random.Random, homes: tuple[str, ...]
) -> list[Callable[[], object]]:
    """Calls that lose no record."""
    partition = chosen.choice(KEPT)
    log = manager.get_log(partition)
    assert log is not None

    def pause() -> None:
        cleaner.abort_and_pause_cleaning(partition)
        try:
            time.sleep(chosen.random() / 100)
        finally:
            cleaner.resume_cleaning([partition])

    def pause_others() -> None:
        cleaner.resume_cleaning(cleaner.manager.pause_cleaning_for_non_compacted_partitions())

    def reconfigure() -> None:
        rate = chosen.choice(["1.7976931348623157E308", "20000000"])
        layers = overrides(configs(chosen.randrange(1, 5), f"log.cleaner.io.max.bytes.per.second={rate}"))
        cleaner.validate_reconfiguration(manager.config)
        manager.reconfigure(layers)

    return [
        pause,
        pause_others,
        lambda: cleaner.abort_cleaning(partition),
        lambda: cleaner.manager.update_checkpoints(chosen.choice(homes)),
        lambda: cleaner.manager.maybe_truncate_checkpoint(log.parent_directory, partition, chosen.randrange(1000)),
        lambda: cleaner.manager.alter_checkpoint_dir(partition, *chosen.sample(homes, 2)),
        lambda: cleaner.await_cleaned(partition, chosen.randrange(1000), 1),
        cleaner.clean_filthiest_log,
        lambda: (cleaner.metrics(), cleaner.last_stats, cleaner.dead_thread_count),
        lambda: cleaner.max_over_cleaner_threads(lambda record: record.seconds),
        lambda: manager.move_partition(partition, chosen.choice(homes)),
        lambda: manager.update_topic_config("kept", {"cleanup.policy": chosen.choice(POLICIES)}),
        *_seldom(chosen, 0.2, reconfigure),
        *_seldom(chosen, 0.05, cleaner.startup),
        manager.cleanup_logs,
        log.roll,
    ]


def _seldom(chosen: random.Random, share: float, call: Callable[[], object]) -> list[Callable[[], object]]:
    return [call] if chosen.random() < share else []


def calls_on_thrown(
    manager: LogManager, cleaner: LogCleaner, chosen: random.Random, homes: tuple[str, ...]
) -> list[Callable[[], object]]:
    """Calls that a log may lose records by."""
    partition = chosen.choice(THROWN)
    log = manager.get_log(partition)

    def append() -> None:
        if log is not None:
            send(log, *(chosen.choice("abcdef") + "x" * 1000 for _ in range(5)))

    def read() -> None:
        if log is not None:
            list(log.records())

    return [
        read,
        *[append] * 12,
        lambda: cleaner.abort_cleaning(partition),
        lambda: manager.truncate_to({partition: chosen.randrange(200)}),
        lambda: manager.truncate_fully_and_start_at(partition, chosen.randrange(200)),
        lambda: manager.async_delete(partition),
        lambda: manager.get_or_create_log(partition, is_new=True),
        lambda: manager.move_partition(partition, chosen.choice(homes)),
        lambda: cleaner.manager.update_checkpoints(chosen.choice(homes), remove=partition),
        lambda: manager.update_topic_config("thrown", {"cleanup.policy": chosen.choice(POLICIES)}),
    ]


def test_the_calls_of_others_during_cleans_end_lose_nothing_and_fail_as_they_may(
    manager: LogManager, tmp_path: Path
) -> None:
    homes = tuple(manager.live_log_dirs[:2])
    for at, partition in enumerate(KEPT):
        manager.maybe_update_preferred_log_dir(partition, homes[at % 2])
        manager.get_or_create_log(partition, is_new=True)
    for partition in THROWN:
        manager.get_or_create_log(partition, is_new=True)
    cleaner = manager.cleaner
    assert cleaner is not None
    models = [Model(manager, partition, at) for at, partition in enumerate(KEPT)]
    unexpected: list[BaseException] = []
    done: Counter[str] = Counter()
    last_clean = time.monotonic()

    def count(found: LogToClean, _: object) -> None:
        nonlocal last_clean
        done[f"clean of {found.partition.topic}"] += 1
        if found.partition in KEPT:
            last_clean = time.monotonic()

    cleaner.on_clean = count
    end = time.monotonic() + SECONDS

    def goes_on() -> bool:
        """Until the time is over, and, where the machine is busy, until something was cleaned."""
        now = time.monotonic()
        return not unexpected and (now < end or (now < end + 60 and not done["clean of kept"]))

    def write(model: Model) -> None:
        while goes_on():
            model.append()
            time.sleep(0.002)

    def throw(seed: int) -> None:
        chosen = random.Random(seed)
        while goes_on():
            of = chosen.choice([calls_on_kept, calls_on_thrown])
            call = chosen.choice(of(manager, cleaner, chosen, homes))
            try:
                call()
                done["calls"] += 1
            except (LogError, ConfigError) as error:
                # A deleted log, a thread that waits for the same abort, a number of threads that is too large.
                done[type(error).__name__] += 1
            time.sleep(PAUSE_SECONDS * chosen.random() * (1 + time.monotonic() - last_clean))

    def guarded(act: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                act()
            except BaseException as error:
                unexpected.append(error)

        return run

    acts = [*(partial(write, model) for model in models), *(partial(throw, at) for at in range(THREADS))]
    threads = [threading.Thread(target=guarded(act)) for act in acts]
    for thread in threads:
        thread.start()
    threads[-1].join(SECONDS / 2)
    # Meanwhile the third disk fails.
    failed = manager.live_log_dirs[2]
    manager.failures.maybe_add_offline_log_dir(failed, "it fails", OSError(errno.EIO, "I/O error"))
    for thread in threads:
        thread.join(SECONDS + 120)
    assert not any(thread.is_alive() for thread in threads), "nobody waits for ever"
    if unexpected:
        raise unexpected[0]
    print(dict(sorted(done.items())), {str(one.partition): one.count for one in models})
    assert done["calls"] > 0 and done["clean of kept"] > 0
    assert [failure.directory for failure in manager.failures.failures] == [failed], manager.failures.failures
    assert cleaner.restarts == 0 and cleaner.dead_thread_count == 0
    manager.update_topic_config("kept", {"cleanup.policy": "compact"})
    for partition, model in zip(KEPT, models, strict=True):
        log = manager.get_log(partition)
        assert log is not None
        log.roll()
        log.update_high_watermark(log.log_end_offset)
        assert cleaner.await_cleaned(partition, log.active_segment.base_offset, 60_000), "it is still cleaned"
        model.check(manager)
        assert cleaner.manager.uncleanable(partition) is None
    cleaner.shutdown()
    assert [cleaner.manager.cleaning_state(partition) for partition in KEPT] == [None] * len(KEPT)
    manager.shutdown()
    again = LogManager(PosixFileSystem(), homes, overrides(configs(1)))
    again.startup()
    for model in models:
        model.check(again)
    again.shutdown()
