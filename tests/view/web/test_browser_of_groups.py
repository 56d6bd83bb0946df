"""The pages of groups and of transactions in a real browser, of a real broker's directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cordwood.commands.options import WhyOptions
from tests.command import run
from tests.view.web.browser import Browser
from tests.view.web.view_client import Client, served

pytestmark = pytest.mark.slow

NOW = 1_795_600_000_000
PAGES = {"groups": "/groups", "transactions": "/transactions", "group": "/group?id=audit"}


@pytest.fixture(scope="module")
def client(groups_node: Path) -> Iterator[Client]:
    with served(groups_node, options=WhyOptions(now_ms=NOW)) as found:
        found.done()
        yield found


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_without_a_complaint_fits_the_screen_and_is_readable(
    browser: Browser, client: Client, name: str
) -> None:
    browser.open(client.url.rstrip("/") + PAGES[name])
    browser.check_page(name)


def test_a_reader_clicks_from_the_groups_to_a_log_that_is_read_late(
    browser: Browser, client: Client, groups_node: Path
) -> None:
    told = run("groups", groups_node, "--json").json
    browser.open(client.url)
    browser.click(browser.named("link", "Groups"))
    browser.arrive("/groups")
    assert browser.read_json() == told
    browser.back()
    most = max(told["groups"], key=lambda one: one["lag"] or 0)
    browser.type(browser.named("textbox", "Name contains"), most["group"])
    browser.click(browser.named("button", "Show"))
    browser.arrive("search=")
    browser.click(browser.named("link", most["group"]))
    browser.arrive("/group?id=")
    browser.named("heading", "Lag by partition")
    assert browser.read_json() == most
    browser.back()
    browser.click(browser.find("//tbody//a"))
    browser.arrive("/partition?")
    browser.named("heading", "The log")
    assert browser.console() == []


def test_a_reader_clicks_from_the_transactions_to_a_log_that_is_held_back(
    browser: Browser, client: Client, groups_node: Path
) -> None:
    browser.open(client.url)
    browser.click(browser.named("link", "Transactions"))
    browser.arrive("/transactions")
    assert browser.read_json() == run("transactions", groups_node, "--now", NOW, "--json").json
    browser.back()
    browser.named("heading", "What they hold back")
    browser.click(browser.named("link", "payments-0"))
    browser.arrive("/partition?")
    browser.named("heading", "The log")
    assert browser.console() == []
