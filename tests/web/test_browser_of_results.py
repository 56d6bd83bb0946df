"""The pages of results in a real browser: of a clean, an erasure check, a simulation, a what-if."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cordwood.commands.view_result import read_result
from cordwood.web.serving import ResultServer
from tests.web.browser import Browser
from tests.web.results import COMMANDS

pytestmark = pytest.mark.slow

#: By command: the heading of a part that its page has, and the link of the page.
PARTS = {
    "clean": ("What went, and why", "Clean"),
    "clean in place": ("Before and after", "Clean"),
    "erase-check": ("What was found, and what still has to happen", "Erasure"),
    "erase-check, clear": ("What cannot be known", "Erasure"),
    "simulate": ("The disk over time", "Simulation"),
    "explain": ("At once", "What if"),
}


@dataclass(frozen=True)
class Shown:
    """A result that is served; `path` has the JSON that the command printed, beside the page that it wrote."""

    command: str
    path: Path
    url: str


@pytest.fixture(scope="module", params=COMMANDS)
def shown(request: pytest.FixtureRequest, printed_once: Callable[[str], Path]) -> Iterator[Shown]:
    path = printed_once(request.param)
    with ResultServer(read_result(str(path))) as server:
        yield Shown(request.param, path, server.url)


def test_the_page_of_a_result_loads_fits_the_screen_and_is_readable(browser: Browser, shown: Shown) -> None:
    part, link = PARTS[shown.command]
    browser.open(shown.url)
    browser.check_page(shown.command.replace(", ", "-").replace(" ", "-"))
    browser.named("heading", part)
    browser.click(browser.named("link", link))
    assert browser.url == shown.url and browser.console() == []


def test_the_json_behind_the_page_is_what_the_command_printed(browser: Browser, shown: Shown) -> None:
    browser.open(shown.url)
    found, told = browser.read_json(), json.loads(shown.path.read_text())
    # The rate follows from seconds, which were rounded.
    assert found.pop("bytes_per_second", 0) == pytest.approx(told.pop("bytes_per_second", 0), rel=0.01)
    assert found == told


def test_the_figures_of_a_chart_open_by_keyboard(browser: Browser, shown: Shown) -> None:
    browser.open(shown.url)
    closed = browser.run("return document.querySelectorAll('details:not([open])').length")
    assert closed == {"simulate": 2, "explain": 2}.get(shown.command, 0)
    for _ in range(closed):
        browser.run("document.querySelector('details:not([open]) > summary').focus()")
        browser.press("\ue007")
    assert (
        browser.run("return [...document.querySelectorAll('details table')].filter(t => t.checkVisibility()).length")
        == closed
    )
    assert browser.findings() == []


def test_the_page_that_a_command_wrote_needs_no_network(browser: Browser, shown: Shown) -> None:
    browser.open(f"file://{shown.path.parent / 'report.html'}")
    browser.check_page("")
    assert browser.run("return performance.getEntriesByType('resource').length") == 0
