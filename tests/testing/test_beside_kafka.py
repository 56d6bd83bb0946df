"""A comparison of speeds says something only if both did the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cordwood.cli.main import app
from cordwood.errors import CordwoodError
from cordwood.fs.posix import PosixFileSystem
from cordwood.testing.beside_kafka import TASKS, compared
from cordwood.testing.generate import Shape, write_keyed_log
from cordwood.types import Codec
from tests.kafka_tools import Oracle


@pytest.mark.slow
def test_each_log_is_cleaned_by_both_with_the_same_result(kafka_oracle: Oracle, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["bench", "--against-kafka", "--size", "2", "--dir", str(tmp_path), "--json"])
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    found = json.loads(done.stdout)
    assert [one["log"] for one in found] == list(TASKS)
    assert [one["equal"] for one in found] == ["bytes", "bytes", "records"]
    for one in found:
        assert one["ratio"] == pytest.approx(one["kafka_s"] / one["cordwood_s"])
        assert 0 < one["cleaned_mb"] < one["log_mb"] and one["cordwood_s"] < one["cordwood_all_s"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("codec", "change"),
    [
        (Codec.NONE, "a byte"),
        (Codec.NONE, "an index"),  # of compressed logs the records are compared
        (Codec.NONE, "a segment less"),
        (Codec.LZ4, "a byte"),
        (Codec.LZ4, "a segment less"),
    ],
)
def test_what_differs_is_no_result(tmp_path: Path, codec: Codec, change: str) -> None:
    kafka, ours = tmp_path / "kafka" / "t-0", tmp_path / "ours" / "t-0"
    kafka.mkdir(parents=True)
    write_keyed_log(
        PosixFileSystem(), str(kafka), size_bytes=20_000, keys=5, shape=Shape(codec=codec), segment_bytes=8_000
    )
    shutil.copytree(kafka, ours)
    assert compared(kafka, ours, compressed=codec is not Codec.NONE) in ("bytes", "records")
    first, *_, last = sorted(ours.glob("*.log"))
    if change == "a byte":
        data = bytearray(first.read_bytes())
        data[-1] ^= 1
        first.write_bytes(data)
    elif change == "an index":
        first.with_suffix(".index").write_bytes(b"")
    else:
        last.unlink()
    with pytest.raises(CordwoodError):
        compared(kafka, ours, compressed=codec is not Codec.NONE)
