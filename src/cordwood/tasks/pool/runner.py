"""Runs tasks in the workers of a pool; a task whose worker is killed or hangs runs again."""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cordwood.common.errors import RequestError, TasksHangError
from cordwood.fs.base import TargetStore
from cordwood.tasks.forks import ForkServer, can_fork, fork_server
from cordwood.tasks.pool.server import Channel, TaskAnswer, TaskRequest, serve
from cordwood.tasks.runner import Numbered, Step, looking

#: Maximum number of attempts to run a task, as with Spark's `local[*,4]`.
ATTEMPTS_MAX = 4
_LOOK_SECONDS = 0.2


@contextlib.contextmanager
def running_in_pool(cores: int) -> Iterator[PoolRunner]:
    """Run tasks in a pool, whose processes end with the block.

    Args:
        cores: number of tasks that run concurrently.
    """
    runner = PoolRunner(cores)
    try:
        # Start the server now: this process may soon have threads, and starting it then takes longer.
        runner.start()
        yield runner
    finally:
        runner.end()


@dataclass(slots=True, eq=False)
class _Task:
    """A pack and its progress through the steps.

    Attributes:
        items: input of the current step.
        step: index of the current step.
        last_worker: process id of the worker of the previous step.
        attempts: number of times the current step was started.
    """

    items: Sequence[Numbered]
    step: int = 0
    last_worker: int = 0
    attempts: int = 0


class PoolRunner:
    """Runs tasks in a pool; see `tasks.runner`. Several threads may use one."""

    is_on_this_machine = True

    def __init__(self, cores: int) -> None:
        """Set up without starting a process."""
        self.cores = cores
        self._processes = Processes()
        self._idle: list[Worker] = []
        self._lock = threading.Lock()
        #: Shared by all threads that run tasks.
        self._free_cores = threading.Semaphore(cores)

    def start(self) -> None:
        """Start the server; each worker starts with the first task for it."""
        self._processes.start_server()

    def end(self) -> None:
        """End all processes."""
        self._processes.end()

    def check(self, fs: TargetStore, folder: str, paths: Sequence[str], needs: str = "") -> None:
        """Accept: workers are forks of this process or run beside it, and see the same files."""

    def run(self, packs: Sequence[Sequence[Numbered]], steps: Sequence[Step]) -> dict[int, Any]:
        """See `Runner`.

        Raises:
            RequestError: a task was tried `ATTEMPTS_MAX` times, and its worker ended each time.
            TasksHangError: a task was tried `ATTEMPTS_MAX` times, and made no progress the last time.
        """
        with contextlib.closing(_Run(self, packs, steps)) as run:
            return run.outcomes()

    def take(self, other_than: int) -> Worker | None:
        """Return a worker whose process id is not `other_than`, or None if no core is free."""
        if not self._free_cores.acquire(blocking=False):
            return None
        try:
            with self._lock:
                self._idle = [worker for worker in self._idle if worker.channel.is_open]
                for worker in self._idle:
                    if worker.pid != other_than:
                        self._idle.remove(worker)
                        return worker
            return self._processes.start_worker()
        except BaseException:
            self._free_cores.release()
            raise

    def give_back(self, worker: Worker, *, is_idle: bool) -> None:
        """Release the worker's core; keep an idle worker for the next task, kill any other."""
        if is_idle:
            with self._lock:
                self._idle.append(worker)
        else:
            worker.kill()
        self._free_cores.release()


