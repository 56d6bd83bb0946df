"""Answers GET and HEAD over HTTP; misbehaving clients can neither block it nor exhaust descriptors.

A connection takes a file descriptor, and storage needs descriptors too. So the server keeps few connections at once,
each for one answer and only for seconds. When all are in use, a new client replaces the client that has been idle for
longest, after that client has had a moment to send its request or read its answer. A client whose answer is being
computed keeps its connection. Further clients, and the data they have sent, wait in the kernel's queue. So a thousand
clients that send or read a byte per second, and reconnect whenever they are dropped, cost as much as a few, and delay
another client by a second or two.

Each answer is computed in its own thread, as a disk may block it; concurrent requests for the same target share one
answer, and only a few answers are computed at once. A request is a method, a path, its query and headers: the server
reads no body, and looks up the path only in a table, so no path can lead to a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl

from cordwood.errors import RequestError
from cordwood.threads import in_background

HOST = "127.0.0.1"
CONNECTIONS_MAX = 64
#: Maximum number of answers computed at once, each in a thread; length of the queue of waiting clients.
_ANSWERS_MAX, _WAITING_MAX = 16, 1024
#: Idle time before another client may replace a client; time that a new client waits while no client is idle.
_MOMENT_SECONDS, _PATIENCE_SECONDS = 0.1, 1.0
#: Time limit for each of: receiving a request, computing an answer, sending it.
_SECONDS_MAX = 10.0
_REQUEST_BYTES_MAX = 16 << 10
#: Delay before the next accept after this process ran out of descriptors.
_PAUSE_SECONDS = 0.1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """A client's request.

    Attributes:
        target: the path with its query, as received.
        query: values by name, the last one of repeated names; invalid UTF-8 is escaped as in file names.
        headers: values by lower-case name, the last one of repeated names.
    """

    method: str
    target: str
    query: Mapping[str, str]
    headers: Mapping[str, str]

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    @classmethod
    def parse(cls, head: bytes) -> Request:
        """Parse the head of a request; any bytes parse without an error."""
        lines = head.split(b"\r\n")
        method, _, rest = lines[0].partition(b" ")
        target = rest.partition(b" ")[0].decode("latin-1")
        pairs = parse_qsl(target.partition("?")[2], keep_blank_values=True, encoding="utf-8", errors="surrogateescape")
        headers = (line.decode("latin-1").partition(":") for line in lines[1:] if line)
        return cls(
            method.decode("latin-1"),
            target,
            dict(pairs),
            {name.strip().lower(): value.strip() for name, _, value in headers},
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to a request.

    Attributes:
        headers: in addition to the headers of every answer.
    """

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)

    def encode(self, more_headers: Mapping[str, str], *, with_body: bool = True) -> bytes:
        """Encode the response."""
        more = "".join(f"{name}: {value}\r\n" for name, value in {**more_headers, **self.headers}.items())
        head = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\nContent-Type: {self.content_type}\r\n"
            f"Content-Length: {len(self.body)}\r\n{more}Connection: close\r\n\r\n"
        )
        return head.encode("latin-1") + (self.body if with_body else b"")


#: Computes the answer to a request for a path.
Route = Callable[[Request], Answer]
#: Returns a refusal before the answer is computed, or None if the request may be answered.
Guard = Callable[[Request], Answer | None]


