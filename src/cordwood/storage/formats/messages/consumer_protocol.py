"""The data that a consumer sends to its classic group: its subscription, and the assignment by the group's leader.

The group's coordinator stores both as bytes that only clients decode. They begin with a two-byte version; a version
later than the latest supported one is decoded like the latest. `user_data` belongs to the assignor, and stays bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Any

from cordwood.common.errors import CorruptMessageError
from cordwood.storage.formats.messages.codec import decode
from cordwood.storage.formats.messages.schema import Message, read_table

#: The protocol type of groups of consumers. Other types (Connect, schema registries) use other encodings.
CONSUMER = "consumer"

_RECORDS = read_table(
    """
ConsumerProtocolSubscription 0
  value 0-3
    topics                  []string
    user_data               bytes?    = null
    owned_partitions        []        1+
      topic                 string
      partitions            []int32
    generation_id           int32     2+  = -1
    rack_id                 string?   3+  = null

ConsumerProtocolAssignment 1
  value 0-3
    assigned_partitions     []
      topic                 string
      partitions            []int32
    user_data               bytes?    = null
""",
    names=("", "{}"),
)
SUBSCRIPTION, ASSIGNMENT = _RECORDS[0].value, _RECORDS[1].value
_VERSION = Struct(">h")


def read(message: Message, data: bytes) -> Mapping[str, Any] | bytes:
    """Decode a subscription or assignment to its version and fields; return other bytes unchanged."""
    if len(data) < _VERSION.size:
        return data
    (version,) = _VERSION.unpack_from(data)
    try:
        decoded = decode(message, min(version, message.last_version), data, _VERSION.size)
    except CorruptMessageError:
        return data
    return {"version": version, **decoded.fields}


def with_protocol(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Decode the subscriptions and assignments in the fields of a GroupMetadata value if its members are consumers."""
    if fields["protocol_type"] != CONSUMER:
        return dict(fields)
    members = tuple(
        {
            **member,
            "subscription": read(SUBSCRIPTION, member["subscription"]),
            "assignment": read(ASSIGNMENT, member["assignment"]),
        }
        for member in fields["members"]
    )
    return {**fields, "members": members}
