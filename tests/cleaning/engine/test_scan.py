"""A clean that chooses the batches to read by key indexes: its output equals that of a clean that reads all batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.cleaning.engine import readahead, scan
from cordwood.cleaning.engine.facts import CleanSettings
from cordwood.cleaning.engine.partition import Cleaned, CleanRequest, clean_partition
from cordwood.cleaning.engine.scan import scan_by_index
from cordwood.common.errors import CorruptBatchError
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.wrapped import CountedStore
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.index.build import build
from cordwood.storage.index.files import secret_of_most, write_index
from cordwood.storage.index.search import Candidates, SparseIndex
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.replay import Producers
from tests.logs import make_log

pytestmark = pytest.mark.more

FS = PosixFileSystem()
SECRET = bytes(range(16))
BATCHES, RECORDS = 40, 8


def batch(base: int, keys: list[bytes], **how: Any) -> bytes:
    return encode_batch([Record(base + at, 1, key, b"v" * 40) for at, key in enumerate(keys)], **how)


def some_log(folder: Path) -> LogView:
    """Three clean segments of keys that are all different, and a dirty one with a few keys of the second."""
    size = BATCHES * RECORDS
    keys = [b"key-%d" % number for number in range(3 * size)]
    parts = [
        (base, [batch(at, keys[at : at + RECORDS]) for at in range(base, base + size, RECORDS)])
        for base in range(0, 3 * size, size)
    ]
    dirty = batch(3 * size, [keys[size + 17], b"new", keys[2 * size - 1]])
    return make_log(folder, *parts, (3 * size, [dirty]), [batch(3 * size + 3, [b"active"])])


def indexed(log: LogView, secret: bytes = SECRET) -> list[Path]:
    """Make the indexes of the clean segments; return their files."""
    for segment in log.segments[:3]:
        index = build(segment, secret, 1 << 30)
        assert index is not None
        write_index(FS, log.path, index)
    return sorted(Path(log.path, ".cordwood", "index").iterdir())


def request(log: LogView, secret: bytes | None) -> CleanRequest:
    """The segment before the active one is dirty."""
    return CleanRequest(
        first_dirty=log.segments[-2].base_offset,
        first_uncleanable=log.segments[-1].base_offset,
        now_ms=10,
        settings=CleanSettings(segment_bytes=15_000),
        producers=Producers(),
        probing=True,
        index_secret=secret,
    )


def cleaned(log: LogView, folder: Path, secret: bytes | None) -> tuple[Cleaned, dict[str, bytes]]:
    folder.mkdir()
    found = clean_partition(FS, log, str(folder), request(log, secret))
    return found, {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Grows by one for each segment that is looked up: whether an index served it."""
    found: list[bool] = []

    def noted(*args: Any, **choice: Any) -> Any:
        result = scan_by_index(*args, **choice)
        found.append(result is not None)
        return result

    monkeypatch.setattr(scan, "scan_by_index", noted)
    return found


def test_only_batches_with_candidates_are_read(tmp_path: Path, served: list[bool]) -> None:
    log = some_log(tmp_path / "t-0")
    whole = cleaned(log, tmp_path / "whole", None)
    indexed(log)
    counted = CountedStore(FS, suffix=".log")
    view = LogView(log.path, fs=counted, log_start_offset=0)
    assert cleaned(view, tmp_path / "by-index", SECRET) == whole
    assert served == [False] * 4 + [True, True, True, False]
    assert sorted(whole[0].kept) == [log.segments[at].base_offset for at in (0, 2, 3)]
    assert whole[0].counts.records_superseded == 2


REPLACED = b"\0" * 100


@pytest.mark.parametrize(
    "spoil",
    [
        lambda files, _: files[1].unlink(),
        lambda files, _: files[1].write_bytes(files[0].read_bytes()),
        lambda files, _: files[1].write_bytes(REPLACED),
        lambda files, _: files[1].write_bytes(b""),
        lambda _, log: indexed(log, bytes(16)),
    ],
    ids=["missing", "of another segment", "no index", "empty", "another secret"],
)
def test_an_index_that_is_not_believed_is_not_used(
    tmp_path: Path, served: list[bool], spoil: Callable[[list[Path], LogView], Any]
) -> None:
    log = some_log(tmp_path / "t-0")
    whole = cleaned(log, tmp_path / "whole", None)
    spoil(indexed(log), log)
    served.clear()
    assert cleaned(log, tmp_path / "by-index", SECRET) == whole
    assert served[1] is False


def test_an_index_flipped_anywhere_or_cut_at_any_length_changes_no_result(tmp_path: Path, served: list[bool]) -> None:
    log = some_log(tmp_path / "t-0")
    whole = cleaned(log, tmp_path / "whole", None)
    path = indexed(log)[1]
    stored = path.read_bytes()
    source = random.Random(1)
    places = range(len(stored))
    flipped = [(at, stored[:at] + bytes([stored[at] ^ 1 << source.randrange(8)]) + stored[at + 1 :]) for at in places]
    cut = [(size, stored[:size]) for size in places]
    for number, (at, data) in enumerate([*flipped[::7], *cut[::29]]):
        path.write_bytes(data)
        served.clear()
        assert cleaned(log, tmp_path / f"by-index-{number}", SECRET) == whole, at
        assert served == [True, False, True, False], f"byte {at} is not noticed"


