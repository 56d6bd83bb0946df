"""Files that a broker is about to delete: `check`, `ls`, `why`, `plan` while it runs, after a crash, at its start."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import cordwood
from cordwood import CauseKind
from tests.command import run
from tests.kafka_tools import Broker
from tests.tables.source.kafka_source import Producer

LATER = {"internal.segment.bytes": "2000", "file.delete.delay.ms": "600000"}
TOPICS = {
    "retained": {"retention.bytes": "4000"},
    "trimmed": {},
    "compacted": {"cleanup.policy": "compact"},
    "gone": {},
    "whole": {},
}
DELETING = ("compacted-0", "retained-0", "trimmed-0")


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 90
    while not is_so():
        assert time.monotonic() < end, f"not yet: {what}"
        time.sleep(0.1)


def deleted(directory: Path, partition: str = "*") -> set[Path]:
    return set(directory.glob(f"{partition}/*.deleted"))


def going(directory: Path) -> list[Path]:
    """The directory of the deleted topic."""
    return list(directory.glob("gone-0.*-delete"))


def offsets(directory: Path) -> dict[str, tuple[int, int]]:
    """The start and end of each log, as `ls` shows them."""
    listed = run("ls", directory, "--json").json["partitions"]
    return {f"{one['topic']}-0": (one["log_start_offset"], one["log_end_offset"]) for one in listed}


def test_files_that_a_broker_deletes_later_are_no_damage_and_go_at_its_start(
    tmp_path: Path, kafka_broker: Broker
) -> None:
    data = tmp_path / "data"
    runs_often = {"log_initial_task_delay_ms": 200, "log_retention_check_interval_ms": 500}
    kafka_broker.start(
        data, **runs_often, log_segment_delete_delay_ms=600_000, log_cleaner_backoff_ms=100,
        log_cleaner_min_cleanable_ratio=0, log_flush_start_offset_checkpoint_interval_ms=100,
    )  # fmt: skip
    with Producer(data) as producer:
        producer({"do": "producer", "id": "p", "config": {"batch.size": 500}})
        for topic, config in TOPICS.items():
            producer({"do": "create_topic", "topic": topic, "partitions": 1, "config": LATER | config})
            sends = [{"topic": topic, "partition": 0, "key": f"k{at % 5}", "value": "v" * 100} for at in range(60)]
            producer(*({"do": "send", "id": "p", **one} for one in sends), {"do": "flush", "id": "p"})
        producer({"do": "delete_records", "topic": "trimmed", "partition": 0, "before": 40})
        producer({"do": "delete_topic", "topic": "gone"})
        wait_until(lambda: bool(going(data)) and all(deleted(data, one) for one in DELETING), "deletions")
        wait_until(lambda: "trimmed 0 40" in (data / "log-start-offset-checkpoint").read_text(), "the log start")
        wait_until(lambda: not list(data.glob("compacted-0/*.cleaned")), "the end of the clean")
    (directory,) = going(data)

    # Beside the running broker: nothing is wrong, and nothing needs a start.
    assert "no problem found" in run("check", data).output
    output = run("ls", data).output
    assert "recovery" not in output
    assert "live, to be deleted" in output
    found = {one.name: one for one in cordwood.why(str(data)).partitions}
    for name in DELETING:
        causes = {cause.kind: cause for cause in found[name].causes}
        assert CauseKind.LEFTOVERS not in causes
        cause = causes[CauseKind.DELETING]
        assert cause.what.startswith(f"{len(deleted(data, name))} files that the running broker deletes within file.")
        assert cause.next_step.startswith("wait")
    assert not {one.kind for one in found["whole-0"].causes} & {CauseKind.DELETING, CauseKind.LEFTOVERS}
    assert found[directory.name].cause.kind is CauseKind.TO_BE_DELETED
    assert found[directory.name].cause.next_step.startswith("wait: the broker removes it within file.delete.delay.ms")
    output = run("plan", data).output
    assert "left over" not in output and "recovery" not in output
    assert f"gone-0: {found[directory.name].cause.what}" in output

    # After a crash: the next start removes them.
    kafka_broker("kill", data)
    files = deleted(data)
    checked = run("check", data, "--json")
    leftovers = [line for line in checked.lines if line.get("kind") == "leftover"]
    assert {Path(line["file"]) for line in leftovers} == files
    # A kill may leave other files, of which there are notes.
    assert {line["severity"] for line in leftovers} == {"recovery"}
    assert run("check", data).output.startswith("a broker starts and serves all 4 partitions\n")
    output = run("ls", data).output
    assert "crashed, to be deleted" in output
    planned = run("plan", data).output
    found = {one.name: one for one in cordwood.why(str(data)).partitions}
    for name in DELETING:
        count = len(deleted(data, name))
        assert f"{name}: the recovery at the next start changes {count} files" in output
        (cause,) = [one for one in found[name].causes if one.kind is CauseKind.LEFTOVERS]
        assert cause.what.startswith(f"{count} files left over, which the broker would have deleted after file.delete.")
        assert cause.next_step.startswith("start the broker, which removes them")
        assert f"{name}: planned as of after the recovery at the next start, which changes {count} files" in planned
    assert found[directory.name].cause.next_step.startswith("start the broker, which removes it after file.delete.")
    foretold = offsets(data)

    kafka_broker.start(data, **runs_often, log_segment_delete_delay_ms=1000)
    assert not deleted(data)
    wait_until(lambda: not directory.exists(), "the end of the deleted topic")
    to = tmp_path / "consumed.jsonl"
    topics = [topic for topic in TOPICS if topic != "gone"]
    kafka_broker.client(data, [{"do": "consume", "topics": topics, "isolation": "read_committed", "to": str(to)}])
    ends = [line for line in map(json.loads, to.read_text().splitlines()) if "end_offset" in line]
    served = {f"{line['topic']}-0": (line["log_start_offset"], line["end_offset"]) for line in ends}
    assert len(served) == len(topics)
    assert served == {name: foretold[name] for name in served}
    assert served["trimmed-0"] == (40, 60)
    assert "no problem found" in run("check", data).output
    assert not any(one.kind is CauseKind.DELETING for each in cordwood.why(str(data)).partitions for one in each.causes)
