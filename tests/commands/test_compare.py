"""`compare`, from directories of several brokers to a verdict, an exit code, a page and metrics."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import cordwood
from cordwood.common.errors import NotFoundError, RequestError
from cordwood.common.types import TopicPartition
from cordwood.storage.formats.filenames import CLEANER_OFFSETS, HIGH_WATERMARKS, RECOVERY_POINTS
from tests.command import run
from tests.commands.made_broker import MadeBroker
from tests.logs import batch

T, D = TopicPartition("t", 0), TopicPartition("d", 0)
RULES = Path(__file__).parents[2] / "deploy/prometheus/cordwood.rules.yml"
#: Words of a compacted log, by offset: the whole log, as it is when a clean has removed a, and when a clean has
#: removed the tombstone as well.
WHOLE, CLEANED, LATER = ("a=1", "a", "b=1", "c=1"), (".", "a", "b=1", "c=1"), (".", ".", "b=1", "c=1")
#: A replica that was away, and cleaned away the tombstone's offset without the record below it.
RESURRECTED = ("a=1", ".", "b=1", "c=1")


def make_broker(
    folder: Path,
    node_id: int,
    compacted: Sequence[str] = WHOLE,
    deleted: Sequence[str] = ("x=1", "y=1"),
    **checkpoints: int,
) -> Path:
    """A broker's directory with t-0, which is compacted, and d-0, which is not."""
    broker = MadeBroker(folder / f"broker-{node_id}", node_id=node_id)
    broker.topic("t", replicas=(1, 2, 3), cleanup_policy="compact")
    broker.topic("d", replicas=(1, 2, 3), cleanup_policy="delete")
    for name, words in ((T, compacted), (D, deleted)):
        batches = [batch(at, word, leader_epoch=0) for at, word in enumerate(words) if word != "."]
        path = broker.log(f"{name}", batches)
        first = path / f"{0:020d}.log"
        if not first.exists():  # a clean keeps the name of the first segment
            for file in sorted(path.iterdir()):
                file.rename(path / f"{0:020d}{file.suffix}")
        broker.checkpoints[HIGH_WATERMARKS][name] = len(words)
    broker.checkpoints[RECOVERY_POINTS][T] = checkpoints.get("recovery", 4)
    if compacted is not WHOLE:
        broker.checkpoints[CLEANER_OFFSETS][T] = 4
    return broker.finish()


def test_replicas_that_were_cleaned_at_different_times_agree(tmp_path: Path) -> None:
    made = [make_broker(tmp_path, node_id, words) for node_id, words in enumerate((WHOLE, CLEANED, LATER), 1)]
    result = cordwood.compare(*made, engine="here")
    assert result.agrees and result.brokers == ("1", "2", "3")
    assert [len(one.pairs) for one in result.partitions] == [2, 2]
    assert result.sums["records_cleaned_on_one_side"] == 3 and result.sums["tombstones_on_one_side"] == 1
    done = run("compare", *made, "--engine", "here")
    assert done.stdout.splitlines()[0] == "2 partitions, 6 replicas compared"
    assert done.stdout.splitlines()[-1] == "All replicas agree"


def test_each_difference_is_named_with_its_broker_offset_and_key(tmp_path: Path) -> None:
    made = [make_broker(tmp_path, 1, CLEANED), make_broker(tmp_path, 2, RESURRECTED, ("x=1", "y=2"))]
    done = run("compare", *made, "--engine", "here", exits=1)
    assert done.stdout == (
        "d-0: broker 2 compared with the newest replica, on broker 1, offsets 0 to 1\n"
        "  changed: 1 – the replicas have different records at these offsets\n"
        "    offset 1, key y: different value; seen once broker 2 leads\n"
        "t-0: broker 2 compared with the newest replica, on broker 1, offsets 0 to 3\n"
        "  resurrected: 1 – a deleted key has a value\n"
        "    offset 1, key a: a tombstone at 1 on broker 1, a value at 0 on broker 2; seen once broker 2 leads\n"
        "2 partitions, 4 replicas compared\n"
        "             3  batches are equal, byte for byte (210 B)\n"
        "             2  explained by timing: records that one replica has cleaned away\n"
        "2 partitions with differences: consumers can see other data after an election\n"
    )
    shown = run("compare", *made, "--topic", "t", "--engine", "here", "--json", exits=1).json
    assert shown["by_kind"] == {"resurrected": 1} and not shown["agrees"]
    (named,) = shown["partitions"][0]["pairs"][0]["named"]
    assert (named["visible_with"], named["key"], named["offset"]) == ("2", "a", 1)


