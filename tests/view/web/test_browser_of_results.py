"""The pages of results in a real browser: of a clean, an erasure check, a simulation, a what-if, a proof."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.view.web.browser import Browser
from tests.view.web.view_client import COMMANDS

pytestmark = pytest.mark.slow

#: By command: the heading of a part of its page.
PARTS = {
    "clean": "What went, and why",
    "clean in place": "Before and after",
    "erase-check": "What was found, and what still has to happen",
    "erase-check, clear": "What cannot be known",
    "simulate": "The disk over time",
    "explain": "At once",
    "verify": "Proved",
    "verify, violated": "Violations",
}


@pytest.fixture(scope="module", params=COMMANDS)
def shown(request: pytest.FixtureRequest, browser: Browser, printed_once: Callable[[str], Path]) -> str:
    """Open the page that a command wrote; the command's name."""
    browser.open(f"file://{printed_once(request.param).parent / 'report.html'}")
    return str(request.param)


def test_a_result_page_fits_the_screen_is_readable_and_needs_no_network(browser: Browser, shown: str) -> None:
    browser.check_page(shown.replace(", ", "-").replace(" ", "-"))
    browser.named("heading", PARTS[shown])
    assert browser.run("return performance.getEntriesByType('resource').length") == 0
    assert browser.console() == []


def test_the_figures_of_a_chart_open_by_keyboard(browser: Browser, shown: str) -> None:
    closed = browser.run("return document.querySelectorAll('details:not([open])').length")
    assert closed == {"simulate": 2, "explain": 2}.get(shown, 0)
    for _ in range(closed):
        browser.run("document.querySelector('details:not([open]) > summary').focus()")
        browser.press("\ue007")
    assert (
        browser.run("return [...document.querySelectorAll('details table')].filter(t => t.checkVisibility()).length")
        == closed
    )
    assert browser.findings() == []
