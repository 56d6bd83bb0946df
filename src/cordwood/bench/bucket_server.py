"""An S3 server on this machine for measurements: a folder's files are the objects of its buckets.

It serves lists, whole objects, ranges and small puts, each put whole or not at all, and notes every request. It runs in
a process of its own, and sends files without reading them into memory, so that it takes little time beside the client.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

from cordwood.common.types import override

_LISTED_MAX = 1_000
#: The paths that return all requests, and the sums of bytes sent and stored, since their last request.
_REQUESTS, _SUMS = "/-/requests", "/-/bytes"


@dataclass(frozen=True, slots=True)
class BucketServer:
    """A running server.

    Attributes:
        address: its URL.
    """

    address: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead clients to the server."""
        return {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.address,
        }

    def requests(self) -> list[str]:
        """Return method, path and range of all requests since the last call."""
        with urllib.request.urlopen(self.address + _REQUESTS) as answer:
            text: str = answer.read().decode()
        return text.splitlines()

    def moved(self) -> tuple[int, int]:
        """Return the bytes of sent objects, and the bytes of stored objects, since the last call."""
        with urllib.request.urlopen(self.address + _SUMS) as answer:
            sent, stored = answer.read().split()
        return int(sent), int(stored)


@contextlib.contextmanager
def serving(root: Path) -> Iterator[BucketServer]:
    """Run a server for the folder that has its buckets as folders."""
    command = [sys.executable, "-m", __name__, str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None, "it is a pipe"
            yield BucketServer(f"http://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.terminate()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    root: Path
    asked: list[str]
    sums: list[int]

    @override
    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        """Send an object, a range of it, a list, or the requests until now."""
        url = urlsplit(self.path)
        if url.path == _REQUESTS:
            lines, self.asked[:] = "\n".join(self.asked), []
            self._answer(200, lines.encode())
            return
        if url.path == _SUMS:
            line, self.sums[:] = f"{self.sums[0]} {self.sums[1]}", [0, 0]
            self._answer(200, line.encode())
            return
        self.asked.append(f"{self.command} {self.path} {self.headers.get('Range', '')}")
        query = parse_qs(url.query)
        if "list-type" in query:
            self._list(unquote(url.path).strip("/"), {name: values[0] for name, values in query.items()})
            return
        try:
            with (self.root / unquote(url.path).lstrip("/")).open("rb") as file:
                self._send(file)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            self._fail(404, "NoSuchKey")

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self) -> None:
        """Store an object, if the request allows that."""
        self.asked.append(f"{self.command} {self.path}")
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.sums[1] += len(data)
        path = self.root / unquote(urlsplit(self.path).path).lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        own = path.parent / f".{secrets.token_hex(8)}"
        own.write_bytes(data)
        try:
            if self.headers.get("If-None-Match") == "*":
                os.link(own, path)
            else:
                own.replace(path)
        except FileExistsError:
            self._fail(412, "PreconditionFailed")
            return
        finally:
            own.unlink(missing_ok=True)
        self._answer(200, b"", {"ETag": _tag(path.stat())})

    def do_POST(self) -> None:
        """Delete several objects."""
        self.asked.append(f"{self.command} {self.path}")
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        keys = [unescape(key) for key in re.findall("<Key>(.*?)</Key>", body)]
        for key in keys:
            (self.root / unquote(urlsplit(self.path).path).strip("/") / key).unlink(missing_ok=True)
        deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        self._answer(200, f"<?xml version='1.0'?><DeleteResult>{deleted}</DeleteResult>".encode())

    def _send(self, file: BinaryIO) -> None:
        state = os.fstat(file.fileno())
        start, end, status = 0, state.st_size, 200
        headers = {"ETag": _tag(state), "Last-Modified": formatdate(int(state.st_mtime), usegmt=True)}
        if wanted := self.headers.get("Range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end, status = int(first), min(end, int(last) + 1 if last else end), 206
            if start >= end:
                self._fail(416, "InvalidRange")
                return
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{state.st_size}"
        self._head(status, end - start, headers)
        if self.command == "HEAD":
            return
        self.wfile.flush()
        self.sums[0] += end - start
        while start < end:
            start += os.sendfile(self.connection.fileno(), file.fileno(), start, end - start)

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        prefix, after = query.get("prefix", ""), query.get("continuation-token", "")
        folder, _, beginning = prefix.rpartition("/")
        names = sorted(
            (f"{folder}/{one.name}".lstrip("/") + "/" * one.is_dir(), one)
            for one in (os.scandir(self.root / bucket / folder) if (self.root / bucket / folder).is_dir() else ())
            if one.name.startswith(beginning)
        )
        names = [(name, one) for name, one in names if name > after]
        parts = []
        for name, one in names[:_LISTED_MAX]:
            if one.is_dir():
                parts.append(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>")
                continue
            state = one.stat()
            parts.append(
                f"<Contents><Key>{escape(name)}</Key><LastModified>{_iso(state.st_mtime)}</LastModified>"
                f"<ETag>{escape(_tag(state))}</ETag><Size>{state.st_size}</Size></Contents>"
            )
        more = len(names) > _LISTED_MAX
        token = f"<NextContinuationToken>{escape(names[_LISTED_MAX - 1][0])}</NextContinuationToken>" if more else ""
        text = f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{''.join(parts)}"
        self._answer(200, f"<?xml version='1.0'?><ListBucketResult>{text}</ListBucketResult>".encode())

    def _fail(self, status: int, code: str) -> None:
        self._answer(status, f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode())

    def _answer(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self._head(status, len(data), headers or {})
        if self.command != "HEAD":
            self.wfile.write(data)

    def _head(self, status: int, size: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(size)}.items():
            self.send_header(name, value)
        self.end_headers()


def _tag(state: os.stat_result) -> str:
    return f'"{state.st_ino:x}-{state.st_mtime_ns:x}-{state.st_size:x}"'


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def main(root: str) -> None:
    """Serve a folder until the process is ended, and print the port."""
    handler = type("Handler", (_Handler,), {"root": Path(root), "asked": [], "sums": [0, 0]})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
