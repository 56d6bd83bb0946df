"""Pools whose server is a fork of a warm process. Starting a server anew imports our modules, which takes two seconds.

pytest's processes have threads, so a pool in a test starts its server as a new Python process. Here a process that has
the modules and kernels loaded forks it instead. Otherwise the pool is a user's: the server and its workers are
processes with this process's folder, environment and output, and the server is a child of this process.
`tests/tasks/pool` tests the start of new servers.
"""

from __future__ import annotations

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

from cordwood.tasks import forks

_PROGRAM = "import sys; sys.path[:] = sys.argv[3:]; from tests.warm_pool import main; main()"
_PR_SET_CHILD_SUBREAPER = 36
_MESSAGE_BYTES_MAX = 1 << 20
#: The warm process of each process that starts servers: a fork of pytest's needs one of its own.
_warm: dict[int, forks.ForkServer] = {}


def start(end: socket.socket) -> int:
    """Start a server, like `tasks.pool.runner._start`; return its process id.

    Args:
        end: the server's end of its socket.
    """
    if os.getpid() not in _warm:
        _warm[os.getpid()] = forks.ForkServer(_start_warm_process)
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine:
        prctl = ctypes.CDLL(None).prctl
        # The server's first parent ends at once, maybe before the next line. Then this process becomes its parent.
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            with its:
                mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE_BYTES_MAX)
                _warm[os.getpid()].fork(its)
            message = pickle.dumps((os.getpid(), os.getcwd(), dict(os.environ)))
            socket.send_fds(mine, [message], [end.fileno(), 1, 2])
            return int(mine.recv(_MESSAGE_BYTES_MAX))
        finally:
            prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _start_warm_process(control: socket.socket) -> int:
    words = [sys.executable, "-c", _PROGRAM, str(control.fileno()), str(os.getpid()), *sys.path]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    root, files = Path(__file__).parents[1], [control.fileno()]
    running = subprocess.Popen(
        words, env=environment, stdin=subprocess.DEVNULL, cwd=root, pass_fds=files, start_new_session=True
    )
    running.returncode = 0  # it ends with this process
    return running.pid


def main() -> None:
    """Run as the warm process."""
    _load()
    with socket.socket(fileno=int(sys.argv[1])) as control:
        forks.serve(control, int(sys.argv[2]), _be_server)


def _load() -> None:
    """Import the modules that tasks need, and load the kernels of a clean."""
    import cordwood
    import cordwood.tables.newest
    from tests.commands.in_process import InThisProcess
    from tests.logs import batch, make_log

    with tempfile.TemporaryDirectory(prefix="cordwood-") as logs:
        make_log(Path(logs) / "t-0", *((base, [batch(base, time=0), batch(base + 1, time=0)]) for base in (0, 2, 4)))
        spark: Any = InThisProcess()
        cordwood.clean_in_place(
            logs, spark=spark, now_ms=10, single_copy=True, ignore_ratio=True, overrides=["cleanup.policy=compact"]
        )


def _be_server(request: socket.socket) -> None:
    """Fork a server for a request, and end, so that it gets the parent that asked for it."""
    if os.fork():
        return
    from cordwood.tasks.pool.server import serve

    message, files, _, _ = socket.recv_fds(request, _MESSAGE_BYTES_MAX, 3)
    parent, folder, environment = pickle.loads(message)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, file in zip((1, 2), files[1:], strict=True):
        os.dup2(file, number)
        os.close(file)
    # The server looks for this parent.
    while os.getppid() != parent:
        pass
    request.send(b"%d" % os.getpid())
    request.close()
    with socket.socket(fileno=files[0]) as end:
        serve(end, parent)
