"""What a shell completes behind an option."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def completed(words: str) -> list[str]:
    """What bash would offer for the last of the words."""
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


def test_names_of_configs_are_completed() -> None:
    assert completed("cordwood plan logs --config min.c") == ["min.cleanable.dirty.ratio=", "min.compaction.lag.ms="]
