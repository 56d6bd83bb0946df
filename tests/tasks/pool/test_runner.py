"""Tasks in a pool of processes: the processes that run them, and the result when a process ends or hangs."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cordwood.common.errors import RequestError, TasksHangError
from cordwood.fs.posix import PosixFileSystem
from cordwood.tasks.pool.runner import ATTEMPTS_MAX, PoolRunner, running_in_pool
from cordwood.tasks.runner import given_up_after
from cordwood.tasks.tasks import doing, run_each
from tests.commands.killing import processes, wait_for
from tests.tasks.pool import tasks

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.more, pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")]


@pytest.fixture(scope="module")
def pool() -> Iterator[PoolRunner]:
    with running_in_pool(2) as made:
        yield made


def each(pool: PoolRunner, do: Any, items: list[Any]) -> list[Any]:
    return run_each(pool, do, items, [1] * len(items))


def test_as_many_tasks_run_at_a_time_as_there_are_cores(pool: PoolRunner, tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    assert each(pool, tasks.waits_for, [f"{one}:{two}", f"{two}:{one}"]) == [one, two]


def test_the_largest_task_is_begun_first(tmp_path: Path) -> None:
    with running_in_pool(1) as one_core:
        run_each(one_core, functools.partial(tasks.append, str(tmp_path / "begun")), ["c", "a", "b"], [1, 3, 2])
    assert (tmp_path / "begun").read_text() == "abc"


def test_workers_are_forks_of_one_server_that_has_one_thread(pool: PoolRunner) -> None:
    found = each(pool, tasks.where, [0] * 8)
    assert len({server for _, server in found}) == 1
    assert os.getpid() not in {worker for worker, _ in found}
    assert each(pool, tasks.threads, [0] * 8) == [1] * 8


def test_each_step_of_a_task_runs_in_another_process_than_the_step_before(pool: PoolRunner) -> None:
    packs = [[(at, 0)] for at in range(8)]
    first, second = functools.partial(tasks.noted, "first"), functools.partial(tasks.noted, "second")
    found = pool.run(packs, [doing(first), doing(second)])
    for at in range(8):
        (one, one_pid), (two, two_pid) = found[at]
        assert (one, two) == ("first", "second")
        assert one_pid != two_pid


@pytest.mark.parametrize("times", [1, ATTEMPTS_MAX - 1])
def test_a_task_whose_worker_is_killed_runs_again(pool: PoolRunner, tmp_path: Path, times: int) -> None:
    found = each(pool, tasks.killed, [(str(tmp_path / str(number)), times * (number % 2)) for number in range(4)])
    assert found == [0, times, 0, times]


def test_a_task_whose_workers_are_killed_all_the_time_fails(pool: PoolRunner, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=f"ended in the middle of a task, {ATTEMPTS_MAX} times"):
        each(pool, tasks.killed, [(str(tmp_path / "one"), 100)])
    assert (tmp_path / "one").stat().st_size == ATTEMPTS_MAX
    assert each(pool, tasks.divided, [2]) == [0.5], "the pool works on"


@pytest.mark.parametrize("times", [1, ATTEMPTS_MAX - 1])
def test_a_task_that_hangs_runs_again(pool: PoolRunner, tmp_path: Path, times: int) -> None:
    with given_up_after(PosixFileSystem(), str(tmp_path), 0.5):
        assert each(pool, tasks.stopped, [(str(tmp_path / "one"), times)]) == [times]


def test_a_task_that_hangs_all_the_time_is_given_up(pool: PoolRunner, tmp_path: Path) -> None:
    with given_up_after(PosixFileSystem(), str(tmp_path), 0.5), pytest.raises(TasksHangError, match="anything for 0"):
        each(pool, tasks.stopped, [(str(tmp_path / "one"), 100)])


def test_workers_that_were_killed_while_idle_cost_no_attempt(pool: PoolRunner) -> None:
    known = {worker for worker, _ in each(pool, tasks.where, [0] * 8)}
    for worker in known:
        os.kill(worker, signal.SIGKILL)
    assert wait_for(lambda: not known.intersection(one.pid for one in processes(os.getsid(0))))
    assert known.isdisjoint(worker for worker, _ in each(pool, tasks.where, [0] * 8))


def test_a_server_that_was_killed_is_replaced(pool: PoolRunner) -> None:
    found = each(pool, tasks.where, [0] * 8)
    server = found[0][1]
    os.kill(server, signal.SIGKILL)
    workers = {worker for worker, _ in found}
    assert wait_for(lambda: not workers.intersection(one.pid for one in processes(os.getsid(0)))), "they end with it"
    ((_, other),) = each(pool, tasks.where, [0])
    assert other != server


def test_what_a_task_raises_is_raised_with_the_place_where_it_was(pool: PoolRunner) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        each(pool, tasks.divided, [0])
    assert "in divided" in str(caught.value.__cause__)
    with pytest.raises(EOFError, match="the end"):
        each(pool, tasks.gone, [0])
    with pytest.raises(RuntimeError, match="CannotBePickledError: one"):
        each(pool, tasks.fails_oddly, [0])
    assert each(pool, tasks.divided, [2]) == [0.5], "the pool works on"


PROGRAM = """
import json, os, sys, threading
from cordwood.tasks.tasks import run_each
from cordwood.tasks.pool.runner import running_in_pool
from tests.tasks.pool import tasks

if sys.argv[1] == "threads":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
with running_in_pool(2) as pool:
    print(json.dumps([os.getpid(), *run_each(pool, tasks.where, [0], [1])[0]]), flush=True)
    if len(sys.argv) > 2:
        run_each(pool, tasks.sleeps, [sys.argv[2]], [1])
"""


def program(*words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)


@pytest.mark.parametrize("kind", ["alone", "threads"])
def test_a_pool_ends_with_its_block_whether_its_process_has_threads_or_not(kind: str) -> None:
    with program(kind) as running:
        said, _ = running.communicate(timeout=60)
    own, worker, server = json.loads(said)
    assert len({own, worker, server}) == 3
    assert running.returncode == 0
    assert not processes(running.pid)


@pytest.mark.parametrize("kind", ["alone", "threads"])
def test_a_pool_ends_when_its_process_is_killed_in_the_middle_of_a_task(kind: str, tmp_path: Path) -> None:
    with program(kind, str(tmp_path / "begun")) as running:
        assert wait_for((tmp_path / "begun").exists, running)
        assert len(processes(running.pid)) >= 3
        running.kill()
    assert wait_for(lambda: not processes(running.pid))


def test_a_pool_ends_when_its_process_is_killed_while_the_server_is_stopped(tmp_path: Path) -> None:
    """Then the system kills the workers, once the server is killed."""
    with program("alone", str(tmp_path / "begun")) as running:
        assert running.stdout is not None
        _, _, server = json.loads(running.stdout.readline())
        assert wait_for((tmp_path / "begun").exists, running)
        os.kill(server, signal.SIGSTOP)
        running.kill()
        os.kill(server, signal.SIGKILL)
    assert wait_for(lambda: not processes(running.pid))


@pytest.mark.parametrize("kind", ["alone", "threads"])
def test_an_interrupt_ends_a_pool_at_once(kind: str, tmp_path: Path) -> None:
    with program(kind, str(tmp_path / "begun")) as running:
        assert wait_for((tmp_path / "begun").exists, running)
        os.killpg(running.pid, signal.SIGINT)
        running.communicate(timeout=60)
    assert running.returncode == -signal.SIGINT
    assert not processes(running.pid)
