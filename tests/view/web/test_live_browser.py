"""The pages of live logs in a real browser, while a real cleaner works."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from cordwood.view.running import LiveNode
from tests.live.live_logs import batch
from tests.live.nodes import ONE, made, running, wait
from tests.logs import append
from tests.view.web.browser import Browser

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    path = made(tmp_path_factory.mktemp("live"), t=40, u=40)
    append(path / "<img src=x onerror=document.title='broken'>-0", (b"k", b"v"))
    now_ms = itertools.count(0, 10_000)  # samples, as if looks were far apart
    live = running(path, "t:cleanup.policy=compact", view=True, clock=lambda: next(now_ms))
    with live as found:
        wait(found, "t")
        for number in range(4):
            found.manager.logs[ONE].append_as_leader(batch(f"a{number}", f"b{number}"), 0)
            found.look()
        yield found


@pytest.mark.parametrize(("name", "target"), [("live", "/?refresh=never"), ("live-partitions", "/partitions")])
def test_a_page_of_live_logs_loads_and_fits_the_screen(
    browser: Browser, node: LiveNode, name: str, target: str
) -> None:
    browser.open(f"http://127.0.0.1:{node.port}{target}")
    browser.check_page(name)
    assert browser.run("return document.querySelectorAll('img').length") == 0
    if name == "live":
        drawn = "return [...document.querySelectorAll('figure div svg')].filter(e => e.checkVisibility()).length"
        assert browser.run(drawn) == 5
        assert browser.run("return getComputedStyle(document.querySelector('.line-1')).fill") == "none"


def test_a_reader_stops_the_reloading_and_finds_the_figures_by_keyboard(browser: Browser, node: LiveNode) -> None:
    browser.open(f"http://127.0.0.1:{node.port}/")
    browser.click(browser.named("link", "never"))
    browser.arrive("refresh=never")
    assert browser.run("return document.querySelector('meta[http-equiv=refresh]')") is None
    browser.click(browser.named("link", "hour"))
    browser.arrive("span=1h&refresh=never")
    browser.run("document.querySelector('summary').focus()")
    browser.press("\ue007")
    assert browser.run("return document.querySelector('details').open")
    browser.click(browser.named("link", "Partitions"))
    browser.arrive("/partitions")
    browser.type(browser.named("textbox", "Name contains"), "u-0")
    browser.click(browser.named("button", "Show"))
    browser.arrive("search=u-0")
    assert browser.run("return document.querySelectorAll('tbody tr').length") == 1
    assert browser.console() == []


def test_the_page_loads_again_by_itself(browser: Browser, node: LiveNode) -> None:
    browser.open(f"http://127.0.0.1:{node.port}/?refresh=5s")
    before = browser.run("return document.querySelector('p').textContent")
    node.look()
    browser.await_change("return document.querySelector('p').textContent", before)
