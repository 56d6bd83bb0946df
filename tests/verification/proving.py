"""Proofs for tests: by default in this process."""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.commands import proving
from cordwood.fs.base import Store
from cordwood.fs.posix import PosixFileSystem
from cordwood.jobs.runner import InThisProcess, Runner
from cordwood.verification.pairs import Pair
from cordwood.verification.violations import Verdict


def verify_pairs(pairs: Sequence[Pair], fs: Store | None = None, runner: Runner | None = None) -> list[Verdict]:
    """Prove pairs, by default in this process."""
    local = PosixFileSystem()
    return proving.verify_pairs(runner or InThisProcess(), fs or local, pairs, local)
