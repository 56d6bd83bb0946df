"""Live logs whose closed segments are in a tier: on a disk, with stepped time."""

from __future__ import annotations

import contextlib
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cordwood.common.errors import IllegalArgumentError, KafkaStorageError, OffsetOutOfRangeError
from cordwood.live import remote_tail
from cordwood.live.log import FetchIsolation
from cordwood.live.segments import EARLIEST, EARLIEST_LOCAL, LATEST_TIERED
from tests.live.tiered_nodes import NOW, ORDERS, node, numbers, values


def test_closed_segments_leave_the_disk_once_they_are_in_the_tier(tmp_path: Path) -> None:
    with node(tmp_path) as one:
        one.fill(100)
        one.step()
        log = one.log
        assert log.log_start_offset == 0 and log.log_segments[0].base_offset > 80
        assert values(log) == numbers(100)
        assert one.offset_at(EARLIEST_LOCAL) == log.log_segments[0].base_offset
        assert one.offset_at(EARLIEST) == 0
        copied = one.state.copied_end
        assert one.offset_at(LATEST_TIERED) == copied - 1 >= log.log_segments[0].base_offset - 1


def test_reads_in_the_tier_begin_at_any_offset_and_time(tmp_path: Path) -> None:
    with node(tmp_path) as one:
        one.fill(100)
        one.step()
        for offset in range(100):
            data = one.log.read(offset, 1, FetchIsolation.HIGH_WATERMARK)
            assert data.offset == offset and not data.first_entry_incomplete
            assert one.offset_at(NOW - 1_000_000 + 1000 * offset) == offset
        with pytest.raises(OffsetOutOfRangeError):
            one.log.read(101, 1)


def test_memory_for_indexes_of_the_tier_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_tail, "_LOGS_OPEN", 2)
    monkeypatch.setattr(remote_tail, "_INDEX_BYTES", 9_000)
    with node(tmp_path) as one:
        one.fill(300)
        one.step()
        local = one.log.log_segments[0].base_offset
        held = one.tiering.segments
        for number in range(300):
            offset = number * 37 % local
            assert one.log.read(offset, 1).offset == offset
            assert held.index_bytes <= 9_000 and held.open_logs <= 2
        assert held.index_bytes > 6_000
        with ThreadPoolExecutor(8) as pool:
            found = [*pool.map(lambda offset: one.log.read(offset, 1).offset, [*range(0, local, 3)] * 4)]
        assert found == [*range(0, local, 3)] * 4
        assert held.index_bytes <= 9_000 and held.open_logs <= 2
        one.tiered.remote.close()
        assert held.index_bytes == held.open_logs == 0


def test_keys_are_found_in_the_tier_and_on_the_disk(tmp_path: Path) -> None:
    with node(tmp_path) as one:
        one.fill(100)
        one.step()
        assert [record.offset for record in one.log.get("key-3")] == [*range(3, 100, 7)]


def test_a_closed_manager_goes_on_in_its_tier(tmp_path: Path) -> None:
    with node(tmp_path) as one:
        one.fill(100)
        one.step()
    with node(tmp_path, now_ms=NOW + 100_000) as again:
        assert again.log.log_start_offset == 0 and values(again.log) == numbers(100)
        again.fill(50, 100)
        again.step()
        assert values(again.log) == numbers(150)
        assert again.state.writer.epoch == 2


def test_an_open_transaction_holds_copies_back(tmp_path: Path) -> None:
    with node(tmp_path) as one:
        one.fill(20)
        with one.log.transaction(7) as pending:
            for number in range(60):
                pending.append({"key": f"{number}".rjust(100)})
            one.step()
            assert one.state.copied_end <= 20
            assert one.log.log_segments[0].base_offset < 20
        one.step()
        assert one.log.log_segments[0].base_offset > 60


def test_records_of_aborted_transactions_are_left_out_in_the_tier(tmp_path: Path) -> None:
    with node(tmp_path) as one:
        one.fill(20)
        with contextlib.suppress(RuntimeError), one.log.transaction(7) as pending:
            for number in range(40):
                pending.append({"gone": f"{number}".rjust(100)})
            raise RuntimeError
        one.fill(40, 20)
        one.step()
        assert one.log.log_segments[0].base_offset > 70
        assert values(one.log) == numbers(60)


