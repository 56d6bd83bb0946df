"""The nodes that faults are planted in, unpacked once per test run."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.fixtures import unpacked

ARCHIVE = Path(__file__).parents[1] / "data" / "starts" / "nodes.tar.gz"
#: Folders of the archive; see make_nodes.py.
STATES = ("stopped", "trimmed", "crashed")


def copy_of(state: str, target: Path) -> Path:
    """Copy a node, with its log directories `a` and `b`, to a folder that a fault may change."""
    shutil.copytree(unpacked(ARCHIVE) / state, target, symlinks=True)
    return target