class HttpServer:
    """A listening port, and the thread that answers on it."""

    def __init__(self, port: int, host: str = HOST) -> None:
        """Open the port; `start` begins to answer.

        Args:
            port: port number; 0 for any free port.
            host: an address of this machine.

        Raises:
            RequestError: the port is in use or invalid.
        """
        if not 0 <= port <= 65535:
            raise RequestError(f"--port {port}: a port is at most 65535; 0 is any free one")
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family, backlog=_WAITING_MAX)
        except OSError as error:
            raise RequestError(
                f"Port {port} of {host} cannot be used: {error.strerror}. Give another one with --port, 0 for any"
            ) from error
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._routes: Mapping[str, Route] = {}
        self._guard: Guard = lambda _: None
        self._headers: Mapping[str, str] = {}
        self._answers: dict[str, Future[Answer]] = {}
        #: All clients, the oldest first.
        self._clients: dict[asyncio.Task[None], None] = {}
        #: Clients that the server waits for, with the start of their wait, the longest wait first.
        self._idle: dict[asyncio.Task[None], float] = {}
        #: Set when a client becomes idle or disconnects.
        self._changed = asyncio.Event()
        self._stopping: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="http-server", daemon=True)

    def start(
        self, routes: Mapping[str, Route], guard: Guard | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Begin to answer; a path outside `routes` gets 404.

        Args:
            headers: headers of all answers.
        """
        self._routes = routes
        self._guard = guard or self._guard
        self._headers = headers or {}
        self._thread.start()

    def close(self) -> None:
        """Stop answering, and close the port."""
        if self._thread.is_alive():
            self._stopping.set_result(None)
            self._thread.join()
        self._socket.close()

    async def _run(self) -> None:
        accepting = asyncio.create_task(self._accept())
        await asyncio.wrap_future(self._stopping)
        accepting.cancel()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._socket)
            except OSError:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            await self._make_room()
            task = loop.create_task(self._serve(connection))
            self._clients[task] = None
            self._is_idle(task)
            task.add_done_callback(self._forget)

    async def _make_room(self) -> None:
        """Make room for a client: drop the client that has been idle for longest, or else the oldest client."""
        loop = asyncio.get_running_loop()
        patient_until = loop.time() + _PATIENCE_SECONDS
        while len(self._clients) >= CONNECTIONS_MAX:
            victim, since = next(iter(self._idle.items()), (None, 0.0))
            until = patient_until if victim is None else since + _MOMENT_SECONDS
            if loop.time() < until:
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(until):
                        await self._changed.wait()
                continue
            victim = victim or next(iter(self._clients))
            victim.cancel()
            await asyncio.wait([victim])
            self._forget(victim)

    def _is_idle(self, task: asyncio.Task[None]) -> None:
        self._idle[task] = asyncio.get_running_loop().time()
        self._changed.set()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._clients.pop(task, None)
        self._idle.pop(task, None)
        self._changed.set()

    async def _serve(self, connection: socket.socket) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        with connection, contextlib.suppress(OSError):  # give up on clients that are slow or disconnected
            connection.setblocking(False)
            async with asyncio.timeout(_SECONDS_MAX):
                request = Request.parse(await _request_head(connection))
            self._idle.pop(task, None)
            answer = await self._answer(request)
            self._is_idle(task)
            async with asyncio.timeout(_SECONDS_MAX):
                await loop.sock_sendall(connection, answer.encode(self._headers, with_body=request.method != "HEAD"))

    async def _answer(self, request: Request) -> Answer:
        if request.method not in ("GET", "HEAD"):
            return Answer(HTTPStatus.METHOD_NOT_ALLOWED, b"There is only GET.\n", headers={"Allow": "GET, HEAD"})
        refused = self._guard(request)
        if refused is not None:
            return refused
        route = self._routes.get(request.path)
        if route is None:
            return Answer(HTTPStatus.NOT_FOUND, f"There is {' and '.join(self._routes)}.\n".encode())
        making = self._answers.get(request.target)
        if making is None:
            if len(self._answers) >= _ANSWERS_MAX:
                return Answer(HTTPStatus.SERVICE_UNAVAILABLE, b"Busy with other requests.\n")
            making = self._answers[request.target] = in_background(lambda: route(request), f"http {request.path}")
            asyncio.wrap_future(making).add_done_callback(lambda made: self._has_made(request.target, made))
        try:
            async with asyncio.timeout(_SECONDS_MAX):
                return await asyncio.wrap_future(making)
        except TimeoutError:
            return Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"No answer within {_SECONDS_MAX:.0f} s.\n".encode())
        except Exception:
            _log.exception("GET %s failed", request.path)
            return Answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"The log of this program says what failed.\n")

    def _has_made(self, target: str, made: asyncio.Future[Answer]) -> None:
        del self._answers[target]
        if not made.cancelled():
            made.exception()  # mark it as retrieved; the requests that wait for the answer report it


async def _request_head(connection: socket.socket) -> bytes:
    """Receive the head of a request.

    Raises:
        OSError: the client disconnects early, or sends more than the limit.
    """
    loop, head = asyncio.get_running_loop(), b""
    while b"\r\n\r\n" not in head:
        data = await loop.sock_recv(connection, _REQUEST_BYTES_MAX)
        if not data or len(head) + len(data) > _REQUEST_BYTES_MAX:
            raise ConnectionError("no request")
        head += data
    return head
