"""Proofs for tests: by default in this process."""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.cleaning.proof.pairs import Pair
from cordwood.cleaning.proof.violations import Verdict
from cordwood.commands import verify
from cordwood.fs.base import Store
from cordwood.fs.posix import PosixFileSystem
from cordwood.tasks.runner import InThisProcess, Runner


def verify_pairs(pairs: Sequence[Pair], fs: Store | None = None, runner: Runner | None = None) -> list[Verdict]:
    """Prove pairs, by default in this process."""
    local = PosixFileSystem()
    return verify.verify_pairs(runner or InThisProcess(), fs or local, pairs, local)
