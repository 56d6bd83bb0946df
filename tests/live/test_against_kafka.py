"""Random scripts about a log, done by Kafka's classes and by the live log: the same results, errors and files."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from cordwood.cleaning.engine.scan import scan_by_index
from cordwood.common.types import TopicPartition
from cordwood.record.batch import MAX_SEQUENCE
from cordwood.storage.formats import checkpoints, filenames
from cordwood.storage.log.files import read_file
from tests import knobs
from tests.kafka_tools import Oracle
from tests.live.cleaning import _INDEXED
from tests.live.comparing import differences
from tests.live.live_script import LiveScript


@contextlib.contextmanager
def with_indexes() -> Iterator[None]:
    """In the block, all logs have key indexes."""
    _INDEXED[0] = True
    try:
        # An index is larger than these segments.
        with (
            mock.patch("cordwood.storage.index.build.SEGMENT_SHARE", 0),
            mock.patch("cordwood.cleaning.engine.indexing.SEGMENT_SHARE", 0),
        ):
            yield
    finally:
        _INDEXED[0] = False


# ---- random scripts --------------------------------------------------------------------------------------------------

# Random scripts about one log: every call in every order, with valid and with refused arguments.
#
# The same seed gives the same script. The generator tracks offsets and producers roughly, so that most steps have an
# effect.

Step = dict[str, Any]

NOW_MS = 1_700_000_000_000
NAME = "t-0"
CODECS = ("gzip", "snappy", "lz4", "zstd")


class _Producer:
    def __init__(self, number: int) -> None:
        self.id = number
        self.epoch = 0
        self.sequence = 0
        self.in_transaction = False


class LogScript:
    """Makes one script.

    Attributes:
        steps: so far.
    """

    def __init__(self, seed: int, steps: int, *, compressed: bool = False) -> None:
        self._random = random.Random(seed)
        self._compressed = compressed
        self._end = 0
        self._epoch = 0
        self._is_open = True
        self._producers = [_Producer(100 + number) for number in range(3)]
        self._config = self._first_config()
        self.steps: list[Step] = []
        makers = self._makers()
        while len(self.steps) < steps:
            (maker,) = self._random.choices([one for one, _ in makers], [weight for _, weight in makers])
            for step in maker():
                step["expect_error"] = "maybe"
                self.steps.append(step)
        self.steps += [{"op": op, "expect_error": "maybe"} for op in ("dump", "files")]

    def script(self) -> dict[str, Any]:
        """The script."""
        return {"now": NOW_MS, "logs": {NAME: dict(self._config)}, "steps": self.steps}

    def _first_config(self) -> dict[str, str]:
        pick = self._random.choice
        config = {
            "cleanup.policy": pick(["compact", "delete", "delete", "compact,delete"]),
            "index.interval.bytes": pick(["0", "64", "4096"]),
            "segment.index.bytes": pick(["64", "240", "10485760"]) if not self._compressed else "1048576",
            "file.delete.delay.ms": pick(["0", "1000", "60000"]),
            "message.timestamp.type": pick(["CreateTime", "CreateTime", "LogAppendTime"]),
        }
        if not self._compressed:
            config["segment.bytes"] = pick(["300", "1000", "4000", "1073741824"])
            config["max.message.bytes"] = pick(["400", "1048588"])
        else:
            config["compression.type"] = pick(["producer", "uncompressed", *CODECS])
        if self._random.random() < 0.3:
            config["auto_high_watermark"] = "false"
        return config

    def _makers(self) -> list[tuple[Any, int]]:
        makers = [
            (self._append, 24),
            (self._append_producer, 16),
            (self._transaction, 8),
            (self._follow, 5),
            (self._follow_many, 4),
            (self._marker, 6),
            (self._roll, 5),
            (self._high_watermark, 4),
            (self._leader_epoch, 2),
            (self._clock, 5),
            (self._configure, 3),
            (self._delete_records, 3),
            (self._truncate, 3),
            (self._truncate_fully, 1),
            (self._reopen, 4),
            (self._look, 14),
            (self._cleaner, 6),
            (self._clean, 8),
        ]
        if not self._compressed:
            makers += [(self._retention, 4), (self._damage, 2), (self._files, 3)]
        return makers

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _offset(self) -> int:
        return self._random.choice([0, self._end, self._end + 1, *[self._random.randint(0, self._end + 1)] * 4])

    def _records(self, count: int | None = None) -> list[Any]:
        pick, chance = self._random.choice, self._random.random
        found = []
        for _ in range(count or pick([1, 1, 2, 3, 8])):
            key = None if chance() < 0.03 else pick("abcdefgh")
            value: Any = None if chance() < 0.1 else pick(["1", "22", {"size": pick([10, 100, 200]), "of": "v"}])
            timestamp: int | None = None
            if chance() < 0.3:
                timestamp = NOW_MS + pick([-100_000, -1, 0, 1, 5_000, 70_000, 3_000_000])
            elif chance() < 0.03:
                timestamp = pick([-1, 0, NOW_MS + 4_000_000_000])
            headers = [["h", "x"]] if chance() < 0.1 else None
            found.append([key, value, timestamp, headers])
        self._end += len(found)
        return found

    def _codec(self) -> Step:
        return {"codec": self._random.choice(["none", *CODECS])} if self._compressed else {}

    def _append(self) -> list[Step]:
        step: Step = {"op": "append", "records": self._records(), **self._codec()}
        chance = self._random.random
        if chance() < 0.04:
            step["timestamp_type"] = "append"
        if chance() < 0.05:
            step["origin"] = self._random.choice(["coordinator", "raft_leader", "replication"])
        if chance() < 0.05:
            step["leader_epoch"] = self._random.choice([0, self._epoch, self._epoch + 1])
        if chance() < 0.04:
            step["magic"] = self._random.choice([0, 1])
            step["records"] = [record[:3] for record in step["records"]]
            if step.get("codec") in ("zstd", "lz4"):
                step["codec"] = "none"
        return [step]

    def _append_producer(self, *, transactional: bool = False) -> list[Step]:
        producer = self._random.choice(self._producers)
        if transactional:
            producer.in_transaction = True
        chance = self._random.random()
        records = self._records()
        sequence, epoch = producer.sequence, producer.epoch
        if chance < 0.08:
            sequence = max(0, sequence - self._random.choice([1, 2, 3]))
        elif chance < 0.14:
            sequence += self._random.choice([1, 5, MAX_SEQUENCE - 10])
        elif chance < 0.20:
            epoch = max(0, epoch + self._random.choice([-1, 1]))
            sequence = self._random.choice([0, sequence])
        if chance >= 0.08:
            producer.sequence = sequence + len(records)
            producer.epoch = max(epoch, producer.epoch)
        step: Step = {
            "op": "append",
            "records": records,
            "producer": {"id": producer.id, "epoch": epoch, "seq": sequence % (MAX_SEQUENCE + 1)},
            **self._codec(),
        }
        if producer.in_transaction and self._random.random() < 0.95:
            step["transactional"] = "true"
        # A batch that is sent again, after others.
        again = [dict(step)] if self._random.random() < 0.15 else []
        return [step, *again]

    def _transaction(self) -> list[Step]:
        return self._append_producer(transactional=True)

    def _marker(self) -> list[Step]:
        producer = self._random.choice(self._producers)
        version = self._random.choice([0, 1, 1, 2])
        epoch = producer.epoch
        if version == 2 and self._random.random() < 0.8:
            epoch += 1
            producer.epoch, producer.sequence = epoch, 0
        elif self._random.random() < 0.1:
            epoch = max(0, epoch + self._random.choice([-1, 1]))
        producer.in_transaction = False
        self._end += 1
        return [
            {
                "op": "marker",
                "type": self._random.choice(["commit", "abort"]),
                "producer": {"id": producer.id, "epoch": epoch},
                "coordinator_epoch": self._random.choice([0, 0, 0, 1, 2]),
                "transaction_version": version,
            }
        ]

    def _follow(self) -> list[Step]:
        offset = self._end + self._random.choice([0, 0, 1, 5, -1])
        step: Step = {"op": "append", "offset": max(0, offset), "records": self._records(), **self._codec()}
        self._end = max(self._end, offset + len(step["records"]))
        if self._random.random() < 0.2:
            step["leader_epoch"] = self._epoch
        if self._random.random() < 0.2:
            producer = self._random.choice(self._producers)
            sequence = producer.sequence % (MAX_SEQUENCE + 1)
            step["producer"] = {"id": producer.id, "epoch": producer.epoch, "seq": sequence}
            producer.sequence += len(step["records"])
        return [step]

    def _follow_many(self) -> list[Step]:
        batches, offset = [], self._end
        for _ in range(self._random.choice([1, 2, 3])):
            offset += self._random.choice([0, 0, 0, 2, -1])
            records = self._records()
            batch: Step = {"offset": max(0, offset), "records": records, **self._codec()}
            if self._random.random() < 0.2:
                batch["leader_epoch"] = self._epoch + self._random.choice([0, 1])
            batches.append(batch)
            offset += len(records)
        self._end = offset
        return [{"op": "append_raw", "batches": batches}]

    def _roll(self) -> list[Step]:
        return [{"op": "roll"}]

    def _high_watermark(self) -> list[Step]:
        return [{"op": "high_watermark", "offset": self._offset()}]

    def _leader_epoch(self) -> list[Step]:
        self._epoch += self._random.choice([1, 1, 3])
        return [{"op": "leader_epoch", "epoch": self._epoch}]

    def _clock(self) -> list[Step]:
        return [{"op": "advance_clock", "ms": self._random.choice([1, 1_000, 61_000, 700_000, 90_000_000])}]

    def _configure(self) -> list[Step]:
        pick = self._random.choice
        choices = [
            ("retention.ms", ["-1", "0", "1000", "604800000"]),
            ("cleanup.policy", ["compact", "delete", "compact,delete", ""]),
            ("message.timestamp.type", ["CreateTime", "LogAppendTime"]),
            ("message.timestamp.before.max.ms", ["1000", "9223372036854775807"]),
            ("segment.ms", ["1", "1000", "604800000"]),
            ("flush.messages", ["1", "5", "9223372036854775807"]),
            ("min.cleanable.dirty.ratio", ["0.0", "0.5", "1.0"]),
            ("min.compaction.lag.ms", ["0", "1000", "80000"]),
            ("max.compaction.lag.ms", ["100000", "9223372036854775807"]),
        ]
        if self._compressed:
            choices += [("compression.type", ["producer", "uncompressed", *CODECS])]
        else:
            choices += [
                ("segment.bytes", ["300", "1000", "1073741824"]),
                ("retention.bytes", ["-1", "0", "500", "2000"]),
                ("max.message.bytes", ["200", "1048588"]),
            ]
        name, values = pick(choices)
        return [{"op": "set_config", "config": {name: pick(values)}}]

    def _retention(self) -> list[Step]:
        return [{"op": "retention"}]

    def _delete_records(self) -> list[Step]:
        return [{"op": "delete_records", "offset": self._random.choice([-1, self._offset(), self._offset()])}]

    def _truncate(self) -> list[Step]:
        offset = self._offset()
        self._end = min(self._end, offset)
        return [{"op": "truncate_to", "offset": offset}]

    def _truncate_fully(self) -> list[Step]:
        self._end = self._offset() + self._random.choice([0, 3])
        return [{"op": "truncate_fully", "offset": self._end}]

    def _reopen(self) -> list[Step]:
        if self._random.random() < 0.5:
            return [{"op": "reopen"}]
        return [{"op": "reopen", "clean": False}]

    def _damage(self) -> list[Step]:
        """A crash that leaves the end of the last segment cut off, and an index behind."""
        return [{"op": "reopen", "clean": False, "recovery_point": 0}]

    def _clean(self) -> list[Step]:
        """A clean of the log, or a round of a cleaner thread."""
        chance = self._random.random()
        before = [{"op": "roll"}] if self._random.random() < 0.5 else []
        if chance < 0.3:
            return [*before, {"op": "clean", "auto": True, "delete": self._random.random() < 0.5}]
        if chance < 0.4:
            return [{"op": "manager", "call": "remove_checkpoint"}, *before, {"op": "clean"}]
        return [*before, {"op": "clean"}]

    def _cleaner(self) -> list[Step]:
        """Calls of cleaner threads, retention and deletions to the cleaner's manager; and queries of the dirty
        range.
        """
        pick = self._random.choice
        call = pick(
            [
                *("select", "select", "grab", "grab", "deletable", "pause_for_retention"),
                *("done_cleaning", "done_deleting"),
                *("resume", "resume", "check_aborted", "update_checkpoint", "update_checkpoint", "remove_checkpoint"),
                *("maybe_truncate_checkpoint", "mark_uncleanable", "maintain_uncleanable", "state", "abort_and_pause"),
            ]
        )
        if call == "select" and not self._compressed:
            return [{"op": "select"}]
        if call == "mark_uncleanable" and self._random.random() < 0.7:
            call = "state"
        asked = {"op": "manager", "call": call if call != "select" else "state", "offset": self._offset()}
        if call not in ("grab", "deletable"):
            return [asked]
        # While it is in progress a truncation would wait, in Kafka as here.
        ends = {
            "op": "manager",
            "call": "done_cleaning" if call == "grab" else "done_deleting",
            "offset": self._offset(),
        }
        between = {"op": "manager", "call": pick(["state", "check_aborted", "abort_and_pause", "resume"])}
        return [asked, between, ends] if self._random.random() < 0.6 else [asked, ends]

    def _files(self) -> list[Step]:
        return [{"op": "files"}]

    def _look(self) -> list[Step]:
        pick = self._random.choice
        max_bytes = pick([1 << 20, 0, 100, 500, 2000]) if not self._compressed else 1 << 20
        return [
            pick(
                [
                    {"op": "dump"},
                    {"op": "producers"},
                    {"op": "expire_producers"},
                    {"op": "offset_for_timestamp", "ts": NOW_MS + pick([-200_000, -1, 0, 1, 5_000, 4_000_000_000])},
                    {"op": "offset_for_timestamp", "ts": pick([-1, -2, -3, -4, -5, -6, -7]), "epoch": True},
                    *[
                        {
                            "op": "read",
                            "offset": self._offset(),
                            "isolation": pick(["uncommitted", "committed", "log_end"]),
                            "max_bytes": max_bytes,
                            "min_one": pick([True, True, False]) if not self._compressed else True,
                        }
                        for _ in range(3)
                    ],
                ]
            )
        ]


SCRIPTS = knobs.scaled(200, 2000)
STEPS = 60
SHARES = 4
#: Every fourth script compresses, and does not look at sizes.
COMPRESSED_EVERY = 4
#: Scripts per process of the oracle.
SLICE = 50


@pytest.mark.kafka
@pytest.mark.parametrize("indexed", [False, True], ids=["", "with key indexes"])
@pytest.mark.parametrize("share", range(SHARES))
def test_random_interleavings_of_all_calls_do_what_kafkas_log_does(
    kafka_oracle: Oracle, tmp_path: Path, share: int, indexed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = list(range(knobs.SEED + share, knobs.SEED + SCRIPTS, SHARES))
    used = counted_scans(monkeypatch)
    seen: Counter[str] = Counter()
    found = []
    for first in range(0, len(seeds), SLICE):
        scripts = {
            seed: LogScript(seed, STEPS, compressed=_compresses(seed)).script() for seed in seeds[first : first + SLICE]
        }
        for seed, script in scripts.items():
            (tmp_path / f"{seed}.json").write_text(json.dumps(script))
        answers = kafka_oracle.batch([("run", tmp_path / f"{seed}.json", tmp_path / str(seed)) for seed in scripts])
        for (seed, script), lines in zip(scripts.items(), answers, strict=True):
            shutil.rmtree(tmp_path / str(seed))
            with with_indexes() if indexed else nullcontext():
                for what in differences(script, lines, compressed=_compresses(seed), seen=seen):
                    found.append(f"seed {seed}, {what}")
    print(dict(sorted(seen.items())))
    assert not found, "\n".join(found[:20])
    assert seen["append: done"] > 10 * len(seeds)
    assert not indexed or used["believed"], used


def counted_scans(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the segments with a valid index, and those without."""
    used: Counter[str] = Counter()

    def scan(*args: Any, **choice: Any) -> Any:
        run = scan_by_index(*args, **choice)
        used["none" if run is None else "believed"] += 1
        return run

    monkeypatch.setattr("cordwood.cleaning.engine.scan.scan_by_index", scan)
    return used


