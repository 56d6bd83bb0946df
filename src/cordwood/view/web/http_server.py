"""Answers GET and HEAD over HTTP, with waitress; misbehaving clients can neither block it nor exhaust descriptors.

A connection takes a file descriptor, and storage needs descriptors too, so the server keeps few connections at once.
When all are in use, a new client replaces the client that has been idle for longest: that client had a moment to send
its request or read its answer. Further clients, and the data they have sent, wait in the kernel's queue. So a thousand
clients that send or read a byte per second, and reconnect whenever they are dropped, cost as much as a few, and delay
another client by seconds.

Each answer is computed in its own thread, as a disk may block it; concurrent requests for the same target share one
answer, and only a few answers are computed at once. The path of a request is looked up only in a table, so no path can
lead to a file.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode

from waitress import wasyncore
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer

from cordwood.common.errors import RequestError
from cordwood.common.threads import in_background
from cordwood.common.types import override
from cordwood.view.pages import frame
from cordwood.view.pages.frame import Wanted

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

HOST = "127.0.0.1"
CONNECTIONS_MAX = 64
#: Requests that are answered at once, each in a thread of waitress, and answers that are computed at once, each in a
#: thread of its own, which may hang longer than its requests wait.
THREADS = 16
#: Idle time before another client may replace a client.
_MOMENT_SECONDS = 0.1
#: Time limit for computing an answer, and for an idle connection.
_SECONDS_MAX = 10
#: Delay before the next accept after this process ran out of descriptors.
_PAUSE_SECONDS = 0.1
_ADJUSTMENTS: Mapping[str, Any] = {
    "threads": THREADS,
    # Counts the listening socket and the trigger, too; `_Server` makes room before this limit.
    "connection_limit": CONNECTIONS_MAX + 8,
    "channel_timeout": _SECONDS_MAX,
    "cleanup_interval": 1,
    "backlog": 1024,
    # select() takes no descriptor above 1023.
    "asyncore_use_poll": True,
    "max_request_header_size": 16 << 10,
    "max_request_body_size": 16 << 10,
    # Larger requests or answers would take a temporary file and its descriptor.
    "inbuf_overflow": 1 << 20,
    "outbuf_overflow": 1 << 30,
    "log_socket_errors": False,
    "ident": None,
}

_log = logging.getLogger(__name__)
# It warns whenever all threads or connections are in use.
logging.getLogger("waitress").setLevel(logging.ERROR)


@dataclass(frozen=True, slots=True)
class Request:
    """A client's request.

    Attributes:
        query: values by name, the last one of repeated names; invalid UTF-8 is escaped as in file names.
        headers: values by lower-case name.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]

    @classmethod
    def of(cls, environ: WSGIEnvironment) -> Request:
        """Return the request of a WSGI environment."""
        pairs = parse_qsl(environ["QUERY_STRING"], keep_blank_values=True, encoding="utf-8", errors="surrogateescape")
        headers = {
            name.removeprefix("HTTP_").replace("_", "-").lower(): str(value)
            for name, value in environ.items()
            if name.startswith("HTTP_")
        }
        return cls(environ["REQUEST_METHOD"], environ["PATH_INFO"], dict(pairs), headers)


@dataclass(frozen=True, slots=True)
class Response:
    """The response to a request.

    Attributes:
        headers: in addition to the headers of every answer.
    """

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


#: Computes the answer to a request for a path.
Route = Callable[[Request], Response]
#: Returns a refusal before the answer is computed, or None if the request may be answered.
Guard = Callable[[Request], Response | None]


