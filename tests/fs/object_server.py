"""An S3 server on this machine, in a thread of the test's process; and directories put into its buckets."""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock
from urllib.parse import urlsplit

import obstore
import pytest
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer
from obstore.store import S3Store

from cordwood.fs import objects
from cordwood.fs.object_requests import Patience
from tests.fixtures import copy_of

if TYPE_CHECKING:
    from obstore.store import S3Config

BUCKET = "logs"
#: The server's objects; the server runs in this process.
BACKEND = s3_backends["123456789012"]["aws"]


@dataclass(frozen=True)
class Server:
    """A server that is running.

    Attributes:
        address: of the server, as a URL.
    """

    address: str

    @property
    def store(self) -> S3Store:
        """The bucket, through a client without Cordwood."""
        options: S3Config = {"access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}
        return S3Store(BUCKET, config=options, endpoint=self.address, client_options={"allow_http": True})

    def upload(self, directory: Path, prefix: str) -> str:
        """Put the files of a directory into the bucket, without HTTP, which takes 20 ms a request; their URL."""
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                BACKEND.put_object(BUCKET, f"{prefix}/{path.relative_to(directory)}", path.read_bytes())
        return f"s3://{BUCKET}/{prefix}"

    def same_times(self, directory: Path, prefix: str, target: Path) -> Path:
        """A copy of an uploaded directory whose files are as old as its objects: a store has no other times."""
        copy_of(directory, target)
        for some in obstore.list(self.store, prefix):
            for meta in some:
                seconds = meta["last_modified"].timestamp()
                os.utime(target / meta["path"].removeprefix(f"{prefix}/"), (seconds, seconds))
        return target

    def objects(self, prefix: str) -> dict[str, bytes]:
        """The objects under a prefix, by name."""
        found = [meta["path"] for some in obstore.list(self.store, prefix) for meta in some]
        stored = {name.removeprefix(f"{prefix}/"): BACKEND.get_object(BUCKET, name) for name in found}
        return {name: bytes(one.value) for name, one in stored.items() if one is not None}


def environment(address: str) -> dict[str, str]:
    """The variables by which Cordwood, like any other program, finds the server."""
    return {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": address,
    }


@contextlib.contextmanager
def running_server() -> Iterator[Server]:
    """A server with one empty bucket; the environment leads to it."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    thread = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    thread.start()
    try:
        host, port = thread.get_host_and_port()
        server = Server(f"http://{host}:{port}")
        urllib.request.urlopen(urllib.request.Request(f"{server.address}/moto-api/reset", method="POST")).close()
        urllib.request.urlopen(urllib.request.Request(f"{server.address}/{BUCKET}", method="PUT")).close()
        with mock.patch.dict(os.environ, environment(server.address)):
            yield server
    finally:
        thread.stop()


# ---- a server that fails ---------------------------------------------------------------------------------------------

# A server between a client and an S3 server, which fails as servers and networks do, at moments that a test chooses.
#
# It passes requests on, and at a fault does one of these instead:
#
#     500, 503    answers with that error, and does nothing
#     404         reports that an object does not exist, or no longer
#     403         refuses access
#     cut         sends the right headers, and only a part of the body, then closes the connection
#     lost        has the request done, and closes the connection without an answer
#     slow        waits a moment before the answer
#     dead        from here on accepts no connection

#: A server's error code for a status; only the kinds below are drawn.
_CODES = {"500": "InternalError", "503": "SlowDown", "404": "NoSuchKey", "403": "AccessDenied"}
_SLOW_SECONDS = 0.3


@dataclass
class Faults:
    """Failing requests, with their kind of fault.

    Attributes:
        at: kind of fault by the request's number, from 0 on.
        requests: number of requests until now.
        happened: the faults that happened.
        is_dead: no request is served any more.
        under_way: requests that are being served.
        asked: method and path of each request.
    """

    at: dict[int, str] = field(default_factory=dict)
    requests: int = 0
    happened: list[str] = field(default_factory=list)
    is_dead: bool = False
    under_way: int = 0
    asked: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self, asked: str) -> str:
        """The fault of a request that came now; empty for none."""
        with self.lock:
            self.asked.append(asked)
            kind = "dead" if self.is_dead else self.at.get(self.requests, "")
            self.requests += 1
            self.is_dead = self.is_dead or kind == "dead"
            if kind:
                self.happened.append(kind)
            return kind

    def settle(self) -> None:
        """Wait for requests whose client has given up: they are still done."""
        while self.under_way:
            time.sleep(0.01)

    def begin(self, at: dict[int, str]) -> None:
        """Count requests from 0 again, with these faults."""
        with self.lock:
            self.at, self.requests, self.happened, self.is_dead, self.asked = at, 0, [], False, []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    faults: Faults
    address: str

    def log_message(self, format: str, *args: object) -> None:
        """Keep the log out of the tests' output."""

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle_one_request()

    def _serve(self) -> None:
        with self.faults.lock:
            self.faults.under_way += 1
        try:
            self._serve_one(self._body())
        finally:
            with self.faults.lock:
                self.faults.under_way -= 1

    def _serve_one(self, body: bytes) -> None:
        kind = self.faults.next(f"{self.command} {self.path}")
        if kind in _CODES:
            text = f"<?xml version='1.0'?><Error><Code>{_CODES[kind]}</Code><Message>drawn</Message></Error>".encode()
            self._answer(int(kind), {"Content-Type": "application/xml"}, text)
            return
        if kind == "dead":
            self.close_connection = True
            return
        if kind == "slow":
            time.sleep(_SLOW_SECONDS)
        connection = http.client.HTTPConnection(self.address, timeout=60)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            data = answer.read()
            if kind == "lost":
                self.close_connection = True
                return
            self._answer(answer.status, dict(answer.getheaders()), data, cut=kind == "cut")
        finally:
            connection.close()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(self, status: int, headers: dict[str, str], data: bytes, *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        size = headers.get("Content-Length", str(len(data))) if self.command == "HEAD" else str(len(data))
        if status not in (204, 304):
            self.send_header("Content-Length", size)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            self.close_connection = True


#: Headers of one connection, which the next has of its own.
_HOP = frozenset(["connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"])


@contextlib.contextmanager
def faulty(address: str) -> Iterator[tuple[str, Faults]]:
    """A server in front of the server at an address: its own address, and its faults, at first empty."""
    faults = Faults()
    handler = type("Handler", (_Handler,), {"faults": faults, "address": urlsplit(address).netloc})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", faults
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def never_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let operations fail at their first failed request."""
    monkeypatch.setattr(objects, "Patience", lambda: Patience(retry_seconds=0))
