"""`--rate`: reads and writes take at least their size divided by the rate."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.command import run
from tests.fixtures import copy_of, fixture

pytestmark = pytest.mark.more

#: Bytes per second.
RATE = 100_000
#: The tenth of a second that may be saved up, and what two workers have not yet counted, in seconds.
SAVED = 0.2
PLAIN = ("--config", "cleanup.policy=compact", "--high-watermark", "end", "--ignore-ratio", "--now", "1795253411000")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Three partitions; the first is as large as the other two together."""
    path = tmp_path / "logs"
    path.mkdir()
    for one in fixture("kraft-before").glob("orders-*"):
        copy_of(one, path / one.name)
    return path


def timed(*words: object) -> tuple[Any, float]:
    began = time.monotonic()
    result = run(*words, "--json")
    return result.json, time.monotonic() - began


def test_a_copy_and_its_proof_are_no_faster_than_the_rate(spark: SparkSession, logs: Path, tmp_path: Path) -> None:
    result, seconds = timed("clean", logs, "--output", tmp_path / "copy", *PLAIN, "--rate", RATE)
    assert result["cleaned"] == 3
    assert seconds >= (result["bytes_read"] + result["bytes_written"]) / RATE - SAVED
    fast, _ = timed("clean", logs, "--output", tmp_path / "fast", *PLAIN)
    assert fast["bytes_written"] == result["bytes_written"]

    size_bytes = sum(path.stat().st_size for folder in (logs, tmp_path / "copy") for path in folder.rglob("*.log"))
    _, seconds = timed("verify", logs, tmp_path / "copy", "--high-watermark", "end", "--rate", RATE)
    assert seconds >= size_bytes / RATE - SAVED


def test_a_clean_in_place_is_no_faster_than_the_rate(spark: SparkSession, logs: Path) -> None:
    result, seconds = timed("clean", logs, "--in-place", *PLAIN, "--rate", RATE)
    assert result["cleaned"] == 3
    # The proof reads the log once more, and the outputs are read for the check and for the proof.
    assert seconds >= (result["bytes_read"] + 2 * result["bytes_written"]) / RATE - SAVED
    assert not list(logs.rglob("*.cordwood*"))


def test_a_rate_is_a_positive_size(logs: Path, tmp_path: Path) -> None:
    result = run("clean", logs, "--output", tmp_path / "copy", "--rate", "0", exits=2)
    assert "--rate 0: give a number of bytes" in result.stderr
