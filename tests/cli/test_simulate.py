"""`cordwood simulate`: its output and its files."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.command import run
from tests.knobs import REWRITE
from tests.view.web.view_client import check_harmless

DOCS = Path(__file__).parents[2] / "docs"
FEW = ("--rate", "100", "--days", "1", "--scale", "5000")


def test_one_set_of_configs_has_no_label() -> None:
    lines = run("simulate", *FEW, "--config", "retention.ms=36000000").output.splitlines()
    assert lines[0] == "1 day of 100 records/s of 1.0 kB; each with a new key; 1 partition"
    assert lines[1] == "= 9.4 GB a day, 9.4 GB in all"
    assert lines[2] == "simulated: one partition, at a scale of 1 : 5,000, in steps of 3 min, seed 7"
    assert lines[4] == "configs: retention.ms=36000000"
    assert lines[6].startswith("disk of the topic, peak")
    assert not any(re.match(r"[AB]: |  of a partition|.*supersed", line) for line in lines)
    assert any("The first segment is deleted after" in line for line in lines)


def test_two_sets_stand_side_by_side_with_the_totals_of_all_partitions() -> None:
    arguments = ("--config", "retention.ms=36000000", "--against", "retention.ms=18000000", "--partitions", "4")
    text = run("simulate", "--rate", "400", *FEW[2:], *arguments).output
    assert "A: retention.ms=36000000\nB: retention.ms=18000000\n" in text
    rows = {line[:28].strip(): line[28:].split() for line in text.splitlines() if re.match(r"disk|  of a p", line)}
    assert rows["of a partition"][1::2] == ["GB", "GB"]
    document = run("simulate", "--rate", "400", *FEW[2:], *arguments, "--json").json
    for number, one in enumerate(document["outcomes"]):
        assert one["topic_mean_bytes"] == 4 * one["mean_bytes"]
        assert rows["disk of the topic, average"][2 * number] == f"{one['topic_mean_bytes'] / 1e9:.1f}"
        assert one["configs"] == {"retention.ms": ("36000000", "18000000")[number]}
        assert one["history"][-1]["ms"] == 86_400_000
    assert "B takes less disk at its peak" in text and document["verdict"][-1].startswith("B is better in all")


@pytest.mark.more
@pytest.mark.parametrize("against", [(), ("--against", "min.cleanable.dirty.ratio=0.2", "--partitions", "3")], ids=str)
def test_the_report_has_charts_with_their_tables_and_what_is_printed(against: tuple[str, ...], tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    config = ("--keys", "5000", "--config", "cleanup.policy=compact", "--config", "segment.ms=3600000")
    text = run("simulate", *FEW, *config, *against, "--report", report).output
    page = check_harmless(report.read_text())
    sets = 2 if against else 1
    drawn = [one["points"] for tag, one in page.tags if tag == "polyline" and len(one["points"] or "") > 30]
    assert len(drawn) == 2 * 3 * sets, "three lines, for two widths of a screen"
    for line in text.splitlines():
        for words in re.split(r"\s{2,}", line.strip()):
            assert words.strip("()") in page.text
    html = report.read_text()
    assert html.count("<details>") == sets and html.index("<svg") < html.index("<table")


@pytest.mark.more
def test_records_that_go_at_once_are_said_to_go_late() -> None:
    text = run("simulate", "--rate", "10k", "--config", "retention.ms=0").output
    assert "retention.ms=0 is short compared with a step, so its effects come late" in text


def test_shares_and_rates_are_read_as_people_write_them(tmp_path: Path) -> None:
    options = ("--tombstones", "5%", "--transactions", "10", "--aborted", "0.02", "--keys", "50000", "--skew", "0.9")
    chart = tmp_path / "chart.svg"
    text = run(
        "simulate", "--rate", "10m/min", *FEW[2:], *options, "--config", "cleanup.policy=compact", "--svg", chart
    ).output
    assert text.startswith(
        "1 day of 169 records/s of 1.0 kB; 50,000 keys, Zipf 0.9; 5 % tombstones; transactions of 10, 2 % aborted; "
    )
    texts = [one.text for one in ElementTree.parse(chart).iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "Disk of the topic" and "compact: last values of keys" in texts


def test_wrong_values_are_told_in_a_line_with_exit_code_2(tmp_path: Path) -> None:
    for arguments, said in (
        ((), "Give the written amount with --rate"),
        (("--rate", "1", "--tombstones", "few"), "--tombstones few: give a share, such as 5% or 0.05"),
        (("--rate", "1", "--days", "nan"), "--days nan: give a number of days"),
        (("--rate", "1", "--skew", "steep", "--keys", "5"), "--skew steep: give a number, such as 1"),
        (("--rate", "1", "--scale", "big"), "--scale big: give a number, such as 1000"),
        (("--rate", "1", "--config", "topic:retention.ms=1"), "write retention.ms=…"),
    ):
        assert said in run("simulate", *arguments, exits=2).output
    missing = str(tmp_path / "missing" / "chart.svg")
    assert "No such file or directory" in run("simulate", *FEW, "--svg", missing, exits=2).output


def test_the_picture_in_the_documentation_is_that_of_its_first_example(tmp_path: Path) -> None:
    (command,) = re.findall(r"^\$ cordwood simulate (.*--against.*)$", (DOCS / "simulate.md").read_text(), re.MULTILINE)
    chart, shown = tmp_path / "chart.svg", DOCS / "simulate.svg"
    run("simulate", *shlex.split(command), "--svg", chart)
    if REWRITE:
        shown.write_text(chart.read_text())
    assert chart.read_text() == shown.read_text(), "CORDWOOD_REWRITE=1 draws it anew"
