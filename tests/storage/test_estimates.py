"""Estimates from a sample of the headers: their errors on random logs, and a mark on every figure that may be wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from cordwood.cleaning.rules.plan import Choices
from cordwood.commands.ls import ls
from cordwood.commands.options import ListOptions
from cordwood.common.types import Codec
from cordwood.storage.log import header_sample
from cordwood.storage.node.listing import PartitionListing, SegmentListing
from tests import knobs
from tests.cleaning.first_plans import planned
from tests.command import run
from tests.logs import HOUR, T0, batch, make_log, marker

Listed = PartitionListing | SegmentListing
LOGS = knobs.scaled(40, 400)
#: Share of the estimates that two standard errors cover.
COVERED = 0.95


# ---- errors ----------------------------------------------------------------------------------------------------------


def random_log(folder: Path, rng: np.random.Generator) -> None:
    """Write two segments whose batches have many sizes and many holes before them, evenly or in stretches."""
    kinds = list[tuple[bytes, int]]()
    for _ in range(12):
        count, size = int(rng.integers(1, 12)), int(rng.integers(10, 900))
        kinds.append((batch(0, *((b"k", rng.bytes(size)) for _ in range(count))), count))
    if rng.random() < 0.3:
        kinds.append((marker(0, 7, committed=True, time=T0 + 5), 1))
    if rng.random() < 0.3:
        horizon = T0 + int(rng.integers(-2, 2)) * HOUR
        kinds.append((batch(0, "k1 k2 k3=v", delete_horizon_ms=horizon, codec=Codec.LZ4), 3))
    large = batch(0, *((b"k", bytes(200)) for _ in range(int(rng.integers(20, 200)))))
    large_share = rng.choice([0, 0, 0.01, 0.1])
    sizes_change, holes_change = rng.random() < 0.3, rng.random() < 0.4
    holes = float(rng.choice([0, 0, 0.5, 3, 30]))
    offset, segments = 0, list[tuple[int, list[bytes]]]()
    for _ in range(2):
        base, batches, written, limit = offset, list[bytes](), 0, int(rng.integers(300_000, 1_200_000))
        while written < limit:
            share = written / limit
            data, count = kinds[int(rng.integers(len(kinds)) * (share if sizes_change else 1))]
            if rng.random() < large_share:
                data, count = large, int.from_bytes(large[57:61], "big")
            batches.append(offset.to_bytes(8, "big") + data[8:])
            written += len(data)
            offset += count + (rng.geometric(1 / (1 + holes * (share if holes_change else 1))) - 1 if holes else 0)
        segments.append((base, batches))
    make_log(folder, *segments)


def listed(folder: Path, *, exact: bool) -> PartitionListing:
    with mock.patch.object(header_sample, "EXACT_LOG_BYTES", -1):
        (found,) = ls([str(folder)], ListOptions(exact=exact)).partitions
    return found


@pytest.mark.more
def test_stated_errors_of_estimates_hold_as_often_as_they_claim(tmp_path: Path) -> None:
    shares, relative = list[float](), list[float]()
    for seed in range(knobs.SEED, knobs.SEED + LOGS):
        folder = tmp_path / str(seed) / "t-0"
        random_log(folder, np.random.default_rng(seed))
        some, known = listed(folder, exact=False), listed(folder, exact=True)
        assert not known.estimates
        compared: list[tuple[Listed, Listed]] = [*zip(some.segments, known.segments, strict=True), (some, known)]
        for mine, true in compared:
            error = abs(mine.records - true.records)
            if not mine.estimates:  # it has few batches, so all its headers were read
                assert error == 0
                continue
            # Figures are rounded to whole records.
            shares.append(max(0, error - 1) / mine.records_error if mine.records_error else 99 * (error > 1))
            relative.append(error / true.records)
    covered = float(np.mean(np.array(shares) <= 1))
    at = [50, 90, 95, 99, 100]
    print(
        f"{LOGS} logs: {100 * covered:.1f} % within the stated error; in parts of it, at {at} %: "
        f"{np.percentile(shares, at).round(2).tolist()}; in % of the records: "
        f"{(100 * np.percentile(relative, at)).round(2).tolist()}"
    )
    # With so many figures, the share itself has an error.
    assert covered >= COVERED - 3 * math.sqrt(COVERED * (1 - COVERED) / len(shares))


# ---- marks -----------------------------------------------------------------------------------------------------------

#: Fields about estimates, or about the command.
ABOUT = {"estimates", "records_error", "records_exact", "now_ms"}


def differing(sampled: Any, exact: Any, path: str = "", marks: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the paths of values that differ and have no mark in `estimates` beside them or above."""
    if isinstance(sampled, dict) and isinstance(exact, dict):
        marks |= {*sampled.get("estimates", ())}
        for key in sampled.keys() | exact.keys():
            if key not in ABOUT and key not in marks:
                yield from differing(sampled.get(key), exact.get(key), f"{path}.{key}", marks)
    elif isinstance(sampled, list) and isinstance(exact, list) and len(sampled) == len(exact):
        for at, (one, other) in enumerate(zip(sampled, exact, strict=True)):
            yield from differing(one, other, f"{path}[{at}]", marks)
    elif sampled != exact and not (path.endswith(".records_max") and sampled >= exact):
        # Without a mark, `records_max` is a bound, the number of offsets.
        yield f"{path}: {sampled}, exactly {exact}"