class HttpServer:
    """A listening port, and the threads that answer on it."""

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
            self._socket = socket.create_server((host, port), family=family, backlog=_ADJUSTMENTS["backlog"])
        except OSError as error:
            raise RequestError(
                f"Port {port} of {host} cannot be used: {error.strerror}. Give another one with --port, 0 for any"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        self._server: _Server | None = None

    def start(
        self, routes: Mapping[str, Route], guard: Guard | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Begin to answer; a path outside `routes` gets 404.

        Args:
            headers: headers of all answers.
        """
        application = _Application(routes, guard or (lambda _: None), headers or {})
        address = (self._socket.family, self._socket.type, self._socket.proto, self._socket.getsockname())
        self._server = _Server(application, _sock=self._socket, bind_socket=False, sockinfo=address, **_ADJUSTMENTS)
        self._thread = threading.Thread(target=self._server.run, name="http-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering, and close the port."""
        if self._server is not None:
            self._server.stop()
            self._thread.join()
        self._socket.close()


class _Application:
    """The routes as a WSGI application."""

    def __init__(self, routes: Mapping[str, Route], guard: Guard, headers: Mapping[str, str]) -> None:
        self._routes = routes
        self._guard = guard
        self._headers = headers
        self._lock = threading.Lock()
        #: Answers that are being computed, by path and query.
        self._answers: dict[tuple[str, str], Future[Response]] = {}

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        answer = self._answer(Request.of(environ), environ["QUERY_STRING"])
        headers = {
            "Content-Type": answer.content_type,
            "Content-Length": str(len(answer.body)),
            **self._headers,
            **answer.headers,
        }
        start_response(f"{answer.status.value} {answer.status.phrase}", list(headers.items()))
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [answer.body]

    def _answer(self, request: Request, query: str) -> Response:
        if request.method not in ("GET", "HEAD"):
            return Response(HTTPStatus.METHOD_NOT_ALLOWED, b"There is only GET.\n", headers={"Allow": "GET, HEAD"})
        refused = self._guard(request)
        if refused is not None:
            return refused
        route = self._routes.get(request.path)
        if route is None:
            return Response(HTTPStatus.NOT_FOUND, f"There is {' and '.join(self._routes)}.\n".encode())
        target = (request.path, query)

        def compute() -> Response:
            try:
                return route(request)
            finally:
                with self._lock:
                    del self._answers[target]

        with self._lock:
            computing = self._answers.get(target)
            if computing is None:
                if len(self._answers) >= THREADS:
                    return Response(HTTPStatus.SERVICE_UNAVAILABLE, b"Busy with other requests.\n")
                computing = self._answers[target] = in_background(compute, f"http {request.path}")
        if not wait([computing], _SECONDS_MAX).done:
            return Response(HTTPStatus.SERVICE_UNAVAILABLE, f"No answer within {_SECONDS_MAX} s.\n".encode())
        try:
            return computing.result()
        except Exception:
            _log.exception("GET %s failed", request.path)
            return Response(HTTPStatus.INTERNAL_SERVER_ERROR, b"The log of this program says what failed.\n")


class _Channel(HTTPChannel):  # type: ignore[misc]
    """A connection; `creation_time` is the time of its last answer, if it had one."""

    @override
    def service(self) -> None:
        super().service()
        self.creation_time = time.time()


class _Server(TcpWSGIServer):  # type: ignore[misc]
    """waitress, which replaces idle clients when all connections are in use."""

    channel_class = _Channel

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self._lock = threading.Lock()
        self._is_stopping = False
        super().__init__(*arguments, **more)

    @override
    def run(self) -> None:
        while not self._is_stopping:
            wasyncore.loop(timeout=_MOMENT_SECONDS if self._is_full() else 1, use_poll=True, map=self._map, count=1)
        for channel in list(self.active_channels.values()):
            channel.handle_close()
        with self._lock:
            self.close()

    def stop(self) -> None:
        """Make `run` close all connections and the port, and end."""
        self._is_stopping = True
        self.pull_trigger()
        self.task_dispatcher.shutdown(timeout=0)

    @override
    def pull_trigger(self) -> None:
        with self._lock:
            # After the close, the trigger's descriptor may be another file's.
            if self.accepting:
                super().pull_trigger()

    @override
    def readable(self) -> bool:
        return super().readable() and not (self._is_full() and self._longest_idle() is None)

    @override
    def accept(self) -> Any:
        idle = self._longest_idle() if self._is_full() else None
        if self._is_full() and idle is None:
            return None
        try:
            accepted = super().accept()
        except OSError:
            time.sleep(_PAUSE_SECONDS)
            return None
        if accepted is not None and idle is not None:
            # Only now, because the new client must not get the old one's descriptor, and with it its pending events.
            idle.handle_close()
        return accepted

    def _is_full(self) -> bool:
        return len(self.active_channels) >= CONNECTIONS_MAX

    def _longest_idle(self) -> _Channel | None:
        """Return the client that has been idle for longest, or None if none has been for a moment."""
        idle = [one for one in self.active_channels.values() if not one.requests]
        longest = min(idle, key=lambda one: one.creation_time, default=None)
        return None if longest is None or time.time() < longest.creation_time + _MOMENT_SECONDS else longest


# ---- access ----------------------------------------------------------------------------------------------------------

# A request is answered if it comes from a browser on this machine that meant this server, or from a client that has the
# token. A page of another site can make a browser send requests here. It can also resolve its own domain name to this
# address (DNS rebinding), so that the browser lets it read the answers. So the Host header must name this server, and
# so must an Origin header if there is one. Clients on other machines also need a token: a link with the token sets a
# cookie and redirects to the same address without the token.

#: Pages may display themselves and the style sheet and link to pages of this server. They run no scripts.
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
#: Listening addresses that cover all addresses of this machine.
_ANY = ("0.0.0.0", "::")
_COOKIE = "cordwood"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True)
class Access:
    """The access rule of one server.

    Attributes:
        host: the address that the server listens on.
        token: secret that a client must present, or None if it needs no secret.
    """

    host: str
    port: int
    token: str | None = None

    def refuse(self, request: Request) -> Response | None:
        """Return a refusal, or None if the request may be answered."""
        host = request.headers.get("host", "")
        if not self._is_ours(host):
            return _refusal("This server does not answer for that name.")
        origin = request.headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return _refusal("This server does not answer to pages of others.")
        return None if self.token is None else self._ask_for_token(request, self.token)

    def _is_ours(self, host: str) -> bool:
        if self.host in _ANY and self.token is not None:
            return True  # this machine may have any name; a page of another site has no token
        name = f"[{self.host}]" if ":" in self.host else self.host
        names = {*_LOOPBACK, name} if is_loopback(self.host) else {name}
        return host.lower() in {f"{one}:{self.port}" for one in names} or (self.port == 80 and host.lower() in names)

    def _ask_for_token(self, request: Request, token: str) -> Response | None:
        given = request.query.get("token")
        if given is not None and _is_same(given, token):
            rest = {name: value for name, value in request.query.items() if name != "token"}
            # Exactly one leading slash, so that this is a path on this server; quoting makes it a valid header value.
            path = "/" + quote(request.path.lstrip("/"), safe="/.", encoding="latin-1")
            target = path + (f"?{urlencode(rest, errors='surrogateescape')}" if rest else "")
            cookie = f"{_COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/"
            return Response(HTTPStatus.SEE_OTHER, b"", headers={"Location": target, "Set-Cookie": cookie})
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if any(_is_same(one, token) for one in (bearer, _cookie_of(request))):
            return None
        return _refusal("Open the address with the token that cordwood view has printed.", HTTPStatus.UNAUTHORIZED)


def _cookie_of(request: Request) -> str:
    try:
        found = SimpleCookie(request.headers.get("cookie", "")).get(_COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _is_same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode())


def _refusal(why: str, status: HTTPStatus = HTTPStatus.FORBIDDEN) -> Response:
    return Response(status, f"{why}\n".encode())


# ---- answers ---------------------------------------------------------------------------------------------------------

_PAGES_MAX = 10**6


def html(page: str, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Answer with a page."""
    return Response(status, page.encode(), "text/html; charset=utf-8")


def json_document(document: Mapping[str, Any]) -> Response:
    """Answer with a page's values as JSON."""
    return Response(HTTPStatus.OK, json.dumps(document, indent=1).encode() + b"\n", "application/json")


def not_yet() -> Response:
    """Answer 503, as the result is not available yet."""
    return Response(HTTPStatus.SERVICE_UNAVAILABLE, b"Not known yet; ask again.\n", headers={"Retry-After": "1"})


def style_sheet(_: Request) -> Response:
    """Answer with the style sheet of all pages."""
    return Response(HTTPStatus.OK, frame.style().encode(), "text/css; charset=utf-8")


def wanted(request: Request) -> Wanted:
    """Read the requested rows and order of a table from the query."""
    at = number(request, "page", _PAGES_MAX) or 1
    query = request.query
    return Wanted(query.get("search", ""), query.get("sort", ""), at, query.get("broker", ""))


def number(request: Request, name: str, most: int) -> int | None:
    """Read a number from the query, at most `most`; None if the query has no valid number."""
    text = request.query.get(name, "")
    return min(int(text[:20]), most) if text.isascii() and text.isdigit() else None
