"""A proof under the keep rule of the clean, and under another one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cordwood.cleaning.engine.facts import CleanSettings
from cordwood.cleaning.engine.partition import CleanRequest, clean_partition
from cordwood.cleaning.proof.pairs import Pair, Side, ViolationKind
from cordwood.cleaning.proof.precedence import NEWEST_OFFSET
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.log.view import LogView
from tests.cleaning.proof.proving import verify_pairs
from tests.cleaning.ranked import LARGEST_SURVIVES, LARGEST_TIMESTAMP
from tests.logs import batch, make_log


@pytest.mark.more
def test_a_proof_expects_the_winner_of_its_keep_rule_to_survive(tmp_path: Path) -> None:
    before, after = tmp_path / "t-0", tmp_path / "after"
    first = [batch(0, "a=v", time=9), batch(1, "a=v", time=5)]
    log = make_log(before, (0, first), [batch(2, "a=v", time=7), batch(3, "b=v", time=0)], (4, []))
    after.mkdir()
    settings = CleanSettings(precedence=LARGEST_TIMESTAMP)
    request = CleanRequest(first_dirty=0, first_uncleanable=4, now_ms=0, settings=settings)
    clean_partition(PosixFileSystem(), log, str(after), request)
    for file in before.glob("*4.*"):
        shutil.copy(file, after)
    kept = LogView(str(after), fs=PosixFileSystem(), log_start_offset=0).records(isolation=None)
    assert [record.offset for record in kept] == [0, 3]

    sides = Side(str(before), 0), Side(str(after), 0)
    pairs = [Pair(None, *sides, first_uncleanable=4, survivor=rule) for rule in (LARGEST_SURVIVES, NEWEST_OFFSET)]
    same, other = verify_pairs(pairs)
    assert same.holds
    assert [(one.kind, one.offset) for one in other.violations] == [(ViolationKind.VALUE_LOST, 2)]
