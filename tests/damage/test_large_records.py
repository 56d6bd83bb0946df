"""Whatever reads a large record takes little more memory than that record: each case measures a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.types import Codec

MB = 1_000_000
LARGE = 150 * MB
#: Of the record's size. What was read is held once, and some pieces of it more.
ALLOWED = 1.3

#: Does something with a small log, then with a large one, and prints how much more memory that took.
MEASURE = """
import sys
import cordwood
from cordwood.cli.main import app

def peak():
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmHWM"))

def read(method, path):
    for part in getattr(cordwood.open_log(path), method)():
        del part

def run(path):
    if sys.argv[3] == "python":
        read(sys.argv[4], path)
    else:
        code = app([*sys.argv[3:], path], standalone_mode=False)
        assert not code, code

run(sys.argv[1])
before = peak()
run(sys.argv[2])
print("\\nabove:", peak() - before, file=sys.stderr)
"""

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")

KINDS = {
    # A line of text is escaped where it is shown, noise is as large compressed.
    "text": lambda size: b'line of "text"\n' * (size // 15),
    "noise": lambda size: os.urandom(MB) * (size // MB),
}


def write_log(folder: Path, kind: str, codec: Codec, size: int) -> str:
    path = folder / f"{kind}.{codec.label}.{size}-0"
    if not path.exists():
        path.mkdir()
        records = [Record(0, 5, b"a", b"1"), Record(1, 5, b"k", KINDS[kind](size)), Record(2, 5, b"b", b"2")]
        batches = [encode_batch([record], codec=codec) for record in records]
        (path / offset_name(0, FileKind.LOG)).write_bytes(b"".join(batches))
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("large")


def memory_above(folder: Path, kind: str, codec: Codec, *arguments: str, size: int = LARGE) -> int:
    """Bytes that a process takes for a large record, above what the same takes for a small one."""
    paths = [write_log(folder, kind, codec, size) for size in (1000, size)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", MEASURE, *paths, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    above = int(ran.stderr.rpartition("above: ")[2])
    print(f"{' '.join(arguments)}, {kind}, {codec.label}: {above / MB:.0f} MB above")
    return above


READERS = [
    ("python", "columns"),
    ("python", "arrow_batches"),
    ("check",),
    ("dump",),
    ("dump", "--full"),
    ("dump", "--json"),
    ("dump", "--format", "%s"),
    ("dump", "--full", "--value-format", "base64"),
]
CODECS = [pytest.param(codec, marks=[pytest.mark.slow] * (codec is not Codec.ZSTD), id=codec.label) for codec in Codec]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("arguments", READERS, ids=" ".join)
def test_reading_takes_little_more_memory_than_the_largest_record(
    folder: Path, arguments: tuple[str, ...], codec: Codec
) -> None:
    assert memory_above(folder, "text", codec, *arguments) < ALLOWED * LARGE


@pytest.mark.parametrize("codec", CODECS)
def test_a_record_that_does_not_compress_is_not_held_compressed_and_decompressed(folder: Path, codec: Codec) -> None:
    assert memory_above(folder, "noise", codec, "python", "columns") < ALLOWED * LARGE
