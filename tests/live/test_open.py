"""`Log.open`, the shortest way to a log; how durable its appends are; and followers that end."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.common.errors import BadNameError


def test_a_log_is_made_and_opened_again_with_the_configs_that_it_had(tmp_path: Path) -> None:
    path = tmp_path / "data" / "users-0"
    path.parent.mkdir()
    with cordwood.Log.open(path, {"cleanup.policy": "compact", "segment.ms": 5}) as log:
        log.append({"a": "1"})
        with pytest.raises(cordwood.LockedError), cordwood.Log.open(path):
            pass
    with cordwood.Log.open(str(path)) as log:
        assert log.config.compact
        assert [record.value for record in log.records()] == [b"1"]
    with pytest.raises(cordwood.KafkaStorageError):
        log.append({"a": "2"})


@pytest.mark.parametrize(
    ("name", "configs", "error"),
    [
        ("users", None, BadNameError),
        (f"users-0.{'0' * 32}-delete", None, BadNameError),
        ("users-0", {"cleanup.policy": "shrink"}, cordwood.ConfigError),
        ("users-0", {"no.such": 1}, cordwood.ConfigError),
        ("users-0", {"segment.ms": 1.5}, TypeError),
    ],
)
def test_a_wrong_path_or_config_is_refused_and_nothing_is_made(
    tmp_path: Path, name: str, configs: Any, error: type[Exception]
) -> None:
    with pytest.raises(error), cordwood.Log.open(tmp_path / name, configs):
        pass
    assert list(tmp_path.glob("users*")) == []


def test_an_append_is_in_the_file_at_once_and_on_disk_after_a_flush(tmp_path: Path) -> None:
    with cordwood.Log.open(tmp_path / "t-0") as log:
        log.append({"a": "needle"})
        assert any(b"needle" in file.read_bytes() for file in Path(log.directory).glob("*.log"))
        assert log.recovery_point == 0
        log.flush()
        assert log.recovery_point == 1
    with cordwood.Log.open(tmp_path / "t-0", {"flush.messages": 1}) as log:
        log.append({"a": "2"})
        assert log.recovery_point == 2


def test_a_follower_ends_by_an_event_by_a_timeout_and_with_its_log(tmp_path: Path) -> None:
    stop = threading.Event()
    with cordwood.Log.open(tmp_path / "t-0") as log:
        log.append([("k", "0"), ("k", "1")])
        follower = log.records(follow=True, stop=stop)
        assert [next(follower).offset, next(follower).offset] == [0, 1]
        threading.Timer(0.1, stop.set).start()
        assert list(follower) == []
        began = time.monotonic()
        assert [record.offset for record in log.records(1, follow=True, timeout_seconds=0.2)] == [1]
        assert time.monotonic() - began >= 0.2
        with pytest.raises(cordwood.RequestError, match="follow=True"):
            log.records(stop=stop)
        follower = log.records(2, follow=True)
    with pytest.raises(cordwood.KafkaStorageError):
        next(follower)


@pytest.mark.parametrize("commits", [True, False])
def test_a_follower_reads_a_transaction_that_was_open_when_it_began(tmp_path: Path, *, commits: bool) -> None:
    with cordwood.Log.open(tmp_path / "t-0") as log:
        opened, begun, read = threading.Event(), threading.Event(), []

        def write() -> None:
            try:
                with log.transaction(1) as first:
                    first.append({"a": "1"})
                    log.append({"b": "2"})
                    opened.set()
                    begun.wait()
                    if not commits:
                        raise KeyError
            except KeyError:
                pass
            log.append({"c": "end"})

        writer = threading.Thread(target=write)
        writer.start()
        opened.wait()
        assert list(log.records()) == []
        threading.Timer(0.2, begun.set).start()
        for record in log.records(follow=True, timeout_seconds=120):
            read.append(record.value)
            if record.value == b"end":
                break
        writer.join()
    assert read == ([b"1", b"2", b"end"] if commits else [b"2", b"end"])
