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
from tests import knobs
from tests.fs.object_server import Server, environment, faulty, running_server
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


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "step"), [("403", 40), ("lost", 40), ("dead", 150)])
def test_a_fault_at_any_request_loses_nothing(server: Server, tmp_path: Path, kind: str, step: int) -> None:
    for number in range(0, 300, knobs.step(step)):
        prefix = f"live-{kind}-{number}"
        root = tmp_path / f"{number}"
        root.mkdir()
        with faulty(server.address) as (address, faults), mock.patch.dict(os.environ, environment(address)):
            faults.begin({number: kind})
            node = Node(root, tier=f"s3://logs/{prefix}")
            count = 0
            with contextlib.suppress(CordwoodError, OSError), node.manager:
                for _ in range(3):
                    node.fill(60, count)
                    count += 60
                    node.step()
            faults.settle()
        with contextlib.ExitStack() as held:
            again = Node(root, now_ms=NOW + 1_000_000, tier=f"s3://logs/{prefix}")
            held.enter_context(again.manager)
            assert values(again.log) == numbers(count)
            again.step()
            assert stored(server, prefix) == named(again)
            end = next(iter(again.manager.logs.values())).log_segments[0].base_offset
        shutil.rmtree(root / "logs")
        with Node(root, "other", now_ms=NOW + 2_000_000, tier=f"s3://logs/{prefix}").manager as manager:
            assert values(manager.logs[ORDERS])[:end] == numbers(end)
        if not faults.happened:
            break
