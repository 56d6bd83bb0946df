"""Plans from a few headers, beside plans from all headers and the choice of Kafka's cleaner manager."""

from __future__ import annotations

import contextlib
import functools
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import pytest

from cordwood.cleaning.rules.plan import (
    Bound,
    Bounds,
    Choices,
    Compaction,
    Decision,
    PartitionPlan,
    Plan,
    Reason,
)
from cordwood.commands.opening import open_node
from cordwood.commands.options import PlanOptions, Selection
from cordwood.commands.plan import plan_node
from cordwood.fs.base import Store
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats import checkpoints
from cordwood.storage.formats.cluster_metadata import NAME
from cordwood.storage.formats.filenames import CLEANER_OFFSETS
from cordwood.storage.log import header_sample, segment
from cordwood.storage.log.view import LogView
from tests.cleaning.against_kafka import topic_partition
from tests.kafka_tools import Line, Oracle, Word
from tests.logs import T0

#: A high watermark; None is that of the checkpoint.
Mark = Literal["end"] | int | None


@contextlib.contextmanager
def from_few_headers() -> Iterator[None]:
    """Sample all logs, and each segment with at least eight index entries; join no small segments."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(header_sample, "EXACT_LOG_BYTES", -1)
        patch.setattr(header_sample, "UNITS", 4)
        patch.setattr(segment, "PART_BYTES_MAX", 0)
        yield


def planned(
    folder: Path,
    *,
    exact: bool,
    mark: Mark = None,
    choices: Choices = Choices(),  # noqa: B008 (it is a value)
    now_ms: int = T0,
    fs: Store | None = None,
    overrides: Sequence[str] = (),
) -> Plan:
    """Plan a clean of a log directory or a partition; without `overrides` by its broker's metadata."""
    metadata = next((str(one) for one in (folder, folder.parent / "a") if (one / NAME).exists()), None)
    if overrides:
        metadata = None
    elif metadata is None:
        overrides = ("cleanup.policy=compact",)
    selection = Selection(metadata=metadata, overrides=tuple(overrides))
    options = PlanOptions(selection=selection, now_ms=now_ms, choices=replace(choices, high_watermark=mark))
    return plan_node(open_node(fs or PosixFileSystem(), [str(folder)], selection), [str(folder)], options, exact=exact)


def decided(plan: Plan) -> list[PartitionPlan]:
    """The partitions of a plan without figures that may be estimates, and without the words about the range's end.

    Of several reasons for the same end, a plan from few headers may not see a transaction in the last segment.
    """
    return [
        one
        if one.compaction is None
        else replace(one, division=None, hint="", reason=Reason(""), compaction=_without_estimates(one.compaction))
        for one in plan.partitions
    ]


def _without_estimates(one: Compaction) -> Compaction:
    return replace(
        one,
        range=replace(one.range, bound=Bound.ACTIVE_SEGMENT, bound_offset=0),
        bound_reason=Reason(""),
        bounds=Bounds(None, one.bounds.bytes_max),
        group_bytes=(),
        group_bytes_expected=(),
        expired_batches=0,
        transactional_batches=0,
        estimates=(),
    )


# ---- beside Kafka ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LogsAtATime:
    """A log directory that Kafka may change, the topic configs of its partitions, and the time."""

    name: str
    root: Path
    configs: Mapping[str, Mapping[str, Any]]
    now_ms: int

    def varied(self, source: random.Random) -> LogsAtATime:
        """Change lags, time and checkpoint, and perhaps remove the newest segment, with its markers."""
        configs, offsets = dict[str, dict[str, Any]](), {}
        for name, config in self.configs.items():
            segments = LogView(str(self.root / name), fs=PosixFileSystem()).segments
            if len(segments) > 1 and source.random() < 0.3:
                for path in (self.root / name).glob(f"{segments[-1].base_offset:020d}.*"):
                    path.unlink()
            end = segments[-1].base_offset + 20
            if source.random() < 0.7:
                offsets[topic_partition(name)] = source.choice([0, end + 1000, source.randint(0, end)])
            lag = source.choice([0, 1, 500, 5000, 60_000])
            configs[name] = {
                **config,
                "cleanup.policy": source.choice(["compact", "compact,delete"]),
                "min.compaction.lag.ms": lag,
                "max.compaction.lag.ms": source.choice([max(lag, 1), lag + 2000, 2**63 - 1]),
                "min.cleanable.dirty.ratio": source.choice([0, 0.3, 0.5, 0.9]),
            }
        (self.root / CLEANER_OFFSETS).write_bytes(checkpoints.encode(offsets))
        return LogsAtATime(self.name, self.root, configs, self.now_ms + source.choice([0, 700, 10_000]))

    def words(self) -> list[Word]:
        """The command of Kafka's choice."""
        configs = [
            word
            for name, config in self.configs.items()
            for key, value in config.items()
            for word in (f"--config:{name}", f"{key}={_text(value)}")
        ]
        return ["select", self.root, "--now", str(self.now_ms), *configs]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass
