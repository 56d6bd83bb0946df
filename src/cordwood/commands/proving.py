"""Runs a proof on the engine of the command's tasks."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence

from cordwood.cleaning.engine.progress import Counters
from cordwood.cleaning.proof.pairs import Pair
from cordwood.cleaning.proof.prove import ProofSite, prove
from cordwood.cleaning.proof.scratch import Scratch, no_space
from cordwood.cleaning.proof.violations import Verdict
from cordwood.fs.base import Store, TargetStore, is_full
from cordwood.fs.folders import temporary_directory
from cordwood.fs.temporary import temporary_root
from cordwood.tasks.runner import InThisProcess, Runner
from cordwood.tasks.tasks import run_each

#: Name prefix of folders for the files that tasks of a proof exchange.
FOLDERS = "cordwood-proof-"


def verify_pairs(
    runner: Runner, fs: Store, pairs: Sequence[Pair], scratch: TargetStore, *, counters: Counters | None = None
) -> list[Verdict]:
    """Prove pairs; see `proof.prove`.

    Args:
        runner: runs the tasks, unless only this process can open the store.
        scratch: store of a temporary folder that all tasks can reach.
        counters: counters for the bytes that tasks have read.

    Raises:
        NoSpaceError: the disk of the temporary folder is full.
    """
    if not pairs:
        return []
    location = fs.location()
    runner = InThisProcess() if location.in_this_process else runner
    with _explained(), temporary_directory(scratch, FOLDERS) as folder:
        if not runner.is_on_this_machine:
            runner.check(scratch, folder, [], "Name a folder that all machines share with TMPDIR")
        counted = None if counters is None else counters.counted
        site = ProofSite(location, Scratch(scratch.location(), folder), counted)
        return prove(functools.partial(run_each, runner), runner.cores, fs, pairs, site)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turn ENOSPC into a NoSpaceError that names the temporary folder."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise no_space(error, temporary_root()) from error
