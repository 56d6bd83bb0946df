"""Listings against the facts of real brokers' directories, and of directories in every other state."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cordwood.api import ls
from cordwood.common.errors import NotFoundError
from cordwood.common.types import Codec
from cordwood.fs.posix import PosixFile, PosixFileSystem
from cordwood.record.batch import encode_batch, encode_message_set
from cordwood.record.record import Record
from cordwood.storage.formats.filenames import META_PROPERTIES, OFFSET_CHECKPOINTS
from cordwood.storage.node.listing import Listing, PartitionListing
from tests.fixtures import CRASHED, NAMES, STOPPED, copy_of, fixture, reads
from tests.storage.damage_sites import facts_of, shape_of


def by_name(listing: Listing) -> dict[str, PartitionListing]:
    return {one.name: one for one in listing.partitions}


# ---- real brokers' directories ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STOPPED)
def test_bytes_and_segments_equal_the_facts_of_the_stopped_broker(name: str) -> None:
    listing = ls(str(fixture(name)))
    found = {
        os.path.relpath(one.path, fixture(name)): {"bytes": one.size_bytes, "segments": len(one.segments)}
        for one in listing.partitions
    }
    assert found == shape_of(name)
    assert all(directory.summary == "clean shutdown" for directory in listing.directories)
    assert not [one.damage for one in listing.partitions if one.damage]


@pytest.mark.parametrize("name", CRASHED)
def test_a_crashed_brokers_partitions_are_listed_as_they_will_be_once_loaded(name: str) -> None:
    listing = by_name(ls(str(fixture(name))))
    recovered = shape_of(f"{name}-recovered")
    # A swap is completed by renaming; only data that a broker truncates for damage is still listed.
    cut = {"crash-0", "plain-0", "plain-1", "moving-0"} if name.endswith("torn") else set()
    for path, one in listing.items():
        # Of the torn segments, only one has another segment behind it; a flipped bit takes a CRC to be found.
        damaged = (name, path) == ("kraft-crashed-torn", "moving-0")
        assert one.states == (("crashed", "damaged", "will be cut") if damaged else ("crashed",))
        if path not in cut and path != "__cluster_metadata-0":
            assert {"bytes": one.size_bytes, "segments": len(one.segments)} == recovered[path], path


@pytest.mark.parametrize("name", [name for name in STOPPED if not name.endswith(("-before", "before-2", "before-3"))])
def test_the_cleaner_goes_on_where_its_last_clean_ended(name: str) -> None:
    family, _ = facts_of(name)
    listing = by_name(ls(str(fixture(name))))
    cleanings = family["archives"].get(name, {}).get("cleanings", {})
    assert cleanings or name.startswith(("kraft-crashed", "legacy-mixed")) or name.endswith("4.3.1")
    for partition, cleans in cleanings.items():
        one = listing[partition]
        # Old brokers do not log the offset at which they stopped.
        if (end := cleans[-1]["end_offset"]) and end >= one.log_start_offset:
            assert one.first_dirty_offset == end
        assert one.clean_bytes is not None and one.dirty_bytes is not None
        assert one.clean_bytes + one.dirty_bytes == one.size_bytes
        bases = [segment.base_offset for segment in one.segments]
        below = sum(base < (one.first_dirty_offset or 0) for base in bases)
        assert one.clean_bytes == sum(segment.size_bytes for segment in one.segments[:below])


@pytest.mark.parametrize("name", [name for name in STOPPED if "crashed" not in name])
def test_offsets_records_and_times_are_those_that_a_consumer_met(name: str) -> None:
    listing = {one.name: one for one in ls(str(fixture(name))).partitions if "future" not in one.states}
    lines = reads(name, "read_uncommitted")
    times: dict[str, list[int]] = {}
    for line in lines:
        if "offset" in line:
            times.setdefault(f"{line['topic']}-{line['partition']}", []).append(line["timestamp"])
    ends = [line for line in lines if "end_offset" in line]
    assert ends
    for end in ends:
        path = f"{end['topic']}-{end['partition']}"
        one = listing[path]
        assert (one.log_start_offset, one.log_end_offset) == (end["log_start_offset"], end["end_offset"])
        if one.log_start_offset != one.segments[0].base_offset:
            continue  # it met none of those below
        assert (one.records, one.records_exact) == (end["records"], True)
        if stamped := [time for time in times.get(path, []) if time >= 0]:
            assert one.newest_ms is not None and one.oldest_ms is not None
            assert one.newest_ms == max(stamped)
            assert min(stamped) <= one.oldest_ms <= one.newest_ms


def test_what_a_directory_is_going_through_is_its_state() -> None:
    listing = ls(str(fixture("kraft-before")))
    states = {one.name[:4]: one.states for one in listing.partitions if one.states}
    assert states == {"astr": ("stray",), "gone": ("to be deleted",), "gooo": ("to be deleted",)}
    policies = {one.name: one.policy for one in listing.partitions}
    assert (policies["orders-0"].value, policies["sessions-0"].value) == (("compact",), ("compact", "delete"))
    assert policies["orders-0"].source == f"topic orders in {fixture('kraft-before')}/__cluster_metadata-0"
    assert (policies["retained-forever-0"].value, policies["null-keys-0"].value) == ((), ("delete",))
    assert (policies["astray-0"].value, policies["astray-0"].source) == (None, "not in the metadata")
    assert listing.metadata_next_offset == 794


def test_codecs_are_those_of_batches_with_records() -> None:
    listing = by_name(ls(str(fixture("kraft-before")), topics=["codec-*", "payments", "empty"]))
    assert {name: one.codecs for name, one in listing.items() if name.startswith("codec")} == {
        f"codec-{codec}-0": (codec,) for codec in ("gzip", "lz4", "none", "snappy", "zstd")
    }
    assert listing["payments-0"].codecs == ("none", "lz4", "zstd")
    assert listing["empty-0"].codecs == ()
    assert (listing["empty-0"].oldest_ms, listing["empty-0"].segments[0].last_offset) == (None, None)


def test_a_future_twin_and_the_partition_it_comes_from_know_each_other() -> None:
    disk = [one for one in ls(str(fixture("kraft-jbod-before"))).partitions if one.name == "disk-0-1"]
    assert [(one.states, one.replicas) for one in disk] == [((), 1), (("future",), None)]
    assert disk[0].notes == (f"is being copied to {disk[1].path}",)
    assert disk[1].first_dirty_offset is None


def test_a_partition_on_two_disks_is_a_duplicate_on_both(tmp_path: Path) -> None:
    broker = copy_of(fixture("kraft-jbod-before"), tmp_path / "broker")
    shutil.copytree(broker / "a" / "disk-1-0", broker / "b" / "disk-1-0")
    twins = [one for one in ls(str(broker)).partitions if one.name == "disk-1-0"]
    assert [one.states for one in twins] == [("duplicate",)] * 2
    assert twins[0].notes == (f"is also in {broker}/b/disk-1-0; a broker refuses to start with both",)


def test_without_metadata_the_cleaners_checkpoint_still_tells_clean_from_dirty() -> None:
    listing = by_name(ls(str(fixture("legacy-v1-after"))))
    compacted, keyless = listing["v1-none-0"], listing["v1-keyless-0"]
    assert (compacted.policy.value, compacted.policy.source) == (None, "no metadata log")
    assert compacted.first_dirty_offset and compacted.clean_bytes
    assert (keyless.first_dirty_offset, keyless.clean_bytes, keyless.dirty_bytes) == (None, None, None)
    told = by_name(ls(str(fixture("legacy-v1-after")), overrides=["v1-none:cleanup.policy=delete"]))
    assert (told["v1-none-0"].policy.value, told["v1-none-0"].first_dirty_offset) == (("delete",), None)


@pytest.mark.parametrize(("entry", "first_dirty"), [(3, 10), (10, 10), (15, 15), (21, 21), (22, 10)])
def test_a_checkpoint_entry_outside_of_the_log_counts_as_none(tmp_path: Path, entry: int, first_dirty: int) -> None:
    path = a_partition(tmp_path / "t-0", a_batch(0), a_batch(10), a_batch(20))
    (path / f"{0:020d}.log").unlink()
    (tmp_path / "cleaner-offset-checkpoint").write_text(f"0\n1\nt 0 {entry}\n")
    (one,) = ls(str(tmp_path)).partitions
    assert (one.log_start_offset, one.log_end_offset, one.first_dirty_offset) == (10, 21, first_dirty)
    assert one.clean_bytes == sum(base < first_dirty for base in (10, 20)) * len(a_batch(10))


def test_a_value_that_kafka_refuses_makes_one_topics_policy_unknown_and_no_more(tmp_path: Path) -> None:
    settings = tmp_path / "server.properties"
    settings.write_text("log.cleaner.min.compaction.lag.ms=5\n")
    told = ls(
        str(fixture("kraft-before")), server_properties=str(settings), overrides=["orders:max.compaction.lag.ms=2"]
    )
    policies = {one.name: one.policy for one in told.partitions}
    assert policies["orders-0"].value is None
    assert policies["orders-0"].source.startswith("wrong configs: topic orders: min.compaction.lag.ms=5")
    assert policies["sessions-0"].value == ("compact", "delete")


@pytest.mark.parametrize("name", ["kraft-after-2", "legacy-mixed-before", "kraft-crashed-writes"])
def test_index_entries_and_files_of_each_segment(name: str) -> None:
    for one in ls(str(fixture(name)), index_entries=True).partitions:
        for segment in one.segments:
            stem = Path(one.path) / f"{segment.base_offset:020d}"
            kinds = ("log", "index", "timeindex", "txnindex", "snapshot")
            assert list(segment.files) == [kind for kind in kinds if stem.with_suffix(f".{kind}").exists()]
            assert segment.index_entries is not None
            for kind, entry_bytes in (("index", 8), ("timeindex", 12), ("txnindex", 34)):
                if kind in segment.index_entries:
                    whole = stem.with_suffix(f".{kind}").read_bytes()
                    entries = segment.index_entries[kind]
                    assert entries is not None and len(whole.rstrip(b"\0")) <= entries * entry_bytes <= len(whole)
    assert all(segment.index_entries is None for one in ls(str(fixture(name))).partitions for segment in one.segments)


def test_filters_take_names_numbers_and_globs() -> None:
    def names(topics: str = "", partitions: str = "") -> list[str]:
        found = ls(str(fixture("kraft-before")), topics=topics.split(), partitions=partitions.split())
        return [one.name for one in found.partitions]

    assert names("orders") == names("order?", "[0-2]") == names("", "orders-*") == ["orders-0", "orders-1", "orders-2"]
    assert names("orders sessions", "1") == ["orders-1", "sessions-1"]
    with pytest.raises(NotFoundError, match=r"matches nothing-*"):
        names("nothing-*")


# ---- locks -----------------------------------------------------------------------------------------------------------

_HOLD = """
import fcntl, sys
with open('/proc/self/comm', 'w') as comm: comm.write(sys.argv[2])
lock = open(sys.argv[1], 'r+')
fcntl.lockf(lock, fcntl.LOCK_EX)
print('held', flush=True)
sys.stdin.read()
"""


@contextmanager
def held(lock: Path, program: str) -> Iterator[int]:
    """Hold a file's lock in another process, as a broker does; gives that process's id."""
    lock.touch()
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, lock, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            yield holder.pid
        finally:
            holder.kill()


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux shows who holds a lock")
@pytest.mark.parametrize(
    ("program", "state", "words"),
    [
        ("java", "live", "live: a broker is running on it, java (pid {})"),
        ("rsync", "locked", "locked by rsync (pid {})"),
    ],
)
def test_a_held_lock_makes_a_directory_live_or_locked(tmp_path: Path, program: str, state: str, words: str) -> None:
    broker = copy_of(fixture("kraft-jbod-before"), tmp_path / "broker")
    (broker / "a" / ".kafka_cleanshutdown").unlink()
    with held(broker / "a" / ".lock", program) as pid:
        listing = ls(str(broker))
        assert [one.state for one in listing.directories] == [state, None]
        assert listing.directories[0].summary == words.format(pid)
        assert {one.states for one in listing.partitions if "/a/" in one.path} == {(state,)}
    crashed = ls(str(broker)).directories[0]
    assert (crashed.state, crashed.summary) == ("crashed", "no clean shutdown")


# ---- damage ----------------------------------------------------------------------------------------------------------


def a_partition(path: Path, *segments: bytes) -> Path:
    """A directory with one segment per argument, ten offsets each."""
    path.mkdir(parents=True)
    for number, data in enumerate(segments):
        (path / f"{10 * number:020d}.log").write_bytes(data)
    return path


def a_batch(offset: int, **header: Any) -> bytes:
    return encode_batch([Record(offset, 1000 + offset, b"k", b"v")], **header)


def test_bytes_that_are_no_batch_are_damage_with_their_place(tmp_path: Path) -> None:
    good = a_batch(0) + a_batch(1)
    path = a_partition(tmp_path / "t-0", good[:70] + b"\xff" * 30 + good[100:] + a_batch(2), a_batch(10))
    (one,) = ls(str(path)).partitions
    assert one.states == ("damaged",)
    (damage,) = one.damage
    assert (damage.path, damage.position) == (f"{path}/{0:020d}.log", 70)
    assert (one.records, one.log_end_offset, one.segments[0].last_offset) == (3, 11, 2)


@pytest.mark.parametrize("tail", [a_batch(11)[:-1], bytes(500), b"\0\0"])
def test_what_a_stop_leaves_at_the_end_is_damage_anywhere_but_there(tmp_path: Path, tail: bytes) -> None:
    (at_end,) = ls(str(a_partition(tmp_path / "t-0", a_batch(0), a_batch(10) + tail))).partitions
    assert (at_end.states, at_end.log_end_offset) == ((), 11)
    (before,) = ls(str(a_partition(tmp_path / "t-1", a_batch(0) + tail, a_batch(10)))).partitions
    assert before.states == ("damaged",)


def test_what_cannot_be_read_is_said_and_the_rest_is_listed(tmp_path: Path) -> None:
    segment = a_partition(tmp_path / "a-0", a_batch(0)) / f"{10:020d}.log"
    index = a_partition(tmp_path / "b-0", a_batch(0)) / f"{0:020d}.index"
    swap = a_partition(tmp_path / "c-0", a_batch(0)) / f"{0:020d}.log.swap"  # without it c-0's contents are unknown
    checkpoint = tmp_path / "log-start-offset-checkpoint"
    for path in (segment, index, swap, checkpoint):
        os.mkfifo(path)
    (tmp_path / "meta.properties").mkdir()
    listing = ls(str(tmp_path), index_entries=True)
    what = "cannot be read: Not a regular file but a FIFO, socket or device"
    assert [(one.name, one.states, one.records, one.unreadable) for one in listing.partitions] == [
        ("a-0", ("unreadable",), 1, (f"{segment} {what}",)),
        ("b-0", (), 1, ()),
        ("c-0", ("unreadable",), 0, (f"{swap} {what}",)),
    ]
    assert [one.records_exact for one in listing.partitions] == [False, True, False]
    assert listing.partitions[1].segments[0].index_entries == {"index": None}
    assert [(error.path, error.what) for error in listing.directories[0].problems] == [
        (f"{tmp_path}/meta.properties", "cannot be read: Is a directory"),
        (str(checkpoint), what),
    ]


@pytest.mark.parametrize("name", [*OFFSET_CHECKPOINTS, META_PROPERTIES])
def test_each_file_of_a_directory_that_cannot_be_decoded_is_said(name: str, tmp_path: Path) -> None:
    a_partition(tmp_path / "a-0", a_batch(0))
    (tmp_path / name).write_bytes(b"version=nonsense\n")
    (directory,) = ls(str(tmp_path)).directories
    assert [error.path for error in directory.problems] == [str(tmp_path / name)]


def test_record_counts_of_damaged_headers_never_go_below_zero(tmp_path: Path) -> None:
    batch = bytearray(a_batch(0))
    batch[57:61] = b"\x80\0\0\0"
    (one,) = ls(str(a_partition(tmp_path / "t-0", bytes(batch) + a_batch(1)))).partitions
    assert (one.records, one.records_exact) == (1, True)


def test_a_delete_horizon_is_not_taken_for_a_time(tmp_path: Path) -> None:
    (one,) = ls(str(a_partition(tmp_path / "t-0", a_batch(5, delete_horizon_ms=99), a_batch(10)))).partitions
    assert (one.oldest_ms, one.newest_ms) == (1005, 1010)


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_in_wrappers_are_counted_unless_there_are_too_many_bytes(tmp_path: Path, magic: int) -> None:
    noise = os.urandom(1 << 19)
    small = encode_message_set(magic, [Record(i, 5, b"k", b"v") for i in range(7)], codec=Codec.GZIP)
    large = encode_message_set(magic, [Record(i, 5, b"k", noise) for i in range(10, 13)], codec=Codec.GZIP)
    (one,) = ls(str(a_partition(tmp_path / "t-0", small, large))).partitions
    assert [(s.records, s.records_exact) for s in one.segments] == [(7, True), (1, False)]
    assert (one.records, one.records_exact, one.codecs) == (8, False, ("gzip",))


def test_a_wrapper_that_cannot_be_opened_counts_as_one_at_least(tmp_path: Path) -> None:
    small = bytearray(encode_message_set(1, [Record(i, 5, b"k", b"v") for i in range(7)], codec=Codec.GZIP))
    small[-1] ^= 1
    (one,) = ls(str(a_partition(tmp_path / "t-0", bytes(small)))).partitions
    assert (one.records, one.records_exact) == (1, False)


def test_a_directory_that_is_not_named_like_a_partition_is_listed_by_its_name(tmp_path: Path) -> None:
    (one,) = ls(str(a_partition(tmp_path / "backup", a_batch(0)))).partitions
    assert (one.name, one.topic_partition, one.records, one.policy.value) == ("backup", None, 1, None)


# ---- Files that vanish -----------------------------------------------------------------------------------------------


class Busy(PosixFileSystem):
    """Files that another process changes: before a certain file is opened, a change happens, once."""

    def __init__(self, path: str, happens: Any) -> None:
        self.path, self.happens = path, happens

    def open(self, path: str) -> PosixFile:
        if path == self.path:
            self.path = ""
            self.happens()
        return super().open(path)


def test_a_segment_that_the_cleaner_replaced_meanwhile_is_read_anew(tmp_path: Path) -> None:
    path = a_partition(tmp_path / "t-0", a_batch(0) + a_batch(1), a_batch(10), a_batch(20))
    second = path / f"{10:020d}.log"

    def cleaned() -> None:
        (path / f"{0:020d}.log").write_bytes(a_batch(1) + a_batch(10))
        second.rename(f"{second}.deleted")

    (one,) = ls(str(path), fs=Busy(str(second), cleaned)).partitions
    assert ([segment.base_offset for segment in one.segments], one.records) == ([0, 20], 3)


def test_a_partition_that_was_deleted_meanwhile_is_left_out(tmp_path: Path) -> None:
    for number in range(3):
        a_partition(tmp_path / f"t-{number}", a_batch(0))
    gone = tmp_path / "t-1"
    busy = Busy(str(gone / f"{0:020d}.log"), lambda: gone.rename(tmp_path / "t-1.0123-delete"))
    assert [one.name for one in ls(str(tmp_path), fs=busy).partitions] == ["t-0", "t-2"]


def test_listing_changes_nothing(tmp_path: Path) -> None:
    for name in ("kraft-crashed-swap", "legacy-mixed-before"):
        broker = copy_of(fixture(name), tmp_path / name)
        before = state_of(broker)
        ls(str(broker), index_entries=True)
        assert state_of(broker) == before


def state_of(directory: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(directory.rglob("*"))}


def test_all_fixtures_are_listed() -> None:
    assert {*STOPPED, *CRASHED} == {*NAMES} and len(NAMES) == 35
