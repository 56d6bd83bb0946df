"""Tables of latest values compared with a plain replay in Python: of random logs, of real brokers' logs, of changes."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

import cordwood
from cordwood.commands.options import TableOptions
from cordwood.commands.table import prepare
from cordwood.commands.table_point import partitions_of
from cordwood.common.errors import CorruptBatchError, RequestError
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.check import Severity
from cordwood.storage.formats.filenames import CLUSTER_METADATA_TOPIC, DirectoryState
from cordwood.storage.log.view import LogView
from cordwood.storage.node.cluster import Cluster
from cordwood.storage.node.node import LocatedPartition, Node
from cordwood.tables.newest import NewestTask, TableRun, cut, scan_here
from tests.commands.growing_logs import PAIRS, Pair
from tests.commands.in_process import InThisProcess
from tests.fixtures import NAMES, PACKED, fixture, reads
from tests.knobs import drawn, scaled
from tests.tables.replayed_tables import TIME, RandomLog, Row, random_log
from tests.tasks.spark.logs import random_log as scripted_log

pytestmark = pytest.mark.more


#: Offset, key and value; or digests of these.
ConsumedRecord = tuple[int, bytes | None, bytes | None]


def replay_of_consumer(records: Iterable[ConsumedRecord], partition: int, end_offset: int) -> dict[bytes, Row]:
    """The replay of a consumer's records."""
    found: dict[bytes, Row] = {}
    for offset, key, value in records:
        if key is not None and offset < end_offset:
            found[key] = key, value, partition, offset
    return found


def table_of(
    *paths: Path,
    as_of: int | str | Mapping[int, int] | None = None,
    since: Mapping[int, int] | None = None,
    deletes: bool = True,
    chunk_records: int = 16,
    ranges: int = 4,
    run_bytes: int = 600,
    scan: Callable[[Sequence[Sequence[TableRun]]], list[NewestTask]] = scan_here,
) -> dict[bytes, Row]:
    """The table of a topic by all stages, in this process, with tiny runs and chunks."""
    options = TableOptions(as_of=as_of, since=since, deletes=deletes, key="bytes", value="bytes", high_watermark="end")
    made = prepare([str(path) for path in paths], options, run_bytes=run_bytes)
    logs = cut(made.point.slices, b"secret of 16 byt", chunk_records=chunk_records, ranges=ranges)
    found: dict[bytes, Row] = {}
    for batch in made.rows_format.batches(scan(logs)):
        for row in batch.to_pylist():
            assert row["key"] not in found, "each key once"
            if deletes:
                assert row["deleted"] is (row["value"] is None)
            found[row["key"]] = row["key"], row["value"], row["partition"], row["offset"]
    return found


def points_of(log: RandomLog, random: Random, count: int) -> Iterator[int]:
    """Offsets that a table may be of."""
    for _ in range(count):
        yield random.randint(log.log_start_offset, log.last_stable_offset)


LOGS, POINTS = scaled(20, 300), scaled(4, 20)