def test_metrics_and_a_page_are_written_as_a_whole(tmp_path: Path) -> None:
    made = [make_broker(tmp_path, 1, CLEANED), make_broker(tmp_path, 2, RESURRECTED)]
    metrics, page = tmp_path / "compare.prom", tmp_path / "page.html"
    run("compare", *made, "--engine", "here", "--prometheus", metrics, "--report", page, exits=1)
    assert sorted(tmp_path.iterdir()) == [*made, metrics, page]
    lines = metrics.read_text().splitlines()
    assert "cordwood_compare_partitions 2" in lines and "cordwood_compare_partitions_differing 1" in lines
    labels = 'topic="t",partition="0",broker="2",kind="resurrected"'
    assert f"cordwood_compare_partition_differences{{{labels}}} 1" in lines
    # An alert must not ask for a metric that does not exist.
    assert set(re.findall(r"cordwood_compare_\w+", RULES.read_text())) <= {re.split(r"[{ ]", line)[0] for line in lines}
    text = page.read_text()
    assert "resurrected" in text and "seen once broker 2 leads" in text


def test_a_sample_compares_some_keys_and_all_batches(tmp_path: Path) -> None:
    words = [f"k{at}=1" for at in range(200)]
    made = [make_broker(tmp_path, 1, words), make_broker(tmp_path, 2, [".", *words[1:]])]
    for folder in (*made,):
        (folder / CLEANER_OFFSETS).write_text("0\n1\nt 0 200\n")
    totals = [len(cordwood.compare(*made, engine="here", sample=0.3).totals) for _ in range(60)]
    assert 4 < sum(totals) < 35, "the chance of fewer or more is below 10^-4"
    assert len(cordwood.compare(*made, engine="here").totals) == 1
    for share in ("0", "1.1", "x"):
        assert run("compare", *made, "--sample", share, exits=2).stderr


def test_impossible_checkpoints_are_named_and_set_no_exit_code(tmp_path: Path) -> None:
    made = [make_broker(tmp_path, 1), make_broker(tmp_path, 2, recovery=9)]
    done = run("compare", *made, "--engine", "here")
    assert "t-0: broker 2: the recovery point, 9, is above the log's end, 4" in done.stdout


def test_copies_without_meta_properties_are_compared_by_their_paths(tmp_path: Path) -> None:
    made = [make_broker(tmp_path, 1), make_broker(tmp_path, 2, deleted=("x=1", ".", "z=1"))]
    copies = [
        Path(shutil.copytree(path / "d-0", tmp_path / name / "d-0")) for path, name in zip(made, "ab", strict=True)
    ]
    result = cordwood.compare(*copies, engine="here")
    assert result.brokers == tuple(map(str, copies))
    with pytest.raises(NotFoundError, match="No partition has two replicas"):
        cordwood.compare(copies[0], engine="here")
    with pytest.raises(RequestError, match="sample"):
        cordwood.compare(*copies, sample=2.0)


@pytest.mark.slow
def test_spark_finds_the_same(tmp_path: Path, spark: SparkSession) -> None:
    made = [make_broker(tmp_path, 1, CLEANED), make_broker(tmp_path, 2, RESURRECTED, ("x=1", "y=2"))]
    here, there = cordwood.compare(*made, engine="here"), cordwood.compare(*made, spark=spark)
    assert [one.pairs for one in here.partitions] == [one.pairs for one in there.partitions]
    assert json.dumps(there.document()["by_kind"]) == json.dumps({"changed": 1, "resurrected": 1})
