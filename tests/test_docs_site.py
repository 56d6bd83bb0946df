"""The docs as a site: it builds without a warning, its links lead somewhere, its search finds the tasks."""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.more

ROOT = Path(__file__).parents[1]
TASKS = sorted(path.stem for path in (ROOT / "docs/tasks").glob("*.md"))


class Html(HTMLParser):
    """The links of a page, its anchors, and the resources that it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag == "link" and found.get("rel") in ("stylesheet", "preconnect", "icon"):
            self.loaded.append(found["href"])
        if tag in ("script", "img") and "src" in found:
            self.loaded.append(found["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Html]:
    return {path.relative_to(site).as_posix(): Html(path.read_text()) for path in site.rglob("*.html")}


def test_every_page_of_the_project_is_in_it(pages: dict[str, Html]) -> None:
    wanted = {path.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for path in ROOT.glob("docs/**/*.md")}
    assert wanted | {"index.html", "architecture.html", "changelog.html"} <= pages.keys()


def local_links(page: str, html: Html) -> Iterator[tuple[str, str]]:
    """Where the links of a page lead in the site, each with its anchor."""
    for link in html.links:
        parts = urlsplit(link)
        if not parts.scheme and not parts.netloc:
            target = posixpath.normpath(posixpath.join(posixpath.dirname(page), parts.path)) if parts.path else page
            yield target, unquote(parts.fragment)


def test_every_link_leads_to_a_page_and_to_a_place_on_it(site: Path, pages: dict[str, Html]) -> None:
    broken, count = [], 0
    for name, html in pages.items():
        if name == "404.html":
            continue
        for target, anchor in local_links(name, html):
            count += 1
            if not (site / target).exists() or (anchor and target in pages and anchor not in pages[target].anchors):
                broken.append(f"{name}: {target}#{anchor}")
    assert broken == [] and count > 1_000


def test_nothing_is_loaded_from_elsewhere(pages: dict[str, Html]) -> None:
    for html in pages.values():
        assert html.loaded
        assert [link for link in html.loaded if re.match(r"(?:[a-z]+:)?//", link)] == []


def test_no_page_links_to_a_file_that_is_not_in_the_site(pages: dict[str, Html]) -> None:
    assert [link for html in pages.values() for link in html.links if re.search(r"\.md(?:#|$)|\.py(?:#|$)", link)] == []


@pytest.mark.parametrize("task", TASKS)
def test_the_first_page_leads_to_each_task_and_the_search_knows_it(
    task: str, site: Path, pages: dict[str, Html]
) -> None:
    assert f"tasks/{task}.html" in [target for target, _ in local_links("index.html", pages["index.html"])]
    index = json.loads((site / "search/search_index.json").read_text())
    assert any(found["location"].startswith(f"tasks/{task}.html") for found in index["docs"])
