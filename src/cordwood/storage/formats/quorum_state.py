"""A KRaft node's state of its elections: `quorum-state` in the directory of `__cluster_metadata`.

One line of JSON, without a line end. Version 0, for quorums with fixed voters, and version 1:

    {"clusterId":"","leaderId":1,"leaderEpoch":2,"votedId":-1,"appliedOffset":0,"currentVoters":[{"voterId":1}],"data_version":0}
    {"leaderId":1,"leaderEpoch":2,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

from cordwood.common.errors import CorruptFileError
from cordwood.common.types import NONE
from cordwood.fs.base import Bytes
from cordwood.storage.formats.properties import NO_ID, decode_id, encode_id
from cordwood.storage.formats.text import lines, parse_json, shown


@dataclass(frozen=True, slots=True)
class QuorumState:
    """The state of an election.

    Attributes:
        data_version: 0 or 1; decides which of the other fields are in the file.
        leader_id: node, NONE if unknown.
        leader_epoch: epoch of that leader, or of the vote.
        voted_id: node voted for in that epoch, NONE if none.
        voted_directory_id: version 1: its directory, all zeros if none.
        cluster_id: version 0; empty.
        applied_offset: version 0; 0.
        current_voters: version 0: nodes.
    """

    data_version: int
    leader_id: int
    leader_epoch: int
    voted_id: int = NONE
    voted_directory_id: uuid.UUID = NO_ID
    cluster_id: str = ""
    applied_offset: int = 0
    current_voters: tuple[int, ...] = ()


def decode(data: Bytes, path: str | None = None) -> QuorumState:
    """Decode a `quorum-state` file; like Kafka, read only its first line.

    Numbers must be JSON numbers. Kafka reads a data_version of another type as 0, and never writes one.

    Raises:
        CorruptFileError: not JSON, another version, a field that is missing or of another type.
    """
    found = lines(data, path)
    fields = parse_json(found[0]) if found else None
    if not isinstance(fields, dict):
        raise CorruptFileError("the quorum state is not a JSON object", path=path)
    version = _integer(fields, "data_version", 16, path)
    leader_id = _integer(fields, "leaderId", 32, path)
    leader_epoch = _integer(fields, "leaderEpoch", 32, path)
    voted_id = _integer(fields, "votedId", 32, path)
    if version == 1:
        directory_id = decode_id(_text(fields, "votedDirectoryId", path))
        if directory_id is None:
            raise _unfit("votedDirectoryId", fields, "a UUID", path)
        return QuorumState(1, leader_id, leader_epoch, voted_id, voted_directory_id=directory_id)
    if version != 0:
        raise _unfit("data_version", fields, "0 or 1", path)
    return QuorumState(
        0,
        leader_id,
        leader_epoch,
        voted_id,
        cluster_id=_text(fields, "clusterId", path),
        applied_offset=_integer(fields, "appliedOffset", 64, path),
        current_voters=_voters(fields, path),
    )


def encode(state: QuorumState) -> bytes:
    """Encode a state, with its fields in Kafka's order."""
    common = {"leaderId": state.leader_id, "leaderEpoch": state.leader_epoch, "votedId": state.voted_id}
    fields: dict[str, object]
    if state.data_version == 0:
        fields = {
            "clusterId": state.cluster_id,
            **common,
            "appliedOffset": state.applied_offset,
            "currentVoters": [{"voterId": voter} for voter in state.current_voters],
        }
    else:
        fields = {**common, "votedDirectoryId": encode_id(state.voted_directory_id)}
    fields["data_version"] = state.data_version
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def _voters(fields: dict[str, Any], path: str | None) -> tuple[int, ...]:
    voters = fields.get("currentVoters")
    if not isinstance(voters, list) or not all(isinstance(voter, dict) for voter in voters):
        raise _unfit("currentVoters", fields, "a list of objects", path)
    return tuple(_integer(voter, "voterId", 32, path) for voter in voters)


def _integer(fields: dict[str, Any], name: str, bits: int, path: str | None) -> int:
    value = fields.get(name)
    if type(value) is not int or not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise _unfit(name, fields, f"a {bits}-bit integer", path)
    return value


def _text(fields: dict[str, Any], name: str, path: str | None) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise _unfit(name, fields, "a text", path)
    return value


def _unfit(name: str, fields: dict[str, Any], wanted: str, path: str | None) -> CorruptFileError:
    if name not in fields:
        return CorruptFileError(f"{name} of the quorum state is missing", path=path)
    return CorruptFileError(f"{name} of the quorum state is {shown(str(fields[name]))}, not {wanted}", path=path)
