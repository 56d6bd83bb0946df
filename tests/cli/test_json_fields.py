"""The JSON of commands keeps its fields: `docs/compatibility.md` promises it.

`json_fields.txt` has each field's path and types. CORDWOOD_REWRITE=1 rewrites it: a removed or changed line breaks
programs, and belongs in the changelog; a new line does not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cordwood
from tests.command import run
from tests.fixtures import copy_of, fixture
from tests.knobs import REWRITE

FILE = Path(__file__).parent / "json_fields.txt"
BROKER = "kraft-classic-before"
NOW = ("--now", "1795300000000")
#: Arguments of each command; DIR stands for a broker's directory.
COMMANDS = {
    "ls": ("DIR",),
    "dump": ("DIR", "--topic", "orders", "--limit", "9"),
    "transactions": ("DIR", *NOW),
    "topics": ("DIR",),
    "configs": ("DIR",),
    "brokers": ("DIR",),
    "check": ("DIR",),
    "why": ("DIR", *NOW),
    "plan": ("DIR", *NOW),
    "get": ("DIR", "--topic", "orders", "--key", "p0-key-1", *NOW),
    "erase-check": ("DIR", "--topic", "orders", "--key", "p0-key-1", *NOW),
    "index": ("DIR", "--index-dir", "INDEXES"),
    "groups": ("DIR",),
    "clean": ("DIR", "--output", "COPY", "--engine", "here", *NOW),
    "verify": ("DIR", "COPY", "--engine", "here"),
    "compare": ("--broker", "1=DIR", "--broker", "2=COPY", "--engine", "here"),
    "undo": ("OLD",),
    "fetch": ("URL", "COPY"),
    "explain": ("DIR", "--topic", "orders", "--config", "min.cleanable.dirty.ratio=0.1", *NOW),
    "pack": ("--output", "ARCHIVE"),
    "simulate": ("--rate", "1/min", "--record-size", "100", "--keys", "50", "--config", "cleanup.policy=compact"),
}


def prepare(verb: str, logs: str, places: dict[str, str]) -> None:
    """Make the inputs of a command besides a directory."""
    given: Any = {"engine": "here", "now_ms": int(NOW[1]), "topics": ["orders"]}
    if verb == "verify":
        cordwood.clean(logs, output=places["COPY"], **given)
    if verb == "compare":
        cordwood.clean(logs, output=places["COPY"], **given)
        Path(places["COPY"], "meta.properties").unlink()
        # A difference of each sort, so that all fields are shown.
        for path in sorted(Path(places["COPY"], "orders-0").glob("*.log"))[1:2]:
            path.unlink()
        recovery = Path(places["COPY"], "recovery-point-offset-checkpoint")
        recovery.write_text(re.sub(r"(orders 0) \d+", r"\1 999999", recovery.read_text()))
    if verb == "undo":
        cordwood.clean_in_place(logs, keep_old=places["OLD"], single_copy=True, ignore_ratio=True, **given)
    if verb == "fetch":
        cordwood.clean(logs, output=places["URL"], **given)


def fields(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The path and the type of each value in a document; all items of a list are one."""
    if isinstance(value, dict):
        if not value:
            yield path, "object"
        for name, one in value.items():
            # Keys that are data, such as the names of topics, are no fields.
            yield from fields(one, f"{path}.{name}" if name.isidentifier() else f"{path}.*")
    elif isinstance(value, list):
        yield f"{path}[]", "list"
        for one in value:
            yield from fields(one, f"{path}[]")
    else:
        yield path, {"NoneType": "null", "str": "text"}.get(type(value).__name__, type(value).__name__)


def shown(verb: str, folder: Path) -> dict[str, set[str]]:
    """The fields of a command's output, each with its types."""
    places = {"DIR": str(folder / "logs"), "INDEXES": str(folder / "indexes"), "COPY": str(folder / "copy")}
    places |= {"OLD": str(folder / "old"), "URL": "memory://fields/copy", "ARCHIVE": str(folder / "environment.tar.gz")}
    prepare(verb, places["DIR"], places)
    words = [name + places.get(path, path) for name, path in map(_divided, COMMANDS[verb])]
    done = run(verb, *words, "--json", exits=None)
    assert done.exit_code in (0, 1), done.output
    text = done.stdout
    documents = [json.loads(text)] if text.startswith("{\n") else [json.loads(line) for line in text.splitlines()]
    found: dict[str, set[str]] = {}
    for document in documents:
        kind = f"<{document['type']}>" if "type" in document else ""
        for path, type_name in fields(document, kind):
            found.setdefault(path, set()).add(type_name)
    return found


def _divided(word: str) -> tuple[str, str]:
    """The name before a path, as in `1=DIR`, and the rest."""
    name, sign, path = word.partition("=")
    return (name + sign, path) if sign and name.isdigit() else ("", word)


def promised() -> dict[str, dict[str, set[str]]]:
    """The fields listed in the file, by command."""
    found: dict[str, dict[str, set[str]]] = {}
    for line in FILE.read_text().splitlines():
        verb, path, types = line.split()
        found.setdefault(verb, {})[path] = set(types.split("|"))
    return found


#: `pack` takes half a minute.
VERBS = [pytest.param(verb, marks=pytest.mark.slow) if verb == "pack" else verb for verb in COMMANDS]


@pytest.mark.parametrize("verb", VERBS)
def test_a_command_shows_the_fields_that_are_promised_and_no_unknown_ones(verb: str, tmp_path: Path) -> None:
    copy_of(fixture(BROKER), tmp_path / "logs")
    found = shown(verb, tmp_path)
    if REWRITE:
        known = promised() if FILE.exists() else {}
        known[verb] = found
        lines = [
            f"{command} {path} {'|'.join(sorted(types))}\n"
            for command, paths in sorted(known.items())
            for path, types in sorted(paths.items())
        ]
        FILE.write_text("".join(lines))
    assert found == promised()[verb]


#: The name of a thing in every document, and obsolete names for it.
ONE_NAME = {
    "log_end_offset": {"next_offset", "end"},
    "now_ms": {"now", "as_of"},
    "size_bytes": {"bytes"},
    "cleanable_ratio": {"dirty_ratio"},
    "topic": {"topic_partition", "topic_name"},
    "partition": {"partition_index", "partition_id"},
    "partition_count": {"partitions_count", "partitions_number"},
}


def test_a_thing_has_one_name_in_all_documents() -> None:
    """Totals and the summary line are counts by their nature; a workload has the names of its options.

    A metadata log has a `next_offset`: its snapshots may hold all records below it. `dump` has the names of Kafka's
    tool. Counts and traces of `erase-check` are grouped by kind, and one kind is `bytes`.
    """
    for verb, paths in promised().items():
        for path, types in paths.items():
            above, _, name = path.rpartition(".")
            is_metadata = verb in ("topics", "configs", "brokers") or above == ".metadata"
            if verb == "dump" or above in (".counts", ".files[].traces") or (name == "next_offset" and is_metadata):
                continue
            instead = [one for one, others in ONE_NAME.items() if name in others]
            assert not instead, f"{verb} {path} is {instead[0]} elsewhere"
            if name == "partitions":
                assert types <= {"null"} or ".totals" in f"{above}." or above in ("<summary>", ".workload"), (
                    verb,
                    path,
                )
            if name == "partition":
                topics = {f"{above}.topic", f"{above.rpartition('.')[0]}.topic"}
                assert types <= {"int", "null"} and topics & paths.keys(), (verb, path)
            if name.endswith(("_bytes", "_offset")):
                assert types <= {"int", "null"}, (verb, path)
