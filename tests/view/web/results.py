"""Output of the commands that write a page of their result."""

from __future__ import annotations

from pathlib import Path

from tests.command import run
from tests.fixtures import copy_of, fixture

_NODE = "kraft-classic-before"
_NOW = ("--now", "1795300000000")
_KEYS = ("--topic", "orders", "--key", "p0-key-13", "--key", "p0-key-1")
_CLEAN = ("clean", "NODE", "--engine", "here", "--ignore-ratio", "--report", "PAGE")
_COMPACTED = ("--keys", "5000", "--config", "cleanup.policy=compact", "--against", "min.cleanable.dirty.ratio=0.2")
#: By name: NODE is a broker's directory, OTHER an earlier state of it, PAGE the path of the page.
COMMANDS = {
    "clean": (*_CLEAN, "--output", "COPY"),
    "clean in place": (*_CLEAN, "--in-place"),
    "erase-check": ("erase-check", "NODE", *_KEYS, "--values", *_NOW, "--report", "PAGE"),
    "erase-check, clear": ("erase-check", "NODE", *_KEYS[:2], "--key", "nobody-at-all", "--report", "PAGE"),
    "simulate": ("simulate", "--rate", "100", "--days", "1", "--scale", "5000", *_COMPACTED, "--report", "PAGE"),
    "explain": ("explain", "NODE", *_KEYS[:2], "--config", "min.cleanable.dirty.ratio=0.1", *_NOW, "--report", "PAGE"),
    "verify": ("verify", "NODE", "NODE", "--engine", "here", "--report", "PAGE"),
    "verify, violated": ("verify", "NODE", "OTHER", "--engine", "here", "--report", "PAGE"),
}


def printed_by(command: str, folder: Path) -> Path:
    """A file with the JSON that a command printed; beside it `report.html`, the page that it wrote."""
    node = copy_of(fixture(_NODE), folder / "node")
    places = {
        "NODE": node,
        "PAGE": folder / "report.html",
        "COPY": folder / "copy",
        "OTHER": fixture("kraft-classic-before-2"),
    }
    done = run(*(places.get(word, word) for word in COMMANDS[command]), "--json", exits=None)
    assert done.exit_code in (0, 1), done.output
    (folder / "result.json").write_text(done.stdout)
    return folder / "result.json"
