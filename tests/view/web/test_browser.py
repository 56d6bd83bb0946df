"""The pages in a real browser: they load without a complaint, fit narrow screens, and work from a keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from cordwood.api import view_html
from cordwood.commands.options import WhyOptions
from tests.fixtures import fixture
from tests.knobs import PICTURES
from tests.logs import append
from tests.view.web.browser import Browser
from tests.view.web.view_client import Client, served

pytestmark = pytest.mark.slow

NOW = 1_795_000_000_000
BROKER = "kraft-classic-before"
ORDERS = quote(str(fixture(BROKER) / "orders-0"))
PAGES = {
    "node": "/",
    "partitions": "/partitions?search=o&sort=disk",
    "partition": f"/partition?path={ORDERS}",
    "batches": f"/batches?path={ORDERS}&offset=0",
    "records": f"/records?path={ORDERS}&offset=0",
    "key": f"/find?path={ORDERS}&key=p0-key-1",
}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served(fixture(BROKER), options=WhyOptions(now_ms=NOW)) as found:
        found.done()
        yield found


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_without_a_complaint_fits_the_screen_and_is_readable(
    browser: Browser, client: Client, name: str
) -> None:
    browser.open(client.url.rstrip("/") + PAGES[name])
    browser.check_page(name)


def test_a_reader_clicks_from_the_node_to_a_record(browser: Browser, client: Client) -> None:
    browser.open(client.url)
    browser.click(browser.named("link", "Partitions"))
    browser.type(browser.named("textbox", "Name contains"), "orders-1")
    browser.click(browser.named("button", "Show"))
    browser.arrive("search=orders-1")
    browser.click(browser.named("link", "orders-1"))
    browser.arrive("/partition?")
    browser.named("heading", "The log")
    browser.type(browser.named("textbox", "By offset"), "42")
    browser.press("\ue007")  # enter
    browser.arrive("/records?")
    assert browser.run("return document.querySelector('tbody td').textContent") == "42"
    browser.click(browser.find("//tbody//a"))
    browser.arrive("/batches?")
    browser.click(browser.named("link", "orders-1"))
    browser.arrive("/partition?")
    browser.click(browser.named("link", "segment 0"))
    browser.arrive("/batches?")
    assert browser.url.endswith("offset=0")
    assert browser.console() == []


def test_a_keyboard_reaches_every_link_and_shows_where_it_is(browser: Browser, client: Client) -> None:
    browser.open(client.url)
    browser.press("\ue004")  # tab
    assert browser.run("return document.activeElement.textContent") == "Skip to the content"
    assert browser.run("return document.activeElement.getBoundingClientRect().left") >= 0, "shown once it has the focus"
    browser.press("\ue007")
    assert browser.url.endswith("#content")
    browser.open(client.url)
    reached = set()
    for _ in range(12):
        browser.press("\ue004")
        reached.add(browser.run("return document.activeElement.textContent || document.activeElement.ariaLabel"))
        assert browser.run("return getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert {"Cordwood", "Node", "Partitions", "this page as JSON"} <= reached


HOSTILE = (
    b"<script>document.title = 'broken'</script>",
    b'"><img src=x onerror="document.title=\'broken\'">',
    b"</code></td></table><svg onload=\"document.title='broken'\">",
)


def test_nothing_of_a_log_runs(driver_port: int, tmp_path: Path) -> None:
    topic = tmp_path / "<img src=x onerror=document.title='broken'>-0"
    append(topic, *((one, one) for one in HOSTILE))
    browser = Browser(driver_port, width=1000)
    try:
        with served(tmp_path, options=WhyOptions(now_ms=NOW)) as found:
            found.done()
            at = quote(str(topic))
            for page in ("", "partitions", f"partition?path={at}", f"records?path={at}&offset=0"):
                browser.open(found.url + page)
                assert browser.title.endswith(" · Cordwood") and browser.console() == []
                assert browser.run("return document.querySelectorAll('img, script').length") == 0
            assert browser.run("return document.querySelector('tbody code').textContent") == HOSTILE[0].decode()
    finally:
        browser.close()


def test_one_file_shows_the_same_without_a_network(driver_port: int, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.write_text(view_html(str(fixture(BROKER)), now_ms=NOW))
    browser = Browser(driver_port, width=1280)
    try:
        browser.open(f"file://{report}")
        assert browser.console() == []
        assert browser.run("return getComputedStyle(document.querySelector('.tile')).fill") == "rgb(207, 227, 245)"
        browser.click(browser.named("link", "large-0"))
        assert browser.run("return document.querySelector(':target').textContent") == "large-0"
        assert browser.run("return performance.getEntriesByType('resource').length") == 0
        if PICTURES:
            browser.screenshot(Path(PICTURES) / "report.png")
    finally:
        browser.close()