def documents(folder: Path, *, exact: bool) -> dict[str, Any]:
    """The documents of the commands that read a sample."""
    choices = Choices(single_copy=True, ignore_ratio=True)
    said = ("cleanup.policy=compact",)
    words = ["--exact"] if exact else []
    return {
        "ls": run("ls", folder, "--segments", "--json", *words).json,
        "why": run("why", folder, "--no-keys", "--json", "--now", T0, "--config", *said, *words).json,
        "plan": planned(folder, exact=exact, mark="end", choices=choices, overrides=said).document(),
    }


@pytest.mark.parametrize("seed", range(LOGS // 8))
def test_every_figure_that_differs_from_the_exact_one_has_its_mark(tmp_path: Path, seed: int) -> None:
    random_log(tmp_path / "t-0", np.random.default_rng(seed))
    with mock.patch.object(header_sample, "EXACT_LOG_BYTES", -1):
        some, known = (documents(tmp_path, exact=exact) for exact in (False, True))
    assert list(differing(some, known)) == []
    assert some["ls"]["totals"]["estimates"] and some["plan"]["totals"]["estimates"] is not None
    assert not known["ls"]["totals"]["estimates"]


#: The parts of a text that are numbers, with their marks.
NUMBER = re.compile(r"(?:≈ |about |up to |≤ |± )?[0-9][0-9.,]*(?: [kM]\b)?")


@pytest.mark.parametrize("seed", range(LOGS // 8))
def test_every_number_in_a_text_that_differs_from_the_exact_one_has_its_mark(tmp_path: Path, seed: int) -> None:
    random_log(tmp_path / "t-0", np.random.default_rng(seed))
    said, choices = ("--config", "cleanup.policy=compact"), Choices(single_copy=True, ignore_ratio=True)
    texts = list[tuple[str, str]]()
    with mock.patch.object(header_sample, "EXACT_LOG_BYTES", -1):
        for words in (("ls",), ("ls", "--segments"), ("why", "--no-keys", "--now", T0, *said)):
            some, known = (run(words[0], tmp_path, *words[1:], *more).stdout for more in ((), ("--exact",)))
            assert ("sampled: 16 places a segment" in some) == (words[0] == "ls" and "≈" in some)
            texts.append((some, known))
        some, known = (planned(tmp_path, exact=exact, mark="end", choices=choices).text() for exact in (False, True))
        assert "work space are estimates" in some or some == known
        texts.append((some, known))
    for some, known in texts:
        exact = {*NUMBER.findall(known)}
        body = [line for line in some.splitlines() if " places " not in line]
        other = [one for one in NUMBER.findall("\n".join(body)) if one not in exact]
        assert [one for one in other if not one.startswith(("≈", "about", "≤", "up to"))] == [], some
