"""Offset checkpoints. Kafka: OffsetCheckpointFileTest, OffsetCheckpointFileWithFailureHandlerTest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.common.errors import CorruptFileError
from cordwood.common.types import TopicPartition
from cordwood.storage.formats import checkpoints
from cordwood.testing.memory import MemoryFileSystem
from cordwood.testing.memory_journal import keep_all, lose_all
from tests.crashes import Cuts
from tests.fs.trees import content, put

TWO = b"0\n2\nfoo 0 17\nbar 3 4\n"


def test_entries_keep_their_order() -> None:
    offsets = checkpoints.decode(TWO)
    assert list(offsets.items()) == [(TopicPartition("foo", 0), 17), (TopicPartition("bar", 3), 4)]
    assert checkpoints.encode(offsets) == TWO


@pytest.mark.parametrize("data", [b"", b"0\n", b"0", b"0\n0\n", b"0\n0"])
def test_a_file_that_was_never_written_has_no_entries(data: bytes) -> None:
    assert checkpoints.decode(data) == {}
    assert checkpoints.encode({}) == b"0\n0\n"


def test_the_later_line_of_a_partition_wins() -> None:
    assert checkpoints.decode(b"0\n2\na 0 1\na 0 2\n") == {TopicPartition("a", 0): 2}


def test_a_last_line_without_end_and_windows_line_ends_are_fine() -> None:
    assert checkpoints.decode(TWO[:-1]) == checkpoints.decode(TWO.replace(b"\n", b"\r\n")) == checkpoints.decode(TWO)


MALFORMED = [
    (b"1\n0\n", "line 1: version 1"),
    (b"\n0\n", "line 1"),
    (b"x\n0\n", "line 1"),
    (b"0\nx\n", "line 2"),
    (b"0\n1\n\n", "line 3"),
    (b"0\n2\na 0 1\nb 0\n", "line 4"),
    (b"0\n1\na 0 1 2\n", "line 3"),
    (b"0\n1\na x 1\n", "line 3: partition 'x'"),
    (b"0\n1\na 0 x\n", "line 3: offset 'x'"),
    (b"0\n1\na 2147483648 1\n", "line 3: partition"),
    (b"0\n1\na 0 9223372036854775808\n", "line 3: offset"),
    (b"0\n2\na 0 1\n", "line 2 announces 2 entries, the file has 1"),
    (b"0\n0\na 0 1\n", "line 2 announces 0 entries, the file has 1"),
    (b"0\n-1\n", "line 2 announces -1 entries, the file has 0"),
    (b"0\n1\na\xff 0 1\n", "not UTF-8"),
]


@pytest.mark.parametrize(("data", "message"), MALFORMED)
def test_a_malformed_file_is_corrupt_and_the_line_is_named(data: bytes, message: str) -> None:
    with pytest.raises(CorruptFileError) as caught:
        checkpoints.decode(data, "cleaner-offset-checkpoint")
    assert message in str(caught.value)
    assert caught.value.path == "cleaner-offset-checkpoint"


@pytest.mark.parametrize("topic", ["a b", "a\nb", "a\x0bb", "", "\udcff"])
def test_a_topic_that_would_break_its_line_is_left_out_and_the_others_are_written(topic: str) -> None:
    offsets = {TopicPartition("c", 0): 1, TopicPartition(topic, 0): 2, TopicPartition("d", 1): 3}
    assert checkpoints.encode(offsets) == b"0\n2\nc 0 1\nd 1 3\n"


TOPICS = st.text("abcXYZ019._-<$ü\u2028", min_size=1, max_size=8)


@given(
    st.dictionaries(
        st.builds(TopicPartition, TOPICS, st.integers(0, 2**31 - 1)), st.integers(-(2**63), 2**63 - 1), max_size=8
    )
)
def test_what_is_written_is_read(offsets: dict[TopicPartition, int]) -> None:
    assert list(checkpoints.decode(checkpoints.encode(offsets)).items()) == list(offsets.items())


# ---- changing a file -------------------------------------------------------------------------------------------------

PATH = "data/cleaner-offset-checkpoint"


def written(data: bytes | None) -> MemoryFileSystem:
    fs = MemoryFileSystem(lambda: 0)
    fs.make_directory("data")
    if data is not None:
        put(fs, PATH, data)
        fs.set_owner(PATH, 7, 8)
        fs.set_mode(PATH, 0o640)
    return fs.crash(keep_all)


def test_entries_are_set_and_removed_and_the_others_stay() -> None:
    fs = written(b"0\n4\nfoo 0 17\nbar 3 4\nnot~ours -1 -5\nold 1 2\n")
    checkpoints.update(
        fs, PATH, {TopicPartition("bar", 3): 9, TopicPartition("new", 0): 1, TopicPartition("old", 1): None}
    )
    after = fs.crash(lose_all)
    assert content(after, PATH) == b"0\n4\nfoo 0 17\nbar 3 9\nnot~ours -1 -5\nnew 0 1\n"
    info = after.stat(PATH)
    assert (info.uid, info.gid, info.mode) == (7, 8, 0o640)
    assert [info.name for info in after.list("data")] == ["cleaner-offset-checkpoint"]


def test_a_missing_file_is_made_and_one_that_says_it_already_is_left_alone() -> None:
    fs = written(None)
    checkpoints.update(fs, PATH, {TopicPartition("foo", 0): None})
    assert not fs.exists(PATH)
    checkpoints.update(fs, PATH, {TopicPartition("foo", 0): 17})
    assert content(fs, PATH) == b"0\n1\nfoo 0 17\n"
    fs.operations.clear()
    checkpoints.update(fs, PATH, {TopicPartition("foo", 0): 17})
    assert not fs.operations


def test_a_file_that_cannot_be_read_stays_as_it_is() -> None:
    fs = written(b"1\n0\n")
    with pytest.raises(CorruptFileError):
        checkpoints.update(fs, PATH, {TopicPartition("foo", 0): 17})
    assert content(fs, PATH) == b"1\n0\n"


def test_what_no_line_can_hold_is_not_set_and_the_rest_is() -> None:
    fs = written(b"0\n1\nfoo 0 1\n")
    checkpoints.update(fs, PATH, {TopicPartition("foo bar", 0): 17, TopicPartition("foo", 0): 2})
    assert content(fs, PATH) == b"0\n1\nfoo 0 2\n"


def test_a_power_cut_leaves_the_file_as_it_was_or_as_it_is_to_be() -> None:
    def act(fs: MemoryFileSystem) -> None:
        checkpoints.update(fs, PATH, {TopicPartition("foo", 0): 17})

    seen = {content(fs, PATH) for fs in Cuts(written(b"0\n1\nfoo 0 1\n"), act)}
    assert seen == {b"0\n1\nfoo 0 1\n", b"0\n1\nfoo 0 17\n"}
