"""A manager that starts on a damaged directory acts as a broker does, and as `check` predicts of a broker."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cordwood.common.errors import CordwoodError
from cordwood.fs.posix import PosixFileSystem
from cordwood.live.log_manager import LogManager
from cordwood.storage.check.findings import OFFLINE, STOPS
from tests.storage.start_cases import CASES, FAILED, start_directories

pytestmark = pytest.mark.more


@pytest.mark.parametrize("name", CASES)
def test_a_manager_stops_or_goes_on_without_a_directory_as_a_broker_does(name: str, tmp_path: Path) -> None:
    case, directories = CASES[name], start_directories(tmp_path)
    case.plant(directories / "b")
    manager = LogManager(PosixFileSystem(), [str(directories / side) for side in "ab"])
    if case.meaning == STOPS:
        with pytest.raises((CordwoodError, ValueError)):
            manager.startup()
        return
    manager.startup()
    try:
        goes_offline = case.meaning in (OFFLINE, FAILED)
        deadline = time.monotonic() + (20 if goes_offline else 0)
        # The cleaner's checkpoint is read by its thread.
        while (is_online := manager.is_log_dir_online(str(directories / "b"))) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert is_online is not goes_offline
        assert manager.is_log_dir_online(str(directories / "a"))
    finally:
        manager.shutdown()
