"""Offset checkpoints. Kafka: OffsetCheckpointFileTest, OffsetCheckpointFileWithFailureHandlerTest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.errors import BadNameError, CorruptFileError
from cordwood.storage import checkpoints
from cordwood.types import TopicPartition

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


@pytest.mark.parametrize("topic", ["a b", "a\nb", "", "\udcff"])
def test_a_topic_that_would_break_its_line_is_not_written(topic: str) -> None:
    with pytest.raises(BadNameError):
        checkpoints.encode({TopicPartition(topic, 0): 1})


TOPICS = st.text("abcXYZ019._-", min_size=1, max_size=8).filter(lambda topic: topic not in (".", ".."))


@given(
    st.dictionaries(
        st.builds(TopicPartition, TOPICS, st.integers(0, 2**31 - 1)), st.integers(-(2**63), 2**63 - 1), max_size=8
    )
)
def test_what_is_written_is_read(offsets: dict[TopicPartition, int]) -> None:
    assert list(checkpoints.decode(checkpoints.encode(offsets)).items()) == list(offsets.items())
