"""Completions of a shell behind an option."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.more


def completed(words: str) -> list[str]:
    """Bash's completions for the last of the words."""
    environment = {
        **os.environ,
        "_CORDWOOD_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    command = [sys.executable, "-c", "from cordwood.cli.main import main; main()"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout.split()


@pytest.mark.parametrize("depth", ["logs", "."], ids=["a log directory", "a folder of log directories"])
def test_topics_of_the_named_directory_are_completed(depth: str, tmp_path: Path) -> None:
    for name in ("orders-0", "orders-1", "organs-0", "payments-0"):
        (tmp_path / "logs" / name).mkdir(parents=True)
    assert completed(f"cordwood plan {tmp_path / depth} --topic or") == ["orders", "organs"]


@pytest.mark.parametrize("verb", ["plan", "dump", "index"])
def test_partitions_of_the_named_directory_are_completed_by_their_numbers(verb: str, tmp_path: Path) -> None:
    for name in ("orders-0", "orders-2", "orders-10", "organs-0", "payments-0"):
        (tmp_path / "logs" / name).mkdir(parents=True)
    assert completed(f"cordwood {verb} {tmp_path}/logs --partition orders-") == ["orders-0", "orders-2", "orders-10"]
    assert completed(f"cordwood {verb} {tmp_path}/logs --topic org* --partition o") == ["organs-0"]


def test_a_partition_that_must_be_a_number_is_not_completed_by_a_name(tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()
    assert completed(f"cordwood abort-transaction {tmp_path} --partition o") == []


def test_names_of_configs_are_completed() -> None:
    assert completed("cordwood plan logs --config min.c") == ["min.cleanable.dirty.ratio=", "min.compaction.lag.ms="]
