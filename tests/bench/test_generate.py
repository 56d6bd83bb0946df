"""Generated logs are valid, with the requested properties."""

from __future__ import annotations

from pathlib import Path

import pytest

from cordwood.bench.generate import KeyPattern, Shape, write_keyed_log
from cordwood.common.types import Codec
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.log.view import LogView


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_keyed_log_has_its_records_its_keys_and_a_short_last_segment(tmp_path: Path, codec: Codec) -> None:
    partition = tmp_path / "topic-0"
    partition.mkdir()
    shape = Shape(batch_bytes=1000, codec=codec)
    count = write_keyed_log(
        PosixFileSystem(), str(partition), records=1_600, keys=KeyPattern(50), shape=shape, segment_bytes=100_000
    )
    log = LogView(str(partition), fs=PosixFileSystem())
    records = list(log.records())
    assert [record.offset for record in records] == list(range(count))
    assert {record.key for record in records} == {b"%016d" % key for key in range(50)}
    assert {len(record.value or b"") for record in records} == {100}
    assert {batch.codec for batch in log.batches()} == {codec}
    assert len(log.segments) == 3
    assert log.segments[-1].size_bytes < 80_000


def test_a_log_may_have_a_segment_per_record(tmp_path: Path) -> None:
    shape = Shape(batch_bytes=1, round_batches=1)
    count = write_keyed_log(
        PosixFileSystem(), str(tmp_path), records=7, keys=KeyPattern(3), shape=shape, segment_bytes=1
    )
    log = LogView(str(tmp_path), fs=PosixFileSystem())
    assert [segment.base_offset for segment in log.segments] == [record.offset for record in log.records()]
    assert len(log.segments) == count == 8