def test_remote_retention_moves_the_log_start_and_deletes_objects_later(tmp_path: Path) -> None:
    with node(tmp_path, configs={"retention.bytes": "6000", "local.retention.bytes": "-2"}) as one:
        one.fill(200)
        one.step(1)
        objects = len([*(tmp_path / "tier").rglob("*.log")])
        one.step()
        start = one.log.log_start_offset
        assert 130 < start < 170 and values(one.log) == numbers(200, start)
        one.step()
        assert len([*(tmp_path / "tier").rglob("*.log")]) < objects / 2
        with pytest.raises(OffsetOutOfRangeError):
            one.log.read(start - 1, 1)


def test_delete_records_takes_effect_in_the_tier(tmp_path: Path) -> None:
    with node(tmp_path) as one:
        one.fill(100)
        one.step()
        one.log.delete_records(40)
        one.step()
        state = one.state
        assert state.log_start_offset == 40 and state.segments[0].segment.end_offset >= 40
    with node(tmp_path, now_ms=NOW + 100_000) as again:
        assert values(again.log) == numbers(100, 40)


def test_an_empty_disk_gets_the_closed_log_back(tmp_path: Path) -> None:
    with node(tmp_path) as one:
        one.fill(100)
        one.step()
        end = one.state.copied_end
        topic_id = one.log.topic_id
    shutil.rmtree(tmp_path / "logs")
    with node(tmp_path, "other", now_ms=NOW + 100_000) as again:
        assert again.manager.logs.keys() == {ORDERS}
        assert values(again.log) == numbers(end) and again.log.topic_id == topic_id
        again.fill(100, end)
        again.step()
        assert values(again.log) == numbers(end + 100)


def test_a_disk_that_lost_the_end_of_a_log_goes_on_behind_the_tier(tmp_path: Path) -> None:
    with node(tmp_path) as one:
        one.fill(50)
        one.step()
        shutil.copytree(tmp_path / "logs", tmp_path / "older")
        one.fill(100, 50)
        one.step()
        end = one.state.copied_end
    (tmp_path / "older" / ".lock").unlink(missing_ok=True)
    with node(tmp_path, "older", now_ms=NOW + 100_000) as again:
        assert values(again.log) == numbers(end)
        again.fill(10, end)
        assert values(again.log) == numbers(end + 10)


def test_an_earlier_writer_is_stopped(tmp_path: Path) -> None:
    with node(tmp_path) as zombie:
        zombie.fill(40)
        zombie.step()
        with node(tmp_path, "other") as one:
            assert values(one.log) == numbers(zombie.state.copied_end)
            zombie.fill(60, 40)
            zombie.step()
            assert "claimed" in zombie.tiering.errors()[ORDERS]
            with pytest.raises(KafkaStorageError):
                zombie.log.append({"key": "value"})
            one.fill(40)
            one.step()
            assert len(values(one.log)) > 60
        zombie.manager.async_delete(ORDERS)


def test_a_deleted_log_leaves_its_tier(tmp_path: Path) -> None:
    with node(tmp_path) as one:
        one.fill(60)
        one.step()
        assert [*(tmp_path / "tier").rglob("*.log")]
        one.manager.async_delete(ORDERS)
        one.scheduler.run_due()
        assert not [*(tmp_path / "tier").rglob("*.log")]


def test_records_in_the_tier_cannot_be_truncated(tmp_path: Path) -> None:
    with node(tmp_path) as one:
        one.fill(100)
        one.step()
        with pytest.raises(IllegalArgumentError, match="the tier has its records"):
            one.log.truncate_to(50)


def test_while_the_tier_fails_segments_stay_on_the_disk(tmp_path: Path) -> None:
    with node(tmp_path) as one:
        one.fill(40)
        one.step()
        (tmp_path / "tier").rename(tmp_path / "away")
        (tmp_path / "tier").write_text("no folder")
        copied = one.state.copied_end
        one.fill(60, 40)
        one.step()
        assert one.log.log_segments[0].base_offset <= copied
        assert one.tiering.errors()[ORDERS] and one.tiered.failures == 1
        (tmp_path / "tier").unlink()
        (tmp_path / "away").rename(tmp_path / "tier")
        one.step()
        assert not one.tiering.errors() and one.log.log_segments[0].base_offset > 80
        assert values(one.log) == numbers(100)
