"""Logs with their tier as one store."""

from __future__ import annotations

import itertools
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cordwood.common.errors import CorruptFileError, DataError, RequestError
from cordwood.fs.base import Link
from cordwood.fs.object_targets import ObjectTargetStore
from cordwood.fs.posix import PosixFile, PosixFileSystem
from cordwood.storage.formats.filenames import LOG_START_OFFSETS
from cordwood.storage.log.view import LogView
from cordwood.storage.tier.store import Tier, TierStore, with_tier
from tests.fixtures import TIERED, copy_of, facts, fixture


def with_its_tier(name: str, root: Path | None = None) -> TierStore:
    """The store that shows the logs of a fixture, or of a copy of it, with their tier."""
    tier, *keys = (f"{root or fixture(name)}/{place}" for place in TIERED[name])
    store = with_tier(PosixFileSystem(), tier, keys)
    assert isinstance(store, TierStore)
    return store


@pytest.mark.parametrize("name", TIERED)
def test_the_log_of_each_partition_is_made_of_its_local_and_remote_segments(name: str) -> None:
    store = with_its_tier(name)
    for partition, wanted in facts(name)["partitions"].items():
        log = LogView(f"{fixture(name)}/kafka-logs/{partition}", fs=store)
        whole = wanted["materialised"]
        assert (len(log.segments), log.size_bytes) == (whole["segments"], whole["bytes"]), partition
        assert (log.log_start_offset, log.next_offset) == (wanted["log_start_offset"], wanted["end_offset"])
        if (part := store.remote_part(log.path)) is not None:
            assert part.local_start == wanted["first_local_offset"]
        assert (part is not None) == ("remote" in wanted)
        # No batch is cut, and none is there twice.
        ends = [(batch.base_offset, batch.last_offset) for batch in log.batches()]
        assert all(end < start for (_, end), (start, _) in itertools.pairwise(ends))


def test_a_task_opens_the_store_where_it_runs() -> None:
    store = with_its_tier("local-tiered")
    path = f"{fixture('local-tiered')}/kafka-logs/orders-0"
    opened = pickle.loads(pickle.dumps(store.location())).open()
    assert opened.list(path) == store.list(path)


def test_remote_files_are_copied_but_never_linked(tmp_path: Path) -> None:
    store, name = with_its_tier("local-tiered"), "00000000000000000000.log"
    source = f"{fixture('local-tiered')}/kafka-logs/orders-0/{name}"
    assert store.path_on_disk(source) is None
    assert not store.try_link(Link.HARD, source, str(tmp_path / "linked"))
    store.copy(source, str(tmp_path / name))
    assert (tmp_path / name).stat().st_size == store.stat(source).size_bytes > 0
    with store.open(source) as file:
        assert (tmp_path / name).read_bytes() == file.read(0, 1 << 30)
        assert file.read(file.size() - 3, 100) == (tmp_path / name).read_bytes()[-3:]


def test_a_segment_that_was_just_deleted_is_read_from_the_tier(tmp_path: Path) -> None:
    root = copy_of(fixture("local-tiered"), tmp_path / "copy")
    path = root / "kafka-logs" / "orders-0"
    before = LogView(str(path), fs=with_its_tier("local-tiered")).size_bytes
    (path / "00000000000000000175.log.deleted").write_bytes(b"as a broker leaves it for a minute")
    assert LogView(str(path), fs=with_its_tier("local-tiered", root)).size_bytes == before > 80_000


def test_a_missing_object_is_named(tmp_path: Path) -> None:
    root = copy_of(fixture("local-tiered"), tmp_path / "copy")
    lost = next((root / "kafka-tiered-storage").glob("orders-0-*/*.log"))
    for file in lost.parent.glob(f"{lost.stem}.*"):
        file.unlink()
    log = LogView(f"{root}/kafka-logs/orders-0", fs=with_its_tier("local-tiered", root))
    with pytest.raises(CorruptFileError, match="is not in the tier"):
        list(log.records())


