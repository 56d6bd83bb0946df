"""The bytes that commands read are counted in all their processes, beside the start of the same command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cordwood.bench.questions import QUESTIONS, ROUNDS
from tests.command import run
from tests.fs.lock_holders import on_linux

pytestmark = [pytest.mark.more, on_linux]


@pytest.mark.slow
def test_each_question_is_asked_of_a_large_log_and_of_one_record(tmp_path: Path) -> None:
    done = run("bench", "--questions", "--size", "2", "--dir", tmp_path, "--json")
    assert done.stderr == "", done.output
    found = {one["question"]: one for one in json.loads(done.stdout)}
    assert list(found) == [*QUESTIONS, ROUNDS]
    assert 1 < found[ROUNDS]["per_new_byte"] < 100
    for name in ("clean in place", "clean in place, proved"):
        log_bytes = found[name]["log_bytes"]
        assert found[name]["call_mib"] > 0.02 * log_bytes / (1 << 20), "it reads at least the new records"
        assert found[name]["start"]["call_bytes"] < found[name]["reads"]["call_bytes"]
    assert not list(tmp_path.iterdir())


def test_it_is_one_measurement_of_several() -> None:
    for words in (["--live"], ["--against-kafka"], ["--shape", "IH"]):
        refused = run("bench", "--questions", *words, exits=2)
        assert "--questions" in refused.stderr
