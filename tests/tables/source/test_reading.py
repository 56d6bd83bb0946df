"""Damage, lost offsets, and the end of a read: a batch fails with a message, or continues and counts."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from cordwood.common.errors import CorruptBatchError, CorruptFileError, NotFoundError, RequestError
from cordwood.common.types import Codec, TopicPartition
from cordwood.fs.base import LocalFileSystem
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.formats.filenames import HIGH_WATERMARKS
from cordwood.storage.log.files import write_file
from cordwood.tables.source.batch import plan_batch
from cordwood.tables.source.options import parse
from cordwood.tables.source.schema import column_names
from tests.tables.source.random_logs import NOW_MS, ROOT, Writer, as_a_brokers, read_plan, read_rows

NAME = TopicPartition("orders", 0)
PATH = f"{ROOT}/{NAME}"
SEGMENTS = ("internal.segment.bytes=1000", "index.interval.bytes=100", "log.cleaner.enable=false")


def written(batches: int = 30, config: tuple[str, ...] = SEGMENTS, *, stop: bool = True) -> Writer:
    """A log of batches of three records."""
    writer = Writer(config=config)
    for number in range(batches):
        writer.append(NAME, [Record(at, NOW_MS + number, b"k%d" % at, b"v%d" % number) for at in range(3)])
    if stop:
        writer.manager.shutdown()
    return writer


def logs(fs: LocalFileSystem) -> list[str]:
    return [f"{PATH}/{info.name}" for info in fs.list(PATH) if info.name.endswith(".log")]


def flip(fs: LocalFileSystem, path: str, position: int) -> None:
    with fs.open_for_update(path) as file:
        (byte,) = file.read(position, 1)
        file.write(position, bytes([byte ^ 1]))


def offsets(rows: list[dict[str, object]]) -> list[object]:
    return [row["offset"] for row in rows]


# ---- damage ----------------------------------------------------------------------------------------------------------


def test_damage_fails_with_its_place_or_is_passed_over_and_counted() -> None:
    fs = written().fs
    flip(fs, logs(fs)[1], 90)
    with pytest.raises(CorruptBatchError, match=rf"CRC-32C mismatch.* in {logs(fs)[1]} at position 0 \(offset"):
        read_rows(fs, {})
    rows, counts = read_rows(fs, {"failOnDamage": "false"})
    assert counts.damaged == 1
    assert len(set(offsets(rows))) == len(rows) == 87


def test_damage_that_hides_batches_is_told_wherever_the_log_is_cut() -> None:
    for most in ("1", "300", "100000"):
        fs = written().fs
        with fs.open_for_update(logs(fs)[1]) as file:
            file.write(8, b"\0\0\0\1")
        with pytest.raises(CorruptBatchError, match="too small for a batch"):
            read_rows(fs, {"maxBytesPerPartition": most})
        rows, counts = read_rows(fs, {"maxBytesPerPartition": most, "failOnDamage": "false"})
        assert counts.damaged >= 1
        assert len(set(offsets(rows))) == len(rows) == 87


def test_damage_behind_the_last_whole_batch_is_told_and_a_torn_batch_is_not() -> None:
    fs = written().fs
    last = logs(fs)[-1]
    with fs.open_for_update(last) as file:
        end = file.size()
        file.write(end, encode_batch([Record(90, NOW_MS, b"k", b"v")])[:40])
    assert offsets(read_rows(fs, {})[0]) == list(range(90))
    with fs.open_for_update(last) as file:
        file.write(end, b"\xff" * 300)
    with pytest.raises(CorruptBatchError, match=rf"in {last} at position {end}"):
        read_rows(fs, {})
    # A read of fewer offsets does not reach the damage.
    rows, _ = read_rows(fs, {"endingOffsets": '{"orders":{"0":80}}'})
    assert offsets(rows) == list(range(80))


def test_a_batch_is_never_skipped_for_what_a_damaged_header_says() -> None:
    fs = written().fs
    # The largest timestamp of the first batch, as if it were long ago.
    with fs.open_for_update(logs(fs)[0]) as file:
        file.write(35, bytes(8))
    for options in ({}, {"kafka.isolation.level": "read_committed"}):
        with pytest.raises(CorruptBatchError, match="CRC-32C mismatch"):
            read_rows(fs, options)


def test_a_transaction_index_that_lacks_a_transaction_is_noticed() -> None:
    writer = Writer(config=SEGMENTS)
    for number in range(20):
        writer.append(
            NAME, [Record(0, NOW_MS, b"k", b"v" * 40)], producer_id=1, base_sequence=2 * number, transactional=True
        )
        writer.append(
            NAME, [Record(0, NOW_MS, b"k", b"v" * 40)], producer_id=1, base_sequence=2 * number + 1, transactional=True
        )
        writer.end(NAME, 1, committed=number % 2 == 0)
    writer.manager.shutdown()
    fs = writer.fs
    committed = {"kafka.isolation.level": "read_committed"}
    rows, _ = read_rows(fs, committed)
    assert len(rows) == 20
    for info in list(fs.list(PATH)):
        if info.name.endswith(".txnindex"):
            fs.unlink(f"{PATH}/{info.name}")
    with pytest.raises(CorruptFileError, match="To read all headers instead, set useIndexes to false"):
        read_rows(fs, committed)
    assert read_rows(fs, committed | {"useIndexes": "false"})[0] == rows


# ---- lost offsets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "end"), [(0, 95), (95, 99)])
def test_offsets_that_are_not_there_fail_or_are_left_out(start: int, end: int) -> None:
    fs = written().fs
    options = {
        "startingOffsets": json.dumps({"orders": {"0": start}}),
        "endingOffsets": json.dumps({"orders": {"0": end}}),
    }
    with pytest.raises(
        RequestError, match=f"Offsets {start} to {end - 1} of orders-0 were requested, but the log has only 0 to 89"
    ):
        read_rows(fs, options)
    rows, _ = read_rows(fs, {**options, "failOnDataLoss": "false"})
    assert offsets(rows) == list(range(start, min(end, 90)))


def test_a_start_that_is_not_there_leaves_nothing_and_is_no_contradiction() -> None:
    fs = written().fs
    start = {"startingOffsets": '{"orders":{"0":6000}}'}
    with pytest.raises(RequestError, match=r"Offsets 6000 on of orders-0 were requested.* set failOnDataLoss to false"):
        read_rows(fs, start)
    assert read_rows(fs, {**start, "failOnDataLoss": "false"})[0] == []
    end = {"endingOffsets": '{"orders":{"0":10}}', "startingOffsets": '{"orders":{"0":20}}'}
    for fail in ("true", "false"):
        with pytest.raises(RequestError, match="the end comes first"):
            read_rows(fs, {**end, "failOnDataLoss": fail})


def without_first_segments(fs: LocalFileSystem) -> None:
    for path in logs(fs)[:3]:
        for kind in (".log", ".index", ".timeindex"):
            fs.unlink(path.replace(".log", kind))


def whole_partition_gone(fs: LocalFileSystem) -> None:
    fs.rename(PATH, f"{ROOT}/orders-0.0123456789abcdef0123456789abcdef-delete")


def end_cut_off(fs: LocalFileSystem) -> None:
    with fs.open_for_update(logs(fs)[-1]) as file:
        file.truncate(0)


@pytest.mark.parametrize("happens", [without_first_segments, whole_partition_gone, end_cut_off])
@pytest.mark.parametrize("most", ["1", "100000"])
def test_what_vanishes_between_planning_and_reading_fails_or_is_counted(
    happens: Callable[[LocalFileSystem], None], most: str
) -> None:
    for fail in ("true", "false"):
        fs = written().fs
        options = parse({"path": ROOT, "maxBytesPerPartition": most, "failOnDataLoss": fail})
        names = column_names(options)
        plan = plan_batch(options, fs, names, ())
        happens(fs)
        if fail == "true":
            with pytest.raises(RequestError, match=r"of orders-0 are not in .* set failOnDataLoss to false"):
                read_plan(fs, plan, options, names)
        else:
            rows, counts = read_plan(fs, plan, options, names)
            assert len(rows) + counts.offsets_lost == 90
            assert counts.offsets_lost > 0


def test_a_log_that_is_cleaned_between_planning_and_reading_is_read_as_it_is_then() -> None:
    config = (*SEGMENTS[:2], "cleanup.policy=compact", "min.cleanable.dirty.ratio=0.0", "min.compaction.lag.ms=0")
    for most in ("1", "100000"):
        writer = written(config=config, stop=False)
        options = parse({"path": ROOT, "maxBytesPerPartition": most})
        names = column_names(options)
        plan = plan_batch(options, writer.fs, names, ())
        assert writer.manager.cleaner is not None and writer.manager.cleaner.clean_filthiest_log()
        writer.now_ms += 120_000
        rows, _ = read_plan(writer.fs, plan, options, names)
        assert rows == read_rows(writer.fs, {})[0]
        assert len(rows) < 40
        writer.manager.shutdown()


# ---- where reading ends ----------------------------------------------------------------------------------------------


def test_without_a_broker_around_it_a_log_is_read_to_its_end() -> None:
    assert len(read_rows(written().fs, {})[0]) == 90


def test_in_a_brokers_directory_reading_ends_at_the_high_watermark() -> None:
    fs = written().fs
    as_a_brokers(fs, {NAME: 42})
    assert offsets(read_rows(fs, {})[0]) == list(range(42))
    assert len(read_rows(fs, {"highWatermark": "end"})[0]) == 90
    as_a_brokers(fs, {NAME: 1000})
    assert len(read_rows(fs, {})[0]) == 90


def test_without_a_high_watermark_a_batch_is_refused_rather_than_empty() -> None:
    fs = written().fs
    for marks in (None, {TopicPartition("orders", 1): 5}):
        as_a_brokers(fs, marks)
        with pytest.raises(
            RequestError, match=r"has no entry for orders-0, so it is unknown .* set highWatermark to end"
        ):
            read_rows(fs, {})
    path = f"{ROOT}/{HIGH_WATERMARKS}"
    fs.unlink(path)
    write_file(fs, path, b"0\nnonsense\n")
    with pytest.raises(RequestError, match=rf"{path} cannot be read \(line 2: .*\), so it is unknown"):
        read_rows(fs, {})


def test_an_open_transaction_holds_back_what_is_behind_it() -> None:
    writer = written(10, stop=False)
    writer.append(NAME, [Record(0, NOW_MS, b"k", b"v")], producer_id=7, base_sequence=0, transactional=True)
    writer.append(NAME, [Record(0, NOW_MS, b"k", b"v")], codec=Codec.ZSTD)
    writer.manager.shutdown()
    assert offsets(read_rows(writer.fs, {"kafka.isolation.level": "read_committed"})[0]) == list(range(30))
    rows, _ = read_rows(writer.fs, {"columns": "offset,transaction"})
    assert [row["transaction"] for row in rows] == [None] * 30 + ["open", None]


# ---- which partitions ------------------------------------------------------------------------------------------------


def test_a_topic_that_is_not_there_is_named_and_so_are_those_that_are() -> None:
    fs = written().fs
    with pytest.raises(NotFoundError, match=r"There is no topic payments in /logs. There are: orders"):
        read_rows(fs, {"subscribe": "payments"})
    with pytest.raises(NotFoundError, match="There is no topic payments"):
        read_rows(fs, {"assign": '{"payments":[0]}'})
    with pytest.raises(NotFoundError, match="There is no partition orders-5 in /logs"):
        read_rows(fs, {"assign": '{"orders":[5]}'})
    assert read_rows(fs, {"assign": '{"orders":[5]}', "failOnDataLoss": "false"})[0] == []
    some = '{"orders":[0],"payments":[0]}'
    with pytest.raises(NotFoundError, match=r"no topic payments .* set failOnDataLoss to false"):
        read_rows(fs, {"assign": some})
    everything = read_rows(fs, {"assign": '{"orders":[0]}'})[0]
    assert read_rows(fs, {"assign": some, "failOnDataLoss": "false"})[0] == everything
    assert read_rows(fs, {"subscribePattern": "pay"})[0] == []


def test_internal_topics_are_read_only_where_they_are_named() -> None:
    writer = written(2, stop=False)
    writer.append(TopicPartition("__consumer_offsets", 0), [Record(0, NOW_MS, b"k", b"v")])
    writer.manager.shutdown()
    topics = lambda options: {row["topic"] for row in read_rows(writer.fs, options)[0]}  # noqa: E731
    assert topics({}) == topics({"subscribePattern": ".*"}) == {"orders"}
    assert topics({"subscribe": "__consumer_offsets"}) == {"__consumer_offsets"}
    assert topics({"path": f"{ROOT}/__consumer_offsets-0"}) == {"__consumer_offsets"}
    assert topics({"path": f'["{ROOT}/__consumer_offsets-0","{PATH}"]'}) == {"__consumer_offsets", "orders"}


def test_limits_must_name_the_partitions_that_are_read() -> None:
    with pytest.raises(
        RequestError, match="startingOffsets must name all partitions that are read, and no other ones: "
    ):
        read_rows(written().fs, {"startingOffsets": '{"orders":{"0":1,"1":1}}'})
    with pytest.raises(RequestError, match="orders-0 cannot be read from offset 5 to 3: the end comes first"):
        read_rows(written().fs, {"startingOffsets": '{"orders":{"0":5}}', "endingOffsets": '{"orders":{"0":3}}'})


def test_a_time_that_no_record_reached_fails_unless_the_latest_offset_will_do() -> None:
    fs = written().fs
    with pytest.raises(RequestError, match=r"no record of orders-0 is as new as 9999999999999\. .*Strategy to latest"):
        read_rows(fs, {"startingTimestamp": "9999999999999"})
    options = {"startingTimestamp": "9999999999999", "startingOffsetsByTimestampStrategy": "latest"}
    assert read_rows(fs, options)[0] == []
    assert offsets(
        read_rows(fs, {"startingTimestamp": str(NOW_MS + 20), "endingTimestamp": str(NOW_MS + 25)})[0]
    ) == list(range(60, 75))
