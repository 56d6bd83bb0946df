"""Proofs for tests: by default in this process, and each pair also with witnesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cordwood.cleaning.proof import witnesses
from cordwood.cleaning.proof.pairs import Pair, ViolationKind
from cordwood.cleaning.proof.violations import Verdict
from cordwood.commands import verify
from cordwood.fs.base import Store
from cordwood.fs.posix import PosixFileSystem
from cordwood.tasks.runner import InThisProcess, Runner

#: A proof with witnesses does not read every unchanged file, so it may miss these in a file that both states share.
_IN_BOTH_STATES = {ViolationKind.DAMAGE_BEFORE, ViolationKind.READERS}
#: Further violations depend on where ranges end, and shared files make other ranges.
_ENDS_A_RANGE = ViolationKind.DAMAGE_AFTER
#: Any record may be a witness, or none is expected to be; a hint must not change a verdict.
HINTS = (0, 1 << 62)


def verify_pairs(pairs: Sequence[Pair], fs: Store | None = None, runner: Runner | None = None) -> list[Verdict]:
    """Prove pairs, by default in this process; there, a proof with witnesses must have the same verdicts."""
    local = PosixFileSystem()
    verdicts = verify.verify_pairs(runner or InThisProcess(), fs or local, pairs, local)
    if fs is None and runner is None:
        for first_dirty in HINTS:
            searched = with_witnesses(pairs, first_dirty=first_dirty)
            for full, verdict in zip(verdicts, searched, strict=True):
                if _ENDS_A_RANGE in full.totals:
                    assert _ENDS_A_RANGE in verdict.totals, full.pair
                elif not _IN_BOTH_STATES & full.totals.keys():
                    assert verdict.totals == full.totals, f"{full.pair}: with witnesses {verdict.totals}"
    return verdicts


def with_witnesses(pairs: Sequence[Pair], fs: Store | None = None, *, first_dirty: int = 0) -> list[Verdict]:
    """Prove pairs with witnesses, however much has changed; equal `.log` files count as the same file."""
    local = PosixFileSystem()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(witnesses, "UNCHANGED_BYTES_MIN", 0)
        patch.setattr(witnesses, "UNCHANGED_SHARE_MIN", 0)
        return verify.verify_pairs(
            InThisProcess(), fs or local, [*(sharing_files(pair, first_dirty) for pair in pairs)], local
        )


def sharing_files(pair: Pair, first_dirty: int = 0) -> Pair:
    """Return a pair to be proved with witnesses, whose state after uses the equal `.log` files of the state before."""
    before = Path(pair.before.path)
    files = dict(pair.after.files or {path.name: str(path) for path in Path(pair.after.path).iterdir()})
    for name, path in files.items():
        mine = before / name
        if name.endswith(".log") and mine.exists() and mine.read_bytes() == Path(path).read_bytes():
            files[name] = str(mine)
    return replace(pair, after=replace(pair.after, files=files), witnesses=True, first_dirty=first_dirty)
