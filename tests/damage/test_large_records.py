"""Reading a large record needs little more memory than its size: each case measures a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.cleaning.engine.facts import CleanSettings
from cordwood.cleaning.engine.partition import CleanRequest, clean_partition
from cordwood.common.types import Codec
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.recovery.replay import Producers
from tests.knobs import in_turns

MB = 1_000_000
LARGE = 150 * MB
#: Factor of the record's size. The bytes read are held once, and some parts of them twice.
ALLOWED = 1.2
#: Return freed memory to the system at once. Otherwise malloc sometimes keeps up to 64 MB of it.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(MB), "MALLOC_TRIM_THRESHOLD_": str(MB)}

#: Does an action with a small log, then with a large one, and prints the additional memory of the second.
MEASURE = """
import sys

from numba.core.event import install_recorder

import cordwood
from cordwood.cli.main import app
from cordwood.cleaning.engine.partition import CleanRequest, clean_partition
from cordwood.cleaning.engine.facts import CleanSettings
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.workspace import temporary_directory
from cordwood.storage.recovery.replay import Producers
from cordwood.commands.verify import verify_pairs
from cordwood.tasks.runner import InThisProcess
from cordwood.cleaning.proof.pairs import Pair, Side

def peak():
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmHWM"))

def read(method, path):
    for part in getattr(cordwood.open_log(path), method)():
        del part

def clean(path):
    fs, log = PosixFileSystem(), cordwood.open_log(path)
    end = log.segments[-1].base_offset
    with temporary_directory(fs, "large") as target:
        settings, producers = CleanSettings(), Producers()
        options = {"first_uncleanable": end, "now_ms": 10, "settings": settings, "producers": producers}
        counts = clean_partition(fs, log, target, CleanRequest(first_dirty=0, **options)).counts
    assert counts.records_superseded, counts

def prove(path):
    fs, log = PosixFileSystem(), cordwood.open_log(path)
    pair = Pair(None, Side(path, 0), Side(path + ".after", 0), first_uncleanable=log.segments[-1].base_offset)
    (verdict,) = verify_pairs(InThisProcess(), fs, [pair], fs)
    assert verdict.counts["records_same"] == verdict.counts["records_after"] > 1, verdict.counts
    assert not verdict.totals, verdict.totals

def run(path):
    if sys.argv[3] == "clean":
        clean(path)
    elif sys.argv[3] == "prove":
        prove(path)
    elif sys.argv[3] == "python":
        read(sys.argv[4], path)
    else:
        code = app([*sys.argv[3:], path], standalone_mode=False)
        assert not code, code

run(sys.argv[1])
before = peak()
with install_recorder("numba:compile") as compiled:
    run(sys.argv[2])
if compiled.buffer:
    print("\\ncompiled", file=sys.stderr)
else:
    print("\\nabove:", peak() - before, file=sys.stderr)
"""

pytestmark = [
    pytest.mark.more,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc"),
]

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


def write_dirty_log(folder: Path, kind: str, codec: Codec, size: int, count: int) -> str:
    """Batches with a large record each, and one before it that a later batch supersedes; a segment that is active."""
    path = folder / f"dirty.{kind}.{codec.label}.{size}.{count}-0"
    path.mkdir(exist_ok=True)
    value = KINDS[kind](size)
    with (path / offset_name(0, FileKind.LOG)).open("wb") as file:
        for at in range(0, 3 * count, 3):
            batch = [Record(at, 5, b"a", b"1"), Record(at + 1, 5, b"k%d" % at, value), Record(at + 2, 5, b"b%d" % at)]
            file.write(encode_batch(batch, codec=codec))
    end = 3 * count
    (path / offset_name(end, FileKind.LOG)).write_bytes(encode_batch([Record(end, 5, b"a", b"2")]))
    (path / offset_name(end + 1, FileKind.LOG)).write_bytes(encode_batch([Record(end + 1, 5, b"z", b"2")]))
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("large")


def memory_above(folder: Path, kind: str, codec: Codec, *arguments: str, size: int = LARGE) -> int:
    """Memory in bytes that a process needs for a large record, beyond that for a small one."""
    return measured([write_log(folder, kind, codec, size) for size in (1000, size)], *arguments)


def measured(paths: list[str], *arguments: str) -> int:
    """Memory in bytes that a process needs for the second log, beyond that for the first.

    Compiling a kernel that only large batches need takes 28 MB: a process that compiles is not counted, and the next
    one loads that kernel from the cache.
    """
    environment = {**os.environ, **MALLOC, "PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in range(2):
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
        told = ran.stderr.rstrip().rpartition("\n")[2]
        if told != "compiled":
            break
    above = int(told.removeprefix("above: "))
    print(f"{' '.join(arguments)}, {paths[1]}: {above / MB:.0f} MB above")
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
CODECS = in_turns(Codec, Codec.ZSTD, ids=lambda codec: codec.label)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("arguments", READERS, ids=" ".join)
def test_reading_takes_little_more_memory_than_the_largest_record(
    folder: Path, arguments: tuple[str, ...], codec: Codec
) -> None:
    assert memory_above(folder, "text", codec, *arguments) < ALLOWED * LARGE


@pytest.mark.parametrize("codec", CODECS)
def test_a_record_that_does_not_compress_is_not_held_compressed_and_decompressed(folder: Path, codec: Codec) -> None:
    assert memory_above(folder, "noise", codec, "python", "columns") < ALLOWED * LARGE


@pytest.mark.parametrize(
    "codec", in_turns([Codec.NONE, Codec.LZ4, Codec.ZSTD], Codec.ZSTD, ids=lambda codec: codec.label)
)
def test_a_batch_rebuilt_around_a_large_record_is_not_held_twice(folder: Path, codec: Codec) -> None:
    paths = [write_dirty_log(folder, "text", codec, size, 1) for size in (1000, LARGE)]
    assert measured(paths, "clean") < ALLOWED * LARGE


def test_a_clean_holds_one_of_several_large_batches_at_a_time(folder: Path) -> None:
    paths = [write_dirty_log(folder, "text", Codec.NONE, size, 3) for size in (1000, LARGE)]
    assert measured(paths, "clean") < ALLOWED * LARGE


@pytest.mark.parametrize("codec", in_turns([Codec.NONE, Codec.ZSTD], Codec.ZSTD, ids=lambda codec: codec.label))
def test_a_proof_holds_a_large_record_of_one_state_at_a_time(folder: Path, codec: Codec) -> None:
    paths = [write_dirty_log(folder, "text", codec, size, 1) for size in (4 * MB, LARGE)]  # both fill windows
    for path in paths:
        clean_into(path, f"{path}.after")
    assert measured(paths, "prove") < ALLOWED * LARGE


def clean_into(path: str, target: str) -> None:
    log = cordwood.open_log(path)
    active = log.segments[-1]
    Path(target).mkdir()
    options: dict[str, Any] = {"settings": CleanSettings(), "producers": Producers()}
    end = active.base_offset
    clean_partition(
        PosixFileSystem(), log, target, CleanRequest(first_dirty=0, first_uncleanable=end, now_ms=10, **options)
    )
    shutil.copy(active.path, target)
