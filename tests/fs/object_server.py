"""An S3 server on this machine, in a thread of the test's process; and directories put into its buckets."""

from __future__ import annotations

import contextlib
import logging
import os
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import obstore
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer
from obstore.store import S3Store

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
