"""The hash that chooses partitions, against Kafka's own expectations."""

from __future__ import annotations

import struct

import pytest

from cordwood.common.partitioner import murmur2

#: From Kafka's UtilsTest.testMurmur2.
MURMUR2 = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}


@pytest.mark.parametrize("text", MURMUR2)
def test_keys_are_hashed_as_by_kafkas_producers(text: str) -> None:
    assert struct.unpack(">i", struct.pack(">I", murmur2(text.encode())))[0] == MURMUR2[text]
