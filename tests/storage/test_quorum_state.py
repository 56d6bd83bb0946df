"""The KRaft election state. Kafka: FileQuorumStateStoreTest; both files below were written by its class."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from cordwood.common.errors import CorruptFileError
from cordwood.storage.formats import quorum_state
from cordwood.storage.formats.quorum_state import QuorumState

WRITTEN = [
    (
        b'{"clusterId":"","leaderId":-1,"leaderEpoch":7,"votedId":3,"appliedOffset":0,'
        b'"currentVoters":[{"voterId":1},{"voterId":2},{"voterId":3}],"data_version":0}',
        QuorumState(0, -1, 7, 3, current_voters=(1, 2, 3)),
    ),
    (
        b'{"leaderId":-1,"leaderEpoch":7,"votedId":3,"votedDirectoryId":"kh0ERQ6WToCnIzrMNpUr_A","data_version":1}',
        QuorumState(1, -1, 7, 3, uuid.UUID("921d0445-0e96-4e80-a723-3acc36952bfc")),
    ),
]


@pytest.mark.parametrize(("data", "state"), WRITTEN)
def test_both_versions_are_read_and_written(data: bytes, state: QuorumState) -> None:
    assert quorum_state.decode(data) == state
    assert quorum_state.encode(state) == data


@pytest.mark.parametrize("data", [data for data, _ in WRITTEN])
@pytest.mark.parametrize("value", [None, "x", 1.5, [], [1], [{}], [{"voterId": 2**31}], {}, True, 2**70])
def test_a_field_that_is_missing_or_of_another_type_is_corrupt(data: bytes, value: object) -> None:
    good: dict[str, Any] = json.loads(data)
    for name in good:
        if (name, value) in [("clusterId", "x"), ("currentVoters", [])]:
            continue
        missing = {other: good[other] for other in good if other != name}
        for bad in (good | {name: value}, missing):
            with pytest.raises(CorruptFileError, match=f"{name}|voterId"):
                quorum_state.decode(json.dumps(bad).encode(), "quorum-state")


@pytest.mark.parametrize("data", [b"", b"\n", b"{", b"[]", b"\xff", b"{}", b"[" * 100_000])
def test_what_is_not_an_object_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptFileError):
        quorum_state.decode(data)


def test_an_unknown_version_is_corrupt() -> None:
    with pytest.raises(CorruptFileError, match="data_version of the quorum state is '2', not 0 or 1"):
        quorum_state.decode(WRITTEN[1][0].replace(b'"data_version":1', b'"data_version":2'))
