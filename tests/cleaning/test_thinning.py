"""Batches that lose records are the same whether they are rebuilt from their bytes or from decoded records."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.cleaning.rules.key_table import KnownOutcomes
from cordwood.cleaning.rules.rewrite import ActiveProducers, Rewritten, Rules, needs_no_decoding, rewrite
from cordwood.cleaning.rules.superseded import ScannedKeys
from cordwood.cleaning.rules.thinning import thin
from cordwood.common.errors import DataError
from cordwood.common.types import NONE, Codec
from cordwood.record.batch import encode_batch, seal
from cordwood.record.columns import BatchWindow, decode
from cordwood.record.record import Record, write_varint
from cordwood.storage.log.windows import Checks, WindowReader
from cordwood.testing import strategies
from cordwood.testing.memory import MemoryFileSystem

pytestmark = pytest.mark.more

_NOBODY = ActiveProducers(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))
_RULES = Rules(now_ms=10**12, delete_retention_ms=1000, first_uncleanable_offset=10**9, producers=_NOBODY)


@dataclass(frozen=True)
class Log:
    """Batches, and which of their records are superseded.

    Attributes:
        superseded: per batch, a flag per record.
    """

    data: bytes
    superseded: list[list[bool]]

    @property
    def window(self) -> BatchWindow:
        fs = MemoryFileSystem(lambda: 0)
        with fs.create("log") as file:
            file.write(0, self.data)
        with fs.open("log") as opened:
            (window,) = WindowReader(opened, Checks.WHOLE)
        assert isinstance(window, BatchWindow)
        return window

    @property
    def known(self) -> KnownOutcomes:
        counts = np.array([len(flags) for flags in self.superseded], np.int64)
        gone = np.array([sum(flags) for flags in self.superseded], np.int64)
        # A byte of ordinals before these, so that none is right by chance.
        bits = np.packbits([True] * 8 + [flag for flags in self.superseded for flag in flags], bitorder="little")
        never = np.zeros(counts.size, np.bool_)
        return KnownOutcomes(8 + np.cumsum(counts) - counts, counts, gone, ~never, bits, never, never)


def damaged(error: DataError) -> None:
    """Do not tolerate damage."""
    raise error


def rewritten(log: Log, *, thinning: bool) -> tuple[Rewritten, int]:
    """The log without its superseded records, and the number of thinned batches."""
    window, known = log.window, log.known
    nothing = np.zeros(window.batches.size, np.bool_)
    decided = needs_no_decoding(window.batches, nothing, known)
    thinned = thin(window, decided, known) if thinning else None
    left = ~decided if thinned is None else ~decided & ~thinned.done
    chosen = BatchWindow(window.position, window.data, window.batches[left], window.read)
    decoded = list(decode(chosen, on_damage=damaged, whole_batches=True)) if left.any() else []
    found = rewrite(window.data, window.batches, decoded, nothing, known, _RULES, ScannedKeys(10**9, {}), thinned)
    return found, 0 if thinned is None else int(thinned.done.sum())


def assert_the_same(log: Log) -> int:
    """Compare both ways; return the number of thinned batches."""
    (plain, _), (found, thinned) = (rewritten(log, thinning=thinning) for thinning in (False, True))
    assert b"".join(map(bytes, found.pieces)) == b"".join(map(bytes, plain.pieces))
    assert (found.batches == plain.batches).all()
    assert (found.counts == plain.counts).all()
    return thinned


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Some batches of magic 2, of records with keys and values."""
    data, superseded, offset = b"", [], draw(st.integers(0, 100))
    for _ in range(draw(st.integers(1, 5))):
        some = [
            Record(one.offset, one.timestamp, one.key or b"", one.value or b"", one.headers)
            for one in draw(strategies.records(offset))
        ]
        codec = draw(st.sampled_from([Codec.NONE, Codec.NONE, Codec.NONE, Codec.LZ4]))
        horizon = draw(st.sampled_from([None, None, None, 5, 10**13]))
        last = some[-1].offset + draw(st.integers(0, 3))
        data += encode_batch(some, codec=codec, delete_horizon_ms=horizon, last_offset=last, producer_id=7)
        superseded.append(draw(st.lists(st.booleans(), min_size=len(some), max_size=len(some))))
        offset = last + 1
    return Log(data, superseded)


@given(logs())
def test_batches_rebuilt_from_their_bytes_are_those_rebuilt_from_their_records(log) -> None:
    assert_the_same(log)


def log_of(records: list[Record], gone: int) -> Log:
    """A log of one batch, which loses a record."""
    return Log(encode_batch(records), [[at == gone for at in range(len(records))]])


@pytest.mark.parametrize("gone", range(4))
def test_timestamps_are_relative_to_the_first_record_that_stays(gone: int) -> None:
    times = [10**12, 10**12 + 5_000_000, -1, 10**12 - 10**10]
    records = [Record(at, time, b"k%d" % at, b"v" * 200, (("h", b"1"), ("", None))) for at, time in enumerate(times)]
    assert assert_the_same(log_of(records, gone)) == 1


def overlong(value: int) -> bytes:
    """A varint in one byte more than it needs."""
    short = bytearray(write_varint(value))
    short[-1] |= 0x80
    return bytes([*short, 0])


@pytest.mark.parametrize("odd", range(4))
def test_numbers_that_take_more_bytes_than_they_need_are_left_to_the_decoder(odd: int) -> None:
    def record(at: int, odd: int) -> bytes:
        number = [overlong if place == odd else write_varint for place in range(4)]
        body = b"\0" + write_varint(at) + number[0](at) + number[1](1) + b"k" + number[2](2) + b"vv" + number[3](0)
        return write_varint(len(body)) + body

    batch = encode_batch([Record(at, 1000 + at, b"k", b"vv") for at in range(3)])
    whole = batch[:61] + record(0, NONE) + record(1, odd) + record(2, NONE)
    sealed = seal(whole[:8] + (len(whole) - 12).to_bytes(4, "big") + whole[12:])
    assert assert_the_same(Log(sealed, [[True, False, False]])) == 0
    assert assert_the_same(Log(sealed, [[False, True, False]])) == 1  # dropped batches are skipped


def test_a_batch_with_a_wrong_checksum_is_left_to_the_decoder() -> None:
    good = encode_batch([Record(at, 1000 + at, b"k%d" % at, b"v") for at in range(3)])
    bad = encode_batch([Record(3 + at, 1000 + at, b"k%d" % at, b"v") for at in range(3)])
    log = Log(good + bad[:-2] + b"\1" + bad[-1:], [[True, False, False]] * 2)
    window = log.window
    window.batches["computed_crc"] = window.batches["crc"]  # as if the CRCs had not been computed
    thinned = thin(window, np.zeros(2, np.bool_), log.known)
    assert thinned is not None
    assert thinned.done.tolist() == [True, False]
