"""Workers stay within their share of `--memory`, and a fixed amount beside it, however many keys there are.

Logs of 1, 10 and 100 M keys, plain and compressed, and one of 20 M with a small budget; cleaned into a copy on Spark,
and in place with the proof on Spark and without. `-k 1_M_keys` runs those of 1 M alone.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cordwood.bench import workloads
from cordwood.bench.generate import KeyPattern, Shape
from cordwood.bench.workloads import BenchWorkload
from cordwood.common.types import Codec
from tests.summary import lines_of
from tests.tasks.spark.workers import peaks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds Spark's processes in /proc"),
]

_M = 1_000_000
_CORES = 2
#: A worker's memory beside its share: Python, the kernels, windows that are read, decoded and written.
BESIDE_BYTES = 250 * _M
ON_SPARK = ("--engine", "spark", "--master", f"local[{_CORES},4]")


def write_log(folder: Path, keys: int, codec: Codec = Codec.NONE) -> None:
    """A log of this number of keys, each once, followed by a tenth of them again."""
    shape = Shape(value_bytes=20, key_bytes=12, codec=codec)
    workloads.write(folder, BenchWorkload("", keys + keys // 10, KeyPattern(keys // 10, "spread"), shape))


def clean(folder: Path, memory: int, *words: str) -> list[int]:
    """Clean in place if `words` contain that option, otherwise into a copy, which is then deleted; return the memory of
    workers.
    """
    where = () if "--in-place" in words else ("--output", str(folder / "copy"))
    always = ["--memory", str(memory), "--config", "cleanup.policy=compact", "--ignore-ratio"]
    try:
        return peaks(["clean", str(folder / "logs"), *where, *always, *(words or ON_SPARK)]).workers
    finally:
        shutil.rmtree(folder / "copy", ignore_errors=True)


def row(keys: int, kind: str, memory: int, peaks: list[int]) -> str:
    """A line of the table."""
    share, largest = memory / _CORES / _M, peaks[0] / _M
    return f"{keys / _M:>9g} M keys  {kind:<13} {share:>7.0f} MB a worker  {largest:>5.0f} MB at its peak"


@pytest.mark.large
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4], ids=["plain", "lz4"])
@pytest.mark.parametrize("millions", [1, 10, 100], ids="{}_M_keys".format)
def test_workers_stay_within_their_share_of_a_gigabyte(
    millions: int, codec: Codec, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    memory = 1 << 30
    try:
        write_log(tmp_path / "logs", millions * _M, codec)
        peaks = clean(tmp_path, memory)
    finally:
        shutil.rmtree(tmp_path / "logs", ignore_errors=True)
    record_property(*lines_of([row(millions * _M, codec.name.lower(), memory, peaks)]))
    assert peaks[0] < memory // _CORES + BESIDE_BYTES


@pytest.mark.large
@pytest.mark.parametrize("engine", [ON_SPARK, ("--engine", "here")], ids=["spark", "here"])
@pytest.mark.parametrize("millions", [1, 10, 100], ids="{}_M_keys".format)
def test_workers_that_prove_a_clean_in_place_stay_within_their_share_of_a_gigabyte(
    millions: int, engine: tuple[str, ...], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    memory = 1 << 30
    try:
        write_log(tmp_path / "logs", millions * _M)
        proof = ("--in-place", "--high-watermark", "end", "--single-copy", *engine)
        peaks = clean(tmp_path, memory, *proof)
    finally:
        shutil.rmtree(tmp_path / "logs", ignore_errors=True)
    record_property(*lines_of([row(millions * _M, f"proved, {engine[1]}", memory, peaks)]))
    assert peaks[0] < memory // _CORES + BESIDE_BYTES


@pytest.mark.large
@pytest.mark.parametrize("millions", [1, 10, 100], ids="{}_M_keys".format)
def test_a_proof_by_witnesses_stays_within_its_share_of_a_gigabyte(
    millions: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    memory, keys = 1 << 30, millions * _M
    # Only the oldest segments change; a witness of each of their records is in the newest.
    log = BenchWorkload(
        "", keys + keys // 50, KeyPattern(keys // 100, "tail"), Shape(value_bytes=20, key_bytes=12), incremental=True
    )
    try:
        workloads.write(tmp_path / "logs", log)
        proof = ("--in-place", "--high-watermark", "end", "--single-copy", "--engine", "here")
        peaks = clean(tmp_path, memory, *proof)
    finally:
        shutil.rmtree(tmp_path / "logs", ignore_errors=True)
    record_property(*lines_of([row(keys, "by witnesses", memory, peaks)]))
    assert peaks[0] < memory // _CORES + BESIDE_BYTES


@pytest.mark.large
def test_many_keys_take_no_more_than_a_small_share(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    keys, memory = 20 * _M, 32 * _M
    write_log(tmp_path / "logs", keys)
    peaks = clean(tmp_path, memory)
    record_property(*lines_of([row(keys, "none", memory, peaks)]))
    assert peaks[0] < memory // _CORES + BESIDE_BYTES
