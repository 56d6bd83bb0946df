"""The pages of `view` by their paths, each with its JSON.

/               the node, or the cluster                     /node.json, /cluster.json
/node           of a cluster one broker, by ?broker=         /node.json
/partitions     the list of partitions                       /partitions.json
/partition      one of them, by ?path=                       /partition.json
/batches        its batches from ?offset= on                 /batches.json    as `dump --batches --json` prints them
/records        its records from ?offset= on                 /records.json    as `dump --records --json` prints them
/find           redirects to records by ?offset= or ?time=,
                shows the records of ?key=                   /get.json        as `get --json` prints it
/groups         consumer groups                              /groups.json     as `groups --json` prints them
/group          one of them, by ?id=                         /group.json
/transactions   transactions                                 /transactions.json
                                                             as `transactions --json` prints them

The query of a request names a partition by its directory. The directory must be one that the scan of the node has
found, so a request can open no other file.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from types import TracebackType
from typing import Protocol, Self

from cordwood.commands.get import get
from cordwood.commands.groups import group_document
from cordwood.commands.options import GetOptions, WhyOptions, parse_time
from cordwood.commands.why.found_keys import GetResult
from cordwood.common.errors import CordwoodError, RequestError
from cordwood.common.text import printable
from cordwood.fs.base import Store
from cordwood.storage.index.files import indexes_in
from cordwood.storage.log.view import LogView
from cordwood.view.node_look import NodeLook, Step, before_look, look_at_node, why_failed
from cordwood.view.pages import groups, node, partition, records
from cordwood.view.pages.frame import Links, address
from cordwood.view.pages.report import NodePage, pages_of
from cordwood.view.pages.under_way import has_come_to
from cordwood.view.partition_look import (
    batches_from,
    first_offset_since,
    look_at_partition,
    open_partition,
    options_for,
    records_from,
)
from cordwood.view.web.http_server import (
    HEADERS,
    HOST,
    Access,
    HttpServer,
    Request,
    Response,
    Route,
    html,
    is_loopback,
    json_document,
    not_yet,
    number,
    style_sheet,
    wanted,
)
from cordwood.view.web.watch import PartitionLooks, Watch

_OFFSET_MAX = 2**63 - 2
#: Without key indexes, a log larger than this is not searched for a key, as the reader would wait too long.
_SEARCHED_BYTES_MAX = 256 << 20


class DumpLines(Protocol):
    """Returns the lines that `cordwood dump --json` prints."""

    def __call__(self, path: str, *, batches: bool, offset: int, limit: int) -> bytes:
        """Return the lines of batches, or of records.

        Raises:
            RequestError: the result is too large.
        """


class Site:
    """The pages of one node, or of a cluster of several brokers."""

    def __init__(
        self, latest: Callable[[], NodeLook], options: WhyOptions, dump_lines: DumpLines, *, fs: Store | None = None
    ) -> None:
        """Prepare the pages; each is built on request.

        Args:
            latest: returns the latest scan of the node.
        """
        self._latest = latest
        self._options = options
        self._dump_lines = dump_lines
        self._fs = fs
        self._pages = pages_of(latest())
        self._is_cluster = len(latest().brokers) > 1
        self._links = Links([(one.title, f"/{one.path}") for one in self._pages])
        self._looks = PartitionLooks(lambda path: look_at_partition(path, self._of_partition(path), fs=fs))

    def routes(self) -> Mapping[str, Route]:
        """Return the routes by path."""
        return {
            **({"/node": self._node, "/node.json": self._node_json} if self._is_cluster else {}),
            **{f"/{one.path}": self._page(one) for one in self._pages},
            **{f"/{one.name}.json": self._page_json(one) for one in self._pages},
            "/group": self._group,
            "/group.json": self._group_json,
            "/style.css": style_sheet,
            **{
                path: self._of_one(route)
                for path, route in (
                    ("/partition", self._partition),
                    ("/partition.json", self._partition_json),
                    ("/batches", self._batches),
                    ("/batches.json", self._lines(batches=True)),
                    ("/records", self._records),
                    ("/records.json", self._lines(batches=False)),
                    ("/find", self._find),
                    ("/get.json", self._get_json),
                )
            },
        }

    # ---- the node ----

    def _page(self, page: NodePage) -> Route:
        return lambda request: html(page.page(self._latest(), wanted(request), self._links))

    def _page_json(self, page: NodePage) -> Route:
        def answer(request: Request) -> Response:
            look = self._latest()
            document = page.document(look, wanted(request))
            return _missing(look, page.step) if document is None else json_document(document)

        return answer

    def _broker(self, request: Request) -> NodeLook | None:
        """Return the scan of the requested broker; None if no broker has this name."""
        look, name = self._latest(), request.query.get("broker", "")
        return look.of_broker(name) if name in look.brokers else None

    def _node(self, request: Request) -> Response:
        look = self._broker(request)
        if look is None:
            return html(node.no_broker_page(request.query.get("broker", ""), self._links), _NOT_FOUND)
        return html(node.node_page(look, wanted(request), self._links))

    def _node_json(self, request: Request) -> Response:
        look = self._broker(request)
        if look is None:
            return Response(_NOT_FOUND, b"There is no broker of this name.\n")
        return json_document(node.document(look, wanted(request)))

    def _group(self, request: Request) -> Response:
        look, group_id = self._latest(), request.query.get("id", "")
        group = groups.group_of(look, group_id)
        if group is None:
            return html(groups.no_group_page(look, group_id, self._links), _NOT_FOUND)
        return html(groups.group_page(look, group, wanted(request), self._links))

    def _group_json(self, request: Request) -> Response:
        look = self._latest()
        group = groups.group_of(look, request.query.get("id", ""))
        if group is not None:
            return json_document(group_document(group))
        if look.groups is None:
            return _missing(look, Step.GROUPS)
        return Response(_NOT_FOUND, b"There is no group of this name.\n")

    # ---- one partition ----

    def _of_one(self, route: Callable[[str, Request], Response]) -> Route:
        """Make a route for a known partition; it answers with a page if the request is invalid."""

        def answer(request: Request) -> Response:
            path = request.query.get("path", "")
            listing = self._latest().listing
            if listing is None:
                return html(partition.under_way_page(path, self._links))
            if all(one.path != path for one in listing.partitions):
                return html(partition.gone_page(path, "No partition of this node is there.", self._links), _NOT_FOUND)
            try:
                return route(path, request)
            except RequestError as error:
                return html(records.refused_page(path, str(error), self._links), HTTPStatus.BAD_REQUEST)
            except (CordwoodError, OSError) as error:
                return html(partition.gone_page(path, why_failed(error), self._links), _NOT_FOUND)

        return answer

    def _of_partition(self, path: str) -> WhyOptions:
        listing = self._latest().listing
        return options_for(path, self._options, None if listing is None else listing.metadata_path)

    def _log(self, path: str) -> LogView:
        return open_partition(path, self._of_partition(path), fs=self._fs)

    def _partition(self, path: str, _: Request) -> Response:
        look = self._looks.of(path)
        if look is None:
            return html(partition.under_way_page(path, self._links))
        latest, name = self._latest(), look.listing.topic_partition
        return html(partition.partition_page(look, latest.open_in(name), self._links, latest.replicas_of(name)))

    def _partition_json(self, path: str, _: Request) -> Response:
        look = self._looks.of(path)
        if look is None:
            return not_yet()
        return json_document(partition.document(look))

    def _batches(self, path: str, request: Request) -> Response:
        offset = _offset(request)
        found = batches_from(self._log(path), offset, records.ROWS_MAX)
        return html(records.batches_page(path, found, offset, self._links))

    def _records(self, path: str, request: Request) -> Response:
        offset = _offset(request)
        found = records_from(self._log(path), offset, records.ROWS_MAX)
        return html(records.records_page(path, found, offset, self._links))

    def _lines(self, *, batches: bool) -> Callable[[str, Request], Response]:
        def answer(path: str, request: Request) -> Response:
            lines = self._dump_lines(path, batches=batches, offset=_offset(request), limit=records.ROWS_MAX)
            return Response(HTTPStatus.OK, lines, "application/x-ndjson")

        return answer

    # ---- find ----

    def _find(self, path: str, request: Request) -> Response:
        query = request.query
        if query.get("key"):
            return html(records.key_page(path, query["key"], self._get(path, query["key"]), self._links))
        if query.get("time"):
            since = parse_time(query["time"])
            offset = first_offset_since(self._log(path), since)
            if offset is None:
                raise RequestError(f"There is no record from {query['time']} on")
        else:
            offset = _offset(request)
        return Response(
            HTTPStatus.SEE_OTHER, b"", headers={"Location": address("records", {"path": path, "offset": offset})}
        )

    def _get_json(self, path: str, request: Request) -> Response:
        return json_document(self._get(path, request.query.get("key", "")).document())

    def _get(self, path: str, key: str) -> GetResult:
        log, options = self._log(path), self._of_partition(path)
        root = None if options.index_place.index_dir is None else log.fs.absolute_path(options.index_place.index_dir)
        if log.size_bytes > _SEARCHED_BYTES_MAX and not any(True for _ in indexes_in(log.fs, path, root)):
            raise RequestError(
                f"The log is too large to be searched while you wait. Make key indexes:  cordwood index {path}  "
                f"or search it:  cordwood get {path} --key {key}"
            )
        asked = GetOptions(selection=options.selection, index_place=options.index_place, now_ms=options.now_ms)
        return get([path], [key], asked, fs=self._fs)


_NOT_FOUND = HTTPStatus.NOT_FOUND


def _missing(look: NodeLook, step: Step) -> Response:
    """Explain why the result of a step is missing."""
    if not has_come_to(look, step):
        return not_yet()
    why = look.failures.get(step, f"There is nothing that cordwood {step} could read.")
    return Response(_NOT_FOUND, f"{printable(why)}\n".encode())


def _offset(request: Request) -> int:
    offset = number(request, "offset", _OFFSET_MAX)
    if offset is None:
        raise RequestError("Give an offset: a number from 0 on")
    return offset


# ---- the server ------------------------------------------------------------------------------------------------------


class ViewServer:
    """Serves pages of some directories to clients that `view.web.http_server` admits.

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
