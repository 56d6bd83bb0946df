"""Disk space of the outputs of a clean in place: bounds, estimates, and actual sizes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cordwood.api import plan, plan_exact
from cordwood.cleaning.engine.results import ExactPlan
from cordwood.cleaning.rules.plan import HeaderFacts, SegmentFacts
from cordwood.cleaning.rules.waves import Load, ProofDisk, Waves, expected_work_bytes, schedule, work_bytes
from cordwood.common.text import bytes_text
from cordwood.common.types import Codec
from cordwood.record.batch import encode_batch, encode_message_set
from cordwood.record.record import Record
from tests.commands.in_process import InThisProcess
from tests.logs import T0, write_log

COMPACT = ["cleanup.policy=compact"]
WEEK_MS = 7 * 24 * 3_600_000


def records(first: int, count: int, value: bytes | None) -> list[Record]:
    return [Record(offset, T0, b"%d" % offset, value) for offset in range(first, first + count)]


def planned_exactly(directory: Path, **choice: Any) -> ExactPlan:
    spark: Any = InThisProcess()
    return plan_exact(str(directory), spark=spark, overrides=COMPACT, now_ms=T0 + WEEK_MS, **choice)


def sizes(document: dict[str, Any]) -> tuple[Sequence[int], Sequence[int]]:
    (partition,) = document["partitions"]
    found = partition["compaction"]
    return found["group_bytes"], found["group_bytes_expected"]


def test_records_that_grow_under_a_delete_horizon_stay_within_the_bound(tmp_path: Path) -> None:
    # A tombstone gives its batch a horizon, which all timestamps then count from: four bytes more a record.
    batches = [
        encode_batch([*records(first, 999, b""), Record(first + 999, T0, b"%d" % (first + 999), None)])
        for first in range(0, 20_000, 1000)
    ]
    directory = write_log(tmp_path / "orders-0", batches, [encode_batch(records(20_000, 1, b""))])
    bound, _ = sizes(plan(str(directory), overrides=COMPACT, now_ms=T0 + WEEK_MS).document())
    exact, same = sizes(planned_exactly(directory).document())
    assert sum(map(len, batches)) + 60_000 < exact[0] <= bound[0]
    assert exact == same


def test_messages_of_magic_1_that_become_batches_stay_within_the_bound(tmp_path: Path) -> None:
    messages = [encode_message_set(1, records(0, 5000, b"value"))]
    directory = write_log(tmp_path / "orders-0", messages, [encode_batch(records(5000, 1, b""))])
    bound, expected = sizes(plan(str(directory), overrides=COMPACT, now_ms=T0 + WEEK_MS).document())
    exact, _ = sizes(planned_exactly(directory).document())
    assert len(messages[0]) < exact[0] <= bound[0] == expected[0] < 3 * len(messages[0])


def test_only_compressed_batches_are_allowed_to_double() -> None:
    segment = SegmentFacts(0, 1_000_000, 0, 0, T0, T0)

    def both(**facts: Any) -> tuple[int, int]:
        headers = [HeaderFacts(**facts)]
        return (
            work_bytes([segment], headers, index_interval_bytes=4096),
            expected_work_bytes([segment], headers, index_interval_bytes=4096),
        )

    plain = both(plain_records=100)
    assert plain[0] - plain[1] in range(1000, 1100)  # ten bytes a record, and the additional index entries
    mixed = both(compressed_bytes=300_000)
    assert mixed[1] == plain[1]
    assert mixed[0] - mixed[1] in range(300_000, 303_000)


def test_people_get_what_is_expected_and_after_a_trial_what_it_is(tmp_path: Path) -> None:
    values = [b"%d:" % number + b"value" * 20 for number in range(40)]
    batches = [
        encode_batch([Record(first + at, T0, b"key", value) for at, value in enumerate(values)], codec=Codec.ZSTD)
        for first in range(0, 80_000, 40)
    ]
    directory = write_log(tmp_path / "orders-0", batches, [encode_batch(records(80_000, 1, b""))])
    size = sum(map(len, batches))

    planned = plan(str(directory), overrides=COMPACT, now_ms=T0 + WEEK_MS)
    (bound,), (expected,) = sizes(planned.document())
    assert size < expected < 1.2 * size < 2 * size < bound
    *_, line = planned.text().splitlines()
    worst = f"{bytes_text(bound)} in the worst case"
    assert line == f"in place: up to {bytes_text(expected)} of work space (--work-space); {worst}"

    exact = planned_exactly(directory)
    (written,), same = sizes(json.loads(json.dumps(exact.document())))
    assert same == [written] and written < size / 4
    assert f"\nin place: {bytes_text(written)} of work space (--work-space)\n" in exact.text()


def waves_of(sizes: dict[str, tuple[int, ...]], proof: ProofDisk, *, proof_bytes: int = 10, room: int = 100) -> Waves:
    loads = {name: Load(1, groups, proof_bytes=proof_bytes) for name, groups in sizes.items()}
    return schedule(loads, {1: room}, proof=proof)


def test_the_proof_of_a_wave_takes_room_beside_its_outputs() -> None:
    groups = {"a": (30, 30, 30), "b": (30,)}
    elsewhere = waves_of(groups, ProofDisk(2, 20))
    assert [dict(wave) for wave in elsewhere.waves] == [{"a": (0, 3)}, {"b": (0, 1)}]
    assert (elsewhere.peak_bytes, elsewhere.proof_bytes_max) == ({1: 90}, 10)
    # All groups of `a` and its proof are 100.
    same = waves_of(groups, ProofDisk(1, 100))
    assert [dict(wave) for wave in same.waves] == [{"a": (0, 3)}, {"b": (0, 1)}]
    assert [dict(wave) for wave in waves_of(groups, ProofDisk(1, 99)).waves] == [
        {"a": (0, 2)},
        {"a": (2, 3), "b": (0, 1)},
    ]
    assert waves_of(groups, ProofDisk(1, 99)).proof_bytes_max == 20


def test_as_many_partitions_are_in_a_wave_as_there_is_room_for_their_proofs() -> None:
    waves = waves_of(dict.fromkeys("abcde", (1,)), ProofDisk(2, 20))
    assert [sorted(wave) for wave in waves.waves] == [["a", "b"], ["c", "d"], ["e"]]
    assert waves.proof_bytes_max == 20


def test_a_partition_without_room_for_its_proof_is_in_no_wave() -> None:
    assert waves_of({"a": (1,)}, ProofDisk(2, 9)).too_large == ("a",)
    assert waves_of({"a": (1,)}, ProofDisk(1, 10)).too_large == ("a",)
    assert not waves_of({"a": (1,)}, ProofDisk(1, 11)).too_large
    assert not waves_of({"a": (1,)}, ProofDisk(2, 0), proof_bytes=0).too_large
    assert not schedule({"a": Load(1, (1,), proof_bytes=10)}, {1: 100}).too_large, "nothing is proved"


def test_a_partition_that_fails_on_trial_needs_no_work_space(tmp_path: Path) -> None:
    damaged = encode_batch(records(0, 10, b"value"))[:-1] + b"\xff"
    directory = write_log(tmp_path / "orders-0", [damaged], [encode_batch(records(10, 1, b""))])
    exact = planned_exactly(directory)
    assert sizes(exact.document()) == ((), ())
    assert "in place:" not in exact.text()
