"""axe-core finds accessibility problems, also under the policy of our pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.view.web.browser import Browser, findings_script

pytestmark = pytest.mark.slow


def test_what_keeps_people_from_using_a_page_is_found(driver_port: int, tmp_path: Path) -> None:
    if findings_script() is None:
        pytest.skip("axe-core could not be fetched")
    page = tmp_path / "page.html"
    policy = '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'">'
    page.write_text(
        f"<!DOCTYPE html><html lang=en><head>{policy}<title>x</title></head><body><main><h1>x</h1><input></main>"
    )
    browser = Browser(driver_port, width=1000)
    try:
        browser.open(f"file://{page}")
        assert browser.findings() == ["label (critical): <input>"]
    finally:
        browser.close()
