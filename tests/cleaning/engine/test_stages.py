"""A partition cleaned by many tasks: data passed between them may be lost, truncated or in the wrong place."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.cleaning.engine import partition, stages
from cordwood.cleaning.engine.blobs import BlobReader, BlobWriter, LostSectionError
from cordwood.cleaning.engine.division import STAGED_BYTES_MIN, is_staged
from cordwood.cleaning.engine.facts import CleanSettings
from cordwood.cleaning.engine.partition import Cleaned, CleanRequest, clean_partition
from cordwood.cleaning.engine.task import PartitionTask
from cordwood.cleaning.rules.key_table import MemoryShare
from cordwood.common.errors import CorruptBatchError
from cordwood.fs.base import TargetStore
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.wrapped import CountedStore
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.log.files import read_file
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.replay import Producers
from cordwood.testing.memory import MemoryFileSystem
from tests.cleaning import modes
from tests.knobs import in_turns
from tests.logs import batch, make_log

pytestmark = pytest.mark.more

FS = PosixFileSystem()


def some_log(folder: Path, *, seed: int = 1, records: int = 60, segments: int = 3) -> LogView:
    """A log of one record per batch, and few keys."""
    source = random.Random(seed)
    bases = [records * at // segments for at in range(segments)]
    parts = [
        (base, [batch(offset, (b"%d" % source.randrange(20), b"v")) for offset in range(base, end)])
        for base, end in zip(bases, [*bases[1:], records], strict=True)
    ]
    return make_log(folder, *parts, [batch(records)])


def choice(log: LogView, **settings: Any) -> dict[str, Any]:
    return {
        "first_dirty": 0,
        "first_uncleanable": log.segments[-1].base_offset,
        "now_ms": 10,
        "settings": CleanSettings(**settings),
        "producers": Producers(),
    }


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def cleaned(log: LogView, folder: Path, how: Callable[..., Cleaned | None], **settings: object) -> dict[str, bytes]:
    folder.mkdir()
    assert how(FS, log, str(folder), **choice(log, **settings)) is not None
    return files(folder)


def by_one(fs: TargetStore, log: LogView, target: str, **choice: Any) -> Cleaned:
    return clean_partition(fs, log, target, CleanRequest(**choice))


@pytest.fixture(autouse=True)
def cut_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "cut_positions", modes.every_batch)


def test_many_tasks_write_what_one_task_writes(tmp_path: Path) -> None:
    log = some_log(tmp_path / "t-0")
    whole = cleaned(log, tmp_path / "whole", by_one)
    assert cleaned(log, tmp_path / "stages", modes.by_stages) == whole
    assert cleaned(log, tmp_path / "groups", modes.by_stages, segment_bytes=1) == cleaned(
        log, tmp_path / "whole-groups", by_one, segment_bytes=1
    )


@pytest.mark.parametrize("suffix", [".scan", ".merge", ".keys"])
@pytest.mark.parametrize("way", in_turns(["removed", "flipped", "cut"], "flipped"))
def test_a_blob_that_is_lost_or_damaged_is_made_again(tmp_path: Path, suffix: str, way: str) -> None:
    with modes.using("probed" if suffix == ".keys" else "stages"):
        make_again(tmp_path, suffix, way)


def make_again(tmp_path: Path, suffix: str, way: str) -> None:
    log = some_log(tmp_path / "t-0")
    whole = cleaned(log, tmp_path / "whole", by_one)
    for seed in range(6):
        source = random.Random(seed)
        spoiled: list[str] = []

        def spoil(folder: str, source: random.Random = source, spoiled: list[str] = spoiled) -> None:
            found = sorted(path for path in Path(folder).iterdir() if path.suffix == suffix)
            if not found or len(spoiled) > 1:
                return
            path = source.choice(found)
            spoiled.append(path.name)
            stored = bytearray(path.read_bytes())
            if way == "removed":
                path.unlink()
            elif way == "flipped":
                stored[source.randrange(len(stored))] ^= 1 << source.randrange(8)
                path.write_bytes(stored)
            else:
                path.write_bytes(stored[: source.randrange(len(stored))])

        def by_stages(*arguments: object, spoil: Callable[[str], None] = spoil, **options: object) -> Cleaned | None:
            return modes.by_stages(*arguments, spoil=spoil, **options)  # type: ignore[arg-type]

        assert cleaned(log, tmp_path / f"stages-{seed}", by_stages) == whole
        assert spoiled


def test_a_blob_that_is_lost_every_time_fails_the_partition(tmp_path: Path) -> None:
    log = some_log(tmp_path / "t-0")
    (tmp_path / "target").mkdir()

    def spoil(folder: str) -> None:
        for path in Path(folder).glob("*.merge"):
            path.unlink()

    with pytest.raises(CorruptBatchError, match="what its tasks wrote for each other was lost 3 times"):
        modes.by_stages(FS, log, str(tmp_path / "target"), spoil=spoil, **choice(log))
    assert files(tmp_path / "target") == {}


def test_a_run_that_begins_inside_a_batch_is_read_with_its_whole_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = some_log(tmp_path / "t-0")
    asked = []

    def wrong(segment: object, run_bytes: int) -> list[int]:
        asked.append(run_bytes)
        return [0, 100] if run_bytes < 1 << 40 else [0]

    monkeypatch.setattr(stages, "cut_positions", wrong)
    whole = cleaned(log, tmp_path / "whole", by_one)
    assert cleaned(log, tmp_path / "stages", modes.by_stages) == whole
    assert max(asked) > 1 << 40


@pytest.mark.parametrize("mode", ["stages", "probed"])
def test_damage_fails_the_partition_with_its_place(tmp_path: Path, mode: str) -> None:
    log = some_log(tmp_path / "t-0")
    path = Path(log.segments[1].path)
    stored = bytearray(path.read_bytes())
    stored[-1] ^= 1
    path.write_bytes(stored)
    (tmp_path / "target").mkdir()
    with modes.using(mode), pytest.raises(CorruptBatchError, match=f"CRC-32C mismatch.*{path.name}"):
        modes.by_stages(FS, log, str(tmp_path / "target"), **choice(log))


@pytest.mark.parametrize("first_dirty", [0, 30, 45, 59, 60])
def test_what_is_looked_up_comes_to_the_same_as_chunks(tmp_path: Path, first_dirty: int) -> None:
    log = some_log(tmp_path / "t-0")
    written = {}
    for mode in ("whole", "probing", "probed"):
        folder = tmp_path / mode
        folder.mkdir()
        with modes.using(mode):
            cleaned = modes.clean_log(FS, log, str(folder), **choice(log) | {"first_dirty": first_dirty})
        assert cleaned.end_offset == (60 if first_dirty < 60 else 0)
        written[mode] = files(folder)
    assert written["whole"] == written["probing"] == written["probed"]


def test_what_is_looked_up_is_read_once_beside_what_is_dirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "HELD_BYTES", 0)  # as if the log was too large to stay in memory
    log = some_log(tmp_path / "t-0", records=4_000)
    counted = CountedStore(FS, suffix=".log")
    (tmp_path / "target").mkdir()
    view = LogView(log.path, fs=counted, log_start_offset=0)
    chosen = choice(view) | {"first_dirty": 3_990}
    clean_partition(FS, view, str(tmp_path / "target"), CleanRequest(**chosen, probing=True))
    read = counted.bytes_read
    clean_partition(FS, view, str(tmp_path / "target"), CleanRequest(**chosen))
    assert read < 1.1 * (counted.bytes_read - read)


@pytest.mark.parametrize("mode", ["stages", "probed"])
def test_a_batch_whose_offsets_go_back_is_left_to_one_task(tmp_path: Path, mode: str) -> None:
    with modes.using(mode):
        leave_to_one_task(tmp_path)


def leave_to_one_task(tmp_path: Path) -> None:
    back = encode_batch([Record(5, 0, b"a", b""), Record(3, 0, b"a", b"")], base_offset=3, last_offset=5)
    log = make_log(tmp_path / "t-0", (0, [back, batch(6, "b=v")]), [batch(10)])
    (tmp_path / "stages").mkdir()
    assert modes.by_stages(FS, log, str(tmp_path / "stages"), **choice(log)) is None
    # Kafka's map has the offset of the last record: 5 is not below 3, and 3 is not, either.
    cleaned(log, tmp_path / "whole", by_one)
    kept = LogView(str(tmp_path / "whole"), fs=FS, log_start_offset=0).records(isolation=None)
    assert [record.offset for record in kept] == [5, 3, 6]


@pytest.mark.parametrize("mode", ["stages", "probed"])
def test_batches_that_go_back_are_damage(tmp_path: Path, mode: str) -> None:
    log = make_log(tmp_path / "t-0", (0, [batch(5, "a=v"), batch(3, "a=v"), batch(6, "b=v")]), [batch(10)])
    (tmp_path / "stages").mkdir()
    said = "offsets 5 to 5 comes before a batch that starts at offset 3"
    with modes.using(mode), pytest.raises(CorruptBatchError, match=said):
        modes.by_stages(FS, log, str(tmp_path / "stages"), **choice(log))


def test_more_ranges_come_to_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = some_log(tmp_path / "t-0")
    whole = cleaned(log, tmp_path / "whole", by_one)
    monkeypatch.setattr(stages, "MANY_RECORDS", -1)
    monkeypatch.setattr(stages, "MANY_RANGES", 1024)
    assert cleaned(log, tmp_path / "stages", modes.by_stages) == whole


def task(size_bytes: int, *, records: int | None = None, memory: int | None = None, map_: int | None = None):
    settings = CleanSettings(memory=None if memory is None else MemoryShare(memory), offset_map_slots=map_)
    place = MemoryFileSystem(lambda: 0).location()
    return PartitionTask(
        location=place,
        path="/t-0",
        log_start_offset=0,
        first_dirty=0,
        first_uncleanable=1 << 40,
        now_ms=0,
        settings=settings,
        size_bytes=size_bytes,
        records=records,
    )


def test_a_partition_is_staged_if_others_would_wait_for_it_or_memory_is_short() -> None:
    large = 4 * STAGED_BYTES_MIN
    assert is_staged(task(large), large, 2)
    assert not is_staged(task(large), large, 1), "no other core waits"
    assert not is_staged(task(large), 8 * large, 2), "other partitions keep all cores busy"
    assert not is_staged(task(STAGED_BYTES_MIN // 2), STAGED_BYTES_MIN // 2, 8), "it is small"
    assert not is_staged(task(large, map_=100), large, 2), "Kafka's map is filled in log order"
    assert is_staged(task(1000, records=10**9, memory=1 << 30), 1000, 1)
    assert not is_staged(task(1000, records=10**6, memory=1 << 30), 1000, 1)


ARRAYS = st.dictionaries(
    st.text("abc.1", min_size=1, max_size=5),
    st.tuples(st.sampled_from([np.uint64, np.uint32, np.int64, np.int32, np.uint8]), st.integers(0, 9)),
    max_size=5,
)


@given(ARRAYS, st.data())
def test_a_blob_gives_back_its_arrays_or_says_that_it_is_damaged(arrays, drawn) -> None:
    fs = MemoryFileSystem(lambda: 0)
    fs.make_directory("/folder")
    writer = BlobWriter(fs, "/folder/blob")
    made = {name: np.arange(count).astype(kind) for name, (kind, count) in arrays.items()}
    for name, array in made.items():
        writer.add(name, array)
    blob = writer.finish()
    writer.close()

    def read() -> dict[str, np.ndarray]:
        reader = BlobReader(fs, blob)
        return {name: reader.get(name, array.dtype)[0] for name, array in made.items()}

    found = read()
    for name, array in made.items():
        assert found[name].dtype == array.dtype and found[name].tolist() == array.tolist()
    at = drawn.draw(st.integers(0, blob.size_bytes - 1))
    stored = bytearray(read_file(fs, "/folder/blob") or b"")
    stored[at] ^= 1 << drawn.draw(st.integers(0, 7))
    with fs.create("/folder/blob", exclusive=False) as file:
        file.write(0, stored)
    with pytest.raises(LostSectionError, match=r"/folder/blob: the \d+ bytes at \d+ are not what was written"):
        read()
