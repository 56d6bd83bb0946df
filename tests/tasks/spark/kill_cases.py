"""The kills, losses and flips in each stage of a clean by many tasks, and their count after a run.

A run takes the first cases of a list: a few of each kind, or as many as its effort allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from tests.knobs import scaled

Stage = Literal["headers", "scan", "merge", "rewrite", "check", "compare", "conclude", "judge"]
#: worker: a Python worker. executor: the Java process that started it, with a local master that of the driver; or the
#: server of a pool.
#: driver: the process that runs the clean. lost, flipped: a blob.
Kind = Literal["worker", "executor", "driver", "lost", "flipped"]
Moment = Literal["before", "after"]
#: Lost data: a blob of a scan or a merge, or a file of a proof.
Data = Literal["", "scan", "merge", "proof"]

STAGES: tuple[Stage, ...] = get_args(Stage)
#: Those of the proof, which only a clean in place has.
PROOF: tuple[Stage, ...] = STAGES[5:]


@dataclass(frozen=True, slots=True)
class Case:
    """A clean, and its fault.

    Attributes:
        kind: kind of fault.
        stage: stage of the task that causes it.
        in_place: whether the directory itself is cleaned, and not a copy of it.
        moment: before or after the work of the task.
        number: number of tasks that reach this point earlier.
        data: data that is lost or flipped.
    """

    kind: Kind
    stage: Stage
    in_place: bool = False
    moment: Moment = "before"
    number: int = 0
    data: Data = ""


def _kills(kind: Kind, *, all_: bool) -> Iterator[Case]:
    """Kills of a process: in every stage, for a copy and in place, before and after the work of a task."""
    for turn, stage in enumerate(STAGES):
        for in_place in (False, True) if stage not in PROOF else (True,):
            moments: tuple[Moment, ...] = get_args(Moment)
            for moment in moments if all_ else moments[(in_place + turn) % 2 :][:1]:
                # Two partitions are concluded.
                later = 1 if stage in PROOF else 2
                yield Case(kind, stage, in_place, moment, 0 if moment == "before" else later)


#: Where blobs are lost: just after they were written, just before they are read, and when all have read them.
_BLOBS: tuple[tuple[Stage, Moment, Data], ...] = (
    ("scan", "after", "scan"),
    ("merge", "before", "scan"),
    ("merge", "after", "merge"),
    ("rewrite", "before", "scan"),
    ("rewrite", "before", "merge"),
    ("check", "before", "scan"),
    ("compare", "after", "proof"),
    ("conclude", "before", "proof"),
    ("judge", "before", "proof"),
)


def _losses(*, all_: bool) -> Iterator[Case]:
    for turn, (stage, moment, data) in enumerate(_BLOBS):
        for at, kind in enumerate(get_args(Kind)[3:]):
            both = (True,) if stage in PROOF else (False, True)
            for in_place in both if all_ or stage in PROOF else ((turn + at) % 2 == 0,):
                yield Case(kind, stage, in_place, moment, 0, data)


#: Those of every run.
FEW_LOCAL = (
    Case("worker", "scan", moment="after", number=2),
    Case("lost", "merge", data="scan"),
    Case("flipped", "rewrite", in_place=True, data="merge"),
    Case("driver", "rewrite", in_place=True),
    Case("worker", "compare", in_place=True, number=1),
    Case("flipped", "judge", in_place=True, data="proof"),
    Case("driver", "judge", in_place=True),
)
FEW_CLUSTER = (
    Case("worker", "merge"),
    Case("executor", "rewrite", in_place=True),
    Case("driver", "scan", in_place=True),
)


def chosen(few: tuple[Case, ...], *, all_: bool) -> list[Case]:
    """The cases of this run.

    Args:
        few: cases of every run.
        all_: whether to choose among all other cases, or only half of them.
    """
    kinds: tuple[Kind, ...] = get_args(Kind)
    others = [*_kills(kinds[0], all_=all_), *(one for kind in kinds[1:3] for one in _kills(kind, all_=False))]
    cases = list(dict.fromkeys([*few, *others, *_losses(all_=all_)]))
    return cases[: scaled(len(few), len(cases))]


# ---- counts ----------------------------------------------------------------------------------------------------------


def table(master: str, cases: list[Case]) -> list[str]:
    """Number of cases of each stage and kind."""
    count = Counter((case.stage, case.kind) for case in cases)
    lines = [f"kills in stages on {master}: {len(cases)}, each with the same result as without"]
    for stage in STAGES:
        some = [f"{kind} {count[stage, kind]}" for kind in get_args(Kind) if count[stage, kind]]
        if some:
            lines.append(f"  {stage:<8} {' · '.join(some)}")
    return lines