class Choosing:
    """Compares plans; `differences` is empty if all are equal."""

    seen: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    def compare(self, oracle: Oracle, logs: Sequence[LogsAtATime]) -> None:
        """Plan each log from all headers and from a few, and compare with Kafka's choice; remove them."""
        ours = [[self._plan(one, name) for name in one.configs] for one in logs]
        answers = oracle.batch((one.words() for one in logs), exits=(0, 1))
        for one, plans, lines in zip(logs, ours, answers, strict=True):
            if lines and "grabbed" in lines[-1]:
                for plan in plans:
                    self.differences += [f"{one.name} {plan.name}: {what}" for what in self._against(plan, lines)]
            else:
                self.seen["left out: Kafka cannot load it"] += 1
            shutil.rmtree(one.root)

    def _plan(self, logs: LogsAtATime, name: str) -> PartitionPlan:
        configs = {"cleanup.policy": "compact", **logs.configs[name]}
        said = [f"{_key(key, value)}={_text(value)}" for key, value in configs.items()]
        choices, path, plan = Choices(single_copy=True, retention=True), logs.root / name, None
        marks: tuple[Mark, ...] = "end", None, 7
        for mark in marks:
            plan_it = functools.partial(planned, path, mark=mark, choices=choices, now_ms=logs.now_ms, overrides=said)
            exact = plan_it(exact=True)
            with from_few_headers(), _counting(self.seen):
                some = plan_it(exact=False)
            if decided(some) != decided(exact):
                self.differences.append(f"{logs.name} {name}, high watermark {mark}: {some} is not {exact}")
            plan = plan or some.partitions[0]
            self.seen["plans"] += 1
        assert plan is not None
        return plan

    def _against(self, plan: PartitionPlan, lines: Sequence[Line]) -> Iterator[str]:
        """Compare with Kafka's figures for one log, and its choice."""
        *candidates, choice = lines
        (line,) = (one for one in candidates if one["partition"] == plan.name)
        compaction = plan.compaction
        if compaction is None:
            # A log that ends below its start is replaced by an empty one, of which Kafka cleans nothing.
            is_emptied = plan.decision is Decision.LEAVE and line["log_start"] == line["end"]
            if line["compact"] and not (is_emptied and choice["grabbed"] != plan.name):
                yield f"no plan ({plan.reason}), in Kafka {line}"
            return
        figures = {
            "first_dirty": compaction.range.first_dirty_offset,
            "first_uncleanable_segment": compaction.range.first_uncleanable_offset,
            "clean_bytes": compaction.clean_bytes,
            "cleanable_bytes": compaction.cleanable_bytes,
            "compaction_delay_ms": compaction.overdue_ms,
        }
        yield from (f"{key} is {value}, in Kafka {line[key]}" for key, value in figures.items() if value != line[key])
        if plan.decision is Decision.REFUSE and plan.reason.what.startswith("damaged"):
            self.seen["damaged: Kafka chooses it, and fails"] += 1
        elif len(candidates) == 1 and (choice["grabbed"] == plan.name) != (plan.decision is Decision.CLEAN):
            yield f"{plan.decision} ({plan.reason}), Kafka cleans {choice['grabbed']}"
        self.seen["compared with Kafka"] += 1
        self.seen[f"bound: {compaction.range.bound}"] += 1
        self.seen[f"Kafka cleans {'one' if choice['grabbed'] else 'none'}"] += 1
        self.seen["overdue"] += compaction.overdue_ms > 0
        self.seen["checkpoint corrected"] += line["checkpoint"] not in (None, line["first_dirty"])


def _key(name: str, value: object) -> str:
    """Kafka accepts small segments under another name only."""
    return f"internal.{name}" if name == "segment.bytes" and int(str(value)) < 1 << 20 else name


@contextlib.contextmanager
def _counting(seen: Counter[str]) -> Iterator[None]:
    """Count the segments of which a sample is read."""
    original: Callable[..., Any] = header_sample.sample_headers

    def counted(*arguments: Any, **options: Any) -> Any:
        sample = original(*arguments, **options)
        seen["segments sampled" if sample else "segments read"] += 1
        return sample

    with mock.patch("cordwood.cleaning.engine.facts.sample_headers", counted):
        yield


def copied(source: Path, target: Path) -> Path:
    """Copy a directory with its times, and leave the holes of its files."""
    subprocess.run(["cp", "-a", "--sparse=always", source, target], check=True)
    return target