class _Run:
    """One call of `PoolRunner.run`."""

    def __init__(self, pool: PoolRunner, packs: Sequence[Sequence[Numbered]], steps: Sequence[Step]) -> None:
        self._pool = pool
        self._steps = steps
        self._waiting = deque(_Task(pack) for pack in packs)
        self._busy: dict[Worker, _Task] = {}
        self._outcomes: dict[int, Any] = {}
        self._steps_ended = 0
        self._selector = selectors.DefaultSelector()

    def close(self) -> None:
        """Kill the workers that are still busy: their outcomes are no longer needed."""
        for worker in list(self._busy):
            self._leave(worker, is_idle=False)
        self._selector.close()

    def outcomes(self) -> dict[int, Any]:
        """Run all tasks, and return their outcomes by number."""
        look = looking()
        while self._waiting or self._busy:
            self._begin()
            for key, _ in self._selector.select(_LOOK_SECONDS):
                self._hear(key.data)
            try:
                if look is not None:
                    look(lambda: self._steps_ended)
            except TasksHangError as error:
                for worker in list(self._busy):
                    self._again(worker, error)
                look = looking()
        return self._outcomes

    def _begin(self) -> None:
        """Send waiting tasks to workers as long as cores are free."""
        while self._waiting and (worker := self._pool.take(self._waiting[0].last_worker)) is not None:
            task = self._waiting.popleft()
            task.attempts += 1
            self._busy[worker] = task
            self._selector.register(worker.channel, selectors.EVENT_READ, worker)
            try:
                worker.channel.send(pickle.dumps(TaskRequest(self._steps[task.step], task.items)))
            except OSError:
                self._again(worker)

    def _hear(self, worker: Worker) -> None:
        """Read the messages of a worker."""
        try:
            messages = worker.channel.read()
        except EOFError:
            self._again(worker)
            return
        for message in messages:
            if isinstance(message, TaskAnswer):
                self._take_answer(worker, message)
            else:
                worker.pid = message

    def _take_answer(self, worker: Worker, answer: TaskAnswer) -> None:
        task = self._leave(worker, is_idle=True)
        if answer.error is not None:
            raise answer.error from RuntimeError(answer.trace)
        self._steps_ended += 1
        if task.step + 1 == len(self._steps):
            self._outcomes.update(answer.outcomes)
        else:
            # Run the next step first, so that a failed check is known early.
            self._waiting.appendleft(_Task(answer.outcomes, task.step + 1, worker.pid))

    def _again(self, worker: Worker, error: Exception | None = None) -> None:
        """Queue the task of a killed or hanging worker again, unless it has used up its attempts."""
        task = self._leave(worker, is_idle=False)
        if task.attempts == ATTEMPTS_MAX:
            raise error or RequestError(
                f"A process ended in the middle of a task, {ATTEMPTS_MAX} times. A user killed it, or the system did "
                "when memory ran out (`dmesg` shows that). If memory ran out, free memory, or give this command less "
                "with --memory, and run it again"
            )
        self._waiting.appendleft(task)

    def _leave(self, worker: Worker, *, is_idle: bool) -> _Task:
        self._selector.unregister(worker.channel)
        self._pool.give_back(worker, is_idle=is_idle)
        return self._busy.pop(worker)


# ---- processes -------------------------------------------------------------------------------------------------------
#: A worker that does not read its task within this time is stopped or hangs.
_SEND_SECONDS_MAX = 30.0
_PROGRAM = "import sys; sys.path[:] = sys.argv[3:]; from cordwood.tasks.pool.server import main; main()"


class Worker:
    """A process that runs tasks.

    Attributes:
        pid: process id; 0 until the worker has sent it.
    """

    def __init__(self, channel: Channel) -> None:
        self.pid = 0
        self.channel = channel

    def kill(self) -> None:
        """Kill the process at once, even if it is busy."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.channel.close()


class Processes:
    """Starts workers, and ends all of them. Several threads may use it."""

    def __init__(self) -> None:
        """Set up without starting a process."""
        self._server: ForkServer | None = None
        self._lock = threading.Lock()

    def start_server(self) -> None:
        """Start the server before the first worker is needed."""
        with self._lock:
            self._server = ForkServer(_start_server)

    def start_worker(self) -> Worker:
        """Start a worker, and the server if it is not running."""
        mine, its = socket.socketpair()
        with its, self._lock:
            if self._server is not None:
                try:
                    self._server.fork(its)
                except OSError:  # the server was killed, and with it all of its workers
                    self._server.end()
                    self._server = None
            if self._server is None:
                self._server = ForkServer(_start_server)
                self._server.fork(its)
        mine.settimeout(_SEND_SECONDS_MAX)
        return Worker(Channel(mine))

    def end(self) -> None:
        """End the server and all workers at once."""
        with self._lock:
            if self._server is not None:
                self._server.end()
                self._server = None


def _start_server(end: socket.socket) -> int:
    parent = os.getpid()
    return fork_server(lambda: serve(end, parent), kept={end.fileno()}) if can_fork() else _start(end)


def _start(end: socket.socket) -> int:
    """Start the server as a new Python process, as this process has threads and must not fork."""
    words = [sys.executable, "-c", _PROGRAM, str(end.fileno()), str(os.getpid()), *sys.path]
    # numpy's linear algebra library, which no task uses, would start threads.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    running = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, pass_fds=[end.fileno()])
    running.returncode = 0  # `ForkServer.end` waits for it
    return running.pid
