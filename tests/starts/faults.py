"""The faults: each has a name, the state of the node that it is planted in, and changes to the node's files.

The node has two disks. `a` holds the metadata log, orders-0, carts-0, payments-0, idle-0 and __consumer_offsets-0; `b`
holds orders-1, carts-1, trimmed-0 and __transaction_state-0.

Most logs of the stopped node have segments 0, 45 and 90 and end at offset 120. Those of the crashed node also have
segment 135 and end at 150; its recovery points are 120. Other logs: `payments` has transactions, segments 0 and 55, and
ends at 60; `carts` is compacted; `trimmed` starts at 40; `idle` is empty. Retention in `orders` deletes records older
than 31 years; there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.starts.actions import (
    Action,
    append,
    append_half,
    change_batch,
    chmod,
    chop,
    copy,
    cut,
    directory,
    drop_batch,
    edit,
    empty,
    fifo,
    flip,
    garbage,
    join,
    leave_header,
    link,
    put,
    remove,
    remove_all,
    rename,
    split,
    swap_batches,
    write,
    zero,
    zero_tail,
)
from tests.starts.nodes import copy_of

OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
OTHER = "XXXXXXXXXXXXXXXXXXXXXg"
CARTS_ID = "agRvKBhqTb-sqxzWqdupEA"
META = "a/__cluster_metadata-0"
#: The partition that most faults are planted in, by state: one on the disk of the metadata log, one on the other disk.
PLACES = {"stopped": "a/orders-0", "crashed": "b/orders-1"}
FUTURE = "0123456789abcdef0123456789abcdef"
SMALL: dict[str, Callable[[str], Action]] = {
    "missing": remove,
    "empty": empty,
    "zeroed": zero,
    "cut": cut,
    "garbage": garbage,
}
#: Fields of a batch: struct format and position.
BASE_OFFSET, LENGTH, LEADER_EPOCH, MAGIC = (">q", 0), (">i", 8), (">i", 12), (">b", 16)
LAST_OFFSET_DELTA, MAX_TIMESTAMP, SEQUENCE, COUNT = (">i", 23), (">q", 35), (">i", 53), (">i", 57)


@dataclass(frozen=True)
class Fault:
    """Changes to the files of a node in one state.

    Attributes:
        family: the group of the fault in reports.
        what: short description, unique within a state.
        state: state of the node before the fault, see `nodes.STATES`.
    """

    family: str
    what: str
    state: str
    actions: tuple[Action, ...]

    @property
    def name(self) -> str:
        """The name of the fault in lists and on the command line."""
        return f"{self.state}: {self.what}"

    def plant(self, target: Path) -> Path:
        """Copy the node to `target`, which must not exist, and make the changes there."""
        copy_of(self.state, target)
        for action in self.actions:
            action(target)
        return target


def _faults(family: str, rows: dict[str, Action | tuple[Action, ...]], *states: str) -> Iterator[Fault]:
    for state in states or ("stopped",):
        for what, actions in rows.items():
            yield Fault(family, what, state, actions if isinstance(actions, tuple) else (actions,))


def damaged(*paths: str) -> dict[str, Action | tuple[Action, ...]]:
    """Return every way of `SMALL` to damage a file, for each path."""
    return {f"{path} {how}": act(path) for path in paths for how, act in SMALL.items()}


def _all() -> Iterator[Fault]:
    yield from _faults("none", {"nothing": ()}, "stopped", "trimmed", "crashed")
    yield from _small_files()
    yield from _metadata_log()
    yield from _directories()
    yield from _segments()
    for state, p in PLACES.items():
        yield from _faults("swaps", _swaps(p), state)


def _small_files() -> Iterator[Fault]:
    for disk in ("a", "b"):
        meta = f"{disk}/meta.properties"
        rows: dict[str, Action | tuple[Action, ...]] = {
            **damaged(meta),
            f"{meta} of another cluster": edit(meta, "^cluster.id=.*", f"cluster.id={OTHER}"),
            f"{meta} of another node": edit(meta, "^node.id=1", "node.id=2"),
            f"{meta} with another directory id": edit(meta, "^directory.id=.*", f"directory.id={OTHER}"),
            f"{meta} of version 2": edit(meta, "^version=1", "version=2"),
            f"{meta} of version 0": edit(meta, "^version=1", "version=0"),
            f"{meta} with a version that is no number": edit(meta, "^version=1", "version=one"),
            f"{meta} with a node that is no number": edit(meta, "^node.id=1", "node.id=one"),
            f"{meta} with a reserved directory id": edit(meta, "^directory.id=.*", f"directory.id={OTHER_ID}"),
            f"{meta} with a directory id that is none": edit(meta, "^directory.id=.*", "directory.id=%%%"),
            f"{meta} with a key of nobody": append(meta, b"color=red\n"),
            f"{meta} with broker.id as in a ZooKeeper cluster": edit(meta, "^node.id=1", "broker.id=1"),
        }
        for key in ("version", "cluster.id", "node.id", "directory.id"):
            rows[f"{meta} without {key}"] = edit(meta, f"^{key}=.*\n", "")
        yield from _faults("meta.properties", rows)
    same = edit("b/meta.properties", "^directory.id=.*", "directory.id=lVpxBxqBGuQiwEDNDXwiTg")
    yield from _faults("meta.properties", {"both meta.properties with one directory id": same})
    yield from _faults(
        "meta.properties",
        {
            "both meta.properties missing": (remove("a/meta.properties"), remove("b/meta.properties")),
            "b/meta.properties with a space behind its cluster": edit("b/meta.properties", "^(cluster.id=.*)", r"\1 "),
            "b/meta.properties with the line ends of Windows": edit("b/meta.properties", "\n", "\r\n"),
            "both meta.properties exchanged": (
                rename("a/meta.properties", "a/aside"),
                rename("b/meta.properties", "a/meta.properties"),
                rename("a/aside", "b/meta.properties"),
            ),
        },
    )
    yield from _faults("meta.properties", damaged("b/meta.properties"), "crashed")

    for path in ("a/orders-0", "b/carts-1", "a/idle-0"):
        file = f"{path}/partition.metadata"
        rows = {
            **damaged(file),
            f"{file} of another topic": edit(file, "topic_id: .*", f"topic_id: {CARTS_ID}"),
            f"{file} with an unknown id": edit(file, "topic_id: .*", f"topic_id: {OTHER}"),
            f"{file} with the id of nothing": edit(file, "topic_id: .*", "topic_id: AAAAAAAAAAAAAAAAAAAAAA"),
            f"{file} of version 1": edit(file, "version: 0", "version: 1"),
            f"{file} with the version alone": edit(file, "\ntopic_id: .*", ""),
            f"{file} that is a directory": (remove(file), directory(file)),
            f"{file} with the line ends of Windows": edit(file, "\n", "\r\n"),
        }
        yield from _faults("partition.metadata", rows)
    yield from _faults("partition.metadata", damaged("a/orders-0/partition.metadata"), "crashed")
    metadata = f"{META}/partition.metadata"
    yield from _faults("partition.metadata", damaged(metadata))

    points = "recovery-point-offset-checkpoint"
    starts = "log-start-offset-checkpoint"
    marks = "replication-offset-checkpoint"
    cleaner = "cleaner-offset-checkpoint"
    for file in (points, starts, marks, cleaner):
        path = f"b/{file}"
        rows = {
            **damaged(path),
            f"{path} of version 1": edit(path, r"\A0", "1"),
            f"{path} with another count": edit(path, r"\A0\n\d+", "0\n9"),
            f"{path} with a line that is none": edit(path, r"\d+\n\Z", "many\n"),
            f"{path} that is a directory": (remove(path), directory(path)),
            f"{path} with an empty line behind": append(path, b"\n"),
            f"{path} with the line ends of Windows": edit(path, "\n", "\r\n"),
        }
        yield from _faults("checkpoints", rows)
    yield from _faults("checkpoints", damaged(f"b/{points}", f"b/{starts}"), "crashed")
    trimmed = f"b/{starts}"
    yield from _faults(
        "checkpoints",
        {
            "recovery point beyond the end": edit(f"a/{points}", "orders 0 120", "orders 0 500"),
            "recovery point below zero": edit(f"a/{points}", "orders 0 120", "orders 0 -1"),
            "recovery point in an old segment": edit(f"a/{points}", "orders 0 120", "orders 0 50"),
            "recovery point of a partition that is not there": edit(f"a/{points}", "idle 0 0", "gone 7 3"),
            "log start beyond the end": edit(trimmed, "trimmed 0 40", "trimmed 0 500"),
            "log start at the end": edit(trimmed, "trimmed 0 40", "trimmed 0 120"),
            "log start in the last segment": edit(trimmed, "trimmed 0 40", "trimmed 0 100"),
            "log start below zero": edit(trimmed, "trimmed 0 40", "trimmed 0 -5"),
            "log start of another partition's": write(f"a/{starts}", "0\n1\norders 0 60\n"),
            "log start on the other disk": (write(trimmed, "0\n0\n"), write(f"a/{starts}", "0\n1\ntrimmed 0 40\n")),
            "high watermark beyond the end": edit(f"a/{marks}", "orders 0 120", "orders 0 500"),
            "high watermark below the start": edit(f"b/{marks}", "trimmed 0 120", "trimmed 0 3"),
            "entry twice in the recovery points": write(f"a/{points}", "0\n2\norders 0 120\norders 0 45\n"),
        },
        "stopped",
        "crashed",
    )
    yield from _faults(
        "cleaner checkpoint",
        {
            "cleaner entries of one partition on two disks": write(f"b/{cleaner}", "0\n2\ncarts 1 90\ncarts 0 45\n"),
            "cleaner entries on two disks alike": write(f"b/{cleaner}", "0\n2\ncarts 1 90\ncarts 0 90\n"),
            "cleaner entry on the other disk alone": (
                write(f"a/{cleaner}", "0\n0\n"),
                write(f"b/{cleaner}", "0\n2\ncarts 1 90\ncarts 0 45\n"),
            ),
            "cleaner entry of a partition that is gone, on two disks": (
                write(f"a/{cleaner}", "0\n2\ncarts 0 90\ngone 0 5\n"),
                write(f"b/{cleaner}", "0\n2\ncarts 1 90\ngone 0 6\n"),
            ),
            "cleaner entry beyond the end": write(f"a/{cleaner}", "0\n1\ncarts 0 500\n"),
            "cleaner entry below zero": write(f"a/{cleaner}", "0\n1\ncarts 0 -1\n"),
            "cleaner entry of a topic without compaction": write(f"a/{cleaner}", "0\n2\ncarts 0 90\norders 0 45\n"),
            "cleaner entry twice in one file": write(f"a/{cleaner}", "0\n2\ncarts 0 90\ncarts 0 45\n"),
            "cleaner checkpoint empty on both": (empty(f"a/{cleaner}"), empty(f"b/{cleaner}")),
        },
    )
    stop = "b/.kafka_cleanshutdown"
    yield from _faults(
        "clean shutdown",
        {
            **damaged(stop),
            "a/.kafka_cleanshutdown missing": remove("a/.kafka_cleanshutdown"),
            f"{stop} of version 9": edit(stop, '"version":0', '"version":9'),
            f"{stop} with another epoch": edit(stop, '"brokerEpoch":12', '"brokerEpoch":3'),
            "a/.lock that nobody holds": write("a/.lock", ""),
            "a/.lock that is a directory": directory("a/.lock"),
        },
    )
    yield from _faults(
        "clean shutdown", {"a/.kafka_cleanshutdown of nobody": write("a/.kafka_cleanshutdown", "")}, "crashed"
    )


def _metadata_log() -> Iterator[Fault]:
    family = "metadata log"
    yield from _faults(
        family,
        {
            "the metadata log is gone": remove(META),
            "the metadata log is empty": (remove(META), directory(META)),
            "the metadata log has no segments": remove_all(META, "*.log"),
            "the metadata log has no segments and no snapshots": (
                remove_all(META, "*.log"),
                remove_all(META, "*.checkpoint"),
            ),
            "the metadata log has no snapshots": remove_all(META, "*.checkpoint"),
            "bootstrap.checkpoint missing": remove("a/bootstrap.checkpoint"),
            "bootstrap.checkpoint empty": empty("a/bootstrap.checkpoint"),
            "bootstrap.checkpoint zeroed": zero("a/bootstrap.checkpoint"),
            "bootstrap.checkpoint cut": cut("a/bootstrap.checkpoint"),
            "bootstrap.checkpoint garbage": garbage("a/bootstrap.checkpoint"),
            "bootstrap.checkpoint missing on b": remove("b/bootstrap.checkpoint"),
            "bootstrap.checkpoint empty on b": empty("b/bootstrap.checkpoint"),
            "bootstrap.checkpoint garbage on b": garbage("b/bootstrap.checkpoint"),
            "the metadata log is on both disks": copy(META, "b/__cluster_metadata-0"),
            "the metadata log is a file": (remove(META), write(META, "")),
            **damaged(f"{META}/quorum-state"),
            "quorum-state of another version": edit(f"{META}/quorum-state", '"data_version":0', '"data_version":9'),
            "quorum-state of other voters": edit(f"{META}/quorum-state", '"voterId":1', '"voterId":2'),
            "quorum-state of another cluster": edit(f"{META}/quorum-state", '"clusterId":""', f'"clusterId":"{OTHER}"'),
            "quorum-state of a later epoch": edit(f"{META}/quorum-state", r'"leaderEpoch":\d+', '"leaderEpoch":90'),
            "quorum-state of another leader": edit(f"{META}/quorum-state", '"leaderId":1', '"leaderId":7'),
            **damaged(f"{META}/leader-epoch-checkpoint"),
        },
        "stopped",
        "trimmed",
    )
    yield from _faults(
        family,
        {
            "metadata segment 0 missing": remove(f"{META}/0.log"),
            "metadata segment in the middle missing": remove(f"{META}/76.log"),
            "metadata segment in the middle empty": empty(f"{META}/76.log"),
            "metadata segment in the middle flipped": flip(f"{META}/76.log", 300),
            "metadata segment 0 flipped": flip(f"{META}/0.log", 300),
            "last metadata segment missing": remove(f"{META}/121.log"),
            "last metadata segment empty": empty(f"{META}/121.log"),
            "last metadata segment cut": cut(f"{META}/121.log"),
            "last metadata segment torn": chop(f"{META}/121.log", 5),
            "last metadata segment flipped": flip(f"{META}/121.log", 300),
            "last metadata segment zeroed": zero(f"{META}/121.log"),
            "last metadata segment zero-tailed": zero_tail(f"{META}/121.log", 200),
            "last metadata segment with zeros behind": append(f"{META}/121.log", bytes(200)),
            "metadata indexes missing": remove_all(META, "*index"),
            "metadata producer snapshots missing": remove_all(META, "*.snapshot"),
            "newest metadata snapshot missing": remove(f"{META}/141-1.checkpoint"),
            "newest metadata snapshot empty": empty(f"{META}/141-1.checkpoint"),
            "newest metadata snapshot zeroed": zero(f"{META}/141-1.checkpoint"),
            "newest metadata snapshot cut": cut(f"{META}/141-1.checkpoint"),
            "newest metadata snapshot flipped": flip(f"{META}/141-1.checkpoint", 900),
            "newest metadata snapshot chopped": chop(f"{META}/141-1.checkpoint", 75),
            "newest metadata snapshot garbage": garbage(f"{META}/141-1.checkpoint"),
            "an older metadata snapshot flipped": flip(f"{META}/121-1.checkpoint", 900),
            "an older metadata snapshot empty": empty(f"{META}/121-1.checkpoint"),
            "a metadata snapshot that was not finished": rename(
                f"{META}/141-1.checkpoint", f"{META}/141-1.checkpoint.part"
            ),
            "a metadata snapshot of a later epoch": rename(f"{META}/141-1.checkpoint", f"{META}/141-9.checkpoint"),
            "a metadata snapshot beyond the log's end": copy(f"{META}/141-1.checkpoint", f"{META}/500-1.checkpoint"),
            "a metadata snapshot for deletion": rename(f"{META}/141-1.checkpoint", f"{META}/141-1.checkpoint.deleted"),
            "all metadata snapshots but the first": tuple(
                remove(f"{META}/{at}-1.checkpoint") for at in (22, 31, 46, 62, 74, 86, 97, 112, 121, 130, 141)
            ),
            "metadata log cut behind the newest snapshot": remove_all(META, "00000000000000000121.*"),
            "metadata log cut before two snapshots": (
                remove_all(META, "00000000000000000121.*"),
                remove_all(META, "00000000000000000100.*"),
            ),
        },
    )
    first, last = f"{META}/310-3.checkpoint", f"{META}/328-3.checkpoint"
    yield from _faults(
        family,
        {
            "newest snapshot of a trimmed log missing": remove(last),
            "newest snapshot of a trimmed log empty": empty(last),
            "newest snapshot of a trimmed log zeroed": zero(last),
            "newest snapshot of a trimmed log cut": cut(last),
            "newest snapshot of a trimmed log flipped": flip(last, 900),
            "newest snapshot of a trimmed log garbage": garbage(last),
            "oldest snapshot of a trimmed log missing": remove(first),
            "oldest snapshot of a trimmed log empty": empty(first),
            "oldest snapshot of a trimmed log flipped": flip(first, 900),
            "both snapshots of a trimmed log empty": (empty(first), empty(last)),
            "both snapshots of a trimmed log flipped": (flip(first, 900), flip(last, 900)),
            "both snapshots of a trimmed log are .part": (
                rename(first, f"{first}.part"),
                rename(last, f"{last}.part"),
            ),
            "first segment of a trimmed log missing": remove(f"{META}/303.log"),
            "last segment of a trimmed log missing": remove(f"{META}/318.log"),
            "last segment of a trimmed log cut": cut(f"{META}/318.log"),
            "last segment of a trimmed log empty": empty(f"{META}/318.log"),
            "first segment of a trimmed log flipped": flip(f"{META}/303.log", 300),
            "last segment of a trimmed log flipped": flip(f"{META}/318.log", 300),
            "a trimmed log begins behind its oldest snapshot": remove_all(META, "00000000000000000303.*"),
        },
        "trimmed",
    )
    yield from _faults(
        family,
        {
            "last metadata segment cut": cut(f"{META}/159.log"),
            "last metadata segment flipped": flip(f"{META}/159.log", 300),
            "last metadata segment zero-tailed": zero_tail(f"{META}/159.log", 200),
            "last metadata segment empty": empty(f"{META}/159.log"),
            "metadata segment in the middle missing": remove(f"{META}/76.log"),
            "metadata segment in the middle flipped": flip(f"{META}/76.log", 300),
            "newest metadata snapshot empty": empty(f"{META}/158-2.checkpoint"),
            "newest metadata snapshot missing": remove(f"{META}/158-2.checkpoint"),
        },
        "crashed",
    )


def _directories() -> Iterator[Fault]:
    deleted, stray, future = (f"a/orders-0.{FUTURE}-{end}" for end in ("delete", "stray", "future"))
    yield from _faults(
        "directories",
        {
            "disk b not mounted": remove("b"),
            "disk b empty": (remove("b"), directory("b")),
            "disk b is a file": (remove("b"), write("b", "")),
            "disk b is a dangling link": (remove("b"), link("b", "nowhere")),
            "disk b is a link": (rename("b", "c"), link("b", "c")),
            "disk a empty": (remove("a"), directory("a")),
            "disk a not mounted": remove("a"),
            "a partition is a file": (remove("a/orders-0"), write("a/orders-0", "")),
            "a partition is a dangling link": (remove("a/orders-0"), link("a/orders-0", "nowhere")),
            "a partition is a link": (rename("a/orders-0", "moved"), link("a/orders-0", "../moved")),
            "a partition is gone": remove("a/orders-0"),
            "a partition is empty": (remove("a/orders-0"), directory("a/orders-0")),
            "a partition has only partition.metadata": remove_all("a/orders-0", "0*"),
            "a partition under another partition's name": (rename("a/orders-0", "a/orders-7")),
            "a partition under another topic's name": rename("a/orders-0", "a/invoices-0"),
            "a partition under a name that is none": rename("a/orders-0", "a/orders"),
            "a partition under a copy's name": rename("a/orders-0", "a/orders-0.bak"),
            "a partition with a zero before its number": rename("a/orders-0", "a/orders-00"),
            "two partitions exchanged": (
                rename("a/orders-0", "a/aside"),
                rename("a/carts-0", "a/orders-0"),
                rename("a/aside", "a/carts-0"),
            ),
            "two partitions of a topic exchanged": (
                rename("a/orders-0", "aside"),
                rename("b/orders-1", "a/orders-0"),
                rename("aside", "b/orders-1"),
            ),
            "a partition moved to the other disk": rename("a/orders-0", "b/orders-0"),
            "a compacted partition moved to the other disk": rename("a/carts-0", "b/carts-0"),
            "a trimmed partition moved to the other disk": rename("b/trimmed-0", "a/trimmed-0"),
            "a partition on both disks": copy("a/orders-0", "b/orders-0"),
            "a partition on both disks, one copy empty": (directory("b/orders-0"),),
            "a partition's copy is the future one": copy("a/orders-0", f"b/orders-0.{FUTURE}-future"),
            "a partition is only there as the future one": rename("a/orders-0", future),
            "a partition is only there as the future one on the other disk": rename(
                "a/orders-0", f"b/orders-0.{FUTURE}-future"
            ),
            "a partition and its deleted self": copy("a/orders-0", deleted),
            "a partition is renamed for deletion": rename("a/orders-0", deleted),
            "a partition is renamed as a stray": rename("a/orders-0", stray),
            "a partition and its stray self": copy("a/orders-0", stray),
            "a name that ends with -delete alone": directory("a/orders-0-delete"),
            "a -delete directory of an unknown topic": directory(f"a/gone-0.{FUTURE}-delete"),
            "a -stray directory that is empty": directory(f"a/gone-0.{FUTURE}-stray"),
            "a -future directory of an unknown topic": directory(f"a/gone-0.{FUTURE}-future"),
            "a foreign directory": directory("a/backup"),
            "lost+found": directory("a/lost+found"),
            "a hidden directory": directory("a/.snapshot"),
            "a directory that looks like a partition": directory("a/photos-2026"),
            "a directory with a dash": directory("a/old-backup"),
            "a directory with a number alone": directory("a/-3"),
            "a foreign file": write("a/notes.txt", "hello"),
            "a foreign file named like a partition": write("a/notes-1", "hello"),
            "an empty directory for a partition of the cluster": (remove("b/carts-1"), directory("b/carts-1")),
            "a directory with a space in its name": directory("a/my topic-0"),
            "remote-log-index-cache": directory("a/remote-log-index-cache"),
            "a topic's partition beyond its count": directory("a/orders-2"),
            "a partition of an unknown topic": (
                copy("a/idle-0", "a/other-0"),
                edit("a/other-0/partition.metadata", "topic_id: .*", f"topic_id: {OTHER}"),
            ),
        },
    )
    yield from _faults(
        "directories",
        {
            "disk b not mounted": remove("b"),
            "a partition is gone": remove("a/orders-0"),
            "a partition on both disks": copy("a/orders-0", "b/orders-0"),
            "a partition moved to the other disk": rename("a/orders-0", "b/orders-0"),
            "a partition is renamed for deletion": rename("a/orders-0", deleted),
            "a foreign directory": directory("a/backup"),
        },
        "crashed",
    )
    for state, p in PLACES.items():
        yield from _faults("inside a partition", _foreign(p), state)
    yield from _permissions()


def _foreign(p: str) -> dict[str, Action | tuple[Action, ...]]:
    """Return what does not belong into a partition."""
    return {
        "a foreign file in a partition": write(f"{p}/notes.txt", "hello"),
        "a hidden file": write(f"{p}/.nfs0001", "hello"),
        "a directory": directory(f"{p}/backup"),
        "a directory named like a segment": directory(f"{p}/60.log"),
        "a directory named like an index": directory(f"{p}/60.index"),
        "a directory named like a snapshot": directory(f"{p}/60.snapshot"),
        "a directory named like a deleted file": directory(f"{p}/60.log.deleted"),
        "a directory that is a .swap": directory(f"{p}/60.log.swap"),
        "a directory that is a .cleaned": directory(f"{p}/60.log.cleaned"),
        "a log whose name has no number": write(f"{p}/notes.log", "hello"),
        "a log whose name begins with a letter": write(f"{p}/x7.log", ""),
        "a snapshot whose name has no number": write(f"{p}/notes.snapshot", "hello"),
        "an index whose name has no number": write(f"{p}/notes.index", "hello"),
        "a time index of no segment": write(f"{p}/60.timeindex", bytes(12)),
        "an index of no segment": write(f"{p}/60.index", bytes(8)),
        "a transaction index of no segment": write(f"{p}/60.txnindex", bytes(34)),
        "a copy of a log": copy(f"{p}/45.log", f"{p}/45.log.bak"),
        "a compressed log": write(f"{p}/45.log.gz", "hello"),
        "a .lock file": write(f"{p}/.lock", ""),
        "a deleted segment": copy(f"{p}/45.log", f"{p}/20.log.deleted"),
        "a pipe": fifo(f"{p}/pipe"),
        "a file of a partition that is a dangling link": link(f"{p}/60.txnindex", "nowhere"),
        "a log that is a dangling link": (remove(f"{p}/45.log"), link(f"{p}/45.log", "nowhere")),
        "a log that is a link": (
            rename(f"{p}/45.log", "elsewhere"),
            link(f"{p}/45.log", "../../elsewhere"),
        ),
    }


def _permissions() -> Iterator[Fault]:
    p = "a/orders-0"
    log, index = f"{p}/90.log", f"{p}/90.index"
    yield from _faults(
        "permissions",
        {
            "disk b read-only": chmod("b", 0o555),
            "disk b closed": chmod("b", 0o000),
            "disk a read-only": chmod("a", 0o555),
            "a partition read-only": chmod(p, 0o555),
            "a partition closed": chmod(p, 0o000),
            "an active log read-only": chmod(log, 0o444),
            "an active log closed": chmod(log, 0o000),
            "an old log read-only": chmod(f"{p}/0.log", 0o444),
            "an old log closed": chmod(f"{p}/0.log", 0o000),
            "an index read-only": chmod(index, 0o444),
            "an old index read-only": chmod(f"{p}/0.index", 0o444),
            "an old time index closed": chmod(f"{p}/0.timeindex", 0o000),
            "partition.metadata closed": chmod(f"{p}/partition.metadata", 0o000),
            "partition.metadata read-only": chmod(f"{p}/partition.metadata", 0o444),
            "leader-epoch-checkpoint read-only": chmod(f"{p}/leader-epoch-checkpoint", 0o444),
            "leader-epoch-checkpoint closed": chmod(f"{p}/leader-epoch-checkpoint", 0o000),
            "a producer snapshot closed": chmod(f"{p}/120.snapshot", 0o000),
            "an old producer snapshot closed": chmod(f"{p}/45.snapshot", 0o000),
            "meta.properties read-only": chmod("b/meta.properties", 0o444),
            "meta.properties closed": chmod("b/meta.properties", 0o000),
            "meta.properties closed on a": chmod("a/meta.properties", 0o000),
            "recovery points read-only": chmod("b/recovery-point-offset-checkpoint", 0o444),
            "recovery points closed": chmod("b/recovery-point-offset-checkpoint", 0o000),
            "log starts closed": chmod("b/log-start-offset-checkpoint", 0o000),
            "high watermarks closed": chmod("b/replication-offset-checkpoint", 0o000),
            "cleaner checkpoint closed": chmod("b/cleaner-offset-checkpoint", 0o000),
            ".kafka_cleanshutdown closed": chmod("b/.kafka_cleanshutdown", 0o000),
            "the metadata log read-only": chmod(META, 0o555),
            "the metadata log closed": chmod(META, 0o000),
            "the active metadata segment read-only": chmod(f"{META}/121.log", 0o444),
            "quorum-state read-only": chmod(f"{META}/quorum-state", 0o444),
            "quorum-state closed": chmod(f"{META}/quorum-state", 0o000),
            "newest metadata snapshot closed": chmod(f"{META}/141-1.checkpoint", 0o000),
            "bootstrap.checkpoint closed": chmod("a/bootstrap.checkpoint", 0o000),
            "a lock that nobody may open": (write("a/.lock", ""), chmod("a/.lock", 0o000)),
            "a foreign directory closed": (directory("a/lost+found"), chmod("a/lost+found", 0o000)),
        },
    )
    yield from _faults(
        "permissions",
        {
            "a partition read-only": chmod(p, 0o555),
            "an active log read-only": chmod(f"{p}/135.log", 0o444),
            "an old log read-only": chmod(f"{p}/0.log", 0o444),
            "disk b read-only": chmod("b", 0o555),
        },
        "crashed",
    )


def _segments() -> Iterator[Fault]:
    for state, p in PLACES.items():
        yield from _faults("old segments", _old_segments(p), state)
        yield from _active_segment(state, p, 90 if state == "stopped" else 135)
        yield from _beside_logs(state, p, 90 if state == "stopped" else 135)


def _old_segments(p: str) -> dict[str, Action | tuple[Action, ...]]:
    c, t = "a/carts-0", "a/payments-0"
    return {
        "first segment missing": remove_all(p, f"{0:020d}.*"),
        "first log missing": remove(f"{p}/0.log"),
        "middle segment missing": remove_all(p, f"{45:020d}.*"),
        "middle log missing": remove(f"{p}/45.log"),
        "first log empty": empty(f"{p}/0.log"),
        "middle log empty": empty(f"{p}/45.log"),
        "middle log zeroed": zero(f"{p}/45.log"),
        "middle log cut": cut(f"{p}/45.log"),
        "middle log torn": chop(f"{p}/45.log", 7),
        "middle log zero-tailed": zero_tail(f"{p}/45.log", 300),
        "middle log with zeros behind": append(f"{p}/45.log", bytes(100)),
        "middle log flipped in a record": flip(f"{p}/45.log", 100),
        "middle log flipped in a length": flip(f"{p}/45.log", 8),
        "middle log flipped in a magic": flip(f"{p}/45.log", 16),
        "middle log without its first batch": drop_batch(f"{p}/45.log", 0),
        "middle log without a batch": drop_batch(f"{p}/45.log", 2),
        "middle log with batches exchanged": swap_batches(f"{p}/45.log", 1, 2),
        "middle log under a lower name": (rename(f"{p}/45.log", f"{p}/44.log")),
        "middle log under a higher name": (rename(f"{p}/45.log", f"{p}/50.log")),
        "middle log of another partition": copy("b/trimmed-0/0.log", f"{p}/45.log"),
        "a compacted log's first segment missing": remove_all(c, f"{0:020d}.*"),
        "a compacted log's active segment missing": remove_all(c, f"{90:020d}.*"),
        "a trimmed log's first segment missing": remove_all("b/trimmed-0", f"{0:020d}.*"),
        "a trimmed log's first two segments missing": (
            remove_all("b/trimmed-0", f"{0:020d}.*"),
            remove_all("b/trimmed-0", f"{45:020d}.*"),
        ),
        "first segment of transactions missing": remove_all(t, f"{0:020d}.*"),
        "all segments missing": (remove_all(p, "0*.log"), remove_all(p, "0*index"), remove_all(p, "*.snapshot")),
        "all logs missing": remove_all(p, "*.log"),
    }


def _active_segment(state: str, p: str, base: int) -> Iterator[Fault]:
    log = f"{p}/{base}.log"
    yield from _faults(
        "active segment",
        {
            "active segment missing": remove_all(p, f"{base:020d}.*"),
            "active log missing": remove(log),
            "active log empty": empty(log),
            "active log zeroed": zero(log),
            "active log cut": cut(log),
            "active log torn by a byte": chop(log, 1),
            "active log torn in a header": leave_header(log, 20),
            "active log zero-tailed": zero_tail(log, 300),
            "active log with zeros behind": append(log, bytes(100)),
            "active log with a few zeros behind": append(log, bytes(5)),
            "active log with garbage behind": append(log, b"\x7fgarbage" * 20),
            "active log flipped in a record": flip(log, 100),
            "active log flipped in its first magic": flip(log, 16),
            "active log flipped in a later record": flip(log, 600),
            "active log with a huge length": change_batch(log, 2, put(*LENGTH, 2**30), with_crc=False),
            "active log with a small length": change_batch(log, 2, put(*LENGTH, 3), with_crc=False),
            "active log with a length below zero": change_batch(log, 2, put(*LENGTH, -9), with_crc=False),
            "active log without its first batch": drop_batch(log, 0),
            "active log without a batch": drop_batch(log, 2),
            "active log with batches exchanged": swap_batches(log, 1, 2),
            "active log with an offset that goes back": change_batch(log, 2, put(*BASE_OFFSET, base)),
            "active log with an offset below its base": change_batch(log, 0, put(*BASE_OFFSET, 3)),
            "active log with an offset far ahead": change_batch(log, 2, put(*BASE_OFFSET, 2**40)),
            "active log with an offset below zero": change_batch(log, 2, put(*BASE_OFFSET, -7)),
            "active log with a leader epoch ahead": change_batch(log, 2, put(*LEADER_EPOCH, 77)),
            "active log with a leader epoch that goes back": change_batch(log, 2, put(*LEADER_EPOCH, -1)),
            "active log with a count of zero": change_batch(log, 2, put(*COUNT, 0)),
            "active log with a time of 1970": change_batch(log, 2, put(*MAX_TIMESTAMP, 0)),
            "active log with a time far ahead": change_batch(log, 2, put(*MAX_TIMESTAMP, 2**62)),
            "active log with a sequence that jumps": change_batch(log, 2, put(*SEQUENCE, 999)),
            "active log under a lower name": rename(log, f"{p}/{base - 1}.log"),
            "active log under a higher name": rename(log, f"{p}/{base + 2}.log"),
            "a copy of the active log under a higher name": copy(log, f"{p}/{base + 100}.log"),
            "an empty log behind the active one": write(f"{p}/{base + 100}.log", b""),
            "an empty log at the end": write(f"{p}/{120 if base == 90 else 150}.log", b""),
        },
        state,
    )


def _beside_logs(state: str, p: str, base: int) -> Iterator[Fault]:
    t = "a/payments-0"
    for kind in ("index", "timeindex"):
        for at in (45, base):
            path = f"{p}/{at}.{kind}"
            yield from _faults(
                "indexes",
                {
                    **damaged(path),
                    f"{path} zero-tailed": zero_tail(path, 24 if kind == "timeindex" else 16),
                    f"{path} of odd length": chop(path, 1),
                    f"{path} with zeros behind": append(path, bytes(24)),
                    f"{path} with high bits": flip(path, 0),
                    f"{path} that is a directory": (remove(path), directory(path)),
                },
                state,
            )
    yield from _faults(
        "indexes",
        {
            "all indexes missing": remove_all(p, "*index"),
            "all time indexes of one entry of 1970": tuple(
                write(f"{p}/{at}.timeindex", bytes(12)) for at in (0, 45, base)
            ),
            "first time index zeroed": zero(f"{p}/0.timeindex"),
            **damaged(f"{t}/0.txnindex", f"{t}/55.txnindex"),
            "a transaction index of another version": flip(f"{t}/0.txnindex", 1),
        },
        state,
    )
    newest = 120 if state == "stopped" else 135
    yield from _faults(
        "producer snapshots",
        {
            **damaged(f"{p}/{newest}.snapshot", f"{p}/45.snapshot", f"{t}/55.snapshot"),
            "all producer snapshots missing": remove_all(p, "*.snapshot"),
            "all producer snapshots empty": tuple(empty(f"{p}/{at}.snapshot") for at in (45, 90, newest)),
            "a producer snapshot beyond the end": copy(f"{p}/45.snapshot", f"{p}/900.snapshot"),
            "a producer snapshot between": copy(f"{p}/45.snapshot", f"{p}/60.snapshot"),
            "a producer snapshot flipped": flip(f"{p}/{newest}.snapshot", 20),
            "a producer snapshot of another version": flip(f"{p}/{newest}.snapshot", 1),
        },
        state,
    )
    epochs = f"{p}/leader-epoch-checkpoint"
    yield from _faults(
        "leader epochs",
        {
            **damaged(epochs),
            "leader epochs beyond the end": write(epochs, "0\n2\n0 0\n5 900\n"),
            "leader epochs that go back": write(epochs, "0\n2\n5 0\n3 60\n"),
            "leader epochs whose offsets go back": write(epochs, "0\n2\n1 60\n2 10\n"),
            "leader epochs from the middle on": write(epochs, "0\n1\n0 60\n"),
            "leader epochs of version 1": edit(epochs, r"\A0", "1"),
            "leader epochs with another count": edit(epochs, r"\A0\n\d", "0\n7"),
            "leader epochs below zero": write(epochs, "0\n1\n-4 0\n"),
            "leader epochs of the empty log": write("a/idle-0/leader-epoch-checkpoint", "0\n1\n9 7\n"),
            "leader epochs that are a directory": (remove(epochs), directory(epochs)),
        },
        state,
    )


def _swaps(p: str) -> dict[str, Action | tuple[Action, ...]]:
    return {
        "a .cleaned beside its log": copy(f"{p}/45.log", f"{p}/45.log.cleaned"),
        "a .cleaned whose log is gone": rename(f"{p}/45.log", f"{p}/45.log.cleaned"),
        "a .cleaned index alone": write(f"{p}/45.index.cleaned", ""),
        "a .swap beside its log": copy(f"{p}/45.log", f"{p}/45.log.swap"),
        "a .swap whose log is gone": rename(f"{p}/45.log", f"{p}/45.log.swap"),
        "a .swap whose segment is gone": (
            rename(f"{p}/45.log", f"{p}/45.log.swap"),
            remove(f"{p}/45.index", f"{p}/45.timeindex"),
        ),
        "a .swap of the first segment, whose log is deleted": (
            rename(f"{p}/0.log", f"{p}/0.log.swap"),
            copy(f"{p}/0.log.swap", f"{p}/0.log.deleted"),
        ),
        "a .swap that covers two segments": join(f"{p}/0.log.swap", f"{p}/0.log", f"{p}/45.log"),
        "a .swap that covers two segments, both gone": (
            join(f"{p}/0.log.swap", f"{p}/0.log", f"{p}/45.log"),
            remove_all(p, f"{0:020d}.log"),
            remove_all(p, f"{45:020d}.*"),
        ),
        "a .swap that covers two segments, both deleted": (
            join(f"{p}/0.log.swap", f"{p}/0.log", f"{p}/45.log"),
            rename(f"{p}/0.log", f"{p}/0.log.deleted"),
            rename(f"{p}/45.log", f"{p}/45.log.deleted"),
        ),
        "a .swap that covers half of the next": (
            copy(f"{p}/0.log", f"{p}/0.log.swap"),
            append_half(f"{p}/0.log.swap", f"{p}/45.log"),
        ),
        "a .swap with its indexes": tuple(
            rename(f"{p}/45.{kind}", f"{p}/45.{kind}.swap") for kind in ("log", "index", "timeindex")
        ),
        "a .swap of an index alone": rename(f"{p}/45.index", f"{p}/45.index.swap"),
        "a .swap of the time index alone": rename(f"{p}/45.timeindex", f"{p}/45.timeindex.swap"),
        "a .swap of a transaction index alone": rename("a/payments-0/0.txnindex", "a/payments-0/0.txnindex.swap"),
        "a .swap that is empty": write(f"{p}/45.log.swap", b""),
        "a .swap that is empty, its log gone": (write(f"{p}/45.log.swap", b""), remove(f"{p}/45.log")),
        "a .swap that is torn": (copy(f"{p}/45.log", f"{p}/45.log.swap"), chop(f"{p}/45.log.swap", 9)),
        "a .swap that is flipped": (copy(f"{p}/45.log", f"{p}/45.log.swap"), flip(f"{p}/45.log.swap", 100)),
        "a .swap that is flipped, its log gone": (
            rename(f"{p}/45.log", f"{p}/45.log.swap"),
            flip(f"{p}/45.log.swap", 100),
        ),
        "a .swap and a .cleaned of one segment": (
            copy(f"{p}/45.log", f"{p}/45.log.swap"),
            copy(f"{p}/45.log", f"{p}/45.log.cleaned"),
        ),
        "a .swap above a .cleaned, its log gone": (
            rename(f"{p}/45.log", f"{p}/45.log.swap"),
            copy(f"{p}/0.log", f"{p}/0.log.cleaned"),
        ),
        "a .swap below a .cleaned, its log gone": (
            rename(f"{p}/0.log", f"{p}/0.log.swap"),
            copy(f"{p}/45.log", f"{p}/45.log.cleaned"),
        ),
        "a .deleted whose log is gone": rename(f"{p}/45.log", f"{p}/45.log.deleted"),
        "a .deleted first log": rename(f"{p}/0.log", f"{p}/0.log.deleted"),
        "a .deleted active log": rename(f"{p}/90.log", f"{p}/90.log.deleted"),
        "a .deleted index": rename(f"{p}/45.index", f"{p}/45.index.deleted"),
        "a .deleted beside its log": copy(f"{p}/45.log", f"{p}/45.log.deleted"),
        "a .swap behind the end": copy(f"{p}/90.log", f"{p}/500.log.swap"),
        "a .swap of the active segment, its log gone": rename(f"{p}/90.log", f"{p}/90.log.swap"),
        "a .swap of the active segment beside it": copy(f"{p}/90.log", f"{p}/90.log.swap"),
        "two .swap, both logs gone": (
            rename(f"{p}/0.log", f"{p}/0.log.swap"),
            rename(f"{p}/45.log", f"{p}/45.log.swap"),
        ),
        "a split: one log, two .swap": (
            copy(f"{p}/45.log", f"{p}/45.log.swap"),
            split(f"{p}/45.log.swap", f"{p}/66.log.swap", 7),
        ),
        "a .swap of a producer snapshot": rename(f"{p}/45.snapshot", f"{p}/45.snapshot.swap"),
        "a .swap that is a foreign file": write(f"{p}/notes.swap", "hello"),
        "a .cleaned that is a foreign file": write(f"{p}/notes.cleaned", "hello"),
        "a .deleted that is a foreign file": write(f"{p}/notes.deleted", "hello"),
    }


FAULTS = {fault.name: fault for fault in _all()}
