"""Pools whose server is a fork of a warm process. Starting a server anew imports our modules, which takes two seconds.

pytest's processes have threads, so a pool in a test starts its server as a new Python process. Here a process that has
the modules and kernels loaded forks it instead. Otherwise the pool is a user's: the server and its workers are
processes with this process's folder, environment and output, and the server is a child of this process.
`tests/tasks/pool` tests the start of new servers.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_PROGRAM = "import sys; sys.path[:] = sys.argv[2:]; from tests.warm_pool import fork_servers; fork_servers()"
_PR_SET_CHILD_SUBREAPER = 36
_MESSAGE_BYTES_MAX = 1 << 20
#: This process's end of the socket to its warm process, by process id: a fork needs a warm process of its own.
_warm: dict[int, socket.socket] = {}


def start(end: socket.socket) -> int:
    """Start a server, like `tasks.pool.processes._start`; return its process id.

    Args:
        end: the server's end of its socket.
    """
    if os.getpid() not in _warm:
        _warm[os.getpid()] = _start_warm_process()
    warm = _warm[os.getpid()]
    message = pickle.dumps((os.getpid(), os.getcwd(), dict(os.environ)))
    prctl = ctypes.CDLL(None).prctl
    # The server's first parent ends at once. The system then makes this process its parent.
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        socket.send_fds(warm, [message], [end.fileno(), 1, 2])
        return int(pickle.loads(warm.recv(_MESSAGE_BYTES_MAX)))
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _start_warm_process() -> socket.socket:
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        for end in (mine, its):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE_BYTES_MAX)
        words = [sys.executable, "-c", _PROGRAM, str(its.fileno()), *sys.path]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        root = Path(__file__).parents[1]
        running = subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, cwd=root, pass_fds=[its.fileno()], start_new_session=True
        )
        running.returncode = 0  # it ends with this process
    return mine


def fork_servers() -> None:
    """Run as the warm process: fork a server for each message, until the other end closes."""
    _load()
    with socket.socket(fileno=int(sys.argv[1])) as control:
        while True:
            message, files, _, _ = socket.recv_fds(control, _MESSAGE_BYTES_MAX, 3)
            if not message:
                return
            control.send(pickle.dumps(_fork_server(control, pickle.loads(message), files)))
            for file in files:
                os.close(file)


def _load() -> None:
    """Import the modules that tasks need, and load the kernels of a clean."""
    import cordwood
    import cordwood.tables.newest
    import cordwood.tasks.tasks
    from tests.cleaning.engine.logs import data, make_log
    from tests.commands.in_process import InThisProcess

    with tempfile.TemporaryDirectory(prefix="cordwood-") as logs:
        make_log(Path(logs) / "t-0", *((base, [data(base, b"k"), data(base + 1, b"k")]) for base in (0, 2, 4)))
        spark: Any = InThisProcess()
        cordwood.clean_in_place(
            logs, spark=spark, now_ms=10, single_copy=True, ignore_ratio=True, overrides=["cleanup.policy=compact"]
        )


def _fork_server(control: socket.socket, message: tuple[int, str, dict[str, str]], files: list[int]) -> int:
    """Fork a server whose parent ends; return its process id once it has the other parent."""
    reading, writing = os.pipe()
    first = os.fork()
    if first == 0:
        with contextlib.suppress(BaseException):
            server = os.fork()
            if server:
                os.write(writing, b"%d" % server)
                os._exit(0)
            control.close()
            os.close(reading)
            os.close(writing)
            _serve(message, files)
        os._exit(1)
    os.close(writing)
    os.waitpid(first, 0)
    with os.fdopen(reading) as pipe:
        return int(pipe.read())


def _serve(message: tuple[int, str, dict[str, str]], files: list[int]) -> None:
    from cordwood.tasks.pool.server import serve

    parent, folder, environment = message
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, file in zip((1, 2), files[1:], strict=True):
        os.dup2(file, number)
        os.close(file)
    with socket.socket(fileno=files[0]) as end:
        # The server looks for this parent.
        while os.getppid() != parent:
            pass
        serve(end, parent)