def test_an_index_of_the_segment_as_it_was_is_not_used(tmp_path: Path, served: list[bool]) -> None:
    # One batch in the middle has other keys now, at the same position. Few batches are sampled: all are compared.
    log = some_log(tmp_path / "t-0")
    indexed(log)
    path = Path(log.segments[1].path)
    stored = path.read_bytes()
    size, base = len(stored) // BATCHES, BATCHES * RECORDS
    keys = [b"key-%d" % number for number in range(base, base + RECORDS)]
    first = batch(base, [*keys[:-1], b"key-%d" % (2 * base - 1)])
    assert len(first) == size
    path.write_bytes(first + stored[size:])
    whole = cleaned(log, tmp_path / "whole", None)
    assert whole[0].counts.records_superseded == 3
    served.clear()
    assert cleaned(log, tmp_path / "by-index", SECRET) == whole
    assert served == [True, False, True, False]


def test_what_an_index_does_not_cover_is_read(tmp_path: Path, served: list[bool]) -> None:
    log = some_log(tmp_path / "t-0")
    whole = cleaned(log, tmp_path / "whole", None)
    path = Path(log.segments[1].path)
    stored = path.read_bytes()
    path.write_bytes(stored[: len(stored) // 2])
    indexed(LogView(log.path, fs=FS, log_start_offset=0))
    path.write_bytes(stored)
    served.clear()
    assert cleaned(log, tmp_path / "by-index", SECRET) == whole
    assert served == [True, True, True, False]


def damage(log: LogView, segment: int) -> None:
    path = Path(log.segments[segment].path)
    stored = bytearray(path.read_bytes())
    stored[len(stored) // 2 + 200] ^= 1  # in a value
    path.write_bytes(stored)


def test_damage_in_a_batch_that_is_rewritten_is_found_though_nothing_in_it_goes(tmp_path: Path) -> None:
    log = some_log(tmp_path / "t-0")
    indexed(log)
    damage(log, 1)
    with pytest.raises(CorruptBatchError, match="CRC-32C mismatch"):
        cleaned(log, tmp_path / "by-index", SECRET)


def test_damage_in_a_segment_that_is_not_read_stays_and_is_found_where_all_is_read(tmp_path: Path) -> None:
    log = some_log(tmp_path / "t-0")
    indexed(log)
    damage(log, 0)
    found, _ = cleaned(log, tmp_path / "by-index", SECRET)
    assert log.segments[0].base_offset in found.kept
    with pytest.raises(CorruptBatchError, match="CRC-32C mismatch"):
        cleaned(log, tmp_path / "whole", None)


def test_records_whose_tags_agree_with_those_of_dirty_keys_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: list[bool]
) -> None:
    log = some_log(tmp_path / "t-0")
    whole = cleaned(log, tmp_path / "whole", None)
    indexed(log)
    monkeypatch.setattr(
        SparseIndex,
        "find",
        lambda *_: Candidates(np.full(BATCHES * RECORDS // 8, 255, np.uint8), entries=1),
    )
    served.clear()
    assert cleaned(log, tmp_path / "by-index", SECRET) == whole
    assert served == [True, True, True, False]


@pytest.mark.parametrize("read_all", [False, True])
def test_a_clean_in_place_uses_the_indexes_of_the_partition(tmp_path: Path, read_all: bool) -> None:
    (tmp_path / "logs").mkdir()
    log = some_log(tmp_path / "logs" / "t-0")
    indexed(log)
    assert secret_of_most(FS, log.path) == SECRET
    damage(log, 0)
    result = cordwood.clean_in_place(
        str(tmp_path / "logs"),
        overrides=["cleanup.policy=compact", "internal.segment.bytes=15000"],
        first_dirty=log.segments[3].base_offset,
        high_watermark="end",
        ignore_ratio=True,
        single_copy=True,
        read_all=read_all,
        verify=False,
        engine="here",
    )
    assert ("CRC-32C mismatch" in result.text()) == read_all
    rewritten = LogView(log.path, fs=FS, log_start_offset=0).segments[1]
    assert (rewritten.size_bytes == log.segments[1].size_bytes) == read_all


def spread_log(folder: Path) -> LogView:
    """A clean segment, and a dirty segment that supersedes a record in every fourth batch of the clean one."""
    size = BATCHES * RECORDS
    keys = [b"key-%d" % number for number in range(size)]
    clean = [batch(at, keys[at : at + RECORDS]) for at in range(0, size, RECORDS)]
    dirty = batch(size, keys[2 * RECORDS + 3 :: 4 * RECORDS])
    end = size + len(keys[2 * RECORDS + 3 :: 4 * RECORDS])
    return make_log(folder, (0, clean), (size, [dirty]), [batch(end, [b"active"])])


def test_once_a_record_goes_the_others_are_looked_up_as_they_are_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = spread_log(tmp_path / "t-0")
    whole = cleaned(log, tmp_path / "whole", None)
    index = build(log.segments[0], SECRET, 1 << 30)
    assert index is not None
    write_index(FS, log.path, index)
    monkeypatch.setattr(readahead.Staying, "window_bytes", 1)
    monkeypatch.setattr(readahead, "GAP_BYTES", 1)
    read: list[int] = []
    looked_up = scan._looked_up

    def noted(*args: Any) -> Iterator[Any]:
        for found in looked_up(*args):
            read.extend(found[0].tolist())
            yield found

    monkeypatch.setattr(scan, "_looked_up", noted)
    every = Candidates(np.full(BATCHES * RECORDS // 8, 255, np.uint8), entries=1)
    assert cleaned(log, tmp_path / "spread", SECRET) == whole
    assert read == [2]
    read.clear()
    # The hashes of all records agree with those of dirty keys.
    monkeypatch.setattr(SparseIndex, "find", lambda *_: every)
    assert cleaned(log, tmp_path / "agreeing", SECRET) == whole
    assert read == [0, 1, 2]
    assert whole[0].counts.records_superseded == BATCHES // 4
