"""Cleans of compacted logs with a tier come out as those of the same log on a disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cordwood.tasks import tasks
from tests.live.tiered_nodes import Node, values

CONFIGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "0",
    "local.retention.ms": "100000",
}


@contextmanager
def twins(root: Path, engine: str | None = None) -> Iterator[tuple[Node, Node]]:
    """A node with a tier, and one without; both get the same records, and clean them at the same times."""
    (root / "plain-root").mkdir()
    tiered, plain = (
        Node(root, configs=CONFIGS, engine=engine),
        Node(root / "plain-root", with_tier=False, configs=CONFIGS),
    )
    with tiered.manager, plain.manager:
        yield tiered, plain


def append(nodes: tuple[Node, Node], count: int) -> None:
    """Append records of now; the last of them keeps local retention from rolling the active segment."""
    for one in nodes:
        end = one.log.log_end_offset
        for number in range(end, end + count):
            one.log.append({f"key-{number % 7}": f"{number}".rjust(100)}, timestamp_ms=one.now_ms)


def step(nodes: tuple[Node, Node], ms: int = 60_000) -> None:
    for one in nodes:
        one.step(ms)


def contents(one: Node) -> list[bytes]:
    """The bytes of each segment with records; a segment without any is no part of a tier."""
    return [data for data in one.files().values() if data]


def ids(one: Node) -> set[str]:
    return {each.segment.id for each in one.state.segments}


def test_a_clean_replaces_segments_in_the_tier(tmp_path: Path) -> None:
    with twins(tmp_path) as nodes:
        tiered, plain = nodes
        append(nodes, 100)
        tiered.step_tier()
        copied = ids(tiered)
        assert copied
        step(nodes)
        assert not copied & ids(tiered)
        assert tiered.log.log_segments[0].base_offset >= tiered.state.local_floor > 0
        assert contents(tiered) == contents(plain)
        for _ in range(3):
            append(nodes, 30)
            step(nodes)
            assert contents(tiered) == contents(plain)
        assert len(values(tiered.log)) < 40


def test_a_clean_can_leave_nothing_of_the_segments_in_the_tier(tmp_path: Path) -> None:
    with twins(tmp_path) as nodes:
        tiered, plain = nodes
        append(nodes, 30)
        tiered.step_tier()
        assert ids(tiered)
        tiered.manager.update_topic_config("orders", {**tiered.texts, "remote.log.copy.disable": "true"})
        append(nodes, 60)
        step(nodes)
        assert not ids(tiered)
        assert contents(tiered) == contents(plain)
        tiered.manager.update_topic_config("orders", tiered.texts)
        append(nodes, 15)
        assert values(tiered.log) == values(plain.log)
        step(nodes)
        assert contents(tiered) == contents(plain)
        assert ids(tiered)


@pytest.mark.more
@pytest.mark.parametrize("stages", [False, True])
def test_tasks_of_an_engine_clean_the_segments_in_the_tier_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stages: bool
) -> None:
    monkeypatch.setattr(tasks, "is_staged", lambda *_: stages)
    with twins(tmp_path, "here") as nodes:
        tiered, plain = nodes
        assert tiered.manager.cleaner is not None
        tiered.manager.cleaner.runner._tasks_bytes_min = 0
        append(nodes, 100)
        step(nodes)
        for one in nodes:
            one.log.append({"key-3": None}, timestamp_ms=one.now_ms)  # nothing older of it may come back
        append(nodes, 2)
        for _ in range(3):
            append(nodes, 20)
            step(nodes)
            assert contents(tiered) == contents(plain)
        assert tiered.state.local_floor > 0