# ---- random logs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(LOGS))
def test_the_table_of_a_random_log_is_that_of_a_plain_replay(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    log = random_log(random, tmp_path / "users-3")
    assert table_of(log.path) == log.replay(log.last_stable_offset)
    for end in points_of(log, random, POINTS):
        whole = log.replay(end)
        assert table_of(log.path, as_of=end) == whole
        values = {key: row for key, row in whole.items() if row[1] is not None}
        assert table_of(log.path, as_of=end, deletes=False) == values


@pytest.mark.parametrize("seed", range(LOGS))
def test_a_table_as_of_a_time_ends_at_the_first_record_that_is_as_late(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    log = random_log(random, tmp_path / "users-3")
    for _ in range(POINTS // 2):
        ms = random.randint(TIME - 100, max(TIME, *(one.timestamp for one in log.records)) + 100)
        text = datetime.fromtimestamp(ms / 1000, UTC).isoformat()
        assert table_of(log.path, as_of=text) == log.replay(log.offset_at(ms))


@pytest.mark.parametrize("seed", range(LOGS))
def test_changes_in_ten_steps_make_the_whole_table(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    log = random_log(random, tmp_path / "users-3")
    first, *ends = sorted(points_of(log, random, 11))
    table, before = table_of(log.path, as_of=first), first
    for end in ends:
        changes = table_of(log.path, since={3: before}, as_of=end)
        assert changes == log.replay(end, start_offset=before)
        table, before = {**table, **changes}, end
    assert table == log.replay(ends[-1])


# ---- logs of real brokers --------------------------------------------------------------------------------------------


def digest(data: bytes | None) -> bytes | None:
    return None if data is None else sha256(data).digest()


def digest_in(line: dict[str, Any], what: str) -> bytes | None:
    """The digest of a key or value that a consumer wrote down: as text, as base64, or as its digest if it is large."""
    if f"{what}_sha256" in line:
        return bytes.fromhex(line[f"{what}_sha256"])
    if f"{what}_base64" in line:
        return digest(b64decode(line[f"{what}_base64"]))
    return None if line[what] is None else digest(line[what].encode())


def committed(name: str, topic: str) -> dict[int, list[ConsumedRecord]]:
    """A real consumer's records of a topic, by partition; without a consumer, our reader's records."""
    found: dict[int, list[ConsumedRecord]] = {}
    if list(PACKED.glob(f"*/{name}.read_committed.jsonl.gz")):
        for one in reads(name, "read_committed"):
            if one["topic"] == topic and "offset" in one:
                consumed = one["offset"], digest_in(one, "key"), digest_in(one, "value")
                found.setdefault(one["partition"], []).append(consumed)
        return found
    for place in Node.open(PosixFileSystem(), [str(fixture(name))]).places:
        if place.name is not None and place.topic == topic and place.name.state is DirectoryState.CURRENT:
            found[place.name.topic_partition.partition] = list(_consumed(place.log()))
    return found


def _consumed(log: LogView) -> Iterator[ConsumedRecord]:
    """Our reader's records, up to a batch that a crash cut off."""
    with suppress(CorruptBatchError):
        for one in log.records(isolation="read_committed"):
            yield one.offset, digest(one.key), digest(one.value)


def topics_of(name: str) -> list[str]:
    places = Node.open(PosixFileSystem(), [str(fixture(name))]).places
    topics = {one.topic for one in places if one.name is not None and one.name.state is DirectoryState.CURRENT}
    return sorted(topic for topic in topics if topic is not None and topic != CLUSTER_METADATA_TOPIC)


@pytest.mark.parametrize("name", drawn(NAMES))
def test_tables_of_a_real_broker_are_what_a_consumer_replays(name: str) -> None:
    random = Random(name)
    topics = topics_of(name)
    for topic in drawn(topics):
        refused = refusal_of(name, topic, random)
        if refused is not None:
            assert (refused.path, refused.position) in damage_of(name, topic), topic


def places_of(name: str, topic: str) -> dict[int, LocatedPartition]:
    """The partitions of a fixture's topic, by number."""
    return partitions_of(Cluster.open(PosixFileSystem(), [str(fixture(name))]), [name], topic)[0]


def refusal_of(name: str, topic: str, random: Random) -> CorruptBatchError | None:
    """Compare the tables of a topic; return the message of damage that ends the read, if there is any."""
    try:
        compare_tables(name, topic, random)
    except CorruptBatchError as error:
        return error
    return None


def damage_of(name: str, topic: str) -> list[tuple[str, int | None]]:
    """Where `check` finds damage in a topic: its files and positions."""
    found = [one for place in places_of(name, topic).values() for one in cordwood.check(place.path)]
    return [(one.path, one.position) for one in found if one.severity is Severity.DAMAGE]


def compare_tables(name: str, topic: str, random: Random) -> None:
    """Compare the tables of a fixture's topic, as of several points."""
    places = places_of(name, topic)
    paths = [Path(one.path) for one in places.values()]
    lines = committed(name, topic)
    starts = {number: place.log().log_start_offset for number, place in places.items()}
    whole = cordwood.table_offsets(*map(str, paths), high_watermark="end")
    for at in range(POINTS + 1):
        ends = {number: random.randint(starts[number], end) if at else end for number, end in whole.items()}
        wanted: dict[tuple[int, bytes | None], Any] = {}
        for number, end in ends.items():
            replayed = replay_of_consumer(lines.get(number, ()), number, end)
            wanted |= {(number, key): row for key, row in replayed.items()}
        found: dict[tuple[int, bytes | None], Any] = {}
        for number, path in zip(ends, paths, strict=True):
            rows = table_of(path, as_of={number: ends[number]}, run_bytes=20_000, chunk_records=64)
            found |= {
                (number, digest(key)): (digest(key), digest(value), partition, offset)
                for key, value, partition, offset in rows.values()
            }
        assert found == wanted, topic


# ---- after a clean ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", drawn(PAIRS), ids=lambda pair: pair.after)
def test_a_clean_by_a_real_broker_changes_no_table(pair: Pair) -> None:
    seen = 0
    for name in pair.end_offsets:
        before, after = ([*fixture(one).rglob(name)] for one in (pair.before, pair.after))
        if len(before) != 1 or len(after) != 1:
            continue
        logs = [cordwood.open_log(str(one)) for one in (before[0], after[0])]
        if logs[0].log_start_offset != logs[1].log_start_offset:
            continue  # retention was here, too
        end = cordwood.table_offsets(str(before[0]), high_watermark="end")
        found = [table_of(one[0], as_of=end, deletes=False, run_bytes=1 << 20) for one in (before, after)]
        assert found[0] == found[1], name
        seen += len(found[0])
    assert seen > 20


@pytest.mark.parametrize("seed", range(4))
def test_a_clean_of_ours_changes_no_table_but_for_expired_tombstones(tmp_path: Path, seed: int) -> None:
    scripted_log(tmp_path / "logs" / "users-0", seed)
    cordwood.clean(
        str(tmp_path / "logs"),
        output=str(tmp_path / "cleaned"),
        spark=cast(SparkSession, InThisProcess()),
        high_watermark="end",
        now_ms=1_900_000_000_000,
        single_copy=True,
        ignore_ratio=True,
        overrides=["cleanup.policy=compact"],
    )
    before, after = tmp_path / "logs" / "users-0", tmp_path / "cleaned" / "users-0"
    assert (after.parent / "cleaner-offset-checkpoint").exists()
    assert cordwood.open_log(str(after)).size_bytes < cordwood.open_log(str(before)).size_bytes
    whole = table_of(before)
    assert table_of(after, deletes=False) == table_of(before, deletes=False)
    # Only tombstones were dropped.
    left = table_of(after)
    assert left.items() <= whole.items()
    assert all(row[1] is None for key, row in whole.items() if key not in left)


# ---- Refusals --------------------------------------------------------------------------------------------------------


def test_points_that_a_log_does_not_have_are_refused_in_words(tmp_path: Path) -> None:
    log = random_log(Random(3), tmp_path / "users-3")
    path, stable = str(log.path), log.last_stable_offset
    with pytest.raises(RequestError, match=rf"no table as of offset {stable + 1}; the last stable offset is {stable}$"):
        cordwood.table_offsets(path, as_of=stable + 1)
    with pytest.raises(RequestError, match="neither an offset like 120"):
        cordwood.table_offsets(path, as_of="yesterday")
    with pytest.raises(RequestError, match="has no offset for partition 3"):
        cordwood.table_offsets(path, as_of={0: 1})
    with pytest.raises(RequestError, match=r"partition 7 of users, which is not here"):
        cordwood.table_offsets(path, since={7: 1})
    with pytest.raises(RequestError, match=rf"the earlier table ends at offset {stable}, behind offset {stable - 1}$"):
        cordwood.table_offsets(path, since={3: stable}, as_of=stable - 1)
    with pytest.raises(RequestError, match="'utf9' is no decoder; there are utf8, json"):
        cordwood.table_offsets(path, value="utf9")
    with pytest.raises(RequestError, match=r"'anna' is no decoder; .*; to find the records of a key: cordwood get$"):
        cordwood.table_offsets(path, key="anna")


def test_a_damaged_batch_fails_a_table_with_its_place(tmp_path: Path) -> None:
    log = random_log(Random(3), tmp_path / "users-3")
    (segment, *_) = sorted(log.path.glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[70] ^= 1
    segment.write_bytes(data)
    with pytest.raises(CorruptBatchError, match=rf"CRC-32C mismatch.* in {segment} at position 0"):
        table_of(log.path)
