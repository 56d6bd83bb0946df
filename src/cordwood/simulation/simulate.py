"""`cordwood.simulate`: the disk that a topic will need, under one or two sets of configs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import cordwood.simulation.report  # noqa: F401 - so that a result can show itself
from cordwood.common.config import DAY_MS, Layer, overrides, resolve, resolve_broker, server_properties
from cordwood.common.errors import ConfigError, NotFoundError
from cordwood.fs.base import Store
from cordwood.fs.posix import PosixFileSystem
from cordwood.simulation.measure import TOPIC, ConfigSet, run_workload
from cordwood.simulation.options import SimulateOptions
from cordwood.simulation.sizing.notes import compare, notes_on
from cordwood.simulation.sizing.result import SimulationResult
from cordwood.simulation.sizing.workload import choose_scale
from cordwood.storage.log.files import read_file


def simulate(
    options: SimulateOptions,
    *,
    on_progress: Callable[[float], None] | None = None,
) -> SimulationResult:
    """Predict the disk that a topic will take, under one set of configs, or compare two.

    Runs the live log with its retention and its cleaner in memory, on a clock of its own, on a part of the workload.

    Args:
        on_progress: called with the part that is done, up to 1.

    Raises:
        RequestError: no rate; a value that cannot be; or more segments than can be simulated.
        ConfigError: Kafka would not accept a config.
        NotFoundError: there is no such server.properties.
    """
    workload = options.workload
    sets = _config_sets(options, PosixFileSystem())
    scale = choose_scale(workload, [one.topic for one in sets], round(options.days * DAY_MS), options.scale)
    outcomes = []
    for number, one in enumerate(sets):

        def report(part: float, number: int = number) -> None:
            if on_progress is not None:
                on_progress((number + part) / len(sets))

        outcome = run_workload(one, workload, scale, options.seed, report)
        outcomes.append(replace(outcome, notes=notes_on(outcome, one.topic, one.broker, workload.partitions)))
    verdict = compare(*outcomes) if len(outcomes) == 2 else ()
    return SimulationResult(workload, options.days, options.seed, scale, tuple(outcomes), verdict)


def _config_sets(options: SimulateOptions, fs: Store) -> list[ConfigSet]:
    """Resolve the first set, and the second if there is one.

    Raises:
        ConfigError: Kafka would reject a config.
        NotFoundError: server.properties does not exist.
    """
    base: tuple[Layer, ...] = ()
    path = options.server_properties
    if path is not None:
        try:
            base = (server_properties(read_file(fs, path), path),)
        except FileNotFoundError:
            raise NotFoundError(f"{path} does not exist; it was to be the broker's server.properties") from None
    texts = [options.overrides]
    if options.against:
        texts.append([*options.overrides, *options.against])
    sets = []
    for label, arguments in zip("AB", texts, strict=False):
        for argument in arguments:
            name, _, _ = argument.partition("=")
            if ":" in name:
                raise ConfigError(f"{argument}: there is one topic here; write {name.rpartition(':')[2]}=…")
        layers = (*base, *overrides(arguments))
        sets.append(ConfigSet(label, layers, resolve(TOPIC, layers), resolve_broker(layers)))
    return sets
