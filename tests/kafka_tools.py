"""Kafka itself, as tests call it: the programs of `tests/kafka` as Python functions.

The fixtures `kafka_oracle` and `kafka_broker` (conftest.py) give these out.
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.knobs import REQUIRE_KAFKA

FOLDER = Path(__file__).parent / "kafka"

Line = dict[str, Any]
Word = str | Path
#: Profiles of logs that `oracle generate` makes.
PROFILES = (
    "plain",
    "compressed",
    "transactional",
    "tombstones",
    "headers",
    "gaps",
    "tiny-batches",
    "huge-records",
    "legacy",
    "everything",
)


class KafkaToolError(AssertionError):
    """One of the programs failed, or succeeded unexpectedly; carries its output."""


@functools.cache
def missing() -> str | None:
    """The reason why the programs cannot run here, or None. Fetches Kafka's jars the first time."""
    for program in ("java", "javac"):
        if shutil.which(program) is None:
            return f"{program} is not on the path"
    fetched = subprocess.run([FOLDER / "fetch-kafka"], capture_output=True, text=True, check=False)
    return None if fetched.returncode == 0 else f"Kafka's jars cannot be fetched: {fetched.stderr.strip()}"


def jars() -> list[Path]:
    """Kafka's jars."""
    return sorted(Path(_run([FOLDER / "fetch-kafka"]).strip()).glob("*.jar"))


def _run(command: Sequence[Word], *, text: str = "", exits: Sequence[int] = (0,)) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode not in exits:
        shown = " ".join(map(str, command))
        raise KafkaToolError(f"exit status {done.returncode} of: {shown}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def _lines(text: str) -> list[Line]:
    # Not `splitlines`: Kafka's JSON has other ends of lines in its strings as they are, U+0085 for one.
    return [json.loads(line) for line in text.split("\n") if line]


class Oracle:
    """Kafka's own log classes: `oracle("dump", directory, "--values")` gives the lines it printed, parsed."""

    def __call__(self, *words: Word, exits: Sequence[int] = (0,)) -> list[Line]:
        """Run one command; `exits` are the statuses that are fine (1: the data is not as it should be)."""
        return _lines(_run([FOLDER / "oracle", *words], exits=exits))

    def messages(self, asked: Iterable[Line]) -> list[Line]:
        """Have Kafka's classes write or read messages, see OracleMessages.java; an answer per line."""
        lines = "".join(f"{json.dumps(line)}\n" for line in asked)
        return _lines(_run([FOLDER / "oracle", "messages"], text=lines))

    def tier(self, asked: Iterable[Line]) -> list[Line]:
        """Ask Kafka's rules of tiered storage, see OracleTier.java; an answer per line."""
        lines = "".join(f"{json.dumps(line)}\n" for line in asked)
        return _lines(_run([FOLDER / "oracle", "tier"], text=lines))

    def batch(self, commands: Iterable[Sequence[Word]], *, exits: Sequence[int] = (0,)) -> list[list[Line]]:
        """Run many commands in one process, at 50 ms each instead of 200; return a list of lines per command."""
        asked = [[str(word) for word in command] for command in commands]
        lines = "".join(f"{json.dumps(words)}\n" for words in asked)
        printed = _run([FOLDER / "oracle", "batch"], text=lines, exits=(0, 1, 2))
        answers: list[list[Line]] = [[]]
        for line in _lines(printed):
            if line.keys() != {"exit"}:
                answers[-1].append(line)
                continue
            if line["exit"] not in exits:
                command = " ".join(asked[len(answers) - 1])
                raise KafkaToolError(f"exit status {line['exit']} of: oracle {command}\n{answers[-1][-3:]}")
            answers.append([])
        answers.pop()
        assert len(answers) == len(asked), "the oracle answered another number of commands than it was asked"
        return answers


class Broker:
    """A real broker; `broker --help` in `tests/kafka` lists its verbs. Verbs that outlive their test are killed."""

    def __init__(self) -> None:
        self._started: list[Path] = []

    def __call__(self, verb: str, *words: Word) -> str:
        """Run one verb and return its output, without the last line break."""
        return _run([FOLDER / "broker", verb, *words]).rstrip("\n")

    def start(self, directory: Path, *words: Word, **settings: object) -> str:
        """Start a broker on `directory`, formatting a new one.

        Args:
            directory: its log directory.
            words: further options of `broker start`.
            settings: broker settings, with `_` for the dots of their names.

        Returns:
            The address for clients.
        """
        self._started.append(directory)
        pairs = [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]
        return self("start", directory, *words, *(word for pair in pairs for word in ("--set", pair)))

    def cluster(self, directories: Sequence[Path], **settings: object) -> str:
        """Start a broker per directory, all of one cluster, formatting new directories; settings as for `start`.

        Returns:
            The addresses for clients, with commas between them.
        """
        self._started += directories
        pairs = [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]
        return self("cluster", *directories, *(word for pair in pairs for word in ("--set", pair)))

    def client(self, directory: Path, commands: Iterable[Line]) -> list[Line]:
        """Produce, consume, … on the broker of `directory`; the lines it answered, parsed."""
        asked = "".join(f"{json.dumps(command)}\n" for command in commands)
        return _lines(_run([FOLDER / "broker", "client", directory], text=asked))

    def kill_all(self) -> None:
        """Kill every broker started here that still runs."""
        for directory in self._started:
            if directory.exists() and self("status", directory).startswith("running"):
                self("kill", directory)


def required() -> bool:
    """Whether a missing tool is a failure rather than a skip: `CORDWOOD_REQUIRE_KAFKA=1`, as CI sets it."""
    return REQUIRE_KAFKA


def need_tools(*names: str, packages: str) -> None:
    """Skip the test where a program is missing; fail where it has to be there.

    Args:
        packages: those of Debian that have the programs.
    """
    missing = [name for name in names if shutil.which(name) is None]
    if missing and REQUIRE_KAFKA:
        raise AssertionError(f"{' and '.join(missing)} must be here: apt-get install {packages}")
    if missing:
        pytest.skip(f"there is no {' and no '.join(missing)}")