def test_a_wrong_record_in_the_metadata_topic_is_named(tmp_path: Path) -> None:
    root = copy_of(fixture("local-tiered"), tmp_path / "copy")
    for log in (root / "kafka-logs").glob("__remote_log_metadata-*/*.log"):
        shutil.copyfile(root / "kafka-logs" / "stuck-0" / "00000000000000000000.log", log)
    with pytest.raises(DataError, match="__remote_log_metadata"):
        LogView(f"{root}/kafka-logs/orders-0", fs=with_its_tier("local-tiered", root))


@pytest.mark.parametrize(("prefix", "given"), [("prod-", "prod-"), ("prod-", "prod"), ("prod", "prod"), ("p/", "p")])
def test_a_tier_may_begin_in_mid_name(prefix: str, given: str) -> None:
    store, source = ObjectTargetStore(), fixture("aiven-s3") / "bucket" / "kafka"
    bucket = f"memory://{prefix.strip('/-')}-of-{given.strip('-')}{len(prefix)}"
    for path in source.glob("payments-*/0/*"):
        store.put(f"{bucket}/{prefix}{path.relative_to(source)}", path.read_bytes())
    layout = Tier(f"{bucket}/{given}").open(store)
    assert {segment.topic for segment in layout.segments()} == {"payments"}
    with pytest.raises(RequestError, match="nothing is there"):
        Tier(f"{bucket}/prodigal").open(store)


def test_a_directorys_log_starts_are_read_once_per_listing() -> None:
    opened = list[str]()

    class Watched(PosixFileSystem):
        def open(self, path: str) -> PosixFile:
            opened.append(Path(path).name)
            return super().open(path)

    logs = fixture("local-tiered") / "kafka-logs"
    store = with_tier(Watched(), f"{fixture('local-tiered')}/kafka-tiered-storage")
    for _ in range(2):  # the first one reads the metadata topic, too
        opened.clear()
        store.list(str(logs))
        assert all(store.list(str(path)) for path in logs.glob("*-0"))
    assert opened.count(LOG_START_OFFSETS) == 1


def test_threads_read_the_metadata_topic_once() -> None:
    opened = list[str]()

    class Watched(PosixFileSystem):
        def open(self, path: str) -> PosixFile:
            opened.append(path)
            return super().open(path)

    logs = fixture("local-tiered") / "kafka-logs"
    store = with_tier(Watched(), f"{fixture('local-tiered')}/kafka-tiered-storage")
    assert isinstance(store, TierStore)
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(store.remote_part, map(str, [logs / "orders-0", logs / "trimmed-0"] * 8)))
    assert all(parts)
    read = [path for path in opened if "__remote_log_metadata" in path and path.endswith(".log")]
    assert len(read) == len(set(read)) == 3


@pytest.mark.parametrize("places", ["both disks", "the folder of the disks", "one disk"])
def test_the_metadata_topic_may_be_on_another_disk_of_the_broker(places: str, tmp_path: Path) -> None:
    root = copy_of(fixture("local-tiered"), tmp_path / "copy")
    (root / "disks" / "second").mkdir(parents=True)
    (root / "kafka-logs").rename(root / "disks" / "first")
    for path in (root / "disks" / "first").glob("__remote_log_metadata-*"):
        path.rename(root / "disks" / "second" / path.name)
    disks = root / "disks"
    given = {"both disks": [disks / "first", disks / "second"], "the folder of the disks": [disks], "one disk": []}
    store = with_tier(PosixFileSystem(), str(root / "kafka-tiered-storage"), places=map(str, given[places]))
    if places == "one disk":
        with pytest.raises(RequestError, match="Give all log directories"):
            LogView(f"{disks}/first/orders-0", fs=store)
    else:
        assert len(LogView(f"{disks}/first/orders-0", fs=store).segments) == 8
        assert len(LogView(f"{disks}/first/plain-0", fs=store).segments) == 1
