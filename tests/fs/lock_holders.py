"""Processes that hold, take and drop lock files."""

from __future__ import annotations

import contextlib
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

#: Holds `.lock` as a broker does, until its stdin ends.
HOLD = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""
#: The same, as a Java process, which may be a broker.
HOLD_AS_A_BROKER = HOLD.replace("file =", 'open("/proc/self/comm", "w").write("java"); file =')
#: The same, as a program whose name is not UTF-8.
HOLD_WITH_AN_ODD_NAME = HOLD.replace("file =", r'open("/proc/self/comm", "wb").write(b"caf\xe9"); file =')
#: Another Cordwood.
HOLD_AS_WE_DO = """
import sys
from cordwood.fs.posix import PosixFileSystem
with PosixFileSystem().lock_directory(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""
#: Unlinks and recreates `.lock`, as fast as it can.
CHURN = """
import os, sys
print("held", flush=True)
while True:
    try:
        os.unlink(sys.argv[1])
    except FileNotFoundError:
        pass
    os.close(os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o644))
"""
TRY = """
import fcntl, sys
try:
    fcntl.lockf(open(sys.argv[1], "r+"), fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("held")
"""
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows who holds a lock")


@contextlib.contextmanager
def other(program: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, past the line that it prints."""
    with subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def is_held(directory: Path) -> bool:
    """Whether another process fails to lock the file with this name."""
    done = subprocess.run(
        [sys.executable, "-c", TRY, directory / ".lock"], capture_output=True, text=True, check=True, timeout=30
    )
    return done.stdout == "held\n"


def open_up(path: Path) -> None:
    """Let others reach a folder of pytest, up to the temporary folder that all share."""
    while not path.stat().st_mode & stat.S_ISVTX:
        path.chmod(0o755)
        path = path.parent
