"""Logs that a real broker's cleaner did not clean: `why` names the cause first, and its advice makes the cleaner
work.

A broker fills two compacted topics, with its cleaner off. For each case another broker, whose cleaner skips `t`, runs
on a copy; it is stopped, `why` runs, its advice is followed, and a third run cleans.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood import CauseKind
from tests import kafka_tools
from tests.fixtures import copy_of
from tests.kafka_tools import Broker, Line

pytestmark = pytest.mark.slow

#: A cleaner that looks for work all the time.
CLEANS = {"log_cleaner_backoff_ms": "100", "log_retention_check_interval_ms": "86400000"}
OFF = {**CLEANS, "log_cleaner_enable": "false"}
CHECKPOINT = "cleaner-offset-checkpoint"
HOURS_MS = 2 * 3_600_000
CONFIG = {"cleanup.policy": "compact", "internal.segment.bytes": "1500", "min.cleanable.dirty.ratio": "0.01"}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a stopped broker whose cleaner was off; its logs were written two hours ago."""
    if (reason := kafka_tools.missing()) is not None:
        (pytest.fail if kafka_tools.required() else pytest.skip)(reason)
    directory, broker = tmp_path_factory.mktemp("filled") / "data", Broker()
    try:
        broker.start(directory, **OFF)
        lines: list[Line] = [{"do": "producer", "id": "p"}]
        for topic in ("t", "u"):
            lines.append({"do": "create_topic", "topic": topic, "partitions": 1, "config": CONFIG})
            for at in range(120):
                record = {"topic": topic, "partition": 0, "key": f"k{at % 5}", "value": f"v{at:03}", "value_repeat": 5}
                lines.append({"do": "send", "id": "p", **record})
                lines += [{"do": "flush", "id": "p"}] if at % 10 == 9 else []
        broker.client(directory, lines)
        broker("stop", directory)
    finally:
        broker.kill_all()
    return directory


def first_log(directory: Path) -> Path:
    return directory / "t-0" / f"{0:020d}.log"


def age(directory: Path) -> None:
    """Let the logs be written two hours ago."""
    then = time.time_ns() - HOURS_MS * 1_000_000
    for path in directory.glob("[tu]-0/*.log"):
        os.utime(path, ns=(then, then))


def spoil(directory: Path) -> None:
    """Damage a batch: its length is negative."""
    content = bytearray(first_log(directory).read_bytes())
    content[8:12] = b"\xff" * 4
    first_log(directory).write_bytes(content)
    age(directory)


def restore(directory: Path, filled: Path) -> None:
    """Take the segment from a replica."""
    shutil.copyfile(first_log(filled), first_log(directory))
    age(directory)


def wrong_checkpoint(directory: Path) -> None:
    age(directory)
    (directory / CHECKPOINT).write_text("0\n1\nt 0 zero\n")
    then = time.time_ns() - 2 * HOURS_MS * 1_000_000
    os.utime(directory / CHECKPOINT, ns=(then, then))


def right_checkpoint(directory: Path) -> None:
    """Restore the checkpoint's original contents."""
    (directory / CHECKPOINT).write_text("0\n1\nt 0 0\n")
    then = time.time_ns() - 2 * HOURS_MS * 1_000_000
    os.utime(directory / CHECKPOINT, ns=(then, then))


@dataclass(frozen=True)
class Case:
    """A run of a broker whose cleaner skips `t`.

    Attributes:
        before: changes the directory before the run.
        logged: the broker's log line when its cleaner fails or dies.
        meanwhile: changes the directory at that moment.
        first_line: first line of `why`.
        step: the advice of `why`.
        follow: follows the advice; takes the directory and its original.
    """

    kind: CauseKind
    logged: str
    first_line: str
    step: str
    before: Callable[[Path], object] = age
    meanwhile: Callable[[Path, Path], object] = lambda _directory, _filled: None
    follow: Callable[[Path, Path], object] = lambda _directory, _filled: None
    settings: Mapping[str, str] = field(default_factory=lambda: CLEANS)


