"""`cordwood dump --json` prints the same as Kafka's own classes, line by line: for all fixtures and generated logs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.command import run
from tests.fixtures import NAMES, fixture, partitions
from tests.kafka_tools import PROFILES, Oracle

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

Line = dict[str, Any]

GENERATED = 300


def dumped(files: Sequence[Path]) -> dict[Path, list[Line]]:
    """The command's output for each file."""
    result = run("dump", "--json", "--no-decode", *files, exits=None)
    assert result.exit_code in (0, 1), result.output
    lines: dict[Path, list[Line]] = {file: [] for file in files}
    of_file: list[Line] = []
    for line in result.lines:
        if "file" in line:
            of_file = lines[Path(line["file"])]
        of_file.append(line)
    return lines


def files_of(path: Path) -> list[Path]:
    """The files that the oracle reads for a path."""
    return sorted(path.glob("*.log")) if path.is_dir() else [path]


def as_kafka_says(lines: Sequence[Line]) -> Iterator[Line]:
    """Translate our lines into the oracle's words, with all of its fields and no others."""
    file = ""
    for line in lines:
        if line["type"] == "record":
            words = ("type", "offset", "control", "value", "key")
            told = {word: line[word] for word in words if word in line}
            told |= {"ts": line["timestamp"], "key": text(line["key"]), "value": text(line["value"])}
            if line["headers"]:
                told["headers"] = [[name, text(value)] for name, value in line["headers"]]
            yield told
            continue
        file = Path(line["file"]).name
        if line["type"] == "batch":
            told = {word: value for word, value in line.items() if word not in ("topic", "partition")}
            told |= {"file": file, "crc": f"{int(line['crc'], 16):x}"}
            if line["magic"] < 2:
                # Kafka never counts records in old formats, and has no attributes and base timestamp for them.
                told["count"] = None
                del told["attributes"], told["base_timestamp"]
            yield told
        elif line["size"] is not None and "zero bytes" not in line["what"]:
            # The position where Kafka's reader stops. At zeros it fails without a message.
            yield {"type": "rest", "file": file, "position": line["position"], "size": line["size"]}


def text(value: Any) -> Any:
    """Text that is not plain ASCII, as the oracle writes it."""
    if isinstance(value, str) and not all(" " <= character <= "~" for character in value):
        return {"hex": value.encode().hex()}
    return value


def assert_same(ours: Sequence[Line], kafkas: Sequence[Line], where: object) -> None:
    for number, (our, kafka) in enumerate(zip(ours, kafkas, strict=False)):
        assert our == kafka, f"{where}, line {number}"
    assert len(ours) == len(kafkas), where


@pytest.mark.parametrize("name", NAMES)
def test_every_segment_of_a_fixture_is_dumped_as_kafka_dumps_it(name: str, kafka_oracle: Oracle) -> None:
    directories = partitions(fixture(name))
    leftovers = [file for directory in directories for file in sorted(directory.glob("*.log.*"))]
    paths = directories + leftovers
    answers = kafka_oracle.batch([("dump", path, "--values") for path in paths], exits=(0, 1))
    lines = dumped([file for path in paths for file in files_of(path)])
    for path, kafkas in zip(paths, answers, strict=True):
        assert_same([line for file in files_of(path) for line in as_kafka_says(lines[file])], kafkas, path)
    assert sum(line["type"] == "record" for answer in answers for line in answer) > 100


def test_generated_logs_are_dumped_as_kafka_dumps_them(tmp_path: Path, kafka_oracle: Oracle) -> None:
    chosen = [(PROFILES[seed % len(PROFILES)], seed) for seed in range(1, GENERATED + 1)]
    folders = [tmp_path / f"{profile}-{seed}" for profile, seed in chosen]
    kafka_oracle.batch(
        [
            "generate",
            folder,
            "--seed",
            str(seed),
            "--profile",
            profile,
            "--size",
            str(30_000 + seed * 100),
            "--partitions",
            "1",
        ]
        for folder, (profile, seed) in zip(folders, chosen, strict=True)
    )
    directories = [directory for folder in folders for directory in partitions(folder)]
    assert len(directories) == GENERATED
    answers = kafka_oracle.batch([("dump", directory, "--values") for directory in directories])
    lines = dumped([file for directory in directories for file in files_of(directory)])
    for directory, kafkas in zip(directories, answers, strict=True):
        assert any(line["type"] == "record" for line in kafkas), directory
        ours = [line for file in files_of(directory) for line in as_kafka_says(lines[file])]
        assert_same(ours, kafkas, directory)
