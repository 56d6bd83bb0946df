"""Logs for cleans by many tasks."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from cordwood.common.types import ControlType
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from tests.cleaning.proof.planting import marker
from tests.cleaning.scripted import ScriptedLog


def random_log(folder: Path, seed: int, segments: int = 5) -> None:
    """A log whose first segment has keys of its own; the other segments have few keys, and transactions."""
    source = random.Random(seed)
    log = ScriptedLog()
    sequences = dict.fromkeys(range(1, 4), 0)
    for number in range(60):
        log.append(encode_batch([Record(number, 0, b"own %d" % number, b"v")]))
    for _ in range(segments - 1):
        log.roll()
        open_: set[int] = set()
        for _ in range(100):
            base, producer = log.next_offset, source.randrange(4)
            records = [
                Record(base + at, 0, b"%d" % source.randrange(40), source.choice([None, b"v" * source.randrange(9)]))
                for at in range(source.randrange(1, 4))
            ]
            if producer in open_ and source.random() < 0.2:
                log.append(marker(base, producer, source.choice([ControlType.ABORT, ControlType.COMMIT])).data)
                open_.remove(producer)
            elif producer:
                own: dict[str, Any] = {
                    "producer_id": producer,
                    "producer_epoch": 0,
                    "base_sequence": sequences[producer],
                }
                log.append(encode_batch(records, transactional=True, **own))
                sequences[producer] += len(records)
                open_.add(producer)
            else:
                log.append(encode_batch(records))
        for producer in sorted(open_):
            log.append(marker(log.next_offset, producer, source.choice([ControlType.ABORT, ControlType.COMMIT])).data)
    log.roll()
    folder.mkdir(parents=True)
    for name, stored in log.files().items():
        (folder / name).write_bytes(stored)
