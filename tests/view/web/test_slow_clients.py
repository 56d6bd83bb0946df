"""A thousand clients that send or read a byte a second: another client is served all the same, at a bounded cost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cordwood.view.web.http_server import CONNECTIONS_MAX, HOST
from tests.command import start
from tests.fixtures import fixture
from tests.view.web.view_client import Client, check_harmless

pytestmark = pytest.mark.slow

CLIENTS, REQUESTS = 1_000, 12
#: An answer needs a fraction of a second on an idle machine; tests share theirs.
SECONDS_MAX, GROWTH_BYTES_MAX = 8.0, 100 << 20


@dataclass(frozen=True)
class Server:
    """`cordwood view` in a process of its own."""

    client: Client
    pid: int

    def status(self, name: str) -> int:
        """A number in the kernel's status of the process: `Threads`, or `VmRSS` in kB."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))


@pytest.fixture
def server() -> Iterator[Server]:
    with start("view", fixture("kraft-classic-before"), "--no-browser", stderr=None) as process:
        assert process.stdout is not None
        try:
            found = Server(Client(process.stdout.readline().strip()), process.pid)
            found.client.done()
            yield found
        finally:
            process.terminate()


@pytest.fixture(autouse=True)
def _many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CLIENTS + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"a process may have {hard} descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def slow_client(port: int, connected: set[int], number: int) -> None:
    """Send a request byte by byte, or read the answer byte by byte; reconnect a second after a refusal."""
    loop, is_reader = asyncio.get_running_loop(), number % 2
    head = f"GET /partitions HTTP/1.1\r\nHost: {HOST}:{port}\r\n".encode()
    while True:
        with contextlib.suppress(OSError), socket.socket() as connection:
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            await loop.sock_connect(connection, (HOST, port))
            connected.add(number)
            if is_reader:
                await loop.sock_sendall(connection, head + b"\r\n")
                while await loop.sock_recv(connection, 1):
                    await asyncio.sleep(1)
            for at in range(len(head)):
                await loop.sock_sendall(connection, head[at : at + 1])
                await asyncio.sleep(1)
        await asyncio.sleep(1)


async def times_beside_slow_clients(server: Server) -> list[float]:
    """Durations of another client's requests."""
    connected: set[int] = set()
    clients = [asyncio.create_task(slow_client(server.client.port, connected, number)) for number in range(CLIENTS)]
    took = []
    try:
        until = time.monotonic() + 120
        while len(connected) < CLIENTS:
            assert time.monotonic() < until, len(connected)
            await asyncio.sleep(0.1)
        for _ in range(REQUESTS):
            began = time.monotonic()
            got = await asyncio.to_thread(server.client.get, "/")
            took.append(time.monotonic() - began)
            assert got.status == 200 and "orders" in check_harmless(got.text).text
            await asyncio.sleep(0.5)
    finally:
        for one in clients:
            one.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    return took


def test_a_client_is_served_beside_a_thousand_slow_ones(server: Server) -> None:
    threads, kilobytes, descriptors = server.status("Threads"), server.status("VmRSS"), server.descriptors()
    took = asyncio.run(times_beside_slow_clients(server))
    growth = 1024 * (server.status("VmRSS") - kilobytes)
    print([round(one, 2) for one in took], f"{growth / 1e6:.1f} MB", server.status("Threads"), threads)
    assert max(took) < SECONDS_MAX
    assert growth < GROWTH_BYTES_MAX
    # A thread for each answer that is being made.
    assert server.status("Threads") <= threads + 16
    assert server.descriptors() <= descriptors + CONNECTIONS_MAX + 1
