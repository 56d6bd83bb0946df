"""One mutant, in a process of its own: `python -m tests.cleaning.mutated NUMBER LOGS FOLDER`; -1 is the unchanged
cleaner.

It replays Kafka's scenarios up to the first difference, and cleans the logs into the folder. It prints both results to
standard output, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.cleaning.mutants import MUTANTS, NONE, install


def against_kafka() -> str:
    """The first difference to Kafka's results of its scenarios, or an empty string."""
    from cordwood.cleaning.engine import partition, rewrite
    from cordwood.cleaning.rules import key_table
    from tests.cleaning.replay import NOT_AT_ALL, SCENARIOS, replay

    # Scenarios that find most mutants come first, slow scenarios last.
    first, last = ("tombstone-horizon", "transactions", "boundaries", "selection", "groups-by-size"), ("map-full",)
    others = sorted(SCENARIOS.keys() - NOT_AT_ALL.keys() - {*first, *last})
    # The choice of keys that share a bucket depends only on the mutant.
    vars(partition)["secrets"] = SimpleNamespace(token_bytes=lambda size: bytes(range(size)))
    for turn in range(2):
        if turn == 1:
            # In many chunks, which have to be merged; and no batch is rebuilt without being decoded.
            key_table.CHUNK_RECORDS = 8
            vars(rewrite)["thin"] = lambda *_: None
        for name in (*first, *others, *last):
            try:
                found = replay(name).differences
            except Exception as error:
                found = [f"{type(error).__name__} {error}"]
            if found:
                return f"{name}: {found[0]}"
    return ""


def clean_logs(logs: Path, target: Path) -> str:
    """Why the logs cannot be cleaned; empty: they are."""
    from tests.cleaning.mutated_logs import clean

    try:
        failed = clean(logs, target)
    except Exception as error:
        return f"{type(error).__name__} {error}"
    return "; ".join(failed)


def main(number: int, logs: Path, folder: Path) -> None:
    folder.mkdir()
    install(NONE if number < 0 else MUTANTS[number], folder)
    found: dict[str, Any] = {"kafka": against_kafka(), "failed": clean_logs(logs, folder / "logs")}
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
