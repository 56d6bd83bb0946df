"""A tier in a bucket, with its log directory on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import run
from tests.fixtures import fixture, tier_options
from tests.fs.object_server import Server, environment, running_server

pytestmark = pytest.mark.more

ROOT = fixture("aiven-s3")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server() as started, pytest.MonkeyPatch.context() as patch:
        for name, value in environment(started.address).items():
            patch.setenv(name, value)
        yield started


def test_a_bucket_is_read_and_restored_as_a_copy_of_it_on_a_disk(server: Server, tmp_path: Path) -> None:
    url = server.upload(ROOT / "bucket" / "kafka", "kafka")
    key = "--tier-key", f"{ROOT}/test-key.json"
    printed = run("dump", ROOT / "kafka-logs" / "payments-0", "--records", "--json", "--tier", url, *key).stdout
    assert (
        printed
        == run("dump", ROOT / "kafka-logs" / "payments-0", "--records", "--json", *tier_options("aiven-s3")).stdout
    )
    run("fetch", tmp_path / "restored", "--topic", "orders", "--tier", url, *key)
    run("fetch", tmp_path / "copied", "--topic", "orders", *tier_options("aiven-s3"))
    files = {path.relative_to(tmp_path / "copied"): path for path in (tmp_path / "copied").rglob("*") if path.is_file()}
    assert len(files) > 40
    for name, path in files.items():
        assert (tmp_path / "restored" / name).read_bytes() == path.read_bytes(), name
