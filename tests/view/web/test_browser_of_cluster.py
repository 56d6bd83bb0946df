"""The pages of several brokers in a real browser: links lead from the cluster to each replica of a partition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from cordwood.commands.options import WhyOptions
from tests.commands.cluster_scene import CLUSTER, CLUSTER_ARCHIVE
from tests.fixtures import unpacked
from tests.view.web.browser import Browser
from tests.view.web.view_client import Client, served

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with pytest.MonkeyPatch.context() as patch, served_in(patch) as found:
        found.done("cluster")
        yield found


def served_in(patch: pytest.MonkeyPatch) -> AbstractContextManager[Client]:
    """A server of a relative path, which is in the pictures."""
    patch.chdir(unpacked(CLUSTER_ARCHIVE))
    return served(CLUSTER, options=WhyOptions(now_ms=1_796_000_000_000))


def test_a_reader_clicks_from_the_cluster_to_a_replica(browser: Browser, client: Client) -> None:
    browser.open(client.url)
    browser.check_page("cluster")
    browser.click(browser.find("//section[1]//td/a[text()='2']"))
    browser.arrive("/node?broker=2")
    browser.check_page("")
    browser.click(browser.find("//td/a[text()='orders']"))
    browser.arrive("/partitions?search=orders&broker=2")
    browser.check_page("")
    browser.click(browser.named("link", "orders-0"))
    browser.arrive("/partition?")
    browser.check_page("")
    browser.click(browser.named("link", "broker 3"))
    browser.arrive("broker-3")
    assert "The replica of broker 3" in browser.run("return document.body.textContent")
    assert browser.console() == []