def _compresses(seed: int) -> bool:
    return seed // SHARES % COMPRESSED_EVERY == 0


@pytest.mark.kafka
def test_kafka_loads_what_a_live_log_left_without_a_repair(kafka_oracle: Oracle, tmp_path: Path) -> None:
    asked = []
    for seed in range(knobs.SEED, knobs.SEED + 24):
        live = LiveScript(LogScript(seed, STEPS).script())
        for _ in live.lines():
            pass
        for name, log in live.logs.items():
            log.flush(force_active_segment=True)
            log.close()
            folder = tmp_path / str(seed) / name
            folder.mkdir(parents=True)
            for info in live.fs.list(log.directory):
                (folder / info.name).write_bytes(read_file(live.fs, f"{log.directory}/{info.name}"))
            partition = TopicPartition("t", 0)
            starts = checkpoints.encode({partition: log.log_start_offset})
            (folder.parent / filenames.LOG_START_OFFSETS).write_bytes(starts)
            size = log.config.segment_index_bytes
            asked.append(("check", folder, "--config", f"segment.index.bytes={size}"))
    answers = kafka_oracle.batch(asked, exits=(0, 1))
    assert len(answers) > 15
    assert [line["problems"] for (line,) in answers] == [[] for _ in answers]


@pytest.mark.kafka
def test_a_segment_that_was_cleaned_and_truncated_has_the_time_index_of_kafkas(
    kafka_oracle: Oracle, tmp_path: Path
) -> None:
    # Kafka's cleaner keeps the largest timestamp of its output, so the truncation searches for a remaining record with
    # it.
    late = 1_700_000_070_000
    steps = [
        {"op": "append", "records": [["a", "1", late, None]]},
        {"op": "append", "records": [["b", "1", late + 1, None]]},
        {"op": "roll"},
        {"op": "clean"},
        {"op": "append", "records": [["b", "2", late + 2, None]]},
        {"op": "roll"},
        {"op": "clean"},
        {"op": "truncate_to", "offset": 1},
        {"op": "append", "records": [["c", "1", None, None]]},
        {"op": "roll"},
        {"op": "dump"},
    ]
    script = {"now": late - 70_000, "logs": {"t-0": {"cleanup.policy": "compact"}}, "steps": steps}
    (tmp_path / "script.json").write_text(json.dumps(script))
    (lines,) = kafka_oracle.batch([("run", tmp_path / "script.json", tmp_path / "out")])
    assert lines[-1]["segments"][0]["time_index"] == [[late, 0]]
    assert list(differences(script, lines, compressed=False, seen=Counter())) == []
