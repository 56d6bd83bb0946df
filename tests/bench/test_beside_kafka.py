"""A comparison of speeds is only valid if both sides had the same result."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cordwood.bench.beside_kafka import compared
from cordwood.bench.generate import KeyPattern, Shape, write_keyed_log
from cordwood.bench.workloads import BY_SHARE, WORKLOADS
from cordwood.common.errors import CordwoodError
from cordwood.common.types import Codec
from cordwood.fs.posix import PosixFileSystem
from tests.command import run
from tests.kafka_tools import Oracle

pytestmark = pytest.mark.more

#: One of each kind.
SHAPES = ("B", "lz4", "IH", "tiny", "segments")
#: The only message that stderr may have: kernels are compiled at their first use.
COMPILING = "compiling for this processor"


@pytest.mark.slow
def test_each_log_is_cleaned_by_both_with_the_same_result(kafka_oracle: Oracle, tmp_path: Path) -> None:
    chart = tmp_path / "chart.svg"
    shapes = [word for name in SHAPES for word in ("--shape", name)]
    few = ("--size", "1", "--passes", "1", "--against-copy", "--svg", str(chart))
    logs = tmp_path / "logs"
    logs.mkdir()
    done = run("bench", "--against-kafka", *few, "--dir", logs, "--json", *shapes)
    assert all(COMPILING in line for line in done.stderr.splitlines()), done.output
    found = json.loads(done.stdout)
    assert [(one["workload"], one["way"]) for one in found] == [
        (name, way) for name in SHAPES for way in WORKLOADS[name].ways
    ]
    for one in found:
        assert one["equal"] == ("records" if one["workload"] == "lz4" else "bytes")
        assert one["ratio"] == pytest.approx(one["kafka"]["median"] / one["cordwood"]["median"])
        assert 0 < one["cleaned_bytes"] < one["size_bytes"]
        assert one["cpu_seconds"] > 0 and one["peak_bytes"] > 100e6 and one["copied"]["median"] > 0
    alone = {one["workload"] for one in found if one["one_process"]}
    assert alone == {"B", "lz4", "segments"}
    assert not list(logs.iterdir())
    assert [text.text for text in ElementTree.parse(chart).iter("{http://www.w3.org/2000/svg}text")][1] == "B, copy"


@pytest.mark.slow
def test_the_more_of_a_log_is_new_the_further_right_it_is_drawn(kafka_oracle: Oracle, tmp_path: Path) -> None:
    chart = tmp_path / "chart.svg"
    few = ("--size", "1", "--passes", "1", "--svg", str(chart), "--dir", str(tmp_path))
    done = run("bench", "--against-kafka", "--by-share", *few, "--json")
    assert all(COMPILING in line for line in done.stderr.splitlines()), done.output
    found = json.loads(done.stdout)
    assert [(one["workload"], one["way"]) for one in found] == [
        (name, way) for name, workload in BY_SHARE.items() for way in workload.ways
    ]
    assert {one["equal"] for one in found} == {"bytes"}
    drawn = ElementTree.parse(chart)
    lines = [line.get("points", "") for line in drawn.iter("{http://www.w3.org/2000/svg}polyline")]
    assert len(lines) == len({one["way"] for one in found})  # one for Kafka, none for copies
    for line in lines:
        places = [float(point.split(",")[0]) for point in line.split()]
        assert len(places) == len(BY_SHARE) and places == sorted(set(places))
    words = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert set(BY_SHARE) <= set(words) and "in place, indexed, proved" in words


@pytest.mark.parametrize(
    "words",
    [
        ["--against-copy"],
        ["--by-share"],
        ["--against-kafka", "--shape", "C"],
        ["--against-kafka", "--by-share", "--shape", "B"],
    ],
)
def test_options_that_fit_nothing_are_refused(words: list[str]) -> None:
    done = run("bench", *words, exits=2)
    assert "--shape" in done.output


@pytest.mark.parametrize(
    ("codec", "change"),
    [
        (Codec.NONE, "a byte"),
        (Codec.NONE, "an index"),  # compressed logs are compared by records
        (Codec.NONE, "a segment less"),
        (Codec.LZ4, "a byte"),
        (Codec.LZ4, "a segment less"),
    ],
)
def test_what_differs_is_no_result(tmp_path: Path, codec: Codec, change: str) -> None:
    kafka, ours = tmp_path / "kafka" / "t-0", tmp_path / "ours" / "t-0"
    kafka.mkdir(parents=True)
    write_keyed_log(
        PosixFileSystem(), str(kafka), records=160, keys=KeyPattern(5), shape=Shape(codec=codec), segment_bytes=8_000
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
