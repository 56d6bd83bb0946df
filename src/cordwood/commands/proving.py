"""Runs a proof by whatever runs the tasks of a command."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from cordwood.engine.progress import Counters
from cordwood.fs.base import Store, TargetStore
from cordwood.fs.folders import temporary_directory
from cordwood.jobs.jobs import run_each
from cordwood.jobs.runner import InThisProcess, Runner
from cordwood.verification.pairs import Pair
from cordwood.verification.prove import Site, prove
from cordwood.verification.scratch import Scratch
from cordwood.verification.violations import Verdict


def verify_pairs(
    runner: Runner, fs: Store, pairs: Sequence[Pair], scratch: TargetStore, *, counters: Counters | None = None
) -> list[Verdict]:
    """Prove pairs; see `verification.prove`.

    Args:
        runner: runs the tasks, unless only this process can open the store.
        scratch: makes a temporary folder that all tasks see.
        counters: where tasks report how many bytes they have read.
    """
    if not pairs:
        return []
    location = fs.location()
    runner = InThisProcess() if location.in_this_process else runner
    with temporary_directory(scratch, "cordwood-proof-") as folder:
        if not runner.is_on_this_machine:
            runner.check(scratch, folder, [], "Name a folder that all machines share with TMPDIR")
        counted = None if counters is None else counters.counted
        site = Site(location, Scratch(scratch.location(), folder), counted)
        return prove(functools.partial(run_each, runner), runner.cores, fs, pairs, site)
