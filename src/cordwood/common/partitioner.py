"""Kafka's choice of a partition by a hash of some bytes: for a record its key, for metadata of tiers a topic partition.

Source: Kafka BuiltInPartitioner.partitionForKey, Utils.murmur2, Utils.toPositive.
"""

from __future__ import annotations

_SEED = 0x9747B28C
_M = 0x5BD1E995
_U32 = 0xFFFFFFFF


def partition_of(data: bytes, partitions: int) -> int:
    """Return the partition that Kafka's default partitioner chooses for a key."""
    return (murmur2(data) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """Compute the 32-bit MurmurHash2 of Kafka's producers, as an unsigned number."""
    found = _SEED ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _M & _U32
        word = (word ^ word >> 24) * _M & _U32
        found = found * _M & _U32 ^ word
    if len(data) > whole:
        found = (found ^ int.from_bytes(data[whole:], "little")) * _M & _U32
    found = (found ^ found >> 13) * _M & _U32
    return found ^ found >> 15
