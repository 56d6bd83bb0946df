"""Whole directories of files, to be compared."""

from __future__ import annotations

from pathlib import Path

#: Enough of a fixture's partitions to meet every rule, few enough to be quick.
TOPICS = ("orders", "payments", "producers", "codec-lz4", "short-tombstones", "trimmed-both")


def tree(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """All that a write could change: times, sizes, bytes."""
    found = {}
    for path in [root, *root.rglob("*")]:
        status = path.stat()
        found[str(path.relative_to(root))] = (
            status.st_mtime_ns, status.st_mode, path.read_bytes() if path.is_file() else b"",
        )  # fmt: skip
    return found
