"""The page that a clean writes of its result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import run
from tests.fixtures import copy_of, fixture
from tests.logs import append
from tests.view.web.view_client import check_harmless

pytestmark = pytest.mark.more

BROKER = "kraft-classic-before"


@pytest.mark.parametrize("in_place", [False, True])
def test_a_clean_writes_a_page_with_what_it_prints(tmp_path: Path, in_place: bool) -> None:
    folder = copy_of(fixture(BROKER), tmp_path / "node")
    report = tmp_path / "report.html"
    how = ["--in-place"] if in_place else ["--output", str(tmp_path / "copy")]
    common = ["--engine", "here", "--topic", "orders", "--ignore-ratio", "--report", str(report), "--json"]
    done = run("clean", folder, *how, *common)
    result, page = json.loads(done.stdout), check_harmless(report.read_text())
    assert f"{result['records_superseded']:,}" in page.texts
    for words in ("orders-0", "Before and after", "superseded", "records read"):
        assert words in page.text
    assert ("verified before anything was replaced" in page.text) == in_place


def test_names_in_the_page_of_a_clean_do_not_break_out(tmp_path: Path) -> None:
    for at in range(3):
        append(tmp_path / "logs" / "<script>alert(1)<-script>-0", (b"k", b"%d" % at))
    report = tmp_path / "report.html"
    config = ["--config", "cleanup.policy=compact", "--ignore-ratio", "--engine", "here"]
    words = ["clean", str(tmp_path / "logs"), "--output", str(tmp_path / "copy"), "--report", str(report), *config]
    run(*words)
    assert "<script>alert(1)<-script>-0" in check_harmless(report.read_text()).text


def test_a_report_that_could_not_be_written_is_refused_before_the_clean(tmp_path: Path) -> None:
    append(tmp_path / "t-0", (b"k", b"v"))
    report, copy = tmp_path / "none" / "report.html", tmp_path / "copy"
    run("clean", tmp_path / "t-0", "--output", copy, "--report", report, exits=2)
    assert not copy.exists()
