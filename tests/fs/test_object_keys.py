"""Keys in an object store: found as on a disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import cordwood
from cordwood.commands.why.found_keys import ErasureResult, ErasureVerdict
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.log.view import LogView
from tests.fixtures import copy_of, fixture
from tests.fs.object_server import Server, running_server
from tests.storage.index_twins import all_keys, index_all


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server() as running:
        yield running


def found(result: ErasureResult, root: str) -> set[tuple[str, str, str, int]]:
    return {(one.path.removeprefix(root), one.role, one.kind, one.position) for one in result.traces}


@pytest.mark.slow
def test_keys_are_found_in_a_bucket_as_on_a_disk(server: Server, tmp_path: Path) -> None:
    copy, fs = copy_of(fixture("kraft-before"), tmp_path / "logs"), PosixFileSystem()
    partition = copy / "orders-0"
    log = LogView(str(partition), fs=fs)
    keys = all_keys(log)[::9]
    index_all(fs, log)
    (partition / "notes").write_bytes(b"remember " + keys[0])
    (partition / f"{7:020d}.log.deleted").write_bytes(log.segments[0].open().read(0, 1 << 20))
    url = server.upload(copy, "keys")
    chosen = {"keys": keys, "topics": ["orders"], "now_ms": 1_795_300_000_000}
    here, there = cordwood.erase_check(str(copy), **chosen), cordwood.erase_check(url, **chosen)  # type: ignore[arg-type]
    assert there.verdict is ErasureVerdict.TRACES and len(there.files) == len(here.files)
    assert found(there, url) == found(here, str(copy))
    assert {one.found.sha256 for one in there.files} == {one.found.sha256 for one in here.files}
    got = cordwood.get(url, **chosen)  # type: ignore[arg-type]
    assert [one.record for one in got.records] == [one.record for one in cordwood.get(str(copy), **chosen).records]  # type: ignore[arg-type]
    assert sum(one.indexed for one in got.searched) > 0
    assert cordwood.erase_check(url, keys=["nobody"]).verdict is ErasureVerdict.CLEAR
