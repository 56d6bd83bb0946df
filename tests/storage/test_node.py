"""Configs, replicas and their sources through the real reader; several directories as one broker."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cordwood.common.config import show
from cordwood.common.errors import ConfigError, NotFoundError, RequestError
from cordwood.common.types import TopicPartition
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats.cluster_metadata import NAME
from cordwood.storage.formats.filenames import parse_file
from cordwood.storage.log.windows import Gap, read_headers
from cordwood.storage.node.directory import PathKind, look
from cordwood.storage.node.node import Node, read_metadata
from tests.fixtures import copy_of, fixture, unpacked
from tests.starts.nodes import ARCHIVE
from tests.storage.metadata_facts import DELETED, INTERNAL, WITH_METADATA, facts_of_topics

FS = PosixFileSystem()


def node(*paths: Path, metadata: Path | None = None, properties: Path | None = None, config: str = "") -> Node:
    return Node.open(
        FS,
        [str(path) for path in paths],
        None if metadata is None else str(metadata),
        None if properties is None else str(properties),
        config.split(),
    )


# ---- Metadata --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_METADATA)
def test_configs_replicas_and_sources_equal_the_facts_of_the_broker(name: str) -> None:
    broker = node(fixture(name))
    assert broker.metadata is not None and broker.metadata.problems == ()
    expected = {topic: (count, texts) for topic, count, texts in facts_of_topics(name) if not DELETED.fullmatch(topic)}
    assert set(broker.metadata.topics) - INTERNAL == set(expected)
    for topic, (count, texts) in expected.items():
        resolved = broker.config_of(topic)
        said = {key: (show(value.value), str(value.source)) for key, value in resolved.items() if value.explicit}
        assert said.pop("min.insync.replicas")[1] == f"cluster default (dynamic) in {broker.metadata_path}"
        assert said == {key: (text, f"topic {topic} in {broker.metadata_path}") for key, text in texts.items()}
        replicas = [broker.replica_count(TopicPartition(topic, number)) for number in range(count + 1)]
        assert replicas == [1] * count + [None]
        assert broker.doubt(topic) is None


def test_the_newest_snapshot_and_the_log_after_it_say_what_the_whole_log_says(tmp_path: Path) -> None:
    whole = fixture("kraft-before") / NAME
    (log,) = whole.glob("*.log")
    data, cuts = log.read_bytes(), boundaries(log)
    (early, early_offset), (late, late_offset) = cuts[len(cuts) // 3], cuts[len(cuts) // 2]
    target = tmp_path / NAME
    target.mkdir()
    (target / f"{early_offset:020d}-{2:010d}.checkpoint").write_bytes(data[:early] + footer())
    (target / f"{late_offset:020d}-{1:010d}.checkpoint").write_bytes(data[:late] + footer())
    (target / f"{late_offset + 5:020d}-{1:010d}.checkpoint.deleted").write_bytes(b"")
    (target / f"{late_offset:020d}.log").write_bytes(data[late:])
    assert read_metadata(FS, str(target)) == read_metadata(FS, str(whole))


def footer() -> bytes:
    """The last batch of a snapshot."""
    newest = max((unpacked(ARCHIVE) / "stopped" / "a" / NAME).glob("*.checkpoint"))
    return newest.read_bytes()[-75:]


@pytest.mark.parametrize("lost", [1, 75, 5000], ids=["a byte", "its footer", "all of it"])
def test_a_snapshot_that_lost_its_end_is_passed_over_and_named_in_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lost: int
) -> None:
    broker = copy_of(unpacked(ARCHIVE) / "stopped", tmp_path / "broker")
    whole = read_metadata(FS, str(broker / "a" / NAME))
    newest = max((broker / "a" / NAME).glob("*.checkpoint"))
    newest.write_bytes(newest.read_bytes()[:-lost])
    found = node(broker).metadata
    assert found is not None
    assert (found.topics, found.topic_configs, found.problems) == (whole.topics, whole.topic_configs, ())
    (message,) = caplog.messages
    assert message.startswith(f"{newest}: ")
    assert message.endswith("; an older snapshot and the log are read instead of it")


def test_a_snapshot_is_enough_without_a_log(tmp_path: Path) -> None:
    (log,) = (fixture("kraft-before") / NAME).glob("*.log")
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / f"{794:020d}-{1:010d}.checkpoint").write_bytes(log.read_bytes() + footer())
    assert read_metadata(FS, str(tmp_path / NAME)) == read_metadata(FS, str(log.parent))


def test_a_hole_between_snapshot_and_log_leaves_everything_in_doubt(tmp_path: Path) -> None:
    (log,) = (fixture("kraft-before") / NAME).glob("*.log")
    position, offset = boundaries(log)[-20]
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / f"{offset:020d}.log").write_bytes(log.read_bytes()[position:])
    found = read_metadata(FS, str(tmp_path / NAME))
    assert str(found.problems[0]).startswith(f"The metadata log has nothing of the offsets 0 to {offset - 1}")


@pytest.mark.parametrize("where", ["log", "snapshot"])
def test_damaged_metadata_is_a_located_problem_and_only_the_users_word_counts(tmp_path: Path, where: str) -> None:
    broker = copy_of(fixture("kraft-jbod-before"), tmp_path / "broker")
    (log,) = (broker / "a" / NAME).glob("*.log")
    data = bytearray(log.read_bytes())
    data[3000] ^= 1
    log.write_bytes(data)
    if where == "snapshot":
        log = log.rename(log.with_name(f"{92:020d}-{1:010d}.checkpoint"))
    found = node(broker, config="cleanup.policy=delete disk-0:segment.bytes=1048576")
    assert found.metadata is not None
    problem = str(found.metadata.problems[0])
    assert problem.startswith("CRC-32C mismatch: stored 0x") and f" in {log} at position 2721" in problem
    assert found.doubt("disk-1") is None
    assert found.doubt("disk-1", "segment.bytes") == "damaged metadata log"
    assert found.doubt("disk-0", "segment.bytes") is None
    assert found.replica_count(TopicPartition("disk-0", 0)) is None


def test_the_torn_end_of_a_metadata_log_is_no_problem(tmp_path: Path) -> None:
    broker = copy_of(fixture("kraft-jbod-before"), tmp_path / "broker")
    (log,) = (broker / "a" / NAME).glob("*.log")
    log.write_bytes(log.read_bytes()[:-7])
    found = node(broker)
    assert found.metadata is not None
    assert (found.metadata.problems, found.metadata.next_offset) == ((), 91)


def boundaries(log: Path) -> list[tuple[int, int]]:
    """Position and base offset of each batch."""
    with FS.open(str(log)) as file:
        items = [item for item in read_headers(file) if not isinstance(item, Gap)]
    return [(int(row["position"]), int(row["base_offset"])) for rows in items for row in rows]


# ---- other sources ---------------------------------------------------------------------------------------------------


def test_without_a_metadata_log_policies_are_in_doubt_until_somebody_says_them(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("log.cleanup.policy=compact\n")
    old = fixture("legacy-v1-before")
    assert node(old).doubt("v1-none") == "no metadata log"
    assert node(old).replica_count(TopicPartition("v1-none", 0)) is None
    assert node(old, config="v1-none:cleanup.policy=compact").doubt("v1-none") is None
    assert node(old, config="v1-none:cleanup.policy=compact").doubt("v1-gzip") == "no metadata log"
    settings = node(old, properties=tmp_path / "server.properties")
    assert settings.doubt("v1-none") is None
    assert settings.doubt("v1-none", "retention.ms") == "no metadata log"
    said = settings.config_of("v1-none")["cleanup.policy"]
    assert str(said) == f"compact (server.properties: {tmp_path}/server.properties)"


def test_other_directories_of_server_properties_are_named_and_lend_their_metadata(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disks = copy_of(unpacked(ARCHIVE) / "stopped", tmp_path / "broker")
    properties = tmp_path / "server.properties"
    properties.write_text(f"log.dirs={disks}/a, {disks}/b,{disks}/c\n")
    found = node(disks / "b", properties=properties)
    assert found.metadata_path == f"{disks}/a/{NAME}" and found.doubt("orders") is None
    assert {place.path for place in found.places} == {str(path) for path in (disks / "b").glob("*-*") if path.is_dir()}
    assert caplog.messages == [
        f"{properties} names {disks}/a, too: partitions there are not looked at; give all of them",
        f"{properties} names {disks}/c, too, which is not there: a broker does not start",
    ]
    caplog.clear()
    node(disks / "b" / "orders-1", properties=properties)
    properties.write_text("log.dirs=/elsewhere/a,/elsewhere/b\n")
    assert node(disks / "b", properties=properties).metadata is None
    assert caplog.messages == []


def test_topic_missing_in_the_metadata_is_in_doubt(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("log.cleanup.policy=compact\n")
    broker = node(fixture("kraft-before"), properties=tmp_path / "server.properties")
    assert broker.doubt("astray") == "not in the metadata"


def test_later_sources_win(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("log.cleaner.delete.retention.ms=7\nlog.index.interval.bytes=9\n")
    topic = "delete.retention.ms"

    def value(config: str, name: str = topic, of: str = "ledger") -> str:
        broker = node(fixture("kraft-before"), properties=tmp_path / "server.properties", config=config)
        return str(broker.config_of(of)[name]).partition(" in ")[0]

    assert value("", "index.interval.bytes").startswith("9 (server.properties: ")
    assert value("") == "1 (topic ledger"
    assert value(f"{topic}=2") == "2 (--config)"
    assert value(f"{topic}=2 ledger:{topic}=3") == "3 (--config ledger:)"
    assert value(f"{topic}=2 ledger:{topic}=3", of="orders") == "2 (--config)"


def test_metadata_of_another_directory_is_read_when_it_is_named(tmp_path: Path) -> None:
    whole = fixture("kraft-before")
    copy_of(whole / "orders-0", tmp_path / "orders-0")
    assert node(tmp_path).doubt("orders") == "no metadata log"
    for metadata in (whole, whole / NAME):
        assert str(node(tmp_path, metadata=metadata).config_of("orders")["cleanup.policy"]) == (
            f"compact (topic orders in {whole}/{NAME})"
        )
    with pytest.raises(NotFoundError, match=f"{tmp_path} holds no {NAME}"):
        node(tmp_path, metadata=tmp_path)


def test_the_users_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Did you mean cleanup.policy"):
        node(fixture("legacy-v0-before"), config="cleanup.polic=compact")
    with pytest.raises(NotFoundError, match=r"server.properties"):
        node(fixture("legacy-v0-before"), properties=tmp_path / "server.properties")
    with pytest.raises(NotFoundError, match="nothing-here does not exist"):
        node(tmp_path / "nothing-here")
    with pytest.raises(RequestError, match=r"is a file, not a directory.*cordwood dump"):
        node(fixture("legacy-v0-before") / "meta.properties")


# ---- several directories ---------------------------------------------------------------------------------------------


def test_parent_folder_and_its_log_directories_give_the_same_node() -> None:
    broker = fixture("kraft-jbod-before")
    together, apart = node(broker), node(broker / "a", broker / "b")
    assert [place.path for place in together.places] == [place.path for place in apart.places]
    assert [directory.path for directory in together.directories] == [f"{broker}/a", f"{broker}/b"]
    assert (together.node_id, len(together.places)) == (1, 10)
    # disk-0-0 is in directory b, the metadata in a.
    assert together.config_of("disk-0").compact and together.doubt("disk-0") is None


def test_disks_that_are_named_like_partitions_are_still_log_directories(tmp_path: Path) -> None:
    broker = fixture("kraft-jbod-before")
    (tmp_path / "data-1").symlink_to(broker / "a")
    (tmp_path / "data-2").symlink_to(broker / "b")
    assert [place.path.removeprefix(f"{tmp_path}/")[:13] for place in node(tmp_path).places][1:3] == [
        "data-2/disk-0",
        "data-1/disk-0",
    ]


def test_a_partition_that_is_being_moved_has_a_future_twin_and_no_duplicate() -> None:
    broker = node(fixture("kraft-jbod-before"))
    (future,) = broker.futures(TopicPartition("disk-0", 1))
    assert future.path.endswith("-future") and future.directory.path.endswith("/b")
    assert broker.futures(TopicPartition("disk-1", 0)) == ()
    assert broker.duplicates(TopicPartition("disk-0", 1)) == ()


def test_a_partition_in_two_log_directories_is_a_duplicate(tmp_path: Path) -> None:
    broker = copy_of(fixture("kraft-jbod-before"), tmp_path / "broker")
    shutil.copytree(broker / "a" / "disk-1-0", broker / "b" / "disk-1-0")
    twins = node(broker).duplicates(TopicPartition("disk-1", 0))
    assert [twin.path for twin in twins] == [f"{broker}/a/disk-1-0", f"{broker}/b/disk-1-0"]


def test_one_partition_may_be_named_and_its_log_directory_still_speaks_for_it() -> None:
    broker = fixture("kraft-before")
    found = node(broker / "orders-0", broker / "orders-0")
    (place,) = found.places
    assert (place.topic, place.directory.path, found.doubt("orders")) == ("orders", str(broker), None)


def test_directories_of_two_brokers_clusters_or_copies_of_one_are_refused(tmp_path: Path) -> None:
    broker = fixture("kraft-jbod-before")
    with pytest.raises(RequestError, match="is of the cluster"):
        node(broker, fixture("kraft-before"))
    with pytest.raises(RequestError, match="is of the cluster"):
        node(broker, metadata=fixture("kraft-before"))
    with pytest.raises(RequestError, match=r"have the same directory.id"):
        node(broker, fixture("kraft-jbod-after"))
    other = copy_of(broker, tmp_path / "other")
    meta = other / "b" / "meta.properties"
    meta.write_text(meta.read_text().replace("node.id=1", "node.id=2"))
    with pytest.raises(RequestError, match=r"/a is of node 1, .*/b of node 2"):
        node(other)


def test_a_look_parses_the_names_in_a_partition_up_to_its_first_log_file(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    for base_offset in range(50):
        (tmp_path / "t-0" / f"{base_offset:020d}.log").touch()
    parse_file.cache_clear()
    assert look(PosixFileSystem(), str(tmp_path)).kind is PathKind.LOG_DIRECTORY
    assert parse_file.cache_info().misses == 1
