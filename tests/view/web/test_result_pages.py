"""The pages that commands write with `--report`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import cordwood
from cordwood.result_pages import file_page
from tests.command import run
from tests.fixtures import fixture
from tests.view.web.view_client import COMMANDS, NAMES, check_harmless

#: By command: words and figures of its page.
SHOWN = {
    "clean": ("What went, and why", "Records that were dropped, by reason"),
    "clean in place": ("Before and after", "orders-0"),
    "erase-check": ("Traces of these keys remain", "record"),
    "erase-check, clear": ("No trace of these keys was found in any of the files.", "What cannot be known"),
    "simulate": ("The disk over time", "min.cleanable.dirty.ratio=0.2"),
    "explain": ("At once", "min.cleanable.dirty.ratio=0.1"),
    "verify": ("All guarantees hold", "in unchanged files"),
    "verify, violated": ("a correct clean cannot leave this", "Violations"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_report_shows_the_result_and_runs_and_loads_nothing(
    command: str, printed_once: Callable[[str], Path]
) -> None:
    page = check_harmless((printed_once(command).parent / "report.html").read_text())
    assert [words for words in SHOWN[command] if words not in page.text] == []


def test_a_report_of_a_violated_proof_names_each_kind(printed_once: Callable[[str], Path]) -> None:
    printed = printed_once("verify, violated")
    page = check_harmless((printed.parent / "report.html").read_text())
    kinds = json.loads(printed.read_text())["by_kind"]
    assert kinds and [kind for kind in kinds if kind not in page.text] == []


@pytest.mark.parametrize("command", ["clean", "verify", "erase-check", "simulate", "explain"])
def test_a_report_that_could_not_be_written_is_refused_before_the_work(command: str, tmp_path: Path) -> None:
    places = {"NODE": fixture("kraft-classic-before"), "PAGE": tmp_path / "no/page.html", "COPY": tmp_path / "copy"}
    done = run(*(places.get(word, word) for word in COMMANDS[command]), exits=2)
    assert "no does not exist" in done.output
    assert list(tmp_path.iterdir()) == []


def test_names_in_a_result_do_not_break_out_of_its_page(tmp_path: Path) -> None:
    cleaned = cordwood.clean(fixture("kraft-classic-before"), output=tmp_path / "copy", engine="here")
    partitions = tuple(
        replace(partition, path=f"/data/{name}", why=name, notes=(name,))
        for partition, name in zip(cleaned.partitions, NAMES, strict=False)
    )
    page = check_harmless(file_page(replace(cleaned, partitions=partitions, target=NAMES[0])))
    assert "\x1b" not in page.text and "\u202e" not in page.text and NAMES[0] in page.text
