"""Directories of several brokers: which broker each belongs to, the newest metadata, and the newest replica."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from cordwood.common.errors import NotFoundError, RequestError
from cordwood.common.types import TopicPartition
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats import leader_epochs
from cordwood.storage.formats.filenames import META_PROPERTIES, FileKind
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.node.cluster import Cluster
from tests.commands.made_broker import MadeBroker, different
from tests.fixtures import copy_of, fixture
from tests.logs import batch

T = TopicPartition("t", 0)


def made(
    folder: Path,
    node_id: int,
    records: int = 10,
    epochs: Sequence[tuple[int, int]] = ((0, 0),),
    *,
    leader: int = 1,
    topics: Sequence[str] = ("t",),
) -> Path:
    """A broker's directory with t-0: `records` records, and leader epochs with their start offsets."""
    broker = MadeBroker(folder / f"broker-{node_id}", node_id=node_id)
    for topic in topics:
        broker.topic(topic, replicas=(1, 2, 3), leader=leader)
    path = broker.log("t-0", [batch(0, *different(records))] if records else [])
    (path / FileKind.LEADER_EPOCHS).write_bytes(leader_epochs.encode([EpochEntry(*each) for each in epochs]))
    return broker.finish()


def opened(*paths: Path, **named: Path) -> Cluster:
    """The cluster of some directories; `a=path` names the broker a."""
    pairs = [(name, str(path)) for name, path in named.items()]
    return Cluster.open(PosixFileSystem(), [*map(str, paths)], named=pairs)


def test_directories_are_told_apart_by_node_id_and_their_order_does_not_matter(tmp_path: Path) -> None:
    third, first = made(tmp_path, 3), made(tmp_path, 1)
    cluster = opened(third, first)
    assert cluster.brokers == ("1", "3") and not cluster.is_one_broker
    assert [replica.path for replica in cluster.replicas(T)] == [f"{first}/t-0", f"{third}/t-0"]
    assert [node.paths for node in cluster.nodes] == [(str(first),), (str(third),)]
    assert opened(tmp_path).brokers == ("1", "3")


def test_disks_of_one_broker_are_one_node() -> None:
    broker = fixture("kraft-jbod-before")
    cluster = opened(broker / "a", broker / "b")
    assert (cluster.brokers, len(cluster.nodes[0].places)) == (("1",), 10)


def test_directories_without_meta_properties_are_named_by_the_user(tmp_path: Path) -> None:
    first, second = made(tmp_path, 1), made(tmp_path, 2)
    for one in (first, second):
        (one / META_PROPERTIES).unlink()
    cluster = opened(a=first, b=second)
    assert cluster.brokers == ("a", "b")
    # A number is the node.id, and the metadata names the leader by node.id.
    numbered = Cluster.open(PosixFileSystem(), [], named=[("1", str(first)), ("2", str(second))])
    leader = numbered.leader(T)
    assert leader is not None and leader.path == f"{first}/t-0"


def test_a_directory_whose_broker_is_unknown_or_contradictory_is_refused(tmp_path: Path) -> None:
    first, second, third = (made(tmp_path, each) for each in (1, 2, 3))
    (third / META_PROPERTIES).unlink()
    with pytest.raises(RequestError, match=f"broker-3 has no meta.properties .* give --broker NAME={third}"):
        opened(first, second, third)
    assert opened(first, third).brokers == ("1",)  # a further disk, as with one broker
    assert opened(first, second, c=third).brokers == ("1", "2", "c")
    with pytest.raises(RequestError, match=r"--broker a: .*broker-1 is of node 1 and .*broker-2 is of node 2"):
        Cluster.open(PosixFileSystem(), [], named=[("a", str(first)), ("a", str(second))])
    with pytest.raises(RequestError, match=r"broker-1 is given twice: for no broker and --broker a"):
        opened(first, a=first)
    meta = second / META_PROPERTIES
    meta.write_text(meta.read_text().replace("node.id=2", "node.id=1"))
    with pytest.raises(RequestError, match=r"are both of node 1, so they cannot be of the brokers a and b"):
        opened(a=first, b=second)