CASES = {
    "the cleaner is off": Case(
        CauseKind.CLEANER_OFF,
        "Kafka Server started",
        "its broker does not clean at all: log.cleaner.enable=false",
        "set log.cleaner.enable=true, and restart the broker",
        settings=OFF,
    ),
    "a damaged batch": Case(
        CauseKind.DAMAGED,
        "Marking its partition (t-0) as uncleanable",
        "Kafka's cleaner gives up on it: its cleanable part is damaged",
        "cordwood check .* shows all damage; restore the segment from a replica",
        before=spoil,
        follow=restore,
    ),
    "a damaged batch, repaired meanwhile": Case(
        CauseKind.GIVEN_UP,
        "Marking its partition (t-0) as uncleanable",
        "the cleaner passes it over, as it does after an error",
        "look for this partition in log-cleaner.log .*; a restart tries it again",
        before=spoil,
        meanwhile=restore,
    ),
    "the cleaner died of its checkpoint": Case(
        CauseKind.CLEANER_CHECKPOINT,
        "Error due to",
        "a broker's cleaner ends: its checkpoint cannot be read",
        "remove the entry, or the file: without it cleaning begins at the log start",
        before=wrong_checkpoint,
        follow=lambda directory, _: (directory / CHECKPOINT).unlink(),
    ),
    "the cleaner died, and its checkpoint was repaired": Case(
        CauseKind.CLEANER_DEAD,
        "Error due to",
        "the cleaner seems to be dead",
        "look for the end of kafka-log-cleaner-thread in log-cleaner.log; a restart of the broker starts it again",
        before=wrong_checkpoint,
        meanwhile=lambda directory, _: right_checkpoint(directory),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_why_names_what_a_real_cleaner_stopped_at_and_its_advice_lets_it_clean(
    name: str, filled: Path, kafka_broker: Broker, tmp_path: Path
) -> None:
    case, directory = CASES[name], copy_of(filled, tmp_path / "data")
    case.before(directory)
    kafka_broker.start(directory, **case.settings)
    until(lambda: case.logged in kafka_broker("logs", directory), f"the broker says {case.logged!r}")
    if case.kind is CauseKind.GIVEN_UP:
        until(lambda: has_cleaned(directory, "u"), "it cleans the other log")
    case.meanwhile(directory, filled)
    kafka_broker("stop", directory)
    assert not has_cleaned(directory, "t")

    properties = tmp_path / "data.broker" / "server.properties"
    result = cordwood.why(str(directory), server_properties=str(properties))
    partition = next(one for one in result.partitions if one.name == "t-0")
    assert partition.cause.kind is case.kind, partition.causes
    (line,) = [line for line in result.text().splitlines() if line.startswith("t-0: ")]
    assert case.first_line in line
    assert re.search(case.step, partition.cause.next_step)

    case.follow(directory, filled)
    kafka_broker.start(directory, **CLEANS)
    until(lambda: has_cleaned(directory, "t"), "the log is cleaned")
    kafka_broker("stop", directory)
    values = {record.key: record.value for record in cordwood.open_log(str(directory / "t-0"))}
    assert len(values) == 5
    sizes = [sum(path.stat().st_size for path in one.glob("t-0/*.log")) for one in (directory, filled)]
    assert sizes[0] < sizes[1] / 2


def has_cleaned(directory: Path, topic: str) -> bool:
    text = (directory / CHECKPOINT).read_text() if (directory / CHECKPOINT).exists() else ""
    found = re.search(rf"^{topic} 0 (\d+)$", text, re.MULTILINE)
    return found is not None and int(found[1]) > 0


def until(is_so: Callable[[], Any], what: str) -> None:
    for _ in range(300):
        if is_so():
            return
        time.sleep(0.2)
    raise AssertionError(f"a minute is over, and not yet: {what}")
