"""The pages in a real browser: they load without a complaint, fit narrow screens, and work from a keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from cordwood.api import view_html
from cordwood.commands.selection import WhyOptions
from tests.engine.logs import append
from tests.fixtures import fixture
from tests.knobs import PICTURES
from tests.web.browser import Browser, driver, need_browser
from tests.web.view_client import Client, served

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
def port() -> Iterator[int]:
    need_browser()
    with driver() as found:
        yield found


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served(fixture(BROKER), options=WhyOptions(now_ms=NOW)) as found:
        found.done()
        yield found


@pytest.fixture(scope="module", params=[(1280, False), (360, False), (360, True), (1280, True)], ids=str)
def browser(request: pytest.FixtureRequest, port: int) -> Iterator[Browser]:
    width, dark = request.param
    found = Browser(port, width=width, dark=dark)
    yield found
    found.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_without_a_complaint_and_fits_the_screen(browser: Browser, client: Client, name: str) -> None:
    browser.open(client.url.rstrip("/") + PAGES[name])
    assert browser.title.endswith(" · Cordwood")
    assert browser.console() == []
    width, shown = browser.run("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert width <= shown, "no part of the page but tables scrolls sideways"
    assert browser.run("return document.scripts.length") == 0
    dark = browser.run("return matchMedia('(prefers-color-scheme: dark)').matches")
    ground = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 24, 29)" if dark else "rgb(255, 255, 255)")
    if PICTURES:
        browser.screenshot(Path(PICTURES) / f"{name}-{shown}-{'dark' if dark else 'light'}.png")


@pytest.mark.parametrize("name", PAGES)
def test_text_stands_out_from_its_ground(browser: Browser, client: Client, name: str) -> None:
    browser.open(client.url.rstrip("/") + PAGES[name])
    assert browser.run(CONTRASTS) == []


#: Elements with text of their own whose contrast is below that of WCAG 2 AA, 4.5 to 1.
CONTRASTS = r"""
const light = c => { const [r, g, b] = c.match(/[\d.]+/g).slice(0, 3).map(v => v / 255)
  .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b }
const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor
  if (!/, 0\)$|transparent/.test(c)) return c } return 'rgb(255, 255, 255)' }
const bad = []
for (const e of document.querySelectorAll('body *')) {
  if (e.closest('svg') || !e.checkVisibility()) continue
  if (![...e.childNodes].some(n => n.nodeType == 3 && n.data.trim())) continue
  const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x)
  if ((a + 0.05) / (b + 0.05) < 4.5) bad.push(e.tagName + ' ' + e.textContent.slice(0, 40))
}
return bad
"""


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


def test_nothing_of_a_log_runs(port: int, tmp_path: Path) -> None:
    topic = tmp_path / "<img src=x onerror=document.title='broken'>-0"
    append(topic, *((one, one) for one in HOSTILE))
    browser = Browser(port, width=1000)
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


def test_one_file_shows_the_same_without_a_network(port: int, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.write_text(view_html(str(fixture(BROKER)), now_ms=NOW))
    browser = Browser(port, width=1280)
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
