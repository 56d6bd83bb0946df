"""The objects of tiers that brokers filled: LocalTieredStorage; Aiven's plugin, plain, compressed and encrypted."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cordwood.common.errors import BadNameError
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.formats.properties import encode_id
from cordwood.storage.tier.aiven import AivenLayout
from cordwood.storage.tier.chunks import TierKey, read_key
from cordwood.storage.tier.local import Layout, LocalLayout
from cordwood.storage.tier.segments import CopyState, RemoteSegment
from tests.fixtures import copy_of, facts, fixture

FS = PosixFileSystem()


def remote(name: str) -> dict[str, dict[str, Any]]:
    """Facts of all finished remote segments of a fixture, by id."""
    return {
        segment["id"]: segment
        for partition in facts(name)["partitions"].values()
        for segment in partition.get("remote", ())
        if segment["state"] == "COPY_SEGMENT_FINISHED"
    }


def content(layout: Layout, segment: RemoteSegment, kind: FileKind = FileKind.LOG) -> bytes:
    with layout.open(segment, kind) as file:
        return file.read(0, file.size())


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


# ── LocalTieredStorage ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def local() -> LocalLayout:
    return LocalLayout(FS, str(fixture("local-tiered")))


def test_the_names_and_files_of_local_tiered_storage_describe_its_segments(local: LocalLayout) -> None:
    expected = remote("local-tiered")
    found = list(local.segments())
    assert {segment.id for segment in found} == expected.keys()
    for segment in found:
        facts_of = expected[segment.id]
        assert (segment.start_offset, segment.end_offset, segment.size_bytes, segment.max_timestamp_ms) == (
            facts_of["start"], facts_of["end"], facts_of["size"], facts_of["max_timestamp_ms"],
        )  # fmt: skip
        assert segment.epochs == tuple(EpochEntry(int(e), start) for e, start in facts_of["epochs"].items())
        assert segment.transaction_index_empty == facts_of["txn_index_empty"]
        assert digest(content(local, segment)) == facts_of["log_sha256"]


def test_local_segments_are_the_same_bytes_as_remote_ones(local: LocalLayout) -> None:  # case 33
    folder = fixture("local-tiered") / "kafka-logs" / "kept-local-0"
    segments = list(local.segments("kept-local"))
    assert [segment.start_offset for segment in segments] == [0, 175, 350, 515]
    for segment in segments:
        for kind in (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
            assert content(local, segment, kind) == (folder / f"{segment.start_offset:020d}{kind}").read_bytes()
    assert content(local, segments[0], FileKind.PRODUCER_SNAPSHOT) == (folder / f"{175:020d}.snapshot").read_bytes()
    assert content(local, segments[2], FileKind.LEADER_EPOCHS) == b"0\n2\n0 0\n2 400\n"  # case 32


def test_the_index_that_a_broker_cached_is_the_remote_one(local: LocalLayout) -> None:  # case 40
    (segment,) = [one for one in local.segments("orders") if one.id == "x8XOsuT1SV2jRD44LazHyA"]
    cache = fixture("local-tiered") / "kafka-logs" / "remote-log-index-cache"
    assert content(local, segment, FileKind.OFFSET_INDEX) == (cache / f"0_{segment.id}.index").read_bytes()
    assert FileKind.TRANSACTION_INDEX not in local.kinds(segment)
    with pytest.raises(FileNotFoundError):
        local.open(segment, FileKind.TRANSACTION_INDEX)


def test_sizes_are_known_without_opening_a_file(local: LocalLayout) -> None:
    segments = list(local.segments("payments"))
    sizes = [{kind: len(content(local, segment, kind)) for kind in local.kinds(segment)} for segment in segments]
    assert [dict(local.kinds(segment)) for segment in segments] == sizes
    assert sum(FileKind.TRANSACTION_INDEX in kinds for kinds in sizes) == 7  # case 34
    assert sum(not kinds[FileKind.OFFSET_INDEX] for kinds in sizes) == 6


def test_the_folder_of_the_partitions_may_itself_be_the_root(local: LocalLayout) -> None:
    below = LocalLayout(FS, str(fixture("local-tiered") / "kafka-tiered-storage") + "/")
    assert list(below.segments()) == list(local.segments())


def test_a_segment_whose_copy_was_cut_off_is_not_complete(tmp_path: Path) -> None:
    root = copy_of(fixture("local-tiered") / "kafka-tiered-storage", tmp_path / "kafka-tiered-storage")
    layout = LocalLayout(FS, str(tmp_path))
    first, second, *_ = layout.segments("trimmed")
    for snapshot in root.glob(f"*/*{first.id}.snapshot"):
        snapshot.unlink()
    assert next(layout.segments("trimmed")) == second
    assert FileKind.PRODUCER_SNAPSHOT not in layout.kinds(first)


def test_a_segment_that_was_copied_after_a_listing_is_found(tmp_path: Path) -> None:
    root = copy_of(fixture("local-tiered") / "kafka-tiered-storage", tmp_path / "kafka-tiered-storage")
    layout = LocalLayout(FS, str(tmp_path))
    segment, *_ = layout.segments("trimmed")
    newer = replace(segment, id=encode_id(uuid.UUID(int=52)))
    assert not layout.kinds(newer)
    for path in root.glob(f"*/*{segment.id}.*"):
        path.rename(path.with_name(path.name.replace(segment.id, newer.id)))
    assert layout.kinds(newer)[FileKind.LOG] == segment.size_bytes


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "../../../../etc/passwd"},
        {"id": "a" * 21 + "/"},
        {"topic_id": ".." + "a" * 20},
        {"topic": ".."},
        {"topic": "a/b"},
        {"partition": -1},
        {"start_offset": -1},
    ],
)
def test_names_that_lead_elsewhere_are_refused(local: LocalLayout, wrong: dict[str, Any]) -> None:
    segment = replace(next(local.segments()), **wrong)
    with pytest.raises(BadNameError):
        local.open(segment, FileKind.LOG)
    with pytest.raises(BadNameError):
        local.kinds(segment)


# ── Aiven's plugin ───────────────────────────────────────────────────────────────────────────────────────────────────

AIVEN = "aiven-s3"
#: Segments by start offset: plain, compressed with zstd, encrypted, both.
PAYMENTS = "payments-0"


@pytest.fixture(scope="module")
def bucket() -> Path:
    return fixture(AIVEN) / "bucket" / "kafka"


@pytest.fixture(scope="module")
def key() -> TierKey:
    return read_key(FS, str(fixture(AIVEN) / "test-key.json"))


@pytest.fixture(scope="module")
def aiven(bucket: Path, key: TierKey) -> AivenLayout:
    return AivenLayout(FS, str(bucket), [key])


def segment_at(layout: AivenLayout, topic: str, start: int, partition: int = 0) -> RemoteSegment:
    found = [one for one in layout.segments(topic) if (one.partition, one.start_offset) == (partition, start)]
    return found[0]


def test_the_manifests_of_a_bucket_describe_its_segments(aiven: AivenLayout) -> None:  # cases 42, 52
    expected = remote(AIVEN)
    found = list(aiven.segments())
    assert len(found) == len(expected) == 29
    for segment in found:
        facts_of = expected[segment.id]
        assert (segment.start_offset, segment.end_offset, segment.size_bytes, segment.max_timestamp_ms) == (
            facts_of["start"], facts_of["end"], facts_of["size"], facts_of["max_timestamp_ms"],
        )  # fmt: skip
        assert segment.epochs == tuple(EpochEntry(int(e), start) for e, start in facts_of["epochs"].items())
        assert segment.transaction_index_empty == facts_of["txn_index_empty"]
        assert segment.state is CopyState.COPY_FINISHED


def test_each_log_of_a_bucket_is_the_file_that_kafka_wrote(aiven: AivenLayout) -> None:  # cases 43, 45, 46, 48, 50
    expected = remote(AIVEN)
    forms = set()
    for segment in aiven.segments():
        assert digest(content(aiven, segment)) == expected[segment.id]["log_sha256"]
        manifest = aiven.manifest(segment)
        forms.add((manifest.is_compressed, manifest.encryption is not None, manifest.chunks.count > 1))
    assert len(forms) == 8  # with and without zstd, AES, several chunks


def test_indexes_are_cut_out_of_their_object(aiven: AivenLayout) -> None:
    plain = segment_at(aiven, "payments", 10)  # case 43
    sizes = {kind: len(content(aiven, plain, kind)) for kind in aiven.kinds(plain)}
    assert (
        sizes
        == dict(aiven.kinds(plain))
        == {
            FileKind.LOG: 15_517,
            FileKind.OFFSET_INDEX: 80,
            FileKind.TIME_INDEX: 120,
            FileKind.PRODUCER_SNAPSHOT: 56,
            FileKind.LEADER_EPOCHS: 8,
            FileKind.TRANSACTION_INDEX: 68,
        }
    )
    encrypted = segment_at(aiven, "payments", 450)  # case 49
    assert content(aiven, encrypted, FileKind.LEADER_EPOCHS) == b"0\n3\n0 0\n2 220\n4 440\n"
    one_batch = segment_at(aiven, "payments", 220)  # cases 44, 47
    assert content(aiven, one_batch, FileKind.OFFSET_INDEX) == b""
    with pytest.raises(FileNotFoundError):
        aiven.open(one_batch, FileKind.TRANSACTION_INDEX)
