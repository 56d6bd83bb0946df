from __future__ import annotations

import zlib

import crc32c as library
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cordwood.kernels import crc
from cordwood.kernels.native import HAS_CRC_INSTRUCTION
from cordwood.testing import reference

#: Around the strip lengths: 3 × 64 and 3 × 256 bytes.
sizes = st.one_of(st.integers(0, 40), st.sampled_from([191, 192, 193, 767, 768, 769, 959, 1000, 5000]))


def address(data: bytes) -> tuple[int, np.ndarray]:
    array = np.frombuffer(b"?" + data, np.uint8)[1:]  # at an odd address
    return array.ctypes.data, array


@given(st.binary(max_size=40))
def test_crcs_are_those_of_the_bit_by_bit_twin(data: bytes) -> None:
    at, _keep = address(data)
    assert crc.crc32c(at, len(data)) == reference.crc(data, 0x82F63B78)
    assert crc.crc32c_portable(at, len(data)) == reference.crc(data, 0x82F63B78)
    assert crc.crc32(at, len(data)) == reference.crc(data, 0xEDB88320)


@given(sizes, st.randoms(use_true_random=False))
def test_crcs_of_any_length_are_those_of_the_libraries(size: int, random) -> None:
    data = random.randbytes(size)
    at, _keep = address(data)
    assert crc.crc32c(at, size) == crc.crc32c_portable(at, size) == library.crc32c(data)
    assert crc.crc32(at, size) == zlib.crc32(data)


def test_the_instruction_is_used_where_there_is_one() -> None:
    assert (crc.crc32c is crc.crc32c_portable) != HAS_CRC_INSTRUCTION
