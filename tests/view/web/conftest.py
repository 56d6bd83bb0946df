"""Shared by several tests: a driver of browsers, a directory, and results that commands printed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cordwood.cli.demo import unpack
from tests.view.web.browser import Browser, driver, need_browser
from tests.view.web.view_client import printed_by


@pytest.fixture(scope="session")
def driver_port() -> Iterator[int]:
    """The port of the driver; the test is skipped if there is no browser."""
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


@pytest.fixture(scope="session")
def groups_node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real broker's directory with all kinds of groups and transactions."""
    folder = tmp_path_factory.mktemp("cluster")
    unpack(folder)
    return folder / "kafka-groups"


@pytest.fixture(scope="session")
def printed_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that gives a file with a command's output, by its name in `results.COMMANDS`."""
    return functools.cache(lambda command: printed_by(command, tmp_path_factory.mktemp("printed")))
