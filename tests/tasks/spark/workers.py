"""The memory of a command and of Spark's Python workers while it runs."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from cordwood.bench.beside_kafka import memory_bytes
from tests.command import start
from tests.commands.killing import processes

_LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class Peaks:
    """The most memory at one moment.

    Attributes:
        command: of the process itself, in bytes.
        workers: of each of its Python workers, the largest first.
    """

    command: int
    workers: list[int]


def peaks(
    arguments: list[str], environment: Mapping[str, str] | None = None, meanwhile: Callable[[], None] = lambda: None
) -> Peaks:
    """Run a command, which must succeed; `meanwhile` is called again and again."""
    most: dict[int, int] = {}
    with start(*arguments, environment=environment or {}, stderr=subprocess.STDOUT, start_new_session=True) as running:
        while running.poll() is None:
            for pid in (running.pid, *_workers(running.pid)):
                most[pid] = max(most.get(pid, 0), memory_bytes(pid))
            meanwhile()
            time.sleep(_LOOK_SECONDS)
        said, _ = running.communicate()
    assert running.returncode == 0, said
    command = most.pop(running.pid, 0)
    return Peaks(command, sorted(most.values(), reverse=True))


def _workers(session: int) -> Iterator[int]:
    """Python workers without their parents: a pool's server, or Spark's daemon, itself a fork of a server."""
    found = processes(session)
    jvms = {one.pid for one in found if os.path.basename(one.words[0]) == "java"}
    servers = {one.pid for one in found if one.parent == session} - jvms
    daemons = {one.pid for one in found if one.parent in jvms | servers}
    return (one.pid for one in found if one.parent in (daemons if jvms else servers))
