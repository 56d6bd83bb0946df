"""Kill −9 any process of a clean in place, at random moments: no record is lost, and the next clean succeeds.

The run's seed draws the process and the delay, see `tests/knobs.py`; the process's activity at that moment depends on
the machine.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from unittest import mock

import pytest
from pyspark.sql import SparkSession

import cordwood
from cordwood.cleaning.engine.results import Fate
from cordwood.storage.formats.filenames import WORK_FOLDER, FileKind, Temporary
from tests import knobs
from tests.commands.in_process import InThisProcess
from tests.commands.killing import CONFIG, WAIT_SECONDS, Directory, Process, be_slow, java, processes, wait_for, workers
from tests.kafka_tools import Broker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds Spark's processes in /proc"),
]

KILLS = knobs.scaled(2, 120)
INDEXED_KILLS = knobs.scaled(20, 200)
ROOT = Path(__file__).parents[2]
OVERRIDES = [f"{name}={value}" for name, value in CONFIG.items()]
#: Process to kill, in turn. A driver alone, with its tasks in its own process, needs no Spark, and so little time.
VICTIMS = ("driver alone", "worker", "Java", "driver alone", "driver", "driver alone", *["driver alone"] * 14)


#: Forks of a clean process, without leftovers of other tests: a fork of this one would share the socket of a Spark
#: session, and interrupt a message half sent.
_LONERS = multiprocessing.get_context("forkserver")
_LONERS.set_forkserver_preload(["tests.commands.test_killed", "cordwood.commands.clean_in_place"])


@pytest.fixture
def choose() -> random.Random:
    return random.Random(knobs.SEED)


# ---- a driver alone --------------------------------------------------------------------------------------------------


def clean(directory: Path, *, index: bool = False) -> None:
    """Clean with a driver alone."""
    be_slow()
    result = cordwood.clean_in_place(
        str(directory),
        spark=cast(SparkSession, InThisProcess()),
        verify=False,  # the proof needs Spark; the runs on Spark below prove their output
        ignore_ratio=True,
        single_copy=True,
        overrides=OVERRIDES,
        index=index,
    )
    assert not result.with_fate(Fate.FAILED), result.text()


def clean_with_indexes(directory: Path) -> None:
    """Clean with key indexes, of small segments, too: the next clean uses them."""
    with (
        mock.patch("cordwood.storage.index.build.SEGMENT_SHARE", 1),
        mock.patch("cordwood.cleaning.engine.indexing.SEGMENT_SHARE", 1),
    ):
        clean(directory, index=True)


def run_alone(directory: Path, kill_after: float | None, do: Callable[[Path], None]) -> float | None:
    """Run a driver alone and kill it; return its duration if it finished."""
    child = _LONERS.Process(target=do, args=(directory,))
    started = time.monotonic()
    child.start()
    child.join(kill_after if kill_after is not None else WAIT_SECONDS)
    child.kill()
    child.join()
    assert child.exitcode in (0, -signal.SIGKILL)
    assert child.exitcode == 0 or kill_after is not None, "it hangs"
    return time.monotonic() - started if child.exitcode == 0 else None


# ---- a driver on Spark -----------------------------------------------------------------------------------------------


def run_on_spark(directory: Path, victim: str, choose: random.Random) -> tuple[int, str, bool]:
    """Run `cordwood clean --in-place`, and kill one of its processes; gives status, errors, whether one was killed."""
    command = [sys.executable, "-m", "tests.commands.killing", "clean", str(directory), "--in-place", "--ignore-ratio"]
    command += ["--single-copy", *(word for pair in OVERRIDES for word in ("--config", pair))]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as running:  # fmt: skip
        killed = False
        try:
            moment = choose.choice(MOMENTS[victim])
            if wait_for(lambda: moment(directory, running.pid), running):
                time.sleep(choose.random() * 0.3)
                found = VICTIMS_OF[victim](running.pid)
                if found and running.poll() is None:
                    os.kill(choose.choice(found).pid, signal.SIGKILL)
                    killed = True
            _, said = running.communicate(timeout=WAIT_SECONDS)
        finally:
            running.kill()
        assert wait_for(lambda: not processes(running.pid)), "Spark outlives its driver"
    return running.returncode, said, killed


def java_runs(_directory: Path, session: int) -> bool:
    return bool(java(session))


def workers_run(_directory: Path, session: int) -> bool:
    return bool(workers(session))


def tasks_write(directory: Path, _session: int) -> bool:
    # Unlike a glob, a walk tolerates that folders disappear meanwhile.
    return any(
        WORK_FOLDER in path and name.endswith(FileKind.LOG) for path, _, names in os.walk(directory) for name in names
    )


def segments_are_swapped(directory: Path, _session: int) -> bool:
    return any(
        name.endswith((Temporary.CLEANED, Temporary.SWAP)) for _, _, names in os.walk(directory) for name in names
    )


def itself(session: int) -> list[Process]:
    return [one for one in processes(session) if one.pid == session]


VICTIMS_OF = {"driver": itself, "worker": workers, "Java": java}
MOMENTS = {
    "driver": (java_runs, workers_run, tasks_write, segments_are_swapped),
    "worker": (workers_run, tasks_write),
    "Java": (java_runs, workers_run, tasks_write, tasks_write, segments_are_swapped),
}


# ---- the loop --------------------------------------------------------------------------------------------------------


@dataclass
class Kills:
    """Counts of a loop of kills.

    Attributes:
        killed: processes that were killed, by victim.
        left: kinds of files that the kills left in the directory.
        ended: outcomes of runs whose process on Spark was killed.
        runs: cleans that were started to be killed.
        completed: cleans that finished.
        records: records in the directory at the end.
        indexes: valid key indexes after the cleans.
    """

    killed: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    completed: int = 0
    records: int = 0
    indexes: int = 0


def kill(
    directory: Directory,
    kills: int,
    choose: random.Random,
    append: Callable[[int], None],
    *,
    victims: Sequence[str] = VICTIMS,
    alone: Callable[[Path], None] = clean,
) -> Kills:
    """Append, clean and kill, check, clean, check, until `kills` processes were killed."""
    done = Kills()
    killed = done.killed
    usual = 1.0
    while killed.total() < kills:
        assert done.runs < 20 * (kills + 1), "nearly all runs end before they are killed"
        append(done.runs)
        done.runs += 1
        victim = victims[killed.total() % len(victims)]
        if victim == "driver alone":
            took = run_alone(directory.path, choose.random() * usual, alone)
            hit = took is None
        else:
            status, said, hit = run_on_spark(directory.path, victim, choose)
            if hit:
                done.ended[f"{victim}: {status}"] += 1
            check_end(victim, status, said, hit)
        if not hit:
            done.completed += 1
            continue
        killed[victim] += 1
        done.left[directory.left()] += 1
        print(f"{killed.total()}: {victim}, left: {directory.left()}", flush=True)
        directory.check(killed=True)
        done.indexes += directory.believed_indexes()
        # Often the next run, on the leftovers of this one, is killed, too.
        if choose.random() < 0.7:
            took = run_alone(directory.path, None, alone)
            assert took is not None
            done.completed += 1
            usual = 0.7 * usual + 0.3 * took
            directory.check(killed=False)
            assert directory.left() == "nothing"
    assert run_alone(directory.path, None, alone) is not None
    done.completed += 1
    directory.check(killed=False)
    done.indexes += directory.believed_indexes()
    done.records = sum(len(one.written) for one in directory.expected.values())
    print(done)
    return done


def check_kills(done: Kills, kills: int, victims: Sequence[str] = VICTIMS) -> None:
    """The loop killed every victim in turn, some in the middle of their work, and other runs came to their end."""
    assert done.killed == Counter(victims[at % len(victims)] for at in range(kills))
    assert done.ended.total() == sum(count for victim, count in done.killed.items() if victim != "driver alone")
    assert done.left.total() == kills
    assert done.completed >= 1
    assert done.records > 0
    # A kill before the first write leaves no file, so a few kills may all do so; many must not.
    assert kills < 20 or set(done.left) != {"nothing"}


def check_end(victim: str, status: int, said: str, hit: bool) -> None:
    """Check that a driver that was not killed itself succeeds or reports the cause."""
    if not hit or victim == "worker":
        assert status == 0, said
    elif victim == "driver":
        assert status == -signal.SIGKILL
    else:
        assert status == 0 or "cordwood: " in said, said
        assert "Traceback" not in said, said


def test_killing_any_process_of_a_clean_loses_nothing(choose: random.Random, tmp_path: Path) -> None:
    directory = Directory(tmp_path / "logs", partitions=3, seed=choose.randrange(1 << 32))
    directory.make()
    check_kills(kill(directory, KILLS, choose, lambda _: directory.append()), KILLS)


def test_killing_cleans_that_key_indexes_serve_loses_nothing(choose: random.Random, tmp_path: Path) -> None:
    directory = Directory(tmp_path / "logs", partitions=3, seed=choose.randrange(1 << 32))
    directory.make()
    victims = ["driver alone"]
    done = kill(
        directory, INDEXED_KILLS, choose, lambda _: directory.append(), victims=victims, alone=clean_with_indexes
    )
    check_kills(done, INDEXED_KILLS, victims)
    assert done.indexes > 0


def test_killing_a_clean_between_runs_of_a_broker_loses_nothing(
    choose: random.Random, kafka_broker: Broker, tmp_path: Path
) -> None:
    directory = Directory(tmp_path / "logs", partitions=2, seed=choose.randrange(1 << 32))

    def append(rounds: int) -> None:
        if rounds % 4 == 0:
            directory.append_with(kafka_broker, tmp_path)
            if rounds == 0:
                directory.remember_what_is_ordinary()
        else:
            directory.append()

    kills = max(KILLS // 2, 1)
    check_kills(kill(directory, kills, choose, append), kills)
    directory.append_with(kafka_broker, tmp_path)
