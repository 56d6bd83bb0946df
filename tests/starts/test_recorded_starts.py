"""Test that a real broker still behaves as recorded for each planted fault.

A run tests a share of the faults; `.ci/full` tests all. CORDWOOD_REWRITE=1 records the broker's present behavior, also
for new faults; review the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import knobs
from tests.kafka_tools import Broker
from tests.starts import outcomes
from tests.starts.faults import FAULTS, Fault
from tests.starts.nodes import STATES
from tests.starts.observe import Answer, Starts
from tests.starts.outcomes import RACES

pytestmark = pytest.mark.more

#: A test run checks one of this many faults, which takes a minute.
EVERY = 24
RECORDED = outcomes.read()


def observe(starts: Starts, fault: Fault, node: Path) -> Answer:
    """Start a broker on a node with the fault. Repeat once if the machine was too busy the first time."""
    for attempt in range(2):
        answer = starts(fault.plant(node / str(attempt)))
        if not outcomes.is_late(answer):
            break
    return answer


def test_at_least_750_faults_are_recorded_and_each_can_be_planted(tmp_path: Path) -> None:
    assert len(RECORDED) >= 750
    assert not RACES & RECORDED.keys()
    for number, name in enumerate(list(RECORDED)[knobs.SEED % EVERY :: knobs.step(EVERY)]):
        FAULTS[name].plant(tmp_path / str(number))


def test_a_broker_does_what_is_recorded(kafka_broker: Broker, tmp_path: Path) -> None:
    names = [name for name in (FAULTS if knobs.REWRITE else RECORDED) if name not in RACES]
    chosen = names[knobs.SEED % EVERY :: knobs.step(EVERY)]
    seen = {}
    with Starts() as starts:
        controls = {s: observe(starts, FAULTS[f"{s}: nothing"], tmp_path / s) for s in STATES}
        for number, name in enumerate(chosen):
            if os.getuid() and FAULTS[name].family == "permissions":
                continue
            answer = observe(starts, FAULTS[name], tmp_path / str(number))
            if not outcomes.is_late(answer):
                control = None if FAULTS[name].family == "none" else controls[FAULTS[name].state]
                seen[name] = outcomes.outcome_of(answer, control)
    if knobs.REWRITE:
        # Keep a recorded outcome that still agrees, with its `why`.
        new = RECORDED | {name: one for name, one in seen.items() if not outcomes.agree(one, RECORDED.get(name, {}))}
        outcomes.write({name: new[name] for name in FAULTS if name in new})
        return
    assert {name: one for name, one in seen.items() if not outcomes.agree(one, RECORDED[name])} == {}
