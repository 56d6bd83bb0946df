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
