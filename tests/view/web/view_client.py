"""Pages as a client of the standard library gets them, and their elements as a real parser sees them."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from cordwood.cli.view import dump_lines
from cordwood.commands.options import WhyOptions
from cordwood.fs.base import Store
from cordwood.view.web.site import ViewServer
from tests.command import run
from tests.fixtures import copy_of, fixture

#: No element has another way to run something, or to load something, that these pages could use.
_NEVER = ("script", "iframe", "object", "embed", "base", "img", "foreignobject", "animate", "set", "use")


@dataclass(frozen=True)
class Got:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def document(self) -> Any:
        return json.loads(self.body)


class Client:
    """A client of a server."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self.host, self.port, self.url = parts.hostname, parts.port, url

    def get(self, target: str, method: str = "GET", **headers: str) -> Got:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, target, headers=names)
            answer = connection.getresponse()
            return Got(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def done(self, page: str = "node") -> Any:
        """The JSON of the node, or of the cluster, once all is known."""
        until = time.monotonic() + 120
        while (found := self.get(f"/{page}.json").document)["step"] is not None:
            assert time.monotonic() < until, found
            time.sleep(0.02)
        return found


@contextmanager
def served(*paths: Path | str, options: WhyOptions | None = None, fs: Store | None = None) -> Iterator[Client]:
    """A server of some directories, or URLs, in this process."""
    with ViewServer([str(path) for path in paths], options or WhyOptions(), dump_lines, fs=fs) as server:
        yield Client(server.url)


def ask(client: Client, page: str, path: Path | str, **query: object) -> Got:
    """An answer about a partition, once it is known."""
    more = "".join(f"&{name}={quote(str(value))}" for name, value in query.items())
    target = f"/{page}?path={quote(str(path), errors='surrogateescape')}{more}"
    until = time.monotonic() + 60
    while (got := client.get(target)).status == 503 or b"is being looked at" in got.body:
        assert time.monotonic() < until
        time.sleep(0.05)
    return got


@dataclass
class Parsed(HTMLParser):
    """A page as a browser's parser divides it."""

    page: str
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.feed(self.page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def links(self) -> list[str]:
        return [str(attributes["href"]) for tag, attributes in self.tags if tag == "a"]


def check_harmless(page: str) -> Parsed:
    """A page runs no script, loads nothing from other sites, and has no unexpected element."""
    parsed = Parsed(page)
    for tag, attributes in parsed.tags:
        assert tag not in _NEVER, tag
        for name, value in attributes.items():
            assert not name.startswith("on") and name != "style", (tag, attributes)
            if name in ("href", "src", "action"):
                assert value is not None and value.startswith(("/", "#", "data:,")) and "//" not in value[:2], value
    return parsed


# ---- names that need escapes -----------------------------------------------------------------------------------------

# Names and keys that would break out of a page that forgets to escape them.

#: Names of topics that a file system allows; the first six can be shown as they are.
NAMES = tuple(
    name.replace("/", "\u2215")
    for name in (
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "' onmouseover='alert(1)",
        "</title><svg onload=alert(1)>",
        "&lt;b&gt; javascript:alert(1)",
        "%3Cscript%3E ?#&=+",
        "\x1b[31mred\u202eevil\x07",
        "caf\udce9",
    )
)


# ---- pages of results ------------------------------------------------------------------------------------------------


_NODE = "kraft-classic-before"
_NOW = ("--now", "1795300000000")
_KEYS = ("--topic", "orders", "--key", "p0-key-13", "--key", "p0-key-1")
_CLEAN = ("clean", "NODE", "--engine", "here", "--ignore-ratio", "--report", "PAGE")
_COMPACTED = ("--keys", "5000", "--config", "cleanup.policy=compact", "--against", "min.cleanable.dirty.ratio=0.2")
#: By name: NODE is a broker's directory, OTHER an earlier state of it, PAGE the path of the page.
COMMANDS = {
    "clean": (*_CLEAN, "--output", "COPY"),
    "clean in place": (*_CLEAN, "--in-place"),
    "erase-check": ("erase-check", "NODE", *_KEYS, "--values", *_NOW, "--report", "PAGE"),
    "erase-check, clear": ("erase-check", "NODE", *_KEYS[:2], "--key", "nobody-at-all", "--report", "PAGE"),
    "simulate": ("simulate", "--rate", "100", "--days", "1", "--scale", "5000", *_COMPACTED, "--report", "PAGE"),
    "explain": ("explain", "NODE", *_KEYS[:2], "--config", "min.cleanable.dirty.ratio=0.1", *_NOW, "--report", "PAGE"),
    "verify": ("verify", "NODE", "NODE", "--engine", "here", "--report", "PAGE"),
    "verify, violated": ("verify", "NODE", "OTHER", "--engine", "here", "--report", "PAGE"),
}


def printed_by(command: str, folder: Path) -> Path:
    """A file with the JSON that a command printed; beside it `report.html`, the page that it wrote."""
    node = copy_of(fixture(_NODE), folder / "node")
    places = {
        "NODE": node,
        "PAGE": folder / "report.html",
        "COPY": folder / "copy",
        "OTHER": fixture("kraft-classic-before-2"),
    }
    done = run(*(places.get(word, word) for word in COMMANDS[command]), "--json", exits=None)
    assert done.exit_code in (0, 1), done.output
    (folder / "result.json").write_text(done.stdout)
    return folder / "result.json"
