"""A broker's directory as that of a small shop could be, with four weeks of records, for pictures of the pages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cordwood.common.config import DAY_MS
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from tests.cleaning.engine.logs import make_log
from tests.storage.internal_logs import batch, offset_commit, write_log

NOW_MS = 1_795_000_000_000
_DAYS, _BATCH_RECORDS, _SEGMENT_BYTES, _SEED = 28, 25, 500_000, 5


@dataclass(frozen=True)
class Topic:
    """Contents of a topic.

    Attributes:
        keys: number of distinct keys; 0 if every record has its own.
        value_bytes: mean size of a record's value.
        cleaned: cleaned fraction of each log.
    """

    name: str
    policy: str
    partitions: int
    records: int
    keys: int
    value_bytes: int
    cleaned: float = 0.0


TOPICS = (
    Topic("customer-profiles", "compact", 2, 9_000, 2_500, 420, cleaned=0.45),
    Topic("shopping-carts", "compact", 2, 6_000, 900, 300, cleaned=0.2),
    Topic("product-prices", "compact", 1, 5_000, 2_500, 180, cleaned=0.5),
    Topic("orders", "delete", 3, 5_000, 0, 700),
    Topic("payments", "delete", 2, 2_500, 0, 350),
    Topic("clickstream", "delete", 3, 9_000, 0, 240),
)
CONFIGS = (
    *(f"{one.name}:cleanup.policy={one.policy}" for one in TOPICS),
    f"orders:retention.ms={365 * DAY_MS}",
    f"payments:retention.ms={365 * DAY_MS}",
    f"clickstream:retention.ms={21 * DAY_MS}",
)
#: Offsets read by groups, as a share of each log.
_GROUPS = {
    "billing": {"orders": 1.0, "payments": 0.97},
    "search-indexer": {"product-prices": 0.92},
    "recommendations": {"clickstream": 0.55, "orders": 0.99},
}


def made_shop(folder: Path, *topics: str) -> Path:
    """The directory with these topics; by default with all, and with groups."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(_SEED)
    checkpoint = []
    for topic in TOPICS:
        for number in range(topic.partitions if not topics or topic.name in topics else 0):
            cleaned = round(topic.cleaned * topic.records)
            _write(folder / f"{topic.name}-{number}", topic, cleaned, draw)
            checkpoint.append(f"{topic.name} {number} {cleaned}")
    (folder / "cleaner-offset-checkpoint").write_text("\n".join(["0", str(len(checkpoint)), *checkpoint]) + "\n")
    if not topics:
        commits = [
            offset_commit(group, topic.name, number, round(share * topic.records))
            for group, shares in _GROUPS.items()
            for topic in TOPICS
            for number in range(topic.partitions)
            if (share := shares.get(topic.name)) is not None
        ]
        write_log(folder / "__consumer_offsets-0", batch(0, commits))
    return folder


def _write(folder: Path, topic: Topic, cleaned: int, draw: np.random.Generator) -> None:
    # Some keys get more updates than others; of each key in the cleaned part, the last record exists.
    shares = draw.random(topic.records) ** 2
    ids = (shares * topic.keys).astype(np.int64) if topic.keys else np.arange(topic.records)
    last = {key: at for at, key in enumerate(ids[:cleaned].tolist())}
    kept = [at for at, key in enumerate(ids.tolist()) if at >= cleaned or last[key] == at]
    sizes = draw.integers(topic.value_bytes // 2, topic.value_bytes * 3 // 2, topic.records).tolist()
    is_tombstone = draw.random(topic.records) < (0.03 if topic.keys else 0.0)
    step_ms = _DAYS * DAY_MS // topic.records
    segments: list[tuple[int, list[bytes]]] = []
    for start in range(0, len(kept), _BATCH_RECORDS):
        offsets = kept[start : start + _BATCH_RECORDS]
        if not segments or sum(map(len, segments[-1][1])) > _SEGMENT_BYTES:
            segments.append((offsets[0], []))
        segments[-1][1].append(
            encode_batch(
                [
                    Record(
                        at,
                        NOW_MS - (topic.records - at) * step_ms,
                        f"{topic.name[:-1]}-{ids[at]}".encode(),
                        None if is_tombstone[at] else b"v" * sizes[at],
                    )
                    for at in offsets
                ]
            )
        )
    make_log(folder, *segments)
