"""A driver of browsers, for all tests that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.web.browser import driver, need_browser


@pytest.fixture(scope="session")
def driver_port() -> Iterator[int]:
    """The port of the driver; the test is skipped where there is no browser."""
    need_browser()
    with driver() as found:
        yield found
