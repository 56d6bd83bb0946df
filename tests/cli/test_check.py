"""The command `cordwood check`: its text, its JSON lines, its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cordwood.storage.check import Kind, Severity
from tests.command import run
from tests.fixtures import fixture
from tests.storage.damage_sites import FIRST, flip, site


def test_a_directory_in_good_order_gives_one_line_and_exit_code_zero() -> None:
    result = run("check", fixture("kraft-jbod-before"))
    assert result.stdout == (
        "a broker starts and serves all 8 partitions\n\n"
        "checked 10 partitions (1 being moved), 213 files, 0.1 MB: no problem found\n"
    )


def test_damage_gives_exit_code_one_and_says_where_what_and_what_it_means(tmp_path: Path) -> None:
    partition = site("orders", tmp_path)
    flip(f"{FIRST}.log", 943)(partition)
    result = run("check", partition.parent, exits=1)
    text = result.stdout
    assert text.startswith("a broker starts and serves its one partition\n\nERRORS: ")
    assert f"{partition}/{FIRST}.log at position 882 (offset 13)\n      CRC-32C mismatch: stored 0x" in text
    assert "      behind it, to offset 526: 496 records in 34.6 kB\n" in text
    assert "batch-crc: consumers and followers reject the batch" in text
    assert text.splitlines()[-1].endswith(": 1 error")


def test_what_a_crash_left_is_explained_with_exit_code_zero() -> None:
    result = run("check", fixture("kraft-crashed-swap"))
    assert "REPAIRED ON START: " in result.stdout
    assert "swap-unfinished: the next load completes the swap" in result.stdout
    # Hundreds of files that wait to be deleted are counted, not listed.
    assert result.stdout.count("00000.log.deleted") <= 3
    assert " more in " in result.stdout


def test_json_has_a_line_per_finding_and_the_summary_last(tmp_path: Path) -> None:
    partition = site("orders", tmp_path)
    flip(f"{FIRST}.log", 943)(partition)
    result = run("check", "--json", partition.parent, exits=1)
    finding, summary = map(json.loads, result.stdout.splitlines())
    assert finding.pop("what").startswith("CRC-32C mismatch")
    assert finding.pop("meaning")
    assert finding == {
        "type": "finding",
        "broker": "",
        "severity": "damage",
        "kind": "batch-crc",
        "file": f"{partition}/{FIRST}.log",
        "position": 882,
        "offset": 13,
        "behind": {"records": 496, "size_bytes": 34628, "end_offset": 526},
    }
    assert {key: summary[key] for key in ("type", "partitions", "damage", "recovery", "note")} == {
        "type": "summary", "partitions": 1, "damage": 1, "recovery": 0, "note": 0,
    }  # fmt: skip


def test_a_single_file_can_be_given(tmp_path: Path) -> None:
    partition = site("orders", tmp_path)
    result = run("check", partition / f"{FIRST}.index")
    assert result.stdout == "checked 0 partitions, 1 file, 96 bytes: no problem found\n"


@pytest.mark.parametrize("arguments", [[], ["/nowhere/at/all"]])
def test_wrong_use_gives_exit_code_two(arguments: list[str]) -> None:
    run("check", *arguments, exits=2)


def test_names_from_disk_do_not_reach_a_terminal_as_they_are(tmp_path: Path) -> None:
    partition = site("orders", tmp_path)
    (partition / "evil\x1b[2J.log").write_bytes(b"")
    result = run("check", partition.parent, exits=1)
    assert "\x1b" not in result.stdout
    assert "evil\\x1b[2J.log" in result.stdout


def test_kinds_and_severities_are_what_the_json_says() -> None:
    assert all(kind.value == kind.value.lower() and " " not in kind.value for kind in Kind)
    assert [severity.value for severity in Severity] == ["damage", "recovery", "note"]
