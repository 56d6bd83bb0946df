"""Servers of pages: of a node, with a look that goes on in the background, and of one result."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from cordwood.commands.selection import WhyOptions
from cordwood.commands.view import before_look, look_at_node
from cordwood.fs.base import Store
from cordwood.pages.results import server_page
from cordwood.presentable import Paged
from cordwood.types import override
from cordwood.web.access import HEADERS, Access, is_loopback
from cordwood.web.answers import html, json_document, style_sheet
from cordwood.web.http_server import HOST, HttpServer, Route
from cordwood.web.site import DumpLines, Site
from cordwood.web.watch import Watch


class PageServer(ABC):
    """Pages for who may read them; see `web.access`.

    Attributes:
        url: where they are.
    """

    def __init__(self, host: str = HOST, port: int = 0) -> None:
        """Take the port.

        Args:
            port: 0: any free one.

        Raises:
            RequestError: the port is taken.
        """
        self._server = HttpServer(port, host)
        token = None if is_loopback(host) else secrets.token_urlsafe(24)
        self._access = Access(host, self._server.port, token)
        name = f"[{host}]" if ":" in host else host
        self.url = f"http://{name}:{self._server.port}/" + ("" if token is None else f"?token={token}")

    @abstractmethod
    def routes(self) -> Mapping[str, Route]:
        """The answers by path."""

    def start(self) -> None:
        """Answer from now on."""
        self._server.start(self.routes(), self._access.refuse, HEADERS)

    def close(self) -> None:
        """Answer no more."""
        self._server.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class ViewServer(PageServer):
    """Pages of some directories."""

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
        """Take the port; nothing is looked at yet.

        Args:
            dump_lines: makes the JSON of batches and records.
            port: 0: any free one.

        Raises:
            RequestError, NotFoundError, ConfigError: there is nothing to look at, or the port is taken.
        """
        first = before_look(paths, options, fs=fs)
        super().__init__(host, port)
        self._watch = Watch(lambda on_look: look_at_node(paths, options, on_look=on_look, fs=fs), first)
        self._site = Site(self._watch.latest, options, dump_lines, fs=fs)

    @override
    def routes(self) -> Mapping[str, Route]:
        return self._site.routes()

    @override
    def start(self) -> None:
        self._watch.start()
        super().start()


class ResultServer(PageServer):
    """The page of a result."""

    def __init__(self, result: Paged, *, host: str = HOST, port: int = 0) -> None:
        """Take the port; see `PageServer`."""
        super().__init__(host, port)
        self._result = result

    @override
    def routes(self) -> Mapping[str, Route]:
        return {
            "/": lambda _: html(server_page(self._result)),
            "/result.json": lambda _: json_document(self._result.document()),
            "/style.css": style_sheet,
        }
