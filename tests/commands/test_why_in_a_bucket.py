"""`why` of directories in an object store: the answer for a copy on disk, without the causes found by file times."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood import CauseKind
from cordwood.cli.demo import unpack
from cordwood.cli.main import EXIT_DAMAGE
from cordwood.common.errors import RequestError
from cordwood.common.types import TopicPartition
from cordwood.storage.formats.filenames import CLEANER_OFFSETS, HIGH_WATERMARKS
from tests.command import run
from tests.commands.made_broker import MadeBroker, same
from tests.fs.object_server import Server, running_server
from tests.logs import HOUR, T0, batch

pytestmark = pytest.mark.more

T = TopicPartition("t", 0)


NOW_MS = 1_800_000_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server() as found:
        yield found


def told(result: cordwood.WhyResult, root: str) -> Mapping[str, Any]:
    """The causes of each partition, without those found by file times and disk blocks."""
    return {
        one.name: (
            [(cause.kind, cause.bytes_max) for cause in one.causes if cause.kind is not CauseKind.INDEXES],
            [evidence.what for cause in one.causes for evidence in cause.evidence if " UTC" not in evidence.what],
            one.offline.replace(root, "DIR"),
            one.keys,
        )
        for one in result.partitions
    }


@pytest.mark.parametrize("name", ["kafka-logs", "kafka-groups"])
def test_a_bucket_has_the_causes_of_a_disk(server: Server, tmp_path: Path, name: str) -> None:
    unpack(tmp_path)
    url = server.upload(tmp_path / name, name)
    # All records have expired; partly expired segments are only counted on a disk.
    there = cordwood.why(url, now_ms=NOW_MS)
    copied = server.same_times(tmp_path / name, name, tmp_path / "copy")
    here = cordwood.why(str(copied), now_ms=there.now_ms)
    assert told(there, url) == told(here, str(copied))
    assert {one.broker for one in there.partitions} == {"nothing: it is in an object store"}
    assert "last sign of a running broker" not in there.text()


def made(tmp_path: Path, server: Server, name: str, *, damage: bytes = b"") -> tuple[Path, str]:
    """A log that has been due for a day, of a broker that ran on for hours after that."""
    broker = MadeBroker(tmp_path / name)
    broker.topic("t", cleanup_policy="compact")
    broker.log("t-0", [batch(0, *same(50)), *([damage] if damage else [])], [batch(50, *same(1))])
    broker.checkpoints[HIGH_WATERMARKS][T] = 51
    broker.times = {HIGH_WATERMARKS: T0 + 5 * HOUR, CLEANER_OFFSETS: T0 - HOUR}
    return broker.finish(), server.upload(tmp_path / name, name)


def test_no_time_of_an_upload_is_taken_for_the_end_of_a_cleaner(server: Server, tmp_path: Path) -> None:
    path, url = made(tmp_path, server, "due")
    (here,) = cordwood.why(str(path), topics=["t"], now_ms=T0 + 24 * HOUR).partitions
    assert here.cause.kind is CauseKind.CLEANER_DEAD
    (there,) = cordwood.why(url, topics=["t"], now_ms=T0 + 24 * HOUR).partitions
    assert there.cause.kind is CauseKind.NO_BROKER
    assert there.cause.what.startswith("a clean is due, and no broker runs on an object store: ")
    assert there.cause.next_step == "run cordwood clean --output URL, which writes a cleaned copy"
    assert [one.what for one in there.cause.evidence if "UTC" in one.what] == []


def test_damage_in_a_bucket_is_named_and_ends_with_its_exit_code(server: Server, tmp_path: Path) -> None:
    _, url = made(tmp_path, server, "damaged", damage=b"\xff" * 200)
    done = run("why", url, "--topic", "t", "--json", exits=EXIT_DAMAGE)
    (partition,) = json.loads(done.output)["partitions"]
    assert partition["causes"][0]["kind"] == CauseKind.DAMAGED


def test_a_hanging_transaction_in_a_bucket_is_named_and_ended_after_a_fetch(server: Server, tmp_path: Path) -> None:
    unpack(tmp_path)
    url = server.upload(tmp_path / "kafka-groups", "groups")
    assert cordwood.transactions(url).with_outlook(cordwood.Outlook.HANGING)
    with pytest.raises(RequestError, match=f"Bring it back first: cordwood fetch {url} DIR"):
        cordwood.abort_transaction(url, topic="orders", producer_id=1, yes=True)
