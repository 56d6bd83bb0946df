"""The options of `simulate` and `explain`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from cordwood.commands.options import NamedReplica, Selection
from cordwood.common.arguments import SEED, Option
from cordwood.common.errors import RequestError
from cordwood.simulation.sizing.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """The options of `simulate`."""

    workload: Workload = field(default_factory=Workload)
    overrides: Annotated[
        Sequence[str],
        Option("Set a config of the topic or of the broker: KEY=VALUE.", flag="--config", metavar="KEY=VALUE"),
    ] = ()
    against: Annotated[
        Sequence[str],
        Option("Compare with a second set of configs, which has this config in addition.", metavar="KEY=VALUE"),
    ] = ()
    server_properties: Annotated[
        str | None,
        Option("The broker's server.properties file, for configs that --config does not set.", metavar="FILE"),
    ] = None
    days: Annotated[float, Option("How long to simulate. Default: 30.", metavar="DAYS")] = 30.0
    scale: Annotated[
        float | None,
        Option(
            "Divide rate, keys and segments by this, and multiply the results by it. Default: chosen so that the "
            "simulation takes some seconds.",
            metavar="FACTOR",
        ),
    ] = None
    seed: Annotated[int, SEED] = 7

    def __post_init__(self) -> None:
        """Validate numbers and combinations."""
        _check_numbers(self.days, self.scale, self.seed, at_one="nothing is left out")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainOptions:
    """The options of `explain`; the overrides of the selection are the configs to try."""

    selection: Selection = field(default_factory=Selection)
    against: Annotated[
        Sequence[str],
        Option("Compare with a further set of configs, which has this config in addition.", metavar="KEY=VALUE"),
    ] = ()
    days: Annotated[
        float, Option("Replay this many days, up to the log's last record. Default: 28.", metavar="DAYS")
    ] = 28.0
    now_ms: Annotated[
        int | None,
        Option("Time (ms since 1970) of the immediate effects. Default: now.", flag="--now", metavar="MS"),
    ] = None
    scale: Annotated[
        float | None,
        Option(
            "Replay the records of one key in FACTOR, and multiply the results by FACTOR; 1: of all keys. Default: "
            "chosen so that the replay takes some seconds.",
            metavar="FACTOR",
        ),
    ] = None
    seed: Annotated[int, SEED] = 7
    replicas: NamedReplica = field(default_factory=NamedReplica)

    def __post_init__(self) -> None:
        """Validate numbers, and require --config for --against."""
        _check_numbers(self.days, self.scale, self.seed, at_one="all keys")
        if self.against and not self.selection.overrides:
            raise RequestError("--against needs --config: it compares with a set that has both")


def _check_numbers(days: float, scale: float | None, seed: int, *, at_one: str) -> None:
    """Refuse impossible numbers; `at_one` describes a simulation at a scale of 1."""
    if not 0.001 <= days <= 3660:
        raise RequestError(f"--days {days:g}: give at least 0.001, and at most 3660")
    if scale is not None and not 1 <= scale < float("inf"):
        raise RequestError(f"--scale {scale:g}: give 1 ({at_one}) or more")
    if seed < 0:
        raise RequestError(f"--seed {seed}: give 0 or more")
