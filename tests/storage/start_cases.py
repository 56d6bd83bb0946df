"""Files that keep a broker from starting, or take a log directory offline, with `check`'s prediction of the broker's
behavior.

The broker has two log directories. The damage is in the second, without the metadata log, so that a broker can run
without this directory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cordwood.storage.check import KINDS, Kind
from cordwood.storage.check.directory import _WRONG_VALUE as WRONG_VALUE
from cordwood.storage.check.findings import OFFLINE, STOPS
from cordwood.storage.formats import filenames
from cordwood.storage.formats.filenames import FileKind
from tests.fixtures import copy_of, fixture

PARTITION = "disk-2-1"
ID = b"topic_id: kh0ERQ6WToCnIzrMNpUr_A"
EPOCHS = str(FileKind.LEADER_EPOCHS)
METADATA = str(FileKind.PARTITION_METADATA)
FAILED = KINDS[Kind.META_PROPERTIES][1]

Plant = Callable[[Path], None]


def in_directory(name: str, data: bytes) -> Plant:
    def plant(directory: Path) -> None:
        (directory / name).write_bytes(data)

    return plant


def in_partition(name: str, data: bytes) -> Plant:
    return in_directory(f"{PARTITION}/{name}", data)


def transaction_index(version: bytes, *, crashed: bool = False, without_index: bool = False) -> Plant:
    """An aborted transaction, in the last segment."""

    def plant(directory: Path) -> None:
        log = max((directory / PARTITION).glob("*.log"))
        base = int(log.stem)
        fields = b"".join(number.to_bytes(8, "big") for number in (7, base, base + 1, base + 2))
        log.with_suffix(".txnindex").write_bytes(version + fields)
        if without_index:
            log.with_suffix(".index").unlink()
        if crashed:
            (directory / filenames.CLEAN_SHUTDOWN).unlink()
            (directory / filenames.RECOVERY_POINTS).write_bytes(b"0\n0\n")

    return plant


def subdirectory(name: str) -> Plant:
    return lambda directory: (directory / name).mkdir()


@dataclass(frozen=True)
class Case:
    """Damage, its kind in `check`, and the behavior of a broker that `check` predicts."""

    plant: Plant
    kind: Kind
    meaning: str


CASES = {
    "transaction index of version 1": Case(transaction_index(b"\1\0"), Kind.TRANSACTION_INDEX_VERSION, STOPS),
    "transaction index of version 1, crash": Case(
        transaction_index(b"\1\0", crashed=True), Kind.TRANSACTION_INDEX_VERSION, STOPS
    ),
    "directory without a number": Case(subdirectory("foo"), Kind.BAD_DIRECTORY_NAME, STOPS),
    "directory with a word for a number": Case(subdirectory("foo-bar"), Kind.BAD_DIRECTORY_NAME, STOPS),
    "directory to be deleted without an id": Case(subdirectory("foo-1-delete"), Kind.BAD_DIRECTORY_NAME, STOPS),
    "log without an offset": Case(in_partition("abc.log", b""), Kind.BAD_FILE_NAME, STOPS),
    "partition.metadata, empty": Case(in_partition(METADATA, b""), Kind.PARTITION_METADATA, STOPS),
    "partition.metadata, one line": Case(in_partition(METADATA, b"version: 0\n"), Kind.PARTITION_METADATA, STOPS),
    "partition.metadata, no UUID": Case(
        in_partition(METADATA, b"version: 0\ntopic_id: nonsense!"), Kind.PARTITION_METADATA, STOPS
    ),
    "partition.metadata, UUID of zeros": Case(
        in_partition(METADATA, b"version: 0\ntopic_id: " + b"A" * 22), Kind.PARTITION_METADATA, OFFLINE
    ),
    "partition.metadata, no colon": Case(in_partition(METADATA, b"version 0\n" + ID), Kind.PARTITION_METADATA, OFFLINE),
    "partition.metadata, version x": Case(
        in_partition(METADATA, b"version: x\n" + ID), Kind.PARTITION_METADATA, OFFLINE
    ),
    "partition.metadata, no UTF-8": Case(in_partition(METADATA, b"\xff: 0\n" + ID), Kind.PARTITION_METADATA, OFFLINE),
    "leader epochs, version 1": Case(in_partition(EPOCHS, b"1\n0\n"), Kind.LEADER_EPOCHS_UNREADABLE, OFFLINE),
    "leader epochs, three fields": Case(in_partition(EPOCHS, b"0\n1\n0 0 0\n"), Kind.LEADER_EPOCHS_UNREADABLE, OFFLINE),
    "leader epochs, one missing": Case(in_partition(EPOCHS, b"0\n2\n0 0\n"), Kind.LEADER_EPOCHS_UNREADABLE, OFFLINE),
    "leader epochs, no number": Case(in_partition(EPOCHS, b"0\n1\n0 x\n"), Kind.LEADER_EPOCHS_UNREADABLE, STOPS),
    "leader epochs, negative": Case(in_partition(EPOCHS, b"0\n1\n0 -5\n"), Kind.LEADER_EPOCHS_UNREADABLE, STOPS),
    "meta.properties, version 7": Case(
        in_directory(filenames.META_PROPERTIES, b"version=7\n"), Kind.META_PROPERTIES, FAILED
    ),
    "meta.properties, no cluster": Case(
        in_directory(filenames.META_PROPERTIES, b"version=1\nnode.id=1\n"), Kind.META_PROPERTIES, FAILED
    ),
    **{
        f"{name}, {what}": Case(in_directory(name, data), Kind.CHECKPOINT_UNREADABLE, OFFLINE)
        for name in filenames.OFFSET_CHECKPOINTS
        for what, data in (("two fields", b"0\n1\nfoo 0\n"), ("version 1", b"1\n0\n"))
    },
    **{
        f"{name}, {what}": Case(in_directory(name, data), Kind.CHECKPOINT_UNREADABLE, WRONG_VALUE[name])
        for name in filenames.OFFSET_CHECKPOINTS
        for what, data in (("no number", b"0\n1\nfoo 0 x\n"), ("negative count", b"0\n-1\n"))
    },
}


def start_directories(folder: Path) -> Path:
    """The two log directories of a broker, `a` and `b`."""
    return copy_of(fixture("kraft-jbod-before"), folder / "logs")
