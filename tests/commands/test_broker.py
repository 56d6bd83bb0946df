"""A real broker starts on cleaned directories, reads all of them, and finds every promise of a cleaner kept.

Every directory of a KRaft broker among the fixtures is cleaned two days later, when all tombstones and markers may be
dropped. Directories cleaned by their broker are cleaned from the start once more, to drop as much as possible. A run
picks some of them, see `drawn`.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from cordwood.api import clean
from cordwood.cleaning.engine.results import Fate
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats.filenames import META_PROPERTIES
from cordwood.storage.log.view import LogView
from tests.fixtures import CRASHED, NAMES, PACKED, fixture
from tests.kafka_tools import FOLDER, Broker
from tests.knobs import drawn
from tests.storage.index_twins import index_all

pytestmark = pytest.mark.slow

#: Two days after the last directory was made.
NOW_MS = 1_795_430_000_000
#: From old brokers with ZooKeeper, on which no broker can be started; 4.3.1 wrote `-after-4.3.1` from them.
ZOOKEEPER = [name for name in NAMES if name.startswith("legacy") and not name.endswith("4.3.1")]
JBOD = [name for name in NAMES if name.startswith("kraft-jbod")]


def cleaned(name: str, spark: SparkSession, target: Path) -> None:
    result = clean(
        str(fixture(name)),
        output=str(target),
        spark=spark,
        now_ms=NOW_MS,
        ignore_ratio=True,
        first_dirty=0 if "after" in name else None,
        # After a crash the checkpoint is far below the end of the only replica.
        high_watermark="end" if name in CRASHED else None,
    )
    assert not result.with_fate(Fate.FAILED)
    assert result.counts.records_kept < result.counts.records_read
    # A copy can have key indexes, but these segments are too small for them.
    partitions = {path.parent for path in target.rglob("*.log")}
    logs = [LogView(str(partition), fs=PosixFileSystem(), log_start_offset=0) for partition in partitions]
    assert sum(index_all(PosixFileSystem(), log) for log in logs) > 0


def read_before(name: str, isolation: str) -> Path:
    """Read a consumer's records; of a crashed directory, from the broker that recovered it."""
    (found,) = PACKED.glob(f"*/{name}{'-recovered' if name in CRASHED else ''}.{isolation}.jsonl.gz")
    return found


def run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", drawn([name for name in NAMES if name not in (*ZOOKEEPER, *JBOD)]))
def test_a_broker_takes_what_was_cleaned_and_no_promise_is_broken(
    name: str, spark: SparkSession, kafka_broker: Broker, tmp_path: Path
) -> None:
    cleaned(name, spark, tmp_path / "new")
    run(FOLDER / "broker-check", tmp_path / "new", "--to", tmp_path / "read", "--no-indexes")
    run(FOLDER / "broker-compare", read_before(name, "read_committed"), tmp_path / "read" / "read_committed.jsonl")


@pytest.mark.parametrize("name", JBOD)
def test_a_broker_takes_several_disks_that_were_cleaned(
    name: str, spark: SparkSession, kafka_broker: Broker, tmp_path: Path
) -> None:
    cleaned(name, spark, tmp_path / "new")
    first, second = tmp_path / "new" / "a", tmp_path / "new" / "b"
    check = broker_check()
    kafka_broker.start(first, "--also", second, **{key.replace(".", "_"): value for key, value in check.STILL.items()})
    read = tmp_path / "read.jsonl"
    answers = kafka_broker.client(
        first, [{"do": "consume", "isolation": "read_committed", "probes": 8, "to": str(read)}]
    )
    assert [answer for answer in answers if "problem" in answer or "error" in answer] == []
    kafka_broker("stop", first)
    logs = kafka_broker("logs", first)
    # The broker may finish a resumed move between disks before it checks the move again.
    harmless = ["log dir reassignment has already completed"]
    if "has an older epoch" in logs:
        # It asked before the broker had become leader again; so it is stopped and restarted with the new epoch.
        harmless.append("marked as failed")
    assert list(check.suspicious(logs, harmless)) == []
    run(FOLDER / "broker-compare", read_before(name, "read_committed"), read)


def broker_check() -> ModuleType:
    """The program as a module; it can start a broker on one directory only."""
    loader = importlib.machinery.SourceFileLoader("broker_check", str(FOLDER / "broker-check"))
    spec = importlib.util.spec_from_loader("broker_check", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_every_broker_that_can_be_started_is_among_them() -> None:
    assert [name for name in NAMES if not any(fixture(name).glob("**/__cluster_metadata-0"))] == ZOOKEEPER
    assert [name for name in NAMES if not (fixture(name) / META_PROPERTIES).exists()] == JBOD
