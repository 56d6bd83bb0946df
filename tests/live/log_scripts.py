"""Random scripts about one log: every call in every order, with valid and with refused arguments.

The same seed gives the same script. The generator tracks offsets and producers roughly, so that most steps have an
effect.
"""

from __future__ import annotations

import random
from typing import Any

from cordwood.record.batch import MAX_SEQUENCE

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
