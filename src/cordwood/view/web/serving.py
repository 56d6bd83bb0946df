"""The server of `view`: pages of a node, from scans that repeat in the background."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from cordwood.commands.selection import WhyOptions
from cordwood.fs.base import Store
from cordwood.view.node_look import before_look, look_at_node
from cordwood.view.web.access import HEADERS, Access, is_loopback
from cordwood.view.web.http_server import HOST, HttpServer
from cordwood.view.web.site import DumpLines, Site
from cordwood.view.web.watch import Watch


class ViewServer:
    """Serves pages of some directories to clients that `view.web.access` admits.

    Attributes:
        url: the address of the start page, with its token if clients need one.
    """

    def __init__(
        self,
        paths: Sequence[str],
        options: WhyOptions,
        dump_lines: DumpLines,
        *,
        host: str = HOST,
        port: int = 0,
        fs: Store | None = None,
    ) -> None:
        """Open the port. `start` begins the first scan.

        Args:
            dump_lines: computes the JSON of batches and records.
            port: port number; 0 for any free port.

        Raises:
            RequestError, NotFoundError, ConfigError: no log has these paths, or the port is in use.
        """
        first = before_look(paths, options, fs=fs)
        self._server = HttpServer(port, host)
        token = None if is_loopback(host) else secrets.token_urlsafe(24)
        self._access = Access(host, self._server.port, token)
        name = f"[{host}]" if ":" in host else host
        self.url = f"http://{name}:{self._server.port}/" + ("" if token is None else f"?token={token}")
        self._watch = Watch(lambda on_look: look_at_node(paths, options, on_look=on_look, fs=fs), first)
        self._site = Site(self._watch.latest, options, dump_lines, fs=fs)

    def start(self) -> None:
        """Scan the directories, and answer requests."""
        self._watch.start()
        self._server.start(self._site.routes(), self._access.refuse, HEADERS)

    def close(self) -> None:
        """Stop answering."""
        self._server.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
