"""Transactions in chunks, judged as a plain walk over all batches judges them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from cordwood.cleaning.proof.pairs import Count, ViolationKind
from cordwood.cleaning.proof.producers import ABORT, COMMIT, DATA, STEP
from cordwood.cleaning.proof.scratch import Scratch, kept_here
from cordwood.cleaning.proof.transactions import ABORTED, judge_transactions
from cordwood.fs.posix import PosixFileSystem

#: Producer, kind; whether it is in the state after, and has records there. Every batch has one offset.
BATCHES = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([DATA, DATA, ABORT, COMMIT]), st.booleans(), st.booleans()),
    max_size=25,
)
ENTRIES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 25), st.integers(0, 6)), max_size=4)


def fate(batches: list[tuple[int, int, int]], at: int, pid: int) -> int | None:
    """The fate of a batch: the kind of the producer's next marker."""
    return next((kind for offset, who, kind in batches if offset > at and who == pid and kind != DATA), None)


def expected(batches, entries) -> tuple[Counter[str], list[int]]:
    before = [(at, pid, kind) for at, (pid, kind, *_) in enumerate(batches)]
    after = [(at, pid, kind) for at, (pid, kind, there, _) in enumerate(batches) if there]
    found: Counter[str] = Counter()
    for at, pid, kind in after:
        if kind != DATA or not batches[at][3]:
            continue
        was, now = fate(before, at, pid), fate(after, at, pid)
        told = [(first, first + size) for who, first, size in entries if who == pid and first <= at]
        aborts = [offset for offset, who, kind in after if who == pid and kind == ABORT and offset <= at]
        hidden = max((first for first, _ in told), default=-1) > max(aborts, default=-1)
        shown = max((last for _, last in told), default=-1) < at
        if was == now and (hidden and not shown if was == ABORT else not hidden and shown):
            found[Count.TRANSACTIONAL] += 1
        else:
            found[ViolationKind.ABORTED_VISIBLE if was == ABORT else ViolationKind.COMMITTED_HIDDEN] += 1
    uncommitted = [at for at, pid, kind in before if kind == DATA and fate(before, at, pid) != COMMIT]
    return found, uncommitted


def steps_of(batches, first: int) -> npt.NDArray[np.void]:
    rows = []
    for at, (pid, kind, there, filled) in enumerate(batches, first):
        rows.append((pid, at, at, kind, False, True))
        if there:
            rows.append((pid, at, at, kind, True, filled))
    return np.array(rows, STEP)


@given(BATCHES, ENTRIES, st.integers(1, 25))
def test_transactions_in_chunks_are_judged_as_by_a_plain_walk(batches, entries, chunk: int) -> None:
    chunks = [steps_of(batches[at : at + chunk], at) for at in range(0, len(batches), chunk)]
    kept = [kept_here(one, [0, one.size]) for one in chunks]
    aborted = np.array([(pid, first, first + size) for pid, first, size in entries], ABORTED)
    scratch = Scratch(PosixFileSystem().location(), str(Path()))
    facts, uncommitted = judge_transactions(kept, aborted, scratch)
    counts, hidden = expected(batches, entries)
    assert facts.counts == counts
    assert uncommitted.firsts.tolist() == uncommitted.lasts.tolist() == hidden
