"""Names of files and directories: made, parsed, and refused where Kafka refuses them."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cordwood.common.errors import BadNameError
from cordwood.common.types import TopicPartition
from cordwood.storage.formats.filenames import (
    DirectoryState,
    FileKind,
    PartitionDirectory,
    PartitionFile,
    Temporary,
    check_topic,
    checkpoint_snapshot_name,
    is_component,
    offset_name,
    parse_directory,
    parse_file,
    topic_fault,
)
from cordwood.storage.formats.text import parse_integer

UNIQ = "0123456789abcdef0123456789abcdef"
INT64_MAX = 2**63 - 1

#: One table for both directions: a name and its meaning.
FILES = [
    ("00000000000000000000.log", PartitionFile(FileKind.LOG, 0)),
    ("09223372036854775807.index", PartitionFile(FileKind.OFFSET_INDEX, INT64_MAX)),
    ("00000000000000000042.timeindex", PartitionFile(FileKind.TIME_INDEX, 42)),
    ("00000000000000000042.txnindex", PartitionFile(FileKind.TRANSACTION_INDEX, 42)),
    ("00000000000000000042.snapshot", PartitionFile(FileKind.PRODUCER_SNAPSHOT, 42)),
    ("00000000000000000042.log.deleted", PartitionFile(FileKind.LOG, 42, Temporary.DELETED)),
    ("00000000000000000042.index.cleaned", PartitionFile(FileKind.OFFSET_INDEX, 42, Temporary.CLEANED)),
    ("00000000000000000042.timeindex.swap", PartitionFile(FileKind.TIME_INDEX, 42, Temporary.SWAP)),
    ("00000000000000000042.snapshot.deleted", PartitionFile(FileKind.PRODUCER_SNAPSHOT, 42, Temporary.DELETED)),
    (
        "00000000000000000042-0000000007.checkpoint",
        PartitionFile(FileKind.CHECKPOINT_SNAPSHOT, 42, leader_epoch=7),
    ),
    (
        "00000000000000000042-0000000007.checkpoint.deleted",
        PartitionFile(FileKind.CHECKPOINT_SNAPSHOT, 42, Temporary.DELETED, 7),
    ),
    ("leader-epoch-checkpoint", PartitionFile(FileKind.LEADER_EPOCHS)),
    ("leader-epoch-checkpoint.tmp", PartitionFile(FileKind.LEADER_EPOCHS, temporary=Temporary.TMP)),
    ("partition.metadata", PartitionFile(FileKind.PARTITION_METADATA)),
    ("partition.metadata.tmp", PartitionFile(FileKind.PARTITION_METADATA, temporary=Temporary.TMP)),
    ("quorum-state", PartitionFile(FileKind.QUORUM_STATE)),
    ("cordwood.properties", PartitionFile(FileKind.LOG_CONFIGS)),
]

DIRECTORIES = [
    ("orders-0", PartitionDirectory(TopicPartition("orders", 0))),
    ("foo-bar-3", PartitionDirectory(TopicPartition("foo-bar", 3))),
    ("a.b-2147483647", PartitionDirectory(TopicPartition("a.b", 2**31 - 1))),
    ("foo--1", PartitionDirectory(TopicPartition("foo-", 1))),
    ("foo-delete-1", PartitionDirectory(TopicPartition("foo-delete", 1))),
    (f"a.b-0.{UNIQ}-delete", PartitionDirectory(TopicPartition("a.b", 0), DirectoryState.DELETED, UNIQ)),
    (f"a.b-0.{UNIQ}-future", PartitionDirectory(TopicPartition("a.b", 0), DirectoryState.FUTURE, UNIQ)),
    (f"a.b-0.{UNIQ}-stray", PartitionDirectory(TopicPartition("a.b", 0), DirectoryState.STRAY, UNIQ)),
    ("a-0.x-y-stray", PartitionDirectory(TopicPartition("a", 0), DirectoryState.STRAY, "x-y")),
]


@pytest.mark.parametrize(("name", "file"), FILES, ids=[name for name, _ in FILES])
def test_a_file_name_and_its_meaning_turn_into_each_other(name: str, file: PartitionFile) -> None:
    assert parse_file(name) == file
    assert file.name == name


@pytest.mark.parametrize(("name", "directory"), DIRECTORIES, ids=[name for name, _ in DIRECTORIES])
def test_a_directory_name_and_its_meaning_turn_into_each_other(name: str, directory: PartitionDirectory) -> None:
    assert parse_directory(name) == directory
    assert directory.name == name


@pytest.mark.parametrize(
    "name", ["notes.txt", "lost+found", ".cordwood", "a.tmp", "0.log.tmp", "x.checkpoint", "00000000000000000000"]
)
def test_a_name_without_meaning_to_kafka_is_foreign(name: str) -> None:
    file = parse_file(name)
    assert file is not None and file.kind is FileKind.FOREIGN


@pytest.mark.parametrize("name", ["x.deleted", "x.log.deleted", "leader-epoch.deleted"])
def test_whatever_ends_with_deleted_is_deleted(name: str) -> None:
    # Kafka's loader deletes these without a look at the rest of the name.
    assert parse_file(name) == PartitionFile(FileKind.FOREIGN, temporary=Temporary.DELETED)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/00000000000000000000.log",
        "00000000000000000000.log\0",
        "x.log",
        ".log",
        " 5.log",
        "5 .index",
        "-1.log",
        "09223372036854775808.log",
        "99999999999999999999-0000000001.checkpoint",
        "00000000000000000001-9999999999.checkpoint",
        "x.log.swap",
        "x.cleaned",
        "leader-epoch-checkpoint.swap",
    ],
)
def test_a_name_that_kafka_could_not_have_given_has_no_meaning(name: str) -> None:
    assert parse_file(name) is None


def test_a_file_of_an_unknown_kind_with_an_offset_still_counts_as_cleaned() -> None:
    # The smallest offset of any .cleaned file decides which .swap files a loader throws away.
    assert parse_file("7.what.cleaned") == PartitionFile(FileKind.FOREIGN, 7, Temporary.CLEANED)


@pytest.mark.parametrize(("name", "offset"), [("5.log", 5), ("+5.log", 5), ("٣.log", 3), ("5.a.log", 5)])
def test_an_uncanonical_offset_is_read_as_java_reads_it_and_shows_in_the_name(name: str, offset: int) -> None:
    file = parse_file(name)
    assert file == PartitionFile(FileKind.LOG, offset)
    assert file.name == f"{offset:020d}.log" != name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "orders",
        "-0",
        "orders-",
        "orders-x",
        "orders-1.5",
        "orders-2147483648",
        "orders-0 ",
        "orders-0-delete",
        "orders.uniq-delete",
        "-0.uniq-delete",
        "orders-.uniq-delete",
        "or ders-0.uniq-delete",
        "orders-0.-delete",
        "orders-0.x.-delete",
        "orders-x.uniq-future",
        "../orders-0",
        "orders-0/",
        "orders\0-0",
    ],
)
def test_a_directory_that_kafka_refuses_is_refused(name: str) -> None:
    # Kafka: LogManager's and UnifiedLogTest's testParseTopicPartitionName* cases, and the path separators on top.
    with pytest.raises(BadNameError):
        parse_directory(name)


@pytest.mark.parametrize(("name", "partition"), [("a-007", 7), ("a-+7", 7), ("a-٣", 3)])
def test_an_uncanonical_partition_is_read_as_java_reads_it_and_shows_in_the_name(name: str, partition: int) -> None:
    directory = parse_directory(name)
    assert directory.topic_partition == TopicPartition("a", partition)
    assert directory.name != name


def kafkas_directory(name: str) -> TopicPartition | None:
    """LocalLog.parseTopicPartitionName, step by step, with its patterns."""
    if "-" not in name:
        return None
    for suffix in ("-delete", "-future", "-stray"):
        if name.endswith(suffix):
            if not re.fullmatch(rf"(\S+)-(\S+)\.(\S+){suffix}", name, re.ASCII):
                return None
            name = name[: name.rindex(".")]
            break
    topic, partition = name[: name.rindex("-")], name[name.rindex("-") + 1 :]
    number = parse_integer(partition, 32)
    return None if not topic or number is None else TopicPartition(topic, number)


BODIES = st.lists(st.sampled_from(["a", "-", ".", "0", "-1", " ", "\t", "\x85", "\u2028", "-1.u"]), max_size=8).map(
    "".join
)


@given(BODIES, st.sampled_from(DirectoryState))
def test_directories_are_parsed_as_by_kafkas_patterns(body: str, state: DirectoryState) -> None:
    name = body + state
    assume(is_component(name))
    expected = kafkas_directory(name)
    try:
        assert parse_directory(name).topic_partition == expected
    except BadNameError:
        assert expected is None


def test_a_deleted_or_stray_name_is_cut_to_255_characters_and_a_future_one_is_not() -> None:
    # case 164
    # Kafka: UnifiedLogTest.testLogDeleteDirName / LocalLogTest.testLogDeleteDirName.
    long = TopicPartition("n" * 249, 12)
    lengths = {state: len(PartitionDirectory(long, state, UNIQ).name) for state in DirectoryState}
    assert lengths == {
        DirectoryState.CURRENT: 252,
        DirectoryState.DELETED: 255,
        DirectoryState.FUTURE: 249 + len(f"-12.{UNIQ}-future"),
        DirectoryState.STRAY: 255,
    }
    cut = PartitionDirectory(long, DirectoryState.DELETED, UNIQ).name
    assert cut.endswith(f"n-12.{UNIQ}-delete")
    assert parse_directory(cut).name == cut


@pytest.mark.parametrize("topic", ["../../etc/x", "a/b", "a\0b"])
def test_a_topic_that_leaves_its_directory_never_becomes_a_name(topic: str) -> None:
    with pytest.raises(BadNameError):
        _ = PartitionDirectory(TopicPartition(topic, 0)).name


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_an_offset_outside_64_bits_never_becomes_a_name(offset: int) -> None:
    with pytest.raises(BadNameError):
        offset_name(offset, FileKind.LOG)
    with pytest.raises(BadNameError):
        checkpoint_snapshot_name(0, offset)


def test_a_suffix_never_leaves_the_directory() -> None:
    with pytest.raises(BadNameError):
        offset_name(0, "/../x")


@pytest.mark.parametrize("topic", ["a", "A.b_c-9", "...", "n" * 249])
def test_kafkas_topic_names_are_accepted(topic: str) -> None:
    check_topic(topic)


@pytest.mark.parametrize("topic", ["", ".", "..", "n" * 250, "a b", "a/b", "é", "a\n"])
def test_other_topic_names_are_refused_with_a_reason(topic: str) -> None:
    assert topic_fault(topic)
    with pytest.raises(BadNameError, match="is not the name of a topic"):
        check_topic(topic)


@given(st.text(max_size=40))
def test_any_text_is_parsed_without_surprise_and_made_again(name: str) -> None:
    file = parse_file(name)
    if file is not None and file.kind is not FileKind.FOREIGN:
        assert parse_file(file.name) == file
    try:
        directory = parse_directory(name)
    except BadNameError:
        return
    assert parse_directory(directory.name) == directory
