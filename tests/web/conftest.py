"""A driver of browsers, for all tests that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.web.browser import Browser, driver, need_browser


@pytest.fixture(scope="session")
def driver_port() -> Iterator[int]:
    """The port of the driver; the test is skipped where there is no browser."""
    need_browser()
    with driver() as found:
        yield found


@pytest.fixture(scope="module", params=[(1280, False), (360, False), (360, True), (1280, True)], ids=str)
def browser(request: pytest.FixtureRequest, driver_port: int) -> Iterator[Browser]:
    """A browser of each width, light and dark."""
    width, dark = request.param
    found = Browser(driver_port, width=width, dark=dark)
    yield found
    found.close()
