"""Files that keep a broker from starting, or take a log directory offline: the findings of `check`, and the broker's
behavior.

The broker has two log directories. The damage is in the second, without the metadata log, so that a broker can run
without this directory.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import cordwood
from cordwood.common.errors import CorruptFileError
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.check import Kind, Severity
from cordwood.storage.check.findings import OFFLINE, STOPS
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.in_place import recover_in_place
from cordwood.storage.recovery.into_copy import recover_into_copy
from tests.kafka_tools import Broker, KafkaToolError
from tests.knobs import in_turns
from tests.storage.start_cases import CASES, EPOCHS, FAILED, PARTITION, start_directories, transaction_index

pytestmark = pytest.mark.more

#: A line in the log of a broker that went on without a directory.
WITHOUT = ("Stopping serving replicas in dir", "Failed to create or validate data directory")


@pytest.fixture
def directories(tmp_path: Path) -> Path:
    return start_directories(tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_check_says_what_a_broker_does_at_its_start(name: str, directories: Path) -> None:
    case = CASES[name]
    case.plant(directories / "b")
    checked = cordwood.check(str(directories))
    found = [one for one in checked if one.severity is Severity.DAMAGE or one.kind is case.kind]
    assert [(one.kind, one.meaning) for one in found] == [(case.kind, case.meaning)]


def test_unknown_version_is_repaired_where_the_offset_index_is_missing(directories: Path) -> None:
    transaction_index(b"\1\0", without_index=True)(directories / "b")
    found = {one.kind: one.severity for one in cordwood.check(str(directories))}
    assert found == {Kind.TRANSACTION_INDEX_VERSION: Severity.RECOVERY, Kind.INDEX_MISSING: Severity.RECOVERY}


#: The case above: repaired at the start, not rejected.
WITHOUT_INDEX = "transaction index of version 1, no offset index"


@pytest.mark.kafka
@pytest.mark.parametrize(
    "name", in_turns([*CASES, WITHOUT_INDEX], WITHOUT_INDEX, "cleaner-offset-checkpoint, version 1")
)
def test_broker_does_at_its_start_what_check_says(name: str, directories: Path, kafka_broker: Broker) -> None:
    case = CASES.get(name)
    (case.plant if case else transaction_index(b"\1\0", without_index=True))(directories / "b")
    if case is not None and case.meaning == STOPS:
        with pytest.raises(KafkaToolError, match="the broker ended with status"):
            kafka_broker.start(directories / "a", "--also", directories / "b")
        return
    kafka_broker.start(directories / "a", "--also", directories / "b")
    log = directories / "a.broker" / "broker.log"
    deadline = time.monotonic() + (20 if case is not None and case.meaning in (OFFLINE, FAILED) else 2)
    while not (offline := any(line in log.read_text() for line in WITHOUT)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert offline is (case is not None and case.meaning in (OFFLINE, FAILED))


# ---- Plan, clean and recovery of such directories --------------------------------------------------------------------


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.kind is Kind.LEADER_EPOCHS_UNREADABLE])
def test_recovery_refuses_leader_epochs_that_a_broker_cannot_read(name: str, directories: Path, tmp_path: Path) -> None:
    CASES[name].plant(directories / "b")
    refused(directories / "b" / PARTITION, tmp_path, EPOCHS)


def test_recovery_refuses_a_transaction_index_of_an_unknown_version(directories: Path, tmp_path: Path) -> None:
    transaction_index(b"\1\0", crashed=True)(directories / "b")
    refused(directories / "b" / PARTITION, tmp_path, ".txnindex")


def refused(partition: Path, tmp_path: Path, file: str) -> None:
    """Neither a copy nor the partition itself is recovered: the file's contents would be lost."""
    before, log, target = contents(partition), LogView(str(partition), fs=PosixFileSystem()), tmp_path / "target"
    target.mkdir()
    with pytest.raises(CorruptFileError) as caught:
        recover_into_copy(PosixFileSystem(), log, str(target), recovery_point=0, now_ms=0)
    assert caught.value.path is not None and caught.value.path.endswith(file)
    with pytest.raises(CorruptFileError):
        recover_in_place(PosixFileSystem(), log, crashed=True, recovery_point=0, now_ms=0)
    assert contents(partition) == before
