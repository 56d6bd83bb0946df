"""Groups and transactions of real brokers' directories, described by Cordwood and by the brokers' own tools.

`tests/data/coordinators.jsonl` holds the tools' output for each fixture (a broker was started on it) and for the
directory in the package. CORDWOOD_REWRITE=1 with CORDWOOD_EFFORT=full runs the tools again and rewrites the former.
"""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import pytest

import cordwood
from cordwood.cli.demo import unpack
from cordwood.cli.main import EXIT_REQUEST, exit_code_of
from cordwood.commands.coordinators import Beside
from cordwood.common.errors import NotFoundError
from cordwood.common.types import TopicPartition, override
from cordwood.fs.posix import PosixFile, PosixFileSystem
from cordwood.fs.wrapped import CountedStore
from cordwood.storage.node.cluster import Cluster
from cordwood.storage.node.groups import (
    ConsumerLogEnd,
    EndSource,
)
from cordwood.storage.node.node import Node
from cordwood.storage.node.transactions import Outlook
from tests.commands.coordinator_scene import (
    _QUESTIONS,
    DEMO,
    STILL,
    Answers,
    _answers,
    groups_as_told,
    hanging_as_told,
    play,
    transactions_as_told,
    without_defaults,
)
from tests.fixtures import STOPPED, copy_of, fixture
from tests.kafka_tools import Broker, Line
from tests.knobs import REWRITE, drawn
from tests.logs import make_large_log


def ask(broker: Broker, directory: Path, *words: str | Path) -> Answers:
    """Start a broker on a directory, and query it."""
    address = broker.start(directory, *words, **STILL)
    return _answers(broker, address, broker.client(directory, _QUESTIONS))


RECORDED = Path(__file__).parents[1] / "data" / "coordinators.jsonl"
#: Fixtures of KRaft brokers with one log directory; others have no groups and no transactions.
FIXTURES = [name for name in STOPPED if not name.startswith(("legacy", "kraft-jbod"))]


def recorded() -> dict[str, Answers]:
    lines = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    return {
        line["name"]: Answers(line["groups"], line["transactions"], [(one, id) for one, id in line["hanging"]])
        for line in lines
    }


def agree(directory: Path, told: Answers) -> None:
    """Assert that Cordwood and the broker's tools describe a directory alike."""
    try:
        groups = groups_as_told(cordwood.groups(str(directory)))
    except NotFoundError:
        groups = []
    assert groups == without_defaults(told.groups)
    transactions = cordwood.transactions(str(directory))
    assert transactions_as_told(transactions) == told.transactions
    assert hanging_as_told(transactions) == told.hanging


@pytest.mark.parametrize("name", FIXTURES)
def test_groups_and_transactions_of_a_fixture_are_those_that_its_broker_told(name: str) -> None:
    agree(fixture(name), recorded()[name])


def test_those_of_the_packages_directory_are_those_that_its_broker_told(tmp_path: Path) -> None:
    unpack(tmp_path)
    told = recorded()[DEMO]
    assert {group["type"] for group in told.groups} == {"classic", "consumer", "share", "streams"}
    assert len(told.hanging) == 2
    agree(tmp_path / DEMO, told)


@pytest.mark.slow
@pytest.mark.parametrize("name", drawn(FIXTURES))
def test_a_broker_on_a_fixture_tells_what_is_recorded(name: str, kafka_broker: Broker, tmp_path: Path) -> None:
    directory = copy_of(fixture(name), tmp_path / name)
    told = ask(kafka_broker, directory)
    kafka_broker("kill", directory)
    if REWRITE:
        _record(name, told)
    assert recorded()[name] == told


def _record(name: str, told: Answers) -> None:
    lines: dict[str, Line] = {}
    for line in RECORDED.read_text().splitlines() if RECORDED.exists() else ():
        lines[json.loads(line)["name"]] = json.loads(line)
    lines[name] = {"name": name, **told._asdict()}
    text = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for _, line in sorted(lines.items()))
    RECORDED.write_text(text)


@pytest.mark.slow
def test_of_a_running_stopped_and_killed_broker_we_tell_what_its_tools_tell(
    kafka_broker: Broker, tmp_path: Path
) -> None:
    told = play(kafka_broker, tmp_path / "data")
    assert {group["type"] for group in told.groups} == {"classic", "consumer", "share", "streams"}
    assert {group["state"] for group in told.groups} == {"Stable", "Empty"}
    assert len(told.hanging) == 2
    agree(tmp_path / "data", told)
    kafka_broker("kill", tmp_path / "data")
    agree(tmp_path / "data", told)
    # After a restart the broker's answer is the same, and so is ours.
    assert ask(kafka_broker, tmp_path / "data") == told
    kafka_broker("stop", tmp_path / "data")
    agree(tmp_path / "data", told)


@pytest.mark.slow
def test_the_commands_that_we_print_end_what_hangs(kafka_broker: Broker, tmp_path: Path) -> None:
    unpack(tmp_path)
    printed = cordwood.transactions(str(tmp_path / DEMO)).text()
    commands = re.findall(r"kafka-transactions.sh --bootstrap-server … (abort .*)", printed)
    assert len(commands) == 2
    address = kafka_broker.start(tmp_path / DEMO, **STILL)
    for command in commands:
        tool = "org.apache.kafka.tools.TransactionsCommand"
        kafka_broker("run", tool, "--bootstrap-server", address, *command.split())
    kafka_broker("stop", tmp_path / DEMO)
    left = cordwood.transactions(str(tmp_path / DEMO))
    assert [one.outlook for one in left.transactions] == [Outlook.LONG, Outlook.OPEN]


class UnreadablePartition(PosixFileSystem):
    """A disk that does not give the files of one partition."""

    @override
    def open(self, path: str) -> PosixFile:
        if "/__consumer_offsets-1/" in path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return super().open(path)


def test_an_unreadable_partition_is_named_and_the_other_groups_are_listed(
    tmp_path: Path,
) -> None:
    unpack(tmp_path)
    whole = cordwood.groups(str(tmp_path / DEMO))
    listing = cordwood.groups(str(tmp_path / DEMO), fs=UnreadablePartition())
    assert 0 < len(listing.groups) < len(whole.groups)
    (problem,) = listing.problems
    assert isinstance(problem, PermissionError) and "__consumer_offsets-1/" in str(problem.filename)
    assert exit_code_of(listing.problems) == EXIT_REQUEST


def test_the_end_of_a_large_log_takes_a_few_small_reads(tmp_path: Path) -> None:
    log = make_large_log(tmp_path / "t-0")
    counted = CountedStore(PosixFileSystem())
    beside = Beside(Cluster.of(Node.open(counted, [str(tmp_path)])))
    assert beside.end_of(TopicPartition("t", 0), 0) == ConsumerLogEnd(log.next_offset, EndSource.LOG_END)
    assert counted.bytes_read < 100 << 10
