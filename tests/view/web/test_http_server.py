"""The HTTP server: hanging, failing and invalid requests keep no other client waiting."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus

import pytest

from cordwood.view.web.http_server import CONNECTIONS_MAX, HOST, THREADS, HttpServer, Request, Response


class Served:
    """A server with three pages: a ready one, a failing one, and a page that blocks until the test releases it."""

    def __init__(self) -> None:
        self.may_end, self.calls = threading.Event(), 0
        self.server = HttpServer(0)
        self.server.start(
            {"/quick": lambda _: Response(HTTPStatus.OK, b"quick"), "/fail": self._fail, "/slow": self._slow}
        )

    def _fail(self, _: Request) -> Response:
        raise ValueError("why it fails")

    def _slow(self, _: Request) -> Response:
        self.calls += 1
        assert self.may_end.wait(60)
        return Response(HTTPStatus.OK, b"slow")

    def ask(self, request: str) -> socket.socket:
        client = socket.create_connection((HOST, self.server.port), timeout=60)
        client.sendall(request.encode() + b"\r\nConnection: close\r\n\r\n")
        return client

    def status(self, request: str) -> str:
        return answer_of(self.ask(request))[0]


def answer_of(client: socket.socket) -> tuple[str, bytes]:
    """The status and the body of an answer."""
    with client, client.makefile("rb") as file:
        head, _, body = file.read().partition(b"\r\n\r\n")
        return head.decode().partition("\r\n")[0].partition(" ")[2], body


@pytest.fixture
def served() -> Iterator[Served]:
    found = Served()
    yield found
    found.may_end.set()
    found.server.close()


def test_requests_that_cannot_be_met_say_why(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    assert served.status("GET /quick?name[]=x HTTP/1.1") == "200 OK"
    assert served.status("GET /else HTTP/1.1") == "404 Not Found"
    assert served.status("POST /quick HTTP/1.1") == "405 Method Not Allowed"
    assert served.status("nothing") == "400 Bad Request"
    assert served.status("GET /fail HTTP/1.1") == "500 Internal Server Error"
    assert "why it fails" in caplog.text


def test_clients_that_wait_for_the_same_answer_share_it_and_others_are_served(served: Served) -> None:
    waiting = [served.ask("GET /slow HTTP/1.1") for _ in range(THREADS - 1)]
    for _ in range(2 * CONNECTIONS_MAX):
        assert served.status("GET /quick HTTP/1.1") == "200 OK"
    served.may_end.set()
    assert [answer_of(client) for client in waiting] == [("200 OK", b"slow")] * len(waiting)
    assert served.calls == 1


def test_when_all_connections_are_idle_the_next_client_takes_the_oldest_ones_place(served: Served) -> None:
    idle = [socket.create_connection((HOST, served.server.port), timeout=60) for _ in range(CONNECTIONS_MAX)]
    assert served.status("GET /quick HTTP/1.1") == "200 OK"
    assert idle[0].recv(1) == b"", "closed"
    idle[-1].sendall(b"GET /quick HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert answer_of(idle[-1]) == ("200 OK", b"quick")
    for client in idle:
        client.close()
