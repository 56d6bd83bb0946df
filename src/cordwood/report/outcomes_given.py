"""Results of `simulate` and `explain` from their JSON, which may come from anybody; see `given`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cordwood.errors import RequestError
from cordwood.report import simulation as report
from cordwood.report.given import Given
from cordwood.sizing.explained import AtOnce, ExplainResult, ReplayedLog
from cordwood.sizing.result import Outcome, SimulationResult
from cordwood.sizing.scale import Scale
from cordwood.sizing.workload import Workload

#: Outcomes that a result has at most, and points of a history at least and at most.
_OUTCOMES_MAX, _POINTS_MIN, _POINTS_MAX = 3, 5, 10_000


def simulation_of(given: Given) -> SimulationResult:
    """The result of `simulate` that a document is of.

    Raises:
        RequestError: it is of none; with the place.
    """
    workload = _workload(given["workload"])
    return SimulationResult(
        workload=workload,
        days=given["days"].amount(),
        seed=given["seed"].count(),
        scale=given["scale"].values(Scale),
        outcomes=_outcomes(given["outcomes"], workload.partitions),
        verdict=given["verdict"].texts(),
    )


def explained_of(given: Given) -> ExplainResult:
    """The result of `explain` that a document is of; see `simulation_of`."""
    outcomes = _outcomes(given["outcomes"], 1)
    at_once = {label: given["at_once"][label].values(AtOnce) for label in given["at_once"].names()}
    if sorted(at_once) != sorted(one.label for one in outcomes):
        raise given["at_once"].wrong("it does not have the labels of the outcomes")
    return ExplainResult(
        now_ms=given["now_ms"].count(),
        log=given["log"].values(ReplayedLog),
        seed=given["seed"].count(),
        scale=given["scale"].values(Scale),
        at_once=at_once,
        outcomes=outcomes,
        verdict=given["verdict"].texts(),
        notes=given["notes"].texts(),
    )


def _workload(given: Given) -> Workload:
    workload = given.values(Workload)
    try:
        derived = {"records_per_second": workload.records_per_second, "bytes_per_second": workload.bytes_per_second}
    except RequestError as error:
        raise given.wrong(str(error)) from None
    _check(given, derived)
    return workload


def _outcomes(given: Given, partitions: int) -> tuple[Outcome, ...]:
    items = given.items()
    if not 1 <= len(items) <= _OUTCOMES_MAX:
        raise given.wrong(f"expected one to {_OUTCOMES_MAX}, found {len(items)}")
    outcomes = tuple(_outcome(one, partitions) for one in items)
    if len({len(one.history) for one in outcomes}) > 1:
        raise given.wrong("their histories have different numbers of points")
    return outcomes


def _outcome(given: Given, partitions: int) -> Outcome:
    history = given["history"]
    times = [point["ms"].count() for point in history.items()]
    if not _POINTS_MIN <= len(times) <= _POINTS_MAX:
        raise history.wrong(f"expected {_POINTS_MIN} to {_POINTS_MAX} points, found {len(times)}")
    if times != sorted(set(times)):
        raise history.wrong("its times do not ascend")
    outcome = given.values(Outcome)
    if not outcome.duration_ms:
        raise given["duration_ms"].wrong("it is 0")
    _check(given, report.outcome_document(outcome, partitions))
    return outcome


def _check(given: Given, wanted: Mapping[str, Any]) -> None:
    """Make sure of what follows from other values."""
    for name, value in json.loads(json.dumps(dict(wanted))).items():
        given[name].same(value)
