"""A check of several brokers compares their metadata logs, and separates uncommitted batches from damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from cordwood.commands.check import check
from cordwood.storage.check import Kind, Severity
from cordwood.storage.formats import leader_epochs
from cordwood.storage.formats.filenames import META_PROPERTIES, FileKind
from cordwood.storage.formats.leader_epochs import EpochEntry
from tests.logs import batch, write_log


def node(folder: Path, node_id: int, *epochs: int, other: str = "") -> Path:
    """A broker whose metadata log has a batch of each leader epoch; `other` is the value of the last one."""
    path = folder / f"broker-{node_id}"
    values = ["v"] * (len(epochs) - 1) + [other or "v"]
    batches = [
        batch(at, f"k={value}", leader_epoch=epoch)
        for at, (epoch, value) in enumerate(zip(epochs, values, strict=True))
    ]
    log = write_log(path / "__cluster_metadata-0", batches)
    starts = [EpochEntry(epoch, epochs.index(epoch)) for epoch in sorted(set(epochs))]
    (log / FileKind.LEADER_EPOCHS).write_bytes(leader_epochs.encode(starts))
    (path / META_PROPERTIES).write_text(f"version=1\nnode.id={node_id}\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\n")
    return path


CASES = [
    # Leader epochs of the other broker's log, its last value; then severity and offset of the finding.
    ((1, 1, 3, 3), "", None),
    ((1, 1, 3), "", None),
    ((1, 1), "", None),
    ((1, 1, 2, 2, 2), "", (Severity.RECOVERY, 2)),
    ((1, 1, 2), "", (Severity.RECOVERY, 2)),
    ((1, 1, 3), "w", (Severity.DAMAGE, 2)),
    ((1, 1), "w", (Severity.DAMAGE, 1)),
]


@pytest.mark.parametrize(("epochs", "other", "found"), CASES)
def test_a_metadata_log_that_differs_from_the_newest_is_found(
    tmp_path: Path, epochs: tuple[int, ...], other: str, found: tuple[Severity, int] | None
) -> None:
    paths = [node(tmp_path, 1, 1, 1, 3, 3, 3), node(tmp_path, 2, *epochs, other=other)]
    findings = [one for one in check(*paths) if one.kind is Kind.METADATA_DIFFERS]
    assert [(one.severity, one.offset) for one in findings] == ([] if found is None else [found])
    assert all(one.path == f"{paths[1]}/__cluster_metadata-0" for one in findings)