def test_directories_of_two_clusters_and_copies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"is of the cluster \S+, .* of \S+\. Name the directories of one cluster"):
        opened(fixture("kraft-jbod-before"), fixture("kraft-before"))
    with pytest.raises(RequestError, match=r"have the same directory.id"):
        opened(fixture("kraft-before"), copy_of(fixture("kraft-before"), tmp_path / "copy"))


def test_the_newest_metadata_counts_for_every_node(tmp_path: Path) -> None:
    old, new = made(tmp_path, 1), made(tmp_path, 2, topics=("t", "added"))
    cluster = opened(old, new)
    assert cluster.metadata_path == f"{new}/__cluster_metadata-0"
    assert all("added" in node.topics for node in cluster.nodes)
    # An older log with a newer leader epoch has the committed records.
    (old / "__cluster_metadata-0" / FileKind.LEADER_EPOCHS).write_bytes(leader_epochs.encode([EpochEntry(7, 0)]))
    assert opened(old, new).metadata_path == f"{old}/__cluster_metadata-0"


#: Of each broker: number of records, and leader epochs; then the chosen broker, and why.
BELIEFS = [
    ({1: (10, [(0, 0)]), 2: (12, [(0, 0)])}, 1, "2", "its end, 12, is the highest in leader epoch 0"),
    ({1: (20, [(0, 0)]), 2: (12, [(0, 0), (3, 11)])}, 1, "2", "its last leader epoch, 3, is the newest"),
    ({1: (9, [(3, 0)]), 2: (12, [(3, 0)]), 3: (15, [(2, 0)])}, 1, "2", "its end, 12, is the highest in leader epoch 3"),
    ({1: (9, [(1, 0)]), 2: (9, [(1, 0)])}, 2, "2",
     "the leader by the metadata; brokers 1, 2 are equal (last leader epoch 1, end 9)"),
    ({1: (9, [(1, 0)]), 2: (9, [(1, 0)])}, 3, "1", "the first; brokers 1, 2 are equal (last leader epoch 1, end 9)"),
    ({1: (9, []), 2: (8, [])}, 1, "1", "its end, 9, is the highest"),
    ({2: (8, [(0, 0)])}, 1, "2", "the only replica here"),
]  # fmt: skip


@pytest.mark.parametrize(("replicas", "leader", "broker", "reason"), BELIEFS)
def test_the_newest_replica_has_the_newest_leader_epoch_then_the_highest_end(
    tmp_path: Path,
    replicas: dict[int, tuple[int, list[tuple[int, int]]]],
    leader: int,
    broker: str,
    reason: str,
) -> None:
    paths = [made(tmp_path, each, *facts, leader=leader) for each, facts in replicas.items()]
    choice = opened(*paths).choose_replica(T)
    assert (choice.replica.broker, choice.reason) == (broker, reason)
    assert len(choice.others) == len(paths) - 1


def test_the_user_may_name_the_replica(tmp_path: Path) -> None:
    cluster = opened(made(tmp_path, 1), made(tmp_path, 2, 12))
    assert str(cluster.choose_replica(T, "1")) == "broker 1: named by --replica"
    with pytest.raises(RequestError, match="--replica 9: the directories are those of brokers 1, 2"):
        cluster.choose_replica(T, "9")
    with pytest.raises(NotFoundError, match="no directory has partition t-7"):
        cluster.choose_replica(TopicPartition("t", 7))


def test_an_unreadable_replica_is_chosen_last(tmp_path: Path) -> None:
    first, second = made(tmp_path, 1), made(tmp_path, 2, 12)
    log = second / "t-0" / "00000000000000000000.log"
    log.unlink()
    log.mkdir()
    assert opened(first, second).choose_replica(T).replica.broker == "1"


def test_replicas_that_the_user_named_by_path_are_the_only_ones(tmp_path: Path) -> None:
    first, second = made(tmp_path, 1), made(tmp_path, 2, 12)
    cluster = opened(first / "t-0", second / "__cluster_metadata-0")
    assert [replica.broker for replica in cluster.replicas(T)] == ["1"]
