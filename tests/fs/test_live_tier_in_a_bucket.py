"""A live log with its tier in a bucket: requests, and faults at any of them."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from cordwood.common.errors import CordwoodError
from cordwood.live.validation import read_batches
from cordwood.storage.index import build
from tests import knobs
from tests.fs.object_server import Server, environment, faulty, never_retry, running_server
from tests.live.tiered_nodes import NOW, ORDERS, Node, numbers, values

pytestmark = pytest.mark.more


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server() as started:
        yield started


def named(node: Node) -> set[str]:
    """The segments that the newest manifest names."""
    state = node.state
    return {one.segment.id for one in state.segments} | {one.segment.id for one in state.gone}


def stored(server: Server, prefix: str) -> set[str]:
    """The segments that have objects."""
    return {name.rpartition(".")[0][-22:] for name in server.objects(prefix) if ".cordwood-tier" not in name}


def test_a_copy_takes_three_requests_and_a_commit_two(server: Server, tmp_path: Path) -> None:
    with faulty(server.address) as (address, asked), mock.patch.dict(os.environ, environment(address)):
        node = Node(tmp_path, tier="s3://logs/counted")
        with node.manager:
            node.fill(200)
            node.step()  # opens the log in the tier
            node.fill(200, 200)
            asked.begin({})
            node.step(500)
            copies, methods = len(node.state.segments), Counter(request.split()[0] for request in asked.asked)
            before = len(node.state.segments)
            node.step()
            asked.begin({})
            assert values(node.log) == numbers(400)
            reads = Counter(request.split()[0] for request in asked.asked)
    print(f"{copies} segments after a round of {dict(methods)}; {before} segments read by {dict(reads)}")
    assert (methods["GET"], methods["HEAD"]) == (1, 0)  # a commit lists the manifests
    assert methods["PUT"] % 3 == 1 and methods["PUT"] > 3 * 10


def expected(policy: str, count: int) -> list[bytes]:
    """Return the values of a log after `fill`: all, or with compaction the last of each key."""
    return numbers(count, max(count - 7, 0) if policy == "compact" else 0)


def test_a_clean_takes_three_requests_for_an_output_beside_its_reads(server: Server, tmp_path: Path) -> None:
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "local.retention.ms": "-1"}
    with faulty(server.address) as (address, asked), mock.patch.dict(os.environ, environment(address)):
        node = Node(tmp_path, tier="s3://logs/cleaned", configs=configs)
        with node.manager:
            for number in range(200):
                node.log.append({f"key-{number // 2}": f"{number}".rjust(100)}, timestamp_ms=NOW)
            node.step_tier()
            before = {one.segment.id for one in node.state.segments}
            asked.begin({})
            node.scheduler.run_due()
            methods = Counter(request.split()[0] for request in asked.asked)
            outputs = sum(one.segment.id not in before for one in node.state.segments)
    print(f"a clean with {outputs} outputs: {dict(methods)}")
    print(*asked.asked, sep="\n")
    assert outputs > 5
    assert methods["PUT"] == 3 * outputs + 1
    assert methods["HEAD"] == methods["POST"] == 0


def test_a_sequential_reader_takes_one_request_for_a_small_segment(server: Server, tmp_path: Path) -> None:
    with faulty(server.address) as (address, asked), mock.patch.dict(os.environ, environment(address)):
        node = Node(tmp_path, tier="s3://logs/read")
        with node.manager:
            node.fill(200)
            node.step()
            local, count = node.log.log_segments[0].base_offset, len(node.state.segments)
            asked.begin({})
            at = 0
            while at < local:
                for one in read_batches(node.log.read(at, 700).records):
                    at = one.last_offset + 1
            assert len(asked.asked) <= count, asked.asked
            asked.begin({})
            node.log.read(7, 1)  # in the middle of the first segment: its manifest, its indexes, its log
            assert len(asked.asked) == 3


def test_no_clean_replaces_segments_that_a_lost_commit_may_have_put_into_the_tier(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_retry(monkeypatch)
    configs, tier = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}, "s3://logs/lost-commit"
    with faulty(server.address) as (address, asked), mock.patch.dict(os.environ, environment(address)):
        node = Node(tmp_path, tier=tier, configs=configs)
        with node.manager:
            node.fill(60)
            node.tiering.open_all()
            closed = [one.base_offset for one in node.log.log_segments[:-1]]
            copying = 3 * len(closed)
            asked.begin({copying + 1: "dead"})  # the first request after the one that commits
            node.step()
            assert f"{'0' * 19}2.json" in asked.asked[copying] and node.tiered.failures
            assert [one.base_offset for one in node.log.log_segments[:-1]] == closed  # the clean failed, too
    again = Node(tmp_path, now_ms=NOW + 1_000_000, tier=tier, configs=configs)
    with mock.patch.dict(os.environ, environment(server.address)), again.manager:
        again.step()
        assert again.state.copied_end >= 60
        assert values(again.log)[-7:] == numbers(60, 53)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["403", "lost", "dead"])
@pytest.mark.parametrize("policy", ["delete", "compact", "indexed"])
def test_a_fault_at_any_request_loses_nothing(
    server: Server, tmp_path: Path, policy: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "SEGMENT_SHARE", 0)  # segments of this size would have no key index
    if kind == "dead":  # no retry helps
        never_retry(monkeypatch)
    is_indexed, policy = policy == "indexed", "compact" if policy == "indexed" else policy
    configs, happened, indexes = {"cleanup.policy": policy, "min.cleanable.dirty.ratio": "0"}, 0, 0
    for number in range(0, 1000, knobs.step(40)):
        prefix = f"live-{policy}-{is_indexed}-{kind}-{number}"
        root = tmp_path / f"{number}"
        root.mkdir()
        with faulty(server.address) as (address, faults), mock.patch.dict(os.environ, environment(address)):
            faults.begin({number: kind})
            node = Node(root, tier=f"s3://logs/{prefix}", configs=configs)
            count = 0
            with contextlib.suppress(CordwoodError, OSError), contextlib.ExitStack() as running:
                running.callback(node.manager.shutdown)
                node.manager.startup(index=is_indexed)
                for _ in range(3):
                    node.fill(60, count)
                    count += 60
                    node.step()
            faults.settle()
        with contextlib.ExitStack() as held:
            again = Node(root, now_ms=NOW + 1_000_000, tier=f"s3://logs/{prefix}", configs=configs)
            held.enter_context(again.manager)
            known = values(again.log)
            assert known[len(known) - len(expected(policy, count)) :] == expected(policy, count)
            again.step()
            assert stored(server, prefix) == named(again)
            indexes += any(name.endswith(".keyhashes") for name in server.objects(prefix))
            end = again.state.copied_end
        shutil.rmtree(root / "logs")
        other = Node(root, "other", now_ms=NOW + 2_000_000, tier=f"s3://logs/{prefix}", configs=configs)
        with other.manager as manager:
            known = values(manager.logs[ORDERS]) if end else []
            assert known[len(known) - len(expected(policy, end)) :] == expected(policy, end)
        happened += bool(faults.happened)
        if not faults.happened:
            break
    assert happened > 1
    assert bool(indexes) == is_indexed
