"""`cordwood verify`: its output and exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cordwood.cli.main import EXIT_DAMAGE, EXIT_REQUEST
from tests.cleaning.proof.planting import NOW, example
from tests.command import run

pytestmark = pytest.mark.more

AT = ("--now", NOW)


@pytest.fixture
def states(tmp_path: Path) -> tuple[str, str]:
    """A log, and a copy that lost the last value of one key and changed the value of another."""
    before, after = example(), example()
    after.drop(5)
    after.record(41, value=b"9")
    return str(before.write(tmp_path / "before" / "t-0")), str(after.write(tmp_path / "after" / "t-0"))


def test_what_is_proved_is_counted(states: tuple[str, str], spark: SparkSession) -> None:
    said = run("verify", states[0], states[0], *AT).output
    assert said.startswith("1 partition: 45 records before, 45 after\n")
    assert "        45  records unchanged: key, value, headers, timestamp, offset, order\n" in said
    assert said.endswith("All guarantees hold\n")


def test_violations_are_named_and_the_exit_code_is_1(states: tuple[str, str], spark: SparkSession) -> None:
    said = run("verify", *states, *AT, exits=EXIT_DAMAGE).output
    assert f"{states[0]} → {states[1]}\n" in said
    assert "  value-lost: 1 – the last committed value of a key is gone\n" in said
    assert f"    {states[0]}/00000000000000000000.log, offset 5, key y\n" in said
    assert f"    {states[1]}/00000000000000000040.log, offset 41, key b\n" in said
    # The batch that lost a record also has a largest time without a record of that time.
    assert said.endswith("3 violations: a correct clean cannot leave this\n")


def test_where_more_was_cleaned_than_configs_allow_it_says_that_they_may_be_others(
    states: tuple[str, str], spark: SparkSession
) -> None:
    said = run("verify", *states, "--high-watermark", "0", *AT, exits=EXIT_DAMAGE).output
    assert "touched-above" in said
    assert "if it was given --config, --server-properties, --metadata or --high-watermark, give verify the same" in said


def test_json_is_one_document(states: tuple[str, str], spark: SparkSession) -> None:
    document = run("verify", *states, "--json", *AT, exits=EXIT_DAMAGE).json
    assert document["holds"] is False
    assert document["by_kind"] == {"value-changed": 1, "value-lost": 1, "index-or-file": 1}
    assert document["violations"] == 3
    lost = {"kind": "value-lost", "offset": 5, "key": "y", "file": f"{states[0]}/00000000000000000000.log"}
    assert any(lost.items() <= one.items() for one in document["named"])


def test_nothing_to_compare_is_a_wrong_request(tmp_path: Path) -> None:
    assert "nowhere" in run("verify", tmp_path / "nowhere", tmp_path, *AT, exits=EXIT_REQUEST).output
